/* SPDX-License-Identifier: Apache-2.0 */
/* `device`: lists the volumes of the daemon's store with their states, and suspends or resumes one.
 * The list comes from the status report; the two actions are calls of their own, for admins. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "cleanup.h"
#include "answer.h"
#include "commands.h"
#include "common.h"
#include "human.h"
#include "units.h"
#include "table.h"
#include "waiting.h"

/* Connects and gets the volumes; the caller deletes `*ret`. Returns an exit status. */
static int device_volumes(struct ctl *ctl, cJSON **ret)
{
        int r;

        ctl->request_timeout_ms = LONG_CALL_MS;
        r = ctl_connect(ctl);
        if (r)
                return r;
        r = answer_volumes(ctl, ret);
        if (r > 0)
                return complain(EXIT_REFUSED,
                                "device: the daemon's status does not list its volumes");
        return r < 0 ? complain_call(ctl, r, "device") : EXIT_OK;
}

/* Prints a line about a volume. Both texts may come from the daemon. */
static void print_about(const char *volume, const char *text)
{
        print_safe(volume, stdout);
        fputs(": ", stdout);
        print_safe(text, stdout);
        putchar('\n');
}

static void print_checksums(const cJSON *volume)
{
        const cJSON *errors = cJSON_GetObjectItemCaseSensitive(volume, "errors");
        uint64_t chunks = answer_count_of(errors, "checksum");
        char counted[UNITS_TEXT], text[256];

        if (chunks > 0) {
                snprintf(text, sizeof(text),
                         "%s did not match their checksums and were dropped; run kvcachectl "
                         "verify, and "
                         "check the device",
                         units_count(chunks, "chunk", counted));
                print_about(answer_text(volume, "volume"), text);
        }
}

static void print_losses(const cJSON *volume)
{
        uint64_t files = answer_count_of(volume, "lost_files");
        char counted[UNITS_TEXT], chunks[UNITS_TEXT], text[256];

        if (files > 0) {
                snprintf(text, sizeof(text),
                         "%s missing or short when the volume was opened, and %s lost; the log "
                         "names them",
                         units_count(files, "file", counted),
                         units_count(answer_count_of(volume, "lost_chunks"), "chunk", chunks));
                print_about(answer_text(volume, "volume"), text);
        }
}

static int device_ls(struct ctl *ctl)
{
        _cleanup_(cJSON_Deletep) cJSON *volumes = NULL, *object = NULL;
        struct text_table *table;
        const cJSON *volume;
        int status;

        status = device_volumes(ctl, &volumes);
        if (status)
                return status;
        if (ctl->json) {
                object = cJSON_CreateObject();
                cJSON_AddItemToObject(object, "volumes", TAKE_PTR(volumes));
                return print_json(object);
        }
        table = text_table_new("llrrrrrl");
        text_table_row(table, "VOLUME", "STATE", "LIVE", "RESERVED", "LIMIT", "CHUNKS", "ERRORS",
                       "SINCE");
        cJSON_ArrayForEach(volume, volumes)
        {
                const cJSON *errors = cJSON_GetObjectItemCaseSensitive(volume, "errors");
                char live[HUMAN_BYTES], reserved[HUMAN_BYTES], limit[HUMAN_BYTES],
                        chunks[HUMAN_BYTES], failed[HUMAN_BYTES], since[HUMAN_BYTES];

                units_bytes(answer_count_of(volume, "payload_bytes"), live);
                units_bytes(answer_count_of(volume, "used_bytes"), reserved);
                human_time(answer_count_of(volume, "since_unix_ms"), since);
                units_bytes(answer_count_of(volume, "limit_bytes"), limit);
                human_count(answer_count_of(volume, "chunks"), chunks);
                human_count(answer_count_of(errors, "read") + answer_count_of(errors, "write") +
                                    answer_count_of(errors, "sync") +
                                    answer_count_of(errors, "checksum"),
                            failed);
                text_table_row(table, answer_text(volume, "volume"), answer_text(volume, "state"),
                               live, reserved, limit, chunks, failed, since);
        }
        text_table_print(table, "", stdout);
        text_table_free(table);
        cJSON_ArrayForEach(volume, volumes)
        {
                if (answer_text(volume, "reason")[0])
                        print_about(answer_text(volume, "volume"), answer_text(volume, "reason"));
                if (cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(volume, "full")))
                        print_about(answer_text(volume, "volume"),
                                    "the file system has no free space above store.reserve: the "
                                    "volume does not grow");
                print_checksums(volume);
                print_losses(volume);
        }
        return EXIT_OK;
}

static int device_act(struct ctl *ctl, const char *action, const char *wanted)
{
        bool suspend = strcmp(action, "suspend") == 0;
        _cleanup_(cJSON_Deletep) cJSON *volumes = NULL, *object = NULL;
        const char *name;
        struct waiting waiting;
        char what[64];
        int status, number, r;

        status = device_volumes(ctl, &volumes);
        if (status)
                return status;
        number = answer_volume_number(volumes, wanted);
        if (number < 0)
                return complain(EXIT_NOT_FOUND,
                                "device %s: the daemon's store has no volume '%s'; \"kvcachectl "
                                "device ls\" lists the volumes",
                                action, wanted);
        name = answer_text(cJSON_GetArrayItem(volumes, number), "volume");
        snprintf(what, sizeof(what), "device %s", action);
        waiting_begin(&waiting, suspend ? "suspending" : "resuming");
        r = suspend ? kvcache_device_suspend(ctl->kv, (uint32_t)number)
                    : kvcache_device_resume(ctl->kv, (uint32_t)number);
        waiting_end(&waiting);
        if (r == -EACCES)
                return complain_admin(what);
        if (r < 0)
                return complain_call(ctl, r, what);
        if (ctl->json) {
                object = cJSON_CreateObject();
                cJSON_AddStringToObject(object, "volume", name);
                cJSON_AddStringToObject(object, "state", suspend ? "suspended" : "up");
                cJSON_AddBoolToObject(object, "changed", r == 0);
                return print_json(object);
        }
        print_safe(name, stdout);
        printf(": %s%s\n", r > 0 ? "was " : "", suspend ? "suspended" : "in use");
        return EXIT_OK;
}

static const struct option_row device_options[] = { { 0 } };
static const char *const device_actions[] = { "ls", "suspend", "resume", NULL };

static int run_device(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        const char *argument, *action;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                ;
        if (r < 0)
                return ctl->exit_status;
        action = first < argc ? argv[first] : "ls";
        r = action_index(ctl, self, action);
        if (r < 0)
                return ctl->exit_status;
        if (r == 0)
                return argc - first > 1 ? usage_error(self, "'device ls' takes no argument")
                                        : device_ls(ctl);
        if (argc - first != 2)
                return usage_error(self,
                                   "'device %s' needs one volume: its directory, or its number in "
                                   "'device ls', from 0",
                                   action);
        return device_act(ctl, action, argv[first + 1]);
}

const struct command command_device = {
        .name = "device",
        .arguments = "ls | suspend VOLUME | resume VOLUME",
        .operands = "volumes",
        .summary = "list, suspend or resume the volumes of the store",
        .help = "ls lists each volume with its state and its errors. suspend takes a volume out\n"
                "of use once all writes in progress are on disk: its chunks are misses until it\n"
                "is resumed, and new chunks go to the other volumes. resume probes the device and\n"
                "uses the volume again, also after the daemon bypassed it; chunks that were "
                "purged\n"
                "or evicted meanwhile stay deleted. VOLUME is the directory of the volume, or its\n"
                "number, from 0, in the order of ls. suspend and resume are for admins.",
        .options = device_options,
        .actions = device_actions,
        .run = run_device,
};
