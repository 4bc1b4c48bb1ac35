/* SPDX-License-Identifier: Apache-2.0 */
/* init, reset, enable, disable, list and delete: change the sessions of a daemon. */
#include <string.h>

#include "session.h"
#include "table.h"

static void add_text(cJSON *o, const char *name, const char *text)
{
        if (text)
                cJSON_AddStringToObject(o, name, text);
        else
                cJSON_AddNullToObject(o, name);
}

static int print_init(struct ctl *ctl, const struct snapshot *s, const char *file, bool resumed)
{
        _cleanup_(cJSON_Deletep) cJSON *o = NULL;

        if (!ctl->json) {
                printf("session %s is active and %s\n", s->name,
                       s->enabled ? "counts" : "disabled: \"session enable\" has it count");
                fputs("file: ", stdout);
                print_safe(file ? file : "none, the daemon keeps it in memory", stdout);
                printf("\nexport KVCACHE_BENCH_SESSION=\"%s\"\n", s->name);
                return SESSION_OK;
        }
        o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "name", s->name);
        add_text(o, "file", file);
        cJSON_AddBoolToObject(o, "active", s->active);
        cJSON_AddBoolToObject(o, "enabled", s->enabled);
        cJSON_AddBoolToObject(o, "resumed", resumed);
        cJSON_AddStringToObject(o, "created", s->created);
        return print_json(o);
}

int session_init(struct ctl *ctl, const struct session_arguments *a)
{
        _cleanup_(snapshot_freep) struct snapshot *s = NULL;
        _cleanup_(freep) char *file = NULL;
        const char *name = a->operands[0];
        unsigned flags = (a->resume ? (unsigned)KVCACHE_BENCH_RESUME : 0u) |
                         (a->force ? (unsigned)KVCACHE_BENCH_FORCE : 0u);
        int status = live_check_name("init", name);

        if (status == SESSION_OK && session_is_file(name))
                return complain(SESSION_WRONG_USAGE,
                                "init: the other actions would take '%s' for a file: use a name "
                                "that is not - and does not end with .json",
                                name);
        if (status == SESSION_OK)
                status = live_session(ctl, KVCACHE_BENCH_INIT, name, flags, &s, &file);
        return status == SESSION_OK ? print_init(ctl, s, file, a->resume) : status;
}

int session_change(struct ctl *ctl, const struct session_arguments *a,
                   enum kvcache_bench_action action, const char *verb, const char *done)
{
        _cleanup_(snapshot_freep) struct snapshot *s = NULL;
        const char *name = a->session ? a->session : a->operands[0];
        int status = name ? live_check_name(verb, name) : live_environment(&name);

        if (status == SESSION_OK)
                status = live_session(ctl, action, name, 0, &s, NULL);
        if (status != SESSION_OK)
                return status;
        if (ctl->json)
                return session_status_print(s, true, stdout) < 0 ? complain_memory() : SESSION_OK;
        printf("session %s is %s\n", s->name, done);
        return SESSION_OK;
}

/* --- list --- */

static const char *text_of(const cJSON *item, const char *name)
{
        const cJSON *text = cJSON_GetObjectItemCaseSensitive(item, name);

        return cJSON_IsString(text) ? text->valuestring : "?";
}

static const char *state_of(const cJSON *item)
{
        bool active = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "active")),
             enabled = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "enabled"));

        if (active)
                return enabled ? "active" : "active, disabled";
        return enabled ? "-" : "disabled";
}

static void print_list(const cJSON *array)
{
        _cleanup_(text_table_freep) struct text_table *table = text_table_new("lll");
        const cJSON *item;

        if (cJSON_GetArraySize(array) == 0) {
                puts("no sessions");
                return;
        }
        text_table_row(table, "SESSION", "STATE", "CREATED");
        cJSON_ArrayForEach(item, array) text_table_row(table, text_of(item, "name"), state_of(item),
                                                       text_of(item, "created"));
        text_table_print(table, "", stdout);
}

int session_list(struct ctl *ctl)
{
        _cleanup_(cJSON_Deletep) cJSON *answer = NULL, *array = NULL;
        _cleanup_(freep) char *json = NULL;
        int status = live_call(ctl, KVCACHE_BENCH_LIST, NULL, 0, &json);

        if (status != SESSION_OK)
                return status;
        array = cJSON_Parse(json);
        if (!cJSON_IsArray(array))
                return complain(SESSION_FAILED, "the daemon's list of sessions is malformed");
        if (!ctl->json) {
                print_list(array);
                return SESSION_OK;
        }
        answer = cJSON_CreateObject();
        cJSON_AddItemToObject(answer, "sessions", TAKE_PTR(array));
        return print_json(answer);
}
