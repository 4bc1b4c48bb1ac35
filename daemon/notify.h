/* SPDX-License-Identifier: Apache-2.0 */
/* The interface to the service manager: sd_notify(), the watchdog, inherited sockets, descriptors
 * that it keeps over a restart. Without a service manager, or in a build without libsystemd,
 * nothing happens.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Prefix of the names of descriptors that an earlier daemon gave to the service manager. */
#define NOTIFY_KEPT "kept-"
/* Suffix of the name of a pool's writable descriptor. */
#define NOTIFY_KEPT_WRITABLE "-rw"
struct notify_kept {
        char *name;
        int fd; /* descriptor; -1 after notify_take_kept() */
};

struct notify_sockets {
        int listen; /* socket with FileDescriptorName=kvcache or kvcache.socket, or without a name;
                       -1 if none */
        int http;   /* socket with FileDescriptorName=http or kvcache-http.socket; -1 if none */
        struct notify_kept *kept;
        unsigned n_kept;
};
/* Takes over the sockets of LISTEN_FDS. Returns 0, -EINVAL if a name is unknown or occurs twice, or
 * another -errno. */
int notify_inherit(struct notify_sockets *ret);
/* Returns the bytes of the kept pools. Call before notify_inherit(). */
uint64_t notify_kept_bytes(void);
/* Returns the kept descriptor of this name, which the caller then owns, or -1 if there is none. */
int notify_take_kept(struct notify_sockets *sockets, const char *name);
bool notify_has_kept(const struct notify_sockets *sockets, const char *name);
/* Closes the descriptors that were not taken, here and in the service manager. */
void notify_drop_kept(struct notify_sockets *sockets);

/* Returns the number of descriptors that the service manager can keep across a restart (FDSTORE);
 * UINT_MAX if it does not say, 0 without a service manager. */
unsigned notify_keeps(void);
/* Has the service manager keep a duplicate of the descriptor under this name, until the service is
 * stopped permanently or notify_forget(). Returns 0 or -errno; the manager does not report whether
 * it has room. */
int notify_keep(const char *name, int fd);
void notify_forget(const char *name);
/* Waits until the service manager has processed all messages. Returns false if it did not within
 * five seconds, or could not be asked. */
bool notify_settle(void);

bool notify_wanted(void);
void notify_ready(void);
void notify_reloading(void);
void notify_stopping(const char *status, ...) __attribute__((format(printf, 1, 2)));
void notify_status(const char *status, ...) __attribute__((format(printf, 1, 2)));
uint64_t notify_watchdog_us(void); /* microseconds; 0 if no watchdog is configured */
void notify_watchdog(void);
