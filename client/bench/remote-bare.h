/* SPDX-License-Identifier: Apache-2.0 */
/* Measures a back end of the shared tier with the code of the daemon, but without a daemon: `depth`
 * operations are in flight, on objects with the header that the daemon writes.
 *
 * The header and the stamps of a payload (remote-job.h) are compared after each read, while
 * other operations continue. One thread submits and reaps; the back end has its own. */
#pragma once

#include "remote-job.h"

struct remote_bare;

/* The functions that return an int return an exit status: EXIT_OK; EXIT_INTERRUPTED; another one
 * after reporting a failure. */
int remote_bare_new(struct remote_bare **ret, const struct remote_job *job);
struct remote_bare *remote_bare_free(struct remote_bare *b);

int remote_bare_write(struct remote_bare *b, struct remote_figures *ret);
int remote_bare_read(struct remote_bare *b, struct remote_figures *ret);
/* Deletes the objects that were written, also after an interruption. */
int remote_bare_delete(struct remote_bare *b);
/* Deletes the objects that the daemon wrote under the same keys. */
int remote_bare_delete_of(struct remote_bare *b, const struct remote_identity *identity,
                          uint64_t generation);
