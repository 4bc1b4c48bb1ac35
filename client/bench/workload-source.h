/* SPDX-License-Identifier: Apache-2.0 */
/* What a command plays: the options and the operand by which a trace or a synthetic workload is
 * named. Errors are explained on stderr here. */
#pragma once

#include "options.h"
#include "workload.h"

struct workload_source {
        const char *trace, *synthetic; /* one of them */
        unsigned long long requests;   /* the first ones only; 0: all, or the command's default */
        unsigned long long seed;
        struct trace_format format;
};

enum { WORKLOAD_SOURCE_MOST_TOKENS = 1000000 };

#define WORKLOAD_SOURCE_UNIT_HELP                                                                  \
        "unit of the trace's timestamps (default: ms, but a timestamp with a fraction is\n"        \
        "refused)"
#define WORKLOAD_SOURCE_TOKENS_HELP                                                                \
        "tokens of a block (default: 512, and a trace in which the blocks of a request do\n"       \
        "not fit its input_length is refused)"
/* --time-unit. False: end with ctl->exit_status. */
bool workload_source_unit(struct ctl *ctl, const struct command *self, const char *argument,
                          struct workload_source *source);
/* --tokens-per-block. False: end with ctl->exit_status. */
bool workload_source_tokens(struct ctl *ctl, const char *argument, struct workload_source *source);

/* --synthetic KIND. False: end with ctl->exit_status. */
bool workload_source_kind(struct ctl *ctl, const struct command *self, const char *argument,
                          struct workload_source *source);
/* A share, as "50%", from 0 to 1. False: end with ctl->exit_status. */
bool workload_source_share(struct ctl *ctl, const struct command *self, const char *option,
                           const char *text, double *ret);
/* The operand, when all options were read: a trace, unless the workload is synthetic. EXIT_OK, or
 * the status to end with. */
int workload_source_operand(const struct command *self, int argc, char **argv, int first,
                            struct workload_source *source);
/* `chat_requests`: of a synthetic workload, without --requests. EXIT_OK, or the status to end with.
 */
int workload_source_load(const struct workload_source *source, uint64_t chat_requests,
                         struct workload **ret);
