/* SPDX-License-Identifier: Apache-2.0 */
/* Implements page.h. The page reads everything from the JSON of /status, so that both agree. */
#include "report/page.h"

#include <assert.h>
#include <math.h>

#include "report/details.h"
#include "report/history.h"
#include "report/html.h"
#include "report/page-parts.h"
#include "report/plots.h"

/* --- key figures --- */

/* Prints the share of the clients' announcements of chains' next uses (evict/announced.h) that came
 * true, among those whose outcome is known. Prints nothing if there are none. */
static void print_announced(FILE *out, const cJSON *announced)
{
        double came_true = json_number(announced, "true");
        double judged =
                came_true + json_number(announced, "early") + json_number(announced, "late");

        if (!(judged > 0))
                return;
        fputs(GAP "announced, came true: ", out);
        html_ratio(out, came_true / judged);
}

/* Prints how many of the chains that were expected back came in time, and how many prefetched
 * chunks were used. */
static void print_returns(FILE *out, const cJSON *eviction)
{
        const cJSON *returns = json_member(eviction, "returns");
        double in_time = json_number(returns, "in_time"),
               judged = in_time + json_number(returns, "missed");

        fputs("<div><dt>Returns in time</dt><dd>", out);
        html_ratio(out, judged > 0 ? in_time / judged : NAN);
        fputs("<small class=\"soft\">chains expected now: ", out);
        html_number(out, json_number(returns, "expected"));
        if (json_number(returns, "prefetched") > 0) {
                fputs(GAP "prefetched, used: ", out);
                html_ratio(out, json_ratio(returns, "prefetch_hits", "prefetched"));
                fputs(GAP "evicted unused: ", out);
                html_ratio(out, json_ratio(returns, "prefetch_wasted", "prefetched"));
        }
        print_announced(out, json_member(eviction, "announced_returns"));
        fputs("</small></dd></div>\n", out);
}

static void print_tiles(FILE *out, const struct page *page, const cJSON *status)
{
        const cJSON *totals = json_member(status, "totals"), *store = json_member(status, "store"),
                    *pool = json_member(status, "pool"),
                    *sessions = json_member(status, "sessions"),
                    *writes = json_member(status, "writes");
        uint64_t counted[HISTORY_COUNTERS] = { 0 };
        double recent = -1;

        if (page->history) {
                for (unsigned i = 0; i < HISTORY_COUNTERS; i++)
                        counted[i] = history_sum(page->history, page->now_ns, i);
                recent = history_hit_ratio(counted);
        }
        fputs("<dl class=\"tiles\">\n<div><dt>Hit ratio, 15 min</dt><dd>", out);
        html_ratio(out, recent >= 0 ? recent : NAN);
        fputs("<small class=\"soft\">since startup ", out);
        html_ratio(out, json_number(totals, "hit_ratio"));
        if (json_text(totals, "hit_ratio_of")[0]) {
                fputs(" of ", out);
                html_text_short(out, json_text(totals, "hit_ratio_of"), NAME_SHOWN);
        }
        fputs("</small></dd></div>\n<div><dt>Chunks on disk</dt><dd>", out);
        html_number(out, json_number(store, "chunks"));
        fputs("<small class=\"soft\">", out);
        html_bytes(out, json_number(store, "live_bytes"));
        fputs("</small></dd></div>\n<div><dt>Chunks in memory</dt><dd>", out);
        html_number(out, json_number(pool, "chunks"));
        fputs("<small class=\"soft\">", out);
        html_bytes(out, json_number(pool, "live_bytes"));
        fputs("</small></dd></div>\n<div><dt>Clients</dt><dd>", out);
        html_number(out, json_number(sessions, "connections"));
        fputs("<small class=\"soft\">leases: ", out);
        html_number(out, json_number(sessions, "leases"));
        fputs("</small></dd></div>\n<div><dt>Not on disk yet</dt><dd>", out);
        html_bytes(out, json_number(pool, "unwritten_bytes"));
        fputs("<small class=\"soft\">accepted puts</small></dd></div>\n"
              "<div><dt>Written, 24 h</dt><dd>",
              out);
        html_bytes(out, json_number(writes, "day_bytes"));
        fputs("<small class=\"soft\">", out);
        if (json_number(writes, "budget_bytes") > 0) {
                fputs("of a budget of ", out);
                html_bytes(out, json_number(writes, "budget_bytes"));
        } else {
                fputs("no budget set", out);
        }
        fputs("</small></dd></div>\n", out);
        print_returns(out, json_member(status, "eviction"));
        fputs("</dl>\n", out);
}

/* --- the whole page --- */

/* Prints the name of the host between two texts, or nothing if the status has none. */
static void print_host(FILE *out, const cJSON *status, const char *before, const char *after)
{
        const char *host = json_text(status, "host");

        if (host[0] == '\0')
                return;
        fputs(before, out);
        html_text_short(out, host, NAME_SHOWN);
        fputs(after, out);
}

static void print_header(FILE *out, const struct page *page, const cJSON *status)
{
        fputs("<header><h1>kvcache-daemon ", out);
        html_text_short(out, json_text(status, "version"), NAME_SHOWN);
        print_host(out, status, " on ", "");
        fputs("</h1><span class=\"soft\">up ", out);
        html_seconds(out, floor(json_number(status, "uptime_seconds")));
        fputs(GAP, out);
        html_time(out, (double)page->unix_ms);
        fprintf(out, GAP "%s</span></header>\n",
                page->paused ? "does not reload · <a href=\"./\">reload</a>"
                             : "reloads every 10 s · <a href=\"?paused\">pause</a>");
}

static_assert(PAGE_RELOAD_S == 10, "print_header() says so");

void page_print(FILE *out, const struct page *page)
{
        cJSON *status = page->status ? cJSON_Parse(page->status) : NULL;

        page_frame_begin(out, NULL, json_text(status, "host"), page->paused);
        print_header(out, page, status);
        fputs("<main>\n", out);
        page_print_health(out, page, status);
        if (status) {
                print_tiles(out, page, status);
                page_print_space(out, status);
        }
        if (page->history)
                plots_print(out, page->history, page->now_ns);
        if (status) {
                page_print_tenants(out, status);
                page_print_namespaces(out, status);
        }
        fprintf(out,
                "</main>\n<nav aria-label=\"Other pages\"><a href=\"status\">status (JSON)</a>"
                "%s<a href=\"metrics\">metrics</a><a href=\"healthz\">health</a>"
                "<a href=\"readyz\">readiness</a></nav>\n",
                page->history ? "<a href=\"history\">history (JSON)</a>" : "");
        if (status) {
                fprintf(out, "<details%s><summary>The whole status</summary>\n",
                        page->paused ? " open" : "");
                if (!page->paused)
                        fputs("<p class=\"soft\">It closes as the page reloads: <a "
                              "href=\"?paused\">pause</a> to read it.</p>\n",
                              out);
                fputs("<div class=\"all\">\n", out);
                details_print(out, status);
                fputs("</div></details>\n", out);
        }
        fputs("</body></html>\n", out);
        cJSON_Delete(status);
}
