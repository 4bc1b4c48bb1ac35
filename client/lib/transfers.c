/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of transfers; see transfers.h.
 *
 * Runs in the handle's thread. Owns a private copy of the counters, to which transfers are added,
 * and the mapping of the page, which the daemon reads. Transfers counted before the page arrives
 * are in the copy. The copy and the mapping end with the session, so transfers that were counted
 * without a page are lost.
 *
 * A page whose file could shrink is not used, because an access to it could raise SIGBUS. A
 * child does not inherit the mapping. */
#include "lib/transfers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "checked.h"

struct transfers_own {
        struct transfer_slot slots[TRANSFER_PAGE_SLOTS];
        uint64_t busy_until_ns[TRANSFER_PAGE_SLOTS];
        unsigned n_slots, last; /* index of the slot that was found last */
};

/* --- the page --- */

/* Stores a word. The daemon reads at any time, so each store is atomic and the stores become
 * visible in order. Each has release order instead of one fence for all, because ThreadSanitizer
 * does not support fences. */
static void put_word(uint64_t *to, uint64_t value)
{
        __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

/* Makes the sequence odd before a write and even after it; a reader that sees it odd or changed
 * reads again. */
static void sequence_step(struct transfer_page *page)
{
        put_word(&page->sequence, page->sequence + 1);
}

static void publish(struct transfer_page *page, const struct transfers_own *own, unsigned i)
{
        const uint64_t *words = (const uint64_t *)&own->slots[i];
        uint64_t *out = (uint64_t *)&page->slots[i];

        sequence_step(page);
        for (size_t w = 0; w < sizeof(page->slots[i]) / sizeof(*out); w++)
                put_word(&out[w], words[w]);
        sequence_step(page);
}

static void new_epoch(struct transfer_slot *s, uint32_t epoch)
{
        if (s->epoch == epoch)
                return;
        s->epoch = epoch;
        s->counts.min_bytes = UINT64_MAX;
        s->counts.max_bytes = 0;
}

void transfers_take(struct transfers *t, int fd)
{
        int seals = fcntl(fd, F_GET_SEALS);
        struct stat st;
        void *p;

        if (t->page || !t->own || seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) < 0 ||
            st.st_size < TRANSFER_PAGE_BYTES)
                return;
        p = mmap(NULL, TRANSFER_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
                return;
        if (madvise(p, TRANSFER_PAGE_BYTES, MADV_DONTFORK) < 0) {
                munmap(p, TRANSFER_PAGE_BYTES);
                return;
        }
        t->page = p;
        for (unsigned i = 0; i < t->own->n_slots; i++) {
                t->own->slots[i].epoch = __atomic_load_n(&t->page->epoch, __ATOMIC_ACQUIRE);
                publish(t->page, t->own, i);
        }
}

void transfers_fini(struct transfers *t, bool forked)
{
        if (t->page && !forked)
                munmap(t->page, TRANSFER_PAGE_BYTES);
        free(t->own);
        *t = (struct transfers){ 0 };
}

/* --- counting --- */

/* Finds or adds the slot of `key`. Returns 0 or -ENOSPC. */
static int slot_of(struct transfers_own *own, uint32_t key, unsigned *ret)
{
        unsigned i = own->last;

        if (i >= own->n_slots || own->slots[i].key != key)
                for (i = 0; i < own->n_slots && own->slots[i].key != key; i++)
                        ;
        if (i == TRANSFER_PAGE_SLOTS)
                return -ENOSPC;
        if (i == own->n_slots) {
                own->slots[i].key = key;
                transfer_counts_init(&own->slots[i].counts);
                own->n_slots++;
        }
        *ret = own->last = i;
        return 0;
}

/* Adds the time during which at least one operation ran; time that overlaps with an earlier one
 * counts once. */
static void count_busy(struct transfers_own *own, unsigned i, uint64_t duration_ns, uint64_t now_ns)
{
        uint64_t since = MAX(now_ns - MIN(duration_ns, now_ns), own->busy_until_ns[i]);

        if (now_ns > since)
                own->slots[i].busy_ns += now_ns - since;
        own->busy_until_ns[i] = MAX(now_ns, own->busy_until_ns[i]);
}

int transfers_count(struct transfers *t, uint32_t key, const struct transfer_record *sum,
                    uint64_t n, uint64_t now_ns)
{
        unsigned i = 0;
        int r;

        if (!t->own)
                t->own = calloc(1, sizeof(*t->own));
        if (!t->own)
                return -ENOMEM;
        r = slot_of(t->own, key, &i);
        if (r < 0)
                return r;
        if (t->page)
                new_epoch(&t->own->slots[i], __atomic_load_n(&t->page->epoch, __ATOMIC_ACQUIRE));
        transfer_counts_add_many(&t->own->slots[i].counts, sum, n);
        count_busy(t->own, i, sum->latency_ns, now_ns);
        if (t->page)
                publish(t->page, t->own, i);
        return 0;
}
