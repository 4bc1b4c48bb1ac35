/* SPDX-License-Identifier: Apache-2.0 */
/* Which users hold more of a pool than they may, time and again. The record is by user and outlives
 * its sessions: sessions that take turns, or end and come back, count as one. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { POOL_JUDGE_USERS = 64 }; /* that are remembered at a time */

/* Zeroed before. */
struct pool_judge {
        struct pool_judge_user {
                uid_t uid;
                bool is_over;      /* in the current look */
                uint32_t over;     /* looks that found it so, less those that did not */
                uint64_t over_ns;  /* when first */
                uint64_t until_ns; /* when it may hold again; 0: it was never barred */
        } users[POOL_JUDGE_USERS];
        unsigned n;
};

/* Notes that the current look has found too much held by one of the user's sessions. */
void pool_judge_note_over(struct pool_judge *j, uid_t uid);
/* Ends a scan of all holds: bars each user that was found over often enough and for long enough. */
void pool_judge_end_scan(struct pool_judge *j, uint64_t now_ns);
/* Returns whether the user is barred: no session of it may hold more than its allowance, or join.
 */
bool pool_judge_is_barred(const struct pool_judge *j, uid_t uid, uint64_t now_ns);
