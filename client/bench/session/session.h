/* SPDX-License-Identifier: Apache-2.0 */
/* The actions of `kvcache-bench session`, and what they share. Each returns an exit status. */
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
        const char *format; /* as it was given; NULL: it was not */
        bool dynamo, by_layout, io, resume, force;
        double most_percent; /* negative: --fail-on-regress was not given */
        unsigned long long count;
        struct sweep_options sweep;
};

/* Has it a '/', or does it end with ".json", or is it "-"? Else it is the name of a session. */
bool session_is_file(const char *name);
/* A file, or a session of the daemon. NULL: the one that the environment names, else the active
 * one. */
int session_load(struct ctl *ctl, const char *name, struct snapshot **ret);

/* session-live.c: of the daemon */
int session_init(struct ctl *ctl, const struct session_arguments *a);
/* `verb` and `done` are for messages: "reset", "reset". */
int session_change(struct ctl *ctl, const struct session_arguments *a,
                   enum kvcache_bench_action action, const char *verb, const char *done);
int session_list(struct ctl *ctl);

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
