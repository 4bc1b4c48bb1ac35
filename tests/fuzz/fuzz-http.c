/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP side: a connection that sends any bytes, in pieces, costs only itself; and the page for
 * people copes with any status text.
 *
 * libFuzzer runs it, against a real server on a Unix socket in the same thread. The first byte says
 * after how many bytes the rest goes out in a piece of its own, and whether the client closes its
 * side; what follows a NUL is the status that the page is made of. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "checked.h"
#include "report/http-host.h"
#include "report/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
        MAX_CONNECTIONS = 512,
};

static struct event_base *base;
static struct http *http;
static struct sockaddr_un where = { .sun_family = AF_UNIX };
static const char *status = "{}";

static void print_metrics(void *userdata, enum http_metrics format, FILE *out)
{
        fputs(format == HTTP_METRICS_OPENMETRICS ? "# EOF\n" : "kvcache_ready 1\n", out);
}

static void print_status(void *userdata, FILE *out)
{
        fputs(status, out);
}

static bool yes(void *userdata, const char **ret_why_not)
{
        return true;
}

static void clean_up(void)
{
        http_stop(http);
        event_base_free(base);
        rmdir(dirname(where.sun_path));
}

static void start(void)
{
        static char dir[] = "/tmp/kvcache-fuzz-XXXXXX";
        static char address[128];
        char error[256] = "";
        struct http_params params = {
                .address = address,
                .inherited_fd = -1,
                .max_connections = MAX_CONNECTIONS,
                .deadline_ms = 60000,
                .pages = {
                        .print_metrics = print_metrics,
                        .print_status = print_status,
                        .is_ready = yes,
                        .is_healthy = yes,
                },
        };
        int r;

        signal(SIGPIPE, SIG_IGN);
        base = event_base_new();
        assert(base && mkdtemp(dir));
        snprintf(where.sun_path, sizeof(where.sun_path), "%s/h", dir);
        snprintf(address, sizeof(address), "unix:%s", where.sun_path);
        r = http_start(&http, base, &params, error);
        assert(r == 0);
        atexit(clean_up);
}

static void turn(void)
{
        event_base_loop(base, EVLOOP_NONBLOCK);
}

/* Reads what is there. True: the end has come. */
static bool drain(int fd, bool *ret_something)
{
        static char buf[65536];
        ssize_t n;

        *ret_something = false;
        while ((n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT)) > 0)
                *ret_something = true;
        return n == 0 || (errno != EAGAIN && errno != EINTR);
}

static void say(int fd, const uint8_t *data, size_t n)
{
        bool something;

        for (unsigned tries = 0; n > 0 && tries < 1000; tries++) {
                ssize_t sent = send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);

                if (sent < 0 && errno != EAGAIN)
                        return;
                if (sent > 0) {
                        data += sent;
                        n -= (size_t)sent;
                }
                turn();
                if (drain(fd, &something))
                        return;
        }
}

/* The server of this program is on a Unix socket, and does not judge a Host. */
static void judge_host(const uint8_t *data, size_t size)
{
        char host[512];

        if (size >= sizeof(host))
                return;
        memcpy(host, data, size);
        host[size] = '\0';
        http_host_judge(host, &(struct http_host_names){ .own = "node.example" });
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static char text[65536];
        const uint8_t *nul;
        struct http_stats before, after;
        size_t first;
        bool shut, something;
        int fd;

        if (!base)
                start();
        if (size == 0 || size > sizeof(text) - 1)
                return 0;
        judge_host(data, size);
        first = data[0] & 0x7f;
        shut = data[0] & 0x80;
        data++;
        size--;
        nul = memchr(data, '\0', size);
        status = "{\"version\": \"0\", \"store\": {\"used_bytes\": 3072}}";
        if (nul) {
                size_t n = (size_t)(data + size - nul) - 1;

                memcpy(text, nul + 1, n);
                text[n] = '\0';
                status = text;
                size = (size_t)(nul - data);
        }
        first = MIN(first, size);
        http_get_stats(http, &before);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(fd >= 0);
        if (connect(fd, (struct sockaddr *)&where, sizeof(where)) == 0) {
                turn();
                say(fd, data, first);
                say(fd, data + first, size - first);
                if (shut)
                        shutdown(fd, SHUT_WR);
                /* A turn in which nothing comes is the last but one. */
                for (unsigned quiet = 0; quiet < 2 && !drain(fd, &something);) {
                        quiet = something ? 0 : quiet + 1;
                        turn();
                }
        }
        close(fd);
        turn();
        turn();
        http_get_stats(http, &after);
        /* A connection that left waits for its page to be made, and pages are spaced out in time.
         */
        while (after.open > MAX_CONNECTIONS / 2) {
                event_base_loop(base, EVLOOP_ONCE);
                http_get_stats(http, &after);
        }
        assert(after.connections == before.connections + 1);
        assert(after.connections_refused == before.connections_refused);
        return 0;
}
