/* SPDX-License-Identifier: Apache-2.0 */
#include "export.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "common.h"
#include "dynamo.h"

static int print(const cJSON *json, bool one_line, FILE *out)
{
        _cleanup_(freep) char *text = one_line ? cJSON_PrintUnformatted(json) : cJSON_Print(json);

        if (!text)
                return -ENOMEM;
        fprintf(out, "%s\n", text);
        return 0;
}

static int export_jsonl(const struct snapshot *s, FILE *out)
{
        _cleanup_(cJSON_Deletep) cJSON *object = snapshot_json(s);
        cJSON *metric;

        cJSON_ArrayForEach(metric, cJSON_GetObjectItem(object, "metrics"))
        {
                int r;

                if (!cJSON_AddStringToObject(metric, "session", s->name))
                        return -ENOMEM;
                r = print(metric, true, out);
                if (r < 0)
                        return r;
        }
        return object ? 0 : -ENOMEM;
}

/* --- CSV --- */

static void csv_count(const struct snapshot *s, const struct snapshot_metric *m, const char *name,
                      uint64_t value, FILE *out)
{
        fprintf(out, "%s,%s,%s,%s,%s,%" PRIu64 "\n", s->name, transfer_path_name(m->path),
                transfer_layout_name(m->layout), transfer_technology_name(m->technology), name,
                value);
}

static void csv_seconds(const struct snapshot *s, const struct snapshot_metric *m, const char *name,
                        double value, FILE *out)
{
        fprintf(out, "%s,%s,%s,%s,%s,%.9g\n", s->name, transfer_path_name(m->path),
                transfer_layout_name(m->layout), transfer_technology_name(m->technology), name,
                value);
}

static void csv_histogram(const struct snapshot *s, const struct snapshot_metric *m,
                          const char *name, const uint64_t buckets[static TRANSFER_BUCKETS],
                          FILE *out)
{
        for (unsigned i = 0; i < TRANSFER_BUCKETS; i++) {
                char with_bucket[64];

                snprintf(with_bucket, sizeof(with_bucket), "%s_%u", name, i);
                if (buckets[i] > 0)
                        csv_count(s, m, with_bucket, buckets[i], out);
        }
}

static void export_csv(const struct snapshot *s, FILE *out)
{
        fputs("session,path,layout,technology,counter,value\n", out);
        for (size_t i = 0; i < s->n_metrics; i++) {
                const struct snapshot_metric *m = &s->metrics[i];
                const struct transfer_counts *c = &m->counts;

                csv_count(s, m, "transfer_count", c->transfers, out);
                csv_count(s, m, "region_count", c->regions, out);
                csv_count(s, m, "total_blocks", c->blocks, out);
                csv_count(s, m, "total_bytes", c->bytes, out);
                csv_count(s, m, "device_bytes", c->device_bytes, out);
                csv_count(s, m, "min_transfer_size", c->transfers ? c->min_bytes : 0, out);
                csv_count(s, m, "max_transfer_size", c->max_bytes, out);
                csv_seconds(s, m, "latency_secs", m->latency_secs, out);
                csv_seconds(s, m, "busy_secs", m->busy_secs, out);
                for (unsigned k = 1; k < TRANSFER_RESULTS; k++) {
                        char name[32];

                        snprintf(name, sizeof(name), "errors_%s", transfer_result_name(k));
                        csv_count(s, m, name, c->errors[k], out);
                }
                csv_histogram(s, m, "size_histogram", c->sizes, out);
                csv_histogram(s, m, "latency_histogram", c->latencies, out);
        }
}

int session_export(const struct snapshot *s, enum export_format format, FILE *out)
{
        _cleanup_(cJSON_Deletep) cJSON *object = NULL;

        switch (format) {
        case EXPORT_JSON:
                object = snapshot_json(s);
                return object ? print(object, false, out) : -ENOMEM;
        case EXPORT_CSV:
                export_csv(s, out);
                return 0;
        case EXPORT_JSONL:
                return export_jsonl(s, out);
        case EXPORT_DYNAMO:
                return dynamo_export(s, out);
        }
        return 0;
}
