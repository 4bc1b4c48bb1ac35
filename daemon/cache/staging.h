/* SPDX-License-Identifier: Apache-2.0 */
/* A staging area: the memory of one session in which its client leaves bytes for `put` and gets
 * them by `get into`. A memfd sealed SHRINK|GROW|SEAL, mapped read-write on both sides: the client
 * may change it at any time, so what matters is always copied out first. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct staging {
        int fd; /* -1: none */
        void *base;
        uint64_t bytes;
};

enum { STAGING_MAX_BYTES = 64 << 20 };

int staging_open(struct staging *ret, uint64_t bytes);
/* Any thread; takes milliseconds if it was used. */
void staging_close(struct staging *l);
/* The address of [offset, offset + length), or NULL where that is not within the staging area. */
void *staging_at(const struct staging *l, uint64_t offset, uint64_t length);
