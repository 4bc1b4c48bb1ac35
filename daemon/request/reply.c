/* SPDX-License-Identifier: Apache-2.0 */
/* Implements reply.h. Every message is answered here: its latency is counted, its place among the
 * client's messages in flight is released, and the session is notified (client->idle()). A client
 * whose session has ended gets no reply. Cannot fail: session/send.c keeps replies that the socket
 * does not take at once. */
#include "request/reply.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* Counts the answer, sends it unless the session has ended or the client wants none, and lets the
 * client continue. */
static void answer(const struct request *req, struct wire_reply *reply, size_t bytes,
                   const int *fds, unsigned n_fds)
{
        struct client *client = req->client;

        reply->hdr = (struct wire_hdr){ .len = (uint32_t)bytes,
                                        .op = req->header.op | WIRE_REPLY,
                                        .tag = req->header.tag };
        histogram_add(&client->tenant->traffic.latency[req->header.op],
                      clock_mono_ns() - req->received_ns);
        assert(client->inflight > 0);
        client->inflight--;
        quota_settle(&client->holds, QUOTA_REQUESTS, client->inflight);
        if (!client->ended && !(req->header.flags & WIRE_F_NO_REPLY))
                client->send(client, reply, bytes, fds, n_fds);
        client->idle(client);
}

void request_reply(struct request req, struct wire_reply *reply, size_t bytes)
{
        answer(&req, reply, bytes, NULL, 0);
}

void request_reply_fds(struct request req, uint32_t value, uint64_t value64, const int *fds,
                       unsigned n_fds)
{
        struct wire_reply reply = { .status = WIRE_OK, .value = value, .value64 = value64 };

        answer(&req, &reply, sizeof(reply), fds, n_fds);
}

void request_ok_value(struct request req, uint32_t value, uint64_t value64)
{
        struct wire_reply reply = { .status = WIRE_OK, .value = value, .value64 = value64 };

        answer(&req, &reply, sizeof(reply), NULL, 0);
}

void request_ok(struct request req)
{
        request_ok_value(req, 0, 0);
}

void request_fail_value(struct request req, enum wire_status status, uint32_t value,
                        uint64_t value64, const char *text)
{
        size_t text_bytes = strnlen(text, WIRE_MAX_TEXT);
        struct {
                struct wire_reply reply;
                char text[WIRE_MAX_TEXT];
        } msg = {
                .reply = { .status = (uint16_t)status, .value = value, .value64 = value64 },
        };

        memcpy(msg.text, text, text_bytes);
        answer(&req, &msg.reply, sizeof(msg.reply) + text_bytes, NULL, 0);
}

void request_fail(struct request req, enum wire_status status, const char *text)
{
        request_fail_value(req, status, 0, 0, text);
}

void *request_operation_new(struct request req, size_t bytes, size_t beside)
{
        enum wire_status status = client_charge_request(req.client, bytes + beside);
        void *op = NULL;

        if (status == WIRE_OK) {
                op = calloc(1, bytes);
                if (op)
                        return op;
                client_uncharge_request(req.client, bytes + beside);
                status = WIRE_BUSY;
        }
        request_fail(req, status, client_refusal(status));
        return NULL;
}

void request_operation_free(struct request req, void *op, size_t charged)
{
        client_uncharge_request(req.client, charged);
        free(op);
}
