/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers: memory of the user's that the daemon moves bytes to and from by itself.
 *
 * Runs in the handle's thread. Owns the table of regions, a duplicate of each one's descriptor, and
 * the mappings that it made itself. What a session knows of them (struct conn_region) stays with
 * the session, so that an ended one can still tell which memory its unanswered requests named.
 *
 * Happy path: one REGISTER, which carries the descriptor, gives the region its number in the
 * session. In a new session the first request that names the region registers it again. UNREGISTER
 * is answered when nothing moves bytes there any more.
 *
 * Failures: a refusal leaves the region without a session, and the next request that names it tries
 * again. A reply whose wait has ended still counts; a region that is not wanted by then is
 * unregistered at once. An unregistration whose wait ends early goes on: the region is `leaving`
 * until the user has called again and gets its result. */
#include "lib/buffers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/abi.h"
#include "checked.h"
#include "cleanup.h"
#include "lib/handle.h"
#include "lib/message.h"
#include "lib/retired.h"
#include "lib/request.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { BUFFER_POLL_MS = 2 }; /* between two attempts to take a lock that cannot be waited for */

static bool buffer_holds(const struct buffer *d, const void *data, uint64_t bytes)
{
        uintptr_t at = (uintptr_t)data, base = (uintptr_t)d->base;

        return at >= base && range_within(at - base, bytes, d->bytes);
}

const struct buffer *buffer_find(struct kvcache *kv, const void *data, uint64_t bytes)
{
        for (unsigned n = 0; n < kv->n_buffers; n++) {
                /* Most keys lie where the one before them does. */
                unsigned i = (kv->buffer_hint + n) % kv->n_buffers;

                if (!kv->buffers[i].leaving && buffer_holds(&kv->buffers[i], data, bytes)) {
                        kv->buffer_hint = i;
                        return &kv->buffers[i];
                }
        }
        return NULL;
}

static struct buffer *buffer_by_number(struct kvcache *kv, uint32_t number)
{
        for (unsigned i = 0; i < kv->n_buffers; i++)
                if (kv->buffers[i].number == number)
                        return &kv->buffers[i];
        return NULL;
}

static bool buffer_in_session(const struct kvcache *kv, const struct buffer *d)
{
        return kv->conn && d->session == kv->sessions;
}

static void buffer_remove(struct kvcache *kv, struct buffer *d, bool forked)
{
        size_t i = (size_t)(d - kv->buffers);

        if (d->mapped && !forked)
                munmap(d->base, d->bytes);
        closep(&d->fd);
        memmove(d, d + 1, (kv->n_buffers - i - 1) * sizeof(*d));
        kv->n_buffers--;
        kv->buffer_hint = 0;
}

void buffer_free_all(struct kvcache *kv, bool forked)
{
        while (kv->n_buffers > 0)
                buffer_remove(kv, &kv->buffers[kv->n_buffers - 1], forked);
}

/* --- registering --- */

static int buffer_call(struct kvcache *kv, const struct buffer *d)
{
        struct message *m = message_new(WIRE_REGISTER, sizeof(struct wire_register));
        struct control c = { 0 };

        if (!m)
                return handle_fail(kv, -ENOMEM, "out of memory");
        m->fd = d->fd;
        m->region = d->number;
        ((struct wire_register *)m->data)->offset = d->offset;
        ((struct wire_register *)m->data)->bytes = d->bytes;
        return message_call(kv, m, &c, handle_deadline(0, kv->request_timeout_ms));
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

/* Unregisters a region that only the daemon knows. Without memory for that it ends with the
 * session. */
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

int buffer_ready(struct kvcache *kv, const struct buffer *d, uint64_t *tried, int *ret_refused)
{
        uint64_t bit = UINT64_C(1) << (d - kv->buffers);
        int r;

        if (buffer_in_session(kv, d) || (*tried & bit))
                return 0;
        *tried |= bit;
        r = buffer_call(kv, d);
        if (r == 0 || r == -ECONNRESET || r == -ETIMEDOUT || r == -ENOMEM)
                return r;
        *ret_refused = r;
        return 0;
}
static_assert(WIRE_MAX_REGIONS <= 64, "a bit for each region");

/* Where it is mapped: there already, or now. Pages that were never touched would be a hole to the
 * daemon, even where they are allocated: they are touched here, by the kernel, which gives an error
 * instead of a signal where the file is too short. The daemon has the last word on what it takes.
 */
static int buffer_map(struct kvcache *kv, struct buffer *d, void *base)
{
        char reason[128];
        void *p;
        int r;

        if (base) {
                d->base = base;
                (void)madvise(base, d->bytes, MADV_POPULATE_WRITE);
                return 0;
        }
        p = mmap(NULL, d->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, (off_t)d->offset);
        if (p == MAP_FAILED) {
                r = errno == EACCES || errno == ENODEV || errno == EOVERFLOW ? -EINVAL : -errno;
                return handle_fail(kv, r, "the region cannot be mapped: %s",
                                   handle_strerror(errno, reason, sizeof(reason)));
        }
        d->base = p;
        d->mapped = true;
        (void)madvise(p, d->bytes, MADV_DONTFORK);
        (void)madvise(p, d->bytes, MADV_DONTDUMP);
        (void)madvise(p, d->bytes, MADV_POPULATE_WRITE);
        return 0;
}

static int buffer_new(struct kvcache *kv, const struct kvcache_buffer_options *o,
                      uint32_t *ret_region, void **ret_base)
{
        struct buffer *d = &kv->buffers[kv->n_buffers];
        int r;

        *d = (struct buffer){ .offset = o->offset, .bytes = o->bytes };
        d->fd = fcntl(o->fd, F_DUPFD_CLOEXEC, 3);
        if (d->fd < 0)
                return handle_fail(kv, errno == EBADF ? -EINVAL : -errno,
                                   "the region's descriptor cannot be duplicated");
        r = buffer_map(kv, d, o->base);
        if (r < 0) {
                closep(&d->fd);
                return r;
        }
        d->number = ++kv->buffers_ever;
        kv->n_buffers++;
        r = buffer_call(kv, d);
        if (r < 0) {
                buffer_remove(kv, d, false);
                return r;
        }
        *ret_region = d->number;
        if (ret_base)
                *ret_base = d->base;
        return 0;
}

/* In numbers that fit everywhere, and clear of the other regions. */
static int buffer_check_options(struct kvcache *kv, const struct kvcache_buffer_options *o)
{
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end;
        uintptr_t base = (uintptr_t)o->base, base_end;

        if (o->flags != 0)
                return handle_fail(kv, -EINVAL, "unknown flags 0x%x", o->flags);
        if (o->fd < 0)
                return handle_fail(kv, -EINVAL, "a region needs a descriptor");
        if (o->bytes == 0 || o->bytes % page != 0 || o->offset % page != 0 ||
            !checked_add(o->offset, o->bytes, &end) || end > INT64_MAX || o->bytes > SIZE_MAX / 2)
                return handle_fail(kv, -EINVAL, "a region is one or more whole pages of a file");
        if (o->base && (base % page != 0 || !checked_add(base, o->bytes, &base_end)))
                return handle_fail(kv, -EINVAL, "a region is mapped at the start of a page");
        if (kv->n_buffers == ARRAY_SIZE(kv->buffers))
                return handle_fail(kv, -EINVAL, "a handle has at most %d regions",
                                   WIRE_MAX_REGIONS);
        for (unsigned i = 0; o->base && i < kv->n_buffers; i++) {
                const struct buffer *d = &kv->buffers[i];

                if (base < (uintptr_t)d->base + d->bytes && (uintptr_t)d->base < base + o->bytes)
                        return handle_fail(kv, -EINVAL, "this memory is in region %u already%s",
                                           d->number,
                                           d->leaving ? ", which is still being unregistered" : "");
        }
        return 0;
}

int kvcache_buffer_register(struct kvcache *kv, const struct kvcache_buffer_options *options,
                            uint32_t *ret_buffer, void **ret_base)
{
        struct kvcache_buffer_options o;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!options || !ret_buffer || !abi_size_is_valid(options->size, ABI_BUFFER_OPTIONS_MIN))
                return handle_fail(kv, -EINVAL, "the options' size is not set");
        if (abi_copy_in(&o, sizeof(o), options, options->size) < 0)
                return handle_is_newer(kv, "options");
        if (!o.base && !ret_base)
                return handle_fail(kv, -EINVAL,
                                   "neither a mapping nor room for its address is given");
        r = buffer_check_options(kv, &o);
        if (r < 0)
                return r;
        message_check_idle(kv);
        r = handle_connected(kv);
        if (r == 0)
                r = buffer_new(kv, &o, ret_buffer, ret_base);
        handle_leave(kv);
        return r;
}

/* --- unregistering --- */

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

/* One that an earlier call has sent and did not wait for to the end. */
static bool buffer_is_leaving(const struct kvcache *kv, const struct buffer *d)
{
        for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++)
                if (kv->inflight[i] && kv->inflight[i]->op == WIRE_UNREGISTER &&
                    kv->inflight[i]->region == d->number)
                        return true;
        return false;
}

static int buffer_call_back(struct kvcache *kv, const struct buffer *d, int64_t deadline)
{
        struct message *m = message_new(WIRE_UNREGISTER, sizeof(struct wire_unregister));
        struct control c = { 0 };

        if (!m)
                return handle_fail(kv, -ENOMEM, "out of memory");
        m->region = d->number;
        ((struct wire_unregister *)m->data)->region = d->id;
        return message_call(kv, m, &c, deadline);
}

static int buffer_unregister(struct kvcache *kv, struct buffer *d)
{
        int64_t deadline = handle_deadline(0, kv->request_timeout_ms);
        int r = 0;

        d->leaving = true;
        while (buffer_in_session(kv, d)) {
                if (!buffer_is_leaving(kv, d))
                        r = buffer_call_back(kv, d, deadline);
                else if (handle_now_ns() < deadline)
                        (void)message_wait(kv, deadline);
                else
                        r = -ETIMEDOUT;
                if (r < 0 && r != -ECONNRESET)
                        return r == -ETIMEDOUT
                                       ? handle_fail(kv, r,
                                                     "the daemon has not released the region yet")
                                       : r;
        }
        /* What this session has sent is answered, or the session is over: its requests, those of
         * the ones before, and the library's own copies. */
        while (region_is_used(kv, d->base, d->bytes) || request_copies_to(kv, d->base, d->bytes)) {
                int64_t now = handle_now_ns();

                if (now >= deadline)
                        return handle_fail(
                                kv, -ETIMEDOUT,
                                "I/O of a daemon that has ended still uses the region's memory");
                if (kv->conn && kv->n_inflight > 0)
                        (void)message_wait(kv, now + BUFFER_POLL_MS * INT64_C(1000000));
                else
                        (void)poll(NULL, 0, BUFFER_POLL_MS);
                request_expire(kv, handle_now_ns());
        }
        buffer_remove(kv, d, false);
        return 0;
}

int kvcache_buffer_unregister(struct kvcache *kv, uint32_t buffer)
{
        struct buffer *d;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        d = buffer_by_number(kv, buffer);
        if (!d)
                return handle_fail(kv, -EINVAL, "%u is no buffer of this handle", buffer);
        message_check_idle(kv);
        r = buffer_unregister(kv, d);
        handle_leave(kv);
        return r;
}
