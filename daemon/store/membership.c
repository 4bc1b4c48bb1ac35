/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which directories form one store, and which of them have missed something.
 *
 * The superblocks of a set share a uuid, and each has a number in the set that is never given
 * again. Startup checks that uuids and numbers agree. A store of one volume becomes a set when a
 * second volume is added.
 *
 * An offline volume misses purges and drops, and the other volumes record this as a *claim* on it.
 * A claim consists of an epoch and the number of the volume that gave the epoch, the claimant. The
 * epochs of one claimant only rise. Epochs of two claimants cannot be compared, because volumes may
 * be used in separate groups. All volumes that are up have the same record on disk, in their
 * namespaces files: for each volume, the last claim of each claimant. A volume's record of itself
 * lists the claims for which it has been emptied. The rules:
 *
 *   1. When a volume first misses something, one of the volumes that are up makes a claim on it
 *      with a new epoch. Later misses add no claim until another volume goes offline, because the
 *      volume will be emptied in any case.
 *   2. A purge or drop that a volume misses is answered when all volumes that are up have the
 *      record on stable storage (membership-record.c).
 *   3. A volume is emptied before it is used if any record has a claim on it for which it has not
 *      been emptied. No other volume is emptied. After a crash between the writes of several
 *      volumes, a volume that was up may have an older record, but there is no claim on it, and it
 *      keeps its chunks.
 *   4. Before a volume is used, it takes over the whole record, on stable storage, and once more if
 *      the record has changed meanwhile. Records are merged by the highest epoch of each claimant,
 *      and no claim is ever removed.
 *   5. Each startup skips more epochs than can be in flight to the disk at a time, and has the new
 *      epoch on stable storage before it makes a claim. So a claimant gives no epoch twice, even if
 *      an earlier process died before its claim was written.
 *   6. Volumes that were all offline while others were in use are emptied if they are started
 *      without those others. They count as emptied only for the claims that they know.
 *
 * For rule 6 a volume's superblock says that it was offline, if that could still be written. A
 * volume that was used apart from those that are up knows claims on them, so it is not resumed.
 *
 * Loop thread, except the functions that internal.h marks. Owns the set's uuid, the numbers in it
 * and the record (`sum`).
 *
 * Failures: startup fails if the volumes belong to different sets, if two have one number, or if
 * they contradict each other. A volume whose superblock cannot be written is left out; if the set
 * is being formed, startup fails instead. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "checked.h"
#include "store/internal.h"

/* Number of epochs that a startup skips. Between two writes of the record, a daemon gives far
 * fewer. */
#define EPOCHS_SKIPPED (UINT64_C(1) << 32)

static uint64_t bit_of(unsigned index)
{
        return UINT64_C(1) << index;
}

static unsigned number_of(struct volume *v)
{
        return volume_superblock(v)->volume_index;
}

uint64_t membership_bits_all(const struct store *s)
{
        return s->set_count >= VOLUMES_SET_MAX ? UINT64_MAX : bit_of(s->set_count) - 1;
}

/* Returns the numbers of the volumes that are up, as bits. */
static uint64_t bits_up(const struct store *s)
{
        uint64_t bits = 0;

        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_is_up(s, i))
                        bits |= bit_of(number_of(s->volumes[i].volume));
        return bits;
}

uint64_t membership_bits_of(const struct store *s, const struct member *p)
{
        uint64_t others = 0;

        if (p->volume)
                return bit_of(number_of(p->volume));
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_has_volume(s, i))
                        others |= bit_of(number_of(s->volumes[i].volume));
        return membership_bits_all(s) & ~others;
}

static bool is_zero(const uint8_t uuid[static DISK_UUID_BYTES])
{
        static const uint8_t zero[DISK_UUID_BYTES];

        return memcmp(uuid, zero, DISK_UUID_BYTES) == 0;
}

int membership_check(struct store *s, char ret_error[static STORE_ERROR_BYTES])
{
        const struct member *first = NULL; /* the first volume that holds a store */

        for (unsigned i = 0; i < s->n_volumes; i++) {
                const struct member *p = &s->volumes[i];
                const struct disk_superblock *sb;

                if (!p->volume || volume_is_fresh(p->volume))
                        continue;
                sb = volume_superblock(p->volume);
                if (first && memcmp(sb->set, s->set, DISK_UUID_BYTES) != 0)
                        return store_error(ret_error, -EPROTO,
                                           "store.path: %s and %s belong to different stores",
                                           first->name, p->name);
                if (first && is_zero(sb->set))
                        return store_error(ret_error, -EPROTO,
                                           "store.path: %s and %s are two stores, each with one "
                                           "volume; only empty directories can be added to a store",
                                           first->name, p->name);
                for (unsigned j = 0; j < i; j++) {
                        const struct member *q = &s->volumes[j];

                        if (q->volume && !volume_is_fresh(q->volume) &&
                            volume_superblock(q->volume)->volume_index == sb->volume_index)
                                return store_error(ret_error, -EPROTO,
                                                   "store.path: %s and %s both say that they are "
                                                   "volume %u of the store: one is a copy",
                                                   q->name, p->name, sb->volume_index + 1u);
                }
                if (!first) {
                        first = p;
                        memcpy(s->set, sb->set, DISK_UUID_BYTES);
                }
                s->set_count = MAX(s->set_count, (unsigned)sb->volume_count);
        }
        s->in_set = !is_zero(s->set);
        return 0;
}

static unsigned count_fresh(const struct store *s)
{
        unsigned n = 0;

        for (unsigned i = 0; i < s->n_volumes; i++)
                n += s->volumes[i].volume && volume_is_fresh(s->volumes[i].volume);
        return n;
}

static bool is_all_there(const struct store *s)
{
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (!s->volumes[i].volume)
                        return false;
        return true;
}

/* Writes the set's uuid, and the numbers that are about to be given, to the existing volumes. A
 * failed write may have reached the disk. After that it is unknown whether a volume that belonged
 * to no set has this uuid, so startup fails before another volume gets it. */
static int announce(struct store *s, unsigned fresh, bool was_in_set,
                    char ret_error[static STORE_ERROR_BYTES])
{
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];
                struct disk_superblock *sb;
                int r;

                if (!p->volume || volume_is_fresh(p->volume))
                        continue;
                sb = volume_superblock(p->volume);
                memcpy(sb->set, s->set, DISK_UUID_BYTES);
                sb->volume_count = (uint16_t)(s->set_count + fresh);
                r = volume_write_superblock(p->volume);
                if (r == 0)
                        continue;
                store_error(p->error, r, "%s: cannot write the superblock: %s", p->name,
                            strerror(-r));
                r = was_in_set ? health_leave_out(p, r, ret_error)
                               : store_error(ret_error, r, "%s", p->error);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Leaves out the empty directories, because a volume is missing. The missing volume may have the
 * number that such a directory would get, and may be the only one that knows the set's uuid. */
static int leave_out_fresh(struct store *s, char ret_error[static STORE_ERROR_BYTES])
{
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];
                int r;

                if (!p->volume || !volume_is_fresh(p->volume))
                        continue;
                r = store_error(p->error, -ENODEV,
                                "%s: an empty directory is not added to the store while another "
                                "volume cannot be used",
                                p->name);
                r = health_leave_out(p, r, ret_error);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Announces the uuid and the numbers of new volumes on stable storage before the first of these is
 * created, so that no number or uuid is given twice after an interrupted startup. New volumes are
 * created only if every volume can be read. */
int membership_found(struct store *s, char ret_error[static STORE_ERROR_BYTES])
{
        unsigned fresh = count_fresh(s), there = (unsigned)__builtin_popcount(s->up);
        bool was_in_set = s->in_set;

        if (s->n_volumes == 1)
                return 0;
        if (!is_all_there(s) && there == fresh) {
                for (unsigned i = 0; i < s->n_volumes; i++)
                        if (!s->volumes[i].volume)
                                return store_error(ret_error, -EIO,
                                                   "%.300s (a store is created only if all of its "
                                                   "volumes can be used)",
                                                   s->volumes[i].error);
        }
        if (!s->in_set && getrandom(s->set, sizeof(s->set), 0) != sizeof(s->set))
                return store_error(
                        ret_error, -EIO,
                        "store.path: the kernel gave no random bytes for the new store's identity");
        s->in_set = true;
        if (!is_all_there(s))
                fresh = 0;
        if (s->set_count + fresh > VOLUMES_SET_MAX)
                return store_error(ret_error, -ENOSPC,
                                   "store.path: %u empty directories cannot be added: the store "
                                   "has had %u volumes already",
                                   fresh, s->set_count);
        if (fresh > 0 || !was_in_set) {
                int r = announce(s, fresh, was_in_set, ret_error);

                if (r < 0)
                        return r;
        }
        return is_all_there(s) ? 0 : leave_out_fresh(s, ret_error);
}

void membership_prepare_superblock(const struct member *p, struct volume *v, unsigned set_count)
{
        const struct store *s = p->store;
        struct disk_superblock *sb = volume_superblock(v);

        volume_set_limit(v, p->limit, p->entries);
        if (!s->in_set || s->params.as_is)
                return;
        sb->set_limit = s->params.limit;
        sb->set_volumes = s->n_volumes;
        sb->volume_count = (uint16_t)set_count;
}

/* Returns the number of the volume in whose name epochs are given: the first one that is up or, if
 * none is, the claimant until now. */
static unsigned claimant(struct store *s)
{
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_is_up(s, i)) {
                        s->claimant = number_of(s->volumes[i].volume);
                        break;
                }
        return s->claimant;
}

/* Makes a claim with a new epoch on each volume in `bits`. */
static void record(struct store *s, uint64_t bits)
{
        unsigned by = claimant(s);

        s->recorded_at = ++s->sum.epoch;
        for (unsigned i = 0; i < VOLUMES_SET_MAX; i++)
                if (bits & bit_of(i))
                        s->sum.missed_at[i][by] = s->sum.epoch;
}

void membership_record_missed(struct store *s, uint64_t bits)
{
        if (!s->in_set || (bits & ~s->missed) == 0)
                return;
        s->missed |= bits;
        record(s, bits);
}

void membership_volume_missed(struct store *s, struct member *p)
{
        if (!s->in_set) {
                p->unsure = true;
                s->lost_drops++;
                return;
        }
        p->missed = true;
        membership_record_missed(s, membership_bits_of(s, p));
}

void membership_record_purge(struct store *s)
{
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (!member_is_up(s, i))
                        s->volumes[i].missed = true;
        membership_record_missed(s, membership_bits_all(s) & ~bits_up(s));
}

/* Emptying a volume makes up for missed purges, but not for a missed removal of a namespace. So a
 * removal gives every offline volume a new claim, even if there is a claim on it already. */
void membership_record_removal(struct store *s)
{
        uint64_t away = membership_bits_all(s) & ~bits_up(s);

        membership_record_purge(s);
        if (!s->in_set)
                return;
        if (away)
                record(s, away);
        s->sum.removed_at[claimant(s)] = s->sum.epoch;
}

void membership_learn(struct store *s, const struct volume *v)
{
        const struct volume_set *set = volume_set(v);

        s->sum.epoch = MAX(s->sum.epoch, set->epoch);
        volume_epochs_raise(s->sum.removed_at, set->removed_at);
        for (unsigned i = 0; i < VOLUMES_SET_MAX; i++)
                volume_epochs_raise(s->sum.missed_at[i], set->missed_at[i]);
}

void membership_is_back(struct store *s, struct member *p)
{
        p->missed = p->unsure = false;
        s->missed &= ~bit_of(number_of(p->volume));
}

bool membership_has_missed(const struct volume_set *set, struct volume *v)
{
        return volume_epochs_exceed(set->missed_at[number_of(v)],
                                    volume_set(v)->missed_at[number_of(v)]);
}

bool membership_is_apart(const struct volume_set *set, struct volume *v)
{
        const struct volume_set *own = volume_set(v);

        if (own->epoch > set->epoch || volume_epochs_exceed(own->removed_at, set->removed_at))
                return true;
        for (unsigned i = 0; i < VOLUMES_SET_MAX; i++)
                if (i != number_of(v) && volume_epochs_exceed(own->missed_at[i], set->missed_at[i]))
                        return true;
        return false;
}

bool membership_has_missed_removal(const struct member *p, const struct member *of)
{
        struct store_stats stats = { 0 };

        volume_get_stats(p->volume, &stats);
        return (p->missed || stats.chunks == 0) &&
               volume_epochs_exceed(volume_set(of->volume)->removed_at,
                                    volume_set(p->volume)->removed_at);
}

/* Returns whether the volume has missed the removal of a namespace. Its list of namespaces is then
 * ignored where it differs from the others. */
static bool is_behind(const struct store *s, const struct member *p)
{
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_is_up(s, i) && membership_has_missed_removal(p, &s->volumes[i]))
                        return true;
        return false;
}

/* Joins each volume that is up to the set. `witnessed`: at least one of these volumes is not marked
 * as having been offline, and so has recorded everything that the others missed. If `witnessed` is
 * false, *ret_left_out gets the volumes that failed to join now; the caller must record that they
 * miss purges. */
static int join_each(struct store *s, bool witnessed, uint64_t *ret_left_out,
                     char ret_error[static STORE_ERROR_BYTES])
{
        struct namespaces_snapshot *copies;
        struct volume_join join;
        int r = set_namespaces_snapshot(s, &copies, &join);

        *ret_left_out = 0;
        if (r < 0)
                return store_error(ret_error, r, "out of memory for the store");
        join.witnessed = witnessed;
        for (unsigned i = 0; i < s->n_volumes && r == 0; i++) {
                struct member *p = &s->volumes[i];
                uint64_t bits;

                if (!member_is_up(s, i))
                        continue;
                bits = membership_bits_of(s, p);
                join.empty = p->missed;
                r = volume_join(p->volume, &join, &p->emptied, p->error);
                if (r == 0)
                        continue;
                r = health_leave_out(p, r, ret_error);
                if (r == 0 && s->in_set && !witnessed) {
                        p->missed = true;
                        *ret_left_out |= bits;
                }
        }
        set_namespaces_release(s, copies);
        return r;
}

/* Merges the lists of namespaces of all volumes. Volumes that have missed no removal come first, so
 * that a removed name on another volume does not count as a contradiction. */
static int learn_all(struct store *s, char ret_error[static STORE_ERROR_BYTES])
{
        int r = 0;

        for (unsigned behind = 0; behind < 2; behind++)
                for (unsigned i = 0; i < s->n_volumes && r == 0; i++)
                        if (member_is_up(s, i) && is_behind(s, &s->volumes[i]) == behind)
                                r = set_namespaces_learn(s, &s->volumes[i], behind, ret_error);
        return r;
}

int membership_join_all(struct store *s, char ret_error[static STORE_ERROR_BYTES])
{
        bool witnessed = false;
        uint64_t left_out;
        int r;

        for (unsigned i = 0; i < s->n_volumes; i++)
                for (unsigned j = 0; j < s->n_volumes; j++)
                        if (i != j && member_is_up(s, i) && member_is_up(s, j) &&
                            membership_has_missed(volume_set(s->volumes[j].volume),
                                                  s->volumes[i].volume))
                                s->volumes[i].missed = true;
        for (unsigned i = 0; i < s->n_volumes; i++)
                witnessed = witnessed ||
                            (member_is_up(s, i) && !volume_superblock(s->volumes[i].volume)->away);
        r = learn_all(s, ret_error);
        /* a volume that is opened as_is joins no set: chunks whose purge it has missed are shown,
         * and dropped by the next regular startup */
        if (r < 0 || s->params.as_is)
                return r;
        if (s->in_set)
                s->sum.epoch += EPOCHS_SKIPPED;
        do {
                r = join_each(s, witnessed, &left_out, ret_error);
                if (r < 0)
                        return r;
                membership_record_missed(s, left_out);
        } while (left_out);
        s->noted_at = s->recorded_at;
        /* The marks are cleared only after all volumes have joined: if a crash came earlier, a
         * volume without a mark would count as a witness for volumes that have not joined yet. */
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];

                if (!member_is_up(s, i))
                        continue;
                r = volume_is_back(p->volume, p->error);
                if (r < 0)
                        r = health_leave_out(p, r, ret_error);
                else
                        membership_is_back(s, p);
                if (r < 0)
                        return r;
        }
        (void)claimant(s);
        return 0;
}
