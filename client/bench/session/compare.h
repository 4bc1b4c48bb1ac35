/* SPDX-License-Identifier: Apache-2.0 */
/* Two sessions side by side: what is the same key in both, or, on the same path, the layouts of
 * both against fully contiguous. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "snapshot.h"

struct compare_options {
        bool by_layout;
        double most_percent; /* worse than that is a regression of the command; negative: none is */
        bool json, one_line;
};

/* 1: something is worse by more than most_percent; 0; -ENOMEM. */
int session_compare(const struct snapshot *a, const struct snapshot *b,
                    const struct compare_options *options, FILE *out);
