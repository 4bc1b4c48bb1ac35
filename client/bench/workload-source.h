/* SPDX-License-Identifier: Apache-2.0 */
/* The options and the operand that select a trace or a synthetic workload. These functions
 * report errors on stderr. */
#pragma once

#include "options.h"
#include "workload.h"

struct workload_source {
        const char *trace, *synthetic; /* exactly one is set after workload_source_operand() */
        unsigned long long requests; /* number of requests to use, from the first on; 0: all, or the
                                        command's default */
        unsigned long long seed;     /* seed of the blocks' keys and of the synthetic workload */
        struct trace_format format;
};

enum { WORKLOAD_SOURCE_MOST_TOKENS = 1000000 };

#define WORKLOAD_SOURCE_UNIT_HELP                                                                  \
        "unit of the trace's timestamps (default: ms, but a timestamp with a fraction is\n"        \
        "refused)"
#define WORKLOAD_SOURCE_TOKENS_HELP                                                                \
        "tokens of a block (default: 512, and a trace in which the blocks of a request do\n"       \
        "not fit its input_length is refused)"
/* Parses --time-unit. Returns false if the command must end with ctl->exit_status. */
bool workload_source_unit(struct ctl *ctl, const struct command *self, const char *argument,
                          struct workload_source *source);
/* Parses --tokens-per-block. Returns false if the command must end with ctl->exit_status. */
bool workload_source_tokens(struct ctl *ctl, const char *argument, struct workload_source *source);

/* Parses --synthetic KIND. Returns false if the command must end with ctl->exit_status. */
bool workload_source_kind(struct ctl *ctl, const struct command *self, const char *argument,
                          struct workload_source *source);
/* Parses a percentage such as "50%", from 0% to 100%; `*ret` is from 0 to 1. Returns false if the
 * command must end with ctl->exit_status. */
bool workload_source_share(struct ctl *ctl, const struct command *self, const char *option,
                           const char *text, double *ret);
/* Takes the operand after all options were read: a trace, unless the workload is synthetic. Returns
 * EXIT_OK, or the status to end with. */
int workload_source_operand(const struct command *self, int argc, char **argv, int first,
                            struct workload_source *source);
/* Loads the workload, which the caller frees with workload_free(). `chat_requests`: number of
 * requests of a synthetic workload if source->requests is 0. Returns EXIT_OK, or the status to end
 * with. */
int workload_source_load(const struct workload_source *source, uint64_t chat_requests,
                         struct workload **ret);
