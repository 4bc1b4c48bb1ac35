/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "color.h"
#include "text.h"
#include "key.h"
#include "progress.h"
#include "sha256.h"

static const char *tool_name = "kvcachectl";
static bool in_json;

void complain_as(const char *name)
{
        tool_name = name;
}

const char *complain_name(void)
{
        return tool_name;
}

void complain_in_json(bool json)
{
        in_json = json;
}

bool complain_is_json(void)
{
        return in_json;
}

/* Prints {"error":{"message":"..."}} or {"warning":{"message":"..."}} to stderr. Returns false,
 * without printing, if memory is short. */
static bool print_json_message(int status, const char *message)
{
        static const char prefix[] = "warning: ";
        _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();
        cJSON *inner = cJSON_AddObjectToObject(object, status == EXIT_OK ? "warning" : "error");
        _cleanup_(freep) char *text = NULL;

        if (status == EXIT_OK && strncmp(message, prefix, strlen(prefix)) == 0)
                message += strlen(prefix);
        cJSON_AddStringToObject(inner, "message", message);
        text = inner ? cJSON_PrintUnformatted(object) : NULL;
        if (text)
                fprintf(stderr, "%s\n", text);
        return text != NULL;
}

/* Makes a message that may contain names and texts of the daemon safe for a terminal. Line breaks
 * are kept. */
static void clean_lines(char *message)
{
        for (char *line = message, *end; line; line = end) {
                end = strchr(line, '\n');
                if (end)
                        *end = '\0';
                text_clean(line);
                if (end)
                        *end++ = '\n';
        }
}

int complain_list(int status, const char *format, va_list arguments)
{
        _cleanup_(freep) char *message = NULL;

        if (vasprintf(&message, format, arguments) < 0)
                message = NULL;
        progress_clear();
        if (!in_json || !message || !print_json_message(status, message)) {
                enum color color = status == EXIT_OK ? COLOR_WARNING : COLOR_BAD;
                bool colored = color_wanted(stderr);

                if (message)
                        clean_lines(message);
                fprintf(stderr, "%s%s:%s %s\n", color_begin(color, colored), tool_name,
                        color_end(color, colored), message ? message : "out of memory");
        }
        return status;
}

int complain(int status, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        complain_list(status, format, arguments);
        va_end(arguments);
        return status;
}

int complain_output(int error)
{
        if ((fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) ==
            O_RDONLY) /* by keep_standard_streams() */
                complain(EXIT_LOCAL, "cannot write the output: standard output is closed");
        else if (error == 0)
                complain(EXIT_LOCAL, "cannot write the output: an earlier write failed");
        else
                complain(EXIT_LOCAL, "cannot write the output: %s", strerror(error));
        clearerr(stdout);
        return EXIT_LOCAL;
}

int complain_memory(void)
{
        return complain(EXIT_LOCAL, "out of memory");
}

bool errno_unreachable(int r)
{
        switch (-r) {
        case ENOENT:
        case ENOTDIR:
        case ECONNREFUSED:
        case ECONNRESET:
        case ECONNABORTED:
        case ENOTCONN:
        case ENOTSOCK:
        case EPIPE:
        case ESHUTDOWN:
        case ETIMEDOUT:
                return true;
        default:
                return false;
        }
}

static const char *words_of(struct ctl *ctl, int r)
{
        const char *words = ctl->kv ? kvcache_error(ctl->kv) : NULL;

        return words && *words ? words : r == -ENOMEM ? "out of memory" : strerror(-r);
}

int complain_call(struct ctl *ctl, int r, const char *what)
{
        if (r == -ENOMEM)
                return complain(EXIT_LOCAL, "%s", words_of(ctl, r));
        /* A lost connection is never reported as -ENOENT. */
        if (r == -ENOENT)
                return complain(EXIT_NOT_FOUND, "%s: %s", what, words_of(ctl, r));
        if (r == -ETIMEDOUT)
                return complain(EXIT_UNREACHABLE,
                                "%s: %s; the daemon may still be processing the request", what,
                                words_of(ctl, r));
        if (errno_unreachable(r))
                return complain(EXIT_UNREACHABLE, "%s: the daemon went away: %s", what,
                                words_of(ctl, r));
        return complain(EXIT_REFUSED, "%s: %s", what, words_of(ctl, r));
}

int complain_admin(const char *what)
{
        return complain(EXIT_REFUSED,
                        "%s: only admins may do this: root, the daemon's own user, and those "
                        "whom its configuration names (access.admin_users, access.admin_groups)",
                        what);
}

int complain_status(int status, const char *what)
{
        switch (status) {
        case KVCACHE_OK:
        case KVCACHE_EXISTS:
                return EXIT_OK;
        case KVCACHE_MISS:
                return complain(EXIT_NOT_FOUND, "%s: not found", what);
        case KVCACHE_LOST:
                return complain(EXIT_UNREACHABLE, "%s: the daemon went away before it answered",
                                what);
        case KVCACHE_PENDING:
                return complain(EXIT_UNREACHABLE, "%s: the daemon did not answer in time", what);
        case KVCACHE_NOT_DURABLE:
                return complain(EXIT_REFUSED,
                                "%s: written, but this file system cannot promise that it survives "
                                "power loss",
                                what);
        case KVCACHE_FAILED:
                return complain(
                        EXIT_REFUSED,
                        "%s: the daemon could not read or write its disk; \"kvcachectl device "
                        "ls\" shows why",
                        what);
        case KVCACHE_BUSY:
                return complain(EXIT_REFUSED, "%s: the daemon has no room now; try again", what);
        case KVCACHE_QUOTA:
                return complain(EXIT_REFUSED,
                                "%s: a limit of this user or tenant is reached; \"kvcachectl "
                                "status\" shows which",
                                what);
        case KVCACHE_TOO_LARGE:
                return complain(EXIT_REFUSED,
                                "%s: larger than the largest chunk that the daemon stores", what);
        default:
                return complain(EXIT_REFUSED, "%s: the daemon answered %s", what,
                                kvcache_status_name(status));
        }
}

const char *ctl_socket_name(const struct ctl *ctl)
{
        const char *name = ctl->socket_path ? ctl->socket_path : getenv("KVCACHE_SOCKET");

        return name && *name ? name : "the default socket";
}

int ctl_try_connect(struct ctl *ctl, char ret_error[static CTL_ERROR_BYTES])
{
        struct kvcache_options options = {
                .size = sizeof(options),
                .socket_path = ctl->socket_path,
                .client_name = tool_name,
                .flags = KVCACHE_NO_LOOKUP, /* the few lookups of a command do not justify that the
                                               daemon creates a lookup index */
                .request_timeout_ms = ctl->request_timeout_ms,
        };
        int r;

        *ret_error = '\0';
        r = kvcache_connect(&ctl->kv, &options, ret_error, CTL_ERROR_BYTES);
        if (r == -ENOMEM && !*ret_error)
                snprintf(ret_error, CTL_ERROR_BYTES, "out of memory");
        if (r < 0 && !*ret_error)
                snprintf(ret_error, CTL_ERROR_BYTES, "%s: %s", ctl_socket_name(ctl), strerror(-r));
        return r;
}

int ctl_connect(struct ctl *ctl)
{
        char error[CTL_ERROR_BYTES];
        int r = ctl_try_connect(ctl, error);

        if (r >= 0)
                return EXIT_OK;
        if (r == -ENOMEM)
                return complain(EXIT_LOCAL, "%s", error);
        if (r == -ENOENT || r == -ECONNREFUSED)
                return complain(
                        EXIT_UNREACHABLE,
                        "%s\nStart it (systemctl start kvcache, or kvcache-daemon), or name "
                        "its socket with --socket or KVCACHE_SOCKET.",
                        error);
        if (errno_unreachable(r))
                return complain(EXIT_UNREACHABLE, "%s", error);
        if (r == -EACCES)
                return complain(
                        EXIT_REFUSED,
                        "%s\nA member of the socket's group may connect, usually kvcache (as "
                        "root, \"usermod -aG kvcache USER\", and log in again), if the "
                        "daemon's configuration admits the user.",
                        error);
        return complain(EXIT_REFUSED, "%s", error);
}

/* Writes a sentence with the first SHOWN of the daemon's namespaces, or one for a daemon without
 * namespaces; "" if the call fails. */
static void list_namespaces(struct ctl *ctl, char *ret, size_t room)
{
        enum { SHOWN = 20 };
        struct kvcache_namespace_info list[SHOWN];
        uint64_t cursor = 0;
        int n = kvcache_namespace_list(ctl->kv, NULL, &cursor, list, SHOWN);

        *ret = '\0';
        if (n == 0)
                snprintf(ret, room,
                         "\n"
                         "The namespace does not exist yet; the first put creates it.");
        for (int i = 0; i < n; i++) {
                size_t used = strlen(ret);

                text_clean(list[i].name);
                snprintf(ret + used, room - used, "%s%s", i == 0 ? "\nThe daemon has: " : ", ",
                         list[i].name);
        }
        if (n > 0 && cursor) {
                size_t used = strlen(ret);

                snprintf(ret + used, room - used, ", and more: kvcachectl namespace ls");
        }
}

int namespace_attach(struct ctl *ctl, const char *name, uint32_t *ret)
{
        struct kvcache_namespace_options options = {
                .size = sizeof(options),
                .flags = KVCACHE_ATTACH,
                .name = name,
        };
        int r = kvcache_namespace_open(ctl->kv, &options, ret);

        if (r == -ENOENT) {
                char others[8192];

                list_namespaces(ctl, others, sizeof(others));
                return complain(EXIT_NOT_FOUND, "there is no namespace '%s'%s", name, others);
        }
        return r < 0 ? complain_call(ctl, r, name) : EXIT_OK;
}

static int compare_lines(const void *a, const void *b)
{
        return strcmp(*(char *const *)a, *(char *const *)b);
}

int fingerprint_parse(const char *text, char **ret)
{
        _cleanup_(freep) char *copy = strdup(text), *result = NULL;
        char *items[128], *out;
        size_t n = 0;

        if (!copy)
                return -ENOMEM;
        for (char *p = copy; p;) {
                char *next = strchr(p, ','), *equals;

                if (next)
                        *next++ = '\0';
                equals = strchr(p, '=');
                if (!equals || equals == p || n == ARRAY_SIZE(items) || strchr(p, '\n'))
                        return -EINVAL;
                /* Sort by key alone, with a NUL in place of '=', because otherwise "a-b" would sort
                 * before "a=". */
                *equals = '\0';
                items[n++] = p;
                p = next;
        }
        qsort(items, n, sizeof(*items), compare_lines);
        result = malloc(strlen(text) + 2);
        if (!result)
                return -ENOMEM;
        out = result;
        for (size_t i = 0; i < n; i++) {
                if (i > 0 && strcmp(items[i - 1], items[i]) == 0)
                        return -EINVAL;
                out += sprintf(out, "%s=%s\n", items[i], items[i] + strlen(items[i]) + 1);
        }
        *ret = TAKE_PTR(result);
        return 0;
}

int key_parse(const char *text, struct kvcache_key *ret)
{
        struct key key;

        static_assert(sizeof(key) == sizeof(*ret), "one key, two names");
        if (strncmp(text, "hex:", 4) == 0) {
                if (key_from_hex(text + 4, &key) < 0)
                        return -EINVAL;
        } else if (strncmp(text, "text:", 5) == 0 || key_from_hex(text, &key) < 0) {
                if (strncmp(text, "text:", 5) == 0)
                        text += 5;
                if (*text == '\0')
                        return -EINVAL;
                sha256(text, strlen(text), key.bytes);
        }
        if (key_is_root(&key))
                return -EINVAL;
        memcpy(ret->bytes, key.bytes, sizeof(ret->bytes));
        return 0;
}

void key_print(const struct kvcache_key *key, char ret[static KEY_TEXT_BYTES])
{
        struct key k;

        static_assert(KEY_TEXT_BYTES == KEY_HEX_BYTES + 1, "digits and a NUL");
        memcpy(k.bytes, key->bytes, sizeof(k.bytes));
        key_to_hex(&k, ret);
}

bool ack_parse(const char *text, enum kvcache_ack *ret)
{
        static const char *const names[] = { "accepted", "written", "durable" };

        for (size_t i = 0; i < ARRAY_SIZE(names); i++)
                if (strcmp(text, names[i]) == 0) {
                        *ret = (enum kvcache_ack)i;
                        return true;
                }
        return false;
}

const char *tiers_text(uint32_t tiers)
{
        switch (tiers & KVCACHE_TIER_ALL) {
        case KVCACHE_TIER_MEMORY:
                return "memory";
        case KVCACHE_TIER_DISK:
                return "disk";
        case KVCACHE_TIER_ALL:
                return "memory, disk";
        default:
                return "-";
        }
}

cJSON *tiers_json(uint32_t tiers)
{
        cJSON *array = cJSON_CreateArray();

        if (tiers & KVCACHE_TIER_MEMORY)
                cJSON_AddItemToArray(array, cJSON_CreateString("memory"));
        if (tiers & KVCACHE_TIER_DISK)
                cJSON_AddItemToArray(array, cJSON_CreateString("disk"));
        return array;
}

void json_add_number(cJSON *object, const char *name, double value)
{
        if (isfinite(value))
                cJSON_AddNumberToObject(object, name, value);
        else
                cJSON_AddNullToObject(object, name);
}

int print_json(const cJSON *object)
{
        _cleanup_(freep) char *text = cJSON_PrintUnformatted(object);

        if (!text)
                return complain_memory();
        puts(text);
        return EXIT_OK;
}

void print_safe(const char *text, FILE *out)
{
        while (*text) {
                size_t control = text_control(text);

                if (control == 0)
                        fputc(*text++, out);
                for (; control > 0; control--, text++)
                        fputc('?', out);
        }
}
