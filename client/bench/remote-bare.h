/* SPDX-License-Identifier: Apache-2.0 */
/* The engine alone: the daemon's own back end, with `depth` operations at a time, on objects with
 * the header that the daemon gives them.
 *
 * The header and the marks of a payload (remote-job.h) are compared after each read, while others
 * go on. One thread submits and reaps; the back end has its own. */
#pragma once

#include "remote-job.h"

struct remote_bare;

/* All: an exit status, after a message. */
int remote_bare_new(struct remote_bare **ret, const struct remote_job *job);
struct remote_bare *remote_bare_free(struct remote_bare *b);

int remote_bare_write(struct remote_bare *b, struct remote_figures *ret);
int remote_bare_read(struct remote_bare *b, struct remote_figures *ret);
/* Deletes what was written; also after an interruption. */
int remote_bare_delete(struct remote_bare *b);
/* Likewise what the daemon wrote, of the same keys. */
int remote_bare_delete_of(struct remote_bare *b, const struct remote_identity *identity,
                          uint64_t generation);
