/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives with SCM_RIGHTS; see fdpass.h.
 *
 * Both sides run this, on the thread that owns the socket. The kernel installs received descriptors
 * whether the message is wanted or not, so every path that does not pass them to the caller closes
 * them. */
#include "fdpass.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A union, because a control message must be aligned like its header. */
union control {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(FDPASS_TAKE_MAX * sizeof(int))];
};

static ssize_t send_with_fds(int sock, const void *msg, size_t bytes, const int *fds,
                             unsigned n_fds)
{
        struct iovec iov = { .iov_base = (void *)msg, .iov_len = bytes };
        union control control = { 0 };
        struct msghdr m = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = control.bytes,
                .msg_controllen = CMSG_SPACE(n_fds * sizeof(int)),
        };
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);

        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
        return sendmsg(sock, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int fdpass_send(int sock, const void *msg, size_t bytes, const int *fds, unsigned n_fds)
{
        ssize_t n;

        assert(bytes > 0 && n_fds <= WIRE_MAX_FDS);
        do
                n = n_fds > 0 ? send_with_fds(sock, msg, bytes, fds, n_fds)
                              : send(sock, msg, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return -errno;
        return (size_t)n == bytes ? 0 : -EIO;
}

/* Receives a message; ret_fds has all descriptors that arrived, even after an error. */
static ssize_t receive(int sock, int flags, void *buf, size_t room, unsigned max_fds, int *ret_fds,
                       unsigned *ret_n_fds)
{
        struct iovec iov = { .iov_base = buf, .iov_len = room };
        union control control;
        struct msghdr m = {
                .msg_iov = &iov,
                .msg_iovlen = 1,
                .msg_control = max_fds > 0 ? control.bytes : NULL,
                .msg_controllen = max_fds > 0 ? CMSG_SPACE(max_fds * sizeof(int)) : 0,
        };
        unsigned n_fds = 0;
        ssize_t n;

        *ret_n_fds = 0;
        n = recvmsg(sock, &m, flags | MSG_CMSG_CLOEXEC);
        if (n < 0)
                return -errno;

        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
                size_t here;

                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < here; i++) {
                        int fd;

                        memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
                        assert(n_fds <
                               max_fds); /* the kernel stores no more than there is room for */
                        ret_fds[n_fds++] = fd;
                }
        }

        *ret_n_fds = n_fds;
        if (m.msg_flags & MSG_CTRUNC)
                return -EBADMSG;
        return m.msg_flags & MSG_TRUNC ? -EMSGSIZE : n;
}

/* Receives a message; after an error or at the end of the stream, closes its descriptors. */
static ssize_t receive_whole(int sock, int flags, void *buf, size_t room,
                             int ret_fds[static WIRE_MAX_FDS], unsigned *ret_n_fds)
{
        ssize_t n = receive(sock, flags, buf, room, WIRE_MAX_FDS, ret_fds, ret_n_fds);

        while (n <= 0 && *ret_n_fds > 0)
                close(ret_fds[--*ret_n_fds]);
        return n;
}

ssize_t fdpass_recv(int sock, void *buf, size_t room, int ret_fds[static WIRE_MAX_FDS],
                    unsigned *ret_n_fds)
{
        ssize_t n;

        do
                n = receive_whole(sock, MSG_DONTWAIT, buf, room, ret_fds, ret_n_fds);
        while (n == -EINTR);
        return n;
}

ssize_t fdpass_take(int sock, void *buf, size_t room, bool take_fds,
                    int ret_fds[static FDPASS_TAKE_MAX], unsigned *ret_n_fds)
{
        ssize_t n;

        do
                n = receive(sock, MSG_DONTWAIT, buf, room, take_fds ? FDPASS_TAKE_MAX : 0, ret_fds,
                            ret_n_fds);
        while (n == -EINTR);
        return n;
}

ssize_t fdpass_wait(int sock, void *buf, size_t room, int ret_fds[static WIRE_MAX_FDS],
                    unsigned *ret_n_fds)
{
        return receive_whole(sock, 0, buf, room, ret_fds, ret_n_fds);
}

bool fdpass_brings(int sock)
{
        char byte;
        struct iovec iov = { .iov_base = &byte, .iov_len = sizeof(byte) };
        struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

        /* There is no room for control data, so the kernel sets MSG_CTRUNC if the message has
         * descriptors, and drops the references that it took for this peek. The queued message
         * still refers to the same files, so no file is closed, which could block. */
        return recvmsg(sock, &m, MSG_PEEK | MSG_DONTWAIT) >= 0 && (m.msg_flags & MSG_CTRUNC);
}
