/* SPDX-License-Identifier: Apache-2.0 */
/* Implements json-read.h. Pure: no thread, nothing owned, and no failure but an absent value. */
#include "report/json-read.h"

#include <math.h>

const cJSON *json_member(const cJSON *o, const char *name)
{
        return cJSON_IsObject(o) ? cJSON_GetObjectItemCaseSensitive(o, name) : NULL;
}

const cJSON *json_array(const cJSON *o, const char *name)
{
        const cJSON *item = json_member(o, name);

        return cJSON_IsArray(item) ? item : NULL;
}

double json_number(const cJSON *o, const char *name)
{
        const cJSON *item = json_member(o, name);

        if (cJSON_IsObject(item))
                item = json_member(item, "used");
        return cJSON_IsNumber(item) && isfinite(item->valuedouble) ? item->valuedouble : NAN;
}

double json_limit(const cJSON *o, const char *name)
{
        return json_number(json_member(o, name), "limit");
}

const char *json_text(const cJSON *o, const char *name)
{
        const cJSON *item = json_member(o, name);

        return cJSON_IsString(item) ? item->valuestring : "";
}

double json_ratio(const cJSON *o, const char *of, const char *all)
{
        return json_number(o, all) > 0 ? json_number(o, of) / json_number(o, all) : NAN;
}
