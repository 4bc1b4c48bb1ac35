/* SPDX-License-Identifier: Apache-2.0 */
#include "workload.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "sha256.h"
#include "trace.h"

DEFINE_CLEANUP(struct workload *, workload_free);
DEFINE_CLEANUP(struct trace *, trace_close);

static struct workload *workload_new(const char *kind, uint64_t seed)
{
        struct workload *w = calloc(1, sizeof(*w));

        if (w)
                *w = (struct workload){ .kind = kind,
                                        .seed = seed,
                                        .block_tokens = TRACE_BLOCK_TOKENS };
        return w;
}

struct workload *workload_free(struct workload *w)
{
        if (!w)
                return NULL;
        free(w->requests);
        free(w->ids);
        free(w);
        return NULL;
}

/* Appends a request with room for its ids, which the caller writes to `*ret_ids`, valid until the
 * next call; NULL if `n_ids` is 0. Returns 0 or -ENOMEM. */
static int workload_add(struct workload *w, uint64_t timestamp_ms, uint64_t input_tokens,
                        size_t n_ids, uint64_t **ret_ids)
{
        if (w->n_requests == w->requests_room) {
                size_t room = MAX(w->requests_room * 2, (size_t)1024);
                void *p = reallocarray(w->requests, room, sizeof(*w->requests));

                if (!p)
                        return -ENOMEM;
                w->requests = p;
                w->requests_room = room;
        }
        if (w->ids_room - w->n_ids < n_ids) {
                size_t room = MAX(w->ids_room * 2, w->n_ids + n_ids + 16 * 1024);
                void *p = reallocarray(w->ids, room, sizeof(*w->ids));

                if (!p)
                        return -ENOMEM;
                w->ids = p;
                w->ids_room = room;
        }
        w->requests[w->n_requests++] = (struct workload_request){
                .timestamp_ms = timestamp_ms,
                .input_tokens = input_tokens,
                .first_id = w->n_ids,
                .n_ids = n_ids,
        };
        *ret_ids = n_ids > 0 ? w->ids + w->n_ids : NULL;
        w->n_ids += n_ids;
        return 0;
}

int workload_load(struct workload **ret, const char *path, const struct trace_format *format,
                  uint64_t max_requests, uint64_t seed, char ret_error[static WORKLOAD_ERROR_BYTES])
{
        _cleanup_(workload_freep) struct workload *w = workload_new("trace", seed);
        _cleanup_(trace_closep) struct trace *trace = NULL;
        char error[TRACE_ERROR_BYTES] = "out of memory";
        struct trace_request request;
        int r;

        if (!w)
                return -ENOMEM;
        if (format->block_tokens != 0)
                w->block_tokens = format->block_tokens;
        r = trace_open(&trace, path, format, error);
        while (r >= 0 && (max_requests == 0 || w->n_requests < max_requests)) {
                uint64_t *ids;

                r = trace_next(trace, &request, error);
                if (r <= 0)
                        break;
                r = workload_add(w, request.timestamp_ms, request.input_tokens, request.n_ids,
                                 &ids);
                if (r == 0 && request.n_ids > 0)
                        memcpy(ids, request.ids, request.n_ids * sizeof(*ids));
        }
        if (r < 0) {
                snprintf(ret_error, WORKLOAD_ERROR_BYTES, "%s", error);
                return r;
        }
        if (w->n_requests == 0) {
                snprintf(ret_error, WORKLOAD_ERROR_BYTES, "%.400s: the trace has no request", path);
                return -ENODATA;
        }
        *ret = TAKE_PTR(w);
        return 0;
}

/* --- generating chat sessions --- */

enum {
        CHAT_PROMPTS = 8,
        CHAT_MAX_SESSIONS = 1024,    /* maximum number of sessions at the same time */
        CHAT_MAX_TOKENS = 32 * 1024, /* tokens of context at which a session ends */
        CHAT_SESSION_SHIFT =
                16, /* an id is the session's number, shifted left by this, plus the block's */
        CHAT_ARRIVAL_MS = 2000, /* mean time between new sessions */
};
/* Ids of system prompts' blocks start far above those of sessions. */
#define CHAT_PROMPT_IDS (1ull << 62)

struct rng {
        uint64_t state;
};

/* Returns the next pseudo-random number (SplitMix64). */
static uint64_t rng_next(struct rng *rng)
{
        uint64_t x = rng->state += 0x9e3779b97f4a7c15u;

        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        return x ^ x >> 31;
}

/* Returns a number in (0, 1). */
static double rng_unit(struct rng *rng)
{
        return ((double)(rng_next(rng) >> 11) + 0.5) / 9007199254740992.0;
}

static uint64_t rng_between(struct rng *rng, uint64_t low, uint64_t high)
{
        return low + rng_next(rng) % (high - low + 1);
}

static double rng_exponential(struct rng *rng, double mean)
{
        return -mean * log(rng_unit(rng));
}

static double rng_lognormal(struct rng *rng, double median, double sigma, double most)
{
        double normal = sqrt(-2 * log(rng_unit(rng))) * cos(2 * M_PI * rng_unit(rng));

        return fmin(median * exp(sigma * normal), most);
}

struct session {
        uint64_t number;
        uint64_t next_ms; /* time of the session's next turn, ms */
        unsigned prompt;
        unsigned turns;
        uint64_t tokens; /* length of the session's context, in tokens */
};

static unsigned pick_prompt(struct rng *rng)
{
        double weight = 0, at;

        for (unsigned i = 0; i < CHAT_PROMPTS; i++)
                weight += 1.0 / (i + 1);
        at = rng_unit(rng) * weight;
        for (unsigned i = 0; i < CHAT_PROMPTS - 1; i++) {
                at -= 1.0 / (i + 1);
                if (at < 0)
                        return i;
        }
        return CHAT_PROMPTS - 1;
}

static int play_turn(struct workload *w, struct rng *rng, struct session *s, uint64_t prompt_tokens)
{
        uint64_t *ids;
        size_t n_blocks, n_prompt = prompt_tokens / TRACE_BLOCK_TOKENS;
        int r;

        s->tokens += (uint64_t)rng_lognormal(rng, 150, 1.2, 4096) + 1;
        if (rng_unit(rng) < 0.1)
                s->tokens += rng_between(rng, 2000, 12000); /* a document */
        n_blocks = s->tokens / TRACE_BLOCK_TOKENS;

        r = workload_add(w, s->next_ms, s->tokens, n_blocks, &ids);
        if (r < 0)
                return r;
        for (size_t i = 0; i < n_blocks; i++)
                ids[i] = i < n_prompt
                                 ? CHAT_PROMPT_IDS + ((uint64_t)s->prompt << CHAT_SESSION_SHIFT) + i
                                 : (s->number << CHAT_SESSION_SHIFT) + i;

        s->turns++;
        s->tokens += (uint64_t)rng_lognormal(rng, 300, 0.9, 4096) + 1; /* the answer */
        s->next_ms += 2000 + (uint64_t)rng_lognormal(rng, 30 * 1000, 1.1, 600 * 1000);
        return 0;
}

/* Draws whether a session has a further turn: never if its context has reached CHAT_MAX_TOKENS,
 * otherwise with a chance that rises with the number of turns from 0.5 to 0.9. */
static bool goes_on(struct rng *rng, const struct session *s)
{
        return s->tokens < CHAT_MAX_TOKENS && rng_unit(rng) < fmin(0.5 + 0.1 * s->turns, 0.9);
}

int workload_chat(struct workload **ret, uint64_t requests, uint64_t seed)
{
        _cleanup_(workload_freep) struct workload *w = workload_new("chat", seed);
        _cleanup_(freep) struct session *sessions = calloc(CHAT_MAX_SESSIONS, sizeof(*sessions));
        struct rng rng = { .state = seed };
        uint64_t prompt_tokens[CHAT_PROMPTS], n_sessions = 0, arrival_ms = 0, now_ms = 0;
        size_t live = 0;
        int r;

        if (!w || !sessions)
                return -ENOMEM;
        for (unsigned i = 0; i < CHAT_PROMPTS; i++)
                prompt_tokens[i] = rng_between(&rng, 2, 10) * TRACE_BLOCK_TOKENS;

        while (w->n_requests < requests) {
                struct session *s = NULL;

                for (size_t i = 0; i < live; i++)
                        if (!s || sessions[i].next_ms < s->next_ms)
                                s = &sessions[i];
                if (live < CHAT_MAX_SESSIONS && (!s || arrival_ms <= s->next_ms)) {
                        s = &sessions[live++];
                        *s = (struct session){
                                .number = ++n_sessions,
                                .next_ms = MAX(arrival_ms, now_ms), /* a user that arrives while all
                                                                       sessions are in use waits */
                                .prompt = pick_prompt(&rng),
                        };
                        s->tokens = prompt_tokens[s->prompt];
                        arrival_ms += 1 + (uint64_t)rng_exponential(&rng, CHAT_ARRIVAL_MS);
                }
                now_ms = s->next_ms;
                r = play_turn(w, &rng, s, prompt_tokens[s->prompt]);
                if (r < 0)
                        return r;
                if (!goes_on(&rng, s))
                        *s = sessions[--live];
        }
        *ret = TAKE_PTR(w);
        return 0;
}

/* --- ids and keys of blocks --- */

static int compare_ids(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return (x > y) - (x < y);
}

int workload_distinct(const struct workload *w, size_t *ret)
{
        _cleanup_(freep) uint64_t *sorted = NULL;
        size_t n = 0;

        if (w->n_ids == 0) {
                *ret = 0;
                return 0;
        }
        sorted = reallocarray(NULL, w->n_ids, sizeof(*sorted));
        if (!sorted)
                return -ENOMEM;
        memcpy(sorted, w->ids, w->n_ids * sizeof(*sorted));
        qsort(sorted, w->n_ids, sizeof(*sorted), compare_ids);
        for (size_t i = 0; i < w->n_ids; i++)
                n += i == 0 || sorted[i] != sorted[i - 1];
        *ret = n;
        return 0;
}

void workload_key(const struct workload *w, uint64_t id, struct kvcache_key *ret)
{
        struct {
                char kind[16];
                uint64_t seed, id;
        } text = { .seed = htole64(w->seed), .id = htole64(id) };

        static_assert(sizeof(text) == 32, "no padding: all of it is hashed");
        static_assert(SHA256_BYTES == sizeof(ret->bytes), "a hash is a key");
        snprintf(text.kind, sizeof(text.kind), "replay-%s", w->kind);
        sha256(&text, sizeof(text), ret->bytes);
}

/* --- writing --- */

struct sent {
        uint64_t at_ns;
        size_t request;
};

static int by_time(const void *a, const void *b)
{
        const struct sent *x = a, *y = b;

        if (x->at_ns != y->at_ns)
                return x->at_ns < y->at_ns ? -1 : 1;
        return (x->request > y->request) - (x->request < y->request);
}

static void write_request(const struct workload *w, const struct sent *s, FILE *out)
{
        const struct workload_request *r = &w->requests[s->request];

        fprintf(out, "{\"timestamp\": %" PRIu64, (s->at_ns - 1) / 1000000);
        if (r->input_tokens > 0)
                fprintf(out, ", \"input_length\": %" PRIu64, r->input_tokens);
        fputs(", \"hash_ids\": [", out);
        for (size_t i = 0; i < r->n_ids; i++)
                fprintf(out, "%s%" PRIu64, i > 0 ? ", " : "", w->ids[r->first_id + i]);
        fputs("]}\n", out);
}

int workload_write(const struct workload *w, const uint64_t *times_ns, FILE *out)
{
        _cleanup_(freep) struct sent *sent = malloc(MAX(w->n_requests, (size_t)1) * sizeof(*sent));
        size_t n = 0;

        if (!sent)
                return -ENOMEM;
        for (size_t i = 0; i < w->n_requests; i++)
                if (times_ns[i] > 0)
                        sent[n++] = (struct sent){ times_ns[i], i };
        qsort(sent, n, sizeof(*sent), by_time);
        for (size_t i = 0; i < n; i++)
                write_request(w, &sent[i], out);
        return 0;
}
