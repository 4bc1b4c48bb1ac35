/* SPDX-License-Identifier: Apache-2.0 */
/* A model's architecture, as far as the size of its KV cache goes: read from a flat YAML mapping.
 *
 * Which keys a file must have, and what they mean, is said by its family (family.h). The family
 * follows from model_name, or from a key `family`, which also offers descriptions that fit any
 * model. */
#pragma once

#include <stddef.h>

#include "family.h"

/* 0; -EINVAL: said so on stderr, with file, line, column and key; -errno: said so too. */
int model_load(struct kvbench_model **ret, const char *path);
/* The same from memory: `path` is for messages. */
int model_parse(struct kvbench_model **ret, const char *path, const void *text, size_t bytes);
struct kvbench_model *model_free(struct kvbench_model *model);
