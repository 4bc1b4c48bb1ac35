/* SPDX-License-Identifier: Apache-2.0 */
/* The listening Unix socket (SOCK_SEQPACKET), inherited from systemd or bound. Accepts connections
 * and passes their descriptors to a callback; independent of sessions. Without descriptors it stops
 * accepting and retries by a timer, instead of spinning. */
#pragma once

#include <event2/event.h>
#include <stdint.h>

struct listener;

struct listener_params {
        const char *path;
        uint32_t mode;                                   /* mode of the socket file */
        int inherited_fd;                                /* -1: bind `path` */
        void (*on_connection)(void *userdata, int fd);   /* takes the descriptor */
        void (*on_exhausted)(void *userdata, int error); /* reports that accept() lacks descriptors
                                                          * or memory, and that accepting pauses */
        void *userdata;
};

/* Checks whether a socket can be bound at `path`, as far as that is possible without a change.
 * Returns 0, -ENOMEM, or a sentence in `ret_error` and -ENAMETOOLONG, -EPERM if another user could
 * replace the socket, -EEXIST if another kind of file is there, or another -errno. */
int listener_check_path(const char *path, char ret_error[static 256]);
/* Creates a listener, which takes the inherited descriptor if that is such a socket. Returns 0; or
 * -EADDRINUSE if another process listens there, -EINVAL if the inherited descriptor is no such
 * socket, an error of listener_check_path(), or another -errno. `ret_error` gets a sentence, or an
 * empty text if memory is short. Creates the last directory of `path` if it is missing, and
 * replaces a socket file without a listener. */
int listener_new(struct listener **ret, struct event_base *base,
                 const struct listener_params *params, char ret_error[static 256]);
/* Writes the path of the socket, also of an inherited one: "@NAME" in the abstract namespace, or an
 * empty text if the socket has no address. */
void listener_get_path(const struct listener *l, char *ret, size_t room);
/* Stops accepting and removes the socket file if it was bound here. */
struct listener *listener_free(struct listener *l);
