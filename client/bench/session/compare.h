/* SPDX-License-Identifier: Apache-2.0 */
/* Compares two sessions: rows with the same key in both (technologies are summed if one of the
 * sessions does not distinguish them), or, for each path, all layouts of both sessions with the
 * fully contiguous one. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "snapshot.h"

struct compare_options {
        bool by_layout;
        double most_percent; /* a larger deterioration is a regression; negative: no limit */
        bool json, one_line;
};

/* Prints the comparison. Returns 1 if a figure is worse by more than most_percent, otherwise 0;
 * -ENOMEM. */
int session_compare(const struct snapshot *a, const struct snapshot *b,
                    const struct compare_options *options, FILE *out);
