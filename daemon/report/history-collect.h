/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the samples of history.h. Loop thread. */
#pragma once

#include <stdint.h>

#include "report/sources.h"

struct history;

/* Takes a sample if one is due. Call it once a second or more often. */
void history_tick(struct history *h, const struct status_sources *from, uint64_t now_ns);
