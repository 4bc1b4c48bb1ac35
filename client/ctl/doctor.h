/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of kvcachectl doctor. Each check is an object {name, level, found, remedy} that is
 * added to an array. The checks only read: nothing of the host or the daemon is changed. */
#pragma once

#include <cjson/cJSON.h>
#include <stdint.h>

#include "common.h"
#include "host.h"

enum doctor_level {
        DOCTOR_OK,
        DOCTOR_UNKNOWN, /* this user or this host does not allow the check */
        DOCTOR_WARNING, /* the daemon works, but is slower or less safe than it could be */
        DOCTOR_PROBLEM, /* chunks are lost or refused, or soon will be */
        DOCTOR_LEVELS
};

/* Returns the text of a level: "ok", "unknown", "warning" or "problem". */
const char *doctor_level_name(enum doctor_level level);
/* Returns the level of a check that has been added; DOCTOR_UNKNOWN if the check is malformed. */
enum doctor_level doctor_level_of(const cJSON *check);
/* Adds a check, whose member `found` is the formatted text. The remedy is kept unless the level is
 * DOCTOR_OK. Control characters in `found` are replaced, because other users and the daemon can
 * choose parts of it. */
void doctor_add(cJSON *checks, enum doctor_level level, const char *name, const char *remedy,
                const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Runs every check; if the daemon does not answer, only that of the clock. Returns EXIT_OK, and
 * `*ret_status` is the daemon's status, which the caller deletes; EXIT_UNREACHABLE if the daemon
 * does not accept the connection or does not report its status, for which a check is added; or,
 * after a message, the exit status of a status report that was refused or is malformed. */
int doctor_examine(struct ctl *ctl, cJSON *checks, cJSON **ret_status);

/* Finds the key in an item of the status's reload_pending: "KEY: OLD becomes NEW ...", with
 * "tenant NAME: " in front for a tenant's key. Returns its length; 0 if there is none. */
int doctor_pending_key(const cJSON *change, const char **ret_key);

/* Checks the daemon's status, in JSON. */
void doctor_check_daemon(const cJSON *status, cJSON *checks);
/* Adds the degradations whose cause none of the checks so far has found. Runs last. */
void doctor_check_health(const cJSON *status, cJSON *checks);

/* Checks the resources that this host gives the daemon. `root` is prepended to /proc and /sys:
 * "", or a test's folder. */
void doctor_check_host(const char *root, const cJSON *status, cJSON *checks);
/* Compares the daemon's memory nodes with those of the GPUs; called by doctor_check_host(). */
void doctor_check_nodes(const char *root, const cJSON *status, cJSON *checks);
/* Reads a file of /proc that belongs to the daemon's process. Returns false if the process is not
 * the daemon's, as in another PID namespace, or if the file cannot be read. */
bool doctor_read_process(const char *root, uint64_t pid, const char *name,
                         char ret[static HOST_FILE_MOST + 1]);
/* Checks the socket's permissions. */
void doctor_check_socket(const char *path, cJSON *checks);
/* Checks that this host's clock is synchronized. `state`: the result of adjtimex(2). */
void doctor_check_clock(int state, cJSON *checks);
