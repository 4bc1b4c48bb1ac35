/* SPDX-License-Identifier: Apache-2.0 */
/* A model's architecture, as far as it determines the size of its KV cache, read from a flat YAML
 * mapping.
 *
 * The family (family.h) determines which keys a file must have, and their meaning. The family
 * follows from model_name, or from a key `family`, which also offers descriptions that fit any
 * model. */
#pragma once

#include <stddef.h>

#include "family.h"

/* Reads a file. Returns 0; -EINVAL after reporting file, line, column and key on stderr; another
 * -errno, also reported. */
int model_load(struct kvbench_model **ret, const char *path);
/* Parses a text as model_load() does; `path` is for messages. */
int model_parse(struct kvbench_model **ret, const char *path, const void *text, size_t bytes);
struct kvbench_model *model_free(struct kvbench_model *model);
