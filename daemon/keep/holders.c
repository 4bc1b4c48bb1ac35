/* SPDX-License-Identifier: Apache-2.0 */
/* Holders: clients whose leases outlive their session. Each has a socket, whose peer is the client,
 * and a lease of its own on each chunk that it may still read.
 *
 * This daemon's clients are collected while it stops, and are not watched. Clients of an earlier
 * daemon are watched like sessions (session/sessions.c): edge-triggered, because a peer that left
 * messages unread would otherwise be reported repeatedly. When the peer has closed, the leases end
 * in steps, and then the socket is passed to its owner to be closed, because messages that were
 * never read may contain descriptors. Failures: if memory or descriptors are short, the memory is
 * not handed on. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "cache/pool.h"
#include "checked.h"
#include "cleanup.h"
#include "keep/internal.h"

enum {
        CLOSED_PER_CALL = 8,      /* closed peers that a call of on_closed() handles */
        ENDED_PER_ITERATION = 512 /* leases that holders_iterate() ends */
};

/* Removes a holder without leases and passes its socket to the owner of the keep. The last holder
 * takes its place in the list. */
static void holder_remove(struct keep *k, unsigned i)
{
        struct holder *h = &k->holders[i], ended = *h;

        *h = k->holders[--k->n_holders];
        k->n_closed--;
        k->stats.holders--;
        free(ended.chunks);
        (void)epoll_ctl(k->closed_fd, EPOLL_CTL_DEL, ended.fd, NULL);
        k->params.ended(k->params.userdata, ended.name, ended.fd);
}

bool holders_iterate(struct keep *k)
{
        uint32_t left = ENDED_PER_ITERATION;

        for (unsigned i = 0; k->n_closed > 0 && left > 0 && i < k->n_holders;) {
                struct holder *h = &k->holders[i];

                if (!h->is_closed) {
                        i++;
                        continue;
                }
                for (; h->n_chunks > 0 && left > 0; left--) {
                        (void)pool_unlease(k->tenants[h->tenant].pool, h->chunks[--h->n_chunks]);
                        k->stats.held_slots--;
                }
                k->params.more_room(k->params.userdata, h->tenant);
                if (h->n_chunks == 0)
                        holder_remove(k, i);
        }
        return k->n_closed > 0;
}

static void note_closed(struct keep *k, int fd)
{
        for (unsigned i = 0; i < k->n_holders; i++)
                if (k->holders[i].fd == fd && !k->holders[i].is_closed) {
                        k->holders[i].is_closed = true;
                        k->n_closed++;
                }
}

static void on_closed(evutil_socket_t fd, short what, void *userdata)
{
        struct keep *k = userdata;
        struct epoll_event event;

        /* Later events stay in the epoll. */
        for (unsigned i = 0; i < CLOSED_PER_CALL && epoll_wait(fd, &event, 1, 0) == 1; i++)
                if (event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
                        note_closed(k, event.data.fd);
}

int holders_init(struct keep *k)
{
        k->name_of_this = clock_unix_ms();
        k->closed_fd = epoll_create1(EPOLL_CLOEXEC);
        if (k->closed_fd < 0)
                return -errno;
        k->closed = event_new(k->params.base, k->closed_fd, EV_READ | EV_PERSIST, on_closed, k);
        return k->closed && event_add(k->closed, NULL) == 0 ? 0 : -ENOMEM;
}

void holders_fini(struct keep *k)
{
        for (unsigned i = 0; i < k->n_holders; i++) {
                free(k->holders[i].chunks);
                close(k->holders[i].fd);
        }
        free(k->holders);
        if (k->closed)
                event_free(k->closed);
        closep(&k->closed_fd);
}

int holders_add_take_fd(struct keep *k, const char *name, unsigned tenant, int fd, bool is_new)
{
        _cleanup_(closep) int own = fd;
        struct holder *h;

        if (k->n_holders == k->holders_room) {
                unsigned room = MAX(2 * k->holders_room, 16u);
                struct holder *holders = reallocarray(k->holders, room, sizeof(*holders));

                if (!holders)
                        return -ENOMEM;
                k->holders = holders;
                k->holders_room = room;
        }
        h = &k->holders[k->n_holders++];
        *h = (struct holder){ .tenant = tenant, .fd = TAKE_FD(own), .is_new = is_new };
        snprintf(h->name, sizeof(h->name), "%s", name);
        k->stats.holders++;
        return 0;
}

int holders_add_chunk(struct keep *k, uint32_t chunk)
{
        struct holder *h = &k->holders[k->n_holders - 1];

        if (h->n_chunks == h->room) {
                uint32_t room = MAX(2 * h->room, 16u);
                uint32_t *chunks = reallocarray(h->chunks, room, sizeof(*chunks));

                if (!chunks)
                        return -ENOMEM;
                h->chunks = chunks;
                h->room = room;
        }
        h->chunks[h->n_chunks++] = chunk;
        k->stats.held_slots++;
        return 0;
}

int holders_watch(struct keep *k)
{
        int fd = k->holders[k->n_holders - 1].fd;

        return epoll_ctl(k->closed_fd, EPOLL_CTL_ADD, fd,
                         &(struct epoll_event){ .events = EPOLLRDHUP | EPOLLET, .data.fd = fd }) < 0
                       ? -errno
                       : 0;
}

int keep_hold(struct keep *k, unsigned tenant, int fd)
{
        unsigned of_tenant = 0;
        char name[KEEP_NAME_BYTES];
        int own;

        /* Each tenant may have an equal part of the holders, so that the clients of one tenant
         * cannot use up all of them, which would make another tenant lose its pool. */
        for (unsigned i = 0; i < k->n_holders; i++)
                of_tenant += k->holders[i].tenant == tenant;
        if (of_tenant >= KEEP_MAX_HOLDERS / k->params.n_tenants)
                return -ENOBUFS;
        own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (own < 0)
                return -errno;
        snprintf(name, sizeof(name), "kept-lease-%llx-%llu", (unsigned long long)k->name_of_this,
                 (unsigned long long)k->names++);
        return holders_add_take_fd(k, name, tenant, own, true);
}

int keep_hold_chunk(struct keep *k, uint32_t chunk)
{
        int r = holders_add_chunk(k, chunk);

        if (r == 0)
                pool_lease(k->tenants[k->holders[k->n_holders - 1].tenant].pool, chunk);
        return r;
}

void keep_each_new_holder(const struct keep *k,
                          void (*each)(void *userdata, const char *name, int fd), void *userdata)
{
        for (unsigned i = 0; i < k->n_holders; i++)
                if (k->holders[i].is_new)
                        each(userdata, k->holders[i].name, k->holders[i].fd);
}

unsigned keep_holders(const struct keep *k)
{
        return k->n_holders;
}
