/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules reads from disk into the pool ahead of announced returns of chains.
 *
 * A user announces that a chain returns at a certain time. Shortly before that, the chunks that are
 * on disk only are read, the root first. The lead, by which the reads begin before the
 * announced time, is twice the time that they take at the measured rate, plus a part of the
 * announced time, which is smaller the more exact the user's earlier announcements were. The longer
 * that part is, the fewer chunks of the chain may take the slots of others.
 *
 * A long chain may be announced in parts, its end first, under one number. The parts become one
 * chain, unless its reads have begun.
 *
 * Only a user whose announcements have come true is believed (evict/announced.h), so the first ones
 * of a new user bring nothing. An announcement that has ended, because the chain was used or was
 * announced again, is dropped. All limits are for one pool, so a tenant affects no other: bytes per
 * second, bytes in flight, unused bytes in memory, and scheduled keys, of which a user has at most
 * half. Of the users with due chains, the one with the fewest bytes is served next. The owner
 * refuses reads while clients wait for reads, and reads that would evict chunks worth more.
 *
 * Loop thread. Owns the keys of scheduled chains. An iteration handles a limited number of keys.
 * Failures: a chain that cannot be scheduled or read in time is read when it is used. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "evict/announced.h"
#include "evict/evict.h"
#include "key.h"

enum {
        PREFETCH_USERS = 64,     /* most users with scheduled chains */
        PREFETCH_CHAINS = 4096,  /* most parts of scheduled chains of all users; a user may have
                                  * half of them */
        PREFETCH_KEYS = 1 << 19, /* most keys of all scheduled chains; a user may have half of
                                  * them. A key takes 32 bytes. */
        PREFETCH_STEPS = 64,     /* most keys that one iteration handles */
};
/* The least share of a user's announcements that must have come true for the user to be believed. A
 * user without outcomes is not believed. */
#define PREFETCH_LEAST_BELIEF 0.6F
/* Bytes in flight from which on prefetch_iterate() starts no further read. */
#define PREFETCH_INFLIGHT_BYTES (UINT64_C(8) << 20)

enum prefetch_answer {
        PREFETCH_STARTED,
        PREFETCH_PRESENT, /* the chunk is in memory, or being read or put */
        PREFETCH_ABSENT,
        PREFETCH_BUSY,    /* no chunk of this user can be read now */
        PREFETCH_BLOCKED, /* this chunk cannot be read now: its device is busy, or the pool has no
                           * slot of its size */
        PREFETCH_NO_ROOM, /* everything in memory is worth more, or the read may evict nothing */
};

/* The outcome of an announced return. */
enum prefetch_outcome {
        PREFETCH_READ,        /* reads of the missing chunks were started */
        PREFETCH_IN_MEMORY,   /* no chunk had to be read */
        PREFETCH_ENDED,       /* the chain was used before, or was announced again */
        PREFETCH_DISBELIEVED, /* too few announcements of the user have come true */
        PREFETCH_WORTH_LESS,  /* at least one read was refused with PREFETCH_NO_ROOM */
        PREFETCH_LATE,    /* there was no time, because of clients' reads or the limit of bytes per
                             second */
        PREFETCH_REFUSED, /* too many users, scheduled chains or keys, or no memory */
        PREFETCH_DROPPED, /* the namespace was purged or removed, the rate was set to 0, or the
                             daemon stops */
        PREFETCH_OUTCOMES
};

/* A chunk to be read, with the promise that its chain has from then on. */
struct prefetch_chunk {
        uint32_t user, namespace_id;
        const struct key *key;
        struct evict_promise promise;
        bool free_only; /* the read may evict nothing */
};

struct prefetch_params {
        const struct announced *announced; /* must outlive the prefetch object */
        uint64_t bytes_per_second;         /* limit of the reads; with 0 no chain is scheduled */
        /* Begins to read a chunk, and returns its length if it did. Each started read ends with
         * prefetch_read_done(). */
        enum prefetch_answer (*read)(void *userdata, const struct prefetch_chunk *chunk,
                                     uint32_t *ret_bytes);
        void *userdata;
};

struct prefetch_stats {
        uint64_t outcomes[PREFETCH_OUTCOMES];
        uint64_t chains, keys;  /* chains and keys that are scheduled, now */
        uint64_t chunks, bytes; /* chunks and bytes that were read, or are being read */
        uint64_t inflight_bytes;
        uint64_t rate; /* measured bytes per second of these reads; 0 before the first
                        * measurement */
};

struct prefetch;

/* Returns 0 or -ENOMEM. */
int prefetch_new(struct prefetch **ret, const struct prefetch_params *params);
struct prefetch *prefetch_free(struct prefetch *p); /* no read may be in flight */
/* Changes the limit of bytes per second; 0 drops all scheduled chains. */
void prefetch_set_rate(struct prefetch *p, uint64_t bytes_per_second);

/* An announced return, after announced_make() has recorded it with the same `id`, or a part of a
 * chain whose end it has recorded. */
struct prefetch_return {
        uint32_t user, namespace_id;
        uint64_t id; /* id of the last key */
        uint32_t seconds;
        uint64_t number; /* evict_promise.number of the announcement, which all parts of a chain
                          * share */
        uint32_t n;      /* number of keys */
};
/* Schedules a chain, or puts a part before the chain with the same number, and returns the place
 * for the keys, the root first, which the caller fills in at once. NULL if they are not scheduled.
 */
struct key *prefetch_announce(struct prefetch *p, const struct prefetch_return *r, uint64_t now_ns);
/* Drops the chains of a namespace, or all. */
void prefetch_forget(struct prefetch *p, bool all, uint32_t namespace_id);
/* Drops all chains; from now on none is scheduled. Reads in flight complete. */
void prefetch_stop(struct prefetch *p);

/* Starts due reads. Returns the time in ns at which it must run again, or 0 if nothing is
 * scheduled. */
uint64_t prefetch_iterate(struct prefetch *p, uint64_t now_ns);
void prefetch_read_done(struct prefetch *p, uint32_t bytes, uint64_t now_ns);

void prefetch_get_stats(const struct prefetch *p, struct prefetch_stats *ret);
