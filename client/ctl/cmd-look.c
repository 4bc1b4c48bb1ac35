/* SPDX-License-Identifier: Apache-2.0 */
/* exists, stat and ls: report which chunks are stored, without moving their bytes. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "human.h"
#include "progress.h"
#include "units.h"
#include "namespaces.h"
#include "keys.h"
#include "checked.h"
#include "reuse-class.h"
#include "table.h"

/* --- exists --- */

enum { OPTION_FROM = OPTION_LONG, OPTION_LIMIT, OPTION_LIST };
enum { SHOWN_MISSING = 10, LISTED_MISSING = 1000 };

static const struct option_row exists_options[] = {
        NAMESPACE_OPTION,
        FROM_OPTION(OPTION_FROM),
        { 0 },
};

struct existence {
        bool each; /* print a line for every key */
        uint64_t found, missing;
        cJSON *keys, *missing_keys; /* with --json, array of all keys if `each`, otherwise array of
                                       missing keys; the other one is NULL, and without --json both
                                       are */
};

static void note_key(struct ctl *ctl, struct existence *e, const struct key_batch *batch, size_t i,
                     bool found, uint32_t tiers)
{
        char hex[KEY_TEXT_BYTES], name[KEY_NAME_BYTES];

        key_print(&batch->keys[i], hex);
        if (found)
                e->found++;
        else
                e->missing++;
        if (ctl->json && e->each) {
                cJSON *object = cJSON_CreateObject();

                cJSON_AddStringToObject(object, "key", hex);
                cJSON_AddStringToObject(object, "name", batch->names[i]);
                cJSON_AddBoolToObject(object, "found", found);
                cJSON_AddItemToObject(object, "tiers", tiers_json(tiers));
                cJSON_AddItemToArray(e->keys, object);
        } else if (e->each) {
                printf("%s  %s\n", keys_name(batch, i, name),
                       found ? tiers_text(tiers) : "missing");
        } else if (!found && ctl->json && e->missing <= LISTED_MISSING) {
                cJSON_AddItemToArray(e->missing_keys, cJSON_CreateString(hex));
        } else if (!found && !ctl->json && e->missing <= SHOWN_MISSING) {
                progress_clear();
                fprintf(stderr, "missing: %s in ", hex);
                print_safe(batch->namespace_name, stderr);
                fputc('\n', stderr);
        }
}

static int look_up(struct ctl *ctl, const struct key_batch *batch, void *userdata)
{
        struct existence *e = userdata;
        _cleanup_(freep) struct kvcache_result *results = NULL;
        int r = keys_ask(ctl, batch, "exists", KVCACHE_OP_EXISTS, 0, &results);

        if (r)
                return r;
        for (size_t i = 0; i < batch->n; i++) {
                int status = results[i].status;

                if (status != KVCACHE_OK && status != KVCACHE_EXISTS && status != KVCACHE_MISS)
                        return complain_status(status, "exists");
                note_key(ctl, e, batch, i, status != KVCACHE_MISS, results[i].tiers);
        }
        return EXIT_OK;
}

static int run_exists(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        _cleanup_(cJSON_Deletep) cJSON *object = NULL;
        struct keys_wanted wanted;
        struct existence e = { 0 };
        char found[HUMAN_BYTES], missing[HUMAN_BYTES];
        int r;

        if (!keys_options(ctl, self, argc, argv, &wanted))
                return ctl->exit_status;
        e.each = !wanted.from;
        if (ctl->json) {
                object = cJSON_CreateObject();
                e.keys = e.each ? cJSON_AddArrayToObject(object, "keys") : NULL;
                e.missing_keys = e.each ? NULL : cJSON_AddArrayToObject(object, "missing_keys");
        }
        r = keys_walk(ctl, &wanted, look_up, &e);
        if (r)
                return r;
        if (ctl->json) {
                cJSON_AddNumberToObject(object, "found", (double)e.found);
                cJSON_AddNumberToObject(object, "missing", (double)e.missing);
                r = print_json(object);
        } else if (!e.each) {
                if (e.missing > SHOWN_MISSING)
                        fprintf(stderr, "and %llu more keys are missing\n",
                                (unsigned long long)(e.missing - SHOWN_MISSING));
                human_count(e.found, found);
                human_count(e.missing, missing);
                printf("%s found, %s missing\n", found, missing);
        }
        return r ? r : e.missing > 0 ? EXIT_NOT_FOUND : EXIT_OK;
}

const struct command command_exists = {
        .name = "exists",
        .arguments = "KEY... | --from FILE",
        .summary = "check whether keys are present",
        .help = "Prints for each key whether it is present, and in which tier. With --from,\n"
                "prints how many keys of the file are present, how many are missing, and the\n"
                "first ten of the missing ones. Status 0: all are present; 1: some are missing. A\n"
                "line of FILE is \"<64 hex digits> [length [namespace]]\"; \"#\" begins a "
                "comment.\n"
                "\n" KEY_HELP,
        .options = exists_options,
        .run = run_exists,
};

/* --- stat --- */

static const struct option_row stat_options[] = {
        NAMESPACE_OPTION,
        { 0 },
};

struct stat_output {
        struct text_table *table, *standings, *keys;
        cJSON *array;
        uint64_t missing, named; /* missing: number of keys that are not stored; named: number of
                                    keys that the user did not give as hex digits */
};

/* Returns the worth of a chunk (kvcache.h, struct kvcache_standing), divided by that of the least
 * valuable chunk of its size. Not meaningful if the worth is INT16_MAX. */
static double worth_ratio(const struct kvcache_standing *s)
{
        return exp2(s->worth / 256.0);
}

static void worth_text(const struct kvcache_standing *s, char ret[static HUMAN_BYTES])
{
        if (s->reuse_class == KVCACHE_CLASS_RECENCY)
                snprintf(ret, HUMAN_BYTES, "-");
        else if (s->worth == INT16_MAX)
                snprintf(ret, HUMAN_BYTES, "any");
        else
                snprintf(ret, HUMAN_BYTES, "%.3g", worth_ratio(s));
}

/* Returns the declared cost of computing a chunk again, in ns per byte, rounded to two significant
 * digits. Not meaningful if no cost was declared, that is, its field of `flags` is 0. */
static double cost_of(const struct kvcache_standing *s)
{
        double cost = 0.05 * exp2(((s->flags >> KVCACHE_STANDING_COST_BIT) - 1) / 2.0);

        return cost < 0.1   ? round(1000 * cost) / 1000
               : cost < 1.0 ? round(100 * cost) / 100
                            : round(10 * cost) / 10;
}

static const char *why_text(const struct kvcache_standing *s)
{
        if (s->flags & KVCACHE_STANDING_PINNED)
                return "not while it is leased, lent or written";
        if (s->flags & KVCACHE_STANDING_RETAINED)
                return "not until it is unpinned";
        if (s->flags & KVCACHE_STANDING_NEXT)
                return "next";
        if (s->flags & KVCACHE_STANDING_CONTINUED)
                return "after the chunks that continue it";
        if (s->reuse_class == KVCACHE_CLASS_FINAL)
                return "before others: its chain has ended";
        return s->reuse_class == KVCACHE_CLASS_RECENCY ? "after chunks used before it"
                                                       : "after chunks worth less";
}

static void note_standing(struct stat_output *out, cJSON *to, const char *tier, const char *name,
                          const struct kvcache_standing *s)
{
        char age[HUMAN_BYTES], worth[HUMAN_BYTES];
        cJSON *object;

        if (s->reuse_class == KVCACHE_CLASS_NONE)
                return;
        if (!to) {
                human_count(s->age, age);
                worth_text(s, worth);
                text_table_row(out->standings, name, tier, reuse_class_text(s->reuse_class), age,
                               worth, why_text(s));
                return;
        }
        object = cJSON_AddObjectToObject(to, tier);
        cJSON_AddStringToObject(object, "class", reuse_class_text(s->reuse_class));
        cJSON_AddNumberToObject(object, "age_uses", s->age);
        if (s->reuse_class == KVCACHE_CLASS_RECENCY || s->worth == INT16_MAX)
                cJSON_AddNullToObject(object, "worth");
        else
                cJSON_AddNumberToObject(object, "worth", worth_ratio(s));
        cJSON_AddBoolToObject(object, "next", s->flags & KVCACHE_STANDING_NEXT);
        if (s->flags >> KVCACHE_STANDING_COST_BIT)
                cJSON_AddNumberToObject(object, "cost_ns_per_byte", cost_of(s));
        else
                cJSON_AddNullToObject(object, "cost_ns_per_byte");
        /* For compatibility with earlier versions, "pinned" means that leases, loans or I/O use the
         * chunk; "pinned_by_client" is a client's pin. */
        cJSON_AddBoolToObject(object, "pinned", s->flags & KVCACHE_STANDING_PINNED);
        cJSON_AddBoolToObject(object, "pinned_by_client", s->flags & KVCACHE_STANDING_RETAINED);
        cJSON_AddBoolToObject(object, "continued", s->flags & KVCACHE_STANDING_CONTINUED);
        cJSON_AddStringToObject(object, "evicted", why_text(s));
}

static int stat_batch(struct ctl *ctl, const struct key_batch *batch, void *userdata)
{
        struct stat_output *out = userdata;
        _cleanup_(freep) struct kvcache_result *results = NULL;
        int r = keys_ask(ctl, batch, "stat", KVCACHE_OP_STAT, 0, &results);

        if (r)
                return r;
        for (size_t i = 0; i < batch->n; i++) {
                int status = results[i].status;
                char hex[KEY_TEXT_BYTES], length[HUMAN_BYTES], created[HUMAN_BYTES], crc[16],
                        leases[16], room[KEY_NAME_BYTES];
                const char *name = keys_name(batch, i, room);
                cJSON *eviction = NULL;

                key_print(&batch->keys[i], hex);
                if (status == KVCACHE_MISS) {
                        out->missing++;
                        complain(EXIT_NOT_FOUND, "%s: not found in namespace '%s'", name,
                                 batch->namespace_name);
                        continue;
                }
                if (status != KVCACHE_OK)
                        return complain_status(status, name);
                snprintf(crc, sizeof(crc), "%08x", results[i].crc32c);
                if (ctl->json) {
                        cJSON *object = cJSON_CreateObject();

                        cJSON_AddStringToObject(object, "key", hex);
                        cJSON_AddStringToObject(object, "name", batch->names[i]);
                        cJSON_AddNumberToObject(object, "length", (double)results[i].length);
                        cJSON_AddItemToObject(object, "tiers", tiers_json(results[i].tiers));
                        cJSON_AddNumberToObject(object, "created_ms",
                                                (double)results[i].created_ms);
                        cJSON_AddStringToObject(object, "crc32c", crc);
                        cJSON_AddNumberToObject(object, "leases", results[i].leases);
                        eviction = cJSON_AddObjectToObject(object, "eviction");
                        cJSON_AddItemToArray(out->array, object);
                }
                note_standing(out, eviction, "memory", name, &results[i].memory);
                note_standing(out, eviction, "disk", name, &results[i].disk);
                if (ctl->json)
                        continue;
                units_bytes(results[i].length, length);
                human_time(results[i].created_ms, created);
                snprintf(leases, sizeof(leases), "%u", results[i].leases);
                if (!strstr(name, hex)) { /* a name "hex:..." has the digits, too */
                        text_table_row(out->keys, name, hex);
                        out->named++;
                }
                text_table_row(out->table, name, length, tiers_text(results[i].tiers), created, crc,
                               leases);
        }
        return EXIT_OK;
}

static int run_stat(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct keys_wanted wanted = { .namespace_name = DEFAULT_NAMESPACE };
        _cleanup_(text_table_freep) struct text_table *table = NULL, *standings = NULL,
                                                      *keys = NULL;
        _cleanup_(cJSON_Deletep) cJSON *object = NULL;
        struct stat_output out = { 0 };
        const char *argument;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                wanted.namespace_name = argument;
        if (r < 0)
                return ctl->exit_status;
        if (first == argc)
                return usage_error(self, "a key is needed");
        wanted.operands = argv + first;
        wanted.n_operands = argc - first;
        out.table = table = text_table_new("lrlllr");
        text_table_row(table, "key", "length", "where", "put at", "crc32c", "leases");
        out.standings = standings = text_table_new("lllrrl");
        text_table_row(standings, "key", "tier", "class", "age", "worth", "evicted");
        out.keys = keys = text_table_new("ll");
        text_table_row(keys, "key", "digits");
        object = cJSON_CreateObject();
        out.array = cJSON_AddArrayToObject(object, "keys");
        r = keys_walk(ctl, &wanted, stat_batch, &out);
        if (r)
                return r;
        if (ctl->json)
                r = print_json(object);
        else if (out.missing < (uint64_t)(argc - first)) {
                text_table_print(table, "", stdout);
                putchar('\n');
                text_table_print(standings, "", stdout);
                if (out.named > 0) {
                        putchar('\n');
                        text_table_print(keys, "", stdout);
                }
        }
        return r ? r : out.missing > 0 ? EXIT_NOT_FOUND : EXIT_OK;
}

const struct command command_stat = {
        .name = "stat",
        .arguments = "KEY...",
        .summary = "show length, tier, age, checksum and eviction order of chunks",
        .help = "Shows the properties of chunks without transferring their bytes, and for each "
                "tier:\n"
                "  class    the chunk's class in the eviction policy\n"
                "  age      uses of other chunks in the tier since the chunk's last use\n"
                "  worth    its expected hits per time kept, relative to those of the least\n"
                "           valuable chunk of its size\n"
                "  evicted  when it would be evicted\n"
                "\n" KEY_HELP,
        .options = stat_options,
        .run = run_stat,
};

/* --- ls --- */

static const struct option_row ls_options[] = {
        NAMESPACE_OPTION,
        { OPTION_LIST, "namespaces", NULL, "list the namespaces instead of chunks" },
        { OPTION_LIMIT, "limit", "N", "list at most N chunks" },
        { 0 },
};

static int list_chunks(struct ctl *ctl, uint32_t namespace, uint64_t limit)
{
        enum { PAGE = 512 };
        _cleanup_(freep) struct kvcache_listed *listed = calloc(PAGE, sizeof(*listed));
        _cleanup_(cJSON_Deletep) cJSON *object = ctl->json ? cJSON_CreateObject() : NULL;
        cJSON *array = ctl->json ? cJSON_AddArrayToObject(object, "chunks") : NULL;
        uint64_t cursor = 0, shown = 0, bytes = 0;
        char text[HUMAN_BYTES], count[HUMAN_BYTES];

        if (!listed)
                return complain_memory();
        do {
                int n = kvcache_list(ctl->kv, namespace, &cursor, listed,
                                     (size_t)MIN(limit - shown, (uint64_t)PAGE));

                if (n < 0)
                        return complain_call(ctl, n, "ls");
                for (int i = 0; i < n; i++) {
                        char hex[KEY_TEXT_BYTES], created[HUMAN_BYTES];

                        key_print(&listed[i].key, hex);
                        bytes += listed[i].length;
                        if (ctl->json) {
                                cJSON *chunk = cJSON_CreateObject();

                                cJSON_AddStringToObject(chunk, "key", hex);
                                cJSON_AddNumberToObject(chunk, "length", (double)listed[i].length);
                                cJSON_AddNumberToObject(chunk, "created_ms",
                                                        (double)listed[i].created_ms);
                                cJSON_AddItemToObject(chunk, "tiers", tiers_json(listed[i].tiers));
                                cJSON_AddItemToArray(array, chunk);
                                continue;
                        }
                        units_bytes(listed[i].length, text);
                        human_time(listed[i].created_ms, created);
                        printf("%s  %9s  %s  %s\n", hex, text, created,
                               tiers_text(listed[i].tiers));
                }
                shown += (uint64_t)n;
        } while (cursor != 0 && shown < limit);

        if (ctl->json) {
                cJSON_AddNumberToObject(object, "count", (double)shown);
                cJSON_AddNumberToObject(object, "bytes", (double)bytes);
                cJSON_AddBoolToObject(object, "complete", cursor == 0);
                return print_json(object);
        }
        human_count(shown, count);
        units_bytes(bytes, text);
        if (fflush(stdout) != 0)
                return complain_output(errno);
        fprintf(stderr, "%s chunk%s, %s%s\n", count, shown == 1 ? "" : "s", text,
                cursor != 0 ? "; there are more" : "");
        return EXIT_OK;
}

static int run_ls(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        const char *namespace_name = NULL, *argument;
        unsigned long long limit = UINT64_MAX;
        bool namespaces = false;
        uint32_t namespace;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                switch (r) {
                case 'n':
                        namespace_name = argument;
                        break;
                case OPTION_LIST:
                        namespaces = true;
                        break;
                case OPTION_LIMIT:
                        if (!option_count(ctl, "--limit", argument, 1, UINT64_MAX, &limit))
                                return ctl->exit_status;
                        break;
                }
        if (r < 0)
                return ctl->exit_status;
        if (argc - first > 1 || (argc - first == 1 && namespace_name))
                return usage_error(self, "ls lists one namespace, but several are given");
        if (argc - first == 1)
                namespace_name = argv[first];
        if (!namespace_name)
                namespace_name = DEFAULT_NAMESPACE;

        r = ctl_connect(ctl);
        if (r)
                return r;
        if (namespaces)
                return namespaces_list(ctl, "ls", NULL, UINT64_MAX);
        r = namespace_attach(ctl, namespace_name, &namespace);
        return r ? r : list_chunks(ctl, namespace, limit);
}

const struct command command_ls = {
        .name = "ls",
        .arguments = "[NS]",
        .operands = "namespaces",
        .summary = "list the chunks of a namespace, or the namespaces",
        .help = "Lists the chunks of a namespace in no particular order: key, length, time of the\n"
                "put, and tier. The number of chunks goes to standard error. A chunk that is put\n"
                "or dropped meanwhile may or may not be listed; no chunk is listed twice. Chunks\n"
                "that are in memory only, because they are still being written or could not be\n"
                "written, are not listed.",
        .options = ls_options,
        .run = run_ls,
};
