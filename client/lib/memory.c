/* SPDX-License-Identifier: Apache-2.0 */
/* The calls about memory shared with the daemon: places in the staging area, registered buffers,
 * and the check whether memory may be reused.
 *
 * Runs in the handle's thread. Owns nothing: the session owns the staging area, and buffers.c the
 * table of buffers.
 *
 * Normal path: a REGISTER, which carries the descriptor, assigns the buffer its number in the
 * session. In a new session, the first request that names the buffer registers it again. The daemon
 * answers UNREGISTER once no I/O uses the memory.
 *
 * Failures: a refused buffer stays unregistered, and the next request that names it tries again. An
 * unregistration continues when the call that waits for it times out: the buffer is `leaving` until
 * the user has called again and got the result. */
#include "lib/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "lib/abi.h"
#include "lib/buffers.h"
#include "lib/connection.h"
#include "lib/flow.h"
#include "lib/request.h"
#include "lib/retired.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum {
        BUFFER_POLL_MS = 2
}; /* interval between checks whether an ended daemon has released its lock on the liveness file */

/* --- staging --- */

int memory_staging_ready(struct kvcache *kv)
{
        struct control c = { 0 };
        struct message *m;

        if (kv->conn->staging.base)
                return 0;
        m = message_new(WIRE_STAGING, sizeof(struct wire_staging));
        if (m)
                ((struct wire_staging *)m->data)->bytes =
                        MIN(kv->staging_bytes, kv->conn->staging_max);
        return flow_call(kv, m, &c, handle_deadline(0, kv->request_timeout_ms));
}

static int acquire(struct kvcache *kv, size_t bytes, uint64_t *ret)
{
        int r = staging_acquire(&kv->conn->staging, bytes, true, ret);

        if (r == -ENOBUFS) {
                /* Taking the replies that have arrived may free room. */
                if (flow(kv) < 0)
                        return handle_fail(kv, -ENOTCONN, "the connection to the daemon was lost");
                r = staging_acquire(&kv->conn->staging, bytes, true, ret);
        }
        if (r == -ENOBUFS)
                return handle_fail(kv, r,
                                   "the staging area has no %zu free bytes in one piece now: reap "
                                   "completions, release places and try again",
                                   bytes);
        if (r == -E2BIG)
                return handle_fail(
                        kv, r, "the place does not fit into the staging area, which has %llu bytes",
                        (unsigned long long)kv->conn->staging.bytes);
        return r < 0 ? handle_no_memory(kv) : 0;
}

int kvcache_staging_acquire(struct kvcache *kv, size_t bytes, void **ret_place)
{
        uint64_t offset = 0;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (bytes == 0 || !ret_place)
                return handle_fail(kv, -EINVAL,
                                   "a place in the staging area needs at least 1 byte, and a "
                                   "pointer to the result");
        flow_check_idle(kv);
        r = conn_ready(kv);
        if (r == 0)
                r = memory_staging_ready(kv);
        if (r == 0)
                r = acquire(kv, bytes, &offset);
        if (r == 0)
                *ret_place = kv->conn->staging.base + offset;
        handle_leave(kv);
        return r;
}

void kvcache_staging_release(struct kvcache *kv, void *place)
{
        struct conn *c;

        if (!place || handle_enter(kv) < 0)
                return;
        if (kv->conn && staging_contains(&kv->conn->staging, place, 1)) {
                (void)staging_release(&kv->conn->staging,
                                      (uint64_t)((uint8_t *)place - kv->conn->staging.base));
                return;
        }
        TAILQ_FOREACH(c, &kv->ended, link)
        if (staging_contains(&c->staging, place, 1)) {
                (void)staging_release(&c->staging, (uint64_t)((uint8_t *)place - c->staging.base));
                break;
        }
        retired_collect(kv);
}

/* --- the pool --- */

static bool pool_contains(const struct conn *c, const void *data)
{
        uintptr_t at = (uintptr_t)data, base = (uintptr_t)c->pool;

        return c->pool && at >= base && at - base < c->pool_bytes;
}

int kvcache_pool_of(struct kvcache *kv, const void *data, uint64_t *ret_pool_id,
                    uint64_t *ret_offset)
{
        struct conn *c;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!ret_pool_id || !ret_offset)
                return handle_fail(kv, -EINVAL,
                                   "the pointers to the pool's id and the offset must not be NULL");
        c = kv->conn;
        if (!c || !pool_contains(c, data))
                TAILQ_FOREACH(c, &kv->ended, link)
        if (pool_contains(c, data))
                break;
        if (!c)
                return handle_fail(kv, -ENOENT,
                                   "the address is not in a pool that this handle has mapped");
        *ret_pool_id = c->pool_id;
        *ret_offset = (uint64_t)((uintptr_t)data - (uintptr_t)c->pool);
        handle_leave(kv);
        return 0;
}

/* --- registered buffers --- */

static int buffer_call(struct kvcache *kv, const struct buffer *d)
{
        struct message *m = message_new(WIRE_REGISTER, sizeof(struct wire_register));
        struct control c = { 0 };

        if (!m)
                return handle_no_memory(kv);
        if (d->on_disk && !(kv->conn->features & WIRE_FEATURE_FILES)) {
                message_free(m);
                return handle_fail(kv, -EOPNOTSUPP,
                                   "this daemon takes no puts from files of this user "
                                   "(io.gds_puts), or is too old for such puts");
        }
        m->fd = d->fd;
        m->region = d->number;
        if (d->on_disk)
                ((struct wire_hdr *)m->data)->flags = WIRE_F_FILE;
        ((struct wire_register *)m->data)->offset = d->offset;
        ((struct wire_register *)m->data)->bytes = d->bytes;
        return flow_call(kv, m, &c, handle_deadline(0, kv->request_timeout_ms));
}

int memory_buffer_ready(struct kvcache *kv, const struct buffer *d, uint64_t *tried,
                        int *ret_refused)
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

/* Sets the buffer's address: that of the caller's mapping, or of a new one. The kernel is asked to
 * touch every page, because the daemon treats an untouched page as a hole even if it is allocated.
 * If the file is too short, the kernel returns an error where a direct access would raise a signal.
 * The daemon decides what it accepts. */
static int buffer_map(struct kvcache *kv, struct buffer *d, void *base)
{
        char reason[128];
        int r, seals;
        void *p;

        if (base) {
                d->base = base;
                (void)madvise(base, d->bytes, MADV_POPULATE_WRITE);
                return 0;
        }
        if (d->on_disk) /* reserve addresses that no other mapping gets */
                p = mmap(NULL, d->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                         0);
        else
                p = mmap(NULL, d->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd,
                         (off_t)d->offset);
        if (p == MAP_FAILED) {
                r = errno == EACCES || errno == ENODEV || errno == EOVERFLOW ? -EINVAL : -errno;
                return handle_fail(kv, r, "the buffer cannot be mapped: %s",
                                   handle_strerror(errno, reason, sizeof(reason)));
        }
        d->base = p;
        d->mapped = true;
        if (d->on_disk)
                return 0;
        seals = fcntl(d->fd, F_GET_SEALS);
        d->firm = seals >= 0 && (seals & F_SEAL_SHRINK);
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

        *d = (struct buffer){
                .offset = o->offset,
                .bytes = o->bytes,
                .on_disk = o->flags & KVCACHE_BUFFER_FILE,
        };
        d->fd = fcntl(o->fd, F_DUPFD_CLOEXEC, 3);
        if (d->fd < 0)
                return handle_fail(kv, errno == EBADF ? -EINVAL : -errno,
                                   "the buffer's descriptor cannot be duplicated");
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

/* Checks that the options are in range, that the handle has room for a further buffer, and that the
 * memory at `base` overlaps no other buffer. Returns 0 or -EINVAL. */
static int buffer_check_options(struct kvcache *kv, const struct kvcache_buffer_options *o)
{
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end;
        uintptr_t base = (uintptr_t)o->base, base_end;

        if (o->flags & ~(uint32_t)KVCACHE_BUFFER_FILE)
                return handle_fail(kv, -EINVAL, "unknown flags 0x%x", o->flags);
        if ((o->flags & KVCACHE_BUFFER_FILE) && o->base)
                return handle_fail(kv, -EINVAL, "`base` must be NULL with KVCACHE_BUFFER_FILE");
        if (o->fd < 0)
                return handle_fail(
                        kv, -EINVAL,
                        "`fd` of a buffer is negative, but a buffer needs a file descriptor");
        if (o->bytes == 0 || o->bytes % page != 0 || o->offset % page != 0 ||
            !checked_add(o->offset, o->bytes, &end) || end > INT64_MAX || o->bytes > SIZE_MAX / 2)
                return handle_fail(kv, -EINVAL,
                                   "`offset` and `bytes` of a buffer must be multiples of the page "
                                   "size with a sum below 2^63, and `bytes` at least one page");
        if (o->base && (base % page != 0 || !checked_add(base, o->bytes, &base_end)))
                return handle_fail(kv, -EINVAL,
                                   "`base` of a buffer must be the start of a page, with `bytes` "
                                   "of address space after it");
        if (kv->n_buffers == ARRAY_SIZE(kv->buffers))
                return handle_fail(kv, -EINVAL,
                                   "a handle has at most %d registered buffers: unregister one",
                                   WIRE_MAX_REGIONS);
        for (unsigned i = 0; o->base && i < kv->n_buffers; i++) {
                const struct buffer *d = &kv->buffers[i];

                if (base < (uintptr_t)d->base + d->bytes && (uintptr_t)d->base < base + o->bytes)
                        return handle_fail(kv, -EINVAL,
                                           "this memory overlaps registered buffer %u%s", d->number,
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
                return handle_fail(
                        kv, -EINVAL,
                        "the options or the result is NULL, or the options' size is not set");
        if (abi_copy_in(&o, sizeof(o), options, options->size) < 0)
                return handle_is_newer(kv, "options");
        if (!o.base && !ret_base)
                return handle_fail(kv, -EINVAL, "`base` and `ret_base` must not both be NULL");
        r = buffer_check_options(kv, &o);
        if (r < 0)
                return r;
        flow_check_idle(kv);
        r = conn_ready(kv);
        if (r == 0)
                r = buffer_new(kv, &o, ret_buffer, ret_base);
        handle_leave(kv);
        return r;
}

/* --- unregistering --- */

/* Returns whether no UNREGISTER of this buffer is in flight; an earlier call may have stopped
 * waiting for one. */
static bool no_unregister(struct kvcache *kv, const void *buffer)
{
        for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++)
                if (kv->inflight[i] && kv->inflight[i]->op == WIRE_UNREGISTER &&
                    kv->inflight[i]->region == ((const struct buffer *)buffer)->number)
                        return false;
        return true;
}

/* Returns whether no unanswered request of this session or an ended one uses the buffer, and no
 * pending copy of the library does. */
static bool is_unused(struct kvcache *kv, const void *buffer)
{
        const struct buffer *d = buffer;

        return !retired_uses(kv, d->base, d->bytes) && !request_copies_to(kv, d->base, d->bytes);
}

static int buffer_call_back(struct kvcache *kv, const struct buffer *d, int64_t deadline)
{
        struct message *m = message_new(WIRE_UNREGISTER, sizeof(struct wire_unregister));
        struct control c = { 0 };

        if (!m)
                return handle_no_memory(kv);
        m->region = d->number;
        ((struct wire_unregister *)m->data)->region = d->id;
        return flow_call(kv, m, &c, deadline);
}

static int buffer_unregister(struct kvcache *kv, struct buffer *d)
{
        int64_t deadline = handle_deadline(0, kv->request_timeout_ms);
        int r = 0;

        d->leaving = true;
        while (buffer_in_session(kv, d)) {
                if (no_unregister(kv, d))
                        r = buffer_call_back(kv, d, deadline);
                else if (!flow_until(kv, no_unregister, d, deadline))
                        r = -ETIMEDOUT;
                if (r == -ETIMEDOUT)
                        return handle_fail(kv, r,
                                           "the daemon still uses the buffer's memory; keep it "
                                           "mapped and call kvcache_buffer_unregister() again");
                if (r < 0 && r != -ECONNRESET)
                        return r;
        }
        /* No descriptor becomes readable when an ended daemon drops its lock, so poll. */
        while (!flow_until(kv, is_unused, d,
                           MIN(deadline, handle_now_ns() + BUFFER_POLL_MS * INT64_C(1000000))))
                if (handle_now_ns() >= deadline)
                        return handle_fail(
                                kv, -ETIMEDOUT,
                                "unanswered requests still use the buffer's memory; keep it mapped "
                                "and call kvcache_buffer_unregister() again");
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
                return handle_fail(kv, -EINVAL, "buffer %u is not registered with this handle",
                                   buffer);
        flow_check_idle(kv);
        r = buffer_unregister(kv, d);
        handle_leave(kv);
        return r;
}

int kvcache_memory_settled(struct kvcache *kv, const void *data, size_t bytes)
{
        uintptr_t end;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!data || bytes == 0 || !checked_add((uintptr_t)data, bytes, &end))
                return handle_fail(kv, -EINVAL,
                                   "the memory is NULL, has no bytes or exceeds the address space");

        (void)flow(kv);
        r = !retired_uses(kv, data, bytes);
        handle_leave(kv);
        return r;
}
