/* SPDX-License-Identifier: Apache-2.0 */
/* Maintains the ceilings of sequences in the superblock. A sequence of an entry or of a table page
 * that is assigned after a restart must be higher than all those on the ring, including pages that
 * recovery has not read or could not read. So the superblock has a ceiling for each of the two,
 * which is raised on disk before it is reached. A recovery that has not read all pages continues
 * from the ceilings, which uses up at most RESERVE of the 2^52 sequences. Startup after a clean
 * stop uses up none.
 *
 * Runs on the loop thread; superblock.c writes the superblock. Failures: a failed write of the
 * superblock is tried again after RESERVE / 16 further sequences. The volume is bypassed before a
 * sequence exceeds the ceiling. */
#include "checked.h"
#include "store/volume/internal.h"

#define RESERVE (UINT64_C(1) << 20) /* default of store_params.sequence_reserve */

static uint64_t reserve_of(const struct volume *v)
{
        return v->params.sequence_reserve ? v->params.sequence_reserve : RESERVE;
}

void sequence_reserve(struct volume *v, bool done)
{
        struct disk_superblock *sb = &v->dir->superblock;
        uint64_t page = table_next_sequence(v->table), more = done ? 0 : reserve_of(v);

        v->next_seq_ceiling = sb->seq_ceiling = MIN(v->seq + more, CHUNK_SEQ_MAX);
        v->next_page_ceiling = sb->page_ceiling = page + more;
}

void sequence_reserved(struct volume *v)
{
        v->seq_ceiling = v->next_seq_ceiling;
        v->page_ceiling = v->next_page_ceiling;
}

void sequence_marked(struct volume *v, int r)
{
        v->raising = false;
        if (r == 0) {
                sequence_reserved(v);
                return;
        }
        v->raise_again_at = v->seq + reserve_of(v) / 16;
        v->stats.write_errors++;
        volume_note_error(v, "writing the superblock", r);
}

void sequence_iterate(struct volume *v)
{
        uint64_t page = table_next_sequence(v->table), reserve = reserve_of(v);

        if (v->params.as_is || v->bypassed)
                return;
        /* a sixteenth of RESERVE is more than one iteration of the loop can use */
        if (v->seq + reserve / 16 > v->seq_ceiling || page + reserve / 16 > v->page_ceiling) {
                volume_bypass(v, v->seq_ceiling == CHUNK_SEQ_MAX
                                         ? "no sequence numbers are left; create a new store"
                                         : "the superblock cannot be written, and the sequence "
                                           "numbers that it reserves are used up");
                return;
        }
        if ((v->seq + reserve / 2 <= v->seq_ceiling && page + reserve / 2 <= v->page_ceiling) ||
            v->seq_ceiling == CHUNK_SEQ_MAX || v->raising || v->seq < v->raise_again_at)
                return;
        v->raising = true;
        mark_want(v, MARK_CEILINGS);
}
