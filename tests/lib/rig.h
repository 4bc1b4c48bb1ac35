/* SPDX-License-Identifier: Apache-2.0 */
/* The fixture of tests of the client library: a folder for a socket, a fake daemon, a handle, and
 * checks for leaks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fake-daemon.h"
#include "kvcache-admin.h"

struct rig {
        char dir[64], path[96]; /* path of the socket */
        struct fake_daemon *d;  /* created by the test, like the two members below */
        struct kvcache *kv;
        uint32_t ns;
        unsigned fds; /* number of open descriptors before the test */
};

/* Setup and teardown for cmocka: *state is the rig. The teardown fails if the daemon has received
 * an invalid request, or if the number of descriptors has changed. */
int rig_setup(void **state);
int rig_teardown(void **state);

struct kvcache_key rig_key(uint64_t n);
void rig_fill(uint8_t *p, size_t bytes, uint64_t n);
bool rig_filled(const uint8_t *p, size_t bytes, uint64_t n);

/* Returns a request for `n` keys of the rig's namespace. */
struct kvcache_request rig_request(struct rig *r, enum kvcache_op op,
                                   const struct kvcache_key *keys, size_t n,
                                   struct kvcache_result *results);
/* Puts a chunk filled with `n` under the key of that number. */
void rig_put(struct rig *r, uint64_t n, size_t bytes);
/* Waits for a completion. */
struct kvcache_completion rig_reap(struct rig *r);
/* Reads a counter of the daemon's thread. */
unsigned rig_peek(struct rig *r, const unsigned *value);
/* Returns the i-th batch that the daemon has received, or zeros. */
struct fake_logged rig_logged(struct rig *r, unsigned i);
