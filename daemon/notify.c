/* SPDX-License-Identifier: Apache-2.0 */
/* See notify.h. Loop thread. Owns only the names and descriptors that were kept; each message is
 * sent through a socket of its own. Failures are ignored, because the daemon works without a
 * service manager. A manager that does not read costs NOTIFY_WAIT_MS, and only for a message that
 * changes the unit's state. */
#include "notify.h"

#include "build-config.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/search.h"
#include "checked.h"
#include "cleanup.h"

#if HAVE_LIBSYSTEMD
#include <systemd/sd-daemon.h>

enum { NOTIFY_WAIT_MS = 1000, SETTLE_MS = 5000 };

/* Orders kept descriptors by name, and those of one name by number, the order in which they were
 * received. */
static int compare_kept(const void *a, const void *b)
{
        const struct notify_kept *x = a, *y = b;
        int r = strcmp(x->name, y->name);

        return r != 0 ? r : (x->fd > y->fd) - (x->fd < y->fd);
}

int notify_inherit(struct notify_sockets *ret)
{
        char **names = NULL;
        int n = sd_listen_fds_with_names(0, &names), r = 0;

        if (n < 0)
                return n;
        *ret = (struct notify_sockets){ .listen = -1, .http = -1 };
        ret->kept = calloc((size_t)n + 1, sizeof(*ret->kept));
        if (!ret->kept)
                r = -ENOMEM;
        for (int i = 0; i < n && ret->kept; i++) {
                const char *name = names ? names[i] : "unknown";

                if (strncmp(name, NOTIFY_KEPT, strlen(NOTIFY_KEPT)) == 0) {
                        ret->kept[ret->n_kept++] =
                                (struct notify_kept){ .name = TAKE_PTR(names[i]),
                                                      .fd = SD_LISTEN_FDS_START + i };
                        names[i] = strdup("");
                        if (!names[i])
                                r = -ENOMEM;
                        continue;
                }
                int *to = strcmp(name, "http") == 0 || strcmp(name, "kvcache-http.socket") == 0
                                  ? &ret->http
                                  : &ret->listen;
                bool known = to == &ret->http || strcmp(name, "kvcache") == 0 ||
                             strcmp(name, "kvcache.socket") == 0 || strcmp(name, "unknown") == 0;

                if (!known || *to >= 0)
                        r = -EINVAL;
                else
                        *to = SD_LISTEN_FDS_START + i;
        }
        for (int i = 0; i < n && names; i++)
                free(names[i]);
        free(names);
        if (ret->n_kept > 0)
                qsort(ret->kept, ret->n_kept, sizeof(*ret->kept), compare_kept);
        return r;
}

uint64_t notify_kept_bytes(void)
{
        const char *suffix = NOTIFY_KEPT_WRITABLE;
        char **names = NULL;
        int n = sd_listen_fds_with_names(0, &names);
        uint64_t bytes = 0;

        for (int i = 0; i < n && names; i++) {
                size_t length = strlen(names[i]);
                struct stat st;

                if (strncmp(names[i], NOTIFY_KEPT, strlen(NOTIFY_KEPT)) == 0 &&
                    length > strlen(suffix) &&
                    strcmp(names[i] + length - strlen(suffix), suffix) == 0 &&
                    fstat(SD_LISTEN_FDS_START + i, &st) == 0)
                        bytes += (uint64_t)st.st_blocks * 512;
                free(names[i]);
        }
        free(names);
        return bytes;
}

unsigned notify_keeps(void)
{
        const char *room = getenv("FDSTORE"); /* set by systemd from version 254 on */
        unsigned long n = room ? strtoul(room, NULL, 10) : UINT_MAX;

        return getenv("NOTIFY_SOCKET") ? (unsigned)MIN(n, (unsigned long)UINT_MAX) : 0;
}

bool notify_wanted(void)
{
        return getenv("NOTIFY_SOCKET") != NULL;
}

/* Sends a message. sd_notify() is not used, because the loop runs this, and sd_notify() waits
 * indefinitely for a manager that does not read. A message that changes the unit's state
 * (`important`) waits up to NOTIFY_WAIT_MS. `keep` is a descriptor to send along, or -1. */
static int send_state_fd(const char *state, bool important, int keep)
{
        const char *path = getenv("NOTIFY_SOCKET");
        struct sockaddr_un to = { .sun_family = AF_UNIX };
        size_t length = path ? strlen(path) : 0;
        _cleanup_(closep) int fd = -1;
        struct pollfd p = { .events = POLLOUT };
        struct iovec text = { .iov_base = (char *)state, .iov_len = strlen(state) };
        union {
                struct cmsghdr head;
                char room[CMSG_SPACE(sizeof(int))];
        } control = { 0 };
        struct msghdr message = { .msg_iov = &text, .msg_iovlen = 1 };

        if (length < 2 || length >= sizeof(to.sun_path) || (path[0] != '/' && path[0] != '@'))
                return -EINVAL;
        memcpy(to.sun_path, path, length);
        if (path[0] == '@')
                to.sun_path[0] = '\0';
        p.fd = fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&to,
                              (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length +
                                          (path[0] == '/'))) < 0)
                return -errno;
        if (keep >= 0) {
                message.msg_control = &control;
                message.msg_controllen = sizeof(control.room);
                control.head = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)),
                                                 .cmsg_level = SOL_SOCKET,
                                                 .cmsg_type = SCM_RIGHTS };
                memcpy(CMSG_DATA(&control.head), &keep, sizeof(keep));
        }
        if (sendmsg(fd, &message, MSG_NOSIGNAL) >= 0)
                return 0;
        if (errno != EAGAIN || !important || poll(&p, 1, NOTIFY_WAIT_MS) != 1)
                return -errno;
        return sendmsg(fd, &message, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static void send_state(const char *state, bool important)
{
        (void)send_state_fd(state, important, -1);
}

int notify_keep(const char *name, int fd)
{
        char state[512];

        /* FDPOLL=0 keeps a socket whose peer has closed, too, because the next daemon must see
         * that. */
        snprintf(state, sizeof(state), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
        return send_state_fd(state, true, fd);
}

void notify_forget(const char *name)
{
        char state[512];

        snprintf(state, sizeof(state), "FDSTOREREMOVE=1\nFDNAME=%s", name);
        send_state(state, true);
}

/* BARRIER=1: the service manager closes the descriptor when it reaches this message. A socket pair
 * is used because the unit's filter of system calls refuses pipes. */
bool notify_settle(void)
{
        int ends[2];
        struct pollfd p;
        bool settled;

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
                return false;
        settled = send_state_fd("BARRIER=1", true, ends[1]) == 0;
        close(ends[1]);
        p = (struct pollfd){ .fd = ends[0] };
        settled = settled && poll(&p, 1, SETTLE_MS) == 1 && (p.revents & POLLHUP);
        close(ends[0]);
        return settled;
}

uint64_t notify_watchdog_us(void)
{
        uint64_t us = 0;

        return sd_watchdog_enabled(0, &us) > 0 ? us : 0;
}
#else
int notify_inherit(struct notify_sockets *ret)
{
        *ret = (struct notify_sockets){ .listen = -1, .http = -1 };
        return 0;
}

bool notify_wanted(void)
{
        return false;
}

uint64_t notify_kept_bytes(void)
{
        return 0;
}

unsigned notify_keeps(void)
{
        return 0;
}

int notify_keep(const char *name, int fd)
{
        return -ENOSYS;
}

void notify_forget(const char *name)
{
}

bool notify_settle(void)
{
        return false;
}

static void send_state(const char *state, bool important)
{
}

uint64_t notify_watchdog_us(void)
{
        return 0;
}
#endif

/* --- kept descriptors --- */

/* Finds a kept descriptor by binary search, because each client with a lease has a socket here, and
 * there may be thousands. */
static struct notify_kept *find_kept(const struct notify_sockets *sockets, const char *name)
{
        unsigned at = search_first(sockets->n_kept, i, strcmp(sockets->kept[i].name, name) < 0);

        for (; at < sockets->n_kept && strcmp(sockets->kept[at].name, name) == 0; at++)
                if (sockets->kept[at].fd >= 0)
                        return &sockets->kept[at];
        return NULL;
}

int notify_take_kept(struct notify_sockets *sockets, const char *name)
{
        struct notify_kept *kept = find_kept(sockets, name);

        return kept ? TAKE_FD(kept->fd) : -1;
}

bool notify_has_kept(const struct notify_sockets *sockets, const char *name)
{
        return find_kept(sockets, name) != NULL;
}

void notify_drop_kept(struct notify_sockets *sockets)
{
        for (unsigned i = 0; i < sockets->n_kept; i++) {
                if (sockets->kept[i].fd >= 0) {
                        close(sockets->kept[i].fd);
                        notify_forget(sockets->kept[i].name);
                }
                free(sockets->kept[i].name);
        }
        free(sockets->kept);
        sockets->kept = NULL;
        sockets->n_kept = 0;
}

void notify_ready(void)
{
        send_state("READY=1", true);
}

void notify_reloading(void)
{
        char state[64];

        snprintf(state, sizeof(state), "RELOADING=1\nMONOTONIC_USEC=%llu",
                 (unsigned long long)(clock_mono_ns() / 1000));
        send_state(state, true);
}

__attribute__((format(printf, 2, 0))) static void send_status(const char *before, const char *fmt,
                                                              va_list args)
{
        char state[512];
        int n = snprintf(state, sizeof(state), "%sSTATUS=", before);

        vsnprintf(state + n, sizeof(state) - (size_t)n, fmt, args);
        send_state(state, before[0] != '\0');
}

void notify_stopping(const char *status, ...)
{
        va_list args;

        va_start(args, status);
        send_status("STOPPING=1\n", status, args);
        va_end(args);
}

void notify_status(const char *status, ...)
{
        va_list args;

        va_start(args, status);
        send_status("", status, args);
        va_end(args);
}

void notify_watchdog(void)
{
        send_state("WATCHDOG=1", false);
}
