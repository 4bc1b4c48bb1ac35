/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that a daemon keeps, by name. A function that fails has said so, with the statuses of
 * this command: what other commands tell apart of a daemon that does not answer or refuses is 1
 * here. Main thread; the connection is ctl's, and is made by the first call. */
#pragma once

#include "common.h"
#include "snapshot.h"

enum session_status {
        SESSION_OK = 0,
        SESSION_FAILED = 1,
        SESSION_WRONG_USAGE = 2,
        SESSION_NONE_ACTIVE = 3,
        SESSION_UNKNOWN = 4,
        SESSION_PAST_THRESHOLD = 5,
};

/* The session that the environment names for those that are given no name: KVCACHE_BENCH_SESSION,
 * else DYNAMO_BENCHMARK_SESSION. *ret: NULL: it names none. SESSION_OK, SESSION_WRONG_USAGE. */
int live_environment(const char **ret);
/* Is `name` one? `what` names it in the message. SESSION_OK, SESSION_WRONG_USAGE. */
int live_check_name(const char *what, const char *name);

/* `name`: NULL: the active session. `ret_json`: the daemon's answer, the caller's to free.
 * SESSION_OK, SESSION_NONE_ACTIVE, SESSION_UNKNOWN, SESSION_FAILED. */
int live_call(struct ctl *ctl, enum kvcache_bench_action action, const char *name, unsigned flags,
              char **ret_json);
/* The same; the answer is a session. `ret_file` (may be NULL): the path of its file, as the daemon
 * sees it, the caller's to free; NULL: it names none. */
int live_session(struct ctl *ctl, enum kvcache_bench_action action, const char *name,
                 unsigned flags, struct snapshot **ret, char **ret_file);
/* The session that is active in a daemon that is connected, without a word. False: none is, or
 * that cannot be known. */
bool live_active(struct ctl *ctl, char ret_name[static SNAPSHOT_TEXT]);
