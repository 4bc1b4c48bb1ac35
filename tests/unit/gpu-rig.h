/* SPDX-License-Identifier: Apache-2.0 */
/* Fixture of the tests of GPU memory: a stub driver, a fake daemon, and blocks in device memory
 * with contents derived from a number. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../gpu/stub-cuda.h"
#include "../lib/rig.h"
#include "../lib/timeout.h"
#include "gpu/driver.h"
#include "kvcache-gpu.h"

enum {
        LAYERS = 3,
        BLOCKS = 24, /* blocks of the layout */
        REGION = 16 * 64 * 2,
        BLOCK = LAYERS * 2 * REGION,
        BUFFER = 2 * BLOCKS * REGION,
        MEMORY = LAYERS * BUFFER,
        STAGING = 512 * 1024,
};

extern struct stub_cuda stub;
extern struct driver cuda; /* a program that has CUDA uses it in this way */

struct fixture {
        struct rig *rig;
        struct kvcache *kv;
        struct kvcache_gpu *gpu;
        cu_address device;
        uint64_t bases[LAYERS];
        struct kvcache_layout layout;
        cu_stream stream; /* the program's */
};

struct job {
        struct kvcache_gpu_request q;
        struct kvcache_gpu_block blocks[256];
        int statuses[256];
};

/* Loads the stub and makes its primary context. False: it is another driver, or none. */
bool gpu_rig_open(void);
void lay_out(struct fixture *f, enum kvcache_layout_kind kind);
/* Lists the memory of the outer-first layout as regions, which the caller keeps. */
void list_as_regions(struct fixture *f, struct kvcache_layout_region regions[2 * LAYERS]);
void start_daemon(struct fixture *f, const struct fake_options *o);
int setup(void **state);
int teardown(void **state);
void connect_to(struct fixture *f, const struct fake_options *o);
struct kvcache_gpu_options options_of(enum kvcache_gpu_engine engine);
void attach(struct fixture *f, enum kvcache_gpu_engine engine);
void begin(struct fixture *f);
struct kvcache_gpu_info info_of(struct fixture *f);
uint8_t byte_of(uint64_t seed, uint64_t offset);
void set_block(struct fixture *f, uint64_t block, uint64_t seed);
bool block_is(struct fixture *f, uint64_t block, uint64_t seed);
void clear(struct fixture *f);
struct job *job_of(struct fixture *f, size_t n, uint64_t first_key, uint64_t first_block);
int finish(struct fixture *f);
int put(struct fixture *f, struct job *j);
int get(struct fixture *f, struct job *j);
void assert_statuses(const struct job *j, int status);
void put_keys(struct fixture *f, size_t n, uint64_t first_key);
