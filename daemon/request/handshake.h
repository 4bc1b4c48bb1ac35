/* SPDX-License-Identifier: Apache-2.0 */
/* The messages by which a client gets what it works with: namespaces, its lane, the look-up index.
 */
#pragma once

#include "request/client.h"

void opening_namespace(struct client *client, const struct wire_namespace *msg,
                       uint64_t received_ns);
void opening_lane(struct client *client, const struct wire_lane *msg, uint64_t received_ns);
void opening_lookup(struct client *client, const struct wire_hdr *msg, uint64_t received_ns);
