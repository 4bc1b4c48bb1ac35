/* SPDX-License-Identifier: Apache-2.0 */
/* Families of models: computes the bytes of KV cache per token. One table row each (family.c); a
 * new family is a row, and a function if no existing one fits. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct kvbench_family;

/* The contents of a model file, which model.h reads. */
struct kvbench_model {
        char *name;
        const struct kvbench_family *family;

        /* A member is 0 if the file does not have the key. */
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

/* A key of a model file and its member in struct kvbench_model. */
struct kvbench_key {
        const char *name;
        size_t offset;
};

enum { KVBENCH_FAMILY_KEYS = 8 };

/* Where the division of the bytes among GPUs is rounded: a layer's bytes among tensor-parallel
 * ranks, and the layers among pipeline stages. */
enum kvbench_rounding {
        KVBENCH_ROUND_LATE,  /* the division is exact until the end; the number of layers of a
                                pipeline stage is rounded up */
        KVBENCH_ROUND_EARLY, /* each step is rounded to whole bytes; a pipeline stage may have a
                                part of a layer */
};

struct kvbench_family {
        const char *name; /* value of `family:`; without spaces */
        const char *part; /* substring of the lower-cased model_name that selects the family;
                             NULL: only `family:` does */
        const char *keys[KVBENCH_FAMILY_KEYS];     /* required keys, ended by NULL */
        const char *optional[KVBENCH_FAMILY_KEYS]; /* optional keys, ended by NULL */
        /* Returns the bytes of all layers for a number of tokens, with values of `precision` bytes:
         * a whole number. */
        double (*bytes)(const struct kvbench_model *model, double precision, double tokens);
        enum kvbench_rounding rounding;
        unsigned outer; /* 2: keys and values are separate; 1: one latent vector */
};

/* Find a family by the name of a model, or by the value of `family:`. Return NULL if there is
 * none. */
const struct kvbench_family *family_of_model(const char *model_name);
const struct kvbench_family *family_by_name(const char *name);
/* Returns the names of all families: "llama3.1, deepseek_r1, ...". */
const char *family_names(void);

/* Finds a key. Returns NULL if no family has it. */
const struct kvbench_key *family_key(const char *name);
static inline uint64_t *family_value(struct kvbench_model *model, const struct kvbench_key *key)
{
        return (uint64_t *)((char *)model + key->offset);
}
