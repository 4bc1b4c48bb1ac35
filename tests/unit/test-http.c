/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server from outside: a real server on loopback, port 0, and clients on plain sockets in
 * the same thread, which run the event loop until the awaited data has arrived. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "../lib/open-fds.h"
#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "timeout.h"
#include "report/history.h"
#include "report/http.h"

enum { WAIT_MS = 60000, BIG = 8 * 1024 * 1024 };

/* State of the fake daemon. */
static struct {
        bool ready, healthy, big;
        const char *degraded; /* text of /readyz while ready */
        const char *status;
        const struct history *history;
        unsigned slow_ms; /* how long a status takes */
        bool removes;     /* the namespace is removed once it was found */
} fake;

static struct event_base *base;
static struct http *http;
static char error[256];

static void print_metrics(void *userdata, enum http_metrics format, FILE *out)
{
        assert_ptr_equal(userdata, &fake);
        for (int i = 0; fake.big && i < BIG / 64; i++)
                fprintf(out, "# %061d\n", i);
        fputs(format == HTTP_METRICS_OPENMETRICS ? "# EOF\n" : "kvcache_ready 1\n", out);
}

static unsigned n_statuses; /* made so far */

static void print_status(void *userdata, FILE *out)
{
        n_statuses++;
        if (fake.slow_ms)
                usleep(fake.slow_ms * 1000);
        fputs(fake.status, out);
}

static bool find_namespace(void *userdata, const char *name, size_t length, uint32_t *ret_id)
{
        *ret_id = 7;
        return length == 5 && memcmp(name, "llama", length) == 0;
}

static bool print_namespace(void *userdata, uint32_t id, bool paused, FILE *out)
{
        assert_int_equal(id, 7);
        fputs("<h1>llama</h1>", out);
        return !fake.removes;
}

static bool is_ready(void *userdata, const char **ret_why_not)
{
        if (!fake.ready)
                *ret_why_not = "reading the <tables>";
        else if (fake.degraded)
                *ret_why_not = fake.degraded;
        return fake.ready;
}

static bool is_healthy(void *userdata, const char **ret_why_not)
{
        if (!fake.healthy)
                *ret_why_not = "a worker hangs";
        return fake.healthy;
}

static bool allow_remote;
static char kvcache_name[] = "Kvcache.example.com", proxy_name[] = "proxy";
static char *const further_names[] = { kvcache_name, proxy_name };

static int start_at(const char *address, int inherited_fd)
{
        struct http_params params = {
                .address = address,
                .inherited_fd = inherited_fd,
                .allow_remote = allow_remote,
                .hosts = further_names,
                .n_hosts = ARRAY_SIZE(further_names),
                .max_connections = 8,
                .deadline_ms = 60000,
                .pages = {
                        .history = fake.history,
                        .print_metrics = print_metrics,
                        .print_status = print_status,
                        .find_namespace = find_namespace,
                        .print_namespace = print_namespace,
                        .is_ready = is_ready,
                        .is_healthy = is_healthy,
                        .userdata = &fake,
                },
        };

        return http_start(&http, base, &params, error);
}

static int setup_base(void **state)
{
        signal(SIGPIPE, SIG_IGN);
        fake.ready = fake.healthy = true;
        fake.big = false;
        fake.degraded = NULL;
        fake.history = NULL;
        fake.removes = false;
        fake.status =
                "{\"version\": \"0.1\", \"store\": {\"used_bytes\": 3072, \"path\": \"<b>&\"}}";
        base = event_base_new();
        return base ? 0 : -1;
}

static int setup(void **state)
{
        return setup_base(state) == 0 ? start_at("127.0.0.1:0", -1) : -1;
}

static int teardown(void **state)
{
        http = http_stop(http);
        event_base_free(base);
        return 0;
}

static bool any_address; /* listen on 0.0.0.0 */

static uint16_t port(void)
{
        unsigned n = 0;

        assert_int_equal(sscanf(http_address(http),
                                any_address ? "http://0.0.0.0:%u" : "http://127.0.0.1:%u", &n),
                         1);
        assert_in_range(n, 1, 65535);
        return (uint16_t)n;
}

static struct http_stats stats(void)
{
        struct http_stats s;

        http_get_stats(http, &s);
        return s;
}

static void turn(void)
{
        assert_true(event_base_loop(base, EVLOOP_NONBLOCK) >= 0);
}

/* Turns the loop until the condition holds; a test that waits in vain fails. */
#define WAIT_FOR(condition)                                                                        \
        do {                                                                                       \
                uint64_t until_ = clock_mono_ns() + (uint64_t)test_timeout_ms(WAIT_MS) * 1000000;  \
                while (!(condition)) {                                                             \
                        assert_true(clock_mono_ns() < until_);                                     \
                        turn();                                                                    \
                }                                                                                  \
        } while (0)

static int client(void)
{
        struct sockaddr_in in = {
                .sin_family = AF_INET,
                .sin_port = htons(port()),
                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
        };
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        assert_true(fd >= 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&in, sizeof(in)), 0);
        assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
        return fd;
}

static void say(int fd, const char *text)
{
        size_t n = strlen(text), done = 0;

        while (done < n) {
                ssize_t sent = send(fd, text + done, n - done, MSG_NOSIGNAL);

                if (sent < 0 && (errno == EPIPE || errno == ECONNRESET))
                        return; /* the server has heard enough */
                assert_true(sent > 0 || errno == EAGAIN);
                done += sent > 0 ? (size_t)sent : 0;
                turn();
        }
}

/* Sends at once, without an iteration of the loop. */
static void send_status_request(int fd)
{
        static const char request[] = "GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n";

        (void)!send(fd, request, strlen(request), MSG_NOSIGNAL);
}

/* Returns everything that the server sends until it closes or resets the connection. */
static char *hear(int fd)
{
        char *text = NULL;
        size_t n;
        FILE *f = open_memstream(&text, &n);
        ssize_t got = -1;
        static char piece[65536];
        uint64_t until = clock_mono_ns() + (uint64_t)test_timeout_ms(WAIT_MS) * 1000000;

        while (got != 0) {
                assert_true(clock_mono_ns() < until);
                turn();
                got = recv(fd, piece, sizeof(piece), 0);
                if (got < 0 && errno == ECONNRESET)
                        break;
                assert_true(got >= 0 || errno == EAGAIN);
                if (got > 0)
                        fwrite(piece, 1, (size_t)got, f);
        }
        assert_int_equal(fclose(f), 0);
        return text;
}

static char *ask(const char *request)
{
        _cleanup_(closep) int fd = client();

        say(fd, request);
        return hear(fd);
}

static void assert_code(const char *reply, int code)
{
        char line[32];

        snprintf(line, sizeof(line), "HTTP/1.1 %d ", code);
        if (strncmp(reply, line, strlen(line)) != 0)
                fail_msg("expected %d, got: %.200s", code, reply);
}

static void assert_has(const char *reply, const char *text)
{
        if (!strstr(reply, text))
                fail_msg("no \"%s\" in: %.2000s", text, reply);
}

static const char *body(const char *reply)
{
        const char *end = strstr(reply, "\r\n\r\n");

        assert_non_null(end);
        return end + 4;
}

static void metrics_are_prometheus_text_unless_asked_otherwise(void **state)
{
        static const struct {
                const char *accept;
                bool openmetrics;
        } cases[] = {
                { "", false },
                { "Accept: */*\r\n", false },
                { "Accept: application/openmetrics-text\r\n", true },
                { "Accept: application/openmetrics-text; version=1.0.0\r\n", true },
                { "Accept: "
                  "application/openmetrics-text;version=1.0.0;q=0.5,application/"
                  "openmetrics-text;version=0.0.1;q=0.4,"
                  "text/plain;version=0.0.4;q=0.3,*/*;q=0.2\r\n",
                  true },
                { "Accept: text/plain;q=0.5,application/openmetrics-text;q=0.4\r\n", false },
                { "Accept: application/openmetrics-text;q=0\r\n", false },
                { "Accept: application/openmetrics-text;q=0.000\r\n", false },
                { "Accept: application/openmetrics-textual\r\n", false },
                { "Accept: ;;;,,,;q=,application/openmetrics-text;q\r\n", true },
                { "Accept: ,\r\n", false },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                _cleanup_(freep) char *reply = NULL;
                char request[512];

                snprintf(request, sizeof(request),
                         "GET /metrics HTTP/1.1\r\nHost: localhost\r\n%s\r\n", cases[i].accept);
                reply = ask(request);
                assert_code(reply, 200);
                assert_has(reply,
                           cases[i].openmetrics
                                   ? "Content-Type: application/openmetrics-text; version=1.0.0"
                                   : "Content-Type: text/plain; version=0.0.4");
                assert_string_equal(body(reply),
                                    cases[i].openmetrics ? "# EOF\n" : "kvcache_ready 1\n");
        }
        assert_int_equal(stats().requests, ARRAY_SIZE(cases));
}

static void health_and_readiness_say_why_not(void **state)
{
        _cleanup_(freep) char *fine = NULL, *ready = NULL, *not_ready = NULL, *not_healthy = NULL;

        fine = ask("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(fine, 200);
        assert_string_equal(body(fine), "ok\n");
        ready = ask("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(ready, 200);
        assert_string_equal(body(ready), "ready\n");

        fake.ready = false;
        not_ready = ask("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(not_ready, 503);
        assert_string_equal(body(not_ready), "reading the <tables>\n");
        fake.healthy = false;
        not_healthy = ask("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(not_healthy, 503);
        assert_string_equal(body(not_healthy), "a worker hangs\n");
}

static void the_page_shows_the_status_and_escapes_it(void **state)
{
        _cleanup_(freep) char *page = NULL, *query = NULL, *json = NULL, *not_ready = NULL;

        page = ask("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(page, 200);
        assert_has(page, "Content-Type: text/html");
        assert_has(page, "3 KiB");
        assert_has(page, "&lt;b&gt;&amp;");
        assert_null(strstr(page, "<b>"));
        query = ask("GET /?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(query, 200);

        json = ask("GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_has(json, "Content-Type: application/json");
        assert_string_equal(body(json), fake.status);

        /* Refusals are counted as requests even for resources counted in bytes. */
        fake.status = "{\"resources\": {\"staging_bytes\": {\"used\": 2048, \"refused\": 4096}}}";
        fake.ready = false;
        not_ready = ask("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(not_ready, 200);
        assert_has(not_ready, "2 KiB");
        assert_null(strstr(not_ready, "4 KiB"));
        assert_has(not_ready, "reading the &lt;tables&gt;");
}

static void the_page_stands_whatever_the_status_is(void **state)
{
        static const char *const statuses[] = {
                "",
                "{",
                "null",
                "[]",
                "17",
                "{}",
                "{\"a\": null, \"b\": [1, true, [], {}], \"c\": {\"d\": {}}, \"_bytes\": 1}",
                "{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{"
                "\"a\":1}}}}}}}}}}}}",
                "{\"t\": [{\"a\": 1, \"b\": {}}, {\"b\": [{}]}, 3, {}], \"u\": [{}, {}], \"v\": "
                "[[{\"a\": []}]]}",
                "{\"x_bytes\": 1e300, \"y_bytes\": -5, \"z_seconds\": 1e-9, \"n\": -1234567.0, "
                "\"s\": \"\", \"\": \"\"}",
        };

        for (size_t i = 0; i < ARRAY_SIZE(statuses); i++) {
                _cleanup_(freep) char *page = NULL;

                fake.status = statuses[i];
                page = ask("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
                assert_code(page, 200);
                assert_has(page, "</html>\n");
        }
}

static void the_page_is_served_so_that_nothing_else_is_loaded(void **state)
{
        static const char *const paths[] = { "/", "/?paused", "/?paused=1" };

        for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
                _cleanup_(freep) char *page = NULL;
                char request[128];

                snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n",
                         paths[i]);
                page = ask(request);
                assert_code(page, 200);
                assert_has(page, "Content-Security-Policy: default-src 'none'; style-src 'sha256-");
                assert_has(page, "X-Content-Type-Options: nosniff\r\n");
                assert_has(page, "Referrer-Policy: no-referrer\r\n");
                assert_has(page, "Cache-Control: no-store\r\n");
                assert_null(strstr(page, "unsafe"));
                assert_true(!strstr(page, "http-equiv=\"refresh\"") == (i == 1));
        }
}

static void the_history_is_served_where_there_is_one(void **state)
{
        _cleanup_(freep) char *none = NULL, *reply = NULL, *page = NULL;
        static struct history history;
        static struct history_counters counters;

        none = ask("GET /history HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(none, 404);
        http = http_stop(http);
        fake.history = &history;
        assert_int_equal(start_at("127.0.0.1:0", -1), 0);
        history_add(&history, clock_mono_ns() - UINT64_C(5000000000), &counters);
        counters.counters[HISTORY_PUT_BYTES] = UINT64_C(5) << 20;
        history_add(&history, clock_mono_ns(), &counters);
        reply = ask("GET /history HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(reply, 200);
        assert_has(reply, "Content-Type: application/json");
        assert_has(reply, "\"put_bytes\": 5242880, ");
        page = ask("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_has(page, "put <b>1 MiB/s</b>");
}

static void head_has_the_length_and_no_body(void **state)
{
        _cleanup_(freep) char *reply = NULL;

        reply = ask("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(reply, 200);
        assert_has(reply, "Content-Length: 16\r\n");
        assert_string_equal(body(reply), "");
}

static void other_paths_and_methods_are_refused(void **state)
{
        static const char *const paths[] = { "/nothing", "/metrics/", "/../etc/passwd", "/%2e%2e/",
                                             "/status%00" };
        static const char *const methods[] = {
                "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"
        };
        char request[256];

        for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
                _cleanup_(freep) char *reply = NULL;

                snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n",
                         paths[i]);
                reply = ask(request);
                assert_code(reply, 404);
                assert_has(reply, "Content-Type: text/plain");
        }
        for (size_t i = 0; i < ARRAY_SIZE(methods); i++) {
                _cleanup_(freep) char *reply = NULL;

                snprintf(request, sizeof(request),
                         "%s /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n",
                         methods[i]);
                reply = ask(request);
                assert_code(reply, 405);
                assert_has(reply, "Allow: GET, HEAD\r\n");
        }
}

/* A page is made in a later iteration than its request is read, and after a pause if another one
 * was made before. */
static void a_namespace_removed_before_its_page_is_made_is_answered_404(void **state)
{
        static const char request[] =
                "GET /namespace?name=llama HTTP/1.1\r\nHost: localhost\r\n\r\n";
        _cleanup_(freep) char *before = ask(request), *absent = NULL, *removed = NULL;

        assert_code(before, 200);
        assert_string_equal(body(before), "<h1>llama</h1>");
        absent = ask("GET /namespace?name=other HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(absent, 404);
        fake.removes = true;
        removed = ask(request);
        assert_code(removed, 404);
        assert_string_equal(body(removed), body(absent));
        assert_null(strstr(removed, "Content-Security-Policy"));
}

static void one_connection_serves_one_request(void **state)
{
        _cleanup_(freep) char *reply = NULL;

        reply = ask("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /metrics "
                    "HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_code(reply, 200);
        assert_has(reply, "Connection: close\r\n");
        assert_null(strstr(reply, "kvcache_ready"));
        assert_int_equal(stats().requests, 1);
}

static const char right_token[] = "0123456789abcdef~token";

static void set_token(void)
{
        struct http_token token = { .n = sizeof(right_token) - 1 };

        memcpy(token.bytes, right_token, token.n);
        assert_true(http_set_token(http, &token));
        assert_false(http_set_token(http, &token));
        assert_true(http_needs_token(http));
}

static void pages_need_the_token_and_the_probes_do_not(void **state)
{
        static const char *const pages[] = { "/", "/?x", "/status", "/metrics", "/nothing" };
        static const char *const wrong[] = {
                "",
                "Authorization:\r\n",
                "Authorization: Bearer\r\n",
                "Authorization: Bearer \r\n",
                "Authorization: 0123456789abcdef~token\r\n",
                "Authorization: Basic 0123456789abcdef~token\r\n",
                "Authorization: Bearer0123456789abcdef~token\r\n",
                "Authorization: Bearer 0123456789abcdef~toke\r\n",
                "Authorization: Bearer 0123456789abcdef~token2\r\n",
                "Authorization: Bearer 0123456789abcdef ~token\r\n",
                "Authorization: Bearer 0123456789ABCDEF~token\r\n",
                "X-Authorization: Bearer 0123456789abcdef~token\r\n",
        };
        static const char *const right[] = {
                "Authorization: Bearer 0123456789abcdef~token\r\n",
                "authorization: bearer   0123456789abcdef~token  \r\n",
        };
        char request[512];

        set_token();
        for (size_t i = 0; i < ARRAY_SIZE(pages); i++)
                for (size_t j = 0; j < ARRAY_SIZE(wrong); j++) {
                        _cleanup_(freep) char *reply = NULL;

                        snprintf(request, sizeof(request),
                                 "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", pages[i],
                                 wrong[j]);
                        reply = ask(request);
                        assert_code(reply, 401);
                        assert_has(reply, "WWW-Authenticate: Bearer realm=\"kvcache\"\r\n");
                        assert_null(strstr(reply, "0123456789"));
                }
        assert_int_equal(stats().unauthorized, ARRAY_SIZE(pages) * ARRAY_SIZE(wrong));
        for (size_t i = 0; i < ARRAY_SIZE(pages); i++)
                for (size_t j = 0; j < ARRAY_SIZE(right); j++) {
                        _cleanup_(freep) char *reply = NULL;

                        snprintf(request, sizeof(request),
                                 "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", pages[i],
                                 right[j]);
                        reply = ask(request);
                        assert_code(reply, i < 4 ? 200 : 404);
                }
        for (size_t i = 0; i < 2; i++) {
                _cleanup_(freep) char *reply = NULL;

                reply = ask(i == 0 ? "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
                                   : "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
                assert_code(reply, 200);
        }
        assert_int_equal(stats().unauthorized, ARRAY_SIZE(pages) * ARRAY_SIZE(wrong));
}

static void a_token_as_long_as_the_headers_may_be_is_only_wrong(void **state)
{
        char request[4096 + 128];
        size_t n = (size_t)sprintf(
                request, "GET /status HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ");
        _cleanup_(freep) char *reply = NULL;

        set_token();
        memset(request + n, '0', 4096);
        strcpy(request + n + 4096, "\r\n\r\n");
        reply = ask(request);
        assert_code(reply, 401);
}

static void a_probe_says_its_first_line_alone_without_the_token(void **state)
{
        _cleanup_(freep) char *open = NULL, *without = NULL, *with = NULL;

        fake.degraded = "ready\ndegraded: volume /secret is failed";
        open = ask("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_string_equal(body(open), "ready\ndegraded: volume /secret is failed\n");
        set_token();
        without = ask("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(without, 200);
        assert_string_equal(body(without), "ready\n");
        with = ask("GET /readyz HTTP/1.1\r\nHost: localhost\r\n"
                   "Authorization: Bearer 0123456789abcdef~token\r\n\r\n");
        assert_string_equal(body(with), "ready\ndegraded: volume /secret is failed\n");
}

/* --- Host --- */

/* Asks for `path` with these lines of headers. */
static char *ask_as(const char *path, const char *version, const char *headers)
{
        char request[1024];

        snprintf(request, sizeof(request), "GET %s HTTP/%s\r\n%s\r\n", path, version, headers);
        return ask(request);
}

static void expect_code_as(const char *path, const char *headers, int code)
{
        _cleanup_(freep) char *reply = ask_as(path, "1.1", headers);

        assert_code(reply, code);
}

static void pages_are_sent_under_names_of_this_server_only(void **state)
{
        static const char *const pages[] = { "/", "/?paused", "/metrics", "/status", "/nothing" };
        char own[128], name[64];

        assert_int_equal(gethostname(name, sizeof(name)), 0);
        snprintf(own, sizeof(own), "Host: %s:9750\r\n", name);
        for (size_t i = 0; i < ARRAY_SIZE(pages); i++) {
                int code = strcmp(pages[i], "/nothing") == 0 ? 404 : 200;

                expect_code_as(pages[i], "Host: 127.0.0.1\r\n", code);
                expect_code_as(pages[i], "host: [::1]:80\r\n", code);
                expect_code_as(pages[i], "Host: localhost:1234\r\n", code);
                expect_code_as(pages[i], own, code);
                expect_code_as(pages[i], "Host: kvcache.EXAMPLE.com.\r\n", code);
                expect_code_as(pages[i], "Host: evil.example\r\n", 421);
                expect_code_as(pages[i], "Host: localhost.evil.example:80\r\n", 421);
        }
        assert_int_equal(stats().misdirected, 2 * ARRAY_SIZE(pages));
        _cleanup_(freep) char *reply = ask_as("/status", "1.1", "Host: evil.example\r\n");

        assert_has(reply, "HTTP/1.1 421 Misdirected Request\r\n");
        assert_has(body(reply), "add the name to http.hosts");
        assert_null(strstr(reply, "evil"));
        assert_null(strstr(reply, "used_bytes"));
}

static void host_is_required_once_and_well_formed(void **state)
{
        static const char *const malformed[] = {
                "",
                "X: localhost\r\n",
                "Host:\r\n",
                "Host: localhost\r\nHost: localhost\r\n",
                "Host: localhost\r\nhost: evil.example\r\n",
                "Host: http://localhost\r\n",
                "Host: localhost:80:80\r\n",
                "Host: user@localhost\r\n",
                "Host: localhost, localhost\r\n",
                "Host: [::1\r\n",
                "Host: [127.0.0.1]\r\n",
                "Host: loc\x80lhost\r\n",
        };

        for (size_t i = 0; i < ARRAY_SIZE(malformed); i++) {
                expect_code_as("/status", malformed[i], 400);
                expect_code_as("/healthz", malformed[i], 400);
        }
        assert_int_equal(stats().misdirected, 0);
        /* HTTP/1.0 requires no Host, but a given one counts. */
        for (unsigned i = 0; i < 2; i++) {
                _cleanup_(freep) char *reply =
                        ask_as("/status", "1.0", i == 0 ? "" : "Host: evil.example\r\n");

                assert_has(reply, i == 0 ? " 200 " : " 421 ");
        }
}

static void host_of_an_absolute_uri_counts_as_well(void **state)
{
        expect_code_as("http://127.0.0.1/status", "Host: localhost\r\n", 200);
        expect_code_as("http://[::1]:9/status", "Host: localhost\r\n", 200);
        expect_code_as("http://evil.example/status", "Host: localhost\r\n", 421);
        expect_code_as("http://localhost/status", "Host: evil.example\r\n", 421);
        expect_code_as("http://localhost/status", "", 400);
}

static void probes_answer_their_first_line_under_every_name(void **state)
{
        _cleanup_(freep) char *own = NULL, *other = NULL, *healthy = NULL;

        fake.degraded = "ready\ndegraded: volume /secret is failed";
        own = ask_as("/readyz", "1.1", "Host: 127.0.0.1\r\n");
        assert_string_equal(body(own), "ready\ndegraded: volume /secret is failed\n");
        other = ask_as("/readyz", "1.1", "Host: evil.example\r\n");
        assert_code(other, 200);
        assert_string_equal(body(other), "ready\n");
        healthy = ask_as("/healthz", "1.1", "Host: evil.example\r\n");
        assert_code(healthy, 200);
        assert_int_equal(stats().misdirected, 0);
}

static void request_with_the_token_may_have_any_name(void **state)
{
        set_token();
        expect_code_as("/status",
                       "Host: evil.example\r\nAuthorization: Bearer 0123456789abcdef~token\r\n",
                       200);
        expect_code_as("/status", "Host: evil.example\r\n", 401);
        expect_code_as("/metrics", "Host: evil.example\r\n", 401);
        expect_code_as("/status", "Host: a b\r\nAuthorization: Bearer 0123456789abcdef~token\r\n",
                       400);
}

static void metrics_of_a_server_for_other_hosts_are_sent_under_any_name(void **state)
{
        http = http_stop(http);
        allow_remote = any_address = true;
        assert_int_equal(start_at("0.0.0.0:0", -1), 0);
        expect_code_as("/metrics", "Host: kvcache.monitoring.svc:9750\r\n", 200);
        expect_code_as("/metrics", "", 400);
        expect_code_as("/", "Host: kvcache.monitoring.svc:9750\r\n", 421);
        expect_code_as("/status", "Host: kvcache.monitoring.svc:9750\r\n", 421);
        expect_code_as("/status", "Host: proxy\r\n", 200);
        allow_remote = any_address = false;
}

static void more_pages_than_the_rate_are_refused_and_the_probes_never(void **state)
{
        unsigned refused = 0;

        http_set_limits(http, 8, 60000, 2);
        for (unsigned i = 0; i < 6; i++) {
                _cleanup_(freep) char *reply = NULL, *probe = NULL;

                reply = ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
                if (strncmp(reply, "HTTP/1.1 429 Too Many Requests\r\n", 32) == 0) {
                        refused++;
                        assert_has(reply, "Retry-After: 1\r\n");
                } else {
                        assert_code(reply, 200);
                }
                probe = ask("GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
                assert_code(probe, 200);
        }
        /* Two requests pass at once; more only if this took longer than half a second. */
        assert_in_range(refused, 1, 4);
        assert_int_equal(stats().over_rate, refused);
        http_set_limits(http, 8, 60000, 0);
        for (unsigned i = 0; i < 10; i++) {
                _cleanup_(freep) char *reply =
                        ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");

                assert_code(reply, 200);
        }
}

/* With any input, the connection ends and the next client is served. */
static void garbage_costs_only_its_connection(void **state)
{
        static const char *const requests[] = {
                "\r\n\r\n\r\n",
                "garbage\r\n\r\n",
                "GET\r\n\r\n",
                "GET / HTTP/9.9\r\n\r\n",
                "GET / HTTP/1.1\r\nno colon here\r\n\r\n",
                "GET http://[::1/ HTTP/1.1\r\n\r\n",
                "BREW /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
                "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
                "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
                "POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                "99999999999999999999999\r\n\r\n",
                "POST /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                "chunked\r\n\r\nfffffffffffffffff\r\n",
                "\x16\x03\x01\x02\x01\x01",
                "\xff\xfe\xfd\n\n",
        };

        for (size_t i = 0; i < ARRAY_SIZE(requests); i++) {
                _cleanup_(closep) int fd = client();
                _cleanup_(freep) char *reply = NULL, *after = NULL;

                say(fd, requests[i]);
                shutdown(fd, SHUT_WR);
                reply = hear(fd);
                assert_null(strstr(reply, "200 OK"));
                after = ask("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
                assert_code(after, 200);
        }
        assert_int_equal(stats().deadlines, 0);
}

static void oversized_headers_are_refused(void **state)
{
        _cleanup_(freep) char *line = malloc(70000), *reply = NULL, *headers = NULL;

        strcpy(line, "GET /");
        memset(line + 5, 'a', 60000);
        strcpy(line + 60005, " HTTP/1.1\r\n\r\n");
        reply = ask(line);
        assert_null(strstr(reply, "404"));

        strcpy(line, "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ");
        memset(line + strlen("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "), 'a', 60000);
        strcpy(line + strlen("GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ") + 60000,
               "\r\n\r\n");
        headers = ask(line);
        assert_null(strstr(headers, "200 OK"));
        assert_int_equal(stats().requests, 0);
}

static void a_silent_client_is_cut_by_the_deadline(void **state)
{
        _cleanup_(closep) int fd = -1;
        _cleanup_(freep) char *heard = NULL;

        http_set_limits(http, 8, 50, 0);
        fd = client();
        heard = hear(fd);
        assert_string_equal(heard, "");
        assert_int_equal(stats().deadlines, 1);
}

/* Each byte resets an idle timeout, but not this one. */
static void a_trickling_client_is_cut_by_the_deadline(void **state)
{
        _cleanup_(closep) int fd = -1;
        uint64_t began, until, sent = 0;

        http_set_limits(http, 8, 150, 0);
        fd = client();
        began = clock_mono_ns();
        until = began + (uint64_t)test_timeout_ms(WAIT_MS) * 1000000;
        say(fd, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: ");
        while (stats().deadlines == 0) {
                assert_true(clock_mono_ns() < until);
                if (clock_mono_ns() - sent > 2000000) {
                        (void)!send(fd, "a", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
                        sent = clock_mono_ns();
                }
                turn();
        }
        assert_true(clock_mono_ns() - began >= 140000000u);
        assert_int_equal(stats().requests, 0);
}

static void a_client_that_does_not_read_is_cut_by_the_deadline(void **state)
{
        _cleanup_(closep) int fd = -1;
        _cleanup_(freep) char *after = NULL;

        fake.big = true;
        http_set_limits(http, 8, 150, 0);
        fd = client();
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){ 4096 }, sizeof(int)), 0);
        say(fd, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        WAIT_FOR(stats().requests == 1);
        WAIT_FOR(stats().deadlines == 1);

        fake.big = false;
        http_set_limits(http, 8, 60000, 0);
        after = ask("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(after, 200);
}

static void a_large_reply_comes_whole(void **state)
{
        _cleanup_(freep) char *reply = NULL;

        fake.big = true;
        reply = ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(reply, 200);
        assert_true(strlen(body(reply)) > BIG - 64);
}

static void connections_over_the_cap_are_refused_and_places_come_back(void **state)
{
        int fds[3];

        http_set_limits(http, 3, 60000, 0);
        for (unsigned i = 0; i < 3; i++)
                fds[i] = client();
        WAIT_FOR(stats().connections == 3);
        for (unsigned i = 0; i < 5; i++) {
                _cleanup_(closep) int fd = client();
                _cleanup_(freep) char *refused = hear(fd);

                assert_code(refused, 503);
                assert_has(refused, "too many connections");
                assert_int_equal(stats().connections_refused, i + 1);
        }

        /* The other three connections are not affected, and their places are free once they are
         * closed. */
        for (unsigned i = 0; i < 3; i++) {
                _cleanup_(freep) char *reply = NULL, *after = NULL;

                say(fds[i], "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
                reply = hear(fds[i]);
                assert_code(reply, 200);
                close(fds[i]);
                after = ask("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
                assert_code(after, 200);
        }
        assert_int_equal(stats().connections_refused, 5);
        assert_int_equal(stats().connections, 3 + 5 + 3);
}

/* A slow page is made once for all waiting requests, and the loop then has time for other work. A
 * later request gets a new page, never an older one. */
static void test_R13_a_page_is_made_once_for_all_that_wait_and_seldom(void **state)
{
        enum { N = 6 };
        uint64_t began_ns, turns = 0;
        int fd[N], late;
        char *text;

        fake.slow_ms = 10;
        n_statuses = 0;
        for (unsigned i = 0; i < N; i++)
                fd[i] = client();
        WAIT_FOR(stats().connections == N);
        began_ns = clock_mono_ns();
        for (unsigned i = 0; i < N; i++)
                send_status_request(fd[i]);
        WAIT_FOR(stats().requests == N);
        assert_in_range(n_statuses, 1, 2);

        fake.status = "{\"later\": true}";
        late = client();
        send_status_request(late);
        while (stats().requests == N) {
                turn();
                turns++;
        }
        /* The page before, and nineteen times as long. */
        assert_true(clock_mono_ns() - began_ns > 190000000);
        assert_true(turns > 10);
        text = hear(late);
        assert_non_null(strstr(text, "later"));
        free(text);
        for (unsigned i = 0; i < N; i++) {
                text = hear(fd[i]);
                assert_non_null(strstr(text, "used_bytes"));
                free(text);
        }
        fake.slow_ms = 0;
}

/* The client closes, or its time is over, before its page is made. */
static void a_request_that_ends_while_it_waits_leaks_nothing(void **state)
{
        int first, second, third;

        fake.slow_ms = 20;
        first = client();
        send_status_request(first);
        WAIT_FOR(stats().requests == 1);
        http_set_limits(http, 8, 100, 0);
        second = client();
        third = client();
        send_status_request(second);
        send_status_request(third);
        WAIT_FOR(stats().connections == 3);
        for (unsigned i = 0; i < 20; i++)
                turn();
        close(second);
        WAIT_FOR(stats().deadlines >= 1);
        assert_int_equal(stats().requests, 1);
        close(first);
        close(third);
        fake.slow_ms = 0;
}

static void clients_that_leave_in_every_state_leak_nothing(void **state)
{
        static const char *const said[] = {
                "",
                "G",
                "GET /metrics HTTP/1.1\r\n",
                "GET /metrics HTTP/1.1\r\nHost: localhost\r\n",
                "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
                "POST / HTTP/1.1\r\nContent-Length: 0\r\n",
        };
        unsigned before = open_fds();

        fake.big = true;
        for (unsigned round = 0; round < 4; round++) {
                for (size_t i = 0; i < ARRAY_SIZE(said); i++) {
                        int fd = client();

                        if (round & 1)
                                turn();
                        (void)!send(fd, said[i], strlen(said[i]), MSG_NOSIGNAL);
                        if (round & 2)
                                turn();
                        /* Every other client resets its connection. */
                        if (i & 1)
                                setsockopt(fd, SOL_SOCKET, SO_LINGER,
                                           &(struct linger){ .l_onoff = 1 }, sizeof(struct linger));
                        close(fd);
                }
        }
        WAIT_FOR(open_fds() == before);
        assert_int_equal(stats().deadlines, 0);
}

static void stopping_closes_what_is_open(void **state)
{
        int fds[4];
        unsigned before = open_fds();

        for (unsigned i = 0; i < 4; i++) {
                fds[i] = client();
                if (i == 1)
                        WAIT_FOR(stats().connections == 2);
        }
        say(fds[0], "GET /metrics HTTP/1.1\r\n");
        http = http_stop(http);
        for (unsigned i = 0; i < 4; i++)
                close(fds[i]);
        turn(); /* libevent frees the connections in the next iteration */
        assert_int_equal(open_fds(), before - 1); /* and the listener */
}

static void running_out_of_descriptors_does_not_spin(void **state)
{
        struct rlimit old, low;
        _cleanup_(freep) char *reply = NULL;
        _cleanup_(closep) int fd = client();
        unsigned turns = 0;
        uint64_t until;
        int fill[64], n = 0;

        assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
        low = old;
        low.rlim_cur = (rlim_t)fd + 8;
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
        while (n < 64 && (fill[n] = dup(fd)) >= 0)
                n++;
        assert_int_equal(errno, EMFILE);

        /* The listener is readable all the while: were it armed, each of these would return at
         * once. */
        until = clock_mono_ns() + 250000000u;
        while (clock_mono_ns() < until) {
                event_base_loop(base, EVLOOP_ONCE);
                turns++;
        }
        while (n > 0)
                close(fill[--n]);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
        assert_true(turns < 50);
        assert_int_equal(stats().connections, 0);
        say(fd, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        reply = hear(fd);
        assert_code(reply, 200);
}

static int listening(uint32_t address, int type, bool listens)
{
        struct sockaddr_in in = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(address) };
        int fd = socket(AF_INET, type, 0);

        assert_true(fd >= 0);
        assert_int_equal(bind(fd, (struct sockaddr *)&in, sizeof(in)), 0);
        if (listens)
                assert_int_equal(listen(fd, 8), 0);
        return fd;
}

static void only_loopback_addresses_are_taken(void **state)
{
        static const struct {
                const char *address;
                int result;
        } cases[] = {
                { "0.0.0.0:0", -EPERM },
                { "8.8.8.8:80", -EPERM },
                { "[::]:0", -EPERM },
                { "[2001:db8::1]:1", -EPERM },
                { "[::ffff:127.0.0.1]:0", -EPERM },
                { "", -EINVAL },
                { ":", -EINVAL },
                { ":80", -EINVAL },
                { "127.0.0.1", -EINVAL },
                { "127.0.0.1:", -EINVAL },
                { "127.0.0.1:65536", -EINVAL },
                { "127.0.0.1:-1", -EINVAL },
                { "127.0.0.1:1x", -EINVAL },
                { "::1:80", -EINVAL },
                { "[::1:80", -EINVAL },
                { "[]:80", -EINVAL },
                { "example.org:80", -EINVAL },
                { "unix:", -EINVAL },
                { "unix:relative", -EINVAL },
                { "127.1:80", -EINVAL },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                int r = start_at(cases[i].address, -1);

                if (r != cases[i].result)
                        fail_msg("%s: %d, expected %d", cases[i].address, r, cases[i].result);
                assert_null(http);
                assert_string_not_equal(error, "");
        }
        assert_int_equal(start_at("localhost:0", -1), 0);
        http = http_stop(http);
        assert_int_equal(start_at("127.3.2.1:0", -1), 0);
        assert_int_equal(strncmp(http_address(http), "http://127.3.2.1:", 17), 0);
        assert_false(http_is_remote(http));
        http = http_stop(http);
        if (start_at("[::1]:0", -1) == 0)
                assert_int_equal(strncmp(http_address(http), "http://[::1]:", 13), 0);
}

static void other_addresses_are_taken_if_they_are_allowed(void **state)
{
        _cleanup_(freep) char *reply = NULL, *again = NULL;
        unsigned n = 0;
        int fd;

        allow_remote = true;
        assert_int_equal(start_at("8.8.8.8:80", -1), -EADDRNOTAVAIL);
        assert_int_equal(start_at("example.org:80", -1), -EINVAL);
        assert_int_equal(start_at("0.0.0.0:0", -1), 0);
        assert_true(http_is_remote(http));
        assert_int_equal(sscanf(http_address(http), "http://0.0.0.0:%u", &n), 1);
        any_address = true;
        reply = ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(reply, 200);
        http = http_stop(http);

        fd = listening(INADDR_ANY, SOCK_STREAM, true);
        assert_int_equal(start_at(NULL, fd), 0);
        again = ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(again, 200);
        any_address = allow_remote = false;
}

static void a_busy_port_is_reported(void **state)
{
        char address[64];
        struct http *first;

        assert_int_equal(start_at("127.0.0.1:0", -1), 0);
        snprintf(address, sizeof(address), "127.0.0.1:%u", port());
        first = TAKE_PTR(http);
        assert_int_equal(start_at(address, -1), -EADDRINUSE);
        assert_has(error, address);
        http_stop(first);
}

static int unix_client(const char *path)
{
        struct sockaddr_un un = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        assert_true(fd >= 0);
        strcpy(un.sun_path, path);
        assert_int_equal(connect(fd, (struct sockaddr *)&un, sizeof(un)), 0);
        assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
        return fd;
}

static void a_unix_socket_is_served_and_its_file_removed(void **state)
{
        char dir[] = "/tmp/test-http-XXXXXX", path[64], address[80], before[128];
        _cleanup_(freep) char *reply = NULL;
        struct http *first;
        struct stat st;
        int fd;

        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof(path), "%s/http.sock", dir);
        snprintf(address, sizeof(address), "unix:%s", path);

        assert_int_equal(start_at(address, -1), 0);
        assert_string_equal(http_address(http), address);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777 & ~0660, 0);
        fd = unix_client(path);
        say(fd, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
        reply = hear(fd);
        close(fd);
        assert_code(reply, 200);

        /* A socket in use is refused, and its file stays. */
        first = TAKE_PTR(http);
        assert_int_equal(start_at(address, -1), -EADDRINUSE);
        assert_int_equal(access(path, F_OK), 0);
        http_stop(first);
        assert_int_equal(access(path, F_OK), -1);

        /* A socket left behind by a dead process is taken over. */
        struct sockaddr_un un = { .sun_family = AF_UNIX };

        strcpy(un.sun_path, path);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
        close(fd);
        assert_int_equal(start_at(address, -1), 0);

        /* Replaced by another's meanwhile: not removed at the end. */
        snprintf(before, sizeof(before), "%s.old", path);
        assert_int_equal(rename(path, before), 0);
        fd = open(path, O_CREAT | O_WRONLY, 0600);
        assert_true(fd >= 0);
        close(fd);
        http = http_stop(http);
        assert_int_equal(access(path, F_OK), 0);

        /* A file that is not a socket is never removed. */
        assert_int_equal(start_at(address, -1), -EEXIST);
        assert_int_equal(access(path, F_OK), 0);
        unlink(path);
        unlink(before);
        rmdir(dir);
}

static void an_inherited_socket_is_checked_and_served(void **state)
{
        _cleanup_(freep) char *reply = NULL;
        int fd;

        fd = listening(INADDR_ANY, SOCK_STREAM, true);
        assert_int_equal(start_at(NULL, fd), -EPERM);
        close(fd);
        fd = listening(INADDR_LOOPBACK, SOCK_STREAM, false);
        assert_int_equal(start_at(NULL, fd), -EINVAL);
        close(fd);
        fd = listening(INADDR_LOOPBACK, SOCK_DGRAM, false);
        assert_int_equal(start_at(NULL, fd), -EINVAL);
        assert_int_equal(fcntl(fd, F_GETFD), 0); /* not swallowed */
        close(fd);

        fd = listening(INADDR_LOOPBACK, SOCK_STREAM, true);
        assert_int_equal(start_at(NULL, fd), 0);
        reply = ask("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert_code(reply, 200);
}

int main(void)
{
#define SERVED(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define ALONE(name)  cmocka_unit_test_setup_teardown(name, setup_base, teardown)
        const struct CMUnitTest tests[] = {
                SERVED(metrics_are_prometheus_text_unless_asked_otherwise),
                SERVED(health_and_readiness_say_why_not),
                SERVED(the_page_shows_the_status_and_escapes_it),
                SERVED(the_page_stands_whatever_the_status_is),
                SERVED(the_page_is_served_so_that_nothing_else_is_loaded),
                SERVED(the_history_is_served_where_there_is_one),
                SERVED(head_has_the_length_and_no_body),
                SERVED(other_paths_and_methods_are_refused),
                SERVED(a_namespace_removed_before_its_page_is_made_is_answered_404),
                SERVED(one_connection_serves_one_request),
                SERVED(pages_need_the_token_and_the_probes_do_not),
                SERVED(a_token_as_long_as_the_headers_may_be_is_only_wrong),
                SERVED(a_probe_says_its_first_line_alone_without_the_token),
                SERVED(pages_are_sent_under_names_of_this_server_only),
                SERVED(host_is_required_once_and_well_formed),
                SERVED(host_of_an_absolute_uri_counts_as_well),
                SERVED(probes_answer_their_first_line_under_every_name),
                SERVED(request_with_the_token_may_have_any_name),
                SERVED(metrics_of_a_server_for_other_hosts_are_sent_under_any_name),
                SERVED(more_pages_than_the_rate_are_refused_and_the_probes_never),
                SERVED(garbage_costs_only_its_connection),
                SERVED(oversized_headers_are_refused),
                SERVED(a_silent_client_is_cut_by_the_deadline),
                SERVED(a_trickling_client_is_cut_by_the_deadline),
                SERVED(a_client_that_does_not_read_is_cut_by_the_deadline),
                SERVED(a_large_reply_comes_whole),
                SERVED(connections_over_the_cap_are_refused_and_places_come_back),
                SERVED(test_R13_a_page_is_made_once_for_all_that_wait_and_seldom),
                SERVED(a_request_that_ends_while_it_waits_leaks_nothing),
                SERVED(clients_that_leave_in_every_state_leak_nothing),
                SERVED(stopping_closes_what_is_open),
                SERVED(running_out_of_descriptors_does_not_spin),
                ALONE(only_loopback_addresses_are_taken),
                ALONE(other_addresses_are_taken_if_they_are_allowed),
                ALONE(a_busy_port_is_reported),
                ALONE(a_unix_socket_is_served_and_its_file_removed),
                ALONE(an_inherited_socket_is_checked_and_served),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
