/* SPDX-License-Identifier: Apache-2.0 */
/* An echo server on a socket like the daemon's (SOCK_SEQPACKET), with one thread. No server on this
 * machine can have a shorter round trip. A message begins with the length of the answer that it
 * requests.
 *
 *   measure-echo SOCKET [--blocking]
 *
 * By default it runs on libevent, as the daemon does: a loop that wakes for a readable socket, one
 * recv() and one send(). With --blocking it serves one connection with recv() and send() alone. It
 * runs until it is killed. */
#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { MESSAGE_MAX = 65536 };

static int fail(const char *what)
{
        fprintf(stderr, "measure-echo: %s: %s\n", what, strerror(errno));
        return 1;
}

/* Answers one message. Returns false if the connection has ended. */
static bool answer(int fd, int flags)
{
        static uint8_t message[MESSAGE_MAX];
        uint32_t bytes;
        ssize_t n = recv(fd, message, sizeof(message), flags);

        if (n < 0)
                return errno == EAGAIN || errno == EINTR;
        if ((size_t)n < sizeof(bytes))
                return false;
        memcpy(&bytes, message, sizeof(bytes));
        if (bytes == 0 || bytes > sizeof(message))
                return false;
        return send(fd, message, bytes, flags | MSG_NOSIGNAL) == (ssize_t)bytes;
}

static void on_readable(evutil_socket_t fd, short what, void *userdata)
{
        if (answer(fd, MSG_DONTWAIT))
                return;
        event_free(userdata);
        close(fd);
}

static void on_connection(evutil_socket_t listener, short what, void *userdata)
{
        struct event_base *base = userdata;
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        struct event *event;

        if (fd < 0)
                return;
        event = event_new(base, fd, EV_READ | EV_PERSIST, on_readable, event_self_cbarg());
        if (!event || event_add(event, NULL) < 0)
                close(fd);
}

static int serve_on_libevent(int listener)
{
        struct event_base *base = event_base_new();
        struct event *event =
                base ? event_new(base, listener, EV_READ | EV_PERSIST, on_connection, base) : NULL;

        if (!event || event_add(event, NULL) < 0)
                return fail("libevent");
        event_base_dispatch(base);
        event_free(event);
        event_base_free(base);
        return 0;
}

static int serve_blocking(int listener)
{
        for (;;) {
                int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

                if (fd < 0)
                        return fail("accept");
                while (answer(fd, 0))
                        ;
                close(fd);
        }
}

int main(int argc, char *argv[])
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        bool blocking = argc == 3 && strcmp(argv[2], "--blocking") == 0;
        int fd;

        if ((argc != 2 && !blocking) || strlen(argv[1]) >= sizeof(address.sun_path)) {
                fputs("usage: measure-echo SOCKET [--blocking]\n", stderr);
                return 2;
        }
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        memcpy(address.sun_path, argv[1], strlen(argv[1]));
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return fail("socket");
        if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
                return fail(argv[1]);
        if (listen(fd, 8) < 0)
                return fail("listen");
        return blocking ? serve_blocking(fd) : serve_on_libevent(fd);
}
