/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a command of kvcache-bench inside the test and keeps the output. One thread. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>

#include "commands.h"

/* The command's arguments, without its name. Returns its exit status. */
#define bench(command, ...) bench_run((command), (const char *const[]){ __VA_ARGS__, NULL })
int bench_run(const struct command *command, const char *const *arguments);
/* The output of the latest run; valid until the next. */
const char *bench_out(void);
const char *bench_err(void);
/* The output as JSON; the caller deletes it. */
cJSON *bench_json(void);
/* The output without the table's blanks: every run of spaces is one. */
const char *bench_squeezed(void);

/* Fail the test, and show both texts, unless the latest run printed `part`. */
void assert_out(const char *part);
void assert_err(const char *part);

/* A member of an object, which must be a number; of nested objects with '.': "latency.p50_us". */
double json_number(const cJSON *object, const char *path);
const char *json_text(const cJSON *object, const char *path);

/* A directory for the files of the tests, for cmocka_run_group_tests(). */
int bench_directory_make(void **state);
int bench_directory_remove(void **state);
/* The path of a file in it; valid until the 16th call after this one. */
const char *bench_path(const char *name);
/* Writes the file. Returns its path. */
const char *bench_file(const char *name, const char *text);
/* The contents; the caller frees them. NULL: there is no such file. */
char *bench_read(const char *path);
