/* SPDX-License-Identifier: Apache-2.0 */
/* Implements publisher.h. Copies of the latest batches are kept in a ring; the oldest are freed
 * when their number or their bytes exceed the limits. */
#include "events/publisher.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#include "checked.h"
#include "cleanup.h"

enum { PUB_MESSAGES = 100000, IDENTITY_BYTES = 256, LINGER_MS = 0 };

struct kept {
        uint64_t number;
        uint8_t *payload;
        size_t bytes;
};

struct publisher {
        void *context, *pub, *router;
        const char *topic;
        uint64_t last;       /* number of the last batch */
        uint64_t lost_until; /* batches up to this number are not kept */
        struct kept *ring;
        size_t n, first, room, bytes, bytes_room;
        uint8_t identity[IDENTITY_BYTES]; /* ZeroMQ identity of the client whose request was taken
                                             last */
        size_t identity_bytes;
};

static void *bind_socket(void *context, int type, int messages, const char *endpoint)
{
        int linger = LINGER_MS;
        void *socket = zmq_socket(context, type);

        if (socket && (zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger)) < 0 ||
                       zmq_setsockopt(socket, ZMQ_SNDHWM, &messages, sizeof(messages)) < 0 ||
                       zmq_bind(socket, endpoint) < 0)) {
                int error = errno;

                zmq_close(socket);
                errno = error;
                return NULL;
        }
        return socket;
}

DEFINE_CLEANUP(struct publisher *, publisher_free);

int publisher_new(struct publisher **ret, const struct publisher_params *params,
                  const char **ret_what)
{
        _cleanup_(publisher_freep) struct publisher *p = calloc(1, sizeof(*p));
        struct timespec now;

        *ret_what = "memory";
        if (!p)
                return -ENOMEM;
        p->topic = params->topic;
        p->room = params->batches;
        p->bytes_room = params->bytes;
        p->ring = calloc(p->room, sizeof(*p->ring));
        p->context = zmq_ctx_new();
        if (!p->ring || !p->context)
                return -ENOMEM;
        *ret_what = params->endpoint;
        p->pub = bind_socket(p->context, ZMQ_PUB, PUB_MESSAGES, params->endpoint);
        if (!p->pub)
                return -errno;
        if (params->replay_endpoint) {
                *ret_what = params->replay_endpoint;
                p->router = bind_socket(p->context, ZMQ_ROUTER, (int)params->batches + 2,
                                        params->replay_endpoint);
                if (!p->router)
                        return -errno;
        }
        clock_gettime(CLOCK_REALTIME, &now);
        p->last = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
        p->lost_until = p->last;
        *ret = TAKE_PTR(p);
        return 0;
}

static void drop_oldest(struct publisher *p)
{
        struct kept *k = &p->ring[p->first];

        p->lost_until = k->number;
        p->bytes -= k->bytes;
        free(k->payload);
        *k = (struct kept){ 0 };
        p->first = (p->first + 1) % p->room;
        p->n--;
}

struct publisher *publisher_free(struct publisher *p)
{
        if (!p)
                return NULL;
        while (p->n > 0)
                drop_oldest(p);
        free(p->ring);
        if (p->pub)
                zmq_close(p->pub);
        if (p->router)
                zmq_close(p->router);
        if (p->context)
                zmq_ctx_term(p->context);
        free(p);
        return NULL;
}

static void big_endian(uint8_t ret[static 8], uint64_t n)
{
        for (unsigned i = 0; i < 8; i++)
                ret[i] = (uint8_t)(n >> (56 - 8 * i));
}

/* Keeps a copy of the last batch. Returns 0; -ENOMEM: all batches so far count as lost, and
 * subscribers that ask for them get a snapshot. */
static int keep(struct publisher *p, const uint8_t *payload, size_t bytes)
{
        struct kept k = { .number = p->last, .payload = malloc(bytes), .bytes = bytes };

        while (p->n > 0 && (!k.payload || p->n == p->room || p->bytes + bytes > p->bytes_room))
                drop_oldest(p);
        if (!k.payload) {
                p->lost_until = p->last;
                return -ENOMEM;
        }
        memcpy(k.payload, payload, bytes);
        p->ring[(p->first + p->n++) % p->room] = k;
        p->bytes += bytes;
        return 0;
}

int publisher_send(struct publisher *p, const uint8_t *payload, size_t bytes, bool kept)
{
        uint8_t number[8];

        big_endian(number, ++p->last);
        /* ZeroMQ sends a message only when all its parts were passed, so a failure in between
         * sends none of them. */
        if (zmq_send(p->pub, p->topic, strlen(p->topic), ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
            zmq_send(p->pub, number, sizeof(number), ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0)
                (void)zmq_send(p->pub, payload, bytes, ZMQ_DONTWAIT);
        return kept ? keep(p, payload, bytes) : 0;
}

uint64_t publisher_last(const struct publisher *p)
{
        return p->last;
}

/* Receives one part of a message, cut to `room` bytes. Returns its size before the cut, or -1 if
 * there is none. */
static int receive(struct publisher *p, void *to, size_t room, bool *ret_more)
{
        int more = 0, n = zmq_recv(p->router, to, room, ZMQ_DONTWAIT);
        size_t size = sizeof(more);

        if (n >= 0)
                (void)zmq_getsockopt(p->router, ZMQ_RCVMORE, &more, &size);
        *ret_more = more != 0;
        return n;
}

bool publisher_take_request(struct publisher *p, uint64_t *ret_from)
{
        uint8_t number[8], other[64];
        bool more, is_valid;
        int n = p->router ? receive(p, p->identity, sizeof(p->identity), &more) : -1;

        if (n < 0)
                return false;
        is_valid = n <= (int)sizeof(p->identity) && more;
        p->identity_bytes = MIN((size_t)n, sizeof(p->identity));
        is_valid = is_valid && receive(p, other, sizeof(other), &more) == 0 && more;
        is_valid = is_valid && receive(p, number, sizeof(number), &more) == sizeof(number) && !more;
        while (more && receive(p, other, sizeof(other), &more) >= 0)
                ;
        if (!is_valid)
                return false;
        *ret_from = 0;
        for (unsigned i = 0; i < sizeof(number); i++)
                *ret_from = *ret_from << 8 | number[i];
        return true;
}

bool publisher_has(const struct publisher *p, uint64_t from)
{
        return from > p->lost_until && from <= p->last + 1;
}

static void answer_one(struct publisher *p, uint64_t number, const uint8_t *payload, size_t bytes)
{
        uint8_t big[8];

        big_endian(big, number);
        if (zmq_send(p->router, p->identity, p->identity_bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
            zmq_send(p->router, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
            zmq_send(p->router, big, sizeof(big), ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0)
                (void)zmq_send(p->router, payload, bytes, ZMQ_DONTWAIT);
}

void publisher_answer(struct publisher *p, uint64_t from, const uint8_t *payload, size_t bytes,
                      uint64_t number)
{
        if (payload)
                answer_one(p, number, payload, bytes);
        for (size_t i = 0; i < p->n; i++) {
                const struct kept *k = &p->ring[(p->first + i) % p->room];

                if (k->number >= from)
                        answer_one(p, k->number, k->payload, k->bytes);
        }
        answer_one(p, UINT64_MAX, (const uint8_t *)"", 0);
}
