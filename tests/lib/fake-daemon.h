/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon in a thread, for tests of the client library: keeps chunks in its pool, counts the
 * requests and lies where the test says so. It checks each request with wire_check_request() and
 * counts those that fail.
 *
 * Fields are read and written under the lock: fake_daemon_lock(), or before it runs. */
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
        FAKE_FILE_BYTES = 64 << 20
};

struct fake_daemon;

struct fake_options {
        uint64_t pool_bytes;   /* 0: 4 MiB */
        uint64_t staging_max;  /* 0: 1 MiB */
        uint64_t max_chunk;    /* 0: 1 MiB */
        uint32_t max_inflight; /* 0: 64 */
        uint32_t max_keys;     /* 0: 1024 */
        uint32_t spin_us;      /* as it says */

        /* Lies of the handshake. */
        bool unsealed, silent, hang_up;
        uint16_t version;      /* 0: 1 */
        uint16_t hello_status; /* else a refusal with a text */
        int hello_fds;         /* 0: two; -1: none; else so many */
        size_t hello_cut;      /* so many bytes less */
        uint64_t pool_lie;     /* added to the pool's size as said */
        bool staging_unsealed, staging_short;
        bool no_fd, stray_fd;        /* replies lack theirs; carry one where none belongs */
        bool short_verify;           /* VERIFY is answered with less than a result */
        const char *refuse_register; /* REGISTER is INVALID, and this is why */
        bool register_long;          /* its OK has a result too many */
        uint32_t region_lie;         /* if not 0, the number of each region */
        bool is_old;                 /* it offers nothing beyond the first version but lookups */
        bool lookup;                 /* it offers a lookup index: see lookup_fd */
        bool tally;                  /* and a tally of it: see tally_fd */
        bool cancel;            /* it can cancel: a held PUT or GET that is named is released, with
                                   each key cancelled */
        bool lends;             /* its chunks, from files that it writes for that */
        unsigned in_memory;     /* but for so many of the first, which are leased */
        unsigned lend_per_file; /* so many chunks of each file; 0: any number */
        uint64_t lease_bytes;   /* a session may hold so much, QUOTA beyond; 0: any number */
        bool lend_indirect;     /* the files' descriptors are without O_DIRECT */
        bool takes_files;       /* on a disk, as regions for puts */
        bool lease_into;        /* GETs with INTO may ask for leases: of the first `in_memory` */
        uint64_t lease_lie;     /* added to where a leased chunk is */
        bool no_reply;          /* RELEASEs need no answer */

        /* Looks at a reply before it goes out, and may change it. Returns its bytes; 0: it does not
         * go out. In the daemon's thread, under the lock. */
        size_t (*reply)(struct fake_daemon *d, const struct wire_hdr *request,
                        struct wire_reply *reply, size_t bytes);
        void *user;
};

struct fake_session {
        int sock; /* -1: free */
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
        int fd; /* that came with it; -1: none */
};

struct fake_logged {
        uint16_t op, flags, count;
        uint16_t pieces;
        uint8_t ack, tiers;
        uint32_t timeout_ms;
        uint32_t region;  /* of the first entry of a PUT, or a GET with WIRE_F_INTO */
        uint32_t cost_us; /* of the first entry of a PUT */
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
        uint32_t
                hold_ops; /* bits: requests that are kept, not worked on, until they are released */
        struct fake_held held[FAKE_HELD];
        unsigned n_held;

        /* What LOOKUP is answered with: the test's own. -1: BUSY. */
        int lookup_fd;
        uint64_t lookup_bytes;
        int tally_fd; /* sent with it to a client that asks for one; -1: none */
        unsigned tallies_asked;

        /* What is lent: see fake_options.lends. */
        uint32_t not_lent;  /* enum wire_not_lent: chunks are leased instead, and this is why */
        bool lent_is_stale; /* what is given back was no more there */
        bool file_is_gone;  /* LENT_FILE is refused */

        /* Of puts from files on a disk: see fake_options.takes_files. */
        unsigned files_registered, file_puts;
        uint16_t file_put_status; /* what each of them is answered with; 0: it is done */
        int files[FAKE_FILES];
        uint64_t file_free; /* of the last file: chunks are below one another */
        unsigned n_files, lent_of_file, loans_held, loans_ever;

        struct key hinted; /* the first of the last HINT, and its kind */
        uint8_t hint;
        uint32_t last_region; /* that was given a number */
        unsigned regions;     /* registered now, by all sessions */
        uint64_t most_leased; /* by a session at a time */
        unsigned connects, bad_requests, stale_releases, releases, leases_held,
                requests[WIRE_OP_END];
        struct fake_logged log[FAKE_LOG];
        unsigned n_log;
};

/* Listens at `path` (an old socket there is removed). NULL: it cannot. */
struct fake_daemon *fake_daemon_start(const char *path, const struct fake_options *o);
/* Ends thread and sessions; with `io_goes_on`, the liveness file stays locked until
 * fake_daemon_io_done(). */
void fake_daemon_kill(struct fake_daemon *d, bool io_goes_on);
void fake_daemon_io_done(struct fake_daemon *d);
struct fake_daemon *fake_daemon_free(struct fake_daemon *d);

void fake_daemon_lock(struct fake_daemon *d);
void fake_daemon_unlock(struct fake_daemon *d);
/* Ends the sessions from the daemon's side; the daemon lives on. */
void fake_daemon_hang_up(struct fake_daemon *d);
/* Which ops are held from now on. What was held and no longer is, is worked on. */
void fake_daemon_hold(struct fake_daemon *d, uint32_t ops);
/* Waits until *value (a field of `d`) is at least `least`. False: five seconds have passed. */
bool fake_daemon_wait(struct fake_daemon *d, const unsigned *value, unsigned least);
bool fake_daemon_wait_leases(struct fake_daemon *d, unsigned exactly);
/* Sends any bytes to every session, unasked. */
void fake_daemon_say(struct fake_daemon *d, const void *bytes, size_t n);
