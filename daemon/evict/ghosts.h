/* SPDX-License-Identifier: Apache-2.0 */
/* Ghosts: what a policy remembers of items that it has evicted, and admission of keys that it has
 * seen. Private to evict/.
 *
 * A table of 16 bytes a ghost, in buckets. A full bucket forgets the ghost that was used last the
 * longest ago. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ghost {
        uint64_t id; /* 0: none */
        uint32_t touched;
        uint8_t class;
        uint8_t uses;
        uint8_t turn;
        uint8_t reserved;
};

struct ghosts {
        struct ghost *table;
        uint32_t n_slots; /* a power of two */
        uint32_t n;       /* remembered */
};

/* Room for at least `n` ghosts. 0, -ENOMEM. */
int ghosts_init(struct ghosts *g, uint64_t n);
void ghosts_fini(struct ghosts *g);

/* Is anything remembered of it? */
bool ghosts_has(const struct ghosts *g, uint64_t id);
/* What is; false: nothing, and *ret is as it was. */
bool ghosts_find(const struct ghosts *g, uint64_t id, struct ghost *ret);
/* Takes out what is remembered of an id; false: nothing. */
bool ghosts_take(struct ghosts *g, uint64_t id, struct ghost *ret);
/* Remembers it. True: *ret_forgotten had to go for it. An id must not be in. */
bool ghosts_put(struct ghosts *g, const struct ghost *ghost, struct ghost *ret_forgotten);
