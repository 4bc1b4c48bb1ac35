/* SPDX-License-Identifier: Apache-2.0 */
/* A deployment: how a model is spread over GPUs, what is asked of it, and in what units its KV
 * cache is stored. Read from YAML with the mappings strategy, runtime and system, all optional. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVBENCH_WORD_BYTES = 64 };

/* A number that may have a fraction, with the digits that it was written in. */
struct kvbench_number {
        double value;
        char text[KVBENCH_WORD_BYTES];
};

struct kvbench_deployment {
        struct {
                uint64_t tp_size, pp_size;
                char model_quant_mode[KVBENCH_WORD_BYTES]; /* of the weights: in no formula */
                char kvcache_quant_mode[KVBENCH_WORD_BYTES];
        } strategy;
        struct {
                struct kvbench_number num_requests, isl, osl;
        } runtime;
        /* "": not said */
        struct {
                char backend[KVBENCH_WORD_BYTES]; /* the engine: SGLANG, VLLM */
                char hardware[KVBENCH_WORD_BYTES];
                uint64_t page_size;
                char access_pattern[KVBENCH_WORD_BYTES]; /* exactly "block" is block */
                char source[KVBENCH_WORD_BYTES];
                char destination[KVBENCH_WORD_BYTES];
        } system;
};

/* What the command line says instead of the file; 0 and NULL: nothing. */
struct kvbench_overrides {
        uint64_t pp, tp, isl, osl, num_requests, page_size;
        const char *access_pattern; /* shorter than KVBENCH_WORD_BYTES */
};

/* 0; -EINVAL: said so on stderr, with file, line, column and key; -errno: said so too. Unknown keys
 * are warnings on stderr. */
int deployment_load(struct kvbench_deployment *ret, const char *path);
/* The same from memory: `path` is for messages. */
int deployment_parse(struct kvbench_deployment *ret, const char *path, const void *text,
                     size_t bytes);
void deployment_override(struct kvbench_deployment *d, const struct kvbench_overrides *overrides);
