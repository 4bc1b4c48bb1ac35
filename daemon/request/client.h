/* SPDX-License-Identifier: Apache-2.0 */
/* What one connection holds, whom it is charged to: leases, namespaces, its
 * staging area, its registered buffers, messages in flight.
 *
 * session.c owns a client and sets its callbacks; the other files of this room work on it, and
 * answer it by reply.h. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"
#include "benchmark/benchmark.h"
#include "lookup/index.h"
#include "cache/staging.h"
#include "cache/lease.h"
#include "lookup/pool-index.h"
#include "lookup/tally-page.h"
#include "tenant/tenant.h"
#include "wire.h"

enum {
        CLIENT_MAX_NAMESPACES = 256,
        CLIENT_MAX_KEYS = WIRE_MAX_KEYS_INFLIGHT,
};

/* The regions that it has registered: buffers.c's. */
struct buffer;
struct buffers {
        struct buffer *all[WIRE_MAX_REGIONS]; /* a region's number is one more than the place */
        uint64_t usable;                      /* by bit: may be named */
};

/* What is answered where takes_fds() says no. */
#define CLIENT_UNREAD "too many replies with descriptors are unread"

struct chain;

/* The keys of EVICTs, or of HINTs that pin or unpin, that audit.c has still to log. */
struct audit {
        struct list_node node; /* in service.audits */
        const char *operation; /* NULL: none */
        uint32_t namespace_id;
        uint64_t chunks, since_ns;
};

struct client {
        struct tenant *tenant;
        uint64_t id;
        struct quota_holder holds; /* opened, and closed after client_fini(), by the session */
        uint64_t readable_ns;      /* when the message that is dispatched could be read; 0: now */
        uid_t uid;
        pid_t pid;
        const char *name; /* for the log, "" until the client has given one */
        bool admin;
        bool ended; /* nothing is sent any more, nothing is leased any more */

        struct lease_holder leases;
        struct store_borrower loans;
        struct staging staging;
        struct buffers buffers;
        uint32_t namespaces[CLIENT_MAX_NAMESPACES]; /* the store's, 0: removed; the client's number
                                                       is one more than the place */
        unsigned n_namespaces;                      /* places that are, or were, in use */
        unsigned open_namespaces;                   /* that are */
        unsigned opening;                           /* NAMESPACE messages that are not answered */
        struct audit audit;                         /* evicted or pinned keys not logged yet */
        struct tally_page page;                     /* what it has looked up by itself */
        struct pool_client hits;                    /* what it gets by itself */
        uint32_t hits_left;                         /* words of its ring to read, as it has ended */
        struct bench_page *transfers;               /* what it has moved; NULL: there is no page */
        uint64_t since_ns;                          /* when it connected */
        bool looks_up;                              /* it may: the lookup index was handed to it */

        unsigned inflight;          /* messages not answered yet */
        uint32_t keys_inflight;     /* of these */
        struct list_node unstarted; /* batches whose keys are not all started, in order */
        struct list_node batches;   /* that are not answered, for CANCEL and client_abandon() */
        struct list_node lookups;   /* of struct lookup_wait: LOOKUPs that are not answered */
        struct chain *chain;        /* the one that the next message may continue */
        struct key chain_last;
        uint64_t chain_ns;            /* when its latest message came */
        struct list_node chains_over; /* struct chain, still to be touched */
        bool abandoned;               /* what it has is given back: client_settle() */

        void (*send)(struct client *client, const void *msg, size_t bytes, const int *fds,
                     unsigned n_fds);
        void (*idle)(struct client *client); /* inflight fell; the client itself stays until the
                                                turn's end */
        /* May it be sent so many descriptors, in the reply that comes next? Not if it, or its user,
         * leaves many replies with descriptors unread: those count against the daemon's limit until
         * they are read. */
        bool (*takes_fds)(struct client *client, unsigned n);
        void (*chain_opened)(struct client *client);
};

/* Whose connection it is, for what is shared out by user. */
static inline const struct quota_user *client_user(const struct client *client)
{
        return client->holds.user;
}

/* Takes what is opened for the connection. Without memory, -ENOMEM, and client_fini() is due. */
int client_init(struct client *client, struct tenant *tenant, const struct quota_holder *holds);

/* OK, or what a charge that was refused is answered with. */
enum wire_status client_charge(struct client *client, enum quota_thing what, uint64_t amount);
/* A request that is kept until it is answered, and `bytes` of memory with it: as client_charge().
 */
enum wire_status client_charge_request(struct client *client, uint64_t bytes);
/* Before its answer, which ends the charge for the request itself. */
void client_uncharge_request(struct client *client, uint64_t bytes);
/* Why it was refused. */
const char *client_refusal(enum wire_status status);
/* A lease on the chunk: OK and filled in, or what stands against it. */
enum wire_status client_lease(struct client *client, uint32_t chunk, struct wire_lease *ret);
/* Would its limits admit one? Nothing counts as refused by asking. */
bool client_has_room_for_lease(const struct client *client, uint32_t chunk);
/* Ends leases; returns how many of them there were not. */
uint32_t client_release(struct client *client, const struct wire_lease *leases, unsigned n);
/* Ends so many of its leases at most, the latest first; returns how many there were. */
uint32_t client_release_some(struct client *client, uint32_t most);

/* May it read chunks from the data files by itself, as the configuration is now? */
bool client_may_borrow(const struct client *client);
/* May it register files on a disk that puts are taken from, likewise? */
bool client_may_register_files(const struct client *client);

/* Counts what it has looked up by itself since the last time. */
void client_count_lookups(struct client *client, uint64_t now_ns);

/* The store's id of the namespace that the client knows by `number`; 0: it has not opened that.
 * What others have opened does not show in a client's numbers. */
uint32_t client_namespace(const struct client *client, uint32_t number);
/* The other way: the client's number for it; 0: it has not opened that. */
uint32_t client_namespace_number(const struct client *client, uint32_t id);
/* It was removed: its number is none from now on. */
void client_forget_namespace(struct client *client, uint32_t id);
