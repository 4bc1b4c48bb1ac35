/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server, by evhttp, on TCP (loopback, unless other addresses are allowed) or a Unix
 * socket: /metrics (Prometheus text; OpenMetrics or protobuf if Accept asks for it), /healthz,
 * /readyz, /status and /history (JSON), / and /namespace (pages for people; /?paused does not
 * reload itself). GET and HEAD only, one request per connection.
 *
 * evhttp has neither an absolute deadline nor a limit of connections; this module adds both. It
 * gets its contents through callbacks, and depends on nothing else in the daemon. Loop thread. The
 * process must ignore SIGPIPE.
 *
 * Requests cost the loop little, however many there are. A page is rendered once for all requests
 * that wait for it, and never reused for later ones; rendering takes at most a twentieth of the
 * time, except that no pause after a page is longer than a second. One iteration accepts and
 * answers only a few connections. An address may request a limited number of pages per second
 * (429), and one that is not loopback has a limited share of the connections.
 *
 * If a token is configured, page requests must carry it (401). The probes are answered without it,
 * but with their first line only.
 *
 * Over TCP a request must have a Host (400). Without a token, a page is sent only under a name of
 * this server (421; http-host.h), and a probe under another name is answered with its first line
 * only. /metrics is exempt where other hosts may connect: scrapers name a server as they like. */
#pragma once

#include <event2/event.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/histogram.h"
#include "report/http-pages.h"
#include "report/http-token.h"

struct http;

struct http_params {
        const char *address; /* "127.0.0.1:9750", "[::1]:9750", "unix:/path" */
        int inherited_fd;  /* a listening socket from systemd, which http_start() takes on success;
                            * -1: bind `address` */
        bool allow_remote; /* permits addresses other than loopback */
        struct http_token token;
        /* Further names of this server. The array belongs to the caller and outlives the server. */
        char *const *hosts;
        unsigned n_hosts;
        uint64_t rate; /* pages per second and IP address; 0: no limit */
        unsigned max_connections;
        uint64_t deadline_ms; /* ms from accept after which a connection is closed */

        struct http_pages pages;
        struct histogram *made; /* rendering times in ns; NULL: not recorded */
};

/* Counters since startup: connections accepted, those refused because of the limit of all
 * connections or of one address, and those closed by the deadline; and requests that this module
 * answered, not evhttp. */
struct http_stats {
        uint64_t connections, connections_refused, deadlines, requests;
        uint64_t unauthorized, misdirected, over_rate; /* requests answered 401, 421, 429 */
        uint64_t open;                                 /* connections that are open now, except
                                                        * those being refused */
};

/* Starts the server. Returns 0, -EADDRINUSE, -EINVAL (address), -EPERM (an address other than
 * loopback without allow_remote), or -errno. The file of a Unix socket has mode 0660. An existing
 * file is deleted only if it is a socket without a listener; otherwise the result is -EEXIST or
 * -EADDRINUSE. */
int http_start(struct http **ret, struct event_base *base, const struct http_params *params,
               char ret_error[static 256]);
struct http *http_stop(struct http *h);
/* Returns the address in use, such as "http://127.0.0.1:9750" with the port that the kernel chose
 * for port 0, or "unix:/path". */
const char *http_address(const struct http *h);
/* Return whether other hosts can reach the server, and whether pages require a token. */
bool http_is_remote(const struct http *h);
bool http_needs_token(const struct http *h);
void http_get_stats(const struct http *h, struct http_stats *ret);
/* Sets limits for connections accepted from now on; the rate applies to requests from now on. */
void http_set_limits(struct http *h, unsigned max_connections, uint64_t deadline_ms, uint64_t rate);
/* Sets the token for requests from now on. Returns whether it differs from the previous one. */
bool http_set_token(struct http *h, const struct http_token *token);
