/* SPDX-License-Identifier: Apache-2.0 */
/* namespace: lists the namespaces, shows one, compares two, sets the lifetime of one, removes one.
 */
#include <errno.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "common.h"
#include "human.h"
#include "units.h"
#include "namespaces.h"
#include "table.h"
#include "waiting.h"

enum { OPTION_TENANT = OPTION_LONG, OPTION_PURGE, OPTION_LIMIT };

enum {
        EXIT_DIFFERENT = 1
}; /* exit status of namespace diff if the two differ, as that of diff(1) */

static const struct option_row namespace_options[] = {
        { OPTION_TENANT, "tenant", "TENANT",
          "a namespace, or the namespaces, of this tenant; for admins if it is not yours" },
        { OPTION_LIMIT, "limit", "N", "ls: list only the N largest" },
        { OPTION_PURGE, "purge", NULL, "rm: purge its chunks first" },
        { 0 },
};

struct arguments {
        const char *tenant, *name, *second; /* second: the other namespace of a diff */
        uint32_t lifetime_s;
        uint64_t limit;
        bool purge;
};

/* --- listing all namespaces --- */

static int compare_sizes(const void *a, const void *b)
{
        const struct kvcache_namespace_info *x = a, *y = b;

        if (x->stored_bytes != y->stored_bytes)
                return x->stored_bytes < y->stored_bytes ? 1 : -1;
        return strcmp(x->name, y->name);
}

/* Gets all namespaces that this user may see, the largest first; `tenant` as for
 * kvcache_namespace_list(). `what` is the name of the command in messages. The caller frees
 * `*ret`. Returns an exit status. */
static int namespaces_fetch(struct ctl *ctl, const char *what, const char *tenant,
                            struct kvcache_namespace_info **ret, size_t *ret_n)
{
        enum { PAGE = 128 };
        _cleanup_(freep) struct kvcache_namespace_info *list = NULL;
        uint64_t cursor = 0;
        size_t n = 0;

        do {
                void *p = reallocarray(list, n + PAGE, sizeof(*list));
                int r;

                if (!p)
                        return complain_memory();
                list = p;
                r = kvcache_namespace_list(ctl->kv, tenant, &cursor, list + n, PAGE);
                if (r < 0)
                        return complain_call(ctl, r, what);
                n += (size_t)r;
        } while (cursor != 0);
        qsort(list, n, sizeof(*list), compare_sizes);
        *ret = TAKE_PTR(list);
        *ret_n = n;
        return EXIT_OK;
}

static cJSON *to_json(const struct kvcache_namespace_info *ns)
{
        cJSON *o = cJSON_CreateObject();

        cJSON_AddStringToObject(o, "name", ns->name);
        cJSON_AddStringToObject(o, "tenant", ns->tenant);
        cJSON_AddNumberToObject(o, "chunks", (double)ns->chunks);
        cJSON_AddNumberToObject(o, "bytes", (double)ns->stored_bytes);
        cJSON_AddNumberToObject(o, "chunk_bytes", (double)ns->chunk_bytes);
        if (ns->owner == UINT32_MAX)
                cJSON_AddNullToObject(o, "owner");
        else
                cJSON_AddNumberToObject(o, "owner", ns->owner);
        cJSON_AddNumberToObject(o, "sessions", ns->sessions);
        cJSON_AddNumberToObject(o, "created_unix_ms", (double)ns->created_ms);
        cJSON_AddNumberToObject(o, "last_used_unix_ms", (double)ns->last_used_ms);
        cJSON_AddNumberToObject(o, "fingerprint_crc32c", ns->fingerprint_crc32c);
        cJSON_AddBoolToObject(o, "may_remove", ns->may_remove);
        cJSON_AddNumberToObject(o, "lifetime_s", ns->lifetime_s);
        return o;
}

enum { OWNER_BYTES = 64 };

static void format_owner(uint32_t owner, char ret[static OWNER_BYTES])
{
        const struct passwd *user = owner == UINT32_MAX ? NULL : getpwuid(owner);

        if (owner == UINT32_MAX)
                snprintf(ret, OWNER_BYTES, "-");
        else if (user)
                snprintf(ret, OWNER_BYTES, "%s", user->pw_name);
        else
                snprintf(ret, OWNER_BYTES, "%u", owner);
}

static void format_last_use(const struct kvcache_namespace_info *ns, char ret[static HUMAN_BYTES])
{
        if (ns->sessions > 0)
                strcpy(ret, "now");
        else if (ns->last_used_ms > 0)
                human_time(ns->last_used_ms, ret);
        else
                strcpy(ret, "-");
}

static void format_lifetime(uint32_t seconds, const char *none, char ret[static HUMAN_BYTES])
{
        if (seconds > 0)
                human_seconds(seconds, ret);
        else
                strcpy(ret, none);
}

int namespaces_list(struct ctl *ctl, const char *what, const char *tenant, uint64_t limit)
{
        _cleanup_(freep) struct kvcache_namespace_info *list = NULL;
        _cleanup_(text_table_freep) struct text_table *table = NULL;
        bool several = false;
        size_t n = 0, shown;
        int r;

        r = namespaces_fetch(ctl, what, tenant, &list, &n);
        if (r)
                return r;
        shown = n < limit ? n : (size_t)limit;
        if (ctl->json) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();
                cJSON *array = cJSON_AddArrayToObject(object, "namespaces");

                for (size_t i = 0; i < shown; i++)
                        cJSON_AddItemToArray(array, to_json(&list[i]));
                cJSON_AddNumberToObject(object, "count", (double)n);
                return print_json(object);
        }
        for (size_t i = 0; i < n; i++)
                several = several || strcmp(list[i].tenant, list[0].tenant) != 0;
        table = text_table_new("lrrrlrrll");
        text_table_row(table, "namespace", "chunks", "bytes", "chunk size", "owner", "sessions",
                       "lifetime", "made", "last used");
        for (size_t i = 0; i < shown; i++) {
                const struct kvcache_namespace_info *ns = &list[i];
                char name[sizeof(ns->name) + sizeof(ns->tenant) + 1], chunks[HUMAN_BYTES],
                        bytes[HUMAN_BYTES], each[HUMAN_BYTES] = "-", owner[OWNER_BYTES],
                                            sessions[HUMAN_BYTES], made[HUMAN_BYTES],
                                            used[HUMAN_BYTES], lifetime[HUMAN_BYTES];

                snprintf(name, sizeof(name), "%s%s%s", several ? ns->tenant : "",
                         several ? ":" : "", ns->name);
                human_count(ns->chunks, chunks);
                units_bytes(ns->stored_bytes, bytes);
                if (ns->chunk_bytes)
                        units_bytes(ns->chunk_bytes, each);
                format_owner(ns->owner, owner);
                human_count(ns->sessions, sessions);
                human_time(ns->created_ms, made);
                format_last_use(ns, used);
                format_lifetime(ns->lifetime_s, "-", lifetime);
                text_table_row(table, name, chunks, bytes, each, owner, sessions, lifetime, made,
                               used);
        }
        text_table_print(table, "", stdout);
        if (shown < n) {
                char more[HUMAN_BYTES];

                human_count(n - shown, more);
                printf("... and %s more\n", more);
        }
        return EXIT_OK;
}

static int list_all(struct ctl *ctl, const struct arguments *a)
{
        return namespaces_list(ctl, "namespace ls", a->tenant, a->limit);
}

/* --- showing one namespace --- */

static int complain_namespace(struct ctl *ctl, int r, const char *what, const char *name)
{
        if (r == -ENOENT)
                return complain(EXIT_NOT_FOUND, "%s: there is no namespace '%s'", what, name);
        return complain_call(ctl, r, what);
}

static void print_line(const char *label, const char *text)
{
        printf("%-12s  ", label);
        print_safe(text, stdout);
        putchar('\n');
}

static void print_figures(const struct kvcache_namespace_info *ns)
{
        char text[HUMAN_BYTES], owner[OWNER_BYTES];

        print_line("namespace", ns->name);
        print_line("tenant", ns->tenant);
        human_count(ns->chunks, text);
        print_line("chunks", text);
        units_bytes(ns->stored_bytes, text);
        print_line("bytes", text);
        if (ns->chunk_bytes)
                units_bytes(ns->chunk_bytes, text);
        print_line("chunk size", ns->chunk_bytes ? text : "not declared");
        format_owner(ns->owner, owner);
        print_line("owner", ns->owner == UINT32_MAX ? "not known: an admin may remove it" : owner);
        human_count(ns->sessions, text);
        print_line("sessions", text);
        human_time(ns->created_ms, text);
        print_line("made", text);
        format_last_use(ns, text);
        print_line("last used", strcmp(text, "-") == 0 ? "not since the daemon started" : text);
        format_lifetime(ns->lifetime_s, "no end", text);
        print_line("lifetime", text);
}

static int stat_one(struct ctl *ctl, const struct arguments *a)
{
        _cleanup_(freep) char *fingerprint = NULL;
        struct kvcache_namespace_info ns;
        char crc[16];
        char *line, *rest;
        int r;

        r = kvcache_namespace_stat(ctl->kv, a->name, a->tenant, &ns, &fingerprint);
        if (r < 0)
                return complain_namespace(ctl, r, "namespace stat", a->name);
        if (ctl->json) {
                _cleanup_(cJSON_Deletep) cJSON *object = to_json(&ns);

                cJSON_AddStringToObject(object, "fingerprint", fingerprint);
                return print_json(object);
        }
        print_figures(&ns);
        snprintf(crc, sizeof(crc), "%08x", ns.fingerprint_crc32c);
        print_line("fingerprint", *fingerprint ? crc : "empty");
        for (line = strtok_r(fingerprint, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
                print_line("", line);
        return EXIT_OK;
}

static int show_one(struct ctl *ctl, const struct arguments *a)
{
        _cleanup_(cJSON_Deletep) cJSON *object = NULL;
        struct kvcache_namespace_info ns;
        int r = kvcache_namespace_stat(ctl->kv, a->name, a->tenant, &ns, NULL);

        if (r < 0)
                return complain_namespace(ctl, r, "namespace show", a->name);
        if (ctl->json)
                object = to_json(&ns);
        else
                print_figures(&ns);
        return namespace_print_samples(ctl, ns.name, ns.tenant, object);
}

/* --- comparing two namespaces --- */

struct field {
        const char *key, *value;
};

/* Splits off the next line of a fingerprint. Returns false at the end of the text. */
static bool take_field(char **rest, struct field *ret)
{
        char *line = strsep(rest, "\n"), *value;

        if (!line || !*line)
                return false;
        value = strchrnul(line, '=');
        if (*value)
                *value++ = '\0';
        *ret = (struct field){ line, value };
        return true;
}

/* Shows a field that differs: adds it to `array`, or prints it if that is NULL. `a` and `b` are the
 * field's values in the two fingerprints; NULL if the fingerprint lacks the field. */
static void show_difference(const struct arguments *names, const char *key, const char *a,
                            const char *b, cJSON *array)
{
        if (array) {
                cJSON *o = cJSON_CreateObject();

                cJSON_AddStringToObject(o, "field", key);
                cJSON_AddItemToObject(o, "a", a ? cJSON_CreateString(a) : cJSON_CreateNull());
                cJSON_AddItemToObject(o, "b", b ? cJSON_CreateString(b) : cJSON_CreateNull());
                cJSON_AddItemToArray(array, o);
                return;
        }
        print_safe(key, stdout);
        fputs(": ", stdout);
        print_safe(a ?: b, stdout);
        fputs(a && b ? " | " : ", only in ", stdout);
        print_safe(a && b ? b : a ? names->name : names->second, stdout);
        putchar('\n');
}

/* Shows the fields that differ, and returns their number. Both texts are sorted by key, as the
 * daemon requires of a fingerprint, and are cut into fields in place. */
static unsigned show_differences(const struct arguments *names, char *a, char *b, cJSON *array)
{
        struct field fa = { 0 }, fb = { 0 };
        bool in_a = take_field(&a, &fa), in_b = take_field(&b, &fb);
        unsigned n = 0;

        while (in_a || in_b) {
                int order = !in_a ? 1 : !in_b ? -1 : strcmp(fa.key, fb.key);

                if (order != 0 || strcmp(fa.value, fb.value) != 0) {
                        show_difference(names, order <= 0 ? fa.key : fb.key,
                                        order <= 0 ? fa.value : NULL, order >= 0 ? fb.value : NULL,
                                        array);
                        n++;
                }
                if (order <= 0)
                        in_a = take_field(&a, &fa);
                if (order >= 0)
                        in_b = take_field(&b, &fb);
        }
        return n;
}

/* Fetches a fingerprint. Returns an exit status: EXIT_REFUSED if the namespace does not exist,
 * because status 1 means that the two fingerprints differ. The caller frees `*ret`. */
static int fetch_fingerprint(struct ctl *ctl, const char *name, const char *tenant, char **ret)
{
        struct kvcache_namespace_info ns;
        int r = kvcache_namespace_stat(ctl->kv, name, tenant, &ns, ret);

        if (r == -ENOENT)
                return complain(EXIT_REFUSED, "namespace diff: there is no namespace '%s'", name);
        return r < 0 ? complain_call(ctl, r, "namespace diff") : EXIT_OK;
}

static int diff_two(struct ctl *ctl, const struct arguments *names)
{
        _cleanup_(freep) char *a = NULL, *b = NULL;
        _cleanup_(cJSON_Deletep) cJSON *object = NULL;
        cJSON *array = NULL;
        unsigned n;
        int r;

        r = fetch_fingerprint(ctl, names->name, names->tenant, &a);
        if (r == EXIT_OK)
                r = fetch_fingerprint(ctl, names->second, names->tenant, &b);
        if (r != EXIT_OK)
                return r;
        if (ctl->json) {
                object = cJSON_CreateObject();
                cJSON_AddStringToObject(object, "a", names->name);
                cJSON_AddStringToObject(object, "b", names->second);
                array = cJSON_AddArrayToObject(object, "fields");
        }
        n = show_differences(names, a, b, array);
        if (object)
                r = print_json(object);
        return r != EXIT_OK ? r : n > 0 ? EXIT_DIFFERENT : EXIT_OK;
}

/* --- changing or removing a namespace --- */

static int remove_one(struct ctl *ctl, const struct arguments *a)
{
        struct waiting waiting;
        uint64_t dropped = 0;
        char text[HUMAN_BYTES];
        int r;

        waiting_begin(&waiting, "removing");
        r = kvcache_namespace_remove(ctl->kv, a->name, a->tenant, a->purge ? KVCACHE_PURGE : 0,
                                     &dropped);
        waiting_end(&waiting);
        if (r < 0)
                return complain_namespace(ctl, r, "namespace rm", a->name);
        if (ctl->json) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

                cJSON_AddStringToObject(object, "removed", a->name);
                cJSON_AddNumberToObject(object, "dropped", (double)dropped);
                return print_json(object);
        }
        human_count(dropped, text);
        print_safe(a->name, stdout);
        if (a->purge)
                printf(": removed, with %s chunk%s\n", text, dropped == 1 ? "" : "s");
        else
                puts(": removed");
        return EXIT_OK;
}

static bool parse_lifetime(const char *text, uint32_t *ret)
{
        double seconds = 0;

        if (strcmp(text, "none") != 0 &&
            (human_parse_seconds(text, &seconds) < 0 || seconds < 1 || seconds > UINT32_MAX))
                return false;
        *ret = (uint32_t)seconds;
        return true;
}

static int set_lifetime(struct ctl *ctl, const struct arguments *a)
{
        struct kvcache_namespace_info ns;
        char text[HUMAN_BYTES];
        int r;

        r = kvcache_namespace_set_lifetime(ctl->kv, a->name, a->tenant, a->lifetime_s);
        if (r == 0) /* the daemon may round the lifetime up */
                r = kvcache_namespace_stat(ctl->kv, a->name, a->tenant, &ns, NULL);
        if (r < 0)
                return complain_namespace(ctl, r, "namespace lifetime", a->name);
        if (ctl->json) {
                _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

                cJSON_AddStringToObject(object, "name", ns.name);
                cJSON_AddNumberToObject(object, "lifetime_s", ns.lifetime_s);
                return print_json(object);
        }
        print_safe(ns.name, stdout);
        format_lifetime(ns.lifetime_s, "no end", text);
        printf(": lifetime %s\n", text);
        return EXIT_OK;
}

static const char *const action_names[] = { "ls", "stat", "show", "diff", "lifetime", "rm", NULL };
static const struct action {
        int arguments;
        const char *needs; /* end of the message if the number of operands is not `arguments` */
        int (*run)(struct ctl *ctl, const struct arguments *a);
} actions[] = {
        { 0, "takes no argument", list_all },
        { 1, "needs one namespace", stat_one },
        { 1, "needs one namespace", show_one },
        { 2, "needs two namespaces", diff_two },
        { 2, "needs a namespace, and a time such as 12h, or 'none'", set_lifetime },
        { 1, "needs one namespace", remove_one },
};

static int run_namespace(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct arguments a = { .limit = UINT64_MAX };
        const struct action *action;
        const char *argument, *wanted;
        unsigned long long limit;
        bool limited = false;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                switch (r) {
                case OPTION_TENANT:
                        a.tenant = argument;
                        break;
                case OPTION_LIMIT:
                        if (!option_count(ctl, "--limit", argument, 1, UINT64_MAX, &limit))
                                return ctl->exit_status;
                        a.limit = limit;
                        limited = true;
                        break;
                case OPTION_PURGE:
                        a.purge = true;
                        break;
                }
        if (r < 0)
                return ctl->exit_status;
        wanted = first < argc ? argv[first] : "ls";
        r = action_index(ctl, self, wanted);
        if (r < 0)
                return ctl->exit_status;
        action = &actions[r];
        if (argc - first != (action->arguments > 0 ? 1 + action->arguments : first < argc))
                return usage_error(self, "'namespace %s' %s", wanted, action->needs);
        if (a.purge && action->run != remove_one)
                return usage_error(self, "--purge is for 'namespace rm'");
        if (limited && action->run != list_all)
                return usage_error(self, "--limit is for 'namespace ls'");
        a.name = action->arguments > 0 ? argv[first + 1] : NULL;
        a.second = action->run == diff_two ? argv[first + 2] : NULL;
        if (action->run == set_lifetime && !parse_lifetime(argv[first + 2], &a.lifetime_s))
                return usage_error(self,
                                   "'namespace lifetime': '%s' is neither a time from 1s to "
                                   "4294967295s, such as 90s, 30m, 12h or 7d, nor 'none'",
                                   argv[first + 2]);
        ctl->request_timeout_ms = LONG_CALL_MS;
        r = ctl_connect(ctl);
        return r ? r : action->run(ctl, &a);
}

const struct command command_namespace = {
        .name = "namespace",
        .arguments = "ls | stat NS | show NS | diff A B | lifetime NS TIME|none | rm NS",
        .operands = "namespaces",
        .summary = "list, show, compare or remove namespaces, set their lifetime",
        .help = "ls lists the namespaces of your tenant, or of all tenants if you are an admin,\n"
                "the largest first. stat shows one, with its fingerprint. show has, instead of "
                "that,\n"
                "its hits in each of the last 15 minutes, and which of its chunks are evicted "
                "next.\n"
                "diff prints a line for each field in which the fingerprints of A and B differ; "
                "the\n"
                "exit status is 0 if there is none, 1 if there are some. lifetime sets how long\n"
                "after its put a chunk is found (90s, 30m, 12h, 7d), for stored chunks, too; "
                "none:\n"
                "until it is evicted. rm removes an empty namespace that no other session has "
                "open;\n"
                "it then no longer counts against any limit. With --purge, rm purges its chunks\n"
                "first, for all hosts of the shared tier. Only the user who created a namespace,\n"
                "and admins, may set its lifetime or remove it.",
        .options = namespace_options,
        .actions = action_names,
        .run = run_namespace,
};
