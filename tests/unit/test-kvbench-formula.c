/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes of a KV cache: families of models, deployments and their I/Os, against figures that
 * were computed by hand. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"
#include "kvbench/formula.h"
#include "kvbench/gpu-shape.h"
#include "kvbench/parameters.h"

/* Returns a model with 8 KV heads of 128 values, for keys and for values: 2,048 values a token and
 * layer. */
static struct kvbench_model llama(void)
{
        return (struct kvbench_model){ .name = (char *)"LLAMA3.1_8B",
                                       .family = family_by_name("llama3.1"),
                                       .num_layers = 32,
                                       .num_query_heads_with_mha = 32,
                                       .query_head_dimension = 128,
                                       .gqa_num_queries_in_group = 4 };
}

/* Returns a model with 576 values a token and layer. */
static struct kvbench_model deepseek(void)
{
        return (struct kvbench_model){ .name = (char *)"DEEPSEEK_R1",
                                       .family = family_by_name("deepseek_r1"),
                                       .num_layers = 61,
                                       .rope_mla_dimension = 64,
                                       .mla_latent_vector_dimension = 512 };
}

static struct kvbench_deployment plain(void)
{
        struct kvbench_deployment d = {
                .strategy = { .tp_size = 1, .pp_size = 1, .kvcache_quant_mode = "fp8" },
                .runtime = { .num_requests = { 10, "10" }, .isl = { 1000, "1000" } },
                .system = { .page_size = 16, .access_pattern = "block" },
        };

        return d;
}

static struct kvbench_figures compute(const struct kvbench_model *m,
                                      const struct kvbench_deployment *d)
{
        struct kvbench_figures f;
        char why[FORMULA_WHY_BYTES] = "";

        if (formula_compute(m, d, &f, why) != 0)
                fail_msg("%s", why);
        return f;
}

static void grouped_heads_keep_a_key_and_a_value_each(void **state)
{
        struct kvbench_model m = llama();
        struct kvbench_deployment d = plain();
        struct kvbench_figures f = compute(&m, &d);

        assert_int_equal(f.bytes_per_token, 32 * 2048);
        assert_int_equal(f.bytes_per_token_and_layer, 2048);
        assert_int_equal(f.bytes_per_request, 1000 * 32 * 2048);
        assert_int_equal(f.io_size, 16 * 32 * 2048);
        assert_int_equal(f.io_size_one_token, 32 * 2048);
        assert_int_equal(f.batch_size, 625); /* 62.5 pages of 10 requests */
        assert_int_equal(f.total_buffer_size, 625 * 16 * 32 * 2048);
}

static void latent_attention_keeps_one_vector(void **state)
{
        struct kvbench_model m = deepseek();
        struct kvbench_deployment d = plain();
        struct kvbench_figures f;

        d.strategy.pp_size = 8; /* 7.625 layers a stage: 8 of them */
        f = compute(&m, &d);
        assert_int_equal(f.bytes_per_token, 35136);
        assert_int_equal(f.bytes_per_token_and_layer, 576);
        assert_int_equal(f.io_size, 576 * 8 * 16);
        assert_int_equal(f.io_size_one_token, 576 * 8);
        assert_int_equal(f.batch_size, 4766); /* 4,765.6 */
        assert_int_equal(f.total_buffer_size, 351387648);
}

static void all_families_have_their_formula(void **state)
{
        static const struct {
                const char *family;
                struct kvbench_model model;
                uint64_t per_token;
        } cases[] = {
                { "gpt_oss",
                  { .num_layers = 24, .num_kv_heads = 8, .query_head_dimension = 64 },
                  24 * 8 * 64 * 2 },
                { "qwen3",
                  { .num_layers = 36, .num_kv_heads = 8, .query_head_dimension = 128 },
                  73728 },
                { "generic",
                  { .num_layers = 5, .num_kv_heads = 3, .head_dimension = 7 },
                  5 * 3 * 7 * 2 },
                { "generic_latent", { .num_layers = 5, .latent_dimension = 11 }, 55 },
                { "generic_latent",
                  { .num_layers = 5, .latent_dimension = 11, .rope_dimension = 2 },
                  65 },
                /* 30 query heads in groups of 4 are 7.5 KV heads. */
                { "llama3.1",
                  { .num_layers = 5,
                    .num_query_heads_with_mha = 30,
                    .gqa_num_queries_in_group = 4,
                    .query_head_dimension = 128 },
                  5 * 15 * 128 },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                struct kvbench_model m = cases[i].model;
                struct kvbench_deployment d = plain();

                m.family = family_by_name(cases[i].family);
                assert_non_null(m.family);
                assert_int_equal(compute(&m, &d).bytes_per_token, cases[i].per_token);
                strcpy(d.strategy.kvcache_quant_mode, "bfloat16");
                assert_int_equal(compute(&m, &d).bytes_per_token, 2 * cases[i].per_token);
        }
}

static void only_the_precision_of_the_kv_cache_counts(void **state)
{
        static const struct {
                const char *mode;
                uint64_t bytes;
        } cases[] = { { "fp8", 1 }, { "int8", 1 }, { "fp16", 2 }, { "bfloat16", 2 } };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                struct kvbench_model m = llama();
                struct kvbench_deployment d = plain();

                strcpy(d.strategy.kvcache_quant_mode, cases[i].mode);
                strcpy(d.strategy.model_quant_mode, "fp4");
                assert_int_equal(compute(&m, &d).bytes_per_token_and_layer, 2048 * cases[i].bytes);
        }
}

static void families_round_where_kvbench_does(void **state)
{
        struct kvbench_model early = llama(), late = deepseek();
        struct kvbench_deployment d = plain();

        d.strategy.tp_size = 3;
        d.strategy.pp_size = 7;
        d.system.page_size = 5;
        /* 2048 / 3 is 682; 32 / 7 of that 3,117. */
        assert_int_equal(compute(&early, &d).io_size, 3117 * 5);
        assert_int_equal(compute(&early, &d).io_size_one_token, 3117);
        /* 576 / 3 is 192; 61 / 7 layers are 9. */
        assert_int_equal(compute(&late, &d).io_size, 192 * 9 * 5);
        d.strategy.tp_size = 7;
        assert_int_equal(compute(&late, &d).io_size, 576 * 9 * 5 / 7);
}

static void layer_by_layer_an_io_has_one_layer(void **state)
{
        struct kvbench_model early = llama(), late = deepseek();
        struct kvbench_deployment d = plain();

        for (unsigned i = 0; i < 3; i++) { /* exactly "block" is block */
                strcpy(d.system.access_pattern, i == 0 ? "layer" : i == 1 ? "Block" : "");
                d.strategy.pp_size = 8;
                assert_int_equal(compute(&early, &d).io_size, 2048 * 16);
                assert_int_equal(compute(&late, &d).io_size, 576 * 16);
        }
}

static void the_documented_results_come_out(void **state)
{
        static const struct {
                const char *pattern;
                uint64_t pp;
                double requests;
                uint64_t batch, block;
        } cases[] = { { "block", 16, 10, 5958, 589824 },
                      { "layer", 16, 10, 23829, 147456 },
                      { "block", 32, 100, 119141, 294912 },
                      { "block", 8, 1, 298, 1179648 } };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                struct kvbench_model m = deepseek();
                struct kvbench_deployment d = plain();
                struct kvbench_figures f;

                strcpy(d.system.access_pattern, cases[i].pattern);
                d.strategy.pp_size = cases[i].pp;
                d.system.page_size = 256;
                d.runtime.isl.value = 10000;
                d.runtime.num_requests.value = cases[i].requests;
                f = compute(&m, &d);
                assert_int_equal(f.batch_size, cases[i].batch);
                assert_int_equal(f.io_size, cases[i].block);
        }
}

static void tokens_are_whole_and_requests_are_not(void **state)
{
        struct kvbench_model m = deepseek();
        struct kvbench_deployment d = plain();

        strcpy(d.system.access_pattern, "");
        d.runtime.isl.value = 1000.75;
        d.runtime.num_requests.value = 2.5;
        assert_int_equal(compute(&m, &d).bytes_per_request, 35136000);
        assert_int_equal(compute(&m, &d).batch_size, 9532); /* 9,531.25 */
}

static void what_comes_to_nothing_or_too_much_is_refused(void **state)
{
        static const struct {
                uint64_t tp, page, layers, latent;
                double isl, requests;
                const char *mode, *why;
        } cases[] = {
                { 1, 16, 61, 576, 1000, 10, "FP8",
                  "'FP8' is not one of fp8, int8, fp16, bfloat16" },
                { 1, 16, 61, 576, 1000, 10, "", "strategy.kvcache_quant_mode: ''" },
                { 1, 1, 1 << 30, UINT64_C(1) << 40, 1, 1, "fp8",
                  "the KV cache of a token comes to more than 2^53 bytes" },
                { 1, 1, 61, 576, 9007199254740992.0, 1, "fp8",
                  "the KV cache of runtime.isl tokens comes to more than 2^53 bytes" },
                { 1, UINT64_C(1) << 53, 61, 576, 1, 1, "fp8",
                  "an I/O of system.page_size tokens comes to more than 2^53 bytes" },
                { 100000, 16, 61, 576, 1000, 10, "fp8",
                  "an I/O comes to 0 bytes: tp_size 100000 or pp_size 1 is too large" },
                { 576, 1, 61, 576, 1e9, 9007199254740992.0, "fp8",
                  "the batch comes to more than 2^53 I/Os" },
                { 1, 1 << 20, 61, 576, 1e9, 1e11, "fp8",
                  "the batch comes to more than 2^63 bytes" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                struct kvbench_model m = { .family = family_by_name("generic_latent"),
                                           .num_layers = cases[i].layers,
                                           .latent_dimension = cases[i].latent };
                struct kvbench_deployment d = plain();
                struct kvbench_figures f = { .io_size = 77 };
                char why[FORMULA_WHY_BYTES] = "";

                strcpy(d.strategy.kvcache_quant_mode, cases[i].mode);
                strcpy(d.system.access_pattern, "layer");
                d.strategy.tp_size = cases[i].tp;
                d.system.page_size = cases[i].page;
                d.runtime.isl.value = cases[i].isl;
                d.runtime.num_requests.value = cases[i].requests;
                assert_int_equal(formula_compute(&m, &d, &f, why), -EINVAL);
                if (!strstr(why, cases[i].why))
                        fail_msg("case %zu: %s", i, why);
                assert_int_equal(f.io_size, 77);
        }
}

static void a_layer_of_less_than_a_byte_is_refused(void **state)
{
        struct kvbench_model m = llama();
        struct kvbench_deployment d = plain();
        struct kvbench_figures f;
        char why[FORMULA_WHY_BYTES] = "";

        m.num_query_heads_with_mha = 1;
        m.query_head_dimension = 1;
        m.gqa_num_queries_in_group = 100;
        assert_int_equal(formula_compute(&m, &d, &f, why), -EINVAL);
        assert_string_equal(why, "the KV cache of a token and layer comes to no whole byte");
}

static void a_family_is_found_by_a_part_of_the_name(void **state)
{
        static const struct {
                const char *name, *family;
        } cases[] = {
                { "LLAMA3.1_8B", "llama3.1" },
                { "my-DeepSeek_R1-tuned", "deepseek_r1" },
                { "My_GPT_OSS", "gpt_oss" },
                { "qwen3-LLAMA3.1-deepseek_r1", "llama3.1" }, /* the first that is known */
                { "QWEN3", "qwen3" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
                assert_string_equal(family_of_model(cases[i].name)->name, cases[i].family);
        assert_null(family_of_model("MISTRAL_7B"));
        assert_null(family_of_model("generic"));
        assert_null(family_of_model(""));
        assert_null(family_of_model("qwen"));
        assert_string_equal(family_by_name("generic")->name, "generic");
        assert_null(family_by_name("Generic"));
        for (unsigned i = 0; i < 2; i++)
                assert_string_equal(family_names(), "llama3.1, deepseek_r1, gpt_oss, qwen3, "
                                                    "generic, generic_latent");
}

static void keys_are_places_in_a_model(void **state)
{
        struct kvbench_model m = { 0 };

        *family_value(&m, family_key("num_layers")) = 3;
        *family_value(&m, family_key("rope_dimension")) = 5;
        assert_int_equal(m.num_layers, 3);
        assert_int_equal(m.rope_dimension, 5);
        assert_null(family_key("Num_layers"));
        assert_null(family_key(""));
}

static void overrides_replace_what_is_given_alone(void **state)
{
        struct kvbench_deployment d = plain();

        deployment_override(&d, &(struct kvbench_overrides){ 0 });
        assert_int_equal(d.strategy.tp_size, 1);
        assert_string_equal(d.runtime.isl.text, "1000");
        assert_string_equal(d.system.access_pattern, "block");
        deployment_override(&d, &(struct kvbench_overrides){ .pp = 2,
                                                             .tp = 3,
                                                             .isl = 4,
                                                             .osl = 5,
                                                             .num_requests = 6,
                                                             .page_size = 7,
                                                             .access_pattern = "layer" });
        assert_int_equal(d.strategy.pp_size, 2);
        assert_int_equal(d.strategy.tp_size, 3);
        assert_true(d.runtime.isl.value == 4);
        assert_string_equal(d.runtime.isl.text, "4");
        assert_string_equal(d.runtime.osl.text, "5");
        assert_true(d.runtime.num_requests.value == 6);
        assert_int_equal(d.system.page_size, 7);
        assert_string_equal(d.system.access_pattern, "layer");
}

static void parameters_have_the_defaults_of_nixlbench(void **state)
{
        struct kvbench_parameters p;
        char buffer[KVBENCH_NUMBER_BYTES];

        parameters_init(&p);
        for (int i = 0; i < KVBENCH_N_PARAMETERS; i++) {
                assert_true(parameters_is_default(&p, (enum kvbench_parameter)i));
                assert_false(parameters_given(&p, (enum kvbench_parameter)i));
        }
        assert_string_equal(parameters_print(&p, KVBENCH_TOTAL_BUFFER_SIZE, buffer), "8589934592");
        assert_string_equal(parameters_print(&p, KVBENCH_NUM_ITER, buffer), "1000");
        assert_string_equal(parameters_print(&p, KVBENCH_OP_TYPE, buffer), "WRITE");
        assert_string_equal(parameters_print(&p, KVBENCH_ENABLE_VMM, buffer), "False");
        p.value[KVBENCH_ENABLE_VMM].number = 1;
        p.value[KVBENCH_OP_TYPE].text = "READ";
        p.value[KVBENCH_NUM_ITER].number = UINT64_MAX;
        assert_string_equal(parameters_print(&p, KVBENCH_ENABLE_VMM, buffer), "True");
        assert_string_equal(parameters_print(&p, KVBENCH_NUM_ITER, buffer), "18446744073709551615");
        assert_false(parameters_is_default(&p, KVBENCH_ENABLE_VMM));
        assert_false(parameters_is_default(&p, KVBENCH_OP_TYPE));
}

static void layouts_have_names(void **state)
{
        static const char *const names[] = { "contiguous", "block-first", "outer-first" };

        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                enum kvcache_layout_kind kind;

                assert_int_equal(gpu_shape_kind_parse(names[i], &kind), 0);
                assert_string_equal(gpu_shape_kind_name(kind), names[i]);
        }
        assert_int_equal(gpu_shape_kind_parse("diagonal", &(enum kvcache_layout_kind){ 0 }),
                         -EINVAL);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(grouped_heads_keep_a_key_and_a_value_each),
                cmocka_unit_test(latent_attention_keeps_one_vector),
                cmocka_unit_test(all_families_have_their_formula),
                cmocka_unit_test(only_the_precision_of_the_kv_cache_counts),
                cmocka_unit_test(families_round_where_kvbench_does),
                cmocka_unit_test(layer_by_layer_an_io_has_one_layer),
                cmocka_unit_test(the_documented_results_come_out),
                cmocka_unit_test(tokens_are_whole_and_requests_are_not),
                cmocka_unit_test(what_comes_to_nothing_or_too_much_is_refused),
                cmocka_unit_test(a_layer_of_less_than_a_byte_is_refused),
                cmocka_unit_test(a_family_is_found_by_a_part_of_the_name),
                cmocka_unit_test(keys_are_places_in_a_model),
                cmocka_unit_test(overrides_replace_what_is_given_alone),
                cmocka_unit_test(parameters_have_the_defaults_of_nixlbench),
                cmocka_unit_test(layouts_have_names),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
