/* SPDX-License-Identifier: Apache-2.0 */
/* What this session's lookups found that were answered here: counters in a page of the daemon's,
 * which reads them when it reports. Two additions a request, no system call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

/* Of a session. */
struct tally {
        struct wire_tally *counts; /* WIRE_TALLY_NAMESPACES of them; NULL: the daemon gave none */
        struct wire_tally_loads *loads; /* as many; NULL: or is too old for them */
        size_t bytes;                   /* mapped */
};

/* Maps the page of `fd`, which stays the caller's. 0; -EPERM: it can be shrunk; -EBADMSG: it is
 * shorter; -errno. */
int tally_map(struct tally *t, int fd);
void tally_fini(struct tally *t);
/* Keys of the namespace that the daemon knows by this number. Inline: this is on the way of each
 * request that is answered here. One thread writes, so that no addition need be atomic; each store
 * is whole for the daemon, which reads at any time. */
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

/* Keys that were found and are not to be got. False: there is no place to count them. */
static inline bool tally_decline(struct tally *t, uint32_t namespace_id, uint64_t keys)
{
        uint64_t *at;

        if (!t->loads || namespace_id == 0 || namespace_id > WIRE_TALLY_NAMESPACES)
                return false;
        at = &t->loads[namespace_id - 1].declined;
        __atomic_store_n(at, __atomic_load_n(at, __ATOMIC_RELAXED) + keys, __ATOMIC_RELAXED);
        return true;
}
