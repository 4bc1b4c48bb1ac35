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

/* Checks once more; `*rest` is zero before the first check. Returns 1 if the last three checks saw
 * no background activity; 0 if not yet; -errno if the daemon does not answer. */
int rest_look(struct rest *rest, struct kvcache *kv);
