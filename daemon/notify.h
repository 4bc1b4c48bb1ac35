/* SPDX-License-Identifier: Apache-2.0 */
/* The interface to the service manager: sd_notify(), the watchdog, inherited sockets, descriptors
 * that it keeps over a restart. Without a service manager, or in a build without libsystemd,
 * nothing happens.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* What the daemon before has given it to keep has a name that begins so. */
#define NOTIFY_KEPT "kept-"
/* Ends the name of a pool by the descriptor that it is written through. */
#define NOTIFY_KEPT_WRITABLE "-rw"
struct notify_kept {
        char *name;
        int fd; /* -1: it was taken */
};

struct notify_sockets {
        int listen; /* FileDescriptorName=kvcache, or the only one; -1: none */
        int http;   /* FileDescriptorName=http; -1: none */
        struct notify_kept *kept;
        unsigned n_kept;
};
/* LISTEN_FDS. 0, -ENOMEM, -EINVAL: a name that is not known, or one twice. */
int notify_inherit(struct notify_sockets *ret);
/* The memory of the pools that were kept; before notify_inherit(). */
uint64_t notify_kept_bytes(void);
/* The descriptor of this name, which is the caller's then; -1: there is none. */
int notify_take_kept(struct notify_sockets *sockets, const char *name);
bool notify_has_kept(const struct notify_sockets *sockets, const char *name);
/* Closes what was not taken, and has the service manager do so. */
void notify_drop_kept(struct notify_sockets *sockets);

/* Would a descriptor be kept over a restart, as far as is known? How many: 0 if not. */
unsigned notify_keeps(void);
/* A duplicate of the descriptor is kept under this name until the service is stopped for good, or
 * notify_forget(). 0, -errno; whether it has room for it is not known. */
int notify_keep(const char *name, int fd);
void notify_forget(const char *name);
/* Waits until the service manager has seen all that it was sent. False: it did not in time. */
bool notify_settle(void);

bool notify_wanted(void);
void notify_ready(void);
void notify_reloading(void);
void notify_stopping(const char *status, ...) __attribute__((format(printf, 1, 2)));
void notify_status(const char *status, ...) __attribute__((format(printf, 1, 2)));
uint64_t notify_watchdog_us(void); /* 0: not wanted */
void notify_watchdog(void);
