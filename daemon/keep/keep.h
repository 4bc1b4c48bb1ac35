/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the memory pools across a planned restart: a daemon that stops writes a map of them. The
 * service manager keeps their memory, the map and the sockets of clients with leases, and the next
 * daemon takes them over.
 *
 * Clients find a chunk that was taken over only after a worker has compared its bytes with its
 * checksum, the chunks used last first. A chunk that a client of the old daemon may still read
 * keeps its slot until that client's end of its old socket is closed (R11 in SECURITY.md). After a
 * crash there is no map, and nothing is taken over. Loop thread. */
#pragma once

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

#include "keep/format.h"

enum { KEEP_ERROR_BYTES = 256 };

struct kio;
struct keep;
struct pool;
struct store;

/* --- the map of the earlier daemon --- */

struct keep_file {
        struct keep_map map;
        void *bytes;
};

/* Reads and checks the map, and invalidates it for every process that has it, so that it is used
 * only once. Returns 0, or -errno and a text that describes the error. */
int keep_file_read(struct keep_file **ret, int fd, char ret_error[static KEEP_ERROR_BYTES]);
struct keep_file *keep_file_free(struct keep_file *f);
/* Fills in the sizes of a tenant's pool in the map, or leaves them unchanged if the map has no pool
 * of the tenant, or one whose sizes this version would not choose. */
void keep_file_size(const struct keep_file *f, const char *tenant, uint64_t *bytes,
                    uint64_t *slab_bytes);
/* Returns the position of a tenant's pool, or -1 and the reason why it cannot be taken over into a
 * pool of `bytes` with slabs of `slab_bytes`. `has_socket` returns whether the socket of this name
 * was kept. */
int keep_file_find(const struct keep_file *f, const char *tenant, uint64_t bytes,
                   uint64_t slab_bytes, bool (*has_socket)(void *userdata, const char *name),
                   void *userdata, char ret_error[static KEEP_ERROR_BYTES]);

/* --- taking over, and verifying --- */

struct keep_tenant {
        const char *name;
        struct pool *pool;
        uint16_t store_tenant;
        int kept; /* position in the map of the pool whose memory this tenant's pool uses; -1 if the
                   * memory is new */
};

struct keep_params {
        struct event_base *base;
        struct kio *io;
        struct store *store;
        const struct keep_tenant *tenants; /* copied, except the names */
        unsigned n_tenants;
        uint64_t forbidden_pools; /* copied to keep_stats.forbidden_pools */
        void (*more_room)(void *userdata, unsigned tenant);
        /* Called when a client of the earlier daemon has closed its end. The callee owns the socket
         * `fd` from then on, and closes it. */
        void (*ended)(void *userdata, const char *name, int fd);
        void *userdata;
};

int keep_new(struct keep **ret, const struct keep_params *params);
struct keep *keep_free(struct keep *k);

/* Takes over the pools of a map. Called for a new keep when the store is open and the policies have
 * their learned state, before any put. `valid` says whether the store is as it was when the map was
 * written; if not, only slots that clients may still read are reserved. `socket` returns the
 * descriptor of a name, which the keep then owns. Returns 0 or -errno. */
int keep_adopt(struct keep *k, const struct keep_file *f, bool valid,
               int (*socket)(void *userdata, const char *name), void *userdata);
/* Starts verifying further chunks, and ends some leases of clients that have closed. Called once
 * per iteration; returns true if it must be called again at once. */
bool keep_iterate(struct keep *k);
/* Stops verifying; chunks that are unverified stay so. */
void keep_stop(struct keep *k);

/* --- handing on at the stop --- */

/* Adds a client with leases, and duplicates its socket. The next daemon does not reuse the slots of
 * the chunks that later calls of keep_hold_chunk() add, before the client's end is closed. Both
 * functions return 0 or -errno. After an error the tenant's memory must not be handed on; -ENOBUFS
 * means that the tenant's share of holders is used up. */
int keep_hold(struct keep *k, unsigned tenant, int fd);
int keep_hold_chunk(struct keep *k, uint32_t chunk);
/* Calls each() for the holders that the service manager does not have yet. */
void keep_each_new_holder(const struct keep *k,
                          void (*each)(void *userdata, const char *name, int fd), void *userdata);
unsigned keep_holders(const struct keep *k);

struct keep_handover {
        const char (*files)[KEEP_NAME_BYTES]; /* prefixes of the names of the pools' descriptors, by
                                               * tenant */
        const uint8_t *number;                /* random number of the map, of KEEP_NUMBER_BYTES;
                                               * keep_number_put() gets the same */
        uint64_t rights;                      /* copied to struct keep_head */
        const struct keep_reader *readers;    /* clients that received a pool */
        uint32_t n_readers;
        bool many_readers[KEEP_MAX_POOLS]; /* whether a tenant had more readers than recorded */
};

/* Writes the map to a memfd, after the last change to the pools, and counts the chunks in it.
 * Returns 0 or -errno. */
int keep_save(const struct keep *k, const struct keep_handover *handover, int *ret_fd,
              uint64_t *ret_chunks);

/* keep_number_put() writes the map's number to a file of the store; keep_number_take() reads the
 * file and removes it. The store is locked meanwhile. Each daemon takes the number when it opens
 * the store, so a map is invalid once another daemon has had the store. Both return 0 or -errno. */
int keep_number_put(const char *folder, const uint8_t number[static KEEP_NUMBER_BYTES]);
int keep_number_take(const char *folder, uint8_t ret[static KEEP_NUMBER_BYTES]);

/* --- statistics --- */

/* The reason why a chunk of the map was not taken over, or was not verified. */
enum keep_refusal {
        KEEP_DAMAGED,  /* the chunk's entry or its bytes do not match their checksum, or the bytes
                          could not be read */
        KEEP_CHANGED,  /* the store has another chunk under its key, or lacks its namespace */
        KEEP_NO_SLOT,  /* the slot does not exist, is too small or is taken, or the pool has the
                        * chunk's key already */
        KEEP_REPLACED, /* the chunk was evicted, purged, read again or put again before it was
                        * verified */
        KEEP_REFUSALS,
};

struct keep_stats {
        uint64_t mapped; /* chunks that the map has of the pools taken over */
        uint64_t verified, verified_bytes;
        uint64_t refused[KEEP_REFUSALS];
        uint64_t pending;             /* chunks that await verification now */
        uint64_t holders, held_slots; /* clients that have a holder now, and slots that these
                                       * clients may read: clients of earlier daemons, and during
                                       * the stop also of this daemon */
        uint64_t forbidden_pools; /* pools not taken over, because a client has lost its rights */
        uint64_t verify_ns; /* ns from the takeover to the end of verification; 0 until then, and if
                               no chunk had to be verified */
};
void keep_get_stats(const struct keep *k, struct keep_stats *ret);
