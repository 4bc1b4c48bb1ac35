/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's reports as the commands show them: fetched, parsed, and numbers formatted by the
 * unit at the end of their name. Text from the daemon is made safe for a terminal. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "commands.h"
#include "common.h"
#include "human.h"

/* For a command without operands: an exit status. */
int answer_no_operands(const struct command *self, int argc, char **argv, int first);
/* For one without options as well. False: it ends with ctl->exit_status. */
bool answer_no_arguments(struct ctl *ctl, const struct command *self, int argc, char **argv);

/* The report, parsed; with --json it is printed, and *ret stays NULL. */
int answer_fetch(struct ctl *ctl, enum kvcache_report what, const char *name, cJSON **ret);

/* store.volumes of a connected daemon's status: one object a volume, in the order of their numbers.
 * 0; 1: the status lacks it; -errno. */
int answer_volumes(struct ctl *ctl, cJSON **ret);
/* The number of the volume that is named by its directory, or by its number from 0; -1: none. */
int answer_volume_number(const cJSON *volumes, const char *wanted);

/* A member of an object: "" and 0 if it is not there. */
const char *answer_text(const cJSON *object, const char *name);
uint64_t answer_count_of(const cJSON *object, const char *name);
/* A number of JSON as one that counts: never below 0, and never too large. */
uint64_t answer_count(double value);
/* "pool_bytes", 1024: "1 KiB". */
void answer_format_number(const char *name, double value, char ret[static HUMAN_BYTES]);
/* The same of any item that is not an object, by its own name. */
void answer_format(const cJSON *item, char *ret, size_t room);
