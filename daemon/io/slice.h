/* SPDX-License-Identifier: Apache-2.0 */
/* The computing part of a request: a copy with its checksum, or the checksum of a finished read.
 * It runs in slices, so that the worker can serve the device in between. Private to io/. */
#pragma once

#include "io/request.h"

/* Processes the next slice, which is at most `budget` bytes or all payload of the tail (less than 4
 * KiB), and stores its length in *ret_bytes. Returns 1 if it was the last slice, 0 if more remain,
 * or -EFAULT if the memory has vanished. */
int slice_run(struct kio_request *req, uint64_t budget, uint64_t *ret_bytes);
/* Overwrites the next slice of a failed read's memory with zeros, at most `budget` bytes, and
 * stores its length in *ret_bytes. Returns whether it was the last slice. */
bool slice_wipe(struct kio_request *req, uint64_t budget, uint64_t *ret_bytes);
