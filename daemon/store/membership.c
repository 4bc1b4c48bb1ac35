/* SPDX-License-Identifier: Apache-2.0 */
/* Which directories are one store, and who of them does not know all.
 *
 * The superblocks of a set share a uuid, and each has a number in it that is never given again. At
 * startup they must agree; a store of one volume becomes a set when it gets a second.
 *
 * A volume that is offline misses purges and drops. The set has an *epoch*, and all volumes that
 * are up have one record of it on disk, in their namespaces files: the epoch, and by which epoch
 * each volume has missed something. The rules:
 *
 *   1. A volume that begins to miss something moves the epoch: the record says that it has, by the
 *      new epoch. What it misses further moves nothing: it will be emptied in any case.
 *   2. A purge or a drop that a volume misses is answered when all volumes that are up have the
 *      record on stable storage (membership-record.c).
 *   3. A volume that a record says to have missed something, by an epoch higher than the one that
 *      it was last emptied at, is emptied before it is used, and notes the epoch of the set as
 *      that. No other is. One that was up when a crash came between its write and the others' is
 *      behind, but in no record, and keeps what it has.
 *   4. A volume takes the whole record, on stable storage, before it is used; if that has moved
 *      meanwhile, again.
 *   5. Volumes that were offline while others were in use, and are started without them, do not
 *      know what the epoch is by now. They are emptied, and skip as many as cannot have been given.
 *
 * Of several records the highest epoch counts, of the set and for each volume: what is claimed of a
 * volume is over once it was emptied at that epoch or above, whichever record still claims it. For
 * the case that a volume comes back alone, its superblock says that it was offline, if that can
 * still be written.
 *
 * Loop thread, but for what internal.h marks. Owns the set's uuid, the numbers in it, and the
 * record (`sum`).
 *
 * Failures: volumes of different sets, two with one number, and such as contradict each other
 * refuse the start. A volume whose superblock cannot be written is left out. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "checked.h"
#include "cleanup.h"
#include "store/internal.h"

/* It moves when a volume goes offline. */
#define EPOCHS_SKIPPED (UINT64_C(1) << 32)

static uint64_t bit_of(unsigned index)
{
        return UINT64_C(1) << index;
}

static unsigned number_of(struct volume *v)
{
        return volume_superblock(v)->volume_index;
}

/* All numbers that were given out, and those of the volumes that are up. */
uint64_t membership_bits_all(const struct store *s)
{
        return s->set_count >= VOLUMES_SET_MAX ? UINT64_MAX : bit_of(s->set_count) - 1;
}

uint64_t membership_bits_up(const struct store *s)
{
        uint64_t bits = 0;

        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_is_up(s, i))
                        bits |= bit_of(number_of(s->volumes[i].volume));
        return bits;
}

/* Of a volume; of one whose superblock was not read, all that belong to no other volume. */
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

/* Are these volumes of one store, each a different one? Finds out which. */
int membership_check(struct store *s, char ret_error[static STORE_ERROR_BYTES])
{
        const struct member *first = NULL; /* that is of a set, or else holds a store */

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
                                           "path; only empty directories can be added to a store",
                                           first->name, p->name);
                for (unsigned j = 0; j < i; j++) {
                        const struct member *q = &s->volumes[j];

                        if (q->volume && !volume_is_fresh(q->volume) &&
                            volume_superblock(q->volume)->volume_index == sb->volume_index)
                                return store_error(ret_error, -EPROTO,
                                                   "store.path: %s and %s both say that they are "
                                                   "path %u of the store: one is a copy",
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

/* Writes the set's uuid, and the numbers that are about to be given, to the volumes there are. A
 * failed write may have been done all the same. A volume that was of no set yet then has this uuid
 * or none, and which one is not known: the start is refused before another volume gets it. */
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

/* An empty directory gets a number that another volume may have, and its set's uuid, of which only
 * that volume knows, if that volume is not here. */
static int leave_out_fresh(struct store *s, char ret_error[static STORE_ERROR_BYTES])
{
        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];
                int r;

                if (!p->volume || !volume_is_fresh(p->volume))
                        continue;
                r = store_error(p->error, -ENODEV,
                                "%s: an empty directory, which is not added to the store while "
                                "another path cannot be used",
                                p->name);
                r = health_leave_out(p, r, ret_error);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* What the empty directories are about to be made of is on stable storage before the first of them
 * is made, so that a startup that is cut off, or fails, gives no number and no uuid twice. They are
 * made only if every volume can be read. */
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
                                                   "%.300s (a store is made only where all of its "
                                                   "paths can be used)",
                                                   s->volumes[i].error);
        }
        if (!s->in_set && getrandom(s->set, sizeof(s->set), 0) != sizeof(s->set))
                return store_error(ret_error, -EIO, "getrandom failed");
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

void membership_prepare_superblock(struct member *p, struct volume *v)
{
        struct store *s = p->store;
        struct disk_superblock *sb = volume_superblock(v);

        volume_set_limit(v, p->limit, p->entries);
        if (!s->in_set || s->params.as_is)
                return;
        sb->set_limit = s->params.limit;
        sb->set_volumes = s->n_volumes;
        sb->volume_count = (uint16_t)s->set_count;
}

static void record(struct store *s, uint64_t bits)
{
        s->recorded_at = ++s->sum.epoch;
        for (unsigned i = 0; i < VOLUMES_SET_MAX; i++)
                if (bits & bit_of(i))
                        s->sum.missed_at[i] = s->sum.epoch;
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
        membership_record_missed(s, membership_bits_all(s) & ~membership_bits_up(s));
}

/* Unlike a purge it is not made up for by emptying: a volume that has missed something before
 * misses this as well. */
void membership_record_removal(struct store *s)
{
        uint64_t away = membership_bits_all(s) & ~membership_bits_up(s);

        membership_record_purge(s);
        if (!s->in_set)
                return;
        if (away)
                record(s, away);
        s->sum.removed_at = s->sum.epoch;
}

void membership_learn(struct store *s, const struct volume *v)
{
        const struct volume_set *set = volume_set(v);

        s->sum.epoch = MAX(s->sum.epoch, set->epoch);
        s->sum.removed_at = MAX(s->sum.removed_at, set->removed_at);
        for (unsigned i = 0; i < VOLUMES_SET_MAX; i++)
                s->sum.missed_at[i] = MAX(s->sum.missed_at[i], set->missed_at[i]);
}

void membership_is_back(struct store *s, struct member *p)
{
        p->missed = p->unsure = false;
        s->sum.missed_at[number_of(p->volume)] = 0;
        s->missed &= ~bit_of(number_of(p->volume));
}

bool membership_has_missed(const struct volume_set *set, struct volume *v)
{
        return set->missed_at[number_of(v)] > volume_emptied_at(v);
}

/* Of the removal of a namespace: then its list is replaced by that of the others. */
static bool has_missed_removal(const struct store *s, const struct member *p)
{
        struct store_stats stats = { 0 };

        volume_get_stats(p->volume, &stats);
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_is_up(s, i) && (p->missed || stats.chunks == 0) &&
                    volume_set(s->volumes[i].volume)->removed_at >
                            volume_set(p->volume)->removed_at)
                        return true;
        return false;
}

/* Each takes what all know. *ret_again: nothing but the volumes themselves says that they were
 * offline, and one that is left out now has missed what is recorded nowhere: the others take that.
 */
static int join_each(struct store *s, bool witnessed, bool *ret_again,
                     char ret_error[static STORE_ERROR_BYTES])
{
        struct namespaces_snapshot *copies;
        struct volume_join join;
        int r = set_namespaces_snapshot(s, &copies, &join);

        *ret_again = false;
        if (r < 0)
                return store_error(ret_error, r, "out of memory");
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
                        p->missed = *ret_again = true;
                        membership_record_missed(s, bits);
                }
        }
        set_namespaces_release(s, copies);
        return r;
}

/* Of the volumes that are up it is known by now which have missed something. The record goes on
 * saying so of those, for a startup that is cut off, or leaves one of them out, before it is
 * emptied. What it says of the others is over. */
static void forget_made_up(struct store *s)
{
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (member_is_up(s, i) && !s->volumes[i].missed)
                        s->sum.missed_at[number_of(s->volumes[i].volume)] = 0;
}

int membership_join_all(struct store *s, char ret_error[static STORE_ERROR_BYTES])
{
        bool witnessed = false, again = true;
        int r = 0;

        for (unsigned i = 0; i < s->n_volumes; i++)
                for (unsigned j = 0; j < s->n_volumes; j++)
                        if (i != j && member_is_up(s, i) && member_is_up(s, j) &&
                            membership_has_missed(volume_set(s->volumes[j].volume),
                                                  s->volumes[i].volume))
                                s->volumes[i].missed = true;
        for (unsigned i = 0; i < s->n_volumes && r == 0; i++) {
                if (!member_is_up(s, i))
                        continue;
                if (has_missed_removal(s, &s->volumes[i]))
                        set_namespaces_learn_counts(s, &s->volumes[i]);
                else
                        r = set_namespaces_learn(s, &s->volumes[i], ret_error);
                witnessed = witnessed || !volume_superblock(s->volumes[i].volume)->away;
        }
        /* What was purged while it was offline is not known here: the next start drops it. */
        if (r < 0 || s->params.as_is)
                return r;
        forget_made_up(s);
        if (s->in_set && !witnessed)
                s->sum.epoch += EPOCHS_SKIPPED;
        while (again) {
                r = join_each(s, witnessed, &again, ret_error);
                if (r < 0)
                        return r;
        }
        s->noted_at = s->recorded_at;
        /* Once all are joined: the first that says it is not away is a witness for the others. */
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
        return 0;
}
