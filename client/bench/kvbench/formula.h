/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the size and number of I/Os from a model and a deployment. Pure functions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "deployment.h"
#include "model.h"

struct kvbench_figures {
        uint64_t bytes_per_token;           /* for all layers */
        uint64_t bytes_per_token_and_layer; /* bytes_per_token / num_layers, rounded down */
        uint64_t bytes_per_request;         /* for isl tokens */
        uint64_t io_size;                   /* bytes of one page on one GPU */
        uint64_t io_size_one_token;
        uint64_t batch_size;        /* number of I/Os of all ranks and requests */
        uint64_t total_buffer_size; /* batch_size * io_size */
};

enum { FORMULA_WHY_BYTES = 160 };

/* Computes the figures. Returns 0, or -EINVAL if a result is zero or too large, or a precision is
 * unknown, with a message in `ret_why`. */
int formula_compute(const struct kvbench_model *model, const struct kvbench_deployment *deployment,
                    struct kvbench_figures *ret, char ret_why[static FORMULA_WHY_BYTES]);
