/* SPDX-License-Identifier: Apache-2.0 */
/* Messages by which a client obtains resources: namespaces, the staging area, the lookup index and
 * the counters of transfers. Each function answers the request, at once or later. Loop thread. */
#pragma once

#include "request/reply.h"

void handshake_namespace(struct request req, const struct wire_namespace *msg);
void handshake_staging(struct request req, const struct wire_staging *msg);
void handshake_lookup(struct request req);
void handshake_transfers(struct request req);
