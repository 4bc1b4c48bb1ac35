/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon in a thread, for tests of the client library: keeps chunks in its pool, counts requests,
 * and sends false data where the test says so. It checks each request with wire_check_request() and
 * counts invalid ones.
 *
 * Fields are accessed under the lock (fake_daemon_lock()), or before the daemon runs. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

enum {
        FAKE_SESSIONS = 8,
        FAKE_CHUNKS = 8192,
        FAKE_LEASES = 16384,
        FAKE_HELD = 256,
        FAKE_REGIONS = WIRE_MAX_REGIONS,
        FAKE_LOG = 512,
        FAKE_FILES = 128,
        FAKE_HINTS = 8,
        FAKE_FILE_BYTES = 64 << 20
};

struct fake_daemon;

struct fake_options {
        uint64_t pool_bytes;   /* 0: 4 MiB */
        uint64_t staging_max;  /* 0: 1 MiB */
        uint64_t max_chunk;    /* 0: 1 MiB */
        uint32_t max_inflight; /* 0: 64 */
        uint32_t max_keys;     /* 0: 1024 */
        uint32_t spin_us;      /* value in its reply to HELLO */

        /* Faults of the handshake: */
        bool unsealed, silent, hang_up;
        uint16_t version;      /* 0: 1 */
        uint16_t hello_status; /* not 0: refuse with a text */
        int hello_fds;         /* 0: two; -1: none; else this number */
        size_t hello_cut;      /* bytes missing at the end */
        uint64_t pool_lie;     /* added to the reported size of the pool */
        bool staging_unsealed, staging_short;
        bool no_fd, stray_fd;        /* replies lack their descriptor; carry one where none
                                        belongs */
        bool short_verify;           /* the result of VERIFY is too short */
        const char *refuse_register; /* reason for which REGISTER is INVALID; NULL: OK */
        bool register_long;          /* the OK to REGISTER has one result too many */
        uint32_t region_lie;         /* not 0: number of each region */
        bool is_old;                 /* offer only the first version and lookups */
        bool lookup;                 /* offer a lookup index: see lookup_fd */
        bool tally;                  /* offer counters of lookups: see tally_fd */
        bool cancel;                 /* support CANCEL: it releases a held PUT or GET, and every key
                                        ends as cancelled */
        bool lends;                  /* lend chunks, from files written for that */
        unsigned in_memory;     /* number of chunks, from the first on, that are leased instead */
        unsigned lend_per_file; /* chunks per file; 0: unlimited */
        uint64_t lease_bytes;   /* bytes that a session may lease before QUOTA; 0: unlimited */
        bool lend_indirect;     /* descriptors of the files lack O_DIRECT */
        bool takes_files;       /* accept files on a disk as regions for puts */
        bool lease_into;        /* GETs with INTO may request leases of the first `in_memory` */
        uint64_t lease_lie;     /* added to the position of leased chunks */
        bool no_reply;          /* RELEASEs need no reply */
        bool hint_parent;       /* a HINT may name the key before its first */

        /* Called with each reply before it is sent; may change it. Returns its size in bytes, or 0
         * to drop it. In the daemon's thread, under the lock. */
        size_t (*reply)(struct fake_daemon *d, const struct wire_hdr *request,
                        struct wire_reply *reply, size_t bytes);
        void *user;
};

struct fake_session {
        int sock; /* -1: unused */
        uint8_t *staging;
        uint64_t staging_bytes;
        struct {
                uint32_t id; /* 0: none */
                uint8_t *base;
                uint64_t bytes;
                bool is_file;
        } regions[FAKE_REGIONS];
        bool hello;
};

struct fake_held {
        unsigned session;
        size_t bytes;
        void *request;
        int fd; /* descriptor sent with it; -1: none */
};

struct fake_logged {
        uint16_t op, flags, count;
        uint16_t pieces;
        uint8_t ack, tiers;
        uint32_t timeout_ms;
        uint32_t region;  /* in the first entry of a PUT, or a GET with WIRE_F_INTO */
        uint32_t cost_us; /* in the first entry of a PUT */
        struct key parent, first;
};

struct fake_daemon {
        struct fake_options o;
        char path[108];
        pthread_t thread;
        pthread_mutex_t lock;
        pthread_cond_t changed;
        int listener, wake, pool_fd, live_fd;
        bool stop;
        uint8_t instance[WIRE_INSTANCE_BYTES];

        uint8_t *pool;
        uint64_t pool_used;
        struct {
                uint32_t namespace_id;
                struct key key;
                uint64_t offset;
                uint32_t length;
        } chunks[FAKE_CHUNKS];
        unsigned n_chunks;
        struct {
                bool used;
                unsigned session;
                uint32_t generation;
                uint32_t bytes;
        } leases[FAKE_LEASES];
        struct {
                char name[256];
                char fingerprint[4097];
                uint32_t lifetime_s;
        } namespaces[16];
        unsigned n_namespaces;

        struct fake_session sessions[FAKE_SESSIONS];
        uint32_t hold_ops; /* bits: ops whose requests are held until they are released */
        struct fake_held held[FAKE_HELD];
        unsigned n_held;

        /* Answer to LOOKUP, set by the test. -1: BUSY. */
        int lookup_fd;
        uint64_t lookup_bytes;
        int tally_fd; /* sent with it to clients that request it; -1: none */
        unsigned tallies_asked;

        /* Loans: see fake_options.lends. */
        uint32_t not_lent;  /* enum wire_not_lent: reason for leasing chunks instead; 0: lend */
        bool lent_is_stale; /* the chunk of a returned loan had been removed */
        bool file_is_gone;  /* refuse LENT_FILE */

        /* Puts from files on a disk: see fake_options.takes_files. */
        unsigned files_registered, file_puts;
        uint16_t file_put_status; /* status of each; 0: success */
        int files[FAKE_FILES];
        uint64_t file_free; /* free offset in the last file; its chunks follow one another */
        unsigned n_files, lent_of_file, loans_held, loans_ever;

        struct key hinted; /* first key of the last HINT */
        uint8_t hint;
        struct key hint_parents[FAKE_HINTS]; /* `parent` of each HINT, the latest ones */
        unsigned n_hints;
        uint32_t last_region; /* last number assigned to a region */
        unsigned regions;     /* currently registered, by all sessions */
        uint64_t most_leased; /* largest number of bytes leased by a session */
        unsigned connects, bad_requests, stale_releases, releases, leases_held,
                requests[WIRE_OP_END];
        struct fake_logged log[FAKE_LOG];
        unsigned n_log;
};

/* Starts a daemon that listens at `path`, where it removes an old socket. Returns NULL on
 * failure. */
struct fake_daemon *fake_daemon_start(const char *path, const struct fake_options *o);
/* Ends the thread and the sessions. With `io_goes_on`, the liveness file stays locked until
 * fake_daemon_io_done(). */
void fake_daemon_kill(struct fake_daemon *d, bool io_goes_on);
void fake_daemon_io_done(struct fake_daemon *d);
struct fake_daemon *fake_daemon_free(struct fake_daemon *d);

void fake_daemon_lock(struct fake_daemon *d);
void fake_daemon_unlock(struct fake_daemon *d);
/* Ends the sessions from the daemon's side; the daemon continues. */
void fake_daemon_hang_up(struct fake_daemon *d);
/* Sets the ops that are held. Requests that are no longer held are processed. */
void fake_daemon_hold(struct fake_daemon *d, uint32_t ops);
/* Waits until *value (a field of `d`) is at least `least`. Returns false after five seconds. */
bool fake_daemon_wait(struct fake_daemon *d, const unsigned *value, unsigned least);
bool fake_daemon_wait_leases(struct fake_daemon *d, unsigned exactly);
/* Sends arbitrary bytes, unrequested, to every session. */
void fake_daemon_say(struct fake_daemon *d, const void *bytes, size_t n);
