/* SPDX-License-Identifier: Apache-2.0 */
/* Reads any bytes as the map that a daemon leaves to the next. They are refused, or are a map: a
 * pool takes over the chunks that fit it, and works with them: they can be verified, dropped and
 * evicted. Every other input is sealed first, so that the checksum does not refuse all of them. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cache/pool.h"
#include "checked.h"
#include "keep/keep.h"

enum { POOL = 16 << 20, MOST = 256 };

static bool has_socket(void *userdata, const char *name)
{
        return true;
}

static void take_over(const struct keep_map *map, unsigned i, struct pool *p)
{
        uint32_t chunks[MOST], n = 0, number;

        for (uint32_t slab = 0; slab < map->pools[i]->n_slabs; slab++)
                if (pool_keep_slab(p, map->pools[i]->slot_bytes[slab]) < 0)
                        abort();
        for (uint64_t c = 0; c < map->pools[i]->n_chunks && n < MOST; c++) {
                const struct keep_chunk *chunk = &map->chunks[i][c];
                struct pool_kept kept = { .key = chunk->key,
                                          .hash = chunk->namespace_id,
                                          .namespace_id = chunk->namespace_id,
                                          .length = chunk->length,
                                          .slab = chunk->slab,
                                          .slot = chunk->slot,
                                          .record = chunk->record };

                if (pool_keep_chunk(p, &kept, &number) == 0)
                        chunks[n++] = number;
        }
        for (uint32_t h = 0; h < map->head->n_holders; h++)
                for (uint32_t s = 0; map->holders[h]->pool == i && s < map->holders[h]->n_slots;
                     s++)
                        if (pool_at_slot(p, map->holders[h]->slots[s].slab,
                                         map->holders[h]->slots[s].slot) == POOL_NONE &&
                            pool_keep_slot(p, map->holders[h]->slots[s].slab,
                                           map->holders[h]->slots[s].slot, &number) < 0)
                                abort(); /* keep_file_find() has returned this slot */
        for (uint32_t c = 0; c < n; c++)
                if (c % 2)
                        pool_verify(p, chunks[c]);
                else
                        pool_drop(p, chunks[c]);
        while (pool_next_slab(p) >= 0)
                if (pool_open_slab(p, 0) < 0)
                        abort();
        for (uint32_t c = 0; c < MOST; c++) {
                struct key key = { { 0 } };

                memcpy(&key, &c, sizeof(c));
                if (pool_acquire(p, UINT32_MAX, &key, c, 1 << 18, 0, &number) == 0) {
                        pool_commit(p, number, 0);
                        (void)pool_unpin(p, number);
                }
        }
}

static void find(const struct keep_map *map, void *bytes)
{
        struct keep_file file = { .map = *map, .bytes = bytes };
        char error[KEEP_ERROR_BYTES];
        struct pool *p;

        for (uint32_t i = 0; i < map->head->n_pools; i++) {
                int found;

                if (pool_new(&p, POOL, "cq") < 0)
                        abort();
                found = keep_file_find(&file, map->pools[i]->name, pool_bytes(p),
                                       pool_slab_bytes(p), has_socket, NULL, error);
                if (found >= 0)
                        take_over(map, (unsigned)found, p);
                pool_free(p);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
        struct keep_map map;
        uint64_t *copy;

        if (bytes == 0 || bytes > 1 << 20)
                return 0;
        copy = malloc(bytes); /* a sanitizer detects reads beyond its end */
        if (!copy)
                return 0;
        memcpy(copy, data + 1, bytes - 1);
        bytes--;
        if (data[0] % 2 && bytes >= sizeof(struct keep_head)) {
                struct keep_head *head = (void *)copy;

                keep_seal(head, bytes, MIN(MAX(head->index_bytes, sizeof(*head)), bytes));
        }
        if (!keep_check(copy, bytes, &map))
                find(&map, copy);
        free(copy);
        return 0;
}
