/* SPDX-License-Identifier: Apache-2.0 */
/* Implements events-request.h. The events are copied when the reply is built, not when the request
 * arrives, so that a waiting request takes no memory but its record.
 *
 * Failures: without memory for the reply, or beyond a limit, the request is refused, and the client
 * asks again from the same event on. */
#include "request/events-request.h"

#include <string.h>

#include "base/clock.h"
#include "events/events.h"

struct events_operation {
        struct events_wait wait;
        struct request request;
        struct wire_events msg;
};

static struct events *events_of(const struct client *client)
{
        return client->tenant->service->events;
}

static void answer(struct request req, const struct wire_events *msg)
{
        static struct events_reply reply; /* static, because it is too large for the stack; only the
                                           * loop thread uses it */
        struct client *client = req.client;
        /* The client's limits must have room for the reply, which may have to be queued. */
        enum wire_status status = client_charge(client, QUOTA_REQUEST_BYTES, sizeof(reply));

        if (status != WIRE_OK) {
                request_fail(req, status, client_refusal(status));
                return;
        }
        if (msg->kind == WIRE_EVENTS_SNAPSHOT)
                events_snapshot(events_of(client), client->tenant->number, msg->from, msg->max,
                                &reply);
        else
                events_read(events_of(client), client->tenant->number, msg->epoch, msg->from,
                            msg->max, &reply);
        client_uncharge_request(client, sizeof(reply));
        request_reply(req, &reply.head, sizeof(reply.head) + reply.bytes);
}

static void finish(struct events_operation *op, int result)
{
        struct wire_events msg = op->msg;
        struct request req = op->request;

        request_operation_free(req, op, sizeof(*op));
        if (result == 0)
                answer(req, &msg);
        else
                request_fail(req, WIRE_SHUTDOWN, "the daemon is stopping");
}

static void on_events(struct events_wait *wait)
{
        struct events_operation *op = container_of(wait, struct events_operation, wait);

        op->request.client->events = NULL;
        op->request.received_ns = clock_mono_ns(); /* the latency of the message excludes the wait
                                                    * for events */
        finish(op, wait->result);
}

void events_request(struct request req, const struct wire_events *msg)
{
        struct client *client = req.client;
        uint64_t now_ns = clock_mono_ns();
        struct events_operation *op;
        int r = 0;

        if (!events_of(client)) {
                request_fail(req, WIRE_DENIED, "this daemon keeps no events (events.ring)");
                return;
        }
        if (client->events) {
                request_fail(req, WIRE_BUSY, "another request of this session waits for events");
                return;
        }
        op = request_operation_new(req, sizeof(*op), 0);
        if (!op)
                return;
        *op = (struct events_operation){
                .wait = { .from = msg->from,
                          .max = msg->max,
                          .deadline_ns = now_ns + msg->wait_ms * UINT64_C(1000000),
                          .complete = on_events },
                .request = req,
                .msg = *msg,
        };
        list_init(&op->wait.node);
        if (msg->kind == WIRE_EVENTS_SINCE)
                r = events_ask(events_of(client), client->tenant->number, msg->epoch, &op->wait,
                               now_ns);
        if (r == EVENTS_WAIT)
                client->events = &op->wait;
        else
                finish(op, r);
}

void events_request_end(struct client *client)
{
        if (client->events)
                events_cancel(client->events);
}
