/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture of tests of store/: a store in its own directory, on each backend with O_DIRECT, and
 * on tmpfs without. Keys and payloads derive from numbers, and every byte of a get is compared. */
#pragma once

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../lib/killed.h"
#include "store/volume/format.h"
#include "store/store.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

enum { DEPTH = 32, ROOM = 4 << 20, WAIT_MS = 60000 };

struct store_test {
        const char *backend; /* backend of the group */
        const char *root;
        bool direct, faults;

        char dir[PATH_MAX];
        struct kio *io;
        struct store *s;
        uint32_t ns;     /* where keys go */
        uint16_t tenant; /* tenant of the namespace */
        char *bufs[DEPTH];
        uint64_t most_used;
};
extern struct store_test t;
struct store_params params_of(uint64_t limit);
int try_open(const struct store_params *params, char error[static 512]);
bool ns_done(const void *arg);
void ns_complete(struct store_namespace_open *req);
int open_namespace(const char *name, const char *fingerprint, bool attach, uint32_t *ret_id);

/* Reads the answer's namespace while that is still permitted. */
void refusal_complete(struct store_namespace_open *req);
void start(const struct store_params *params);
void start_limit(uint64_t limit);
uint64_t du(void);
struct store_stats stats(void);

/* Runs one iteration of a loop without waiting. Returns whether there is something to wait for. */
void turn_once(void);
void wait_io(void);
/* Returns whether the store has work that waits for no I/O. */
bool store_is_due(void);
void turn(bool (*until)(const void *arg), const void *arg);
void settle(void);
void stop(void);
struct key key_of(uint64_t n);
void payload_of(uint64_t n, void *buf, uint32_t length);

struct put {
        struct store_put req;
        unsigned buf;
        bool busy;
};
extern struct put slots[DEPTH];
extern unsigned puts_busy;
extern int last_result;
void put_complete(struct store_put *req);
bool puts_none(const void *arg);
int submit_put(uint64_t n, uint32_t length, bool durable);
/* Submits a put of key `n`, with the payload of `n` unless `buf` is given. With `summing`, its
 * checksum follows. */
struct put *submit_direct(uint64_t n, uint32_t length, uint64_t batch, bool summing, void *buf);
int put(uint64_t n, uint32_t length);
int put_durable(uint64_t n, uint32_t length);

/* Puts many chunks at once. FULL is retried after a completion. */
void put_range(uint64_t first, uint64_t n, uint32_t length);

extern bool got;
void get_complete(struct store_get *req);
bool get_done(const void *arg);
int get_into(struct store_get *req, uint64_t n, char *buf);

/* Returns 0 if the chunk is stored and every byte is right. */
int get(uint64_t n, uint32_t length);
bool present(uint64_t n);
void touch(uint64_t n);
int drop(uint64_t n);
void purge_complete(struct store_purge *req);
bool purge_done(const void *arg);
uint64_t purge(bool all);
uint64_t count_present(uint64_t first, uint64_t n);

int file_of(const char *name, int flags);
void flip_byte(const char *name, off_t offset);
void remove_files(void);
void remove_dir(void);
void put_some(void);

/* Finds the file and the offset of the payload of this number. Returns whether it was found. */
bool find_payload(uint64_t n, uint32_t length, char *ret_name, off_t *ret_offset);
void expect_refused(int expected, const char *text);
struct disk_superblock superblock(void);

/* The syncs of the table, or of segments and their folder. */
struct watched_syncs {
        bool of_table;
        unsigned from; /* number of the first failing call; 0: none */
        bool never;    /* the sync is held, rather than failing */
        atomic_uint seen;
};
extern struct watched_syncs watched_syncs;
void watch_syncs(bool of_table, unsigned from, bool never);
int setup(void **state);
int teardown(void **state);

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* Runs the tests on each backend and on tmpfs (with a sanitizer only on io_uring and tmpfs), and
 * the long ones once. An argument filters tests by name. */
int run_store_tests(int argc, char **argv, const struct CMUnitTest *tests, size_t n,
                    const struct CMUnitTest *long_tests, size_t n_long);
