/* SPDX-License-Identifier: Apache-2.0 */
/* Code shared by plan, profile, kvcache and iosize: the options as given, and the workloads that
 * result from them, a model and a number of deployments.
 *
 * kvbench_options_parse() reads a command line; kvbench_workloads_load() reads the files, applies
 * the overrides and computes. Errors are reported on stderr where they are found, with file, line,
 * column and key; an invalid configuration does not stop the others. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cleanup.h"
#include "data-file.h"
#include "deployment.h"
#include "formula.h"
#include "gpu-shape.h"
#include "model.h"
#include "options.h"
#include "parameters.h"

/* Source and destination of bytes. */
enum kvbench_place {
        KVBENCH_PLACE_UNSET,
        KVBENCH_PLACE_FILE,
        KVBENCH_PLACE_MEMORY,
        KVBENCH_PLACE_GPU,
        KVBENCH_PLACE_OBJ,
};

enum kvbench_op { KVBENCH_READ, KVBENCH_WRITE };

enum kvbench_format { KVBENCH_TEXT, KVBENCH_JSON, KVBENCH_CSV, KVBENCH_TABLE, KVBENCH_N_FORMATS };

/* The tool whose command plan prints. */
enum kvbench_target {
        KVBENCH_TARGET_NIXLBENCH,
        KVBENCH_TARGET_NIXLBENCH_2025_06,
        KVBENCH_TARGET_KVCACHE_BENCH,
};

/* A backend of KVBench, which determines the rules for source and destination. */
enum kvbench_backend {
        KVBENCH_BACKEND_KVCACHE, /* moves blocks through the daemon */
        KVBENCH_BACKEND_RAW,     /* reads and writes a file directly */
        KVBENCH_BACKEND_GDS,
        KVBENCH_BACKEND_GDS_MT,
        KVBENCH_BACKEND_POSIX, /* profile: another name of RAW */
        KVBENCH_BACKEND_HF3FS,
        KVBENCH_BACKEND_OBJ,
        KVBENCH_BACKEND_UCX,
        KVBENCH_BACKEND_GPUNETIO,
        KVBENCH_BACKEND_MOONCAKE,
        KVBENCH_N_BACKENDS
};

/* profile: how RAW and the embedded daemon do their I/O. */
enum kvbench_io { KVBENCH_IO_AUTO, KVBENCH_IO_URING, KVBENCH_IO_POSIX };

enum kvbench_command { KVBENCH_PLAN, KVBENCH_PROFILE, KVBENCH_KVCACHE, KVBENCH_IOSIZE };

/* The command line. Texts are borrowed from argv. */
struct kvbench_options {
        const struct command *self;
        enum kvbench_command which;
        bool debug; /* explain on stderr how numbers are computed */

        const char *model;
        const char *model_config;   /* NULL: none */
        const char **model_configs; /* patterns, and names into which the shell expanded patterns */
        size_t n_model_configs;

        struct kvbench_overrides overrides; /* --pp --tp --isl ... */

        enum kvbench_place source, destination; /* UNSET: not given */
        enum kvbench_format format;
        bool json_object; /* --json: one object, as all commands print; --format json: an array */
        enum kvbench_target target; /* plan: the tool whose command is printed */

        /* The benchmark's own options, indexed by kvbench_parameter_rows; those not given have
         * nixlbench's defaults. parameters_given(&o->parameters, KVBENCH_NUM_ITER) tells whether
         * one was on the command line. profile has its own defaults for some that were not. */
        struct kvbench_parameters parameters;

        /* Members for profile only. */
        enum kvbench_io io;
        bool cold;
        bool no_raw;                     /* KVCACHE alone, without RAW */
        enum kvcache_layout_kind layout; /* layout of blocks in GPU memory */
        uint64_t gpu;                    /* ordinal of the device */
        bool gpu_given;                  /* `layout` or `gpu` was given */
};

/* One model and deployment, and the numbers computed from them. */
struct kvbench_workload {
        char *config_file;                    /* name as given, or as found by the pattern */
        char shown[KVBENCH_SHOWN_BYTES];      /* name for messages: yaml_file_shown() */
        const struct kvbench_model *model;    /* shared by all workloads */
        struct kvbench_deployment deployment; /* with the overrides applied */
        struct kvbench_figures figures;       /* io_size, batch_size, total_buffer_size, ... */

        /* For plan and profile. `source`: --source, else system.source of the configuration file,
         * else KVBENCH_PLACE_FILE; `destination`: --destination, else system.destination, else
         * KVBENCH_PLACE_UNSET. */
        enum kvbench_backend backend; /* value of --backend; profile's default is KVCACHE */
        enum kvbench_place source, destination;
        enum kvbench_op op; /* direction; the source determines it for a storage backend */

        /* The options with all computed values, which plan prints. start_block_size,
         * max_block_size, start_batch_size, max_batch_size and total_buffer_size come from
         * `figures`; for profile, values that were given on the command line take precedence. */
        struct kvbench_parameters parameters;
};

struct kvbench_set {
        struct kvbench_model *model;
        struct kvbench_workload *workloads; /* in the order of the command line; matches of a
                                               pattern are sorted */
        size_t n;
        size_t n_failed; /* invalid configurations, which have been reported: the exit status is
                            not 0 */
};

/* The tables of options of the four commands, for their struct command. */
extern const struct option_row kvbench_plan_options[], kvbench_profile_options[],
        kvbench_figures_options[];

/* Parses the command line. Returns false if the command must return ctl->exit_status, after an
 * error was reported or --help printed. kvbench_options_fini() must follow in both cases. */
bool kvbench_options_parse(struct ctl *ctl, const struct command *self, enum kvbench_command which,
                           int argc, char **argv, struct kvbench_options *ret);
void kvbench_options_fini(struct kvbench_options *options);

/* Loads the workloads. Returns EXIT_OK with at least one workload; otherwise the exit status after
 * reporting the failure. kvbench_set_fini() must follow in both cases. For plan and profile, the
 * rules of the backend are applied: a source that it cannot serve is an error of that
 * configuration. */
int kvbench_workloads_load(const struct kvbench_options *options, struct kvbench_set *ret);
void kvbench_set_fini(struct kvbench_set *set);
/* Returns the exit status of the command after all workloads: `status`, or KVBENCH_FAILED if
 * configurations were invalid. */
int kvbench_set_exit(const struct kvbench_set *set, int status);

/* Prints the configurations in the form of --format json, or --json. Returns an exit status. */
int kvbench_print_json(const struct kvbench_options *options, cJSON *configurations);

const char *kvbench_place_name(enum kvbench_place place);
const char *kvbench_backend_name(enum kvbench_backend backend);
/* Parses "file", "memory", "gpu" or "obj". Returns 0 or -EINVAL. */
int kvbench_place_parse(const char *text, enum kvbench_place *ret);

/* Returns whether the blocks are in GPU memory: the source or the destination is, or the backend is
 * GDS or GDS_MT. */
bool kvbench_uses_gpu(const struct kvbench_workload *w);

/* Sets backend, source, destination, op, and dependent values of w->parameters. Returns EXIT_OK, or
 * another status after reporting the failure with w->config_file. */
int kvbench_backend_apply(const struct kvbench_options *options, struct kvbench_workload *w);
