/* SPDX-License-Identifier: Apache-2.0 */
/* One message with its descriptors over a SOCK_SEQPACKET socket. Nothing but fdpass_wait() blocks;
 * nothing raises SIGPIPE. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "wire.h"

/* Sends all of it or nothing. 0; -EAGAIN: the peer's queue is full; another negative errno: the
 * peer has closed. */
int fdpass_send(int sock, const void *msg, size_t bytes, const int *fds, unsigned n_fds);

/* Receives one message into `buf` and up to WIRE_MAX_FDS descriptors, CLOEXEC, into `ret_fds`,
 * which is the caller's from then on. Returns its bytes, 0 at the end of the stream, -EAGAIN,
 * -EMSGSIZE (longer than `room`: it is lost, its descriptors are closed), -EBADMSG (MSG_CTRUNC: too
 * many descriptors, all closed), or another negative errno. */
ssize_t fdpass_recv(int sock, void *buf, size_t room, int ret_fds[static WIRE_MAX_FDS],
                    unsigned *ret_n_fds);
/* As many as a message can carry. */
enum { FDPASS_TAKE_MAX = 253 };
/* The same, for a peer that is not trusted: closing a descriptor can block for as long as the
 * server of its file system likes, also if the kernel closes it. So all descriptors are in ret_fds,
 * also with an error, for the caller to close safely. Without `take_fds` the caller knows from
 * fdpass_brings() that there are none. */
ssize_t fdpass_take(int sock, void *buf, size_t room, bool take_fds,
                    int ret_fds[static FDPASS_TAKE_MAX], unsigned *ret_n_fds);
/* Does the next message bring descriptors? It stays where it is. */
bool fdpass_brings(int sock);
/* As fdpass_recv(), but waits for a message: for as long as the socket's SO_RCVTIMEO says, then
 * -EAGAIN, or until a signal, -EINTR. On a socket that is O_NONBLOCK it does not. */
ssize_t fdpass_wait(int sock, void *buf, size_t room, int ret_fds[static WIRE_MAX_FDS],
                    unsigned *ret_n_fds);
