/* SPDX-License-Identifier: Apache-2.0 */
/* The handle: error text, the fork check, the epoll fd and its timer.
 *
 * Runs in the user's thread, one at a time.
 *
 * The epoll fd lives as long as the handle; sessions are added and removed. Its timer is set to the
 * earliest deadline, or to the past if completions wait to be reaped. To save system calls, the
 * timer is set only if it must fire earlier than it is set to, or has fired, and never before the
 * user has asked for the fd. After fork() the child lacks the mappings, and the socket, the epoll
 * instance and the timer are the parent's. A page that the kernel wipes in children detects that
 * without a system call, and every call fails. */
#include "lib/handle.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "build-config.h"
#include "checked.h"
#include "text.h"

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

int handle_fail_errno(struct kvcache *kv, int error, const char *what)
{
        char reason[128];

        return handle_fail(kv, error, "%s: %s", what,
                           handle_strerror(error, reason, sizeof(reason)));
}

int handle_fail_text(struct kvcache *kv, int error, const char *what, const char *text,
                     size_t bytes)
{
        snprintf(kv->error, sizeof(kv->error), "%s%s%.*s", what, bytes > 0 ? ": " : "",
                 (int)MIN(bytes, sizeof(kv->error)), text);
        text_clean(kv->error);
        return error;
}

int handle_is_newer(struct kvcache *kv, const char *what)
{
        return handle_fail(kv, -E2BIG,
                           "a member of the %s is set that this library, version %s, does not "
                           "know: use a newer libkvcache",
                           what, kvcache_version());
}

int handle_no_memory(struct kvcache *kv)
{
        return handle_fail(kv, -ENOMEM, "out of memory");
}

const char *kvcache_version(void)
{
        return KVCACHE_BUILD_VERSION;
}

const char *kvcache_error(const struct kvcache *kv)
{
        if (!kv)
                return "no handle";
        if (*kv->fork_mark != HANDLE_FORK_MARK)
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

bool handle_is_forked(const struct kvcache *kv)
{
        return *kv->fork_mark != HANDLE_FORK_MARK || (kv->pid != 0 && kv->pid != getpid());
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
