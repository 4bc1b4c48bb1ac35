/* SPDX-License-Identifier: Apache-2.0 */
/* A start: a set of hashes. All 64 bits of a key's are what is kept of it: they are keyed anew in
 * each process, and two keys of the same one are as likely as a checksum that errs. */
#include "store/recover-internal.h"

#include <errno.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "prefetch.h"

enum { FIRST_ROOM = 1024 };

/* Where it is, or would be. The index takes its buckets from the low bits. */
static uint64_t *place_of(const struct gone *g, uint64_t hash)
{
        uint64_t i = hash >> 20 & (g->room - 1);

        while (g->hashes[i] != 0 && g->hashes[i] != hash)
                i = (i + 1) & (g->room - 1);
        return &g->hashes[i];
}

static bool has_room(const struct gone *g, uint64_t n)
{
        return 4 * n <= 3 * g->room;
}

int gone_reserve(struct gone *g, uint64_t n)
{
        struct gone larger = { .n = g->n, .room = g->room };

        if (has_room(g, n))
                return 0;
        do
                larger.room = larger.room > 0 ? 2 * larger.room : FIRST_ROOM;
        while (!has_room(&larger, n));
        larger.hashes = pages_map(larger.room * sizeof(uint64_t));
        if (!larger.hashes)
                return -ENOMEM;
        for (uint64_t i = 0; i < g->room; i++)
                if (g->hashes[i] != 0)
                        *place_of(&larger, g->hashes[i]) = g->hashes[i];
        gone_fini(g);
        *g = larger;
        return 0;
}

int gone_add(struct gone *g, uint64_t hash)
{
        uint64_t *place;
        int r = gone_reserve(g, g->n + 1);

        if (r < 0)
                return r;
        place = place_of(g, hash);
        g->n += *place == 0;
        *place = hash;
        return 0;
}

bool gone_has(const struct gone *g, uint64_t hash)
{
        return g->n > 0 && *place_of(g, hash) != 0;
}

void gone_prefetch(const struct gone *g, uint64_t hash)
{
        if (g->room > 0)
                prefetch(&g->hashes[hash >> 20 & (g->room - 1)]);
}

void gone_fini(struct gone *g)
{
        if (g->hashes)
                munmap(g->hashes, g->room * sizeof(uint64_t));
        *g = (struct gone){};
}
