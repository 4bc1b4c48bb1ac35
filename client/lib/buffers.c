/* SPDX-License-Identifier: Apache-2.0 */
/* Donated regions: memory of the user's that the daemon moves bytes to and from by itself.
 *
 * Runs in the handle's thread. Owns the table of regions, a duplicate of each one's descriptor, and
 * the mappings that it made itself. What a session knows of them (struct conn_region) stays with
 * the session, so that an ended one can still tell which memory its unanswered requests named.
 *
 * Happy path: one DONATE, which carries the descriptor, gives the region its number in the session.
 * In a new session the first request that names the region donates it again. WITHDRAW is answered
 * when nothing moves bytes there any more.
 *
 * Failures: a refusal leaves the region without a session, and the next request that names it tries
 * again. A reply that comes when nobody waits for it any more still counts; a region that nobody
 * wants by then is withdrawn at once. A withdrawal whose wait ends early goes on: the region is
 * `leaving` until the user has called again and it was had. */
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

enum { DONATED_POLL_MS = 2 }; /* between two looks at a lock that tells nobody when it is free */

static bool donated_holds(const struct donated *d, const void *data, uint64_t bytes)
{
        uintptr_t at = (uintptr_t)data, base = (uintptr_t)d->base;

        return at >= base && range_within(at - base, bytes, d->bytes);
}

const struct donated *donated_find(struct kvcache *kv, const void *data, uint64_t bytes)
{
        for (unsigned n = 0; n < kv->n_donated; n++) {
                /* Most keys lie where the one before them does. */
                unsigned i = (kv->donated_hint + n) % kv->n_donated;

                if (!kv->donated[i].leaving && donated_holds(&kv->donated[i], data, bytes)) {
                        kv->donated_hint = i;
                        return &kv->donated[i];
                }
        }
        return NULL;
}

static struct donated *donated_by_number(struct kvcache *kv, uint32_t number)
{
        for (unsigned i = 0; i < kv->n_donated; i++)
                if (kv->donated[i].number == number)
                        return &kv->donated[i];
        return NULL;
}

static bool donated_in_session(const struct kvcache *kv, const struct donated *d)
{
        return kv->conn && d->session == kv->sessions;
}

static void donated_remove(struct kvcache *kv, struct donated *d, bool forked)
{
        size_t i = (size_t)(d - kv->donated);

        if (d->mapped && !forked)
                munmap(d->base, d->bytes);
        closep(&d->fd);
        memmove(d, d + 1, (kv->n_donated - i - 1) * sizeof(*d));
        kv->n_donated--;
        kv->donated_hint = 0;
}

void donated_free_all(struct kvcache *kv, bool forked)
{
        while (kv->n_donated > 0)
                donated_remove(kv, &kv->donated[kv->n_donated - 1], forked);
}

/* --- donating --- */

static int donated_call(struct kvcache *kv, const struct donated *d)
{
        struct message *m = message_new(WIRE_DONATE, sizeof(struct wire_donate));
        struct control c = { 0 };

        if (!m)
                return handle_fail(kv, -ENOMEM, "out of memory");
        m->fd = d->fd;
        m->region = d->number;
        ((struct wire_donate *)m->data)->offset = d->offset;
        ((struct wire_donate *)m->data)->bytes = d->bytes;
        return message_call(kv, m, &c, handle_deadline(0, kv->request_timeout_ms));
}

const char *donated_check(const struct kvcache *kv, const struct wire_reply *reply)
{
        if (reply->value == WIRE_REGION_LANE)
                return "a region with the lane's number";
        for (unsigned i = 0; i < kv->conn->n_regions; i++)
                if (kv->conn->regions[i].id == reply->value)
                        return "a region's number twice";
        return NULL;
}

/* Ends a region of the daemon's that nobody here knows. Without memory for that it ends with the
 * session. */
static void donated_send_back(struct kvcache *kv, uint32_t id)
{
        struct message *m = message_new(WIRE_WITHDRAW, sizeof(struct wire_withdraw));

        if (!m)
                return;
        ((struct wire_withdraw *)m->data)->region = id;
        message_queue(kv, m);
}

void donated_take(struct kvcache *kv, const struct message *m, const struct wire_reply *reply)
{
        struct donated *d = donated_by_number(kv, m->region);
        struct conn *c = kv->conn;

        if (!d || d->leaving || donated_in_session(kv, d) ||
            c->n_regions == ARRAY_SIZE(c->regions)) {
                donated_send_back(kv, reply->value);
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

int donated_ready(struct kvcache *kv, const struct donated *d, uint64_t *tried, int *ret_refused)
{
        uint64_t bit = UINT64_C(1) << (d - kv->donated);
        int r;

        if (donated_in_session(kv, d) || (*tried & bit))
                return 0;
        *tried |= bit;
        r = donated_call(kv, d);
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
static int donated_map(struct kvcache *kv, struct donated *d, void *base)
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

static int donated_new(struct kvcache *kv, const struct kvcache_buffer_options *o,
                       uint32_t *ret_region, void **ret_base)
{
        struct donated *d = &kv->donated[kv->n_donated];
        int r;

        *d = (struct donated){ .offset = o->offset, .bytes = o->bytes };
        d->fd = fcntl(o->fd, F_DUPFD_CLOEXEC, 3);
        if (d->fd < 0)
                return handle_fail(kv, errno == EBADF ? -EINVAL : -errno,
                                   "the region's descriptor cannot be duplicated");
        r = donated_map(kv, d, o->base);
        if (r < 0) {
                closep(&d->fd);
                return r;
        }
        d->number = ++kv->donated_ever;
        kv->n_donated++;
        r = donated_call(kv, d);
        if (r < 0) {
                donated_remove(kv, d, false);
                return r;
        }
        *ret_region = d->number;
        if (ret_base)
                *ret_base = d->base;
        return 0;
}

/* In numbers that fit everywhere, and clear of the other regions. */
static int donated_check_options(struct kvcache *kv, const struct kvcache_buffer_options *o)
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
        if (kv->n_donated == ARRAY_SIZE(kv->donated))
                return handle_fail(kv, -EINVAL, "a handle has at most %d regions",
                                   WIRE_MAX_REGIONS);
        for (unsigned i = 0; o->base && i < kv->n_donated; i++) {
                const struct donated *d = &kv->donated[i];

                if (base < (uintptr_t)d->base + d->bytes && (uintptr_t)d->base < base + o->bytes)
                        return handle_fail(kv, -EINVAL, "this memory is in region %u already%s",
                                           d->number,
                                           d->leaving ? ", which is still being withdrawn" : "");
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
        r = donated_check_options(kv, &o);
        if (r < 0)
                return r;
        message_check_idle(kv);
        r = handle_connected(kv);
        if (r == 0)
                r = donated_new(kv, &o, ret_buffer, ret_base);
        handle_leave(kv);
        return r;
}

/* --- withdrawing --- */

void donated_withdrawn(struct kvcache *kv, const struct message *m)
{
        uint32_t id = ((const struct wire_withdraw *)m->data)->region;
        struct donated *d = donated_by_number(kv, m->region);
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
static bool donated_is_withdrawing(const struct kvcache *kv, const struct donated *d)
{
        for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++)
                if (kv->inflight[i] && kv->inflight[i]->op == WIRE_WITHDRAW &&
                    kv->inflight[i]->region == d->number)
                        return true;
        return false;
}

static int donated_call_back(struct kvcache *kv, const struct donated *d, int64_t deadline)
{
        struct message *m = message_new(WIRE_WITHDRAW, sizeof(struct wire_withdraw));
        struct control c = { 0 };

        if (!m)
                return handle_fail(kv, -ENOMEM, "out of memory");
        m->region = d->number;
        ((struct wire_withdraw *)m->data)->region = d->id;
        return message_call(kv, m, &c, deadline);
}

static int donated_withdraw(struct kvcache *kv, struct donated *d)
{
        int64_t deadline = handle_deadline(0, kv->request_timeout_ms);
        int r = 0;

        d->leaving = true;
        while (donated_in_session(kv, d)) {
                if (!donated_is_withdrawing(kv, d))
                        r = donated_call_back(kv, d, deadline);
                else if (handle_now_ns() < deadline)
                        (void)message_wait(kv, deadline);
                else
                        r = -ETIMEDOUT;
                if (r < 0 && r != -ECONNRESET)
                        return r == -ETIMEDOUT
                                       ? handle_fail(kv, r,
                                                     "the daemon has not let go of the region yet")
                                       : r;
        }
        /* What this session has sent is answered, or the session is over: its requests, those of
         * the ones before, and the library's own copies. */
        while (region_is_used(kv, d->base, d->bytes) || request_copies_to(kv, d->base, d->bytes)) {
                int64_t now = handle_now_ns();

                if (now >= deadline)
                        return handle_fail(kv, -ETIMEDOUT,
                                           "a daemon that is gone still uses the region's memory");
                if (kv->conn && kv->n_inflight > 0)
                        (void)message_wait(kv, now + DONATED_POLL_MS * INT64_C(1000000));
                else
                        (void)poll(NULL, 0, DONATED_POLL_MS);
                request_expire(kv, handle_now_ns());
        }
        donated_remove(kv, d, false);
        return 0;
}

int kvcache_buffer_unregister(struct kvcache *kv, uint32_t buffer)
{
        struct donated *d;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        d = donated_by_number(kv, buffer);
        if (!d)
                return handle_fail(kv, -EINVAL, "%u is no buffer of this handle", buffer);
        message_check_idle(kv);
        r = donated_withdraw(kv, d);
        handle_leave(kv);
        return r;
}
