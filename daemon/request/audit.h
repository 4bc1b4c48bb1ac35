/* SPDX-License-Identifier: Apache-2.0 */
/* The audit trail: one line of the log for each operation by which a client removes stored data or
 * changes how long it is kept, with the operation, the namespace, its tenant, the chunks that it
 * affected, and the user and process that asked. Loop thread. */
#pragma once

#include "request/client.h"

/* Prepares a service whose clients are logged. */
void audit_init(struct service *service);

/* Logs an operation that has ended. `name` is the namespace, NULL for all of the store; `tenant` is
 * the namespace's, NULL if it has none. `detail` follows in the text: "", or how it ended. */
void audit_log(const struct client *client, const char *operation, const char *name,
               const char *tenant, uint64_t chunks, const char *detail);

/* Adds chunks that one message has evicted or pinned. All such messages of a session that follow
 * each other share a line, which is written within AUDIT_KEYS_S seconds. */
enum { AUDIT_KEYS_S = 2 };
void audit_add(struct client *client, const char *operation, uint32_t namespace_id,
               uint64_t chunks);
/* Writes the line of a client that ends. */
void audit_flush(struct client *client);
/* Writes the lines that are due, about once a second. */
void audit_tick(struct service *service, uint64_t now_ns);
