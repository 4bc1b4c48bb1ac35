/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which volumes are in use: a volume is up, bypassed, suspended or being resumed. When a
 * device hangs, store_tick() bypasses its volume: its waiting puts and gets are answered, new puts
 * go to other volumes, and its chunks are misses.
 *
 * A volume bypasses itself when its device fails or its error budget is used up. This can happen in
 * any function of the volume, so the bypass is only recorded at first, and reported once
 * (on_volume) when the store next iterates. After the report no request waits for the volume, and
 * its superblock is marked as offline if other volumes continue. Suspending waits for operations in
 * progress, then syncs everything. Resuming opens the directory again as a new struct volume, gives
 * it the others' records, and replaces the old struct. If the records have changed meanwhile, they
 * are given again. Until the replacement the volume is bypassed, and misses purges and drops.
 *
 * Loop thread. Blocking work (run_*) runs as KIO_CALL on the volume's own thread, one call at a
 * time. Owns each member's state, its `call`, and `next`, the volume that is being resumed, which
 * belongs to the call while that runs.
 *
 * Failures: a resume that fails leaves the volume bypassed, with the reason. If a call hangs, the
 * admin's request is answered, and the call continues. If the superblock's mark cannot be written,
 * no purge is lost, because the other volumes have the record. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "store/internal.h"

DEFINE_CLEANUP(struct volume *, volume_close);

enum { JOIN_ROUNDS_MAX = 64, WANTS_NUMBER = 1 };

/* --- state and events --- */

void health_tell(struct member *p, enum store_volume_event event, const char *text)
{
        const struct store_params *params = &p->store->params;

        if (params->on_volume)
                params->on_volume(params->userdata, p->number, event, text);
}

static void tell_loss(void *userdata, const char *text)
{
        health_tell(userdata, STORE_VOLUME_HAS_LOST, text);
}

void health_tell_losses(struct member *p)
{
        unsigned detached;
        char text[64];

        if (!p->volume || !volume_is_open(p->volume))
                return;
        if (volume_is_fresh(p->volume))
                health_tell(p, STORE_VOLUME_IS_NEW, "");
        detached = volume_detached_files(p->volume);
        if (detached > 0) {
                snprintf(text, sizeof(text), "%u %s", detached, detached == 1 ? "was" : "were");
                health_tell(p, STORE_VOLUME_COPIED, text);
        }
        volume_report_losses(p->volume, tell_loss, p);
}

void health_set_state(struct member *p, enum store_volume_state state, const char *reason)
{
        struct store *s = p->store;
        bool changes = (p->state == STORE_VOLUME_UP) != (state == STORE_VOLUME_UP);

        if (p->state == STORE_VOLUME_UP && state != STORE_VOLUME_UP) {
                p->bypasses++;
                /* From now on this volume records nothing. It may be used elsewhere, together with
                 * an offline volume that was emptied for the epochs recorded until now. So the next
                 * purge or drop must give every offline volume a claim with a new epoch. */
                s->missed = 0;
        }
        p->state = state;
        member_set_reason(p, reason);
        p->since_ms = clock_unix_ms();
        if (state == STORE_VOLUME_UP)
                s->up |= 1u << p->number;
        else
                s->up &= ~(1u << p->number);
        for (const struct list_node *n = s->watches.next; changes && n != &s->watches;
             n = n->next) {
                const struct store_watch *watch = container_of(n, struct store_watch, node);

                if (watch->volumes_changed)
                        watch->volumes_changed(watch->userdata);
        }
}

static struct member *volume_of(struct store *s, const struct volume *v)
{
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (s->volumes[i].volume == v)
                        return &s->volumes[i];
        return NULL;
}

/* Records the bypass of a volume. May be called from within any function of the volume;
 * health_tell_news() reports the bypass in the next iteration. */
void health_on_bypassed(void *userdata, struct volume *v)
{
        struct store *s = userdata;
        struct member *p = volume_of(s, v);

        if (!p)
                return;
        if (p->state == STORE_VOLUME_UP || (p->suspending && !p->resting)) {
                health_set_state(p, STORE_VOLUME_BYPASSED, volume_reason(v));
                p->news = true;
                if (volume_loses_drops(v))
                        membership_volume_missed(s, p);
        }
}

void health_on_doubtful(void *userdata, struct volume *v)
{
        struct store *s = userdata;
        struct member *p = volume_of(s, v);

        if (p)
                membership_volume_missed(s, p);
}

void health_on_full(void *userdata, struct volume *v, bool full)
{
        struct store *s = userdata;
        struct member *p = volume_of(s, v);

        if (p)
                health_tell(p, full ? STORE_VOLUME_IS_FULL : STORE_VOLUME_HAS_ROOM, "");
}

void health_on_gave_up(void *userdata, struct volume *v, uint32_t segment, uint64_t chunks)
{
        struct store *s = userdata;
        struct member *p = volume_of(s, v);
        char text[64];

        if (!p)
                return;
        snprintf(text, sizeof(text), "segment-%04x with %" PRIu64 " chunk%s", segment & 0xffff,
                 chunks, chunks == 1 ? "" : "s");
        health_tell(p, STORE_VOLUME_GAVE_UP, text);
}

void health_on_astray(void *userdata, struct volume *v, const char *reason)
{
        struct store *s = userdata;
        struct member *p = volume_of(s, v);
        char text[STORE_ERROR_BYTES];

        if (!p)
                return;
        snprintf(text, sizeof(text), "%.400s; chunks written there since then are lost", reason);
        health_tell(p, STORE_VOLUME_HAS_LOST, text);
}

/* --- startup without a volume --- */

bool health_may_start_without(const struct store *s, int r)
{
        return s->n_volumes > 1 && r != -EINVAL && r != -EBUSY && r != -EPROTO && r != -EUCLEAN &&
               r != -ENOMEM;
}

int health_leave_out(struct member *p, int r, char ret_error[static STORE_ERROR_BYTES])
{
        struct store *s = p->store;

        if (!health_may_start_without(s, r) || (s->up & ~(1u << p->number)) == 0)
                return store_error(ret_error, r, "%s", p->error);
        p->volume = volume_close(p->volume);
        health_set_state(p, STORE_VOLUME_BYPASSED, p->error);
        p->since_ms = 0;
        p->news = true;
        return 0;
}

/* --- bypass and hang --- */

static void device_done(struct member *p, int result, const char *text)
{
        struct store_device *req = TAKE_PTR(p->device);
        struct store *s = p->store;

        if (!req)
                return;
        req->result = result;
        snprintf(req->text, sizeof(req->text), "%s", text);
        s->waiting--;
        req->complete(req);
}

static void call(struct member *p, int (*run)(struct kio_request *),
                 void (*complete)(struct kio_request *))
{
        p->calling = true;
        p->call = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_PUT,
                .volume = p->number + 1,
                .call = run,
                .complete = complete,
        };
        list_init(&p->call.node);
        kio_submit(p->store->io, &p->call, p->number);
}

/* Returns whether other volumes continue without this one. The superblock of this volume must then
 * be marked, because it may miss purges. */
static bool is_away(const struct member *p)
{
        return p->store->in_set && (p->store->up & ~(1u << p->number));
}

/* Makes all requests stop waiting for a volume. */
static void forget_volume(struct member *p)
{
        fan_out_forget_volume(p->store, p->number);
        sync_all_forget_volume(p->store, p->number);
        membership_record_forget_volume(p->store, p->number);
}

void health_tell_news(struct member *p)
{
        struct store *s = p->store;

        p->news = p->suspending = p->resting = false;
        health_tell(p, STORE_VOLUME_IS_BYPASSED, p->reason);
        forget_volume(p);
        device_done(p, -EIO, p->reason);
        if (p->volume && is_away(p) && !s->stopping)
                volume_mark_away(p->volume);
}

const char *store_slowest_volume(const struct store *s)
{
        const char *slowest = NULL;
        uint64_t oldest_ns = 0;

        for (unsigned i = 0; i < s->n_volumes; i++) {
                uint64_t ns = kio_oldest(s->io, i + 1);

                if (ns > oldest_ns) {
                        oldest_ns = ns;
                        slowest = store_volume_path(s, i);
                }
        }
        return slowest;
}

void store_tick(struct store *s)
{
        uint64_t hang_ns = s->params.hang_ms * 1000000;

        if (!s->open)
                return;
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_has_volume(s, i) && !(s->volumes[i].calling && s->volumes[i].resting))
                        volume_tick(s->volumes[i].volume);
        if (hang_ns == 0)
                return;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];
                char reason[STORE_ERROR_BYTES]; /* not p->error, which the call in progress uses */

                if (!p->volume || p->hung || kio_oldest(s->io, i + 1) < hang_ns)
                        continue;
                if (p->calling) {
                        /* the call continues, but the admin's request is answered */
                        if (p->state == STORE_VOLUME_RESUMING) {
                                store_error(reason, 0,
                                            "%s: not resumed: the volume's device does not answer",
                                            p->name);
                                health_set_state(p, STORE_VOLUME_BYPASSED, reason);
                        }
                        device_done(p, -ETIMEDOUT, "the volume's device does not answer");
                        continue;
                }
                p->hung = true;
                snprintf(reason, sizeof(reason),
                         "an operation has not completed for %llu s (io.hang)",
                         (unsigned long long)(s->params.hang_ms / 1000));
                volume_bypass(p->volume, reason);
                if (p->suspending) {
                        health_set_state(p, STORE_VOLUME_BYPASSED, reason);
                        p->news = true;
                }
                volume_abandon(p->volume);
        }
        store_reap(s);
}

/* --- suspending and resuming --- */

static int run_rest(struct kio_request *req)
{
        struct member *p = container_of(req, struct member, call);

        return volume_rest(p->volume);
}

static void rested(struct kio_request *req)
{
        struct member *p = container_of(req, struct member, call);

        p->calling = p->resting = false;
        volume_end_rest(p->volume);
        /* another volume may have been resumed during the call, and continues without this one */
        if (is_away(p) && !p->store->stopping)
                volume_mark_away(p->volume);
        if (req->result < 0)
                device_done(p, (int)req->result,
                            "the volume is suspended, but its files could not be synced: "
                            "power loss may destroy chunks; check the disk");
        else
                device_done(p, 0, "");
        if (p->store->stopping)
                store_reap(p->store);
}

void health_rest_when_quiet(struct member *p)
{
        if (!volume_is_quiet(p->volume))
                return;
        if (!p->resting) {
                p->resting = true;
                volume_bypass(p->volume, p->reason);
                forget_volume(p);
        }
        if (volume_pending(p->volume) > 0)
                return;
        p->suspending = false;
        health_tell(p, STORE_VOLUME_IS_SUSPENDED, "");
        volume_begin_rest(p->volume, is_away(p));
        call(p, run_rest, rested);
}

static void resume_ended(struct member *p, int r);

void health_stop(struct member *p)
{
        if (p->numbering) {
                p->numbering = false;
                store_error(p->error, -ECANCELED, "%s: not resumed: the daemon is stopping",
                            p->name);
                resume_ended(p, -ECANCELED);
        }
        if (!p->suspending)
                return;
        p->suspending = p->resting = false;
        device_done(p, -ECANCELED, "the daemon is stopping");
}

static void answer(struct store_device *req, int result, const char *text)
{
        req->result = result;
        snprintf(req->text, sizeof(req->text), "%s", text);
        req->complete(req);
}

void store_suspend(struct store *s, struct store_device *req)
{
        struct member *p = &s->volumes[req->volume];

        assert(req->volume < s->n_volumes);
        if (p->device || p->calling || s->stopping) {
                answer(req, STORE_BUSY,
                       "the volume is being suspended or resumed; try again later");
        } else if (p->state == STORE_VOLUME_SUSPENDED) {
                answer(req, STORE_EXISTS, "the volume is already suspended");
        } else if (p->state != STORE_VOLUME_UP) {
                health_set_state(p, STORE_VOLUME_SUSPENDED, p->reason);
                health_tell(p, STORE_VOLUME_IS_SUSPENDED, "");
                answer(req, 0, "");
        } else {
                p->device = req;
                s->waiting++;
                p->suspending = true;
                health_set_state(p, STORE_VOLUME_SUSPENDED, STORE_SUSPENDED_BY_HAND);
        }
}

/* Opens the volume again, if p->next is not set yet, and joins it to the set. Returns 0,
 * WANTS_NUMBER if the directory is empty and must first get a volume number, or -errno with
 * p->error set. Runs on the volume's blocking-call thread; no other thread uses p->next. */
static int run_resume(struct kio_request *req)
{
        struct member *p = container_of(req, struct member, call);
        struct store *s = p->store;
        struct disk_superblock *sb;
        bool emptied = false;
        int r;

        if (!p->next) {
                _cleanup_(volume_closep) struct volume *v = NULL;

                r = store_prepare_volume(p, p->volume ? volume_lock_fd(p->volume) : -1, &v,
                                         p->error);
                if (r < 0)
                        return r;
                sb = volume_superblock(v);
                if (volume_is_fresh(v)) {
                        if (s->in_set && p->given == 0)
                                return WANTS_NUMBER;
                        r = volume_make(v, s->in_set ? s->set : NULL, s->in_set ? p->given - 1 : 0,
                                        s->in_set ? p->set_count : 1, p->error);
                        if (r < 0)
                                return r;
                } else if (memcmp(sb->set, s->set, DISK_UUID_BYTES) != 0) {
                        return store_error(p->error, -EPROTO,
                                           "%s: not resumed: the volume belongs to another store; "
                                           "mount this store's own volume there",
                                           p->name);
                }
                for (unsigned i = 0; i < s->n_volumes; i++)
                        if (p->numbers[i] == sb->volume_index + 1u)
                                return store_error(p->error, -EPROTO,
                                                   "%s: not resumed: the volume has the same "
                                                   "number as %s, so one is a copy of the other",
                                                   p->name, s->volumes[i].name);
                membership_prepare_superblock(p, v, p->set_count);
                if (p->volume)
                        volume_take_marks(v, p->volume);
                r = volume_open(v, s->io, p->error);
                if (r < 0)
                        return r;
                if (s->in_set && membership_is_apart(&p->join.set, v))
                        return store_error(
                                p->error, -EPROTO,
                                "%s: not resumed: the volume may have been used without the others "
                                "and know of purges that they missed; restart the daemon",
                                p->name);
                p->next = TAKE_PTR(v);
        }
        p->join.empty = p->join.empty || membership_has_missed(&p->join.set, p->next);
        r = volume_join(p->next, &p->join, &emptied, p->error);
        p->emptied = p->emptied || emptied;
        return r < 0 ? r : volume_is_back(p->next, p->error);
}

static void resumed(struct kio_request *req);

static int submit_resume(struct member *p)
{
        struct store *s = p->store;
        int r;

        struct namespaces_snapshot *earlier = TAKE_PTR(p->snapshot);

        r = set_namespaces_snapshot(s, &p->snapshot, &p->join);
        set_namespaces_release(s, earlier);
        if (r < 0)
                return r;
        p->join.empty = p->missed;
        p->join.witnessed = true; /* this process has recorded everything that the volume missed */
        p->join_changes = s->changes;
        p->set_count = s->set_count;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct volume *v = i != p->number ? s->volumes[i].volume : NULL;

                p->numbers[i] = v ? volume_superblock(v)->volume_index + 1u : 0;
        }
        call(p, run_resume, resumed);
        return 0;
}

static void resume_ended(struct member *p, int r)
{
        struct store *s = p->store;

        /* Only the snapshot is freed. Namespaces that the volume has copied from it stay in the
         * store's list, because the volume's files may already name them. */
        set_namespaces_release(s, TAKE_PTR(p->snapshot));
        p->next = volume_close(p->next);
        p->emptied = false;
        health_set_state(p, STORE_VOLUME_BYPASSED, p->error);
        device_done(p, r, p->error);
        if (s->stopping)
                store_reap(s);
}

/* Sets `away` in the superblock of a volume whose resume failed after the volume had joined the
 * others, because the other volumes continue without this one. Runs on the volume's blocking-call
 * thread. */
static int run_leave(struct kio_request *req)
{
        struct member *p = container_of(req, struct member, call);

        volume_superblock(p->next)->away = 1;
        return volume_write_superblock(p->next);
}

static void left(struct kio_request *req)
{
        struct member *p = container_of(req, struct member, call);

        p->calling = false;
        resume_ended(p, p->leave_result);
}

static void resume_failed(struct member *p, int r)
{
        if (p->next && is_away(p)) {
                p->leave_result = r;
                call(p, run_leave, left);
        } else {
                resume_ended(p, r);
        }
}

/* Returns whether the volume need not join again: since it last joined, neither the record nor the
 * list of namespaces has changed, and it has missed no purge or drop without being emptied. Purges
 * and drops change the record only once for each volume that goes offline, so a few rounds suffice,
 * unless namespaces are opened all the time (JOIN_ROUNDS_MAX). */
static bool has_joined(const struct member *p)
{
        const struct store *s = p->store;

        return p->join.set.epoch == s->sum.epoch && p->join_changes == s->changes &&
               p->join.empty >= p->missed;
}

/* Puts a resumed volume into use in place of the old struct. */
static void make_up(struct member *p)
{
        struct store *s = p->store;
        unsigned count;
        int policy;

        if (p->volume)
                volume_take_counts(p->next, p->volume);
        loans_forget_volume(s, p->number);
        volume_close(p->volume);
        p->volume = TAKE_PTR(p->next);
        policy = volume_set_policy(p->volume, s->policy_now);
        volume_set_watches(p->volume, &s->watches);
        list_for_each (&s->watches, n) {
                const struct store_watch *watch = container_of(n, struct store_watch, node);

                if (watch->replaced)
                        watch->replaced(watch->userdata);
        }
        for (unsigned i = 0; i < s->n_tenant_limits; i++)
                capacity_limit_tenant(p, &s->tenant_limits[i]);
        for (unsigned i = 0; volume_namespace_at(p->volume, i); i++)
                if (!set_namespaces_by_id(s, volume_namespace_at(p->volume, i)->id))
                        (void)set_namespaces_learn(s, p, false, p->error);
        p->hung = p->news = false;
        p->given = 0;
        health_set_state(p, STORE_VOLUME_UP, "");
        set_namespaces_release(s, TAKE_PTR(p->snapshot));
        membership_is_back(s, p);
        count = volume_superblock(p->volume)->volume_count;
        for (unsigned i = 0; s->in_set && i < s->n_volumes; i++) {
                struct member *other = &s->volumes[i];

                if (other == p || !other->volume)
                        continue;
                if (member_is_up(s, i) && count > s->set_count)
                        volume_mark_count(other->volume, count);
                else if (!member_is_up(s, i) && !other->calling)
                        volume_mark_away(other->volume); /* a volume that went offline as the last
                                                            one in use was not marked then */
        }
        if (s->in_set)
                s->set_count = MAX(s->set_count, count);
        health_tell_losses(p);
        if (p->emptied)
                health_tell(p, STORE_VOLUME_IS_EMPTIED, "");
        p->emptied = false;
        health_tell(p, STORE_VOLUME_IS_RESUMED, "");
        /* the volume continues with the eviction policy with which it was opened */
        if (policy < 0)
                health_tell(p, STORE_VOLUME_KEEPS_POLICY, strerror(-policy));
        device_done(p, 0, "");
}

/* Gives an empty directory a number that no volume of the set has had. The other volumes record the
 * number on stable storage before the volume is created. Otherwise a crash could leave a volume
 * whose number they do not know. They would give this number to another volume, which would then
 * look like a copy, and would record no misses of the first one. */
static void number(struct member *p)
{
        struct store *s = p->store;

        if (s->set_count == VOLUMES_SET_MAX) {
                resume_failed(p, store_error(p->error, -ENOSPC,
                                             "%s: not resumed: the store has had %u volumes, and "
                                             "cannot have another one",
                                             p->name, (unsigned)VOLUMES_SET_MAX));
                return;
        }
        p->numbering = true;
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_is_up(s, i))
                        volume_mark_count(s->volumes[i].volume, s->set_count + 1);
        store_nudge(s);
}

void health_number_when_marked(struct member *p)
{
        struct store *s = p->store;
        int r = 0;

        for (unsigned i = 0; i < s->n_volumes; i++) {
                int marked = member_is_up(s, i) ? volume_count_is_marked(s->volumes[i].volume) : 0;

                if (marked == VOLUME_MARK_WAITS)
                        return;
                if (marked < 0)
                        r = store_error(p->error, marked,
                                        "%s: not resumed: the superblock of %s cannot be written: "
                                        "%s",
                                        p->name, s->volumes[i].name, strerror(-marked));
        }
        p->numbering = false;
        if (r == 0) {
                p->given = ++s->set_count;
                if (submit_resume(p) < 0)
                        r = store_error(p->error, -ENOMEM, "out of memory for the store");
        }
        if (r < 0)
                resume_failed(p, r);
}

static void resumed(struct kio_request *req)
{
        struct member *p = container_of(req, struct member, call);
        struct store *s = p->store;
        int r = (int)req->result;

        p->calling = false;
        if (r >= 0 && s->stopping)
                r = store_error(p->error, -ECANCELED, "%s: not resumed: the daemon is stopping",
                                p->name);
        else if (r >= 0 && p->state != STORE_VOLUME_RESUMING)
                r = store_error(p->error, -ECANCELED,
                                "%s: not resumed: reading the volume took longer than io.hang; "
                                "restart the daemon, with a larger io.hang if volumes are to be "
                                "resumed without a restart",
                                p->name);
        if (r == WANTS_NUMBER) {
                number(p);
                return;
        }
        p->join_rounds += r == 0;
        if (r == 0 && !has_joined(p)) {
                if (p->join_rounds < JOIN_ROUNDS_MAX)
                        r = submit_resume(p);
                else
                        r = store_error(p->error, -EAGAIN,
                                        "%s: not resumed: namespaces are opened faster than the "
                                        "volume can take them over; try again",
                                        p->name);
                if (r == 0)
                        return;
        }
        if (r < 0)
                resume_failed(p, r);
        else
                make_up(p);
        if (s->stopping)
                store_reap(s);
}

void store_resume(struct store *s, struct store_device *req)
{
        struct member *p = &s->volumes[req->volume];
        bool busy = false;

        assert(req->volume < s->n_volumes);
        if (p->state == STORE_VOLUME_UP) {
                answer(req, STORE_EXISTS, "the volume is neither suspended nor bypassed");
                return;
        }
        for (unsigned i = 0; i < s->n_volumes; i++)
                busy = busy || s->volumes[i].state == STORE_VOLUME_RESUMING;
        if (busy || p->device || p->calling || s->stopping) {
                answer(req, STORE_BUSY, "a volume is being suspended or resumed; try again later");
                return;
        }
        if (p->volume && volume_pending(p->volume) > 0) {
                answer(req, STORE_BUSY,
                       "the device has not completed earlier operations; try again later");
                return;
        }
        p->device = req;
        s->waiting++;
        p->join_rounds = 0;
        p->error[0] = '\0';
        health_set_state(p, STORE_VOLUME_RESUMING, p->reason);
        if (submit_resume(p) < 0) {
                store_error(p->error, -ENOMEM, "out of memory for the store");
                resume_failed(p, -ENOMEM);
        }
}
