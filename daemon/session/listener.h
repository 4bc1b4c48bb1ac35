/* SPDX-License-Identifier: Apache-2.0 */
/* The listening Unix socket (SOCK_SEQPACKET): inherited from systemd, or bound. Accepts connections
 * and passes their descriptors to a callback; knows nothing of sessions. Out of descriptors, it
 * stops listening and retries by timer, rather than spin. */
#pragma once

#include <event2/event.h>
#include <stdint.h>

struct listener;

struct listener_params {
        const char *path;
        uint32_t mode;                                 /* of the socket file */
        int inherited_fd;                              /* -1: bind `path` */
        void (*on_connection)(void *userdata, int fd); /* the callee's from then on */
        void (*on_exhausted)(void *userdata,
                             int error); /* accept is out of something; says when it stops */
        void *userdata;
};

/* 0. -EADDRINUSE: another process answers there. -EINVAL: the inherited descriptor is not such a
 * socket. -errno; a sentence in `ret_error`. Creates the directory of `path` if it is missing;
 * replaces a socket file on which no process answers. */
int listener_new(struct listener **ret, struct event_base *base,
                 const struct listener_params *params, char ret_error[static 256]);
/* Stops accepting and removes the socket file, if it was bound here. */
struct listener *listener_free(struct listener *l);
