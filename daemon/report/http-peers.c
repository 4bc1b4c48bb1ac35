/* SPDX-License-Identifier: Apache-2.0 */
/* Tracks the IP addresses of HTTP clients in a table of fixed size, so that no address can take all
 * connections or all pages.
 *
 * Runs on the loop thread; the table belongs to the server. An address keeps its entry while it has
 * a connection or its due_ns is in the future; after that the entry can be reused without loss.
 * While all entries are in use, further loopback addresses share one entry, and further other
 * addresses share another.
 *
 * The rate: each request moves due_ns of its address ahead by 1/rate seconds, from now on if due_ns
 * has passed. A request that would move it more than one second ahead of now is refused. */
#include "report/http-peers.h"

#include <string.h>

#include "checked.h"

#define NS_PER_S UINT64_C(1000000000)

/* Stores the address that identifies a peer. Returns false without an IP address, as for a Unix
 * socket. */
static bool identify(const struct sockaddr *address, struct in6_addr *ret, bool *ret_remote)
{
        static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };

        *ret = (struct in6_addr){};
        if (address->sa_family == AF_INET) {
                memcpy(ret->s6_addr, mapped, sizeof(mapped));
                memcpy(ret->s6_addr + 12, &((const struct sockaddr_in *)address)->sin_addr, 4);
        } else if (address->sa_family == AF_INET6) {
                *ret = ((const struct sockaddr_in6 *)address)->sin6_addr;
        } else {
                return false;
        }
        if (IN6_IS_ADDR_V4MAPPED(ret)) {
                *ret_remote = ret->s6_addr[12] != 127;
                return true;
        }
        *ret_remote = !IN6_IS_ADDR_LOOPBACK(ret);
        /* A host can use any address within its IPv6 network, so the network identifies it. */
        if (*ret_remote)
                memset(ret->s6_addr + 8, 0, 8);
        return true;
}

struct http_peer *http_peers_open(struct http_peers *p, const struct sockaddr *address,
                                  uint64_t now_ns)
{
        struct http_peer *peer = NULL;
        struct in6_addr wanted;
        bool remote;

        if (!identify(address, &wanted, &remote))
                return NULL;
        for (unsigned i = 0; i < p->n; i++) {
                struct http_peer *other = &p->of[i];

                if (memcmp(&other->address, &wanted, sizeof(wanted)) == 0) {
                        other->open++;
                        return other;
                }
                if (!peer && other->open == 0 && other->due_ns <= now_ns)
                        peer = other;
        }
        if (!peer && p->n < HTTP_PEERS - 2)
                peer = &p->of[p->n++];
        if (peer) {
                *peer = (struct http_peer){ .address = wanted, .remote = remote };
        } else {
                peer = &p->of[HTTP_PEERS - 1 - !remote];
                peer->remote = remote;
        }
        peer->open++;
        return peer;
}

void http_peer_close(struct http_peer *peer)
{
        peer->open--;
}

bool http_peer_request(struct http_peer *peer, uint64_t rate, uint64_t now_ns)
{
        uint64_t cost_ns = rate > 0 ? NS_PER_S / rate : 0;

        if (rate == 0)
                return true;
        peer->due_ns = MAX(peer->due_ns, now_ns);
        if (peer->due_ns + cost_ns > now_ns + NS_PER_S)
                return false;
        peer->due_ns += cost_ns;
        return true;
}
