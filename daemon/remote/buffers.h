/* SPDX-License-Identifier: Apache-2.0 */
/* Page-aligned memory for what is read from the shared tier, or written to it, within a bound. Loop
 * thread.
 *
 * What is released is kept for the next of about its size, since memory that was touched before
 * costs no page faults. What is kept counts towards the bound, and makes room for what is needed.
 * One buffer is always given, however large, where none is in use. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"

struct buffers {
        uint64_t bound, used, kept; /* bytes */
        struct list_node free;      /* the one released last is the first */
        uint64_t released_ns;
};

struct buffer {
        uint8_t *bytes;
        size_t size; /* whole pages */
};

void buffers_init(struct buffers *s, uint64_t bound);
/* None may be in use, or they are lost. */
void buffers_fini(struct buffers *s);
/* 0; -EAGAIN: the bound; -ENOMEM. What is in it is undefined. */
int buffers_acquire(struct buffers *s, size_t size, struct buffer *ret);
void buffers_release(struct buffers *s, struct buffer buffer, uint64_t now_ns);
/* Frees what is kept and has not been needed for a while. */
void buffers_trim(struct buffers *s, uint64_t now_ns);
