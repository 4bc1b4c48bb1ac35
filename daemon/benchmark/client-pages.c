/* SPDX-License-Identifier: Apache-2.0 */
/* The pages in which clients count their own transfers (proto/transfer-page.h). Runs on the loop
 * thread. Owns the pages: one memfd each, sealed SHRINK|GROW|SEAL, so that no client can truncate
 * it under this mapping; a hole that a client punches reads as zeros. A page is read once a second,
 * for the metrics, at commands, and when its connection ends. If a client is killed while writing,
 * the increase of one slot since the last reading may be lost.
 *
 * A reading takes microseconds, and thousands of connections can have new counts each time. An
 * admin's command reads all pages, so that its counts are exact. Other calls read only some pages,
 * in turn, so that some counts arrive a second or more later, but none are lost.
 *
 * The contents are not trusted. A slot with decreasing counters, an unknown path, layout or
 * technology, or more than can be moved in the connection's lifetime adds nothing, and counting
 * continues from the new values; a metric counts such readings. A lying client can only cause wrong
 * figures.
 *
 * Each addition uses up the minimum time that it takes, per slot, and unused time stays available.
 * Unused time is kept because a transfer counted now may have begun before the last reading. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "benchmark/internal.h"
#include "checked.h"
#include "cleanup.h"
#include "transfer-page.h"

enum {
        /* Bytes per ns beyond which counts are not believed: the memory of one GPU moves 5 to 8
         * bytes per ns. */
        MOST_BYTES_PER_NS = 16384,
        MOST_OPERATIONS_PER_NS = 64,
        MOST_AT_ONCE = 65536, /* transfers that may have been in flight at the last reading:
                               * latencies may add up to the time since then, multiplied by this
                               * number plus that of the transfers counted */
        ATTEMPTS = 4,         /* attempts to read a page while its client writes to it */
};

struct bench_page {
        struct list_node node; /* in bench.pages */
        struct transfer_page *page;
        struct transfer_slot seen[TRANSFER_PAGE_SLOTS]; /* the counters at the last reading */
        uint64_t sequence;                              /* the page's sequence number at the last
                                                         * reading */
        uint64_t since_ns;                              /* time at which the client connected */
        uint64_t used_ns[TRANSFER_PAGE_SLOTS]; /* ns of the connection's lifetime that additions
                                                * have used up, by slot */
        uint64_t busy_ns[TRANSFER_PAGE_SLOTS]; /* ns of the connection's lifetime that busy times
                                                * have used up, by slot */
};

/* Loads a word. Successive loads stay in order by acquire semantics, instead of a fence, which
 * ThreadSanitizer does not support. */
static uint64_t word(const uint64_t *at)
{
        return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static void set_epoch(const struct bench *b, struct bench_page *p)
{
        __atomic_store_n(&p->page->epoch, b->epoch, __ATOMIC_RELEASE);
}

size_t bench_page_bytes(void)
{
        return TRANSFER_PAGE_BYTES + sizeof(struct bench_page);
}

int bench_page_open(struct bench *b, uint64_t since_ns, struct bench_page **ret, int *ret_fd)
{
        _cleanup_(freep) struct bench_page *p = calloc(1, sizeof(*p));
        void *page;
        int r;

        if (!p)
                return -ENOMEM;
        r = pages_share("kvcache-transfers", TRANSFER_PAGE_BYTES, PROT_READ | PROT_WRITE, &page,
                        ret_fd);
        if (r < 0)
                return r;
        p->page = page;
        p->since_ns = since_ns;
        set_epoch(b, p);
        list_append(&b->pages, &p->node);
        *ret = TAKE_PTR(p);
        return 0;
}

/* Sets the smallest and the largest size: those of the current epoch, or else the limits of the
 * buckets in use; UINT64_MAX and 0 if there were no transfers. */
static void bound_sizes(const struct bench *b, const struct transfer_slot *slot,
                        struct transfer_counts *c)
{
        unsigned low = 0, high = TRANSFER_BUCKETS - 1;

        if (c->transfers == 0) {
                c->min_bytes = UINT64_MAX;
                c->max_bytes = 0;
                return;
        }
        while (low < high && c->sizes[low] == 0)
                low++;
        while (high > low && c->sizes[high] == 0)
                high--;
        c->min_bytes = low > 0 ? (UINT64_C(1) << (low - 1)) + 1 : 0;
        c->max_bytes = UINT64_C(1) << high;
        if (slot->epoch == b->epoch && slot->counts.min_bytes <= slot->counts.max_bytes) {
                c->min_bytes = slot->counts.min_bytes;
                c->max_bytes = slot->counts.max_bytes;
        }
}

static void load_words(uint64_t *to, const uint64_t *from, size_t bytes)
{
        for (size_t i = 0; i < bytes / sizeof(*to); i++)
                to[i] = word(&from[i]);
}

/* Loads the used slots of a page as a consistent snapshot. If the client is delayed or killed while
 * writing, one record may be incomplete, and is read completely the next time, if the client
 * completes it. */
static void load(const struct bench_page *p, struct transfer_page *ret)
{
        const struct transfer_page *from = p->page;

        for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
                ret->sequence = word(&from->sequence);
                for (unsigned i = 0; i < TRANSFER_PAGE_SLOTS; i++) {
                        struct transfer_slot *slot = &ret->slots[i];

                        load_words((uint64_t *)slot, (const uint64_t *)&from->slots[i],
                                   sizeof(uint64_t));
                        if (slot->key != 0 || p->seen[i].key != 0)
                                load_words((uint64_t *)slot, (const uint64_t *)&from->slots[i],
                                           sizeof(*slot));
                }
                if (ret->sequence % 2 == 0 && word(&from->sequence) == ret->sequence)
                        return;
        }
}

/* Stores in *ret by how much each counter has risen from `seen` to `now`. Returns false if one has
 * decreased. */
static bool subtract(struct transfer_slot *ret, const struct transfer_slot *now,
                     const struct transfer_slot *seen)
{
        const uint64_t *later = (const uint64_t *)&now->counts,
                       *earlier = (const uint64_t *)&seen->counts;
        uint64_t *out = (uint64_t *)&ret->counts;
        bool forward = now->busy_ns >= seen->busy_ns;

        ret->busy_ns = now->busy_ns - seen->busy_ns;
        for (unsigned i = 0; i < TRANSFER_PAGE_WORDS; i++) {
                if (i == offsetof(struct transfer_counts, min_bytes) / sizeof(uint64_t) ||
                    i == offsetof(struct transfer_counts, max_bytes) / sizeof(uint64_t))
                        continue;
                forward &= later[i] >= earlier[i];
                out[i] = later[i] - earlier[i];
        }
        return forward;
}

static uint64_t largest(const uint64_t *counts, unsigned n)
{
        uint64_t most = 0;

        for (unsigned i = 0; i < n; i++)
                most = MAX(most, counts[i]);
        return most;
}

/* Returns the minimum time that these counts take, by any means. Divides, since a product could
 * overflow. */
static uint64_t least_ns(const struct transfer_counts *c)
{
        uint64_t operations = MAX(MAX(c->transfers, c->blocks), c->regions),
                 bytes = MAX(c->bytes, c->device_bytes), at_once;

        operations = MAX(operations, largest(c->errors, ARRAY_SIZE(c->errors)));
        operations = MAX(operations, largest(c->sizes, ARRAY_SIZE(c->sizes)));
        operations = MAX(operations, largest(c->latencies, ARRAY_SIZE(c->latencies)));
        if (!checked_add(c->transfers, (uint64_t)MOST_AT_ONCE, &at_once))
                return UINT64_MAX;
        return MAX(MAX(operations / MOST_OPERATIONS_PER_NS, bytes / MOST_BYTES_PER_NS),
                   c->latency_ns / at_once);
}

/* Returns the part of the connection's lifetime that is not used up yet. 0 if more is used up,
 * which is possible because the times come from several readings of the clock. */
static uint64_t left(uint64_t age_ns, uint64_t used_ns)
{
        return age_ns - MIN(used_ns, age_ns);
}

static bool read_slot(struct bench *b, struct bench_page *p, unsigned i,
                      const struct transfer_slot *now, uint64_t age_ns)
{
        struct transfer_slot delta = { .key = now->key }, *seen = &p->seen[i];
        unsigned path, layout, technology;
        uint64_t least, busy;
        bool forward;

        if (now->key == 0 && seen->key == 0)
                return true;
        if (!transfer_key_read(now->key, &path, &layout, &technology) ||
            (seen->key != 0 && seen->key != now->key))
                return false;
        forward = subtract(&delta, now, seen);
        *seen = *now;
        least = least_ns(&delta.counts);
        if (!forward || least > left(age_ns, p->used_ns[i]))
                return false;
        p->used_ns[i] += least;
        busy = MIN(delta.busy_ns, left(age_ns, p->busy_ns[i]));
        p->busy_ns[i] += busy;
        bound_sizes(b, now, &delta.counts);
        bench_add(b, path, layout, technology, &delta.counts, busy);
        return true;
}

/* Reads a page. Returns false if it has not changed. */
static bool read_page(struct bench *b, struct bench_page *p, uint64_t now_ns)
{
        uint64_t age_ns = now_ns - MIN(p->since_ns, now_ns);
        struct transfer_page now;
        bool ok = true;

        if (word(&p->page->sequence) == p->sequence)
                return false;
        load(p, &now);
        p->sequence = now.sequence;
        for (unsigned i = 0; i < TRANSFER_PAGE_SLOTS; i++)
                ok &= read_slot(b, p, i, &now.slots[i], age_ns);
        b->impossible += !ok;
        return true;
}

struct bench_page *bench_page_close(struct bench *b, struct bench_page *p, uint64_t now_ns)
{
        if (!p)
                return NULL;
        (void)read_page(b, p, now_ns);
        list_unlink(&p->node);
        munmap(p->page, TRANSFER_PAGE_BYTES);
        free(p);
        return NULL;
}

void bench_pages_read(struct bench *b, uint64_t now_ns, unsigned most)
{
        struct list_node read = LIST_INIT(read);

        list_for_each_safe (&b->pages, n) {
                struct bench_page *p = container_of(n, struct bench_page, node);

                if (most == 0)
                        break;
                if (!read_page(b, p, now_ns))
                        continue;
                most--;
                list_unlink(n);
                list_append(&read, n);
        }
        list_splice(&b->pages, &read);
}

void bench_pages_new_epoch(struct bench *b)
{
        b->epoch++;
        list_for_each (&b->pages, n)
                set_epoch(b, container_of(n, struct bench_page, node));
}
