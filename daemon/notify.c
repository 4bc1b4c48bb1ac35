/* SPDX-License-Identifier: Apache-2.0 */
/* See notify.h. Loop thread. Owns nothing: each message goes by a socket of its own. A failure is
 * ignored, since the daemon works without a service manager; one that does not read costs
 * NOTIFY_WAIT_MS, and only for a message that changes the unit's state. */
#include "notify.h"

#include "build-config.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/clock.h"
#include "cleanup.h"

#if HAVE_LIBSYSTEMD
#include <systemd/sd-daemon.h>

enum { NOTIFY_WAIT_MS = 1000 };

int notify_inherit(struct notify_sockets *ret)
{
        char **names = NULL;
        int n = sd_listen_fds_with_names(0, &names), r = 0;

        if (n < 0)
                return n;
        *ret = (struct notify_sockets){ .listen = -1, .http = -1 };
        for (int i = 0; i < n; i++) {
                const char *name = names ? names[i] : "unknown";
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
        for (int i = 0; names && names[i]; i++)
                free(names[i]);
        free(names);
        return r;
}

bool notify_wanted(void)
{
        return getenv("NOTIFY_SOCKET") != NULL;
}

/* Not sd_notify(), which waits for ever for a manager that does not read: the loop runs this. What
 * changes the unit's state is worth a short wait. */
static void send_state(const char *state, bool important)
{
        const char *path = getenv("NOTIFY_SOCKET");
        struct sockaddr_un to = { .sun_family = AF_UNIX };
        size_t length = path ? strlen(path) : 0;
        _cleanup_(closep) int fd = -1;
        struct pollfd p = { .events = POLLOUT };

        if (length < 2 || length >= sizeof(to.sun_path) || (path[0] != '/' && path[0] != '@'))
                return;
        memcpy(to.sun_path, path, length);
        if (path[0] == '@')
                to.sun_path[0] = '\0';
        p.fd = fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&to,
                              (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length +
                                          (path[0] == '/'))) < 0)
                return;
        if (send(fd, state, strlen(state), MSG_NOSIGNAL) < 0 && errno == EAGAIN && important &&
            poll(&p, 1, NOTIFY_WAIT_MS) == 1)
                (void)!send(fd, state, strlen(state), MSG_NOSIGNAL);
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

static void send_state(const char *state, bool important)
{
}

uint64_t notify_watchdog_us(void)
{
        return 0;
}
#endif

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
