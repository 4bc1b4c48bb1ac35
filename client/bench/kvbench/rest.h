/* SPDX-License-Identifier: Apache-2.0 */
/* Is a daemon at rest? What it does in the background (its memory, new data files, writes to its
 * disk) is not what is measured. */
#pragma once

#include "kvcache.h"

enum { REST_LOOK_MS = 5 /* between two looks */ };

struct rest {
        double operations; /* at the last look */
        unsigned quiet;    /* looks in a row without anything moving */
};

/* Looks once more; begins with { 0 }. 1: it is at rest; 0: not yet; or an error. */
int rest_look(struct rest *rest, struct kvcache *kv);
