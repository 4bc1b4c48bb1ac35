/* SPDX-License-Identifier: Apache-2.0 */
/* Counts the open connections and the recent page requests of each IP address; see http-peers.c.
 * Loop thread. */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum { HTTP_PEERS = 1024 };

struct http_peer {
        struct in6_addr address; /* IPv4 as a mapped address; only the first 64 bits of an IPv6
                                  * address */
        bool remote;             /* the address is not a loopback address */
        unsigned open;           /* open connections of the address */
        uint64_t due_ns;         /* time up to which the permitted rate is used up by earlier
                                  * requests; monotonic */
};

struct http_peers {
        unsigned n;                      /* entries in use */
        struct http_peer of[HTTP_PEERS]; /* one entry for each address; addresses that get none
                                          * share the last two: loopback addresses the first of
                                          * these, and others the second */
};

/* Counts a new open connection, until http_peer_close(). Returns NULL if the address is not an IP
 * address. */
struct http_peer *http_peers_open(struct http_peers *p, const struct sockaddr *address,
                                  uint64_t now_ns);
void http_peer_close(struct http_peer *peer);
/* Counts a page request. Returns false if it exceeds `rate` per second, up to one second's worth of
 * which may come at once. rate 0: no limit. */
bool http_peer_request(struct http_peer *peer, uint64_t rate, uint64_t now_ns);
