/* SPDX-License-Identifier: Apache-2.0 */
/* Closes descriptors received from clients, and sockets that may contain such descriptors (R12 in
 * SECURITY.md). close() on a file of a user-space file system can take as long as its server likes,
 * and close() on a large memfd takes the time of freeing it. Two blocking-call threads therefore
 * close them: one for memory, one for all other files. The number of pending descriptors is bounded
 * per user and in total, except that a user without pending ones may always add one. A session of a
 * user at the bound is ended when it sends another descriptor. Loop thread. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "io/io.h"

struct fd_closer;

/* Creates a closer. `progress` is called after each close(), because a user that was at the bound
 * may have room then. Returns 0 or -ENOMEM. */
int fd_closer_new(struct fd_closer **ret, struct kio *io, void (*progress)(void *userdata),
                  void *userdata);
struct fd_closer *fd_closer_free(struct fd_closer *d); /* none may be in flight */

/* Takes over a descriptor of this user, and closes it in the background. */
void fd_closer_add(struct fd_closer *d, int fd, uid_t uid);
/* Returns whether another descriptor of this user may be added. */
bool fd_closer_may_add(const struct fd_closer *d, uid_t uid);
/* Returns the number of descriptors not closed yet. Their close() calls may never return. */
unsigned fd_closer_count(const struct fd_closer *d);
