/* SPDX-License-Identifier: Apache-2.0 */
#include "replay.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common.h"
#include "checked.h"
#include "human.h"
#include "replay-client.h"

enum {
        PROGRESS_MS = 100,
        MOST_PUT_BYTES = 8 << 20,
        MOST_GET_BYTES = 32 << 20,
};

/* Counts a request in its part of the workload. */
static void note_part(struct replay_client *c, size_t request, const struct replay_counts *before)
{
        struct replay_part *part =
                &c->parts[request * REPLAY_PARTS / c->shared->workload->n_requests];

        part->requests++;
        part->blocks_asked += c->counts.blocks_asked - before->blocks_asked;
        part->blocks_hit += c->counts.blocks_hit - before->blocks_hit;
        part->blocks_hit_memory += c->counts.blocks_hit_memory - before->blocks_hit_memory;
        part->ns += latency_now_ns() - c->began_ns;
}

static void *client_run(void *userdata)
{
        struct replay_client *c = userdata;
        struct replay_shared *s = c->shared;
        int r = 0;

        while (r >= 0 && !replay_should_stop(s)) {
                size_t i = atomic_fetch_add(&s->next_request, 1);
                struct replay_counts before = c->counts;

                if (i >= s->workload->n_requests)
                        break;
                r = replay_client_play(c, &s->workload->requests[i]);
                if (c->counts.requests > before.requests)
                        note_part(c, i, &before);
                atomic_fetch_add(&s->requests, c->counts.requests - before.requests);
                atomic_fetch_add(&s->blocks_asked, c->counts.blocks_asked - before.blocks_asked);
                atomic_fetch_add(&s->blocks_hit, c->counts.blocks_hit - before.blocks_hit);
                atomic_fetch_add(&s->bytes, c->counts.bytes_put + c->counts.bytes_got -
                                                    before.bytes_put - before.bytes_got);
        }
        replay_client_let_go(c);

        pthread_mutex_lock(&s->lock);
        s->running--;
        pthread_cond_signal(&s->ended);
        pthread_mutex_unlock(&s->lock);
        return NULL;
}

static int connect_one(struct replay_shared *s, struct kvcache **ret)
{
        struct kvcache_options options = {
                .size = sizeof(options),
                .socket_path = s->options->socket_path,
                .client_name = "kvcache-bench replay",
        };
        char error[512] = "";
        int r = kvcache_connect(ret, &options, error, sizeof(error));

        if (r >= 0)
                return 0;
        return replay_fail(s,
                           r == -ENOMEM           ? EXIT_LOCAL
                           : errno_unreachable(r) ? EXIT_UNREACHABLE
                                                  : EXIT_REFUSED,
                           "%s", *error ? error : strerror(-r));
}

static int open_namespace(struct replay_shared *s, struct kvcache *kv, uint32_t *ret)
{
        char fingerprint[128];
        struct kvcache_namespace_options options = {
                .size = sizeof(options),
                .name = s->options->namespace_name,
                .fingerprint = fingerprint,
                .chunk_bytes = s->options->block_bytes,
        };
        int r;

        snprintf(fingerprint, sizeof(fingerprint),
                 "block_bytes=%" PRIu64 "\ncontents=kvcachectl-1\n", s->options->block_bytes);
        r = kvcache_namespace_open(kv, &options, ret);
        if (r == -EEXIST)
                return replay_fail(
                        s, EXIT_REFUSED,
                        "%s; give the same --block-bytes as before, or another --namespace",
                        kvcache_error(kv));
        if (r < 0)
                return replay_fail(s, errno_unreachable(r) ? EXIT_UNREACHABLE : EXIT_REFUSED,
                                   "namespace '%s': %s", s->options->namespace_name,
                                   kvcache_error(kv));
        return 0;
}

/* Sets the number of blocks that a client puts or gets in one request, and the bytes on which it
 * keeps leases, so that all clients together never need more of the pool than the daemon gives
 * them. Returns 0, or a negative errno after replay_fail(). */
static int size_rounds(struct replay_shared *s, struct kvcache *kv)
{
        struct kvcache_info info = { .size = sizeof(info) };
        const struct replay_options *o = s->options;
        uint64_t round;
        int r;

        r = kvcache_get_info(kv, &info);
        if (r < 0)
                return replay_fail(s, EXIT_REFUSED, "%s", kvcache_error(kv));
        if (info.max_chunk_bytes > 0 && o->block_bytes > info.max_chunk_bytes)
                return replay_fail(s, EXIT_REFUSED,
                                   "this daemon stores chunks of at most %" PRIu64
                                   " bytes, and --block-bytes asks for %" PRIu64,
                                   info.max_chunk_bytes, o->block_bytes);
        round = MIN(info.pool_bytes / 16, info.pool_bytes / 8 / o->clients);
        s->round_put_blocks =
                MAX(MIN(round, (uint64_t)MOST_PUT_BYTES) / o->block_bytes, (uint64_t)1);
        s->round_get_blocks =
                MAX(MIN(round, (uint64_t)MOST_GET_BYTES) / o->block_bytes, (uint64_t)1);
        s->hold_bytes = MIN(info.pool_bytes / 8, info.pool_bytes / 4 / o->clients);
        return 0;
}

bool replay_parse_evictions(const char *stats_json, uint64_t *ret)
{
        _cleanup_(cJSON_Deletep) cJSON *stats = cJSON_Parse(stats_json);
        const cJSON *metric = cJSON_GetObjectItemCaseSensitive(stats, "kvcache_evictions_total"),
                    *item;
        static const char *const store_labels[] = { "disk", "store" };
        double total = 0;

        if (cJSON_IsNumber(metric)) {
                total = metric->valuedouble;
        } else if (cJSON_IsObject(metric)) {
                for (size_t i = 0; i < ARRAY_SIZE(store_labels); i++) {
                        item = cJSON_GetObjectItemCaseSensitive(metric, store_labels[i]);
                        if (cJSON_IsNumber(item)) {
                                *ret = item->valuedouble > 0 ? (uint64_t)item->valuedouble : 0;
                                return true;
                        }
                }
                cJSON_ArrayForEach(item, metric) if (cJSON_IsNumber(item)) total +=
                        item->valuedouble;
        } else {
                return false;
        }
        *ret = total > 0 ? (uint64_t)total : 0;
        return true;
}

static bool read_evictions(struct kvcache *kv, uint64_t *ret)
{
        _cleanup_(freep) char *text = NULL;

        return kvcache_report(kv, KVCACHE_REPORT_STATS, &text) >= 0 &&
               replay_parse_evictions(text, ret);
}

static bool same_instance(const struct kvcache_info *a, const struct kvcache_info *b)
{
        return memcmp(a->instance, b->instance, sizeof(a->instance)) == 0;
}

static void merge(struct replay_result *to, const struct replay_client *from)
{
        /* All members of the structure are uint64_t, so they can be added as an array. */
        uint64_t *sums = (uint64_t *)&to->counts;
        const uint64_t *parts = (const uint64_t *)&from->counts;

        static_assert(sizeof(struct replay_counts) % sizeof(uint64_t) == 0, "counts only");
        for (size_t i = 0; i < sizeof(struct replay_counts) / sizeof(uint64_t); i++)
                sums[i] += parts[i];
        for (size_t i = 0; i < REPLAY_PARTS; i++) {
                struct replay_part *part = &to->parts[i];

                part->requests += from->parts[i].requests;
                part->blocks_asked += from->parts[i].blocks_asked;
                part->blocks_hit += from->parts[i].blocks_hit;
                part->blocks_hit_memory += from->parts[i].blocks_hit_memory;
                part->ns += from->parts[i].ns;
        }
        latency_merge(&to->match, &from->match);
        latency_merge(&to->get, &from->get);
        latency_merge(&to->put, &from->put);
}

double replay_progress_text(const struct replay_progress *now,
                            char ret[static REPLAY_PROGRESS_BYTES])
{
        char done[HUMAN_BYTES], all[HUMAN_BYTES], hit[HUMAN_BYTES], left[HUMAN_BYTES] = "";
        double part = now->n_requests ? (double)now->requests / (double)now->n_requests : 1;

        human_count(now->requests, done);
        human_count(now->n_requests, all);
        human_percent(now->blocks_hit, now->blocks_asked, hit);
        if (now->requests > 0 && now->seconds > 1 && part < 1)
                human_seconds(now->seconds / part * (1 - part), left);
        snprintf(ret, REPLAY_PROGRESS_BYTES, " %3.0f %%  %s/%s requests  %s hit  %.2f GB/s%s%s",
                 part * 100, done, all, hit,
                 now->seconds > 0 ? (double)now->bytes / now->seconds / 1e9 : 0,
                 *left ? "  left " : "", left);
        return part;
}

static void tell_progress(struct replay_shared *s)
{
        const struct replay_options *o = s->options;
        struct replay_progress progress = {
                .requests = atomic_load(&s->requests),
                .n_requests = s->workload->n_requests,
                .blocks_asked = atomic_load(&s->blocks_asked),
                .blocks_hit = atomic_load(&s->blocks_hit),
                .bytes = atomic_load(&s->bytes),
                .seconds = (double)(latency_now_ns() - s->start_ns) / 1e9,
        };

        if (o->progress)
                o->progress(o->userdata, &progress);
}

static void wait_for_clients(struct replay_shared *s)
{
        pthread_mutex_lock(&s->lock);
        while (s->running > 0) {
                struct timespec until;
                int r = 0;

                clock_gettime(CLOCK_MONOTONIC, &until);
                until.tv_nsec += PROGRESS_MS * 1000000;
                if (until.tv_nsec >= 1000000000) {
                        until.tv_nsec -= 1000000000;
                        until.tv_sec++;
                }
                while (s->running > 0 && r == 0)
                        r = pthread_cond_timedwait(&s->ended, &s->lock, &until);
                pthread_mutex_unlock(&s->lock);
                tell_progress(s);
                pthread_mutex_lock(&s->lock);
        }
        pthread_mutex_unlock(&s->lock);
}

/* Connects all clients and opens the namespace before the first request, so that a replay which
 * cannot run does not begin. Returns the number of clients whose threads run; if it is less than
 * the number of clients, replay_fail() has been called. */
static unsigned start_clients(struct replay_shared *s, struct replay_client *clients)
{
        const struct replay_options *o = s->options;
        unsigned started = 0;

        for (unsigned i = 0; i < o->clients; i++) {
                clients[i].shared = s;
                if (connect_one(s, &clients[i].kv) < 0 ||
                    open_namespace(s, clients[i].kv, &clients[i].namespace) < 0)
                        return 0;
        }
        s->start_ns = latency_now_ns();
        for (; started < o->clients; started++) {
                int r;

                pthread_mutex_lock(&s->lock);
                s->running++;
                pthread_mutex_unlock(&s->lock);
                r = pthread_create(&clients[started].thread, NULL, client_run, &clients[started]);
                if (r != 0) {
                        pthread_mutex_lock(&s->lock);
                        s->running--;
                        pthread_mutex_unlock(&s->lock);
                        replay_fail(s, EXIT_LOCAL, "cannot start client %u: %s", started + 1,
                                    strerror(r));
                        break;
                }
        }
        return started;
}

static void play(struct replay_shared *s, struct replay_client *clients, struct kvcache *control,
                 struct replay_result *ret)
{
        struct kvcache_info first = { .size = sizeof(first) }, last = { .size = sizeof(last) };
        uint64_t before = 0, after = 0;
        bool known;
        unsigned started;

        if (size_rounds(s, control) < 0)
                return;
        known = read_evictions(control, &before) && kvcache_get_info(control, &first) >= 0;

        started = start_clients(s, clients);
        wait_for_clients(s);
        for (unsigned i = 0; i < started; i++)
                pthread_join(clients[i].thread, NULL);
        if (started > 0)
                ret->seconds = (double)(latency_now_ns() - s->start_ns) / 1e9;

        for (unsigned i = 0; i < started; i++) {
                struct kvcache_info info = { .size = sizeof(info) };

                if (kvcache_get_info(clients[i].kv, &info) >= 0)
                        clients[i].counts.reconnects = info.reconnects;
                merge(ret, &clients[i]);
        }
        /* The counters of a restarted daemon start at zero, so the difference would be wrong. */
        if (known && s->status != EXIT_UNREACHABLE && read_evictions(control, &after) &&
            kvcache_get_info(control, &last) >= 0) {
                ret->evictions_known = true;
                ret->evictions = same_instance(&first, &last) ? after - MIN(before, after) : after;
        }
}

int replay_run(const struct replay_options *options, const struct workload *workload,
               struct replay_result *ret)
{
        struct replay_shared s = { .options = options,
                                   .workload = workload,
                                   .lock = PTHREAD_MUTEX_INITIALIZER };
        struct replay_client *clients = calloc(options->clients, sizeof(*clients));
        struct kvcache *control = NULL;
        pthread_condattr_t attributes;

        *ret = (struct replay_result){ 0 };
        pthread_condattr_init(&attributes);
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        pthread_cond_init(&s.ended, &attributes);
        pthread_condattr_destroy(&attributes);

        if (!clients)
                replay_fail(&s, EXIT_LOCAL, "out of memory");
        else if (connect_one(&s, &control) == 0)
                play(&s, clients, control, ret);

        for (unsigned i = 0; clients && i < options->clients; i++)
                replay_client_fini(&clients[i]);
        free(clients);
        kvcache_close(control);
        pthread_cond_destroy(&s.ended);
        pthread_mutex_destroy(&s.lock);

        ret->interrupted = options->interrupted && *options->interrupted;
        ret->status = s.status;
        memcpy(ret->error, s.error, sizeof(ret->error));
        memcpy(ret->first_wrong, s.first_wrong, sizeof(ret->first_wrong));
        return ret->status;
}

void replay_result_fini(struct replay_result *result)
{
        latency_fini(&result->match);
        latency_fini(&result->get);
        latency_fini(&result->put);
}
