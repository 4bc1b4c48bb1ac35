/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks through the daemon.
 *
 * A client keeps up to `depth` blocks on their way, a request for each piece. A request that is lost,
 * refused or incomplete ends the job: this measures, and a figure with holes in it is none. What has
 * become of the daemon is looked at before each pass, too: one that was restarted in between is not
 * the one that was measured before. */
#include "through.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common.h"
#include "checked.h"
#include "human.h"

enum {
        CALL_KEYS = 1024,
        DRAIN_MAX = 64,
        LOOK_MS = 100,      /* between two looks at whether to stop */
        REST_LOOK_MS = 5,   /* between two looks at whether the daemon is at rest */
        REST_QUIET = 3,     /* so many looks without anything moving */
        REST_OWN_MS = 60000, /* how long to wait for that: our own daemon */
        REST_OTHER_MS = 2000, /* another one, which may have other work */
        PLACE_ALIGN = 64,
        MOST_PLACES = 256,
};

/* --- what the daemon says --- */

static double number_at(const cJSON *object, const char *name)
{
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        return cJSON_IsNumber(item) ? item->valuedouble : 0;
}

static void text_at(const cJSON *object, const char *name, char *ret, size_t room)
{
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

        snprintf(ret, room, "%s", text ? text : "");
}

int through_facts(struct kvcache *kv, struct through_facts *ret, char *ret_error, size_t room)
{
        struct kvcache_info info = { .size = sizeof(info) };
        _cleanup_(freep) char *text = NULL;
        _cleanup_(cJSON_Deletep) cJSON *status = NULL;
        const cJSON *io, *store, *paths;
        int r;

        r = kvcache_report(kv, KVCACHE_REPORT_STATUS, &text);
        if (r >= 0)
                r = kvcache_get_info(kv, &info);
        if (r < 0) {
                snprintf(ret_error, room, "the daemon does not tell its status: %s",
                         kvcache_error(kv));
                return r;
        }
        status = cJSON_Parse(text);
        io = cJSON_GetObjectItemCaseSensitive(status, "io");
        store = cJSON_GetObjectItemCaseSensitive(status, "store");
        if (!io || !store) {
                snprintf(ret_error, room, "the daemon's status makes no sense");
                return -EBADMSG;
        }
        *ret = (struct through_facts){
                .direct = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(io, "direct")),
                .pool_bytes = info.pool_bytes,
                .max_chunk_bytes = info.max_chunk_bytes,
                .limit_bytes = (uint64_t)number_at(store, "limit_bytes"),
                .depth = (unsigned)MIN(number_at(io, "workers") * number_at(io, "depth"),
                                       (double)PROFILE_MAX_DEPTH),
        };
        text_at(io, "backend", ret->backend, sizeof(ret->backend));
        paths = cJSON_GetObjectItemCaseSensitive(store, "path");
        if (cJSON_GetArraySize(paths) > 0)
                snprintf(ret->store_path, sizeof(ret->store_path), "%s",
                         cJSON_GetStringValue(cJSON_GetArrayItem(paths, 0)));
        return 0;
}

struct activity {
        double operations, busy, unpopulated;
};

static int look_at_activity(struct kvcache *kv, struct activity *ret)
{
        _cleanup_(freep) char *text = NULL;
        _cleanup_(cJSON_Deletep) cJSON *stats = NULL;
        const cJSON *item;
        int r = kvcache_report(kv, KVCACHE_REPORT_STATS, &text);

        if (r < 0)
                return r;
        stats = cJSON_Parse(text);
        *ret = (struct activity){
                .busy = number_at(stats, "kvcache_io_inflight") +
                        number_at(stats, "kvcache_io_queued") +
                        number_at(stats, "kvcache_pool_unwritten_bytes"),
                .unpopulated = number_at(stats, "kvcache_pool_size_bytes") -
                               number_at(stats, "kvcache_pool_populated_bytes"),
        };
        cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(stats,
                                                                  "kvcache_io_operations_total"))
                ret->operations += item->valuedouble;
        return 0;
}

static int lost(struct through *t, struct profile *p, int r, const char *what)
{
        if (errno_unreachable(r))
                return profile_fail(p, "the daemon went away: %s: %s", what,
                                    kvcache_error(t->options.kv));
        return profile_fail(p, "%s: %s", what, kvcache_error(t->options.kv));
}

/* What it does in the background (its memory, new data files) is not what is measured. A daemon that
 * others use may never rest: then it is measured as it is. */
static int wait_for_rest(struct through *t, struct profile *p)
{
        uint64_t deadline = profile_now_ns() +
                            (t->options.own_daemon ? REST_OWN_MS : REST_OTHER_MS) * 1000000ull;
        struct timespec pause = { .tv_nsec = REST_LOOK_MS * 1000000 };
        struct activity before = { .operations = -1 }, now;

        for (unsigned quiet = 0; quiet < REST_QUIET && profile_now_ns() < deadline;) {
                int r = look_at_activity(t->options.kv, &now);

                if (r < 0)
                        return lost(t, p, r, "statistics");
                if (profile_should_stop(p))
                        return -ECANCELED;
                quiet = now.operations == before.operations && now.busy == 0 &&
                                        now.unpopulated <= 0
                                ? quiet + 1
                                : 0;
                before = now;
                clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
        }
        return 0;
}

/* --- around the passes --- */

static int check_instance(struct through *t, struct profile *p, struct kvcache *kv)
{
        struct kvcache_info info = { .size = sizeof(info) };

        if (kvcache_get_info(kv, &info) < 0 ||
            memcmp(info.instance, t->instance, sizeof(info.instance)) != 0)
                return profile_fail(p, "the daemon was restarted during the run");
        return 0;
}

typedef int (*each_result_fn)(struct profile *p, const struct kvcache_result *result,
                              void *userdata);

static int call_on_all(struct through *t, struct profile *p, enum kvcache_op op, uint32_t tiers,
                       const char *what, each_result_fn each, void *userdata)
{
        for (uint64_t at = 0; at < p->job->n_blocks; at += CALL_KEYS) {
                size_t n = MIN(p->job->n_blocks - at, (uint64_t)CALL_KEYS);
                struct kvcache_request request = {
                        .size = sizeof(request),
                        .op = op,
                        .namespace_handle = t->namespace_handle,
                        .tiers = tiers,
                        .keys = p->keys + at,
                        .count = n,
                        .results = t->results,
                };
                int r = kvcache_call(t->options.kv, &request, NULL);

                if (r < 0)
                        return lost(t, p, r, what);
                if (profile_should_stop(p))
                        return -ECANCELED;
                for (size_t i = 0; i < n; i++) {
                        r = each(p, &t->results[i], userdata);
                        if (r < 0)
                                return r;
                }
        }
        return check_instance(t, p, t->options.kv);
}

static int is_gone(struct profile *p, const struct kvcache_result *result, void *userdata)
{
        if (result->status == KVCACHE_OK || result->status == KVCACHE_MISS)
                return 0;
        return profile_fail(p, "a block cannot be dropped: the daemon answered %s",
                            kvcache_status_name(result->status));
}

static int count_present(struct profile *p, const struct kvcache_result *result, void *userdata)
{
        uint64_t *present = userdata;

        *present += result->status == KVCACHE_OK && result->tiers != 0;
        return 0;
}

int through_look(struct through *t, struct profile *p, uint64_t *ret_present)
{
        int r;

        *ret_present = 0;
        r = call_on_all(t, p, KVCACHE_OP_EXISTS, 0, "looking for the blocks", count_present,
                        ret_present);
        if (r < 0)
                return r;
        if (*ret_present == 0)
                return THROUGH_NOTHING;
        return *ret_present < p->job->n_blocks ? THROUGH_INCOMPLETE : 0;
}

int through_forget(struct through *t, struct profile *p)
{
        return call_on_all(t, p, KVCACHE_OP_EVICT, KVCACHE_TIER_ALL, "dropping the blocks", is_gone,
                           NULL);
}

static int through_before(void *self, struct profile *p, enum profile_pass pass)
{
        struct through *t = self;
        int r = 0;

        if (pass == PROFILE_WRITE)
                r = through_forget(t, p);
        else if (pass == PROFILE_READ_COLD)
                r = call_on_all(t, p, KVCACHE_OP_EVICT, KVCACHE_TIER_MEMORY,
                                "dropping the blocks from memory", is_gone, NULL);
        return r < 0 ? r : wait_for_rest(t, p);
}

/* --- a client --- */

struct flight {
        const struct profile_piece *piece;
        uint8_t *place; /* of a write */
        uint64_t at[4];
};

struct client {
        struct through *through;
        struct profile *profile;
        struct kvcache *kv;
        uint32_t namespace_handle;

        uint64_t stride; /* of blocks in a place */
        void *places[MOST_PLACES];
        size_t n_places, n_free;
        uint64_t place_blocks;

        struct flight *flights;
        uint32_t *idle;
        size_t n_flights, n_idle;
        struct kvcache_result *results; /* of a window; of a write: of each flight */
        size_t results_room;
        struct kvcache_entry *entries; /* of one request */
};

static void client_free(void *userdata)
{
        struct client *c = userdata;

        kvcache_close(c->kv);
        free(c->flights);
        free(c->idle);
        free(c->results);
        free(c->entries);
        free(c);
}

/* As many places as the depth wants, or the lane has. */
static int client_take_places(struct client *c)
{
        struct profile *p = c->profile;
        uint64_t bytes, want;
        int r = 0;

        c->stride = round_up(p->job->io_size, PLACE_ALIGN);
        for (c->place_blocks = PROFILE_PIECE_BLOCKS;; c->place_blocks /= 2) {
                struct kvcache_info info = { .size = sizeof(info) };

                bytes = c->place_blocks * c->stride;
                want = MIN(c->through->side.depth / c->place_blocks + 2, (uint64_t)MOST_PLACES);
                while (c->n_places < want) {
                        r = kvcache_lane_acquire(c->kv, bytes, &c->places[c->n_places]);
                        if (r < 0)
                                break;
                        c->n_places++;
                }
                if (c->n_places >= 4 || (c->n_places > 0 && c->place_blocks == 1))
                        break;
                while (c->n_places > 0)
                        kvcache_lane_release(c->kv, c->places[--c->n_places]);
                (void)kvcache_get_info(c->kv, &info);
                if (c->place_blocks == 1 && (r == -E2BIG || r == -ENOBUFS))
                        return profile_fail(p,
                                            "a block of %" PRIu64 " bytes does not fit the lane of "
                                            "%" PRIu64 " bytes: memory.lane is too small",
                                            p->job->io_size, info.lane_bytes);
                if (r < 0 && r != -E2BIG && r != -ENOBUFS)
                        return profile_fail(p, "no memory to write from: %s", kvcache_error(c->kv));
        }
        for (size_t i = 0; i < c->n_places; i++)
                for (uint64_t k = 0; k < c->place_blocks; k++)
                        content_fill(&p->content, (uint8_t *)c->places[i] + k * c->stride);
        c->n_free = c->n_places;
        return 0;
}

static int open_namespace(struct profile *p, struct kvcache *kv, uint32_t *ret)
{
        struct kvcache_namespace_options options = {
                .size = sizeof(options),
                .name = p->job->name,
                .fingerprint = p->job->fingerprint,
                .chunk_bytes = p->job->io_size,
        };

        if (kvcache_namespace_open(kv, &options, ret) < 0)
                return profile_fail(p, "cannot open the namespace %s: %s", p->job->name,
                                    kvcache_error(kv));
        return 0;
}

static int client_new(void *self, struct profile *p, void **ret)
{
        struct through *t = self;
        struct kvcache_options options = {
                .size = sizeof(options),
                .socket_path = t->options.socket_path,
                .client_name = "kvcachectl profile",
                .request_timeout_ms = PROFILE_STUCK_MS,
        };
        char error[512] = "";
        struct client *c = calloc(1, sizeof(*c));
        int r;

        if (!c)
                return profile_fail(p, "out of memory");
        *ret = c;
        c->through = t;
        c->profile = p;
        r = kvcache_connect(&c->kv, &options, error, sizeof(error));
        if (r < 0)
                return profile_fail(p, "a client cannot connect: %s", *error ? error : strerror(-r));
        r = open_namespace(p, c->kv, &c->namespace_handle);
        if (r == 0 && p->job->write)
                r = client_take_places(c);
        if (r < 0)
                return r;
        c->n_flights = t->side.depth;
        c->flights = calloc(c->n_flights, sizeof(*c->flights));
        c->idle = calloc(c->n_flights, sizeof(*c->idle));
        c->entries = calloc(PROFILE_PIECE_BLOCKS, sizeof(*c->entries));
        if (!c->flights || !c->idle || !c->entries)
                return profile_fail(p, "out of memory");
        for (size_t i = 0; i < c->n_flights; i++)
                c->idle[c->n_idle++] = (uint32_t)i;
        return check_instance(t, p, c->kv);
}

static int client_reserve(struct client *c, size_t n)
{
        void *p;

        if (n <= c->results_room)
                return 0;
        p = reallocarray(c->results, n, sizeof(*c->results));
        if (!p)
                return profile_fail(c->profile, "out of memory");
        c->results = p;
        c->results_room = n;
        return 0;
}

static struct kvcache_result *flight_results(struct client *c, const struct profile_work *work,
                                             uint32_t flight)
{
        return c->results + (work->write ? (size_t)flight * PROFILE_PIECE_BLOCKS
                                         : c->flights[flight].piece->at);
}

static int client_submit(struct client *c, const struct profile_work *work,
                         const struct profile_piece *piece)
{
        struct profile *p = c->profile;
        uint32_t number = c->idle[c->n_idle - 1];
        struct flight *f = &c->flights[number];

        *f = (struct flight){ .piece = piece };
        f->at[0] = profile_now_ns();
        struct kvcache_request request = {
                .size = sizeof(request),
                .op = work->write ? KVCACHE_OP_PUT : KVCACHE_OP_GET,
                .namespace_handle = c->namespace_handle,
                .ack = KVCACHE_WRITTEN,
                .count = piece->count,
                .parent = piece->root ? NULL : &p->keys[piece->first - 1],
                .results = flight_results(c, work, number),
                .timeout_ms = PROFILE_STUCK_MS,
                .user_data = number,
        };
        if (work->write) {
                f->place = c->places[--c->n_free];
                for (uint32_t i = 0; i < piece->count; i++) {
                        uint8_t *data = f->place + i * c->stride;

                        content_stamp(&p->content, data, piece->first + i, work->generation);
                        c->entries[i] = (struct kvcache_entry){
                                .key = p->keys[piece->first + i],
                                .data = data,
                                .length = p->job->io_size,
                        };
                }
                request.entries = c->entries;
        } else {
                request.keys = &p->keys[piece->first];
        }
        f->at[1] = profile_now_ns();
        if (kvcache_submit(c->kv, &request) < 0)
                return profile_fail(p, "a request cannot be sent: %s", kvcache_error(c->kv));
        f->at[2] = profile_now_ns();
        c->n_idle--;
        return 0;
}

static int block_failed(struct client *c, const struct profile_work *work, uint64_t block,
                        const struct kvcache_result *result)
{
        struct profile *p = c->profile;
        const char *what = work->write ? "writing" : "reading";

        switch (result->status) {
        case KVCACHE_LOST:
        case KVCACHE_SHUTDOWN:
                return profile_fail(p, "the daemon went away while %s block %" PRIu64, what, block);
        case KVCACHE_PENDING:
                return profile_fail(p, "the daemon did not answer within %d s while %s block %" PRIu64,
                                    PROFILE_STUCK_MS / 1000, what, block);
        case KVCACHE_MISS:
                return profile_fail(p,
                                    "block %" PRIu64 " of %" PRIu64
                                    " is gone: the daemon found it damaged on disk, or evicted it",
                                    block, p->job->n_blocks);
        case KVCACHE_EXISTS:
                return profile_fail(p,
                                    "block %" PRIu64 " was there already: somebody else writes the "
                                    "same workload",
                                    block);
        case KVCACHE_OK:
                return profile_fail(p,
                                    "block %" PRIu64 " is short: %" PRIu64 " of %" PRIu64 " bytes",
                                    block, result->length, p->job->io_size);
        default:
                return profile_fail(p, "%s block %" PRIu64 ": the daemon answered %s", what, block,
                                    kvcache_status_name(result->status));
        }
}

static int client_take(struct client *c, const struct profile_work *work, uint32_t number)
{
        const struct flight *f = &c->flights[number];
        const struct kvcache_result *results = flight_results(c, work, number);
        uint64_t io_size = c->profile->job->io_size;
        int r = 0;

        for (uint32_t i = 0; r == 0 && i < f->piece->count; i++) {
                if (results[i].status != KVCACHE_OK ||
                    (!work->write && (results[i].length != io_size || !results[i].data)))
                        r = block_failed(c, work, f->piece->first + i, &results[i]);
                else if (!work->write && results[i].tiers & KVCACHE_TIER_MEMORY)
                        work->tally->bytes_memory += io_size;
                else if (!work->write)
                        work->tally->bytes_disk += io_size;
        }
        if (r < 0)
                return r;
        profile_count(work->tally, f->piece->count, io_size, f->at);
        atomic_fetch_add_explicit(&c->profile->done_blocks, f->piece->count, memory_order_relaxed);
        return 0;
}

static int client_move(void *userdata, const struct profile_work *work)
{
        struct client *c = userdata;
        struct profile *p = c->profile;
        struct kvcache_completion done[DRAIN_MAX];
        uint64_t on_way = 0, last = profile_now_ns(), depth = c->through->side.depth;
        size_t next = 0;
        int r;

        r = check_instance(c->through, p, c->kv);
        if (r == 0)
                r = client_reserve(c, work->write ? c->n_flights * PROFILE_PIECE_BLOCKS
                                                  : work->n_blocks);
        if (r < 0)
                return r;
        while (next < work->n_pieces || on_way > 0) {
                int n;

                while (next < work->n_pieces && c->n_idle > 0 &&
                       (on_way == 0 || on_way + work->pieces[next].count <= depth) &&
                       (!work->write || c->n_free > 0)) {
                        r = client_submit(c, work, &work->pieces[next]);
                        if (r < 0)
                                return r;
                        on_way += work->pieces[next++].count;
                }
                n = kvcache_drain(c->kv, done, DRAIN_MAX, LOOK_MS);
                if (n < 0)
                        return profile_fail(p, "the daemon went away: %s", kvcache_error(c->kv));
                if (profile_should_stop(p))
                        return -ECANCELED;
                if (n > 0)
                        last = profile_now_ns();
                else if (profile_now_ns() - last > PROFILE_STUCK_MS * 1000000ull)
                        return profile_fail(p, "the daemon did not answer within %d s",
                                            PROFILE_STUCK_MS / 1000);
                for (int i = 0; i < n; i++) {
                        uint32_t number = (uint32_t)done[i].user_data;
                        struct flight *f = &c->flights[number];

                        f->at[3] = last;
                        r = client_take(c, work, number);
                        if (r < 0)
                                return r;
                        on_way -= f->piece->count;
                        if (f->place)
                                c->places[c->n_free++] = f->place;
                        c->idle[c->n_idle++] = number;
                }
        }
        return 0;
}

static int client_check(void *userdata, const struct profile_work *work)
{
        struct client *c = userdata;
        struct profile *p = c->profile;
        uint64_t io_size = p->job->io_size;

        for (size_t i = 0; i < work->n_pieces; i++) {
                const struct profile_piece *piece = &work->pieces[i];

                for (uint32_t k = 0; k < piece->count; k++) {
                        const struct kvcache_result *result = &c->results[piece->at + k];
                        size_t first = 0;
                        uint64_t wrong = content_check(&p->content, result->data, piece->first + k,
                                                       work->generation, &first);

                        if (wrong > 0)
                                return profile_fail(p,
                                                    "block %" PRIu64 " is wrong: %" PRIu64
                                                    " of %" PRIu64
                                                    " bytes, the first at offset %zu (from %s)",
                                                    piece->first + k, wrong, io_size, first,
                                                    tiers_text(result->tiers));
                        work->tally->bytes_verified += io_size;
                        if (result->lease.generation != 0)
                                (void)kvcache_release(c->kv, &result->lease, 1);
                }
                if (profile_should_stop(p))
                        return -ECANCELED;
        }
        if (kvcache_flush(c->kv) < 0)
                return profile_fail(p, "the daemon went away: %s", kvcache_error(c->kv));
        return 0;
}

/* --- the side --- */

int through_open(struct through *t, struct profile *p, const struct through_options *options)
{
        struct kvcache_info info = { .size = sizeof(info) };
        const struct profile_job *job = p->job;
        int r;

        *t = (struct through){ .options = *options };
        if (kvcache_get_info(options->kv, &info) < 0)
                return profile_fail(p, "the daemon went away: %s", kvcache_error(options->kv));
        memcpy(t->instance, info.instance, sizeof(t->instance));
        if (job->io_size > info.max_chunk_bytes) {
                char size[HUMAN_BYTES];

                human_bytes(info.max_chunk_bytes, size);
                return profile_fail(p,
                                    "blocks of %" PRIu64 " bytes: the daemon stores %s at most "
                                    "(64 MiB, an eighth of memory.pool, a data file)",
                                    job->io_size, size);
        }
        r = open_namespace(p, options->kv, &t->namespace_handle);
        if (r < 0)
                return r;
        t->results = calloc(CALL_KEYS, sizeof(*t->results));
        if (!t->results)
                return profile_fail(p, "out of memory");
        t->side = (struct profile_side){
                .name = "KVCACHE",
                .self = t,
                /* The daemon lets a connection hold a quarter of the pool; all of them leave half of it. */
                .window_bytes = MIN((uint64_t)PROFILE_WINDOW_BYTES, info.pool_bytes / 4) / job->clients,
                /* What is copied, checked or answered is not at the device: the daemon has enough
                 * at hand to keep as much there as RAW does. */
                .depth = MAX((uint64_t)PROFILE_DEPTH * 2 / job->clients, (uint64_t)1),
                .client_new = client_new,
                .client_free = client_free,
                .before = through_before,
                .move = client_move,
                .check = client_check,
        };
        return 0;
}

void through_close(struct through *t)
{
        free(t->results);
        *t = (struct through){ 0 };
}
