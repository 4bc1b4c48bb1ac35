/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the bytes of KV cache for each family of models. The products use doubles, in the
 * same order as KVBench, so that the sizes are equal to the last bit. */
#include "family.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "checked.h"

/* Returns the bytes of `tokens` tokens with multi-head latent attention: one vector per token and
 * layer, for keys and values together. */
static double latent_bytes(const struct kvbench_model *m, double precision, double tokens)
{
        double values = (double)m->rope_mla_dimension + (double)m->mla_latent_vector_dimension;

        return trunc(values * precision * (double)m->num_layers) * tokens;
}

/* Returns the bytes of `tokens` tokens with grouped-query attention, with the number of KV heads
 * computed by division. */
static double grouped_bytes(const struct kvbench_model *m, double precision, double tokens)
{
        double kv_heads = (double)m->num_query_heads_with_mha / (double)m->gqa_num_queries_in_group;

        return trunc((double)m->num_layers * kv_heads * (double)m->query_head_dimension * 2 *
                     precision * tokens);
}

/* Returns the bytes of `tokens` tokens with a key and a value for each layer and KV head. */
static double heads_bytes(const struct kvbench_model *m, double precision, double tokens)
{
        return trunc((double)m->num_layers * (double)m->num_kv_heads *
                     (double)m->query_head_dimension * 2 * precision * tokens);
}

static double generic_bytes(const struct kvbench_model *m, double precision, double tokens)
{
        return trunc((double)m->num_layers * (double)m->num_kv_heads * (double)m->head_dimension *
                     2 * precision * tokens);
}

static double generic_latent_bytes(const struct kvbench_model *m, double precision, double tokens)
{
        double values = (double)m->rope_dimension + (double)m->latent_dimension;

        return trunc(values * precision * (double)m->num_layers) * tokens;
}

/* All families. A model belongs to the first one whose `part` its name contains. */
static const struct kvbench_family families[] = {
        {
                .name = "llama3.1",
                .part = "llama3.1",
                .keys = { "num_layers", "num_query_heads_with_mha", "query_head_dimension",
                          "gqa_num_queries_in_group", "num_model_params" },
                .bytes = grouped_bytes,
                .rounding = KVBENCH_ROUND_EARLY,
                .outer = 2,
        },
        {
                .name = "deepseek_r1",
                .part = "deepseek_r1",
                .keys = { "num_layers", "num_query_heads", "query_head_dimension",
                          "embedding_dimension", "rope_mla_dimension",
                          "mla_latent_vector_dimension", "num_model_params" },
                .bytes = latent_bytes,
                .rounding = KVBENCH_ROUND_LATE,
                .outer = 1,
        },
        {
                .name = "gpt_oss",
                .part = "gpt_oss",
                .keys = { "num_layers", "num_query_heads", "num_kv_heads", "query_head_dimension",
                          "num_model_params" },
                .bytes = heads_bytes,
                .rounding = KVBENCH_ROUND_EARLY,
                .outer = 2,
        },
        {
                .name = "qwen3",
                .part = "qwen3",
                .keys = { "num_layers", "num_query_heads", "num_kv_heads", "query_head_dimension",
                          "num_model_params" },
                .bytes = heads_bytes,
                .rounding = KVBENCH_ROUND_EARLY,
                .outer = 2,
        },
        {
                .name = "generic",
                .keys = { "num_layers", "num_kv_heads", "head_dimension" },
                .optional = { "num_query_heads", "embedding_dimension", "num_model_params" },
                .bytes = generic_bytes,
                .rounding = KVBENCH_ROUND_EARLY,
                .outer = 2,
        },
        {
                .name = "generic_latent",
                .keys = { "num_layers", "latent_dimension" },
                .optional = { "rope_dimension", "num_query_heads", "embedding_dimension",
                              "num_model_params" },
                .bytes = generic_latent_bytes,
                .rounding = KVBENCH_ROUND_LATE,
                .outer = 1,
        },
};

static const struct kvbench_key keys[] = {
#define KEY(name)                                                                                  \
        {                                                                                          \
#name, offsetof(struct kvbench_model, name)                                        \
        }
        KEY(num_layers),
        KEY(num_query_heads),
        KEY(query_head_dimension),
        KEY(embedding_dimension),
        KEY(rope_mla_dimension),
        KEY(mla_latent_vector_dimension),
        KEY(num_query_heads_with_mha),
        KEY(gqa_num_queries_in_group),
        KEY(num_kv_heads),
        KEY(head_dimension),
        KEY(latent_dimension),
        KEY(rope_dimension),
        KEY(num_model_params),
#undef KEY
};

/* Returns whether the lower-case `part` occurs in `name`, ignoring case. */
static bool contains(const char *name, const char *part)
{
        for (; *name; name++) {
                size_t n = 0;

                while (part[n] != '\0' && tolower((unsigned char)name[n]) == part[n])
                        n++;
                if (part[n] == '\0')
                        return true;
        }
        return false;
}

const struct kvbench_family *family_of_model(const char *model_name)
{
        for (size_t i = 0; i < ARRAY_SIZE(families); i++)
                if (families[i].part && contains(model_name, families[i].part))
                        return &families[i];
        return NULL;
}

const struct kvbench_family *family_by_name(const char *name)
{
        for (size_t i = 0; i < ARRAY_SIZE(families); i++)
                if (strcmp(families[i].name, name) == 0)
                        return &families[i];
        return NULL;
}

const char *family_names(void)
{
        static char names[256];

        if (names[0] == '\0')
                for (size_t i = 0; i < ARRAY_SIZE(families); i++) {
                        strcat(names, i > 0 ? ", " : "");
                        strcat(names, families[i].name);
                }
        return names;
}

const struct kvbench_key *family_key(const char *name)
{
        for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
                if (strcmp(keys[i].name, name) == 0)
                        return &keys[i];
        return NULL;
}
