/* SPDX-License-Identifier: Apache-2.0 */
#include "notify.h"

#include "build-config.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#if HAVE_LIBSYSTEMD
#include <systemd/sd-daemon.h>

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

static void send_state(const char *state)
{
        (void)sd_notify(0, state);
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

static void send_state(const char *state)
{
}

uint64_t notify_watchdog_us(void)
{
        return 0;
}
#endif

void notify_ready(void)
{
        send_state("READY=1");
}

void notify_reloading(void)
{
        char state[64];

        snprintf(state, sizeof(state), "RELOADING=1\nMONOTONIC_USEC=%llu",
                 (unsigned long long)(clock_mono_ns() / 1000));
        send_state(state);
}

__attribute__((format(printf, 2, 0))) static void send_status(const char *before, const char *fmt,
                                                              va_list args)
{
        char state[512];
        int n = snprintf(state, sizeof(state), "%sSTATUS=", before);

        vsnprintf(state + n, sizeof(state) - (size_t)n, fmt, args);
        send_state(state);
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
        send_state("WATCHDOG=1");
}
