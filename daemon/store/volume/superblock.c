/* SPDX-License-Identifier: Apache-2.0 */
/* Writes marks to the superblock of a volume in use: facts that the next startup or resume must
 * know. One write runs at a time; marks that are requested during a write share the next one. The
 * fields of the superblock change on the loop thread, and never during a write.
 *
 * A failed write is not tried again here. The marks stay set in memory, so the next write of the
 * superblock includes them. The requesters of MARK_CEILINGS, MARK_COUNT and MARK_VOID get the
 * result and decide what to do. */
#include "store/volume/internal.h"

/* Writes the superblock. Runs on the volume's blocking-call thread. */
static int run_mark(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, mark_io);

        return dir_write_superblock(v->dir);
}

static void submit_marks(struct volume *v);

static void marked(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, mark_io);
        unsigned marks = v->marks_flying;
        int r = (int)req->result; /* read now, because submit_marks() reuses the request */

        v->operations--;
        v->marks_flying = 0;
        submit_marks(v);
        if (marks & MARK_CEILINGS)
                sequence_marked(v, r);
        if (marks & MARK_COUNT)
                v->count_result = r;
        if (marks & MARK_VOID)
                table_is_void(v, r);
        if (marks == MARK_SIZES && r < 0) {
                v->stats.write_errors++;
                volume_note_error(v, "writing the superblock", r);
        }
        volume_progress(v);
}

static void submit_marks(struct volume *v)
{
        struct disk_superblock *sb = &v->dir->superblock;

        if (v->marks_wanted == 0)
                return;
        v->marks_flying = v->marks_wanted;
        v->marks_wanted = 0;
        if (v->marks_flying & MARK_UNSYNCED)
                sb->unsynced = 1;
        if (v->marks_flying & MARK_DOUBT)
                sb->doubt_seq = CHUNK_SEQ_MAX; /* the highest sequence, because later chunks of this
                                                  process are in doubt, too */
        if (v->marks_flying & MARK_AWAY)
                sb->away = 1;
        if (v->marks_flying & MARK_COUNT)
                sb->volume_count = v->mark_count;
        if (v->marks_flying & MARK_CEILINGS)
                sequence_reserve(v, false);
        sizes_update(v);
        if (v->marks_flying & MARK_VOID) {
                sb->void_position = v->void_position;
                sb->void_pages = v->void_pages;
                sb->incompat |= DISK_INCOMPAT_VOID_PAGES;
        }
        v->mark_io = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_PUT,
                .volume = v->kio_volume,
                .call = run_mark,
                .complete = marked,
        };
        list_init(&v->mark_io.node);
        v->operations++;
        kio_submit(v->io, &v->mark_io, 0);
}

void mark_want(struct volume *v, unsigned marks)
{
        v->marks_wanted |= marks;
        if (v->marks_flying == 0)
                submit_marks(v);
}

void volume_mark_away(struct volume *v)
{
        if (v->open && !v->abandoned && !v->dir->superblock.away)
                mark_want(v, MARK_AWAY);
}

void volume_mark_count(struct volume *v, unsigned count)
{
        v->mark_count = (uint16_t)count;
        if (v->open && !v->abandoned)
                mark_want(v, MARK_COUNT);
}

int volume_count_is_marked(const struct volume *v)
{
        return (v->marks_wanted | v->marks_flying) & MARK_COUNT ? VOLUME_MARK_WAITS
                                                                : v->count_result;
}
