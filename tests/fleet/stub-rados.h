/* SPDX-License-Identifier: Apache-2.0 */
/* A librados without a cluster: librados.so.2 for tests. Objects are in memory, of all clusters of
 * the process the same; operations are carried out by a thread, in order.
 *
 * A test finds these functions in the library by dlsym(). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct stub_rados {
        /* Calls of this function ("rados_connect"; of an asynchronous operation, its end: "read",
         * "write") after the next `after` ones fail with `result`, `times` of them. */
        void (*fault)(const char *function, unsigned after, unsigned times, int result);
        /* Asynchronous operations are not carried out, until this is false; they can be cancelled.
         */
        void (*hang)(bool on);
        /* rados_aio_cancel() does nothing. */
        void (*ignore_cancel)(bool on);
        /* rados_connect() does not return, until this is false. */
        void (*hang_connect)(bool on);
        /* Reads report so many bytes more than they were asked for. */
        void (*lie)(uint64_t bytes);
        unsigned (*calls)(const char *function);
        /* The value of an option as it was last set; "". */
        const char *(*option)(const char *name);
        /* Objects whose name ends so; mtime of it, seconds since 1970, can be moved. */
        bool (*set_mtime)(const char *oid, int64_t mtime);
        int64_t (*mtime)(const char *oid);
        bool (*has)(const char *space, const char *oid);
        /* Clusters, contexts, completions and operations that have not been freed. */
        unsigned (*live)(void);
        unsigned (*pending)(void);
        void (*reset)(void);
};

/* Loads the library as the product does; false: it is another one, or none. */
bool stub_rados_load(struct stub_rados *ret);
