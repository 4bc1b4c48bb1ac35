/* SPDX-License-Identifier: Apache-2.0 */
#include "session/fd-closer.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/region.h"
#include "store/store.h"

enum {
        OF_A_USER = 64, /* files that are not memory */
        OF_ALL = 1024,
        OF_MEMORY = 1024,
        USER_SHARE = 3, /* times what is left of it */
        /* io's: no device of the store has them */
        PATH_FILES = KIO_PATHS_MAX - 1,
        PATH_MEMORY = KIO_PATHS_MAX - 2,
};
static_assert((int)PATH_MEMORY > (int)STORE_MAX_PATHS, "the store numbers its paths from 1 on");

struct disposal {
        struct kio_request call;
        struct list_node node; /* in `all` */
        struct disposals *disposals;
        int fd;
        uid_t uid;
        bool memory, refused; /* refused: since the one before it takes too long */
};

struct disposals {
        struct kio *io;
        void (*progress)(void *userdata);
        void *userdata;
        struct list_node all;
        unsigned n_files, n_memory, n_under_way;
};

int disposals_new(struct disposals **ret, struct kio *io, void (*progress)(void *userdata),
                  void *userdata)
{
        struct disposals *d = calloc(1, sizeof(*d));

        if (!d)
                return -ENOMEM;
        *d = (struct disposals){ .io = io, .progress = progress, .userdata = userdata };
        list_init(&d->all);
        *ret = d;
        return 0;
}

struct disposals *disposals_free(struct disposals *d)
{
        while (d && !list_empty(&d->all)) {
                struct disposal *left = container_of(list_pop(&d->all), struct disposal, node);

                close(left->fd);
                free(left);
        }
        free(d);
        return NULL;
}

static int run_close(struct kio_request *call)
{
        close(container_of(call, struct disposal, call)->fd);
        return 0;
}

static void on_closed(struct kio_request *call);

static void submit(struct disposal *it)
{
        it->call = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .path = it->memory ? PATH_MEMORY : PATH_FILES,
                .call = run_close,
                .complete = on_closed,
        };
        it->refused = false;
        it->disposals->n_under_way++;
        kio_submit(it->disposals->io, &it->call, 0);
}

static void on_closed(struct kio_request *call)
{
        struct disposal *it = container_of(call, struct disposal, call);
        struct disposals *d = it->disposals;

        d->n_under_way--;
        if (call->result < 0) {
                it->refused = true;
                return;
        }
        list_unlink(&it->node);
        d->n_files -= !it->memory;
        d->n_memory -= it->memory;
        free(it);
        list_for_each (&d->all, n) {
                struct disposal *next = container_of(n, struct disposal, node);

                if (next->refused)
                        submit(next);
        }
        d->progress(d->userdata);
}

void disposals_add(struct disposals *d, int fd, uid_t uid)
{
        struct disposal *it = calloc(1, sizeof(*it));

        if (!it) { /* then it must be done here */
                close(fd);
                return;
        }
        *it = (struct disposal){
                .disposals = d, .fd = fd, .uid = uid, .memory = region_is_memory(fd)
        };
        list_init(&it->node);
        list_append(&d->all, &it->node);
        d->n_files += !it->memory;
        d->n_memory += it->memory;
        submit(it);
}

bool disposals_may_add(const struct disposals *d, uid_t uid)
{
        unsigned files = 0, memory = 0;

        if (d->n_files < OF_A_USER && d->n_memory < OF_A_USER)
                return true;
        list_for_each (&d->all, n) {
                const struct disposal *it = container_of(n, struct disposal, node);

                files += it->uid == uid && !it->memory;
                memory += it->uid == uid && it->memory;
        }
        /* Who has none has some left, whatever others have there. */
        return (files == 0 || (files < OF_A_USER && d->n_files < OF_ALL)) &&
               (memory == 0 ||
                (d->n_memory < OF_MEMORY && memory < USER_SHARE * (OF_MEMORY - d->n_memory)));
}

unsigned disposals_count(const struct disposals *d)
{
        return d->n_files + d->n_memory;
}

unsigned disposals_under_way(const struct disposals *d)
{
        return d->n_under_way;
}
