/* SPDX-License-Identifier: Apache-2.0 */
/* A model's architecture, as far as the size of its KV cache goes: read from a flat YAML mapping.
 *
 * Which keys a file must have, and what they mean, is said by its family (family.h). The family
 * follows from model_name, or from a key `family`, which also offers descriptions that fit any
 * model. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct kvbench_family;

struct kvbench_model {
        char *name;
        const struct kvbench_family *family;

        /* 0: not in the file. */
        uint64_t num_layers;
        uint64_t num_query_heads;
        uint64_t query_head_dimension;
        uint64_t embedding_dimension;
        uint64_t rope_mla_dimension;
        uint64_t mla_latent_vector_dimension;
        uint64_t num_query_heads_with_mha;
        uint64_t gqa_num_queries_in_group;
        uint64_t num_kv_heads;
        uint64_t head_dimension;
        uint64_t latent_dimension;
        uint64_t rope_dimension;
        uint64_t num_model_params;
};

/* 0; -EINVAL: said so on stderr, with file, line, column and key; -errno: said so too. */
int model_load(struct kvbench_model **ret, const char *path);
/* The same from memory: `path` is for messages. */
int model_parse(struct kvbench_model **ret, const char *path, const void *text, size_t bytes);
struct kvbench_model *model_free(struct kvbench_model *model);
