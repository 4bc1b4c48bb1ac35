/* SPDX-License-Identifier: Apache-2.0 */
#include "latency.h"

#include <math.h>
#include <stdlib.h>

#include "checked.h"

void latency_fini(struct latency *l)
{
        free(l->ns);
        *l = (struct latency){ 0 };
}

void latency_add(struct latency *l, uint64_t ns)
{
        if (l->n == l->room) {
                size_t room = MAX(l->room * 2, (size_t)1024);
                uint64_t *p = reallocarray(l->ns, room, sizeof(*p));

                if (!p) {
                        l->dropped++;
                        return;
                }
                l->ns = p;
                l->room = room;
        }
        l->ns[l->n++] = ns;
}

void latency_merge(struct latency *to, const struct latency *from)
{
        for (size_t i = 0; i < from->n; i++)
                latency_add(to, from->ns[i]);
        to->dropped += from->dropped;
}

static int compare(const void *a, const void *b)
{
        uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

        return (x > y) - (x < y);
}

uint64_t latency_quantile(struct latency *l, double quantile)
{
        double rank = ceil(quantile * (double)l->n);

        if (l->n == 0)
                return 0;
        qsort(l->ns, l->n, sizeof(*l->ns), compare);
        return l->ns[rank < 1 ? 0 : MIN((size_t)rank, l->n) - 1];
}
