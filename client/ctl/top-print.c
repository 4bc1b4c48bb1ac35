/* SPDX-License-Identifier: Apache-2.0 */
/* Formats the figures of `top` for people: a head of fixed height, then tables that share the
 * remaining lines. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "checked.h"
#include "color.h"
#include "human.h"
#include "progress.h"
#include "table.h"
#include "text.h"
#include "top.h"
#include "units.h"

/* --- values --- */

enum form { TEXT, COUNT, RATE, BYTES, BYTES_RATE, RATIO, QUANTILE };
enum { CELL_BYTES = 256, BAR_WIDTH = 8 };

static double number_of(const cJSON *o, const char *name)
{
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, name);

        return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

/* Formats a rate: "1,204", or with one decimal if small, "0.4". */
static void format_rate(double value, char ret[static HUMAN_BYTES])
{
        if (value > 0 && value < 9.95)
                snprintf(ret, HUMAN_BYTES, "%.1f", value);
        else
                human_count(answer_count(value + 0.5), ret);
}

/* Formats a quantile, NAME_seconds, as the edge of its bucket: "≤50 µs" or ">10 s". */
static const char *format_quantile(const cJSON *o, const char *name, char ret[static CELL_BYTES])
{
        char key[96], number[HUMAN_BYTES];
        const char *sign = "≤";
        double value;

        snprintf(key, sizeof(key), "%s_seconds", name);
        value = number_of(o, key);
        if (isnan(value)) {
                sign = ">";
                snprintf(key, sizeof(key), "%s_above_seconds", name);
                value = number_of(o, key);
        }
        if (isnan(value))
                return strcpy(ret, "-");
        human_ns(answer_count(value * 1e9), number);
        snprintf(ret, CELL_BYTES, "%s%s", sign, number);
        return ret;
}

static const char *format(const cJSON *o, const char *name, enum form form,
                          char ret[static CELL_BYTES])
{
        double value = number_of(o, name);
        char number[HUMAN_BYTES];

        if (form == TEXT) {
                snprintf(ret, CELL_BYTES, "%s", answer_text(o, name));
                return text_clean(ret);
        }
        if (form == QUANTILE)
                return format_quantile(o, name, ret);
        if (isnan(value))
                return strcpy(ret, "-");
        if (form == COUNT)
                human_count(answer_count(value), number);
        else if (form == RATE)
                format_rate(value, number);
        else if (form == RATIO)
                snprintf(number, sizeof(number), "%.1f %%",
                         100 * (value < 1 ? MIN(value, 0.999)
                                          : 1)); /* limit the digits, so that a share below 1 is
                                                    never shown as 100 % */
        else
                units_bytes(answer_count(value), number);
        snprintf(ret, CELL_BYTES, "%s%s", number, form == BYTES_RATE ? "/s" : "");
        return ret;
}

/* --- the head --- */

static void print_label(const char *label, FILE *out)
{
        fprintf(out, "%-10s", label);
}

/* Prints a usage such as "1.2 GiB of 4 GiB [###.......] 30 %". */
static void print_bar(const cJSON *o, const char *used, const char *all, FILE *out)
{
        char a[CELL_BYTES], b[CELL_BYTES], bar[BAR_WIDTH + 1];
        double part = number_of(o, used) / number_of(o, all);

        part = isfinite(part) ? part : 0;
        progress_bar(part, BAR_WIDTH, bar);
        fprintf(out, "%s of %s [%s] %.0f %%", format(o, used, BYTES, a), format(o, all, BYTES, b),
                bar, 100 * part);
}

static void print_state(const cJSON *figures, bool colored, FILE *out)
{
        bool ready = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(figures, "ready"));
        enum color color = ready ? COLOR_NONE : COLOR_BAD;
        const cJSON *degraded = cJSON_GetObjectItemCaseSensitive(figures, "degraded"), *reason;
        double uptime = number_of(figures, "uptime_seconds");
        char up[HUMAN_BYTES], text[CELL_BYTES], host[CELL_BYTES];

        human_seconds(isnan(uptime) ? 0 : uptime, up);
        format(figures, "host", TEXT, host);
        fprintf(out, "kvcache-daemon %s%s%.*s, %s%s%s, up %s\n",
                format(figures, "version", TEXT, text), host[0] ? " on " : "",
                (int)MIN(strcspn(host, "."), (size_t)HOST_SHOWN), host, color_begin(color, colored),
                ready ? "ready" : "not ready", color_end(color, colored), up);
        if (cJSON_GetArraySize(degraded) > 0) {
                fputs(color_begin(COLOR_WARNING, colored), out);
                print_label("DEGRADED", out);
                fputs(color_end(COLOR_WARNING, colored), out);
                cJSON_ArrayForEach(reason, degraded)
                {
                        snprintf(text, sizeof(text), "%s", reason->string);
                        fprintf(out, "%s%s", text_clean(text), reason->next ? ", " : "");
                }
                fputs(": see \"kvcachectl status\"\n", out);
        }
}

static void print_traffic(const cJSON *figures, FILE *out)
{
        const cJSON *gets = cJSON_GetObjectItemCaseSensitive(figures, "gets"),
                    *lookups = cJSON_GetObjectItemCaseSensitive(figures, "lookups"),
                    *puts = cJSON_GetObjectItemCaseSensitive(figures, "puts"),
                    *requests = cJSON_GetObjectItemCaseSensitive(figures, "requests");
        char a[CELL_BYTES], b[CELL_BYTES], c[CELL_BYTES], d[CELL_BYTES], e[CELL_BYTES];

        print_label("requests", out);
        fprintf(out, "%s/s, %s/s busy, %s/s refused\n", format(requests, "per_second", RATE, a),
                format(requests, "busy_per_second", RATE, b),
                format(requests, "refusals_per_second", RATE, c));
        print_label("clients", out);
        human_things(answer_count_of(figures, "leases"), "lease", d);
        fprintf(out, "%s, with %s of %s\n", format(figures, "connections", COUNT, a), d,
                format(cJSON_GetObjectItemCaseSensitive(figures, "pool"), "leased_bytes", BYTES,
                       b));
        print_label("lookups", out);
        fprintf(out, "%s/s: %s found; %s loads/s declined\n",
                format(lookups, "keys_per_second", RATE, a), format(lookups, "hit_ratio", RATIO, b),
                format(lookups, "declined_per_second", RATE, c));
        print_label("gets", out);
        fprintf(out, "%s/s, %s: %s memory, %s disk, %s missed\n",
                format(gets, "keys_per_second", RATE, b),
                format(gets, "bytes_per_second", BYTES_RATE, a),
                format(gets, "memory_ratio", RATIO, c), format(gets, "disk_ratio", RATIO, d),
                format(gets, "miss_ratio", RATIO, e));
        print_label("latency", out);
        fprintf(out, "p50/p99 from memory %s/%s, from disk %s/%s\n",
                format(gets, "memory_p50", QUANTILE, a), format(gets, "memory_p99", QUANTILE, b),
                format(gets, "disk_p50", QUANTILE, c), format(gets, "disk_p99", QUANTILE, d));
        print_label("puts", out);
        fprintf(out, "%s/s, %s\n", format(puts, "chunks_per_second", RATE, b),
                format(puts, "bytes_per_second", BYTES_RATE, a));
}

/* Prints the daemon's predictions that chains will be used again, and the share that came true;
 * nothing if the daemon does not predict. */
static void print_returns(const cJSON *returns, FILE *out)
{
        char a[CELL_BYTES], b[CELL_BYTES];

        if (isnan(number_of(returns, "expected")))
                return;
        print_label("returns", out);
        fprintf(out, "%s expected, %s in time", format(returns, "expected", COUNT, a),
                format(returns, "in_time_ratio", RATIO, b));
        if (number_of(returns, "prefetched_per_second") > 0)
                fprintf(out, "; prefetched %s/s, %s used",
                        format(returns, "prefetched_per_second", RATE, a),
                        format(returns, "prefetch_hit_ratio", RATIO, b));
        fputc('\n', out);
}

/* Prints clients' announcements that chains will be used again, and the share that came true;
 * nothing if there are none. */
static void print_announced(const cJSON *announced, FILE *out)
{
        char a[CELL_BYTES], b[CELL_BYTES];

        if (!(number_of(announced, "open") > 0) && isnan(number_of(announced, "true_ratio")))
                return;
        print_label("announced", out);
        fprintf(out, "%s returns, %s came true\n", format(announced, "open", COUNT, a),
                format(announced, "true_ratio", RATIO, b));
}

static void print_tiers(const cJSON *figures, FILE *out)
{
        const cJSON *pool = cJSON_GetObjectItemCaseSensitive(figures, "pool"),
                    *store = cJSON_GetObjectItemCaseSensitive(figures, "store"),
                    *queues = cJSON_GetObjectItemCaseSensitive(figures, "queues"),
                    *gets = cJSON_GetObjectItemCaseSensitive(figures, "gets");
        char a[CELL_BYTES], b[CELL_BYTES], c[CELL_BYTES], d[CELL_BYTES], e[CELL_BYTES];

        print_label("pool", out);
        print_bar(pool, "used_bytes", "size_bytes", out);
        fprintf(out, "; %s unwritten\n", format(pool, "unwritten_bytes", BYTES, a));
        print_label("store", out);
        print_bar(store, "used_bytes", "limit_bytes", out);
        fprintf(out, "; read %s, write %s\n", format(store, "read_bytes_per_second", BYTES_RATE, a),
                format(store, "written_bytes_per_second", BYTES_RATE, b));
        print_label("evictions", out);
        fprintf(out, "%s/s from the pool, %s/s from the store",
                format(pool, "evictions_per_second", RATE, a),
                format(store, "evictions_per_second", RATE, b));
        if (!isnan(number_of(gets, "evicted_miss_ratio")))
                fprintf(out, "; %s of the misses evicted",
                        format(gets, "evicted_miss_ratio", RATIO, a));
        fputc('\n', out);
        print_returns(cJSON_GetObjectItemCaseSensitive(figures, "returns"), out);
        print_announced(cJSON_GetObjectItemCaseSensitive(figures, "announced"), out);
        print_label("queues", out);
        fprintf(out, "%s deferred, %s reads, %s writes, %s for a ring; %s at devices\n",
                format(queues, "deferred_requests", COUNT, a), format(queues, "reads", COUNT, b),
                format(queues, "writes", COUNT, c), format(queues, "io_queued", COUNT, d),
                format(queues, "io_inflight", COUNT, e));
}

/* --- tables --- */

struct column {
        const char *heading, *member;
        enum form form;
};

static const struct rows {
        const char *member, *inner; /* figures.MEMBER, or figures.MEMBER.INNER */
        const char *layout;
        int least; /* minimum number of rows; with fewer, the table would only repeat figures of the
                      head */
        struct column columns[TABLE_MAX_COLUMNS];
} tables[] = {
        { "requests",
          "operations",
          "lrrr",
          1,
          { { "OPERATION", "op", TEXT },
            { "REQUESTS/S", "per_second", RATE },
            { "P50", "p50", QUANTILE },
            { "P99", "p99", QUANTILE } } },
        { "volumes",
          NULL,
          "llrrrrr",
          1,
          { { "VOLUME", "volume", TEXT },
            { "STATE", "state", TEXT },
            { "READ", "read_bytes_per_second", BYTES_RATE },
            { "WRITTEN", "written_bytes_per_second", BYTES_RATE },
            { "PENDING", "pending_operations", COUNT },
            { "ERRORS", "errors_per_second", RATE },
            { "USED", "used_bytes", BYTES } } },
        /* With a single tenant, the table would repeat figures of the head. */
        { "tenants",
          NULL,
          "lrrrrrrr",
          2,
          { { "TENANT", "tenant", TEXT },
            { "OUT", "get_bytes_per_second", BYTES_RATE },
            { "IN", "put_bytes_per_second", BYTES_RATE },
            { "LOOKUPS/S", "lookup_keys_per_second", RATE },
            { "HITS", "lookup_hit_ratio", RATIO },
            { "REFUSED/S", "refusals_per_second", RATE },
            { "MEMORY", "pool_used_bytes", BYTES },
            { "STORED", "stored_bytes", BYTES } } },
        { "floors",
          NULL,
          "lrrr",
          1,
          { { "MEMORY OF", "prefix", TEXT },
            { "USED", "used_bytes", BYTES },
            { "FLOOR", "floor_bytes", BYTES },
            { "OF POOL", "pool_share", RATIO } } },
        { "namespaces",
          NULL,
          "lrrrrr",
          1,
          { { "NAMESPACE", "namespace", TEXT },
            { "LOOKUPS/S", "lookup_keys_per_second", RATE },
            { "HITS", "lookup_hit_ratio", RATIO },
            { "CHUNKS", "chunks", COUNT },
            { "MEMORY", "pool_used_bytes", BYTES },
            { "STORED", "stored_bytes", BYTES } } },
};

static const cJSON *rows_of(const cJSON *figures, const struct rows *rows)
{
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(figures, rows->member);

        if (rows->inner)
                list = cJSON_GetObjectItemCaseSensitive(list, rows->inner);
        return cJSON_GetArraySize(list) >= rows->least ? list : NULL;
}

/* Returns the colour of a volume that is not in use, or of a row with errors. */
static enum color color_of(const cJSON *row)
{
        const char *state = answer_text(row, "state");

        if (number_of(row, "errors_per_second") > 0)
                return COLOR_BAD;
        if (!*state || strcmp(state, "up") == 0)
                return COLOR_NONE;
        return strcmp(state, "suspended") == 0 || strcmp(state, "resuming") == 0 ? COLOR_WARNING
                                                                                 : COLOR_BAD;
}

/* Prints a table with its heading, in at most `lines` lines. */
static void print_rows(const struct rows *rows, const cJSON *list, unsigned lines, unsigned columns,
                       bool colored, FILE *out)
{
        _cleanup_(text_table_freep) struct text_table *table = text_table_new(rows->layout);
        unsigned all = (unsigned)cJSON_GetArraySize(list), shown = 0;
        unsigned most = all < lines ? all : lines - 2; /* the last line counts the omitted rows */
        const char *cells[TABLE_MAX_COLUMNS];
        char texts[TABLE_MAX_COLUMNS][CELL_BYTES];
        const cJSON *row;

        for (unsigned i = 0; rows->layout[i]; i++)
                cells[i] = rows->columns[i].heading;
        text_table_add(table, cells);
        cJSON_ArrayForEach(row, list)
        {
                if (shown == most)
                        break;
                for (unsigned i = 0; rows->layout[i]; i++)
                        cells[i] = format(row, rows->columns[i].member, rows->columns[i].form,
                                          texts[i]);
                text_table_add(table, cells);
                text_table_color(table, color_of(row), colored);
                shown++;
        }
        text_table_fit(table, columns);
        text_table_print(table, "", out);
        if (shown < all)
                fprintf(out, "... and %u more\n", all - shown);
}

void top_share_lines(unsigned lines, const unsigned wanted[], unsigned n, unsigned ret[])
{
        bool given = true;

        memset(ret, 0, n * sizeof(*ret));
        while (given) {
                given = false;
                for (unsigned i = 0; i < n; i++)
                        if (lines > 0 && ret[i] < wanted[i]) {
                                ret[i]++;
                                lines--;
                                given = true;
                        }
        }
}

static unsigned count_lines(const char *text)
{
        unsigned n = 0;

        for (; (text = strchr(text, '\n')); text++)
                n++;
        return n;
}

static void print_head(const cJSON *figures, bool colored, FILE *out)
{
        print_state(figures, colored, out);
        print_traffic(figures, out);
        print_tiers(figures, out);
}

/* A table needs a blank line, the heading and two more lines, or one if it has a single row;
 * otherwise it is left out. */
enum { TABLE_LEAST = 4 };

/* Leaves out tables on a low screen, so that the remaining ones have rows: first volumes, whose
 * failures the head reports, then tenants, floors and operations; never namespaces. */
static void leave_out_tables(unsigned lines, unsigned wanted[static ARRAY_SIZE(tables)])
{
        static const unsigned order[] = { 1, 2, 3, 0 };

        for (size_t i = 0; i < ARRAY_SIZE(order); i++) {
                unsigned sum = 0;

                for (size_t j = 0; j < ARRAY_SIZE(tables); j++)
                        sum += MIN(wanted[j], (unsigned)TABLE_LEAST);
                if (sum <= lines)
                        return;
                wanted[order[i]] = 0;
        }
}

void top_print(const cJSON *figures, unsigned lines, unsigned columns, bool colored, FILE *out)
{
        unsigned wanted[ARRAY_SIZE(tables)], given[ARRAY_SIZE(tables)], left = UINT32_MAX;
        _cleanup_(freep) char *head = NULL;
        size_t bytes;
        FILE *memory = open_memstream(&head, &bytes);

        if (!memory)
                return;
        print_head(figures, colored, memory);
        fclose(memory);
        if (!head)
                return;
        fputs(head, out);
        if (lines > 0)
                left = lines - MIN(lines, count_lines(head));
        for (unsigned i = 0; i < ARRAY_SIZE(tables); i++) {
                int n = cJSON_GetArraySize(rows_of(figures, &tables[i]));

                wanted[i] = n > 0 ? (unsigned)n + 2 : 0;
        }
        leave_out_tables(left, wanted);
        top_share_lines(left, wanted, ARRAY_SIZE(tables), given);
        for (unsigned i = 0; i < ARRAY_SIZE(tables); i++)
                if (given[i] > 0 && given[i] >= MIN(wanted[i], (unsigned)TABLE_LEAST)) {
                        fputc('\n', out);
                        print_rows(&tables[i], rows_of(figures, &tables[i]), given[i] - 1, columns,
                                   colored, out);
                }
}
