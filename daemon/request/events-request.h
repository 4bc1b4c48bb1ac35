/* SPDX-License-Identifier: Apache-2.0 */
/* Handles EVENTS: answers with the events of the client's tenant (events/events.h), at once or when
 * there are some. A session has at most one EVENTS that waits. Loop thread. */
#pragma once

#include "request/reply.h"

void events_request(struct request req, const struct wire_events *msg);
/* Ends the client's waiting EVENTS, if there is one, because the session ends. */
void events_request_end(struct client *client);
