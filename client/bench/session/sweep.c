/* SPDX-License-Identifier: Apache-2.0 */
#include "sweep.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "kvcache-admin.h"

enum { REMOVE_MS = 3000, REMOVE_PAUSE_MS = 10 };

struct sweep {
        const struct sweep_options *options;
        struct sweep_result *result;
        char *error;
        char namespace_name[64];
        /* The current sizes of the sweep. */
        uint64_t region_bytes, blocks, depth, n_clients;
        struct sweep_client clients[SWEEP_MAX_CLIENTS];
        struct sweep_blocks blocks_of[SWEEP_MAX_CLIENTS][SWEEP_LAYOUTS];
        double *rates;  /* bytes per second: all iterations of each layout and operation */
        double *ratios; /* scratch space for one number for each iteration */
        struct latency latencies[SWEEP_LAYOUTS][SWEEP_OPS];
        uint64_t got[SWEEP_LAYOUTS][SWEEP_OPS], from_disk[SWEEP_LAYOUTS][SWEEP_OPS];
        uint64_t verified[SWEEP_LAYOUTS][SWEEP_OPS];
        uint64_t measured; /* number of measurements that are done, for the progress */
};

const char *sweep_kind_name(uint32_t kind)
{
        switch (kind) {
        case KVCACHE_LAYOUT_CONTIGUOUS:
                return "contiguous";
        case KVCACHE_LAYOUT_BLOCK_FIRST:
                return "block-first";
        default:
                return "outer-first";
        }
}

const char *sweep_op_name(enum sweep_op op)
{
        static const char *const names[] = { "put", "get", "mixed" };

        return names[op];
}

uint64_t sweep_block_bytes(const struct sweep_options *o)
{
        uint64_t most = 0;

        for (unsigned i = 0; i < o->n_regions; i++)
                most = MAX(most, o->regions[i]);
        return most * o->layers * o->outer;
}

static int take_error(struct sweep *s, const struct sweep_client *c)
{
        snprintf(s->error, SWEEP_ERROR_BYTES, "%s", c->message);
        return c->error;
}

/* --- one pass --- */

static void *client_thread(void *userdata)
{
        (void)sweep_client_move(userdata);
        return NULL;
}

/* Runs a pass of all clients at the same time. Returns 0, or -errno with a message in s->error: a
 * thread cannot be created, or the error of the first client in order that failed. */
static int move_all(struct sweep *s, const struct sweep_pass *pass, uint32_t kind)
{
        pthread_t threads[SWEEP_MAX_CLIENTS];
        uint64_t started = 0;
        int r = 0;

        for (uint64_t i = 0; i < s->n_clients; i++) {
                s->clients[i].pass = pass;
                s->clients[i].blocks = &s->blocks_of[i][kind - 1];
        }
        for (; started < s->n_clients && r == 0; started++) {
                r = -pthread_create(&threads[started], NULL, client_thread, &s->clients[started]);
                if (r < 0) {
                        snprintf(s->error, SWEEP_ERROR_BYTES, "cannot start a thread: %s",
                                 strerror(-r));
                        break;
                }
        }
        for (uint64_t i = 0; i < started; i++)
                pthread_join(threads[i], NULL);
        for (uint64_t i = 0; r == 0 && i < s->n_clients; i++)
                if (s->clients[i].error)
                        r = take_error(s, &s->clients[i]);
        return r;
}

static int evict_all(struct sweep *s, uint32_t tiers)
{
        for (uint64_t i = 0; i < s->n_clients; i++)
                if (sweep_client_evict(&s->clients[i], tiers) < 0)
                        return take_error(s, &s->clients[i]);
        return 0;
}

static void fill_all(struct sweep *s, uint32_t kind)
{
        for (uint64_t i = 0; i < s->n_clients; i++)
                for (uint64_t b = 0; b < s->blocks; b++)
                        sweep_blocks_fill(&s->blocks_of[i][kind - 1], b, &s->clients[i].keys[b]);
}

static int check_all(struct sweep *s, uint32_t kind, enum sweep_op op, uint64_t blocks)
{
        for (uint64_t i = 0; i < s->n_clients; i++)
                for (uint64_t b = 0; b < blocks; b++) {
                        struct sweep_blocks *of = &s->blocks_of[i][kind - 1];

                        if (!sweep_blocks_right(of, b, &s->clients[i].keys[b])) {
                                snprintf(s->error, SWEEP_ERROR_BYTES,
                                         "block %" PRIu64 " of client %" PRIu64
                                         ", %s, differs from the bytes that were put",
                                         b, i, sweep_kind_name(kind));
                                return -EBADMSG;
                        }
                        s->verified[kind - 1][op] += of->info.block_bytes;
                }
        return 0;
}

/* Evicts all chunks, and puts those that a pass expects: none for put, all for get, the first half
 * for mixed. Also gives the blocks the contents that verify() needs. */
static int prepare(struct sweep *s, enum sweep_op op, uint32_t kind)
{
        const struct sweep_options *o = s->options;
        struct sweep_pass put = { .op = SWEEP_PUT,
                                  .blocks = op == SWEEP_GET ? s->blocks : s->blocks / 2,
                                  .depth = s->depth,
                                  .ack = o->cold ? KVCACHE_WRITTEN : o->ack };
        int r = evict_all(s, KVCACHE_TIER_ALL);

        if (r == 0 && o->verify)
                fill_all(s, kind);
        if (r == 0 && op != SWEEP_PUT)
                r = move_all(s, &put, kind);
        if (r == 0 && o->cold && op != SWEEP_PUT)
                r = evict_all(s, KVCACHE_TIER_MEMORY);
        if (r == 0 && o->verify && op == SWEEP_GET)
                for (uint64_t i = 0; i < s->n_clients; i++)
                        sweep_blocks_wipe(&s->blocks_of[i][kind - 1]);
        return r;
}

/* Checks the contents of the blocks that the pass has got. After an operation that puts, gets all
 * chunks first. Returns 0, or -errno with a message; -EBADMSG if a byte is wrong. */
static int verify(struct sweep *s, enum sweep_op op, uint32_t kind)
{
        struct sweep_pass get = { .op = SWEEP_GET, .blocks = s->blocks, .depth = s->depth };
        int r = 0;

        if (op != SWEEP_GET) {
                get.blocks = op == SWEEP_MIXED ? s->blocks / 2 * 2 : s->blocks;
                for (uint64_t i = 0; i < s->n_clients; i++)
                        sweep_blocks_wipe(&s->blocks_of[i][kind - 1]);
                r = move_all(s, &get, kind);
        }
        return r < 0 ? r : check_all(s, kind, op, get.blocks);
}

static double *rate_at(struct sweep *s, uint32_t kind, enum sweep_op op)
{
        return s->rates + ((size_t)(kind - 1) * SWEEP_OPS + op) * s->options->iterations;
}

static int note_pass(struct sweep *s, uint32_t kind, enum sweep_op op, int64_t iteration)
{
        const struct sweep_observer *observer = s->options->observer;
        uint64_t begun = UINT64_MAX, ended = 0, bytes = 0;

        for (uint64_t i = 0; i < s->n_clients; i++) {
                struct sweep_client *c = &s->clients[i];

                begun = MIN(begun, c->begun_ns);
                ended = MAX(ended, c->ended_ns);
                bytes += (op == SWEEP_MIXED ? s->blocks / 2 * 2 : s->blocks) *
                         c->blocks->info.block_bytes;
                latency_merge(&s->latencies[kind - 1][op], &c->latency);
                s->got[kind - 1][op] += c->got;
                s->from_disk[kind - 1][op] += c->got_from_disk;
        }
        rate_at(s, kind, op)[MAX(iteration, (int64_t)0)] =
                ended > begun ? (double)bytes / (double)(ended - begun) * 1e9 : 0;
        if (!observer || iteration < 0)
                return 0;
        return observer->pass(observer->userdata, s->clients, s->n_clients,
                              (double)(ended - begun) / 1e9);
}

static void forget_counts(struct sweep *s)
{
        for (uint64_t i = 0; i < s->n_clients; i++) {
                latency_fini(&s->clients[i].latency);
                s->clients[i].latency = (struct latency){ 0 };
                s->clients[i].got = s->clients[i].got_from_disk = 0;
        }
}

static int measure(struct sweep *s, uint32_t kind, enum sweep_op op, int64_t iteration)
{
        struct sweep_pass pass = {
                .op = op, .blocks = s->blocks, .depth = s->depth, .ack = s->options->ack
        };
        int r = prepare(s, op, kind);

        forget_counts(s);
        if (r == 0)
                r = move_all(s, &pass, kind);
        if (r == 0)
                r = note_pass(s, kind, op, iteration);
        return r == 0 && s->options->verify ? verify(s, op, kind) : r;
}

/* --- clients for one combination of sizes --- */

static int open_client(struct sweep *s, uint64_t number, uint64_t block_bytes)
{
        struct sweep_client *c = &s->clients[number];
        struct kvcache_options connection = {
                .size = sizeof(connection),
                .socket_path = s->options->socket_path,
                .client_name = "kvcache-bench session",
        };
        struct kvcache_namespace_options names = {
                .size = sizeof(names),
                .name = s->namespace_name,
                .fingerprint = "layout=session\n",
                .chunk_bytes = block_bytes,
        };
        struct kvcache_info info = { .size = sizeof(info) };
        int r;

        c->interrupted = s->options->interrupted;
        c->n_keys = s->blocks;
        c->keys = calloc(s->blocks, sizeof(*c->keys));
        c->calls = calloc(s->blocks, sizeof(*c->calls));
        if (!c->keys || !c->calls)
                return -ENOMEM;
        if (getrandom(c->keys, s->blocks * sizeof(*c->keys), 0) < 0)
                return -errno;
        r = kvcache_connect(&c->kv, &connection, s->error, SWEEP_ERROR_BYTES);
        if (r < 0)
                return r;
        r = kvcache_get_info(c->kv, &info);
        if (r == 0 && block_bytes > info.max_chunk_bytes) {
                snprintf(s->error, SWEEP_ERROR_BYTES,
                         "blocks of %" PRIu64 " bytes: the daemon stores at most %" PRIu64
                         " in a chunk",
                         block_bytes, info.max_chunk_bytes);
                return -E2BIG;
        }
        r = kvcache_namespace_open(c->kv, &names, &c->namespace_handle);
        if (r < 0)
                snprintf(s->error, SWEEP_ERROR_BYTES, "namespace %s: %s", names.name,
                         kvcache_error(c->kv));
        return r;
}

static void close_clients(struct sweep *s)
{
        for (uint64_t i = 0; i < s->n_clients; i++) {
                struct sweep_client *c = &s->clients[i];

                if (c->kv && c->namespace_handle)
                        (void)sweep_client_evict(c, KVCACHE_TIER_ALL);
                kvcache_close(c->kv);
                free(c->keys);
                free(c->calls);
                latency_fini(&c->latency);
                *c = (struct sweep_client){ 0 };
                for (unsigned k = 0; k < SWEEP_LAYOUTS; k++)
                        sweep_blocks_fini(&s->blocks_of[i][k]);
        }
}

static int open_clients(struct sweep *s)
{
        const struct sweep_options *o = s->options;
        uint64_t block_bytes = s->region_bytes * o->layers * o->outer;
        int r = 0;

        for (uint64_t i = 0; r == 0 && i < s->n_clients; i++) {
                r = open_client(s, i, block_bytes);
                for (unsigned k = 0; r == 0 && k < SWEEP_LAYOUTS; k++)
                        if (o->layouts[k])
                                r = sweep_blocks_init(&s->blocks_of[i][k], k + 1, s->region_bytes,
                                                      (uint32_t)o->layers, (uint32_t)o->outer,
                                                      s->blocks);
                for (unsigned k = 0; r == 0 && o->observer && k < SWEEP_LAYOUTS; k++)
                        if (o->layouts[k])
                                o->observer->layout(o->observer->userdata,
                                                    &s->blocks_of[i][k].layout);
        }
        if (r < 0 && !*s->error)
                snprintf(s->error, SWEEP_ERROR_BYTES, "the clients cannot be prepared: %s",
                         strerror(-r));
        return r;
}

/* --- the points --- */

static int compare_doubles(const void *a, const void *b)
{
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

/* Returns the median of the ratios of this layout's rates to those of the contiguous layout in the
 * same iteration, which other load of the host affects equally; 0 if the contiguous layout is not
 * measured. Must be called before the rates are sorted. */
static double ratio_of(struct sweep *s, uint32_t kind, enum sweep_op op)
{
        const double *rates = rate_at(s, kind, op),
                     *base = rate_at(s, KVCACHE_LAYOUT_CONTIGUOUS, op);
        uint64_t n = s->options->iterations;

        if (!s->options->layouts[KVCACHE_LAYOUT_CONTIGUOUS - 1])
                return 0;
        for (uint64_t i = 0; i < n; i++)
                s->ratios[i] = base[i] > 0 ? rates[i] / base[i] : 0;
        qsort(s->ratios, n, sizeof(*s->ratios), compare_doubles);
        return s->ratios[n / 2];
}

static int add_point(struct sweep *s, uint32_t kind, enum sweep_op op)
{
        const struct sweep_options *o = s->options;
        double *rates = rate_at(s, kind, op), ratio = ratio_of(s, kind, op);
        struct latency *latency = &s->latencies[kind - 1][op];
        uint64_t got = s->got[kind - 1][op];
        void *p = reallocarray(s->result->points, s->result->n + 1, sizeof(*s->result->points));

        if (!p)
                return -ENOMEM;
        s->result->points = p;
        memcpy(s->ratios, rates, o->iterations * sizeof(*rates));
        rates = s->ratios;
        qsort(rates, o->iterations, sizeof(*rates), compare_doubles);
        s->result->points[s->result->n++] = (struct sweep_point){
                .region_bytes = s->region_bytes,
                .block_bytes = s->region_bytes * o->layers * o->outer,
                .blocks = s->blocks,
                .depth = s->depth,
                .clients = s->n_clients,
                .kind = kind,
                .op = op,
                .rate = rates[o->iterations / 2],
                .slowest = rates[0],
                .fastest = rates[o->iterations - 1],
                .of_contiguous = ratio,
                .p50_ns = latency_quantile(latency, 0.5),
                .p99_ns = latency_quantile(latency, 0.99),
                .from_disk = got ? (double)s->from_disk[kind - 1][op] / (double)got : 0,
                .verified_bytes = s->verified[kind - 1][op],
        };
        return 0;
}

static void reset_figures(struct sweep *s)
{
        for (unsigned k = 0; k < SWEEP_LAYOUTS; k++)
                for (unsigned op = 0; op < SWEEP_OPS; op++)
                        latency_fini(&s->latencies[k][op]);
        memset(s->latencies, 0, sizeof(s->latencies));
        memset(s->got, 0, sizeof(s->got));
        memset(s->from_disk, 0, sizeof(s->from_disk));
        memset(s->verified, 0, sizeof(s->verified));
}

static unsigned count_true(const bool *values, unsigned n)
{
        unsigned count = 0;

        for (unsigned i = 0; i < n; i++)
                count += values[i];
        return count;
}

static void report_progress(struct sweep *s)
{
        const struct sweep_options *o = s->options;
        double all = (double)o->n_regions * o->n_clients * o->n_depths *
                     (double)(o->iterations + 1) * count_true(o->ops, SWEEP_OPS) *
                     count_true(o->layouts, SWEEP_LAYOUTS);

        s->measured++;
        if (o->on_progress)
                o->on_progress(o->progress_userdata, (double)s->measured / all, s->measured);
}

/* Measures each selected layout once. Each iteration begins with another layout, because the first
 * one competes with writes of the operation before. */
static int measure_layouts(struct sweep *s, enum sweep_op op, int64_t iteration)
{
        uint32_t first = (uint32_t)((iteration + SWEEP_LAYOUTS) % SWEEP_LAYOUTS);
        int r = 0;

        for (uint32_t i = 0; r == 0 && i < SWEEP_LAYOUTS; i++) {
                uint32_t k = (first + i) % SWEEP_LAYOUTS;

                if (!s->options->layouts[k])
                        continue;
                r = measure(s, k + 1, op, iteration);
                report_progress(s);
        }
        return r;
}

/* Measures all layouts and operations with the current sizes; iteration -1 warms up the pool's
 * pages. */
static int measure_sizes(struct sweep *s)
{
        const struct sweep_options *o = s->options;
        int r = 0;

        for (int64_t i = -1; r == 0 && i < (int64_t)o->iterations; i++) {
                if (i == 0)
                        reset_figures(s);
                for (unsigned op = 0; r == 0 && op < SWEEP_OPS; op++)
                        if (o->ops[op])
                                r = measure_layouts(s, (enum sweep_op)op, i);
        }
        for (unsigned op = 0; op < SWEEP_OPS; op++)
                for (uint32_t k = 0; r == 0 && o->ops[op] && k < SWEEP_LAYOUTS; k++)
                        if (o->layouts[k])
                                r = add_point(s, k + 1, (enum sweep_op)op);
        return r;
}

static int run_sizes(struct sweep *s, uint64_t region, uint64_t clients, uint64_t depth)
{
        const struct sweep_options *o = s->options;
        uint64_t block_bytes = region * o->layers * o->outer;
        int r;

        s->region_bytes = region;
        s->n_clients = clients;
        s->depth = depth;
        s->blocks = MAX(o->bytes / clients / block_bytes, (uint64_t)2);
        r = open_clients(s);
        if (r == 0)
                r = measure_sizes(s);
        close_clients(s);
        reset_figures(s);
        return r;
}

/* Removes the namespace that all clients had open. The daemon may not have ended their sessions
 * yet, if some had requests in flight. A namespace that cannot be removed is empty, or has the last
 * chunks of an interrupted run. */
static void remove_namespace(struct sweep *s)
{
        struct kvcache_options connection = {
                .size = sizeof(connection),
                .socket_path = s->options->socket_path,
                .client_name = "kvcache-bench session",
        };
        struct kvcache *kv = NULL;
        int r;

        if (kvcache_connect(&kv, &connection, NULL, 0) < 0)
                return;
        r = kvcache_namespace_remove(kv, s->namespace_name, NULL, KVCACHE_PURGE, NULL);
        for (unsigned i = 0; r == -EBUSY && i < REMOVE_MS / REMOVE_PAUSE_MS; i++) {
                (void)poll(NULL, 0, REMOVE_PAUSE_MS);
                r = kvcache_namespace_remove(kv, s->namespace_name, NULL, KVCACHE_PURGE, NULL);
        }
        kvcache_close(kv);
}

int sweep_run(const struct sweep_options *o, struct sweep_result *ret,
              char ret_error[static SWEEP_ERROR_BYTES])
{
        _cleanup_(freep) struct sweep *s = calloc(1, sizeof(*s));
        _cleanup_(freep) double *rates = NULL, *ratios = NULL;
        int r = 0;

        *ret_error = '\0'; /* empty until there is a reason */
        rates = calloc((size_t)SWEEP_LAYOUTS * SWEEP_OPS * o->iterations, sizeof(*rates));
        ratios = calloc(o->iterations, sizeof(*ratios));
        if (!s || !rates || !ratios) {
                snprintf(ret_error, SWEEP_ERROR_BYTES, "out of memory");
                return -ENOMEM;
        }
        s->options = o;
        s->result = ret;
        s->error = ret_error;
        s->rates = rates;
        s->ratios = ratios;
        for (unsigned i = 0; i < o->n_regions; i++) {
                /* Each region size has its own namespace, because chunks of a namespace have one
                 * size. */
                snprintf(s->namespace_name, sizeof(s->namespace_name), "bench-session-%d-%" PRIu64,
                         (int)getpid(), o->regions[i]);
                for (unsigned c = 0; c < o->n_clients; c++)
                        for (unsigned d = 0; r == 0 && d < o->n_depths; d++)
                                r = run_sizes(s, o->regions[i], o->clients[c], o->depths[d]);
                remove_namespace(s);
                if (r < 0)
                        break;
        }
        if (r < 0 && !*ret_error)
                snprintf(ret_error, SWEEP_ERROR_BYTES, "%s", strerror(-r));
        return r;
}
