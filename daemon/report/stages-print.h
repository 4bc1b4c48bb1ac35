/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the recorded times of stages as JSON. Loop thread. */
#pragma once

#include <stdio.h>

#include "base/stages.h"

/* Prints {"on": true, "events": [{"batch": "GET", "keys": 16, "at_ns": [...]}, {"operation":
 * "read", "bytes": 65536, "chunks": 65536, "at_ns": [...]}, ...]}, the oldest first, with the times
 * of struct stages_event. A background operation has "background": true. At most 256 KiB. */
void stages_print(const struct stages *s, FILE *out);
