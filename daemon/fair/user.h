/* SPDX-License-Identifier: Apache-2.0 */
/* Users, found by uid. A user object is reference counted: it exists while a connection, a lease, a
 * staging area, a write, a waiting request or a namespace refers to it, so their limits bound the
 * number of user objects.
 *
 * A room attaches a state of its own to a user on first use, as a struct that begins with a struct
 * fair_state. The state lives as long as the user object. Loop thread. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/list.h"

struct fair_room;
struct fair_state;

struct fair_user {
        struct fair_user *next; /* next user in the same bucket */
        struct fair_state *states;
        uint32_t uid;
        unsigned refs;
};

/* Returns the user with one more reference, creating it if necessary. Returns NULL if memory is
 * short. */
struct fair_user *fair_user_get(uint32_t uid);
/* Returns the user without adding a reference, or NULL if nothing refers to it. */
struct fair_user *fair_user_find(uint32_t uid);
static inline void fair_user_ref(struct fair_user *u)
{
        u->refs++;
}
/* Ends a reference. The last one frees the user and its states. */
void fair_user_unref(struct fair_user *u);
/* Returns the number of users. */
unsigned fair_users(void);

/* The state of one user in one room; the first member of the room's struct. */
struct fair_state {
        struct fair_user *user;
        struct fair_room *room;
        struct fair_state *next; /* the user's state in another room */
        struct list_node node;   /* in room.states */
};

/* A part of the daemon that keeps a state of its own for each user. */
struct fair_room {
        struct list_node states;
        size_t bytes; /* size of a state, which is allocated as zeros */
        /* Initializes a state. Returns 0 or -ENOMEM. NULL if a state of zeros is valid. */
        int (*init)(struct fair_state *s);
        void (*fini)(struct fair_state *s); /* NULL if nothing needs to be ended */
};

void fair_room_init(struct fair_room *room, size_t bytes, int (*init)(struct fair_state *s),
                    void (*fini)(struct fair_state *s));
/* Frees the states of the room. Other rooms may still refer to their users. */
void fair_room_fini(struct fair_room *room);

/* Returns the user's state in the room with one more reference to the user, creating both if
 * necessary. Returns NULL if memory is short. */
struct fair_state *fair_state_get(struct fair_room *room, uint32_t uid);
/* Returns the user's state in the room without adding a reference, or NULL if there is none. */
struct fair_state *fair_state_find(const struct fair_room *room, uint32_t uid);
