/* SPDX-License-Identifier: Apache-2.0 */
/* Contents of blocks that cost next to nothing to make and are checked in every byte.
 *
 * A place is filled with a pattern once. Then a block is made there by stamping 16 bytes at the
 * beginning of each 512 (a sector): which block it is, which sector of it, and which generation.
 * Data of another block or sector, and data that is older, cut or was never written, is recognized
 * wherever it begins, and a single wrong byte between the stamps differs from the pattern. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct content {
        uint64_t seed;    /* of what is written: two jobs never share a block */
        uint8_t *pattern; /* `bytes` of it */
        size_t bytes;
};

/* 0, -ENOMEM */
int content_init(struct content *c, size_t bytes, const char *name);
void content_fini(struct content *c);
/* Makes a place ready for content_stamp(). */
void content_fill(const struct content *c, void *place);
void content_stamp(const struct content *c, void *place, uint64_t block, uint64_t generation);
/* Compares every byte. Returns how many are wrong, and where the first of them is. */
uint64_t content_check(const struct content *c, const void *data, uint64_t block,
                       uint64_t generation, size_t *ret_first);
