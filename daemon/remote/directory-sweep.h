/* SPDX-License-Identifier: Apache-2.0 */
/* What the sweeper asks of a directory that hosts share: the lease that one host has, and all
 * objects that there are.
 *
 * A lease is a file beside the objects with its holder and its duration, which ends that long after
 * the file was last modified, by the file system's own clock, as hosts' clocks differ. A holder
 * that renews it too late may lose it; a sweep of two hosts is safe, too, as it deletes only what
 * has not been used.
 *
 * All here blocks. Any thread. */
#pragma once

#include "remote/backend.h"
#include "remote/directory-file.h"

/* As backend_ops has them. */
int sweep_lease(struct files *f, const char *name, const char *owner, uint64_t for_ns);
int sweep_release(struct files *f, const char *name, const char *owner);
/* `tidy`: removes temporary files that are a day old, as their writers are dead, and directories
 * that have been empty for so long. */
int sweep_list(struct files *f, const char *prefix, bool tidy,
               bool (*each)(void *userdata, const struct backend_entry *e), void *userdata,
               const bool *stop);
