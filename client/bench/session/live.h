/* SPDX-License-Identifier: Apache-2.0 */
/* Controls the sessions of a daemon by name. A function that fails has reported the failure, and
 * returns an exit status of `session`: SESSION_FAILED both if no daemon answers and if the
 * daemon refuses, which other commands distinguish. Main thread; ctl owns the connection, which
 * the first call opens. */
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

/* Gets the name of the session that commands without a name use: KVCACHE_BENCH_SESSION,
 * otherwise DYNAMO_BENCHMARK_SESSION. `*ret` is NULL if neither is set. Returns SESSION_OK or
 * SESSION_WRONG_USAGE. */
int live_environment(const char **ret);
/* Checks that `name` is valid; `what` denotes it in the message. Returns SESSION_OK or
 * SESSION_WRONG_USAGE. */
int live_check_name(const char *what, const char *name);

/* Sends an action to the daemon. `name`: NULL for the active session. `ret_json` gets the daemon's
 * answer, which the caller frees. Returns SESSION_OK, SESSION_NONE_ACTIVE, SESSION_UNKNOWN or
 * SESSION_FAILED. */
int live_call(struct ctl *ctl, enum kvcache_bench_action action, const char *name, unsigned flags,
              char **ret_json);
/* Sends an action as live_call() does, and parses the session that is the answer, which the caller
 * frees. `ret_file` (may be NULL) gets the path of its file as the daemon sees it, which the caller
 * frees; NULL if the answer has none. Returns as live_call(). */
int live_session(struct ctl *ctl, enum kvcache_bench_action action, const char *name,
                 unsigned flags, struct snapshot **ret, char **ret_file);
/* Gets the name of the active session of a connected daemon, and prints nothing. Returns false if
 * none is active, or that cannot be determined. */
bool live_active(struct ctl *ctl, char ret_name[static SNAPSHOT_TEXT]);
