/* SPDX-License-Identifier: Apache-2.0 */
/* hint: tells the daemon when chains of chunks will be used again, or that they will not be. */
#include <stdlib.h>

#include "commands.h"
#include "common.h"
#include "human.h"
#include "keys.h"

enum { OPTION_FROM = OPTION_LONG };

static const struct option_row hint_options[] = {
        NAMESPACE_OPTION,
        FROM_OPTION(OPTION_FROM),
        { 0 },
};

struct hint {
        uint32_t return_s;
        uint64_t found, missing;
};

static int hint_keys(struct ctl *ctl, const struct key_batch *batch, void *userdata)
{
        struct hint *h = userdata;
        _cleanup_(freep) struct kvcache_result *results = NULL;
        int r = keys_ask(ctl, batch, "hint", KVCACHE_OP_HINT, h->return_s, &results);

        if (r)
                return r;
        for (size_t i = 0; i < batch->n; i++) {
                if (results[i].status != KVCACHE_OK && results[i].status != KVCACHE_MISS)
                        return complain_status(results[i].status, "hint");
                h->found += results[i].status == KVCACHE_OK;
                h->missing += results[i].status == KVCACHE_MISS;
        }
        return EXIT_OK;
}

static const char *const hint_actions[] = { "final", "return", NULL };

/* Parses `final` or `return SECONDS`, and advances `*first` past it. */
static bool hint_kind(struct ctl *ctl, const struct command *self, int argc, char **argv,
                      int *first, struct hint *ret)
{
        unsigned long long seconds;
        int kind;

        if (*first == argc) {
                ctl->exit_status =
                        usage_error(self, "'final' or 'return SECONDS' is needed before the keys");
                return false;
        }
        kind = action_index(ctl, self, argv[(*first)++]);
        if (kind <= 0)
                return kind == 0;
        if (*first == argc) {
                ctl->exit_status = usage_error(self, "'hint return': in how many seconds?");
                return false;
        }
        if (!option_count(ctl, "hint return", argv[(*first)++], 1, UINT32_MAX, &seconds))
                return false;
        ret->return_s = (uint32_t)seconds;
        return true;
}

static int run_hint(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct keys_wanted wanted = { .namespace_name = DEFAULT_NAMESPACE };
        char found[HUMAN_BYTES], missing[HUMAN_BYTES];
        struct hint h = { 0 };
        const char *argument;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                *(r == 'n' ? &wanted.namespace_name : &wanted.from) = argument;
        if (r < 0 || !hint_kind(ctl, self, argc, argv, &first, &h) ||
            !keys_operands(ctl, self, argc, argv, first, &wanted))
                return ctl->exit_status;
        r = keys_walk(ctl, &wanted, hint_keys, &h);
        if (r)
                return r;
        if (ctl->json) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

                cJSON_AddNumberToObject(object, "hinted", (double)h.found);
                cJSON_AddNumberToObject(object, "missing", (double)h.missing);
                r = print_json(object);
        } else {
                human_count(h.found, found);
                human_count(h.missing, missing);
                printf("%s hinted, %s missing\n", found, missing);
        }
        return r ? r : h.missing > 0 ? EXIT_NOT_FOUND : EXIT_OK;
}

const struct command command_hint = {
        .name = "hint",
        .arguments = "final | return SECONDS  KEY... | --from FILE",
        .summary = "announce when chunks will be used again",
        .help = "Tells the daemon that a chain of chunks, root first, will not be used again\n"
                "(`final`), or in how many seconds it will be (`return`). Final chunks are "
                "evicted\n"
                "first, except those that another chain shares. Hints are advice: the daemon "
                "learns\n"
                "how reliable they are, and the next use of a chunk ends its hint. With --from, up "
                "to\n"
                "4,096 consecutive keys of one namespace form a chain.\n"
                "\n" KEY_HELP,
        .options = hint_options,
        .actions = hint_actions,
        .run = run_hint,
};
