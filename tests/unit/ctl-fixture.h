/* SPDX-License-Identifier: Apache-2.0 */
/* Runs kvcachectl as a program, in this process and over the fake library: with arguments and
 * standard input, returning the exit status and both outputs. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "common.h"
#include "fake-admin.h"

/* Resets the fake, standard input and the environment: cmocka's setup of each test. */
int ctl_reset(void **state);
#define CTL_TEST(name) cmocka_unit_test_setup(name, ctl_reset)

/* Sets standard input of the following runs; by default it is empty. */
void ctl_input(const void *bytes, size_t n);
/* Makes standard input of the next run a terminal on which these characters have been typed. */
void ctl_type(const char *keys);
/* Makes standard output of the next run the same terminal. */
void ctl_output_to_terminal(void);
/* Makes standard output of the next run this device; NULL: standard output is closed. */
void ctl_output_to(const char *device);

/* Outputs of the last run. */
extern char ctl_out[256 * 1024], ctl_err[64 * 1024];
extern size_t ctl_out_bytes;

/* Runs kvcachectl as its main() does. Returns its exit status. Fails the test if the run leaves a
 * connection open or a lease unreleased. */
int ctl_run(const char *const *argv);
#define ctl(...) ctl_run((const char *const[]){ "kvcachectl", __VA_ARGS__, NULL })
/* Runs it in a child, for commands that keep state or replace the process; the fake's records are
 * lost. */
int ctl_run_in_child(const char *const *argv);
#define ctl_in_child(...) ctl_run_in_child((const char *const[]){ "kvcachectl", __VA_ARGS__, NULL })

/* Runs it, and compares status and outputs; NULL: the output is not compared. */
#define ctl_expect(status, out, err, ...)                                                          \
        ctl_compare(ctl(__VA_ARGS__), (status), (out), (err), __FILE__, __LINE__)
void ctl_compare(int status, int expected, const char *out, const char *err, const char *file,
                 int line);
/* Fail the test and print the whole text if the part is missing, or present. */
#define has(text, part)   ctl_has((text), (part), true, __FILE__, __LINE__)
#define lacks(text, part) ctl_has((text), (part), false, __FILE__, __LINE__)
void ctl_has(const char *text, const char *part, bool wanted, const char *file, int line);

/* Writes a file into the temporary folder. Returns its path, valid until the next call. */
const char *ctl_file(const char *name, const void *bytes, size_t n);
/* Returns the path of a file in that folder, which need not exist. */
const char *ctl_path(const char *name);
/* Removes the folder: cmocka's teardown of the group. */
int ctl_remove_files(void **state);

/* A host, for diagnoses: a folder that $KVCACHE_TEST_ROOT puts in front of the paths of /proc,
 * /sys, /dev, /etc and /run. `volume` is a folder in it. */
struct ctl_host {
        char root[128], volume[128 + 16];
};
/* Makes another empty host, and sets the variable. */
void ctl_host_new(struct ctl_host *ret);
/* Writes a file of the host; its name may have folders, which are made. */
void ctl_host_write(const struct ctl_host *host, const char *name, const char *text);

/* Returns JSON that a test has written with single quotes; valid until the next call. */
const char *ctl_json(const char *text);

/* Returns the key that `text` stands for on the command line, and its digits. */
struct kvcache_key ctl_key(const char *text);
const char *ctl_hex(const char *text);
/* Puts a chunk into the fake's store. */
void ctl_store(const char *key, const char *bytes);
