/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for large arrays that fill gradually and are read in random order. */
#pragma once

#include <stdint.h>

/* Returns zero-filled memory that is allocated on first touch, in huge pages if available, which
 * reduces TLB misses. NULL without address space. Release it by pages_unmap() or munmap(). */
void *pages_map(uint64_t bytes);
/* Makes memory of a fixed size, to be shared with a client that gets the descriptor, and maps it
 * with `protection`. The seals keep the client from truncating it under this mapping, which is not
 * dumped and not inherited. Returns 0 or -errno. */
int pages_share(const char *name, uint64_t bytes, int protection, void **ret, int *ret_fd);
/* Unmaps large memory, however it was mapped, piece by piece, because other threads cannot map or
 * unmap memory during a piece. Any thread. */
void pages_unmap(void *p, uint64_t bytes);
/* Requests huge pages for the part of existing memory that huge pages can cover. */
void pages_wish_huge(void *p, uint64_t bytes);
/* Populates memory, preserving its contents, piece by piece, so that a thread that touches the
 * memory meanwhile does not have to wait for all of it. Any thread. Before Linux 5.14, or without
 * memory, the pages are populated on first touch. */
void pages_populate(void *p, uint64_t bytes);
/* Returns the memory of the pages that lie completely within the range to the system; they read as
 * zeros again. */
void pages_unpopulate(void *p, uint64_t bytes);
