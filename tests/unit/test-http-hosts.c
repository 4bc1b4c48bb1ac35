/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server and other hosts: none of them takes all connections or all pages. The test plays
 * the loop, all hosts, and the kernel, which reports a connection's host (--wrap=getpeername). */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <event2/event.h>

#include "base/clock.h"
#include "report/http.h"

enum {
        CONNECTIONS = 8,
        WAIT_S = 60,
        HERE = INADDR_LOOPBACK,
        HOST_A = 0x0a000001,
        HOST_B = 0x0a000002
};

static struct event_base *base;
static struct http *http;
static uint32_t from; /* where the next connection is from */

int __wrap_getpeername(int fd, struct sockaddr *address, socklen_t *length);
int __wrap_getpeername(int fd, struct sockaddr *address, socklen_t *length)
{
        *(struct sockaddr_in *)address =
                (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(from) };
        *length = sizeof(struct sockaddr_in);
        return 0;
}

static void print_metrics(void *userdata, enum http_metrics format, FILE *out)
{
        fputs("metrics", out);
}

static void print_status(void *userdata, FILE *out)
{
        fputs("{}", out);
}

static bool is_fine(void *userdata, const char **ret_text)
{
        *ret_text = "fine";
        return true;
}

static int setup(void **state)
{
        struct http_params params = {
                .address = "127.0.0.1:0",
                .inherited_fd = -1,
                .max_connections = CONNECTIONS,
                .deadline_ms = 600000,
                .pages = {
                        .print_metrics = print_metrics,
                        .print_status = print_status,
                        .is_ready = is_fine,
                        .is_healthy = is_fine,
                },
        };
        char error[256];

        signal(SIGPIPE, SIG_IGN);
        from = HERE;
        base = event_base_new();
        return http_start(&http, base, &params, error);
}

static int teardown(void **state)
{
        http = http_stop(http);
        event_base_free(base);
        return 0;
}

static void turn(void)
{
        assert_true(event_base_loop(base, EVLOOP_NONBLOCK) >= 0);
}

static struct http_stats stats(void)
{
        struct http_stats s;

        http_get_stats(http, &s);
        return s;
}

/* Connects, and waits until the server has admitted or refused the connection. */
static int connect_from(uint32_t host)
{
        struct sockaddr_in in = { .sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        uint64_t before = stats().connections,
                 until = clock_mono_ns() + WAIT_S * UINT64_C(1000000000);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        unsigned port = 0;

        from = host;
        assert_int_equal(sscanf(http_address(http), "http://127.0.0.1:%u", &port), 1);
        in.sin_port = htons((uint16_t)port);
        assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
        assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
        while (stats().connections == before) {
                assert_true(clock_mono_ns() < until);
                turn();
        }
        turn(); /* the iteration after the accept */
        turn();
        return fd;
}

/* Returns the code of the reply to a request for this path; closes the connection. */
static int ask(uint32_t host, const char *path)
{
        uint64_t until = clock_mono_ns() + WAIT_S * UINT64_C(1000000000);
        char text[512] = "";
        int fd = connect_from(host), code = 0;
        size_t n = 0;
        ssize_t got;

        snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
        assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
        while ((got = recv(fd, text + n, sizeof(text) - 1 - n, 0)) != 0 && n < sizeof(text) - 1) {
                assert_true(got > 0 || errno == EAGAIN);
                assert_true(clock_mono_ns() < until);
                n += got > 0 ? (size_t)got : 0;
                turn();
        }
        text[n] = '\0';
        assert_int_equal(sscanf(text, "HTTP/1.1 %d", &code), 1);
        close(fd);
        return code;
}

static void one_host_leaves_connections_to_others(void **state)
{
        int fds[CONNECTIONS], b, here;

        for (unsigned i = 0; i < CONNECTIONS; i++)
                fds[i] = connect_from(HOST_A);
        assert_int_equal(stats().open, 6);
        assert_int_equal(stats().connections_refused, 2);
        b = connect_from(HOST_B);
        here = connect_from(HERE);
        assert_int_equal(stats().open, 8);
        assert_int_equal(stats().connections_refused, 2);
        for (unsigned i = 0; i < CONNECTIONS; i++)
                close(fds[i]);
        close(b);
        close(here);
}

static void this_host_may_take_all_connections(void **state)
{
        int fds[CONNECTIONS];

        for (unsigned i = 0; i < CONNECTIONS; i++)
                fds[i] = connect_from(HERE);
        assert_int_equal(stats().open, CONNECTIONS);
        for (unsigned i = 0; i < CONNECTIONS; i++)
                close(fds[i]);
}

static void each_host_has_a_rate_of_pages_of_its_own(void **state)
{
        http_set_limits(http, CONNECTIONS, 600000, 1);
        assert_int_equal(ask(HOST_A, "/metrics"), 200);
        assert_int_equal(ask(HOST_B, "/status"), 200);
        assert_int_equal(ask(HERE, "/metrics"), 200);
        assert_int_equal(stats().over_rate, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(one_host_leaves_connections_to_others),
                TEST(this_host_may_take_all_connections),
                TEST(each_host_has_a_rate_of_pages_of_its_own),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
