/* SPDX-License-Identifier: Apache-2.0 */
/* The memory pools over a planned restart: a daemon that stops writes a map of them, the service
 * manager keeps their memory, the map and the sockets of clients with leases, and the next daemon
 * takes them over.
 *
 * What is taken over is found by clients only once a worker has compared its bytes with its
 * checksum, what was used last first. What a client of the old daemon may still read stays where it
 * is until that client's end of its old socket is closed (rule R11). After a crash there is no map,
 * and nothing is taken over. Loop thread. */
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

/* --- the map of the daemon before --- */

struct keep_file {
        struct keep_map map;
        void *bytes;
};

/* Reads and checks it, and makes it void for every process that has it, so that it is used once. 0,
 * -errno, and what is wrong. */
int keep_file_read(struct keep_file **ret, int fd, char ret_error[static KEEP_ERROR_BYTES]);
struct keep_file *keep_file_free(struct keep_file *f);
/* How large that tenant's pool was; as they are, if there is none. */
void keep_file_size(const struct keep_file *f, const char *tenant, uint64_t *bytes,
                    uint64_t *slab_bytes);
/* The pool of that tenant, or -1 and why it cannot be taken over into one of so many bytes.
 * `has_socket`: is the socket of this name there? */
int keep_file_find(const struct keep_file *f, const char *tenant, uint64_t bytes,
                   uint64_t slab_bytes, bool (*has_socket)(void *userdata, const char *name),
                   void *userdata, char ret_error[static KEEP_ERROR_BYTES]);

/* --- over a daemon's life --- */

struct keep_tenant {
        const char *name;
        struct pool *pool;
        uint16_t store_tenant;
        int kept; /* position in the map of what its memory holds; -1: it is new */
};

struct keep_params {
        struct event_base *base;
        struct kio *io;
        struct store *store;
        const struct keep_tenant *tenants; /* copied, but for the names */
        unsigned n_tenants;
        uint64_t forbidden_pools; /* for struct keep_stats */
        void (*more_room)(void *userdata, unsigned tenant);
        /* The socket of an old client, which has closed its end: no longer needed. */
        void (*ended)(void *userdata, const char *name, int fd);
        void *userdata;
};

int keep_new(struct keep **ret, const struct keep_params *params);
struct keep *keep_free(struct keep *k);

/* Of a new keep, when the store is open and the policies have what they learned, before anything is
 * put: what the map says of pools that are kept. `valid`: is the store as it was when the map was
 * written? If it is not, only what clients may still read is kept from being reused. `socket`: the
 * descriptor of this name, which is the keep's from then on. 0, -ENOMEM. */
int keep_adopt(struct keep *k, const struct keep_file *f, bool valid,
               int (*socket)(void *userdata, const char *name), void *userdata);
/* Once an iteration: has more of it verified. True: call it again at once. */
bool keep_iterate(struct keep *k);
/* What is not verified by now is not. */
void keep_stop(struct keep *k);

/* --- at the end --- */

/* A client that has leases, and its socket, which is duplicated: what is said to be held after this
 * call is not reused by the next daemon before the client's end is closed. 0, -errno: then the
 * tenant's memory must not be handed on. -ENOBUFS: the tenant has its share of them. */
int keep_hold(struct keep *k, unsigned tenant, int fd);
int keep_hold_chunk(struct keep *k, uint32_t chunk);
/* Those that the service manager does not have yet. */
void keep_each_new_holder(const struct keep *k,
                          void (*each)(void *userdata, const char *name, int fd), void *userdata);
unsigned keep_holders(const struct keep *k);

struct keep_handover {
        const char (*files)[KEEP_NAME_BYTES]; /* names of the descriptors, by tenant */
        const uint8_t *number;                /* KEEP_NUMBER_BYTES; keep_number_put() has it */
        uint64_t rights;                      /* for struct keep_head */
        const struct keep_reader *readers;    /* clients that were given a pool */
        uint32_t n_readers;
        bool many_readers[KEEP_MAX_POOLS]; /* whether there were more, by tenant */
};

/* Writes the map to a memfd, when nothing changes the pools any more. 0, -errno. */
int keep_save(const struct keep *k, const struct keep_handover *handover, int *ret_fd,
              uint64_t *ret_chunks);

/* The number is in a file of the store, while the lock of the store is held, and the daemon that
 * opens the store next takes it: so a map is of no use once something else had the store. 0,
 * -errno. */
int keep_number_put(const char *folder, const uint8_t number[static KEEP_NUMBER_BYTES]);
int keep_number_take(const char *folder, uint8_t ret[static KEEP_NUMBER_BYTES]);

/* --- what is seen from outside --- */

/* Why a chunk of the map was not taken over, or did not become part of the pool. */
enum keep_refusal {
        KEEP_DAMAGED,  /* its entry, or its bytes: they do not match their checksum */
        KEEP_CHANGED,  /* the store has another chunk under its key, or not its namespace */
        KEEP_NO_SLOT,  /* its slot does not exist, or is another one's */
        KEEP_REPLACED, /* before it was verified: evicted, purged, or read or put anew */
        KEEP_REFUSALS,
};

struct keep_stats {
        uint64_t mapped; /* chunks in the map */
        uint64_t verified, verified_bytes;
        uint64_t refused[KEEP_REFUSALS];
        uint64_t pending;             /* now */
        uint64_t holders, held_slots; /* now: of clients of the daemon before */
        uint64_t forbidden_pools;     /* not taken over, because a client has lost its rights */
        uint64_t verify_ns;           /* how long it took to verify all; 0: it is under way */
};
void keep_get_stats(const struct keep *k, struct keep_stats *ret);
