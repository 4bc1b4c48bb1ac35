/* SPDX-License-Identifier: Apache-2.0 */
/* Implements fd-closer.h. Owns a descriptor and its record from fd_closer_add() until it is closed.
 * A user with no pending descriptor may always add one, regardless of other users' descriptors.
 *
 * Failures: without memory for the record, the descriptor is closed on the loop. A close() that
 * hangs delays the later ones of its thread, which stay pending. */
#include "session/fd-closer.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "cache/region.h"
#include "store/store.h"

enum {
        OF_A_USER = 64,   /* most pending descriptors of a user that are no memory files (memfd,
                           * tmpfs, hugetlbfs) */
        OF_ALL = 1024,    /* most pending descriptors of all users that are not memory files */
        OF_MEMORY = 1024, /* most pending descriptors of memory files of all users */
        USER_SHARE = 3,   /* a user may have this many times the unused rest of OF_MEMORY */
        /* Numbers of the blocking-call threads. Such a thread has a number like a volume of the
         * store, but one that no volume has. */
        VOLUME_FILES = KIO_VOLUMES_MAX - 1,
        VOLUME_MEMORY = KIO_VOLUMES_MAX - 2,
};
static_assert((int)VOLUME_MEMORY > (int)STORE_MAX_VOLUMES,
              "the store numbers its volumes from 1 on");

struct fd_closing {
        struct kio_request call;
        struct list_node node; /* in fd_closer.all */
        struct fd_closer *fd_closer;
        int fd;
        uid_t uid;
        bool memory;
};

struct fd_closer {
        struct kio *io;
        void (*progress)(void *userdata);
        void *userdata;
        struct list_node all;
        unsigned n_files, n_memory;
};

int fd_closer_new(struct fd_closer **ret, struct kio *io, void (*progress)(void *userdata),
                  void *userdata)
{
        struct fd_closer *d = calloc(1, sizeof(*d));

        if (!d)
                return -ENOMEM;
        *d = (struct fd_closer){ .io = io, .progress = progress, .userdata = userdata };
        list_init(&d->all);
        *ret = d;
        return 0;
}

struct fd_closer *fd_closer_free(struct fd_closer *d)
{
        while (d && !list_empty(&d->all)) {
                struct fd_closing *left = container_of(list_pop(&d->all), struct fd_closing, node);

                close(left->fd);
                free(left);
        }
        free(d);
        return NULL;
}

static int run_close(struct kio_request *call)
{
        close(container_of(call, struct fd_closing, call)->fd);
        return 0;
}

static void on_closed(struct kio_request *call)
{
        struct fd_closing *it = container_of(call, struct fd_closing, call);
        struct fd_closer *d = it->fd_closer;

        list_unlink(&it->node);
        d->n_files -= !it->memory;
        d->n_memory -= it->memory;
        free(it);
        d->progress(d->userdata);
}

static void submit(struct fd_closing *it)
{
        it->call = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .volume = it->memory ? VOLUME_MEMORY : VOLUME_FILES,
                .call = run_close,
                .complete = on_closed,
        };
        kio_submit(it->fd_closer->io, &it->call, 0);
}

void fd_closer_add(struct fd_closer *d, int fd, uid_t uid)
{
        struct fd_closing *it = calloc(1, sizeof(*it));

        if (!it) { /* without memory for a record, close it here */
                close(fd);
                return;
        }
        *it = (struct fd_closing){
                .fd_closer = d, .fd = fd, .uid = uid, .memory = region_is_memory(fd)
        };
        list_init(&it->node);
        list_append(&d->all, &it->node);
        d->n_files += !it->memory;
        d->n_memory += it->memory;
        submit(it);
}

bool fd_closer_may_add(const struct fd_closer *d, uid_t uid)
{
        unsigned files = 0, memory = 0;

        if (d->n_files < OF_A_USER && d->n_memory < OF_A_USER)
                return true;
        list_for_each (&d->all, n) {
                const struct fd_closing *it = container_of(n, struct fd_closing, node);

                files += it->uid == uid && !it->memory;
                memory += it->uid == uid && it->memory;
        }
        /* A user without pending descriptors may always add one, regardless of other users'
         * descriptors. */
        return (files == 0 || (files < OF_A_USER && d->n_files < OF_ALL)) &&
               (memory == 0 ||
                (d->n_memory < OF_MEMORY && memory < USER_SHARE * (OF_MEMORY - d->n_memory)));
}

unsigned fd_closer_count(const struct fd_closer *d)
{
        return d->n_files + d->n_memory;
}
