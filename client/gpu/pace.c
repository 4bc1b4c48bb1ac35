/* SPDX-License-Identifier: Apache-2.0 */
/* Gets of more than may be leased at a time: the daemon leases as much as it may and answers QUOTA
 * for the rest. These blocks are requested again after earlier leases have been returned.
 *
 * Runs in the handle's thread. A batch with such blocks copies and releases the blocks that it got,
 * and is then BATCH_PACED until it may ask again. No new get begins during that time.
 *
 * Order: only a batch of the first operation that is not yet issued asks again, and only when no
 * other batch has leases or may get any. Other batches of the same operation end on their own and
 * release their leases. Batches of later operations cannot end, because their copies must follow
 * those of this operation; they therefore return their leases, and ask again when their operation
 * is the first. If the batch has leases and waits for device memory that later operations have, it
 * continues without that memory (borrow.c).
 *
 * Failures: if a batch asks while no other batch has leases, and gets none, its blocks are
 * QUOTA: other clients have all that the limit allows, or a block is longer than the limit. */
#include <string.h>

#include "gpu/batch.h"

static bool is_leasing(const struct batch *b)
{
        if (!b->op || b->op->is_put || b->part >= 0 || b->state == BATCH_PACED)
                return false;
        if (b->request || b->state != BATCH_ASKING)
                return true;
        for (uint32_t i = 0; i < b->n; i++)
                if (b->results[i].lease.generation != 0)
                        return true;
        return false;
}

static bool is_answered(const struct batch *b)
{
        return b->state == BATCH_ASKING && (!b->borrows || b->question == BORROW_DONE) &&
               (!b->request || parts_request_is_done(b->request));
}

bool pace_holds_up_gets(const struct kvcache_gpu *gpu)
{
        const struct batch *b;

        TAILQ_FOREACH(b, &gpu->active, link)
        if (b->is_paced)
                return true;
        return false;
}

bool pace_holds_up_device_memory(const struct kvcache_gpu *gpu)
{
        const struct batch *b;

        TAILQ_FOREACH(b, &gpu->active, link)
        {
                bool waits = b->state == BATCH_PACED ||
                             (is_answered(b) && !b->op->is_put && !operation_may_issue(gpu, b->op));

                if (b->device_part >= 0 && !waits)
                        return false;
        }
        return pace_holds_up_gets(gpu);
}

bool pace_begin(struct batch *b)
{
        bool is_short = false, has_some = false;

        if (b->part >= 0 || b->is_failed)
                return false;
        for (uint32_t i = 0; i < b->n; i++) {
                is_short |= !b->is_judged[i] && b->results[i].status == KVCACHE_QUOTA;
                has_some |= !b->is_judged[i] && kvcache_status_ok(b->results[i].status);
        }
        if (!is_short || (!has_some && b->asked_alone))
                return false;
        b->is_paced = true;
        b->asked_alone = false;
        if (!has_some)
                b->state = BATCH_PACED;
        return true;
}

void pace_give_back(struct kvcache_gpu *gpu, struct batch *b, bool is_used)
{
        struct kvcache_lease leases[GPU_BATCH_BLOCKS];
        size_t n = 0;

        for (uint32_t i = 0; i < b->n; i++) {
                if (b->results[i].lease.generation == 0)
                        continue;
                leases[n++] = b->results[i].lease;
                b->results[i].lease = (struct kvcache_lease){ 0 };
                if (!is_used)
                        b->results[i].status = KVCACHE_QUOTA;
        }
        if (n > 0)
                (void)kvcache_release(gpu->kv, leases, n);
}

/* Makes a batch of a later operation return its leases. */
static void pace_yield(struct kvcache_gpu *gpu, struct batch *b)
{
        if (b->request)
                (void)batch_take_results(gpu, b);
        pace_give_back(gpu, b, false);
        b->is_paced = true;
        b->asked_alone = false;
        b->state = BATCH_PACED;
}

static bool pace_ask(struct kvcache_gpu *gpu, struct batch *b)
{
        struct kvcache_request request;
        int r;

        b->n_again = 0;
        for (uint32_t i = 0; i < b->n; i++) {
                if (b->is_judged[i] || b->results[i].status != KVCACHE_QUOTA)
                        continue;
                b->again[b->n_again] = b->entries[i];
                b->asked[b->n_again++] = i;
        }
        b->state = BATCH_ASKING;
        if (b->n_again == 0) /* all its blocks have their status */
                return true;
        gpu->blocks_paced += b->n_again;
        b->asked_alone = true;
        memset(b->answers, 0, b->n_again * sizeof(b->answers[0]));
        kvcache_prep(&request, KVCACHE_OP_GET, b->op->namespace_handle, b->n_again, b->answers);
        request.entries = b->again;
        r = batch_submit(gpu, b, &request);
        if (r < 0) {
                b->op->error = r;
                for (uint32_t k = 0; k < b->n_again; k++)
                        b->results[b->asked[k]].status = status_of_error(r);
                b->n_again = 0;
        }
        return true;
}

bool pace_step(struct kvcache_gpu *gpu, struct batch *b)
{
        bool changed = false, must_wait = false;
        struct batch *o;

        TAILQ_FOREACH(o, &gpu->active, link)
        {
                if (o == b || !is_leasing(o))
                        continue;
                if (o->op != b->op && is_answered(o)) {
                        pace_yield(gpu, o);
                        changed = true;
                } else {
                        must_wait = true;
                }
        }
        return must_wait ? changed : pace_ask(gpu, b);
}
