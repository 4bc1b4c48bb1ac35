/* SPDX-License-Identifier: Apache-2.0 */
/* Implements tally-page.h. The memfd is sealed SHRINK|GROW|SEAL, so that no client can truncate it
 * under this mapping; a hole that a client punches reads as zeros. The descriptor is not kept,
 * since the mapping suffices.
 *
 * Counters only grow. A counter that decreased adds nothing. An increase beyond the number of keys
 * that a client can look up in the elapsed time is cut to that number; counting continues from the
 * new value. A lying client can thus add at most one key for each TALLY_PAGE_NS_PER_KEY of its
 * session, to the counts of its own namespaces. */
#include "lookup/tally-page.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "checked.h"
#include "cleanup.h"

struct tally_page_seen {
        uint64_t found, missing, declined;
};

size_t tally_page_bytes(void)
{
        return WIRE_TALLY_BYTES + WIRE_TALLY_NAMESPACES * sizeof(struct tally_page_seen);
}

int tally_page_open(struct tally_page *ret, uint64_t now_ns, int *ret_fd)
{
        _cleanup_(freep) struct tally_page_seen *seen =
                calloc(WIRE_TALLY_NAMESPACES, sizeof(*seen));
        void *counts;
        int r;

        if (!seen)
                return -ENOMEM;
        r = pages_share("kvcache-tally", WIRE_TALLY_BYTES, PROT_READ, &counts, ret_fd);
        if (r < 0)
                return r;
        *ret = (struct tally_page){
                .counts = counts,
                .loads = (const void *)((const uint8_t *)counts + WIRE_TALLY_LOADS_OFFSET),
                .seen = TAKE_PTR(seen),
                .read_ns = now_ns,
        };
        return 0;
}

void tally_page_close(struct tally_page *p)
{
        if (p->counts)
                munmap((void *)p->counts, WIRE_TALLY_BYTES);
        free(p->seen);
        *p = (struct tally_page){ 0 };
}

void tally_page_read(struct tally_page *p, uint64_t now_ns)
{
        p->budget = (now_ns - MIN(p->read_ns, now_ns)) / TALLY_PAGE_NS_PER_KEY;
        p->read_ns = now_ns;
}

/* Stores the increase of a counter, at most the budget, which it lowers. Returns false if the
 * counter decreased or grew by more than the budget. Loads the counter only once, because its value
 * may change at any time. */
static bool take(struct tally_page *p, const uint64_t *counter, uint64_t *seen, uint64_t *ret)
{
        uint64_t now = __atomic_load_n(counter, __ATOMIC_RELAXED);
        uint64_t more = now > *seen ? now - *seen : 0;
        bool is_possible = now >= *seen && more <= p->budget;

        *ret = MIN(more, p->budget);
        p->budget -= *ret;
        *seen = now;
        return is_possible;
}

bool tally_page_take(struct tally_page *p, unsigned number, struct lookup_counts *ret,
                     uint64_t *ret_declined)
{
        struct tally_page_seen *seen;
        bool found, missing, declined;

        if (!p->counts || number >= WIRE_TALLY_NAMESPACES) {
                *ret = (struct lookup_counts){ 0 };
                *ret_declined = 0;
                return true;
        }
        seen = &p->seen[number];
        found = take(p, &p->counts[number].found, &seen->found, &ret->found);
        missing = take(p, &p->counts[number].missing, &seen->missing, &ret->missing);
        declined = take(p, &p->loads[number].declined, &seen->declined, ret_declined);
        return found && missing && declined;
}
