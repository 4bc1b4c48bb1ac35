/* SPDX-License-Identifier: Apache-2.0 */
/* Implements user.h with one hash table for the process. The states of a user are in a short list,
 * because only few rooms have one. Uids of containers differ by multiples of powers of two, so the
 * hash multiplies.
 *
 * Failures: without memory there is no new user or state, and the caller refuses the request. */
#include "fair/user.h"

#include <assert.h>
#include <stdlib.h>

enum { BUCKETS_LOG2 = 10 };

static struct {
        struct fair_user *buckets[1 << BUCKETS_LOG2];
        unsigned n;
} users;

static struct fair_user **bucket_of(uint32_t uid)
{
        return &users.buckets[uid * UINT32_C(0x9e3779b1) >> (32 - BUCKETS_LOG2)];
}

struct fair_user *fair_user_find(uint32_t uid)
{
        struct fair_user *u = *bucket_of(uid);

        while (u && u->uid != uid)
                u = u->next;
        return u;
}

struct fair_user *fair_user_get(uint32_t uid)
{
        struct fair_user *u = fair_user_find(uid), **bucket = bucket_of(uid);

        if (!u) {
                u = malloc(sizeof(*u));
                if (!u)
                        return NULL;
                *u = (struct fair_user){ .next = *bucket, .uid = uid };
                *bucket = u;
                users.n++;
        }
        u->refs++;
        return u;
}

/* Unlinks and frees the state to which *at points. */
static void state_free(struct fair_state **at)
{
        struct fair_state *s = *at;

        *at = s->next;
        list_unlink(&s->node);
        if (s->room->fini)
                s->room->fini(s);
        free(s);
}

void fair_user_unref(struct fair_user *u)
{
        struct fair_user **at = bucket_of(u->uid);

        assert(u->refs > 0);
        if (--u->refs > 0)
                return;
        while (u->states)
                state_free(&u->states);
        while (*at != u)
                at = &(*at)->next;
        *at = u->next;
        free(u);
        users.n--;
}

unsigned fair_users(void)
{
        return users.n;
}

/* Returns the pointer in the user's list that points to the state of the room, or the NULL at the
 * end of the list. */
static struct fair_state **state_at(struct fair_user *u, const struct fair_room *room)
{
        struct fair_state **at = &u->states;

        while (*at && (*at)->room != room)
                at = &(*at)->next;
        return at;
}

void fair_room_init(struct fair_room *room, size_t bytes, int (*init)(struct fair_state *s),
                    void (*fini)(struct fair_state *s))
{
        *room = (struct fair_room){ .bytes = bytes, .init = init, .fini = fini };
        list_init(&room->states);
}

void fair_room_fini(struct fair_room *room)
{
        list_for_each_safe (&room->states, n)
                state_free(state_at(container_of(n, struct fair_state, node)->user, room));
}

struct fair_state *fair_state_find(const struct fair_room *room, uint32_t uid)
{
        struct fair_user *u = fair_user_find(uid);

        return u ? *state_at(u, room) : NULL;
}

struct fair_state *fair_state_get(struct fair_room *room, uint32_t uid)
{
        struct fair_state *s = fair_state_find(room, uid);
        struct fair_user *u;

        if (s) {
                s->user->refs++;
                return s;
        }
        u = fair_user_get(uid);
        if (!u)
                return NULL;
        s = calloc(1, room->bytes);
        if (s) {
                *s = (struct fair_state){ .user = u, .room = room, .next = u->states };
                if (!room->init || room->init(s) == 0) {
                        list_append(&room->states, &s->node);
                        return u->states = s;
                }
        }
        free(s);
        fair_user_unref(u);
        return NULL;
}
