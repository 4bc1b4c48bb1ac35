/* SPDX-License-Identifier: Apache-2.0 */
/* One session with one daemon process: its socket, its memory as mapped here, and what still hangs
 * on it.
 *
 * A session that has ended is kept while its memory may be read: the pool and the socket
 * until the last lease is given back (a daemon that ended the session but lives frees the leases
 * when the socket closes), the staging area until its places are released and no I/O of a dead
 * daemon can reach them any more. Of registered memory it knows until then which requests have
 * named it. */
#pragma once

#include "lib/handle.h"

/* Connects and shakes hands, maps the pool. On failure the handle's error text says what was tried.
 */
int conn_open(struct kvcache *kv);
/* Connected, if need be anew. 0 or -ENOTCONN. */
int conn_ready(struct kvcache *kv);
/* Closes the socket and unmaps the pool: no lease is held any more. */
void conn_close_pool(struct conn *c);
/* In a child after fork(): the mappings are not there, and the connection stays the parent's. */
struct conn *conn_free(struct conn *c, bool forked);
