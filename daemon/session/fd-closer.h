/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors that came from clients, and how they are closed (rule R12). To let go of a file can
 * take as long as whoever serves it likes, if that is a file system in user space, and to let go of
 * a large memfd takes the time of freeing it. So threads for calls do it, one for memory, one for
 * all else, and what waits there is bounded for each user and over all: whoever has too much there
 * is not taken any more from. Loop thread. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "io/io.h"

struct disposals;

/* `progress`: there is room again for whoever there was none for. */
int disposals_new(struct disposals **ret, struct kio *io, void (*progress)(void *userdata),
                  void *userdata);
struct disposals *disposals_free(struct disposals *d); /* none may be under way */

/* Closes it, sometime. */
void disposals_add(struct disposals *d, int fd, uid_t uid);
/* May something of this user be added? */
bool disposals_may_add(const struct disposals *d, uid_t uid);
/* Not closed yet. */
unsigned disposals_count(const struct disposals *d);
/* Under way in a thread: that may take for ever. */
unsigned disposals_under_way(const struct disposals *d);
