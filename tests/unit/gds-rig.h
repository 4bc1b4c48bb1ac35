/* SPDX-License-Identifier: Apache-2.0 */
/* Fixture of the tests of GPUDirect Storage: gpu-rig.h, a stub cuFile, and a fake daemon that
 * lends. */
#pragma once

#include "../gpu/stub-cufile.h"
#include "gpu-rig.h"
#include "gpu/gds.h"

enum { DEVICE_BYTES = 8 << 20, POOL = 16 << 20 };

extern struct stub_cufile cufile;

int setup_gds(void **state);
int teardown_gds(void **state); /* nothing is left registered, and no loan is held */
int attach_gds(struct fixture *f, enum kvcache_gpu_gds_option gds, char *why);
void detach_gds(struct fixture *f);
void connect_lender(struct fixture *f);
void begin_gds(struct fixture *f);
/* Gets `n` keys into the blocks from `at` on, and checks their bytes. */
void get_keys(struct fixture *f, size_t n, uint64_t first_key, uint64_t at);
uint64_t fallbacks_of(struct fixture *f, enum kvcache_gpu_gds_reason reason);
/* Checks that `n` blocks fell back for this reason, and none for another. */
void assert_fallbacks(struct fixture *f, enum kvcache_gpu_gds_reason reason, uint64_t n);
