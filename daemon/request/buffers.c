/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a registered buffer: REGISTER has the file checked -> the buffer gets a share of a
 * mapping: an existing one of the same user, or a new one, which is charged and mapped -> it has
 * its number, and the reply is sent -> UNREGISTER or the client's end makes it unusable -> with its
 * last use it releases its share -> it is freed, and the reply to UNREGISTER is sent.
 *
 * A file on a disk (put-file.h) has no mapping; its descriptor stays open instead. */
#include "request/buffers.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "request/client.h"
#include "cache/put-file.h"
#include "cache/region.h"
#include "request/mapping.h"

enum buffer_state {
        BUFFER_OPENING,
        BUFFER_OPEN,
        BUFFER_LEAVING, /* no further request may name the buffer; earlier ones may still use it */
        BUFFER_CLOSING, /* no request uses the buffer; its memory or file is being released */
};

struct buffer {
        struct client *client;
        enum buffer_state state;
        unsigned place; /* index in client->buffers */
        struct region_file file;
        struct mapping_share memory;
        struct put_file disk; /* used instead of `memory` if file.on_disk; its descriptor stays
                               * open */
        uint32_t uses;

        /* The request to answer: REGISTER, later UNREGISTER, unless the client's end caused it. */
        struct request request;
        bool replies;
        /* The reason of a refusal, while the descriptor is closed: a static text or an errno. */
        enum wire_status refusal;
        const char *why;
        int error;
};

static uint64_t bit_of(unsigned place)
{
        return UINT64_C(1) << place;
}

static enum wire_status charge(struct client *client, bool on_disk)
{
        enum wire_status status = client_charge(client, QUOTA_REGIONS, 1);

        if (status != WIRE_OK || !on_disk)
                return status;
        status = client_charge(client, QUOTA_FILES, 1);
        if (status != WIRE_OK)
                quota_uncharge(&client->holds, QUOTA_REGIONS, 1);
        return status;
}

static void uncharge(struct client *client, bool on_disk)
{
        quota_uncharge(&client->holds, QUOTA_REGIONS, 1);
        if (on_disk)
                quota_uncharge(&client->holds, QUOTA_FILES, 1);
}

/* --- unregistering and releasing buffers --- */

static void buffer_free(struct buffer *d)
{
        struct client *client = d->client;

        client->buffers.all[d->place] = NULL;
        uncharge(client, d->file.on_disk);
        free(d);
}

static void closed(struct buffer *d)
{
        struct client *client = d->client;
        struct request request = d->request;
        bool replies = d->replies;

        client->tenant->registered.regions--;
        client->tenant->registered.files -= d->file.on_disk;
        buffer_free(d);
        if (replies) {
                request_ok(request);
        } else {
                client->inflight--;
                client->idle(client);
        }
}

static void on_closed(struct mapping_share *memory)
{
        closed(container_of(memory, struct buffer, memory));
}

static void on_disk_closed(struct region_file *file, int result)
{
        closed(container_of(file, struct buffer, file));
}

static void let_go(struct buffer *d)
{
        if (d->state != BUFFER_LEAVING || d->uses > 0)
                return;
        d->state = BUFFER_CLOSING;
        if (!d->file.on_disk) {
                mapping_release(&d->memory);
                return;
        }
        d->file.done = on_disk_closed;
        region_file_close(&d->file);
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
                request_fail(req, WIRE_INVALID,
                             "this session has no registered buffer of that number");
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

                /* Buffers in other states have a request in flight, whose completion ends them. */
                if (!d || d->state != BUFFER_OPEN)
                        continue;
                client->inflight++;
                d->replies = false;
                leave(d);
        }
}

/* --- registration --- */

static void refuse(struct buffer *d)
{
        struct request request = d->request;
        enum wire_status status = d->refusal;
        char text[WIRE_MAX_TEXT];

        snprintf(text, sizeof(text), "cannot register this %s: %s",
                 d->file.on_disk ? "file" : "memory", d->why ?: strerror(d->error));
        request.client->tenant->registered.opening--;
        buffer_free(d);
        request_fail(request, status, text);
}

static void on_file_closed(struct region_file *file, int result)
{
        refuse(container_of(file, struct buffer, file));
}

static void close_and_refuse(struct buffer *d, enum wire_status status)
{
        d->refusal = status;
        d->file.done = on_file_closed;
        region_file_close(&d->file);
}

static const char *registered_refusal(enum wire_status status, bool on_disk)
{
        if (on_disk)
                return status == WIRE_BUSY
                               ? "all clients together have the maximum number of registered "
                                 "buffers or files"
                               : "this user has the maximum number of registered buffers "
                                 "or files";
        return status == WIRE_BUSY ? "no more memory can be registered now: all clients together "
                                     "have reached limits.registered or the number of regions, or "
                                     "the daemon has no memory"
                                   : "this user or tenant has reached its limit of registered "
                                     "memory (limits.uid_registered, tenants.registered) or its "
                                     "number of regions";
}

static void buffer_opened(struct buffer *d)
{
        struct client *client = d->client;

        /* The mapping keeps the file, so that this close() does not free its memory, which would be
         * slow. */
        if (d->file.fd >= 0 && !d->file.on_disk)
                close(TAKE_FD(d->file.fd));
        client->tenant->registered.opening--;
        client->tenant->registered.regions++;
        client->tenant->registered.files += d->file.on_disk;
        d->state = BUFFER_OPEN;
        client->buffers.usable |= bit_of(d->place);
        request_ok_value(d->request, d->place + 1, d->file.bytes);
        if (client->ended)
                buffers_end(client);
}

static void on_opened(struct mapping_share *memory, int result)
{
        struct buffer *d = container_of(memory, struct buffer, memory);

        if (result == 0) {
                buffer_opened(d);
                return;
        }
        d->error = -result;
        close_and_refuse(d, WIRE_FAILED);
}

static void on_checked(struct region_file *file, int result)
{
        struct buffer *d = container_of(file, struct buffer, file);
        enum wire_status status;
        bool open;

        if (result < 0) {
                d->refusal = WIRE_INVALID;
                d->why = file->wrong;
                refuse(d); /* the check has closed the descriptor */
                return;
        }
        if (file->on_disk) {
                d->disk.fd = file->fd;
                d->disk.offset = file->offset;
                buffer_opened(d);
                return;
        }
        status = mapping_acquire(&d->memory, d->client, file, &open);
        if (status != WIRE_OK) {
                d->why = registered_refusal(status, false);
                close_and_refuse(d, status);
        } else if (open) {
                buffer_opened(d);
        }
}

void buffer_open(struct request req, const struct wire_register *msg, int *fd)
{
        struct client *client = req.client;
        enum wire_status status;
        struct buffer *d;
        bool on_disk = msg->hdr.flags & WIRE_F_FILE;
        unsigned place = 0;

        while (place < WIRE_MAX_REGIONS && client->buffers.all[place])
                place++;
        if (place == WIRE_MAX_REGIONS) {
                request_fail(req, WIRE_INVALID,
                             "this session has the maximum number of registered buffers");
                return;
        }
        if (on_disk && !client_may_register_files(client)) {
                request_fail(req, WIRE_DENIED,
                             "this daemon takes no puts from files of this user (io.gds_puts)");
                return;
        }
        if (on_disk && !put_file_is_on_device(*fd)) {
                request_fail(
                        req, WIRE_INVALID,
                        "cannot register this file: it is not a regular file of a block device");
                return;
        }
        if (!on_disk && !region_is_memory(*fd)) {
                request_fail(req, WIRE_INVALID,
                             "cannot register this memory: the file is neither a memfd nor on "
                             "tmpfs or hugetlbfs");
                return;
        }
        status = charge(client, on_disk);
        if (status != WIRE_OK) {
                request_fail(req, status, registered_refusal(status, on_disk));
                return;
        }
        d = calloc(1, sizeof(*d));
        if (!d) {
                uncharge(client, on_disk);
                request_fail(req, WIRE_BUSY,
                             "the daemon has no memory to register this buffer: try again later");
                return;
        }
        *d = (struct buffer){
                .client = client,
                .place = place,
                .file = { .io = client->tenant->service->io,
                          .fd = TAKE_FD(*fd),
                          .on_disk = on_disk,
                          .offset = msg->offset,
                          .bytes = msg->bytes,
                          .done = on_checked },
                .memory = { .opened = on_opened, .closed = on_closed },
                .request = req,
        };
        client->buffers.all[place] = d;
        client->tenant->registered.opening++;
        /* No limit of requests refuses this one, because QUOTA_REGIONS bounds the number of
         * buffers. */
        quota_charge_anyway(&client->holds, QUOTA_REQUESTS, 1);
        region_file_check(&d->file);
}

/* --- buffers that messages name --- */

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

        if (d->file.on_disk || !range_within(offset, length, d->file.bytes))
                return NULL;
        return mapping_at(&d->memory, offset, length, ret_region);
}

struct put_file *buffer_file(const struct client *client, uint32_t number, uint64_t offset,
                             uint64_t length)
{
        struct buffer *d = client->buffers.all[number - 1];

        return d->file.on_disk && offset % PUT_FILE_PAGE == 0 &&
                               range_within(offset, length, d->file.bytes)
                       ? &d->disk
                       : NULL;
}
