/* SPDX-License-Identifier: Apache-2.0 */
/* RECORD: streams which chunks clients get and put to the admin that requested it (kvcachectl
 * record), which makes a trace. Keys are hashed with a secret of the recording. There is at most
 * one recording; without one, a batch only costs a comparison with NULL.
 *
 * The daemon writes to a socket pair without waiting. Data that the client does not read fills a
 * buffer of fixed size, charged to its user. When it is full, keys are lost, and counted in the
 * stream and in a metric. A recording ends after its duration, with its session, or when the socket
 * is closed. Loop thread. */
#pragma once

#include <stdint.h>

#include "request/client.h"

enum {
        RECORDER_BUFFER = 256 * 1024,      /* bytes */
        RECORDER_KEYS_PER_SECOND = 500000, /* keys beyond this rate are lost */
        RECORDER_LINGER_S = 10,            /* time for the reader to read the end of a recording */
};

/* Flushes and ends recordings. Call it about once a second. */
void recorder_tick(struct service *service, uint64_t now_ns);
/* Ends the client's recording, if it has one, without writing more. */
void recorder_stop(struct client *client);
