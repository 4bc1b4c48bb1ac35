/* SPDX-License-Identifier: Apache-2.0 */
/* Queues of requests by class, and the choice of the class to serve next. Private to io/. */
#pragma once

#include "io/request.h"

static inline void classes_init(struct list_node lists[static KIO_CLASS_END])
{
        for (unsigned c = 0; c < KIO_CLASS_END; c++)
                list_init(&lists[c]);
}

static inline bool classes_are_empty(const struct list_node lists[static KIO_CLASS_END])
{
        for (unsigned c = 0; c < KIO_CLASS_END; c++)
                if (!list_empty(&lists[c]))
                        return false;
        return true;
}

/* Returns the class to serve next, or -1 if every class that may be served is empty. Gets go first,
 * then puts, then background work. To prevent starvation, every eighth choice prefers a put, and
 * one in 64 prefers background work. `turn` is the number of the choice. `barred` has a bit for
 * each class that may not be served. */
static inline int classes_pick(const struct list_node lists[static KIO_CLASS_END], unsigned barred,
                               uint32_t turn)
{
        bool may[KIO_CLASS_END];

        for (unsigned c = 0; c < KIO_CLASS_END; c++)
                may[c] = !list_empty(&lists[c]) && !(barred & 1u << c);
        if (turn % 64 == 32 && may[KIO_CLASS_BACKGROUND])
                return KIO_CLASS_BACKGROUND;
        if (turn % 8 == 7 && may[KIO_CLASS_PUT])
                return KIO_CLASS_PUT;
        for (unsigned c = 0; c < KIO_CLASS_END; c++)
                if (may[c])
                        return (int)c;
        return -1;
}
