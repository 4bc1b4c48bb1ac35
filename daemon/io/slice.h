/* SPDX-License-Identifier: Apache-2.0 */
/* The computing part of a request: a copy with its checksum, or the checksum of what was read. It
 * is done a slice at a time, so that the worker can serve the device in between. Private to io/. */
#pragma once

#include "io/request.h"

/* The next slice, of at most `budget` bytes; *ret_bytes: how many. 1 when that was the last, 0,
 * -errno. */
int slice_run(struct kio_request *req, uint64_t budget, uint64_t *ret_bytes);
/* The same with zeros for what a read was to bring. True when that was the last. */
bool slice_wipe(struct kio_request *req, uint64_t budget, uint64_t *ret_bytes);
