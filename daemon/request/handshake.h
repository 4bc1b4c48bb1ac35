/* SPDX-License-Identifier: Apache-2.0 */
/* The messages by which a client gets what it works with: namespaces, its staging area, the lookup
 * index. Loop thread. */
#pragma once

#include "request/reply.h"

void handshake_namespace(struct request req, const struct wire_namespace *msg);
void handshake_staging(struct request req, const struct wire_staging *msg);
void handshake_lookup(struct request req);
void handshake_transfers(struct request req);
