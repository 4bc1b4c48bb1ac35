/* SPDX-License-Identifier: Apache-2.0 */
/* A table of ghosts: records of items that a policy has evicted, or of keys that admission has
 * seen. Private to evict/.
 *
 * A ghost has 16 bytes. A full bucket drops its least recently used ghost. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ghost {
        uint64_t id;   /* 0: free entry */
        uint32_t time; /* time of the last use */
        uint8_t class;
        uint8_t uses;
        uint8_t turn;
        uint8_t gap; /* mean gap of its chain, see gap.h */
};

struct ghosts {
        struct ghost *table;
        uint32_t n_slots; /* a power of two */
        uint32_t n;       /* number of ghosts present */
};

/* Allocates room for at least `n` ghosts. Returns 0 or -ENOMEM. */
int ghosts_init(struct ghosts *g, uint64_t n);
void ghosts_fini(struct ghosts *g);

bool ghosts_has(const struct ghosts *g, uint64_t id);
/* Copies the ghost. Returns false, without touching *ret, if there is none. */
bool ghosts_find(const struct ghosts *g, uint64_t id, struct ghost *ret);
/* Copies and removes the ghost. Returns false if there is none. */
bool ghosts_take(struct ghosts *g, uint64_t id, struct ghost *ret);
/* Adds a ghost, whose id must be absent. If the bucket is full, drops its least recently used
 * ghost, stores that in *ret_forgotten and returns true. */
bool ghosts_put(struct ghosts *g, const struct ghost *ghost, struct ghost *ret_forgotten);
