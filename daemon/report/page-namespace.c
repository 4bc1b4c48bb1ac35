/* SPDX-License-Identifier: Apache-2.0 */
/* Implements page-namespace.h. The length is bounded: texts are cut, and the lists have a fixed
 * size. */
#include "report/page-namespace.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "checked.h"
#include "report/html.h"
#include "report/page-frame.h"
#include "report/plot.h"
#include "store/store.h"

enum { LINE_SHOWN = 500, LINES_SHOWN = 64 };
#define GAP " · "

/* --- links --- */

/* Prints text for the value of a query: every character but letters, digits and some signs is
 * percent-encoded. */
static void print_encoded(FILE *out, const char *text)
{
        for (; *text; text++) {
                if (strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/",
                           *text))
                        fputc(*text, out);
                else
                        fprintf(out, "%%%02X", (unsigned char)*text);
        }
}

void page_namespace_print_link(FILE *out, const char *name, unsigned most_shown)
{
        fputs("<a href=\"namespace?name=", out);
        print_encoded(out, name);
        fputs("\">", out);
        html_text_short(out, name, most_shown);
        fputs("</a>", out);
}

/* --- tiles with key figures --- */

static double ratio_or_none(const uint64_t counted[static NAMESPACE_COUNTERS])
{
        double ratio = namespace_hit_ratio(counted);

        return ratio >= 0 ? ratio : NAN;
}

static void begin_tile(FILE *out, const char *title)
{
        fprintf(out, "<div><dt>%s</dt><dd>", title);
}

static void end_tile(FILE *out)
{
        fputs("</small></dd></div>\n", out);
}

static void print_hits(FILE *out, const struct page_namespace *page)
{
        uint64_t recent[NAMESPACE_COUNTERS] = { 0 };
        const struct namespace_sample *s;

        for (unsigned i = 0; (s = namespace_history_get(page->history, page->of, page->now_ns, i));
             i++)
                for (unsigned k = 0; k < NAMESPACE_COUNTERS; k++)
                        recent[k] += s->counted[k];
        begin_tile(out, "Hit ratio, 15 min");
        html_ratio(out, ratio_or_none(recent));
        fputs("<small class=\"soft\">since startup ", out);
        html_ratio(out, ratio_or_none(page->counters));
        if (namespace_hit_ratio(page->counters) >= 0)
                fputs(page->counters[NAMESPACE_LOOKUP_KEYS] > 0 ? " of lookups" : " of gets", out);
        end_tile(out);
}

static void print_tiles(FILE *out, const struct page_namespace *page)
{
        const struct store_namespace *ns = page->ns;

        fputs("<dl class=\"tiles\">\n", out);
        print_hits(out, page);
        begin_tile(out, "Bytes on disk");
        html_bytes(out, (double)ns->bytes);
        fputs("<small class=\"soft\">chunks: ", out);
        html_number(out, (double)ns->chunks);
        end_tile(out);
        begin_tile(out, "Chunk size");
        html_bytes(out, ns->chunk_bytes > 0 ? (double)ns->chunk_bytes : NAN);
        fprintf(out, "<small class=\"soft\">%s", ns->chunk_bytes > 0 ? "declared" : "not declared");
        end_tile(out);
        begin_tile(out, "Sessions");
        html_number(out, page->sessions);
        fputs("<small class=\"soft\">last used ", out);
        if (page->sessions > 0)
                fputs("now", out);
        else if (page->last_used_ms > 0)
                html_time(out, (double)page->last_used_ms);
        else
                fputs("before this startup", out);
        end_tile(out);
        begin_tile(out, "Age");
        html_seconds(out, page->unix_ms > ns->created_ms && ns->created_ms > 0
                                  ? floor((double)(page->unix_ms - ns->created_ms) / 1e3)
                                  : NAN);
        fputs("<small class=\"soft\">made ", out);
        html_time(out, (double)ns->created_ms);
        end_tile(out);
        begin_tile(out, "Lifetime of a chunk");
        html_seconds(out, ns->lifetime_s > 0 ? ns->lifetime_s : NAN);
        fprintf(out, "<small class=\"soft\">%s",
                ns->lifetime_s > 0 ? "after its put" : "until it is evicted");
        end_tile(out);
        fputs("</dl>\n", out);
}

/* --- plots --- */

static double a_second(const struct namespace_sample *s, enum namespace_counter of)
{
        return (double)s->counted[of] / ((double)s->span_ns / 1e9);
}

/* Computes the values of a plot's lines at a sample. */
static void values_of(unsigned plot, const struct namespace_sample *s,
                      double ret[static PLOT_LINES])
{
        ret[1] = NAN;
        if (plot == 0) {
                ret[0] = namespace_hit_ratio(s->counted);
        } else if (plot == 1) {
                ret[0] = a_second(s, NAMESPACE_LOOKUP_KEYS);
                ret[1] = a_second(s, NAMESPACE_GET_KEYS);
        } else {
                ret[0] = (double)s->bytes;
        }
}

static void print_plots(FILE *out, const struct page_namespace *page)
{
        static const struct {
                const char *title;
                enum plot_unit unit;
                const char *names[PLOT_LINES];
        } plots[] = {
                { "Hit ratio", PLOT_RATIO, { "found" } },
                { "Keys a second", PLOT_COUNT, { "looked up", "got" } },
                { "Bytes on disk", PLOT_BYTES, { "stored" } },
        };
        static double ages[NAMESPACE_SAMPLES], values[PLOT_LINES][NAMESPACE_SAMPLES];
        static bool joined[NAMESPACE_SAMPLES];
        const struct namespace_sample *s;
        unsigned n = 0;

        for (; (s = namespace_history_get(page->history, page->of, page->now_ns, n)); n++) {
                ages[n] = page->now_ns > s->end_ns ? (double)(page->now_ns - s->end_ns) / 1e9 : 0;
                joined[n] = n > 0;
        }
        fputs("<section><h2>The last 15 minutes</h2>\n", out);
        if (n == 0)
                fprintf(out,
                        "<p class=\"soft\">The plots begin with this view: a sample is taken every "
                        "%d s of the largest namespaces, and of those looked at last.</p>\n",
                        NAMESPACE_SAMPLE_S);
        fputs("<div class=\"grid\">\n", out);
        for (size_t k = 0; k < ARRAY_SIZE(plots); k++) {
                struct plot plot = { .title = plots[k].title,
                                     .unit = plots[k].unit,
                                     .sum = NAN,
                                     .span_s = NAMESPACE_SAMPLES * NAMESPACE_SAMPLE_S,
                                     .n = n,
                                     .ages_s = ages,
                                     .joined = joined,
                                     .current_s = 2 * NAMESPACE_SAMPLE_S };

                for (; plot.n_lines < PLOT_LINES && plots[k].names[plot.n_lines]; plot.n_lines++)
                        plot.lines[plot.n_lines] = (struct plot_line){ plots[k].names[plot.n_lines],
                                                                       values[plot.n_lines] };
                for (unsigned i = 0; i < n; i++) {
                        double at[PLOT_LINES];

                        values_of((unsigned)k,
                                  namespace_history_get(page->history, page->of, page->now_ns, i),
                                  at);
                        for (unsigned line = 0; line < PLOT_LINES; line++)
                                values[line][i] = at[line];
                }
                plot_print(out, &plot);
        }
        fputs("</div></section>\n", out);
}

/* --- the next to be evicted --- */

static void print_leaving(FILE *out, const struct namespace_leaving *l)
{
        fputs("<tr><td class=\"num\">", out);
        html_number(out, l->place);
        fputs("</td><td class=\"num\">", out);
        html_bytes(out, l->length);
        fputs("</td><td class=\"num\">", out);
        html_seconds(out, l->age_s);
        fputs("</td><td class=\"num extra\">", out);
        html_ratio(out, l->chance > 0 ? l->chance : NAN);
        fputs("</td></tr>\n", out);
}

static void print_next(FILE *out, const struct page_namespace *page)
{
        const struct namespace_next *next = page->next;

        fputs("<section><h2>Evicted next</h2>\n<p class=\"soft\">Of the ", out);
        html_number(out, page->visited);
        fputs(" chunks that leave the disk next when room is needed, ", out);
        html_number(out, next->n);
        fputs(next->n == 1 ? " is" : " are", out);
        fputs(" of this namespace: ", out);
        html_bytes(out, (double)next->bytes);
        fputs(". A use of a chunk moves it back.</p>\n", out);
        if (next->n_first > 0) {
                fputs("<div class=\"wide card\"><table class=\"list\">\n<thead><tr>"
                      "<th scope=\"col\" class=\"num\">place</th>"
                      "<th scope=\"col\" class=\"num\">size</th>"
                      "<th scope=\"col\" class=\"num\">unused for</th>"
                      "<th scope=\"col\" class=\"num extra\">chance of another use</th>"
                      "</tr></thead>\n<tbody>\n",
                      out);
                for (unsigned i = 0; i < next->n_first; i++)
                        print_leaving(out, &next->first[i]);
                fputs("</tbody></table></div>\n<p class=\"soft\">The places are those among chunks "
                      "of the same size on the same volume. <code>kvcachectl namespace show</code> "
                      "lists the keys.</p>\n",
                      out);
        }
        fputs("</section>\n", out);
}

/* --- the whole page --- */

static void print_fingerprint(FILE *out, const char *text)
{
        unsigned lines = 0;

        fputs("<details><summary>Fingerprint</summary>\n<ul>\n", out);
        while (*text && lines++ < LINES_SHOWN) {
                char line[LINE_SHOWN + 2];
                size_t n = strcspn(text, "\n");

                snprintf(line, sizeof(line), "%.*s", (int)MIN(n, sizeof(line) - 1), text);
                fputs("<li><code>", out);
                html_text_short(out, line, LINE_SHOWN);
                fputs("</code></li>\n", out);
                text += n + (text[n] == '\n');
        }
        fputs("</ul></details>\n", out);
}

static void print_header(FILE *out, const struct page_namespace *page)
{
        fputs("<header><h1>Namespace <bdi>", out);
        html_text_short(out, page->ns->name, PAGE_NAME_SHOWN);
        fputs("</bdi></h1><span class=\"soft\">", out);
        html_time(out, (double)page->unix_ms);
        fputs(GAP, out);
        fprintf(out, "%s<a href=\"namespace?name=",
                page->paused ? "does not reload" GAP : "reloads every 10 s" GAP);
        print_encoded(out, page->ns->name);
        fprintf(out, "%s</a>" GAP, page->paused ? "\">reload" : "&amp;paused\">pause");
        fputs("<a href=\"./\">all of ", out);
        html_text_short(out, page->host && page->host[0] ? page->host : "the daemon",
                        PAGE_NAME_SHOWN);
        fputs("</a></span></header>\n", out);
}

static_assert(PAGE_RELOAD_S == 10, "print_header() says so");

void page_namespace_print(FILE *out, const struct page_namespace *page)
{
        page_frame_begin(out, page->ns->name, page->host, page->paused);
        print_header(out, page);
        fputs("<main>\n", out);
        print_tiles(out, page);
        print_plots(out, page);
        print_next(out, page);
        print_fingerprint(out, page->ns->fingerprint);
        fputs("</main></body></html>\n", out);
}
