/* SPDX-License-Identifier: Apache-2.0 */
/* pin and unpin: exempt chunks on disk from eviction, and end the exemption. */
#include <stdlib.h>

#include "commands.h"
#include "common.h"
#include "human.h"
#include "keys.h"

enum { OPTION_FROM = OPTION_LONG };

static const struct option_row pin_options[] = {
        NAMESPACE_OPTION,
        FROM_OPTION(OPTION_FROM),
        { 0 },
};

struct pin {
        enum kvcache_op op;
        const char *command;
        uint64_t done, missing, early, refused;
};

static int pin_keys(struct ctl *ctl, const struct key_batch *batch, void *userdata)
{
        struct pin *p = userdata;
        _cleanup_(freep) struct kvcache_result *results = NULL;
        int r = keys_ask(ctl, batch, p->command, p->op, 0, &results);

        if (r)
                return r;
        for (size_t i = 0; i < batch->n; i++)
                switch (results[i].status) {
                case KVCACHE_OK:
                        p->done++;
                        break;
                case KVCACHE_MISS:
                        p->missing++;
                        break;
                case KVCACHE_BUSY:
                        p->early++;
                        break;
                case KVCACHE_QUOTA:
                        p->refused++;
                        break;
                default:
                        return complain_status(results[i].status, p->command);
                }
        return EXIT_OK;
}

static int print_pinned(const struct ctl *ctl, const struct pin *p)
{
        const char *done = p->op == KVCACHE_OP_PIN ? "pinned" : "unpinned";
        char text[4][HUMAN_BYTES];

        if (ctl->json) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

                cJSON_AddNumberToObject(object, done, (double)p->done);
                cJSON_AddNumberToObject(object, "missing", (double)p->missing);
                cJSON_AddNumberToObject(object, "not_yet_on_disk", (double)p->early);
                cJSON_AddNumberToObject(object, "over_limit", (double)p->refused);
                return print_json(object);
        }
        human_count(p->done, text[0]);
        human_count(p->missing, text[1]);
        human_count(p->early, text[2]);
        human_count(p->refused, text[3]);
        printf("%s %s, %s missing", text[0], done, text[1]);
        if (p->early)
                printf(", %s not pinned because they are being written; try again", text[2]);
        if (p->refused)
                printf(", %s not pinned: over the tenant's limit (tenants.pinned_bytes)", text[3]);
        putchar('\n');
        return EXIT_OK;
}

static int run_pin(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct pin p = {
                .op = self == &command_pin ? KVCACHE_OP_PIN : KVCACHE_OP_UNPIN,
                .command = self->name,
        };
        struct keys_wanted wanted;
        int r;

        if (!keys_options(ctl, self, argc, argv, &wanted))
                return ctl->exit_status;
        r = keys_walk(ctl, &wanted, pin_keys, &p);
        if (r)
                return r;
        r = print_pinned(ctl, &p);
        if (r == EXIT_OK && p.early + p.refused > 0)
                return EXIT_REFUSED;
        return r ? r : p.missing > 0 ? EXIT_NOT_FOUND : EXIT_OK;
}

const struct command command_pin = {
        .name = "pin",
        .arguments = "KEY... | --from FILE",
        .summary = "exempt chunks on disk from eviction",
        .help = "Exempts chunks on disk from eviction until they are unpinned, evicted by name or\n"
                "purged. Pin a system prompt, for example. Pins belong to the tenant, which may "
                "pin\n"
                "tenants.pinned_bytes, and outlive connections and restarts of the daemon. A "
                "chunk\n"
                "that is still being written, or over that limit, is not pinned (exit status 4).\n"
                "\n" KEY_HELP,
        .options = pin_options,
        .run = run_pin,
};

const struct command command_unpin = {
        .name = "unpin",
        .arguments = "KEY... | --from FILE",
        .summary = "make pinned chunks evictable again",
        .help = "Ends the effect of `pin`: the chunks are evicted like any others, starting as if\n"
                "they had just been used.\n"
                "\n" KEY_HELP,
        .options = pin_options,
        .run = run_pin,
};
