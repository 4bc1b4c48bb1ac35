/* SPDX-License-Identifier: Apache-2.0 */
/* Fetches and formats the daemon's reports; see answer.h. */
#include "answer.h"

#include <math.h>
#include <string.h>

#include "human.h"
#include "text.h"
#include "units.h"

int answer_no_operands(const struct command *self, int argc, char **argv, int first)
{
        return first < argc ? usage_error(self, "unexpected argument '%s'", argv[first]) : EXIT_OK;
}

bool answer_no_arguments(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        const char *argument;
        int first;

        if (option_next(ctl, self, argc, argv, &argument, &first) < 0)
                return false;
        ctl->exit_status = answer_no_operands(self, argc, argv, first);
        return ctl->exit_status == EXIT_OK;
}

int answer_fetch(struct ctl *ctl, enum kvcache_report what, const char *name, cJSON **ret)
{
        _cleanup_(freep) char *text = NULL;
        int r;

        r = ctl_connect(ctl);
        if (r)
                return r;
        r = kvcache_report(ctl->kv, what, &text);
        if (r < 0)
                return complain_call(ctl, r, name);
        if (ctl->json) { /* print the text as received, because parsing would round large numbers */
                cJSON_Minify(text);
                puts(text);
                return EXIT_OK;
        }
        *ret = cJSON_Parse(text);
        return *ret ? EXIT_OK : complain(EXIT_REFUSED, "%s: the daemon's answer is not JSON", name);
}

int answer_volumes(struct ctl *ctl, cJSON **ret)
{
        _cleanup_(freep) char *text = NULL;
        _cleanup_(cJSON_Deletep) cJSON *status = NULL;
        cJSON *store, *volumes;
        int r;

        r = kvcache_report(ctl->kv, KVCACHE_REPORT_STATUS, &text);
        if (r < 0)
                return r;
        status = cJSON_Parse(text);
        store = cJSON_GetObjectItemCaseSensitive(status, "store");
        volumes = cJSON_GetObjectItemCaseSensitive(store, "volumes");
        if (!cJSON_IsArray(volumes))
                return 1;
        *ret = cJSON_DetachItemViaPointer(store, volumes);
        return 0;
}

int answer_volume_number(const cJSON *volumes, const char *wanted)
{
        int n = cJSON_GetArraySize(volumes);
        uint64_t number;

        for (int i = 0; i < n && *wanted; i++)
                if (strcmp(answer_text(cJSON_GetArrayItem(volumes, i), "volume"), wanted) == 0)
                        return i;
        return units_parse_count(wanted, &number) == 0 && number < (uint64_t)n ? (int)number : -1;
}

const char *answer_text(const cJSON *object, const char *name)
{
        const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, name));

        return text ? text : "";
}

uint64_t answer_count_of(const cJSON *object, const char *name)
{
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        return cJSON_IsNumber(item) ? answer_count(item->valuedouble) : 0;
}

uint64_t answer_count(double value)
{
        return value <= 0 ? 0 : value >= 18446744073709549568.0 ? UINT64_MAX : (uint64_t)value;
}

static bool ends_with(const char *text, const char *end)
{
        size_t n = strlen(text), m = strlen(end);

        return n >= m && strcmp(text + n - m, end) == 0;
}

void answer_format_number(const char *name, double value, char ret[static HUMAN_BYTES])
{
        if (ends_with(name, "bytes") || ends_with(name, "bytes_total"))
                units_bytes(answer_count(value), ret);
        else if (ends_with(name, "timestamp_seconds") && value <= 0)
                snprintf(ret, HUMAN_BYTES, "never");
        else if (ends_with(name, "start_time_seconds") || ends_with(name, "timestamp_seconds"))
                human_time(answer_count(value * 1000), ret);
        else if (ends_with(name, "uptime_seconds"))
                human_seconds(value, ret);
        else if (ends_with(name, "_seconds") || ends_with(name, "_seconds_total"))
                human_ns(answer_count(value * 1e9), ret);
        else if (value >= 0 && value == floor(value) && value < 1e18)
                human_count(answer_count(value), ret);
        else
                snprintf(ret, HUMAN_BYTES, "%.6g", value);
}

void answer_format(const cJSON *item, char *ret, size_t room)
{
        char number[HUMAN_BYTES];

        if (cJSON_IsNumber(item)) {
                answer_format_number(item->string ? item->string : "", item->valuedouble, number);
                snprintf(ret, room, "%s", number);
        } else if (cJSON_IsString(item)) {
                snprintf(ret, room, "%s", item->valuestring);
        } else if (cJSON_IsBool(item)) {
                snprintf(ret, room, "%s", cJSON_IsTrue(item) ? "yes" : "no");
        } else if (cJSON_IsArray(item) || cJSON_IsObject(item)) {
                _cleanup_(freep) char *text = cJSON_PrintUnformatted(item);

                snprintf(ret, room, "%s", text ? text : "");
        } else {
                snprintf(ret, room, "-");
        }
        text_clean(ret);
}
