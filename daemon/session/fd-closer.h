/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that came from clients, and how they are closed (rule R12). To let go of a file can
 * take as long as whoever serves it likes, if that is a file system in user space, and to let go of
 * a large memfd takes the time of freeing it. So blocking-call threads do it, one for memory, one
 * for all else, and what waits there is bounded for each user and over all: whoever has too much
 * there is not taken any more from. Loop thread. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "io/io.h"

struct fd_closer;

/* `progress`: there is room again for whoever there was none for. */
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
