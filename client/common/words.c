/* SPDX-License-Identifier: Apache-2.0 */
#include "words.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "cleanup.h"
#include "common.h"
#include "kvcache-admin.h"

enum { WAIT_MS = 500, PAGE = 64, MOST = 2000 };

void words_print(const char *word)
{
        static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                    "_./@+-";

        if (*word && *word != '-' && word[strspn(word, plain)] == '\0')
                puts(word);
}

static void print_namespaces(struct ctl *ctl)
{
        struct kvcache_namespace_info list[PAGE];
        uint64_t cursor = 0;
        int n, all = 0;

        do {
                n = kvcache_namespace_list(ctl->kv, NULL, &cursor, list, PAGE);
                for (int i = 0; i < n; i++)
                        words_print(list[i].name);
                all += MAX(n, 0);
        } while (n > 0 && cursor != 0 && all < MOST);
}

static void print_volumes(struct ctl *ctl)
{
        _cleanup_(freep) char *text = NULL;
        _cleanup_(cJSON_Deletep) cJSON *status = NULL;
        const cJSON *volume, *name;

        if (kvcache_report(ctl->kv, KVCACHE_REPORT_STATUS, &text) < 0)
                return;
        status = cJSON_Parse(text);
        cJSON_ArrayForEach(volume,
                           cJSON_GetObjectItemCaseSensitive(
                                   cJSON_GetObjectItemCaseSensitive(status, "store"), "volumes"))
        {
                name = cJSON_GetObjectItemCaseSensitive(volume, "volume");
                if (cJSON_IsString(name))
                        words_print(name->valuestring);
        }
}

bool words_of_daemon(struct ctl *ctl, const char *kind)
{
        char error[CTL_ERROR_BYTES];
        bool volumes = strcmp(kind, "volumes") == 0;

        if (!volumes && strcmp(kind, "namespaces") != 0)
                return false;
        ctl->request_timeout_ms = WAIT_MS;
        if (ctl_try_connect(ctl, error) < 0)
                return true;
        if (volumes)
                print_volumes(ctl);
        else
                print_namespaces(ctl);
        return true;
}
