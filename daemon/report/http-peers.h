/* SPDX-License-Identifier: Apache-2.0 */
/* How many connections each IP address has open, and how many pages it has requested lately. See
 * http-peers.c. Loop thread. */
#pragma once

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum { HTTP_PEERS = 1024 };

struct http_peer {
        struct in6_addr address; /* an IPv4 one is mapped; of an IPv6 one the first 64 bits */
        bool remote;             /* not loopback */
        unsigned open;           /* connections */
        uint64_t due_ns;         /* when all that it has requested will have been earned */
};

struct http_peers {
        unsigned n;                      /* places given out so far */
        struct http_peer of[HTTP_PEERS]; /* the last two: all loopback and all other addresses that
                                            have no place of their own */
};

/* Counts one more open connection from the address; http_peer_close() takes it off again. NULL: it
 * is no IP address. */
struct http_peer *http_peers_open(struct http_peers *p, const struct sockaddr *address,
                                  uint64_t now_ns);
void http_peer_close(struct http_peer *peer);
/* One more page is requested. False: it is more than `rate` a second, which may be used at once. 0:
 * any. */
bool http_peer_request(struct http_peer *peer, uint64_t rate, uint64_t now_ns);
