/* SPDX-License-Identifier: Apache-2.0 */
/* The commands, one object each; main.c collects them in a table. */
#pragma once

#include "options.h"

extern const struct command command_status, command_ping, command_stats,
        command_config;                               /* cmd-status.c, cmd-stats.c */
extern const struct command command_bench;            /* cmd-bench.c */
extern const struct command command_top;              /* cmd-top.c */
extern const struct command command_put, command_get; /* cmd-chunk.c */
extern const struct command command_exists, command_stat, command_ls; /* cmd-look.c */
extern const struct command command_events;                           /* cmd-events.c */
extern const struct command command_evict, command_purge;             /* cmd-evict.c */
extern const struct command command_namespace;                        /* cmd-namespace.c */
extern const struct command command_prefetch;                         /* cmd-prefetch.c */
extern const struct command command_hint;                             /* cmd-hint.c */
extern const struct command command_pin, command_unpin;               /* cmd-pin.c */
extern const struct command command_doctor;                           /* cmd-doctor.c */
extern const struct command command_device;                           /* cmd-device.c */
extern const struct command command_gds;                              /* cmd-gds.c */
extern const struct command command_record;                           /* cmd-record.c */
extern const struct command command_remote;                           /* cmd-remote.c */
extern const struct command command_reload;                           /* cmd-reload.c */
extern const struct command command_report;                           /* cmd-report.c */
extern const struct command command_store;                            /* cmd-store.c */
extern const struct command command_verify;                           /* cmd-verify.c */
