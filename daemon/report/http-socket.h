/* SPDX-License-Identifier: Apache-2.0 */
/* The listening socket of the HTTP server. */
#pragma once

#include <stddef.h>
#include <sys/types.h>
#include <sys/un.h>

struct http_socket {
        char address[160]; /* for messages and the status */

        /* The Unix socket's file, if it is this one's to remove; else "". */
        char path[sizeof(((struct sockaddr_un *)NULL)->sun_path) + 1];
        dev_t dev;
        ino_t ino;
};

/* Of `address`, or the inherited descriptor if that is not -1. A listening descriptor, the
 * inherited one itself; -errno. After a failure http_socket_remove() is due as well. */
int http_socket_open(struct http_socket *ret, int inherited_fd, const char *address,
                     char ret_error[static 256]);
/* Removes the socket's file. */
void http_socket_remove(const struct http_socket *s);
