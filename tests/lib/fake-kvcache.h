/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache without a daemon: the calls that kvcachectl makes, answered from this process's memory
 * by one leaf-first LRU of equal slots, and told to misbehave. Several handles share it, from
 * several threads. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "kvcache-admin.h"

struct fake_kvcache {
        /* set by the test */
        size_t capacity; /* chunks; 0: no limit */
        uint64_t pool_bytes;
        uint64_t max_chunk_bytes;
        uint64_t staging_bytes;  /* of a handle */
        size_t lease_quota;      /* of a handle, in chunks; 0: none */
        const char *stats;       /* NULL: made up from the counters below */
        const char *status;      /* STATUS report */
        char *(*stages)(void);   /* makes the STAGES report; NULL: -EACCES */
        const char *fingerprint; /* of the one namespace, when another one asks: a mismatch */

        /* faults; each is the number of the event that goes wrong, from 1; 0: never */
        uint64_t flip_get; /* this chunk got has one bit flipped */
        size_t flip_offset;
        uint64_t swap_get;                   /* this chunk got is the one got before */
        uint64_t shorten_get;                /* this chunk got is one byte short */
        uint64_t vanish_get;                 /* this chunk got is a miss */
        uint64_t fail_put;                   /* this chunk put fails */
        uint64_t busy_from_put, busy_to_put; /* these chunks put find no room */
        uint64_t die_at_call;                /* from this call on the daemon does not answer */
        uint64_t revive_after;               /* and is back after so many pings, 0: never */

        /* counted */
        uint64_t calls, chunks_got, chunks_put, evictions, pings, reconnects;
        size_t leases, most_leases; /* of all handles */
        size_t most_round_bytes;
        uint64_t releases_stale;
        uint64_t hints;            /* requests that announce an end */
        enum kvcache_op latest_op; /* The latest request: its operation, keys and time. */
        size_t latest_keys;
        struct timespec latest_time;
};

/* Forgets everything and sets plain defaults. Call it before the first connect, with no handle
 * open. */
void fake_reset(void);
extern struct fake_kvcache fake;
