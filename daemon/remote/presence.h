/* SPDX-License-Identifier: Apache-2.0 */
/* A cache of which keys the shared tier has, each with the time until which that is believed. Loop
 * thread.
 *
 * A table of fixed size, with 16 bytes per key. A new key replaces the one of four entries, chosen
 * by its hash, that expires first. It stores hashes instead of keys: a collision of 64 bits costs a
 * get that misses. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum presence {
        PRESENCE_UNKNOWN,
        PRESENCE_THERE,
        PRESENCE_THERE_BY_ORDER, /* inferred: a later key of its chain was present */
        PRESENCE_ABSENT,
        PRESENCE_ABSENT_BY_ORDER, /* inferred: an earlier key of its chain was absent */
};

static inline bool presence_is_there(enum presence p)
{
        return p == PRESENCE_THERE || p == PRESENCE_THERE_BY_ORDER;
}

static inline bool presence_is_absent(enum presence p)
{
        return p == PRESENCE_ABSENT || p == PRESENCE_ABSENT_BY_ORDER;
}

struct presence_entry;

struct presence_table {
        struct presence_entry *entries;
        uint64_t n; /* number of entries, a power of two */
        uint64_t began_ns;
};

/* Allocates room for at least `n` keys. Returns 0 or -ENOMEM. */
int presence_init(struct presence_table *t, uint64_t n, uint64_t now_ns);
void presence_fini(struct presence_table *t);
/* Returns the cached presence of a key; PRESENCE_UNKNOWN if there is none or it has expired. */
enum presence presence_get(const struct presence_table *t, uint64_t hash, uint64_t now_ns);
/* Caches the presence of a key for `lifetime_ns`; PRESENCE_UNKNOWN removes it. A value inferred
 * from the order of a chain does not replace an observed one that is still valid. */
void presence_set(struct presence_table *t, uint64_t hash, enum presence p, uint64_t lifetime_ns,
                  uint64_t now_ns);
/* Records that the key was used on `day`, and returns whether this is the first time on that day.
 * Keys that are not cached may be reported more than once. */
bool presence_mark_day(struct presence_table *t, uint64_t hash, uint16_t day);
