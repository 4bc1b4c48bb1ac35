/* SPDX-License-Identifier: Apache-2.0 */
/* A shared tier over the fake back end, with a clock that only a test advances. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "fake-backend.h"
#include "remote/internal.h"

#define MS     UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)
#define MINUTE (60 * SECOND)

enum { NS = 7 /* a namespace */, CHUNK = 64 << 10, KEYS = 20000 };

struct rig {
        struct remote *r;
        struct remote_params params; /* used by make() and make_again() */
        uint16_t tenant;             /* of gets */
        unsigned purged;             /* calls of purged() */
        bool keep_purges;            /* remote_purged() is not called from within */
        bool end_within;             /* gets are ended from within complete() */
        unsigned loads;
        uint64_t loaded[64];         /* hashes, in order */
        bool load_later, load_fails; /* kept in `put`; remote_put_loaded(false) */
        struct remote_put *put;
        char state[64]; /* path of the state file */
};
extern struct rig rig;

/* The setup and teardown of cmocka: defaults in rig.params, and a state file of this test. */
int rig_setup(void **state);
int rig_teardown(void **state);
/* Makes the tier of rig.params, with the namespace NS. */
void make(void);
void make_bare(void);  /* without it */
void make_again(void); /* restarts the host's tier */

uint64_t now_ns(void);
void advance(uint64_t ns); /* and step() */
/* Reaps and iterates until nothing is due. */
void step(void);
/* Waits for other threads until it is true. */
#define wait_until(condition)                                                                      \
        do {                                                                                       \
                while (!(condition))                                                               \
                        wait_and_step();                                                           \
        } while (0)
void wait_and_step(void);
bool is_recorded(void); /* whether the state file has all known generations */

struct remote_stats stats(void);
struct remote_status status(void);

/* Return key number i, and the hash by which the cache finds it. */
struct key key_of(unsigned i);
uint64_t hash_of(unsigned i);
const char *name_of(unsigned i); /* name in the present generation; valid until the next call */
void fill(unsigned i, uint8_t *ret, uint32_t length);
/* Stores an object in the form in which another host writes it. */
void put_object(unsigned i, uint32_t length);
void offer(unsigned i);

/* A get, and its result. */
struct asked {
        struct remote_get get;
        unsigned completed;
        bool bad; /* ended so, by get_end() */
};
bool get(struct asked *a, unsigned i, uint64_t timeout_ns);
void get_end(struct asked *a);
/* Returns whether get(), step() and get_end() find the chunk with these bytes. */
bool finds(unsigned i, uint32_t length);
uint32_t match(unsigned n, bool *ret_known);
