/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of the client library stand on: a folder for a socket, a fake daemon there, a handle,
 * and the watch over what is left behind. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fake-daemon.h"
#include "kvcache-admin.h"

struct rig {
        char dir[64], path[96]; /* of the socket */
        struct fake_daemon *d;  /* these three are the test's to make */
        struct kvcache *kv;
        uint32_t ns;
        unsigned fds; /* open before */
};

/* cmocka's: *state is the rig. The teardown fails if the daemon has seen a bad request, or if there
 * are other descriptors than before. */
int rig_setup(void **state);
int rig_teardown(void **state);

unsigned rig_count_fds(void);

struct kvcache_key rig_key(uint64_t n);
void rig_fill(uint8_t *p, size_t bytes, uint64_t n);
bool rig_filled(const uint8_t *p, size_t bytes, uint64_t n);
