/* SPDX-License-Identifier: Apache-2.0 */
/* Runs an open volume: does the work that is due at the end of each loop iteration, stops the
 * volume, writes its closing state, and closes it. See volume.h, and store/volume/README.md for the
 * format.
 *
 * Requests that have ended are queued, and volume_iterate() calls their complete(). Once the volume
 * stops, the store no longer calls volume_iterate(), so every completed operation calls it
 * (volume_progress()). */
#include "store/volume/volume.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "checked.h"
#include "store/volume/internal.h"
#include "store/volume/scrub.h"

bool volume_is_open(const struct volume *v)
{
        return v->open;
}

/* --- iterating --- */

static bool reap(struct volume *v)
{
        struct list_node puts = LIST_INIT(puts), gets = LIST_INIT(gets), *n;
        bool any = false;

        list_splice(&puts, &v->done_puts);
        list_splice(&gets, &v->done_gets);
        while ((n = list_pop(&gets))) {
                struct store_get *req = container_of(n, struct store_get, node);

                any = true;
                v->requests--;
                req->complete(req);
        }
        while ((n = list_pop(&puts))) {
                struct store_put *req = container_of(n, struct store_put, node);

                any = true;
                v->requests--;
                v->ops.put_done(v->ops.userdata, req);
        }
        any = scrub_reap(v->scrub) || any;
        return namespaces_reap(v->namespaces) || any;
}

void volume_iterate(struct volume *v)
{
        if (!v->open)
                return;
        evict_note_time(v->evict, clock_mono_ns());
        emptying_iterate(v);
        /* repeats while requests complete, because complete() may submit others */
        do {
                namespaces_iterate(v->namespaces, clock_mono_ns(), !v->bypassed && !v->stopping);
                put_serve_waiting(v);
                segments_iterate(v);
                ring_iterate(v);
                table_kick(v);
                sync_iterate(v);
                sequence_iterate(v);
                scrub_iterate(v->scrub, clock_mono_ns());
                drops_settle(v);
        } while (reap(v));
}

void volume_progress(struct volume *v)
{
        if (!v->stopping)
                return;
        volume_iterate(v);
        kio_flush(v->io);
}

static int do_nothing(struct kio_request *req)
{
        return 0;
}

static void nudged(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, nudge_io);

        v->nudged = false;
        v->operations--;
        volume_progress(v);
}

void volume_nudge(struct volume *v)
{
        if (!v->stopping || v->nudged)
                return;
        v->nudged = true;
        v->nudge_io = (struct kio_request){
                .op = KIO_CALL, /* .volume is not set, because the call must not wait behind a
                                   device's operations */
                .class = KIO_CLASS_GET,
                .call = do_nothing,
                .complete = nudged,
        };
        list_init(&v->nudge_io.node);
        v->operations++;
        kio_submit(v->io, &v->nudge_io, 0);
        kio_flush(v->io);
}

uint64_t volume_deadline_ns(const struct volume *v)
{
        uint64_t soonest = 0;

        if (!v->open)
                return 0;
        const uint64_t deadlines[] = { scrub_deadline_ns(v->scrub), segments_deadline_ns(v),
                                       namespaces_deadline_ns(v->namespaces),
                                       emptying_deadline_ns(v) };

        for (size_t i = 0; i < ARRAY_SIZE(deadlines); i++)
                if (deadlines[i] && (soonest == 0 || deadlines[i] < soonest))
                        soonest = deadlines[i];
        return soonest;
}

/* --- stopping, closing --- */

void volume_stop(struct volume *v)
{
        if (!v || v->stopping)
                return;
        v->stopping = true;
        if (v->open)
                volume_progress(v);
}

uint64_t volume_pending(const struct volume *v)
{
        if (!v->open)
                return 0;
        return v->requests + v->operations + v->tombstones + v->n_sweeps +
               (v->resting ? 0 : namespaces_pending(v->namespaces));
}

/* Syncs all files. Returns 0 or -errno. Records a failed sync in the superblock like sync.c,
 * because a later sync of the same file succeeds although the kernel may have dropped its pages.
 * The caller writes the superblock. */
static int sync_files(struct volume *v)
{
        struct disk_superblock *sb = &v->dir->superblock;
        int r = dir_sync(v->dir);

        list_for_each (&v->dirty_segments, n)
                if (r == 0 && fdatasync(container_of(n, struct segment, dirty_node)->fd) < 0)
                        r = -errno;
        if (r < 0)
                sb->doubt_seq = CHUNK_SEQ_MAX;
        else if (fdatasync(v->table_fd) < 0)
                r = -errno;
        if (r < 0) {
                sb->unsynced = 1;
                return r;
        }
        return namespaces_write_now(v->namespaces);
}

void volume_begin_rest(struct volume *v, bool away)
{
        v->dir->superblock.away = away;
        v->resting = true;
}

void volume_end_rest(struct volume *v)
{
        v->resting = false;
}

int volume_rest(struct volume *v)
{
        int r = v->sync_failed ? -EIO : sync_files(v), written;

        if (r == 0) {
                v->dir->superblock.clean = 1;
                sizes_update(v);
                sequence_reserve(v, true);
        }
        written = dir_write_superblock(v->dir);
        return r < 0 ? r : written;
}

struct volume *volume_close(struct volume *v)
{
        if (!v)
                return NULL;
        assert(volume_pending(v) == 0);
        if (v->open && !v->bypassed && v->stopping && !identity_check_now(v))
                v->ops.astray(v->ops.userdata, v, v->identity.reason);
        /* A suspended volume has made no file since its superblock says that it was closed. Its
         * files may be on their way to another place. */
        if (v->open && !(v->bypassed && v->dir->superblock.clean))
                identity_remove_orphans(v);
        if (v->open && !v->bypassed && !v->sync_failed && v->stopping)
                (void)volume_rest(v); /* if this fails, the next startup recovers the volume as
                                         after a crash */
        for (uint32_t i = 0; v->segments && i < v->n_segments; i++)
                segment_free(v->segments[i]);
        free(v->segments);
        free(v->losses.files);
        if (v->table_fd >= 0)
                close(v->table_fd);
        if (v->zeros)
                munmap(v->zeros, STORE_PREWRITE_BYTES);
        scrub_free(v->scrub);
        table_free(v->table);
        namespaces_free(v->namespaces);
        index_free(v->index);
        slabs_free(v->slabs);
        free(v->tenants);
        evict_free(v->evict);
        dir_close(v->dir);
        free(v->path);
        free(v->policy);
        free(v);
        return NULL;
}
