/* SPDX-License-Identifier: Apache-2.0 */
/* Families of models: how many bytes of KV cache a token takes. One table row each (family.c); a
 * new family is a row, and a function where no present one fits. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct kvbench_family;

/* What a model file says; model.h reads it. */
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

/* A key of a model file, by what it stands for in struct kvbench_model. */
struct kvbench_key {
        const char *name;
        size_t offset;
};

enum { KVBENCH_FAMILY_KEYS = 8 };

/* How one layer's bytes are shared out over GPUs. */
enum kvbench_rounding {
        KVBENCH_ROUND_LATE,  /* exact until the end; layers of a pipeline stage rounded up */
        KVBENCH_ROUND_EARLY, /* whole bytes at each step; a stage may have part of a layer */
};

struct kvbench_family {
        const char *name; /* what `family:` may say; without spaces */
        const char *part; /* of the lower-cased model_name, by which it is known; NULL: by `family:`
                           * alone */
        const char *keys[KVBENCH_FAMILY_KEYS];     /* required, NULL at the end */
        const char *optional[KVBENCH_FAMILY_KEYS]; /* NULL at the end */
        /* Of all layers and of so many tokens, for values of `precision` bytes: a whole number. */
        double (*bytes)(const struct kvbench_model *model, double precision, double tokens);
        enum kvbench_rounding rounding;
        unsigned outer; /* 2: keys and values apart; 1: one latent vector */
};

/* By the name of a model; by `family:`. NULL: none. */
const struct kvbench_family *family_of_model(const char *model_name);
const struct kvbench_family *family_by_name(const char *name);
/* "llama3.1, deepseek_r1, ..." */
const char *family_names(void);

/* NULL: no family has such a key. */
const struct kvbench_key *family_key(const char *name);
static inline uint64_t *family_value(struct kvbench_model *model, const struct kvbench_key *key)
{
        return (uint64_t *)((char *)model + key->offset);
}
