/* SPDX-License-Identifier: Apache-2.0 */
/* Implements deadlines.h as a binary heap. Each deadline stores its index, so that it can be moved
 * and removed. */
#include "remote/deadlines.h"

#include <errno.h>
#include <stdlib.h>

#include "checked.h"

void deadlines_fini(struct deadlines *s)
{
        free(s->heap);
        *s = (struct deadlines){ 0 };
}

static void put(struct deadlines *s, struct deadline *d, unsigned place)
{
        s->heap[place] = d;
        d->place = place;
}

static void sift(struct deadlines *s, struct deadline *d, unsigned place)
{
        for (; place > 1 && s->heap[place / 2]->at_ns > d->at_ns; place /= 2)
                put(s, s->heap[place / 2], place);
        for (unsigned child; (child = 2 * place) <= s->n; place = child) {
                if (child < s->n && s->heap[child + 1]->at_ns < s->heap[child]->at_ns)
                        child++;
                if (s->heap[child]->at_ns >= d->at_ns)
                        break;
                put(s, s->heap[child], place);
        }
        put(s, d, place);
}

int deadlines_add(struct deadlines *s, struct deadline *d, uint64_t at_ns)
{
        if (d->place == 0) {
                if (s->n + 1 >= s->room) {
                        unsigned room = MAX(2 * s->room, 64u);
                        struct deadline **heap = realloc(s->heap, room * sizeof(*heap));

                        if (!heap)
                                return -ENOMEM;
                        s->heap = heap;
                        s->room = room;
                }
                d->place = ++s->n;
        }
        d->at_ns = at_ns;
        sift(s, d, d->place);
        return 0;
}

void deadlines_remove(struct deadlines *s, struct deadline *d)
{
        unsigned place = d->place;
        struct deadline *last;

        if (place == 0)
                return;
        d->place = 0;
        last = s->heap[s->n--];
        if (last != d)
                sift(s, last, place);
}

void deadlines_run(struct deadlines *s, uint64_t now_ns)
{
        while (s->n > 0 && s->heap[1]->at_ns <= now_ns) {
                struct deadline *d = s->heap[1];

                deadlines_remove(s, d);
                d->expire(d, now_ns);
        }
}

uint64_t deadlines_next(const struct deadlines *s)
{
        return s->n > 0 ? s->heap[1]->at_ns : 0;
}
