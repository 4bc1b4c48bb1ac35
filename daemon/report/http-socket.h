/* SPDX-License-Identifier: Apache-2.0 */
/* The listening socket of the HTTP server. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/un.h>

struct http_socket {
        char address[160]; /* for messages and the status */
        bool remote;       /* other hosts can reach it */

        /* The Unix socket's file, if it is this one's to remove; else "". */
        char path[sizeof(((struct sockaddr_un *)NULL)->sun_path) + 1];
        dev_t dev;
        ino_t ino;
};

/* Of `address`, or the inherited descriptor if that is not -1. A listening descriptor, the
 * inherited one itself; -errno. -EPERM: it is not loopback, and `allow_remote` is not set. After a
 * failure http_socket_remove() is due as well. */
int http_socket_open(struct http_socket *ret, int inherited_fd, const char *address,
                     bool allow_remote, char ret_error[static 256]);
/* Removes the socket's file. */
void http_socket_remove(const struct http_socket *s);
