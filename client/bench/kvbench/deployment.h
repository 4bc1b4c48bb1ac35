/* SPDX-License-Identifier: Apache-2.0 */
/* A deployment: how a model is distributed over GPUs, the requests it serves, and the units in
 * which its KV cache is stored. Read from YAML with the mappings strategy, runtime and system, all
 * optional. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KVBENCH_WORD_BYTES = 64 };

/* A number that may have a fraction, with its text as written. */
struct kvbench_number {
        double value;
        char text[KVBENCH_WORD_BYTES];
};

struct kvbench_deployment {
        struct {
                uint64_t tp_size, pp_size;
                char model_quant_mode[KVBENCH_WORD_BYTES]; /* quantization of the weights, which
                                                              no formula uses */
                char kvcache_quant_mode[KVBENCH_WORD_BYTES];
        } strategy;
        struct {
                struct kvbench_number num_requests, isl, osl;
        } runtime;
        /* A text is empty if the file lacks its key, or has null. Without the key, `backend` is
         * "SGLANG". */
        struct {
                char backend[KVBENCH_WORD_BYTES]; /* the engine: SGLANG or VLLM */
                char hardware[KVBENCH_WORD_BYTES];
                uint64_t page_size;
                char access_pattern[KVBENCH_WORD_BYTES]; /* "block" selects block access; any
                                                            other text does not */
                char source[KVBENCH_WORD_BYTES];
                char destination[KVBENCH_WORD_BYTES];
        } system;
};

/* Values of the command line that override the file; 0 and NULL: not given. */
struct kvbench_overrides {
        uint64_t pp, tp, isl, osl, num_requests, page_size;
        const char *access_pattern; /* fewer than KVBENCH_WORD_BYTES bytes */
};

/* Reads a file. Returns 0; -EINVAL after reporting file, line, column and key on stderr; another
 * -errno, also reported. Unknown keys cause warnings on stderr. */
int deployment_load(struct kvbench_deployment *ret, const char *path);
/* Parses a text as deployment_load() does; `path` is for messages. */
int deployment_parse(struct kvbench_deployment *ret, const char *path, const void *text,
                     size_t bytes);
void deployment_override(struct kvbench_deployment *d, const struct kvbench_overrides *overrides);
