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
};

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
