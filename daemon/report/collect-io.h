/* SPDX-License-Identifier: Apache-2.0 */
/* Collects the part of the snapshot that describes the movement of bytes. Loop thread. */
#pragma once

#include "report/sources.h"

/* Fills in the metrics of volumes, of the I/O layer, of the shared tier and of transfers. */
void status_collect_io(const struct status_sources *from, struct metrics *ret);
