/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the configuration again, on SIGHUP and for RELOAD, and has the parts take over the keys
 * that may change while running. Runs on the loop thread, which reads a file and its drop-ins, each
 * at most CONFIG_MAX_FILE bytes, and that of http.token_file; keeps no state. An invalid
 * configuration changes nothing. The log and the answer have each error, each key that changed and
 * each key that needs a restart. */
#include "server-internal.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "cleanup.h"
#include "units.h"

enum { MOST_ERRORS = 100 }; /* most errors in an answer; a file of 1 MiB can have 100,000 */

/* The answer in JSON. If memory is short, the reload continues without it. */
struct answer {
        cJSON *object, *lists[3], *errors;
        unsigned n_errors;
};

DEFINE_CLEANUP(cJSON *, cJSON_Delete);

static void say_warning(const char *text)
{
        log_warning("%s", text);
}

static void add_text(cJSON *list, const char *text)
{
        cJSON *item = cJSON_CreateString(text);

        if (!cJSON_AddItemToArray(list, item))
                cJSON_Delete(item);
}

static void say_change(void *userdata, enum config_change change, const char *text)
{
        struct answer *answer = userdata;

        if (change == CONFIG_KEPT)
                log_warning("%s", text);
        else
                log_info("%s", text);
        add_text(answer->lists[change], text);
}

static void say_error(void *userdata, const char *text)
{
        struct answer *answer = userdata;

        log_error("reload: %s", text);
        if (answer->n_errors++ < MOST_ERRORS)
                add_text(answer->errors, text);
}

static void apply(struct server *s)
{
        const struct config *c = s->config;
        struct store_scrub scrub;
        enum log_level level;

        if (log_level_from_name(c->log.level, &level) == 0)
                log_set_level(level);
        if (log_set_format(c->log.format) == -ENOTSUP)
                log_warning("log.format: journal: stderr is not connected to the journal; the "
                            "format is unchanged");
        server_apply_limits(s);
        sessions_set_handshake(s->sessions, c->limits.handshake_ms);
        s->service.wait_ms = c->limits.wait_ms;
        server_apply_gds(s);
        server_apply_stages(s);
        server_apply_policy(s);
        server_apply_budget(s);
        server_apply_remote(s);
        for (unsigned i = 0; i < s->service.n_tenants; i++)
                cache_prefetch_set_rate(s->tenants[i].cache, c->memory.prefetch);
        scrub = server_scrub(s);
        store_set_scrub(s->service.store, &scrub);
        if (s->http)
                http_set_limits(s->http, (unsigned)c->limits.http_connections, c->limits.http_ms,
                                c->limits.http_rate);
}

/* Loads and checks the new configuration. Returns 0, or an error, and then `answer` has each
 * error. */
static int load(struct server *s, struct config *next, struct http_token *token,
                struct answer *answer)
{
        char why[256];
        struct config_error error = { .each = say_error, .userdata = answer };
        int r = config_load_all(next, s->params->config_path, s->params->config_must_exist, environ,
                                s->params->sets, s->params->n_sets, say_warning, &error);

        if (r == 0)
                r = config_reload_check(s->config, next, &error);
        if (r < 0 && answer->n_errors == 0)
                say_error(answer, error.text);
        if (r == 0 && s->http && (r = http_token_read(token, next->http.token_file, why)) < 0)
                say_error(answer, why);
        return r;
}

static void begin_answer(const struct server *s, struct answer *answer)
{
        *answer = (struct answer){ .object = cJSON_CreateObject() };
        if (s->params->config_path)
                cJSON_AddStringToObject(answer->object, "file", s->params->config_path);
        answer->lists[CONFIG_APPLIED] = cJSON_AddArrayToObject(answer->object, "applied");
        answer->lists[CONFIG_NEEDS_RESTART] = cJSON_AddArrayToObject(answer->object, "restart");
        answer->lists[CONFIG_KEPT] = cJSON_AddArrayToObject(answer->object, "kept");
        answer->errors = cJSON_AddArrayToObject(answer->object, "errors");
}

/* Keeps the keys whose changes need a restart. The status shows these keys until the restart, or
 * until a reload finds them unchanged. */
static void keep_pending(struct server *s, const struct answer *answer)
{
        cJSON_Delete(s->sources.reload_pending);
        s->sources.reload_pending = cJSON_Duplicate(answer->lists[CONFIG_NEEDS_RESTART], true);
}

void server_note_files(struct server *s, const struct config *read, uint64_t unix_ms)
{
        cJSON *files =
                cJSON_CreateStringArray((const char *const *)read->files.items, (int)read->files.n);

        cJSON_Delete(s->sources.config_files);
        s->sources.config_files = files;
        s->sources.config_read_unix_ms = unix_ms;
}

int server_reload(struct server *s, char **ret_json)
{
        _cleanup_(cJSON_Deletep) cJSON *object = NULL;
        struct answer answer;
        const struct config_report report = { .say = say_change, .userdata = &answer };
        char settings[UNITS_TEXT], errors[UNITS_TEXT];
        struct http_token token = { 0 };
        uint64_t read_unix_ms;
        struct config next;
        bool refused;

        if (s->draining)
                return -ESHUTDOWN;
        begin_answer(s, &answer);
        object = answer.object;
        read_unix_ms = clock_unix_ms();
        notify_reloading();
        config_init(&next);
        refused = load(s, &next, &token, &answer) < 0;
        if (refused) {
                s->sources.config_reloads_refused++;
                log_error("reload: %s; the configuration is unchanged",
                          units_count(answer.n_errors, "error", errors));
        } else {
                unsigned changed = config_reload(s->config, &next, &report);

                apply(s);
                if (s->http && http_set_token(s->http, &token))
                        say_change(&answer, CONFIG_APPLIED,
                                   "http.token_file: the token has changed");
                s->sources.config_reloads++;
                keep_pending(s, &answer);
                server_note_files(s, &next, read_unix_ms);
                log_info("reload: %s changed", units_count(changed, "setting", settings));
        }
        explicit_bzero(&token, sizeof(token));
        cJSON_AddItemToObject(
                object, "files",
                cJSON_CreateStringArray((const char *const *)next.files.items, (int)next.files.n));
        config_fini(&next);
        notify_ready();
        if (!ret_json)
                return refused;
        cJSON_AddBoolToObject(object, "refused", refused);
        cJSON_AddNumberToObject(object, "n_errors", answer.n_errors);
        *ret_json = cJSON_PrintUnformatted(object);
        return *ret_json ? refused : -ENOMEM;
}

int server_print_reload(void *userdata, FILE *out)
{
        _cleanup_(freep) char *json = NULL;
        int r = server_reload(userdata, &json);

        if (r >= 0)
                fprintf(out, "%s\n", json);
        return r;
}
