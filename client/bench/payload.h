/* SPDX-License-Identifier: Apache-2.0 */
/* Contents that are computed from the key, so that every byte of a chunk can be checked by its key.
 *
 * Word i (little-endian, 64 bits) is a mix of i and of one of four seeds, each of which hangs on
 * all 32 bytes of the key: a chunk that is another key's, shifted, cut, doubled, or put together
 * from right pieces in the wrong place is wrong in nearly every byte. Bytes depend on key and
 * position only, so a range of a chunk can be made alone. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kvcache.h"

void payload_fill(const struct kvcache_key *key, void *data, size_t bytes);
/* Compares every byte. Returns how many are wrong, and where the first of them is. */
uint64_t payload_verify(const struct kvcache_key *key, const void *data, size_t bytes,
                        size_t *ret_first);
