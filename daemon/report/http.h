/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP side, by evhttp, on TCP (loopback, unless other addresses are allowed) or a Unix socket:
 * /metrics (Prometheus text; OpenMetrics or protobuf when Accept asks for it), /healthz, /readyz,
 * /status and /history (JSON), / (a page for people; /?paused
 * does not reload itself). GET and HEAD only. One request a connection.
 *
 * evhttp has neither an absolute deadline nor a connection cap; this module adds both. It gets a
 * snapshot through the callbacks, and knows nothing else of the daemon. Loop thread. The process
 * ignores SIGPIPE.
 *
 * Requests cost the loop little, however many there are: a page is made once for all requests that
 * are waiting, is never reused for later ones, and making pages takes a twentieth of the time at
 * most. A few connections are accepted, and a few replies sent, in an iteration. An address may
 * request so many pages a second (429), and has a share of the connections if it is not loopback.
 *
 * With a token, requests for pages have to carry it (401); the probes are answered without it, and
 * with their first line alone. */
#pragma once

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/histogram.h"
#include "report/http-token.h"

struct history;
struct http;

enum http_metrics { HTTP_METRICS_TEXT, HTTP_METRICS_OPENMETRICS, HTTP_METRICS_PROTOBUF };

struct http_params {
        const char *address; /* "127.0.0.1:9750", "[::1]:9750", "unix:/path" */
        int inherited_fd; /* a listening socket from systemd, swallowed on success; -1: bind address
                           */
        bool allow_remote; /* the address need not be loopback */
        struct http_token token;
        uint64_t rate; /* pages a second that an IP address may request; 0: any */
        unsigned max_connections;
        uint64_t
                deadline_ms; /* of a connection, from accept; then it is closed, whatever it does */

        void (*print_metrics)(void *userdata, enum http_metrics format, FILE *out);
        void (*print_status)(void *userdata, FILE *out); /* JSON */
        /* What /readyz and /healthz say, either way, in lines without a newline at the end; NULL:
         * one word. Borrowed until the next call. */
        bool (*is_ready)(void *userdata, const char **ret_text);
        bool (*is_healthy)(void *userdata, const char **ret_text);
        const struct history *history; /* NULL: /history is not served; changes between pages */
        struct histogram *made;        /* how long pages took, ns; NULL: not counted */
        void *userdata;
};

/* Since the start: accepted, refused for the cap (counted as accepted too), closed by the deadline,
 * answered. */
struct http_stats {
        uint64_t connections, connections_refused, deadlines, requests;
        uint64_t unauthorized, over_rate; /* requests answered 401, 429 */
        uint64_t open; /* connections now; those that are being refused are not counted */
};

/* 0; -EADDRINUSE; -EINVAL (address); -errno. Refuses a TCP address that is not loopback unless
 * that is allowed: -EPERM. A Unix socket's file is made with mode 0660; one that is in the way is
 * removed only if it is a socket on which no process answers: -EEXIST. */
int http_start(struct http **ret, struct event_base *base, const struct http_params *params,
               char ret_error[static 256]);
struct http *http_stop(struct http *h);
/* "http://127.0.0.1:9750" or "unix:/path": where it listens, with the port the kernel chose for
 * port 0. */
const char *http_address(const struct http *h);
/* Can other hosts reach it? Do pages need a token? */
bool http_is_remote(const struct http *h);
bool http_needs_token(const struct http *h);
void http_get_stats(const struct http *h, struct http_stats *ret);
/* For connections accepted from now on; the rate for requests from now on. */
void http_set_limits(struct http *h, unsigned max_connections, uint64_t deadline_ms, uint64_t rate);
/* For requests from now on. True: it is another one. */
bool http_set_token(struct http *h, const struct http_token *token);
