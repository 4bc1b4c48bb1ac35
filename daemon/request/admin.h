/* SPDX-License-Identifier: Apache-2.0 */
/* The messages by which people look at the daemon and clear it: REPORT, NAMESPACES,
 * NAMESPACE_REMOVE, LIST, PURGE, VERIFY, DEVICE. Some need an admin. */
#pragma once

#include "request/client.h"

void admin_report(struct client *client, const struct wire_report_request *msg,
                  uint64_t received_ns);
void admin_list(struct client *client, const struct wire_list *msg, uint64_t received_ns);
void admin_namespaces(struct client *client, const struct wire_namespaces *msg,
                      uint64_t received_ns);
void admin_namespace_remove(struct client *client, const struct wire_namespace_remove *msg,
                            uint64_t received_ns);
void admin_purge(struct client *client, const struct wire_purge *msg, uint64_t received_ns);
void admin_verify(struct client *client, const struct wire_verify *msg, uint64_t received_ns);
void admin_device(struct client *client, const struct wire_device *msg, uint64_t received_ns);

/* Memory for an operation that is kept until it is answered, all zero, charged to the client; NULL:
 * it was refused, and answered. */
void *admin_operation_new(struct client *client, const struct wire_hdr *hdr, uint64_t received_ns,
                          size_t bytes);
void admin_operation_free(struct client *client, void *op, size_t bytes);
