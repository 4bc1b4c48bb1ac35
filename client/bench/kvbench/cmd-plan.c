/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache-bench plan: prints the benchmark command for a model and its deployments, without
 * running it. Text is printed for one configuration after the other, in KVBench's form. JSON and
 * CSV are printed at the end, so that they are well-formed even if a configuration is invalid. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "csv.h"
#include "commands.h"
#include "workload.h"

static const char rule[] =
        "================================================================================";

/* Returns the name of a parameter in the target tool, or NULL if it has none. KVBench takes
 * --obj_ca_bundle and drops it, so the bundle is a parameter only where it is given. */
static const char *parameter_name(const struct kvbench_options *options, enum kvbench_parameter id)
{
        const struct kvbench_parameter_row *row = &kvbench_parameter_rows[id];

        if (id == KVBENCH_OBJ_CA_BUNDLE && !parameters_given(&options->parameters, id))
                return NULL;
        if (options->target != KVBENCH_TARGET_NIXLBENCH_2025_06)
                return row->name;
        if (!row->in_2025_06)
                return NULL;
        return id == KVBENCH_FILEPATH ? "gds_filepath" : row->name;
}

static void print_argument(const char *name, const char *text)
{
        static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                    "_./:,@%+=-";

        printf(" \\\n    --%s ", name);
        if (*text && strspn(text, plain) == strlen(text)) {
                fputs(text, stdout);
                return;
        }
        putchar('\'');
        for (; *text; text++)
                if (*text == '\'')
                        fputs("'\\''", stdout);
                else
                        putchar(*text);
        putchar('\'');
}

static void print_parameter(const struct kvbench_options *options,
                            const struct kvbench_parameters *p, enum kvbench_parameter id)
{
        const char *name = parameter_name(options, id);
        char buffer[KVBENCH_NUMBER_BYTES];

        if (name && !parameters_is_default(p, id))
                print_argument(name, parameters_print(p, id, buffer));
}

/* Prints the parameters that differ from nixlbench's defaults, in KVBench's order. */
static void print_nixlbench(const struct kvbench_options *options,
                            const struct kvbench_parameters *p)
{
        fputs("nixlbench", stdout);
        print_parameter(options, p, KVBENCH_BENCHMARK_GROUP);
        for (int id = 0; id < KVBENCH_N_PARAMETERS; id++)
                if (id != KVBENCH_BENCHMARK_GROUP)
                        print_parameter(options, p, (enum kvbench_parameter)id);
}

static void print_override(const char *name, uint64_t value)
{
        char text[24];

        if (value == 0)
                return;
        snprintf(text, sizeof(text), "%" PRIu64, value);
        print_argument(name, text);
}

/* Prints the command of profile with the options that were given; profile computes the figures
 * itself. */
static void print_kvcache_bench(const struct kvbench_options *options,
                                const struct kvbench_workload *w)
{
        const struct kvbench_overrides *o = &options->overrides;
        char buffer[KVBENCH_NUMBER_BYTES];

        fputs("kvcache-bench profile", stdout);
        print_argument("model", options->model);
        print_argument("model_config", w->config_file);
        print_override("pp", o->pp);
        print_override("tp", o->tp);
        print_override("isl", o->isl);
        print_override("osl", o->osl);
        print_override("num_requests", o->num_requests);
        print_override("page_size", o->page_size);
        if (o->access_pattern)
                print_argument("access_pattern", o->access_pattern);
        print_argument("source", kvbench_place_name(w->source));
        if (w->destination != KVBENCH_PLACE_UNSET)
                print_argument("destination", kvbench_place_name(w->destination));
        print_argument("backend", kvbench_backend_name(w->backend));
        for (int i = 0; i < KVBENCH_N_PARAMETERS; i++) {
                enum kvbench_parameter id = (enum kvbench_parameter)i;

                switch (id) {
                case KVBENCH_BACKEND: /* not printed: given already, or derived from given options
                                       */
                case KVBENCH_OP_TYPE:
                case KVBENCH_INITIATOR_SEG_TYPE:
                case KVBENCH_TARGET_SEG_TYPE:
                case KVBENCH_START_BLOCK_SIZE:
                case KVBENCH_MAX_BLOCK_SIZE:
                case KVBENCH_START_BATCH_SIZE:
                case KVBENCH_MAX_BATCH_SIZE:
                case KVBENCH_TOTAL_BUFFER_SIZE:
                        break;
                default:
                        if (parameters_given(&w->parameters, id))
                                print_argument(kvbench_parameter_rows[id].name,
                                               parameters_print(&w->parameters, id, buffer));
                }
        }
}

static void print_text(const struct kvbench_options *options, const struct kvbench_workload *w)
{
        const struct kvbench_deployment *d = &w->deployment;

        puts(rule);
        fputs("Model Config: ", stdout);
        print_safe(w->config_file, stdout);
        printf("\nISL: %s tokens\n"
               "Page Size: %" PRIu64 "\n"
               "Requests: %s\n"
               "TP: %" PRIu64 "\n"
               "PP: %" PRIu64 "\n",
               d->runtime.isl.text, d->system.page_size, d->runtime.num_requests.text,
               d->strategy.tp_size, d->strategy.pp_size);
        puts(rule);
        if (options->target == KVBENCH_TARGET_KVCACHE_BENCH)
                print_kvcache_bench(options, w);
        else
                print_nixlbench(options, &w->parameters);
        fputs("\n\n", stdout);
}

static cJSON *to_json(const struct kvbench_options *options, const struct kvbench_workload *w)
{
        _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

        for (int i = 0; i < KVBENCH_N_PARAMETERS; i++) {
                enum kvbench_parameter id = (enum kvbench_parameter)i;
                const char *name = parameter_name(options, id);

                if (name && !parameters_add_json(&w->parameters, id, name, object))
                        return NULL;
        }
        if (!cJSON_AddStringToObject(object, "config_file", w->config_file))
                return NULL;
        return TAKE_PTR(object);
}

static int print_as_json(const struct kvbench_options *options, const struct kvbench_set *set)
{
        _cleanup_(cJSON_Deletep) cJSON *array = cJSON_CreateArray();

        for (size_t i = 0; i < set->n; i++) {
                cJSON *object = to_json(options, &set->workloads[i]);

                if (!object || !cJSON_AddItemToArray(array, object)) {
                        cJSON_Delete(object);
                        return complain_memory();
                }
        }
        return kvbench_print_json(options, array);
}

static void print_csv_line(const struct kvbench_options *options, const struct kvbench_workload *w)
{
        const struct kvbench_deployment *d = &w->deployment;
        char buffer[KVBENCH_NUMBER_BYTES];

        for (int i = 0; i < KVBENCH_N_PARAMETERS; i++) {
                enum kvbench_parameter id = (enum kvbench_parameter)i;

                if (parameter_name(options, id))
                        csv_field(stdout, parameters_print(&w->parameters, id, buffer), ',');
        }
        csv_field(stdout, w->config_file, ',');
        csv_field(stdout, w->model->name, ',');
        printf("%" PRIu64 ",%" PRIu64 ",", d->strategy.tp_size, d->strategy.pp_size);
        csv_field(stdout, d->strategy.model_quant_mode, ',');
        csv_field(stdout, d->strategy.kvcache_quant_mode, ',');
        csv_field(stdout, d->runtime.num_requests.text, ',');
        csv_field(stdout, d->runtime.isl.text, ',');
        csv_field(stdout, d->runtime.osl.text, ',');
        csv_field(stdout, d->system.hardware, ',');
        csv_field(stdout, d->system.backend, ',');
        printf("%" PRIu64 ",", d->system.page_size);
        csv_field(stdout, d->system.access_pattern, ',');
        csv_field(stdout, d->system.source, ',');
        csv_field(stdout, d->system.destination, '\n');
}

static void print_csv(const struct kvbench_options *options, const struct kvbench_set *set)
{
        for (int i = 0; i < KVBENCH_N_PARAMETERS; i++)
                if (parameter_name(options, (enum kvbench_parameter)i))
                        printf("%s,", parameter_name(options, (enum kvbench_parameter)i));
        puts("config_file,model,model_strategy_tp_size,model_strategy_pp_size,"
             "model_strategy_model_quant_mode,model_strategy_kvcache_quant_mode,"
             "model_runtime_num_requests,model_runtime_isl,model_runtime_osl,"
             "model_system_hardware,model_system_backend,model_system_page_size,"
             "model_system_access_pattern,model_system_source,model_system_destination");
        for (size_t i = 0; i < set->n; i++)
                print_csv_line(options, &set->workloads[i]);
}

/* Adapts the parameters to KVBench and nixlbench of 2025-06: warns of given parameters that this
 * nixlbench does not have, and replaces the computed buffer size by the given one or the default,
 * because this KVBench did not compute it. */
static void go_back_to_2025_06(const struct kvbench_options *options, struct kvbench_set *set)
{
        const uint64_t total = parameters_number(&options->parameters, KVBENCH_TOTAL_BUFFER_SIZE);

        for (int i = 0; i < KVBENCH_N_PARAMETERS; i++)
                if (parameters_given(&options->parameters, (enum kvbench_parameter)i) &&
                    !kvbench_parameter_rows[i].in_2025_06)
                        complain(0, "warning: --%s is not an option of nixlbench of 2025-06",
                                 kvbench_parameter_rows[i].name);
        for (size_t i = 0; i < set->n; i++)
                set->workloads[i].parameters.value[KVBENCH_TOTAL_BUFFER_SIZE].number = total;
}

static int plan(const struct kvbench_options *options)
{
        _cleanup_(kvbench_set_fini) struct kvbench_set set;
        int status = kvbench_workloads_load(options, &set);

        if (status != EXIT_OK)
                return status;
        if (options->target == KVBENCH_TARGET_NIXLBENCH_2025_06)
                go_back_to_2025_06(options, &set);
        switch (options->format) {
        case KVBENCH_JSON:
                status = print_as_json(options, &set);
                break;
        case KVBENCH_CSV:
                print_csv(options, &set);
                break;
        default:
                for (size_t i = 0; i < set.n; i++)
                        print_text(options, &set.workloads[i]);
        }
        return kvbench_set_exit(&set, status);
}

static int run_plan(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        _cleanup_(kvbench_options_fini) struct kvbench_options options;

        if (!kvbench_options_parse(ctl, self, KVBENCH_PLAN, argc, argv, &options))
                return ctl->exit_status;
        return plan(&options);
}

const struct command command_plan = {
        .name = "plan",
        .arguments = "--model FILE --model_config FILE",
        .summary = "print the benchmark command for a model and a deployment",
        .help = "Computes the size and the number of the I/Os of a KV cache from the model's\n"
                "architecture and a deployment, and prints the command that measures them. The\n"
                "options are those of NIXL's KVBench; '_' and '-' in their names are equivalent.\n"
                "The sizes of blocks, batches and buffers are always the computed ones.",
        .options = kvbench_plan_options,
        .run = run_plan,
};
