/* SPDX-License-Identifier: Apache-2.0 */
/* From a model and a deployment to the size and number of its I/Os. Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "deployment.h"
#include "model.h"

struct kvbench_figures {
        uint64_t bytes_per_token;           /* of all layers */
        uint64_t bytes_per_token_and_layer; /* whole bytes */
        uint64_t bytes_per_request;         /* isl tokens */
        uint64_t io_size;                   /* one page on one GPU */
        uint64_t io_size_one_token;
        uint64_t batch_size;        /* I/Os of all ranks and requests */
        uint64_t total_buffer_size; /* batch_size * io_size */
};

enum { FORMULA_WHY_BYTES = 160 };

/* 0; -EINVAL: it comes to nothing, or to too much, or a precision is unknown: `ret_why` says so,
 * with the key. */
int formula_compute(const struct kvbench_model *model, const struct kvbench_deployment *deployment,
                    struct kvbench_figures *ret, char ret_why[static FORMULA_WHY_BYTES]);
