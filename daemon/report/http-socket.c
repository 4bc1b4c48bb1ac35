/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the socket of listen.http or checks an inherited one: on a loopback address or a path, and
 * on another address only if http.allow_remote permits it. A failure is described by one line in
 * `ret_error`. */
#include "report/http-socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/stale-socket.h"
#include "cleanup.h"

enum { BACKLOG = 32 };

static bool is_loopback(const struct sockaddr *address)
{
        if (address->sa_family == AF_INET)
                return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
        return address->sa_family == AF_INET6 &&
               IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

/* Parses "127.0.0.1:9750", "[::1]:9750" or "localhost:9750". */
static int parse_tcp(const char *text, struct sockaddr_storage *ret, socklen_t *ret_length)
{
        const char *colon = strrchr(text, ':');
        char host[64];
        size_t n;
        unsigned port = 0;

        if (!colon || colon == text)
                return -EINVAL;
        n = strlen(colon + 1);
        if (n == 0 || n > 5 || strspn(colon + 1, "0123456789") != n)
                return -EINVAL;
        for (const char *p = colon + 1; *p; p++)
                port = port * 10 + (unsigned)(*p - '0');
        n = (size_t)(colon - text);
        if (port > 65535 || n >= sizeof(host))
                return -EINVAL;
        memcpy(host, text, n);
        host[n] = '\0';

        *ret = (struct sockaddr_storage){};
        if (host[0] == '[' && host[n - 1] == ']') {
                struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ret;

                host[n - 1] = '\0';
                in6->sin6_family = AF_INET6;
                in6->sin6_port = htons((uint16_t)port);
                *ret_length = sizeof(*in6);
                return inet_pton(AF_INET6, host + 1, &in6->sin6_addr) == 1 ? 0 : -EINVAL;
        }
        struct sockaddr_in *in = (struct sockaddr_in *)ret;

        in->sin_family = AF_INET;
        in->sin_port = htons((uint16_t)port);
        *ret_length = sizeof(*in);
        return inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host,
                         &in->sin_addr) == 1
                       ? 0
                       : -EINVAL;
}

static int listen_tcp(const char *text, bool allow_remote, char ret_error[static 256])
{
        _cleanup_(closep) int fd = -1;
        struct sockaddr_storage address;
        socklen_t length;
        int r;

        r = parse_tcp(text, &address, &length);
        if (r < 0) {
                snprintf(ret_error, 256,
                         "listen.http: \"%s\" is not an address; use one like 127.0.0.1:9750, "
                         "[::1]:9750 or unix:/path",
                         text);
                return r;
        }
        if (!is_loopback((struct sockaddr *)&address) && !allow_remote) {
                snprintf(ret_error, 256,
                         "listen.http: %s is not a loopback address, and http.allow_remote is not "
                         "set",
                         text);
                return -EPERM;
        }
        fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){ 1 }, sizeof(int)) == 0 &&
            bind(fd, (struct sockaddr *)&address, length) == 0 && listen(fd, BACKLOG) == 0)
                return TAKE_FD(fd);
        r = -errno;
        snprintf(ret_error, 256, "listen.http: %s: %s%s", text, strerror(-r),
                 r == -EADDRINUSE ? "; another program listens there" : "");
        return r;
}

static int listen_unix(struct http_socket *s, const char *path, char ret_error[static 256])
{
        _cleanup_(closep) int fd = -1;
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        struct stat st;
        int r;

        if (path[0] != '/' || strlen(path) >= sizeof(address.sun_path)) {
                snprintf(ret_error, 256,
                         "listen.http: the path of a Unix socket begins with / and has at most %zu "
                         "bytes",
                         sizeof(address.sun_path) - 1);
                return -EINVAL;
        }
        memcpy(address.sun_path, path, strlen(path) + 1);
        r = stale_socket_remove(&address, SOCK_STREAM);
        if (r < 0) {
                snprintf(ret_error, 256, "listen.http: %s: %s", path,
                         r == -EEXIST       ? "there is a file that is not a socket"
                         : r == -EADDRINUSE ? "another program listens there"
                                            : strerror(-r));
                return r;
        }
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        /* The mode applies to the file that bind() creates, reduced by the umask. */
        if (fd >= 0 && fchmod(fd, 0660) == 0 &&
            bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0) {
                if (lstat(path, &st) == 0) {
                        s->dev = st.st_dev;
                        s->ino = st.st_ino;
                        memcpy(s->path, path, strlen(path) + 1);
                }
                if (listen(fd, BACKLOG) == 0)
                        return TAKE_FD(fd);
        }
        r = -errno;
        snprintf(ret_error, 256, "listen.http: %s: %s", path, strerror(-r));
        return r;
}

/* Checks that the socket is as required, and stores where it listens. */
static int describe(struct http_socket *s, int fd, bool allow_remote, char ret_error[static 256])
{
        struct sockaddr_storage address = {};
        socklen_t length = sizeof(address);
        char host[INET6_ADDRSTRLEN];
        int listening = 0, type = 0;

        if (getsockname(fd, (struct sockaddr *)&address, &length) < 0 ||
            getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening,
                       &(socklen_t){ sizeof(listening) }) < 0 ||
            getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &(socklen_t){ sizeof(type) }) < 0) {
                snprintf(ret_error, 256, "listen.http: the inherited descriptor: %s",
                         strerror(errno));
                return -errno;
        }
        if (!listening || type != SOCK_STREAM) {
                snprintf(ret_error, 256,
                         "listen.http: the inherited socket is not a listening stream socket");
                return -EINVAL;
        }
        if (address.ss_family == AF_UNIX) {
                const struct sockaddr_un *un = (struct sockaddr_un *)&address;

                snprintf(s->address, sizeof(s->address), "unix:%s%.*s", un->sun_path[0] ? "" : "@",
                         (int)sizeof(un->sun_path) - !un->sun_path[0],
                         un->sun_path + !un->sun_path[0]);
                return 0;
        }
        s->tcp = true;
        s->remote = !is_loopback((struct sockaddr *)&address);
        if (s->remote && !allow_remote) {
                snprintf(ret_error, 256,
                         "listen.http: the inherited socket is not on a loopback address, and "
                         "http.allow_remote is not set");
                return -EPERM;
        }
        if (address.ss_family == AF_INET) {
                const struct sockaddr_in *in = (struct sockaddr_in *)&address;

                inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
                snprintf(s->address, sizeof(s->address), "http://%s:%u", host, ntohs(in->sin_port));
        } else {
                const struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&address;

                inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
                snprintf(s->address, sizeof(s->address), "http://[%s]:%u", host,
                         ntohs(in6->sin6_port));
        }
        return 0;
}

int http_socket_open(struct http_socket *ret, int inherited_fd, const char *address,
                     bool allow_remote, char ret_error[static 256])
{
        _cleanup_(closep) int own_fd = -1;
        int r;

        *ret = (struct http_socket){ 0 };
        if (inherited_fd < 0) {
                own_fd = strncmp(address, "unix:", 5) == 0
                                 ? listen_unix(ret, address + 5, ret_error)
                                 : listen_tcp(address, allow_remote, ret_error);
                if (own_fd < 0)
                        return own_fd;
        }
        r = describe(ret, inherited_fd < 0 ? own_fd : inherited_fd, allow_remote, ret_error);
        if (r < 0)
                return r;
        return inherited_fd < 0 ? TAKE_FD(own_fd) : inherited_fd;
}

void http_socket_remove(const struct http_socket *s)
{
        struct stat st;

        if (s->path[0] && lstat(s->path, &st) == 0 && st.st_dev == s->dev && st.st_ino == s->ino)
                unlink(s->path);
}
