/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache-bench kvcache and iosize: print sizes and numbers of I/Os, without a command or a
 * measurement. The text formats are those of KVBench of 2025-06, and the table of kvcache is
 * that of KVBench of 2026. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "csv.h"
#include "commands.h"
#include "human.h"
#include "workload.h"

enum { SIZE_BYTES = 32, N_COLUMNS = 9, CELL_BYTES = 160 };

/* Formats a size such as "72.0 KB": powers of 1024, with two decimals rounded half to even; a
 * trailing zero is dropped unless it is the only decimal. */
static void print_size(uint64_t bytes, char ret[static SIZE_BYTES])
{
        static const char *const units[] = { "B", "KB", "MB", "GB", "TB" };
        double size = (double)bytes;
        size_t power = size > 0 ? (size_t)floor(log(size) / log(1024)) : 0;
        size_t n;

        power = MIN(power, ARRAY_SIZE(units) - 1);
        n = (size_t)snprintf(ret, SIZE_BYTES, "%.2f", size / pow(1024, (double)power));
        if (ret[n - 1] == '0')
                n--;
        snprintf(ret + n, SIZE_BYTES - n, " %s", units[power]);
}

static void print_kvcache_text(const struct kvbench_set *set)
{
        char size[SIZE_BYTES];

        for (size_t i = 0; i < set->n; i++) {
                const struct kvbench_workload *w = &set->workloads[i];

                if (set->n > 1) {
                        fputs(i > 0 ? "\n" : "", stdout);
                        printf("%-23s: ", "Model Config");
                        print_safe(w->config_file, stdout);
                        putchar('\n');
                }
                print_size(w->figures.io_size, size);
                printf("%-23s: ", "Model");
                print_safe(w->model->name, stdout);
                printf("\n%-23s: %s\n", "Input Sequence Length", w->deployment.runtime.isl.text);
                printf("%-23s: %" PRIu64 "\n", "Batch Size", w->figures.batch_size);
                printf("%-23s: %s\n", "IO Size", size);
        }
}

static void print_iosize_text(const struct kvbench_set *set)
{
        for (size_t i = 0; i < set->n; i++) {
                if (set->n > 1) {
                        print_safe(set->workloads[i].config_file, stdout);
                        fputs(": ", stdout);
                }
                printf("IO Size per GPU: %" PRIu64 "\n",
                       set->workloads[i].figures.io_size_one_token);
        }
}

/* The columns of KVBench's table; numbers are right-aligned. */
static const struct column {
        const char *heading;
        bool number;
} columns[N_COLUMNS] = {
        { "Model", false },     { "ISL", true },       { "Num Requests", true },
        { "Batch Size", true }, { "IO Size", false },  { "TP", true },
        { "PP", true },         { "Page Size", true }, { "Access", false },
};

struct cells {
        char text[N_COLUMNS][CELL_BYTES];
};

/* Prints a number. If any number of its column has a fraction, all of them have six decimals. */
static void print_number_cell(char *ret, const struct kvbench_number *number, bool fraction)
{
        if (fraction)
                snprintf(ret, CELL_BYTES, "%.6f", number->value);
        else
                snprintf(ret, CELL_BYTES, "%s", number->text);
}

static bool has_fraction(const struct kvbench_number *number)
{
        return strspn(number->text, "0123456789") != strlen(number->text);
}

static void fill_cells(const struct kvbench_workload *w, bool isl_fraction, bool requests_fraction,
                       struct cells *ret)
{
        const struct kvbench_deployment *d = &w->deployment;

        snprintf(ret->text[0], CELL_BYTES, "%s", w->model->name);
        print_number_cell(ret->text[1], &d->runtime.isl, isl_fraction);
        print_number_cell(ret->text[2], &d->runtime.num_requests, requests_fraction);
        snprintf(ret->text[3], CELL_BYTES, "%" PRIu64, w->figures.batch_size);
        print_size(w->figures.io_size, ret->text[4]);
        snprintf(ret->text[5], CELL_BYTES, "%" PRIu64, d->strategy.tp_size);
        snprintf(ret->text[6], CELL_BYTES, "%" PRIu64, d->strategy.pp_size);
        snprintf(ret->text[7], CELL_BYTES, "%" PRIu64, d->system.page_size);
        snprintf(ret->text[8], CELL_BYTES, "%s", d->system.access_pattern);
}

static void print_table_line(const char *const texts[static N_COLUMNS],
                             const size_t widths[static N_COLUMNS])
{
        size_t owed = 0; /* spaces pending before the next text, so that no line ends with spaces */

        for (size_t i = 0; i < N_COLUMNS; i++) {
                size_t pad = widths[i] - MIN(widths[i], human_width(texts[i]));

                if (columns[i].number)
                        owed += pad;
                if (*texts[i]) {
                        printf("%*s%s", (int)owed, "", texts[i]);
                        owed = 0;
                }
                if (!columns[i].number)
                        owed += pad;
                owed += 2;
        }
        putchar('\n');
}

static int print_table(const struct kvbench_set *set)
{
        _cleanup_(freep) struct cells *cells = calloc(set->n, sizeof(*cells));
        bool isl_fraction = false, requests_fraction = false;
        size_t widths[N_COLUMNS];
        const char *texts[N_COLUMNS];
        static char dashes[CELL_BYTES + 1];

        if (!cells)
                return complain_memory();
        for (size_t i = 0; i < set->n; i++) {
                isl_fraction |= has_fraction(&set->workloads[i].deployment.runtime.isl);
                requests_fraction |=
                        has_fraction(&set->workloads[i].deployment.runtime.num_requests);
        }
        for (size_t k = 0; k < N_COLUMNS; k++)
                widths[k] = strlen(columns[k].heading) + 2;
        for (size_t i = 0; i < set->n; i++) {
                fill_cells(&set->workloads[i], isl_fraction, requests_fraction, &cells[i]);
                for (size_t k = 0; k < N_COLUMNS; k++)
                        widths[k] = MAX(widths[k], human_width(cells[i].text[k]));
        }
        for (size_t k = 0; k < N_COLUMNS; k++)
                texts[k] = columns[k].heading;
        print_table_line(texts, widths);
        memset(dashes, '-', sizeof(dashes) - 1);
        for (size_t k = 0; k < N_COLUMNS; k++)
                texts[k] = dashes + sizeof(dashes) - 1 - widths[k];
        print_table_line(texts, widths);
        for (size_t i = 0; i < set->n; i++) {
                for (size_t k = 0; k < N_COLUMNS; k++)
                        texts[k] = cells[i].text[k];
                print_table_line(texts, widths);
        }
        return EXIT_OK;
}

static bool add_number(cJSON *object, const char *name, uint64_t number)
{
        char text[24];

        snprintf(text, sizeof(text), "%" PRIu64, number);
        return cJSON_AddRawToObject(object, name, text);
}

/* Adds a number in the form in which the file has it: with a fraction if the file has one. */
static bool add_written(cJSON *object, const char *name, const struct kvbench_number *number)
{
        if (has_fraction(number))
                return cJSON_AddNumberToObject(object, name, number->value);
        return cJSON_AddRawToObject(object, name, number->text);
}

static cJSON *to_json(const struct kvbench_workload *w)
{
        _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();
        const struct kvbench_deployment *d = &w->deployment;
        const struct kvbench_figures *f = &w->figures;
        char size[SIZE_BYTES];

        print_size(f->io_size, size);
        if (!cJSON_AddStringToObject(object, "config_file", w->config_file) ||
            !cJSON_AddStringToObject(object, "model", w->model->name) ||
            !add_written(object, "isl", &d->runtime.isl) ||
            !add_written(object, "num_requests", &d->runtime.num_requests) ||
            !add_number(object, "batch_size", f->batch_size) ||
            !add_number(object, "io_size", f->io_size) ||
            !cJSON_AddStringToObject(object, "io_size_text", size) ||
            !add_number(object, "io_size_per_token", f->io_size_one_token) ||
            !add_number(object, "total_buffer_size", f->total_buffer_size) ||
            !add_number(object, "kv_bytes_per_token", f->bytes_per_token) ||
            !add_number(object, "tp_size", d->strategy.tp_size) ||
            !add_number(object, "pp_size", d->strategy.pp_size) ||
            !add_number(object, "page_size", d->system.page_size) ||
            !cJSON_AddStringToObject(object, "access_pattern", d->system.access_pattern))
                return NULL;
        return TAKE_PTR(object);
}

static int print_as_json(const struct kvbench_options *options, const struct kvbench_set *set)
{
        _cleanup_(cJSON_Deletep) cJSON *array = cJSON_CreateArray();

        for (size_t i = 0; i < set->n; i++) {
                cJSON *object = to_json(&set->workloads[i]);

                if (!object || !cJSON_AddItemToArray(array, object)) {
                        cJSON_Delete(object);
                        return complain_memory();
                }
        }
        return kvbench_print_json(options, array);
}

/* Prints the fields of the JSON, in the same order. */
static int print_csv(const struct kvbench_set *set)
{
        for (size_t i = 0; i < set->n; i++) {
                _cleanup_(cJSON_Deletep) cJSON *object = to_json(&set->workloads[i]);
                const cJSON *item;

                if (!object)
                        return complain_memory();
                if (i == 0)
                        cJSON_ArrayForEach(item, object)
                                csv_field(stdout, item->string, item->next ? ',' : '\n');
                cJSON_ArrayForEach(item, object)
                {
                        _cleanup_(freep) char *text =
                                cJSON_IsString(item) ? NULL : cJSON_PrintUnformatted(item);

                        if (!text && !cJSON_IsString(item))
                                return complain_memory();
                        csv_field(stdout, text ? text : item->valuestring, item->next ? ',' : '\n');
                }
        }
        return EXIT_OK;
}

static int figures(const struct kvbench_options *options)
{
        _cleanup_(kvbench_set_fini) struct kvbench_set set;
        int status = kvbench_workloads_load(options, &set);

        if (status != EXIT_OK)
                return status;
        switch (options->format) {
        case KVBENCH_JSON:
                status = print_as_json(options, &set);
                break;
        case KVBENCH_CSV:
                status = print_csv(&set);
                break;
        case KVBENCH_TABLE:
                status = print_table(&set);
                break;
        default:
                if (options->which == KVBENCH_IOSIZE)
                        print_iosize_text(&set);
                else
                        print_kvcache_text(&set);
        }
        return kvbench_set_exit(&set, status);
}

static int run_figures(struct ctl *ctl, const struct command *self, enum kvbench_command which,
                       int argc, char **argv)
{
        _cleanup_(kvbench_options_fini) struct kvbench_options options;

        if (!kvbench_options_parse(ctl, self, which, argc, argv, &options))
                return ctl->exit_status;
        return figures(&options);
}

static int run_kvcache(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        return run_figures(ctl, self, KVBENCH_KVCACHE, argc, argv);
}

static int run_iosize(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        return run_figures(ctl, self, KVBENCH_IOSIZE, argc, argv);
}

const struct command command_kvcache = {
        .name = "kvcache",
        .arguments = "--model FILE --model_config FILE",
        .summary = "compute the size of a model's KV cache in a deployment",
        .help = "Prints the size of one I/O (a page of tokens on one GPU) and the number of I/Os\n"
                "of the requests, over all GPUs. The options are those of NIXL's KVBench; '_' and\n"
                "'-' in their names are equivalent. --source and --destination have no effect\n"
                "here.",
        .options = kvbench_figures_options,
        .run = run_kvcache,
};

const struct command command_iosize = {
        .name = "iosize",
        .arguments = "--model FILE --model_config FILE",
        .summary = "compute the bytes of one token on one GPU",
        .help = "Prints the size of an I/O of one token on one GPU. The options are those of\n"
                "NIXL's KVBench; '_' and '-' in their names are equivalent. --source and\n"
                "--destination have no effect here.",
        .options = kvbench_figures_options,
        .run = run_iosize,
};
