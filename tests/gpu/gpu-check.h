/* SPDX-License-Identifier: Apache-2.0 */
/* The types and functions shared by the source files of gpu-check. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu/driver.h"
#include "kvcache-admin.h"
#include "kvcache-gpu.h"

enum { MAX_LAYERS = 80 };

struct rig {
        struct driver d;
        cu_context context;
        cu_stream stream;
        struct kvcache *kv;
        uint32_t ns;
        struct kvcache_gpu *gpu;
        uint64_t staging_bytes; /* per attachment; 0 selects the library's default */
};

#define MUST(condition, ...)                                                                       \
        do {                                                                                       \
                if (!(condition)) {                                                                \
                        fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);            \
                        fprintf(stderr, __VA_ARGS__);                                              \
                        fprintf(stderr, "\n");                                                     \
                        exit(1);                                                                   \
                }                                                                                  \
        } while (0)
#define MUST_CUDA(r, call)                                                                         \
        do {                                                                                       \
                cu_result result_ = (r)->d.call;                                                   \
                MUST(result_ == CU_OK, "%s", driver_error_name(&(r)->d, result_));                 \
        } while (0)

double now(void);
void rig_attach(struct rig *r, enum kvcache_gpu_engine engine, uint32_t max_sms, uint32_t flags);
struct kvcache_gpu_info rig_info(struct rig *r);
void rig_detach(struct rig *r);
struct kvcache_key key_of(uint64_t space, uint64_t n);
int run(struct rig *r, struct kvcache_gpu_request *q, bool is_put);
size_t good(const struct kvcache_gpu_request *q);
void upload(struct rig *r, cu_address to, const void *from, size_t bytes);
void download(struct rig *r, void *to, cu_address from, size_t bytes);
void fill(uint8_t *p, size_t bytes, uint64_t seed);

struct load {
        struct kvcache_layout l;
        uint64_t bases[MAX_LAYERS];
        struct kvcache_layout_region regions[2 * MAX_LAYERS];
        cu_address device;
        struct kvcache_gpu_block *blocks;
        int *statuses;
        size_t count;
        uint64_t bytes; /* the sum of all blocks */
};

void load_open(struct rig *r, struct load *w, uint64_t piece, uint32_t layers, uint64_t bytes);
/* Describes the layout's memory by a list of its regions instead. */
void load_list_regions(struct load *w);
void load_name(struct load *w, uint64_t space);
void load_fill(struct rig *r, struct load *w);
void load_close(struct rig *r, struct load *w);
void load_put_all(struct rig *r, struct load *w); /* repeats until all blocks are stored */
double load_run(struct rig *r, struct load *w, bool is_put, size_t *ret_good);
double median(double *v, size_t n);
void wait_until_written(struct rig *r);

/* gpu-layouts.c, gpu-bench.c */
void gpu_check(struct rig *r, bool listed); /* layouts that list their regions, or all others */
void gpu_bench(struct rig *r, unsigned scale);

/* Blocks on disk come by cuFile, or the other way for this reason and no other: each byte. */
void gds_check(struct rig *r, const char *reason);
/* Compares gets with a bare loop of cuFileRead() over the same chunks. */
void gds_bench(struct rig *r, unsigned scale);
