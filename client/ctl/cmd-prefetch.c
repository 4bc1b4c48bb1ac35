/* SPDX-License-Identifier: Apache-2.0 */
/* prefetch: has the daemon read chunks from disk into memory for later gets. */
#include <stdlib.h>

#include "commands.h"
#include "common.h"
#include "human.h"
#include "keys.h"

enum { OPTION_FROM = OPTION_LONG };

static const struct option_row prefetch_options[] = {
        NAMESPACE_OPTION,
        FROM_OPTION(OPTION_FROM),
        { 0 },
};

struct prefetch {
        uint64_t begun, missing, no_room;
};

static int prefetch_keys(struct ctl *ctl, const struct key_batch *batch, void *userdata)
{
        struct prefetch *p = userdata;
        _cleanup_(freep) struct kvcache_result *results = NULL;
        int r = keys_ask(ctl, batch, "prefetch", KVCACHE_OP_PREFETCH, 0, &results);

        if (r)
                return r;
        for (size_t i = 0; i < batch->n; i++)
                switch (results[i].status) {
                case KVCACHE_OK:
                        p->begun++;
                        break;
                case KVCACHE_MISS:
                        p->missing++;
                        break;
                case KVCACHE_BUSY:
                case KVCACHE_TOO_LARGE:
                        p->no_room++;
                        break;
                default:
                        return complain_status(results[i].status, "prefetch");
                }
        return EXIT_OK;
}

static int run_prefetch(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        char begun[HUMAN_BYTES], missing[HUMAN_BYTES], no_room[HUMAN_BYTES];
        struct keys_wanted wanted;
        struct prefetch p = { 0 };
        int r;

        if (!keys_options(ctl, self, argc, argv, &wanted))
                return ctl->exit_status;
        r = keys_walk(ctl, &wanted, prefetch_keys, &p);
        if (r)
                return r;
        if (ctl->json) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

                cJSON_AddNumberToObject(object, "prefetched", (double)p.begun);
                cJSON_AddNumberToObject(object, "missing", (double)p.missing);
                cJSON_AddNumberToObject(object, "no_room", (double)p.no_room);
                r = print_json(object);
        } else {
                human_count(p.begun, begun);
                human_count(p.missing, missing);
                human_count(p.no_room, no_room);
                printf("%s in memory or being read, %s missing", begun, missing);
                if (p.no_room)
                        printf(", %s left out: no room now", no_room);
                putchar('\n');
        }
        if (r == EXIT_OK && p.no_room > 0)
                return EXIT_REFUSED;
        return r ? r : p.missing > 0 ? EXIT_NOT_FOUND : EXIT_OK;
}

const struct command command_prefetch = {
        .name = "prefetch",
        .arguments = "KEY... | --from FILE",
        .summary = "read chunks from disk into memory ahead of gets",
        .help = "Has the daemon read chunks from disk into memory, so that later gets hit memory.\n"
                "Does not wait for the reads. The daemon prefetches at most a quarter of the "
                "pool,\n"
                "128 MiB or 1,024 chunks at a time and skips the keys beyond that (exit status "
                "4).\n"
                "\n" KEY_HELP,
        .options = prefetch_options,
        .run = run_prefetch,
};
