/* SPDX-License-Identifier: Apache-2.0 */
/* The status of a session: sums over all of its counters. */
#include <errno.h>
#include <inttypes.h>

#include "common.h"
#include "figures.h"
#include "report.h"

struct sums {
        uint64_t transfers, blocks, bytes, errors;
        uint64_t paths, keys; /* number of distinct paths, and of distinct keys; a key is a path and
                                 a layout */
};

static int sums_of(const struct snapshot *s, struct sums *ret)
{
        _cleanup_(freep) struct figures_group *groups = calloc(s->n_metrics + 1, sizeof(*groups));
        size_t n;

        if (!groups)
                return -ENOMEM;
        n = figures_groups(s, groups);
        *ret = (struct sums){ .keys = n };
        for (size_t i = 0; i < n; i++) {
                const struct snapshot_metric *m = &groups[i].sum;

                ret->transfers += m->counts.transfers;
                ret->blocks += m->counts.blocks;
                ret->bytes += m->counts.bytes;
                ret->errors += groups[i].figures.errors;
                ret->paths += i == 0 || m->path != groups[i - 1].sum.path;
        }
        return 0;
}

static int print_object(const struct snapshot *s, const struct sums *sums, FILE *out)
{
        _cleanup_(cJSON_Deletep) cJSON *o = cJSON_CreateObject();
        _cleanup_(freep) char *text = NULL;

        cJSON_AddStringToObject(o, "name", s->name);
        cJSON_AddBoolToObject(o, "active", s->active);
        cJSON_AddBoolToObject(o, "enabled", s->enabled);
        cJSON_AddNumberToObject(o, "transfers", (double)sums->transfers);
        cJSON_AddNumberToObject(o, "blocks", (double)sums->blocks);
        cJSON_AddNumberToObject(o, "bytes", (double)sums->bytes);
        cJSON_AddNumberToObject(o, "paths", (double)sums->paths);
        cJSON_AddNumberToObject(o, "keys", (double)sums->keys);
        cJSON_AddNumberToObject(o, "errors", (double)sums->errors);
        cJSON_AddStringToObject(o, "created", s->created);
        cJSON_AddStringToObject(o, "updated", s->updated);
        cJSON_AddNumberToObject(o, "enabled_secs", s->enabled_secs);
        text = cJSON_PrintUnformatted(o);
        if (!text)
                return -ENOMEM;
        fprintf(out, "%s\n", text);
        return 0;
}

int session_status_print(const struct snapshot *s, bool json, FILE *out)
{
        struct sums sums;
        int r = sums_of(s, &sums);

        if (r < 0)
                return r;
        if (json)
                return print_object(s, &sums, out);
        report_head_line(out, "session", "%s", s->name);
        report_head_line(out, "state", "%s, %s", s->active ? "active" : "not active",
                         s->enabled ? "enabled" : "disabled");
        report_head_line(out, "transfers", "%" PRIu64, sums.transfers);
        report_head_line(out, "blocks", "%" PRIu64, sums.blocks);
        report_head_line(out, "bytes", "%" PRIu64, sums.bytes);
        report_head_line(out, "paths", "%" PRIu64, sums.paths);
        report_head_line(out, "keys", "%" PRIu64 " (path and layout)", sums.keys);
        report_head_line(out, "errors", "%" PRIu64, sums.errors);
        report_head_line(out, "created", "%s", s->created);
        report_head_line(out, "updated", "%s", s->updated);
        report_head_line(out, "enabled", "for %.3f s", s->enabled_secs);
        return 0;
}
