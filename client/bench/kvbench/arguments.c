/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the command lines of plan, profile, kvcache and iosize: KVBench's options, with '_' or '-'
 * in their names, and our own. Numbers are parsed as KVBench does, with blanks around them and '_'
 * between digits. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "checked.h"
#include "units.h"
#include "workload.h"
#include "yaml-file.h"

enum {
        OPTION_MODEL = OPTION_LONG,
        OPTION_MODEL_CONFIG,
        OPTION_MODEL_CONFIGS,
        OPTION_PP,
        OPTION_TP,
        OPTION_ISL,
        OPTION_OSL,
        OPTION_NUM_REQUESTS,
        OPTION_PAGE_SIZE,
        OPTION_ACCESS_PATTERN,
        OPTION_SOURCE,
        OPTION_DESTINATION,
        OPTION_FORMAT,
        OPTION_TARGET,
        OPTION_GDS_FILEPATH,
        OPTION_IO,
        OPTION_COLD,
        OPTION_NO_RAW,
        OPTION_LAYOUT,
        OPTION_GPU,
        OPTION_PARAMETER, /* plus enum kvbench_parameter */
};

#define FILE_OPTIONS                                                                               \
        { OPTION_MODEL, "model", "FILE",                                                           \
          "the model's architecture: a file, or a name\n"                                          \
          "such as llama_3_1_8b",                                                                  \
          "@models" },                                                                             \
                { OPTION_MODEL_CONFIG, "model_config", "FILE", "a deployment (conf/deployments)",  \
                  "@deployments" },                                                                \
                { OPTION_MODEL_CONFIGS, "model_configs", "GLOB",                                   \
                  "deployments, by a pattern; may be given again, and be\n"                        \
                  "followed by files",                                                             \
                  "@deployments" },                                                                \
                { OPTION_PP, "pp", "N", "instead of the file's strategy.pp_size" },                \
                { OPTION_TP, "tp", "N", "instead of strategy.tp_size" },                           \
                { OPTION_ISL, "isl", "TOKENS", "instead of runtime.isl" },                         \
                { OPTION_OSL, "osl", "TOKENS", "instead of runtime.osl (enters no formula)" },     \
                { OPTION_NUM_REQUESTS, "num_requests", "N", "instead of runtime.num_requests" },   \
                { OPTION_PAGE_SIZE, "page_size", "TOKENS", "instead of system.page_size" },        \
        {                                                                                          \
                OPTION_ACCESS_PATTERN, "access_pattern", "HOW",                                    \
                        "block or layer, instead of system.access_pattern", "block layer"          \
        }

#define PLACE_OPTIONS                                                                              \
        { OPTION_SOURCE, "source", "PLACE",                                                        \
          "file, memory or gpu (default: the file's system.source,\n"                              \
          "else file)",                                                                            \
          "file memory gpu" },                                                                     \
        {                                                                                          \
                OPTION_DESTINATION, "destination", "PLACE",                                        \
                        "file, memory or gpu (default: system.destination)", "file memory gpu"     \
        }

#define X(id, name, kind, number, text, in_2025_06, argument, help)                                \
        { OPTION_PARAMETER + KVBENCH_##id, name, argument, help },
#define PARAMETER_OPTIONS                                                                          \
        KVBENCH_PARAMETERS(X)                                                                      \
        {                                                                                          \
                OPTION_GDS_FILEPATH, "gds_filepath", "DIR", "the same as --filepath"               \
        }

const struct option_row kvbench_plan_options[] = {
        FILE_OPTIONS,
        { OPTION_FORMAT, "format", "FORMAT", "text, json or csv (default: text)", "text json csv" },
        { OPTION_TARGET, "target", "TOOL",
          "whose command to print: nixlbench, nixlbench-2025.06 or\n"
          "kvcache-bench (default: nixlbench)",
          "nixlbench nixlbench-2025.06 kvcache-bench" },
        PLACE_OPTIONS,
        PARAMETER_OPTIONS,
        { 0 },
};

const struct option_row kvbench_profile_options[] = {
        FILE_OPTIONS,
        { OPTION_FORMAT, "format", "FORMAT", "text, json or csv (default: text)", "text json csv" },
        PLACE_OPTIONS,
        { OPTION_IO, "io", "HOW", "uring or posix (default: the best that works here)",
          "uring posix" },
        { OPTION_COLD, "cold", NULL, "drop cached blocks before reading them" },
        { OPTION_NO_RAW, "no_raw", NULL, "do not measure RAW beside the daemon" },
        { OPTION_LAYOUT, "layout", "LAYOUT",
          "layout of blocks in GPU memory: contiguous, block-first\n"
          "or outer-first (default: outer-first)",
          "contiguous block-first outer-first" },
        { OPTION_GPU, "gpu", "N", "which GPU (default: 0)" },
        PARAMETER_OPTIONS,
        { 0 },
};

const struct option_row kvbench_figures_options[] = {
        FILE_OPTIONS,
        { OPTION_FORMAT, "format", "FORMAT", "text, table, json or csv (default: text)",
          "text table json csv" },
        PLACE_OPTIONS,
        { 0 },
};
#undef X

/* Returns the name of an option, for messages. */
static const char *option_name(const struct command *self, int id)
{
        for (const struct option_row *row = self->options; row->id; row++)
                if (row->id == id)
                        return row->name;
        return "?";
}

/* Parses a count such as "1_000" or " 12 ", from `least` to 2^53. Returns false after reporting any
 * other text and setting ctl->exit_status. */
static bool parse_count(struct ctl *ctl, const struct command *self, int id, const char *text,
                        uint64_t least, uint64_t *ret)
{
        const char *p = text + strspn(text, " \t");
        char digits[32];
        size_t used = 0;
        uint64_t n = 0;

        for (;
             isdigit((unsigned char)*p) || (used > 0 && *p == '_' && isdigit((unsigned char)p[1]));
             p++)
                if (*p != '_' && used < sizeof(digits) - 1) { /* longer numbers exceed 2^53
                                                                 anyway */
                        if (used == 1 && digits[0] == '0')
                                used = 0;
                        digits[used++] = *p;
                }
        digits[used] = '\0';
        p += strspn(p, " \t");
        if (*p != '\0' || units_parse_count(digits, &n) < 0 || n < least || n > YAML_FILE_MOST) {
                ctl->exit_status =
                        usage_error(self, "--%s: '%s' is not a whole number from %llu to 2^53",
                                    option_name(self, id), text, (unsigned long long)least);
                return false;
        }
        *ret = n;
        return true;
}

/* Returns the Boolean that a text stands for, or -1. */
static int parse_truth(const char *text)
{
        static const char *const words[] = { "false", "true", "0", "1", "no",  "yes",
                                             "n",     "y",    "f", "t", "off", "on" };

        for (size_t i = 0; i < ARRAY_SIZE(words); i++)
                if (strcasecmp(text, words[i]) == 0)
                        return i % 2;
        return -1;
}

static bool wrong_word(struct ctl *ctl, const struct command *self, int id, const char *text,
                       const char *words)
{
        ctl->exit_status = usage_error(self, "--%s: '%s' is not one of %s", option_name(self, id),
                                       text, words);
        return false;
}

static bool parse_format(struct ctl *ctl, const char *text, struct kvbench_options *ret)
{
        if (strcmp(text, "text") == 0)
                ret->format = KVBENCH_TEXT;
        else if (strcmp(text, "json") == 0)
                ret->format = KVBENCH_JSON;
        else if (strcmp(text, "csv") == 0)
                ret->format = KVBENCH_CSV;
        else if (strcmp(text, "table") == 0 &&
                 (ret->which == KVBENCH_KVCACHE || ret->which == KVBENCH_IOSIZE))
                ret->format = KVBENCH_TABLE;
        else if (ret->which == KVBENCH_PLAN) { /* KVBench ignores it silently; warn */
                complain(0, "warning: --format: '%s' is not one of text, json, csv; using text",
                         text);
                ret->format = KVBENCH_TEXT;
        } else
                return wrong_word(ctl, ret->self, OPTION_FORMAT, text,
                                  ret->which == KVBENCH_PROFILE ? "text, json, csv"
                                                                : "text, table, json, csv");
        return true;
}

static bool parse_target(struct ctl *ctl, const char *text, struct kvbench_options *ret)
{
        if (strcmp(text, "nixlbench") == 0)
                ret->target = KVBENCH_TARGET_NIXLBENCH;
        else if (strcmp(text, "nixlbench-2025.06") == 0)
                ret->target = KVBENCH_TARGET_NIXLBENCH_2025_06;
        else if (strcmp(text, "kvcache-bench") == 0 || strcmp(text, "kvcachectl") == 0)
                ret->target = KVBENCH_TARGET_KVCACHE_BENCH;
        else
                return wrong_word(ctl, ret->self, OPTION_TARGET, text,
                                  "nixlbench, nixlbench-2025.06, kvcache-bench");
        return true;
}

static bool parse_place(struct ctl *ctl, int id, const char *text, enum kvbench_place *ret,
                        const struct kvbench_options *options)
{
        if (kvbench_place_parse(text, ret) < 0)
                return wrong_word(ctl, options->self, id, text, "file, memory, gpu");
        return true;
}

static bool parse_parameter(struct ctl *ctl, enum kvbench_parameter id, const char *text,
                            char **argv, struct kvbench_options *ret)
{
        struct kvbench_parameters *p = &ret->parameters;
        const char *next = argv[optind];
        int truth;

        switch (kvbench_parameter_rows[id].kind) {
        case KVBENCH_WORD:
                p->value[id].text = text;
                break;
        case KVBENCH_COUNT:
                if (!parse_count(ctl, ret->self, OPTION_PARAMETER + (int)id, text, 0,
                                 &p->value[id].number))
                        return false;
                break;
        case KVBENCH_FLAG: /* alone, "=true", or followed by a Boolean */
                truth = text ? parse_truth(text) : 1;
                if (!text && next && parse_truth(next) >= 0) {
                        truth = parse_truth(next);
                        optind++;
                }
                if (truth < 0)
                        return wrong_word(ctl, ret->self, OPTION_PARAMETER + (int)id, text,
                                          "true, false");
                p->value[id].number = (uint64_t)truth;
                break;
        }
        p->given |= UINT64_C(1) << id;
        return true;
}

static bool parse_option(struct ctl *ctl, int id, const char *text, char **argv,
                         struct kvbench_options *ret)
{
        const struct command *self = ret->self;

        if (id >= OPTION_PARAMETER)
                return parse_parameter(ctl, id - OPTION_PARAMETER, text, argv, ret);
        switch (id) {
        case OPTION_MODEL:
                ret->model = text;
                return true;
        case OPTION_MODEL_CONFIG:
                ret->model_config = text;
                return true;
        case OPTION_MODEL_CONFIGS:
                ret->model_configs[ret->n_model_configs++] = text;
                return true;
        case OPTION_PP:
                return parse_count(ctl, self, id, text, 1, &ret->overrides.pp);
        case OPTION_TP:
                return parse_count(ctl, self, id, text, 1, &ret->overrides.tp);
        case OPTION_ISL:
                return parse_count(ctl, self, id, text, 1, &ret->overrides.isl);
        case OPTION_OSL:
                return parse_count(ctl, self, id, text, 1, &ret->overrides.osl);
        case OPTION_NUM_REQUESTS:
                return parse_count(ctl, self, id, text, 1, &ret->overrides.num_requests);
        case OPTION_PAGE_SIZE:
                return parse_count(ctl, self, id, text, 1, &ret->overrides.page_size);
        case OPTION_ACCESS_PATTERN:
                if (strlen(text) >= KVBENCH_WORD_BYTES)
                        return wrong_word(ctl, self, id, text, "block, layer");
                ret->overrides.access_pattern = *text ? text : NULL;
                return true;
        case OPTION_SOURCE:
                return parse_place(ctl, id, text, &ret->source, ret);
        case OPTION_DESTINATION:
                return parse_place(ctl, id, text, &ret->destination, ret);
        case OPTION_FORMAT:
                return parse_format(ctl, text, ret);
        case OPTION_TARGET:
                return parse_target(ctl, text, ret);
        case OPTION_GDS_FILEPATH:
                return parse_parameter(ctl, KVBENCH_FILEPATH, text, argv, ret);
        case OPTION_IO:
                if (strcmp(text, "uring") != 0 && strcmp(text, "posix") != 0)
                        return wrong_word(ctl, self, id, text, "uring, posix");
                ret->io = *text == 'u' ? KVBENCH_IO_URING : KVBENCH_IO_POSIX;
                return true;
        case OPTION_COLD:
                ret->cold = true;
                return true;
        case OPTION_NO_RAW:
                ret->no_raw = true;
                return true;
        case OPTION_LAYOUT:
                ret->gpu_given = true;
                if (gpu_shape_kind_parse(text, &ret->layout) < 0)
                        return wrong_word(ctl, self, id, text,
                                          "contiguous, block-first, outer-first");
                return true;
        case OPTION_GPU:
                ret->gpu_given = true;
                return parse_count(ctl, self, id, text, 0, &ret->gpu);
        default:
                return true;
        }
}

/* Checks that required options are given, and takes the operands. Returns false after reporting an
 * error and setting ctl->exit_status. */
static bool check_operands(struct ctl *ctl, int argc, char **argv, int first,
                           struct kvbench_options *ret)
{
        if (!ret->model) {
                ctl->exit_status = usage_error(ret->self, "--model is missing");
                return false;
        }
        if (first < argc && ret->n_model_configs == 0) {
                ctl->exit_status = usage_error(ret->self,
                                               "unexpected argument '%s'; deployment files follow "
                                               "--model_config or --model_configs",
                                               argv[first]);
                return false;
        }
        if (!ret->model_config && ret->n_model_configs == 0) {
                ctl->exit_status =
                        usage_error(ret->self, "--model_config or --model_configs is missing");
                return false;
        }
        /* The remaining operands are names into which the shell expanded the pattern. */
        for (; first < argc; first++)
                ret->model_configs[ret->n_model_configs++] = argv[first];
        return true;
}

bool kvbench_options_parse(struct ctl *ctl, const struct command *self, enum kvbench_command which,
                           int argc, char **argv, struct kvbench_options *ret)
{
        const char *text = NULL;
        int id, first = argc;

        *ret = (struct kvbench_options){
                .self = self,
                .which = which,
                .debug = ctl->debug,
                .layout = KVCACHE_LAYOUT_OUTER_FIRST,
        };
        parameters_init(&ret->parameters);
        ret->model_configs = calloc((size_t)argc + 1, sizeof(*ret->model_configs));
        if (!ret->model_configs) {
                ctl->exit_status = complain_memory();
                return false;
        }
        ret->format = KVBENCH_N_FORMATS;
        while ((id = option_next(ctl, self, argc, argv, &text, &first)) > 0)
                if (!parse_option(ctl, id, text, argv, ret))
                        return false;
        if (id < 0)
                return false;
        if (ctl->json && ret->format != KVBENCH_N_FORMATS && ret->format != KVBENCH_JSON) {
                ctl->exit_status =
                        usage_error(self, "--json cannot be combined with another --format");
                return false;
        }
        ret->json_object = ctl->json;
        if (ret->format == KVBENCH_N_FORMATS)
                ret->format = ctl->json ? KVBENCH_JSON : KVBENCH_TEXT;
        return check_operands(ctl, argc, argv, first, ret);
}

void kvbench_options_fini(struct kvbench_options *options)
{
        free(options->model_configs);
        options->model_configs = NULL;
}
