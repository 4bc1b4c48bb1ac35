/* SPDX-License-Identifier: Apache-2.0 */
/* The set's record to stable storage, on all paths that are up: for purges and drops that somebody
 * misses (see membership.c). One write of it at a time, for all who wait; a purge carries it as
 * well.
 *
 * Loop thread. A part is its volume's until it completes, which for a path that fails meanwhile may
 * be long after it is waited for.
 *
 * Failures: a record that a path which is up could not take is the answer to those who asked for
 * it; the next who asks has it written again. With no path up it is not written. */
#include <errno.h>

#include "store/internal.h"

static void note_ended(struct store *s)
{
        struct note *n = &s->note;

        if (n->failed || s->up == 0)
                n->failures++;
        else
                s->noted_at = MAX(s->noted_at, n->epoch);
        store_nudge(s);
}

static void part_done(struct store_purge *req)
{
        struct note_part *part = container_of(req, struct note_part, purge);
        struct note *n = &part->store->note;

        if (!(n->waiting & 1u << part->path))
                return;
        n->waiting &= ~(1u << part->path);
        n->failed = n->failed || req->result < 0;
        if (n->waiting == 0)
                note_ended(part->store);
}

void note_forget_path(struct store *s, unsigned path)
{
        if (!(s->note.waiting & 1u << path))
                return;
        s->note.waiting &= ~(1u << path);
        if (s->note.waiting == 0)
                note_ended(s);
}

static void note_begin(struct store *s)
{
        struct note *n = &s->note;

        n->epoch = s->sum.missed_at;
        n->failed = false;
        n->waiting = s->up;
        for (unsigned i = 0; i < s->n_paths; i++) {
                struct note_part *part = &n->parts[i];

                if (!path_is_up(s, i))
                        continue;
                part->store = s;
                part->path = i;
                part->purge = (struct store_purge){ .complete = part_done };
                volume_purge(s->paths[i].volume, &part->purge, &s->sum);
        }
        s->again = true;
}

int note_settle(struct store *s, bool *noting, uint64_t *failures)
{
        if (!set_wants_note(s))
                return 0;
        if (s->up == 0)
                return -EIO;
        if (s->note.waiting != 0)
                return NOTE_WAITS;
        if (*noting && *failures != s->note.failures)
                return -EIO;
        *noting = true;
        *failures = s->note.failures;
        note_begin(s);
        return NOTE_WAITS;
}
