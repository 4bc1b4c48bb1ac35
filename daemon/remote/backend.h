/* SPDX-License-Identifier: Apache-2.0 */
/* What a storage engine has to do for the shared tier: whole objects, by name. directory.c, rados.c
 * and s3.c implement it; remote.c is the only caller.
 *
 * submit() runs on the loop thread and returns at once. An operation, and the memory that it names,
 * belongs to the back end from then until backend_op_end(), which the back end calls exactly once,
 * on any thread, also from within submit(). It does so within the operation's deadline where the
 * engine lets it: what hangs beyond that holds its memory, and nothing else waits for it.
 *
 * A back end works on threads of its own, or on those of its library; never on the loop's, nor on
 * those of io/. So an engine that hangs costs no local I/O anything. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/list.h"
#include "remote/object.h"

struct backend;
struct completions; /* completions.h: ended operations on their way to the loop */

enum backend_op_kind {
        /* From offset 0 into the pieces, one after another, as far as they reach. `size` becomes
         * the size of the whole object. */
        BACKEND_READ,
        /* The whole object is what the pieces have, and is seen as a whole or not at all. -EEXIST:
         * there is one of that name, which stays as it is; an engine that cannot tell replaces it.
         */
        BACKEND_CREATE,
        BACKEND_REPLACE, /* the same, whether there was one or not */
        BACKEND_DELETE,  /* -ENOENT: there was none; or 0 */
        BACKEND_OP_END,
};

/* 0, or as the operation says, or: -ENOENT; -ENOSPC (also EDQUOT, 507, full OSDs); -EACCES
 * (refused, wrong credentials); -ETIMEDOUT (deadline); -EBUSY (the engine asks to slow down);
 * -ECANCELED (stopped); -E2BIG (larger than the engine takes); else -EIO, or what the system said.
 */
struct backend_op {
        enum backend_op_kind kind;
        char name[REMOTE_NAME_MAX]; /* no empty part, no "." or ".." */
        struct iovec pieces[2];     /* page-aligned; the second may be empty */
        uint64_t deadline_ns;       /* CLOCK_MONOTONIC */

        /* Out. `transferred`: bytes read into the pieces. `error`: a sentence for the log and the
         * status, if there is more to say than the number does; "". No secret is in it. */
        int result;
        uint64_t size, transferred;
        char error[120];

        void (*complete)(struct backend_op *op); /* on the loop thread */

        struct completions *completions; /* set by remote.c */
        struct list_node node;           /* the back end's, then the completions' */
        uint64_t submitted_ns, ended_ns; /* remote.c's; backend_op_end()'s */
        void *private_data;              /* the back end's */
};

/* `result` and the other out fields are set. Any thread. The operation is the loop's from here on.
 */
void backend_op_end(struct backend_op *op, int result);

struct backend_params {
        /* Borrowed until close(). Those of other back ends are NULL. */
        const char *prefix;                       /* for messages; names have it */
        const char *path;                         /* directory */
        bool sync;                                /* directory: fsync() */
        const char *pool, *ceph_conf, *ceph_user; /* rados */
        const char *endpoint, *bucket, *region, *credentials,
                *ca;         /* s3; a file each of the last two */
        unsigned depth;      /* operations at a time, at most */
        uint64_t timeout_ns; /* of one operation, for engines that want to know in advance */
};

/* An object that sweep_list() has met. */
struct backend_entry {
        char name[REMOTE_NAME_MAX];
        uint64_t bytes;
        uint64_t used_ms; /* since 1970, by the engine's clock: last written, or marked as used */
};

struct backend_ops {
        const char *name; /* "directory", ... */

        /* Loads libraries and reads files of this host, but does not wait for the engine: it may
         * be down, and come later. 0; -errno, with one sentence that says what and what to do. */
        int (*open)(struct backend **ret, const struct backend_params *params,
                    char ret_error[static 256]);
        void (*submit)(struct backend *b, struct backend_op *op);
        /* What is in flight ends soon, with -ECANCELED where it was not done. Does not wait. */
        void (*stop)(struct backend *b);
        /* After stop(), at the end of the process. Waits for nothing that may hang: threads that
         * stand in the engine are left to the exit, and their memory with them. */
        struct backend *(*close)(struct backend *b);

        /* The rest blocks, and runs on a thread of its own, where `stop` is looked at often. NULL:
         * the engine has that by itself (S3: lifecycle rules). */

        /* One host at a time: takes a lease of that name on the engine, for so long, or renews it
         * if `owner` has it. 0; -EBUSY: another has it. */
        int (*lease)(struct backend *b, const char *name, const char *owner, uint64_t for_ns);
        int (*release)(struct backend *b, const char *name, const char *owner);
        /* Calls each() for every object below the prefix, in no order. each() returning false ends
         * it. `tidy`: removes what is no object and belongs to no writer that lives. 0, -errno. */
        int (*list)(struct backend *b, bool tidy,
                    bool (*each)(void *userdata, const struct backend_entry *e), void *userdata,
                    const bool *stop);
        /* Deletes it if it has not been used since used_ms. 0, -ENOENT, -EAGAIN (used), ... */
        int (*remove_unused)(struct backend *b, const char *name, uint64_t used_ms);
        /* The object was of use: keeps the sweeper away, at most once a day and object. Loop
         * thread, returns at once, may do nothing. NULL: the engine has no use for it. */
        void (*mark_used)(struct backend *b, const char *name, uint64_t used_ms);
};

extern const struct backend_ops backend_directory, backend_rados, backend_s3;
