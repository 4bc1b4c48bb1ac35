/* SPDX-License-Identifier: Apache-2.0 */
/* Model and deployment files: valid contents, and messages that name the file, line, column, key
 * and value of an error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "bench-rig.h"
#include "checked.h"
#include "kvbench/yaml-file.h"

static const char deepseek[] = "model_name: DEEPSEEK_R1\n"
                               "num_layers: 61\n"
                               "num_query_heads: 128\n"
                               "query_head_dimension: 128\n"
                               "embedding_dimension: 7168\n"
                               "rope_mla_dimension: 64\n"
                               "mla_latent_vector_dimension: 512\n"
                               "num_model_params: 671000000000\n";
static const char per_layer[] = "system:\n  page_size: 16\n  access_pattern: layer\n";

static char *text_of(const char *begin, const char *end)
{
        static char text[1 << 19];

        assert_true(snprintf(text, sizeof(text), "%s%s", begin, end) < (int)sizeof(text));
        return text;
}

/* Returns `n` bytes of one letter, valid until the next call. */
static const char *letters(char letter, size_t n)
{
        static char text[400000];

        assert_true(n < sizeof(text));
        memset(text, letter, n);
        text[n] = '\0';
        return text;
}

static int with_model(const char *text)
{
        return bench(&command_iosize, "--model", bench_file("model.yaml", text), "--model_config",
                     bench_file("layer.yaml", per_layer));
}

static int with_deployment(const char *text)
{
        return bench(&command_kvcache, "--model", bench_file("model.yaml", deepseek),
                     "--model_config", bench_file("config.yaml", text));
}

/* Checks that the file was refused with one line, which contains all of `part`. */
static void assert_refused(int status, const char *part)
{
        assert_int_equal(status, 1);
        assert_string_equal(bench_out(), "");
        assert_err(part);
        assert_ptr_equal(strchr(bench_err(), '\n'), strrchr(bench_err(), '\n'));
}

static void models_may_be_written_in_several_ways(void **state)
{
        static const char *const variants[] = {
                "model_name: my-DeepSeek_R1-tuned\nnum_layers: 61\n",
                "model: DEEPSEEK_R1\nnum_layers: 61\n",
                "model_name: 'DEEPSEEK_R1'\nnum_layers: 61\n",
                "model_name: DEEPSEEK_R1\nnum_layers: \"61\"\n",
                "model_name: DEEPSEEK_R1\nnum_layers: 6_1\n",
                "model_name: DEEPSEEK_R1\nnum_layers: +61\n",
                "model_name: x\nfamily: deepseek_r1\nnum_layers: 61\n",
                "model_name: DEEPSEEK_R1\nfamily:\nmodel: ~\nnum_layers: 61\n",
        };
        const char *rest = strstr(deepseek, "num_query_heads");

        for (size_t i = 0; i < ARRAY_SIZE(variants); i++) {
                assert_int_equal(with_model(text_of(variants[i], rest)), 0);
                assert_string_equal(bench_out(), "IO Size per GPU: 576\n");
                assert_string_equal(bench_err(), "");
        }
}

static void generic_models_need_no_known_name(void **state)
{
        assert_int_equal(with_model("model_name: anything\nfamily: generic\nnum_layers: 2\n"
                                    "num_kv_heads: 3\nhead_dimension: 5\nembedding_dimension: 1\n"),
                         0);
        assert_string_equal(bench_out(), "IO Size per GPU: 30\n");
        assert_int_equal(with_model("model_name: anything\nfamily: generic_latent\n"
                                    "num_layers: 2\nlatent_dimension: 7\nrope_dimension: 4\n"),
                         0);
        assert_string_equal(bench_out(), "IO Size per GPU: 11\n");
}

static void wrong_model_files_are_refused_with_their_place(void **state)
{
        static const struct {
                const char *text, *part;
        } cases[] = {
                { "", "model.yaml: is empty" },
                { "# only a comment\n", "is empty" },
                { "---\n", "is empty" },
                { "~\n", "is empty" },
                { "- a\n- b\n", "model.yaml:1:1: must be a mapping of keys to values" },
                { "word\n", "must be a mapping" },
                { "model_name: [1\n", "model.yaml:" },
                { "a: b: c\n", "model.yaml:1:5: " },
                { "\tx: 1\n", "model.yaml:1:1: " },
                { "*nowhere\n", "model.yaml:1:1: " },
                { "%YAML 9.9\n---\na: 1\n", "model.yaml:1:1: " },
                { "model_name: LLAMA3.1\n---\nmodel_name: QWEN3\n",
                  "a second document begins here; a file must have only one" },
                { "a: \xff\n", "not a text file" },
                { "model_name: \x1b[31mred\n", "not a text file" },
                { "model_name: \"\\e[31mred\"\n", "model_name: has a control character in it" },
                { "model_name: \"a\\0b\"\n", "model_name: has a NUL byte in it" },
                { "\"a\\0b\": 1\n", "a key must be plain text" },
                { "? [a]\n: 1\n", "a key must be plain text" },
                { "num_layers: 32\n", "model_name: is missing" },
                { "model_name:\nnum_layers: 1\n", "model_name: is missing" },
                { "model_name: ''\n", "model_name: is empty" },
                { "model_name: [a]\n", "model_name: is a list; it must be a text" },
                { "model_name: {a: b}\n", "model_name: is a mapping; it must be a text" },
                { "model_name: MISTRAL_7B\nnum_layers: 32\n",
                  "model.yaml:1:13: model_name: 'MISTRAL_7B' contains the name of no known "
                  "family" },
                { "model_name: QWEN3\nmodel: QWEN3\n",
                  "model.yaml:2:1: model and model_name are the same key: give one" },
                { "model_name: QWEN3\nfamily: nothing\n",
                  "model.yaml:2:9: family: 'nothing' is not one of llama3.1, deepseek_r1, "
                  "gpt_oss" },
                { "model_name: x\nfamily: [generic]\n", "family: is a list" },
                { "model_name: DEEPSEEK_R1\nnum_layers: 61\n",
                  "num_query_heads: is missing; a model of family deepseek_r1 needs it" },
                { "model_name: x\nfamily: generic\nnum_layers: 1\nnum_kv_heads: 1\n",
                  "head_dimension: is missing" },
                { "model_name: x\nfamily: generic\nnum_layers: 1\nvocab: 1\n",
                  "model.yaml:4:1: vocab: not a key of a model of family generic" },
                { "model_name: x\nfamily: generic\nlatent_dimension: 1\n",
                  "latent_dimension: not a key of a model of family generic" },
                { "num_layers: 1\nnum_layers: 1\n",
                  "model.yaml:2:1: num_layers: is given twice, first in line 1" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
                assert_refused(with_model(cases[i].text), cases[i].part);
}

static void files_that_are_too_large_or_deep_are_refused(void **state)
{
        char keys[65 * 8 + 1] = "";

        for (unsigned i = 0; i < 65; i++)
                sprintf(keys + strlen(keys), "k%u: 1\n", i);
        assert_refused(with_model(keys), "model.yaml:1:1: has more than 64 keys");
        assert_refused(with_model(letters('x', 300000)), "larger than 256 KiB");
        assert_refused(with_model(letters('[', 5000)), "model.yaml:");
        assert_refused(with_model(letters('{', 20000)), "model.yaml:");
        assert_refused(with_model(text_of("model_name: ", letters('x', 5000))),
                       "model_name: is longer than 127 bytes");
}

static void wrong_numbers_of_a_model_are_refused_with_their_value(void **state)
{
        static const struct {
                const char *value, *part;
        } cases[] = {
                { "0", "'0' must be a number above 0" },
                { "-1", "'-1' must be " },
                { "1.5", "'1.5' must be a whole number" },
                { "1e3", "must be a whole number" },
                { "abc", "'abc' must be " },
                { "[1]", "is a list; it must be " },
                { "{a: 1}", "is a mapping; it must be " },
                { ".inf", "'.inf' must be " },
                { "true", "'true' must be " },
                { "1 2", "'1 2' must be " },
                { "1__2", "'1__2' must be " },
                { "010", "written without a zero in front, which YAML takes for octal" },
                { "0x10", "must be " },
                { "9007199254740993", "at most 9007199254740992 (2^53)" },
                { "111111111111111111111111111111", "2^53" },
                { "1111111111111111111111111111111111111111111111111111111111111111111111",
                  "must be a shorter number" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                char text[512];

                snprintf(text, sizeof(text), "model_name: x\nfamily: generic\nnum_layers: %s\n",
                         cases[i].value);
                assert_refused(with_model(text), cases[i].part);
                assert_err("model.yaml:3:13: num_layers: ");
        }
        assert_refused(with_model("model_name: x\nfamily: generic\nnum_layers:\n"),
                       "num_layers: is missing");
}

static void a_deployment_has_defaults_for_everything(void **state)
{
        static const char *const plain[] = { "strategy:\n", "strategy: {}\nruntime:\n  isl: 1\n",
                                             "system:\n  hardware:\n  access_pattern: ~\n" };

        for (size_t i = 0; i < ARRAY_SIZE(plain); i++) {
                assert_int_equal(with_deployment(plain[i]), 0);
                assert_out("Batch Size : 61\nIO Size : 576.0 B\n");
                assert_string_equal(bench_err(), "");
        }
}

static void unused_parts_of_a_deployment_are_warnings(void **state)
{
        assert_int_equal(with_deployment("strategy: [1, 2]\n"), 0);
        assert_err("config.yaml:1:11: warning: strategy is not a mapping of keys to values, and is "
                   "not used");
        assert_int_equal(with_deployment("runtime: 5\n"), 0);
        assert_err("config.yaml:1:10: warning: runtime is not a mapping");
        assert_int_equal(with_deployment("extra:\n  a: 1\nstrategy:\n  nonsense: 12\n"), 0);
        assert_err("config.yaml:1:1: warning: extra is an unknown section, and is not used");
        assert_err(
                "config.yaml:4:3: warning: strategy.nonsense is an unknown key, and is not used");
        assert_out("Batch Size : 61\n");
}

static void wrong_deployments_are_refused_with_their_place(void **state)
{
        static const struct {
                const char *text, *part;
        } cases[] = {
                { "", "config.yaml: is empty" },
                { "- a\n", "config.yaml:1:1: must be a mapping" },
                { "strategy:\n  tp_size: [1\n", "config.yaml:" },
                { "strategy:\n  tp_size: 1\n  tp_size: 2\n",
                  "config.yaml:3:3: tp_size: is given twice, first in line 2" },
                { "strategy:\n  tp_size: 1\nstrategy:\n  pp_size: 1\n",
                  "config.yaml:3:1: strategy: is given twice" },
                { "strategy:\n  kvcache_quant_mode: FP8\n",
                  "strategy.kvcache_quant_mode: 'FP8' is not one of fp8, int8, fp16, bfloat16" },
                { "strategy:\n  kvcache_quant_mode:\n",
                  "strategy.kvcache_quant_mode: has no value; it must be a text" },
                { "strategy:\n  kvcache_quant_mode: [fp8]\n", "kvcache_quant_mode: is a list" },
                { "system:\n  hardware: {a: 1}\n", "system.hardware: is a mapping" },
                { "system:\n  hardware: "
                  "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n",
                  "system.hardware: is longer than 63 bytes" },
                { "a: &a [*a]\nb: *c\n", "config.yaml:2:4: " },
                { "strategy:\n  pp_size: 0\n", "config.yaml:2:12: strategy.pp_size: '0' must be" },
                { "strategy:\n  pp_size: 7.50\n",
                  "strategy.pp_size: '7.50' must be a whole number" },
                { "strategy:\n  tp_size:\n", "strategy.tp_size: has no value" },
                { "runtime:\n  isl: 0.5\n",
                  "config.yaml: runtime.isl: 0.5 is less than one token" },
                { "runtime:\n  isl: 1e400\n",
                  "config.yaml:2:8: runtime.isl: '1e400' must be at most "
                  "9007199254740992 (2^53)" },
                { "runtime:\n  isl: 1e-400\n", "runtime.isl: '1e-400' must be a number above 0" },
                { "runtime:\n  isl: .5e1\n", "runtime.isl: '.5e1' must be a number above 0" },
                { "runtime:\n  osl: ''\n", "runtime.osl: '' must be a number above 0" },
                { "runtime:\n  num_requests: 1.2.3\n", "runtime.num_requests: '1.2.3' must be" },
                { "runtime:\n  num_requests: 2026-01-01\n", "'2026-01-01' must be" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
                assert_refused(with_deployment(cases[i].text), cases[i].part);
}

static void numbers_are_shown_as_they_are_written(void **state)
{
        static const struct {
                const char *written, *shown;
                unsigned tokens;
        } cases[] = { { "'2000'", "2000", 2000 }, { "1000.75", "1000.75", 1000 },
                      { "2_000", "2000", 2000 },  { "1000.0", "1000.0", 1000 },
                      { "+5", "5", 5 },           { "1.0e+3", "1.0e+3", 1000 },
                      { "7.", "7.", 7 },          { "1E1", "1E1", 10 } };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                char text[128];

                snprintf(text, sizeof(text), "runtime:\n  isl: %s\n", cases[i].written);
                assert_int_equal(with_deployment(text), 0);
                snprintf(text, sizeof(text), "Input Sequence Length : %s\nBatch Size : %u\n",
                         cases[i].shown, cases[i].tokens * 61);
                assert_out(text);
        }
}

static void a_value_in_a_message_is_one_short_printable_line(void **state)
{
        static const struct {
                const char *value, *shown;
        } cases[] = {
                { "\"a: warning: b\\nc\"", "'a: warning: b\\nc'" },
                { "\"\\e[31mred\\a\"", "'\\x1b[31mred\\x07'" },
                { "\"\\u009b31m\\u202eabc\"", "'\\xc2\\x9b31m\\xe2\\x80\\xaeabc'" },
                { "\"1\\t2\\x7f\"", "'1\\t2\\x7f'" },
                { "\"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80\"",
                  "'\xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80'" },
                { "\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"",
                  "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...'" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                char text[256];

                snprintf(text, sizeof(text), "runtime:\n  isl: %s\n", cases[i].value);
                assert_refused(with_deployment(text), cases[i].shown);
                assert_err("config.yaml:2:8: runtime.isl: ");
        }
}

static void bytes_that_are_no_utf8_are_shown_as_numbers(void **state)
{
        static const struct {
                const char *text, *shown;
        } cases[] = { { "a\xff", "a\\xff" },
                      { "\xc0\x80", "\\xc0\\x80" },
                      { "\xe2\x82", "\\xe2\\x82" },
                      { "\xf5zz", "\\xf5zz" },
                      { "", "" } };
        char buffer[64], tiny[8];

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
                assert_string_equal(yaml_file_shown(cases[i].text, buffer, sizeof(buffer)),
                                    cases[i].shown);
        assert_string_equal(yaml_file_shown("1234567", tiny, sizeof(tiny)), "1234567");
        assert_string_equal(yaml_file_shown("12345678", tiny, sizeof(tiny)), "1234...");
        assert_string_equal(yaml_file_shown("123\n5678", tiny, sizeof(tiny)), "123...");
}

static void aliases_do_not_multiply(void **state)
{
        char text[2048] = "a0: &a0 x\n", line[160];

        /* Nine levels of nine aliases each: 387 million nodes, if they were copied. */
        for (unsigned i = 1; i < 10; i++) {
                snprintf(line, sizeof(line), "a%u: &a%u [", i, i);
                strcat(text, line);
                for (unsigned k = 0; k < 9; k++) {
                        snprintf(line, sizeof(line), "%s*a%u", k ? ", " : "", i - 1);
                        strcat(text, line);
                }
                strcat(text, "]\n");
        }
        strcat(text, "runtime: {isl: 1}\n");
        assert_int_equal(with_deployment(text), 0);
        assert_err("a9 is an unknown section");
}

static void files_that_are_none_are_refused(void **state)
{
        const char *model = bench_file("model.yaml", deepseek),
                   *deployment = bench_file("layer.yaml", per_layer);
        static const struct {
                const char *path, *part;
        } cases[] = { { "/tmp", "/tmp: Is a directory" },
                      { "/nonexistent/none", "/nonexistent/none: No such file or directory" },
                      { "/dev/null", "/dev/null: is empty" },
                      { "/dev/zero", "/dev/zero: is larger than 256 KiB" },
                      { "", "No such file or directory" },
                      { "/dev/null/x", "Not a directory" } };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                assert_refused(bench(&command_kvcache, "--model", cases[i].path, "--model_config",
                                     deployment),
                               cases[i].part);
                assert_refused(
                        bench(&command_iosize, "--model", model, "--model_config", cases[i].path),
                        cases[i].part);
        }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(models_may_be_written_in_several_ways),
                cmocka_unit_test(generic_models_need_no_known_name),
                cmocka_unit_test(wrong_model_files_are_refused_with_their_place),
                cmocka_unit_test(files_that_are_too_large_or_deep_are_refused),
                cmocka_unit_test(wrong_numbers_of_a_model_are_refused_with_their_value),
                cmocka_unit_test(a_deployment_has_defaults_for_everything),
                cmocka_unit_test(unused_parts_of_a_deployment_are_warnings),
                cmocka_unit_test(wrong_deployments_are_refused_with_their_place),
                cmocka_unit_test(numbers_are_shown_as_they_are_written),
                cmocka_unit_test(a_value_in_a_message_is_one_short_printable_line),
                cmocka_unit_test(bytes_that_are_no_utf8_are_shown_as_numbers),
                cmocka_unit_test(aliases_do_not_multiply),
                cmocka_unit_test(files_that_are_none_are_refused),
        };

        return cmocka_run_group_tests(tests, bench_directory_make, bench_directory_remove);
}
