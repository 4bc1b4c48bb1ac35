/* SPDX-License-Identifier: Apache-2.0 */
/* One session with one daemon process: its socket, its mapped memory, and the leases and messages
 * that refer to it.
 *
 * A session that has ended is kept while its memory may be read. The pool and the socket stay until
 * the last lease, and the last hold of parts.h, is released: a daemon that ended the session but
 * lives frees the leases when the socket closes. The staging area stays until its places are
 * released and no I/O of a dead daemon can reach them. Until no such I/O can run, the session also
 * remembers which requests have named registered memory. */
#pragma once

#include "lib/handle.h"

/* Connects, exchanges HELLO, maps the pool, and sets kv->conn. Returns 0, or -errno with an error
 * text; if no daemon was found, the text says which sockets were tried. */
int conn_open(struct kvcache *kv);
/* Connects unless a session exists. Returns 0 or -ENOTCONN. */
int conn_ready(struct kvcache *kv);
/* Closes the socket, and unmaps the pool, the pool index and its page. The caller has made sure
 * that no lease, and no hold of parts.h, is left. A second call has no effect. */
void conn_close_pool(struct conn *c);
/* Frees the session and returns NULL. `forked`: the process is a child, which does not have the
 * mappings, and the connection stays the parent's. */
struct conn *conn_free(struct conn *c, bool forked);
