/* SPDX-License-Identifier: Apache-2.0 */
/* "Did you mean": the candidate with the fewest edits between it and what was written, if they are
 * few. For messages about configuration keys, commands and options. */
#pragma once

struct suggestion {
        const char *text; /* borrowed from the caller; NULL: none so far */
        unsigned distance;
};

/* At most a third of the letters of `written` may differ. */
struct suggestion suggest_init(const char *written);
void suggest_try(struct suggestion *s, const char *written, const char *candidate);
