/* SPDX-License-Identifier: Apache-2.0 */
/* The interface to the service manager: sd_notify(), the watchdog, inherited sockets. Without a
 * service manager, or in a build without libsystemd, nothing happens.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct notify_sockets {
        int listen; /* FileDescriptorName=kvcache, or the only one; -1: none */
        int http;   /* FileDescriptorName=http; -1: none */
};
/* LISTEN_FDS. 0, -EINVAL: a name that is not known, or one twice. */
int notify_inherit(struct notify_sockets *ret);

bool notify_wanted(void);
void notify_ready(void);
void notify_reloading(void);
void notify_stopping(const char *status, ...) __attribute__((format(printf, 1, 2)));
void notify_status(const char *status, ...) __attribute__((format(printf, 1, 2)));
uint64_t notify_watchdog_us(void); /* 0: not wanted */
void notify_watchdog(void);
