/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the same objects through daemons. A client puts the objects to a daemon with
 * `remote.write: all`, and waits until all are on the back end. Then a client gets them from a
 * second daemon, whose store is empty. */
#pragma once

#include "remote-bare.h"
#include "remote-job.h"

/* Measures both directions, and deletes the objects through `bare`. Returns an exit status, after
 * reporting a failure. */
int remote_through(const struct remote_job *job, struct remote_bare *bare,
                   struct remote_figures *ret_write, struct remote_figures *ret_read);
