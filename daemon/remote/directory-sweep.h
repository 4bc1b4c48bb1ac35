/* SPDX-License-Identifier: Apache-2.0 */
/* The sweeper's operations on a shared directory: the lease that one host holds, and the list of
 * all objects.
 *
 * A lease is a file beside the objects that contains its holder and its duration. It ends that long
 * after the file was last modified, by the file system's own clock, because the clocks of hosts
 * differ. A holder that renews too late may lose the lease; even then two concurrent sweeps are
 * safe, because they delete only unused objects.
 *
 * All functions block. Any thread. */
#pragma once

#include "remote/backend.h"
#include "remote/directory-file.h"

/* Implement lease() and release() of backend_ops. */
int sweep_lease(struct files *f, const char *name, const char *owner, uint64_t for_ns);
int sweep_release(struct files *f, const char *name, const char *owner);
/* Implements list() of backend_ops. With `tidy`, removes temporary files and empty directories that
 * are a day old, since their writers have died. */
int sweep_list(struct files *f, const char *prefix, bool tidy,
               bool (*each)(void *userdata, const struct backend_entry *e), void *userdata,
               const bool *stop);
