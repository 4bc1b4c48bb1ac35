/* SPDX-License-Identifier: Apache-2.0 */
/* The file of saved eviction state: a head, and a section for each pool and each volume that was
 * online. A section has its policy's state, then the records of a volume's chunks in the order of
 * their last use (none for a pool), then those of evicted chunks that the policy remembers.
 *
 * The file belongs to this host: numbers have the machine's byte order, and a file from another
 * kind of machine counts as damaged. One CRC covers all; errors that it does not detect are caught
 * where the data is used (evict_restore()). Pools precede volumes, each in ascending order without
 * duplicates. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evict/evict.h"
#include "key.h"

enum {
        LEARNED_VERSION = 2,
        LEARNED_MAX_SECTIONS = 64,
        /* Most records that a save writes for all sections together: 96 MiB for present chunks, 48
         * MiB for evicted ones. */
        LEARNED_MAX_CHUNKS = 1 << 22,
        LEARNED_MAX_REMEMBERED = 1 << 21,
};

enum learned_tier { LEARNED_POOL, LEARNED_VOLUME, LEARNED_TIERS };

struct learned_head {
        char magic[8];
        uint32_t version;
        uint32_t crc;             /* CRC32C of the rest of the file */
        uint64_t bytes;           /* length of the whole file */
        uint64_t saved_ms;        /* Unix time at which the save began */
        struct key_secret secret; /* secret with which the chunks' keys were hashed; the hashes are
                                   * the records' ids */
        uint32_t n_sections;
        uint32_t reserved;
};
static_assert(sizeof(struct learned_head) == 56, "file format");

struct learned_section {
        char policy[8]; /* NUL-terminated */
        uint32_t tier;
        uint32_t number; /* number of the tenant or the volume */
        uint64_t n_chunks, n_remembered;
        struct evict_learned learned;
        struct evict_record records[]; /* n_chunks of present chunks, then n_remembered of evicted
                                        * ones */
};
static_assert(sizeof(struct learned_section) == 32 + 32 + 8 * (size_t)EVICT_COUNTS, "file format");
static_assert(sizeof(struct evict_record) == 24, "file format");

#define LEARNED_MAX_BYTES                                                                          \
        (sizeof(struct learned_head) + LEARNED_MAX_SECTIONS * sizeof(struct learned_section) +     \
         ((size_t)LEARNED_MAX_CHUNKS + LEARNED_MAX_REMEMBERED) * sizeof(struct evict_record))

/* Sets magic, version, bytes and CRC of an otherwise complete file, whose sections follow the head
 * without gaps. */
void learned_seal(struct learned_head *file, size_t bytes);
/* Returns NULL if the file is valid, so that learned_next() finds its sections, or otherwise a
 * description of the error. `file` must be aligned to 8. */
const char *learned_check(const void *file, size_t bytes);
/* Returns the section after this one, or the first if `section` is NULL; NULL after the last. The
 * file must have passed learned_check(). */
const struct learned_section *learned_next(const struct learned_head *file,
                                           const struct learned_section *section);
size_t learned_section_bytes(const struct learned_section *s);
