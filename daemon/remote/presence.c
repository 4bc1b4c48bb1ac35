/* SPDX-License-Identifier: Apache-2.0 */
/* Implements presence.h with buckets of four entries, which share a cache line. Times are in units
 * of 2^24 ns since the table was created. They wrap after two years, when some cached entries are
 * wrong once. */
#include "remote/presence.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>

#include "base/pages.h"
#include "checked.h"

struct presence_entry {
        uint64_t hash;
        uint32_t until;
        uint16_t day;
        uint8_t presence; /* enum presence; PRESENCE_UNKNOWN marks a free entry */
        uint8_t reserved;
};
static_assert(sizeof(struct presence_entry) == 16, "four share a cache line");

enum { WAYS = 4, UNIT_BITS = 24 };

int presence_init(struct presence_table *t, uint64_t n, uint64_t now_ns)
{
        struct presence_table new = { .n = WAYS, .began_ns = now_ns };

        while (new.n < n)
                new.n *= 2;
        new.entries = pages_map(new.n * sizeof(*new.entries));
        if (!new.entries)
                return -ENOMEM;
        *t = new;
        return 0;
}

void presence_fini(struct presence_table *t)
{
        if (t->entries)
                pages_unmap(t->entries, t->n * sizeof(*t->entries));
        *t = (struct presence_table){ 0 };
}

static uint32_t units(const struct presence_table *t, uint64_t at_ns)
{
        return (uint32_t)((at_ns - MIN(t->began_ns, at_ns)) >> UNIT_BITS);
}

static struct presence_entry *bucket(const struct presence_table *t, uint64_t hash)
{
        return &t->entries[hash * WAYS & (t->n - 1)];
}

static struct presence_entry *find(const struct presence_table *t, uint64_t hash)
{
        struct presence_entry *b = bucket(t, hash);

        for (unsigned i = 0; i < WAYS; i++)
                if (b[i].presence != PRESENCE_UNKNOWN && b[i].hash == hash)
                        return &b[i];
        return NULL;
}

enum presence presence_get(const struct presence_table *t, uint64_t hash, uint64_t now_ns)
{
        const struct presence_entry *e = find(t, hash);

        return e && units(t, now_ns) < e->until ? e->presence : PRESENCE_UNKNOWN;
}

void presence_set(struct presence_table *t, uint64_t hash, enum presence p, uint64_t lifetime_ns,
                  uint64_t now_ns)
{
        struct presence_entry *b = bucket(t, hash), *e = find(t, hash);
        bool by_order = p == PRESENCE_THERE_BY_ORDER || p == PRESENCE_ABSENT_BY_ORDER;
        uint16_t day = e ? e->day : 0;

        if (p == PRESENCE_UNKNOWN) {
                if (e)
                        e->presence = PRESENCE_UNKNOWN;
                return;
        }
        if (e && by_order && units(t, now_ns) < e->until &&
            (e->presence == PRESENCE_THERE || e->presence == PRESENCE_ABSENT))
                return;
        for (unsigned i = 0; !e && i < WAYS; i++)
                if (b[i].presence == PRESENCE_UNKNOWN)
                        e = &b[i];
        if (!e) {
                e = b;
                for (unsigned i = 1; i < WAYS; i++)
                        if (b[i].until < e->until)
                                e = &b[i];
        }
        *e = (struct presence_entry){
                .hash = hash,
                .until = units(t, now_ns + lifetime_ns),
                .day = day,
                .presence = (uint8_t)p,
        };
}

bool presence_mark_day(struct presence_table *t, uint64_t hash, uint16_t day)
{
        struct presence_entry *e = find(t, hash);

        if (e && e->day == day)
                return false;
        if (e)
                e->day = day;
        return true;
}
