/* SPDX-License-Identifier: Apache-2.0 */
#include "dynamo.h"

#include <errno.h>
#include <string.h>

#include "checked.h"
#include "common.h"
#include "figures.h"
#include "text.h"

enum { KEY_BYTES = 160 };

/* Converts "host_to_disk" to "HostToDisk". `ret` has room for as many bytes as `name`. */
static void camel_case(const char *name, char *ret)
{
        bool first = true;

        for (; *name; name++) {
                if (*name == '_') {
                        first = true;
                        continue;
                }
                *ret++ = (char)(first && *name >= 'a' && *name <= 'z' ? *name - 'a' + 'A' : *name);
                first = false;
        }
        *ret = '\0';
}

/* Formats a key as Dynamo's debug output does. */
static void format_key(unsigned of_path, unsigned of_layout, char ret[static KEY_BYTES])
{
        char path[64], layout[64];

        camel_case(transfer_path_name(of_path), path);
        switch (of_layout) {
        case TRANSFER_LAYER_SEPARATE_BLOCK_FIRST:
                strcpy(layout, "LayerSeparate { outer_contiguous: false }");
                break;
        case TRANSFER_LAYER_SEPARATE_OUTER_FIRST:
                strcpy(layout, "LayerSeparate { outer_contiguous: true }");
                break;
        default:
                camel_case(transfer_layout_name(of_layout), layout);
        }
        snprintf(ret, KEY_BYTES, "%s_%s", path, layout);
}

int dynamo_export(const struct snapshot *s, FILE *out)
{
        _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();
        _cleanup_(freep) struct figures_group *groups = calloc(s->n_metrics + 1, sizeof(*groups));
        _cleanup_(freep) char *text = NULL;
        size_t n;
        cJSON *metrics;

        if (!object || !groups)
                return -ENOMEM;
        cJSON_AddStringToObject(object, "session_name", s->name);
        cJSON_AddNumberToObject(object, "session_duration_secs", s->enabled_secs);
        metrics = cJSON_AddObjectToObject(object, "metrics");
        n = figures_groups(s, groups);
        for (size_t i = 0; i < n; i++) {
                const struct transfer_counts *c = &groups[i].sum.counts;
                const struct figures *f = &groups[i].figures;
                char key[KEY_BYTES];
                cJSON *m;

                format_key(groups[i].sum.path, groups[i].sum.layout, key);
                m = cJSON_AddObjectToObject(metrics, key);
                cJSON_AddNumberToObject(m, "transfer_count", (double)c->transfers);
                cJSON_AddNumberToObject(m, "total_bytes", (double)c->bytes);
                cJSON_AddNumberToObject(m, "total_blocks", (double)c->blocks);
                cJSON_AddNumberToObject(m, "min_transfer_size",
                                        c->transfers ? (double)c->min_bytes : 0);
                cJSON_AddNumberToObject(m, "max_transfer_size", (double)c->max_bytes);
                cJSON_AddNumberToObject(m, "avg_transfer_size", f->mean_bytes);
                cJSON_AddNumberToObject(m, "transfer_rate_bps", f->rate);
                cJSON_AddNumberToObject(m, "block_rate_bps", f->block_rate);
        }
        text = cJSON_Print(object);
        if (!text)
                return -ENOMEM;
        fprintf(out, "%s\n", text);
        return 0;
}

/* --- reading --- */

/* Returns whether the key names a path and a layout. */
static bool parse_key(const char *key, unsigned *ret_path, unsigned *ret_layout)
{
        for (unsigned path = 0; path < TRANSFER_PATHS; path++)
                for (unsigned layout = 0; layout < TRANSFER_LAYOUTS; layout++) {
                        char known[KEY_BYTES];

                        format_key(path, layout, known);
                        if (strcmp(key, known) == 0) {
                                *ret_path = path;
                                *ret_layout = layout;
                                return true;
                        }
                }
        return false;
}

/* Adds a copy of member `from_name` to `to` under the name `name`, or nothing if there is no such
 * member. Returns false if memory is short. */
static bool copy_member(cJSON *to, const char *name, const cJSON *from, const char *from_name)
{
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, from_name);

        return !item || cJSON_AddItemToObject(to, name, cJSON_Duplicate(item, true));
}

/* Adds a metric in the form of the snapshot. The time during which transfers were in progress is
 * computed from their bytes and rate. Returns false if memory is short. */
static bool add_metric(cJSON *to, const cJSON *m, unsigned path, unsigned layout)
{
        static const char *const same[] = { "transfer_count", "total_blocks", "total_bytes",
                                            "min_transfer_size", "max_transfer_size" };
        const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(m, "total_bytes");
        double rate =
                cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(m, "transfer_rate_bps"));
        cJSON *o = cJSON_CreateObject(), *errors;

        if (!o || !cJSON_AddItemToArray(to, o))
                return false;
        errors = cJSON_AddObjectToObject(o, "errors");
        for (unsigned i = 1; i < TRANSFER_RESULTS; i++)
                if (!cJSON_AddNumberToObject(errors, transfer_result_name(i), 0))
                        return false;
        for (size_t i = 0; i < ARRAY_SIZE(same); i++)
                if (!copy_member(o, same[i], m, same[i]))
                        return false;
        return cJSON_AddStringToObject(o, "path", transfer_path_name(path)) &&
               cJSON_AddStringToObject(o, "layout", transfer_layout_name(layout)) &&
               cJSON_AddStringToObject(o, "technology",
                                       transfer_technology_name(TRANSFER_TECHNOLOGY_OTHER)) &&
               cJSON_AddNumberToObject(o, "region_count", 0) &&
               copy_member(o, "device_bytes", m, "total_bytes") &&
               cJSON_AddNumberToObject(o, "latency_secs", 0) &&
               cJSON_AddNumberToObject(
                       o, "busy_secs",
                       cJSON_IsNumber(bytes) ? figures_ratio(bytes->valuedouble, rate) : 0) &&
               cJSON_AddArrayToObject(o, "size_histogram") &&
               cJSON_AddArrayToObject(o, "latency_histogram");
}

/* Converts the object to the text of a snapshot. Returns 0; -EBADMSG, with a message that names
 * the fault; -ENOMEM. */
static int convert(const cJSON *from, const char *what, char **ret,
                   char ret_error[static SNAPSHOT_ERROR_BYTES])
{
        _cleanup_(cJSON_Deletep) cJSON *to = cJSON_CreateObject();
        const cJSON *theirs = cJSON_GetObjectItemCaseSensitive(from, "metrics"), *metric;
        cJSON *metrics;

        if (!cJSON_IsObject(theirs)) {
                snprintf(ret_error, SNAPSHOT_ERROR_BYTES, "%s: metrics is %s", what,
                         theirs ? "not a JSON object" : "missing");
                return -EBADMSG;
        }
        if (!cJSON_AddStringToObject(to, "schema", SNAPSHOT_SCHEMA) ||
            !copy_member(to, "name", from, "session_name") ||
            !cJSON_AddFalseToObject(to, "active") || !cJSON_AddFalseToObject(to, "enabled") ||
            !cJSON_AddStringToObject(to, "created", "") ||
            !cJSON_AddStringToObject(to, "updated", "") ||
            !copy_member(to, "enabled_secs", from, "session_duration_secs"))
                return -ENOMEM;
        metrics = cJSON_AddArrayToObject(to, "metrics");
        cJSON_ArrayForEach(metric, theirs)
        {
                const cJSON *n = cJSON_GetObjectItemCaseSensitive(metric, "transfer_count");
                unsigned path, layout;

                if (!parse_key(metric->string, &path, &layout)) {
                        snprintf(ret_error, SNAPSHOT_ERROR_BYTES,
                                 "%s: metrics: '%.64s' names no path and layout", what,
                                 metric->string);
                        return -EBADMSG;
                }
                if (cJSON_IsNumber(n) && n->valuedouble == 0)
                        continue; /* a metric without transfers has no smallest size */
                if (!(cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(
                              metric, "transfer_rate_bps")) >= 0)) {
                        snprintf(ret_error, SNAPSHOT_ERROR_BYTES,
                                 "%s: metrics: '%.64s': transfer_rate_bps is not a number of 0 or "
                                 "more",
                                 what, metric->string);
                        return -EBADMSG;
                }
                if (!add_metric(metrics, metric, path, layout))
                        return -ENOMEM;
        }
        *ret = cJSON_PrintUnformatted(to);
        return metrics && *ret ? 0 : -ENOMEM;
}

int dynamo_parse(const char *text, size_t bytes, const char *what, struct snapshot **ret,
                 char ret_error[static SNAPSHOT_ERROR_BYTES])
{
        _cleanup_(cJSON_Deletep) cJSON *json =
                bytes <= SNAPSHOT_MAX_BYTES ? cJSON_ParseWithLength(text, bytes) : NULL;
        _cleanup_(freep) char *converted = NULL;
        int r;

        if (!cJSON_GetObjectItemCaseSensitive(json, "session_name") ||
            cJSON_GetObjectItemCaseSensitive(json, "schema"))
                return snapshot_parse(text, bytes, what, ret, ret_error);
        r = convert(json, what, &converted, ret_error);
        if (r == -ENOMEM)
                snprintf(ret_error, SNAPSHOT_ERROR_BYTES, "%s: out of memory", what);
        if (r == 0)
                r = snapshot_parse(converted, strlen(converted), what, ret, ret_error);
        if (r == 0)
                (*ret)->is_summed = true;
        else
                text_clean(ret_error);
        return r;
}
