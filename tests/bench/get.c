/* SPDX-License-Identifier: Apache-2.0 */
/* Gets of chunks that are known to be there, mapped or, with --region, into memory that is
 * registered with the daemon: in a random order that repeats. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "traffic.h"

enum { SMALL_BATCH = 512 };

static int get_submit(struct traffic *t, uint32_t flight)
{
        const struct bench_options *o = t->o;
        struct flight *f = &t->flights[flight];
        struct kvcache_request request;
        uint8_t *place = NULL;

        if (o->region > 0) {
                place = t->places[traffic_take_place(t, flight)];
                kvcache_prep_get_into(&request, t->namespace_handle, f->entries, o->batch,
                                      f->results);
        } else {
                kvcache_prep_get(&request, t->namespace_handle, f->keys, o->batch, f->results);
        }
        request.timeout_ms = TRAFFIC_STUCK_MS;
        request.user_data = flight;
        f->n = o->batch;
        for (uint64_t i = 0; i < f->n; i++) {
                struct kvcache_key key = bench_key(o, t->numbers[t->position]);

                t->position = t->position + 1 < t->n_numbers ? t->position + 1 : 0;
                if (place)
                        f->entries[i] = (struct kvcache_entry){ .key = key,
                                                                .data = place + i * o->size,
                                                                .length = o->size };
                else
                        f->keys[i] = key;
        }
        return kvcache_submit(t->kv, &request);
}

static void get_take(struct traffic *t, uint32_t flight)
{
        struct flight *f = &t->flights[flight];
        size_t n_leases = 0;

        if (t->o->region > 0)
                traffic_give_place(t, flight);
        for (uint64_t i = 0; i < f->n; i++) {
                const struct kvcache_result *result = &f->results[i];

                if (result->status != KVCACHE_OK) {
                        traffic_count_failure(&t->counts, result->status);
                } else if (result->tiers & KVCACHE_TIER_MEMORY) {
                        t->counts.memory++;
                        t->counts.memory_bytes += result->length;
                } else {
                        t->counts.keys++;
                        t->counts.bytes += result->length;
                }
                if (result->lease.generation != 0)
                        f->leases[n_leases++] = result->lease;
        }
        if (n_leases > 0)
                (void)kvcache_release(t->kv, f->leases, n_leases);
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
                        keys[i] = bench_key(t->o, t->numbers[at + i]);
                struct kvcache_request request;

                kvcache_prep(&request, op, t->namespace_handle, n, results + at);
                request.keys = keys;
                request.tiers = tiers;
                r = kvcache_submit_and_wait(t->kv, &request, NULL);
                if (r < 0)
                        return bench_fail("a request failed: %s", kvcache_error(t->kv));
        }
        return 0;
}

static uint64_t next_random(uint64_t *state)
{
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        return *state;
}

/* Returns how many chunks to get: all, or those of --sample. */
static int get_number(struct traffic *t)
{
        const struct bench_options *o = t->o;

        t->n_numbers = o->sample > 0 ? MIN(o->sample, o->count) : o->count;
        t->numbers = calloc(t->n_numbers + 1, sizeof(*t->numbers));
        if (!t->numbers)
                return bench_fail("out of memory");
        for (uint64_t i = 0; i < t->n_numbers; i++)
                t->numbers[i] = bench_sample(o, i, t->n_numbers);
        return 0;
}

/* Keeps the numbers whose chunks are in --tier, and puts them in a random order, that of --seed, in
 * which --chain of them stay together. */
static int get_choose(struct traffic *t)
{
        uint64_t random = 88172645463325252 + t->o->seed, kept = 0, chain;
        struct kvcache_result *results;
        int r;

        r = get_number(t);
        if (r != 0)
                return r;
        results = calloc(t->n_numbers + 1, sizeof(*results));
        if (!results)
                return bench_fail("out of memory");
        r = get_call(t, KVCACHE_OP_EXISTS, 0, results);
        for (uint64_t i = 0; r == 0 && i < t->n_numbers; i++)
                if (results[i].tiers & t->o->tier)
                        t->numbers[kept++] = t->numbers[i];
        free(results);
        if (r != 0)
                return r;
        chain = MIN(t->o->chain, MAX(kept, (uint64_t)1));
        kept -= kept % chain;
        if (kept < t->o->outstanding)
                return bench_fail("only %" PRIu64 " of %" PRIu64 " chunks are there", kept,
                                  t->n_numbers);
        t->n_numbers = kept;
        for (uint64_t i = kept / chain - 1; i > 0; i--) {
                uint64_t j = next_random(&random) % (i + 1);

                for (uint64_t k = 0; k < chain; k++) {
                        uint64_t swap = t->numbers[i * chain + k];

                        t->numbers[i * chain + k] = t->numbers[j * chain + k];
                        t->numbers[j * chain + k] = swap;
                }
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
                struct kvcache_key key = bench_key(t->o, number);
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

/* Gets each once, so that they are in memory if there is room. */
static int get_warm(struct traffic *t)
{
        struct bench_step once = { .bytes = t->n_numbers * t->o->size };

        t->position = 0;
        return traffic_slice(t, &once, get_submit, get_take);
}

int mode_get(const struct bench_options *o)
{
        struct bench_step step;
        struct traffic t;
        int r;

        r = traffic_init(&t, o, true);
        if (r == 0 && o->region > 0)
                r = traffic_make_places(&t);
        if (r == 0)
                r = get_choose(&t);
        while (r == 0 && bench_next(o, &step)) {
                if (strcmp(step.word, "evict") == 0)
                        r = get_evict(&t);
                else if (strcmp(step.word, "warm") == 0)
                        r = get_warm(&t);
                else if (strcmp(step.word, "verify") == 0)
                        r = get_verify(&t, step.bytes);
                else
                        r = traffic_slice(&t, &step, get_submit, get_take);
        }
        traffic_fini(&t);
        return r;
}
