/* SPDX-License-Identifier: Apache-2.0 */
/* A donation's life: DONATE charges for it and has it checked and mapped by a thread for calls ->
 * it has its number, the reply goes out, and the rings register it behind that -> WITHDRAW or the
 * client's end makes it unusable -> with its last use the rings let go of it -> it is unmapped, by
 * a thread for calls -> uncharged, freed, and the reply to WITHDRAW goes out. */
#include "request/buffers.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "checked.h"
#include "cleanup.h"
#include "request/client.h"
#include "cache/region.h"

enum {
        DONATION_PATH = KIO_PATHS_MAX - 3, /* io's: no device of the store has it */
        REGISTERED_MIN = 1 << 20,          /* a smaller one is not worth a ring's buffer */
};
static_assert((int)DONATION_PATH > (int)STORE_MAX_PATHS, "the store numbers its paths from 1 on");

enum donation_state {
        DONATION_OPENING,
        DONATION_OPEN,
        DONATION_LEAVING, /* no request may name it any more */
        DONATION_CLOSING, /* nothing uses it any more */
};

struct donation {
        struct client *client;
        enum donation_state state;
        unsigned place; /* in client->donations */
        struct region memory;
        struct kio_region io;
        uint32_t uses;
        bool registers;            /* with the rings: now, or already */
        uint64_t registered_bytes; /* counted in the client's environment */
        struct kio_request call;

        /* DONATE */
        int fd;
        uint64_t offset, bytes;
        const char *wrong;

        /* Whose reply is due: DONATE's, later WITHDRAW's, if it is not the client's end. */
        struct wire_hdr request;
        uint64_t received_ns;
        bool replies;
};

static uint64_t bit_of(unsigned place)
{
        return UINT64_C(1) << place;
}

static void reply(struct donation *d, enum wire_status status, uint32_t value, uint64_t value64,
                  const char *text)
{
        client_reply(d->client, &d->request, d->received_ns, status, value, value64, text, NULL, 0);
}

static void call(struct donation *d, int (*run)(struct kio_request *),
                 void (*complete)(struct kio_request *))
{
        d->call = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_BACKGROUND,
                .path = DONATION_PATH,
                .call = run,
                .complete = complete,
        };
        kio_submit(d->client->env->io, &d->call, 0);
}

/* --- the end --- */

static void donation_free(struct donation *d)
{
        struct client *client = d->client;

        client->donations.all[d->place] = NULL;
        tenant_uncharge(&client->holds, TENANT_DONATED_BYTES, d->bytes);
        tenant_uncharge(&client->holds, TENANT_REGIONS, 1);
        free(d);
}

static int run_close(struct kio_request *req)
{
        region_close(&container_of(req, struct donation, call)->memory);
        return 0;
}

static void on_closed(struct kio_request *req)
{
        struct donation *d = container_of(req, struct donation, call);
        struct client *client = d->client;
        struct donation reply_for = *d;

        client->env->donated.regions--;
        donation_free(d);
        if (reply_for.replies) {
                reply(&reply_for, WIRE_OK, 0, 0, NULL);
        } else {
                client->inflight--;
                client->idle(client);
        }
}

static void on_unregistered(struct kio_region *io)
{
        struct donation *d = container_of(io, struct donation, io);

        d->client->env->donated.registered_bytes -= d->registered_bytes;
        call(d, run_close, on_closed);
}

static void let_go(struct donation *d)
{
        if (d->state != DONATION_LEAVING || d->uses > 0)
                return;
        d->state = DONATION_CLOSING;
        if (!d->registers) {
                call(d, run_close, on_closed);
                return;
        }
        d->io.complete = on_unregistered;
        kio_region_unregister(d->client->env->io, &d->io);
}

static void leave(struct donation *d)
{
        d->client->donations.usable &= ~bit_of(d->place);
        d->state = DONATION_LEAVING;
        let_go(d);
}

void donation_withdraw(struct client *client, const struct wire_withdraw *msg, uint64_t received_ns)
{
        struct donation *d;

        if (!donations_bit(client, msg->region)) {
                client_reply(client, &msg->hdr, received_ns, WIRE_INVALID, 0, 0,
                             "there is no such region", NULL, 0);
                return;
        }
        d = client->donations.all[msg->region - 1];
        d->request = msg->hdr;
        d->received_ns = received_ns;
        d->replies = true;
        tenant_charge_anyway(&client->holds, TENANT_REQUESTS, 1);
        leave(d);
}

void donations_end(struct client *client)
{
        for (unsigned i = 0; i < WIRE_MAX_REGIONS; i++) {
                struct donation *d = client->donations.all[i];

                /* Of the others a request is in flight, which has yet to end. */
                if (!d || d->state != DONATION_OPEN)
                        continue;
                client->inflight++;
                d->replies = false;
                leave(d);
        }
}

/* --- the beginning --- */

static void on_registered(struct kio_region *io)
{
        struct donation *d = container_of(io, struct donation, io);
        char registered[UNITS_TEXT], all[UNITS_TEXT];
        uint32_t held_back;

        d->registered_bytes = io->registered_bytes;
        d->client->env->donated.registered_bytes += d->registered_bytes;
        if (io->result >= 0 || io->result == -EOPNOTSUPP)
                return;
        d->client->env->donated.refused++;
        if (log_ratelimit_pass(&d->client->env->region_lines, &held_back))
                log_warning("tenant %s: the I/O rings registered %s of a client's %s of donated "
                            "memory: %s; I/O to the rest costs more CPU",
                            tenants_name(d->client->env->tenants, d->client->env->tenant),
                            units_bytes(io->registered_bytes, registered),
                            units_bytes(io->bytes, all),
                            io->result == -ENOMEM
                                    ? "RLIMIT_MEMLOCK is too small (LimitMEMLOCK=infinity in the "
                                      "unit, or \"ulimit -l unlimited\")"
                            : io->result == -ENOSPC ? "the table of the rings is full"
                                                    : strerror(-io->result));
}

static int run_open(struct kio_request *req)
{
        struct donation *d = container_of(req, struct donation, call);

        int r = region_open(&d->memory, d->fd, d->offset, d->bytes, &d->wrong);

        close(TAKE_FD(d->fd)); /* if it is the last one, that frees the memory */
        return r;
}

static void on_opened(struct kio_request *req)
{
        struct donation *d = container_of(req, struct donation, call);
        struct client *client = d->client;
        struct donation reply_for = *d;

        if (req->result < 0) {
                char text[160];

                donation_free(d);
                snprintf(text, sizeof(text), "this cannot be donated: %s",
                         reply_for.wrong ?: strerror((int)-req->result));
                reply(&reply_for, reply_for.wrong ? WIRE_INVALID : WIRE_FAILED, 0, 0, text);
                return;
        }
        client->env->donated.regions++;
        d->state = DONATION_OPEN;
        client->donations.usable |= bit_of(d->place);
        d->io = (struct kio_region){
                .base = d->memory.base,
                .bytes = d->memory.bytes,
                .path = DONATION_PATH,
                .complete = on_registered,
        };
        d->registers = d->bytes >= REGISTERED_MIN;
        if (d->registers)
                kio_region_register(client->env->io, &d->io);
        reply(&reply_for, WIRE_OK, d->place + 1, d->bytes, NULL);
        if (client->gone)
                donations_end(client);
}

static enum wire_status charge(struct client *client, uint64_t bytes)
{
        enum wire_status status = client_charge(client, TENANT_DONATED_BYTES, bytes);

        if (status != WIRE_OK)
                return status;
        status = client_charge(client, TENANT_REGIONS, 1);
        if (status != WIRE_OK)
                tenant_uncharge(&client->holds, TENANT_DONATED_BYTES, bytes);
        return status;
}

void donation_open(struct client *client, const struct wire_donate *msg, int *fd,
                   uint64_t received_ns)
{
        const char *text = NULL;
        enum wire_status status = WIRE_INVALID;
        struct donation *d = NULL;
        unsigned place = 0;

        while (place < WIRE_MAX_REGIONS && client->donations.all[place])
                place++;
        if (place == WIRE_MAX_REGIONS) {
                text = "this session has as many regions as it may";
        } else if (!region_is_memory(*fd)) {
                text = "this cannot be donated: it is neither a memfd nor a file on tmpfs or "
                       "hugetlbfs";
        } else {
                status = charge(client, msg->bytes);
                if (status != WIRE_OK)
                        text = status == WIRE_BUSY
                                       ? "donated memory of all clients is at limits.donated, or "
                                         "there are too many regions"
                                       : "donated memory, or the number of regions, of this user "
                                         "or tenant is at its limit";
        }
        if (!text) {
                d = calloc(1, sizeof(*d));
                if (!d) {
                        tenant_uncharge(&client->holds, TENANT_DONATED_BYTES, msg->bytes);
                        tenant_uncharge(&client->holds, TENANT_REGIONS, 1);
                        status = WIRE_BUSY;
                        text = "out of memory";
                }
        }
        if (text) {
                client_reply(client, &msg->hdr, received_ns, status, 0, 0, text, NULL, 0);
                return;
        }
        *d = (struct donation){
                .client = client,
                .place = place,
                .fd = TAKE_FD(*fd),
                .offset = msg->offset,
                .bytes = msg->bytes,
                .request = msg->hdr,
                .received_ns = received_ns,
        };
        client->donations.all[place] = d;
        /* Of memory it takes what TENANT_REGIONS bounds. */
        tenant_charge_anyway(&client->holds, TENANT_REQUESTS, 1);
        call(d, run_open, on_opened);
}

/* --- use --- */

void donations_use(struct client *client, uint64_t regions)
{
        assert((regions & ~client->donations.usable) == 0);
        for (; regions; regions &= regions - 1)
                client->donations.all[__builtin_ctzll(regions)]->uses++;
}

void donations_unuse(struct client *client, uint64_t regions)
{
        for (; regions; regions &= regions - 1) {
                struct donation *d = client->donations.all[__builtin_ctzll(regions)];

                d->uses--;
                let_go(d);
        }
}

uint64_t donations_bit(const struct client *client, uint32_t number)
{
        if (number == 0 || number > WIRE_MAX_REGIONS)
                return 0;
        return client->donations.usable & bit_of(number - 1);
}

void *donation_at(const struct client *client, uint32_t number, uint64_t offset, uint64_t length,
                  struct kio_region **ret_region)
{
        struct donation *d = client->donations.all[number - 1];

        *ret_region = &d->io;
        return region_at(&d->memory, offset, length);
}
