/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a YAML file written by people: one mapping. Every fault is reported with its position:
 * "FILE:LINE:COLUMN: fault".
 *
 * These functions print errors and warnings on stderr; callers only return the failure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <yaml.h>

struct yaml_file {
        const char *path; /* for messages; borrowed */
        yaml_document_t document;
        yaml_node_t *root; /* the root, a mapping */
        bool loaded;
};

enum { YAML_FILE_MAX_BYTES = 256 * 1024 };

/* Reads a file. Returns 0; -EINVAL, -ENOMEM or the error of reading, after reporting it.
 * yaml_file_close() must follow in all cases. */
int yaml_file_open(struct yaml_file *ret, const char *path);
/* Parses a text as yaml_file_open() does. */
int yaml_file_parse(struct yaml_file *ret, const char *path, const void *text, size_t bytes);
void yaml_file_close(struct yaml_file *f);

/* Calls `pair` for each key of a mapping, with its text, until a call returns a negative number.
 * Keys that are not texts, and repeated keys, are faults. Returns 0, the number of that call, or
 * -EINVAL after reporting a fault. */
int yaml_file_each(struct yaml_file *f, const yaml_node_t *mapping,
                   int (*pair)(struct yaml_file *f, const yaml_node_t *key_node, const char *key,
                               const yaml_node_t *value, void *data),
                   void *data);

/* Reports an error with the position of `node`; NULL: only with the file. Returns -EINVAL. */
int yaml_file_error(const struct yaml_file *f, const yaml_node_t *node, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
void yaml_file_warn(const struct yaml_file *f, const yaml_node_t *node, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* Makes foreign text safe for a message: one line, with control characters and invalid UTF-8 as \n,
 * \t or \xNN, and "..." at the end if it was cut. `buffer` has `room` bytes, at least 16. Returns
 * `buffer`. */
const char *yaml_file_shown(const char *text, char *buffer, size_t room);

/* Returns whether the node is empty, ~ or null, without quotes. */
bool yaml_file_is_null(const yaml_node_t *node);

/* Gets the text of a key, shorter than `room`. Returns 0, or -EINVAL after reporting the fault, as
 * the functions below do. */
int yaml_file_text(const struct yaml_file *f, const char *key, const yaml_node_t *value, char *ret,
                   size_t room);
/* Gets a whole number from 1 to YAML_FILE_MOST. */
int yaml_file_count(const struct yaml_file *f, const char *key, const yaml_node_t *value,
                    uint64_t *ret);
/* Gets a number above 0 and at most YAML_FILE_MOST that may have a fraction and an exponent, and
 * its text without '_' and a leading '+'. */
int yaml_file_number(const struct yaml_file *f, const char *key, const yaml_node_t *value,
                     double *ret, char *ret_text, size_t room);

#define YAML_FILE_MOST (UINT64_C(1) << 53) /* largest range of consecutive integers in a double */
