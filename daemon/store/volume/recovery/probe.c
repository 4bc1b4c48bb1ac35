/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery: finds the newest page of the ring, and plans the order in which pages are scanned. The
 * pages were written one after the other, so those from the first to the newest have sequences at
 * least as high as the first page's. The newest page is therefore found by binary search. A crash
 * may have lost pages around the newest one, and any page may be damaged, so the result is an
 * estimate, which the scan verifies. */
#include "store/volume/recovery/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "checked.h"
#include "cleanup.h"

void recovery_plan_fini(struct plan *plan)
{
        free(plan->visits);
        free(plan->turns);
        *plan = (struct plan){};
}

static int plan_start(struct recovery *rec, uint32_t max_visits)
{
        struct plan *plan = &rec->plan;

        recovery_plan_fini(plan);
        plan->visits = calloc(max_visits, sizeof(*plan->visits));
        plan->turns = calloc(max_visits, sizeof(*plan->turns));
        return plan->visits && plan->turns ? 0 : -ENOMEM;
}

static uint32_t count_blocks(const struct recovery *rec)
{
        return (rec->pages + rec->room - 1) / rec->room;
}

/* Adds a visit of the pages from `high` down to `low`, which are in one block. Unless the preceding
 * visit is in the same block, the block is read for it. Blocks that were never written are
 * skipped. */
static void add_visit(struct recovery *rec, uint32_t high, uint32_t low)
{
        struct plan *plan = &rec->plan;
        uint32_t first = low / rec->room * rec->room;

        if (!rec->written[low / rec->room])
                return;
        if (plan->n_turns == 0 || plan->turns[plan->n_turns - 1] != first)
                plan->turns[plan->n_turns++] = first;
        plan->visits[plan->n_visits++] =
                (struct visit){ .turn = plan->n_turns - 1, .high = high, .low = low };
}

static void add_block(struct recovery *rec, uint32_t number)
{
        add_visit(rec, MIN((number + 1) * rec->room, rec->pages) - 1, number * rec->room);
}

int recovery_plan_all(struct recovery *rec)
{
        int r = plan_start(rec, count_blocks(rec));

        for (uint32_t i = 0; r == 0 && i < count_blocks(rec); i++)
                add_block(rec, i);
        return r;
}

int recovery_plan_back(struct recovery *rec, uint32_t newest)
{
        uint32_t n = count_blocks(rec), at = newest / rec->room,
                 end = MIN((at + 1) * rec->room, rec->pages);
        int r = plan_start(rec, n + 1);

        if (r < 0)
                return r;
        add_visit(rec, newest, at * rec->room);
        for (uint32_t i = at; i-- > 0;)
                add_block(rec, i);
        for (uint32_t i = n; --i > at;)
                add_block(rec, i);
        if (newest + 1 < end)
                add_visit(rec, end - 1, newest + 1);
        return 0;
}

struct numbered {
        uint64_t sequence;
        uint32_t page;
};

static int by_sequence(const void *a, const void *b)
{
        const struct numbered *x = a, *y = b;

        return x->sequence < y->sequence ? 1 : x->sequence > y->sequence ? -1 : 0;
}

int recovery_plan_sorted(struct recovery *rec)
{
        _cleanup_(freep) struct numbered *order = calloc(rec->pages, sizeof(*order));
        uint32_t n = 0;
        int r;

        if (!order)
                return -ENOMEM;
        for (uint32_t i = 0; i < rec->pages; i++)
                if (rec->sequences[i] != 0 && rec->sequences[i] != TABLE_STALE)
                        order[n++] = (struct numbered){ rec->sequences[i], i };
        qsort(order, n, sizeof(*order), by_sequence);
        r = plan_start(rec, MAX(n, 1u));
        if (r < 0)
                return r;
        for (uint32_t i = 0, end; i < n; i = end) {
                uint32_t high = order[i].page, low = high;

                for (end = i + 1; end < n && low % rec->room != 0 && order[end].page == low - 1;
                     end++)
                        low--;
                add_visit(rec, high, low);
        }
        return 0;
}

/* --- the estimate of the newest page --- */

/* Sequences of a block: of its first valid page, and the highest one; 0 if no page is valid. */
struct probe {
        bool taken;
        uint64_t first, highest;
};

struct estimate {
        uint64_t sequence;    /* highest sequence found so far; 0 if no page is valid */
        uint32_t page;        /* the page with that sequence */
        bool damaged;         /* a page could not be read, or is not whole */
        struct probe *probes; /* indexed by block */
};

/* Returns the probe of a block, which is read at most once. */
static struct probe probe_at(struct recovery *rec, struct estimate *estimate, uint32_t number)
{
        struct probe *g = &estimate->probes[number];
        struct block *b = &rec->block;

        if (g->taken)
                return *g;
        g->taken = true;
        recovery_block_probe(rec, b, number * rec->room);
        recovery_block_check(rec, b);
        estimate->damaged = estimate->damaged || b->unread;
        for (uint32_t i = 0; i < b->n; i++) {
                const struct disk_page *p = &b->pages[i];

                if (!b->checks[i].valid) {
                        estimate->damaged = estimate->damaged || p->magic != 0;
                        continue;
                }
                g->first = g->first != 0 ? g->first : p->sequence;
                g->highest = MAX(g->highest, p->sequence);
                if (p->sequence > estimate->sequence) {
                        estimate->sequence = p->sequence;
                        estimate->page = b->first + i;
                }
        }
        b->n = 0;
        return *g;
}

/* Reads the TABLE_UNSYNCED_MAX pages after this page. If a newer page is among them, also reads
 * that many pages after the newer one. */
static void probe_behind(struct recovery *rec, struct estimate *estimate, uint32_t page)
{
        uint32_t n = count_blocks(rec), number = page / rec->room,
                 seen = MIN((number + 1) * rec->room, rec->pages) - 1 - page;

        for (uint32_t i = 1; i < n && seen < TABLE_UNSYNCED_MAX; i++) {
                uint64_t before = estimate->sequence;
                uint32_t at = (number + i) % n;

                probe_at(rec, estimate, at);
                seen += MIN(rec->room, rec->pages - at * rec->room);
                if (estimate->sequence > before)
                        seen = 0;
        }
}

/* Finds a page by binary search, and then checks whether newer pages follow. When a page is
 * written, all except the last TABLE_UNSYNCED_MAX pages before it have been synced. So if this
 * number of pages after the found page are older, or were never written, and none is damaged, there
 * is no newer page. The pages at the beginning of the file are checked, too, because they may
 * follow a page before the end of the file: the ring may have been smaller than the file. */
uint32_t recovery_estimate_newest(struct recovery *rec, bool *ret_sure)
{
        uint32_t low = 0, high = count_blocks(rec);
        _cleanup_(freep) struct probe *probes = calloc(high, sizeof(*probes));
        struct estimate estimate = { .probes = probes };
        uint64_t first = probes ? probe_at(rec, &estimate, 0).first : 0;

        if (first == 0)
                return UINT32_MAX;
        while (high - low > 1) {
                uint32_t middle = low + (high - low) / 2;

                if (probe_at(rec, &estimate, middle).highest < first)
                        high = middle;
                else
                        low = middle;
        }
        probe_behind(rec, &estimate, estimate.page);
        probe_behind(rec, &estimate, rec->pages - 1);
        *ret_sure = !estimate.damaged;
        return estimate.page;
}
