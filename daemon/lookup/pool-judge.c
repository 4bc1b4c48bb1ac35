/* SPDX-License-Identifier: Apache-2.0 */
/* See pool-judge.h. A scan that does not find a user over cancels one that did, so that a user
 * whose holds were read while they changed is forgotten. Users that are neither over nor barred
 * leave their places. If no place is free, the user whose bar ends first is replaced; among users
 * that were never barred, the one that was over least often. */
#include "lookup/pool-judge.h"

#include <stddef.h>

/* Scans that find that a user holds too much, minus scans that do not, after which the user is
 * barred. */
enum { BAR_AFTER = 64 };
#define BAR_AFTER_NS UINT64_C(1000000000)
#define BARRED_NS    (60 * UINT64_C(1000000000))

static struct pool_judge_user *find(const struct pool_judge *j, uid_t uid)
{
        for (unsigned i = 0; i < j->n; i++)
                if (j->users[i].uid == uid)
                        return (struct pool_judge_user *)&j->users[i];
        return NULL;
}

static struct pool_judge_user *take_place(struct pool_judge *j)
{
        struct pool_judge_user *least = &j->users[0];

        if (j->n < POOL_JUDGE_USERS)
                return &j->users[j->n++];
        for (unsigned i = 1; i < j->n; i++) {
                struct pool_judge_user *u = &j->users[i];

                if (u->until_ns < least->until_ns ||
                    (u->until_ns == least->until_ns && u->over < least->over))
                        least = u;
        }
        return least;
}

void pool_judge_note_over(struct pool_judge *j, uid_t uid)
{
        struct pool_judge_user *u = find(j, uid);

        if (!u) {
                u = take_place(j);
                *u = (struct pool_judge_user){ .uid = uid };
        }
        u->is_over = true;
}

void pool_judge_end_scan(struct pool_judge *j, uint64_t now_ns)
{
        unsigned kept = 0;

        for (unsigned i = 0; i < j->n; i++) {
                struct pool_judge_user u = j->users[i];

                if (!u.is_over)
                        u.over -= u.over > 0;
                else if (u.over++ == 0)
                        u.over_ns = now_ns;
                if (u.over >= BAR_AFTER && now_ns - u.over_ns >= BAR_AFTER_NS) {
                        u.over = 0;
                        u.until_ns = now_ns + BARRED_NS;
                }
                u.is_over = false;
                if (u.over > 0 || now_ns < u.until_ns)
                        j->users[kept++] = u;
        }
        j->n = kept;
}

bool pool_judge_is_barred(const struct pool_judge *j, uid_t uid, uint64_t now_ns)
{
        const struct pool_judge_user *u = find(j, uid);

        return u && now_ns < u->until_ns;
}
