/* SPDX-License-Identifier: Apache-2.0 */
/* Values that are text: paths, sockets, addresses, names. Checks whether a text is valid for its
 * row, and explains in one sentence why not. */
#include <arpa/inet.h>
#include <ctype.h>
#include <limits.h>
#include <string.h>
#include <sys/un.h>

#include "config/internal.h"
#include "units.h"

bool config_text_is_clean(const char *text)
{
        const unsigned char *p = (const unsigned char *)text;

        while (*p) {
                unsigned n = *p < 0x80                 ? 1
                             : *p >= 0xc2 && *p < 0xe0 ? 2
                             : (*p & 0xf0) == 0xe0     ? 3
                             : *p >= 0xf0 && *p < 0xf5 ? 4
                                                       : 0;
                uint32_t ch;

                if (n == 0)
                        return false;
                ch = n == 1 ? *p : *p & (0x7fu >> n);
                for (unsigned i = 1; i < n; i++) {
                        if ((p[i] & 0xc0) != 0x80)
                                return false;
                        ch = ch << 6 | (p[i] & 0x3f);
                }
                if (ch < 0x20 || (ch >= 0x7f && ch < 0xa0) || ch == 0x2028 || ch == 0x2029 ||
                    ch == 0xfeff || (ch >= 0xd800 && ch <= 0xdfff) || (ch & 0xfffe) == 0xfffe ||
                    ch > 0x10ffff || (n == 3 && ch < 0x800) || (n == 4 && ch < 0x10000))
                        return false;
                p += n;
        }
        return true;
}

static int check_path(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        char quoted[CONFIG_QUOTED];

        config_quote(text, quoted);
        if (*text == '\0')
                return config_refuse(why, "%s: a path cannot be empty", row->name);
        if (text[0] == '~')
                return config_refuse(why, "%s: \"~\" in %s is not expanded; write the whole path",
                                     row->name, quoted);
        if (strstr(text, "://") || strncmp(text, "file:", 5) == 0)
                return config_refuse(why, "%s: %s is a URL; write the path alone, as in /srv/x",
                                     row->name, quoted);
        if (strchr(text, '$'))
                return config_refuse(why, "%s: \"$\" in %s is not expanded; write the whole path",
                                     row->name, quoted);
        if (strlen(text) >= PATH_MAX - 64) /* leave room for file names below the directory */
                return config_refuse(why, "%s: %s has %zu bytes; a path has at most %d", row->name,
                                     quoted, strlen(text), PATH_MAX - 65);
        return 0;
}

static int check_socket(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        enum { LONGEST = sizeof(((struct sockaddr_un *)0)->sun_path) - 1 };
        char quoted[CONFIG_QUOTED];
        int r;

        r = check_path(row, text, why);
        if (r < 0)
                return r;
        config_quote(text, quoted);
        if (strlen(text) > LONGEST)
                return config_refuse(why, "%s: %s is too long for a socket: %zu bytes, at most %d",
                                     row->name, quoted, strlen(text), (int)LONGEST);
        if (text[strlen(text) - 1] == '/')
                return config_refuse(why, "%s: %s is a directory; the socket needs a name in it",
                                     row->name, quoted);
        return 0;
}

enum where { NOWHERE, LOOPBACK, ELSEWHERE };

/* Classifies an address: IPv4 addresses that begin with 127, "[::1]" and "localhost" are LOOPBACK;
 * other IP addresses are ELSEWHERE; a name or another text is NOWHERE. */
static enum where where_is(const char *text, size_t n)
{
        char host[64];
        struct in6_addr in6;
        struct in_addr in;

        if (n >= sizeof(host))
                return NOWHERE;
        memcpy(host, text, n);
        host[n] = '\0';
        if (host[0] == '[') {
                host[n - 1] = '\0';
                if (inet_pton(AF_INET6, host + 1, &in6) != 1)
                        return NOWHERE;
                return IN6_IS_ADDR_LOOPBACK(&in6) ? LOOPBACK : ELSEWHERE;
        }
        if (strcmp(host, "localhost") == 0)
                return LOOPBACK;
        if (inet_pton(AF_INET, host, &in) != 1)
                return NOWHERE;
        return ntohl(in.s_addr) >> 24 == IN_LOOPBACKNET ? LOOPBACK : ELSEWHERE;
}

/* Refuses the same values as report/http-socket.c before its first system call, so that an error
 * names the place in the file. config_check() refuses addresses that other hosts can reach. */
static int check_http(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : text;
        size_t host = colon ? (size_t)(colon - text) : 0;
        bool bracketed = text[0] == '[';
        char quoted[CONFIG_QUOTED];
        uint64_t number;

        if (strcmp(text, "off") == 0)
                return 0;
        config_quote(text, quoted);
        if (strncmp(text, "unix:", 5) == 0)
                return text[5] == '/' ? check_socket(row, text + 5, why)
                                      : config_refuse(why, "%s: the path in %s must begin with /",
                                                      row->name, quoted);
        if (text[0] == '/')
                return config_refuse(
                        why, "%s: a path needs unix: in front; did you mean \"unix:%.80s\"?",
                        row->name, text);
        if (strstr(text, "://"))
                return config_refuse(
                        why,
                        "%s: %s is a URL; write its address and port alone, as in 127.0.0.1:9750",
                        row->name, quoted);
        if (bracketed && text[strlen(text) - 1] == ']')
                return config_refuse(
                        why,
                        "%s: %s has no port; write it behind the bracket, as in \"[::1]:9750\"",
                        row->name, quoted);
        if (host == 0) {
                if (units_parse_count(port, &number) == 0 && number <= 65535)
                        return config_refuse(
                                why, "%s: %s names no address; did you mean \"127.0.0.1:%s\"?",
                                row->name, quoted, port);
                return config_refuse(why, "%s: %s is not ADDRESS:PORT, unix:/PATH or off",
                                     row->name, quoted);
        }
        if (bracketed ? text[host - 1] != ']' || host < 4 : memchr(text, ':', host) != NULL)
                return config_refuse(
                        why, "%s: %s: an IPv6 address is written in brackets, as in \"[::1]:9750\"",
                        row->name, quoted);
        for (size_t i = 0; i < host; i++)
                if (!isalnum((unsigned char)text[i]) &&
                    !strchr(bracketed ? "[]:.%-_" : ".-_", text[i]))
                        return config_refuse(why, "%s: %s is not ADDRESS:PORT, unix:/PATH or off",
                                             row->name, quoted);
        if (host > 255)
                return config_refuse(why, "%s: the address in %s has more than 255 characters",
                                     row->name, quoted);
        if (units_parse_count(port, &number) < 0 || number > 65535 || strlen(port) > 5)
                return config_refuse(why, "%s: the port in %s is not a number from 0 to 65535",
                                     row->name, quoted);
        return where_is(text, host) != NOWHERE
                       ? 0
                       : config_refuse(
                                 why,
                                 "%s: %s has no IP address in front of the port, and no other "
                                 "name than localhost is looked up; use 127.0.0.1, [::1] or "
                                 "localhost",
                                 row->name, quoted);
}

bool config_http_is_remote(const char *text)
{
        const char *colon = strrchr(text, ':');

        return strncmp(text, "unix:", 5) != 0 && colon &&
               where_is(text, (size_t)(colon - text)) == ELSEWHERE;
}

static int check_file(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        char quoted[CONFIG_QUOTED];

        if (strcmp(text, "off") == 0)
                return 0;
        if (text[0] != '/' && text[0] != '~')
                return config_refuse(why, "%s: %s is neither a path that begins with / nor off",
                                     row->name, config_quote(text, quoted));
        return check_path(row, text, why);
}

static int check_word(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        enum { LONGEST = 255 };
        char quoted[CONFIG_QUOTED];
        size_t n = strlen(text);

        for (size_t i = 0; i < n; i++)
                if (text[i] <= ' ' || text[i] > '~')
                        return config_refuse(why,
                                             "%s: %s has a character that is not printable ASCII, "
                                             "or a space",
                                             row->name, config_quote(text, quoted));
        if (n > 0 && n <= LONGEST)
                return 0;
        return config_refuse(why,
                             n == 0 ? "%s: the value is empty; write off for none"
                                    : "%s: the value has more than 255 characters",
                             row->name);
}

static int check_name(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        static const char in_hosts[] =
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
        char quoted[CONFIG_QUOTED];
        uint64_t bytes;
        size_t prefix;

        config_quote(text, quoted);
        if (*text == '\0')
                return config_refuse(why, "%s: a name cannot be empty", row->name);
        if (row->offset == offsetof(struct config, http.hosts) &&
            strspn(text, in_hosts) != strlen(text))
                return config_refuse(why,
                                     "%s: %s is not the name of a host, as in kvcache.example.com, "
                                     "without a port and without wildcards",
                                     row->name, quoted);
        if (row->offset == offsetof(struct config, memory.floors)) {
                if (!config_split_floor(text, &prefix, &bytes))
                        return config_refuse(
                                why,
                                "%s: %s is not a floor; write PREFIX=SIZE, as in \"vllm/=1GiB\"",
                                row->name, quoted);
                if (text[prefix - 1] == '*')
                        return config_refuse(
                                why,
                                "%s: the prefix of %s ends with \"*\"; write it "
                                "without, because every name that begins with a prefix "
                                "matches",
                                row->name, quoted);
                return 0;
        }
        if (strlen(text) > 255)
                return config_refuse(why, "%s: %s has %zu bytes; a name has at most 255", row->name,
                                     quoted, strlen(text));
        if (strpbrk(text, ", :/"))
                return config_refuse(
                        why,
                        "%s: %s is not a name, which has no space and none of \",:/\"; several "
                        "are written as a list: [alice, bob]",
                        row->name, quoted);
        return 0;
}

/* Checks a tenant's name, which appears in metrics and in the store. */
static int check_tenant(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        static const char allowed[] =
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
        char quoted[CONFIG_QUOTED];
        size_t n = strlen(text);

        if (n > 0 && n <= CONFIG_TENANT_NAME && strspn(text, allowed) == n)
                return 0;
        return config_refuse(why,
                             "%s: %s is not a tenant's name: 1 to %u letters, digits, \".\", \"_\" "
                             "and \"-\"",
                             row->name, config_quote(text, quoted), (unsigned)CONFIG_TENANT_NAME);
}

int config_check_text(const struct config_row *row, const char *text, char why[static CONFIG_WHY])
{
        switch (row->type) {
        case CONFIG_SOCKET:
                return check_socket(row, text, why);
        case CONFIG_HTTP:
                return check_http(row, text, why);
        case CONFIG_FILE:
                return check_file(row, text, why);
        case CONFIG_TEXT:
                return check_word(row, text, why);
        case CONFIG_TENANT:
                return check_tenant(row, text, why);
        case CONFIG_PATHS:
                return check_path(row, text, why);
        case CONFIG_NAMES:
                return check_name(row, text, why);
        default:
                return 0;
        }
}
