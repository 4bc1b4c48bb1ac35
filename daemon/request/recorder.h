/* SPDX-License-Identifier: Apache-2.0 */
/* RECORD: which chunks clients get and put, as a stream to the admin that asked for it (kvcachectl
 * record), who makes a trace of it. Keys are hashed with a secret of the recording. At most one is
 * under way; without one, a batch costs a comparison with NULL.
 *
 * The daemon writes to a socket of its own making, without waiting. What the client does not read
 * fills the recording's buffer, of a fixed size and charged to its user, and then keys are lost:
 * counted, in the stream itself and in a metric. It ends with its time, with the session that
 * asked, or when the socket is closed. Loop thread. */
#pragma once

#include <stdint.h>

#include "request/client.h"

enum {
        RECORDER_BUFFER = 256 * 1024,
        RECORDER_KEYS_PER_SECOND = 500000, /* more than these are lost */
        RECORDER_LINGER_S = 10,            /* for the end of a recording to be read */
};

/* About once a second. */
void recorder_tick(struct service *service, uint64_t now_ns);
/* The client's recording ends, if it has one: nothing is written any more. */
void recorder_stop(struct client *client);
