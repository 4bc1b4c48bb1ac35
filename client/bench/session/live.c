/* SPDX-License-Identifier: Apache-2.0 */
#include "live.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "text.h"

int live_check_name(const char *what, const char *name)
{
        char shown[2 * SNAPSHOT_TEXT];

        if (snapshot_name_valid(name))
                return SESSION_OK;
        snprintf(shown, sizeof(shown), "%s", name);
        text_clean(shown);
        return complain(SESSION_WRONG_USAGE,
                        "%s: '%s' is not the name of a session: use " SNAPSHOT_NAME_RULE, what,
                        shown);
}

int live_environment(const char **ret)
{
        static const char *const variables[] = { "KVCACHE_BENCH_SESSION",
                                                 "DYNAMO_BENCHMARK_SESSION" };

        *ret = NULL;
        for (size_t i = 0; i < ARRAY_SIZE(variables); i++) {
                const char *name = getenv(variables[i]);
                int status;

                if (!name || !*name)
                        continue;
                status = live_check_name(variables[i], name);
                if (status == SESSION_OK)
                        *ret = name;
                return status;
        }
        return SESSION_OK;
}

/* Reports the reason for a refusal. Returns the status. */
static int refused(struct ctl *ctl, int r, enum kvcache_bench_action action, const char *name)
{
        char what[SNAPSHOT_TEXT + 32];

        switch (r) {
        case -ESRCH:
                return complain(SESSION_NONE_ACTIVE,
                                "no session is active: \"session init NAME\" begins one, and "
                                "\"session list\" lists all sessions");
        case -EEXIST:
                return complain(SESSION_FAILED,
                                "session %s already exists: --resume continues it, --force "
                                "restarts it at zero",
                                name);
        case -EOPNOTSUPP:
                return complain(SESSION_FAILED, "%s: this daemon is too old to keep sessions",
                                ctl_socket_name(ctl));
        case -EACCES:
                (void)complain_admin("sessions");
                return SESSION_FAILED;
        }
        /* ENOENT of a call without a name means that the daemon's socket is missing. */
        if (r == -ENOENT && name && action != KVCACHE_BENCH_INIT)
                return complain(SESSION_UNKNOWN,
                                "the daemon has no session %s: \"session list\" lists all sessions",
                                name);
        snprintf(what, sizeof(what), "session %s", name ? name : "command");
        (void)complain_call(ctl, r, what);
        return SESSION_FAILED;
}

int live_call(struct ctl *ctl, enum kvcache_bench_action action, const char *name, unsigned flags,
              char **ret_json)
{
        int r;

        if (!ctl->kv && ctl_connect(ctl) != EXIT_OK)
                return SESSION_FAILED;
        r = kvcache_bench_session(ctl->kv, action, name, flags, ret_json);
        return r < 0 ? refused(ctl, r, action, name) : SESSION_OK;
}

static char *file_of(const char *json)
{
        _cleanup_(cJSON_Deletep) cJSON *object = cJSON_Parse(json);
        const cJSON *file = cJSON_GetObjectItemCaseSensitive(object, "file");

        return cJSON_IsString(file) ? strdup(file->valuestring) : NULL;
}

int live_session(struct ctl *ctl, enum kvcache_bench_action action, const char *name,
                 unsigned flags, struct snapshot **ret, char **ret_file)
{
        char what[SNAPSHOT_TEXT + 32] = "the daemon's active session", error[SNAPSHOT_ERROR_BYTES];
        _cleanup_(freep) char *json = NULL;
        int status = live_call(ctl, action, name, flags, &json);

        if (status != SESSION_OK)
                return status;
        if (name)
                snprintf(what, sizeof(what), "the daemon's session %s", name);
        if (snapshot_parse(json, strlen(json), what, ret, error) < 0)
                return complain(SESSION_FAILED, "%s", error);
        if (ret_file)
                *ret_file = file_of(json);
        return SESSION_OK;
}

bool live_active(struct ctl *ctl, char ret_name[static SNAPSHOT_TEXT])
{
        _cleanup_(snapshot_freep) struct snapshot *s = NULL;
        _cleanup_(freep) char *json = NULL;
        char error[SNAPSHOT_ERROR_BYTES];

        if (kvcache_bench_session(ctl->kv, KVCACHE_BENCH_STATUS, NULL, 0, &json) < 0 ||
            snapshot_parse(json, strlen(json), "", &s, error) < 0)
                return false;
        memcpy(ret_name, s->name, SNAPSHOT_TEXT);
        return true;
}
