/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a snapshot in its schema: the counterpart of snapshot.c. Any thread. If memory is
 * short, the object is incomplete or NULL. */
#include "snapshot.h"

static void add_histogram(cJSON *to, const char *name,
                          const uint64_t buckets[static TRANSFER_BUCKETS])
{
        cJSON *array = cJSON_AddArrayToObject(to, name);

        for (int i = 0; i < TRANSFER_BUCKETS; i++) {
                double pair[] = { i, (double)buckets[i] };

                if (buckets[i] > 0)
                        cJSON_AddItemToArray(array, cJSON_CreateDoubleArray(pair, 2));
        }
}

static cJSON *metric_json(const struct snapshot_metric *m)
{
        const struct transfer_counts *c = &m->counts;
        cJSON *o = cJSON_CreateObject(), *errors;

        cJSON_AddStringToObject(o, "path", transfer_path_name(m->path));
        cJSON_AddStringToObject(o, "layout", transfer_layout_name(m->layout));
        cJSON_AddStringToObject(o, "technology", transfer_technology_name(m->technology));
        cJSON_AddNumberToObject(o, "transfer_count", (double)c->transfers);
        cJSON_AddNumberToObject(o, "region_count", (double)c->regions);
        cJSON_AddNumberToObject(o, "total_blocks", (double)c->blocks);
        cJSON_AddNumberToObject(o, "total_bytes", (double)c->bytes);
        cJSON_AddNumberToObject(o, "device_bytes", (double)c->device_bytes);
        cJSON_AddNumberToObject(o, "min_transfer_size", c->transfers ? (double)c->min_bytes : 0);
        cJSON_AddNumberToObject(o, "max_transfer_size", (double)c->max_bytes);
        cJSON_AddNumberToObject(o, "latency_secs", m->latency_secs);
        cJSON_AddNumberToObject(o, "busy_secs", m->busy_secs);
        errors = cJSON_AddObjectToObject(o, "errors");
        for (unsigned i = 1; i < TRANSFER_RESULTS; i++)
                cJSON_AddNumberToObject(errors, transfer_result_name(i), (double)c->errors[i]);
        add_histogram(o, "size_histogram", c->sizes);
        add_histogram(o, "latency_histogram", c->latencies);
        return o;
}

static cJSON *layout_json(const struct snapshot_layout *l)
{
        cJSON *o = cJSON_CreateObject();

        cJSON_AddStringToObject(o, "layout", transfer_layout_name(l->layout));
        cJSON_AddNumberToObject(o, "blocks", (double)l->blocks);
        cJSON_AddNumberToObject(o, "layers", (double)l->layers);
        cJSON_AddNumberToObject(o, "outer", (double)l->outer);
        cJSON_AddNumberToObject(o, "page_tokens", (double)l->page_tokens);
        cJSON_AddNumberToObject(o, "inner", (double)l->inner);
        cJSON_AddNumberToObject(o, "dtype_bytes", (double)l->dtype_bytes);
        cJSON_AddNumberToObject(o, "alignment", (double)l->alignment);
        return o;
}

cJSON *snapshot_json(const struct snapshot *s)
{
        cJSON *o = cJSON_CreateObject(), *host, *array;

        cJSON_AddStringToObject(o, "schema", SNAPSHOT_SCHEMA);
        cJSON_AddStringToObject(o, "name", s->name);
        host = cJSON_AddObjectToObject(o, "host");
        cJSON_AddStringToObject(host, "hostname", s->hostname);
        cJSON_AddStringToObject(host, "kernel", s->kernel);
        cJSON_AddNumberToObject(host, "cpus", (double)s->cpus);
        cJSON_AddStringToObject(host, "daemon_version", s->daemon_version);
        cJSON_AddBoolToObject(o, "active", s->active);
        cJSON_AddBoolToObject(o, "enabled", s->enabled);
        cJSON_AddStringToObject(o, "created", s->created);
        cJSON_AddStringToObject(o, "updated", s->updated);
        cJSON_AddNumberToObject(o, "enabled_secs", s->enabled_secs);
        cJSON_AddBoolToObject(o, "idle", s->idle);
        array = cJSON_AddArrayToObject(o, "layouts");
        for (size_t i = 0; i < s->n_layouts; i++)
                cJSON_AddItemToArray(array, layout_json(&s->layouts[i]));
        array = cJSON_AddArrayToObject(o, "metrics");
        for (size_t i = 0; i < s->n_metrics; i++)
                cJSON_AddItemToArray(array, metric_json(&s->metrics[i]));
        return o;
}
