/* SPDX-License-Identifier: Apache-2.0 */
/* Uses IEEE doubles in the order of KVBench, so that the numbers are equal to the last bit. All
 * intermediate whole numbers are at most 2^53, up to which doubles represent every integer; larger
 * ones are refused with a message. */
#include "formula.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checked.h"
#include "family.h"

static const double most = 9007199254740992.0; /* 2^53 */

static int precision_bytes(const char *mode, double *ret)
{
        static const struct {
                const char *mode;
                double bytes;
        } modes[] = { { "fp8", 1 }, { "int8", 1 }, { "fp16", 2 }, { "bfloat16", 2 } };

        for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
                if (strcmp(modes[i].mode, mode) == 0) {
                        *ret = modes[i].bytes;
                        return 0;
                }
        return -EINVAL;
}

/* Returns the bytes of one page on one GPU. */
static double io_bytes(const struct kvbench_model *m, const struct kvbench_deployment *d,
                       double bytes_per_layer, uint64_t page)
{
        bool block = strcmp(d->system.access_pattern, "block") == 0;
        double layers = (double)m->num_layers / (double)d->strategy.pp_size;
        double bytes = bytes_per_layer / (double)d->strategy.tp_size;

        if (m->family->rounding == KVBENCH_ROUND_LATE) {
                if (block)
                        bytes *= ceil(layers);
                return trunc(bytes * (double)page);
        }
        bytes = trunc(bytes);
        if (block)
                bytes = trunc(bytes * layers);
        return trunc(bytes * (double)page);
}

static int too_large(const char *what, char why[static FORMULA_WHY_BYTES])
{
        snprintf(why, FORMULA_WHY_BYTES, "%s comes to more than 2^53 bytes", what);
        return -EINVAL;
}

int formula_compute(const struct kvbench_model *m, const struct kvbench_deployment *d,
                    struct kvbench_figures *ret, char ret_why[static FORMULA_WHY_BYTES])
{
        double precision, per_token, per_layer, per_request, io, one, batch;
        struct kvbench_figures f;

        if (precision_bytes(d->strategy.kvcache_quant_mode, &precision) < 0) {
                snprintf(
                        ret_why, FORMULA_WHY_BYTES,
                        "strategy.kvcache_quant_mode: '%s' is not one of fp8, int8, fp16, bfloat16",
                        d->strategy.kvcache_quant_mode);
                return -EINVAL;
        }
        per_token = m->family->bytes(m, precision, 1);
        per_request = m->family->bytes(m, precision, trunc(d->runtime.isl.value));
        if (!(per_token <= most))
                return too_large("the KV cache of a token", ret_why);
        if (!(per_request <= most))
                return too_large("the KV cache of runtime.isl tokens", ret_why);
        per_layer = trunc(per_token / (double)m->num_layers);
        if (per_layer < 1) {
                snprintf(ret_why, FORMULA_WHY_BYTES,
                         "the KV cache of a token and layer comes to no whole byte");
                return -EINVAL;
        }

        io = io_bytes(m, d, per_layer, d->system.page_size);
        one = io_bytes(m, d, per_layer, 1);
        if (!(io <= most))
                return too_large("an I/O of system.page_size tokens", ret_why);
        if (io < 1) {
                snprintf(ret_why, FORMULA_WHY_BYTES,
                         "an I/O comes to 0 bytes: tp_size %llu or pp_size %llu is too large for "
                         "this model",
                         (unsigned long long)d->strategy.tp_size,
                         (unsigned long long)d->strategy.pp_size);
                return -EINVAL;
        }
        batch = ceil(per_request / io * d->runtime.num_requests.value);
        if (!(batch <= most)) {
                snprintf(ret_why, FORMULA_WHY_BYTES, "the batch comes to more than 2^53 I/Os");
                return -EINVAL;
        }

        f = (struct kvbench_figures){
                .bytes_per_token = (uint64_t)per_token,
                .bytes_per_token_and_layer = (uint64_t)per_layer,
                .bytes_per_request = (uint64_t)per_request,
                .io_size = (uint64_t)io,
                .io_size_one_token = (uint64_t)one,
                .batch_size = (uint64_t)batch,
        };
        if (!checked_mul(f.batch_size, f.io_size, &f.total_buffer_size) ||
            f.total_buffer_size > INT64_MAX) {
                snprintf(ret_why, FORMULA_WHY_BYTES, "the batch comes to more than 2^63 bytes");
                return -EINVAL;
        }
        *ret = f;
        return 0;
}
