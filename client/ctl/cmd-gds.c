/* SPDX-License-Identifier: Apache-2.0 */
/* `gds`: reports whether this host and the daemon support GPUDirect Storage, what prevents or
 * limits it, and the remedies. The answer is built as JSON. --json prints the JSON; otherwise
 * the answer is printed as lines. If the daemon does not answer, a warning is printed, and the
 * answer is about the host only. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "checked.h"
#include "commands.h"
#include "common.h"
#include "gds-host.h"
#include "human.h"
#include "units.h"

/* Gets the value that follows the text `key` in the daemon's configuration; "" if the text is
 * absent, or if the daemon does not report its configuration to this user, who is no admin. */
static void policy_of(struct ctl *ctl, const char *key, char *ret, size_t room)
{
        _cleanup_(freep) char *yaml = NULL;
        const char *found;

        *ret = '\0';
        if (kvcache_report(ctl->kv, KVCACHE_REPORT_CONFIG, &yaml) < 0)
                return;
        found = strstr(yaml, key);
        if (found)
                snprintf(ret, room, "%.*s", (int)strcspn(found + strlen(key), " \n"),
                         found + strlen(key));
}

static void check_lending(struct ctl *ctl, cJSON *daemon, cJSON *checks, struct gds_verdict *v)
{
        struct kvcache_info info = { .size = sizeof(info) };
        char policy[32];
        bool lends;

        policy_of(ctl, "\n  gds: ", policy, sizeof(policy));
        lends = kvcache_get_info(ctl->kv, &info) >= 0 && info.lends;
        if (!gds_check(checks, "lending", lends,
                       "set io.gds in the daemon's configuration: on lends to every user, auto to "
                       "root, the daemon's own user and admins",
                       "the daemon %s this user%s%s",
                       lends ? "lends its data files to" : "does not lend its data files to",
                       *policy ? "; io.gds: " : "", policy))
                gds_at_most(v, GDS_STAGING, "the daemon does not lend to this user (io.gds)");
        cJSON_AddBoolToObject(daemon, "lends", lends);
        if (*policy)
                cJSON_AddStringToObject(daemon, "policy", policy);
}

/* Adds a check of puts by cuFile. The verdict is about gets, so the check has no effect on it. */
static void check_puts(struct ctl *ctl, cJSON *daemon, cJSON *checks)
{
        struct kvcache_info info = { .size = sizeof(info) };
        char policy[32];
        bool takes;

        policy_of(ctl, "\n  gds_puts: ", policy, sizeof(policy));
        takes = kvcache_get_info(ctl->kv, &info) >= 0 && info.takes_files;
        (void)gds_check(checks, "puts", takes,
                        "no change is needed: puts pass through host memory, which loads the disk "
                        "less. Only if host memory limits puts, set io.gds_puts, and gds_put_path "
                        "where the client attaches its GPU",
                        "the daemon takes %s that cuFile has written from this user%s%s",
                        takes ? "puts" : "no puts", *policy ? "; io.gds_puts: " : "", policy);
        cJSON_AddBoolToObject(daemon, "takes_files", takes);
}

/* Adds the daemon's metrics of loans, refused loans and puts from files, if it reports them. */
static void add_loans(struct ctl *ctl, cJSON *daemon)
{
        static const char *const names[][2] = {
                { "kvcache_lent_chunks_total", "lent_chunks" },
                { "kvcache_lent_bytes_total", "lent_bytes" },
                { "kvcache_not_lent_chunks_total", "not_lent_chunks" },
                { "kvcache_file_puts_total", "file_puts" },
                { "kvcache_file_put_bytes_total", "file_put_bytes" },
                { "kvcache_file_put_failures_total", "file_put_failures" },
        };
        _cleanup_(cJSON_Deletep) cJSON *stats = NULL;
        _cleanup_(freep) char *text = NULL;

        if (kvcache_report(ctl->kv, KVCACHE_REPORT_STATS, &text) < 0)
                return;
        stats = cJSON_Parse(text);
        for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
                cJSON *item = cJSON_DetachItemFromObjectCaseSensitive(stats, names[i][0]);

                if (item)
                        cJSON_AddItemToObject(daemon, names[i][1], item);
        }
}

static void check_volumes(struct ctl *ctl, const char *root, cJSON *volumes, struct gds_verdict *v)
{
        _cleanup_(cJSON_Deletep) cJSON *listed = NULL;
        const cJSON *one;
        int r = answer_volumes(ctl, &listed);

        if (r) {
                complain(EXIT_OK, "warning: gds: the daemon's status does not list its volumes%s%s",
                         r < 0 ? ": " : "", r < 0 ? kvcache_error(ctl->kv) : "");
                gds_at_most(v, GDS_UNKNOWN, "the daemon did not list its volumes");
                return;
        }
        cJSON_ArrayForEach(one, listed)
        {
                cJSON *volume = cJSON_CreateObject();

                cJSON_AddItemToArray(volumes, volume);
                cJSON_AddStringToObject(volume, "volume", answer_text(one, "volume"));
                gds_check_volume(root, answer_text(one, "volume"),
                                 cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(one, "direct")),
                                 cJSON_AddArrayToObject(volume, "checks"), v);
        }
}

static void check_daemon(struct ctl *ctl, const char *root, cJSON *answer, struct gds_verdict *v)
{
        cJSON *volumes = cJSON_AddArrayToObject(answer, "volumes");
        cJSON *daemon = cJSON_AddObjectToObject(answer, "daemon");
        char error[CTL_ERROR_BYTES];
        int r = ctl_try_connect(ctl, error);
        cJSON *checks;

        cJSON_AddBoolToObject(daemon, "connected", r >= 0);
        checks = cJSON_AddArrayToObject(daemon, "checks");
        if (!gds_check(checks, "daemon", r >= 0,
                       r == -EACCES ? "run kvcachectl gds as a user of the daemon"
                                    : "start kvcache-daemon, or name its socket with --socket",
                       "%s", r < 0 ? error : "answers")) {
                complain(EXIT_OK, "warning: gds: %s; only this host was checked", error);
                gds_at_most(v, GDS_UNKNOWN, "no daemon answered");
                return;
        }
        check_lending(ctl, daemon, checks, v);
        check_puts(ctl, daemon, checks);
        add_loans(ctl, daemon);
        check_volumes(ctl, root, volumes, v);
}

/* --- output for people, and the command --- */

static void print_checks(const cJSON *checks)
{
        const cJSON *one;

        cJSON_ArrayForEach(one, checks)
        {
                bool ok = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(one, "ok"));

                printf("  %-3s  %-14s  %s\n", ok ? "yes" : "no", answer_text(one, "name"),
                       answer_text(one, "found"));
                if (!ok)
                        printf("  %-3s  %-14s  remedy: %s\n", "", "", answer_text(one, "remedy"));
        }
}

static const cJSON *checks_of(const cJSON *object)
{
        return cJSON_GetObjectItemCaseSensitive(object, "checks");
}

static void print_loans(const cJSON *daemon)
{
        const cJSON *refused = cJSON_GetObjectItemCaseSensitive(daemon, "not_lent_chunks"), *one;
        char chunks[HUMAN_BYTES], bytes[HUMAN_BYTES];

        if (!cJSON_IsNumber(cJSON_GetObjectItemCaseSensitive(daemon, "lent_chunks")))
                return;
        human_things(answer_count_of(daemon, "lent_chunks"), "chunk", chunks);
        units_bytes(answer_count_of(daemon, "lent_bytes"), bytes);
        printf("       %-14s  %s, %s", "lent", chunks, bytes);
        cJSON_ArrayForEach(one, refused)
        {
                if (!cJSON_IsNumber(one) || one->valuedouble <= 0)
                        continue;
                human_count(answer_count(one->valuedouble), chunks);
                printf("; not lent (");
                print_safe(one->string, stdout);
                printf("): %s", chunks);
        }
        putchar('\n');
        human_count(answer_count_of(daemon, "file_puts"), chunks);
        units_bytes(answer_count_of(daemon, "file_put_bytes"), bytes);
        if (answer_count_of(daemon, "file_puts") + answer_count_of(daemon, "file_put_failures") > 0)
                printf("       %-14s  %s chunks, %s; failed: %" PRIu64 "\n", "from files", chunks,
                       bytes, answer_count_of(daemon, "file_put_failures"));
}

static void print_answer(const cJSON *answer)
{
        const cJSON *daemon = cJSON_GetObjectItemCaseSensitive(answer, "daemon"), *volume;
        const cJSON *reason = cJSON_GetObjectItemCaseSensitive(answer, "reason");

        puts("This host");
        print_checks(checks_of(cJSON_GetObjectItemCaseSensitive(answer, "host")));
        cJSON_ArrayForEach(volume, cJSON_GetObjectItemCaseSensitive(answer, "volumes"))
        {
                printf("\nVolume ");
                print_safe(answer_text(volume, "volume"), stdout);
                putchar('\n');
                print_checks(checks_of(volume));
        }
        puts("\nDaemon");
        print_checks(checks_of(daemon));
        print_loans(daemon);
        printf("\nverdict: %s%s%s\n", answer_text(answer, "verdict"), reason ? ": " : "",
               answer_text(answer, "reason"));
}

static int run_gds(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        const char *root = getenv("KVCACHE_TEST_ROOT") ?: ""; /* a directory before all paths of the
                                                                 host; set by tests only */
        _cleanup_(cJSON_Deletep) cJSON *answer = NULL;
        struct gds_verdict v = { .way = GDS_DIRECT };
        cJSON *host;

        if (!answer_no_arguments(ctl, self, argc, argv))
                return ctl->exit_status;
        answer = cJSON_CreateObject();
        host = cJSON_AddObjectToObject(answer, "host");
        gds_check_host(root, cJSON_AddArrayToObject(host, "checks"), &v);
        check_daemon(ctl, root, answer, &v);
        cJSON_AddStringToObject(answer, "verdict", gds_way_name(v.way));
        if (*v.reason && !cJSON_AddStringToObject(answer, "reason", v.reason))
                return complain_memory();
        if (ctl->json)
                return print_json(answer);
        print_answer(answer);
        return EXIT_OK;
}

const struct command command_gds = {
        .name = "gds",
        .arguments = "",
        .summary = "check whether GPUDirect Storage works on this host",
        .help = "Checks the requirements for reading blocks from disk into GPU memory by cuFile:\n"
                "on this host, at each volume of the store, and at the daemon, which lends its\n"
                "data files to the users that io.gds allows, and takes puts by cuFile from those\n"
                "that io.gds_puts allows. Prints how to meet each requirement that is not met. "
                "The\n"
                "last line is the verdict on gets: direct; compatibility mode, in which cuFile\n"
                "copies through host memory; staging, in which blocks come by way of the daemon's\n"
                "memory; or unknown, if no daemon answers. The check does not start cuFile: only "
                "a\n"
                "client that uses a file learns what cuFile's driver reports for it.",
        .run = run_gds,
};
