/* SPDX-License-Identifier: Apache-2.0 */
/* One job: finds a daemon or starts one, writes the blocks to read unless an earlier job has,
 * measures, reports, and cleans up.
 *
 * Everything that exists only for the run (an embedded daemon, its temporary store, RAW's unnamed
 * file) is removed with it, however it ends. */
#include "profile-job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "checked.h"
#include "common.h"
#include "embedded.h"
#include "gpu-memory.h"
#include "human.h"
#include "units.h"
#include "profile.h"
#include "progress.h"
#include "raw.h"
#include "through.h"

enum {
        DEFAULT_ITERATIONS = 3,
        DEFAULT_WARMUP = 1,
        BLOCK_ALIGN = 4096,
        ENDING_MS = 500, /* ms to wait for the end of a daemon after its connection broke, because a
                            daemon closes its connections a little before it ends */
};

struct bar {
        struct progress progress;
        const char *what;
};

static void bar_show(void *userdata, uint64_t done, uint64_t all)
{
        struct bar *bar = userdata;
        double part = all > 0 ? MIN((double)done / (double)all, 1.0) : 0;
        char tail[320];

        snprintf(tail, sizeof(tail), " %3.0f %%  %s", part * 100, bar->what);
        progress_show(&bar->progress, part, tail);
}

/* --- a job --- */

struct run {
        struct ctl *ctl;
        const struct kvbench_options *options;
        const struct kvbench_workload *workload;
        struct report *report;
        const atomic_int *interrupted;
        struct profile_job job;
        struct profile profile;

        struct kvcache *kv;
        struct embedded embedded;
        bool own_daemon;
        const char *socket_path;
        struct through through;
        struct through_facts facts;
        struct through_gpu_options gpu;
        char gpu_name[GPU_MEMORY_TEXT];
        struct raw raw;
        char where[900], io[2][64], note[2 * PROFILE_TEXT_BYTES];
};

static const char *filepath(const struct run *run)
{
        const char *path = parameters_text(&run->options->parameters, KVBENCH_FILEPATH);

        return path && *path ? path : NULL;
}

static enum raw_io raw_io(const struct run *run)
{
        switch (run->options->io) {
        case KVBENCH_IO_URING:
                return RAW_URING;
        case KVBENCH_IO_POSIX:
                return RAW_POSIX;
        default:
                return RAW_AUTO;
        }
}

static uint64_t stride(const struct run *run)
{
        return round_up(run->job.io_size, BLOCK_ALIGN);
}

static void raw_io_text(const struct raw *raw, char ret[static 64])
{
        snprintf(ret, 64, "%s, %s", raw->uring ? "io_uring" : "posix",
                 raw->direct ? "O_DIRECT" : "buffered");
}

/* Makes the name and the fingerprint of the job's namespace. The name is such as
 * "kvbench/deepseek_r1/...", of letters, digits and a few other characters. */
static void make_names(const struct kvbench_workload *w, uint64_t io_size, char name[static 256],
                       char fingerprint[static 512])
{
        char model[81];
        size_t n = 0;

        for (const char *p = w->model->name; *p && n + 1 < sizeof(model); p++)
                model[n++] = strchr("._-", *p) || (*p >= '0' && *p <= '9') ||
                                             ((*p | 0x20) >= 'a' && (*p | 0x20) <= 'z')
                                     ? *p
                                     : '_';
        model[n] = '\0';
        snprintf(name, 256, "kvbench/%s/%.20s-tp%" PRIu64 "-pp%" PRIu64 "-page%" PRIu64 "-%" PRIu64,
                 model, w->deployment.system.access_pattern, w->deployment.strategy.tp_size,
                 w->deployment.strategy.pp_size, w->deployment.system.page_size, io_size);
        for (char *p = name; *p; p++)
                if (*p <= ' ' || *p == 0x7f)
                        *p = '_';
        snprintf(fingerprint, 512, "block_bytes=%" PRIu64 "\nlayout=kvbench\nmodel=%s\n", io_size,
                 model);
}

/* Returns the available memory of the host in bytes, or 1 GiB if it is not known. The pool of an
 * embedded daemon takes a part of it. */
static uint64_t available_memory(void)
{
        _cleanup_(fclosep) FILE *f = fopen("/proc/meminfo", "re");
        char line[128];
        uint64_t kib;

        while (f && fgets(line, sizeof(line), f))
                if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
                        return kib * 1024;
        return 1 << 30;
}

static uint64_t directory_bytes(const char *path)
{
        struct statvfs fs;

        return statvfs(path, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : UINT64_MAX;
}

static int start_embedded(struct run *run)
{
        static const char *const backends[] = { [KVBENCH_IO_AUTO] = "auto",
                                                [KVBENCH_IO_URING] = "io_uring",
                                                [KVBENCH_IO_POSIX] = "posix" };
        const char *parent = filepath(run) ? filepath(run) : embedded_parent();
        uint64_t block = stride(run), payload, limit, pool, room;
        char need_text[HUMAN_BYTES], room_text[HUMAN_BYTES];
        char error[512] = "";
        int status;

        /* The limit covers slots, tables and preformatted space. A data file has 1/64 of the limit,
         * and must hold a block, so 96 blocks give each file room for a block and a half. */
        if (!checked_mul(run->job.n_blocks, block + 1024, &payload) || payload > INT64_MAX / 4)
                return complain(
                        KVBENCH_FAILED,
                        "%s: the workload is too large for a store; reduce --isl or --num_requests",
                        run->workload->shown);
        limit = payload + payload / 8 + (256 << 20) + 96 * block;
        if (filepath(run)) /* with --filepath, the store may also have data of other workloads */
                limit += embedded_kept_bytes(filepath(run));
        pool = MAX((uint64_t)512 << 20, 16 * block);
        pool = MAX(MIN(pool, available_memory() / 4), 8 * block);
        room = directory_bytes(parent);
        if (room < limit) {
                units_bytes(limit, need_text);
                units_bytes(room, room_text);
                return complain(KVBENCH_FAILED,
                                "%s: an embedded store needs %s, and %s has %s: --filepath names "
                                "another place; --isl and --num_requests make the workload smaller",
                                run->workload->shown, need_text, parent, room_text);
        }
        struct embedded_options options = {
                .directory = filepath(run),
                .limit_bytes = limit,
                .pool_bytes = round_up(pool, 2 << 20),
                .entries = MAX(run->job.n_blocks * 2, (uint64_t)1 << 20),
                .io_backend = backends[run->options->io],
                .interrupted = run->interrupted,
        };

        status = embedded_start(&run->embedded, &options);
        if (status != EXIT_OK)
                return status;
        run->own_daemon = true;
        run->socket_path = run->embedded.socket;
        snprintf(run->where, sizeof(run->where), "on a store in %s%s", run->embedded.store,
                 filepath(run) ? ", which is kept" : ", which is removed at the end");
        complain(EXIT_OK, "no daemon answers at %s: a daemon is started %s",
                 ctl_socket_name(run->ctl), run->where);

        struct kvcache_options connection = {
                .size = sizeof(connection),
                .socket_path = run->socket_path,
                .client_name = "kvcache-bench",
                .request_timeout_ms = PROFILE_STUCK_MS,
        };

        if (kvcache_connect(&run->kv, &connection, error, sizeof(error)) < 0)
                return complain(KVBENCH_FAILED, "%s", error);
        return EXIT_OK;
}

/* Connects to the running daemon, or starts an embedded one if none answers at the socket. Returns
 * an exit status. */
static int find_daemon(struct run *run)
{
        struct kvcache_options options = {
                .size = sizeof(options),
                .socket_path = run->ctl->socket_path,
                .client_name = "kvcache-bench",
                .request_timeout_ms = PROFILE_STUCK_MS,
        };
        char error[512] = "";
        int r;

        r = kvcache_connect(&run->kv, &options, error, sizeof(error));
        if (r == -ENOENT || r == -ECONNREFUSED)
                return start_embedded(run);
        if (r < 0)
                return complain(KVBENCH_FAILED, "%s", *error ? error : strerror(-r));
        run->socket_path = run->ctl->socket_path;
        return EXIT_OK;
}

/* Checks that the daemon uses the I/O that --io requires, and that the store of a running daemon
 * has room for all blocks. Returns an exit status. */
static int check_daemon(struct run *run)
{
        static const char *const wanted[] = {
                [KVBENCH_IO_URING] = "io_uring", [KVBENCH_IO_POSIX] = "posix"
        };
        const char *want = wanted[run->options->io];
        char error[512], need_text[HUMAN_BYTES], limit_text[HUMAN_BYTES];
        uint64_t need;

        if (through_facts(run->kv, &run->facts, error, sizeof(error)) < 0)
                return complain(KVBENCH_FAILED, "%s", error);
        if (want && strcmp(want, run->facts.backend) != 0)
                return complain(KVBENCH_FAILED,
                                "--io %s: the daemon does its I/O with %s (its setting io.backend)",
                                run->options->io == KVBENCH_IO_URING ? "uring" : "posix",
                                run->facts.backend);
        snprintf(run->io[0], sizeof(run->io[0]), "%s, %s", run->facts.backend,
                 run->facts.direct ? "O_DIRECT" : "buffered");
        if (run->own_daemon)
                return EXIT_OK;
        snprintf(run->where, sizeof(run->where), "at %s, on %s", ctl_socket_name(run->ctl),
                 run->facts.store_volume_path);
        if (!checked_mul(run->job.n_blocks, stride(run), &need))
                need = UINT64_MAX;
        if (need > run->facts.limit_bytes - run->facts.limit_bytes / 32) {
                units_bytes(need, need_text);
                units_bytes(run->facts.limit_bytes, limit_text);
                return complain(KVBENCH_FAILED,
                                "%s: the workload is %s, but store.limit of the daemon is %s: the "
                                "store would evict blocks before they are read",
                                run->workload->shown, need_text, limit_text);
        }
        return EXIT_OK;
}

static void add_note(struct run *run, const char *text)
{
        size_t n = strlen(run->note);

        if (*text)
                snprintf(run->note + n, sizeof(run->note) - n, "%s%s", n ? "; " : "", text);
}

/* Returns the directory of RAW's file: that of --filepath, or else one on the daemon's file system
 * to which this user may write. Returns NULL, after adding a note, if there is none. */
static const char *place_for_raw(struct run *run)
{
        struct stat store, other;
        char note[PROFILE_TEXT_BYTES];

        if (filepath(run))
                return filepath(run);
        if (run->own_daemon)
                return run->embedded.directory;
        if (access(run->facts.store_volume_path, W_OK | X_OK) == 0)
                return run->facts.store_volume_path;
        if (stat(run->facts.store_volume_path, &store) == 0 &&
            stat(embedded_parent(), &other) == 0 && store.st_dev == other.st_dev)
                return embedded_parent();
        snprintf(note, sizeof(note),
                 "RAW was not measured: this user may not write to %s; name a directory on the "
                 "same disk with --filepath",
                 run->facts.store_volume_path);
        add_note(run, note);
        return NULL;
}

/* Writes all blocks of this job once through `side`, not measured. Returns 0 or a negative errno.
 */
static int write_first(struct run *run, struct profile_side *side, const char *what)
{
        struct profile_job job = run->job;
        struct profile writer;
        struct bar bar = { .what = what };
        int r;

        job.write = true;
        job.warmup = 0;
        job.iterations = 1;
        if (profile_init(&writer, &job, run->interrupted) < 0)
                return profile_fail(&run->profile, "out of memory");
        writer.on_progress = bar_show;
        writer.userdata = &bar;
        progress_init(&bar.progress);
        r = profile_write_once(&writer, side);
        progress_end(&bar.progress);
        if (r < 0 && *writer.error)
                profile_fail(&run->profile, "%s", writer.error);
        profile_fini(&writer);
        return r;
}

/* Returns the --source of the command that writes the blocks. */
static const char *write_source(const struct run *run)
{
        return kvbench_uses_gpu(run->workload) ? "gpu" : "memory";
}

/* Checks that the blocks to read exist. A store created for this run is empty, so they are written
 * first. In a store that outlives the run, an earlier write must have left them. Returns 0 or a
 * negative errno. */
static int find_blocks(struct run *run)
{
        uint64_t present = 0;
        int r = through_look(&run->through, &run->profile, &present);

        if (r <= 0)
                return r;
        if (run->own_daemon && !filepath(run)) {
                complain(EXIT_OK,
                         "the store is new: the blocks are written first, which is not measured");
                r = write_first(run, &run->through.side, "writing the blocks to read");
                through_forget_counts(&run->through);
                return r;
        }
        if (r == THROUGH_NOTHING)
                return profile_fail(&run->profile,
                                    "there is nothing to read, because this workload has not been "
                                    "written: run the same command with --source %s first",
                                    write_source(run));
        return profile_fail(
                &run->profile,
                "only %" PRIu64 " of %" PRIu64
                " blocks are stored: another workload was written, or blocks were evicted since. "
                "Write the blocks first: run the same command with --source %s",
                present, run->job.n_blocks, write_source(run));
}

/* Writes the blocks to RAW's file once, not measured: before reads of a file that does not have
 * them, and before writes without warm-up passes. `beside`: RAW runs for comparison with the
 * daemon; otherwise, reads fail if --filepath names a file without the blocks. Returns 0 or a
 * negative errno. */
static int fill_raw(struct run *run, struct raw *raw, bool beside)
{
        if (run->job.write ? run->job.warmup > 0 : !raw->fresh)
                return 0;
        if (!beside && !run->job.write) {
                if (filepath(run))
                        return profile_fail(&run->profile,
                                            "there is nothing to read in %s: run the same command "
                                            "with --source memory first",
                                            raw->path);
                complain(EXIT_OK,
                         "RAW's file is new: the blocks are written first, which is not measured");
        }
        return write_first(run, &raw->side, "writing RAW's file");
}

/* Opens RAW for comparison. Returns whether RAW is open; otherwise the report has only the figures
 * of the daemon, and a note gives the reason. */
static bool open_raw_beside(struct run *run)
{
        struct profile scratch = { .job = &run->job, .told = ATOMIC_FLAG_INIT };
        struct raw_options options = {
                .directory = place_for_raw(run),
                .io = strcmp(run->facts.backend, "posix") == 0 ? RAW_POSIX : RAW_AUTO,
                .window_bytes = run->through.side.window_bytes,
                .depth = MAX((uint64_t)run->facts.depth / run->job.clients, (uint64_t)1),
        };
        char note[PROFILE_TEXT_BYTES];

        if (!options.directory)
                return false;
        if (raw_open(&run->raw, &scratch, &options) == 0) {
                raw_io_text(&run->raw, run->io[1]);
                add_note(run, run->raw.note);
                return true;
        }
        snprintf(note, sizeof(note), "RAW was not measured: %.900s", scratch.error);
        add_note(run, note);
        return false;
}

static int report_failure(struct run *run)
{
        struct report_entry entry = {
                .workload = run->workload,
                .job = &run->job,
                .error = *run->interrupted ? "interrupted" : run->profile.error,
        };

        if (*run->interrupted)
                return EXIT_INTERRUPTED;
        complain(KVBENCH_FAILED, "%s: %s", run->workload->shown, run->profile.error);
        if (run->own_daemon)
                embedded_died(&run->embedded, ENDING_MS);
        report_add(run->report, &entry);
        return KVBENCH_FAILED;
}

static int measure(struct run *run, struct profile_side *const *sides, unsigned n)
{
        struct profile_result results[2] = { 0 };
        struct bar bar = { .what = run->workload->shown };
        struct report_entry entry = {
                .workload = run->workload,
                .job = &run->job,
                .results = results,
                .n_results = n,
                .daemon = run->kv ? run->own_daemon ? "embedded" : "running" : NULL,
                .where = run->where,
                .io = { run->io[0], run->io[1] },
                .raw_note = *run->note ? run->note : NULL,
                .gpu = run->through.options.gpu,
                .gpu_counts = &run->through.gpu,
                .gpu_name = run->gpu_name,
        };
        int r;

        run->profile.on_progress = bar_show;
        run->profile.userdata = &bar;
        progress_init(&bar.progress);
        r = profile_run(&run->profile, sides, n, results);
        progress_end(&bar.progress);
        if (r == 0)
                report_add(run->report, &entry);
        for (unsigned i = 0; i < n; i++)
                profile_result_fini(&results[i]);
        return r == 0 ? EXIT_OK : report_failure(run);
}

/* Computes the blocks' keys and allocates the pattern of their contents. Called after the checks
 * that there is room for the blocks. Returns an exit status. */
static int make_blocks(struct run *run)
{
        if (profile_init(&run->profile, &run->job, run->interrupted) < 0)
                return complain(KVBENCH_FAILED, "%s: out of memory for %" PRIu64 " blocks",
                                run->workload->shown, run->job.n_blocks);
        return EXIT_OK;
}

static void prepare_gpu(struct run *run)
{
        const struct kvbench_workload *w = run->workload;

        run->gpu.device = (int)run->options->gpu;
        gpu_shape_of(&run->gpu.shape, run->options->layout, w->model, &w->deployment,
                     run->job.io_size);
        (void)gpu_memory_probe(run->gpu.device, run->gpu_name);
        if (run->gpu.shape.whole && run->options->layout != KVCACHE_LAYOUT_CONTIGUOUS)
                add_note(run, "a block is not a whole number of layers; it is treated as one piece "
                              "of GPU memory");
}

static int run_through(struct run *run)
{
        struct profile_side *sides[2];
        unsigned n = 0;
        int status, r;

        status = find_daemon(run);
        if (status == EXIT_OK)
                status = check_daemon(run);
        if (status == EXIT_OK)
                status = make_blocks(run);
        if (status != EXIT_OK) {
                struct report_entry entry = {
                        .workload = run->workload,
                        .job = &run->job,
                        .error = "the pass could not begin; see standard error for the reason",
                };

                embedded_died(&run->embedded, ENDING_MS);
                if (*run->interrupted)
                        return EXIT_INTERRUPTED;
                report_add(run->report, &entry);
                return status;
        }
        struct through_options options = {
                .socket_path = run->socket_path,
                .kv = run->kv,
                .own_daemon = run->own_daemon,
                .gpu = kvbench_uses_gpu(run->workload) ? &run->gpu : NULL,
                .gds = run->workload->backend == KVBENCH_BACKEND_GDS,
        };

        if (options.gpu)
                prepare_gpu(run);
        r = through_open(&run->through, &run->profile, &options);
        if (r == 0 && !run->job.write)
                r = find_blocks(run);
        if (r < 0)
                return report_failure(run);
        sides[n++] = &run->through.side;
        if (!run->options->no_raw && open_raw_beside(run)) {
                sides[n++] = &run->raw.side;
                if (fill_raw(run, &run->raw, true) < 0)
                        return report_failure(run);
        }
        return measure(run, sides, n);
}

static int run_raw(struct run *run)
{
        struct raw_options options = {
                .directory = filepath(run) ? filepath(run) : embedded_parent(),
                .io = raw_io(run),
        };
        struct profile_side *side = &run->raw.side;
        char file[300];

        snprintf(file, sizeof(file), "%s.raw", run->job.name);
        for (char *p = file; *p; p++)
                if (*p == '/')
                        *p = '-';
        if (filepath(run))
                options.file = file;
        if (raw_open(&run->raw, &run->profile, &options) < 0)
                return report_failure(run);
        if (make_blocks(run) != EXIT_OK)
                return KVBENCH_FAILED;
        if (fill_raw(run, &run->raw, false) < 0)
                return report_failure(run);
        snprintf(run->where, sizeof(run->where), "%s", options.directory);
        raw_io_text(&run->raw, run->io[0]);
        add_note(run, run->raw.note);
        return measure(run, &side, 1);
}

int profile_job_run(struct ctl *ctl, const struct kvbench_options *options,
                    const struct kvbench_workload *w, struct report *report, uint64_t io_size,
                    uint64_t n_blocks, const atomic_int *interrupted)
{
        const struct kvbench_parameters *p = &options->parameters;
        char name[256], fingerprint[512];
        double users = w->deployment.runtime.num_requests.value;
        struct run run = {
                .ctl = ctl,
                .options = options,
                .workload = w,
                .report = report,
                .interrupted = interrupted,
                .embedded = { .lock_fd = -1, .alive_fd = -1 },
                .raw = { .fd = -1 },
        };
        int status;

        make_names(w, io_size, name, fingerprint);
        run.job = (struct profile_job){
                .name = name,
                .fingerprint = fingerprint,
                .io_size = io_size,
                .n_blocks = n_blocks,
                .write = w->op == KVBENCH_WRITE,
                .cold = options->cold || w->backend == KVBENCH_BACKEND_GDS,
                .check_all = parameters_number(p, KVBENCH_CHECK_CONSISTENCY),
                .users = users >= 1 ? (uint64_t)MIN(users, (double)n_blocks) : 1,
                .clients = (unsigned)MIN(parameters_number(p, KVBENCH_NUM_THREADS), n_blocks),
                .iterations = parameters_given(p, KVBENCH_NUM_ITER)
                                      ? parameters_number(p, KVBENCH_NUM_ITER)
                                      : DEFAULT_ITERATIONS,
                .warmup = parameters_given(p, KVBENCH_WARMUP_ITER)
                                  ? parameters_number(p, KVBENCH_WARMUP_ITER)
                                  : DEFAULT_WARMUP,
        };
        run.profile = (struct profile){ .job = &run.job, .told = ATOMIC_FLAG_INIT };
        status = w->backend == KVBENCH_BACKEND_KVCACHE || w->backend == KVBENCH_BACKEND_GDS
                         ? run_through(&run)
                         : run_raw(&run);

        raw_close(&run.raw);
        through_close(&run.through);
        kvcache_close(run.kv);
        embedded_stop(&run.embedded);
        profile_fini(&run.profile);
        return status;
}
