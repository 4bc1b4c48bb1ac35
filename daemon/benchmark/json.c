/* SPDX-License-Identifier: Apache-2.0 */
/* Prints benchmark sessions as JSON, one or the list. Loop thread; owns nothing. Fails only without
 * memory. */
#include "benchmark/internal.h"

#include <errno.h>
#include <stdlib.h>

#include "cleanup.h"

DEFINE_CLEANUP(cJSON *, cJSON_Delete);

static const uint64_t idle_ns = UINT64_C(5000000000);

static int print_json(const cJSON *json, FILE *out)
{
        _cleanup_(freep) char *text = cJSON_PrintUnformatted(json);

        if (!text || fprintf(out, "%s\n", text) < 0)
                return -ENOMEM;
        return 0;
}

int bench_print(const struct bench *b, const struct bench_session *s, const char *file, FILE *out)
{
        _cleanup_(cJSON_Deletep) cJSON *json = NULL;
        struct snapshot shown = s->snapshot; /* a copy of the struct, whose arrays still belong to
                                              * the session */

        shown.active = b->active == s;
        shown.idle = !shown.active || !shown.enabled || b->counted_ns - b->changed_ns >= idle_ns;
        json = snapshot_json(&shown);
        if (!json || (file && !cJSON_AddStringToObject(json, "file", file)))
                return -ENOMEM;
        return print_json(json, out);
}

int bench_print_list(const struct bench *b, FILE *out)
{
        _cleanup_(cJSON_Deletep) cJSON *array = cJSON_CreateArray();

        for (unsigned i = 0; i < b->n_sessions; i++) {
                const struct bench_session *s = b->sessions[i];
                cJSON *o = cJSON_CreateObject();

                if (!cJSON_AddStringToObject(o, "name", s->snapshot.name) ||
                    !cJSON_AddBoolToObject(o, "active", b->active == s) ||
                    !cJSON_AddBoolToObject(o, "enabled", s->snapshot.enabled) ||
                    !cJSON_AddStringToObject(o, "created", s->snapshot.created) ||
                    !cJSON_AddItemToArray(array, o)) {
                        cJSON_Delete(o);
                        return -ENOMEM;
                }
        }
        return array ? print_json(array, out) : -ENOMEM;
}
