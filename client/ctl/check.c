/* SPDX-License-Identifier: Apache-2.0 */
/* Adds checks to a diagnosis; see check.h. */
#include "check.h"

#include <stdio.h>

#include "text.h"

void check_add(cJSON *checks, const char *name, const char *verdict, cJSON *value,
               const char *remedy, const char *format, va_list arguments)
{
        cJSON *check = cJSON_CreateObject();
        char found[CHECK_TEXT];

        vsnprintf(found, sizeof(found), format, arguments);
        text_clean(found);
        cJSON_AddStringToObject(check, "name", name);
        cJSON_AddItemToObject(check, verdict, value);
        cJSON_AddStringToObject(check, "found", found);
        cJSON_AddStringToObject(check, "remedy", remedy);
        cJSON_AddItemToArray(checks, check);
}
