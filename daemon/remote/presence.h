/* SPDX-License-Identifier: Apache-2.0 */
/* What is remembered of which keys are on the shared tier, and until when that is believed. Loop
 * thread.
 *
 * A table of a fixed size, of 16 bytes a key; what expires first makes room. It has hashes, not
 * keys: two keys of one hash of 64 bits cost a get that finds nothing. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum presence {
        PRESENCE_UNKNOWN,
        PRESENCE_THERE,
        PRESENCE_THERE_BY_ORDER, /* as one that comes later in a chain was there */
        PRESENCE_ABSENT,
        PRESENCE_ABSENT_BY_ORDER, /* as one that comes earlier was not */
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
        uint64_t n; /* a power of two */
        uint64_t began_ns;
};

/* At least so many keys. 0, -ENOMEM. */
int presence_init(struct presence_table *t, uint64_t n, uint64_t now_ns);
void presence_fini(struct presence_table *t);
enum presence presence_get(const struct presence_table *t, uint64_t hash, uint64_t now_ns);
/* PRESENCE_UNKNOWN forgets it. What was seen of the key itself is not replaced by what follows from
 * the order, while it is believed. */
void presence_set(struct presence_table *t, uint64_t hash, enum presence p, uint64_t lifetime_ns,
                  uint64_t now_ns);
/* Is this the first time on this day? Of a key that is not remembered it may be said again. */
bool presence_mark_day(struct presence_table *t, uint64_t hash, uint16_t day);
