/* SPDX-License-Identifier: Apache-2.0 */
/* The shared tier: chunks on a storage engine that several hosts use, behind memory and disk.
 *
 * It is slow, not ours, and may be down, so: everything read from it is checked; everything sent to
 * it may be lost; nothing waits for it that did not ask to, and what does has a deadline. Whatever
 * goes wrong there is a miss and a counter.
 *
 * The loop thread runs all of it; a back end (backend.h) works on threads of its own. Memory for
 * what is read and written is the tier's own ("buffers"), bounded by read_inflight and
 * write_inflight, so that an engine that hangs holds neither the pool's nor a client's. */
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
        const char *prefix; /* "kvcache" */
        enum remote_write write;
        uint64_t write_rate;     /* bytes a second; 0: no limit */
        uint64_t read_inflight;  /* bytes of buffers for reads */
        uint64_t write_inflight; /* likewise */
        uint64_t write_queue; /* bytes of chunks that wait to be written; the oldest are dropped */
        uint64_t timeout_ns;  /* of an operation; a get may have an earlier deadline */
        uint64_t presence_ns, absence_ns; /* how long what was found is believed */
        uint64_t generation_interval_ns;
        unsigned probe_rate; /* probes for presence a second, at most */
        /* A file of this host that says which generation of each namespace its chunks are of; so
         * that it learns at startup of a purge that it has missed. It is replaced as a whole. */
        const char *state_path;

        /* Loads a chunk into put->buffer, from the pool or the disk, checked, and calls
         * remote_put_loaded(), perhaps from within. */
        void (*load)(void *userdata, struct remote_put *put);
        /* Another host has purged the namespace: what this one has of it must be purged, and then
         * remote_purged() called, perhaps from within. */
        void (*purged)(void *userdata, uint32_t namespace_id);
        void *userdata;
};

/* 0, -errno; `ret_error` gets one sentence. The engine need not be there. */
int remote_new(struct remote **ret, const struct remote_params *params, char ret_error[static 256]);
int remote_fd(const struct remote *r); /* readable: remote_reap() has something to do. Borrowed */
unsigned remote_reap(struct remote *r);
/* Deadlines, writes that may go now, generations to be read. At the end of a loop turn. When it
 * must be called again at the latest, CLOCK_MONOTONIC ns; 0: not before something happens. */
uint64_t remote_iterate(struct remote *r, uint64_t now_ns);
/* Gets under way end as misses, before it returns; nothing new is taken. Then remote_free(), which
 * waits for nothing: what hangs in the engine is left to the process's exit. */
void remote_stop(struct remote *r);
struct remote *remote_free(struct remote *r);
/* remote.timeout. */
uint64_t remote_timeout_ns(const struct remote *r);
/* What a reload may change: write, write_rate, the intervals. */
void remote_configure(struct remote *r, const struct remote_params *params);

/* --- namespaces --- */

/* A namespace that is not named here, or is local, has nothing on the shared tier. Its generation
 * is read at once and then every generation_interval; until it is known, all is a miss. `secret`:
 * of its tenant, may be NULL. All is copied. 0, -ENOMEM, -ELIBACC (no libcrypto). A namespace that
 * is there already keeps what is known of it. */
int remote_namespace_add(struct remote *r, uint32_t namespace_id, const char *name,
                         const char *fingerprint, const void *secret, size_t secret_length);
void remote_namespace_remove(struct remote *r, uint32_t namespace_id);
bool remote_has_namespace(const struct remote *r, uint32_t namespace_id);

/* Writes another, higher generation: no host finds older chunks once it has read that. If that was
 * done, the caller purges what this host has of the namespace, and calls remote_purged().
 * complete() is not called from within. */
struct remote_purge {
        uint32_t namespace_id;
        int result; /* 0, or what the engine said */
        void (*complete)(struct remote_purge *purge);
        struct list_node node; /* the tier's, and what follows */
        struct remote *remote;
        void *private_data;
};
void remote_purge(struct remote *r, struct remote_purge *purge);
/* No chunk of before is found on this host any more, nor after a crash: what purged(), or a
 * remote_purge() with result 0, has asked for. Until then the namespace is read and written no
 * more, so that no older chunk is written among the new ones. */
void remote_purged(struct remote *r, uint32_t namespace_id);

/* --- reading --- */

struct remote_get {
        uint32_t namespace_id;
        uint16_t tenant;
        struct key key;
        uint64_t hash;        /* cache_hash()'s */
        uint64_t deadline_ns; /* CLOCK_MONOTONIC; the tier's own timeout if that is earlier */
        void (*complete)(struct remote_get *get);

        /* Out: was it found? Then its bytes, whose checksum is still to be compared with `crc`, in
         * a buffer of the tier's until remote_get_end(). */
        bool found;
        const uint8_t *payload; /* page-aligned */
        uint32_t length, crc;
        uint64_t created_ms;

        /* The tier's. */
        struct list_node node;
        void *private_data;
};

/* True: complete() follows, not from within. False: it is a miss at once, as the namespace is local
 * or not known yet, the key known to be absent, or the breaker open. Where the buffers are all in
 * use, or the engine has enough to do, it waits until its deadline: tenants take turns, by the
 * bytes that they get, and those of a tenant go in order. It is a miss at once if too many of its
 * tenant's wait. */
bool remote_get(struct remote *r, struct remote_get *get);
/* After complete(), where something was found. `bad`: the payload did not match its checksum; it is
 * counted, and the object is deleted. */
void remote_get_end(struct remote *r, struct remote_get *get, bool bad);

/* How many keys of a chain, from its root on, are there, as far as is known now. `*ret_known`
 * false: it may be more or fewer, and a search is under way, or will be when it is asked again; the
 * answer is then a lower bound. `keys[i]` has hashes[i]. Does not block, looks at log2(n)
 * remembered keys (at all, for a while after a key was absent that should have been there), and
 * copies the keys only if it starts a search. */
uint32_t remote_match(struct remote *r, uint32_t namespace_id, const struct key *keys,
                      const uint64_t *hashes, uint32_t n, bool *ret_known);
/* What is remembered of one key. 1: there, 0: not there, -1: not known. */
int remote_presence(const struct remote *r, uint32_t namespace_id, uint64_t hash);

/* --- writing --- */

/* A chunk that may be worth writing: it was put (which counts with REMOTE_WRITE_ALL alone), used
 * again (with _REUSED, too), or is about to be evicted though it is expected to be used again
 * (likewise; where the queue is full, nothing is dropped for it, unless of a tenant that has more
 * in it). Cheap, and does nothing for what is known to be there, or is in the queue. */
enum remote_reason { REMOTE_PUT, REMOTE_USED_AGAIN, REMOTE_LEAVING, REMOTE_REASONS };
void remote_offer(struct remote *r, uint32_t namespace_id, uint16_t tenant, const struct key *key,
                  uint64_t hash, uint32_t length, enum remote_reason reason);

/* Is anything of reason REMOTE_LEAVING of use now? */
bool remote_takes_leaving(const struct remote *r);

struct remote_put {
        uint32_t namespace_id;
        uint16_t tenant;
        struct key key;
        uint64_t hash;
        uint8_t *buffer; /* page-aligned; `length` bytes go there */
        uint32_t length; /* as offered: a chunk of another length is not loaded */
        uint32_t crc;    /* out, of remote_params.load() */
        uint64_t created_ms;

        /* The tier's. */
        struct list_node node;
        struct remote *remote;
        void *private_data;
};
/* `loaded` false: it is not here any more, or is bad. */
void remote_put_loaded(struct remote_put *put, bool loaded);

/* --- the sweeper --- */

/* Deletes what has not been used for longest until no more than `limit` bytes are left, and all of
 * older generations; on a thread of its own, one host at a time. */
struct remote_sweep {
        uint64_t limit;
        bool dry_run; /* counts what would be deleted */
        /* Out. 0; -EBUSY: another host is at it, or this one; -ENOTSUP: the engine does that
         * itself; else what the engine said. */
        int result;
        uint64_t seen, seen_bytes, deleted, deleted_bytes;
        char error[120];
        void (*complete)(struct remote_sweep *sweep);
        void *private_data; /* the tier's */
};
/* complete() may be called from within. */
void remote_sweep(struct remote *r, struct remote_sweep *sweep);

/* --- numbers --- */

struct remote_stats {
        uint64_t gets, hits, misses, late; /* late: found, or not, after the deadline */
        uint64_t get_bytes;
        uint64_t refused[3]; /* gets: breaker open, no buffers, generation not known */
        uint64_t rejected[REMOTE_REJECTIONS];
        uint64_t probes, searches;
        uint64_t puts, put_bytes, puts_existing; /* written; found to be there */
        uint64_t offers[REMOTE_REASONS];         /* queued */
        uint64_t dropped[4]; /* offers: queue full, gone or bad when their turn came, engine full,
                                failed */
        uint64_t errors[BACKEND_OP_END];
        uint64_t deletes, purges, purges_seen;
        uint64_t queued, queued_bytes;                   /* now */
        uint64_t reading_bytes, writing_bytes, inflight; /* now */
        uint64_t trips;                                  /* how often the breaker opened */
        struct histogram get_times, put_times;           /* of operations */
};
void remote_get_stats(const struct remote *r, struct remote_stats *ret);

struct remote_status {
        const char *backend;
        enum remote_breaker breaker;
        uint64_t since_ns; /* CLOCK_MONOTONIC: of this state of the breaker */
        bool full;         /* writes stopped, as the engine has no room; it is tried now and then */
        char reason[160];  /* the last error, or why the breaker is open; "" */
        unsigned namespaces, unknown;    /* on the tier; of these with a generation not known */
        uint64_t rate_bytes, latency_ns; /* of reads lately: for break-even; 0: none yet */
        bool sweeping;
};
void remote_get_status(const struct remote *r, struct remote_status *ret);
