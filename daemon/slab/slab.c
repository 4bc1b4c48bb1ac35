/* SPDX-License-Identifier: Apache-2.0 */
/* Implements slab.h.
 *
 * Runs on the loop thread. Owns the accounting only; the bytes belong to the pool or the store.
 *
 * Each slot has one word, with two uses: a word below 2^31 is the owner of a used slot; with the
 * top bit set, the slot is free, and the other bits are the number of the next free slot of the
 * slab. In memory a word has as few bits as the owners allow (slabs_limit_owners()), and the flag
 * is its lowest bit. Slots from `fresh` on were not acquired since the slab was divided or last
 * became empty, and their words are not used, so that dividing a slab costs only an allocation.
 *
 * A slot is acquired from the first slab in the class's list of slabs with room; if the list is
 * empty, from a free slab; if there is none, from an empty slab of any other class. When a slot is
 * released, its slab moves to the front of the list, or to the end if it is empty now, so that
 * slabs become full or empty instead of fragmented. Slots of a slab are acquired in the order in
 * which they were released, and in an empty slab from its beginning: so consecutive puts get
 * adjacent slots, whose writes can be merged. Recovery occupies slots in any order, which leaves
 * the slab's free list stale; the next slabs_acquire() from the slab rebuilds the list. Failures:
 * if memory is short, a call fails without effect. Wrong arguments are asserted. */
#include "slab/slab.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/packed.h"
#include "checked.h"
#include "warm.h"

#define SLOT_FREE 0x80000000u
#define SLOT_END  0x7fffffffu /* end of a slab's free list */
#define NONE      UINT32_MAX  /* no slab */

enum { NO_CLASS = UINT16_MAX, STEPS_AN_OCTAVE = 8 }; /* steps between a size and twice that size */

struct slab_link {
        uint32_t prev, next;
};

struct slab {
        uint64_t bytes;
        uint8_t *words;       /* a word for each slot, see word_of(); NULL while the slab is free */
        uint32_t slots, used; /* number of slots; of slots in use */
        uint32_t fresh; /* slots from this one on were not acquired since the slab was divided or
                           last became empty */
        uint32_t first_free; /* first slot of the free list; SLOT_END if the list is empty */
        uint32_t last_free;  /* last slot of the free list, if the list is not empty */
        uint16_t class;
        bool stale;    /* the free list contains slots that slabs_occupy() has given an owner */
        bool in_empty; /* the slab is in the list of empty slabs */
        bool closed; /* slabs_close_slab() was called; the slab is in neither of the lists below */
        struct slab_link room;  /* in its class's list of slabs with room, or in the free list */
        struct slab_link empty; /* in the list of empty slabs that have a class */
};

struct slab_list {
        uint32_t first, last;
};

struct slab_class {
        uint64_t bytes;
        uint16_t group;
        uint16_t sibling;  /* next class of the same size, in another group; NO_CLASS at the end */
        uint16_t relative; /* next class of the same group, of another size; NO_CLASS at the end */
        struct slab_list room;
        uint32_t slabs;
        uint64_t slots, used;
};

struct slabs {
        uint64_t slab_bytes;
        uint32_t max_slabs, n_slabs, n_free;
        unsigned word_bits;
        unsigned n_classes, n_sizes, n_groups;
        struct slab_list free, empty;
        struct slab_class classes[SLAB_MAX_CLASSES];
        uint16_t by_size[SLAB_MAX_SIZES]; /* classes of group 0 in ascending order */
        struct {
                uint16_t group, class; /* `class`: the one that was created last */
        } groups[SLAB_MAX_CLASSES];
        struct slab slabs[];
};

/* Returns a slab's links for one of its lists; `link` is the offset of the links in struct slab. */
static struct slab_link *link_of(struct slabs *s, uint32_t slab, size_t link)
{
        return (struct slab_link *)((char *)&s->slabs[slab] + link);
}

#define ROOM  offsetof(struct slab, room)
#define EMPTY offsetof(struct slab, empty)

static void list_unlink(struct slabs *s, struct slab_list *list, size_t link, uint32_t slab)
{
        struct slab_link *l = link_of(s, slab, link);

        if (l->prev == NONE)
                list->first = l->next;
        else
                link_of(s, l->prev, link)->next = l->next;
        if (l->next == NONE)
                list->last = l->prev;
        else
                link_of(s, l->next, link)->prev = l->prev;
}

static void list_push_front(struct slabs *s, struct slab_list *list, size_t link, uint32_t slab)
{
        *link_of(s, slab, link) = (struct slab_link){ .prev = NONE, .next = list->first };
        if (list->first == NONE)
                list->last = slab;
        else
                link_of(s, list->first, link)->prev = slab;
        list->first = slab;
}

static void list_push_back(struct slabs *s, struct slab_list *list, size_t link, uint32_t slab)
{
        *link_of(s, slab, link) = (struct slab_link){ .prev = list->last, .next = NONE };
        if (list->last == NONE)
                list->first = slab;
        else
                link_of(s, list->last, link)->next = slab;
        list->last = slab;
}

/* --- classes --- */

/* Returns the position in by_size of the smallest class of at least `bytes`, or n_sizes. */
static unsigned class_position(const struct slabs *s, uint64_t bytes)
{
        unsigned low = 0, high = s->n_sizes;

        while (low < high) {
                unsigned middle = (low + high) / 2;

                if (s->classes[s->by_size[middle]].bytes < bytes)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

/* Returns the group's index in `groups`, or n_groups if it has no class yet. */
static unsigned group_position(const struct slabs *s, uint16_t group)
{
        unsigned at = 0;

        while (at < s->n_groups && s->groups[at].group != group)
                at++;
        return at;
}

static unsigned class_new(struct slabs *s, uint16_t group, uint64_t bytes)
{
        unsigned at = group_position(s, group), class = s->n_classes++;

        assert(class < SLAB_MAX_CLASSES);
        s->classes[class] = (struct slab_class){
                .bytes = bytes,
                .group = group,
                .sibling = NO_CLASS,
                .relative = at < s->n_groups ? s->groups[at].class : NO_CLASS,
                .room = { .first = NONE, .last = NONE },
        };
        s->groups[at].group = group;
        s->groups[at].class = (uint16_t) class;
        if (at == s->n_groups)
                s->n_groups++;
        return class;
}

static void class_add(struct slabs *s, uint64_t bytes)
{
        unsigned at = class_position(s, bytes);

        assert(s->n_sizes < SLAB_MAX_SIZES);
        memmove(s->by_size + at + 1, s->by_size + at, (s->n_sizes - at) * sizeof(s->by_size[0]));
        s->by_size[at] = (uint16_t)class_new(s, 0, bytes);
        s->n_sizes++;
}

/* Creates the shared classes: eight equal steps from each size to twice that size, so that
 * neighbours are at most 1/8 apart; below 16 grains, every multiple of the grain. The largest class
 * is the whole slab. There are at most 16 + 8 * 48 classes, for which the table has room. */
static void classes_init(struct slabs *s)
{
        uint64_t grains = s->slab_bytes / SLAB_GRAIN, step = 1, n = 1;

        while (n < grains) {
                class_add(s, n * SLAB_GRAIN);
                if (n == 2 * STEPS_AN_OCTAVE * step)
                        step *= 2;
                n += step;
        }
        class_add(s, s->slab_bytes);
}

static int declare(struct slabs *s, uint64_t bytes, unsigned max_sizes, unsigned max_classes)
{
        unsigned at;

        if (bytes == 0 || bytes > s->slab_bytes)
                return -E2BIG;

        bytes = round_up(bytes, SLAB_GRAIN);
        at = class_position(s, bytes);
        if (s->classes[s->by_size[at]].bytes == bytes)
                return 0;
        if (s->n_sizes >= max_sizes || s->n_classes >= max_classes)
                return -ENOSPC;
        class_add(s, bytes);
        return 0;
}

int slabs_declare_class(struct slabs *s, uint64_t bytes)
{
        return declare(s, bytes, SLAB_DECLARED_SIZES, SLAB_ASKED_CLASSES);
}

/* Returns the class of a group with the same size as `class`; creates it if there are fewer than
 * `max_classes` classes, or returns -ENOSPC. A negative `class` is returned. */
static int find_or_make(struct slabs *s, uint16_t group, int class, unsigned max_classes)
{
        unsigned made;

        while (class >= 0 && s->classes[class].group != group) {
                if (s->classes[class].sibling != NO_CLASS) {
                        class = s->classes[class].sibling;
                        continue;
                }
                if (s->n_classes >= max_classes)
                        return -ENOSPC;
                made = class_new(s, group, s->classes[class].bytes);
                s->classes[class].sibling = (uint16_t)made;
                class = (int)made;
        }
        return class;
}

int slabs_class_of(struct slabs *s, uint16_t group, uint64_t bytes)
{
        int best = find_or_make(s, group, slabs_class_for(s, bytes), SLAB_ASKED_CLASSES);

        if (best != -ENOSPC)
                return best;
        for (int i = slabs_group_first(s, group); i >= 0; i = slabs_group_next(s, (unsigned)i))
                if (s->classes[i].bytes >= bytes &&
                    (best < 0 || s->classes[i].bytes < s->classes[best].bytes))
                        best = i;
        return best;
}

int slabs_class_restore(struct slabs *s, uint16_t group, uint64_t bytes)
{
        int r = declare(s, bytes, SLAB_MAX_SIZES, SLAB_MAX_CLASSES);

        return r < 0 ? r : find_or_make(s, group, slabs_class_for(s, bytes), SLAB_MAX_CLASSES);
}

uint16_t slabs_class_group(const struct slabs *s, unsigned class)
{
        assert(class < s->n_classes);
        return s->classes[class].group;
}

int slabs_group_first(const struct slabs *s, uint16_t group)
{
        unsigned at = group_position(s, group);

        return at < s->n_groups ? s->groups[at].class : -1;
}

int slabs_group_next(const struct slabs *s, unsigned class)
{
        assert(class < s->n_classes);
        return s->classes[class].relative == NO_CLASS ? -1 : s->classes[class].relative;
}

int slabs_class_for(const struct slabs *s, uint64_t bytes)
{
        if (bytes == 0 || bytes > s->slab_bytes)
                return -E2BIG;
        return s->by_size[class_position(s, bytes)];
}

int slabs_class_above(const struct slabs *s, unsigned class)
{
        unsigned at;

        assert(class < s->n_classes);
        at = class_position(s, s->classes[class].bytes + 1);
        return at < s->n_sizes ? s->by_size[at] : -1;
}

uint64_t slabs_class_bytes(const struct slabs *s, unsigned class)
{
        assert(class < s->n_classes);
        return s->classes[class].bytes;
}

unsigned slabs_class_count(const struct slabs *s)
{
        return s->n_classes;
}

void slabs_class_usage(const struct slabs *s, unsigned class, uint32_t *ret_slabs,
                       uint64_t *ret_slots, uint64_t *ret_used)
{
        assert(class < s->n_classes);
        *ret_slabs = s->classes[class].slabs;
        *ret_slots = s->classes[class].slots;
        *ret_used = s->classes[class].used;
}

/* --- words: the packed number that a slab keeps for each slot --- */

/* Returns the largest number that fits into a word. As the next free slot, it stands for
 * SLOT_END. */
static uint32_t last_number(const struct slabs *s)
{
        return (uint32_t)((UINT64_C(1) << (s->word_bits - 1)) - 1);
}

static uint32_t word_of(const struct slabs *s, const struct slab *slab, uint32_t slot)
{
        const struct packed words = { .base = slab->words, .bits = s->word_bits };
        uint32_t word = packed_get(&words, slot), number = word >> 1;

        if (!(word & 1))
                return number;
        return SLOT_FREE | (number == last_number(s) ? SLOT_END : number);
}

static void set_word(const struct slabs *s, struct slab *slab, uint32_t slot, uint32_t word)
{
        struct packed words = { .base = slab->words, .bits = s->word_bits };
        uint32_t number = MIN(word & ~SLOT_FREE, last_number(s));

        packed_set(&words, slot, number << 1 | word >> 31);
}

void slabs_limit_owners(struct slabs *s, uint32_t most)
{
        assert(s->n_slabs == 0 && !(most & SLOT_FREE));
        s->word_bits = packed_bits(MAX(most, (uint32_t)(s->slab_bytes / SLAB_GRAIN))) + 1;
}

uint64_t slabs_word_bytes(const struct slabs *s, uint64_t slots)
{
        return packed_bytes(slots, s->word_bits);
}

/* --- slabs --- */

int slabs_new(struct slabs **ret, uint32_t max_slabs, uint64_t slab_bytes)
{
        struct slabs *s;

        if (max_slabs == 0 || max_slabs > SLAB_MAX_SLABS)
                return -EINVAL;
        if (slab_bytes == 0 || slab_bytes % SLAB_GRAIN != 0 || slab_bytes / SLAB_GRAIN >= SLOT_END)
                return -EINVAL;

        s = calloc(1, sizeof(*s) + max_slabs * sizeof(s->slabs[0]));
        if (!s)
                return -ENOMEM;
        s->slab_bytes = slab_bytes;
        s->max_slabs = max_slabs;
        s->word_bits = 32;
        s->free = s->empty = (struct slab_list){ .first = NONE, .last = NONE };
        classes_init(s);
        *ret = s;
        return 0;
}

struct slabs *slabs_free(struct slabs *s)
{
        if (!s)
                return NULL;
        for (uint32_t i = 0; i < s->n_slabs; i++)
                free(s->slabs[i].words);
        free(s);
        return NULL;
}

int slabs_add(struct slabs *s, uint64_t bytes)
{
        struct slab *slab;

        if (bytes < SLAB_GRAIN || bytes > s->slab_bytes)
                return -EINVAL;
        if (s->n_slabs == s->max_slabs)
                return -ENOSPC;

        slab = &s->slabs[s->n_slabs];
        *slab = (struct slab){ .bytes = round_down(bytes, SLAB_GRAIN), .class = NO_CLASS };
        list_push_back(s, &s->free, ROOM, s->n_slabs++);
        s->n_free++;
        return 0;
}

static void empty_enter(struct slabs *s, uint32_t i)
{
        assert(!s->slabs[i].in_empty);
        list_push_back(s, &s->empty, EMPTY, i);
        s->slabs[i].in_empty = true;
}

static void empty_leave(struct slabs *s, uint32_t i)
{
        if (!s->slabs[i].in_empty)
                return;
        list_unlink(s, &s->empty, EMPTY, i);
        s->slabs[i].in_empty = false;
}

/* Frees an empty slab: takes its class from it. */
static void slab_uncut(struct slabs *s, uint32_t i)
{
        struct slab *slab = &s->slabs[i];
        struct slab_class *c = &s->classes[slab->class];

        if (!slab->closed)
                list_unlink(s, &c->room, ROOM, i);
        empty_leave(s, i);
        slab->closed = false;
        c->slabs--;
        c->slots -= slab->slots;

        free(slab->words);
        slab->words = NULL;
        slab->slots = 0;
        slab->class = NO_CLASS;
        list_push_front(s, &s->free, ROOM, i);
        s->n_free++;
}

/* Assigns a class to a free slab, and adds the slab to the class's list of slabs with room and to
 * the list of empty slabs. Returns 0 or -ENOMEM. */
static int slab_cut(struct slabs *s, uint32_t i, unsigned class)
{
        struct slab *slab = &s->slabs[i];
        struct slab_class *c = &s->classes[class];
        uint32_t slots = (uint32_t)(slab->bytes / c->bytes);

        assert(slots > 0);
        slab->words = malloc(packed_bytes(slots, s->word_bits) + PACKED_PADDING);
        if (!slab->words)
                return -ENOMEM;

        list_unlink(s, &s->free, ROOM, i);
        s->n_free--;

        slab->slots = slots;
        slab->used = 0;
        slab->fresh = 0;
        slab->first_free = SLOT_END;
        slab->stale = false;
        slab->class = (uint16_t) class;
        list_push_back(s, &c->room, ROOM, i);
        empty_enter(s, i);
        c->slabs++;
        c->slots += slots;
        return 0;
}

/* Assigns another slab to the class: a free one or an empty one of another class. Returns 0,
 * SLAB_FULL or -ENOMEM. Mostly only the last slab of a space is shorter than the others, so these
 * walks end at the first or second step. */
static int class_grow(struct slabs *s, unsigned class)
{
        uint64_t bytes = s->classes[class].bytes;

        for (uint32_t i = s->free.first; i != NONE; i = s->slabs[i].room.next)
                if (s->slabs[i].bytes >= bytes)
                        return slab_cut(s, i, class);

        for (uint32_t i = s->empty.first; i != NONE; i = s->slabs[i].empty.next) {
                if (s->slabs[i].bytes < bytes)
                        continue;
                slab_uncut(s, i);
                return slab_cut(s, i, class);
        }
        return SLAB_FULL;
}

void slabs_close_slab(struct slabs *s, uint32_t slab)
{
        struct slab *i = &s->slabs[slab];

        assert(slab < s->n_slabs && i->class != NO_CLASS && !i->closed);
        if (i->used < i->slots)
                list_unlink(s, &s->classes[i->class].room, ROOM, slab);
        empty_leave(s, slab);
        i->closed = true;
}

void slabs_reopen_slab(struct slabs *s, uint32_t slab)
{
        struct slab *i = &s->slabs[slab];

        assert(slab < s->n_slabs && i->closed);
        i->closed = false;
        if (i->used < i->slots)
                list_push_back(s, &s->classes[i->class].room, ROOM, slab);
        if (i->used == 0)
                empty_enter(s, slab);
}

void slabs_reclaim(struct slabs *s, uint32_t slab, void (*evict)(void *userdata, uint32_t owner),
                   void *userdata)
{
        assert(slab < s->n_slabs);
        if (s->slabs[slab].class == NO_CLASS)
                return;
        for (uint32_t i = 0, n = s->slabs[slab].slots; i < n && s->slabs[slab].used > 0; i++) {
                uint32_t owner = slabs_owner(s, (struct slab_slot){ slab, i });

                if (owner != SLAB_NOBODY)
                        evict(userdata, owner);
        }
        assert(s->slabs[slab].used == 0);
        slab_uncut(s, slab);
}

int slabs_slab_class(const struct slabs *s, uint32_t slab)
{
        if (slab >= s->n_slabs || s->slabs[slab].class == NO_CLASS)
                return -1;
        return s->slabs[slab].class;
}

uint32_t slabs_slab_slots(const struct slabs *s, uint32_t slab)
{
        return slab < s->n_slabs ? s->slabs[slab].slots : 0;
}

uint32_t slabs_slab_used(const struct slabs *s, uint32_t slab)
{
        return slab < s->n_slabs ? s->slabs[slab].used : 0;
}

uint32_t slabs_added(const struct slabs *s)
{
        return s->n_slabs;
}

uint32_t slabs_free_count(const struct slabs *s)
{
        return s->n_free;
}

/* --- slots --- */

/* Rebuilds the free list of a slab, in ascending order. */
static void slab_relink(const struct slabs *s, struct slab *slab)
{
        slab->first_free = SLOT_END;
        for (uint32_t i = slab->fresh; i-- > 0;) {
                if (!(word_of(s, slab, i) & SLOT_FREE))
                        continue;
                if (slab->first_free == SLOT_END)
                        slab->last_free = i;
                set_word(s, slab, i, SLOT_FREE | slab->first_free);
                slab->first_free = i;
        }
        slab->stale = false;
}

/* Accounts for a slot that changes from free to used. */
static void slab_count_used(struct slabs *s, uint32_t i)
{
        struct slab *slab = &s->slabs[i];
        struct slab_class *c = &s->classes[slab->class];

        empty_leave(s, i);
        slab->used++;
        c->used++;
        if (slab->used == slab->slots)
                list_unlink(s, &c->room, ROOM, i);
}

static uint32_t slot_take(struct slabs *s, uint32_t i, uint32_t owner)
{
        struct slab *slab = &s->slabs[i];
        uint32_t slot;

        assert(owner <= last_number(s));
        if (slab->stale)
                slab_relink(s, slab);
        if (slab->first_free != SLOT_END) {
                slot = slab->first_free;
                slab->first_free = word_of(s, slab, slot) & ~SLOT_FREE;
        } else {
                slot = slab->fresh++;
        }
        assert(slot < slab->slots);
        set_word(s, slab, slot, owner);
        slab_count_used(s, i);
        return slot;
}

int slabs_acquire(struct slabs *s, unsigned class, uint32_t owner, struct slab_slot *ret)
{
        struct slab_class *c;
        int r;

        assert(class < s->n_classes);
        c = &s->classes[class];

        if (c->room.first == NONE) {
                r = class_grow(s, class);
                if (r != 0)
                        return r;
        }
        ret->slab = c->room.first;
        ret->slot = slot_take(s, ret->slab, owner);
        return 0;
}

int slabs_acquire_in(struct slabs *s, uint32_t slab, uint32_t owner, struct slab_slot *ret)
{
        assert(slab < s->n_slabs && s->slabs[slab].class != NO_CLASS);
        if (s->slabs[slab].used == s->slabs[slab].slots || s->slabs[slab].closed)
                return SLAB_FULL;
        *ret = (struct slab_slot){ .slab = slab, .slot = slot_take(s, slab, owner) };
        return 0;
}

static bool slot_is_used(const struct slabs *s, struct slab_slot slot)
{
        const struct slab *slab;

        if (slot.slab >= s->n_slabs)
                return false;
        slab = &s->slabs[slot.slab];
        return slab->class != NO_CLASS && slot.slot < slab->fresh &&
               !(word_of(s, slab, slot.slot) & SLOT_FREE);
}

void slabs_release(struct slabs *s, struct slab_slot slot)
{
        struct slab *slab;
        struct slab_class *c;

        assert(slot_is_used(s, slot));
        slab = &s->slabs[slot.slab];
        c = &s->classes[slab->class];

        set_word(s, slab, slot.slot, SLOT_FREE | SLOT_END);
        if (!slab->stale) {
                if (slab->first_free == SLOT_END)
                        slab->first_free = slot.slot;
                else
                        set_word(s, slab, slab->last_free, SLOT_FREE | slot.slot);
                slab->last_free = slot.slot;
        }

        if (slab->used < slab->slots && !slab->closed)
                list_unlink(s, &c->room, ROOM, slot.slab);
        slab->used--;
        c->used--;
        if (slab->used == 0) {
                slab->fresh = 0;
                slab->first_free = SLOT_END;
                slab->stale = false;
        }
        if (slab->closed)
                return;
        if (slab->used > 0) {
                list_push_front(s, &c->room, ROOM, slot.slab);
        } else {
                list_push_back(s, &c->room, ROOM, slot.slab);
                empty_enter(s, slot.slab);
        }
}

uint32_t slabs_owner(const struct slabs *s, struct slab_slot slot)
{
        return slot_is_used(s, slot) ? word_of(s, &s->slabs[slot.slab], slot.slot) : SLAB_NOBODY;
}

void slabs_set_owner(struct slabs *s, struct slab_slot slot, uint32_t owner)
{
        assert(slot_is_used(s, slot));
        assert(owner <= last_number(s));
        set_word(s, &s->slabs[slot.slab], slot.slot, owner);
}

uint64_t slabs_slot_bytes(const struct slabs *s, struct slab_slot slot)
{
        assert(slot.slab < s->n_slabs && s->slabs[slot.slab].class != NO_CLASS);
        return s->classes[s->slabs[slot.slab].class].bytes;
}

uint64_t slabs_offset(const struct slabs *s, struct slab_slot slot)
{
        assert(slot.slab < s->n_slabs && slot.slot < s->slabs[slot.slab].slots);
        return (uint64_t)slot.slot * slabs_slot_bytes(s, slot);
}

/* --- recovery --- */

int slabs_assign(struct slabs *s, uint32_t slab, unsigned class)
{
        if (slab >= s->n_slabs || class >= s->n_classes)
                return -EINVAL;
        if (s->slabs[slab].class != NO_CLASS)
                return -EEXIST;
        if (s->slabs[slab].bytes < s->classes[class].bytes)
                return -EINVAL;
        return slab_cut(s, slab, class);
}

void slabs_warm(const struct slabs *s, struct slab_slot slot, unsigned step)
{
        const struct slab *slab;

        if (slot.slab >= s->n_slabs)
                return;
        slab = &s->slabs[slot.slab];
        if (step == 0)
                warm(slab);
        else if (slab->words && slot.slot < slab->slots)
                warm(slab->words + packed_bytes(slot.slot, s->word_bits), 1);
}

int slabs_occupy(struct slabs *s, struct slab_slot slot, uint32_t owner)
{
        struct slab *slab;

        assert(owner <= last_number(s));
        if (slot.slab >= s->n_slabs)
                return -EINVAL;
        slab = &s->slabs[slot.slab];
        if (slab->class == NO_CLASS || slot.slot >= slab->slots)
                return -EINVAL;
        if (slot_is_used(s, slot))
                return -EEXIST;

        while (slab->fresh <= slot.slot)
                set_word(s, slab, slab->fresh++, SLOT_FREE | SLOT_END);
        set_word(s, slab, slot.slot, owner);
        slab->stale = true;
        slab_count_used(s, slot.slab);
        return 0;
}
