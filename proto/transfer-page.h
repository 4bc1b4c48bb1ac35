/* SPDX-License-Identifier: Apache-2.0 */
/* The page in which a session's client counts the transfers that it makes itself: copies to and
 * from a GPU, reads and writes by cuFile, copies between a memory layout and chunks. The daemon
 * creates it, sealed against changes of its size, and reads it; the client writes everything but
 * `epoch`. Either side may find any content at any time (proto/README.md 5.6).
 *
 * Counters only grow, so a benchmark session subtracts their values at its start. The smallest
 * and largest size cannot be subtracted. Therefore they cover the time since the slot's `epoch`
 * became equal to the page's `epoch`, which the daemon increments when a benchmark session
 * starts counting. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "transfer-counts.h"

enum {
        TRANSFER_PAGE_SLOTS = 16, /* number of slots, each for one path, layout and technology;
                                     further combinations are not counted */
        TRANSFER_PAGE_BYTES = 16384,
        TRANSFER_PAGE_WORDS = sizeof(struct transfer_counts) / sizeof(uint64_t),
};

struct transfer_slot {
        uint32_t key;   /* 0: unused; never changes once it is set */
        uint32_t epoch; /* the page's `epoch` at the time when min_bytes and max_bytes were reset */
        uint64_t busy_ns;
        struct transfer_counts counts;
};
static_assert(sizeof(struct transfer_slot) == 896, "shared memory");
static_assert(sizeof(struct transfer_counts) == 110 * sizeof(uint64_t), "64-bit words only");

struct transfer_page {
        uint32_t epoch; /*  0  incremented by the daemon when a benchmark session starts counting */
        uint32_t reserved;
        uint64_t sequence; /* 8 the client increments it before and after each write; odd while a
                              write is in progress */
        uint64_t padding[6];
        struct transfer_slot slots[TRANSFER_PAGE_SLOTS]; /* 64 */
};
static_assert(offsetof(struct transfer_page, slots) == 64, "shared memory");
static_assert(sizeof(struct transfer_page) <= TRANSFER_PAGE_BYTES, "shared memory");

static inline uint32_t transfer_key(unsigned path, unsigned layout, unsigned technology)
{
        return UINT32_C(1) << 24 | path << 16 | layout << 8 | technology;
}

/* Splits a key. Returns false if it is invalid. */
static inline bool transfer_key_read(uint32_t key, unsigned *ret_path, unsigned *ret_layout,
                                     unsigned *ret_technology)
{
        *ret_path = key >> 16 & 0xff;
        *ret_layout = key >> 8 & 0xff;
        *ret_technology = key & 0xff;
        return key >> 24 == 1 && *ret_path < TRANSFER_PATHS && *ret_layout < TRANSFER_LAYOUTS &&
               *ret_technology < TRANSFER_TECHNOLOGIES;
}
