/* SPDX-License-Identifier: Apache-2.0 */
/* The actions of `kvcache-bench session`, and what they share. Each returns an exit status. */
#pragma once

#include "options.h"
#include "report.h"
#include "snapshot.h"
#include "sweep.h"

enum session_status {
        SESSION_OK = 0,
        SESSION_FAILED = 1,
        SESSION_WRONG_USAGE = 2,
        SESSION_NONE_ACTIVE = 3,
        SESSION_UNKNOWN = 4,
        SESSION_PAST_THRESHOLD = 5,
};

struct session_arguments {
        const char *session, *output, *snapshot;
        const char *operands[2];
        int n_operands;
        struct report_options report;
        const char *format; /* as it was given; NULL: it was not */
        bool dynamo, by_layout, io;
        double most_percent; /* negative: --fail-on-regress was not given */
        unsigned long long count;
        struct sweep_options sweep;
};

/* A session that `name` names: a file if it has a '/', ends with ".json" or is "-". */
int session_load(struct ctl *ctl, const char *name, struct snapshot **ret);

/* session-test.c */
int session_test(struct ctl *ctl, const struct session_arguments *a);

/* session-run.c */
void session_run_defaults(struct sweep_options *o);
/* Of a list with commas; false: wrong, said so, and ctl->exit_status is set. */
bool session_names_option(struct ctl *ctl, const char *option, const char *text,
                          const char *const *names, bool *ret);
bool session_numbers_option(struct ctl *ctl, const char *option, const char *text, uint64_t least,
                            uint64_t most, uint64_t *ret, unsigned *ret_n);
int session_run(struct ctl *ctl, struct session_arguments *a);
int session_test_io(struct ctl *ctl);
