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

/* Once; kept as the image of its files. */
void image_make(void);
const uint8_t *image_uuid(void);

/* A list of changes to its tables: a byte for the kind and the file, three for the place, one
 * for the length, then the bytes. Kinds: 0: cut short there, or with an odd length made longer;
 * 1: a page of the ring over another one; 2: both copies of the namespaces, or all of the
 * superblock, alike; else the bytes as they are, and with an odd kind checksums are made right.
 * `only`: whatever file a change names, it is for this one (of the namespaces, either); NULL: as
 * it says. */
void image_change(const char *only, const uint8_t *data, size_t size);

/* The store that image_open() has opened; the image_* functions below use it, and turn it until
 * they have their answer. */
extern struct store *image_store;
int image_open(uint64_t limit, bool as_is, char error[static 512]);
void image_close(void);
struct key image_key(uint32_t k);
int image_put(uint32_t namespace_id, uint32_t k);
/* Asserts that whatever comes is what was put. */
void image_get(uint32_t namespace_id, uint32_t k);
void image_purge(uint32_t namespace_id);
/* Returns the id of namespace number `n`, or 0 if it cannot be opened. */
uint32_t image_namespace(unsigned n);
