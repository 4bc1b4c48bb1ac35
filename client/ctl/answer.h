/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches and parses the daemon's reports for commands, and formats their numbers according to the
 * unit at the end of their names. Text from the daemon is made safe for a terminal. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "commands.h"
#include "common.h"
#include "human.h"

/* Maximum bytes of a host's name, without its domain, that the tools print, so that the line
 * fits a terminal. */
enum { HOST_SHOWN = 32 };

/* Checks that there are no operands from `first` on. Returns EXIT_OK, or the status of wrong
 * usage after a message. */
int answer_no_operands(const struct command *self, int argc, char **argv, int first);
/* Checks that there are neither operands nor options. Returns false if the command must end with
 * ctl->exit_status. */
bool answer_no_arguments(struct ctl *ctl, const struct command *self, int argc, char **argv);

/* Fetches and parses a report. With --json, prints it as received and leaves `*ret` NULL. Returns
 * an exit status. */
int answer_fetch(struct ctl *ctl, enum kvcache_report what, const char *name, cJSON **ret);

/* Gets store.volumes from a connected daemon's status: one object per volume, in the order of their
 * numbers. Returns 0; 1 if the status lacks it; -errno. */
int answer_volumes(struct ctl *ctl, cJSON **ret);
/* Returns the number of the volume named by its directory or by its number from 0, or -1. */
int answer_volume_number(const cJSON *volumes, const char *wanted);

/* Return a member of an object; "" or 0 if the object does not have it. */
const char *answer_text(const cJSON *object, const char *name);
uint64_t answer_count_of(const cJSON *object, const char *name);
/* Converts a JSON number to a count, clamped to the range of the type. */
uint64_t answer_count(double value);
/* Formats a number by its name: "pool_bytes", 1024 becomes "1 KiB". */
void answer_format_number(const char *name, double value, char ret[static HUMAN_BYTES]);
/* Formats an item that is not an object, with the unit that its name ends with. */
void answer_format(const cJSON *item, char *ret, size_t room);
