/* SPDX-License-Identifier: Apache-2.0 */
/* A good store in memory-files.c, over inline-io.c, for fuzzers that damage it: three namespaces
 * and a few dozen chunks, some dropped again. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/volume/format.h"
#include "store/store.h"

enum { IMAGE_KEYS = 96, IMAGE_NAMES = 3, IMAGE_LIMIT = 4 << 20 };

/* Makes the store once; its files are kept as the image. */
void image_make(void);
const uint8_t *image_uuid(void);

/* Applies a list of changes to the tables. Each has a byte for the kind and the file, three for the
 * place, one for the length, and then the bytes. Kind 0 truncates the file there or, with an odd
 * length, extends it; 1 copies a page of the ring over another one; 2 changes both copies of the
 * namespaces, or all copies of the superblock, in the same way; other kinds write the bytes, and
 * the odd ones correct checksums. `only` restricts all changes to one file, for namespaces to
 * either copy; NULL: the file that each change names. */
void image_change(const char *only, const uint8_t *data, size_t size);

/* The store opened by image_open(). The image_* functions below use it, and iterate until they have
 * their answer. */
extern struct store *image_store;
int image_open(uint64_t limit, bool as_is, char error[static 512]);
void image_close(void);
struct key image_key(uint32_t k);
int image_put(uint32_t namespace_id, uint32_t k);
/* Gets a chunk, and asserts that a hit has the bytes that were put. */
void image_get(uint32_t namespace_id, uint32_t k);
void image_purge(uint32_t namespace_id);
/* Returns the id of namespace number `n`, or 0 if it cannot be opened. */
uint32_t image_namespace(unsigned n);
