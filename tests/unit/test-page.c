/* SPDX-License-Identifier: Apache-2.0 */
/* The page for people, made from statuses and histories of all kinds: it is well-formed, escapes
 * text from clients, stays short, and its plots show the samples. tests/daemon/test_page.py tests
 * it in a browser. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ctype.h>
#include <math.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "report/history.h"
#include "report/metrics.h"
#include "report/page-parts.h"
#include "report/page.h"
#include "report/plot.h"

#define S    UINT64_C(1000000000)
#define T0   (1000 * S)
#define STEP (HISTORY_INTERVAL_S * S)

static struct history history;

static char *make(struct page page)
{
        char *text = NULL;
        size_t n;
        FILE *out = open_memstream(&text, &n);

        page_print(out, &page);
        assert_int_equal(fclose(out), 0);
        assert_int_equal(strlen(text), n);
        return text;
}

static char *page_of(const char *status)
{
        return make((struct page){ .status = status,
                                   .ready = true,
                                   .healthy = true,
                                   .readiness = "ready",
                                   .health = "ok",
                                   .history = &history,
                                   .now_ns = T0,
                                   .unix_ms = UINT64_C(1750000000000) });
}

static void assert_has(const char *text, const char *what)
{
        if (!strstr(text, what))
                fail_msg("\"%s\" is missing in:\n%s", what,
                         strstr(text, "</style>") ? strstr(text, "</style>") : text);
}

static void assert_has_not(const char *text, const char *what)
{
        if (strstr(text, what))
                fail_msg("\"%s\" is there: %.100s", what, strstr(text, what));
}

/* Checks that no invalid number is printed. */
static void assert_only_numbers(const char *text)
{
        static const char *const words[] = { "nan", "inf" };

        for (size_t i = 0; i < ARRAY_SIZE(words); i++)
                for (const char *p = text; (p = strstr(p, words[i])); p++)
                        if (!isalpha((unsigned char)p[-1]) && !isalpha((unsigned char)p[3]))
                                fail_msg("no number: %.60s", p - 20);
}

/* --- a checker of well-formedness, as strict as XML but for void elements --- */

enum { OPEN_MAX_TAGS = 64, NAME_MAX_TAG = 16 };

static bool is_void(const char *name)
{
        return strcmp(name, "meta") == 0 || strcmp(name, "link") == 0 || strcmp(name, "br") == 0;
}

static const char *check_entity(const char *p)
{
        const char *end = p + 1;

        end += *end == '#';
        while (isalnum((unsigned char)*end))
                end++;
        if (*end != ';' || end == p + 1)
                fail_msg("a bare & at: %.40s", p);
        return end + 1;
}

static const char *check_attributes(const char *p)
{
        while (*p != '>' && *p != '/') {
                while (*p == ' ')
                        p++;
                if (!isalpha((unsigned char)*p))
                        fail_msg("no attribute at: %.60s", p);
                p += strcspn(p, "=> /");
                if (*p != '=')
                        continue;
                if (p[1] != '"')
                        fail_msg("an attribute without quotes at: %.60s", p);
                for (p += 2; *p != '"';) {
                        if (*p == '\0' || *p == '<')
                                fail_msg("an attribute that does not end at: %.60s", p);
                        p = *p == '&' ? check_entity(p) : p + 1;
                }
                p++;
        }
        return p;
}

static void assert_well_formed(const char *text)
{
        char open[OPEN_MAX_TAGS][NAME_MAX_TAG];
        unsigned n = 0;
        const char *p = text;

        assert_int_equal(strncmp(p, "<!DOCTYPE html>\n", 16), 0);
        for (p += 16; *p;) {
                char name[NAME_MAX_TAG];
                bool close;

                if (*p == '&') {
                        p = check_entity(p);
                        continue;
                }
                if (*p != '<') {
                        assert_int_not_equal(*p, '>');
                        if (n == 0 && !isspace((unsigned char)*p))
                                fail_msg("text outside of all elements: %.40s", p);
                        p++;
                        continue;
                }
                close = p[1] == '/';
                p += 1 + close;
                snprintf(name, sizeof(name), "%.*s",
                         (int)strspn(p, "abcdefghijklmnopqrstuvwxyz123456"), p);
                p += strlen(name);
                if (close) {
                        if (n == 0 || strcmp(open[n - 1], name) != 0)
                                fail_msg("</%s> closes %s", name, n ? open[n - 1] : "nothing");
                        n--;
                        assert_int_equal(*p, '>');
                } else {
                        p = check_attributes(p);
                        if (strcmp(name, "style") == 0) {
                                p = strstr(p, "</style>");
                                assert_non_null(p);
                                p += strlen("</style");
                        } else if (*p == '/') {
                                p++;
                        } else if (!is_void(name)) {
                                assert_true(n < OPEN_MAX_TAGS);
                                memcpy(open[n++], name, sizeof(name));
                        }
                        assert_int_equal(*p, '>');
                }
                p++;
        }
        assert_int_equal(n, 0);
}

/* --- statuses --- */

static const char full[] =
        "{\"version\": \"1.2.3\", \"host\": \"node-7.example\", \"uptime_seconds\": 7300, "
        "\"ready\": true, \"degraded\": ["
        "{\"reason\": \"volume_failed\", \"text\": \"volume /b is bypassed: I/O error\"}],"
        "\"pool\": {\"bytes\": 1073741824, \"used_bytes\": 536870912, \"live_bytes\": 268435456,"
        " \"chunks\": 1234567, \"leased_bytes\": 4096, \"populated_bytes\": 536870912,"
        " \"unwritten_bytes\": 3145728},"
        "\"store\": {\"chunks\": 7, \"live_bytes\": 1, \"reserved_bytes\": 2, \"limit_bytes\": 4,"
        " \"volumes\": [{\"volume\": \"/a\", \"state\": \"up\", \"live_bytes\": 1048576,"
        " \"reserved_bytes\": 2097152, \"limit_bytes\": 4194304, \"chunks\": 3, \"pending\": 2,"
        " \"errors\": {\"read\": 0, \"write\": 0, \"sync\": 0}, \"oldest_operation_seconds\": 2.5},"
        "{\"volume\": \"/b\", \"state\": \"bypassed\", \"reason\": \"I/O error\","
        " \"since_unix_ms\": 1750000000000, \"full\": true, \"errors\": {\"read\": 3, \"write\": "
        "1}}"
        "]}, \"eviction\": {\"returns\": {\"expected\": 34, \"in_time\": 87, \"missed\": 13, "
        "\"prefetched\": 8, \"prefetch_hits\": 2}, \"announced_returns\": {\"true\": 3, "
        "\"early\": 2, \"late\": 1}}, \"totals\": {\"hit_ratio\": 0.4567, "
        "\"hit_ratio_of\": \"lookups\"},"
        "\"sessions\": {\"connections\": 12, \"leases\": 34},"
        "\"writes\": {\"day_bytes\": 5368709120, \"budget_bytes\": 10737418240, "
        "\"available_bytes\": -5242880, \"life_bytes\": 1e300},"
        "\"tenants\": [{\"name\": \"red\", \"connections\": {\"used\": 5, \"limit\": 50},"
        " \"pool_bytes\": {\"used\": 1024, \"limit\": 2048}, \"stored_bytes\": 3072,"
        " \"lookup_keys\": 8, \"lookup_found_keys\": 2}, {\"name\": \"blue\"}],"
        "\"namespaces\": [{\"name\": \"llama\", \"bytes\": 6291456, \"chunks\": 96,"
        " \"get_keys\": 4, \"get_found_keys\": 3}],"
        "\"namespace_usage\": {\"count\": 41, \"limit\": 4096, \"warning\": \"close to <it>\"}}";

static void the_shared_tier_has_a_card_with_its_state(void **state)
{
        _cleanup_(freep) char *none = page_of("{\"remote\": {\"backend\": \"off\"}}");
        _cleanup_(freep) char *used = page_of(
                "{\"remote\": {\"backend\": \"s3\", \"breaker\": \"closed\", \"hits\": 1234,"
                " \"misses\": 5, \"late\": 6, \"puts\": 77, \"puts_dropped\": 8, \"rejected\": 0,"
                " \"errors\": 0, \"reading_bytes\": 4096, \"writing_bytes\": 1048576}}");
        _cleanup_(freep) char *broken = page_of(
                "{\"remote\": {\"backend\": \"<b>\", \"breaker\": \"open\", \"since_seconds\": 61,"
                " \"reason\": \"<i>timed out\", \"rejected\": 3, \"errors\": 2}}");
        _cleanup_(freep) char *at_limit = page_of("{\"remote\": {\"backend\": \"directory\","
                                                  " \"breaker\": \"closed\", \"full\": true}}");
        _cleanup_(freep) char *odd =
                page_of("{\"remote\": {\"backend\": 1, \"breaker\": \"x\", \"hits\": -1,"
                        " \"rejected\": \"many\", \"since_seconds\": []}}");

        assert_has_not(none, "Shared tier");
        assert_has(used, "Shared tier: s3</h3><b class=\"ok\">✓ in use</b>");
        assert_has(used, ">1&#8239;234</data>");
        assert_has(used, "not written: <data value=\"8\">8</data></p>");
        assert_has(used, "4 KiB");
        assert_has(broken, "Shared tier: &lt;b&gt;</h3><b class=\"warn\">⚠ not used</b>");
        assert_has(broken, "&lt;i&gt;timed out; for 61 s");
        assert_has(broken, "⚠ rejected: <data value=\"3\">3</data>");
        assert_has(broken, "⚠ errors: <data value=\"2\">2</data>");
        assert_has(at_limit, "⚠ full");
        assert_has(odd, "⚠ not used");
        assert_well_formed(broken);
        assert_well_formed(odd);
        assert_only_numbers(odd);
}

static void it_shows_what_a_person_looks_for(void **state)
{
        static const char *const shown[] = {
                "<title>node-7.example · kvcache-daemon</title>",
                "kvcache-daemon 1.2.3 on node-7.example", "2.0 h", "2025-06-15 15:06:40 UTC",
                /* health, and what to do */
                "<section class=\"health warn\"", "ready, degraded",
                "volume /b is bypassed: I/O error</b>Its chunks are misses", "smartctl -a",
                /* space */
                "aria-label=\"live 256 MiB, reserved 512 MiB, of 1 GiB\"",
                "aria-label=\"live 1 MiB, reserved 2 MiB, of 4 MiB\"", "<h3>/a</h3>", "✓ up",
                "✕ bypassed", "⚠ slow: an operation has been at the device for 2.5 s",
                "⚠ errors: <data value=\"3\">3</data> read, <data value=\"1\">1</data> write</b>",
                "its file system has no free space above store.reserve",
                "kvcachectl device resume /b", "backed by memory so far: ", "All volumes",
                "<data value=\"1234567\">1&#8239;234&#8239;567",
                "<data value=\"0.4567\">45.7&#8239;%</data> of lookups", "of a budget of ",
                "title=\"10737418240 bytes\">10 GiB<",
                "<data value=\"-5242880\" title=\"-5242880 bytes\">−5 MiB</data>",
                "<dt>Returns in time</dt><dd><data value=\"0.87\">87.0&#8239;%</data>",
                "chains expected now: <data value=\"34\">34</data>",
                "prefetched, used: <data value=\"0.25\">25.0&#8239;%",
                "announced, came true: <data value=\"0.5\">50.0&#8239;%",
                /* tenants and namespaces */
                "<bdi>red</bdi>", "1 KiB</data> of <data", "<data value=\"0.25\">25.0&#8239;%",
                "<bdi>llama</bdi>", "<data value=\"0.75\">75.0&#8239;%",
                "and <data value=\"40\">40</data> more", "⚠ close to &lt;it&gt;", "no sample yet",
                "<summary>The whole status</summary>"
        };
        _cleanup_(freep) char *page = page_of(full);

        assert_well_formed(page);
        for (size_t i = 0; i < ARRAY_SIZE(shown); i++)
                assert_has(page, shown[i]);
        assert_has_not(page, "device resume /a");
        assert_only_numbers(page);
}

static void it_says_what_is_wrong(void **state)
{
        _cleanup_(freep) char *stopping = NULL, *stuck = NULL, *none = NULL, *fine = NULL;

        stopping = make((struct page){
                .status = "{}", .healthy = true, .readiness = "not ready: stopping\ndegraded: x" });
        assert_has(stopping, "<section class=\"health bad\"");
        assert_has(stopping, "<span>not ready: stopping</span>");
        stuck = make((struct page){ .status = "{}", .ready = true, .health = "a worker <hangs>" });
        assert_has(stuck, "<section class=\"health warn\"");
        assert_has(stuck, "a worker &lt;hangs&gt;");
        none = make((struct page){ .ready = true, .healthy = true });
        assert_has(none, "the status cannot be shown");
        assert_well_formed(none);
        fine = page_of("{}");
        assert_has(fine, "<section class=\"health ok\"");
        assert_has(fine, "<span>ready</span>");
}

static void every_reason_has_an_advice(void **state)
{
        for (int i = 0; i < METRICS_DEGRADATIONS; i++)
                if (!page_advice(metrics_degradation_name(i)))
                        fail_msg("what is to be done about %s?", metrics_degradation_name(i));
        assert_null(page_advice("another"));
}

static void it_reloads_itself_unless_it_is_paused(void **state)
{
        _cleanup_(freep) char *live = page_of(full), *paused = NULL;

        assert_has(live, "<meta http-equiv=\"refresh\" content=\"10\">");
        assert_has(live, "<details><summary>");
        paused = make(
                (struct page){ .status = full, .ready = true, .healthy = true, .paused = true });
        assert_has_not(paused, "http-equiv");
        assert_has(paused, "<details open><summary>");
        assert_well_formed(paused);
}

/* Text chosen by a client is displayed as text, and nothing else, everywhere. */
static void names_are_text(void **state)
{
        static const char *const names[] = {
                "<script>alert(1)</script>",
                "\\\"><img src=x onerror=alert(1)>",
                "' onload='x",
                "</table></main></body></html>",
                "&lt;b&gt;&",
                "<!--",
                "]]>",
                "</style><style>*{}",
                "\\u202egnp.exe",
                "\\u0001\\u007f\\u0085",
                "\\ud83d\\ude00",
                "",
        };

        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                _cleanup_(freep) char *status = NULL, *page = NULL;
                int r = asprintf(
                        &status,
                        "{\"degraded\": [{\"reason\": \"%1$s\", \"text\": \"%1$s\"}],"
                        "\"version\": \"%1$s\", \"host\": \"%1$s\", \"%1$s\": {\"%1$s\": \"%1$s\"},"
                        "\"store\": {\"volumes\": [{\"volume\": \"%1$s\", \"state\": "
                        "\"%1$s\", \"reason\": \"%1$s\"}]},"
                        "\"totals\": {\"hit_ratio_of\": \"%1$s\"},"
                        "\"tenants\": [{\"name\": \"%1$s\"}, {\"name\": \"%1$s\"}],"
                        "\"namespaces\": [{\"name\": \"%1$s\", \"fingerprint\": \"%1$s\"}],"
                        "\"namespace_usage\": {\"warning\": \"%1$s\"}}",
                        names[i]);

                assert_true(r > 0);
                page = page_of(status);
                assert_well_formed(page);
                assert_has_not(page, "<script");
                assert_has_not(page, "<img");
                assert_has_not(page, "<!--");
                assert_has_not(page, "\xe2\x80\xae"); /* turns the direction of text */
                assert_has_not(page, "\x01");
                assert_has_not(page, "\xc2\x85");
                assert_null(strstr(strstr(page, "</style>") + 1, "</style>"));
        }
}

static void it_stands_whatever_the_status_is(void **state)
{
        static const char *const statuses[] = {
                "",
                "{",
                "null",
                "[]",
                "17",
                "{}",
                "\"x\"",
                "[{}]",
                "{\"degraded\": 1, \"pool\": [], \"store\": \"x\", \"tenants\": {}, "
                "\"namespaces\": 5}",
                "{\"degraded\": [1, null, \"x\", {}], \"store\": {\"volumes\": [1, null, {}, []]},"
                " \"tenants\": [1, {}], \"namespaces\": [null, 1, {}, \"x\"]}",
                "{\"store\": {\"volumes\": {\"a\": 1}}, \"tenants\": {\"a\": {}, \"b\": {}}}",
                "{\"pool\": {\"bytes\": -1, \"used_bytes\": 1e308, \"live_bytes\": 1e400}}",
                "{\"pool\": {\"bytes\": 10, \"used_bytes\": 1e30, \"live_bytes\": 1e30},"
                " \"uptime_seconds\": 1e300, \"totals\": {\"hit_ratio\": -1e300}}",
                "{\"eviction\": {\"returns\": {\"in_time\": -1, \"missed\": 1e300, "
                "\"expected\": \"x\", \"prefetched\": 1, \"prefetch_hits\": 1e308}}}",
                "{\"eviction\": {\"announced_returns\": {\"true\": 1e308, \"early\": 1e308, "
                "\"late\": \"x\"}}}",
                "{\"eviction\": [1]}",
                "{\"store\": {\"volumes\": [{\"since_unix_ms\": -1, \"chunks\": \"x\"},"
                " {\"since_unix_ms\": 1e300, \"errors\": {\"read\": -5, \"write\": 1e300}}]}}",
        };

        for (size_t i = 0; i < ARRAY_SIZE(statuses); i++) {
                _cleanup_(freep) char *page = page_of(statuses[i]);

                assert_well_formed(page);
                assert_only_numbers(page);
        }
}

static void many_namespaces_make_it_no_longer(void **state)
{
        _cleanup_(freep) char *status = NULL, *page = NULL, *short_page = page_of(full);
        size_t n;
        FILE *out = open_memstream(&status, &n);

        fputs("{\"namespace_usage\": {\"count\": 2000}, \"namespaces\": [", out);
        for (unsigned i = 0; i < 2000; i++) {
                fprintf(out, "%s{\"name\": \"", i ? "," : "");
                for (unsigned k = 0; k < 255; k++)
                        fputc('&', out); /* five characters each */
                fprintf(out, "\", \"bytes\": %u}", 5000 - i);
        }
        fputs("], \"tenants\": [", out);
        for (unsigned i = 0; i < 2000; i++)
                fprintf(out, "%s{\"name\": \"t%u\"}", i ? "," : "", i);
        fputs("], \"degraded\": [", out);
        for (unsigned i = 0; i < 2000; i++)
                fprintf(out, "%s{\"text\": \"t%u\"}", i ? "," : "", i);
        fputs("], \"store\": {\"volumes\": [", out);
        for (unsigned i = 0; i < 2000; i++)
                fprintf(out, "%s{\"volume\": \"t%u\"}", i ? "," : "", i);
        fputs("]}}", out);
        fclose(out);
        page = page_of(status);
        assert_well_formed(page);
        assert_has(page, "and <data value=\"1980\">1&#8239;980</data> more");
        assert_true(strlen(page) < strlen(short_page) + 100 * 1024);
}

/* --- plots --- */

/* Fills the history with more than fifteen minutes of growing traffic, with a pause. */
static void fill(struct history *h, uint64_t *ret_now)
{
        static struct history_counters c;
        uint64_t at = T0;

        memset(h, 0, sizeof(*h));
        memset(&c, 0, sizeof(c));
        history_add(h, at, &c);
        for (unsigned i = 1; i <= 200; i++) {
                at += i == 150 ? 60 * S : STEP;
                c.counters[HISTORY_LOOKUP_KEYS] += 100;
                c.counters[HISTORY_LOOKUP_FOUND] += i / 2;
                c.counters[HISTORY_GET_BYTES] += UINT64_C(5) * i << 20;
                c.counters[HISTORY_PUT_BYTES] += UINT64_C(5) << 20;
                c.counters[HISTORY_EVICTIONS_DISK] += 50;
                for (unsigned k = 0; k < 50; k++)
                        histogram_add(&c.latency[HISTORY_GET], 20000 + 100 * i);
                histogram_add(&c.latency[HISTORY_GET], 3000000);
                history_add(h, at, &c);
        }
        *ret_now = at;
}

static unsigned occurrences(const char *text, const char *what)
{
        unsigned n = 0;

        for (; (text = strstr(text, what)); text++)
                n++;
        return n;
}

static void plots_show_the_samples(void **state)
{
        static const char *const shown[] = {
                ("aria-label=\"Throughput, the last 15 minutes: get 200 MiB/s now, highest 200 "
                 "MiB/s; put 1 MiB/s now, highest 1 MiB/s\""),
                "aria-label=\"Hit ratio, the last 15 minutes: found 100 % now, lowest ",
                "aria-label=\"Disk, the last 15 minutes: nothing\"",
                "nothing in this time",
                "aria-label=\"Get latency of a key, the last 15 minutes: p50 ",
                ">10 µs</text>",
                ">10 ms</text>",
                "<b>10</b> <small>highest&#160;10</small>",
        };
        static struct history filled;
        _cleanup_(freep) char *page = NULL;
        uint64_t now;

        fill(&filled, &now);
        page = make((struct page){ .status = full,
                                   .ready = true,
                                   .healthy = true,
                                   .history = &filled,
                                   .now_ns = now,
                                   .unix_ms = 1 });
        assert_well_formed(page);
        for (size_t i = 0; i < ARRAY_SIZE(shown); i++)
                assert_has(page, shown[i]);
        assert_only_numbers(page);
        assert_int_equal(occurrences(page, "<figure>"), 6);
        /* The sample of the pause is isolated, and is drawn as a dot in each of the seven lines. */
        assert_int_equal(occurrences(page, "h0"), 7);
        assert_true(strlen(page) < 64 * 1024);
}

/* Each line is split into runs of points at gaps and missing values. */
static void a_gap_is_not_drawn_over(void **state)
{
        static const double ages[] = { 60, 50, 40, 30, 20, 10 };
        static const double values[] = { 1, 2, 3, -1, 4, 5 };
        static const bool joined[] = { false, true, false, true, true, true };
        struct plot plot = { .title = "x",
                             .sum = NAN,
                             .unit = PLOT_COUNT,
                             .span_s = 60,
                             .n = ARRAY_SIZE(ages),
                             .ages_s = ages,
                             .joined = joined,
                             .lines = { { "a", values } },
                             .n_lines = 1,
                             .current_s = 5 };
        _cleanup_(freep) char *text = NULL;
        const char *line;
        size_t n;
        FILE *out = open_memstream(&text, &n);

        plot_print(out, &plot);
        fclose(out);
        line = strstr(text, "<path class=\"line1\" d=\"M62.0"); /* the plot, not the legend */
        assert_non_null(line);
        *strchr((char *)line, '>') = '\0';
        assert_int_equal(occurrences(line, "M"), 3); /* 1 2, 3, 4 5 */
        assert_int_equal(occurrences(line, "L"), 2);
        assert_int_equal(occurrences(line, "h0"), 1); /* the one alone is a dot */
        /* The last point is too old to be the value now. */
        assert_has(text, "a <b>–</b> <small>highest&#160;5</small>");
}

/* Returns a plot of a line through two points. */
static char *print_two_points(int unit, const double values[static 2])
{
        static const double ages[] = { 5, 0 };
        static const bool joined[] = { false, true };
        struct plot plot = { .title = "x",
                             .sum = NAN,
                             .unit = (enum plot_unit)unit,
                             .span_s = 60,
                             .n = 2,
                             .ages_s = ages,
                             .joined = joined,
                             .lines = { { "a", values } },
                             .n_lines = 1,
                             .current_s = 10 };
        char *text = NULL;
        size_t n;
        FILE *out = open_memstream(&text, &n);

        plot_print(out, &plot);
        fclose(out);
        return text;
}

static void an_axis_fits_whatever_it_shows(void **state)
{
        static const double extremes[] = { 0,    1e-12, 1e-9, 0.5,  1,    999,      1e6, 1e12,
                                           1e18, 1e300, NAN,  -1e9, 1e19, INFINITY, 512, 1024 };

        for (int unit = PLOT_BYTES_PER_SECOND; unit <= PLOT_SECONDS; unit++)
                for (size_t i = 0; i < ARRAY_SIZE(extremes); i++)
                        for (size_t k = 0; k < ARRAY_SIZE(extremes); k++) {
                                double values[] = { extremes[i], extremes[k] };
                                _cleanup_(freep) char *text = print_two_points(unit, values);

                                assert_true(strlen(text) < 4096);
                                assert_only_numbers(text);
                                assert_has_not(text, "M-");
                        }
}

/* Returns the number of characters of a label, which ends with "<". */
static unsigned label_length(const char *label)
{
        unsigned n = 0;

        for (; *label != '<'; label++)
                n += (*label & 0xc0) != 0x80;
        return n;
}

/* A longer label would begin outside the drawing, and be cut: ".000 MiB/s". */
static void labels_of_an_axis_fit_beside_it(void **state)
{
        static const char begin[] = "class=\"y\">";

        for (int unit = PLOT_BYTES_PER_SECOND; unit <= PLOT_SECONDS; unit++)
                for (double most = 1e-6; most < (unit <= PLOT_BYTES ? 1e18 : 1e5); most *= 1.3) {
                        double values[] = { most / 1000, most };
                        _cleanup_(freep) char *text = print_two_points(unit, values);

                        for (const char *label = text; (label = strstr(label, begin));) {
                                label += strlen(begin);
                                assert_in_range(label_length(label), 1, 9);
                        }
                }
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(the_shared_tier_has_a_card_with_its_state),
                cmocka_unit_test(it_shows_what_a_person_looks_for),
                cmocka_unit_test(it_says_what_is_wrong),
                cmocka_unit_test(every_reason_has_an_advice),
                cmocka_unit_test(it_reloads_itself_unless_it_is_paused),
                cmocka_unit_test(names_are_text),
                cmocka_unit_test(it_stands_whatever_the_status_is),
                cmocka_unit_test(many_namespaces_make_it_no_longer),
                cmocka_unit_test(plots_show_the_samples),
                cmocka_unit_test(a_gap_is_not_drawn_over),
                cmocka_unit_test(an_axis_fits_whatever_it_shows),
                cmocka_unit_test(labels_of_an_axis_fit_beside_it),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
