/* SPDX-License-Identifier: Apache-2.0 */
/* Pairs the rows of two sessions, and computes for each pair by how many percent its relevant
 * figures are worse.
 *
 * In a comparison by key, the rows of a pair have the same path, layout and technology;
 * technologies are summed if one of the sessions does not distinguish them. In a comparison by
 * layout, technologies are summed. The base of a path is its fully contiguous layout, of session
 * A if A has it, otherwise of B, and every other layout of both sessions is compared with the
 * base. The relevant figures are the rate, transfers/block (for equal layouts), and errors per
 * transfer. Latencies are shown but not compared, because they grow with the number of transfers
 * in flight, which is no regression. */
#include "compare.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common.h"
#include "figures.h"

struct row {
        const char *session; /* session of this row: "A" or "B" */
        struct figures_group group;
};

struct pair {
        const struct row *base,
                *other; /* the two rows that are compared; NULL: the session lacks the row */
};

struct comparison {
        struct row *rows[2]; /* rows of session A, and of session B */
        size_t n[2];
        struct pair *pairs;
        size_t n_pairs;
        bool is_summed; /* technologies are summed */
};

/* A relevant figure of a pair. worse_percent() computes its change in percent, positive if it is
 * worse. */
struct change {
        const char *name;
        double base, other;
        bool more_is_better;
};

enum { CHANGES = 3 };

static void changes_of(const struct pair *p, struct change ret[static CHANGES])
{
        const struct figures *a = &p->base->group.figures, *b = &p->other->group.figures;
        const struct transfer_counts *ca = &p->base->group.sum.counts,
                                     *cb = &p->other->group.sum.counts;

        ret[0] = (struct change){ "transfer rate", a->rate, b->rate, true };
        ret[1] = (struct change){ "transfers/block", a->transfers_per_block, b->transfers_per_block,
                                  false };
        if (p->base->group.sum.layout != p->other->group.sum.layout)
                ret[1].other = ret[1].base; /* more transfers are expected of this layout, and no
                                               regression; the rate shows their cost */
        ret[2] = (struct change){
                "errors/transfer",
                figures_ratio((double)a->errors, (double)(ca->transfers + a->errors)),
                figures_ratio((double)b->errors, (double)(cb->transfers + b->errors)), false
        };
}

/* Returns by how many percent of the base the other value is worse; negative: it is better. If the
 * base is 0, returns 1e9 for a larger value, and 0 if more is better. */
static double worse_percent(const struct change *c)
{
        double by = c->more_is_better ? c->base - c->other : c->other - c->base;

        if (by == 0 || (c->more_is_better && c->base == 0))
                return 0;
        return c->base > 0 ? by / c->base * 100 : 1e9;
}

static void set_rows(struct row *rows, const char *session, const struct snapshot *s,
                     struct figures_group *groups, size_t n, bool is_summed)
{
        for (size_t i = 0; i < n; i++) {
                rows[i].session = session;
                if (is_summed) {
                        rows[i].group = groups[i];
                        rows[i].group.sum.technology = TRANSFER_TECHNOLOGY_OTHER;
                } else {
                        rows[i].group.sum = s->metrics[i];
                        figures_of(&s->metrics[i], s->enabled_secs, &rows[i].group.figures);
                }
        }
}

static int take_rows(struct comparison *c, unsigned side, const struct snapshot *s)
{
        _cleanup_(freep) struct figures_group *groups = calloc(s->n_metrics + 1, sizeof(*groups));

        c->rows[side] = calloc(s->n_metrics + 1, sizeof(*c->rows[side]));
        if (!groups || !c->rows[side])
                return -ENOMEM;
        c->n[side] = c->is_summed ? figures_groups(s, groups) : s->n_metrics;
        set_rows(c->rows[side], side == 0 ? "A" : "B", s, groups, c->n[side], c->is_summed);
        return 0;
}

static int order_of(const struct row *x, const struct row *y)
{
        int order = strcmp(transfer_path_name(x->group.sum.path),
                           transfer_path_name(y->group.sum.path));

        if (order == 0)
                order = strcmp(transfer_layout_name(x->group.sum.layout),
                               transfer_layout_name(y->group.sum.layout));
        if (order == 0)
                order = strcmp(transfer_technology_name(x->group.sum.technology),
                               transfer_technology_name(y->group.sum.technology));
        return order;
}

/* Pairs rows by key; the rows of both sessions are sorted. */
static void pair_by_key(struct comparison *c)
{
        size_t i = 0, k = 0;

        while (i < c->n[0] || k < c->n[1]) {
                const struct row *a = i < c->n[0] ? &c->rows[0][i] : NULL,
                                 *b = k < c->n[1] ? &c->rows[1][k] : NULL;
                int order = !a ? 1 : !b ? -1 : order_of(a, b);

                c->pairs[c->n_pairs++] =
                        (struct pair){ order <= 0 ? a : NULL, order >= 0 ? b : NULL };
                i += order <= 0;
                k += order >= 0;
        }
}

static const struct row *contiguous_on(const struct comparison *c, unsigned path)
{
        for (unsigned side = 0; side < 2; side++)
                for (size_t i = 0; i < c->n[side]; i++)
                        if (c->rows[side][i].group.sum.path == path &&
                            c->rows[side][i].group.sum.layout == TRANSFER_FULLY_CONTIGUOUS)
                                return &c->rows[side][i];
        return NULL;
}

static void pair_by_layout(struct comparison *c)
{
        size_t i = 0, k = 0;

        while (i < c->n[0] || k < c->n[1]) {
                const struct row *a = i < c->n[0] ? &c->rows[0][i] : NULL,
                                 *b = k < c->n[1] ? &c->rows[1][k] : NULL;
                int order = !a   ? 1
                            : !b ? -1
                                 : strcmp(transfer_path_name(a->group.sum.path),
                                          transfer_path_name(b->group.sum.path));
                const struct row *row = order <= 0 ? a : b;
                const struct row *base = contiguous_on(c, row->group.sum.path);

                c->pairs[c->n_pairs++] = (struct pair){ base, row };
                i += order <= 0;
                k += order > 0;
        }
}

/* --- the text --- */

static void print_side(const char *session, const struct row *row, const struct row *base,
                       FILE *out)
{
        const struct figures *f = &row->group.figures;
        char ratio[32] = "-";

        if (base && base != row && base->group.figures.rate > 0)
                snprintf(ratio, sizeof(ratio), "x %.2f", f->rate / base->group.figures.rate);
        fprintf(out,
                "  %s %-26s %12" PRIu64 " %15.3f %16.3f %12.0f %11.1f %8s %10.1f %7" PRIu64 "\n",
                session, transfer_layout_name(row->group.sum.layout),
                row->group.sum.counts.transfers, f->transfers_per_block, f->regions_per_transfer,
                f->mean_bytes, f->rate / 1e6, ratio, f->mean_latency_secs * 1e6, f->errors);
}

static void print_title(FILE *out)
{
        fprintf(out, "    %-26s %12s %15s %16s %12s %11s %8s %10s %7s\n", "layout", "transfers",
                "transfers/block", "regions/transfer", "avg size", "MB/s", "rate", "avg us",
                "errors");
}

static void print_pairs(const struct comparison *c, bool by_layout, FILE *out)
{
        unsigned path = TRANSFER_PATHS, technology = TRANSFER_TECHNOLOGIES;

        for (size_t i = 0; i < c->n_pairs; i++) {
                const struct pair *p = &c->pairs[i];
                const struct snapshot_metric *m = &(p->other ? p->other : p->base)->group.sum;

                if (m->path != path || m->technology != technology) {
                        fprintf(out, "\n%s%s%s\n", transfer_path_name(m->path),
                                c->is_summed ? "" : ", ",
                                c->is_summed ? "" : transfer_technology_name(m->technology));
                        print_title(out);
                }
                path = m->path;
                technology = m->technology;
                if (by_layout) {
                        print_side(p->other->session, p->other, p->base, out);
                        continue;
                }
                if (p->base)
                        print_side("A", p->base, NULL, out);
                if (p->other)
                        print_side("B", p->other, p->base, out);
                if (!p->base || !p->other)
                        fprintf(out, "    only in %s\n", p->base ? "A" : "B");
        }
}

static void print_worse(const struct comparison *c, double most, FILE *out)
{
        bool any = false;

        fputs("\nworse\n", out);
        for (size_t i = 0; i < c->n_pairs; i++) {
                const struct pair *p = &c->pairs[i];
                struct change changes[CHANGES];

                if (!p->base || !p->other || p->base == p->other)
                        continue;
                changes_of(p, changes);
                for (unsigned k = 0; k < CHANGES; k++) {
                        double percent = worse_percent(&changes[k]);
                        char by[32];

                        if (percent <= 0)
                                continue;
                        snprintf(by, sizeof(by), percent < 1e9 ? "%.1f %%" : "from 0", percent);
                        fprintf(out, "  %s, %s %s, %s: %s%s\n",
                                transfer_path_name(p->other->group.sum.path), p->other->session,
                                transfer_layout_name(p->other->group.sum.layout), changes[k].name,
                                by, most >= 0 && percent > most ? ", past the threshold" : "");
                        any = true;
                }
        }
        if (!any)
                fputs("  nothing\n", out);
}

/* --- JSON --- */

static void add_row(cJSON *to, const char *name, const struct row *row)
{
        const struct figures *f;
        cJSON *o;

        if (!row) {
                cJSON_AddNullToObject(to, name);
                return;
        }
        f = &row->group.figures;
        o = cJSON_AddObjectToObject(to, name);
        cJSON_AddStringToObject(o, "session", row->session);
        cJSON_AddStringToObject(o, "layout", transfer_layout_name(row->group.sum.layout));
        cJSON_AddNumberToObject(o, "transfer_count", (double)row->group.sum.counts.transfers);
        cJSON_AddNumberToObject(o, "transfers_per_block", f->transfers_per_block);
        cJSON_AddNumberToObject(o, "regions_per_transfer", f->regions_per_transfer);
        cJSON_AddNumberToObject(o, "avg_transfer_size", f->mean_bytes);
        cJSON_AddNumberToObject(o, "transfer_rate_bps", f->rate);
        cJSON_AddNumberToObject(o, "avg_latency_secs", f->mean_latency_secs);
        cJSON_AddNumberToObject(o, "error_count", (double)f->errors);
}

static cJSON *pair_json(const struct pair *p, bool is_summed)
{
        const struct snapshot_metric *m = &(p->other ? p->other : p->base)->group.sum;
        cJSON *o = cJSON_CreateObject(), *worse;

        cJSON_AddStringToObject(o, "path", transfer_path_name(m->path));
        cJSON_AddStringToObject(o, "layout", transfer_layout_name(m->layout));
        if (!is_summed)
                cJSON_AddStringToObject(o, "technology", transfer_technology_name(m->technology));
        add_row(o, "base", p->base);
        add_row(o, "other", p->other);
        worse = cJSON_AddObjectToObject(o, "worse_percent");
        if (p->base && p->other && p->base != p->other) {
                struct change changes[CHANGES];

                changes_of(p, changes);
                for (unsigned k = 0; k < CHANGES; k++)
                        if (worse_percent(&changes[k]) > 0)
                                cJSON_AddNumberToObject(worse, changes[k].name,
                                                        worse_percent(&changes[k]));
        }
        return o;
}

static int print_json_pairs(const struct comparison *c, const struct snapshot *a,
                            const struct snapshot *b, const struct compare_options *options,
                            bool worse, FILE *out)
{
        _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();
        _cleanup_(freep) char *text = NULL;
        cJSON *array;

        cJSON_AddStringToObject(object, "A", a->name);
        cJSON_AddStringToObject(object, "B", b->name);
        cJSON_AddStringToObject(object, "by", options->by_layout ? "layout" : "key");
        array = cJSON_AddArrayToObject(object, "pairs");
        for (size_t i = 0; i < c->n_pairs; i++)
                cJSON_AddItemToArray(array, pair_json(&c->pairs[i], c->is_summed));
        cJSON_AddBoolToObject(object, "past_threshold", worse);
        text = options->one_line ? cJSON_PrintUnformatted(object) : cJSON_Print(object);
        if (!text)
                return -ENOMEM;
        fprintf(out, "%s\n", text);
        return 0;
}

/* --- the comparison --- */

static bool is_past(const struct comparison *c, double most)
{
        for (size_t i = 0; most >= 0 && i < c->n_pairs; i++) {
                const struct pair *p = &c->pairs[i];
                struct change changes[CHANGES];

                if (!p->base || !p->other || p->base == p->other)
                        continue;
                changes_of(p, changes);
                for (unsigned k = 0; k < CHANGES; k++)
                        if (worse_percent(&changes[k]) > most)
                                return true;
        }
        return false;
}

int session_compare(const struct snapshot *a, const struct snapshot *b,
                    const struct compare_options *options, FILE *out)
{
        struct comparison c = { .is_summed = options->by_layout || a->is_summed || b->is_summed };
        _cleanup_(freep) void *rows_a = NULL, *rows_b = NULL, *pairs = NULL;
        bool past;
        int r = take_rows(&c, 0, a);

        rows_a = c.rows[0];
        if (r == 0)
                r = take_rows(&c, 1, b);
        rows_b = c.rows[1];
        pairs = c.pairs = calloc(c.n[0] + c.n[1] + 1, sizeof(*c.pairs));
        if (r < 0 || !pairs)
                return -ENOMEM;
        if (options->by_layout)
                pair_by_layout(&c);
        else
                pair_by_key(&c);
        past = is_past(&c, options->most_percent);
        if (options->json) {
                r = print_json_pairs(&c, a, b, options, past, out);
                return r < 0 ? r : past;
        }
        fprintf(out, "A %s\nB %s\n", a->name, b->name);
        if (c.n_pairs == 0)
                fputs("\nno transfers\n", out);
        print_pairs(&c, options->by_layout, out);
        print_worse(&c, options->most_percent, out);
        return past;
}
