/* SPDX-License-Identifier: Apache-2.0 */
/* The section "Memory and volumes" of the page at "/": the pool, each volume, the shared tier. Loop
 * thread. Owns nothing, and cannot fail. */
#include <math.h>
#include <string.h>

#include "checked.h"
#include "report/html.h"
#include "report/page-parts.h"
#include "report/plot.h"

enum { VOLUMES_MAX = 16 };
#define SLOW_S 1.0 /* an operation that has been at a device for longer than this is mentioned */

static void print_part(FILE *out, const char *class, const char *name, double bytes)
{
        fprintf(out,
                "<li><svg aria-hidden=\"true\"><rect class=\"%s\" width=\"12\" height=\"12\"/>%s"
                "</svg> %s ",
                class,
                strcmp(class, "reserved") == 0
                        ? "<rect fill=\"url(#hatch)\" width=\"12\" height=\"12\"/>"
                        : "",
                name);
        html_bytes(out, bytes);
        fputs("</li>", out);
}

/* Prints a bar, and its values in words. */
static void print_space(FILE *out, double live, double reserved, double limit)
{
        plot_bar(out, live, reserved, limit);
        fputs("<ul class=\"parts\">", out);
        print_part(out, "live", "live", live);
        print_part(out, "reserved", "reserved", reserved);
        print_part(out, "track", "limit", limit);
        fputs("</ul>\n", out);
}

static void print_pool(FILE *out, const cJSON *pool)
{
        double populated = json_number(pool, "populated_bytes"), bytes = json_number(pool, "bytes");

        fputs("<section class=\"card\"><div class=\"head\"><h3>Memory pool</h3></div>\n", out);
        print_space(out, json_number(pool, "live_bytes"), json_number(pool, "used_bytes"), bytes);
        fputs("<p class=\"soft\">chunks: ", out);
        html_number(out, json_number(pool, "chunks"));
        fputs(GAP "leased: ", out);
        html_bytes(out, json_number(pool, "leased_bytes"));
        if (populated < bytes) {
                fputs(GAP "backed by memory so far: ", out);
                html_bytes(out, populated);
        }
        fputs("</p></section>\n", out);
}

static void print_errors(FILE *out, const cJSON *errors)
{
        static const char *const kinds[] = { "read", "write", "sync", "checksum" };
        bool any = false;
        double all = 0;

        for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
                all += fmax(json_number(errors, kinds[i]), 0);
        if (!(all > 0)) {
                fputs("no errors", out);
                return;
        }
        fputs("<b class=\"warn\">⚠ errors:", out);
        for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
                if (!(json_number(errors, kinds[i]) > 0))
                        continue;
                fputs(any ? ", " : " ", out);
                any = true;
                html_number(out, json_number(errors, kinds[i]));
                fprintf(out, " %s", kinds[i]);
        }
        fputs("</b>", out);
}

static void print_volume(FILE *out, const cJSON *volume)
{
        const char *path = json_text(volume, "volume"), *state = json_text(volume, "state"),
                   *reason = json_text(volume, "reason");
        bool up = strcmp(state, "up") == 0, by_hand = strcmp(state, "suspended") == 0,
             resuming = strcmp(state, "resuming") == 0;
        double oldest = json_number(volume, "oldest_operation_seconds");

        fputs("<section class=\"card\"><div class=\"head\"><h3>", out);
        html_text_short(out, path, 2 * NAME_SHOWN);
        fprintf(out, "</h3><b class=\"%s\">%s ",
                up                    ? "ok"
                : by_hand || resuming ? "warn"
                                      : "bad",
                up                    ? "✓"
                : by_hand || resuming ? "⚠"
                                      : "✕");
        html_text_short(out, state, NAME_SHOWN);
        fputs("</b></div>\n", out);
        print_space(out, json_number(volume, "live_bytes"), json_number(volume, "reserved_bytes"),
                    json_number(volume, "limit_bytes"));
        fputs("<p class=\"soft\">chunks: ", out);
        html_number(out, json_number(volume, "chunks"));
        fputs(GAP "under way: ", out);
        html_number(out, json_number(volume, "pending"));
        fputs(GAP, out);
        print_errors(out, json_member(volume, "errors"));
        if (cJSON_IsTrue(json_member(volume, "full")))
                fputs(GAP "<b class=\"warn\">⚠ its file system has no free space above "
                          "store.reserve</b>",
                      out);
        if (up && oldest >= SLOW_S) {
                fputs(GAP "<b class=\"warn\">⚠ slow: an operation has been at the device for ",
                      out);
                html_seconds(out, oldest);
                fputs("</b>", out);
        }
        fputs("</p>\n", out);
        if (!up) {
                fputs("<p class=\"soft\">", out);
                html_text_short(out, reason, REASON_SHOWN);
                fprintf(out, "%ssince ", reason[0] ? "; " : "");
                html_time(out, json_number(volume, "since_unix_ms"));
                fputs("</p>\n", out);
        }
        if (!up && !resuming) {
                fputs("<p><code>kvcachectl device resume ", out);
                html_text_short(out, path, 2 * NAME_SHOWN);
                fputs("</code></p>\n", out);
        }
        fputs("</section>\n", out);
}

/* Prints a number of events that should be 0, as a warning if it is not. */
static void print_bad(FILE *out, const char *what, double n)
{
        if (!(n > 0))
                return;
        fputs(GAP "<b class=\"warn\">⚠ ", out);
        fputs(what, out);
        html_number(out, n);
        fputs("</b>", out);
}

static void print_shared_state(FILE *out, const cJSON *remote)
{
        const char *breaker = json_text(remote, "breaker");
        bool used = strcmp(breaker, "closed") == 0,
             full = cJSON_IsTrue(json_member(remote, "full"));

        fprintf(out, "<b class=\"%s\">%s ", used && !full ? "ok" : "warn",
                used && !full ? "✓" : "⚠");
        if (used)
                fputs(full ? "full" : "in use", out);
        else
                fputs(strcmp(breaker, "half open") == 0 ? "being tried again" : "not used", out);
        fputs("</b></div>\n", out);
        if (used)
                return;
        fputs("<p class=\"soft\">", out);
        html_text_short(out, json_text(remote, "reason"), REASON_SHOWN);
        fprintf(out, "%sfor ", json_text(remote, "reason")[0] ? "; " : "");
        html_seconds(out, floor(json_number(remote, "since_seconds")));
        fputs("</p>\n", out);
}

/* Prints the card of the shared tier, if there is one. */
static void print_shared(FILE *out, const cJSON *remote)
{
        const char *backend = json_text(remote, "backend");

        if (!json_text(remote, "breaker")[0])
                return;
        fputs("<section class=\"card\"><div class=\"head\"><h3>Shared tier: ", out);
        html_text_short(out, backend, NAME_SHOWN);
        fputs("</h3>", out);
        print_shared_state(out, remote);
        fputs("<p class=\"soft\">found: ", out);
        html_number(out, json_number(remote, "hits"));
        fputs(GAP "not found: ", out);
        html_number(out, json_number(remote, "misses"));
        fputs(GAP "too late: ", out);
        html_number(out, json_number(remote, "late"));
        fputs("</p>\n<p class=\"soft\">written: ", out);
        html_number(out, json_number(remote, "puts"));
        fputs(GAP "not written: ", out);
        html_number(out, json_number(remote, "puts_dropped"));
        print_bad(out, "rejected: ", json_number(remote, "rejected"));
        print_bad(out, "errors: ", json_number(remote, "errors"));
        fputs("</p>\n<p class=\"soft\">in flight: reading ", out);
        html_bytes(out, json_number(remote, "reading_bytes"));
        fputs(", writing ", out);
        html_bytes(out, json_number(remote, "writing_bytes"));
        fputs("</p></section>\n", out);
}

void page_print_more(FILE *out, double n)
{
        if (n > 0) {
                fputs("<p class=\"soft\">and ", out);
                html_number(out, n);
                fputs(" more", out);
        }
}

void page_print_space(FILE *out, const cJSON *status)
{
        const cJSON *store = json_member(status, "store"), *volumes = json_array(store, "volumes"),
                    *volume;
        int n = cJSON_GetArraySize(volumes), shown = 0;

        fputs("<section><h2>Memory and volumes</h2>\n<div class=\"grid\">\n", out);
        print_pool(out, json_member(status, "pool"));
        if (n > 1) {
                fputs("<section class=\"card\"><div class=\"head\"><h3>All volumes</h3></div>\n",
                      out);
                print_space(out, json_number(store, "live_bytes"),
                            json_number(store, "reserved_bytes"),
                            json_number(store, "limit_bytes"));
                fputs("<p class=\"soft\">chunks: ", out);
                html_number(out, json_number(store, "chunks"));
                fputs("</p></section>\n", out);
        }
        cJSON_ArrayForEach(volume, volumes)
        {
                if (shown++ == VOLUMES_MAX)
                        break;
                print_volume(out, volume);
        }
        print_shared(out, json_member(status, "remote"));
        fputs("</div>\n", out);
        if (n > VOLUMES_MAX) {
                page_print_more(out, n - VOLUMES_MAX);
                fputs("</p>\n", out);
        }
        fputs("</section>\n", out);
}
