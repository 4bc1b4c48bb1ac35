/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP server, by evhttp, with a limit of connections and an absolute deadline for each;
 * http-socket.c opens its socket.
 *
 * Runs on the loop thread. Owns the listener, evhttp, and a `struct conn` beside each connection of
 * evhttp.
 *
 * A connection: evhttp accepts it and asks make_bev() for a bufferevent, where its conn is created
 * with a reference to that bufferevent. In the next iteration conn_event() finds the
 * evhttp_connection (the bufferevent's callback argument; NULL if evhttp has dropped it already)
 * and hooks its end. It either refuses the connection, if there are too many, or sets the deadline,
 * after which the connection is freed in any state, such as trickling a header or never reading its
 * reply. One request, one reply, "Connection: close": a persistent connection would only occupy a
 * place until its deadline.
 *
 * Access: the iteration after the accept charges the connection to its address (http-peers.c), and
 * refuses one that would exceed the address's share. A page request counts against the address's
 * rate; then its token is compared, or without a token its Host. A request with the token needs no
 * name of this server: a page of another site does not know the token. The probes are neither
 * counted nor refused: answering them costs no more than refusing, and a supervisor would restart a
 * daemon that does not answer.
 *
 * A page: its request waits on its conn until on_work() has rendered the page, at the earliest in
 * the next iteration; all requests that wait for the same page then share one text. If the
 * connection of a waiting request ends, the request is freed by evhttp, or by this file if evhttp
 * has detached it.
 *
 * Failures: without free descriptors, the listener pauses for a moment instead of spinning. evhttp
 * answers a malformed request or closes its connection. */
#include "report/http.h"

#include <assert.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include "base/clock.h"
#include "base/list.h"
#include "checked.h"
#include "cleanup.h"
#include "report/http-host.h"
#include "report/http-pages.h"
#include "report/http-peers.h"
#include "report/http-socket.h"
#include "report/page-frame.h"

enum {
        MAX_HEADERS = 8 * 1024, /* bytes, of request line and headers each */
        REARM_MS = 100,         /* pause after accept() failed for lack of descriptors or memory */
        ACCEPTS_AT_ONCE = 4,    /* connections accepted in one iteration */
        ANSWERS_AT_ONCE = 4,
        PAUSE_FACTOR = 19, /* pause after a page, as a multiple of its rendering time */
};
/* Status codes that evhttp does not name. */
enum { STATUS_UNAUTHORIZED = 401, STATUS_MISDIRECTED = 421, STATUS_TOO_MANY_REQUESTS = 429 };
#define PAUSE_MAX_NS UINT64_C(1000000000)

struct conn {
        struct list_node node;
        struct http *http;
        struct bufferevent *bev;         /* holds a reference */
        struct evhttp_connection *evcon; /* NULL until the iteration after the accept */
        struct event *event;
        struct http_peer *peer; /* NULL: no IP address, or not yet known */
        bool refused;
        struct list_node waits;     /* in http.waiting or http.answering while `req` is set */
        struct evhttp_request *req; /* the request that waits for a page; NULL: no request */
        struct http_wanted wanted;
};

struct http {
        struct list_node node; /* in all_https */
        struct evhttp *evhttp;
        struct evconnlistener *listener; /* belongs to evhttp after evhttp_bind_listener() */
        struct event *rearm, *work, *accept_again;
        struct list_node conns;
        struct list_node waiting,
                answering;        /* conns whose requests wait for a page, and conns whose requests
                                   * are about to be answered with `text` */
        struct shared_text *text; /* the page for `answering`; NULL if no request is being answered,
                                   * or made_error says why there is none */
        struct http_wanted made;  /* the page that `text` contains */
        int made_error;           /* 0, or the result of http_page_make() */
        uint64_t next_page_ns;
        unsigned accepted; /* connections accepted in this iteration */
        unsigned n_conns;  /* open connections, except refused ones */
        struct http_params params;
        struct http_stats stats;
        struct http_socket socket;
        struct http_peers peers;
};

/* All servers. evhttp replaces the listener's user data, so that the error callback has to search
 * for its server here. */
static struct list_node all_https = LIST_INIT(all_https);

/* --- connections --- */

static struct conn *conn_free(struct conn *c)
{
        if (!c)
                return NULL;
        list_unlink(&c->node);
        list_unlink(&c->waits);
        if (!c->refused)
                c->http->n_conns--;
        if (c->peer)
                http_peer_close(c->peer);
        if (c->event)
                event_free(c->event);
        if (c->bev)
                bufferevent_decref(c->bev);
        free(c);
        return NULL;
}

/* Runs when evhttp is about to free the connection. */
static void conn_closed(struct evhttp_connection *evcon, void *userdata)
{
        struct conn *c = userdata;

        assert(c->evcon == evcon);
        if (c->req && !evhttp_request_get_connection(c->req))
                evhttp_request_free(c->req);
        conn_free(c);
}

static void conn_refuse(struct conn *c)
{
        static const char reply[] = "HTTP/1.1 503 Service Unavailable\r\n"
                                    "Content-Type: text/plain; charset=utf-8\r\n"
                                    "Content-Length: 21\r\n"
                                    "Connection: close\r\n"
                                    "\r\n"
                                    "too many connections\n";

        c->http->stats.connections_refused++;
        /* Best effort: bytes that do not fit at once are not sent. */
        (void)!send(bufferevent_getfd(c->bev), reply, sizeof(reply) - 1,
                    MSG_NOSIGNAL | MSG_DONTWAIT);
        evhttp_connection_free(c->evcon); /* also frees `c`, through conn_closed() */
}

/* Charges the connection to its address. Returns false if the address has its share of
 * connections. */
static bool conn_admit(struct conn *c)
{
        const struct http *h = c->http;
        struct sockaddr_storage address = {};
        unsigned others = h->n_conns - 1, max = h->params.max_connections;
        unsigned left = others < max ? max - others : 0;

        if (getpeername(bufferevent_getfd(c->bev), (struct sockaddr *)&address,
                        &(socklen_t){ sizeof(address) }) < 0)
                return true; /* the connection is about to end, so it is not charged */
        c->peer = http_peers_open(&c->http->peers, (struct sockaddr *)&address, clock_mono_ns());
        /* An address may have up to three times the connections that remain, which is three
         * quarters of all if it is the only one, so that some are always left for others. */
        return !c->peer || !c->peer->remote || c->peer->open - 1 < (uint64_t)3 * left;
}

/* Admits or refuses a connection in the iteration after its accept, and closes it at its
 * deadline. */
static void conn_event(evutil_socket_t fd, short what, void *userdata)
{
        struct conn *c = userdata;

        if (!c->evcon) {
                uint64_t ms = c->http->params.deadline_ms;
                struct timeval deadline = { .tv_sec = (time_t)(ms / 1000),
                                            .tv_usec = (suseconds_t)(ms % 1000 * 1000) };
                void *evcon = NULL;

                bufferevent_getcb(c->bev, NULL, NULL, NULL, &evcon);
                if (!evcon) {
                        conn_free(c);
                        return;
                }
                c->evcon = evcon;
                evhttp_connection_set_closecb(c->evcon, conn_closed, c);
                if (!c->refused && !conn_admit(c)) {
                        c->refused = true;
                        c->http->n_conns--;
                }
                if (c->refused) {
                        conn_refuse(c);
                        return;
                }
                evtimer_add(c->event, &deadline);
                return;
        }
        c->http->stats.deadlines++;
        evhttp_connection_free(c->evcon);
}

/* Creates the bufferevent of an accepted connection. After NULL, evhttp creates its own, and the
 * connection only has evhttp's idle timeout; this happens only without memory. */
static struct bufferevent *make_bev(struct event_base *base, void *userdata)
{
        struct http *h = userdata;
        struct conn *c;

        h->stats.connections++;
        if (++h->accepted == ACCEPTS_AT_ONCE) {
                evconnlistener_disable(h->listener);
                evtimer_add(h->accept_again, &(struct timeval){ 0 });
        }
        c = malloc(sizeof(*c));
        if (!c)
                return NULL;
        *c = (struct conn){ .http = h, .refused = h->n_conns >= h->params.max_connections };
        list_init(&c->waits);
        list_append(&h->conns, &c->node);
        if (!c->refused)
                h->n_conns++;

        c->event = evtimer_new(base, conn_event, c);
        if (!c->event) {
                conn_free(c);
                return NULL;
        }
        c->bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
        if (!c->bev) {
                conn_free(c);
                return NULL;
        }
        bufferevent_incref(c->bev);
        event_active(c->event, EV_TIMEOUT, 0);
        return c->bev;
}

/* Enables the listener again, in the iteration after it accepted ACCEPTS_AT_ONCE connections. */
static void accept_again(evutil_socket_t fd, short what, void *userdata)
{
        struct http *h = userdata;

        h->accepted = 0;
        if (!evtimer_pending(h->rearm, NULL))
                evconnlistener_enable(h->listener);
}

static void rearm_listener(evutil_socket_t fd, short what, void *userdata)
{
        struct http *h = userdata;

        evconnlistener_enable(h->listener);
}

static void accept_failed(struct evconnlistener *listener, void *userdata)
{
        struct timeval soon = { .tv_usec = REARM_MS * 1000 };

        list_for_each (&all_https, n) {
                struct http *h = container_of(n, struct http, node);

                if (h->listener != listener)
                        continue;
                evconnlistener_disable(listener);
                evtimer_add(h->rearm, &soon);
        }
}

/* --- replies --- */

static void free_text(const void *data, size_t bytes, void *userdata)
{
        shared_text_unref(userdata);
}

/* Sends a reply. `text` is NULL if there was no memory for it. */
static void reply(struct http *h, struct evhttp_request *req, int code, const char *type,
                  struct shared_text *text)
{
        size_t bytes = text ? text->n : 0;
        struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
        struct evbuffer *body = evhttp_request_get_output_buffer(req);
        char length[24];

        h->stats.requests++;
        if (!text)
                code = HTTP_INTERNAL;
        snprintf(length, sizeof(length), "%zu", bytes);
        evhttp_add_header(headers, "Content-Type", type);
        evhttp_add_header(headers, "Content-Length", length);
        evhttp_add_header(headers, "Cache-Control", "no-store");
        evhttp_add_header(headers, "X-Content-Type-Options", "nosniff");
        evhttp_add_header(headers, "Referrer-Policy", "no-referrer");
        evhttp_add_header(headers, "Connection", "close");
        if (bytes > 0 && evhttp_request_get_command(req) != EVHTTP_REQ_HEAD) {
                text->refs++;
                if (evbuffer_add_reference(body, text->bytes, bytes, free_text, text) < 0)
                        shared_text_unref(text);
        }
        evhttp_send_reply(req, code,
                          code == STATUS_TOO_MANY_REQUESTS ? "Too Many Requests"
                          : code == STATUS_MISDIRECTED     ? "Misdirected Request"
                                                           : NULL,
                          NULL);
}

static void reply_text(struct http *h, struct evhttp_request *req, int code, const char *what)
{
        struct shared_text *text;
        char *copy;
        int n = asprintf(&copy, "%s\n", what);

        text = shared_text_new(n < 0 ? NULL : copy, n < 0 ? 0 : (size_t)n);
        reply(h, req, code, "text/plain; charset=utf-8", text);
        shared_text_unref(text);
}

static bool is_authorized(const struct http *h, struct evhttp_request *req)
{
        return http_token_matches(
                &h->params.token,
                evhttp_find_header(evhttp_request_get_input_headers(req), "Authorization"));
}

/* Judges the name under which a request addresses this server: its Host, and the host of its URI if
 * that is absolute. Requests of HTTP/1.0 need no Host; browsers always send one. */
static enum http_host request_host(const struct http *h, struct evhttp_request *req)
{
        const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(req);
        const char *in_uri = uri ? evhttp_uri_get_host(uri) : NULL;
        const struct evkeyvalq *headers = evhttp_request_get_input_headers(req);
        struct utsname host = { 0 };
        struct http_host_names names = { .own = host.nodename,
                                         .names = h->params.hosts,
                                         .n = h->params.n_hosts };
        enum http_host verdict = HTTP_HOST_OWN;
        unsigned n = 0;

        if (!h->socket.tcp)
                return HTTP_HOST_OWN;
        uname(&host);
        for (const struct evkeyval *kv = headers->tqh_first; kv; kv = kv->next.tqe_next) {
                if (strcasecmp(kv->key, "Host") != 0)
                        continue;
                verdict = http_host_judge(kv->value, &names);
                n++;
        }
        if (n > 1 || (n == 0 && (req->major > 1 || (req->major == 1 && req->minor >= 1))))
                return HTTP_HOST_MALFORMED;
        return in_uri ? MAX(verdict, http_host_judge(in_uri, &names)) : verdict;
}

/* Returns whether a page of another site may have made a browser send this request. */
static bool is_of_another_site(const struct http *h, enum http_host host)
{
        return h->params.token.n == 0 && host != HTTP_HOST_OWN;
}

/* Answers a probe. Without the token or a name of this server, only the first line is sent, since
 * degradations name volumes and errors. */
static void reply_probe(struct http *h, struct evhttp_request *req, enum http_host host,
                        bool (*probe)(void *userdata, const char **ret_text), const char *yes,
                        const char *no)
{
        const char *text = NULL;
        bool fine = probe(h->params.pages.userdata, &text);
        _cleanup_(freep) char *line = NULL;

        if (text && (!is_authorized(h, req) || is_of_another_site(h, host))) {
                line = strndup(text, strcspn(text, "\n"));
                text = line; /* NULL without memory: reply() then sends a single word */
        }
        reply_text(h, req, fine ? HTTP_OK : HTTP_SERVUNAVAIL, text ? text : fine ? yes : no);
}

/* Answers a request for a namespace's page alike whether the namespace does not exist or its name
 * is not shown. */
static void reply_no_namespace(struct http *h, struct evhttp_request *req)
{
        reply_text(h, req, HTTP_NOTFOUND,
                   "no such namespace; ask with /namespace?name=NAME. With several tenants, "
                   "names are not shown over HTTP: use kvcachectl namespace show");
}

static void reply_page(struct conn *c)
{
        struct evhttp_request *req = TAKE_PTR(c->req);

        if (c->http->made_error == -ENOENT) {
                reply_no_namespace(c->http, req);
                return;
        }
        if (http_page_is_html(c->wanted.page))
                evhttp_add_header(evhttp_request_get_output_headers(req), "Content-Security-Policy",
                                  page_policy);
        reply(c->http, req, HTTP_OK, http_page_type(c->wanted.page), c->http->text);
}

static void work_in(struct http *h, uint64_t ns)
{
        struct timeval in = { .tv_sec = (time_t)(ns / 1000000000),
                              .tv_usec = (suseconds_t)(ns % 1000000000 / 1000) };

        evtimer_add(h->work, &in);
}

/* Renders the page that the first request waits for, for all requests that wait for it. */
static void make_for_all(struct http *h)
{
        uint64_t began_ns = clock_mono_ns(), took_ns;

        h->made = container_of(h->waiting.next, struct conn, waits)->wanted;
        h->made_error = http_page_make(&h->params.pages, h->made, &h->text);
        took_ns = clock_mono_ns() - began_ns;
        if (h->params.made)
                histogram_add(h->params.made, took_ns);
        h->next_page_ns = began_ns + took_ns + MIN(took_ns * PAUSE_FACTOR, PAUSE_MAX_NS);
        list_for_each_safe (&h->waiting, n) {
                const struct http_wanted *wanted = &container_of(n, struct conn, waits)->wanted;

                if (wanted->page != h->made.page || wanted->id != h->made.id)
                        continue;
                list_unlink(n);
                list_append(&h->answering, n);
        }
}

/* Renders and answers pages. Runs once per iteration while requests wait. */
static void on_work(evutil_socket_t fd, short what, void *userdata)
{
        struct http *h = userdata;
        struct list_node *n;

        if (list_empty(&h->answering) && !list_empty(&h->waiting)) {
                uint64_t now_ns = clock_mono_ns();

                if (now_ns < h->next_page_ns) {
                        work_in(h, h->next_page_ns - now_ns);
                        return;
                }
                make_for_all(h);
        }
        for (unsigned i = 0; i < ANSWERS_AT_ONCE && (n = list_pop(&h->answering)); i++)
                reply_page(container_of(n, struct conn, waits));
        if (list_empty(&h->answering)) {
                shared_text_unref(h->text);
                h->text = NULL;
        }
        if (!list_empty(&h->answering) || !list_empty(&h->waiting))
                work_in(h, 0);
}

static void wait_for(struct conn *c, struct evhttp_request *req, struct http_wanted wanted)
{
        struct http *h = c->http;

        c->req = req;
        c->wanted = wanted;
        list_append(&h->waiting, &c->waits);
        if (!evtimer_pending(h->work, NULL))
                work_in(h, 0);
}

static void wait_for_page(struct conn *c, struct evhttp_request *req, enum http_page page)
{
        wait_for(c, req, (struct http_wanted){ .page = page });
}

static void wait_for_namespace(struct conn *c, struct evhttp_request *req, const char *query)
{
        struct http *h = c->http;
        struct http_wanted wanted = { 0 };

        if (http_page_of_namespace(&h->params.pages, query, &wanted))
                wait_for(c, req, wanted);
        else
                reply_no_namespace(h, req);
}

/* Returns the conn of a request, or NULL if it has none (see make_bev()) or already has a
 * request. */
static struct conn *find_conn(struct http *h, struct evhttp_request *req)
{
        const struct evhttp_connection *evcon = evhttp_request_get_connection(req);

        list_for_each (&h->conns, n) {
                struct conn *c = container_of(n, struct conn, node);

                if (c->evcon == evcon && !c->req)
                        return c;
        }
        return NULL;
}

static void handle_page(struct http *h, struct evhttp_request *req, enum http_host host,
                        const char *path, const char *query)
{
        bool is_metrics = path && strcmp(path, "/metrics") == 0;
        struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
        struct conn *c = find_conn(h, req);

        if (!c) {
                reply(h, req, HTTP_INTERNAL, "text/plain; charset=utf-8", NULL);
        } else if (c->peer && !http_peer_request(c->peer, h->params.rate, clock_mono_ns())) {
                h->stats.over_rate++;
                evhttp_add_header(headers, "Retry-After", "1");
                reply_text(h, req, STATUS_TOO_MANY_REQUESTS,
                           "more requests per second than limits.http_rate");
        } else if (!is_authorized(h, req)) {
                h->stats.unauthorized++;
                evhttp_add_header(headers, "WWW-Authenticate", "Bearer realm=\"kvcache\"");
                reply_text(h, req, STATUS_UNAUTHORIZED,
                           "send the token of http.token_file as \"Authorization: Bearer TOKEN\"; "
                           "only /healthz and /readyz need none");
        } else if (is_of_another_site(h, host) && !(is_metrics && h->socket.remote)) {
                h->stats.misdirected++;
                reply_text(h, req, STATUS_MISDIRECTED,
                           "this server does not have the name of the request's Host; use its IP "
                           "address, localhost or its host name, or add the name to http.hosts");
        } else if (!path || !*path || strcmp(path, "/") == 0) {
                wait_for_page(c, req,
                              query && strcmp(query, "paused") == 0 ? HTTP_PAGE_HTML_PAUSED
                                                                    : HTTP_PAGE_HTML);
        } else if (is_metrics) {
                wait_for_page(c, req,
                              http_page_of_metrics(evhttp_find_header(
                                      evhttp_request_get_input_headers(req), "Accept")));
        } else if (strcmp(path, "/status") == 0) {
                wait_for_page(c, req, HTTP_PAGE_STATUS);
        } else if (strcmp(path, "/history") == 0 && h->params.pages.history) {
                wait_for_page(c, req, HTTP_PAGE_HISTORY);
        } else if (strcmp(path, "/namespace") == 0 && h->params.pages.find_namespace) {
                wait_for_namespace(c, req, query);
        } else {
                reply_text(h, req, HTTP_NOTFOUND,
                           "not found; there are /, /status, /history, /metrics, /healthz and "
                           "/readyz");
        }
}

/* Dispatches every request. */
static void handle_request(struct evhttp_request *req, void *userdata)
{
        struct http *h = userdata;
        const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(req);
        const char *path = uri ? evhttp_uri_get_path(uri) : NULL;
        const char *query = uri ? evhttp_uri_get_query(uri) : NULL;
        enum evhttp_cmd_type command = evhttp_request_get_command(req);
        enum http_host host = request_host(h, req);

        if (host == HTTP_HOST_MALFORMED) {
                reply_text(h, req, HTTP_BADREQUEST,
                           "send one Host, the name or the address of this server");
        } else if (command != EVHTTP_REQ_GET && command != EVHTTP_REQ_HEAD) {
                evhttp_add_header(evhttp_request_get_output_headers(req), "Allow", "GET, HEAD");
                reply_text(h, req, HTTP_BADMETHOD, "only GET and HEAD are answered here");
        } else if (path && strcmp(path, "/healthz") == 0) {
                reply_probe(h, req, host, h->params.pages.is_healthy, "ok", "not healthy");
        } else if (path && strcmp(path, "/readyz") == 0) {
                reply_probe(h, req, host, h->params.pages.is_ready, "ready", "not ready");
        } else {
                handle_page(h, req, host, path, query);
        }
}

/* --- start and stop --- */

struct http *http_stop(struct http *h)
{
        if (!h)
                return NULL;
        list_unlink(&h->node);
        if (h->rearm)
                event_free(h->rearm);
        if (h->work)
                event_free(h->work);
        if (h->accept_again)
                event_free(h->accept_again);
        if (h->evhttp)
                evhttp_free(
                        h->evhttp); /* also frees the listener and each connection with its conn */
        while (!list_empty(&h->conns))
                conn_free(container_of(h->conns.next, struct conn,
                                       node)); /* a conn that was accepted in the last iteration and
                                                * has no evhttp_connection yet */
        shared_text_unref(h->text);
        http_socket_remove(&h->socket);
        explicit_bzero(&h->params.token, sizeof(h->params.token));
        free(h);
        return NULL;
}

static void http_stopp(struct http **h)
{
        http_stop(*h);
}

int http_start(struct http **ret, struct event_base *base, const struct http_params *params,
               char ret_error[static 256])
{
        _cleanup_(http_stopp) struct http *h = malloc(sizeof(*h));
        _cleanup_(closep) int own_fd = -1;
        struct evconnlistener *listener;
        int fd;

        ret_error[0] = '\0';
        if (!h)
                return -ENOMEM;
        *h = (struct http){ .params = *params };
        list_init(&h->conns);
        list_init(&h->waiting);
        list_init(&h->answering);
        list_append(&all_https, &h->node);

        fd = http_socket_open(&h->socket, params->inherited_fd, params->address,
                              params->allow_remote, ret_error);
        if (fd < 0)
                return fd;
        if (params->inherited_fd < 0)
                own_fd = fd;
        h->params.address = NULL; /* belongs to the caller */

        h->rearm = evtimer_new(base, rearm_listener, h);
        h->work = evtimer_new(base, on_work, h);
        h->accept_again = evtimer_new(base, accept_again, h);
        h->evhttp = evhttp_new(base);
        if (!h->rearm || !h->work || !h->accept_again || !h->evhttp ||
            evutil_make_socket_nonblocking(fd) < 0 || evutil_make_socket_closeonexec(fd) < 0)
                return -ENOMEM;
        evhttp_set_max_headers_size(h->evhttp, MAX_HEADERS);
        evhttp_set_max_body_size(h->evhttp, 0);
        /* Allow every method that evhttp knows, so that others than GET and HEAD get 405 from here
         * and not evhttp's 501. */
        evhttp_set_allowed_methods(h->evhttp, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD | EVHTTP_REQ_POST |
                                                      EVHTTP_REQ_PUT | EVHTTP_REQ_DELETE |
                                                      EVHTTP_REQ_OPTIONS | EVHTTP_REQ_TRACE |
                                                      EVHTTP_REQ_CONNECT | EVHTTP_REQ_PATCH);
        evhttp_set_timeout(h->evhttp, (int)MIN(params->deadline_ms / 1000 + 1, (uint64_t)3600));
        evhttp_set_bevcb(h->evhttp, make_bev, h);
        evhttp_set_gencb(h->evhttp, handle_request, h);

        /* Without a callback the listener does not accept yet. The socket listens already, hence no
         * backlog. */
        listener = evconnlistener_new(base, NULL, NULL,
                                      LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
        if (!listener)
                return -ENOMEM;
        evconnlistener_set_error_cb(listener, accept_failed);
        TAKE_FD(own_fd);
        if (!evhttp_bind_listener(h->evhttp, listener)) {
                evconnlistener_free(listener);
                return -ENOMEM;
        }
        h->listener = listener;
        *ret = TAKE_PTR(h);
        return 0;
}

const char *http_address(const struct http *h)
{
        return h->socket.address;
}

void http_get_stats(const struct http *h, struct http_stats *ret)
{
        *ret = h->stats;
        ret->open = h->n_conns;
}

bool http_is_remote(const struct http *h)
{
        return h->socket.remote;
}

bool http_needs_token(const struct http *h)
{
        return h->params.token.n > 0;
}

bool http_set_token(struct http *h, const struct http_token *token)
{
        bool other = !http_token_equal(&h->params.token, token);

        h->params.token = *token;
        return other;
}

void http_set_limits(struct http *h, unsigned max_connections, uint64_t deadline_ms, uint64_t rate)
{
        h->params.rate = rate;
        h->params.max_connections = max_connections;
        h->params.deadline_ms = deadline_ms;
}
