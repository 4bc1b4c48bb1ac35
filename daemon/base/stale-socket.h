/* SPDX-License-Identifier: Apache-2.0 */
/* Takes over the path of a Unix socket whose process has ended without removing its file. */
#pragma once

#include <sys/un.h>

/* Deletes the socket file of an address if no process listens on it; `type` is the type of socket
 * that the caller will bind there. Returns 0 if the path is free then; -EEXIST if it is not a
 * socket; -EADDRINUSE if a process listens on it, or if that cannot be ruled out; or another
 * -errno. Does not block. */
int stale_socket_remove(const struct sockaddr_un *address, int type);
