/* SPDX-License-Identifier: Apache-2.0 */
/* The pages in which clients count what they move by themselves (proto/transfer-page.h). Runs on
 * the loop thread. Owns the pages: a memfd each, sealed SHRINK|GROW|SEAL, so that no client can
 * truncate it under this mapping; a hole that one punches reads as zeros. A page is read once a
 * second, at every command of a session, and when its connection ends for whatever reason. Of a
 * client that was killed in the middle of writing, what a slot has had since the last reading may
 * be left out.
 *
 * Nothing there is trusted. Counters that have gone back, kinds that there are none of, and more
 * than can be moved in the time since the last reading add nothing, and counting goes on from what
 * is there; a metric says that there was such a thing. What a client can bring about by lying is a
 * wrong figure. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "benchmark/internal.h"
#include "checked.h"
#include "cleanup.h"
#include "transfer-page.h"

enum {
        /* What no host exceeds: the memory of one GPU moves 5 to 8 bytes in a nanosecond. */
        MOST_BYTES_PER_NS = 16384,
        MOST_OPERATIONS_PER_NS = 64,
        MOST_UNDER_WAY = 4096, /* whose latency has been counted before they are */
        ATTEMPTS = 4,          /* at a page that its client writes at the same time */
};

struct bench_page {
        struct list_node node; /* bench.pages */
        struct transfer_page *page;
        struct transfer_slot seen[TRANSFER_PAGE_SLOTS]; /* as of the last reading */
        uint64_t sequence;                              /* likewise */
        uint64_t read_ns;                               /* when something new was read last */
};

/* Loads in the order in which they stand here: with acquire each, and not a fence, which
 * ThreadSanitizer does not know. */
static uint64_t word(const uint64_t *at)
{
        return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static void set_epoch(const struct bench *b, struct bench_page *p)
{
        __atomic_store_n(&p->page->epoch, b->epoch, __ATOMIC_RELEASE);
}

int bench_page_open(struct bench *b, uint64_t since_ns, struct bench_page **ret, int *ret_fd)
{
        _cleanup_(closep) int fd =
                memfd_create("kvcache-transfers", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        _cleanup_(freep) struct bench_page *p = calloc(1, sizeof(*p));
        void *page;

        if (!p)
                return -ENOMEM;
        if (fd < 0 || ftruncate(fd, TRANSFER_PAGE_BYTES) < 0 ||
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
                return -errno;
        page = mmap(NULL, TRANSFER_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (page == MAP_FAILED)
                return -errno;
        (void)madvise(page, TRANSFER_PAGE_BYTES, MADV_DONTDUMP);
        (void)madvise(page, TRANSFER_PAGE_BYTES, MADV_DONTFORK);
        p->page = page;
        p->read_ns = since_ns;
        set_epoch(b, p);
        list_append(&b->pages, &p->node);
        *ret = TAKE_PTR(p);
        *ret_fd = TAKE_FD(fd);
        return 0;
}

/* The smallest and the largest are those of the epoch, or else as the sizes' buckets have them. */
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

/* All of a page as it is at one time; or, of a client that is held up or killed while it writes,
 * with some of a record's counters and without others, which come with the next reading if at all.
 */
static void load(const struct transfer_page *from, struct transfer_page *ret)
{
        const uint64_t *in = (const uint64_t *)from;
        uint64_t *out = (uint64_t *)ret;

        for (unsigned attempt = 0; attempt < ATTEMPTS; attempt++) {
                uint64_t before = __atomic_load_n(&from->sequence, __ATOMIC_ACQUIRE);

                for (size_t i = 0; i < sizeof(*ret) / sizeof(*in); i++)
                        out[i] = word(&in[i]);
                if (before % 2 == 0 && word(&from->sequence) == before)
                        return;
        }
}

/* False: a counter has gone back. */
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

static bool are_at_most(const uint64_t *counts, unsigned n, uint64_t most)
{
        for (unsigned i = 0; i < n; i++)
                if (counts[i] > most)
                        return false;
        return true;
}

static bool is_possible(const struct transfer_counts *c, uint64_t elapsed_ns)
{
        uint64_t operations, bytes, latency;

        return checked_mul(elapsed_ns, (uint64_t)MOST_OPERATIONS_PER_NS, &operations) &&
               checked_mul(elapsed_ns, (uint64_t)MOST_BYTES_PER_NS, &bytes) &&
               c->transfers <= operations && c->blocks <= operations && c->regions <= operations &&
               c->bytes <= bytes && c->device_bytes <= bytes &&
               checked_mul(elapsed_ns, c->transfers + MOST_UNDER_WAY, &latency) &&
               c->latency_ns <= latency &&
               are_at_most(c->errors, ARRAY_SIZE(c->errors), operations) &&
               are_at_most(c->sizes, ARRAY_SIZE(c->sizes), operations) &&
               are_at_most(c->latencies, ARRAY_SIZE(c->latencies), operations);
}

static bool read_slot(struct bench *b, const struct transfer_slot *now, struct transfer_slot *seen,
                      uint64_t elapsed_ns)
{
        struct transfer_slot delta = { .key = now->key };
        unsigned path, layout, technology;
        bool ok;

        if (now->key == 0 && seen->key == 0)
                return true;
        if (!transfer_key_read(now->key, &path, &layout, &technology) ||
            (seen->key != 0 && seen->key != now->key))
                return false;
        ok = subtract(&delta, now, seen) && is_possible(&delta.counts, elapsed_ns);
        *seen = *now;
        if (!ok)
                return false;
        bound_sizes(b, now, &delta.counts);
        bench_add(b, path, layout, technology, &delta.counts, MIN(delta.busy_ns, elapsed_ns));
        return true;
}

static void read_page(struct bench *b, struct bench_page *p, uint64_t now_ns)
{
        uint64_t elapsed_ns = now_ns - MIN(p->read_ns, now_ns);
        struct transfer_page now;
        bool ok = true;

        if (word(&p->page->sequence) == p->sequence)
                return;
        load(p->page, &now);
        p->sequence = now.sequence;
        p->read_ns = now_ns;
        for (unsigned i = 0; i < TRANSFER_PAGE_SLOTS; i++)
                ok &= read_slot(b, &now.slots[i], &p->seen[i], elapsed_ns);
        b->impossible += !ok;
}

struct bench_page *bench_page_close(struct bench *b, struct bench_page *p, uint64_t now_ns)
{
        if (!p)
                return NULL;
        read_page(b, p, now_ns);
        list_unlink(&p->node);
        munmap(p->page, TRANSFER_PAGE_BYTES);
        free(p);
        return NULL;
}

void bench_pages_read(struct bench *b, uint64_t now_ns)
{
        list_for_each (&b->pages, n)
                read_page(b, container_of(n, struct bench_page, node), now_ns);
}

void bench_pages_new_epoch(struct bench *b)
{
        b->epoch++;
        list_for_each (&b->pages, n)
                set_epoch(b, container_of(n, struct bench_page, node));
}
