/* SPDX-License-Identifier: Apache-2.0 */
#include "suggest.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "checked.h"

/* Returns the number of edits (insert, delete, replace, swap neighbours) from `a` to `b`, ignoring
 * case, or `enough` if there are as many or more, or if a text is longer than LONGEST. */
static unsigned edit_distance(const char *a, const char *b, unsigned enough)
{
        enum { LONGEST = 48 };
        unsigned rows[3][LONGEST + 1], *before = rows[0], *last = rows[1], *now = rows[2];
        size_t na = strlen(a), nb = strlen(b);

        if (na > LONGEST || nb > LONGEST || (na > nb ? na - nb : nb - na) >= enough)
                return enough;
        for (size_t j = 0; j <= nb; j++)
                last[j] = (unsigned)j;
        for (size_t i = 1; i <= na; i++) {
                unsigned *spare = before, least = (unsigned)i;

                now[0] = least;
                for (size_t j = 1; j <= nb; j++) {
                        int ca = tolower((unsigned char)a[i - 1]),
                            cb = tolower((unsigned char)b[j - 1]);
                        unsigned d = last[j - 1] + (ca != cb);

                        d = MIN(d, last[j] + 1);
                        d = MIN(d, now[j - 1] + 1);
                        if (i > 1 && j > 1 && ca == tolower((unsigned char)b[j - 2]) &&
                            cb == tolower((unsigned char)a[i - 2]))
                                d = MIN(d, before[j - 2] + 1);
                        now[j] = d;
                        least = MIN(least, d);
                }
                if (least > enough)
                        return enough; /* no later row is smaller: a swap adds to the row before the
                                          last */
                before = last;
                last = now;
                now = spare;
        }
        return MIN(last[nb], enough);
}

struct suggestion suggest_init(const char *text)
{
        return (struct suggestion){ .distance = (unsigned)MAX(strlen(text) / 3, (size_t)1) + 1 };
}

void suggest_try(struct suggestion *s, const char *text, const char *candidate)
{
        size_t n = strlen(text);
        unsigned d = edit_distance(text, candidate, s->distance);

        /* The written word abbreviates the candidate, as "warn" does "warning". */
        if (n >= 3 && d > 1 && strncasecmp(text, candidate, n) == 0 && !strchr(candidate + n, '.'))
                d = 1;
        if (d < s->distance)
                *s = (struct suggestion){ .text = candidate, .distance = d };
}
