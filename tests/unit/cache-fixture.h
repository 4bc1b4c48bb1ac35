/* SPDX-License-Identifier: Apache-2.0 */
/* The cache over a real store and a real pool. Each test keeps its requests in the state that it
 * tests: a copy is not reaped, or the fault backend holds a device's operation. After each test,
 * nothing is pinned, unwritten or pending. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cache/internal.h"
#include "tiers.h"

enum { KIB = 1024, MIB = 1024 * KIB, LENGTH = 20000, SMALL = 64 * KIB, SLABS = 8 };

extern struct tiers t;
/* Waiting requests that name no other owner. */
extern struct list_node waits;
/* Counts lookups of the store, of which each attempt of a put makes one. The linker redirects the
 * cache here. */
extern uint64_t looks;

struct req {
        struct cache_request req;
        bool done;
        uint64_t nth;    /* to be done, of all */
        uint32_t length; /* bytes of a get */
        uint8_t version; /* version of these bytes */
        char *src;
};

extern uint64_t completions;
struct key key_of(uint32_t n);
uint32_t number_of(const struct key *key);
/* Fills a payload in which each byte depends on key and version, so that a mixture of two is
 * detected. */
void fill(char *buf, uint32_t n, uint8_t version, uint32_t length);
uint8_t version_of(const char *buf, uint32_t n, uint32_t length);
void start(struct req *r, uint32_t n);
void put_bytes(struct req *r, uint32_t n, enum cache_ack ack, uint8_t version, uint32_t length);
void put(struct req *r, uint32_t n, enum cache_ack ack);
void get(struct req *r, uint32_t n);
void expect(struct req *r, enum cache_status status);
void expect_put(uint32_t n, enum cache_ack ack, enum cache_status status);
void expect_get(uint32_t n, enum cache_status status, uint8_t version);
unsigned tiers_of(uint32_t n);
enum cache_status evict(uint32_t n, bool memory_only);
enum cache_status prefetch_as(uint32_t user, uint32_t n);
enum cache_status prefetch(uint32_t n);

struct purge {
        struct cache_purge req;
        bool done;
};

void purge(struct purge *p);
/* Suspends or resumes the only volume, and waits until that is done. */
/* Begin to suspend or resume the volume, and reap until that has ended. */
void begin_switch(struct store_device *req,
                  void (*change)(struct store *s, struct store_device *req));
void end_switch(struct store_device *req);
void switch_volume(void (*change)(struct store *s, struct store_device *req));
struct cache_stats stats(void);
void hold(unsigned op, uint64_t first);
void refuse(unsigned op, uint64_t first, uint64_t count);
void release(void);
/* Reaps until the bytes are in the pool, without ending the iteration. */
void reap_copies(uint64_t puts);
/* Puts a chunk whose bytes are in the pool and whose write the device holds. */
void put_writing(struct req *r, uint32_t n, enum cache_ack ack);
/* Puts a chunk and evicts its copy in memory, so that it is on disk only. */
void put_cold(uint32_t n);
void get_reading(struct req *r, uint32_t n);
/* Waits until the request is answered, and checks for hung devices meanwhile. */
void expect_ticking(struct req *r, enum cache_status status);
/* Pins a chunk in each slab, so that there is room for chunks of that small size, but none for one
 * that needs a slab of its own. */
void pin_every_slab(uint32_t *pinned, unsigned n);
void unpin_all(const uint32_t *pinned, unsigned n);
/* Puts as put_bytes() does, as this user. */
void put_as(uint32_t user, struct req *r, uint32_t n, enum cache_ack ack, uint32_t length,
            bool nowait);
void get_as(uint32_t user, struct req *r, uint32_t n);

enum { WINDOW = 1024, READS = WINDOW + 200 }; /* reads that a device is asked for at once */

extern struct req reads[READS];
void put_cold_of_one_page(uint32_t n);
void expect_reads(unsigned from, enum cache_status status);
/* Waits until the first iteration has ended in which the device has room for more. */
void wait_for_more_reads(void);

int setup(void **state);
int teardown(void **state);

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
