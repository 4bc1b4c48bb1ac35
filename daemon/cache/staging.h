/* SPDX-License-Identifier: Apache-2.0 */
/* A staging area: memory of one session, in which its client places the bytes of puts and receives
 * those of gets. It is a memfd with the seals SHRINK, GROW and SEAL, mapped read-write on both
 * sides. The client may change it at any time, so its content is copied before it is checked. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct staging {
        int fd; /* -1: none */
        void *base;
        uint64_t bytes;
};

int staging_open(struct staging *ret, uint64_t bytes);
/* Unmaps the area and closes its descriptor. Runs on any thread; takes milliseconds if the area was
 * used. */
void staging_close(struct staging *l);
/* Returns the address of [offset, offset + length), or NULL if the range exceeds the staging
 * area. */
void *staging_at(const struct staging *l, uint64_t offset, uint64_t length);
