/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the candidate for "did you mean": the one with the fewest edits from the written word,
 * if they are few. For messages about configuration keys, commands and options. */
#pragma once

struct suggestion {
        const char *text; /* borrowed from the caller; NULL: no candidate is close enough */
        unsigned distance;
};

/* Begins a search for a candidate that is at most strlen(written) / 3 edits away from `written`, or
 * one edit if that is 0. suggest_try() keeps the candidate if it is closer than all earlier ones; a
 * candidate that begins with `written` may count as one edit away. */
struct suggestion suggest_init(const char *written);
void suggest_try(struct suggestion *s, const char *written, const char *candidate);
