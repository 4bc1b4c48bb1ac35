/* SPDX-License-Identifier: Apache-2.0 */
/* The pool index and the page of holds; see holds.h.
 *
 * Runs in the handle's thread. Owns both mappings. Like the pool, the page stays mapped while it
 * holds a chunk, even after the session has ended: the daemon honours the page until the socket is
 * closed. Several holds of one chunk share one place.
 *
 * A malicious daemon can supply wrong bytes here, as it can in its replies. The sizes it states are
 * checked once against the files, which are sealed. */
#include "lib/holds.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "lib/sealed.h"

enum {
        REFUSED_S = 10, /* seconds after a refusal, or an index that cannot be used, before the
                           library requests the index again */
};

int64_t holds_now_s(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
        return (int64_t)ts.tv_sec;
}

void holds_fini(struct hits *h)
{
        if (h->base)
                munmap((void *)h->base, h->bytes);
        if (h->page)
                munmap(h->page, POOL_PAGE_BYTES);
        free(h->scratch);
        free(h->refs);
        *h = (struct hits){ 0 };
}

void holds_map(struct kvcache *kv, const struct wire_reply *reply, int fd, int page_fd)
{
        struct hits *h = &kv->conn->hits;
        uint64_t noted = h->noted;

        h->asking = false;
        if (h->page)
                return;
        if (reply->status == WIRE_OK) {
                h->bytes = reply->value64;
                h->base = sealed_map(fd, h->bytes, SEALED_READ_ONLY, PROT_READ);
                h->page = sealed_map(page_fd, POOL_PAGE_BYTES, SEALED_SIZE, PROT_READ | PROT_WRITE);
                h->scratch = malloc(POOL_MAX_TOUCHES * sizeof(*h->scratch));
                h->refs = calloc(POOL_PAGE_HOLDS, sizeof(*h->refs));
                if (h->base && h->page && h->scratch && h->refs &&
                    pool_index_view_init(&h->view, h->base, h->bytes)) {
                        h->allowance = __atomic_load_n(&h->page->allowance, __ATOMIC_RELAXED);
                        return;
                }
                holds_fini(h);
        }
        h->noted = noted;
        h->not_before_s = holds_now_s() + REFUSED_S;
}

static uint64_t *place_at(const struct hits *h, uint32_t place)
{
        return &h->page->holds[place / POOL_PAGE_WAYS][place % POOL_PAGE_WAYS];
}

bool holds_take(struct hits *h, uint32_t record, uint32_t length, uint32_t *ret)
{
        uint32_t bucket = pool_page_bucket(record), first = bucket * POOL_PAGE_WAYS;
        uint64_t hold = pool_page_hold(record, length), *used = &h->page->used[bucket / 64];
        uint32_t found = POOL_PAGE_HOLDS;

        for (uint32_t i = first; i < first + POOL_PAGE_WAYS; i++) {
                if (h->refs[i] == 0)
                        found = i;
                else if (*place_at(h, i) == hold && h->refs[i] < UINT16_MAX) {
                        h->refs[i]++;
                        *ret = i;
                        return true;
                }
        }
        if (found == POOL_PAGE_HOLDS)
                return false;
        h->refs[found] = 1;
        h->held_bytes += pool_page_held(length);
        __atomic_store_n(place_at(h, found), hold, __ATOMIC_RELAXED);
        __atomic_store_n(used, *used | UINT64_C(1) << bucket % 64, __ATOMIC_RELAXED);
        *ret = found;
        return true;
}

/* Stores with release order, so that the caller's reads of the chunk are complete before the daemon
 * sees that the hold has ended. */
void holds_release(struct hits *h, uint32_t place)
{
        uint32_t bucket = place / POOL_PAGE_WAYS;
        uint64_t *used = &h->page->used[bucket / 64];
        bool is_used = false;

        if (--h->refs[place] > 0)
                return;
        h->held_bytes -= pool_page_held((uint32_t)*place_at(h, place));
        __atomic_store_n(place_at(h, place), 0, __ATOMIC_RELEASE);
        for (uint32_t i = 0; i < POOL_PAGE_WAYS; i++)
                is_used |= h->refs[bucket * POOL_PAGE_WAYS + i] > 0;
        if (!is_used)
                __atomic_store_n(used, *used & ~(UINT64_C(1) << bucket % 64), __ATOMIC_RELEASE);
}

void holds_release_lease(struct conn *conn, const struct lease_row *row)
{
        if (conn->hits.page && row->wire.id < POOL_PAGE_HOLDS && conn->hits.refs[row->wire.id] > 0)
                holds_release(&conn->hits, row->wire.id);
}
