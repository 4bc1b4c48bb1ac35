/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers: memory of the user that the daemon reads and writes directly.
 *
 * Runs in the handle's thread. Owns the table of buffers, a duplicate of each one's descriptor, and
 * the mappings that the library made. The session owns its record of them (struct conn_region), so
 * that an ended session still knows which memory its unanswered requests named.
 *
 * A reply is applied even if the call that waited for it has given up; a region that is no longer
 * wanted by then is unregistered at once. */
#include "lib/buffers.h"

#include <string.h>
#include <sys/mman.h>

#include "checked.h"
#include "cleanup.h"
#include "lib/message.h"

static bool buffer_holds(const struct buffer *d, const void *data, uint64_t bytes)
{
        uintptr_t at = (uintptr_t)data, base = (uintptr_t)d->base;

        return at >= base && range_within(at - base, bytes, d->bytes);
}

const struct buffer *buffer_find(struct kvcache *kv, const void *data, uint64_t bytes)
{
        for (unsigned n = 0; n < kv->n_buffers; n++) {
                /* Start at the buffer that was found last, because most keys lie in the same
                 * buffer as the key before. */
                unsigned i = (kv->buffer_hint + n) % kv->n_buffers;

                if (!kv->buffers[i].leaving && buffer_holds(&kv->buffers[i], data, bytes)) {
                        kv->buffer_hint = i;
                        return &kv->buffers[i];
                }
        }
        return NULL;
}

bool buffer_is_near_file(const struct kvcache *kv, const void *data, uint64_t bytes)
{
        uintptr_t at = (uintptr_t)data;

        for (unsigned i = 0; i < kv->n_buffers; i++) {
                const struct buffer *d = &kv->buffers[i];
                uintptr_t base = (uintptr_t)d->base;

                if (d->on_disk && (at >= base ? at - base < d->bytes : base - at < bytes))
                        return true;
        }
        return false;
}

struct buffer *buffer_by_number(struct kvcache *kv, uint32_t number)
{
        for (unsigned i = 0; i < kv->n_buffers; i++)
                if (kv->buffers[i].number == number)
                        return &kv->buffers[i];
        return NULL;
}

bool buffer_in_session(const struct kvcache *kv, const struct buffer *d)
{
        return kv->conn && d->session == kv->sessions;
}

void buffer_remove(struct kvcache *kv, struct buffer *d, bool forked)
{
        size_t i = (size_t)(d - kv->buffers);

        if (d->mapped && !forked)
                munmap(d->base, d->bytes);
        closep(&d->fd);
        memmove(d, d + 1, (kv->n_buffers - i - 1) * sizeof(*d));
        kv->n_buffers--;
        kv->buffer_hint = 0;
}

const char *buffer_check(const struct kvcache *kv, const struct wire_reply *reply)
{
        if (reply->value == WIRE_REGION_STAGING)
                return "a region with the staging area's number";
        for (unsigned i = 0; i < kv->conn->n_regions; i++)
                if (kv->conn->regions[i].id == reply->value)
                        return "a region's number twice";
        return NULL;
}

/* Unregisters a region that belongs to no buffer of the table. If memory is short, the region
 * stays registered until the session ends. */
static void buffer_send_back(struct kvcache *kv, uint32_t id)
{
        struct message *m = message_new(WIRE_UNREGISTER, sizeof(struct wire_unregister));

        if (!m)
                return;
        ((struct wire_unregister *)m->data)->region = id;
        message_queue(kv, m);
}

void buffer_take(struct kvcache *kv, const struct message *m, const struct wire_reply *reply)
{
        struct buffer *d = buffer_by_number(kv, m->region);
        struct conn *c = kv->conn;

        if (!d || d->leaving || buffer_in_session(kv, d) ||
            c->n_regions == ARRAY_SIZE(c->regions)) {
                buffer_send_back(kv, reply->value);
                return;
        }
        c->regions[c->n_regions++] = (struct conn_region){
                .id = reply->value,
                .base = d->base,
                .bytes = d->bytes,
        };
        d->id = reply->value;
        d->session = kv->sessions;
}

void buffer_unregistered(struct kvcache *kv, const struct message *m)
{
        uint32_t id = ((const struct wire_unregister *)m->data)->region;
        struct buffer *d = buffer_by_number(kv, m->region);
        struct conn *c = kv->conn;

        for (unsigned i = 0; i < c->n_regions; i++)
                if (c->regions[i].id == id) {
                        c->regions[i] = c->regions[--c->n_regions];
                        break;
                }
        if (d)
                d->session = 0;
}
