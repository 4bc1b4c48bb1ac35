/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that follow the daemon's events. The handle keeps the last reply, because the caller's
 * events point to names of namespaces in it. A reply is checked as a whole before any part of it
 * is used. Runs in the handle's thread. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "lib/abi.h"
#include "lib/admin.h"
#include "lib/flow.h"

static_assert((int)KVCACHE_EVENT_STORED == (int)WIRE_EVENT_STORED, "the same kinds");
static_assert((int)KVCACHE_EVENT_REMOVED == (int)WIRE_EVENT_REMOVED, "the same kinds");
static_assert((int)KVCACHE_EVENT_NAMESPACE_REMOVED == (int)WIRE_EVENT_NAMESPACE_REMOVED,
              "the same kinds");
static_assert((int)KVCACHE_EVENTS_MAX_WAIT_MS == (int)WIRE_MAX_EVENTS_WAIT_MS, "the same limit");

enum { PAYLOAD = WIRE_MAX_MESSAGE - sizeof(struct wire_reply) };

struct events_buffer {
        _Alignas(8) uint8_t payload[PAYLOAD];
        /* The names, NUL-terminated: a name and its NUL are not longer than its part of the
         * payload. */
        char names[PAYLOAD];
        unsigned n_names;
        struct {
                uint32_t number;
                const char *text;
        } table[PAYLOAD / sizeof(struct wire_event_name)];
};

/* The parts of a reply in the buffer. */
struct parsed {
        struct wire_events_result head;
        const struct wire_event *events;
};

/* Takes the names from the end of the payload. Returns false if they are malformed. */
static bool take_names(struct events_buffer *b, const uint8_t *p, size_t left, uint32_t n)
{
        char *to = b->names;

        for (b->n_names = 0; b->n_names < n; b->n_names++) {
                struct wire_event_name name;
                size_t bytes;

                if (left < sizeof(name))
                        return false;
                memcpy(&name, p, sizeof(name));
                bytes = round_up(sizeof(name) + name.name_length, 8);
                if (bytes > left ||
                    wire_name_check((const char *)p + sizeof(name), name.name_length) < 0)
                        return false;
                b->table[b->n_names].number = name.namespace_number;
                b->table[b->n_names].text = to;
                to = mempcpy(to, p + sizeof(name), name.name_length);
                *to++ = '\0';
                p += bytes;
                left -= bytes;
        }
        return left == 0;
}

static bool parse(struct events_buffer *b, const struct control *c, struct parsed *ret)
{
        size_t events = c->count * sizeof(struct wire_event), head = sizeof(ret->head);

        if (c->payload_bytes < head + events)
                return false;
        memcpy(&ret->head, b->payload, head);
        ret->events = (const struct wire_event *)(b->payload + head);
        if (ret->head.epoch == 0 || (ret->head.flags & WIRE_EVENTS_GAP && c->count > 0))
                return false;
        return take_names(b, b->payload + head + events, c->payload_bytes - head - events,
                          c->value);
}

/* Returns the name of a namespace, or NULL. `*at` is a hint that the caller keeps between calls,
 * because neighbouring events are often about one namespace. */
static const char *name_of(const struct events_buffer *b, uint32_t number, unsigned *at)
{
        for (unsigned i = 0; i < b->n_names; i++, *at = (*at + 1) % b->n_names)
                if (b->table[*at].number == number)
                        return b->table[*at].text;
        return NULL;
}

static void copy_out(const struct events_buffer *b, const struct parsed *p, unsigned count,
                     uint64_t first, void *ret, size_t size)
{
        unsigned hint = 0;

        for (unsigned i = 0; i < count; i++) {
                const struct wire_event *w = &p->events[i];
                struct kvcache_event e = {
                        .sequence = first ? first + i : 0,
                        .time_ms = w->time_ms,
                        .length = w->length,
                        .namespace_name = name_of(b, w->namespace_number, &hint),
                        .namespace_number = w->namespace_number,
                        .kind = w->kind,
                        .tier = w->tier,
                };

                memcpy(&e.key, &w->key, sizeof(e.key));
                abi_copy_out(abi_at(ret, size, i), size, &e, sizeof(e));
        }
}

/* Asks the daemon, and checks its reply. Returns 0 or -errno. */
static int ask(struct kvcache *kv, const struct wire_events *request, struct control *c,
               struct parsed *ret)
{
        int64_t wait_ms = (int64_t)kv->request_timeout_ms + request->wait_ms;
        struct message *m;
        int r;

        r = admin_begin(kv);
        if (r < 0)
                return r;
        if (!(kv->conn->features & WIRE_FEATURE_EVENTS)) {
                handle_leave(kv);
                return handle_fail(
                        kv, -EOPNOTSUPP,
                        "this daemon keeps no events: set events.ring in its configuration and "
                        "restart it, or use a newer daemon");
        }
        if (!kv->events)
                kv->events = malloc(sizeof(*kv->events));
        m = kv->events ? message_new(WIRE_EVENTS, sizeof(*request)) : NULL;
        if (m) {
                struct wire_events *w = (struct wire_events *)m->data;
                struct wire_hdr hdr = w->hdr;

                *w = *request;
                w->hdr = hdr;
                w->max = MIN(w->max, (uint16_t)kv->conn->max_keys);
                m->count = w->max;
                c->payload = kv->events->payload;
                c->payload_bytes = sizeof(kv->events->payload);
        }
        r = flow_call(kv, m, c, handle_deadline(0, (int)MIN(wait_ms, (int64_t)INT32_MAX)));
        handle_leave(kv);
        if (r < 0)
                return r;
        return parse(kv->events, c, ret)
                       ? 0
                       : handle_fail(kv, -EBADMSG, "the daemon's reply to EVENTS is malformed");
}

static int check(struct kvcache *kv, const struct kvcache_events_position *position,
                 const void *ret, size_t event_size, size_t max)
{
        int r = handle_enter(kv);

        if (r < 0)
                return r;
        if (!position || !ret || max == 0)
                return handle_fail(kv, -EINVAL,
                                   "the position, the cursor or the array for events is NULL, or "
                                   "the array is empty");
        if (position->reserved != 0)
                return handle_fail(kv, -EINVAL, "the position's reserved member is not 0");
        if (!abi_size_is_valid(event_size, ABI_EVENT_MIN))
                return handle_fail(kv, -EINVAL,
                                   "%zu bytes are not the size of a struct kvcache_event",
                                   event_size);
        return 0;
}

int kvcache_events_next_sized(struct kvcache *kv, struct kvcache_events_position *position,
                              struct kvcache_event *ret, size_t event_size, size_t max,
                              uint32_t wait_ms)
{
        struct control c = { 0 };
        struct parsed p;
        int r = check(kv, position, ret, event_size, max);

        if (r < 0)
                return r;
        if (wait_ms > KVCACHE_EVENTS_MAX_WAIT_MS)
                return handle_fail(kv, -EINVAL, "a wait for events is at most %d ms",
                                   KVCACHE_EVENTS_MAX_WAIT_MS);
        r = ask(kv,
                &(struct wire_events){ .kind = WIRE_EVENTS_SINCE,
                                       .epoch = position->epoch,
                                       .from = position->next,
                                       .wait_ms = wait_ms,
                                       .max = (uint16_t)MIN(max, (size_t)WIRE_MAX_KEYS) },
                &c, &p);
        if (r < 0)
                return r;
        if (p.head.flags & WIRE_EVENTS_GAP || p.head.epoch != position->epoch) {
                *position = (struct kvcache_events_position){ .epoch = p.head.epoch,
                                                              .next = c.value64,
                                                              .oldest = p.head.first };
                return handle_fail(
                        kv, -ESTALE,
                        "events were lost, or none were read yet: call kvcache_events_snapshot()");
        }
        copy_out(kv->events, &p, c.count, position->next, ret, event_size);
        position->next = c.value64;
        return c.count;
}

int kvcache_events_snapshot_sized(struct kvcache *kv,
                                  const struct kvcache_events_position *position, uint64_t *cursor,
                                  struct kvcache_event *ret, size_t event_size, size_t max)
{
        struct control c = { 0 };
        struct parsed p;
        int r = check(kv, cursor ? position : NULL, ret, event_size, max);

        if (r < 0)
                return r;
        r = ask(kv,
                &(struct wire_events){ .kind = WIRE_EVENTS_SNAPSHOT,
                                       .from = *cursor,
                                       .max = (uint16_t)MIN(max, (size_t)WIRE_MAX_KEYS) },
                &c, &p);
        if (r < 0)
                return r;
        if (p.head.epoch != position->epoch)
                return handle_fail(kv, -ESTALE,
                                   "the position is that of another start of the daemon: call "
                                   "kvcache_events_next() again");
        copy_out(kv->events, &p, c.count, 0, ret, event_size);
        *cursor = c.value64;
        return c.count;
}
