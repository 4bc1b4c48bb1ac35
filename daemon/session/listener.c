/* SPDX-License-Identifier: Apache-2.0 */
/* Implements listener.h. Loop thread. Owns the socket and, if it has bound one, the socket's file,
 * which it removes at the end only if the file is still its own. Accepts a limited number of
 * connections per iteration.
 *
 * Failures: startup fails with a sentence if another process listens on the path, a file there is
 * no socket, or other users could replace the socket. Later the only failure is a lack of
 * descriptors or memory, after which accepting pauses. */
#include "session/listener.h"

#include <errno.h>
#include <libgen.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/stale-socket.h"
#include "cleanup.h"

enum { BACKLOG = 1024, ACCEPTS_PER_ITERATION = 8, PAUSE_MS = 100 };

struct listener {
        struct listener_params params;
        int fd;
        char *bound; /* file to remove at the end; NULL: none */
        dev_t device;
        ino_t inode;
        struct event *readable, *resume;
};

DEFINE_CLEANUP(struct listener *, listener_free);

static void on_readable(evutil_socket_t fd, short what, void *userdata)
{
        struct listener *l = userdata;

        for (int i = 0; i < ACCEPTS_PER_ITERATION; i++) {
                int peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

                if (peer >= 0) {
                        l->params.on_connection(l->params.userdata, peer);
                        continue;
                }
                if (errno == EINTR || errno == ECONNABORTED)
                        continue;
                if (errno == EAGAIN)
                        return;
                /* EMFILE, ENFILE or ENOMEM: the connection stays in the backlog, so the event would
                 * fire again at once. */
                l->params.on_exhausted(l->params.userdata, -errno);
                event_del(l->readable);
                event_add(l->resume, &(struct timeval){ .tv_usec = PAUSE_MS * 1000 });
                return;
        }
}

static void on_resume(evutil_socket_t fd, short what, void *userdata)
{
        struct listener *l = userdata;

        event_add(l->readable, NULL);
}

static int check_inherited(int fd, char *ret_error)
{
        int type = 0, listening = 0, family = 0;
        socklen_t n = sizeof(int);

        if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) < 0 ||
            getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &n) < 0 ||
            getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &n) < 0 || type != SOCK_SEQPACKET ||
            !listening || family != AF_UNIX) {
                snprintf(ret_error, 256,
                         "the inherited descriptor %d is not a listening Unix socket of type "
                         "SEQPACKET "
                         "(ListenSequentialPacket= in the socket unit)",
                         fd);
                return -EINVAL;
        }
        return 0;
}

static int make_directory(const char *path)
{
        _cleanup_(freep) char *copy = strdup(path);
        char *directory;

        if (!copy)
                return -ENOMEM;
        directory = dirname(copy);
        if (mkdir(directory, 0755) < 0 && errno != EEXIST)
                return -errno;
        return 0;
}

/* Checks the directory of the socket, if it exists. A user that may write to it could replace the
 * socket by its own, and impersonate the daemon. */
static int check_directory(const char *path, char *ret_error)
{
        _cleanup_(freep) char *copy = strdup(path);
        const char *directory;
        struct stat st;

        if (!copy)
                return -ENOMEM;
        directory = dirname(copy);
        if (stat(directory, &st) < 0) {
                int r = -errno;

                if (r == -ENOENT)
                        return 0;
                snprintf(ret_error, 256, "listen.socket: %.100s: %s", directory, strerror(-r));
                return r;
        }
        if (st.st_uid != 0 && st.st_uid != geteuid()) {
                snprintf(
                        ret_error, 256,
                        "listen.socket: the directory %.100s belongs to user %u, who could replace "
                        "the socket; start the daemon as that user, or use a directory of root",
                        directory, (unsigned)st.st_uid);
                return -EPERM;
        }
        if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX)) {
                snprintf(ret_error, 256,
                         "listen.socket: every user may write to the directory %.100s, and could "
                         "replace the socket; remove that permission (chmod o-w), or set the "
                         "sticky bit (chmod +t)",
                         directory);
                return -EPERM;
        }
        if (access(directory, W_OK | X_OK) < 0) {
                int r = -errno;

                snprintf(ret_error, 256, "listen.socket: cannot listen on %s: %s", path,
                         strerror(-r));
                return r;
        }
        return 0;
}

int listener_check_path(const char *path, char ret_error[static 256])
{
        struct sockaddr_un address;
        struct stat st;
        int r;

        if (strlen(path) >= sizeof(address.sun_path)) {
                snprintf(ret_error, 256,
                         "listen.socket: the path is longer than the %zu bytes that a Unix socket "
                         "may have",
                         sizeof(address.sun_path) - 1);
                return -ENAMETOOLONG;
        }
        r = check_directory(path, ret_error);
        if (r < 0)
                return r;
        if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode)) {
                snprintf(ret_error, 256,
                         "listen.socket: %s exists and is not a socket; remove it, or use another "
                         "path",
                         path);
                return -EEXIST;
        }
        return 0;
}

static int bind_path(struct listener *l, char *ret_error)
{
        const char *path = l->params.path;
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        struct stat st;
        bool bound;
        int r = listener_check_path(path, ret_error);

        if (r < 0)
                return r;
        memcpy(address.sun_path, path, strlen(path) + 1);
        r = make_directory(path);
        if (r < 0) {
                snprintf(ret_error, 256, "listen.socket: cannot create the directory of %s: %s",
                         path, strerror(-r));
                return r;
        }
        r = check_directory(path, ret_error);
        if (r < 0)
                return r;
        r = stale_socket_remove(&address, SOCK_SEQPACKET);
        if (r < 0) {
                if (r == -EADDRINUSE)
                        snprintf(ret_error, 256,
                                 "listen.socket: another process listens on %s; stop it, or use "
                                 "another path",
                                 path);
                else
                        snprintf(ret_error, 256, "listen.socket: cannot listen on %s: %s", path,
                                 strerror(-r));
                return r;
        }
        l->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (l->fd < 0) {
                r = -errno;
                snprintf(ret_error, 256, "listen.socket: cannot create a socket for %s: %s", path,
                         strerror(-r));
                return r;
        }
        bound = bind(l->fd, (struct sockaddr *)&address, sizeof(address)) == 0;
        if (!bound || chmod(path, l->params.mode & 0777) < 0 || listen(l->fd, BACKLOG) < 0 ||
            lstat(path, &st) < 0) {
                r = -errno;
                if (bound)
                        (void)unlink(path);
                snprintf(ret_error, 256, "listen.socket: cannot listen on %s: %s", path,
                         strerror(-r));
                return r;
        }
        l->device = st.st_dev;
        l->inode = st.st_ino;
        l->bound = strdup(path);
        return l->bound ? 0 : -ENOMEM;
}

int listener_new(struct listener **ret, struct event_base *base,
                 const struct listener_params *params, char ret_error[static 256])
{
        _cleanup_(listener_freep) struct listener *l = calloc(1, sizeof(*l));
        int r;

        ret_error[0] = '\0';
        if (!l)
                return -ENOMEM;
        l->params = *params;
        l->fd = -1;
        if (params->inherited_fd >= 0) {
                r = check_inherited(params->inherited_fd, ret_error);
                if (r < 0)
                        return r;
                l->fd = params->inherited_fd;
                evutil_make_socket_nonblocking(l->fd);
                evutil_make_socket_closeonexec(l->fd);
        } else {
                r = bind_path(l, ret_error);
                if (r < 0)
                        return r;
        }
        l->readable = event_new(base, l->fd, EV_READ | EV_PERSIST, on_readable, l);
        l->resume = evtimer_new(base, on_resume, l);
        if (!l->readable || !l->resume || event_add(l->readable, NULL) < 0)
                return -ENOMEM;
        *ret = TAKE_PTR(l);
        return 0;
}

void listener_get_path(const struct listener *l, char *ret, size_t room)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        socklen_t length = sizeof(address);
        size_t n;

        if (getsockname(l->fd, (struct sockaddr *)&address, &length) < 0)
                length = 0;
        n = length > offsetof(struct sockaddr_un, sun_path)
                    ? length - offsetof(struct sockaddr_un, sun_path)
                    : 0;
        if (n > 0 && !address.sun_path[0])
                address.sun_path[0] = '@';
        else
                n = strnlen(address.sun_path, n);
        snprintf(ret, room, "%.*s", (int)n, address.sun_path);
}

struct listener *listener_free(struct listener *l)
{
        struct stat st;

        if (!l)
                return NULL;
        if (l->readable)
                event_free(l->readable);
        if (l->resume)
                event_free(l->resume);
        /* Remove only our own file, since a successor may have bound the path again. */
        if (l->bound && lstat(l->bound, &st) == 0 && st.st_dev == l->device &&
            st.st_ino == l->inode)
                (void)unlink(l->bound);
        free(l->bound);
        if (l->fd >= 0)
                close(l->fd);
        free(l);
        return NULL;
}
