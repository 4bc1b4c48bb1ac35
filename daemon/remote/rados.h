/* SPDX-License-Identifier: Apache-2.0 */
/* What rados.c and rados-sweep.c share. Private to these. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "base/list.h"
#include "remote/backend.h"
#include "remote/librados.h"

enum rados_state { RADOS_CONNECTING, RADOS_CONNECTED, RADOS_FAILED };

/* When an object was last used, as far as is known: by a hash of its name. */
struct rados_used {
        uint64_t hash;
        int64_t at; /* seconds since 1970 */
};

struct rados {
        struct librados api;
        char *prefix, *pool, *conf, *user;
        unsigned depth;
        uint64_t timeout_ns;

        pthread_mutex_t lock;
        pthread_cond_t work;   /* for the worker */
        pthread_cond_t change; /* for the connector, and close() */
        bool stopping, closed;
        bool connector_ended, worker_ended;
        unsigned refs; /* the owner's, and the worker's */

        enum rados_state state; /* `cluster` and `io` are there once it is RADOS_CONNECTED */
        int connect_result;     /* why RADOS_FAILED */
        char error[120];
        rados_t cluster;
        rados_ioctx_t io;

        struct list_node queue; /* struct backend_op: submitted, not yet librados's */
        struct list_node marks; /* struct call of mark_used(), likewise */
        struct list_node calls; /* struct call: librados's */
        unsigned n_calls, n_marks;
        unsigned n_blocking; /* calls of rados-sweep.c under way */
        struct rados_used *used;
};

/* The object's name, in the RADOS namespace that has the prefix's. NULL: not below the prefix. */
const char *rados_oid(const struct rados *r, const char *name);
/* What librados answered, as backend.h has it. */
int rados_errno(int result);

/* As backend_ops has them. */
int rados_lease(struct backend *b, const char *name, const char *owner, uint64_t for_ns);
int rados_release(struct backend *b, const char *name, const char *owner);
int rados_list(struct backend *b, bool tidy,
               bool (*each)(void *userdata, const struct backend_entry *e), void *userdata,
               const bool *stop);
int rados_remove_unused(struct backend *b, const char *name, uint64_t used_ms);
