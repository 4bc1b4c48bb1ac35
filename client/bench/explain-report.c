/* SPDX-License-Identifier: Apache-2.0 */
/* Prints an explanation; see explain-report.h. The table shows each decision and its reason in one
 * or more rows, and consecutive hits as one decision. Of more than MOST_ROWS decisions, the table
 * leaves out those in the middle. */
#include "explain-report.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "checked.h"
#include "common.h"
#include "human.h"
#include "reuse-class.h"
#include "table.h"

enum { TEXT_BYTES = 160, MOST_ROWS = 100, SHOWN_AT_EACH_END = 40 };

/* Returns the id in the workload of the block with this number, or 0 if no request has the block.
 */
static uint64_t id_of(const struct simulation *s, uint32_t block)
{
        for (size_t i = 0; i < s->workload->n_ids; i++)
                if (s->blocks[i] == block)
                        return s->workload->ids[i];
        return 0;
}

static void row(struct text_table *table, const struct explain_decision *d, const char *decision,
                const char *why)
{
        char time[HUMAN_BYTES], request[HUMAN_BYTES];

        if (!d) {
                text_table_row(table, "", "", decision, why);
                return;
        }
        human_seconds(d->seconds, time);
        human_count(d->request + 1, request);
        text_table_row(table, time, request, decision, why);
}

static bool is_by_recency(const struct explain_decision *d)
{
        return d->class == EVICT_CLASS_RECENCY;
}

/* Adds a row that says why the block stayed in the cache until this decision. */
static void add_kept(struct text_table *table, const struct explain_decision *d, uint64_t passed,
                     double closest, bool by_recency)
{
        char others[HUMAN_BYTES], why[TEXT_BYTES];

        if (passed == 0)
                return;
        human_things(passed, "eviction", others);
        if (by_recency || isinf(closest)) {
                snprintf(why, sizeof(why), "in %s of blocks %s", others,
                         by_recency ? "not used for longer" : "worth nothing");
                row(table, NULL, "kept", why);
                return;
        }
        snprintf(why, sizeof(why), "in %s: worth at least %.3g of the victim", others, closest);
        row(table, NULL, "kept", why);
        if (closest < 1)
                row(table, NULL, "",
                    d->is_closest_continued ? "blocks that continue this one are evicted first"
                                            : "the victim was the end of a chain worth less");
}

static void add_standing(struct text_table *table, const struct explanation *e, size_t i)
{
        const struct explain_decision *d = &e->decisions[i];
        bool gave_way = i + 1 < e->n && d[1].kind == EXPLAIN_EVICTED && d[1].request == d->request;
        char why[TEXT_BYTES];

        if (d->is_refused && !d->is_cached)
                row(table, NULL, "refused", "the write budget does not admit it");
        else if (!d->is_cached && !gave_way)
                row(table, NULL, "not cached", "the request is longer than the cache");
        else if (d->is_cached && d->gives_way)
                row(table, NULL, "gives way", "worth less than chains known to return soon");
        else if (d->is_cached && d->kind != EXPLAIN_HIT) {
                snprintf(why, sizeof(why), "%s", reuse_class_text(d->class));
                row(table, NULL, "cached", why);
        }
}

static void add_eviction(struct text_table *table, const struct simulation *s,
                         const struct explain_decision *d)
{
        static const char *const causes[] = {
                [EXPLAIN_WORTH_LEAST] = "worth least",
                [EXPLAIN_END_OF_CHAIN] = "ends a chain whose beginning is worth least",
                [EXPLAIN_GAVE_WAY] = "gave way to chains known to return soon",
                [EXPLAIN_UNLEARNED] = "no hits of its class are known yet",
                [EXPLAIN_OLDEST] = "not used for longest",
        };
        char time[HUMAN_BYTES], why[TEXT_BYTES];

        human_seconds(d->unused_s, time);
        row(table, d, "EVICTED", causes[d->cause]);
        if (is_by_recency(d))
                snprintf(why, sizeof(why), "not used for %s", time);
        else if (d->unused_s > 0)
                snprintf(why, sizeof(why), "%s; not used for %s", reuse_class_text(d->class), time);
        else
                snprintf(why, sizeof(why), "%s", reuse_class_text(d->class));
        row(table, NULL, "", why);
        if (d->has_next) {
                if (isnan(d->next_ratio))
                        snprintf(why, sizeof(why), "the next is block %" PRIu64, id_of(s, d->next));
                else
                        snprintf(why, sizeof(why),
                                 "the next, block %" PRIu64 ", is worth %.3g of it",
                                 id_of(s, d->next), d->next_ratio);
                row(table, NULL, "", why);
                if (!is_by_recency(d))
                        row(table, NULL, "", reuse_class_text(d->next_class));
        }
        if (isnan(d->returns_s)) {
                row(table, NULL, "", "no later request asks for it");
                return;
        }
        human_seconds(d->returns_s, time);
        snprintf(why, sizeof(why), "the next request for it: %s later", time);
        row(table, NULL, "", why);
}

static void add_request(struct text_table *table, const struct explanation *e, size_t i)
{
        const struct explain_decision *d = &e->decisions[i];
        char time[HUMAN_BYTES], why[TEXT_BYTES] = "no request asked for it before";
        bool is_first = i == 0;

        if (d->kind == EXPLAIN_HIT) {
                snprintf(why, sizeof(why), "%s", reuse_class_text(d->class));
                if (d->gap_s > 0 && d->class < EVICT_CLASS_RECENCY) {
                        human_seconds(d->gap_s, time);
                        snprintf(why, sizeof(why), "%s; chain returns in %s",
                                 reuse_class_text(d->class), time);
                }
        } else if (d->kind == EXPLAIN_BEHIND_A_MISS) {
                snprintf(why, sizeof(why), "cached, but a block before it is missing");
        } else if (!is_first && d[-1].kind == EXPLAIN_EVICTED) {
                human_seconds(d->seconds - d[-1].seconds, time);
                snprintf(why, sizeof(why), "evicted %s before", time);
        } else if (!is_first) {
                snprintf(why, sizeof(why), "not cached since the last request");
        }
        row(table, d, d->kind == EXPLAIN_HIT ? "hit" : "miss", why);
}

/* Returns the index of the last of the consecutive hits that begin at decision `i`, or `i` if it is
 * no hit. Sets `*ret_passed` to the sum of `passed` of these decisions, and `*ret_closest` to the
 * least `closest`. */
static size_t last_hit(const struct explanation *e, size_t i, uint64_t *ret_passed,
                       double *ret_closest)
{
        *ret_passed = e->decisions[i].passed;
        *ret_closest = e->decisions[i].closest;
        while (e->decisions[i].kind == EXPLAIN_HIT && i + 1 < e->n &&
               e->decisions[i + 1].kind == EXPLAIN_HIT) {
                i++;
                *ret_passed += e->decisions[i].passed;
                *ret_closest = MIN(*ret_closest, e->decisions[i].closest);
        }
        return i;
}

static size_t add_decision(struct text_table *table, const struct simulation *s,
                           const struct explanation *e, size_t i)
{
        uint64_t passed;
        double closest;
        size_t last = last_hit(e, i, &passed, &closest);
        const struct explain_decision *d = &e->decisions[last];
        char hits[TEXT_BYTES], count[HUMAN_BYTES];

        add_kept(table, d, passed, closest, is_by_recency(d));
        if (d->kind == EXPLAIN_EVICTED) {
                add_eviction(table, s, d);
        } else if (last > i) {
                human_count(last - i + 1, count);
                snprintf(hits, sizeof(hits), "%s hits", count);
                row(table, d, hits, reuse_class_text(d->class));
        } else {
                add_request(table, e, last);
        }
        if (d->kind != EXPLAIN_EVICTED)
                add_standing(table, e, last);
        return last + 1;
}

/* Counts the decisions, of which consecutive hits are one. */
static size_t count_rows(const struct explanation *e)
{
        uint64_t passed;
        double closest;
        size_t n = 0;

        for (size_t i = 0; i < e->n; i = last_hit(e, i, &passed, &closest) + 1)
                n++;
        return n;
}

int explain_report_text(const struct simulate_arguments *a, const struct simulation *s,
                        uint32_t block, const struct explanation *e)
{
        _cleanup_(text_table_freep) struct text_table *table = text_table_new("rrll");
        size_t rows = count_rows(e), at = 0, left_out = 0;
        char capacity[SIMULATE_CELL_BYTES], asked[HUMAN_BYTES], hit[HUMAN_BYTES], n[HUMAN_BYTES];
        uint64_t passed;
        double closest;

        if (!table)
                return complain_memory();
        capacity_text(&a->capacities[0], capacity);
        human_things(e->asked, "request", asked);
        human_count(e->hit, hit);
        printf("Block %" PRIu64 " in a cache of %s blocks that evicts by %s: %s, %s of them hit "
               "it.\n",
               id_of(s, block), capacity, a->policies[0], asked, hit);
        text_table_row(table, "TIME", "REQUEST", "DECISION", "WHY");
        for (size_t i = 0; i < e->n; at++) {
                if (rows > MOST_ROWS && at >= SHOWN_AT_EACH_END && at < rows - SHOWN_AT_EACH_END) {
                        i = last_hit(e, i, &passed, &closest) + 1;
                        left_out++;
                        continue;
                }
                if (left_out > 0) {
                        human_count(left_out, n);
                        snprintf(capacity, sizeof(capacity), "%s decisions; --json has them", n);
                        row(table, NULL, "...", capacity);
                        left_out = 0;
                }
                i = add_decision(table, s, e, i);
        }
        text_table_print(table, "  ", stdout);
        if (strcmp(a->policies[0], "cq") == 0)
                printf("A worth is the hits that the policy expects for the time that the block "
                       "occupies "
                       "its place.\n");
        return EXIT_OK;
}

/* --- JSON --- */

static void add_eviction_json(cJSON *object, const struct simulation *s,
                              const struct explain_decision *d)
{
        static const char *const causes[] = {
                [EXPLAIN_WORTH_LEAST] = "worth_least", [EXPLAIN_END_OF_CHAIN] = "end_of_chain",
                [EXPLAIN_GAVE_WAY] = "gave_way",       [EXPLAIN_UNLEARNED] = "unlearned",
                [EXPLAIN_OLDEST] = "oldest",
        };

        cJSON_AddStringToObject(object, "cause", causes[d->cause]);
        cJSON_AddNumberToObject(object, "seconds_unused", d->unused_s);
        json_add_number(object, "seconds_until_next", d->returns_s);
        if (!d->has_next) {
                cJSON_AddNullToObject(object, "next");
                return;
        }
        cJSON_AddNumberToObject(object, "next", (double)id_of(s, d->next));
        cJSON_AddStringToObject(object, "next_class", reuse_class_text(d->next_class));
        json_add_number(object, "next_worth", d->next_ratio);
}

static cJSON *decision_json(const struct simulation *s, const struct explain_decision *d)
{
        static const char *const kinds[] = { [EXPLAIN_HIT] = "hit",
                                             [EXPLAIN_BEHIND_A_MISS] = "behind_a_miss",
                                             [EXPLAIN_MISS] = "miss",
                                             [EXPLAIN_EVICTED] = "evicted" };
        cJSON *object = cJSON_CreateObject();

        cJSON_AddStringToObject(object, "decision", kinds[d->kind]);
        cJSON_AddNumberToObject(object, "request", (double)(d->request + 1));
        cJSON_AddNumberToObject(object, "seconds", d->seconds);
        cJSON_AddNumberToObject(object, "kept", (double)d->passed);
        json_add_number(object, "kept_worth", d->closest);
        cJSON_AddNumberToObject(object, "spared", (double)d->spared);
        if (d->class != EVICT_CLASS_NONE)
                cJSON_AddStringToObject(object, "class", reuse_class_text(d->class));
        else
                cJSON_AddNullToObject(object, "class");
        if (d->gap_s > 0)
                cJSON_AddNumberToObject(object, "gap_seconds", d->gap_s);
        else
                cJSON_AddNullToObject(object, "gap_seconds");
        if (d->kind == EXPLAIN_EVICTED) {
                add_eviction_json(object, s, d);
                return object;
        }
        cJSON_AddBoolToObject(object, "cached", d->is_cached);
        cJSON_AddBoolToObject(object, "gives_way", d->gives_way);
        cJSON_AddBoolToObject(object, "refused", d->is_refused);
        return object;
}

int explain_report_json(const struct simulate_arguments *a, const struct simulation *s,
                        uint32_t block, const struct explanation *e)
{
        _cleanup_(cJSON_Deletep) cJSON *array = cJSON_CreateArray();
        cJSON *object = cJSON_CreateObject(), *decisions = cJSON_CreateArray();

        cJSON_AddItemToArray(array, object);
        cJSON_AddNumberToObject(object, "block", (double)id_of(s, block));
        cJSON_AddStringToObject(object, "policy", a->policies[0]);
        cJSON_AddNumberToObject(object, "capacity_blocks", (double)a->capacities[0].blocks);
        cJSON_AddNumberToObject(object, "asked", (double)e->asked);
        cJSON_AddNumberToObject(object, "hit", (double)e->hit);
        cJSON_AddItemToObject(object, "decisions", decisions);
        for (size_t i = 0; i < e->n; i++)
                cJSON_AddItemToArray(decisions, decision_json(s, &e->decisions[i]));
        return print_json(array);
}
