/* SPDX-License-Identifier: Apache-2.0 */
/* The listening socket of the HTTP server. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/un.h>

struct http_socket {
        char address[160]; /* the address as text, for messages and the status */
        bool tcp;          /* the socket is TCP, not a Unix socket */
        bool remote;       /* other hosts can reach it */

        /* File of the Unix socket that http_socket_remove() must delete, or "". */
        char path[sizeof(((struct sockaddr_un *)NULL)->sun_path) + 1];
        dev_t dev;
        ino_t ino;
};

/* Opens a socket on `address`, or checks the inherited descriptor if it is not -1. Returns the
 * listening descriptor, which may be the inherited one, or -errno and a sentence in `ret_error`;
 * -EPERM if the address is not loopback and `allow_remote` is false. After a failure the caller
 * must call http_socket_remove() as well. */
int http_socket_open(struct http_socket *ret, int inherited_fd, const char *address,
                     bool allow_remote, char ret_error[static 256]);
/* Deletes the socket's file if this process created it. */
void http_socket_remove(const struct http_socket *s);
