/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives one message with its descriptors over a SOCK_SEQPACKET socket. Only
 * fdpass_wait() blocks; no function raises SIGPIPE. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "wire.h"

/* Sends the whole message or nothing. Returns 0; -EAGAIN if the peer's queue is full; another
 * negative errno, such as -EPIPE if the peer has closed. */
int fdpass_send(int sock, const void *msg, size_t bytes, const int *fds, unsigned n_fds);

/* Receives one message into `buf`, and up to WIRE_MAX_FDS descriptors, with CLOEXEC, into
 * `ret_fds`; the caller owns them from then on. Returns the message's size in bytes, 0 at the
 * end of the stream, -EAGAIN, -EMSGSIZE if the message is longer than `room` (the message is
 * lost and its descriptors are closed), -EBADMSG after MSG_CTRUNC (too many descriptors; all are
 * closed), or another negative errno. */
ssize_t fdpass_recv(int sock, void *buf, size_t room, int ret_fds[static WIRE_MAX_FDS],
                    unsigned *ret_n_fds);
/* The kernel's limit of descriptors per message, SCM_MAX_FD. */
enum { FDPASS_TAKE_MAX = 253 };
/* Receives as fdpass_recv() does, from a peer that is not trusted. Closing a descriptor may
 * block for as long as the server of its file system chooses, whether the process or the kernel
 * closes it. Therefore all descriptors are in ret_fds, also after an error, for the caller to
 * close safely. Pass `take_fds` false only if fdpass_brings() returned false. */
ssize_t fdpass_take(int sock, void *buf, size_t room, bool take_fds,
                    int ret_fds[static FDPASS_TAKE_MAX], unsigned *ret_n_fds);
/* Returns whether a message is in the socket's queue and carries descriptors. The message stays in
 * the queue. */
bool fdpass_brings(int sock);
/* Receives as fdpass_recv() does, but waits for a message: at most the socket's SO_RCVTIMEO, then
 * returns -EAGAIN; -EINTR after a signal. Does not wait if the socket is O_NONBLOCK. */
ssize_t fdpass_wait(int sock, void *buf, size_t room, int ret_fds[static WIRE_MAX_FDS],
                    unsigned *ret_n_fds);
