/* SPDX-License-Identifier: Apache-2.0 */
/* The messages by which a client gets what it works with: namespaces, its staging area, the look-up
 * index.
 */
#pragma once

#include "request/client.h"

void handshake_namespace(struct client *client, const struct wire_namespace *msg,
                         uint64_t received_ns);
void handshake_staging(struct client *client, const struct wire_staging *msg, uint64_t received_ns);
void handshake_lookup(struct client *client, const struct wire_hdr *msg, uint64_t received_ns);
