/* SPDX-License-Identifier: Apache-2.0 */
/* Loans of random histories: chunks that a client reads by itself in the data files, concurrently
 * with everything that the cache does. */
#pragma once

#include "cache-fixture.h"

/* Borrows a chunk, and opens its data file. */
void lend_one(uint32_t n);
/* Reads a borrowed chunk, compares it with the model if it was in its place, and returns it. */
void give_back_one(void);
void give_back_all(void);
