/* SPDX-License-Identifier: Apache-2.0 */
/* `store check`: reports before an upgrade or a downgrade whether this version can open a store.
 * The command reads the superblocks itself, whether or not a daemon has the store open, and
 * changes nothing. Without an operand, it gets the directories of the volumes from a running
 * daemon. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "answer.h"
#include "build-config.h"
#include "checked.h"
#include "cleanup.h"
#include "commands.h"
#include "common.h"
#include "store/store.h"

enum { EXIT_WOULD_REFUSE = 1 };

static void print_format(const char *directory, const struct store_format *f, const char *reason)
{
        print_safe(directory, stdout);
        printf(": format version %" PRIu32 ", features: %s\n", f->version,
               f->features[0] ? f->features : "none");
        if (!f->opens) {
                fputs("  version " KVCACHE_BUILD_VERSION " refuses it, and does not change it: ",
                      stdout);
                print_safe(reason, stdout);
                putchar('\n');
                return;
        }
        if (f->version == f->version_known)
                fputs("  version " KVCACHE_BUILD_VERSION " opens it and keeps its format\n",
                      stdout);
        else
                printf("  version " KVCACHE_BUILD_VERSION " opens it and makes it format version "
                       "%" PRIu32 ", which versions that know only %" PRIu32 " refuse\n",
                       f->version_known, f->version);
        printf("  another version opens it as it is now if it knows format version %" PRIu32
               "%s%s\n",
               f->version, f->features[0] ? " and " : "", f->features);
        if (f->incompat & f->incompat_known)
                puts("  a write of the table has failed; the next startup of the daemon clears "
                     "void-pages");
}

static cJSON *flags_json(uint64_t compat, uint64_t ro_compat, uint64_t incompat)
{
        const struct {
                const char *name;
                uint64_t flags;
        } rows[] = { { "compat", compat }, { "ro_compat", ro_compat }, { "incompat", incompat } };
        cJSON *o = cJSON_CreateObject();

        for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
                char text[24]; /* a text, because a JSON number is exact to 53 bits only */

                snprintf(text, sizeof(text), "%#" PRIx64, rows[i].flags);
                cJSON_AddStringToObject(o, rows[i].name, text);
        }
        return o;
}

static cJSON *format_json(const char *directory, const struct store_format *f, const char *reason)
{
        cJSON *o = cJSON_CreateObject();

        cJSON_AddStringToObject(o, "volume", directory);
        cJSON_AddNumberToObject(o, "format_version", f->version);
        cJSON_AddItemToObject(o, "flags", flags_json(f->compat, f->ro_compat, f->incompat));
        cJSON_AddStringToObject(o, "features", f->features);
        cJSON_AddBoolToObject(o, "opens", f->opens);
        if (!f->opens)
                cJSON_AddStringToObject(o, "reason", reason);
        return o;
}

struct check {
        struct ctl *ctl;
        struct store_format known; /* format of the last volume that could be read; only the
                                      members *_known are used, which describe this version */
        cJSON *volumes;
        int status;
};

static void check_volume(struct check *c, const char *directory)
{
        struct store_format f;
        char error[512] = "";
        int r;

        if (strlen(directory) >= PATH_MAX) {
                c->status = complain(EXIT_BAD_INPUT, "%.64s...: the path is too long", directory);
                return;
        }
        r = store_read_format(directory, &f, error);
        if (r < 0) {
                const char *hint = r == -EACCES || r == -EPERM
                                           ? ": only root and the daemon's user may read it"
                                           : "";

                c->status = complain(EXIT_BAD_INPUT, "%s%s", error, hint);
                return;
        }
        c->known = f;
        if (!f.opens && c->status == EXIT_OK)
                c->status = EXIT_WOULD_REFUSE;
        if (c->ctl->json)
                cJSON_AddItemToArray(c->volumes, format_json(directory, &f, error));
        else
                print_format(directory, &f, error);
}

static int daemons_volumes(struct check *c)
{
        _cleanup_(cJSON_Deletep) cJSON *volumes = NULL;
        const cJSON *volume;
        int r = ctl_connect(c->ctl);

        if (r)
                return r;
        r = answer_volumes(c->ctl, &volumes);
        if (r < 0)
                return complain_call(c->ctl, r, "store check");
        if (r > 0)
                return complain(EXIT_REFUSED,
                                "store check: the daemon's status does not list its volumes");
        cJSON_ArrayForEach(volume, volumes)
        {
                check_volume(c, answer_text(volume, "volume"));
        }
        return EXIT_OK;
}

static const struct option_row store_options[] = { { 0 } };
static const char *const store_actions[] = { "check", NULL };

static int run_store(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        _cleanup_(cJSON_Deletep) cJSON *volumes = NULL;
        struct check c = { .ctl = ctl };
        const char *argument;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                ;
        if (r < 0)
                return ctl->exit_status;
        if (first == argc)
                return usage_error(self, "store needs an action: check");
        if (action_index(ctl, self, argv[first]) < 0)
                return ctl->exit_status;
        c.volumes = volumes = cJSON_CreateArray();
        for (int i = first + 1; i < argc; i++)
                check_volume(&c, argv[i]);
        if (first + 1 == argc) {
                r = daemons_volumes(&c);
                if (r)
                        return r;
        }
        if (ctl->json && cJSON_GetArraySize(volumes) > 0) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

                cJSON_AddStringToObject(object, "version", KVCACHE_BUILD_VERSION);
                cJSON_AddNumberToObject(object, "format_version", c.known.version_known);
                cJSON_AddItemToObject(object, "known_flags",
                                      flags_json(c.known.compat_known, c.known.ro_compat_known,
                                                 c.known.incompat_known));
                cJSON_AddItemToObject(object, "volumes", TAKE_PTR(volumes));
                if (print_json(object) != EXIT_OK)
                        return EXIT_LOCAL;
        }
        return c.status;
}

const struct command command_store = {
        .name = "store",
        .arguments = "check [DIR...]",
        .summary = "check whether this version can open a store, before an upgrade or a downgrade",
        .help = "check prints the format of a store, whether this version can open it and would\n"
                "change the format, and which features another version needs to open it. DIR is\n"
                "the directory of a volume; without it, all volumes of the running daemon are\n"
                "checked. Only their superblocks are read, also while a daemon has them open, and\n"
                "nothing is written. This takes root, or the daemon's user. To ask another "
                "version,\n"
                "run its kvcachectl.",
        .options = store_options,
        .actions = store_actions,
        .run = run_store,
};
