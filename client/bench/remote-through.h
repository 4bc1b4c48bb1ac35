/* SPDX-License-Identifier: Apache-2.0 */
/* The same objects through the daemon: put by a client of one with remote.write all, until all are
 * on the engine; then got by a client of another one, whose store is empty. */
#pragma once

#include "remote-bare.h"
#include "remote-job.h"

/* An exit status, after a message. What was written is deleted again, by way of `bare`. */
int remote_through(const struct remote_job *job, struct remote_bare *bare,
                   struct remote_figures *ret_write, struct remote_figures *ret_read);
