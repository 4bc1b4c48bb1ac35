/* SPDX-License-Identifier: Apache-2.0 */
/* The actions of `kvcache-bench session`, and code that they share. Each action returns an exit
 * status. */
#pragma once

#include "live.h"
#include "options.h"
#include "report.h"
#include "snapshot.h"
#include "sweep.h"

struct session_arguments {
        const char *session, *output, *snapshot;
        const char *operands[2];
        int n_operands;
        struct report_options report;
        const char *format; /* --format as given; NULL: not given */
        bool dynamo, by_layout, io, resume, force;
        double most_percent; /* negative: --fail-on-regress was not given */
        unsigned long long count;
        struct sweep_options sweep;
};

/* Returns whether a name denotes a file, because it contains '/', ends with ".json" or is "-". Any
 * other name is that of a session. */
bool session_is_file(const char *name);

/* session-live.c: sessions of the daemon */
int session_init(struct ctl *ctl, const struct session_arguments *a);
/* Changes a session. `verb` and `done` are words for messages, such as "delete" and "deleted". */
int session_change(struct ctl *ctl, const struct session_arguments *a,
                   enum kvcache_bench_action action, const char *verb, const char *done);
int session_list(struct ctl *ctl);

/* session-test.c */
int session_test(struct ctl *ctl, const struct session_arguments *a);

/* session-run.c */
void session_run_defaults(struct sweep_options *o);
/* Parse the list with commas of --`option`. Names: `names` ends with NULL, and `ret` has an entry
 * for each of them, which becomes whether the list has it. Numbers: from `least` to `most`, perhaps
 * with a unit of bytes; `ret` has room for SWEEP_LIST. Return false after reporting an error and
 * setting ctl->exit_status. */
bool session_names_option(struct ctl *ctl, const char *option, const char *text,
                          const char *const *names, bool *ret);
bool session_numbers_option(struct ctl *ctl, const char *option, const char *text, uint64_t least,
                            uint64_t most, uint64_t *ret, unsigned *ret_n);
int session_run(struct ctl *ctl, struct session_arguments *a);
int session_test_io(struct ctl *ctl);
