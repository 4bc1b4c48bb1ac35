/* SPDX-License-Identifier: Apache-2.0 */
/* Creates, queues and reads messages; see message.h. Runs in the handle's thread. */
#include "lib/message.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "checked.h"
#include "lib/transfers.h"

/* Numbers of pending releases, and of bytes that they free, at which a RELEASE message is sent. */
enum { RELEASES_MANY = 256, RELEASE_BYTES_MANY = 16 << 20 };

struct message *message_new(unsigned op, size_t bytes)
{
        struct message *m = NULL;
        struct wire_hdr *hdr;

        assert(bytes >= sizeof(*hdr) && bytes <= WIRE_MAX_MESSAGE);
        m = calloc(1, sizeof(*m) + bytes);
        if (!m)
                return NULL;
        m->op = (uint16_t)op;
        m->bytes = (uint32_t)bytes;
        m->fd = -1;
        hdr = (struct wire_hdr *)m->data;
        hdr->len = (uint32_t)bytes;
        hdr->op = (uint16_t)op;
        return m;
}

void message_free(struct message *m)
{
        free(m);
}

unsigned message_places(const struct message *m)
{
        if (!m->moves)
                return 0;
        return m->pieces_at ? m->n_pieces : m->count;
}

struct place message_place(const struct message *m, unsigned i)
{
        const void *entries = m->data + sizeof(struct wire_batch);

        assert(i < message_places(m));
        if (m->pieces_at) {
                const struct wire_piece *p =
                        (const struct wire_piece *)(m->data + m->pieces_at) + i;

                return (struct place){ p->region, p->offset, p->length };
        }
        if (m->op == WIRE_PUT) {
                const struct wire_put *put = (const struct wire_put *)entries + i;

                return (struct place){ put->region, put->offset, put->length };
        } else {
                const struct wire_get *get = (const struct wire_get *)entries + i;

                return (struct place){ get->into_region, get->into_offset, get->into_length };
        }
}

void message_unref_staging(struct message *m, struct staging *l)
{
        for (unsigned i = 0; i < message_places(m); i++) {
                struct place p = message_place(m, i);

                if (p.region == WIRE_REGION_STAGING)
                        staging_unref(l, p.offset);
        }
        m->moves = false;
}

void message_queue(struct kvcache *kv, struct message *m)
{
        TAILQ_INSERT_TAIL(&kv->queue, m, link);
}

void message_cancel(struct kvcache *kv, struct message *m)
{
        struct message *cancel;

        if (!(kv->conn->features & WIRE_FEATURE_CANCEL) || m->cancelled ||
            (m->op != WIRE_PUT && m->op != WIRE_GET))
                return;
        cancel = message_new(WIRE_CANCEL, sizeof(struct wire_cancel));
        if (!cancel)
                return; /* without a CANCEL, the entries end as usual */
        ((struct wire_cancel *)cancel->data)->tag = m->tag;
        m->cancelled = true;
        kv->n_cancels++;
        TAILQ_INSERT_HEAD(&kv->queue, cancel, link);
}

void message_ask_for_transfers(struct kvcache *kv)
{
        struct transfers *t = &kv->conn->transfers;
        struct message *m;

        if (t->page || t->asked)
                return;
        m = message_new(WIRE_TRANSFERS, sizeof(struct wire_hdr));
        if (!m)
                return; /* the next transfer that is counted tries again */
        t->asked = true;
        message_queue(kv, m);
}

void message_count_copies(struct kvcache *kv, uint64_t blocks, uint64_t bytes, int64_t began_ns)
{
        int64_t now_ns = handle_now_ns();
        struct transfer_record sum = {
                .result = TRANSFER_OK,
                .blocks = blocks,
                .regions = blocks,
                .bytes = bytes,
                .device_bytes = bytes,
                .latency_ns = (uint64_t)(now_ns - began_ns),
        };

        if (blocks == 0 || !(kv->conn->features & WIRE_FEATURE_TRANSFERS))
                return;
        if (transfers_count(
                    &kv->conn->transfers,
                    transfer_key(TRANSFER_HOST_TO_HOST, TRANSFER_FULLY_CONTIGUOUS, TRANSFER_MEMCPY),
                    &sum, blocks, (uint64_t)now_ns) == 0)
                message_ask_for_transfers(kv);
}

int message_release(struct kvcache *kv, struct wire_lease lease, uint32_t length)
{
        if (kv->n_releases == kv->releases_room) {
                size_t room = MAX(2 * kv->releases_room, (size_t)RELEASES_MANY);
                struct wire_lease *releases = realloc(kv->releases, room * sizeof(*releases));

                if (!releases)
                        return -ENOMEM;
                kv->releases = releases;
                kv->releases_room = room;
        }
        kv->releases[kv->n_releases++] = lease;
        kv->release_bytes += length;
        if (kv->n_releases < RELEASES_MANY && kv->release_bytes < RELEASE_BYTES_MANY)
                return 0;
        return message_flush_releases(kv);
}

int message_flush_releases(struct kvcache *kv)
{
        struct message *m;

        if (kv->n_releases == 0 || kv->release_queued || !kv->conn)
                return 0;
        m = message_new(WIRE_RELEASE, sizeof(struct wire_batch));
        if (!m)
                return -ENOMEM;
        if (kv->conn->features & WIRE_FEATURE_NO_REPLY) {
                ((struct wire_hdr *)m->data)->flags |= WIRE_F_NO_REPLY;
                m->is_unanswered = true;
        }
        kv->release_queued = true;
        message_queue(kv, m);
        return 0;
}

int message_errno(unsigned wire_status)
{
        switch (wire_status) {
        case WIRE_OK:
                return 0;
        case WIRE_MISS:
        case WIRE_NO_NAMESPACE:
                return -ENOENT;
        case WIRE_EXISTS_ALREADY:
        case WIRE_MISMATCH:
                return -EEXIST;
        case WIRE_BUSY:
                return -EBUSY;
        case WIRE_TOO_LARGE:
                return -E2BIG;
        case WIRE_INVALID:
                return -EINVAL;
        case WIRE_STALE:
                return -ESTALE;
        case WIRE_DENIED:
                return -EACCES;
        case WIRE_QUOTA:
                return -EDQUOT;
        case WIRE_VERSION:
                return -EPROTONOSUPPORT;
        case WIRE_SHUTDOWN:
                return -ESHUTDOWN;
        case WIRE_NO_SPACE:
                return -ENOSPC;
        case WIRE_NOT_EMPTY:
                return -ENOTEMPTY;
        case WIRE_CANCELLED:
                return -ECANCELED;
        default:
                return -EIO;
        }
}
