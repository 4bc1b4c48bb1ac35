/* SPDX-License-Identifier: Apache-2.0 */
/* ping, stats and config: measures a round trip, prints every metric, prints the configuration in
 * force. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "checked.h"
#include "commands.h"
#include "common.h"
#include "human.h"
#include "latency.h"
#include "table.h"

/* --- ping --- */

static const struct option_row ping_options[] = {
        { 'c', "count", "N", "number of round trips (default: 1)" },
        { 0 },
};

static int run_ping(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct latency latency = { 0 };
        unsigned long long count = 1;
        const char *argument;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                if (!option_count(ctl, "--count", argument, 1, 10000000, &count))
                        return ctl->exit_status;
        if (r < 0)
                return ctl->exit_status;
        r = answer_no_operands(self, argc, argv, first);
        if (r)
                return r;
        r = ctl_connect(ctl);
        if (r)
                return r;
        for (unsigned long long i = 0; i < count; i++) {
                uint64_t ns;

                r = kvcache_ping(ctl->kv, &ns);
                if (r < 0) {
                        latency_fini(&latency);
                        return complain_call(ctl, r, "ping");
                }
                latency_add(&latency, ns);
        }
        if (ctl->json) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

                cJSON_AddNumberToObject(object, "count", (double)count);
                cJSON_AddNumberToObject(object, "min_us",
                                        (double)latency_quantile(&latency, 0) / 1000);
                cJSON_AddNumberToObject(object, "p50_us",
                                        (double)latency_quantile(&latency, 0.5) / 1000);
                cJSON_AddNumberToObject(object, "p99_us",
                                        (double)latency_quantile(&latency, 0.99) / 1000);
                cJSON_AddNumberToObject(object, "max_us",
                                        (double)latency_quantile(&latency, 1) / 1000);
                r = print_json(object);
        } else {
                char least[HUMAN_BYTES], median[HUMAN_BYTES], high[HUMAN_BYTES], most[HUMAN_BYTES];

                human_ns(latency_quantile(&latency, 0), least);
                human_ns(latency_quantile(&latency, 0.5), median);
                human_ns(latency_quantile(&latency, 0.99), high);
                human_ns(latency_quantile(&latency, 1), most);
                if (count == 1)
                        printf("the daemon answered in %s\n", median);
                else
                        printf("%llu round trips: least %s, p50 %s, p99 %s, most %s\n", count,
                               least, median, high, most);
                r = EXIT_OK;
        }
        latency_fini(&latency);
        return r;
}

const struct command command_ping = {
        .name = "ping",
        .arguments = "",
        .summary = "measure a round trip",
        .help = "Sends an empty request and measures how long the answer takes.",
        .options = ping_options,
        .run = run_ping,
};

/* --- stats --- */

static const struct option_row stats_options[] = {
        { 'p', "prometheus", NULL,
          "print the text that Prometheus scrapes, with help for each metric" },
        { 'a', "all", NULL, "include metrics that are zero" },
        { 0 },
};

/* One table each for texts, numbers and distributions. */
struct metrics {
        struct text_table *texts, *numbers, *distributions;
        bool any_text;
        bool all;
        bool any_distribution;
};

static void add_number(struct metrics *m, const char *name, const char *label, const cJSON *number)
{
        char text[HUMAN_BYTES];

        if (!m->all && number->valuedouble == 0)
                return;
        answer_format_number(name, number->valuedouble, text);
        text_table_row(m->numbers, name, label, text);
}

/* Formats a quantile as an upper bound of two significant digits, because the daemon's buckets are
 * an eighth of an octave wide. Quantiles of bytes are not rounded up, because their buckets end at
 * round sizes. */
static void format_bound(const char *name, double value, char ret[static HUMAN_BYTES])
{
        char number[HUMAN_BYTES];

        answer_format_number(name, strstr(name, "bytes") ? value : human_round_up(value), number);
        snprintf(ret, HUMAN_BYTES, "≤%.*s", HUMAN_BYTES - 4, number);
}

/* Adds a distribution: {"count": n, "sum": x, "p50": x, ...}; leaves out an empty one unless m->all
 * is set. Returns false if the metric is not a distribution. */
static bool add_distribution(struct metrics *m, const char *name, const char *label,
                             const cJSON *metric)
{
        static const char *const names[] = { "p50", "p90", "p99" };
        const cJSON *count = cJSON_GetObjectItemCaseSensitive(metric, "count");
        char count_text[HUMAN_BYTES], texts[ARRAY_SIZE(names)][HUMAN_BYTES];

        if (!cJSON_IsNumber(count))
                return false;
        if (!m->all && count->valuedouble == 0)
                return true;
        human_count(answer_count(count->valuedouble), count_text);
        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                const cJSON *item = cJSON_GetObjectItemCaseSensitive(metric, names[i]);

                strcpy(texts[i], "-");
                if (cJSON_IsNumber(item) && count->valuedouble > 0)
                        format_bound(name, item->valuedouble, texts[i]);
        }
        if (!m->any_distribution)
                text_table_row(m->distributions, "", "", "count", "p50", "p90", "p99");
        m->any_distribution = true;
        text_table_row(m->distributions, name, label, count_text, texts[0], texts[1], texts[2]);
        return true;
}

static void add_metric(struct metrics *m, const cJSON *metric)
{
        const cJSON *part;
        char text[512];

        if (cJSON_IsNumber(metric)) {
                add_number(m, metric->string, "", metric);
                return;
        }
        if (!cJSON_IsObject(metric)) {
                answer_format(metric, text, sizeof(text));
                text_table_row(m->texts, metric->string, "", text);
                m->any_text = true;
                return;
        }
        if (add_distribution(m, metric->string, "", metric))
                return;
        cJSON_ArrayForEach(part, metric)
        {
                if (cJSON_IsNumber(part)) {
                        add_number(m, metric->string, part->string, part);
                } else if (!cJSON_IsObject(part) ||
                           !add_distribution(m, metric->string, part->string, part)) {
                        answer_format(part, text, sizeof(text));
                        text_table_row(m->texts, metric->string, part->string, text);
                        m->any_text = true;
                }
        }
}

static void print_metrics(const cJSON *stats, bool all)
{
        _cleanup_(text_table_freep) struct text_table *texts = text_table_new("lll");
        _cleanup_(text_table_freep) struct text_table *numbers = text_table_new("llr");
        _cleanup_(text_table_freep) struct text_table *distributions = text_table_new("llrrrr");
        struct metrics m = {
                .texts = texts,
                .numbers = numbers,
                .distributions = distributions,
                .all = all,
        };
        const cJSON *metric;

        cJSON_ArrayForEach(metric, stats) if (metric->string) add_metric(&m, metric);
        if (m.any_text) {
                text_table_print(texts, "", stdout);
                putchar('\n');
        }
        text_table_print(numbers, "", stdout);
        if (m.any_distribution) {
                putchar('\n');
                text_table_print(distributions, "", stdout);
        }
}

static int run_stats(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        _cleanup_(cJSON_Deletep) cJSON *metrics = NULL;
        _cleanup_(freep) char *text = NULL;
        bool prometheus = false, all = false;
        const char *argument;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                if (r == 'p')
                        prometheus = true;
                else
                        all = true;
        if (r < 0)
                return ctl->exit_status;
        r = answer_no_operands(self, argc, argv, first);
        if (r)
                return r;
        if (prometheus && ctl->json)
                return usage_error(self,
                                   "--prometheus prints text; it cannot be combined with --json");
        if (prometheus) {
                r = ctl_connect(ctl);
                if (r)
                        return r;
                r = kvcache_report(ctl->kv, KVCACHE_REPORT_METRICS, &text);
                if (r < 0)
                        return complain_call(ctl, r, "stats");
                fputs(text, stdout);
                return EXIT_OK;
        }
        r = answer_fetch(ctl, KVCACHE_REPORT_STATS, "stats", &metrics);
        if (r || !metrics)
                return r;
        print_metrics(metrics, all);
        return EXIT_OK;
}

const struct command command_stats = {
        .name = "stats",
        .arguments = "",
        .summary = "print every metric",
        .help = "Prints every metric of the daemon that is not zero. With --json, prints all of\n"
                "them: an object of numbers, and of objects where a metric has labels or is a\n"
                "distribution.",
        .options = stats_options,
        .run = run_stats,
};

/* --- config --- */

static int run_config(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        _cleanup_(freep) char *text = NULL;
        int r;

        if (!answer_no_arguments(ctl, self, argc, argv))
                return ctl->exit_status;
        r = ctl_connect(ctl);
        if (r)
                return r;
        r = kvcache_report(ctl->kv, KVCACHE_REPORT_CONFIG, &text);
        if (r == -EACCES)
                return complain_admin("config");
        if (r < 0)
                return complain_call(ctl, r, "config");
        if (ctl->json) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

                cJSON_AddStringToObject(object, "yaml", text);
                return print_json(object);
        }
        fputs(text, stdout);
        return EXIT_OK;
}

const struct command command_config = {
        .name = "config",
        .arguments = "",
        .summary = "print the configuration that the daemon runs with",
        .help = "Prints the daemon's whole configuration as YAML: the keys that are set, and the\n"
                "defaults of all others. For admins. With --json, prints an object whose member\n"
                "\"yaml\" is that text.",
        .run = run_config,
};
