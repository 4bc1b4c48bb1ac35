/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of a volume: its device fails or hangs, or its file system is full.
 *
 * Errors of the device, and chunks whose bytes are not those that were written, count against a
 * budget per minute. When the budget is used up, or at once on a read-only file system, the volume
 * bypasses itself until it is resumed. The store is notified of a bypass, and when the file system
 * becomes full or has room again. If a device hangs, the requests that wait for it are answered,
 * but their buffers and slots stay reserved until the device completes the operations.
 *
 * Loop thread, except volume_check_space(). */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "checked.h"
#include "store/volume/internal.h"

enum { DEFAULT_ERROR_BUDGET = 16 };
#define ERROR_WINDOW_NS (UINT64_C(60) * 1000000000)

void volume_bypass(struct volume *v, const char *reason)
{
        if (v->bypassed)
                return;
        v->bypassed = true;
        snprintf(v->reason, sizeof(v->reason), "%s", reason);
        v->ops.bypassed(v->ops.userdata, v);
}

const char *volume_reason(const struct volume *v)
{
        return v->reason;
}

void volume_note_full(struct volume *v, bool full)
{
        if (full) {
                v->full_ns = clock_mono_ns();
                v->full_refusals++;
        }
        if (v->full == full)
                return;
        v->full = full;
        v->ops.full(v->ops.userdata, v, full);
}

bool volume_is_full(const struct volume *v, uint64_t *ret_refusals)
{
        *ret_refusals = v->full_refusals;
        return v->full;
}

int volume_check_space(const struct volume *v, uint64_t bytes)
{
        struct statvfs fs;
        uint64_t reserve = v->params.reserve;

        if (!v->open || fstatvfs(v->dir->fd, &fs) < 0)
                return 0;
        if (reserve == 0)
                reserve = MIN((uint64_t)fs.f_blocks * fs.f_frsize / 100, UINT64_C(1) << 30);
        return (uint64_t)fs.f_bavail * fs.f_frsize < bytes + reserve ? -ENOSPC : 0;
}

/* Counts an error against the budget, and bypasses the volume if a minute has more errors than the
 * budget. */
static void spend_budget(struct volume *v, const char *what, const char *why)
{
        uint64_t budget = v->params.error_budget ? v->params.error_budget : DEFAULT_ERROR_BUDGET;
        uint64_t now = clock_mono_ns();
        char reason[sizeof(v->reason)];

        if (v->window_errors == 0 || now - v->window_ns > ERROR_WINDOW_NS) {
                v->window_ns = now;
                v->window_errors = 0;
        }
        if (++v->window_errors <= budget)
                return;
        snprintf(reason, sizeof(reason),
                 "more than %llu error%s in a minute (store.error_budget), the last one %s: %s",
                 (unsigned long long)budget, budget == 1 ? "" : "s", what, why);
        volume_bypass(v, reason);
}

/* Returns whether the errno indicates a fault of the device, and not a bug, a full file system, or
 * a lack of memory or queue entries. */
static bool is_device_error(int64_t r)
{
        return r < 0 && r != -ENOMEM && r != -EAGAIN && r != -EINTR && r != -ECANCELED &&
               r != -EFAULT && r != -EINVAL && r != -EBUSY && !volume_is_no_space(r);
}

void volume_note_error(struct volume *v, const char *what, int64_t r)
{
        char reason[sizeof(v->reason)];

        if (volume_is_no_space(r))
                volume_note_full(v, true);
        if (v->bypassed || !is_device_error(r))
                return;
        if (r == -EROFS) {
                snprintf(reason, sizeof(reason), "%s: %s", what, strerror((int)-r));
                volume_bypass(v, reason);
                return;
        }
        spend_budget(v, what, strerror((int)-r));
}

bool volume_was_whole(const struct chunk *c)
{
        return c->verified || c->own;
}

void volume_note_mismatch(struct volume *v, const char *what)
{
        if (!v->bypassed)
                spend_budget(v, what, "its bytes do not match its checksum");
}

bool volume_is_quiet(const struct volume *v)
{
        return v->requests == 0 && v->tombstones == 0 && !table_in_flight(v->table) &&
               !table_has_queued(v->table) && v->sync_outstanding == 0;
}

void volume_abandon(struct volume *v)
{
        struct list_node *n;

        if (!v->open)
                return;
        v->abandoned = true;
        gets_abandon(v);
        puts_abandon(v);
        /* These puts are written and wait only for a sync, so they are answered as not durable. */
        while ((n = list_pop(&v->sync_waiting)) || (n = list_pop(&v->sync_flying)))
                put_finish(v, container_of(n, struct store_put, node), STORE_NOT_DURABLE);
}
