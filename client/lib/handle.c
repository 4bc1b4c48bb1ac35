/* SPDX-License-Identifier: Apache-2.0 */
/* The handle: options, error text, the fork check, the epoll fd and its timer, connecting anew.
 *
 * Runs in the user's thread, one at a time. Owns everything that hangs on struct kvcache.
 *
 * The epoll fd lives as long as the handle; sessions enter and leave it. Its timer stands at the
 * earliest deadline, or in the past while completions wait to be reaped that no socket announces
 * any more. It is set again only when it must ring earlier than it would: a late ring less is a
 * system call less; and not at all before the user has asked for the fd. After fork() the mappings
 * are not in the child, and the socket, the epoll instance and the timer are still the parent's: a
 * page that the kernel wipes in children tells, without a system call, and every call refuses. */
#include "lib/handle.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "lib/abi.h"
#include "build-config.h"
#include "checked.h"
#include "cleanup.h"
#include "lib/admin.h"
#include "lib/message.h"
#include "lib/retired.h"
#include "lib/request.h"

#define HANDLE_NEWER "the %s has a member set that this library, version %s, does not know"

enum { CONNECT_TIMEOUT_MS = 5000, REQUEST_TIMEOUT_MS = 30000, FORK_MARK = 0x6b766331 };

int64_t handle_now_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t handle_deadline(int timeout_ms, int default_ms)
{
        return handle_now_ns() + (int64_t)(timeout_ms > 0 ? timeout_ms : default_ms) * 1000000;
}

int handle_poll_ms(int64_t deadline)
{
        int64_t left;

        if (deadline == INT64_MAX)
                return -1;
        left = deadline - handle_now_ns();
        if (left <= 0)
                return 0;
        return (int)MIN((left + 999999) / 1000000, (int64_t)INT32_MAX);
}

/* --- errors --- */

const char *handle_strerror(int error, char *buffer, size_t bytes)
{
        return strerror_r(error < 0 ? -error : error, buffer, bytes);
}

int handle_fail(struct kvcache *kv, int error, const char *format, ...)
{
        va_list ap;

        va_start(ap, format);
        vsnprintf(kv->error, sizeof(kv->error), format, ap);
        va_end(ap);
        return error;
}

int handle_fail_text(struct kvcache *kv, int error, const char *what, const char *text,
                     size_t bytes)
{
        size_t used;

        snprintf(kv->error, sizeof(kv->error), "%s%s", what, bytes > 0 ? ": " : "");
        used = strlen(kv->error);
        bytes = MIN(bytes, sizeof(kv->error) - 1 - used);
        for (size_t i = 0; i < bytes; i++)
                kv->error[used + i] =
                        (unsigned char)text[i] < ' ' || text[i] == 0x7f ? ' ' : text[i];
        kv->error[used + bytes] = '\0';
        return error;
}

int handle_is_newer(struct kvcache *kv, const char *what)
{
        return handle_fail(kv, -E2BIG, HANDLE_NEWER, what, kvcache_version());
}

const char *kvcache_version(void)
{
        return KVCACHE_BUILD_VERSION;
}

const char *kvcache_error(const struct kvcache *kv)
{
        if (!kv)
                return "no handle";
        if (*kv->fork_mark != FORK_MARK)
                return "the handle belongs to the parent process";
        return kv->error;
}

const char *kvcache_status_name(int status)
{
        static const char *const names[] = {
                [KVCACHE_OK] = "ok",
                [KVCACHE_MISS] = "miss",
                [KVCACHE_EXISTS] = "exists",
                [KVCACHE_BUSY] = "busy",
                [KVCACHE_TOO_LARGE] = "too large",
                [KVCACHE_NOT_DURABLE] = "not durable",
                [KVCACHE_FAILED] = "failed",
                [KVCACHE_INVALID] = "invalid",
                [KVCACHE_STALE] = "stale",
                [KVCACHE_DENIED] = "denied",
                [KVCACHE_QUOTA] = "quota exceeded",
                [KVCACHE_MISMATCH] = "fingerprint mismatch",
                [KVCACHE_NO_NAMESPACE] = "no such namespace",
                [KVCACHE_VERSION] = "no version in common",
                [KVCACHE_SHUTDOWN] = "shutting down",
                [KVCACHE_NO_SPACE] = "no space",
                [KVCACHE_NOT_EMPTY] = "not empty",
        };

        if (status == KVCACHE_LOST)
                return "lost";
        if (status == KVCACHE_PENDING)
                return "pending";
        if (status == KVCACHE_CANCELLED)
                return "cancelled";
        return status >= 0 && (size_t)status < ARRAY_SIZE(names) ? names[status] : "unknown";
}

/* --- entering and leaving --- */

static bool handle_is_forked(const struct kvcache *kv)
{
        return *kv->fork_mark != FORK_MARK || (kv->pid != 0 && kv->pid != getpid());
}

int handle_enter(struct kvcache *kv)
{
        if (!kv)
                return -EINVAL;
        if (handle_is_forked(kv))
                return -ECHILD;
        kv->error[0] = '\0';
        return 0;
}

void handle_leave(struct kvcache *kv)
{
        bool waiting = !TAILQ_EMPTY(&kv->ready);
        int64_t due = waiting ? 0 : TAILQ_EMPTY(&kv->requests) ? INT64_MAX : kv->next_deadline;

        if (kv->fd_is_known &&
            (due < kv->timer_ns || (kv->timer_ns != INT64_MAX && due != kv->timer_ns &&
                                    kv->timer_ns <= handle_now_ns()))) {
                struct itimerspec at = { 0 };

                if (waiting) {
                        at.it_value.tv_nsec = 1;
                } else if (due != INT64_MAX) {
                        at.it_value.tv_sec = due / 1000000000;
                        at.it_value.tv_nsec = due % 1000000000;
                }
                if (timerfd_settime(kv->timer_fd, TFD_TIMER_ABSTIME, &at, NULL) == 0)
                        kv->timer_ns = due;
        }
        if (kv->conn && kv->want_out != kv->epoll_out) {
                struct epoll_event e = { .events = EPOLLIN |
                                                   (kv->want_out ? (uint32_t)EPOLLOUT : 0u) };

                if (epoll_ctl(kv->epoll_fd, EPOLL_CTL_MOD, kv->conn->sock, &e) == 0)
                        kv->epoll_out = kv->want_out;
        }
}

static int handle_connect(struct kvcache *kv)
{
        struct epoll_event e = { .events = EPOLLIN };
        struct conn *c;
        int r;

        r = conn_open(&c, kv, handle_deadline(0, kv->connect_timeout_ms));
        if (r < 0)
                return r;
        if (epoll_ctl(kv->epoll_fd, EPOLL_CTL_ADD, c->sock, &e) < 0) {
                r = -errno;
                conn_free(c, false);
                return handle_fail(kv, r, "cannot watch the socket");
        }
        kv->conn = c;
        kv->sessions++;
        kv->epoll_out = false;
        return 0;
}

int handle_connected(struct kvcache *kv)
{
        if (kv->conn)
                return 0;
        return handle_connect(kv) < 0 ? -ENOTCONN : 0;
}

/* --- the handle's life --- */

static void handle_free(struct kvcache *kv)
{
        bool forked = handle_is_forked(kv);
        struct message *m;
        struct conn *c;

        request_free_all(kv);
        for (unsigned i = 0; i < WIRE_MAX_INFLIGHT; i++)
                message_free(kv->inflight[i]);
        while ((m = TAILQ_FIRST(&kv->queue))) {
                TAILQ_REMOVE(&kv->queue, m, link);
                message_free(m);
        }
        conn_free(kv->conn, forked);
        while ((c = TAILQ_FIRST(&kv->ended))) {
                TAILQ_REMOVE(&kv->ended, c, link);
                conn_free(c, forked);
        }
        buffer_free_all(kv, forked);
        control_namespaces_free(kv);
        lease_table_fini(&kv->leases);
        free(kv->releases);
        free(kv->socket_path);
        closep(&kv->epoll_fd);
        closep(&kv->timer_fd);
        munmap((void *)kv->fork_mark, (size_t)sysconf(_SC_PAGESIZE));
        free(kv);
}

static struct kvcache *handle_new(void)
{
        struct kvcache *kv = calloc(1, sizeof(*kv));
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        uint32_t *mark;

        if (!kv)
                return NULL;
        kv->epoll_fd = kv->timer_fd = -1;
        kv->next_deadline = kv->timer_ns = INT64_MAX;
        TAILQ_INIT(&kv->ended);
        TAILQ_INIT(&kv->queue);
        TAILQ_INIT(&kv->requests);
        TAILQ_INIT(&kv->ready);

        mark = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mark == MAP_FAILED) {
                free(kv);
                return NULL;
        }
        *mark = FORK_MARK;
        kv->fork_mark = mark;
        if (madvise(mark, page, MADV_WIPEONFORK) < 0)
                kv->pid = getpid();
        return kv;
}

static int handle_setup(struct kvcache *kv, const struct kvcache_options *o)
{
        const char *name = o->client_name ? o->client_name : program_invocation_short_name;
        struct epoll_event e = { .events = EPOLLIN };

        if (o->flags & ~(uint32_t)(KVCACHE_POPULATE | KVCACHE_NO_LOOKUP))
                return handle_fail(kv, -EINVAL, "unknown flags 0x%x", o->flags);
        if (o->connect_timeout_ms < 0 || o->request_timeout_ms < 0)
                return handle_fail(kv, -EINVAL, "a negative timeout");
        kv->flags = o->flags;
        kv->connect_timeout_ms = o->connect_timeout_ms ? o->connect_timeout_ms : CONNECT_TIMEOUT_MS;
        kv->request_timeout_ms = o->request_timeout_ms ? o->request_timeout_ms : REQUEST_TIMEOUT_MS;
        kv->staging_bytes = o->staging_bytes;
        for (size_t i = 0; i < sizeof(kv->client_name) - 1 && name[i]; i++)
                kv->client_name[i] = name[i] >= ' ' && name[i] <= '~' ? name[i] : '?';
        if (o->socket_path) {
                kv->socket_path = strdup(o->socket_path);
                if (!kv->socket_path)
                        return handle_fail(kv, -ENOMEM, "out of memory");
        }

        kv->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        kv->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
        if (kv->epoll_fd < 0 || kv->timer_fd < 0 ||
            epoll_ctl(kv->epoll_fd, EPOLL_CTL_ADD, kv->timer_fd, &e) < 0)
                return handle_fail(kv, -errno, "cannot make the handle's descriptors");
        return 0;
}

int kvcache_connect(struct kvcache **ret, const struct kvcache_options *options, char *ret_error,
                    size_t error_bytes)
{
        struct kvcache_options o = { 0 };
        struct kvcache *kv;
        int r;

        if (!ret || (options && !abi_size_is_valid(options->size, ABI_OPTIONS_MIN))) {
                if (ret_error && error_bytes > 0)
                        snprintf(ret_error, error_bytes, "the options' size is not set");
                return -EINVAL;
        }
        if (options && abi_copy_in(&o, sizeof(o), options, options->size) < 0) {
                if (ret_error && error_bytes > 0)
                        snprintf(ret_error, error_bytes, HANDLE_NEWER, "options",
                                 kvcache_version());
                return -E2BIG;
        }
        kv = handle_new();
        if (!kv) {
                if (ret_error && error_bytes > 0)
                        snprintf(ret_error, error_bytes, "out of memory");
                return -ENOMEM;
        }
        r = handle_setup(kv, &o);
        if (r == 0)
                r = handle_connect(kv);
        if (r < 0) {
                if (ret_error && error_bytes > 0)
                        snprintf(ret_error, error_bytes, "%s", kv->error);
                handle_free(kv);
                return r;
        }
        *ret = kv;
        return 0;
}

void kvcache_close(struct kvcache *kv)
{
        if (kv)
                handle_free(kv);
}

int kvcache_fd(const struct kvcache *kv)
{
        if (!kv)
                return -EINVAL;
        if (handle_is_forked(kv))
                return -ECHILD;
        if (!kv->fd_is_known) {
                struct kvcache *own = (struct kvcache *)kv;

                own->fd_is_known = true;
                handle_leave(own);
        }
        return kv->epoll_fd;
}

int kvcache_get_info(struct kvcache *kv, struct kvcache_info *ret)
{
        struct kvcache_info info;
        int r;

        r = handle_enter(kv);
        if (r < 0)
                return r;
        if (!ret || !abi_size_is_valid(ret->size, ABI_INFO_MIN))
                return handle_fail(kv, -EINVAL, "the info's size is not set");
        message_check_idle(kv);
        r = handle_connected(kv);
        handle_leave(kv);
        if (r < 0)
                return r;
        info = (struct kvcache_info){
                .size = ret->size,
                .protocol_version = kv->conn->version,
                .pool_bytes = kv->conn->pool_bytes,
                .max_chunk_bytes = kv->conn->max_chunk,
                .staging_bytes = kv->conn->staging.bytes,
                .reconnects = kv->sessions - 1,
                .lookup_bytes = kv->conn->lookup.bytes,
                .lookups_local = kv->lookups_local,
        };
        memcpy(info.instance, kv->conn->instance, sizeof(info.instance));
        abi_copy_out(ret, ret->size, &info, sizeof(info));
        return 0;
}
