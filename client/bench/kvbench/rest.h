/* SPDX-License-Identifier: Apache-2.0 */
/* Detects whether a daemon is at rest. Its background work (preparing memory, creating data files,
 * writing to disk) must not be measured. */
#pragma once

#include "kvcache.h"

enum { REST_LOOK_MS = 5 /* interval between two checks, ms */ };

struct rest {
        double operations; /* number of I/O operations of the daemon at the last check */
        unsigned quiet;    /* consecutive checks without background activity */
};

/* Checks once more; `*rest` is zero at first. Returns 1 if the daemon is at rest, 0 if not yet, or
 * an error. */
int rest_look(struct rest *rest, struct kvcache *kv);
