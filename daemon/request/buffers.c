/* SPDX-License-Identifier: Apache-2.0 */
/* A registration's life: REGISTER charges for it and has it checked and mapped -> it has its
 * number, the reply goes out, and the rings register it behind that -> UNREGISTER or the client's
 * end makes it unusable -> with its last use it is unregistered and unmapped -> uncharged, freed,
 * and the reply to UNREGISTER goes out. */
#include "request/buffers.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "units.h"
#include "checked.h"
#include "cleanup.h"
#include "request/client.h"
#include "cache/region.h"

enum buffer_state {
        BUFFER_OPENING,
        BUFFER_OPEN,
        BUFFER_LEAVING, /* no request may name it any more */
        BUFFER_CLOSING, /* nothing uses it any more */
};

struct buffer {
        struct client *client;
        enum buffer_state state;
        unsigned place; /* in client->buffers */
        struct region memory;
        uint64_t bytes;
        uint64_t ring_bytes; /* counted in the tenant's */
        uint32_t uses;

        /* Whose reply is due: REGISTER's, later UNREGISTER's, if it is not the client's end. */
        struct request request;
        bool replies;
};

static uint64_t bit_of(unsigned place)
{
        return UINT64_C(1) << place;
}

/* --- the end --- */

static void buffer_free(struct buffer *d)
{
        struct client *client = d->client;

        client->buffers.all[d->place] = NULL;
        quota_uncharge(&client->holds, QUOTA_REGISTERED_BYTES, d->bytes);
        quota_uncharge(&client->holds, QUOTA_REGIONS, 1);
        free(d);
}

static void on_closed(struct region *memory)
{
        struct buffer *d = container_of(memory, struct buffer, memory);
        struct client *client = d->client;
        struct request request = d->request;
        bool replies = d->replies;

        client->tenant->registered.regions--;
        client->tenant->registered.ring_bytes -= d->ring_bytes;
        buffer_free(d);
        if (replies) {
                request_ok(request);
        } else {
                client->inflight--;
                client->idle(client);
        }
}

static void let_go(struct buffer *d)
{
        if (d->state != BUFFER_LEAVING || d->uses > 0)
                return;
        d->state = BUFFER_CLOSING;
        region_close(&d->memory);
}

static void leave(struct buffer *d)
{
        d->client->buffers.usable &= ~bit_of(d->place);
        d->state = BUFFER_LEAVING;
        let_go(d);
}

void buffer_unregister(struct request req, const struct wire_unregister *msg)
{
        struct client *client = req.client;
        struct buffer *d;

        if (!buffers_bit(client, msg->region)) {
                request_fail(req, WIRE_INVALID, "there is no such region");
                return;
        }
        d = client->buffers.all[msg->region - 1];
        d->request = req;
        d->replies = true;
        quota_charge_anyway(&client->holds, QUOTA_REQUESTS, 1);
        leave(d);
}

void buffers_end(struct client *client)
{
        for (unsigned i = 0; i < WIRE_MAX_REGIONS; i++) {
                struct buffer *d = client->buffers.all[i];

                /* Of the others a request is in flight, which has yet to end. */
                if (!d || d->state != BUFFER_OPEN)
                        continue;
                client->inflight++;
                d->replies = false;
                leave(d);
        }
}

/* --- the beginning --- */

static void on_registered(struct region *memory)
{
        struct buffer *d = container_of(memory, struct buffer, memory);
        const struct kio_region *io = &memory->in_rings;
        char registered[UNITS_TEXT], all[UNITS_TEXT];
        uint32_t held_back;

        d->ring_bytes = io->registered_bytes;
        d->client->tenant->registered.ring_bytes += d->ring_bytes;
        if (io->result >= 0 || io->result == -EOPNOTSUPP)
                return;
        d->client->tenant->registered.refused++;
        if (log_ratelimit_pass(&d->client->tenant->region_lines, &held_back))
                log_warning("tenant %s: the I/O rings registered %s of a client's %s of registered "
                            "memory: %s; I/O to the rest costs more CPU",
                            tenant_name(d->client->tenant),
                            units_bytes(io->registered_bytes, registered),
                            units_bytes(io->bytes, all),
                            io->result == -ENOMEM
                                    ? "RLIMIT_MEMLOCK is too small (LimitMEMLOCK=infinity in the "
                                      "unit, or \"ulimit -l unlimited\")"
                            : io->result == -ENOSPC ? "the table of the rings is full"
                                                    : strerror(-io->result));
}

static void on_opened(struct region *memory, int result, const char *wrong)
{
        struct buffer *d = container_of(memory, struct buffer, memory);
        struct client *client = d->client;
        struct request request = d->request;

        client->tenant->registered.opening--;
        if (result < 0) {
                char text[160];

                buffer_free(d);
                snprintf(text, sizeof(text), "this cannot be registered: %s",
                         wrong ?: strerror(-result));
                request_fail(request, wrong ? WIRE_INVALID : WIRE_FAILED, text);
                return;
        }
        client->tenant->registered.regions++;
        d->state = BUFFER_OPEN;
        client->buffers.usable |= bit_of(d->place);
        request_ok_value(request, d->place + 1, d->bytes);
        if (client->ended)
                buffers_end(client);
}

static enum wire_status charge(struct client *client, uint64_t bytes)
{
        enum wire_status status = client_charge(client, QUOTA_REGISTERED_BYTES, bytes);

        if (status != WIRE_OK)
                return status;
        status = client_charge(client, QUOTA_REGIONS, 1);
        if (status != WIRE_OK)
                quota_uncharge(&client->holds, QUOTA_REGISTERED_BYTES, bytes);
        return status;
}

void buffer_open(struct request req, const struct wire_register *msg, int *fd)
{
        struct client *client = req.client;
        const char *text = NULL;
        enum wire_status status = WIRE_INVALID;
        struct buffer *d = NULL;
        unsigned place = 0;

        while (place < WIRE_MAX_REGIONS && client->buffers.all[place])
                place++;
        if (place == WIRE_MAX_REGIONS) {
                text = "this session has as many regions as it may";
        } else if (!region_is_memory(*fd)) {
                text = "this cannot be registered: it is neither a memfd nor a file on tmpfs or "
                       "hugetlbfs";
        } else {
                status = charge(client, msg->bytes);
                if (status != WIRE_OK)
                        text = status == WIRE_BUSY ? "registered memory of all clients is at "
                                                     "limits.registered, or "
                                                     "there are too many regions"
                                                   : "registered memory, or the number of regions, "
                                                     "of this user "
                                                     "or tenant is at its limit";
        }
        if (!text) {
                d = calloc(1, sizeof(*d));
                if (!d) {
                        quota_uncharge(&client->holds, QUOTA_REGISTERED_BYTES, msg->bytes);
                        quota_uncharge(&client->holds, QUOTA_REGIONS, 1);
                        status = WIRE_BUSY;
                        text = "out of memory";
                }
        }
        if (text) {
                request_fail(req, status, text);
                return;
        }
        *d = (struct buffer){
                .client = client,
                .place = place,
                .bytes = msg->bytes,
                .memory = { .io = client->tenant->service->io,
                            .opened = on_opened,
                            .registered = on_registered,
                            .closed = on_closed },
                .request = req,
        };
        client->buffers.all[place] = d;
        client->tenant->registered.opening++;
        /* Of memory it takes what QUOTA_REGIONS bounds. */
        quota_charge_anyway(&client->holds, QUOTA_REQUESTS, 1);
        region_open(&d->memory, TAKE_FD(*fd), msg->offset, msg->bytes);
}

/* --- use --- */

void buffers_use(struct client *client, uint64_t regions)
{
        assert((regions & ~client->buffers.usable) == 0);
        for (; regions; regions &= regions - 1)
                client->buffers.all[__builtin_ctzll(regions)]->uses++;
}

void buffers_unuse(struct client *client, uint64_t regions)
{
        for (; regions; regions &= regions - 1) {
                struct buffer *d = client->buffers.all[__builtin_ctzll(regions)];

                d->uses--;
                let_go(d);
        }
}

uint64_t buffers_bit(const struct client *client, uint32_t number)
{
        if (number == 0 || number > WIRE_MAX_REGIONS)
                return 0;
        return client->buffers.usable & bit_of(number - 1);
}

void *buffer_at(const struct client *client, uint32_t number, uint64_t offset, uint64_t length,
                struct kio_region **ret_region)
{
        struct buffer *d = client->buffers.all[number - 1];

        *ret_region = &d->memory.in_rings;
        return region_at(&d->memory, offset, length);
}
