/* SPDX-License-Identifier: Apache-2.0 */
/* Registered buffers of a client, by number: REGISTER, UNREGISTER, and the lookup of a key's
 * memory.
 *
 * A buffer has a share of a mapping, which other buffers of the same user may share (mapping.h);
 * its number, its range and its uses are its own. It is usable when it is mapped. A request that
 * names it keeps it by buffers_use(). After UNREGISTER it can no longer be named; it is released
 * when no request uses it. Slow steps run on a blocking-call thread. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "io/io.h"
#include "request/reply.h"
#include "wire.h"

struct put_file;

/* Registers a buffer and answers the request, at once or later. Either takes the descriptor and
 * sets *fd to -1, or refuses the request and leaves the descriptor to the caller. */
void buffer_open(struct request req, const struct wire_register *msg, int *fd);
/* Unregisters a buffer, and answers the request when it has been released. */
void buffer_unregister(struct request req, const struct wire_unregister *msg);
/* Unregisters all buffers of a client that has ended. Each counts as a message in flight until it
 * is released. */
void buffers_end(struct client *client);

/* Keep the buffers of `regions`, a bit mask, until buffers_unuse(), because a message names
 * them. */
void buffers_use(struct client *client, uint64_t regions);
void buffers_unuse(struct client *client, uint64_t regions);
/* Returns the bit of a buffer that may be named, or 0 if there is none of this number. */
uint64_t buffers_bit(const struct client *client, uint32_t number);
/* Returns the address of a range within a buffer in use, and its region, or NULL if the range is
 * not within the buffer or the buffer is a file on a disk. */
void *buffer_at(const struct client *client, uint32_t number, uint64_t offset, uint64_t length,
                struct kio_region **ret_region);
/* Returns the file of a buffer that is a file on a disk, if the range lies within it and begins at
 * a multiple of PUT_FILE_PAGE; otherwise NULL. */
struct put_file *buffer_file(const struct client *client, uint32_t number, uint64_t offset,
                             uint64_t length);
