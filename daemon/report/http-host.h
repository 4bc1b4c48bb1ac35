/* SPDX-License-Identifier: Apache-2.0 */
/* Decides whether the Host of a request names this server. A web page of another site can make a
 * browser send requests here and read the replies, once its own name resolves to this server's
 * address (DNS rebinding); its requests still carry that name. Any thread; owns nothing. */
#pragma once

enum http_host {
        HTTP_HOST_OWN,
        HTTP_HOST_OTHER,
        HTTP_HOST_MALFORMED, /* the text is neither HOST nor HOST:PORT */
};

struct http_host_names {
        const char *own;    /* the host's name; its first label counts as well */
        char *const *names; /* further names of this server */
        unsigned n;
};

/* Judges the value of a Host header, or the host of a URI. IP addresses and "localhost" are this
 * server's own: an address cannot be rebound, and no other site has these names. The port is not
 * compared, because a forwarded port has another number. */
enum http_host http_host_judge(const char *host, const struct http_host_names *names);
