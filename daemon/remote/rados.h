/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by rados.c and rados-sweep.c. Private to these files. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "base/list.h"
#include "remote/backend.h"
#include "remote/librados.h"

enum rados_state { RADOS_CONNECTING, RADOS_CONNECTED, RADOS_FAILED };

/* The time at which an object was last marked as used, as far as this host knows. The table of
 * these is indexed by a hash of the object's name. */
struct rados_used {
        uint64_t hash;
        int64_t at; /* time of the mark, in seconds since 1970 */
};

struct rados {
        struct librados api;
        char *prefix, *pool, *conf, *user;
        unsigned depth;
        uint64_t timeout_ns;

        pthread_mutex_t lock;
        pthread_cond_t work;   /* signals the worker */
        pthread_cond_t change; /* signals the connector and close() */
        bool stopping, closed;
        bool connector_ended, worker_ended;
        unsigned refs; /* references of the owner and of the worker */

        enum rados_state state; /* `cluster` and `io` are valid once it is RADOS_CONNECTED */
        int connect_result;     /* the reason for RADOS_FAILED */
        char error[120];
        rados_t cluster;
        rados_ioctx_t io;

        struct list_node queue; /* struct backend_op that are submitted, but not passed to librados
                                 * yet */
        struct list_node marks; /* struct call of mark_used() that are not passed to librados yet */
        struct list_node calls; /* struct call that librados has */
        unsigned n_calls, n_marks; /* calls that librados has; calls of mark_used() that are queued
                                    * or that librados has */
        unsigned n_blocking;       /* calls of rados-sweep.c in progress */
        struct rados_used *used;
};

/* Returns the object's name within the RADOS namespace of the prefix, or NULL if `name` is not
 * below the prefix. */
const char *rados_oid(const struct rados *r, const char *name);
/* Converts a result of librados to an errno of backend.h. */
int rados_errno(int result);

/* Implement the functions of backend_ops. */
int rados_lease(struct backend *b, const char *name, const char *owner, uint64_t for_ns);
int rados_release(struct backend *b, const char *name, const char *owner);
int rados_list(struct backend *b, bool tidy,
               bool (*each)(void *userdata, const struct backend_entry *e), void *userdata,
               const bool *stop);
int rados_remove_unused(struct backend *b, const char *name, uint64_t used_ms);
