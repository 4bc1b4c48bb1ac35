/* SPDX-License-Identifier: Apache-2.0 */
/* Closes the descriptors that came from clients (rule R12). close() on a file in a user-space file
 * system can take as long as its server likes, and close() on a large memfd takes the time of
 * freeing it. So two blocking-call threads close them, one for memory, one for all else. What waits
 * there is bounded for each user and in total: a session of a user over the bound is not read from
 * until there is room. Loop thread. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "io/io.h"

struct fd_closer;

/* `progress`: there is room again for a user that was over the bound. */
int fd_closer_new(struct fd_closer **ret, struct kio *io, void (*progress)(void *userdata),
                  void *userdata);
struct fd_closer *fd_closer_free(struct fd_closer *d); /* none may be under way */

/* Closes it, sometime. */
void fd_closer_add(struct fd_closer *d, int fd, uid_t uid);
/* May something of this user be added? */
bool fd_closer_may_add(const struct fd_closer *d, uid_t uid);
/* Not closed yet. */
unsigned fd_closer_count(const struct fd_closer *d);
/* Under way in a thread: that may take for ever. */
unsigned fd_closer_under_way(const struct fd_closer *d);
