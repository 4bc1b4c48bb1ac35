/* SPDX-License-Identifier: Apache-2.0 */
/* `report`: writes an archive for a bug report. The archive has no keys, no bytes of chunks, no
 * tokens, and no names of users, tenants and namespaces. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "answer.h"
#include "archive.h"
#include "build-config.h"
#include "check.h"
#include "checked.h"
#include "commands.h"
#include "common.h"
#include "doctor.h"

enum { PATH_BYTES = 128 };

static const struct option_row report_options[] = {
        { 'o', "out", "FILE",
          "the archive to write, which must not exist; \"-\": standard output (default: "
          "kvcache-report-TIME.tar)" },
        { 0 },
};

static const char readme[] =
        "A report of kvcachectl, for a bug report about kvcache-daemon.\n"
        "\n"
        "versions.txt  versions of the tool, the library and the kernel\n"
        "doctor.json   what kvcachectl doctor has found on this host\n"
        "status.json   the daemon's status, without namespaces, names of tenants and of hosts,\n"
        "              and values of changes that wait for a restart\n"
        "metrics.txt   the daemon's metrics, without series of tenants and namespaces\n"
        "config.yaml   the daemon's configuration, without tenants, users, groups and names of\n"
        "              hosts\n"
        "\n"
        "Files that are missing were not available: the daemon did not answer, or this user is\n"
        "not an admin. Read the files before you send them. The daemon's log is not here, because\n"
        "it names users and namespaces: journalctl -u kvcache prints it.\n";

/* The state of the archive while it is written. */
struct report_writer {
        FILE *out;
        time_t now;     /* modification time of the files in the archive */
        cJSON *names;   /* array of the names of the files in the archive */
        char *left_out; /* a text that names a host; NULL: none */
        char *instead;  /* the text that replaces it */
};

/* Copies a text, and replaces each occurrence of another text in it. The caller frees the copy.
 * Returns NULL if memory is short. */
static char *replace(const char *text, const char *old, const char *new)
{
        size_t n = 0, step = strlen(old);
        char *copy, *to;

        for (const char *p = text; (p = strstr(p, old)); p += step)
                n++;
        to = copy = malloc(strlen(text) + n * strlen(new) + 1);
        for (const char *p; copy && (p = strstr(text, old)); text = p + step) {
                to = mempcpy(to, text, (size_t)(p - text));
                to = stpcpy(to, new);
        }
        if (copy)
                strcpy(to, text);
        return copy;
}

static int add(struct report_writer *w, const char *name, const char *text)
{
        _cleanup_(freep) char *copy = w->left_out ? replace(text, w->left_out, w->instead) : NULL;

        if (w->left_out && !copy)
                return complain_memory();
        text = copy ?: text;
        if (archive_add(w->out, name, text, strlen(text), w->now) < 0)
                return complain(EXIT_LOCAL, "report: %s is too long", name);
        cJSON_AddItemToArray(w->names, cJSON_CreateString(name));
        return EXIT_OK;
}

static int add_json(struct report_writer *w, const char *name, const cJSON *object)
{
        _cleanup_(freep) char *text = cJSON_Print(object);

        return text ? add(w, name, text) : complain_memory();
}

/* --- leaving out names --- */

/* Keeps only the key of each pending change, because values and names of tenants are to be left
 * out. */
static void remove_pending_values(cJSON *changes)
{
        for (int i = 0; i < cJSON_GetArraySize(changes); i++) {
                const char *key;
                int length = doctor_pending_key(cJSON_GetArrayItem(changes, i), &key);
                char kept[CHECK_TEXT];

                snprintf(kept, sizeof(kept), "%.*s", length, key);
                cJSON_ReplaceItemInArray(changes, i, cJSON_CreateString(kept));
        }
}

/* Returns a text as JSON contains it, without the quotes, or NULL if memory is short. The caller
 * frees it. */
static char *as_in_json(const char *text)
{
        _cleanup_(cJSON_Deletep) cJSON *string = cJSON_CreateString(text);
        char *quoted = string ? cJSON_PrintUnformatted(string) : NULL;
        size_t length = quoted ? strlen(quoted) : 0;

        if (!quoted)
                return NULL;
        memmove(quoted, quoted + 1, length - 2);
        quoted[length - 2] = '\0';
        return quoted;
}

/* Finds the host in remote.endpoint of a configuration. Returns false if there is none. */
static bool find_endpoint(const char *config, char *ret_host, size_t room)
{
        const char *at = strstr(config, "\n  endpoint: "), *host = at ? strstr(at, "://") : NULL;

        if (!host || host > strchrnul(at + 1, '\n'))
                return false;
        host += strlen("://");
        if (*host == '[') /* an IPv6 address */
                snprintf(ret_host, room, "%.*s", (int)strcspn(host + 1, "]\n"), host + 1);
        else
                snprintf(ret_host, room, "%.*s", (int)strcspn(host, ":/\n \""), host);
        return *ret_host;
}

/* Determines what to leave out of the reason why the shared tier failed last, which names the host
 * of an S3 service: that name, or the whole reason if the configuration, which has the name, is for
 * admins. Returns an exit status. */
static int find_hosts(struct ctl *ctl, struct report_writer *w, const cJSON *status)
{
        const cJSON *remote = cJSON_GetObjectItemCaseSensitive(status, "remote");
        const char *reason = answer_text(remote, "reason");
        _cleanup_(freep) char *config = NULL;
        char host[256];

        if (strcmp(answer_text(remote, "backend"), "s3") != 0 || !*reason)
                return EXIT_OK;
        w->left_out = as_in_json(reason);
        if (!w->left_out)
                return complain_memory();
        w->instead = kvcache_report(ctl->kv, KVCACHE_REPORT_CONFIG, &config) == 0 &&
                                     find_endpoint(config, host, sizeof(host))
                             ? replace(w->left_out, host, "HOST")
                             : strdup("left out, because it may name a host");
        return w->instead ? EXIT_OK : complain_memory();
}

static void remove_names(cJSON *status)
{
        cJSON *usage = cJSON_GetObjectItemCaseSensitive(status, "namespace_usage"), *tenant;
        char name[32];
        unsigned n = 0;

        cJSON_DeleteItemFromObjectCaseSensitive(status, "host");
        cJSON_DeleteItemFromObjectCaseSensitive(status, "namespaces");
        cJSON_DeleteItemFromObjectCaseSensitive(status, "configuration");
        cJSON_DeleteItemFromObjectCaseSensitive(usage, "warning");
        remove_pending_values(cJSON_GetObjectItemCaseSensitive(status, "reload_pending"));
        cJSON_ArrayForEach(tenant, cJSON_GetObjectItemCaseSensitive(status, "tenants"))
        {
                snprintf(name, sizeof(name), "tenant %u", ++n);
                cJSON_DeleteItemFromObjectCaseSensitive(tenant, "name");
                cJSON_AddStringToObject(tenant, "name", name);
        }
}

/* Copies the lines of `text` for which `keep` returns true; `*state`, which `keep` may change,
 * is 0 at first. The caller frees the copy. Returns NULL if memory is short. */
static char *filter(const char *text, bool (*keep)(const char *line, size_t length, size_t *state))
{
        char *copy = malloc(strlen(text) + 1), *to = copy;
        size_t state = 0;

        for (size_t length; copy && *text; text += length) {
                length = strcspn(text, "\n");
                length += text[length] == '\n';
                if (keep(text, length, &state))
                        to = mempcpy(to, text, length);
        }
        if (copy)
                *to = '\0';
        return copy;
}

/* Returns false for the lines of keys whose values name users, tenants, namespaces or hosts: the
 * key's line, lines with a deeper indentation that follow, and items of its list. `*state` is
 * the indentation of the key that is being left out plus 1, or 0. */
static bool keep_setting(const char *line, size_t length, size_t *state)
{
        static const char *const keys[] = { "access:", "tenants:",  "local_namespaces:",
                                            "hosts:",  "floors:",   "endpoint:",
                                            "bucket:", "ceph_user:" };
        size_t indentation = strspn(line, " ");

        if (*state > 0 &&
            (indentation >= *state || (indentation + 1 == *state && line[indentation] == '-')))
                return false;
        *state = 0;
        for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
                if (strncmp(line + indentation, keys[i], strlen(keys[i])) == 0)
                        *state = indentation + 1;
        return *state == 0;
}

static bool keep_sample(const char *line, size_t length, size_t *state)
{
        static const char *const labels[] = { "tenant=\"", "namespace=\"", "user=\"", "uid=\"",
                                              "prefix=\"" };

        for (size_t i = 0; *line != '#' && i < ARRAY_SIZE(labels); i++)
                if (memmem(line, length, labels[i], strlen(labels[i])))
                        return false;
        return true;
}

/* --- files of the archive --- */

static int add_versions(struct report_writer *w)
{
        struct utsname host;
        char text[1024];

        if (uname(&host) < 0)
                return complain(EXIT_LOCAL, "report: cannot get the kernel's version: %s",
                                strerror(errno));
        snprintf(text, sizeof(text), "kvcachectl %s\nlibkvcache %s\n%s %s %s\n",
                 KVCACHE_BUILD_VERSION, kvcache_version(), host.sysname, host.release,
                 host.machine);
        return add(w, "versions.txt", text);
}

/* Adds a report of the daemon that was passed through a filter. If the daemon does not give the
 * report, for example because only admins may read it, prints a warning and adds nothing. Returns
 * an exit status. */
static int add_filtered(struct ctl *ctl, struct report_writer *w, enum kvcache_report what,
                        const char *name,
                        bool (*keep)(const char *line, size_t length, size_t *state))
{
        _cleanup_(freep) char *text = NULL, *kept = NULL;
        int r = kvcache_report(ctl->kv, what, &text);

        if (r < 0) {
                complain(EXIT_OK, "warning: report: the archive lacks %s: %s", name,
                         r == -EACCES ? "only admins may read it" : kvcache_error(ctl->kv));
                return EXIT_OK;
        }
        kept = filter(text, keep);
        return kept ? add(w, name, kept) : complain_memory();
}

static int add_parts(struct ctl *ctl, struct report_writer *w)
{
        _cleanup_(cJSON_Deletep) cJSON *doctor = cJSON_CreateObject(), *status = NULL;
        cJSON *checks = cJSON_AddArrayToObject(doctor, "checks");
        int examined, r;

        r = add(w, "README.txt", readme);
        if (r == EXIT_OK)
                r = add_versions(w);
        if (r != EXIT_OK)
                return r;
        examined = doctor_examine(ctl, checks, &status);
        if (status)
                r = find_hosts(ctl, w, status);
        if (r == EXIT_OK)
                r = add_json(w, "doctor.json", doctor);
        if (r == EXIT_OK && examined == EXIT_UNREACHABLE)
                complain(EXIT_OK, "warning: report: the archive describes only this host: %s",
                         answer_text(cJSON_GetArrayItem(checks, cJSON_GetArraySize(checks) - 1),
                                     "found"));
        if (r != EXIT_OK || examined != EXIT_OK)
                return r != EXIT_OK ? r : examined;
        remove_names(status);
        r = add_json(w, "status.json", status);
        if (r == EXIT_OK)
                r = add_filtered(ctl, w, KVCACHE_REPORT_METRICS, "metrics.txt", keep_sample);
        if (r == EXIT_OK)
                r = add_filtered(ctl, w, KVCACHE_REPORT_CONFIG, "config.yaml", keep_setting);
        return r;
}

/* Prints the path and the names of the files in the archive. Takes ownership of `names`. Returns an
 * exit status. */
static int print_result(struct ctl *ctl, const char *path, cJSON *names)
{
        _cleanup_(cJSON_Deletep) cJSON *answer = NULL;

        if (!ctl->json) {
                print_safe(path, stdout);
                puts(": read its files before you send it");
                cJSON_Delete(names);
                return EXIT_OK;
        }
        answer = cJSON_CreateObject();
        cJSON_AddStringToObject(answer, "report", path);
        cJSON_AddItemToObject(answer, "files", names);
        return print_json(answer);
}

/* Writes the archive, and prints what it holds. Returns an exit status. If the archive is not
 * complete, except for the parts of a daemon that does not answer, the file is removed. */
static int write_report(struct ctl *ctl, const char *path)
{
        bool is_stdout = strcmp(path, "-") == 0;
        struct report_writer w = { .out = stdout, .now = time(NULL), .names = cJSON_CreateArray() };
        int r;

        if (!is_stdout) {
                int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

                w.out = fd >= 0 ? fdopen(fd, "w") : NULL;
                if (!w.out) {
                        r = complain(EXIT_LOCAL, "report: cannot create %s: %s%s", path,
                                     strerror(errno),
                                     errno == EEXIST ? "; name another file with --out" : "");
                        cJSON_Delete(w.names);
                        return r;
                }
        }
        r = add_parts(ctl, &w);
        archive_end(w.out);
        free(w.left_out);
        free(w.instead);
        if (!is_stdout && (fflush(w.out) != 0 || ferror(w.out)) && r == EXIT_OK)
                r = complain(EXIT_LOCAL, "report: cannot write %s: %s", path, strerror(errno));
        if (!is_stdout && fclose(w.out) != 0 && r == EXIT_OK)
                r = complain(EXIT_LOCAL, "report: cannot write %s: %s", path, strerror(errno));
        if ((r == EXIT_OK || r == EXIT_UNREACHABLE) && !is_stdout) {
                int printed = print_result(ctl, path, w.names);

                return printed != EXIT_OK ? printed : r;
        }
        cJSON_Delete(w.names);
        if (!is_stdout)
                unlink(path);
        return r;
}

static int run_report(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        char name[PATH_BYTES];
        const char *path = NULL, *argument;
        int id, operand, r;

        while ((id = option_next(ctl, self, argc, argv, &argument, &operand)) > 0)
                path = argument;
        if (id < 0)
                return ctl->exit_status;
        r = answer_no_operands(self, argc, argv, operand);
        if (r != EXIT_OK)
                return r;
        if (!path) {
                time_t now = time(NULL);
                struct tm tm;

                gmtime_r(&now, &tm);
                strftime(name, sizeof(name), "kvcache-report-%Y%m%dT%H%M%SZ.tar", &tm);
                path = name;
        }
        return write_report(ctl, path);
}

const struct command command_report = {
        .name = "report",
        .arguments = "",
        .summary = "write one archive for a bug report",
        .help = "Writes a tar archive with the versions, what kvcachectl doctor finds, and the\n"
                "daemon's status, metrics and configuration. It holds no keys, no bytes of chunks\n"
                "and no tokens, and leaves out the names of users, tenants and namespaces. Read\n"
                "its files before you send it. Run it as an admin, on the daemon's host.",
        .options = report_options,
        .run = run_report,
};
