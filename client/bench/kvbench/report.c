/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checked.h"
#include "common.h"
#include "human.h"
#include "units.h"

enum { RULE_COLUMNS = 80, SPLITS = 4 };

void report_init(struct report *r, const struct kvbench_options *options)
{
        *r = (struct report){ .options = options, .format = options->format };
        if (r->format == KVBENCH_JSON)
                r->array = cJSON_CreateArray();
}

/* One row of the times of operations: the whole operation, or a part of it. */
struct split {
        const char *name;              /* name in JSON and CSV */
        double average, p50, p90, p99; /* µs */
};

/* Computes the rows of a result. Sorts its samples. */
static void splits_of(struct profile_result *result, struct split ret[static SPLITS])
{
        struct profile_tally *tally = &result->tally;
        double n = tally->operations > 0 ? (double)tally->operations : 1;
        struct {
                const char *name;
                struct latency *latency;
                double sum;
        } rows[SPLITS] = { { "latency", &tally->latency, tally->latency_sum },
                           { "prepare", &tally->prepare, tally->prepare_sum },
                           { "post", &tally->post, tally->post_sum },
                           { "transfer", &tally->transfer, tally->transfer_sum } };

        for (unsigned i = 0; i < SPLITS; i++)
                ret[i] = (struct split){
                        .name = rows[i].name,
                        .average = rows[i].sum / n / 1000,
                        .p50 = (double)latency_quantile(rows[i].latency, 0.5) / 1000,
                        .p90 = (double)latency_quantile(rows[i].latency, 0.9) / 1000,
                        .p99 = (double)latency_quantile(rows[i].latency, 0.99) / 1000,
                };
}

static double of_raw(const struct report_entry *e)
{
        double raw;

        if (e->n_results < 2)
                return 0;
        raw = profile_bandwidth(&e->results[1]);
        return raw > 0 ? profile_bandwidth(&e->results[0]) / raw : 0;
}

static const char *op_name(const struct report_entry *e)
{
        return e->job->write ? "WRITE" : "READ";
}

/* Returns the name of the source or of the destination. If the option was not given, the name is
 * "file" for the end at the store, and that of the job's memory for the other end. */
static const char *place_name(const struct report_entry *e, bool source)
{
        enum kvbench_place place = source ? e->workload->source : e->workload->destination;

        if (place == KVBENCH_PLACE_UNSET && source != e->job->write)
                return "file";
        if (place == KVBENCH_PLACE_UNSET)
                return kvbench_uses_gpu(e->workload) ? "gpu" : "memory";
        return kvbench_place_name(place);
}

/* --- text --- */

static void print_rule(char c, unsigned n)
{
        while (n-- > 0)
                putchar(c);
        putchar('\n');
}

static const struct {
        const char *title;
        int width;
} columns[] = {
        { "Backend", 9 },        { "Block Size (B)", 15 }, { "Batch Size", 11 },
        { "B/W (GB/s)", 11 },    { "Avg Lat. (us)", 14 },  { "P50 (us)", 10 },
        { "P90 (us)", 10 },      { "P99 (us)", 10 },       { "Avg Prep (us)", 14 },
        { "P99 Prep (us)", 14 }, { "Avg Post (us)", 14 },  { "P99 Post (us)", 14 },
        { "Avg Tx (us)", 12 },   { "P99 Tx (us)", 12 },
};

static void print_row(const struct report_entry *e, struct profile_result *result)
{
        struct split s[SPLITS];
        double times[] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };

        splits_of(result, s);
        times[0] = s[0].average;
        times[1] = s[0].p50;
        times[2] = s[0].p90;
        times[3] = s[0].p99;
        for (unsigned i = 1; i < SPLITS; i++) {
                times[2 + 2 * i] = s[i].average;
                times[3 + 2 * i] = s[i].p99;
        }
        printf("%-*s%*" PRIu64 "%*" PRIu64 "%*.3f", columns[0].width, result->name,
               columns[1].width, e->job->io_size, columns[2].width, e->job->n_blocks,
               columns[3].width, profile_bandwidth(result));
        for (unsigned i = 0; i < ARRAY_SIZE(times); i++)
                printf("%*.1f", columns[4 + i].width, times[i]);
        putchar('\n');
}

static void print_summary(const struct report_entry *e, const struct profile_result *result)
{
        const struct profile_tally *t = &result->tally;
        char moved[HUMAN_BYTES], verified[HUMAN_BYTES], memory[HUMAN_BYTES], disk[HUMAN_BYTES];

        units_bytes(t->bytes, moved);
        units_bytes(t->bytes_verified, verified);
        printf("%s: %s %s in %.3f s, %s; %s %s: 0 wrong bytes\n", result->name, moved,
               e->job->write ? "written" : "read", result->seconds, e->io[result - e->results],
               verified, e->job->write ? "read back and compared" : "compared");
        if (t->bytes_memory + t->bytes_disk == 0)
                return;
        human_percent(t->bytes_memory, t->bytes_memory + t->bytes_disk, memory);
        human_percent(t->bytes_disk, t->bytes_memory + t->bytes_disk, disk);
        printf("%s: %s came from the daemon's memory, %s from disk\n", result->name, memory, disk);
}

static void print_gds(int device, const struct through_gpu *n)
{
        printf("GPU %d: %" PRIu64 " blocks were read by GPUDirect Storage", device, n->gds_blocks);
        if (n->gds_state != KVCACHE_GPU_GDS_NONE)
                printf(", which is not used: %s", kvcache_gpu_gds_reason_name((int)n->gds_state));
        fputs("; blocks are written through host memory\n", stdout);
        for (int i = 0; i < KVCACHE_GPU_GDS_REASONS; i++)
                if (n->gds_fallbacks[i] > 0)
                        printf("GPU %d: %" PRIu64 " were not: %s\n", device, n->gds_fallbacks[i],
                               kvcache_gpu_gds_reason_name(i));
}

static void print_gpu(const struct report_entry *e)
{
        const struct gpu_shape *s = &e->gpu->shape;
        const struct through_gpu *n = e->gpu_counts;
        char moved[HUMAN_BYTES], piece[HUMAN_BYTES];

        units_bytes(n->bytes, moved);
        units_bytes(e->job->io_size / gpu_shape_pieces(s), piece);
        printf("GPU %d: %s; %s, blocks of %" PRIu32 " piece%s of %s; in all passes %s in %" PRIu64
               " copies by the kernel, %" PRIu64 " by the batch copy, %" PRIu64 " plain\n",
               e->gpu->device, e->gpu_name, gpu_shape_kind_name(s->kind), gpu_shape_pieces(s),
               gpu_shape_pieces(s) == 1 ? "" : "s", piece, moved, n->kernel_copies, n->batch_copies,
               n->plain_copies);
        printf("GPU %d: of the blocks read, %" PRIu64 " came directly from the pool, %" PRIu64
               " through staging\n",
               e->gpu->device, n->blocks_from_pool, n->blocks_through_staging);
        if (e->workload->backend == KVBENCH_BACKEND_GDS)
                print_gds(e->gpu->device, n);
}

static void print_text(struct report *r, const struct report_entry *e)
{
        const struct kvbench_deployment *d = &e->workload->deployment;
        unsigned width = 0;

        if (e->error)
                return; /* reported on stderr */
        if (r->begun)
                putchar('\n');
        print_rule('=', RULE_COLUMNS);
        fputs("Model Config: ", stdout);
        print_safe(e->workload->config_file, stdout);
        printf("\nISL: %s tokens\nPage Size: %" PRIu64 "\nRequests: %s\nTP: %" PRIu64
               "\nPP: %" PRIu64 "\n",
               d->runtime.isl.text, d->system.page_size, d->runtime.num_requests.text,
               d->strategy.tp_size, d->strategy.pp_size);
        print_rule('=', RULE_COLUMNS);
        printf("%s, %s to %s%s: %" PRIu64 " user%s, %u client%s, %" PRIu64
               " iteration%s after %" PRIu64 " warm-up\n",
               op_name(e), place_name(e, true), place_name(e, false),
               e->job->write  ? ""
               : e->job->cold ? ", cold"
                              : ", warm",
               e->job->users, e->job->users == 1 ? "" : "s", e->job->clients,
               e->job->clients == 1 ? "" : "s", e->job->iterations,
               e->job->iterations == 1 ? "" : "s", e->job->warmup);
        if (e->daemon)
                printf("Daemon: %s, ", e->daemon);
        else
                printf("No daemon: a file in ");
        print_safe(e->where, stdout);
        printf("\n\n");
        for (unsigned i = 0; i < ARRAY_SIZE(columns); i++) {
                printf("%*s", i == 0 ? -columns[i].width : columns[i].width, columns[i].title);
                width += (unsigned)columns[i].width;
        }
        putchar('\n');
        print_rule('-', width);
        for (unsigned i = 0; i < e->n_results; i++)
                print_row(e, &e->results[i]);
        putchar('\n');
        for (unsigned i = 0; i < e->n_results; i++)
                print_summary(e, &e->results[i]);
        if (e->gpu)
                print_gpu(e);
        if (e->n_results > 1)
                printf("%s reached %.2f of RAW's bandwidth.\n", e->results[0].name, of_raw(e));
        if (e->raw_note)
                printf("Note: %s\n", e->raw_note);
        fflush(stdout);
}

/* --- JSON --- */

static double rounded(double x, double to)
{
        return (double)(int64_t)(x * to + 0.5) / to;
}

static void add_measured(cJSON *object, const struct report_entry *e, unsigned i)
{
        struct profile_result *result = &e->results[i];
        const struct profile_tally *t = &result->tally;
        struct split s[SPLITS];

        cJSON_AddStringToObject(object, "io", e->io[i]);
        cJSON_AddNumberToObject(object, "bandwidth_gb_s", rounded(profile_bandwidth(result), 1e6));
        cJSON_AddNumberToObject(object, "seconds", result->seconds);
        cJSON_AddNumberToObject(object, "operations", (double)t->operations);
        cJSON_AddNumberToObject(object, "blocks", (double)t->blocks);
        cJSON_AddNumberToObject(object, "bytes_moved", (double)t->bytes);
        cJSON_AddNumberToObject(object, "bytes_verified", (double)t->bytes_verified);
        cJSON_AddNumberToObject(object, "wrong_bytes", 0);
        if (t->bytes_memory + t->bytes_disk > 0) {
                cJSON_AddNumberToObject(object, "bytes_from_memory", (double)t->bytes_memory);
                cJSON_AddNumberToObject(object, "bytes_from_disk", (double)t->bytes_disk);
        }
        splits_of(result, s);
        for (unsigned k = 0; k < SPLITS; k++) {
                char name[32];
                cJSON *times;

                snprintf(name, sizeof(name), "%s_us", s[k].name);
                times = cJSON_AddObjectToObject(object, name);
                cJSON_AddNumberToObject(times, "avg", rounded(s[k].average, 1000));
                cJSON_AddNumberToObject(times, "p50", rounded(s[k].p50, 1000));
                cJSON_AddNumberToObject(times, "p90", rounded(s[k].p90, 1000));
                cJSON_AddNumberToObject(times, "p99", rounded(s[k].p99, 1000));
        }
}

static void add_gds(cJSON *gpu, const struct through_gpu *n)
{
        cJSON *fallbacks;

        cJSON_AddNumberToObject(gpu, "gds_blocks", (double)n->gds_blocks);
        if (n->gds_state == KVCACHE_GPU_GDS_NONE)
                cJSON_AddNullToObject(gpu, "gds_unused");
        else
                cJSON_AddStringToObject(gpu, "gds_unused",
                                        kvcache_gpu_gds_reason_name((int)n->gds_state));
        fallbacks = cJSON_AddObjectToObject(gpu, "gds_fallbacks");
        for (int i = 0; i < KVCACHE_GPU_GDS_REASONS; i++)
                if (n->gds_fallbacks[i] > 0)
                        cJSON_AddNumberToObject(fallbacks, kvcache_gpu_gds_reason_name(i),
                                                (double)n->gds_fallbacks[i]);
}

static void add_gpu(cJSON *object, const struct report_entry *e)
{
        const struct gpu_shape *s = &e->gpu->shape;
        const struct through_gpu *n = e->gpu_counts;
        cJSON *gpu = cJSON_AddObjectToObject(object, "gpu");

        cJSON_AddNumberToObject(gpu, "device", e->gpu->device);
        cJSON_AddStringToObject(gpu, "name", e->gpu_name);
        cJSON_AddNumberToObject(gpu, "driver_version", n->driver_version);
        cJSON_AddStringToObject(gpu, "layout", gpu_shape_kind_name(s->kind));
        cJSON_AddNumberToObject(gpu, "layers", s->layers);
        cJSON_AddNumberToObject(gpu, "outer", s->outer);
        cJSON_AddNumberToObject(gpu, "region_bytes", (double)s->region_bytes);
        cJSON_AddNumberToObject(gpu, "pieces_per_block", gpu_shape_pieces(s));
        cJSON_AddNumberToObject(gpu, "bytes_copied", (double)n->bytes);
        cJSON_AddNumberToObject(gpu, "kernel_copies", (double)n->kernel_copies);
        cJSON_AddNumberToObject(gpu, "batch_copies", (double)n->batch_copies);
        cJSON_AddNumberToObject(gpu, "plain_copies", (double)n->plain_copies);
        cJSON_AddNumberToObject(gpu, "blocks_from_pool", (double)n->blocks_from_pool);
        cJSON_AddNumberToObject(gpu, "blocks_through_staging", (double)n->blocks_through_staging);
        if (e->workload->backend == KVBENCH_BACKEND_GDS)
                add_gds(gpu, n);
}

static void add_json(struct report *r, const struct report_entry *e)
{
        const struct kvbench_deployment *d = &e->workload->deployment;
        cJSON *object = cJSON_CreateObject();

        cJSON_AddItemToArray(r->array, object);
        cJSON_AddStringToObject(object, "config_file", e->workload->config_file);
        cJSON_AddStringToObject(object, "model", e->workload->model->name);
        cJSON_AddStringToObject(object, "access_pattern", d->system.access_pattern);
        cJSON_AddNumberToObject(object, "isl", d->runtime.isl.value);
        cJSON_AddNumberToObject(object, "page_size", (double)d->system.page_size);
        cJSON_AddNumberToObject(object, "num_requests", d->runtime.num_requests.value);
        cJSON_AddNumberToObject(object, "tp", (double)d->strategy.tp_size);
        cJSON_AddNumberToObject(object, "pp", (double)d->strategy.pp_size);
        cJSON_AddStringToObject(object, "backend",
                                e->n_results ? e->results[0].name
                                             : kvbench_backend_name(e->workload->backend));
        cJSON_AddStringToObject(object, "op_type", op_name(e));
        cJSON_AddStringToObject(object, "source", place_name(e, true));
        cJSON_AddStringToObject(object, "destination", place_name(e, false));
        cJSON_AddBoolToObject(object, "cold", e->job->cold);
        cJSON_AddNumberToObject(object, "block_size", (double)e->job->io_size);
        cJSON_AddNumberToObject(object, "batch_size", (double)e->job->n_blocks);
        cJSON_AddNumberToObject(object, "total_buffer_size",
                                (double)e->job->n_blocks * (double)e->job->io_size);
        cJSON_AddNumberToObject(object, "users", (double)e->job->users);
        cJSON_AddNumberToObject(object, "num_threads", e->job->clients);
        cJSON_AddNumberToObject(object, "num_iter", (double)e->job->iterations);
        cJSON_AddNumberToObject(object, "warmup_iter", (double)e->job->warmup);
        if (e->error) {
                cJSON_AddStringToObject(object, "error", e->error);
                return;
        }
        if (e->daemon)
                cJSON_AddStringToObject(object, "daemon", e->daemon);
        else
                cJSON_AddNullToObject(object, "daemon");
        cJSON_AddStringToObject(object, "where", e->where);
        add_measured(object, e, 0);
        if (e->gpu)
                add_gpu(object, e);
        if (e->n_results > 1) {
                cJSON *raw = cJSON_AddObjectToObject(object, "raw");

                add_measured(raw, e, 1);
                cJSON_AddNumberToObject(object, "of_raw", rounded(of_raw(e), 1e4));
        } else {
                cJSON_AddNullToObject(object, "raw");
                cJSON_AddNullToObject(object, "of_raw");
        }
        if (e->raw_note)
                cJSON_AddStringToObject(object, "note", e->raw_note);
}

/* --- CSV --- */

static void print_field(const char *text)
{
        bool quote = strpbrk(text, ",\"\r\n") != NULL;

        if (quote)
                putchar('"');
        for (; *text; text++) {
                if (*text == '"')
                        putchar('"');
                putchar(*text);
        }
        if (quote)
                putchar('"');
        putchar(',');
}

static void print_csv(struct report *r, const struct report_entry *e)
{
        const struct kvbench_deployment *d = &e->workload->deployment;

        if (!r->begun)
                puts("config_file,model,access_pattern,isl,page_size,num_requests,tp,pp,backend,"
                     "op_type,source,destination,cold,daemon,io,block_size,batch_size,users,"
                     "num_threads,num_iter,warmup_iter,bandwidth_gb_s,seconds,operations,bytes_"
                     "moved,"
                     "bytes_verified,wrong_bytes,bytes_from_memory,bytes_from_disk,latency_avg_us,"
                     "latency_p50_us,latency_p90_us,latency_p99_us,prepare_avg_us,prepare_p50_us,"
                     "prepare_p90_us,prepare_p99_us,post_avg_us,post_p50_us,post_p90_us,post_p99_"
                     "us,"
                     "transfer_avg_us,transfer_p50_us,transfer_p90_us,transfer_p99_us,of_raw,"
                     "layout,pieces_per_block");
        for (unsigned i = 0; i < e->n_results; i++) {
                struct profile_result *result = &e->results[i];
                const struct profile_tally *t = &result->tally;
                struct split s[SPLITS];

                print_field(e->workload->config_file);
                print_field(e->workload->model->name);
                print_field(d->system.access_pattern);
                print_field(d->runtime.isl.text);
                printf("%" PRIu64 ",", d->system.page_size);
                print_field(d->runtime.num_requests.text);
                printf("%" PRIu64 ",%" PRIu64 ",", d->strategy.tp_size, d->strategy.pp_size);
                print_field(result->name);
                print_field(op_name(e));
                print_field(place_name(e, true));
                print_field(place_name(e, false));
                print_field(e->job->cold ? "true" : "false");
                print_field(e->daemon && i == 0 ? e->daemon : "");
                print_field(e->io[i]);
                printf("%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%u,%" PRIu64 ",%" PRIu64 ",",
                       e->job->io_size, e->job->n_blocks, e->job->users, e->job->clients,
                       e->job->iterations, e->job->warmup);
                printf("%.6f,%.6f,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",0,%" PRIu64 ",%" PRIu64,
                       profile_bandwidth(result), result->seconds, t->operations, t->bytes,
                       t->bytes_verified, t->bytes_memory, t->bytes_disk);
                splits_of(result, s);
                for (unsigned k = 0; k < SPLITS; k++)
                        printf(",%.3f,%.3f,%.3f,%.3f", s[k].average, s[k].p50, s[k].p90, s[k].p99);
                if (i == 0 && e->n_results > 1)
                        printf(",%.4f", of_raw(e));
                else
                        putchar(',');
                if (i == 0 && e->gpu)
                        printf(",%s,%" PRIu32 "\n", gpu_shape_kind_name(e->gpu->shape.kind),
                               gpu_shape_pieces(&e->gpu->shape));
                else
                        puts(",,");
        }
        fflush(stdout);
}

void report_add(struct report *r, const struct report_entry *entry)
{
        switch (r->format) {
        case KVBENCH_JSON:
                add_json(r, entry);
                break;
        case KVBENCH_CSV:
                print_csv(r, entry);
                break;
        default:
                print_text(r, entry);
                break;
        }
        r->begun = r->begun || !entry->error;
}

int report_end(struct report *r)
{
        int status = EXIT_OK;

        if (cJSON_GetArraySize(r->array) > 0)
                status = kvbench_print_json(r->options, r->array);
        cJSON_Delete(r->array);
        r->array = NULL;
        return status;
}
