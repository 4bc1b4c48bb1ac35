/* SPDX-License-Identifier: Apache-2.0 */
/* CANCEL, and the cancellation of a client's waiting keys.
 *
 * Runs on the loop thread. Owns nothing. A session's message is read when all keys of earlier
 * messages have been started. A cancelled batch therefore has keys that wait, keys whose bytes are
 * being moved, and keys that have ended. Waiting keys are removed from the cache's queues and end
 * with CANCELLED; the others end as usual, but no longer wait for room. The batch is answered as
 * usual, after its last key.
 *
 * A CANCEL visits at most all batches in flight and the keys of one of them; a second CANCEL of the
 * same batch does nothing. */
#include "request/internal.h"

/* Cancels a batch, which may be freed, and returns the number of its keys that waited. */
static uint32_t cancel(struct batch *b)
{
        uint32_t left = UINT32_MAX;

        b->cancelled = true;
        for (uint32_t i = 0; b->slots && i < b->head.count; i++)
                b->slots[i].req.nowait = true;
        (void)cache_cancel(b->request.client->tenant->cache, &b->waits, &left);
        return UINT32_MAX - left;
}

void cancel_batch(struct request req, const struct wire_cancel *msg)
{
        uint32_t n = 0;

        list_for_each (&req.client->batches, node) {
                struct batch *b = container_of(node, struct batch, inflight);

                if (b->head.hdr.tag != msg->tag || b->cancelled)
                        continue;
                n = cancel(b);
                break;
        }
        request_ok_value(req, n, 0);
}

bool batches_cancel_some(struct client *client, uint32_t *steps)
{
        /* Cancelling frees no other batch than this one. */
        list_for_each_safe (&client->batches, n)
                if (cache_cancel(client->tenant->cache,
                                 &container_of(n, struct batch, inflight)->waits, steps))
                        return true;
        return false;
}
