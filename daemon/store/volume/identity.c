/* SPDX-License-Identifier: Apache-2.0 */
/* The identity check of a volume: do its directory and files still have the names that it opened?
 *
 * A directory that is moved, emptied or mounted over leaves the daemon with files that it can read
 * and write, and that the next start does not find: puts would be answered `written`, and lost. If
 * the lock is removed, another daemon may open the same store. So about once a second a worker
 * compares names and sizes with open files, a few data files at a time. The volume bypasses itself
 * when two checks in a row fail: a data file that the volume itself removes or replaces is missing
 * in one only. Stopping checks everything once more, so that a loss in the last second is reported,
 * too.
 *
 * Loop thread; the check itself blocks and runs as a call. Failures: a check that cannot be made
 * says nothing. One that hangs is an operation that hangs: see health.c. */
#include <stdio.h>

#include "base/clock.h"
#include "store/volume/internal.h"

#define INTERVAL_NS UINT64_C(900000000)

static int run_check(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, identity.io);

        return dir_check_identity(v->dir, v->identity.files, v->identity.n, v->identity.reason);
}

static void checked(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, identity.io);
        struct identity *id = &v->identity;
        char reason[sizeof(v->reason)];

        id->checking = false;
        v->operations--;
        if (req->result != -ESTALE) {
                id->failed = 0;
                id->at += IDENTITY_SEGMENTS;
        } else if (++id->failed == 2 && !v->stopping) {
                snprintf(reason, sizeof(reason),
                         "%.100s; what was written there since then is lost: restart the daemon",
                         id->reason);
                volume_bypass(v, reason);
        }
        volume_progress(v);
}

/* Lists the table, and the data files from number `at` on. A descriptor that the loop closes
 * meanwhile fails one check only. */
static void list_files(struct volume *v)
{
        struct identity *id = &v->identity;

        if (id->at >= v->n_segments)
                id->at = 0;
        id->n = 0;
        id->files[id->n++] = (struct dir_open_file){
                .segment = UINT32_MAX,
                .fd = v->table_fd,
                .bytes = (uint64_t)table_pages(v->table) * DISK_PAGE,
        };
        for (uint32_t i = id->at; i < v->n_segments && i - id->at < IDENTITY_SEGMENTS; i++)
                if (v->segments[i]->fd >= 0)
                        id->files[id->n++] = (struct dir_open_file){
                                .segment = i,
                                .fd = v->segments[i]->fd,
                                .bytes = v->segments[i]->bytes,
                        };
}

bool identity_check_now(struct volume *v)
{
        struct identity *id = &v->identity;

        id->at = 0;
        do {
                list_files(v);
                if (dir_check_identity(v->dir, id->files, id->n, id->reason) == -ESTALE)
                        return false;
                id->at += IDENTITY_SEGMENTS;
        } while (id->at < v->n_segments);
        return true;
}

void identity_tick(struct volume *v)
{
        struct identity *id = &v->identity;
        uint64_t now = clock_mono_ns();

        if (!v->open || v->bypassed || v->stopping || id->checking ||
            now - id->checked_ns < INTERVAL_NS)
                return;
        list_files(v);
        id->io = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .volume = v->kio_volume,
                .call = run_check,
                .complete = checked,
        };
        list_init(&id->io.node);
        id->checking = true;
        id->checked_ns = now;
        v->operations++;
        kio_submit(v->io, &id->io, 0);
}
