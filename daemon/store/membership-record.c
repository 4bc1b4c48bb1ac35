/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the set's record of claims to stable storage on all volumes that are up, after a volume
 * has missed purges or drops (see membership.c). One write runs at a time, for all requests that
 * wait; a purge writes the record, too.
 *
 * Loop thread. A volume uses its request until the request completes. If the volume fails, that may
 * be long after the write has ended without the volume.
 *
 * Failures: if a volume that is up could not store the record, the requests that wait are answered
 * with the error, and the next request starts another write. If no volume is up, the record is not
 * written. */
#include <errno.h>

#include "store/internal.h"

static void membership_record_ended(struct store *s)
{
        struct membership_record *n = &s->record;

        if (n->failed || s->up == 0)
                n->failures++;
        else
                s->noted_at = MAX(s->noted_at, n->epoch);
        store_nudge(s);
}

static void request_done(struct store_purge *req)
{
        struct membership_record_request *request =
                container_of(req, struct membership_record_request, purge);
        struct membership_record *n = &request->store->record;

        if (!(n->waiting & 1u << request->volume))
                return;
        n->waiting &= ~(1u << request->volume);
        n->failed = n->failed || req->result < 0;
        if (n->waiting == 0)
                membership_record_ended(request->store);
}

void membership_record_forget_volume(struct store *s, unsigned volume)
{
        if (!(s->record.waiting & 1u << volume))
                return;
        s->record.waiting &= ~(1u << volume);
        if (s->record.waiting == 0)
                membership_record_ended(s);
}

static void membership_record_begin(struct store *s)
{
        struct membership_record *n = &s->record;

        n->epoch = s->recorded_at;
        n->failed = false;
        n->waiting = s->up;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct membership_record_request *request = &n->requests[i];

                if (!member_is_up(s, i))
                        continue;
                request->store = s;
                request->volume = i;
                request->purge = (struct store_purge){ .complete = request_done };
                volume_purge(s->volumes[i].volume, &request->purge, &s->sum);
        }
        s->again = true;
}

int membership_record_settle(struct store *s, bool *noting, uint64_t *failures)
{
        if (!membership_wants_record(s))
                return 0;
        if (s->up == 0)
                return -EIO;
        if (s->record.waiting != 0)
                return MEMBERSHIP_RECORD_WAITS;
        if (*noting && *failures != s->record.failures)
                return -EIO;
        *noting = true;
        *failures = s->record.failures;
        membership_record_begin(s);
        return MEMBERSHIP_RECORD_WAITS;
}
