/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon reports, as numbers. */
#pragma once

#include <cjson/cJSON.h>

/* 0: there is none of this name. */
static inline double json_number(const cJSON *object, const char *name)
{
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        return cJSON_IsNumber(item) ? item->valuedouble : 0;
}
