/* SPDX-License-Identifier: Apache-2.0 */
/* Implements staging-closer.h with a queue per user. The first area of each queue is passed to the
 * thread, and the next one when the first is freed. The thread runs calls in order, so users take
 * turns.
 *
 * Failures: without memory for the record the area is freed on the loop. */
#include "session/staging-closer.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "fair/user.h"
#include "store/store.h"

static_assert((int)STAGING_THREAD > (int)STORE_MAX_VOLUMES,
              "the store numbers its volumes from 1 on");

struct closing {
        struct kio_request call;
        struct staging_closer *closer;
        struct closing_user *user;
        struct list_node node; /* in user.areas */
        struct staging staging;
        struct quota_holder holds;
};

struct closing_user {
        struct fair_state state;
        struct list_node areas; /* struct closing, in order; the thread has the first one */
};

struct staging_closer {
        struct kio *io;
        struct fair_room users; /* struct closing_user */
        unsigned count;
};

static int user_init(struct fair_state *state)
{
        list_init(&((struct closing_user *)state)->areas);
        return 0;
}

int staging_closer_new(struct staging_closer **ret, struct kio *io)
{
        struct staging_closer *c = calloc(1, sizeof(*c));

        if (!c)
                return -ENOMEM;
        c->io = io;
        fair_room_init(&c->users, sizeof(struct closing_user), user_init, NULL);
        *ret = c;
        return 0;
}

struct staging_closer *staging_closer_free(struct staging_closer *c)
{
        if (!c)
                return NULL;
        assert(c->count == 0);
        fair_room_fini(&c->users);
        free(c);
        return NULL;
}

static int run_close(struct kio_request *call)
{
        staging_close(&container_of(call, struct closing, call)->staging);
        return 0;
}

static void on_closed(struct kio_request *call);

static void submit(struct closing *it)
{
        it->call = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .volume = STAGING_THREAD,
                .call = run_close,
                .complete = on_closed,
        };
        kio_submit(it->closer->io, &it->call, 0);
}

static void on_closed(struct kio_request *call)
{
        struct closing *it = container_of(call, struct closing, call);
        struct list_node *areas = &it->user->areas;

        list_unlink(&it->node);
        if (!list_empty(areas))
                submit(container_of(areas->next, struct closing, node));
        it->closer->count--;
        fair_user_unref(it->user->state.user);
        quota_holder_close(&it->holds);
        free(it);
}

void staging_closer_add(struct staging_closer *c, struct staging *staging,
                        struct quota_holder *holds)
{
        struct closing *it = calloc(1, sizeof(*it));
        struct fair_state *user =
                it ? fair_state_get(&c->users, quota_user_uid(holds->user)) : NULL;

        if (!user) {
                free(it);
                quota_uncharge(holds, QUOTA_STAGING_BYTES, staging->bytes);
                quota_uncharge(holds, QUOTA_STAGINGS, 1);
                staging_close(staging);
                return;
        }
        it->closer = c;
        it->user = container_of(user, struct closing_user, state);
        it->staging = *staging;
        *staging = (struct staging){ .fd = -1 };
        quota_hand_over(&it->holds, holds, QUOTA_STAGING_BYTES, it->staging.bytes);
        quota_hand_over(&it->holds, holds, QUOTA_STAGINGS, 1);
        c->count++;
        list_append(&it->user->areas, &it->node);
        if (it->user->areas.next == &it->node)
                submit(it);
}

unsigned staging_closer_count(const struct staging_closer *c)
{
        return c->count;
}
