/* SPDX-License-Identifier: Apache-2.0 */
/* The set of dead keys during a recovery, as a hash table. Only the 64-bit hashes of keys are
 * stored. The hash has a new secret in each process, so a collision, which would lose a chunk, is
 * as unlikely as an undetected checksum error. If memory for the set is short, recovery fails. */
#include "store/volume/recovery/internal.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "checked.h"
#include "warm.h"

enum {
        FIRST_ROOM = 1024, /* first number of places in the table */
        MANY = 64 * 1024   /* hashes from which on the table grows to `likely` at once */
};

/* Returns the place of a hash, or the free place for it. Skips the lowest bits, which select the
 * bucket in the index. */
static uint64_t *place_of(const struct dead_keys *g, uint64_t hash)
{
        uint64_t i = hash >> 20 & (g->room - 1);

        while (g->hashes[i] != 0 && g->hashes[i] != hash)
                i = (i + 1) & (g->room - 1);
        return &g->hashes[i];
}

static bool has_room(const struct dead_keys *g, uint64_t n)
{
        return 4 * n <= 3 * g->room;
}

static int grow(struct dead_keys *g)
{
        uint64_t n = g->n < MANY ? g->n + 1 : MAX(g->n + 1, g->likely);
        struct dead_keys larger = { .n = g->n,
                                    .room = MAX(g->room, (uint64_t)FIRST_ROOM),
                                    .likely = g->likely };

        while (!has_room(&larger, n))
                larger.room *= 2;
        larger.hashes = pages_map(larger.room * sizeof(uint64_t));
        if (!larger.hashes)
                return -ENOMEM;
        for (uint64_t i = 0; i < g->room; i++)
                if (g->hashes[i] != 0)
                        *place_of(&larger, g->hashes[i]) = g->hashes[i];
        dead_keys_fini(g);
        *g = larger;
        return 0;
}

int dead_keys_add(struct dead_keys *g, uint64_t hash)
{
        uint64_t *place;

        if (!has_room(g, g->n + 1)) {
                int r = grow(g);

                if (r < 0)
                        return r;
        }
        place = place_of(g, hash);
        g->n += *place == 0;
        *place = hash;
        return 0;
}

bool dead_keys_have(const struct dead_keys *g, uint64_t hash)
{
        return g->n > 0 && *place_of(g, hash) != 0;
}

void dead_keys_warm(const struct dead_keys *g, uint64_t hash)
{
        if (g->room > 0)
                warm(&g->hashes[hash >> 20 & (g->room - 1)]);
}

void dead_keys_fini(struct dead_keys *g)
{
        if (g->hashes)
                munmap(g->hashes, g->room * sizeof(uint64_t));
        *g = (struct dead_keys){};
}
