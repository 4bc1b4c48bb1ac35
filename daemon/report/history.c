/* SPDX-License-Identifier: Apache-2.0 */
/* Implements history.h. A sample stores differences, so that it can be summed and drawn without its
 * predecessor. Quantiles are those of the bucket-wise difference of two histograms, so that four
 * numbers per sample and one pair of histograms are kept. */
#include "report/history.h"

#include <inttypes.h>

#include "checked.h"

#define SECOND_NS   UINT64_C(1000000000)
#define INTERVAL_NS (HISTORY_INTERVAL_S * SECOND_NS)
#define SPAN_NS     (HISTORY_SPAN_S * SECOND_NS)

/* Length of an interval above which a sample was missed. */
#define GAP_NS (2 * INTERVAL_NS)

bool history_is_due(const struct history *h, uint64_t now_ns)
{
        return !h->begun || now_ns < h->last_ns || now_ns >= h->due_ns;
}

static uint64_t counted_since(uint64_t before, uint64_t now)
{
        return now > before ? now - before : 0;
}

/* Computes quantiles of the values added between two histograms. */
static void quantiles(const struct histogram *before, const struct histogram *now,
                      uint64_t *ret_p50, uint64_t *ret_p99)
{
        struct histogram of = { .max = now->max };

        for (unsigned i = 0; i < HISTOGRAM_BUCKETS; i++) {
                of.buckets[i] = counted_since(before->buckets[i], now->buckets[i]);
                of.count += of.buckets[i];
        }
        *ret_p50 = histogram_quantile(&of, 0.5);
        *ret_p99 = histogram_quantile(&of, 0.99);
}

void history_add(struct history *h, uint64_t now_ns, const struct history_counters *now)
{
        struct history_sample *s;

        if (h->begun && now_ns < h->last_ns) {
                h->begun = false;
                h->n = h->next = 0;
        }
        /* Advance in fixed steps, so that the tick's inaccuracies do not add up. */
        h->due_ns = (h->begun ? h->due_ns : now_ns) + INTERVAL_NS;
        if (h->due_ns <= now_ns)
                h->due_ns = now_ns + INTERVAL_NS;
        if (h->begun && now_ns > h->last_ns) {
                s = &h->samples[h->next];
                h->next = (h->next + 1) % HISTORY_SAMPLES;
                h->n = MIN(h->n + 1, (unsigned)HISTORY_SAMPLES);
                s->end_ns = now_ns;
                s->span_ns = now_ns - h->last_ns;
                for (unsigned i = 0; i < HISTORY_COUNTERS; i++)
                        s->counted[i] = counted_since(h->last.counters[i], now->counters[i]);
                for (unsigned i = 0; i < HISTORY_LATENCIES; i++)
                        quantiles(&h->last.latency[i], &now->latency[i], &s->p50_ns[i],
                                  &s->p99_ns[i]);
        }
        h->begun = true;
        h->last_ns = now_ns;
        h->last = *now;
}

static const struct history_sample *nth(const struct history *h, unsigned i)
{
        return &h->samples[(h->next + HISTORY_SAMPLES - h->n + i) % HISTORY_SAMPLES];
}

static bool is_recent(const struct history_sample *s, uint64_t now_ns)
{
        return now_ns < s->end_ns || now_ns - s->end_ns < SPAN_NS;
}

const struct history_sample *history_get(const struct history *h, uint64_t now_ns, unsigned i)
{
        unsigned old = 0;

        while (old < h->n && !is_recent(nth(h, old), now_ns))
                old++;
        return i < h->n - old ? nth(h, old + i) : NULL;
}

bool history_is_gap(const struct history_sample *sample)
{
        return sample->span_ns > GAP_NS;
}

bool history_is_joined(const struct history_sample *before, const struct history_sample *sample)
{
        return !history_is_gap(before) && !history_is_gap(sample) &&
               before->end_ns + sample->span_ns == sample->end_ns;
}

uint64_t history_sum(const struct history *h, uint64_t now_ns, enum history_counter counter)
{
        const struct history_sample *s;
        uint64_t sum = 0;

        for (unsigned i = 0; (s = history_get(h, now_ns, i)); i++)
                sum += s->counted[counter];
        return sum;
}

double history_hit_ratio(const uint64_t counted[static HISTORY_COUNTERS])
{
        bool lookups = counted[HISTORY_LOOKUP_KEYS] > 0;
        uint64_t keys = counted[lookups ? HISTORY_LOOKUP_KEYS : HISTORY_GET_KEYS];
        uint64_t found = counted[lookups ? HISTORY_LOOKUP_FOUND : HISTORY_GET_FOUND];

        return keys > 0 ? (double)MIN(found, keys) / (double)keys : -1;
}

/* --- the history as JSON --- */

static void print_seconds(const char *name, uint64_t ns, const char *after, FILE *out)
{
        fprintf(out, "\"%s\": %" PRIu64 ".%09" PRIu64 "%s", name, ns / SECOND_NS, ns % SECOND_NS,
                after);
}

void history_print(const struct history *h, uint64_t now_ns, FILE *out)
{
        static const char *const counters[HISTORY_COUNTERS] = {
                [HISTORY_LOOKUP_KEYS] = "lookup_keys",
                [HISTORY_LOOKUP_FOUND] = "lookup_found_keys",
                [HISTORY_GET_KEYS] = "get_keys",
                [HISTORY_GET_FOUND] = "get_found_keys",
                [HISTORY_GET_BYTES] = "get_bytes",
                [HISTORY_PUT_BYTES] = "put_bytes",
                [HISTORY_DISK_READ_BYTES] = "disk_read_bytes",
                [HISTORY_DISK_WRITTEN_BYTES] = "disk_written_bytes",
                [HISTORY_EVICTIONS_MEMORY] = "evictions_memory",
                [HISTORY_EVICTIONS_DISK] = "evictions_disk",
        };
        static const char *const latencies[HISTORY_LATENCIES][2] = {
                [HISTORY_GET] = { "get_p50_seconds", "get_p99_seconds" },
                [HISTORY_PUT] = { "put_p50_seconds", "put_p99_seconds" },
        };
        const struct history_sample *s;

        fprintf(out, "{\"interval_seconds\": %d, \"span_seconds\": %d, \"samples\": [",
                HISTORY_INTERVAL_S, HISTORY_SPAN_S);
        for (unsigned i = 0; (s = history_get(h, now_ns, i)); i++) {
                fputs(i == 0 ? "\n{" : ",\n{", out);
                print_seconds("age_seconds", now_ns > s->end_ns ? now_ns - s->end_ns : 0, ", ",
                              out);
                print_seconds("span_seconds", s->span_ns, ", ", out);
                for (unsigned k = 0; k < HISTORY_COUNTERS; k++)
                        fprintf(out, "\"%s\": %" PRIu64 ", ", counters[k], s->counted[k]);
                for (unsigned k = 0; k < HISTORY_LATENCIES; k++) {
                        print_seconds(latencies[k][0], s->p50_ns[k], ", ", out);
                        print_seconds(latencies[k][1], s->p99_ns[k],
                                      k + 1 < HISTORY_LATENCIES ? ", " : "}", out);
                }
        }
        fputs("\n]}\n", out);
}
