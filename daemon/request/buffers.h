/* SPDX-License-Identifier: Apache-2.0 */
/* The regions that a client has registered, by number: REGISTER and UNREGISTER, and where a key's
 * place is.
 *
 * A region is a share of a mapping, which other buffers of the same user may share (mapping.h); its
 * number, its stretch and its uses are its own. It can be used as soon as it is mapped. A request
 * that names it keeps it by buffers_use(). Unregistered, it may not be named any more; it is
 * released when no request uses it. What takes time runs on a blocking-call thread. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "io/io.h"
#include "request/reply.h"
#include "wire.h"

struct put_file;

/* Takes the descriptor and sets *fd to -1, or refuses and leaves it. */
void buffer_open(struct request req, const struct wire_register *msg, int *fd);
void buffer_unregister(struct request req, const struct wire_unregister *msg);
/* All of them, since the client has ended. Each counts as a message in flight until it is released.
 */
void buffers_end(struct client *client);

/* Those of `regions` (by bit) are named by a message until buffers_unuse(). */
void buffers_use(struct client *client, uint64_t regions);
void buffers_unuse(struct client *client, uint64_t regions);
/* The bit of a region that may be named; 0: there is none of this number. */
uint64_t buffers_bit(const struct client *client, uint32_t number);
/* A place within a region that is in use. NULL: it is not within it. */
void *buffer_at(const struct client *client, uint32_t number, uint64_t offset, uint64_t length,
                struct kio_region **ret_region);
/* The file of a region that is one on a disk, if the place may be read there; else NULL. */
struct put_file *buffer_file(const struct client *client, uint32_t number, uint64_t offset,
                             uint64_t length);
