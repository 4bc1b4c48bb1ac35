/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl status: shows the state of the daemon.
 *
 * The daemon answers with JSON, which --json prints as received. For people the known members are
 * formatted individually, on one screen, or in full with --all or the names of sections. Members
 * that a newer daemon adds appear under their own names, with the unit taken from the end of the
 * name. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "checked.h"
#include "commands.h"
#include "common.h"
#include "human.h"
#include "section.h"
#include "status-parts.h"
#include "suggest.h"
#include "watch.h"

/* The sections in the order of printing. Sections of one line come first, which matters for the
 * output on one screen. */
static const struct {
        const char *name;
        void (*print)(cJSON *status, bool detail);
} sections[] = {
        { "io", status_print_io },
        { "sessions", status_print_sessions },
        { "remote", status_print_remote },
        { "memory", status_print_memory },
        { "store", status_print_store },
        { "writes", status_print_writes },
        { "eviction", status_print_eviction },
        { "tenants", status_print_tenants },
        { "limits", status_print_limits },
        { "namespaces", status_print_namespaces },
        { "totals", status_print_totals },
};
static const char *const section_names[] = { "io",     "sessions",   "remote",   "memory",
                                             "store",  "writes",     "eviction", "tenants",
                                             "limits", "namespaces", "totals",   NULL };
static_assert(ARRAY_SIZE(section_names) == ARRAY_SIZE(sections) + 1, "each has a name");

struct status_wanted {
        bool all;
        unsigned sections; /* one bit for each wanted section; 0: a summary that fits on a screen */
        char *text;        /* with --watch, the daemon's last answer; else NULL */
};

static void print_head(cJSON *status)
{
        char version[64], host[256], text[512], up[HUMAN_BYTES] = "";
        bool ready = true, has_ready = section_bool(status, "ready", &ready);
        _cleanup_(cJSON_Deletep) cJSON *degraded =
                cJSON_DetachItemFromObjectCaseSensitive(status, "degraded");
        _cleanup_(cJSON_Deletep) cJSON *pending =
                cJSON_DetachItemFromObjectCaseSensitive(status, "reload_pending");
        enum color color = !ready ? COLOR_BAD : COLOR_NONE;
        FILE *out = section_out();
        char state[32], health[32];
        double seconds, pid;
        cJSON *one;

        section_text(status, "version", version, sizeof(version));
        fprintf(out, "kvcache-daemon %s", version);
        if (section_text(status, "host", host, sizeof(host)))
                fprintf(out, " on %.*s", (int)MIN(strcspn(host, "."), (size_t)HOST_SHOWN), host);
        fputs(color_begin(color, section_colored()), out);
        if (section_text(status, "state", state, sizeof(state)))
                fprintf(out, ", %s%s", has_ready && !ready ? "not ready: " : "", state);
        else if (has_ready)
                fprintf(out, ", %s", ready ? "ready" : "not ready");
        if (section_text(status, "health", health, sizeof(health)) && strcmp(health, "ok") != 0)
                fprintf(out, ", %s", health);
        fputs(color_end(color, section_colored()), out);
        if (section_number(status, "uptime_seconds", &seconds)) {
                human_seconds(seconds, up);
                fprintf(out, ", up %s", up);
        }
        if (section_number(status, "pid", &pid))
                fprintf(out, ", pid %.0f", pid);
        fputc('\n', out);
        cJSON_ArrayForEach(one, degraded)
        {
                if (section_text(one, "text", text, sizeof(text)))
                        section_warn(COLOR_WARNING, "DEGRADED", "%s", text);
        }
        cJSON_ArrayForEach(one, pending)
        {
                if (cJSON_IsString(one))
                        section_warn(COLOR_WARNING, "RESTART", "%s", one->valuestring);
        }
}

/* Prints the file of the configuration if it has drop-ins, or if all details are wanted. */
static void print_configuration(cJSON *status, bool detail)
{
        _cleanup_(cJSON_Deletep) cJSON *configuration =
                cJSON_DetachItemFromObjectCaseSensitive(status, "configuration");
        const cJSON *files = cJSON_GetObjectItemCaseSensitive(configuration, "files");
        const cJSON *first = cJSON_GetArrayItem(files, 0);
        char drop_ins[HUMAN_BYTES];
        int n = cJSON_GetArraySize(files);

        if (!cJSON_IsString(first) || (n == 1 && !detail))
                return;
        human_things((uint64_t)n - 1, "drop-in", drop_ins);
        section_line("configuration", "%s%s%s", first->valuestring, n > 1 ? " and " : "",
                     n > 1 ? drop_ins : "");
}

static void print_place(cJSON *status, bool detail)
{
        char text[512];

        if (section_text(status, "socket", text, sizeof(text)))
                section_line("socket", "%s", text);
        if (section_text(status, "http", text, sizeof(text)))
                section_line("http", "%s%s", text,
                             cJSON_IsTrue(cJSON_GetObjectItem(status, "http_token"))
                                     ? ", with a token"
                                     : "");
        if (section_text(status, "instance", text, sizeof(text)) && detail)
                section_line("instance", "%s", text);
        print_configuration(status, detail);
}

/* Prints the remaining members, which a newer daemon has added: objects as sections, and other
 * members as lines. */
static void print_rest(cJSON *status)
{
        const cJSON *item, *next;

        for (item = status->child; item; item = next) {
                char heading[64];

                next = item->next;
                if (!cJSON_IsObject(item))
                        continue;
                snprintf(heading, sizeof(heading), "%s", item->string);
                if (heading[0] >= 'a' && heading[0] <= 'z')
                        heading[0] = (char)(heading[0] - 32);
                section_begin(heading);
                section_rest(item);
                cJSON_Delete(cJSON_DetachItemViaPointer(status, (cJSON *)item));
        }
        if (status->child) {
                section_begin("Other");
                section_rest(status);
        }
}

/* Prints the status, removing its members. */
static void print_status(const struct status_wanted *wanted, cJSON *status)
{
        print_head(status);
        if (wanted->all || !wanted->sections)
                print_place(status, wanted->all);
        for (unsigned i = 0; i < ARRAY_SIZE(sections); i++)
                if (wanted->all || !wanted->sections || wanted->sections & 1u << i)
                        sections[i].print(status, wanted->all || wanted->sections);
        if (wanted->all)
                print_rest(status);
        else if (!wanted->sections)
                fputs("\nMore: kvcachectl status --all, or one section, such as status store\n",
                      section_out());
}

/* --- repeating the command --- */

static int ask_status(struct ctl *ctl, void *userdata)
{
        struct status_wanted *wanted = userdata;
        char *text;
        int r = kvcache_report(ctl->kv, KVCACHE_REPORT_STATUS, &text);

        if (r < 0)
                return r;
        free(wanted->text);
        wanted->text = text;
        return 0;
}

static int print_json_again(void *userdata)
{
        struct status_wanted *wanted = userdata;

        cJSON_Minify(wanted->text);
        puts(wanted->text);
        return EXIT_OK;
}

static void print_again(void *userdata, unsigned lines, bool colored, FILE *out)
{
        const struct status_wanted *wanted = userdata;
        _cleanup_(cJSON_Deletep) cJSON *status = cJSON_Parse(wanted->text);

        (void)lines; /* unused, because the screen cuts text that is too long */
        section_to(out, colored);
        if (status)
                print_status(wanted, status);
        else
                fputs("The daemon's answer is not JSON.\n", out);
        section_to(NULL, false);
}

/* --- the command --- */

enum { OPTION_COUNT = OPTION_LONG };

static const struct option_row status_options[] = {
        { 'a', "all", NULL, "print every section in full" },
        { 'w', "watch", "[=SECONDS]", "refresh every SECONDS (default: 2; 0.1 to 3600)" },
        { OPTION_COUNT, "count", "N", "with --watch: end after N refreshes" },
        { 0 },
};

/* Returns the index of a section, or -1 after reporting that there is none of that name. */
static int section_index(struct ctl *ctl, const struct command *self, const char *name)
{
        struct suggestion meant = suggest_init(name);
        char all[256] = "";
        size_t used = 0;

        for (unsigned i = 0; i < ARRAY_SIZE(sections); i++) {
                if (strcmp(sections[i].name, name) == 0)
                        return (int)i;
                suggest_try(&meant, name, sections[i].name);
                used += (size_t)snprintf(all + used, sizeof(all) - used, "%s%s", i ? ", " : "",
                                         sections[i].name);
        }
        if (meant.text)
                ctl->exit_status = usage_error(self, "unknown section '%s'; did you mean \"%s\"?",
                                               name, meant.text);
        else
                ctl->exit_status = usage_error(self, "unknown section '%s'; use %s", name, all);
        return -1;
}

static int run_status(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct status_wanted wanted = { 0 };
        struct watch watch = { .ctl = ctl,
                               .at_once = true,
                               .ask = ask_status,
                               .print_json = print_json_again,
                               .print = print_again,
                               .userdata = &wanted };
        _cleanup_(cJSON_Deletep) cJSON *status = NULL;
        const char *argument;
        bool again = false;
        int r, first;

        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0) {
                if (r == 'a') {
                        wanted.all = true;
                } else if (r == OPTION_COUNT) {
                        if (!option_count(ctl, "--count", argument, 1, 1000000000, &watch.count))
                                return ctl->exit_status;
                } else {
                        again = true;
                        if (argument && !watch_interval(ctl, "--watch", argument, &watch.interval))
                                return ctl->exit_status;
                }
        }
        if (r < 0)
                return ctl->exit_status;
        /* Accept "--watch 5" as well as "--watch=5". */
        if (again && watch.interval == 0 && first < argc && argv[first][0] >= '0' &&
            argv[first][0] <= '9' &&
            !watch_interval(ctl, "--watch", argv[first++], &watch.interval))
                return ctl->exit_status;
        for (; first < argc; first++) {
                r = section_index(ctl, self, argv[first]);
                if (r < 0)
                        return ctl->exit_status;
                wanted.sections |= 1u << r;
        }
        if (watch.count && !again)
                return usage_error(self, "--count needs --watch");
        if (again) {
                watch.interval = watch.interval > 0 ? watch.interval : 2;
                r = watch_run(&watch);
                free(wanted.text);
                return r;
        }
        r = answer_fetch(ctl, KVCACHE_REPORT_STATUS, "status", &status);
        if (r || !status)
                return r;
        section_to(stdout, color_wanted(stdout));
        print_status(&wanted, status);
        return EXIT_OK;
}

const struct command command_status = {
        .name = "status",
        .arguments = "[SECTION...]",
        .summary = "show whether the daemon is ready, and its memory, disk and sessions",
        .help = "Shows on one screen whether the daemon is ready, what is degraded and why; which\n"
                "kind of I/O it uses; how much memory and disk are in use; its sessions, and the\n"
                "largest of its tenants and namespaces; and what it has done since it started.\n"
                "\n"
                "SECTION selects one part, in full: io, sessions, remote, memory, store, writes,\n"
                "eviction, tenants, limits, namespaces or totals. --all prints all of them.\n"
                "\n"
                "With --watch, the status is refreshed periodically. On a terminal it is redrawn\n"
                "in place, and q or Ctrl-C ends it. With --json, each line is one object.",
        .options = status_options,
        .actions = section_names,
        .run = run_status,
};
