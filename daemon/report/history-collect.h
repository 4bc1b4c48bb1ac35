/* SPDX-License-Identifier: Apache-2.0 */
/* Takes the samples of history.h. Loop thread. */
#pragma once

#include <stdint.h>

#include "report/sources.h"

struct history;

/* Once a second or more often; does something once in HISTORY_INTERVAL_S. */
void history_tick(struct history *h, const struct status_sources *from, uint64_t now_ns);
