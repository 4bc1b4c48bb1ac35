/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of the lookups that this session answered itself, in a page that the daemon provides and
 * reads when it reports. Counting costs two additions per request and no system call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

/* The mapped page of one session; all zero: none. */
struct tally {
        struct wire_tally *counts;      /* WIRE_TALLY_NAMESPACES rows; NULL: the daemon provided no
                                           page */
        struct wire_tally_loads *loads; /* WIRE_TALLY_NAMESPACES rows; NULL: no page, or the
                                           daemon is too old */
        size_t bytes;                   /* size of the mapping */
};

/* Maps the page of `fd`, which the caller keeps. Returns 0; -EPERM if the file can shrink; -EBADMSG
 * if the file is too short; -errno. */
int tally_map(struct tally *t, int fd);
void tally_fini(struct tally *t);
/* Counts keys found and missing in the namespace to which the daemon gave the number
 * `namespace_id`. Inline, because every request answered here calls it. One thread writes, so the
 * additions need not be atomic; each store is, because the daemon reads at any time. */
static inline void tally_add(struct tally *t, uint32_t namespace_id, uint64_t found,
                             uint64_t missing)
{
        struct wire_tally *at;

        if (!t->counts || namespace_id == 0 || namespace_id > WIRE_TALLY_NAMESPACES)
                return;
        at = &t->counts[namespace_id - 1];
        __atomic_store_n(&at->found, __atomic_load_n(&at->found, __ATOMIC_RELAXED) + found,
                         __ATOMIC_RELAXED);
        if (missing > 0)
                __atomic_store_n(&at->missing,
                                 __atomic_load_n(&at->missing, __ATOMIC_RELAXED) + missing,
                                 __ATOMIC_RELAXED);
}

/* Counts keys that were found and will not be got. Returns false if there is no page for them, or
 * the namespace has no row in it. */
static inline bool tally_decline(struct tally *t, uint32_t namespace_id, uint64_t keys)
{
        uint64_t *at;

        if (!t->loads || namespace_id == 0 || namespace_id > WIRE_TALLY_NAMESPACES)
                return false;
        at = &t->loads[namespace_id - 1].declined;
        __atomic_store_n(at, __atomic_load_n(at, __ATOMIC_RELAXED) + keys, __ATOMIC_RELAXED);
        return true;
}
