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

/* Connects, and fetches and parses a report; the caller deletes `*ret`. With --json, prints the
 * report without its blanks and leaves `*ret` untouched. Returns an exit status. */
int answer_fetch(struct ctl *ctl, enum kvcache_report what, const char *name, cJSON **ret);

/* Gets store.volumes from a connected daemon's status: one object per volume, in the order of their
 * numbers; the caller deletes `*ret`. Returns 0; 1 if the status lacks store.volumes; the negative
 * errno of kvcache_report(). */
int answer_volumes(struct ctl *ctl, cJSON **ret);
/* Returns the number of the volume that `wanted` names by its directory or by its number from 0; -1
 * if there is none. */
int answer_volume_number(const cJSON *volumes, const char *wanted);

/* Return a text or a count that is a member of an object; "" or 0 if the object lacks it, or if it
 * has another type. */
const char *answer_text(const cJSON *object, const char *name);
uint64_t answer_count_of(const cJSON *object, const char *name);
/* Converts a JSON number to a count, clamped to the range of uint64_t. */
uint64_t answer_count(double value);
/* Formats a number with the unit that its name ends with: 1024 under "pool_bytes" is "1 KiB". */
void answer_format_number(const char *name, double value, char ret[static HUMAN_BYTES]);
/* Formats an item in at most `room` bytes: a number as answer_format_number() does, an object or an
 * array as JSON, null as "-". */
void answer_format(const cJSON *item, char *ret, size_t room);
