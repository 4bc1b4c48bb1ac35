/* SPDX-License-Identifier: Apache-2.0 */
/* One client of a replay.
 *
 * Runs in its own thread and owns its connection, its counters and the blocks of the current
 * request. Each block has a state (enum replay_block): a pass processes all blocks in one state, in
 * rounds, and changes their state. Functions return 0, or a negative errno if the replay must end,
 * because replay_fail() has been called or the user has interrupted it.
 *
 * Failures: a block that fails counts as a miss. If the daemon ends, the client tries for a
 * while to reconnect between rounds. If it is refused for lack of room or leases, it releases
 * all its leases and tries once more; if refused again, it continues without that block. */
#include "replay-client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common.h"
#include "keyfile.h"
#include "payload.h"
#include "checked.h"

enum {
        WAIT_MS = 100,    /* ms between checks whether to stop */
        RETRY_MS = 50,    /* ms between attempts to reconnect */
        SEARCH_MS = 2000, /* maximum pauses in one search of the shared tier, in sum, ms */
};

static void sleep_ms(unsigned ms)
{
        struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

        clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
}

bool replay_should_stop(struct replay_shared *s)
{
        return atomic_load(&s->stop) || (s->options->interrupted && *s->options->interrupted);
}

int replay_fail(struct replay_shared *s, int status, const char *format, ...)
{
        va_list arguments;

        pthread_mutex_lock(&s->lock);
        if (s->status == EXIT_OK) {
                s->status = status;
                va_start(arguments, format);
                vsnprintf(s->error, sizeof(s->error), format, arguments);
                va_end(arguments);
        }
        pthread_mutex_unlock(&s->lock);
        atomic_store(&s->stop, true);
        return -ECANCELED;
}

static int client_recover(struct replay_client *c)
{
        uint64_t deadline =
                         latency_now_ns() + (uint64_t)c->shared->options->reconnect_ms * 1000000u,
                 ns;
        int r;

        c->lost = false;
        for (;;) {
                r = kvcache_ping(c->kv, &ns);
                if (r >= 0)
                        return 0;
                if (replay_should_stop(c->shared))
                        return -ECANCELED;
                if (latency_now_ns() >= deadline)
                        return replay_fail(c->shared, EXIT_UNREACHABLE,
                                           "the connection to the daemon was lost, and not "
                                           "restored within the time of --reconnect: %s",
                                           kvcache_error(c->kv));
                sleep_ms(RETRY_MS);
        }
}

/* Calls the library. Returns 0 if every key of `results` has a status, which is KVCACHE_BUSY for
 * all unanswered keys if the library had no room. Returns 1 if the connection failed: `lost` is
 * set, and unanswered keys have the status KVCACHE_LOST. Returns a negative errno if the replay
 * must end. */
static int client_call(struct replay_client *c, struct kvcache_request *request,
                       struct latency *latency, uint64_t *ret_value)
{
        uint64_t before;
        int r, otherwise = KVCACHE_LOST;

        for (size_t i = 0; request->results && i < request->count; i++)
                request->results[i] = (struct kvcache_result){ .status = -1 };

        before = latency_now_ns();
        r = kvcache_submit_and_wait(c->kv, request, ret_value);
        if (r >= 0) {
                if (latency)
                        latency_add(latency, latency_now_ns() - before);
                return 0;
        }
        if (r == -ENOBUFS)
                otherwise = KVCACHE_BUSY;
        else if (errno_unreachable(r))
                c->lost = true;
        else
                return replay_fail(c->shared, r == -ENOMEM ? EXIT_LOCAL : EXIT_REFUSED, "%s",
                                   kvcache_error(c->kv));
        for (size_t i = 0; request->results && i < request->count; i++)
                if (request->results[i].status == -1)
                        request->results[i].status = otherwise;
        return r == -ENOBUFS ? 0 : 1;
}

static void client_release_held(struct replay_client *c)
{
        if (c->n_held > 0)
                kvcache_release(c->kv, c->held, c->n_held);
        c->n_held = 0;
}

void replay_client_let_go(struct replay_client *c)
{
        client_release_held(c);
        kvcache_flush(c->kv);
}

/* Returns whether the client may keep leases on this number of further blocks. */
static bool client_may_hold(const struct replay_client *c, size_t n_blocks)
{
        return c->hold &&
               (c->n_held + n_blocks) * c->shared->options->block_bytes <= c->shared->hold_bytes;
}

static void client_keep(struct replay_client *c, const struct kvcache_lease *lease, bool hold)
{
        if (lease->generation == 0)
                c->counts.blocks_unheld++;
        else if (hold)
                c->held[c->n_held++] = *lease;
        else {
                c->counts.blocks_unheld++;
                kvcache_release(c->kv, lease, 1);
        }
}

static void client_failed_block(struct replay_client *c, int status)
{
        c->counts.errors++;
        if (status == KVCACHE_LOST || status == KVCACHE_SHUTDOWN) {
                c->counts.lost++;
                c->lost = true;
        } else if (status == KVCACHE_PENDING) {
                c->lost = true; /* check before the next round whether the daemon has ended */
        }
}

static bool client_check(struct replay_client *c, size_t i, const struct kvcache_result *result)
{
        struct replay_shared *s = c->shared;
        uint64_t block_bytes = s->options->block_bytes, wrong;
        char hex[KEY_TEXT_BYTES];
        size_t first = 0;

        if (result->length != block_bytes || !result->data)
                wrong = block_bytes;
        else
                wrong = payload_verify(&c->keys[i], result->data, block_bytes, &first);
        c->counts.bytes_got += result->length;
        if (wrong == 0)
                return true;

        c->counts.wrong_bytes += wrong;
        c->counts.wrong_blocks++;
        key_print(&c->keys[i], hex);
        pthread_mutex_lock(&s->lock);
        if (!*s->first_wrong)
                snprintf(s->first_wrong, sizeof(s->first_wrong),
                         "key %s (block id %" PRIu64 ", from %s): %" PRIu64 " of %" PRIu64
                         " bytes are wrong, the first at offset %zu; length got: %" PRIu64,
                         hex, c->ids[i], tiers_text(result->tiers), wrong, block_bytes, first,
                         result->length);
        pthread_mutex_unlock(&s->lock);
        return false;
}

/* Returns KVCACHE_MORE if blocks follow after `end`: all rounds of a request form one chain. */
static uint32_t client_chain_flag(const struct replay_client *c, size_t end)
{
        return end < c->n_blocks ? KVCACHE_MORE : 0;
}

static int client_get_round(struct replay_client *c, size_t at, size_t n)
{
        struct kvcache_request request;
        bool hold = client_may_hold(c, n);
        int r;

        kvcache_prep_get(&request, c->namespace, c->keys + at, n, c->results);
        request.flags = client_chain_flag(c, at + n);
        request.parent = at > 0 ? &c->keys[at - 1] : NULL;
        r = client_call(c, &request, &c->get, NULL);
        if (r < 0)
                return r;
        for (size_t i = 0; i < n; i++) {
                const struct kvcache_result *result = &c->results[i];
                enum replay_block *state = &c->state[at + i];

                switch (result->status) {
                case KVCACHE_OK:
                        *state = REPLAY_DONE;
                        if (client_check(c, at + i, result)) {
                                *state = REPLAY_HIT;
                                c->counts.blocks_hit++;
                                if (result->tiers & KVCACHE_TIER_MEMORY)
                                        c->counts.blocks_hit_memory++;
                                else if (result->tiers & KVCACHE_TIER_REMOTE)
                                        c->counts.blocks_hit_remote++;
                                else
                                        c->counts.blocks_hit_disk++;
                        }
                        client_keep(c, &result->lease, hold);
                        break;
                case KVCACHE_MISS:
                        c->counts.blocks_vanished++;
                        *state = REPLAY_TO_PUT;
                        break;
                case KVCACHE_BUSY:
                case KVCACHE_QUOTA:
                        *state = REPLAY_REFUSED;
                        break;
                default:
                        client_failed_block(c, result->status);
                        *state = REPLAY_TO_PUT;
                        break;
                }
        }
        return 0;
}

/* Appends acknowledged keys to the log. The kernel has the lines when the function returns, so that
 * no acknowledgement is lost with this process. */
static int client_write_acks(struct replay_client *c, size_t at, size_t n)
{
        const struct replay_options *o = c->shared->options;
        _cleanup_(freep) char *text = NULL;
        size_t bytes = 0, written = 0;

        if (o->acks_fd < 0)
                return 0;
        text = malloc(n * KEYFILE_LINE_BYTES);
        if (!text)
                return replay_fail(c->shared, EXIT_LOCAL, "out of memory");
        for (size_t i = 0; i < n; i++)
                if (c->results[i].status == KVCACHE_OK || c->results[i].status == KVCACHE_EXISTS)
                        bytes += keyfile_format(&c->keys[at + i], o->block_bytes, o->namespace_name,
                                                text + bytes);
        while (written < bytes) {
                ssize_t r = write(o->acks_fd, text + written, bytes - written);

                if (r < 0 && errno == EINTR)
                        continue;
                if (r < 0)
                        return replay_fail(
                                c->shared, EXIT_LOCAL,
                                "cannot write the acknowledged keys to the file of --acks: %s",
                                strerror(errno));
                written += (size_t)r;
        }
        return 0;
}

/* Acquires a place for up to `*n` blocks in the staging area, or for fewer if its room is short,
 * and sets `*n` to their number. If there is no room, uses private memory for one block; the
 * library copies the block to the staging area once there is room. */
static int client_find_place(struct replay_client *c, size_t *n, void **ret_place,
                             bool *ret_in_staging)
{
        uint64_t block_bytes = c->shared->options->block_bytes;
        int r;

        for (; *n > 0; *n /= 2) {
                r = kvcache_staging_acquire(c->kv, *n * block_bytes, ret_place);
                if (r >= 0) {
                        *ret_in_staging = true;
                        return 0;
                }
                if (r != -ENOBUFS && r != -E2BIG)
                        break;
        }
        *n = 1;
        if (!c->spare)
                c->spare = malloc(block_bytes);
        if (!c->spare)
                return replay_fail(c->shared, EXIT_LOCAL, "out of memory");
        *ret_place = c->spare;
        *ret_in_staging = false;
        return 0;
}

static int client_put_round(struct replay_client *c, size_t at, size_t most, size_t *ret_n)
{
        uint64_t block_bytes = c->shared->options->block_bytes;
        struct kvcache_request request;
        size_t n = most;
        bool is_expected = c->advice == KVCACHE_ADVICE_FINAL || c->advice == KVCACHE_ADVICE_RETURN;
        bool hold, in_staging;
        void *place;
        int r;

        if (is_expected && at + n == c->n_blocks && n > 1)
                n--; /* the last block may be partial, and is put alone */
        r = client_find_place(c, &n, &place, &in_staging);
        if (r < 0)
                return r;
        for (size_t i = 0; i < n; i++) {
                c->entries[i] = (struct kvcache_entry){
                        .key = c->keys[at + i],
                        .data = (uint8_t *)place + i * block_bytes,
                        .length = block_bytes,
                };
                payload_fill(&c->keys[at + i], c->entries[i].data, block_bytes);
        }
        hold = client_may_hold(c, n);
        kvcache_prep_put(&request, c->namespace, c->entries, n, c->shared->options->ack,
                         c->results);
        request.flags = (hold ? KVCACHE_KEEP_LEASE : 0) | client_chain_flag(c, at + n);
        request.parent = at > 0 ? &c->keys[at - 1] : NULL;
        if (is_expected && at + n < c->n_blocks) {
                request.advice = c->advice;
                request.return_s = c->return_s;
        }
        r = client_call(c, &request, &c->put, NULL);
        if (in_staging)
                kvcache_staging_release(c->kv, place);
        if (r < 0)
                return r;
        for (size_t i = 0; i < n; i++) {
                const struct kvcache_result *result = &c->results[i];

                c->state[at + i] = REPLAY_DONE;
                switch (result->status) {
                case KVCACHE_NOT_DURABLE:
                        c->counts.not_durable++;
                        __attribute__((fallthrough));
                case KVCACHE_OK:
                        c->counts.blocks_put++;
                        c->counts.bytes_put += block_bytes;
                        client_keep(c, &result->lease, hold);
                        break;
                case KVCACHE_EXISTS:
                        c->counts.blocks_existed++;
                        client_keep(c, &result->lease, hold);
                        break;
                case KVCACHE_BUSY:
                case KVCACHE_QUOTA:
                        c->state[at + i] = REPLAY_REFUSED;
                        break;
                default:
                        client_failed_block(c, result->status);
                        break;
                }
        }
        *ret_n = n;
        return client_write_acks(c, at, n);
}

/* Gets (REPLAY_TO_GET) or puts (REPLAY_TO_PUT) every run of blocks in state `from`, in rounds. */
static int client_pass(struct replay_client *c, enum replay_block from)
{
        struct replay_shared *s = c->shared;
        size_t most = from == REPLAY_TO_GET ? s->round_get_blocks : s->round_put_blocks, n;
        int r;

        for (size_t at = 0; at < c->n_blocks; at += n) {
                for (n = 0; at + n < c->n_blocks && n < most && c->state[at + n] == from; n++)
                        ;
                if (n == 0) {
                        n = 1;
                        continue;
                }
                r = from == REPLAY_TO_GET ? client_get_round(c, at, n)
                                          : client_put_round(c, at, n, &n);
                if (r == 0 && c->lost)
                        r = client_recover(c);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Runs a pass, and another for refused blocks, with no leases held. Blocks refused again get the
 * state `finally`. */
static int client_passes(struct replay_client *c, enum replay_block from, enum replay_block finally)
{
        bool again = false;
        int r;

        r = client_pass(c, from);
        if (r < 0)
                return r;
        for (size_t i = 0; i < c->n_blocks; i++)
                if (c->state[i] == REPLAY_REFUSED) {
                        c->state[i] = from;
                        again = true;
                }
        if (!again)
                return 0;
        replay_client_let_go(c);
        c->hold = false;
        r = client_pass(c, from);
        for (size_t i = 0; i < c->n_blocks; i++)
                if (c->state[i] == REPLAY_REFUSED) {
                        c->counts.busy++;
                        c->state[i] = finally;
                }
        return r;
}

static int client_reserve(struct replay_client *c, size_t n)
{
        size_t room = MAX(c->room * 2, n + 256);

        if (n <= c->room)
                return 0;
        free(c->state);
        free(c->keys);
        free(c->entries);
        free(c->results);
        free(c->held);
        c->room = 0;
        c->state = calloc(room, sizeof(*c->state));
        c->keys = calloc(room, sizeof(*c->keys));
        c->entries = calloc(room, sizeof(*c->entries));
        c->results = calloc(room, sizeof(*c->results));
        c->held = calloc(room, sizeof(*c->held));
        if (!c->state || !c->keys || !c->entries || !c->results || !c->held)
                return replay_fail(c->shared, EXIT_LOCAL, "out of memory");
        c->room = room;
        return 0;
}

static bool has_shared_tier(const struct replay_client *c)
{
        struct kvcache_info info = { .size = sizeof(info) };

        return kvcache_get_info(c->kv, &info) == 0 && info.shared_tier;
}

/* Sets `*ret` to the number of leading blocks of the chain that the daemon has; 0 if the connection
 * failed. With a shared tier, asks repeatedly, as an engine does at its steps, until the daemon
 * knows how far the chain extends there, or the pauses come to SEARCH_MS. */
static int client_match(struct replay_client *c, uint64_t *ret)
{
        struct kvcache_request request;
        uint64_t matched = 0;
        int r;

        kvcache_prep_match(&request, c->namespace, c->keys, c->n_blocks);
        if (has_shared_tier(c)) {
                request.flags = KVCACHE_REMOTE;
                request.results = c->results;
        }
        for (unsigned ms = 0;; ms++) {
                r = client_call(c, &request, &c->match, &matched);
                if (r < 0)
                        return r;
                if (r > 0 || !request.results || matched >= c->n_blocks ||
                    c->results[matched].status != KVCACHE_BUSY || ms == SEARCH_MS)
                        break;
                sleep_ms(1);
        }
        if (r > 0) {
                c->counts.errors++;
                c->counts.lost++;
                matched = 0;
                r = client_recover(c);
                if (r < 0)
                        return r;
        }
        *ret = MIN(matched, (uint64_t)c->n_blocks);
        return 0;
}

/* Sends the hint that the workload has for this request. Unless the hint is that the session has
 * ended, it leaves out the last block, which may be partial: the session continues from the block
 * before it. */
static int client_announce(struct replay_client *c)
{
        bool is_final = c->advice == KVCACHE_ADVICE_FINAL;
        size_t n = c->n_blocks - (!is_final && c->n_blocks > 1);
        struct kvcache_request request;
        int r;

        if (c->advice == KVCACHE_ADVICE_NONE || c->n_blocks == 0)
                return 0;
        kvcache_prep_advise(&request, c->namespace, c->keys, n, c->advice, c->return_s, NULL);
        r = client_call(c, &request, NULL, NULL);
        if (r == 0)
                (*(is_final ? &c->counts.ends_announced : &c->counts.returns_announced))++;
        return r > 0 ? client_recover(c) : r;
}

static void client_take_hint(struct replay_client *c, const struct simulated_hint *hint)
{
        static const enum kvcache_advice advice[] = {
                [SIMULATED_HINT_NONE] = KVCACHE_ADVICE_NONE,
                [SIMULATED_HINT_FINAL] = KVCACHE_ADVICE_FINAL,
                [SIMULATED_HINT_RETURN] = KVCACHE_ADVICE_RETURN,
                [SIMULATED_HINT_TOOL_CALL] = KVCACHE_ADVICE_TOOL_CALL,
                [SIMULATED_HINT_TURN_END] = KVCACHE_ADVICE_TURN_END,
        };
        double speed = c->shared->options->speed;

        c->advice = hint ? advice[hint->kind] : KVCACHE_ADVICE_NONE;
        c->return_s = 0;
        if (c->advice == KVCACHE_ADVICE_RETURN) {
                double seconds = (double)hint->return_s / (speed > 0 ? speed : 1);

                c->return_s = (uint32_t)MAX(MIN(seconds, (double)UINT32_MAX), 1.0);
        }
}

/* Waits until a request's time, by the workload's clock, but at most for 30 years. */
static void client_wait(struct replay_client *c, const struct workload_request *request)
{
        struct replay_shared *s = c->shared;
        uint64_t first_ms = s->workload->requests[0].timestamp_ms, after_ms, due, now;

        if (s->options->speed <= 0)
                return;
        after_ms = request->timestamp_ms > first_ms ? request->timestamp_ms - first_ms : 0;
        due = s->start_ns + (uint64_t)MIN((double)after_ms * 1e6 / s->options->speed, 1e18);
        if (latency_now_ns() < due)
                kvcache_flush(c->kv); /* release all leases before waiting */
        while ((now = latency_now_ns()) < due && !replay_should_stop(s))
                sleep_ms((unsigned)MIN((due - now) / 1000000 + 1, (uint64_t)WAIT_MS));
}

int replay_client_play(struct replay_client *c, const struct workload_request *request)
{
        struct replay_shared *s = c->shared;
        uint64_t matched = 0, leading = 0, tokens;
        int r;

        client_wait(c, request);
        if (replay_should_stop(s))
                return -ECANCELED;
        r = client_reserve(c, request->n_ids);
        if (r < 0)
                return r;
        c->began_ns = latency_now_ns();
        if (s->options->sent_ns)
                s->options->sent_ns[request - s->workload->requests] =
                        c->began_ns - s->start_ns + 1;
        c->ids = s->workload->ids + request->first_id;
        c->n_blocks = request->n_ids;
        c->hold = true;
        client_take_hint(c, s->options->hints ? &s->options->hints[request - s->workload->requests]
                                              : NULL);
        for (size_t i = 0; i < c->n_blocks; i++)
                workload_key(s->workload, c->ids[i], &c->keys[i]);

        c->counts.blocks_asked += c->n_blocks;
        if (c->n_blocks > 0) {
                r = client_match(c, &matched);
                if (r < 0)
                        return r;
        }
        for (size_t i = 0; i < c->n_blocks; i++)
                c->state[i] = i < matched ? REPLAY_TO_GET : REPLAY_TO_PUT;
        r = client_passes(c, REPLAY_TO_GET, REPLAY_TO_PUT);
        if (r < 0)
                return r;
        while (leading < c->n_blocks && c->state[leading] == REPLAY_HIT)
                leading++;
        r = client_passes(c, REPLAY_TO_PUT, REPLAY_DONE);
        if (r < 0)
                return r;
        client_release_held(c);
        r = client_announce(c);
        if (r < 0)
                return r;

        tokens = c->n_blocks * s->workload->block_tokens;
        if (request->input_tokens > 0)
                tokens = request->input_tokens;
        c->counts.tokens_asked += tokens;
        c->counts.tokens_saved += MIN(leading * s->workload->block_tokens, tokens);
        c->counts.requests++;
        return 0;
}

void replay_client_fini(struct replay_client *c)
{
        kvcache_close(c->kv);
        free(c->state);
        free(c->keys);
        free(c->entries);
        free(c->results);
        free(c->held);
        free(c->spare);
        latency_fini(&c->match);
        latency_fini(&c->get);
        latency_fini(&c->put);
}
