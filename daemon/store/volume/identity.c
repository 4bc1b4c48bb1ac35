/* SPDX-License-Identifier: Apache-2.0 */
/* The identity check of a volume: checks that the names of its directory and files still lead to
 * the files that it has open.
 *
 * If the directory is moved, emptied or mounted over, the daemon can still read and write its open
 * files, but the next startup does not find them: chunks of puts that were answered `written` would
 * be lost. If the lock is removed, another daemon may open the same store. So about once a second
 * the volume compares names and sizes with the open files, IDENTITY_SEGMENTS data files at a time.
 * The volume bypasses itself after two failed checks in a row, because a single check may fail when
 * the volume itself removes or replaces a data file. When the volume stops, everything is checked
 * once more, so that a loss in the last second is reported, too.
 *
 * A script that empties a directory may miss a data file that the volume makes at that moment. It
 * would be the only file, and the next startup would refuse the directory as a damaged store. So a
 * volume that is bypassed because it is astray removes such files, at once and when it is closed.
 *
 * Loop thread; the check itself blocks and runs on the blocking-call thread. Failures: a check that
 * cannot be made counts as passed. A check that hangs bypasses the volume like any operation that
 * hangs (store/health.c). */
#include <stdio.h>

#include "base/clock.h"
#include "store/volume/internal.h"

#define INTERVAL_NS UINT64_C(900000000) /* least time between two checks */

static int run_check(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, identity.io);

        if (!v->identity.removing)
                return dir_check_identity(v->dir, v->identity.files, v->identity.n,
                                          v->identity.reason);
        dir_remove_orphans(v->dir, v->identity.files, v->identity.n);
        return 0;
}

static void checked(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, identity.io);
        struct identity *id = &v->identity;
        char reason[sizeof(v->reason)];

        id->checking = false;
        v->operations--;
        if (id->removing) {
                id->at += IDENTITY_SEGMENTS;
                id->removed = id->at >= v->n_segments;
        } else if (req->result != -ESTALE) {
                if (!v->bypassed) /* segment.c may have found meanwhile that the volume is astray */
                        id->failed = 0;
                id->at += IDENTITY_SEGMENTS;
        } else if (++id->failed == IDENTITY_FAILURES && !v->stopping) {
                snprintf(reason, sizeof(reason),
                         "%.100s; chunks written there since then may be lost: restart the daemon",
                         id->reason);
                volume_bypass(v, reason);
        }
        volume_progress(v);
}

/* Lists the files to check: the table, and data files from number id->at on. If the loop thread
 * closes a listed descriptor during the check, only this one check fails. */
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

void identity_remove_orphans(struct volume *v)
{
        struct identity *id = &v->identity;

        id->at = 0;
        do {
                list_files(v);
                dir_remove_orphans(v->dir, id->files, id->n);
                id->at += IDENTITY_SEGMENTS;
        } while (id->at < v->n_segments);
}

void identity_tick(struct volume *v)
{
        struct identity *id = &v->identity;
        uint64_t now = clock_mono_ns();

        if (!v->open || v->stopping || id->checking)
                return;
        if (v->bypassed ? !identity_is_lost(v) || id->removed : now - id->checked_ns < INTERVAL_NS)
                return;
        if (v->bypassed && !id->removing) {
                id->removing = true;
                id->at = 0;
        }
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
