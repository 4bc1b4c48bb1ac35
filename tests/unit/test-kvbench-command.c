/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache-bench plan, kvcache and iosize as commands: their output formats, their options, and the
 * rules of the backends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench-rig.h"
#include "checked.h"

enum { FAILED = 1 };

/* With this model, an I/O of 16 tokens and 8 layers has 73,728 bytes, and 10 requests have 4,766 of
 * them. */
static const char *model(void)
{
        return bench_file("deepseek.yaml", "model_name: DEEPSEEK_R1\n"
                                           "family: generic_latent\n"
                                           "num_layers: 61\n"
                                           "rope_dimension: 64\n"
                                           "latent_dimension: 512\n");
}

static const char *deployment_of(const char *name, unsigned pp)
{
        char text[256];

        snprintf(text, sizeof(text),
                 "strategy:\n  pp_size: %u\nruntime:\n  num_requests: 10\n  isl: 1000\n"
                 "system:\n  page_size: 16\n  access_pattern: block\n",
                 pp);
        return bench_file(name, text);
}

static const char *deployment(void)
{
        return deployment_of("pp8.yaml", 8);
}

#define FILES        "--model", model(), "--model_config", deployment()
#define plan(...)    bench(&command_plan, FILES, __VA_ARGS__)
#define kvcache(...) bench(&command_kvcache, FILES, __VA_ARGS__)

static void text_is_that_of_kvbench(void **state)
{
        assert_int_equal(kvcache("--tp", "1"), EXIT_OK);
        assert_string_equal(bench_out(), "Model                  : DEEPSEEK_R1\n"
                                         "Input Sequence Length  : 1000\n"
                                         "Batch Size             : 4766\n"
                                         "IO Size                : 72.0 KB\n");
        assert_int_equal(bench(&command_iosize, FILES), EXIT_OK);
        assert_string_equal(bench_out(), "IO Size per GPU: 4608\n");
}

static void sizes_have_two_decimals_of_which_a_last_zero_goes(void **state)
{
        static const struct {
                const char *bytes, *text;
        } cases[] = {
                { "1", "1.0 B" },
                { "1023", "1023.0 B" },
                { "1024", "1.0 KB" },
                { "1030", "1.01 KB" },
                { "1152", "1.12 KB" },
                { "73728", "72.0 KB" },
                { "1179648", "1.12 MB" },
                { "1048576", "1.0 MB" },
                { "1073741823", "1024.0 MB" },
                { "1073741824", "1.0 GB" },
                { "5497558138880", "5.0 TB" },
                { "1125899906842624", "1024.0 TB" },
        };
        const char *one = bench_file("one.yaml", "runtime:\n  isl: 1\n");

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                char text[160];

                snprintf(text, sizeof(text),
                         "model_name: x\nfamily: generic_latent\nnum_layers: 1\n"
                         "latent_dimension: %s\n",
                         cases[i].bytes);
                assert_int_equal(bench(&command_kvcache, "--model", bench_file("m.yaml", text),
                                       "--model_config", one),
                                 EXIT_OK);
                snprintf(text, sizeof(text), "IO Size                : %s\n", cases[i].text);
                assert_out(text);
        }
}

static void the_table_has_a_row_for_each_configuration(void **state)
{
        assert_int_equal(kvcache("--format", "table"), EXIT_OK);
        assert_string_equal(
                bench_out(),
                "Model          ISL    Num Requests    Batch Size  IO Size      TP    PP    Page "
                "Size  Access\n"
                "-----------  -----  --------------  ------------  ---------  ----  ----  "
                "-----------  --------\n"
                "DEEPSEEK_R1   1000              10          4766  72.0 KB       1     8           "
                "16  block\n");
        assert_int_equal(
                bench(&command_kvcache, "--model", model(), "--model_config",
                      bench_file("fractions.yaml", "runtime:\n  isl: 1000.75\n  num_requests: "
                                                   "2.5\nsystem:\n  page_size: 16\n"),
                      "--format", "table"),
                EXIT_OK);
        assert_out("DEEPSEEK_R1 1000.750000 2.500000 9532 9.0 KB 1 1 16\n");
}

static void json_has_every_figure(void **state)
{
        cJSON *json, *first;

        assert_int_equal(kvcache("--json"), EXIT_OK);
        json = bench_json();
        first = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "configurations"), 0);
        assert_string_equal(json_text(first, "config_file"), bench_path("pp8.yaml"));
        assert_string_equal(json_text(first, "model"), "DEEPSEEK_R1");
        assert_true(json_number(first, "isl") == 1000);
        assert_true(json_number(first, "num_requests") == 10);
        assert_true(json_number(first, "batch_size") == 4766);
        assert_true(json_number(first, "io_size") == 73728);
        assert_string_equal(json_text(first, "io_size_text"), "72.0 KB");
        assert_true(json_number(first, "io_size_per_token") == 4608);
        assert_true(json_number(first, "total_buffer_size") == 351387648);
        assert_true(json_number(first, "kv_bytes_per_token") == 35136);
        assert_true(json_number(first, "tp_size") == 1);
        assert_true(json_number(first, "pp_size") == 8);
        assert_true(json_number(first, "page_size") == 16);
        assert_string_equal(json_text(first, "access_pattern"), "block");
        cJSON_Delete(json);
        assert_int_equal(kvcache("--format", "json", "--isl", "7"), EXIT_OK);
        json = bench_json();
        assert_true(cJSON_IsArray(json)); /* without --json, as KVBench prints it */
        assert_true(json_number(cJSON_GetArrayItem(json, 0), "isl") == 7);
        cJSON_Delete(json);
}

static void csv_quotes_what_needs_it(void **state)
{
        const char *path = bench_file("a \"b\", c.yaml", "runtime:\n  isl: 16.5\n");

        assert_int_equal(bench(&command_kvcache, "--model", model(), "--model_config", path,
                               "--format", "csv"),
                         EXIT_OK);
        assert_out("config_file,model,isl,num_requests,batch_size,io_size,io_size_text,");
        assert_out("/a \"\"b\"\", c.yaml\",DEEPSEEK_R1,16.5,1,");
}

static void several_configurations_are_printed_in_the_order_they_are_named(void **state)
{
        char text[512];

        deployment_of("pp1.yaml", 1);
        deployment_of("pp4.yaml", 4);
        assert_int_equal(bench(&command_iosize, "--model", model(), "--model_config", deployment(),
                               "--model_configs", bench_path("pp[14].yaml"),
                               bench_path("pp8.yaml")),
                         EXIT_OK);
        snprintf(text, sizeof(text),
                 "%s: IO Size per GPU: 4608\n%s: IO Size per GPU: 35136\n%s: IO Size per GPU: "
                 "9216\n",
                 bench_path("pp8.yaml"), bench_path("pp1.yaml"), bench_path("pp4.yaml"));
        assert_string_equal(bench_out(), text);
        assert_int_equal(bench(&command_kvcache, "--model", model(), "--model_configs",
                               bench_path("pp1.yaml"), "--model_configs", bench_path("pp8.yaml")),
                         EXIT_OK);
        assert_out("Model Config : /tmp/");
        assert_out("Batch Size : 625\n");
        assert_out("Batch Size : 4766\n");
}

static void a_wrong_configuration_does_not_stop_the_others(void **state)
{
        static const char *const formats[] = { "text", "json", "csv" };

        bench_file("many-a.yaml", "system:\n  page_size: 16\n");
        bench_file("many-b.yaml", "strategy:\n  pp_size: 0\n");
        bench_file("many-c.yaml", "system:\n  page_size: 16\n");
        for (size_t i = 0; i < ARRAY_SIZE(formats); i++) {
                assert_int_equal(bench(&command_plan, "--model", model(), "--model_configs",
                                       bench_path("many-?.yaml"), "--format", formats[i]),
                                 FAILED);
                assert_err("many-b.yaml:2:12: strategy.pp_size");
                assert_out("many-a.yaml");
                assert_out("many-c.yaml");
                assert_null(strstr(bench_out(), "many-b.yaml"));
        }
}

static void a_configuration_that_is_missing_is_left_out_when_there_are_others(void **state)
{
        assert_int_equal(bench(&command_iosize, "--model", model(), "--model_config", "/none.yaml",
                               "--model_configs", deployment()),
                         EXIT_OK);
        assert_err("warning: /none.yaml: no such file; continuing without it");
        assert_string_equal(bench_out(), "IO Size per GPU: 4608\n");
        assert_int_equal(
                bench(&command_iosize, "--model", model(), "--model_configs", bench_path("none*")),
                FAILED);
        assert_err("no file of this name exists");
        assert_err("none of the deployment files of --model_configs exists");
}

static void files_are_found_by_name_in_the_data_directory(void **state)
{
        char models[256], deployments[256], file[300];

        snprintf(models, sizeof(models), "%s", bench_path("models"));
        snprintf(deployments, sizeof(deployments), "%s", bench_path("deployments"));
        assert_int_equal(mkdir(models, 0700), 0);
        assert_int_equal(mkdir(deployments, 0700), 0);
        model();
        deployment();
        snprintf(file, sizeof(file), "%s/big_model.yaml", models);
        assert_int_equal(rename(bench_path("deepseek.yaml"), file), 0);
        snprintf(file, sizeof(file), "%s/wide.yaml", deployments);
        assert_int_equal(rename(bench_path("pp8.yaml"), file), 0);
        snprintf(file, sizeof(file), "%s", bench_path(""));
        setenv("KVCACHE_DATA_DIR", file, 1);

        assert_int_equal(
                bench(&command_iosize, "--model", "big_model", "--model_config", "wide.yaml"),
                EXIT_OK);
        assert_string_equal(bench_out(), "IO Size per GPU: 4608\n");
        assert_int_equal(
                bench(&command_iosize, "--model", "big_model.yaml", "--model_configs", "wi*"),
                EXIT_OK);
        assert_string_equal(bench_out(), "IO Size per GPU: 4608\n");
        assert_int_equal(bench(&command_iosize, "--model", "big_modle", "--model_config", "wide"),
                         FAILED);
        assert_err("big_modle: No such file or directory; it is not in ");
        assert_err("did you mean \"big_model\"?");
        assert_int_equal(bench(&command_iosize, "--model", "big_model", "--model_config", "zzz"),
                         FAILED);
        assert_err(deployments);
        assert_null(strstr(bench_err(), "did you mean"));
        /* A path is not searched. */
        assert_int_equal(bench(&command_iosize, "--model", "./big_model", "--model_config", "wide"),
                         FAILED);
        assert_err("./big_model: No such file or directory\n");

        unsetenv("KVCACHE_DATA_DIR");
        snprintf(file, sizeof(file), "%s/big_model.yaml", models);
        unlink(file);
        snprintf(file, sizeof(file), "%s/wide.yaml", deployments);
        unlink(file);
        rmdir(models);
        rmdir(deployments);
}

static void a_plan_prints_what_differs_from_the_defaults(void **state)
{
        assert_int_equal(plan("--backend", "GDS", "--benchmark_group", "it's"), EXIT_OK);
        assert_out("====\nModel Config: /tmp/");
        assert_out("ISL: 1000 tokens\nPage Size: 16\nRequests: 10\nTP: 1\nPP: 8\n=====");
        assert_out("nixlbench \\\n"
                   "    --benchmark_group 'it'\\''s' \\\n"
                   "    --backend GDS \\\n"
                   "    --max_batch_size 4766 \\\n"
                   "    --max_block_size 73728 \\\n"
                   "    --op_type READ \\\n"
                   "    --start_batch_size 4766 \\\n"
                   "    --start_block_size 73728 \\\n"
                   "    --target_seg_type VRAM \\\n"
                   "    --total_buffer_size 351387648\n\n");
}

static void backends_decide_the_direction_and_the_memory(void **state)
{
        static const struct {
                const char *backend, *source, *destination, *has[2], *has_not;
        } cases[] = {
                { "POSIX", "file", NULL, { "--op_type READ" }, "seg_type" },
                { "posix", "memory", NULL, { "--backend posix" }, "op_type" },
                { "GDS_MT", "gpu", NULL, { "--target_seg_type VRAM" }, "op_type" },
                { "UCX", "memory", NULL, { NULL }, "seg_type" },
                { "UCX",
                  "gpu",
                  "gpu",
                  { "--initiator_seg_type VRAM", "--target_seg_type VRAM" },
                  "op_type" },
                { "Mooncake", "memory", "gpu", { "--target_seg_type VRAM" }, "initiator" },
                { "OBJ",
                  "file",
                  "gpu",
                  { "--initiator_seg_type VRAM", "--op_type READ" },
                  "target" },
                { "OBJ", "gpu", NULL, { "--initiator_seg_type VRAM" }, "op_type" },
                { "OBJ", "memory", "file", { "--backend OBJ" }, "op_type" },
                { "HF3FS", "memory", NULL, { "--backend HF3FS" }, "op_type" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                if (cases[i].destination)
                        assert_int_equal(plan("--backend", cases[i].backend, "--source",
                                              cases[i].source, "--destination",
                                              cases[i].destination),
                                         EXIT_OK);
                else
                        assert_int_equal(
                                plan("--backend", cases[i].backend, "--source", cases[i].source),
                                EXIT_OK);
                for (unsigned k = 0; k < 2 && cases[i].has[k]; k++)
                        assert_out(cases[i].has[k]);
                assert_null(strstr(bench_out(), cases[i].has_not));
        }
}

static void without_a_backend_there_is_one_that_stores(void **state)
{
        static const char *const sources[] = { "file", "memory", "gpu" }, *const backends[] = {
                "POSIX", "POSIX", "GDS"
        };

        for (size_t i = 0; i < ARRAY_SIZE(sources); i++) {
                char text[64];

                assert_int_equal(plan("--source", sources[i]), EXIT_OK);
                snprintf(text, sizeof(text), "--backend %s \\\n", backends[i]);
                assert_out(text);
        }
}

static void what_a_backend_cannot_do_is_refused(void **state)
{
        static const struct {
                const char *arguments[6], *message;
        } cases[] = {
                { { "--backend", "AZURE" },
                  "--backend AZURE: nixlbench supports only GDS, GDS_MT, POSIX, HF3FS, OBJ, UCX, "
                  "GPUNETIO, "
                  "Mooncake\n" },
                { { "--backend", "KVCACHE" },
                  "--target kvcache-bench prints the command for this" },
                { { "--backend", "UCX", "--target", "kvcache-bench" },
                  "kvcache-bench profile supports only KVCACHE, RAW, GDS, POSIX" },
                { { "--backend", "POSIX", "--source", "gpu" },
                  "--source gpu: POSIX reads from file and writes from memory" },
                { { "--backend", "GDS", "--source", "memory" },
                  "--source memory: GDS reads from file and writes from gpu" },
                { { "--backend", "UCX" }, "--source file: UCX moves between memory and gpu" },
                { { "--backend", "UCX", "--source", "gpu", "--destination", "file" },
                  "--destination file: UCX moves" },
                { { "--backend", "OBJ", "--source", "gpu", "--destination", "memory" },
                  "--destination memory: OBJ needs memory or gpu at one end" },
                { { "--backend", "OBJ", "--source", "file", "--destination", "file" },
                  "--destination file: OBJ needs" },
                { { "--target", "kvcache-bench", "--source", "file", "--destination", "file" },
                  "--destination file: KVCACHE reads into memory or gpu" },
                { { "--target", "kvcache-bench", "--source", "memory", "--destination", "gpu" },
                  "--destination gpu: KVCACHE writes into its store: file" },
                { { "--tp", "100000" }, "an I/O comes to 0 bytes" },
                { { "--isl", "9007199254740992" }, "2^53" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                const char *arguments[12] = { FILES };

                memcpy(&arguments[4], cases[i].arguments, sizeof(cases[i].arguments));
                assert_int_equal(bench_run(&command_plan, arguments), FAILED);
                assert_err(cases[i].message);
                assert_err("pp8.yaml: ");
                assert_string_equal(bench_out(), "");
        }
        assert_int_equal(bench(&command_plan, "--model", model(), "--model_config",
                               bench_file("tape.yaml", "system:\n  source: tape\n")),
                         FAILED);
        assert_err("system.source: 'tape' is not one of file, memory, gpu");
        assert_int_equal(bench(&command_plan, "--model", model(), "--model_config",
                               bench_file("gpu.yaml", "system:\n  source: memory\n  destination: "
                                                      "gpu\n"),
                               "--backend", "UCX"),
                         EXIT_OK);
        assert_out("--target_seg_type VRAM");
}

static void options_that_are_overruled_are_named(void **state)
{
        static const struct {
                const char *name, *value, *warning;
        } cases[] = {
                { "--op_type", "WRITE", "warning: --op_type WRITE is replaced by" },
                { "--target_seg_type", "VRAM", "warning: --target_seg_type VRAM is replaced by" },
                { "--max_batch_size", "3",
                  "warning: --max_batch_size 3 is not used: the model and " },
                { "--total_buffer_size", "3", "need 351387648" },
                { "--format", "yaml", "warning: --format: 'yaml' is not one of text, json, csv" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                assert_int_equal(plan(cases[i].name, cases[i].value), EXIT_OK);
                assert_err(cases[i].warning);
                assert_out("--max_batch_size 4766");
        }
}

static void a_plan_for_2025_06_has_the_options_of_that_time(void **state)
{
        assert_int_equal(plan("--target", "nixlbench-2025.06", "--source", "gpu", "--gds_filepath",
                              "/mnt/x", "--num_files", "3", "--total_buffer_size", "4096"),
                         EXIT_OK);
        assert_err("warning: --num_files is not an option of nixlbench of 2025-06");
        assert_out("--gds_filepath /mnt/x \\\n");
        assert_out("--total_buffer_size 4096\n");
        assert_null(strstr(bench_out(), "num_files"));
        assert_int_equal(
                plan("--target", "nixlbench-2025.06", "--source", "memory", "--backend", "GDS"),
                EXIT_OK);
        assert_null(strstr(bench_out(), "total_buffer_size"));
        assert_null(strstr(bench_out(), "seg_type"));
}

static void a_plan_for_kvcache_bench_is_its_command(void **state)
{
        assert_int_equal(plan("--target", "kvcache-bench", "--source", "memory", "--num_threads",
                              "4", "--filepath", "/a b", "--isl", "512", "--tp", "2", "--pp", "3",
                              "--osl", "5", "--num_requests", "6", "--page_size", "32",
                              "--access_pattern", "layer"),
                         EXIT_OK);
        assert_out("kvcache-bench profile \\\n    --model /tmp/");
        assert_out("    --pp 3 \\\n    --tp 2 \\\n    --isl 512 \\\n    --osl 5 \\\n"
                   "    --num_requests 6 \\\n    --page_size 32 \\\n    --access_pattern layer \\\n"
                   "    --source memory \\\n    --backend KVCACHE \\\n    --filepath '/a b' \\\n"
                   "    --num_threads 4\n");
}

static void a_plan_as_json_has_every_parameter(void **state)
{
        cJSON *json, *first;

        assert_int_equal(plan("--format", "json", "--enable_pt", "--storage_enable_direct", "true",
                              "--num_iter", "7", "--check_consistency=off"),
                         EXIT_OK);
        json = bench_json();
        first = cJSON_GetArrayItem(json, 0);
        assert_int_equal(cJSON_GetArraySize(first), 47);
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(first, "enable_pt")));
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(first, "storage_enable_direct")));
        assert_true(cJSON_IsFalse(cJSON_GetObjectItem(first, "check_consistency")));
        assert_true(json_number(first, "num_iter") == 7);
        assert_true(json_number(first, "max_block_size") == 73728);
        assert_string_equal(json_text(first, "backend"), "POSIX");
        cJSON_Delete(json);
        assert_int_equal(plan("--format", "csv"), EXIT_OK);
        assert_out("backend,check_consistency,");
        assert_out("model_system_access_pattern,model_system_source,model_system_destination\n");
        assert_int_equal(plan("--json"), EXIT_OK);
        assert_out("{\"configurations\":[{");
}

static void options_are_spelled_with_either_dash(void **state)
{
        char *first;

        assert_int_equal(plan("--num_requests", "7", "--enable_vmm", "true", "--device_list",
                              "--a_b", "--obj-use_virtual-addressing", "no"),
                         EXIT_OK);
        assert_out("--device_list --a_b");
        first = strdup(bench_out());
        assert_int_equal(plan("--num-requests= 7 ", "--enable-vmm", "--device-list", "--a_b"),
                         EXIT_OK);
        assert_string_equal(bench_out(), first);
        free(first);
}

static void wrong_usage_is_refused_with_its_reason(void **state)
{
        static const struct {
                const char *arguments[8], *message;
        } cases[] = {
                { { NULL }, "--model is missing" },
                { { "--model", "x" }, "--model_config or --model_configs is missing" },
                { { "--model", "x", "y" }, "unexpected argument 'y'; deployment files follow" },
                { { "--model", "x", "--model_config" },
                  "option '--model-config' needs an argument" },
                { { "--no_such_option" }, "unknown option" },
                { { "--target", "fio" }, "--target: 'fio' is not one of nixlbench, " },
                { { "--source", "tape" }, "--source: 'tape' is not one of file, memory, gpu" },
                { { "--destination", "" }, "--destination: '' is not one of" },
                { { "--num_iter", "x" }, "--num_iter: 'x' is not a whole number from 0 to 2^53" },
                { { "--isl", "0" }, "--isl: '0' is not a whole number from 1 to 2^53" },
                { { "--isl", "_1" }, "--isl: '_1' is not" },
                { { "--isl", "1_" }, "--isl: '1_' is not" },
                { { "--isl", "9007199254740993" }, "--isl: '9007199254740993' is not" },
                { { "--enable_vmm=maybe" }, "--enable_vmm: 'maybe' is not one of true, false" },
                { { "--access_pattern",
                    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" },
                  "--access_pattern: 'xxxx" },
                { { "--json", "--model", "x", "--format", "csv" },
                  "--json cannot be combined with another --format" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                assert_int_equal(bench_run(&command_plan, cases[i].arguments), EXIT_WRONG_USAGE);
                assert_err(cases[i].message);
        }
        assert_int_equal(kvcache("--format", "xml"), EXIT_WRONG_USAGE);
        assert_err("--format: 'xml' is not one of text, table, json, csv");
}

static void help_has_the_options_of_the_command(void **state)
{
        assert_int_equal(bench(&command_plan, "--help"), EXIT_OK);
        assert_out("--obj_bucket_name NAME");
        assert_int_equal(bench(&command_kvcache, "--help"), EXIT_OK);
        assert_out("--model_configs GLOB");
        assert_null(strstr(bench_out(), "--obj_bucket_name"));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(text_is_that_of_kvbench),
                cmocka_unit_test(sizes_have_two_decimals_of_which_a_last_zero_goes),
                cmocka_unit_test(the_table_has_a_row_for_each_configuration),
                cmocka_unit_test(json_has_every_figure),
                cmocka_unit_test(csv_quotes_what_needs_it),
                cmocka_unit_test(several_configurations_are_printed_in_the_order_they_are_named),
                cmocka_unit_test(a_wrong_configuration_does_not_stop_the_others),
                cmocka_unit_test(a_configuration_that_is_missing_is_left_out_when_there_are_others),
                cmocka_unit_test(files_are_found_by_name_in_the_data_directory),
                cmocka_unit_test(a_plan_prints_what_differs_from_the_defaults),
                cmocka_unit_test(backends_decide_the_direction_and_the_memory),
                cmocka_unit_test(without_a_backend_there_is_one_that_stores),
                cmocka_unit_test(what_a_backend_cannot_do_is_refused),
                cmocka_unit_test(options_that_are_overruled_are_named),
                cmocka_unit_test(a_plan_for_2025_06_has_the_options_of_that_time),
                cmocka_unit_test(a_plan_for_kvcache_bench_is_its_command),
                cmocka_unit_test(a_plan_as_json_has_every_parameter),
                cmocka_unit_test(options_are_spelled_with_either_dash),
                cmocka_unit_test(wrong_usage_is_refused_with_its_reason),
                cmocka_unit_test(help_has_the_options_of_the_command),
        };

        return cmocka_run_group_tests(tests, bench_directory_make, bench_directory_remove);
}
