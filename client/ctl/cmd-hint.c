/* SPDX-License-Identifier: Apache-2.0 */
/* hint: tells the daemon when chains of chunks will be used again, or that they will not be. */
#include <stdlib.h>

#include "commands.h"
#include "common.h"
#include "human.h"
#include "keys.h"

enum { OPTION_FROM = OPTION_LONG };
enum { RETURN = 1 }; /* index in hint_actions[] */

static const struct option_row hint_options[] = {
        NAMESPACE_OPTION,
        FROM_OPTION(OPTION_FROM),
        { 0 },
};

struct hint {
        uint32_t return_s;          /* seconds until the chains are used again; 0: they are final */
        enum kvcache_advice advice; /* KVCACHE_ADVICE_NONE: a hint of `return_s` */
        uint64_t found, missing, busy; /* numbers of keys; busy: not demoted, because the chunk is
                                          in use or not on disk */
};

static int hint_keys(struct ctl *ctl, const struct key_batch *batch, void *userdata)
{
        struct hint *h = userdata;
        _cleanup_(freep) struct kvcache_result *results = NULL;
        int r = h->advice != KVCACHE_ADVICE_NONE
                        ? keys_ask(ctl, batch, "hint", KVCACHE_OP_ADVISE, h->advice, &results)
                        : keys_ask(ctl, batch, "hint", KVCACHE_OP_HINT, h->return_s, &results);

        if (r)
                return r;
        for (size_t i = 0; i < batch->n; i++) {
                if (results[i].status == KVCACHE_BUSY && h->advice == KVCACHE_ADVICE_DEMOTE) {
                        h->busy++;
                        continue;
                }
                if (results[i].status != KVCACHE_OK && results[i].status != KVCACHE_MISS)
                        return complain_status(results[i].status, "hint");
                h->found += results[i].status == KVCACHE_OK;
                h->missing += results[i].status == KVCACHE_MISS;
        }
        return EXIT_OK;
}

static const char *const hint_actions[] = { "final",  "return", "tool-call", "turn-end",
                                            "demote", "share",  NULL };
static const enum kvcache_advice advice_of_action[] = {
        KVCACHE_ADVICE_NONE,     KVCACHE_ADVICE_NONE,   KVCACHE_ADVICE_TOOL_CALL,
        KVCACHE_ADVICE_TURN_END, KVCACHE_ADVICE_DEMOTE, KVCACHE_ADVICE_SHARE,
};

/* Parses the kind of hint and, for `return`, the seconds that follow; advances `*first` past them.
 * Returns false if the command must end with ctl->exit_status. */
static bool hint_kind(struct ctl *ctl, const struct command *self, int argc, char **argv,
                      int *first, struct hint *ret)
{
        unsigned long long seconds;
        int kind;

        if (*first == argc) {
                ctl->exit_status = usage_error(
                        self, "the kind of hint is needed before the keys: final, return "
                              "SECONDS, tool-call, turn-end, demote or share");
                return false;
        }
        kind = action_index(ctl, self, argv[(*first)++]);
        if (kind < 0)
                return false;
        ret->advice = advice_of_action[kind];
        if (kind != RETURN)
                return true;
        if (*first == argc) {
                ctl->exit_status = usage_error(
                        self, "'hint return' needs the number of seconds until the next "
                              "use, and then keys");
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
        char found[HUMAN_BYTES], missing[HUMAN_BYTES], busy[HUMAN_BYTES];
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
                if (h.advice == KVCACHE_ADVICE_DEMOTE)
                        cJSON_AddNumberToObject(object, "busy", (double)h.busy);
                r = print_json(object);
        } else {
                human_count(h.found, found);
                human_count(h.missing, missing);
                printf("%s hinted, %s missing", found, missing);
                if (h.busy > 0)
                        printf(", %s in use or not on disk", human_count(h.busy, busy));
                printf("\n");
        }
        return r ? r : h.missing > 0 ? EXIT_NOT_FOUND : h.busy > 0 ? EXIT_REFUSED : EXIT_OK;
}

const struct command command_hint = {
        .name = "hint",
        .arguments = "final | return SECONDS | tool-call | turn-end | demote | share  KEY... | "
                     "--from FILE",
        .summary = "announce when chunks will be used again",
        .help = "Tells the daemon that a chain of chunks, root first, will not be used again\n"
                "(`final`), in how many seconds it will be (`return`), or why the engine stopped\n"
                "(`tool-call`, `turn-end`). Final chunks are evicted first, except those that "
                "another\n"
                "chain shares. Announced returns are advice: they are believed as far as those of "
                "this\n"
                "user came true, and end with the next use of the chunk. `demote` drops the copies "
                "in\n"
                "memory of chunks on disk; `share` offers chunks in memory to the shared tier. "
                "With\n"
                "--from, up to 4,096 consecutive keys of one namespace form a chain.\n"
                "\n" KEY_HELP,
        .options = hint_options,
        .actions = hint_actions,
        .run = run_hint,
};
