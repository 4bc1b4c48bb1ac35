/* SPDX-License-Identifier: Apache-2.0 */
/* Reads numbers from the daemon's reports. */
#pragma once

#include <cjson/cJSON.h>

/* Returns the number of this name, or 0 if there is none. */
static inline double json_number(const cJSON *object, const char *name)
{
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        return cJSON_IsNumber(item) ? item->valuedouble : 0;
}
