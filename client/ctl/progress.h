/* SPDX-License-Identifier: Apache-2.0 */
/* A line that shows how far a replay, or something else, is: on a terminal only, on standard error,
 * redrawn in place. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "replay.h"

struct progress {
        bool shown; /* is there a terminal */
        size_t n_requests;
};

void progress_init(struct progress *p, size_t n_requests);
void progress_draw(struct progress *p, const struct replay_progress *now);
/* The same for what is no replay: `tail` tells the figures, with a space in front. */
void progress_show(struct progress *p, double part, const char *tail);
/* Wipes the line away. */
void progress_end(struct progress *p);
/* The line for so many columns, as progress_draw() would show it. */
void progress_format(const struct progress *p, const struct replay_progress *now, unsigned columns,
                     char *ret, size_t room);
void progress_bar(unsigned columns, double part, const char *tail, char *ret, size_t room);
