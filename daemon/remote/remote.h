/* SPDX-License-Identifier: Apache-2.0 */
/* The shared tier: chunks on a back end that several hosts use, behind memory and disk.
 *
 * The storage system (a shared file system, Ceph, S3) is slow, not under our control, and may be
 * down. Therefore everything read from it is checked, everything sent to it may be lost, and only
 * requests that asked for the shared tier wait for it, each with a deadline. Every failure of the
 * storage system is a miss and a counter.
 *
 * Runs on the loop thread; a back end (backend.h) has its own threads. Reads and writes use the
 * tier's own memory, bounded by read_inflight and write_inflight, so that a storage system that
 * hangs occupies neither the pool nor a client's memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/histogram.h"
#include "base/list.h"
#include "key.h"
#include "remote/backend.h"
#include "remote/breaker.h"
#include "remote/object.h"

struct remote;

enum remote_write { REMOTE_WRITE_NEVER, REMOTE_WRITE_REUSED, REMOTE_WRITE_ALL };

struct remote_put;

struct remote_params {
        const struct backend_ops *ops;
        struct backend_params backend;
        const char *prefix; /* first part of every object's name, such as "kvcache" */
        enum remote_write write;
        uint64_t write_rate;     /* bytes per second; 0: no limit */
        uint64_t read_inflight;  /* most bytes of buffers for reads, unless a single one is
                                  * larger */
        uint64_t write_inflight; /* most bytes of buffers for writes, unless a single one is
                                  * larger */
        uint64_t write_queue;    /* bytes of chunks that may wait to be written; beyond it, the
                                  * oldest of the tenant with most waiting are dropped */
        uint64_t timeout_ns;     /* limit of an operation; a get may have an earlier deadline */
        uint64_t presence_ns, absence_ns; /* ns for which a key is believed present, or absent,
                                           * after it was found so */
        uint64_t generation_interval_ns;  /* interval at which the generation of each namespace is
                                           * read */
        unsigned probe_rate;              /* most probes for presence per second */
        /* A file of this host with the generations that its chunks belong to, by which it detects
         * at startup a purge that it missed. Replaced atomically. */
        const char *state_path;

        /* Loads a chunk from the pool or the disk into put->buffer, checks it, and calls
         * remote_put_loaded(), possibly within the call. */
        void (*load)(void *userdata, struct remote_put *put);
        /* Reports that another host has purged the namespace. The callee purges this host's chunks
         * of it and then calls remote_purged(), possibly within the call. */
        void (*purged)(void *userdata, uint32_t namespace_id);
        void *userdata;
};

/* Opens the shared tier, whose storage system may be unavailable. Returns 0, or -errno and a
 * sentence in `ret_error`. */
int remote_new(struct remote **ret, const struct remote_params *params, char ret_error[static 256]);
int remote_fd(
        const struct remote *r); /* readable when remote_reap() has something to do; borrowed */
/* Handles a bounded number of ended operations, and returns how many. */
unsigned remote_reap(struct remote *r);
/* Handles expired deadlines, writes that may start and generations to be read. Call it at the end
 * of a loop iteration. Returns the CLOCK_MONOTONIC ns at which it must be called again, or 0 if
 * only an event can require it. */
uint64_t remote_iterate(struct remote *r, uint64_t now_ns);
/* Ends all gets as misses before it returns, and accepts nothing more. remote_free() follows and
 * waits for nothing: calls that hang in the back end are left to the exit of the process. */
void remote_stop(struct remote *r);
struct remote *remote_free(struct remote *r);
/* Returns the value that remote.timeout had at startup. */
uint64_t remote_timeout_ns(const struct remote *r);
/* Applies write, write_rate, probe_rate, the lifetimes of presence and absence, and the interval of
 * the generations after a reload. Ignores all other parameters, also the timeout. */
void remote_configure(struct remote *r, const struct remote_params *params);

/* --- namespaces --- */

/* Adds a namespace that uses the shared tier; others are local. Its generation is read at once and
 * then every generation_interval; until it is known, every get is a miss. `secret` is the tenant's
 * sharing secret and may be NULL. All arguments are copied. Adding a namespace again keeps its
 * state. Returns 0, -ENOMEM, or -ELIBACC without libcrypto. */
int remote_namespace_add(struct remote *r, uint32_t namespace_id, const char *name,
                         const char *fingerprint, const void *secret, size_t secret_length);
void remote_namespace_remove(struct remote *r, uint32_t namespace_id);
bool remote_has_namespace(const struct remote *r, uint32_t namespace_id);

/* A purge: writes a higher generation, after which each host that has read it finds no older chunk.
 * If that succeeded, the caller purges this host's chunks of the namespace and calls
 * remote_purged(). complete() is not called within remote_purge(). */
struct remote_purge {
        uint32_t namespace_id;
        int result; /* 0; -ENOENT if the namespace is local, -ECANCELED if the tier stops, -EAGAIN
                     * or -ENOMEM if the write could not be sent; otherwise the storage system's
                     * error */
        void (*complete)(struct remote_purge *purge);
        struct list_node node; /* this and the following are private to the tier */
        struct remote *remote;
        void *private_data;
};
void remote_purge(struct remote *r, struct remote_purge *purge);
/* Reports that this host no longer has older chunks of the namespace, even after a crash, as
 * purged() or a successful remote_purge() required. Until then the namespace is neither read nor
 * written, so that no older chunk is written among newer ones. */
void remote_purged(struct remote *r, uint32_t namespace_id);

/* --- gets --- */

struct remote_get {
        uint32_t namespace_id;
        uint16_t tenant;
        struct key key;
        uint64_t hash;        /* from cache_hash() */
        uint64_t deadline_ns; /* CLOCK_MONOTONIC; the tier's timeout applies if it is earlier */
        void (*complete)(struct remote_get *get);

        /* Results. If found, `payload` is in a buffer of the tier until remote_get_end(), and the
         * caller must compare its checksum with `crc`. */
        bool found;
        const uint8_t *payload; /* page-aligned */
        uint32_t length, crc;
        uint64_t created_ms;

        /* Private to the tier. */
        struct list_node node;
        void *private_data;
};

/* Starts a get. Returns true if complete() follows, which is never within the call. Returns false
 * for an immediate miss: the namespace is local or not usable (its generation is unknown or
 * outdated, or a purge is in progress), the key is known to be absent, the deadline has passed, the
 * breaker is not closed, the tier stops, memory is short, or too many gets of the tenant wait. If
 * all buffers are in use or the storage system is busy, the get waits until its deadline. Tenants
 * share by bytes, and each tenant's gets are in order. */
bool remote_get(struct remote *r, struct remote_get *get);
/* Releases the buffer of a get that found something. With `bad`, because the payload did not match
 * its checksum, it also counts the error and deletes the object, unless too many deletes are in
 * flight. */
void remote_get_end(struct remote *r, struct remote_get *get, bool bad);

/* Returns how many of `n` consecutive keys of a chain, from the first, the shared tier is known to
 * have. If `*ret_known` is false, the answer is a lower bound, and a search has started or will
 * start at the next call. `keys[i]` has hashes[i]. Does not block. Examines about log2(n) cached
 * keys, or up to SEARCH_KEYS for a while after a key was unexpectedly absent, and copies keys only
 * to start a search. */
uint32_t remote_match(struct remote *r, uint32_t namespace_id, const struct key *keys,
                      const uint64_t *hashes, uint32_t n, bool *ret_known);
/* Returns the cached presence of a key: 1 present, 0 absent, -1 unknown, also while the namespace
 * or the tier is not usable. */
int remote_presence(const struct remote *r, uint32_t namespace_id, uint64_t hash);

/* --- writing --- */

/* Offers a chunk for writing. REMOTE_PUT (a new put) counts only with REMOTE_WRITE_ALL.
 * REMOTE_USED_AGAIN and REMOTE_LEAVING also count with REMOTE_WRITE_REUSED; a leaving chunk is
 * about to be evicted although a reuse is expected. If the queue is full, a leaving chunk displaces
 * only those of a tenant that has more queued. Cheap; does nothing if the chunk is queued or known
 * to be present, or its namespace is local or not usable, except while its generation is read for
 * the first time. */
enum remote_reason { REMOTE_PUT, REMOTE_USED_AGAIN, REMOTE_LEAVING, REMOTE_REASONS };
void remote_offer(struct remote *r, uint32_t namespace_id, uint16_t tenant, const struct key *key,
                  uint64_t hash, uint32_t length, enum remote_reason reason);

/* Returns whether the tier writes and is available, so that an offer with REMOTE_LEAVING may be
 * accepted now. */
bool remote_takes_leaving(const struct remote *r);

struct remote_put {
        uint32_t namespace_id;
        uint16_t tenant;
        struct key key;
        uint64_t hash;
        uint8_t *buffer; /* page-aligned; load() writes `length` bytes to it */
        uint32_t length; /* offered length; load() must refuse any other */
        uint32_t crc;    /* set by load() */
        uint64_t created_ms;

        /* Private to the tier. */
        struct list_node node;
        struct remote *remote;
        void *private_data;
};
/* Ends load(). `loaded` is false if the chunk is no longer on this host, has another length or is
 * damaged. */
void remote_put_loaded(struct remote_put *put, bool loaded);

/* --- the sweeper --- */

/* A sweep: deletes the least recently used objects until at most `limit` bytes remain, and all
 * objects of older generations. Runs on its own thread, on one host at a time. */
struct remote_sweep {
        uint64_t limit;
        bool dry_run; /* only counts the objects that would be deleted */
        /* Results: 0; -EBUSY if this or another host is sweeping; -ENOTSUP if the storage system
         * expires objects itself; -ECANCELED if the tier stops; -ENOMEM; otherwise the storage
         * system's error, and usually a sentence in `error`. */
        int result;
        uint64_t seen, seen_bytes, deleted, deleted_bytes;
        char error[120];
        void (*complete)(struct remote_sweep *sweep);
        void *private_data; /* used by the tier */
};
/* Starts a sweep. complete() may be called within the call. */
void remote_sweep(struct remote *r, struct remote_sweep *sweep);

/* --- numbers --- */

struct remote_stats {
        uint64_t gets, hits, misses,
                late; /* misses: also gets whose deadline passed at the storage system; late: reads
                       * that ended after their get, with or without a hit */
        uint64_t get_bytes;  /* bytes read, with the objects' headers */
        uint64_t refused[3]; /* gets refused because the breaker was not closed or the tier stopped;
                              * because none could be sent until the deadline, too many waited or
                              * memory was short; and because the namespace was not usable */
        uint64_t rejected[REMOTE_REJECTIONS];
        uint64_t probes, searches; /* probes sent; searches that found the end of a chain */
        uint64_t puts, put_bytes, puts_existing; /* chunks written, and their bytes; chunks found to
                                                  * exist */
        uint64_t offers[REMOTE_REASONS];         /* offers that were accepted, by reason */
        uint64_t dropped[4]; /* accepted offers dropped: because the queue was full or memory short;
                              * because the chunk was missing or damaged when loaded, or its
                              * generation had changed; because the storage system was full; and
                              * because the write failed otherwise */
        uint64_t errors[BACKEND_OP_END];
        uint64_t deletes, purges, purges_seen; /* rejected objects deleted; purges by this host;
                                                * purges of this host's chunks because another host
                                                * had changed the generation, or the storage system
                                                * had lost it */
        uint64_t queued, queued_bytes;         /* chunks that wait to be written, and
                                                * their bytes, now */
        uint64_t reading_bytes, writing_bytes, inflight; /* bytes of buffers in use for reads and
                                                          * for writes, and operations in flight,
                                                          * now */
        uint64_t trips;                                  /* times that the breaker has opened */
        struct histogram get_times, put_times;           /* durations in ns of gets and of puts at
                                                          * the storage system */
};
void remote_get_stats(const struct remote *r, struct remote_stats *ret);

struct remote_status {
        const char *backend;
        enum remote_breaker breaker;
        uint64_t since_ns; /* CLOCK_MONOTONIC time at which the breaker entered its state */
        bool full;         /* the storage system has no room, so writes are suspended */
        char reason[160];  /* the last error, or why the breaker is open; "" */
        unsigned namespaces, unknown;    /* namespaces on the tier; those that are not usable now,
                                          * because their generation is unknown or outdated, or a purge
                                          * is in progress */
        uint64_t rate_bytes, latency_ns; /* measured from recent reads, for break-even: bytes per
                                          * second, and ns of a small read; 0: unknown */
        bool sweeping;
};
void remote_get_status(const struct remote *r, struct remote_status *ret);
