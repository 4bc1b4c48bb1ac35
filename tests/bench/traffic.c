/* SPDX-License-Identifier: Apache-2.0 */
/* Puts and gets as an engine makes them: requests of `batch` keys, so many on their way that the
 * daemon always has `outstanding` keys at hand; one thread, one connection.
 *
 * A slice begins before its first request and ends when its last one is drained, as a slice of fio
 * does: filling and emptying the queue count. Only what was meant to be measured counts as bytes:
 * chunks that a put brought in, chunks that a get brought from the disk. What came from memory, was
 * there already, was busy or failed is counted beside it, so that nobody takes one for the other.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "checked.h"

enum { DRAIN_MAX = 64, STUCK_MS = 60000, SMALL_BATCH = 512 };

struct flight {
        struct kvcache_entry *entries;
        struct kvcache_result *results;
        struct kvcache_key *keys;
        uint64_t *numbers;
        uint64_t n;
};

struct counts {
        uint64_t bytes, keys, memory, misses, exists, busy, failed;
        double seconds;
};

struct traffic {
        const struct bench_options *o;
        struct kvcache *kv;
        uint32_t namespace_handle;
        struct flight *flights;
        uint32_t *idle; /* stack of flights that are not on their way */
        uint64_t n_flights, n_idle;
        struct counts counts;

        /* put */
        uint8_t **places; /* of `batch` chunks each, taken in turn */
        uint64_t n_places, next_place;
        bool *place_busy;
        uint64_t *place_of; /* by flight */
        uint64_t next_number;

        /* get */
        uint64_t *numbers; /* in the order in which they are got, over and over */
        uint64_t n_numbers, position;
};

static void traffic_fini(struct traffic *t)
{
        kvcache_close(t->kv);
        for (uint64_t i = 0; t->flights && i < t->n_flights; i++) {
                free(t->flights[i].entries);
                free(t->flights[i].results);
                free(t->flights[i].keys);
                free(t->flights[i].numbers);
        }
        free(t->flights);
        free(t->idle);
        free(t->places);
        free(t->place_busy);
        free(t->place_of);
        free(t->numbers);
}

static int traffic_init(struct traffic *t, const struct bench_options *o, bool attach)
{
        int r;

        *t = (struct traffic){ .o = o };
        r = bench_open(o, attach, &t->kv, &t->namespace_handle);
        if (r != 0)
                return r;
        t->n_flights = (o->outstanding + o->batch - 1) / o->batch;
        t->flights = calloc(t->n_flights, sizeof(*t->flights));
        t->idle = calloc(t->n_flights, sizeof(*t->idle));
        t->place_of = calloc(t->n_flights, sizeof(*t->place_of));
        if (!t->flights || !t->idle || !t->place_of)
                return bench_fail("out of memory");
        for (uint64_t i = 0; i < t->n_flights; i++) {
                struct flight *f = &t->flights[i];

                f->entries = calloc(o->batch, sizeof(*f->entries));
                f->results = calloc(o->batch, sizeof(*f->results));
                f->keys = calloc(o->batch, sizeof(*f->keys));
                f->numbers = calloc(o->batch, sizeof(*f->numbers));
                if (!f->entries || !f->results || !f->keys || !f->numbers)
                        return bench_fail("out of memory");
                t->idle[t->n_idle++] = (uint32_t)i;
        }
        return 0;
}

static void count_failure(struct counts *c, int status)
{
        switch (status) {
        case KVCACHE_MISS:
                c->misses++;
                break;
        case KVCACHE_EXISTS:
                c->exists++;
                break;
        case KVCACHE_BUSY:
        case KVCACHE_QUOTA:
                c->busy++;
                break;
        default:
                c->failed++;
                break;
        }
}

static void print_counts(const struct traffic *t)
{
        const struct counts *c = &t->counts;

        printf("{\"seconds\": %.6f, \"bytes\": %" PRIu64 ", \"keys\": %" PRIu64
               ", \"from_memory\": %" PRIu64 ", \"misses\": %" PRIu64 ", \"exists\": %" PRIu64
               ", \"busy\": %" PRIu64 ", \"failed\": %" PRIu64 ", \"next\": %" PRIu64 "}",
               c->seconds, c->bytes, c->keys, c->memory, c->misses, c->exists, c->busy, c->failed,
               t->next_number);
        bench_answer();
}

typedef int (*submit_fn)(struct traffic *t, uint32_t flight);
typedef void (*take_fn)(struct traffic *t, uint32_t flight);

static int traffic_slice(struct traffic *t, const struct bench_step *step, submit_fn submit,
                         take_fn take)
{
        uint64_t begin = bench_now_ns(),
                 end = step->seconds > 0 ? begin + (uint64_t)(step->seconds * 1e9) : UINT64_MAX;
        uint64_t submitted = 0, request_bytes = t->o->batch * t->o->size;
        struct kvcache_completion done[DRAIN_MAX];
        int n, r;

        t->counts = (struct counts){ 0 };
        for (;;) {
                while (t->n_idle > 0 && (step->bytes == 0 || submitted < step->bytes) &&
                       bench_now_ns() < end) {
                        uint32_t flight = t->idle[t->n_idle - 1];

                        r = submit(t, flight);
                        if (r < 0)
                                return bench_fail("cannot submit: %s", kvcache_error(t->kv));
                        t->n_idle--;
                        submitted += request_bytes;
                }
                if (t->n_idle == t->n_flights)
                        break;
                n = kvcache_drain(t->kv, done, DRAIN_MAX, STUCK_MS);
                if (n <= 0)
                        return bench_fail("no answer: %s",
                                          n < 0 ? kvcache_error(t->kv) : "timed out");
                for (int i = 0; i < n; i++) {
                        uint32_t flight = (uint32_t)done[i].user_data;

                        if (done[i].error < 0)
                                return bench_fail("a request failed: %s", kvcache_error(t->kv));
                        take(t, flight);
                        t->idle[t->n_idle++] = flight;
                }
        }
        t->counts.seconds = (double)(bench_now_ns() - begin) / 1e9;
        (void)kvcache_flush(t->kv);
        print_counts(t);
        return 0;
}

/* --- put --- */

static int put_submit(struct traffic *t, uint32_t flight)
{
        const struct bench_options *o = t->o;
        struct flight *f = &t->flights[flight];
        uint64_t place = t->next_place;

        /* The whole lane in turn, so that its bytes come from memory, not from a cache. */
        while (t->place_busy[place])
                place = (place + 1) % t->n_places;
        t->next_place = (place + 1) % t->n_places;
        t->place_busy[place] = true;
        t->place_of[flight] = place;
        for (uint64_t i = 0; i < o->batch; i++) {
                uint8_t *data = t->places[place] + i * o->size;

                content_stamp(data, o->size, t->next_number, place * o->batch + i);
                f->entries[i] = (struct kvcache_entry){ .key = content_key(t->next_number),
                                                        .data = data,
                                                        .length = o->size };
                t->next_number++;
        }
        struct kvcache_request request = {
                .size = sizeof(request),
                .op = KVCACHE_OP_PUT,
                .namespace_handle = t->namespace_handle,
                .ack = o->ack,
                .entries = f->entries,
                .count = o->batch,
                .results = f->results,
                .timeout_ms = STUCK_MS,
                .user_data = flight,
        };

        return kvcache_submit(t->kv, &request);
}

static void put_take(struct traffic *t, uint32_t flight)
{
        const struct flight *f = &t->flights[flight];

        t->place_busy[t->place_of[flight]] = false;
        for (uint64_t i = 0; i < t->o->batch; i++) {
                if (f->results[i].status == KVCACHE_OK) {
                        t->counts.keys++;
                        t->counts.bytes += t->o->size;
                } else {
                        count_failure(&t->counts, f->results[i].status);
                }
        }
}

static int put_places(struct traffic *t)
{
        const struct bench_options *o = t->o;
        struct kvcache_info info = { .size = sizeof(info) };
        uint64_t room = o->batch * o->size;
        void *place;
        int r;

        while ((r = kvcache_lane_acquire(t->kv, room, &place)) >= 0) {
                uint8_t **places = realloc(t->places, (t->n_places + 1) * sizeof(*places));

                if (!places)
                        return bench_fail("out of memory");
                t->places = places;
                for (uint64_t i = 0; i < o->batch; i++)
                        content_fill((uint8_t *)place + i * o->size, o->size,
                                     t->n_places * o->batch + i);
                t->places[t->n_places++] = place;
        }
        if (r != -ENOBUFS && r != -E2BIG)
                return bench_fail("no lane: %s", kvcache_error(t->kv));
        (void)kvcache_get_info(t->kv, &info);
        if (t->n_places < t->n_flights)
                return bench_fail("the lane of %" PRIu64 " MiB has no room for %" PRIu64
                                  " keys on their way",
                                  info.lane_bytes >> 20, o->outstanding);
        t->place_busy = calloc(t->n_places, sizeof(*t->place_busy));
        return t->place_busy ? 0 : bench_fail("out of memory");
}

int mode_put(const struct bench_options *o)
{
        struct bench_step step;
        struct traffic t;
        int r;

        r = traffic_init(&t, o, false);
        if (r == 0)
                r = put_places(&t);
        t.next_number = o->first;
        while (r == 0 && bench_next(o, &step))
                r = traffic_slice(&t, &step, put_submit, put_take);
        traffic_fini(&t);
        return r;
}

/* --- get --- */

static int get_submit(struct traffic *t, uint32_t flight)
{
        struct flight *f = &t->flights[flight];

        f->n = t->o->batch;
        for (uint64_t i = 0; i < f->n; i++) {
                f->keys[i] = content_key(t->numbers[t->position]);
                t->position = (t->position + 1) % t->n_numbers;
        }
        struct kvcache_request request = {
                .size = sizeof(request),
                .op = KVCACHE_OP_GET,
                .namespace_handle = t->namespace_handle,
                .keys = f->keys,
                .count = f->n,
                .results = f->results,
                .timeout_ms = STUCK_MS,
                .user_data = flight,
        };

        return kvcache_submit(t->kv, &request);
}

static void get_take(struct traffic *t, uint32_t flight)
{
        const struct flight *f = &t->flights[flight];

        for (uint64_t i = 0; i < f->n; i++) {
                const struct kvcache_result *result = &f->results[i];

                if (result->status != KVCACHE_OK) {
                        count_failure(&t->counts, result->status);
                } else if (result->tiers & KVCACHE_TIER_MEMORY) {
                        t->counts.memory++;
                } else {
                        t->counts.keys++;
                        t->counts.bytes += result->length;
                }
                if (result->lease.generation != 0)
                        (void)kvcache_release(t->kv, &result->lease, 1);
        }
}

/* Calls an operation on all of the numbers, some at a time. */
static int get_call(struct traffic *t, enum kvcache_op op, uint32_t tiers,
                    struct kvcache_result *results)
{
        struct kvcache_key keys[SMALL_BATCH];
        int r;

        for (uint64_t at = 0; at < t->n_numbers; at += SMALL_BATCH) {
                uint64_t n = MIN((uint64_t)SMALL_BATCH, t->n_numbers - at);

                for (uint64_t i = 0; i < n; i++)
                        keys[i] = content_key(t->numbers[at + i]);
                struct kvcache_request request = {
                        .size = sizeof(request),
                        .op = op,
                        .namespace_handle = t->namespace_handle,
                        .tiers = tiers,
                        .keys = keys,
                        .count = n,
                        .results = results + at,
                };

                r = kvcache_call(t->kv, &request, NULL);
                if (r < 0)
                        return bench_fail("a request failed: %s", kvcache_error(t->kv));
        }
        return 0;
}

/* Keeps the numbers whose chunks are on disk, and puts them in a random order, the same in each
 * run. */
static int get_choose(struct traffic *t)
{
        uint64_t random = 88172645463325252, kept = 0;
        struct kvcache_result *results;
        int r;

        t->n_numbers = t->o->count;
        t->numbers = calloc(t->n_numbers + 1, sizeof(*t->numbers));
        results = calloc(t->n_numbers + 1, sizeof(*results));
        if (!t->numbers || !results) {
                free(results);
                return bench_fail("out of memory");
        }
        for (uint64_t i = 0; i < t->n_numbers; i++)
                t->numbers[i] = t->o->first + i;
        r = get_call(t, KVCACHE_OP_EXISTS, 0, results);
        for (uint64_t i = 0; r == 0 && i < t->n_numbers; i++)
                if (results[i].tiers & KVCACHE_TIER_DISK)
                        t->numbers[kept++] = t->numbers[i];
        free(results);
        if (r != 0)
                return r;
        t->n_numbers = kept;
        if (kept < t->o->outstanding)
                return bench_fail("only %" PRIu64 " of %" PRIu64 " chunks are on disk", kept,
                                  t->o->count);
        for (uint64_t i = kept - 1; i > 0; i--) {
                uint64_t j, swap = t->numbers[i];

                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                j = random % (i + 1);
                t->numbers[i] = t->numbers[j];
                t->numbers[j] = swap;
        }
        return 0;
}

/* Drops all of the chunks from memory. */
static int get_evict(struct traffic *t)
{
        struct kvcache_result *results = calloc(t->n_numbers, sizeof(*results));
        int r;

        if (!results)
                return bench_fail("out of memory");
        r = get_call(t, KVCACHE_OP_EVICT, KVCACHE_TIER_MEMORY, results);
        free(results);
        if (r == 0) {
                printf("{\"keys\": %" PRIu64 "}", t->n_numbers);
                bench_answer();
        }
        return r;
}

/* Looks at every byte of some chunks. */
static int get_verify(struct traffic *t, uint64_t n)
{
        uint64_t checked = 0, wrong = 0;

        for (uint64_t i = 0; i < n; i++) {
                uint64_t number = t->numbers[i * t->n_numbers / n];
                struct kvcache_key key = content_key(number);
                struct kvcache_result result;
                int r = kvcache_get_map(t->kv, t->namespace_handle, &key, &result);

                if (r < 0)
                        return bench_fail("cannot get: %s", kvcache_error(t->kv));
                if (r != KVCACHE_OK)
                        continue;
                checked++;
                wrong += !content_check(result.data, result.length, t->o->size, number);
                (void)kvcache_release(t->kv, &result.lease, 1);
        }
        (void)kvcache_flush(t->kv);
        printf("{\"checked\": %" PRIu64 ", \"wrong\": %" PRIu64 "}", checked, wrong);
        bench_answer();
        return 0;
}

int mode_get(const struct bench_options *o)
{
        struct bench_step step;
        struct traffic t;
        int r;

        r = traffic_init(&t, o, true);
        if (r == 0)
                r = get_choose(&t);
        while (r == 0 && bench_next(o, &step)) {
                if (strcmp(step.word, "evict") == 0)
                        r = get_evict(&t);
                else if (strcmp(step.word, "verify") == 0)
                        r = get_verify(&t, step.bytes);
                else
                        r = traffic_slice(&t, &step, get_submit, get_take);
        }
        traffic_fini(&t);
        return r;
}
