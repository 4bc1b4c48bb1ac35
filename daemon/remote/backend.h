/* SPDX-License-Identifier: Apache-2.0 */
/* The interface of a back end of the shared tier, which stores whole objects by name. directory.c,
 * rados.c and s3.c implement it; only files of the shared tier call it: operation.c, gets.c,
 * sweep.c and remote.c.
 *
 * submit() runs on the loop thread and returns at once. From then on, the operation and the memory
 * that it names belong to the back end, until the back end calls backend_op_end(). It does so
 * exactly once, on any thread, possibly within submit(), and before the operation's deadline if the
 * storage system permits. An operation that hangs beyond its deadline keeps its memory, but nothing
 * else waits for it.
 *
 * A back end works on its own threads or those of its library, never on the loop thread or the
 * threads of io/. A storage system that hangs therefore does not delay local I/O. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/list.h"
#include "remote/object.h"

struct backend;
struct completions; /* ended operations in transfer to the loop thread; see completions.h */

enum backend_op_kind {
        /* Reads the object from offset 0 into the pieces, in order, as far as they reach. `size`
         * becomes the size of the whole object. */
        BACKEND_READ,
        /* Writes the pieces as the whole object, atomically. Fails with -EEXIST if an object of
         * that name exists, and leaves it unchanged; a storage system that cannot detect this
         * replaces the object. */
        BACKEND_CREATE,
        BACKEND_REPLACE, /* writes the whole object, whether or not it exists */
        BACKEND_DELETE,  /* if the object does not exist, the result is 0 or -ENOENT, depending on
                            the storage system */
        BACKEND_OP_END,
};

/* The result of an operation is 0, an error that its enum constant describes, or: -ENOENT; -ENOSPC
 * (also EDQUOT, 507, full OSDs); -EACCES (refused, wrong credentials); -ETIMEDOUT (deadline);
 * -EBUSY (the storage system asks to slow down); -ECANCELED (stopped); -E2BIG (larger than the
 * storage system takes). Other failures are -EIO or the system's errno. */
struct backend_op {
        enum backend_op_kind kind;
        char name[REMOTE_NAME_MAX]; /* name of the object; none of its parts, between slashes, is
                                       empty, "." or ".." */
        struct iovec pieces[2];     /* page-aligned; the second may be empty */
        uint64_t deadline_ns;       /* CLOCK_MONOTONIC time by which the operation must have
                                     * ended */

        /* Results. `transferred` counts the bytes read into the pieces. `error` is a sentence for
         * log and status that adds to the number, or ""; it contains no secret. */
        int result;
        uint64_t size, transferred;
        char error[120];

        void (*complete)(struct backend_op *op); /* called on the loop thread when the operation has
                                                  * ended */

        struct completions *completions; /* set by operation.c */
        struct list_node node;           /* used by the back end, then by `completions` */
        uint64_t submitted_ns, ended_ns; /* times set by operation.c, and by backend_op_end() */
        void *private_data;              /* used by the back end */
};

/* Ends an operation, after its result fields are set, and passes it to the loop thread. Any
 * thread. */
void backend_op_end(struct backend_op *op, int result);

struct backend_params {
        /* Borrowed until close(). Members of other back ends are NULL. */
        const char *prefix;                       /* prefix of all operations' names, for
                                                   * messages */
        const char *path;                         /* directory back end: the shared directory */
        bool sync;                                /* directory back end: fsync() files and
                                                   * directories */
        const char *pool, *ceph_conf, *ceph_user; /* RADOS: remote.pool and others */
        const char *endpoint, *bucket, *region, *credentials,
                *ca;         /* S3; the last two are file names */
        unsigned depth;      /* most operations in flight at a time */
        uint64_t timeout_ns; /* limit of one operation, for storage systems that have to know it in
                              * advance */
};

/* An object found by list(). */
struct backend_entry {
        char name[REMOTE_NAME_MAX];
        uint64_t bytes;
        uint64_t used_ms; /* time at which the object was last written or marked as used, in ms of
                           * the storage system's clock */
};

struct backend_ops {
        const char *name; /* the name in the configuration, such as "directory" */

        /* Loads libraries and reads files of this host. Does not wait for the storage system, which
         * may be down and become available later. Returns 0, or -errno and a sentence with the
         * problem and its remedy; -ENOMEM may have no sentence. */
        int (*open)(struct backend **ret, const struct backend_params *params,
                    char ret_error[static 256]);
        /* Starts an operation, as described above. Loop thread. */
        void (*submit)(struct backend *b, struct backend_op *op);
        /* Ends all operations soon, without waiting for them; operations that were not carried out
         * get -ECANCELED. */
        void (*stop)(struct backend *b);
        /* Releases the back end, at the end of the process, after stop(). Does not wait for calls
         * that may hang: threads inside such calls, and the memory that they use, are left to the
         * exit of the process. */
        struct backend *(*close)(struct backend *b);

        /* The functions below block and run on a thread of the sweeper. They check `stop` often.
         * NULL: the storage system expires objects itself (S3 lifecycle rules). */

        /* Takes the lease `name` on the storage system for `for_ns`, or renews it if `owner` holds
         * it, so that one host sweeps at a time. Returns 0, -EBUSY if another owner holds the
         * lease, or another -errno. release() ends the lease of `owner`; its errors are as those of
         * lease(). */
        int (*lease)(struct backend *b, const char *name, const char *owner, uint64_t for_ns);
        int (*release)(struct backend *b, const char *name, const char *owner);
        /* Calls each() for every object below the prefix, in no order, until each() returns false.
         * With `tidy`, also removes leftovers that are no objects and belong to no living writer.
         * Returns 0 or -errno. */
        int (*list)(struct backend *b, bool tidy,
                    bool (*each)(void *userdata, const struct backend_entry *e), void *userdata,
                    const bool *stop);
        /* Deletes an object unless it has been used since used_ms. Returns 0, -ENOENT, -EAGAIN if
         * it has been used, or another error. */
        int (*remove_unused)(struct backend *b, const char *name, uint64_t used_ms);
        /* Records that an object was used, so that the sweeper keeps it. The caller does so about
         * once a day per object; the back end may ignore it. Loop thread; returns at once. NULL if
         * the storage system does not need the call. */
        void (*mark_used)(struct backend *b, const char *name, uint64_t used_ms);
};

extern const struct backend_ops backend_directory, backend_rados, backend_s3;
