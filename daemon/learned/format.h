/* SPDX-License-Identifier: Apache-2.0 */
/* The file of what eviction has learned: a head, and a section for each pool and volume. Each has
 * its policy's state, then the records of chunks in the order of their last use, then those of what
 * the policy remembers.
 *
 * It is of this host: numbers are as the machine has them, and a file of another kind is as
 * damaged. One CRC covers all; what it does not catch is checked where it is used
 * (evict_restore()). Pools come before volumes, each by their numbers, and none twice. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "evict/evict.h"
#include "key.h"

enum {
        LEARNED_VERSION = 1,
        LEARNED_MAX_SECTIONS = 64,
        /* Records of all sections together: 64 MiB of chunks, 32 MiB of what is remembered. */
        LEARNED_MAX_CHUNKS = 1 << 22,
        LEARNED_MAX_REMEMBERED = 1 << 21,
};

enum learned_tier { LEARNED_POOL, LEARNED_VOLUME, LEARNED_TIERS };

struct learned_head {
        char magic[8];
        uint32_t version;
        uint32_t crc;             /* CRC32C of all that follows, to the end of the file */
        uint64_t bytes;           /* of the file */
        uint64_t saved_ms;        /* Unix time at which saving began */
        struct key_secret secret; /* of the hashes that records have as their ids */
        uint32_t n_sections;
        uint32_t reserved;
};
static_assert(sizeof(struct learned_head) == 56, "file format");

struct learned_section {
        char policy[8]; /* NUL-terminated */
        uint32_t tier;
        uint32_t number; /* of the tenant, or the volume */
        uint64_t n_chunks, n_remembered;
        struct evict_learned learned;
        struct evict_record records[]; /* chunks first */
};
static_assert(sizeof(struct learned_section) == 32 + 16 + 8 * (size_t)EVICT_COUNTS, "file format");
static_assert(sizeof(struct evict_record) == 16, "file format");

#define LEARNED_MAX_BYTES                                                                          \
        (sizeof(struct learned_head) + LEARNED_MAX_SECTIONS * sizeof(struct learned_section) +     \
         ((size_t)LEARNED_MAX_CHUNKS + LEARNED_MAX_REMEMBERED) * sizeof(struct evict_record))

/* Magic, version, bytes and CRC of a file that is complete otherwise; sections lie one behind the
 * other, after the head. */
void learned_seal(struct learned_head *file, size_t bytes);
/* NULL: it is one, and its sections are where learned_next() finds them. Else what is wrong with
 * it. `file`: aligned to 8. */
const char *learned_check(const void *file, size_t bytes);
/* The section behind this one; NULL: the first, or there is no more. Of a checked file. */
const struct learned_section *learned_next(const struct learned_head *file,
                                           const struct learned_section *section);
size_t learned_section_bytes(const struct learned_section *s);
