/* SPDX-License-Identifier: Apache-2.0 */
/* Implements staging-closer.h with a queue per user. The thread has the first area of each queue,
 * and gets the next one when that is freed; since the thread runs calls in order, users take turns.
 *
 * Failures: without memory for the record the area is freed on the loop. */
#include "session/staging-closer.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/list.h"
#include "checked.h"
#include "cleanup.h"
#include "store/store.h"

enum { USER_BUCKETS = 64 };
static_assert((int)STAGING_THREAD > (int)STORE_MAX_VOLUMES,
              "the store numbers its volumes from 1 on");

struct closing {
        struct kio_request call;
        struct staging_closer *closer;
        struct list_node first; /* in its bucket, if it is its user's first, which the thread has */
        struct list_node others; /* further areas of the user in order; the list belongs to the
                                  * first */
        struct staging staging;
        struct quota_holder holds;
};

struct staging_closer {
        struct kio *io;
        struct list_node users[USER_BUCKETS];
        unsigned count;
};

int staging_closer_new(struct staging_closer **ret, struct kio *io)
{
        struct staging_closer *c = calloc(1, sizeof(*c));

        if (!c)
                return -ENOMEM;
        c->io = io;
        for (unsigned i = 0; i < USER_BUCKETS; i++)
                list_init(&c->users[i]);
        *ret = c;
        return 0;
}

struct staging_closer *staging_closer_free(struct staging_closer *c)
{
        assert(!c || c->count == 0);
        free(c);
        return NULL;
}

static struct list_node *bucket_of(struct staging_closer *c, const struct quota_user *user)
{
        return &c->users[quota_user_uid(user) % USER_BUCKETS];
}

static int run_close(struct kio_request *call)
{
        staging_close(&container_of(call, struct closing, call)->staging);
        return 0;
}

static void on_closed(struct kio_request *call);

static void submit(struct closing *it)
{
        struct staging_closer *c = it->closer;

        list_append(bucket_of(c, it->holds.user), &it->first);
        it->call = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .volume = STAGING_THREAD,
                .call = run_close,
                .complete = on_closed,
        };
        kio_submit(c->io, &it->call, 0);
}

static void on_closed(struct kio_request *call)
{
        struct closing *it = container_of(call, struct closing, call), *next;

        list_unlink(&it->first);
        if (!list_empty(&it->others)) {
                next = container_of(it->others.next, struct closing, others);
                list_unlink(&it->others); /* `next` becomes the head of the list */
                submit(next);
        }
        it->closer->count--;
        quota_holder_close(&it->holds);
        free(it);
}

void staging_closer_add(struct staging_closer *c, struct staging *staging,
                        struct quota_holder *holds)
{
        struct closing *it = calloc(1, sizeof(*it));

        if (!it) {
                quota_uncharge(holds, QUOTA_STAGING_BYTES, staging->bytes);
                quota_uncharge(holds, QUOTA_STAGINGS, 1);
                staging_close(staging);
                return;
        }
        it->closer = c;
        it->staging = *staging;
        *staging = (struct staging){ .fd = -1 };
        list_init(&it->first);
        list_init(&it->others);
        quota_hand_over(&it->holds, holds, QUOTA_STAGING_BYTES, it->staging.bytes);
        quota_hand_over(&it->holds, holds, QUOTA_STAGINGS, 1);
        c->count++;
        list_for_each (bucket_of(c, it->holds.user), n) {
                struct closing *first = container_of(n, struct closing, first);

                if (first->holds.user == it->holds.user) {
                        list_append(&first->others, &it->others);
                        return;
                }
        }
        submit(it);
}

unsigned staging_closer_count(const struct staging_closer *c)
{
        return c->count;
}
