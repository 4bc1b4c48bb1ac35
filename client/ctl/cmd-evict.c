/* SPDX-License-Identifier: Apache-2.0 */
/* evict and purge. evict drops single chunks, or their copies in memory only; purge deletes a
 * namespace's chunks, or all chunks, permanently. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "human.h"
#include "keys.h"
#include "progress.h"
#include "waiting.h"

/* --- evict --- */

enum { OPTION_TIER = OPTION_LONG, OPTION_FROM, OPTION_ALL, OPTION_YES, OPTION_REMOTE };

static const struct option_row evict_options[] = {
        NAMESPACE_OPTION,
        { OPTION_TIER, "tier", "TIER", "memory: drop the copies in memory only; all (the default)",
          "memory all" },
        FROM_OPTION(OPTION_FROM),
        { OPTION_ALL, "all", NULL, "evict every chunk of the namespace that `ls` lists" },
        { 0 },
};

struct eviction {
        uint32_t tiers;
        cJSON *keys; /* with --json, the results of the operands; NULL otherwise */
        bool each;   /* print a line for every key */
        uint64_t evicted, missing, unwritten;
};

static void note_evicted(const struct eviction *e, const struct key_batch *batch, size_t i,
                         int status)
{
        const char *what = status == KVCACHE_MISS            ? "missing"
                           : status == KVCACHE_BUSY          ? "not on disk yet, and kept"
                           : e->tiers == KVCACHE_TIER_MEMORY ? "evicted from memory"
                                                             : "evicted";
        char name[KEY_NAME_BYTES], hex[KEY_TEXT_BYTES];
        cJSON *object;

        if (e->keys) {
                object = cJSON_CreateObject();
                key_print(&batch->keys[i], hex);
                cJSON_AddStringToObject(object, "key", hex);
                cJSON_AddStringToObject(object, "name", batch->names[i]);
                cJSON_AddStringToObject(object, "status", kvcache_status_name(status));
                cJSON_AddItemToArray(e->keys, object);
        } else if (e->each) {
                printf("%s  %s\n", keys_name(batch, i, name), what);
        }
}

static int evict_keys(struct ctl *ctl, const struct key_batch *batch, void *userdata)
{
        struct eviction *e = userdata;
        _cleanup_(freep) struct kvcache_result *results = NULL;
        int r = keys_ask(ctl, batch, "evict", KVCACHE_OP_EVICT, e->tiers, &results);

        if (r)
                return r;
        for (size_t i = 0; i < batch->n; i++) {
                int status = results[i].status;

                switch (status) {
                case KVCACHE_OK:
                        e->evicted++;
                        break;
                case KVCACHE_MISS:
                        e->missing++;
                        break;
                case KVCACHE_BUSY:
                        e->unwritten++;
                        break;
                default:
                        return complain_status(status, "evict");
                }
                note_evicted(e, batch, i, status);
        }
        return EXIT_OK;
}

/* Evicts all chunks of a namespace. Collects their keys first, because a listing may skip chunks
 * while other chunks are removed. Returns an exit status. */
static int evict_all(struct ctl *ctl, const char *namespace_name, struct eviction *e)
{
        enum { PAGE = 512, BATCH = 4096 };
        _cleanup_(freep) struct kvcache_listed *listed = calloc(PAGE, sizeof(*listed));
        _cleanup_(freep) struct kvcache_key *keys = NULL;
        struct key_batch batch = { .namespace_name = namespace_name };
        struct progress progress;
        uint64_t cursor = 0;
        size_t total = 0, room = 0;
        int r, n;

        if (!listed)
                return complain_memory();
        r = ctl_connect(ctl);
        if (r)
                return r;
        r = namespace_attach(ctl, namespace_name, &batch.namespace_handle);
        if (r)
                return r;
        progress_init(&progress);
        do {
                progress_note(&progress, 0, "listing", total, "key");
                n = kvcache_list(ctl->kv, batch.namespace_handle, &cursor, listed, PAGE);
                if (n < 0)
                        return complain_call(ctl, n, "evict");
                if (room - total < (size_t)n) {
                        void *p = reallocarray(keys, room = 2 * room + PAGE, sizeof(*keys));

                        if (!p)
                                return complain_memory();
                        keys = p;
                }
                for (int i = 0; i < n; i++)
                        keys[total++] = listed[i].key;
        } while (cursor != 0);

        for (size_t at = 0; at < total; at += batch.n) {
                batch.keys = keys + at;
                batch.n = total - at < BATCH ? total - at : BATCH;
                progress_note(&progress, (double)at / (double)total, "evicting", at, "key");
                r = evict_keys(ctl, &batch, e);
                if (r)
                        return r;
        }
        progress_end(&progress);
        return EXIT_OK;
}

static int run_evict(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct keys_wanted wanted = { .namespace_name = DEFAULT_NAMESPACE };
        struct eviction e = { .tiers = KVCACHE_TIER_ALL };
        _cleanup_(cJSON_Deletep) cJSON *object = NULL;
        const char *argument;
        bool all = false;
        char evicted[HUMAN_BYTES], missing[HUMAN_BYTES], unwritten[HUMAN_BYTES];
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                switch (r) {
                case 'n':
                        wanted.namespace_name = argument;
                        break;
                case OPTION_TIER:
                        if (strcmp(argument, "memory") == 0)
                                e.tiers = KVCACHE_TIER_MEMORY;
                        else if (strcmp(argument, "all") == 0)
                                e.tiers = KVCACHE_TIER_ALL;
                        else
                                return usage_error(self, "--tier: '%s' is not memory or all",
                                                   argument);
                        break;
                case OPTION_FROM:
                        wanted.from = argument;
                        break;
                case OPTION_ALL:
                        all = true;
                        break;
                }
        if (r < 0)
                return ctl->exit_status;
        if ((first < argc) + (wanted.from != NULL) + all != 1)
                return usage_error(self, "give exactly one of: keys, --from FILE, --all");
        wanted.operands = argv + first;
        wanted.n_operands = argc - first;
        e.each = !all && !wanted.from;
        if (ctl->json) {
                object = cJSON_CreateObject();
                e.keys = e.each ? cJSON_AddArrayToObject(object, "keys") : NULL;
        }
        if (all)
                r = evict_all(ctl, wanted.namespace_name, &e);
        else
                r = keys_walk(ctl, &wanted, evict_keys, &e);
        if (r)
                return r;
        if (ctl->json) {
                cJSON_AddNumberToObject(object, "evicted", (double)e.evicted);
                cJSON_AddNumberToObject(object, "missing", (double)e.missing);
                cJSON_AddNumberToObject(object, "unwritten", (double)e.unwritten);
                r = print_json(object);
        } else if (!e.each) {
                human_count(e.evicted, evicted);
                human_count(e.missing, missing);
                human_count(e.unwritten, unwritten);
                printf("%s evicted%s, %s missing", evicted,
                       e.tiers == KVCACHE_TIER_MEMORY ? " from memory" : "", missing);
                if (e.unwritten)
                        printf(", %s not on disk yet and kept", unwritten);
                putchar('\n');
        }
        if (r == EXIT_OK && e.unwritten > 0)
                return EXIT_REFUSED;
        return r ? r : !all && e.missing > 0 ? EXIT_NOT_FOUND : EXIT_OK;
}

const struct command command_evict = {
        .name = "evict",
        .arguments = "KEY... | --from FILE | --all",
        .summary = "evict chunks from the cache, or from memory only",
        .help = "Evicts chunks. Later gets miss them; a client that has leased one continues to\n"
                "read it. With --tier memory, only the copies in memory are dropped, and the next\n"
                "get reads from disk, which is useful for measuring; a chunk that is not on disk\n"
                "yet stays in memory (exit status 4).\n"
                "\n"
                "After a power loss, but not after a restart, an evicted chunk may be back. Use\n"
                "`purge` to delete chunks permanently.\n"
                "\n" KEY_HELP,
        .options = evict_options,
        .run = run_evict,
};

/* --- purge --- */

static const struct option_row purge_options[] = {
        { OPTION_ALL, "all", NULL, "purge all namespaces of the store; for admins" },
        { OPTION_REMOTE, "remote", NULL, "also purge the copies on the shared tier" },
        { OPTION_YES, "yes", NULL, "do not ask for confirmation on a terminal" },
        { 0 },
};

/* Asks for confirmation on a terminal. `namespace_name`: NULL for everything. Returns whether the
 * answer begins with y or Y. */
static bool confirmed(const char *namespace_name, bool remote)
{
        char answer[16];

        fputs("Permanently delete all chunks of ", stderr);
        if (namespace_name) {
                fputs("namespace ", stderr);
                print_safe(namespace_name, stderr);
        } else {
                fputs("all namespaces", stderr);
        }
        fputs(remote ? " from this host, and from the shared tier for all hosts? [y/N] "
                     : " from this host? [y/N] ",
              stderr);
        return fgets(answer, sizeof(answer), stdin) && (answer[0] == 'y' || answer[0] == 'Y');
}

static int run_purge(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        bool all = false, yes = false, remote = false;
        uint64_t dropped = 0;
        uint32_t namespace = 0, seconds = 0;
        struct waiting waiting;
        const char *argument;
        char text[HUMAN_BYTES];
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                if (r == OPTION_ALL)
                        all = true;
                else if (r == OPTION_REMOTE)
                        remote = true;
                else
                        yes = true;
        if (r < 0)
                return ctl->exit_status;
        if (argc - first != (all ? 0 : 1))
                return usage_error(self, "give exactly one of: NS, --all");
        if (!yes && isatty(STDIN_FILENO) && !confirmed(all ? NULL : argv[first], remote))
                return complain(EXIT_INTERRUPTED, "purge: not confirmed, and nothing was done");
        ctl->request_timeout_ms = LONG_CALL_MS;
        r = ctl_connect(ctl);
        if (r)
                return r;
        if (!all) {
                r = namespace_attach(ctl, argv[first], &namespace);
                if (r)
                        return r;
        }
        waiting_begin(&waiting, "purging");
        if (all)
                r = remote ? kvcache_purge_all_remote(ctl->kv, &dropped, &seconds)
                           : kvcache_purge_all(ctl->kv, &dropped);
        else
                r = remote ? kvcache_purge_remote(ctl->kv, namespace, &dropped, &seconds)
                           : kvcache_purge(ctl->kv, namespace, &dropped);
        waiting_end(&waiting);
        if (all && r == -EACCES)
                return complain_admin("purge --all");
        if (r < 0)
                return complain_call(ctl, r, "purge");
        if (ctl->json) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

                cJSON_AddNumberToObject(object, "dropped", (double)dropped);
                if (remote)
                        cJSON_AddNumberToObject(object, "other_hosts_seconds", seconds);
                return print_json(object);
        }
        human_count(dropped, text);
        printf("%s chunk%s purged%s\n", text, dropped == 1 ? "" : "s", remote ? " here" : "");
        if (remote)
                printf("The shared tier is purged; other hosts may serve their copies for up to %u "
                       "s.\n",
                       seconds);
        return EXIT_OK;
}

const struct command command_purge = {
        .name = "purge",
        .arguments = "NS | --all",
        .operands = "namespaces",
        .summary = "delete the chunks of a namespace, or all chunks, permanently",
        .help = "Deletes every chunk of a namespace, or of the store. The deletion is on stable\n"
                "storage when the command returns: the chunks never come back, not even after a\n"
                "power loss.\n"
                "\n"
                "Copies on a shared tier (remote.backend) stay there and are served from there\n"
                "again, unless --remote is given. With --remote, other hosts drop their copies,\n"
                "too, but may serve them until they learn of the purge: the answer says how long\n"
                "that takes at most (remote.generation_interval).",
        .options = purge_options,
        .run = run_purge,
};
