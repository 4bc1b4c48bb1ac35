/* SPDX-License-Identifier: Apache-2.0 */
/* Reads any bytes as a model, as a deployment, and, if a line "%%%" separates them, as both.
 * Accepted files yield numbers that agree with each other, or a reason. A refused file causes one
 * message, which is safe for a terminal. */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cleanup.h"
#include "common.h"
#include "kvbench/deployment.h"
#include "kvbench/formula.h"
#include "kvbench/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

DEFINE_CLEANUP(struct kvbench_model *, model_free);

static unsigned errors;

/* Replaces the function of common.c. A warning has the status EXIT_OK. */
int complain(int status, const char *format, ...)
{
        char text[2048];
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(text, sizeof(text), format, arguments);
        va_end(arguments);
        assert(text[0] != '\0');
        for (const unsigned char *p = (unsigned char *)text; *p; p++) {
                assert(*p >= 0x20 && *p != 0x7f);
                assert(!(p[0] == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f));
        }
        errors += status != EXIT_OK;
        return status;
}

int complain_memory(void)
{
        return complain(EXIT_LOCAL, "out of memory");
}

static struct kvbench_model *read_model(const uint8_t *data, size_t size)
{
        struct kvbench_model *model = NULL;
        int r;

        errors = 0;
        r = model_parse(&model, "model.yaml", data, size);
        assert(r < 0 ? errors == 1 && !model : errors == 0 && model && model->num_layers > 0);
        return model;
}

static bool read_deployment(struct kvbench_deployment *ret, const uint8_t *data, size_t size)
{
        int r;

        errors = 0;
        r = deployment_parse(ret, "deployment.yaml", data, size);
        assert(r < 0 ? errors == 1 : errors == 0);
        return r == 0;
}

static void compute(const struct kvbench_model *model, const struct kvbench_deployment *deployment)
{
        char why[FORMULA_WHY_BYTES] = "";
        struct kvbench_figures f;

        if (formula_compute(model, deployment, &f, why) < 0) {
                assert(why[0] != '\0');
                return;
        }
        assert(f.io_size > 0 && f.batch_size > 0);
        assert(f.total_buffer_size / f.io_size == f.batch_size);
        assert(f.bytes_per_token_and_layer * model->num_layers <= f.bytes_per_token);
        assert(f.io_size_one_token <= f.io_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static const char known[] = "model_name: qwen3\nnum_layers: 36\nnum_query_heads: 32\n"
                                    "num_kv_heads: 8\nquery_head_dimension: 128\n"
                                    "num_model_params: 8200000000\n";
        static const char usual[] = "system:\n  access_pattern: block\n  page_size: 16\n";
        _cleanup_(model_freep) struct kvbench_model *model = NULL, *qwen3 = NULL;
        const uint8_t *between = memmem(data, size, "\n%%%\n", 5);
        const uint8_t *second = between ? between + 5 : data;
        struct kvbench_deployment deployment, other;

        qwen3 = read_model((const uint8_t *)known, strlen(known));
        assert(qwen3 && read_deployment(&other, (const uint8_t *)usual, strlen(usual)));

        model = read_model(data, between ? (size_t)(between - data) : size);
        if (model)
                compute(model, &other);
        if (read_deployment(&deployment, second, size - (size_t)(second - data))) {
                compute(qwen3, &deployment);
                if (model)
                        compute(model, &deployment);
        }
        return 0;
}
