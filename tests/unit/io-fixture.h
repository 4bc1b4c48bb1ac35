/* SPDX-License-Identifier: Apache-2.0 */
/* Fixture of the tests of io/: a pool, a directory on a medium, and workers on a backend, with
 * faults if the test wants them. `run_everywhere()` runs a list of tests on every backend and
 * medium.
 *
 * Requests of tests are static, because a failed assertion leaves the test while a worker may still
 * use them. */
#pragma once

#include <limits.h>
#include <poll.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "build-config.h"
#include "fault.h"
#include "io/backend.h"
#include "io/io.h"
#include "timeout.h"

enum {
        POOL_PIECE = 2 << 20,
        POOL_PIECES = 4,
        POOL = POOL_PIECE * POOL_PIECES,
        WAIT_MS = 60000,
};

extern struct io_group {
        const char *backend; /* reason why the group cannot run */
        bool direct;
        const char *skip; /* why the group cannot run */
        char dir[PATH_MAX];
        char *pool;
        struct kio *io; /* workers of the current test, stopped after it */
} t;

extern unsigned completed;
void count_complete(struct kio_request *req);

bool is_uring(void);
bool uring_works(void);
const struct kio_backend *backend_of_group(void);
void skip_unless_possible(void);

struct kio_params params_of(const char *backend);
void start(const struct kio_params *p);
void start_on(const struct kio_params *p, const struct kio_backend *backend);
void start_with_faults(unsigned workers, unsigned depth);

/* Reaps until `*until` is at least `n`, or returns -1 after a while. For children, which cannot
 * assert. */
int poll_and_reap(const unsigned *until, unsigned n);
/* Waits until `n` requests have completed since `completed` was set to 0. */
void wait_completed(unsigned n);
int64_t run(struct kio_request *req);
struct kio_stats stats(void);
/* Returns how long the oldest operation of all volumes has been at the device. */
uint64_t oldest_ns(void);
struct kio_request transfer(enum kio_op op, int fd, void *buf, uint64_t length, uint64_t offset);
/* Returns the answer, -ETIMEDOUT if none comes. */
int register_piece(unsigned piece);

/* Fills memory with the bytes of `seed`. */
void fill(void *buf, size_t bytes, uint64_t seed);
/* Opens a file on the group's medium, through O_DIRECT if the group is `direct`. */
int open_file(const char *name, int more_flags);
/* Makes a file of `bytes` pattern bytes, by plain system calls. */
int make_file(const char *name, size_t bytes, uint64_t seed);

/* Memory that a client registers, with the daemon's mapping of it. */
struct registered {
        struct kio_region region;
        int fd;
        char *at;
        uint64_t bytes;
        unsigned completed;
};
void count_region(struct kio_region *region);
void register_buffer(struct registered *d, uint64_t bytes);
void cut(const struct registered *d, uint64_t bytes);
/* Both return the result. */
int register_region(struct registered *d);
int unregister_region(struct registered *d);
void give_back(struct registered *d);
struct kio_request region_transfer(enum kio_op op, int fd, struct registered *d, uint64_t at,
                                   uint64_t length);

/* Makes a call that holds its thread until gate_open is posted. */
extern sem_t gate_open;
struct kio_request gate_request(void);
void wait_for_gate(void);
int note_nothing(struct kio_request *req);

int test_setup(void **state);
int test_teardown(void **state);
int group_setup(void **state);
int group_teardown(void **state);

#define IO_TEST(f) cmocka_unit_test_setup_teardown(f, test_setup, test_teardown)

/* Both return the number of failed tests. */
int run_tests_everywhere(const struct CMUnitTest *tests, size_t n);
int run_tests_once(const char *name, const struct CMUnitTest *tests, size_t n);

#define run_everywhere(tests) run_tests_everywhere((tests), ARRAY_SIZE(tests))
#define run_once(name, tests) run_tests_once((name), (tests), ARRAY_SIZE(tests))
