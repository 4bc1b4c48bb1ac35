/* SPDX-License-Identifier: Apache-2.0 */
/* `remote`: shows the state of the shared tier, or frees space on it. */
#include <errno.h>
#include <stdio.h>

#include "answer.h"
#include "commands.h"
#include "common.h"
#include "human.h"
#include "section.h"
#include "status-parts.h"
#include "units.h"
#include "waiting.h"

enum { OPTION_LIMIT = OPTION_LONG, OPTION_DRY_RUN };

static const struct option_row remote_options[] = {
        { OPTION_LIMIT, "limit", "SIZE", "sweep: delete until at most SIZE is left: 10TiB" },
        { OPTION_DRY_RUN, "dry-run", NULL,
          "sweep: delete nothing, only print what would be deleted" },
        { 0 },
};
static const char *const remote_actions[] = { "status", "sweep", NULL };

static int remote_status(struct ctl *ctl)
{
        bool json = ctl->json;
        _cleanup_(cJSON_Deletep) cJSON *status = NULL;
        cJSON *remote;
        int r;

        ctl->json = false; /* with --json, answer_fetch() would print the whole status */
        r = answer_fetch(ctl, KVCACHE_REPORT_STATUS, "remote status", &status);
        ctl->json = json;
        if (r)
                return r;
        remote = cJSON_GetObjectItemCaseSensitive(status, "remote");
        if (!remote)
                return complain(EXIT_REFUSED,
                                "remote status: this daemon is too old to report the shared tier");
        if (json) {
                remote = cJSON_DetachItemViaPointer(status, remote);
                r = print_json(remote);
                cJSON_Delete(remote);
                return r;
        }
        section_to(stdout, color_wanted(stdout));
        status_print_remote(status, true);
        return EXIT_OK;
}

static int remote_sweep(struct ctl *ctl, uint64_t limit, bool dry_run)
{
        struct kvcache_sweep sweep = { .size = sizeof(sweep),
                                       .flags = dry_run ? KVCACHE_DRY_RUN : 0,
                                       .limit_bytes = limit };
        char deleted[HUMAN_BYTES], bytes[HUMAN_BYTES], left[HUMAN_BYTES];
        _cleanup_(cJSON_Deletep) cJSON *object = NULL;
        struct waiting waiting;
        int r;

        ctl->request_timeout_ms = LONG_CALL_MS;
        r = ctl_connect(ctl);
        if (r)
                return r;
        waiting_begin(&waiting, "sweeping");
        r = kvcache_remote_sweep(ctl->kv, &sweep);
        waiting_end(&waiting);
        if (r == -EACCES)
                return complain_admin("remote sweep");
        if (r < 0)
                return complain_call(ctl, r, "remote sweep");
        if (ctl->json) {
                object = cJSON_CreateObject();
                cJSON_AddNumberToObject(object, "seen", (double)sweep.seen);
                cJSON_AddNumberToObject(object, "seen_bytes", (double)sweep.seen_bytes);
                cJSON_AddNumberToObject(object, "deleted", (double)sweep.deleted);
                cJSON_AddNumberToObject(object, "deleted_bytes", (double)sweep.deleted_bytes);
                cJSON_AddBoolToObject(object, "dry_run", dry_run);
                return print_json(object);
        }
        human_things(sweep.deleted, "chunk", deleted);
        units_bytes(sweep.deleted_bytes, bytes);
        units_bytes(sweep.seen_bytes - (sweep.deleted_bytes < sweep.seen_bytes ? sweep.deleted_bytes
                                                                               : sweep.seen_bytes),
                    left);
        printf("%s%s, %s, deleted; %s left\n", dry_run ? "would be: " : "", deleted, bytes, left);
        return EXIT_OK;
}

static int run_remote(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        bool has_limit = false, dry_run = false;
        unsigned long long limit = 0;
        const char *argument, *action;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                if (r == OPTION_DRY_RUN) {
                        dry_run = true;
                } else {
                        if (!option_bytes(ctl, "--limit", argument, &limit))
                                return ctl->exit_status;
                        has_limit = true;
                }
        if (r < 0)
                return ctl->exit_status;
        action = first < argc ? argv[first] : "status";
        r = action_index(ctl, self, action);
        if (r < 0)
                return ctl->exit_status;
        if (argc - first > 1)
                return usage_error(self, "'remote %s' takes no argument", action);
        if (r == 0)
                return has_limit || dry_run
                               ? usage_error(self,
                                             "--limit and --dry-run are options of 'remote sweep'")
                               : remote_status(ctl);
        if (!has_limit)
                return usage_error(self,
                                   "'remote sweep' needs --limit SIZE, such as --limit 10TiB: "
                                   "it deletes chunks until at most SIZE is left");
        return remote_sweep(ctl, limit, dry_run);
}

const struct command command_remote = {
        .name = "remote",
        .arguments = "status | sweep --limit SIZE [--dry-run]",
        .summary = "show the state of the shared tier, or free space on it",
        .help = "status shows the back end of the shared tier, how long it has been online or\n"
                "offline, and the reason; how much is read and written there, and how fast; and "
                "the\n"
                "chunks that wait to be written.\n"
                "\n"
                "sweep deletes purged chunks from the shared tier, and then the least recently "
                "used\n"
                "ones until at most SIZE is left. One host sweeps at a time; the exit\n"
                "status is 4 if another one does. A sweep may take minutes: run it from a timer.\n"
                "For admins. S3 has lifecycle rules instead.",
        .options = remote_options,
        .actions = remote_actions,
        .run = run_remote,
};
