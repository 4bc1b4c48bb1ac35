/* SPDX-License-Identifier: Apache-2.0 */
/* See format.h. Runs on any thread; keeps no state. The bytes are untrusted: no size is used before
 * it was compared with the length of the map. Numbers of slabs, slots and namespaces are checked
 * where they are used (cache/pool-keep.c, keep.c). */
#include "keep/format.h"

#include <stdbool.h>
#include <string.h>

#include "io/io.h"

static const char magic[8] = "kvckept";

enum { SEALED_FROM = offsetof(struct keep_head, bytes) };

static uint32_t crc_of(const void *map, size_t index_bytes)
{
        return kio_crc32c((const char *)map + SEALED_FROM, index_bytes - SEALED_FROM);
}

void keep_seal(struct keep_head *map, size_t bytes, size_t index_bytes)
{
        memcpy(map->magic, magic, sizeof(magic));
        map->version = KEEP_VERSION;
        map->bytes = bytes;
        map->index_bytes = index_bytes;
        map->crc = crc_of(map, index_bytes);
}

uint32_t keep_chunk_crc(const struct keep_head *head, const struct keep_chunk *chunk,
                        uint64_t position)
{
        uint32_t crc = kio_crc32c(head->number, sizeof(head->number));

        crc = kio_crc32c_extend(crc, &position, sizeof(position));
        crc = kio_crc32c_extend(crc, chunk, offsetof(struct keep_chunk, crc));
        return kio_crc32c_extend(crc, &chunk->record, sizeof(chunk->record));
}

static bool is_text(const char *text, size_t room)
{
        return text[0] != '\0' && memchr(text, '\0', room);
}

static const char *check_pools(const char *at, size_t left, struct keep_map *ret, size_t *ret_used,
                               uint64_t *ret_chunks)
{
        size_t all = left;

        *ret_chunks = 0;
        for (uint32_t i = 0; i < ret->head->n_pools; i++) {
                const struct keep_pool *p = (const void *)at;

                if (left < sizeof(*p) || p->n_slabs > left / sizeof(uint32_t) ||
                    left < keep_pool_bytes(p->n_slabs))
                        return "a pool is truncated";
                if (!is_text(p->name, sizeof(p->name)) || !is_text(p->files, sizeof(p->files)) ||
                    !is_text(p->policy, sizeof(p->policy)))
                        return "a pool has no name";
                if (p->n_chunks > ret->head->bytes / sizeof(struct keep_chunk))
                        return "a pool has more chunks than the map";
                *ret_chunks += p->n_chunks;
                ret->pools[i] = p;
                at += keep_pool_bytes(p->n_slabs);
                left -= keep_pool_bytes(p->n_slabs);
        }
        *ret_used = all - left;
        return NULL;
}

static const char *check_holders(const char *at, size_t left, struct keep_map *ret,
                                 size_t *ret_used)
{
        size_t all = left;

        for (uint32_t i = 0; i < ret->head->n_holders; i++) {
                const struct keep_holder *h = (const void *)at;

                if (left < sizeof(*h) || h->n_slots > left / sizeof(struct keep_slot) ||
                    left < keep_holder_bytes(h->n_slots))
                        return "a holder of leases is truncated";
                if (!is_text(h->name, sizeof(h->name)) || h->pool >= ret->head->n_pools)
                        return "a holder of leases names no pool";
                ret->holders[i] = h;
                at += keep_holder_bytes(h->n_slots);
                left -= keep_holder_bytes(h->n_slots);
        }
        *ret_used = all - left;
        return NULL;
}

static const char *check_readers(const char *at, size_t left, struct keep_map *ret)
{
        if (left != ret->head->n_readers * sizeof(struct keep_reader))
                return "the length of the index does not match its parts";
        ret->readers = (const void *)at;
        for (uint32_t i = 0; i < ret->head->n_readers; i++)
                if (ret->readers[i].pool >= ret->head->n_pools ||
                    ret->readers[i].n_groups > KEEP_MAX_GROUPS)
                        return "the credentials of a client are malformed";
        return NULL;
}

const char *keep_check(const void *map, size_t bytes, struct keep_map *ret)
{
        const struct keep_head *head = map;
        const struct keep_chunk *chunks;
        const char *index = map, *wrong;
        size_t at = sizeof(*head), used;
        uint64_t n_chunks;

        if (bytes < sizeof(*head) || memcmp(head->magic, magic, sizeof(magic)) != 0)
                return "the file is not a map, or was used already";
        if (head->version != KEEP_VERSION)
                return "the map has an unsupported version";
        if (head->bytes != bytes || head->index_bytes < sizeof(*head) ||
            head->index_bytes > bytes || head->index_bytes % 8 != 0)
                return "the map does not have the length that it states";
        if (head->crc != crc_of(map, head->index_bytes))
                return "the map does not match its checksum";
        if (head->n_pools > KEEP_MAX_POOLS || head->n_holders > KEEP_MAX_HOLDERS ||
            head->n_readers > KEEP_MAX_POOLS * KEEP_MAX_READERS)
                return "the map has too many parts";
        *ret = (struct keep_map){ .head = head };
        wrong = check_pools(index + at, head->index_bytes - at, ret, &used, &n_chunks);
        if (!wrong) {
                at += used;
                wrong = check_holders(index + at, head->index_bytes - at, ret, &used);
        }
        if (!wrong) {
                at += used;
                wrong = check_readers(index + at, head->index_bytes - at, ret);
        }
        if (wrong)
                return wrong;
        if (n_chunks != (bytes - head->index_bytes) / sizeof(struct keep_chunk) ||
            (bytes - head->index_bytes) % sizeof(struct keep_chunk) != 0)
                return "the chunks are truncated";
        chunks = (const void *)((const char *)map + head->index_bytes);
        for (uint32_t i = 0; i < head->n_pools; i++) {
                ret->chunks[i] = chunks;
                chunks += ret->pools[i]->n_chunks;
        }
        return NULL;
}
