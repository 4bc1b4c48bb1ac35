/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a command of kvcache-bench inside the test and keeps the output. One thread. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "commands.h"

/* Runs a command; the arguments exclude its name. Returns its exit status. */
#define bench(command, ...) bench_run((command), (const char *const[]){ __VA_ARGS__, NULL })
int bench_run(const struct command *command, const char *const *arguments);
/* Return the output of the latest run, valid until the next. */
const char *bench_out(void);
const char *bench_err(void);
/* Returns the output as JSON, which the caller deletes. */
cJSON *bench_json(void);
/* Returns the output with every run of spaces replaced by one space. */
const char *bench_squeezed(void);

/* Fail the test, and show both texts, unless the latest run printed `part`. */
void assert_out(const char *part);
void assert_err(const char *part);

/* Return a member of an object, which must be a number (or text); '.' separates nested objects:
 * "latency.p50_us". */
double json_number(const cJSON *object, const char *path);
const char *json_text(const cJSON *object, const char *path);

/* Create and remove a directory for the files of the tests, for cmocka_run_group_tests(). */
int bench_directory_make(void **state);
int bench_directory_remove(void **state);
/* Returns the path of a file in the directory, valid until the 16th call after this one. */
const char *bench_path(const char *name);
/* Writes a file. Returns its path. */
const char *bench_file(const char *name, const char *text);
/* Returns the contents of a file, which the caller frees, or NULL if there is no such file. */
char *bench_read(const char *path);
