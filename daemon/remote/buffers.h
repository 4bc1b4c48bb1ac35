/* SPDX-License-Identifier: Apache-2.0 */
/* Page-aligned buffers for reads from and writes to the shared tier, bounded in total. Loop thread.
 *
 * Released buffers are cached for later requests of a similar size, because memory that has been
 * touched causes no page faults. Cached buffers count toward the bound and are unmapped when new
 * ones need the room. While no buffer is in use, one request succeeds whatever its size. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"

struct buffers {
        uint64_t bound, used, kept; /* bytes: the limit, those of buffers in use, and those of
                                     * cached buffers */
        struct list_node free;      /* cached buffers, the most recently released first */
        uint64_t released_ns;
};

struct buffer {
        uint8_t *bytes;
        size_t size; /* bytes, a whole number of pages */
};

void buffers_init(struct buffers *s, uint64_t bound);
/* Frees the cached buffers. Buffers in use are leaked. */
void buffers_fini(struct buffers *s);
/* Acquires a buffer of at least `size` bytes with undefined contents. Returns 0, -EAGAIN if the
 * bound is reached, or -ENOMEM. */
int buffers_acquire(struct buffers *s, size_t size, struct buffer *ret);
/* Returns a buffer to the cache, or unmaps it if the bound would be exceeded. */
void buffers_release(struct buffers *s, struct buffer buffer, uint64_t now_ns);
/* Unmaps one cached buffer if no buffer has been in use for a while. */
void buffers_trim(struct buffers *s, uint64_t now_ns);
