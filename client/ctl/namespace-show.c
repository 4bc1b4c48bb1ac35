/* SPDX-License-Identifier: Apache-2.0 */
/* Shows the daemon's samples of one namespace: its hits in each of the last 15 minutes, and the
 * chunks that will be evicted from disk first. Numbers from the daemon are checked before they
 * are used. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "answer.h"
#include "cleanup.h"
#include "common.h"
#include "human.h"
#include "namespaces.h"
#include "table.h"
#include "units.h"

enum { MINUTES = 15 };

/* Returns the value of an item that a daemon sent, clamped to 0 to 1e18; 0 if it is missing or not
 * a finite number. */
static double value_of(const cJSON *item)
{
        return cJSON_IsNumber(item) && isfinite(item->valuedouble) && item->valuedouble > 0
                       ? fmin(item->valuedouble, 1e18)
                       : 0;
}

static double number(const cJSON *o, const char *name)
{
        return value_of(cJSON_GetObjectItemCaseSensitive(o, name));
}

/* Returns value `i` of a column of samples. */
static double sampled(const cJSON *samples, const char *column, int i)
{
        return value_of(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(samples, column), i));
}

/* The sums of the samples of one minute, and the state at its end. `newest_s`: age of the sample
 * from which `chunks` and `bytes` are, s. */
struct minute {
        unsigned samples;
        double lookups, lookups_found, gets, gets_found, chunks, bytes, newest_s;
};

static void add_to_minutes(const cJSON *samples, struct minute minutes[static MINUTES])
{
        int n = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(samples, "age_seconds"));

        for (int i = 0; i < n; i++) {
                double age_s = sampled(samples, "age_seconds", i);
                struct minute *m;

                if (age_s >= 60 * MINUTES)
                        continue;
                m = &minutes[(unsigned)(age_s / 60)];
                m->lookups += sampled(samples, "lookup_keys", i);
                m->lookups_found += sampled(samples, "lookup_found_keys", i);
                m->gets += sampled(samples, "get_keys", i);
                m->gets_found += sampled(samples, "get_found_keys", i);
                if (m->samples++ == 0 || age_s <= m->newest_s) {
                        m->newest_s = age_s;
                        m->chunks = sampled(samples, "chunks", i);
                        m->bytes = sampled(samples, "bytes", i);
                }
        }
}

static void print_minutes(const cJSON *samples)
{
        _cleanup_(text_table_freep) struct text_table *table = text_table_new("rrrrrr");
        struct minute minutes[MINUTES] = { 0 };
        bool any = false;

        add_to_minutes(samples, minutes);
        text_table_row(table, "minutes ago", "hit ratio", "looked up", "got", "chunks", "bytes");
        for (unsigned i = MINUTES; i-- > 0;) {
                const struct minute *m = &minutes[i];
                char ago[HUMAN_BYTES], ratio[HUMAN_BYTES], lookups[HUMAN_BYTES], gets[HUMAN_BYTES],
                        chunks[HUMAN_BYTES], bytes[UNITS_TEXT];

                if (m->samples == 0)
                        continue;
                any = true;
                snprintf(ago, sizeof(ago), "%u", i);
                if (m->lookups > 0)
                        human_percent((uint64_t)m->lookups_found, (uint64_t)m->lookups, ratio);
                else
                        human_percent((uint64_t)m->gets_found, (uint64_t)m->gets, ratio);
                human_count((uint64_t)m->lookups, lookups);
                human_count((uint64_t)m->gets, gets);
                human_count((uint64_t)m->chunks, chunks);
                text_table_row(table, ago, ratio, lookups, gets, chunks,
                               units_bytes((uint64_t)m->bytes, bytes));
        }
        if (any)
                text_table_print(table, "", stdout);
        else
                puts("The first sample is not complete yet: ask again in 15 seconds.");
}

static void print_next(const cJSON *next)
{
        _cleanup_(text_table_freep) struct text_table *table = text_table_new("rrrrl");
        char of[HUMAN_BYTES], chunks[HUMAN_BYTES], bytes[UNITS_TEXT];
        const cJSON *one;

        printf("\nevicted next: %s of the %s chunks that leave the disk first, %s\n",
               human_count((uint64_t)number(next, "chunks"), chunks),
               human_count((uint64_t)number(next, "of"), of),
               units_bytes((uint64_t)number(next, "bytes"), bytes));
        if (number(next, "chunks") == 0)
                return;
        text_table_row(table, "place", "size", "unused for", "reuse", "key");
        cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(next, "first"))
        {
                char place[HUMAN_BYTES], age[HUMAN_BYTES], chance[HUMAN_BYTES] = "-";

                human_count((uint64_t)number(one, "place"), place);
                human_seconds(number(one, "age_seconds"), age);
                if (number(one, "chance") > 0)
                        snprintf(chance, sizeof(chance), "%.1f %%", 100 * number(one, "chance"));
                text_table_row(table, place, units_bytes((uint64_t)number(one, "bytes"), bytes),
                               age, chance, answer_text(one, "key"));
        }
        text_table_print(table, "", stdout);
}

int namespace_print_samples(struct ctl *ctl, const char *name, const char *tenant, cJSON *object)
{
        _cleanup_(cJSON_Deletep) cJSON *report = NULL;
        _cleanup_(freep) char *json = NULL;
        const cJSON *list, *one, *found = NULL;
        int r = kvcache_report(ctl->kv, KVCACHE_REPORT_NAMESPACES, &json);

        if (r < 0)
                return complain_call(ctl, r, "namespace show");
        report = cJSON_Parse(json);
        list = cJSON_GetObjectItemCaseSensitive(report, "namespaces");
        cJSON_ArrayForEach(one, list)
        {
                if (strcmp(answer_text(one, "name"), name) == 0 &&
                    strcmp(answer_text(one, "tenant"), tenant) == 0)
                        found = one;
        }
        if (object) {
                for (one = found ? found->child : NULL; one; one = one->next)
                        if (strcmp(one->string, "samples") == 0 ||
                            strcmp(one->string, "evicted_next") == 0)
                                cJSON_AddItemToObject(object, one->string, cJSON_Duplicate(one, 1));
                return print_json(object);
        }
        putchar('\n');
        if (!found && number(report, "left_out") > 0) {
                char n[HUMAN_BYTES];

                printf("The report of the daemon is full and leaves out the samples of the %s "
                       "smallest namespaces. This may be one of them.\n",
                       human_count((uint64_t)number(report, "left_out"), n));
                return EXIT_OK;
        }
        if (!found) {
                puts("There are no samples yet: ask again in 15 seconds. The daemon takes them of "
                     "the 20 largest namespaces, and of those whose page was opened last.");
                return EXIT_OK;
        }
        print_minutes(cJSON_GetObjectItemCaseSensitive(found, "samples"));
        print_next(cJSON_GetObjectItemCaseSensitive(found, "evicted_next"));
        return EXIT_OK;
}
