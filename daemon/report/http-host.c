/* SPDX-License-Identifier: Apache-2.0 */
/* See http-host.h. */
#include "report/http-host.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

enum { NAME_MAX_BYTES = 255 };

static bool is_port(const char *text)
{
        size_t n = strspn(text, "0123456789");

        return n <= 5 && !text[n];
}

static bool is_ipv6(const char *text, size_t n)
{
        char address[INET6_ADDRSTRLEN];

        if (n >= sizeof(address))
                return false;
        memcpy(address, text, n);
        address[n] = '\0';
        return inet_pton(AF_INET6, address, &(struct in6_addr){ 0 }) == 1;
}

static bool is_own(const char *name, const struct http_host_names *names)
{
        size_t label = strcspn(names->own, ".");

        if (inet_pton(AF_INET, name, &(struct in_addr){ 0 }) == 1 ||
            strcasecmp(name, "localhost") == 0 || strcasecmp(name, names->own) == 0 ||
            (strlen(name) == label && strncasecmp(name, names->own, label) == 0))
                return true;
        for (unsigned i = 0; i < names->n; i++)
                if (strcasecmp(name, names->names[i]) == 0)
                        return true;
        return false;
}

enum http_host http_host_judge(const char *host, const struct http_host_names *names)
{
        static const char allowed[] =
                "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
        char name[NAME_MAX_BYTES + 1];
        size_t n;

        if (*host == '[') {
                n = strcspn(++host, "]");
                return host[n] && is_ipv6(host, n) &&
                                       (!host[n + 1] ||
                                        (host[n + 1] == ':' && is_port(host + n + 2)))
                               ? HTTP_HOST_OWN
                               : HTTP_HOST_MALFORMED;
        }
        n = strspn(host, allowed);
        if (n == 0 || n > NAME_MAX_BYTES || (host[n] && (host[n] != ':' || !is_port(host + n + 1))))
                return HTTP_HOST_MALFORMED;
        if (n > 1 && host[n - 1] == '.') /* omits the dot before the root label */
                n--;
        memcpy(name, host, n);
        name[n] = '\0';
        return is_own(name, names) ? HTTP_HOST_OWN : HTTP_HOST_OTHER;
}
