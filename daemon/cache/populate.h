/* SPDX-License-Identifier: Apache-2.0 */
/* Gives the pools their memory, after the daemon is ready: slab by slab, in steps small enough not
 * to hold up a worker, each slab then registered with the rings and put to use; of several pools
 * one slab each in turn, so that all have some early. Stops while the host is short of memory, and
 * tries again by timer: a pool that is not all there is a smaller pool. Loop thread. */
#pragma once

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

struct pool;
struct kio;
struct populate;

struct populate_params {
        struct pool *const *pools; /* in the order in which the kio counts their pieces; copied */
        unsigned n_pools;
        struct kio *io;
        uint64_t reserve_bytes;                         /* of available memory: left alone */
        uint64_t (*available)(void *userdata);          /* bytes available on this host now */
        void (*on_slab)(void *userdata, unsigned pool); /* there is more room in it */
        void (*on_short)(void *userdata);   /* the reserve is reached: once each time it stops */
        void (*on_refused)(void *userdata); /* the rings do not register the pool: once */
        void *userdata;
};

int populate_start(struct populate **ret, struct event_base *base,
                   const struct populate_params *params);
/* Does the pool wait for the host to have memory for the rest of it? */
bool populate_is_short(const struct populate *p);
/* Nothing new is begun; free when the io is drained. */
void populate_stop(struct populate *p);
struct populate *populate_free(struct populate *p);
