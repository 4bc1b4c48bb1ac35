/* SPDX-License-Identifier: Apache-2.0 */
/* trace: puts and gets small batches, one at a time, and shows where the time of each is spent,
 * from the data that the daemon records with io.stages. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "checked.h"
#include "commands.h"
#include "common.h"
#include "human.h"
#include "payload.h"
#include "progress.h"
#include "table.h"
#include "units.h"
#include "waterfall.h"

enum {
        MOST_KEYS = 512,
        MOST_BATCHES = 100000,
        MOST_BYTES = 64 << 20, /* maximum bytes of a batch */
        PAGE = 4096,
        BAR = 40,
};

enum phase { PHASE_PUT, PHASE_COLD, PHASE_HOT, PHASES };

static const struct option_row trace_options[] = {
        { 'b', "block-bytes", "SIZE", "bytes of a block (default: 64KiB)" },
        { 'k', "keys", "N", "blocks of a batch (default: 16)" },
        { 'c', "batches", "N", "batches of each kind (default: 100)" },
        { 'n', "namespace", "NS", "the namespace (default: trace)", "@namespaces" },
        { 0 },
};

struct tracer {
        struct ctl *ctl;
        const char *namespace_name;
        unsigned long long block_bytes, keys, batches;
        uint32_t namespace_handle;
        uint8_t seed[16];
        uint8_t *memory; /* registered memory with room for a batch */
        uint64_t place;  /* distance between blocks, in bytes */
        struct kvcache_entry entries[MOST_KEYS];
        struct kvcache_result results[MOST_KEYS];
        struct waterfall phases[PHASES];
        struct progress progress;
        uint64_t wrong_bytes, other_tier;
};

static const char *const phase_names[] = {
        [PHASE_PUT] = "put",
        [PHASE_COLD] = "cold get",
        [PHASE_HOT] = "hot get",
};

static struct kvcache_key key_of(const struct tracer *t, uint64_t batch, uint64_t i)
{
        uint64_t number[2] = { batch, i };
        struct kvcache_key key;

        static_assert(sizeof(key) == sizeof(t->seed) + sizeof(number), "a key");
        memcpy(&key, t->seed, sizeof(t->seed));
        memcpy((uint8_t *)&key + sizeof(t->seed), number, sizeof(number));
        return key;
}

static void name_batch(struct tracer *t, uint64_t batch)
{
        for (uint64_t i = 0; i < t->keys; i++)
                t->entries[i] = (struct kvcache_entry){ .key = key_of(t, batch, i),
                                                        .data = t->memory + i * t->place,
                                                        .length = (uint32_t)t->block_bytes };
}

static int open_memory(struct tracer *t)
{
        struct kvcache_buffer_options options = { .size = sizeof(options) };
        uint32_t buffer;
        void *base;
        int r;

        t->place = round_up(t->block_bytes, PAGE);
        options.bytes = t->keys * t->place;
        options.fd = memfd_create("kvcache-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (options.fd < 0 || ftruncate(options.fd, (off_t)options.bytes) < 0 ||
            fcntl(options.fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
                r = complain(EXIT_LOCAL, "cannot allocate memory to register: %s", strerror(errno));
        else {
                r = kvcache_buffer_register(t->ctl->kv, &options, &buffer, &base);
                r = r < 0 ? complain_call(t->ctl, r, "registering memory") : EXIT_OK;
        }
        if (options.fd >= 0)
                close(options.fd);
        if (r == EXIT_OK)
                t->memory = base;
        return r;
}

/* Fetches the report of stages. Returns an exit status. */
static int fetch_report(struct tracer *t, cJSON **ret)
{
        _cleanup_(freep) char *text = NULL;
        int r = kvcache_report(t->ctl->kv, KVCACHE_REPORT_STAGES, &text);

        if (r == -EACCES)
                return complain_admin("trace");
        if (r < 0)
                return complain_call(t->ctl, r, "trace");
        *ret = cJSON_Parse(text);
        if (!*ret)
                return complain(EXIT_REFUSED, "trace: the daemon's report is malformed");
        if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(*ret, "on")))
                return complain(EXIT_REFUSED,
                                "trace: this daemon does not keep the times of stages: set "
                                "io.stages to on in its configuration, and run kvcachectl reload");
        return EXIT_OK;
}

static int check_results(struct tracer *t, const char *what, bool in_memory)
{
        for (uint64_t i = 0; i < t->keys; i++) {
                const struct kvcache_result *result = &t->results[i];

                if (result->status == KVCACHE_MISS)
                        return complain(EXIT_REFUSED,
                                        "%s: a block that was just put is a miss: the store or the "
                                        "memory pool is too small for %llu batches, or others "
                                        "use it",
                                        what, t->batches);
                if (result->status != KVCACHE_OK)
                        return complain_status(result->status, what);
                if (((result->tiers & KVCACHE_TIER_MEMORY) != 0) != in_memory)
                        t->other_tier++;
        }
        return EXIT_OK;
}

/* Runs one batch, checks its results and contents, and adds its times to the waterfall of the
 * phase. Returns an exit status, after reporting a failure. */
static int run_batch(struct tracer *t, enum phase phase)
{
        _cleanup_(cJSON_Deletep) cJSON *report = NULL;
        struct kvcache_request request;
        uint64_t begin, end;
        size_t first;
        int r;

        memset(t->results, 0, t->keys * sizeof(t->results[0]));
        if (phase == PHASE_PUT) {
                for (uint64_t i = 0; i < t->keys; i++)
                        payload_fill(&t->entries[i].key, t->entries[i].data, t->block_bytes);
                kvcache_prep_put(&request, t->namespace_handle, t->entries, t->keys,
                                 KVCACHE_WRITTEN, t->results);
        } else {
                memset(t->memory, 0, t->keys * t->place);
                kvcache_prep_get_into(&request, t->namespace_handle, t->entries, t->keys,
                                      t->results);
        }
        begin = latency_now_ns();
        r = kvcache_submit_and_wait(t->ctl->kv, &request, NULL);
        end = latency_now_ns();
        if (r < 0)
                return complain_call(t->ctl, r, phase_names[phase]);
        if (phase == PHASE_PUT)
                for (uint64_t i = 0; i < t->keys; i++)
                        t->results[i].tiers = 0;
        r = check_results(t, phase_names[phase], phase == PHASE_HOT);
        for (uint64_t i = 0; r == EXIT_OK && phase != PHASE_PUT && i < t->keys; i++)
                t->wrong_bytes += payload_verify(&t->entries[i].key, t->entries[i].data,
                                                 t->block_bytes, &first);
        if (r == EXIT_OK)
                r = fetch_report(t, &report);
        if (r == EXIT_OK &&
            waterfall_add(&t->phases[phase], report, phase == PHASE_PUT ? "PUT" : "GET", t->keys,
                          begin, end) < 0)
                r = complain(EXIT_REFUSED, "trace: the daemon's report is malformed");
        return r;
}

/* Runs an operation on the keys of a batch without measuring it, ignores its statuses, and releases
 * its leases. Returns an exit status, after reporting a failure of the call. */
static int prepare(struct tracer *t, enum kvcache_op op, uint64_t batch, uint32_t tiers)
{
        struct kvcache_key keys[MOST_KEYS];
        struct kvcache_lease leases[MOST_KEYS];
        struct kvcache_request request;
        size_t n = 0;
        int r;

        memset(t->results, 0, t->keys * sizeof(t->results[0]));
        for (uint64_t i = 0; i < t->keys; i++)
                keys[i] = key_of(t, batch, i);
        kvcache_prep(&request, op, t->namespace_handle, t->keys, t->results);
        request.keys = keys;
        request.tiers = tiers;
        r = kvcache_submit_and_wait(t->ctl->kv, &request, NULL);
        if (r < 0)
                return complain_call(t->ctl, r, "trace");
        for (uint64_t i = 0; i < t->keys; i++)
                if (t->results[i].lease.generation != 0)
                        leases[n++] = t->results[i].lease;
        r = n > 0 ? kvcache_release(t->ctl->kv, leases, n) : 0;
        return r < 0 ? complain_call(t->ctl, r, "trace") : EXIT_OK;
}

static void note_batch(struct tracer *t, unsigned phase, uint64_t i)
{
        uint64_t done = phase * t->batches + i;

        progress_note(&t->progress, (double)done / (double)(PHASES * t->batches), "traced", done,
                      "request");
}

static int run_phases(struct tracer *t)
{
        int r = EXIT_OK;

        progress_init(&t->progress);
        for (uint64_t i = 0; r == EXIT_OK && i < t->batches; i++) {
                note_batch(t, PHASE_PUT, i);
                name_batch(t, i);
                r = run_batch(t, PHASE_PUT);
        }
        for (uint64_t i = 0; r == EXIT_OK && i < t->batches; i++) {
                note_batch(t, PHASE_COLD, i);
                name_batch(t, i);
                r = prepare(t, KVCACHE_OP_EVICT, i, KVCACHE_TIER_MEMORY);
                if (r == EXIT_OK)
                        r = run_batch(t, PHASE_COLD);
        }
        for (uint64_t i = 0; r == EXIT_OK && i < t->batches; i++) {
                note_batch(t, PHASE_HOT, i);
                name_batch(t, 0);
                /* A cold get bypasses the pool, so get once more before measuring. */
                r = i == 0 ? prepare(t, KVCACHE_OP_GET, 0, 0) : EXIT_OK;
                if (r == EXIT_OK)
                        r = run_batch(t, PHASE_HOT);
        }
        progress_end(&t->progress);
        return r;
}

static void drop_blocks(struct tracer *t)
{
        for (uint64_t i = 0; i < t->batches; i++)
                if (prepare(t, KVCACHE_OP_EVICT, i, KVCACHE_TIER_ALL) != EXIT_OK)
                        return;
}

static double us(struct waterfall *w, enum waterfall_point point, double quantile)
{
        return (double)latency_quantile(&w->points[point], quantile) / 1000;
}

static int print_as_json(struct tracer *t)
{
        _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();
        cJSON *phases;

        cJSON_AddStringToObject(object, "command", "trace");
        cJSON_AddNumberToObject(object, "block_bytes", (double)t->block_bytes);
        cJSON_AddNumberToObject(object, "keys", (double)t->keys);
        cJSON_AddNumberToObject(object, "wrong_bytes", (double)t->wrong_bytes);
        cJSON_AddNumberToObject(object, "other_tier", (double)t->other_tier);
        phases = cJSON_AddArrayToObject(object, "phases");
        for (unsigned i = 0; i < PHASES; i++) {
                enum waterfall_point order[WATERFALL_POINTS];
                struct waterfall *w = &t->phases[i];
                unsigned n = waterfall_order(w, order);
                cJSON *phase = cJSON_CreateObject(), *points;

                cJSON_AddItemToArray(phases, phase);
                cJSON_AddStringToObject(phase, "phase", phase_names[i]);
                cJSON_AddNumberToObject(phase, "batches", (double)w->points[WATERFALL_ENDED].n);
                cJSON_AddNumberToObject(phase, "unseen", (double)w->unseen);
                cJSON_AddNumberToObject(phase, "p50_us", us(w, WATERFALL_ENDED, 0.5));
                cJSON_AddNumberToObject(phase, "p90_us", us(w, WATERFALL_ENDED, 0.9));
                points = cJSON_AddArrayToObject(phase, "points");
                for (unsigned k = 0; k < n; k++) {
                        cJSON *point = cJSON_CreateObject();

                        cJSON_AddItemToArray(points, point);
                        cJSON_AddStringToObject(point, "point", waterfall_point_name(order[k]));
                        cJSON_AddNumberToObject(point, "p50_us", us(w, order[k], 0.5));
                }
        }
        return print_json(object);
}

static void print_phase(const struct tracer *t, struct waterfall *w, const char *name)
{
        _cleanup_(text_table_freep) struct text_table *table = text_table_new("rrll");
        char bytes[UNITS_TEXT], p50[HUMAN_BYTES], p90[HUMAN_BYTES], batches[HUMAN_BYTES];
        double whole = us(w, WATERFALL_ENDED, 0.5), before = 0;
        enum waterfall_point order[WATERFALL_POINTS];
        unsigned n = waterfall_order(w, order), from = 0;

        human_ns(latency_quantile(&w->points[WATERFALL_ENDED], 0.5), p50);
        human_ns(latency_quantile(&w->points[WATERFALL_ENDED], 0.9), p90);
        human_things(w->points[WATERFALL_ENDED].n, "batch", batches);
        printf("%s of %llu x %s: %s, 90 %% within %s (%zu batches)\n", name, t->keys,
               units_bytes(t->block_bytes, bytes), p50, p90, w->points[WATERFALL_ENDED].n);
        text_table_row(table, "at", "+", "", "by the medians");
        for (unsigned i = 0; i < n; i++) {
                double at = us(w, order[i], 0.5);
                unsigned to = whole > 0 ? (unsigned)(at / whole * BAR + 0.5) : 0;
                char bar[BAR + 1] = "", when[32], step[32];

                to = MIN(to, (unsigned)BAR);
                memset(bar, ' ', from);
                memset(bar + from, '=', MAX(to, from) - from);
                bar[MAX(to, from)] = '\0';
                snprintf(when, sizeof(when), "%.0f us", at);
                snprintf(step, sizeof(step), "%.0f", at - before);
                text_table_row(table, when, step, bar, waterfall_point_name(order[i]));
                from = MAX(to, from);
                before = at;
        }
        text_table_print(table, "  ", stdout);
        putchar('\n');
}

static void print_for_people(struct tracer *t)
{
        for (unsigned i = 0; i < PHASES; i++)
                print_phase(t, &t->phases[i], phase_names[i]);
        if (t->other_tier > 0)
                printf("%" PRIu64 " blocks came from memory where the disk was meant, or from disk "
                       "where memory was\n",
                       t->other_tier);
        printf("wrong bytes: %" PRIu64 "\n", t->wrong_bytes);
}

static int read_options(struct ctl *ctl, const struct command *self, int argc, char **argv,
                        struct tracer *t, bool *ret_end)
{
        const char *argument;
        int id, operand;

        *ret_end = true;
        while ((id = option_next(ctl, self, argc, argv, &argument, &operand)) > 0) {
                bool right = true;

                switch (id) {
                case 'b':
                        right = option_bytes(ctl, "--block-bytes", argument, &t->block_bytes);
                        break;
                case 'k':
                        right = option_count(ctl, "--keys", argument, 1, MOST_KEYS, &t->keys);
                        break;
                case 'c':
                        right = option_count(ctl, "--batches", argument, 1, MOST_BATCHES,
                                             &t->batches);
                        break;
                case 'n':
                        t->namespace_name = argument;
                        break;
                }
                if (!right)
                        return ctl->exit_status;
        }
        if (id < 0)
                return ctl->exit_status;
        if (operand < argc)
                return usage_error(self, "trace takes no arguments");
        if (t->block_bytes == 0 || t->block_bytes > (unsigned long long)MOST_BYTES / t->keys)
                return usage_error(
                        self,
                        "--block-bytes times --keys, the size of a batch, must be 1 byte to 64MiB");
        *ret_end = false;
        return EXIT_OK;
}

static int trace(struct tracer *t)
{
        struct kvcache_namespace_options options = { .size = sizeof(options),
                                                     .name = t->namespace_name,
                                                     .fingerprint = "source=kvcache-bench trace\n",
                                                     .chunk_bytes = t->block_bytes };
        _cleanup_(cJSON_Deletep) cJSON *report = NULL;
        int r = ctl_connect(t->ctl);

        if (r == EXIT_OK)
                r = fetch_report(t, &report);
        if (r != EXIT_OK)
                return r;
        r = kvcache_namespace_open(t->ctl->kv, &options, &t->namespace_handle);
        if (r < 0)
                return complain_call(t->ctl, r, t->namespace_name);
        r = open_memory(t);
        if (r != EXIT_OK)
                return r;
        r = run_phases(t);
        drop_blocks(t);
        if (r != EXIT_OK)
                return r;
        if (t->ctl->json)
                r = print_as_json(t);
        else
                print_for_people(t);
        if (t->wrong_bytes > 0)
                return complain(EXIT_NOT_FOUND,
                                "WRONG BYTES: the daemon returned other bytes than were put");
        return r;
}

static int run_trace(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        _cleanup_(freep) struct tracer *t = calloc(1, sizeof(*t));
        bool end;
        int r;

        if (!t)
                return complain_memory();
        t->ctl = ctl;
        t->namespace_name = "trace";
        t->block_bytes = 64 * 1024;
        t->keys = 16;
        t->batches = 100;
        r = read_options(ctl, self, argc, argv, t, &end);
        if (r == EXIT_OK && !end && getrandom(t->seed, sizeof(t->seed), 0) != sizeof(t->seed))
                r = complain(EXIT_LOCAL, "cannot get random numbers: %s", strerror(errno));
        if (r == EXIT_OK && !end)
                r = trace(t);
        for (unsigned i = 0; i < PHASES; i++)
                waterfall_fini(&t->phases[i]);
        return r;
}

const struct command command_trace = {
        .name = "trace",
        .arguments = "",
        .summary = "show where the time of a small batch goes",
        .help = "Puts batches of blocks, gets them from the disk and then from memory, one batch "
                "at a\n"
                "time, from and into registered memory, and compares every byte. For each of the\n"
                "three it prints the stages of a batch: when the loop received the request, when "
                "a\n"
                "worker began, when the device and the worker finished, when the loop got the "
                "last\n"
                "completion and when the call returned. Each is the median of all batches.\n"
                "\n"
                "The daemon must record these times: set io.stages to on in its configuration and "
                "run\n"
                "kvcachectl reload. Only an admin may ask for them. Nothing else should use the\n"
                "daemon meanwhile, because its operations would be counted, too. A put is "
                "answered\n"
                "when it is written. The blocks are evicted at the end.\n"
                "\n"
                "Exit status 1: some bytes were wrong.",
        .options = trace_options,
        .run = run_trace,
};
