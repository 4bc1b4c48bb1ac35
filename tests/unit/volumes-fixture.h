/* SPDX-License-Identifier: Apache-2.0 */
/* Fixture of the tests of stores with several volumes: directories, and a store of some of them,
 * selected by their numbers in the configuration; requests that are waited for; keys and payloads
 * derived from numbers. The POSIX backend with planned faults; the test replaces the loop. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fault.h"
#include "store/store.h"
#include "store/volume/format.h"

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)

enum {
        PATHS = 3,
        DIRS = 5,
        DEPTH = 32,
        ROOM = 64 * 1024,
        LENGTH = 5000,
        WAIT_MS = 60000,
        MANY = 300
};

struct volumes_test {
        char root[200];
        char dirs[DIRS][256];
        struct kio *io;
        struct store *s;
        uint32_t ns;
        char *bufs[DEPTH];
        uint64_t limit, hang_ms;
        uint32_t error_budget;
        bool foreign;              /* puts are from a client's memory */
        unsigned events[16], told; /* by enum store_volume_event; all */
        char text[512];            /* text of the last event */
};
extern struct volumes_test t;

void turn(void);
void wait_io(void);
void wait_for(const bool *done);
void settle(void);
/* Waits until the plan has failed or held this number of operations. */
void wait_hits(uint64_t hits);
/* Waits until the volume is in that state. A tick detects that it hangs. */
void wait_state(unsigned volume, enum store_volume_state state);

struct opening {
        struct store_namespace_open req;
        bool done;
};

void opened(struct store_namespace_open *req);
int open_with(const char *name, const char *fingerprint, uint32_t *ret);
int open_namespace(const char *name, uint32_t *ret);
bool has_namespace(const char *name);
void start(const char *which);
void refused(const char *which, int r, const char *text);
void stop(void);
void restart(const char *which); /* stopped, and started with these */
struct key key_of(uint64_t i);

struct put {
        struct store_put req;
        bool done, abandoned;
};

void put_done(struct store_put *req);

/* A sync, or the settling of drops. */
struct sync {
        struct store_sync req;
        bool done;
};

void sync_done(struct store_sync *req);
int put_begin(struct put *p, uint64_t i, char *buf);
int put(uint64_t i);
void put_range(uint64_t from, uint64_t n);

struct get {
        struct store_get req;
        bool done, abandoned;
};

int get_begin(struct get *g, uint64_t i, char *buf);
int get(uint64_t i);
unsigned count_hits(uint64_t from, uint64_t n);
uint64_t next_on(unsigned volume, uint64_t from);
uint64_t first_on(unsigned volume);
int drop(uint64_t i);
int settle_drops(void);

struct purge {
        struct store_purge req;
        bool done;
};

void purge_done(struct store_purge *req);
int purge(void);

struct device {
        struct store_device req;
        bool done;
};

void device_done(struct store_device *req);
int device(void (*act)(struct store *s, struct store_device *req), unsigned volume);
struct store_volume_stats stats_of(unsigned volume);
struct store_stats stats(void);
void copy_dir(unsigned from, unsigned to);

struct removal {
        struct store_namespace_remove req;
        bool done;
};

void removed(struct store_namespace_remove *req);
int remove_namespace(uint32_t id);
int set_up(void **state);
int tear_down(void **state);

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
