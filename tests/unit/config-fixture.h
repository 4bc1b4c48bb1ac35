/* SPDX-License-Identifier: Apache-2.0 */
/* Fixture of the tests of config/: a configuration, the messages about it, and a folder. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "config/internal.h"

extern struct config config;
extern struct config_error fault;
extern char folder[64];
extern char said[64][1200];
extern unsigned n_said;
void say(const char *text);
bool was_said(const char *part);
void reset(void);
int load_bytes(const char *text, size_t length);
int load(const char *text);
void write_file(const char *path, const char *text, size_t length);
const char *in_folder(const char *name, char ret[static 256]);
char *printed(void (*print)(FILE *out));
void print_it(FILE *out);
void assert_same(const struct config *a, const struct config *b);
void assert_reads_back(void);

/* Prepares a configuration of defaults and an empty folder. */
int setup(void **state);
int teardown(void **state);

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
