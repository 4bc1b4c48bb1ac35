/* SPDX-License-Identifier: Apache-2.0 */
/* Populates the pools with memory after the daemon is ready, slab by slab. Steps are short, so that
 * they do not delay other calls of the blocking-call thread. Each populated slab is registered with
 * the rings and put into use. Several pools get one slab each in turn, so that all have some memory
 * early. Populating stops while the host is short of memory and is retried by a timer; a partly
 * populated pool works as a smaller pool. Loop thread. */
#pragma once

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

struct pool;
struct kio;
struct populate;

struct populate_params {
        struct pool *const *pools; /* pools in the order of their pieces in the kio
                                      (kio_register_piece()); the array is copied */
        unsigned n_pools;
        struct kio *io;
        uint64_t reserve_bytes;                         /* bytes of the host's available memory that
                                                         * populating leaves unused */
        uint64_t (*available)(void *userdata);          /* bytes available on this host now */
        void (*on_slab)(void *userdata, unsigned pool); /* the pool has gained a slab */
        void (*on_short)(void *userdata);   /* the host is short of memory, so populating stops;
                                             * called once per stop */
        void (*on_refused)(void *userdata); /* the rings refuse to register the pool; called once */
        void *userdata;
};

int populate_start(struct populate **ret, struct event_base *base,
                   const struct populate_params *params);
/* Returns whether populating waits until the host has more memory. */
bool populate_is_short(const struct populate *p);
/* Starts no further step. The caller frees the object after the io has completed its requests. */
void populate_stop(struct populate *p);
struct populate *populate_free(struct populate *p);
