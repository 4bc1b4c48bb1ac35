/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon behind its socket: sessions of two tenants over a real cache and store, with the
 * shared tier over the fake back end, the lookup and pool indexes, benchmark sessions and the
 * status. The test is the loop and all clients, and says which user each client is: the program is
 * linked with --wrap=peer_from_socket. After each test nothing is held. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "config/config.h"
#include "fake-backend.h"
#include "io/liveness.h"
#include "report/namespace-history.h"
#include "report/sources.h"
#include "session/session.h"
#include "tenant/tenant.h"
#include "tiers.h"

enum { KIB = 1024, MIB = 1024 * KIB };
enum { LENGTH = 64 * KIB, STAGING = 1 * MIB };

/* Users: root is an admin, the last one is of the tenant "guests", the others of "default". */
enum { ROOT = 0, ALICE = 40001, BOB = 40002, GUEST = 40003 };

struct rig {
        struct tiers t;
        struct event_base *base;
        struct event *done, *remote_done, *wait, *guard;
        struct liveness liveness;
        struct service service;
        struct tenant tenants[2];
        struct sessions *sessions;
        struct keep *keep;
        struct config config;
        struct status_sources sources;
        struct namespace_history namespaces;
        bool keep_ready;
        uint8_t instance[WIRE_INSTANCE_BYTES];
        unsigned fds;      /* sockets and memfds before the test */
        unsigned reloads;  /* calls of service.reload */
        int reload_result; /* of these */
        char state[300];   /* the file of the shared tier */
};
extern struct rig rig;

int rig_setup(void **state);
int rig_setup_remote(void **state); /* with the shared tier */
int rig_teardown(void **state);

/* Runs one iteration of the loop. Waits for an event unless there is more to do. */
void rig_turn(bool wait);
/* Runs enough iterations to read everything that a client may have sent. */
void rig_turns(void);
/* Limits of each user, and of all together. */
void rig_limit(enum quota_thing what, uint64_t user, uint64_t all);
uint64_t rig_used(enum quota_thing what);

struct peer_end {
        int fd;
        char *staging;
        uint32_t ns; /* the session's number of the namespace that was opened last */
        uint64_t tag;
};

void connect_as(struct peer_end *c, uid_t uid); /* and greets */
void hang_up(struct peer_end *c);
/* Sends a message of `bytes`, after filling in its length and tag. */
void send_message(struct peer_end *c, void *msg, size_t bytes);
/* Waits for the next reply and checks its op. `ret_fds` may be NULL: descriptors are closed. */
const struct wire_reply *receive_reply(struct peer_end *c, enum wire_op op, int *ret_fds,
                                       unsigned *ret_n_fds);
/* Sends, and receives the reply. */
const struct wire_reply *call(struct peer_end *c, void *msg, size_t bytes);
/* Sends a message, and receives a reply that is OK and has one descriptor. */
const struct wire_reply *call_for_fd(struct peer_end *c, void *msg, size_t bytes, int *ret_fd);
void assert_ended(struct peer_end *c);
/* Checks that the reply has this status and that its text contains `words`. */
void assert_says(const struct wire_reply *reply, enum wire_status status, const char *words);
/* Returns the text of a reply with a memfd; the caller frees it. */
char *call_for_text(struct peer_end *c, void *msg, size_t bytes);

struct key key_of(uint32_t n);
const struct wire_reply *open_namespace(struct peer_end *c, const char *name,
                                        const char *fingerprint, unsigned flags,
                                        uint32_t lifetime_s);
void enter(struct peer_end *c, const char *name); /* opens it, and has a staging area */
/* Returns a message of `count` zero entries, in a static buffer. */
struct wire_batch *batch(struct peer_end *c, enum wire_op op, unsigned flags, uint16_t count);
const struct wire_reply *call_batch(struct peer_end *c);
/* Returns a message about `count` keys from number `n` on. */
struct wire_batch *batch_of_keys(struct peer_end *c, enum wire_op op, unsigned flags, uint32_t n,
                                 uint16_t count);
enum wire_status put(struct peer_end *c, uint32_t n, enum wire_ack ack);
/* Puts the chunk of key number `n` there, as another host would. The namespace is open. */
void put_on_shared_tier(const char *name, uint32_t n, uint32_t length);
/* Gets a chunk under a lease, which ends with the session. */
struct wire_get_result get(struct peer_end *c, uint32_t n);
