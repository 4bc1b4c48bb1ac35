/* SPDX-License-Identifier: Apache-2.0 */
/* Records which users repeatedly hold more of a pool than they may. The record is kept by user and
 * outlives sessions, so that sessions that alternate, or end and connect again, count as one. Loop
 * thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { POOL_JUDGE_USERS = 64 }; /* users recorded at a time */

/* The record of one pool. The caller initializes it with zeros. */
struct pool_judge {
        struct pool_judge_user {
                uid_t uid;
                bool is_over;      /* the current scan has found that the user holds too much */
                uint32_t over;     /* scans that found that the user holds too much, minus scans
                                    * that did not */
                uint64_t over_ns;  /* time of the first of the scans that `over` counts */
                uint64_t until_ns; /* time at which the user may join again; 0 if the user was never
                                    * barred */
        } users[POOL_JUDGE_USERS];
        unsigned n;
};

/* Notes that the current scan has found too much held by one of the user's sessions. */
void pool_judge_note_over(struct pool_judge *j, uid_t uid);
/* Ends a scan of all holds: bars each user that was found over often enough and for long enough. */
void pool_judge_end_scan(struct pool_judge *j, uint64_t now_ns);
/* Returns whether the user is barred: no session of it may hold more than its allowance, or join.
 */
bool pool_judge_is_barred(const struct pool_judge *j, uid_t uid, uint64_t now_ns);
