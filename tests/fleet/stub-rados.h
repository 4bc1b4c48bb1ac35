/* SPDX-License-Identifier: Apache-2.0 */
/* A librados without a cluster: librados.so.2 for tests. All clusters of the process share their
 * objects, which are in memory. One thread performs the operations in order.
 *
 * A test finds these functions in the library by dlsym(). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct stub_rados {
        /* Makes `times` calls of this function fail with `result`, after the next `after` calls. An
         * asynchronous operation is named by its kind, "read" or "write", and fails at its end. */
        void (*fault)(const char *function, unsigned after, unsigned times, int result);
        /* Suspends asynchronous operations until called with false; they can be cancelled. */
        void (*hang)(bool on);
        /* rados_aio_cancel() does nothing. */
        void (*ignore_cancel)(bool on);
        /* rados_connect() does not return, until this is false. */
        void (*hang_connect)(bool on);
        /* Reads report so many bytes more than they were asked for. */
        void (*lie)(uint64_t bytes);
        unsigned (*calls)(const char *function);
        /* Returns the latest value of an option, or "". */
        const char *(*option)(const char *name);
        /* Sets the mtime, in seconds since 1970, of objects whose name ends with `oid`. Returns
         * false if there is none. */
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
