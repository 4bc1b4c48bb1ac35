/* SPDX-License-Identifier: Apache-2.0 */
/* profile: runs planned workloads through the daemon, and on RAW for comparison.
 *
 * Each configuration runs one job (profile-job.h) for each block and batch size between start and
 * max. A failed configuration does not stop the others; Ctrl-C stops all, and cleans up.
 *
 * An option that has no effect on the run is refused, or listed on stderr as unused. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "checked.h"
#include "commands.h"
#include "common.h"
#include "gpu-memory.h"
#include "profile-job.h"
#include "profile.h"
#include "report.h"
#include "workload.h"
#include "interrupt.h"

/* --- the options --- */

/* Parameters that concern other machines, backends or tools, and are ignored. */
static const enum kvbench_parameter not_used[] = {
        KVBENCH_DEVICE_LIST,
        KVBENCH_ENABLE_PT,
        KVBENCH_PROGRESS_THREADS,
        KVBENCH_ETCD_ENDPOINTS,
        KVBENCH_ENABLE_VMM,
        KVBENCH_GDS_BATCH_POOL_SIZE,
        KVBENCH_GDS_BATCH_LIMIT,
        KVBENCH_NUM_FILES,
        KVBENCH_RUNTIME_TYPE,
        KVBENCH_WORKER_TYPE,
        KVBENCH_BENCHMARK_GROUP,
        KVBENCH_GDS_MT_NUM_THREADS,
        KVBENCH_GPUNETIO_DEVICE_LIST,
        KVBENCH_GPUNETIO_OOB_LIST,
        KVBENCH_HF3FS_IOPOOL_SIZE,
        KVBENCH_OBJ_ACCESS_KEY,
        KVBENCH_OBJ_SECRET_KEY,
        KVBENCH_OBJ_SESSION_TOKEN,
        KVBENCH_OBJ_BUCKET_NAME,
        KVBENCH_OBJ_SCHEME,
        KVBENCH_OBJ_REGION,
        KVBENCH_OBJ_USE_VIRTUAL_ADDRESSING,
        KVBENCH_OBJ_ENDPOINT_OVERRIDE,
        KVBENCH_OBJ_REQ_CHECKSUM,
        KVBENCH_OBJ_CA_BUNDLE,
        KVBENCH_LARGE_BLK_ITER_FTR,
        KVBENCH_RECREATE_XFER,
        KVBENCH_POSIX_API_TYPE,
};

static void add_name(char *list, size_t room, enum kvbench_parameter id)
{
        size_t n = strlen(list);

        snprintf(list + n, room - n, "%s--%s", n ? ", " : "", kvbench_parameter_rows[id].name);
}

static void say_not_used(const struct kvbench_parameters *p)
{
        char list[ARRAY_SIZE(not_used) * OPTION_NAME_BYTES + OPTION_NAME_BYTES] = "";

        for (unsigned i = 0; i < ARRAY_SIZE(not_used); i++)
                if (parameters_given(p, not_used[i]))
                        add_name(list, sizeof(list), not_used[i]);
        /* This option has no effect: I/O is always direct if the file system supports it. */
        if (parameters_given(p, KVBENCH_STORAGE_ENABLE_DIRECT) &&
            parameters_number(p, KVBENCH_STORAGE_ENABLE_DIRECT) == 0)
                add_name(list, sizeof(list), KVBENCH_STORAGE_ENABLE_DIRECT);
        if (*list)
                complain(EXIT_OK, "profile does not use these options: %s", list);
}

static bool given_as_not(const struct kvbench_parameters *p, enum kvbench_parameter id,
                         const char *text)
{
        return parameters_given(p, id) && strcmp(parameters_text(p, id), text) != 0;
}

/* Refuses parameters that one process on one host cannot serve. Returns an exit status. */
static int check_options(const struct kvbench_parameters *p)
{
        static const enum kvbench_parameter devices[] = { KVBENCH_NUM_INITIATOR_DEV,
                                                          KVBENCH_NUM_TARGET_DEV };

        if (given_as_not(p, KVBENCH_SCHEME, "pairwise"))
                return complain(KVBENCH_FAILED,
                                "--scheme %s: profile runs on one host and supports only pairwise",
                                parameters_text(p, KVBENCH_SCHEME));
        if (given_as_not(p, KVBENCH_MODE, "SG"))
                return complain(KVBENCH_FAILED,
                                "--mode %s: profile runs as one process and supports only SG",
                                parameters_text(p, KVBENCH_MODE));
        for (unsigned i = 0; i < ARRAY_SIZE(devices); i++)
                if (parameters_given(p, devices[i]) && parameters_number(p, devices[i]) != 1)
                        return complain(KVBENCH_FAILED, "--%s %" PRIu64 ": profile supports only 1",
                                        kvbench_parameter_rows[devices[i]].name,
                                        parameters_number(p, devices[i]));
        if (parameters_number(p, KVBENCH_NUM_THREADS) < 1 ||
            parameters_number(p, KVBENCH_NUM_THREADS) > PROFILE_MAX_CLIENTS)
                return complain(KVBENCH_FAILED,
                                "--num_threads %" PRIu64 ": profile supports 1 to %d clients",
                                parameters_number(p, KVBENCH_NUM_THREADS), PROFILE_MAX_CLIENTS);
        if (parameters_given(p, KVBENCH_NUM_ITER) && parameters_number(p, KVBENCH_NUM_ITER) < 1)
                return complain(KVBENCH_FAILED,
                                "--num_iter 0: nothing would be measured; use 1 or more");
        return EXIT_OK;
}

/* Checks that the GPU exists if the workload has blocks in GPU memory, and that the segment types
 * do not require a GPU if it has none. Returns an exit status. */
static int check_gpu(const struct kvbench_options *options, const struct kvbench_workload *w)
{
        static const enum kvbench_parameter segments[] = { KVBENCH_INITIATOR_SEG_TYPE,
                                                           KVBENCH_TARGET_SEG_TYPE };
        const struct kvbench_parameters *p = &w->parameters;
        char why[GPU_MEMORY_TEXT];

        if (!kvbench_uses_gpu(w)) {
                for (unsigned i = 0; i < ARRAY_SIZE(segments); i++)
                        if (parameters_given(p, segments[i]) &&
                            strcasecmp(parameters_text(p, segments[i]), "VRAM") == 0)
                                return complain(
                                        KVBENCH_FAILED,
                                        "%s: --%s VRAM: this workload has no GPU memory; use "
                                        "--source gpu, or --source file --destination gpu",
                                        w->shown, kvbench_parameter_rows[segments[i]].name);
                if (options->gpu_given)
                        complain(EXIT_OK,
                                 "%s: --layout and --gpu are not used: no block is in GPU memory",
                                 w->shown);
                return EXIT_OK;
        }
        if (options->gpu > INT_MAX)
                return complain(KVBENCH_FAILED, "--gpu %" PRIu64 ": this host has no such GPU",
                                options->gpu);
        if (gpu_memory_probe((int)options->gpu, why) < 0)
                return complain(KVBENCH_FAILED,
                                "%s: this workload needs a GPU: %s. Use --source memory or "
                                "--source file to run without a GPU.",
                                w->shown, why);
        return EXIT_OK;
}

static int check_workload(const struct kvbench_options *options, const struct kvbench_workload *w)
{
        const struct kvbench_parameters *p = &w->parameters;
        const char *op = w->op == KVBENCH_WRITE ? "WRITE" : "READ";

        if (check_gpu(options, w) != EXIT_OK)
                return KVBENCH_FAILED;
        switch (w->backend) {
        case KVBENCH_BACKEND_KVCACHE:
        case KVBENCH_BACKEND_GDS:
        case KVBENCH_BACKEND_RAW:
        case KVBENCH_BACKEND_POSIX:
                break;
        default:
                return complain(KVBENCH_FAILED,
                                "%s: --backend %s: profile supports KVCACHE (through the daemon), "
                                "RAW (also called POSIX: directly on a file) and GDS",
                                w->shown, kvbench_backend_name(w->backend));
        }
        if (w->source == KVBENCH_PLACE_OBJ)
                return complain(KVBENCH_FAILED,
                                "%s: --source obj: profile supports file, memory and gpu",
                                w->shown);
        if (w->destination != KVBENCH_PLACE_UNSET && w->destination == w->source)
                return complain(KVBENCH_FAILED,
                                "%s: from %s to %s: profile moves blocks from memory or a GPU to a "
                                "file, or back",
                                w->shown, kvbench_place_name(w->source),
                                kvbench_place_name(w->destination));
        if (w->destination == KVBENCH_PLACE_OBJ)
                return complain(KVBENCH_FAILED,
                                "%s: --destination obj: profile supports file, memory and gpu",
                                w->shown);
        if (parameters_given(p, KVBENCH_OP_TYPE) &&
            strcasecmp(parameters_text(p, KVBENCH_OP_TYPE), op) != 0)
                return complain(
                        KVBENCH_FAILED,
                        "%s: --op_type %s contradicts --source %s, which makes the operation a %s",
                        w->shown, parameters_text(p, KVBENCH_OP_TYPE),
                        kvbench_place_name(w->source), op);
        return EXIT_OK;
}

/* --- the runs --- */

/* Runs a job for every block size and batch size from start to max, doubling, as nixlbench does.
 * Returns the largest exit status of the jobs, or that of invalid options. */
static int run_workload(struct ctl *ctl, const struct kvbench_options *options,
                        const struct kvbench_workload *w, struct report *report)
{
        const struct kvbench_parameters *p = &w->parameters;
        uint64_t block_max = parameters_number(p, KVBENCH_MAX_BLOCK_SIZE),
                 batch_max = parameters_number(p, KVBENCH_MAX_BATCH_SIZE),
                 bytes_max = parameters_number(p, KVBENCH_TOTAL_BUFFER_SIZE);
        uint64_t block = parameters_number(p, KVBENCH_START_BLOCK_SIZE);
        int status = check_workload(options, w), worst = status;

        if (status != EXIT_OK)
                return status;
        if (block < 1 || block > block_max)
                return complain(
                        KVBENCH_FAILED,
                        "%s: --start_block_size must be from 1 to --max_block_size, %" PRIu64
                        ", not %" PRIu64,
                        w->shown, block_max, block);
        if (parameters_number(p, KVBENCH_START_BATCH_SIZE) < 1 ||
            parameters_number(p, KVBENCH_START_BATCH_SIZE) > batch_max)
                return complain(
                        KVBENCH_FAILED,
                        "%s: --start_batch_size must be from 1 to --max_batch_size, %" PRIu64
                        ", not %" PRIu64,
                        w->shown, batch_max, parameters_number(p, KVBENCH_START_BATCH_SIZE));
        for (; block <= block_max && !interrupted; block *= 2) {
                uint64_t batch = parameters_number(p, KVBENCH_START_BATCH_SIZE);

                for (; batch <= batch_max && !interrupted; batch *= 2) {
                        uint64_t n = batch;

                        if (parameters_given(p, KVBENCH_TOTAL_BUFFER_SIZE) &&
                            bytes_max / block < n) {
                                n = bytes_max / block;
                                complain(EXIT_OK,
                                         "%s: --total_buffer_size %" PRIu64
                                         " has room for only %" PRIu64 " blocks of %" PRIu64
                                         " bytes, so no batch has more",
                                         w->shown, bytes_max, n, block);
                                if (n == 0)
                                        return KVBENCH_FAILED;
                        }
                        status = profile_job_run(ctl, options, w, report, block, n, &interrupted);
                        worst = MAX(worst, status);
                        if (batch > UINT64_MAX / 2)
                                break;
                }
                if (block > UINT64_MAX / 2)
                        break;
        }
        return worst;
}

static int run_profile(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct kvbench_options options;
        struct kvbench_set set = { 0 };
        struct report report;
        int status, worst = EXIT_OK;

        if (!kvbench_options_parse(ctl, self, KVBENCH_PROFILE, argc, argv, &options)) {
                kvbench_options_fini(&options);
                return ctl->exit_status;
        }
        status = check_options(&options.parameters);
        if (status == EXIT_OK)
                status = kvbench_workloads_load(&options, &set);
        if (status != EXIT_OK) {
                kvbench_set_fini(&set);
                kvbench_options_fini(&options);
                return status;
        }
        say_not_used(&options.parameters);
        interrupt_catch_always();
        report_init(&report, &options);
        for (size_t i = 0; i < set.n && !interrupted; i++) {
                status = run_workload(ctl, &options, &set.workloads[i], &report);
                worst = MAX(worst, status);
        }
        status = report_end(&report);
        worst = MAX(worst, status);
        if (interrupted)
                worst = complain(EXIT_INTERRUPTED,
                                 "profile: interrupted; the remaining runs are not reported");
        worst = kvbench_set_exit(&set, worst);
        kvbench_set_fini(&set);
        kvbench_options_fini(&options);
        return worst;
}

const struct command command_profile = {
        .name = "profile",
        .arguments = "",
        .summary = "run the planned I/O through the daemon, in turns with RAW",
        .help = "Moves the blocks of a model and a deployment through the daemon, and reports\n"
                "bandwidth (10^9 bytes a second) and latencies. --source memory writes them; "
                "--source\n"
                "file reads the blocks of an earlier write. Every byte that is read is compared,\n"
                "outside of the measured time; a write is read back from disk at the end. In "
                "turns\n"
                "with each pass, the same I/O goes directly to or from a file on the same disk: "
                "RAW.\n"
                "\n"
                "If a block is missing, short or wrong, or the daemon ends, the run ends with\n"
                "status 1. If no daemon answers, one is started on a store in a temporary\n"
                "directory ($TMPDIR, else /var/tmp), and both are removed at the end; with\n"
                "--filepath DIR the store is in DIR and is kept, for --source file to read.\n"
                "\n"
                "--source gpu and --destination gpu have the blocks in the memory of a GPU "
                "(--gpu), in\n"
                "an engine's --layout; the CUDA driver is loaded at run time.\n"
                "\n"
                "Backends: KVCACHE (through the daemon; the default), RAW or POSIX (a file, no\n"
                "daemon), GDS (GPU and storage, through the daemon). The chains of --num_requests "
                "users are moved at\n"
                "the same time, over --num_threads connections. --num_iter and --warmup_iter are\n"
                "3 and 1 by default.\n"
                "\n"
                "client/TUTORIAL.md is the tutorial.",
        .options = kvbench_profile_options,
        .run = run_profile,
};
