/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the contents of a chunk from its key, so that every byte of a chunk can be checked
 * without a copy of the chunk.
 *
 * Word i (little-endian, 64 bits) mixes i with one of four seeds, each of which depends on all
 * 32 bytes of the key. A chunk that belongs to another key, or is shifted, cut, duplicated or
 * assembled from correct pieces in wrong places, differs in nearly every byte. Bytes depend only
 * on key and position, so that a range of a chunk can be generated alone. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kvcache.h"

void payload_fill(const struct kvcache_key *key, void *data, size_t bytes);
/* Compares every byte. Returns the number of wrong bytes, and the offset of the first one in
 * `*ret_first`, which is left untouched if there are none. */
uint64_t payload_verify(const struct kvcache_key *key, const void *data, size_t bytes,
                        size_t *ret_first);
