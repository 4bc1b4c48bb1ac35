/* SPDX-License-Identifier: Apache-2.0 */
/* A YAML file that people write: one mapping, read as a whole, with an error for every way in which
 * it can be wrong that says where: "FILE:LINE:COLUMN: what".
 *
 * Errors and warnings go to stderr from here; callers only pass the failure on. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <yaml.h>

struct yaml_file {
        const char *path; /* for messages; borrowed */
        yaml_document_t document;
        yaml_node_t *root; /* a mapping */
        bool loaded;
};

enum { YAML_FILE_MAX_BYTES = 256 * 1024 };

/* 0; -EINVAL, -ENOMEM or what reading failed with: said so. yaml_file_close() in all cases. */
int yaml_file_open(struct yaml_file *ret, const char *path);
/* The same from memory. */
int yaml_file_parse(struct yaml_file *ret, const char *path, const void *text, size_t bytes);
void yaml_file_close(struct yaml_file *f);

/* Calls `pair` for each key of a mapping, with its text, until one answers a failure. Keys that are
 * not texts, and keys that come twice, are failures. */
int yaml_file_each(struct yaml_file *f, const yaml_node_t *mapping,
                   int (*pair)(struct yaml_file *f, const yaml_node_t *key_node, const char *key,
                               const yaml_node_t *value, void *data),
                   void *data);

/* Says it, with the node's place (NULL: the file's). Returns -EINVAL. */
int yaml_file_error(const struct yaml_file *f, const yaml_node_t *node, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
void yaml_file_warn(const struct yaml_file *f, const yaml_node_t *node, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

/* A foreign text for a message: one line, cut to `room`, and what steers a terminal as \n, \t or
 * \xNN. Returns `buffer`, at least 16 bytes. */
const char *yaml_file_shown(const char *text, char *buffer, size_t room);

/* Nothing, ~ or null, not in quotes. */
bool yaml_file_is_null(const yaml_node_t *node);

/* Values of a key. -EINVAL: said so. A text must be shorter than `room`. */
int yaml_file_text(const struct yaml_file *f, const char *key, const yaml_node_t *value, char *ret,
                   size_t room);
/* A whole number from 1 to YAML_FILE_MOST. */
int yaml_file_count(const struct yaml_file *f, const char *key, const yaml_node_t *value,
                    uint64_t *ret);
/* A number above 0 that may have a fraction, and its digits as they were written. */
int yaml_file_number(const struct yaml_file *f, const char *key, const yaml_node_t *value,
                     double *ret, char *ret_text, size_t room);

#define YAML_FILE_MOST (UINT64_C(1) << 53) /* what a double counts without a gap */
