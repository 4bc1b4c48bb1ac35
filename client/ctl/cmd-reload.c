/* SPDX-License-Identifier: Apache-2.0 */
/* `reload`: makes the daemon read its configuration again, and prints the result. */
#include <errno.h>
#include <stdlib.h>

#include "answer.h"
#include "commands.h"
#include "common.h"
#include "units.h"

static int print_list(const cJSON *answer, const char *name, const char *head, FILE *out)
{
        const cJSON *list = cJSON_GetObjectItemCaseSensitive(answer, name), *item;
        int n = 0;

        cJSON_ArrayForEach(item, list)
        {
                if (!cJSON_IsString(item))
                        continue;
                if (n++ == 0)
                        fprintf(out, "%s:\n", head);
                fputs("  ", out);
                print_safe(item->valuestring, out);
                fputc('\n', out);
        }
        return n;
}

static int print_refusal(const cJSON *answer)
{
        char errors[UNITS_TEXT];
        uint64_t n = answer_count_of(answer, "n_errors");

        print_list(answer, "errors", "wrong", stderr);
        return complain(EXIT_REFUSED, "the configuration has %s, so nothing was changed",
                        units_count(n, "error", errors));
}

static void print_files(const cJSON *answer)
{
        int n = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(answer, "files"));
        char drop_ins[UNITS_TEXT];

        if (n > 1)
                printf("read the file and %s\n", units_count((uint64_t)n - 1, "drop-in", drop_ins));
}

static int print_changes(const cJSON *answer)
{
        int n, restart, kept;
        char settings[UNITS_TEXT];

        print_files(answer);
        n = print_list(answer, "applied", "applied", stdout);
        restart = print_list(answer, "restart", "needs a restart", stdout);
        kept = print_list(answer, "kept", "not changed", stdout);
        if (n == 0 && restart == 0 && kept == 0)
                printf("nothing has changed\n");
        else
                printf("%s changed\n", units_count((uint64_t)n, "setting", settings));
        return kept == 0 ? EXIT_OK
                         : complain(EXIT_REFUSED, "the daemon ran out of memory and did not apply "
                                                  "all changes; run kvcachectl reload again");
}

static int run_reload(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        _cleanup_(cJSON_Deletep) cJSON *answer = NULL;
        _cleanup_(freep) char *json = NULL;
        int r, status;

        if (!answer_no_arguments(ctl, self, argc, argv))
                return ctl->exit_status;
        status = ctl_connect(ctl);
        if (status)
                return status;
        r = kvcache_reload(ctl->kv, &json);
        if (r == -EACCES)
                return complain_admin("reload");
        if (r < 0)
                return complain_call(ctl, r, "reload");
        answer = cJSON_Parse(json);
        if (!cJSON_IsObject(answer))
                return complain(EXIT_REFUSED, "reload: the daemon's answer is malformed");
        if (!ctl->json)
                return r == 1 ? print_refusal(answer) : print_changes(answer);
        status = print_json(answer);
        return status == EXIT_OK && r == 1 ? EXIT_REFUSED : status;
}

const struct command command_reload = {
        .name = "reload",
        .arguments = "",
        .summary = "make the daemon read its configuration again",
        .help = "Makes the daemon read its configuration again, as on SIGHUP, and prints which\n"
                "keys changed and which need a restart. If the configuration is wrong, it stays\n"
                "unchanged: each error is printed with its place, and the exit status is 4. For\n"
                "admins.",
        .run = run_reload,
};
