/* SPDX-License-Identifier: Apache-2.0 */
/* The side KVCACHE, and calls between its passes: reading the daemon's properties, dropping blocks,
 * looking them up, waiting until the daemon is at rest. Each step checks that the daemon is the
 * same process, because figures of a restarted daemon are not comparable. */
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
#include "json.h"
#include "rest.h"
#include "units.h"

enum {
        CALL_KEYS = 1024,
        REST_OWN_MS = 60000, /* maximum wait for an embedded daemon to be at rest, ms */
        /* maximum wait for another daemon, which may have other clients, ms */
        REST_OTHER_MS = 2000,
};

/* --- the daemon's properties, and waiting until it is at rest --- */

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
        const cJSON *io, *store, *volumes;
        int r;

        r = kvcache_report(kv, KVCACHE_REPORT_STATUS, &text);
        if (r >= 0)
                r = kvcache_get_info(kv, &info);
        if (r < 0) {
                snprintf(ret_error, room, "cannot get the daemon's status: %s", kvcache_error(kv));
                return r;
        }
        status = cJSON_Parse(text);
        io = cJSON_GetObjectItemCaseSensitive(status, "io");
        store = cJSON_GetObjectItemCaseSensitive(status, "store");
        if (!io || !store) {
                snprintf(ret_error, room, "the daemon's status is malformed");
                return -EBADMSG;
        }
        *ret = (struct through_facts){
                .direct = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(io, "direct")),
                .pool_bytes = info.pool_bytes,
                .max_chunk_bytes = info.max_chunk_bytes,
                .limit_bytes = (uint64_t)json_number(store, "limit_bytes"),
                .depth = (unsigned)MIN(json_number(io, "workers") * json_number(io, "depth"),
                                       (double)PROFILE_MAX_DEPTH),
        };
        text_at(io, "backend", ret->backend, sizeof(ret->backend));
        volumes = cJSON_GetObjectItemCaseSensitive(store, "volumes");
        text_at(cJSON_GetArrayItem(volumes, 0), "volume", ret->store_volume_path,
                sizeof(ret->store_volume_path));
        return 0;
}

static int lost(struct through *t, struct profile *p, int r, const char *what)
{
        if (errno_unreachable(r))
                return profile_fail(p, "the connection to the daemon was lost: %s: %s", what,
                                    kvcache_error(t->options.kv));
        return profile_fail(p, "%s: %s", what, kvcache_error(t->options.kv));
}

/* Waits until the daemon is at rest. A daemon with other clients may never be at rest; after the
 * maximum wait it is measured nevertheless. */
static int wait_for_rest(struct through *t, struct profile *p)
{
        uint64_t deadline = profile_now_ns() +
                            (t->options.own_daemon ? REST_OWN_MS : REST_OTHER_MS) * 1000000ull;
        struct timespec pause = { .tv_nsec = REST_LOOK_MS * 1000000 };
        struct rest rest = { 0 };

        while (profile_now_ns() < deadline) {
                int r = rest_look(&rest, t->options.kv);

                if (r < 0)
                        return lost(t, p, r, "getting the daemon's statistics");
                if (profile_should_stop(p))
                        return -ECANCELED;
                if (r > 0)
                        break;
                clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
        }
        return 0;
}

/* --- calls between the passes --- */

int through_check_instance(struct through *t, struct profile *p, struct kvcache *kv)
{
        struct kvcache_info info = { .size = sizeof(info) };

        if (kvcache_get_info(kv, &info) < 0)
                return profile_fail(p, "cannot get the daemon's properties: %s", kvcache_error(kv));
        if (memcmp(info.instance, t->instance, sizeof(info.instance)) != 0)
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
                struct kvcache_request request;
                int r;

                kvcache_prep(&request, op, t->namespace_handle, n, t->results);
                request.keys = p->keys + at;
                request.tiers = tiers;
                r = kvcache_submit_and_wait(t->options.kv, &request, NULL);
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
        return through_check_instance(t, p, t->options.kv);
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

/* Evicts all blocks of the job. */
static int forget(struct through *t, struct profile *p)
{
        return call_on_all(t, p, KVCACHE_OP_EVICT, KVCACHE_TIER_ALL, "dropping the blocks", is_gone,
                           NULL);
}

static int through_before(void *self, struct profile *p, enum profile_pass pass)
{
        struct through *t = self;
        int r = 0;

        if (pass == PROFILE_WRITE)
                r = forget(t, p);
        else if (pass == PROFILE_READ_COLD)
                r = call_on_all(t, p, KVCACHE_OP_EVICT, KVCACHE_TIER_MEMORY,
                                "dropping the blocks from memory", is_gone, NULL);
        return r < 0 ? r : wait_for_rest(t, p);
}

/* --- the side --- */

/* Opens the job's namespace, creating it if necessary. */
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

int through_connect(struct through *t, struct profile *p, struct kvcache **ret_kv,
                    uint32_t *ret_namespace)
{
        struct kvcache_options options = {
                .size = sizeof(options),
                .socket_path = t->options.socket_path,
                .client_name = "kvcache-bench profile",
                .request_timeout_ms = PROFILE_STUCK_MS,
        };
        char error[512] = "";
        int r = kvcache_connect(ret_kv, &options, error, sizeof(error));

        if (r < 0)
                return profile_fail(p, "a client cannot connect: %s",
                                    *error ? error : strerror(-r));
        return open_namespace(p, *ret_kv, ret_namespace);
}

int through_reaped(struct profile *p, int n, const char *error, uint64_t *last_ns)
{
        uint64_t now_ns = profile_now_ns();

        if (n < 0)
                return profile_fail(p, "completions cannot be taken: %s", error);
        if (profile_should_stop(p))
                return -ECANCELED;
        if (n > 0)
                *last_ns = now_ns;
        else if (now_ns - *last_ns > PROFILE_STUCK_MS * 1000000ull)
                return profile_fail(p, "the daemon did not answer within %d s",
                                    PROFILE_STUCK_MS / 1000);
        return 0;
}

int through_block_failed(struct profile *p, bool write, uint64_t block, int status, uint64_t length)
{
        const char *what = write ? "writing" : "reading";

        switch (status) {
        case KVCACHE_LOST:
        case KVCACHE_SHUTDOWN:
                return profile_fail(p, "the daemon went away while %s block %" PRIu64, what, block);
        case KVCACHE_PENDING:
                return profile_fail(p,
                                    "the daemon did not answer within %d s while %s block %" PRIu64,
                                    PROFILE_STUCK_MS / 1000, what, block);
        case KVCACHE_MISS:
                return profile_fail(
                        p,
                        "block %" PRIu64 " of %" PRIu64
                        " is missing: the daemon found it damaged on disk, or evicted it",
                        block, p->job->n_blocks);
        case KVCACHE_EXISTS:
                return profile_fail(p,
                                    "block %" PRIu64
                                    " was there already: another process writes the "
                                    "same workload",
                                    block);
        case KVCACHE_OK:
                return profile_fail(p,
                                    "block %" PRIu64 " is short: %" PRIu64 " of %" PRIu64 " bytes",
                                    block, length, p->job->io_size);
        default:
                return profile_fail(p, "%s block %" PRIu64 ": the daemon answered %s", what, block,
                                    kvcache_status_name((enum kvcache_status)status));
        }
}

/* Checks that a block fits the staging area, and gets the daemon's properties. */
static int look_at_staging(struct through *t, struct profile *p, struct kvcache_info *ret)
{
        struct kvcache *kv = t->options.kv;
        void *place;
        int r = kvcache_staging_acquire(kv, p->job->io_size, &place);

        if (r == -E2BIG || r == -ENOBUFS)
                return profile_fail(
                        p,
                        "a block of %" PRIu64
                        " bytes does not fit the daemon's staging areas: raise memory.staging, "
                        "and restart the daemon",
                        p->job->io_size);
        if (r < 0)
                return profile_fail(p, "cannot get staging memory for writes: %s",
                                    kvcache_error(kv));
        kvcache_staging_release(kv, place);
        if (kvcache_get_info(kv, ret) < 0)
                return profile_fail(p, "cannot get the daemon's properties: %s", kvcache_error(kv));
        return 0;
}

/* Configures the side for blocks in GPU memory: whole prompts per call, as an engine has them.
 * Blocks that are read are leased until they have been copied; all clients together lease at most
 * an eighth of the pool, a third of what one user may, but each client at least one block. */
static void side_of_gpu(struct through *t, const struct profile_job *job, uint64_t pool_bytes)
{
        struct profile_side *side = &t->side;
        uint64_t all, leased = pool_bytes / 8 / job->clients / job->io_size;

        if (!checked_mul(job->n_blocks, round_up(job->io_size, 4096), &all))
                all = UINT64_MAX;
        side->window_bytes = MIN((uint64_t)PROFILE_GPU_WINDOW_BYTES / job->clients, all);
        side->depth = MAX(MIN((uint64_t)PROFILE_GPU_REQUESTED / job->clients, leased), (uint64_t)1);
        side->piece_bytes = PROFILE_GPU_PIECE_BYTES;
        side->piece_blocks = PROFILE_GPU_PIECE_BLOCKS;
        side->client_new = through_gpu_client_new;
        side->client_free = through_gpu_client_free;
        side->prepare = through_gpu_client_prepare;
        side->move = through_gpu_client_move;
        side->check = through_gpu_client_check;
}

int through_open(struct through *t, struct profile *p, const struct through_options *options)
{
        struct kvcache_info info = { .size = sizeof(info) };
        const struct profile_job *job = p->job;
        int r;

        *t = (struct through){ .options = *options, .gpu.lock = PTHREAD_MUTEX_INITIALIZER };
        if (kvcache_get_info(options->kv, &info) < 0)
                return profile_fail(p, "cannot get the daemon's properties: %s",
                                    kvcache_error(options->kv));
        memcpy(t->instance, info.instance, sizeof(t->instance));
        if (job->io_size > info.max_chunk_bytes) {
                char size[HUMAN_BYTES];

                units_bytes(info.max_chunk_bytes, size);
                return profile_fail(
                        p,
                        "blocks of %" PRIu64 " bytes are too large: the daemon stores %s at most "
                        "(the least of 64 MiB, an eighth of memory.pool, and a data file)",
                        job->io_size, size);
        }
        r = open_namespace(p, options->kv, &t->namespace_handle);
        if (r < 0)
                return r;
        t->results = calloc(CALL_KEYS, sizeof(*t->results));
        if (!t->results)
                return profile_fail(p, "out of memory");
        if (job->write && !options->gpu) {
                r = look_at_staging(t, p, &info);
                if (r < 0)
                        return r;
        }
        t->side = (struct profile_side){
                .name = options->gds ? "GDS" : "KVCACHE",
                .self = t,
                .piece_bytes = info.staging_bytes / 4,
                /* The daemon lets one user lease three eighths of the pool. The clients together
                 * lease at most a quarter. */
                .window_bytes =
                        MIN((uint64_t)PROFILE_WINDOW_BYTES, info.pool_bytes / 4) / job->clients,
                /* Blocks that are being copied, checked or acknowledged are not at the device.
                 * Therefore the depth is larger than RAW's, so that the device's queue is as
                 * deep as with RAW. */
                .depth = MAX((uint64_t)PROFILE_REQUESTED / job->clients, (uint64_t)1),
                .client_new = through_client_new,
                .client_free = through_client_free,
                .before = through_before,
                .move = through_client_move,
                .check = through_client_check,
        };
        if (options->gpu)
                side_of_gpu(t, job, info.pool_bytes);
        return 0;
}

void through_forget_counts(struct through *t)
{
        t->gpu = (struct through_gpu){ .lock = PTHREAD_MUTEX_INITIALIZER };
}

void through_close(struct through *t)
{
        free(t->results);
        *t = (struct through){ 0 };
}
