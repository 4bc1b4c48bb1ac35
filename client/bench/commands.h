/* SPDX-License-Identifier: Apache-2.0 */
/* The commands that measure and size, one object each; main.c collects them in a table. */
#pragma once

#include "options.h"

extern const struct command command_replay;                  /* cmd-replay.c */
extern const struct command command_simulate;                /* cmd-simulate.c */
extern const struct command command_remote;                  /* cmd-remote.c */
extern const struct command command_trace;                   /* cmd-trace.c */
extern const struct command command_plan;                    /* kvbench/cmd-plan.c */
extern const struct command command_profile;                 /* kvbench/cmd-profile.c */
extern const struct command command_kvcache, command_iosize; /* kvbench/cmd-figures.c */
extern const struct command command_session;                 /* session/cmd-session.c */
