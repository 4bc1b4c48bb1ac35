/* SPDX-License-Identifier: Apache-2.0 */
/* The audit trail: log lines about operations by which a client removes, pins or unpins stored data
 * or changes its lifetime, within a rate limit per user (audit.c). The line has the operation, the
 * namespace, its tenant, the number of chunks, and the client's user and process. Loop thread. */
#pragma once

#include "request/client.h"

/* Initializes the audit trail of a service. */
void audit_init(struct service *service);

/* Logs an operation that has ended. `name`: the namespace, NULL for the whole store; `tenant`: the
 * namespace's tenant, NULL if it has none; `detail`: text that follows, such as how the operation
 * ended, or "". */
void audit_log(const struct client *client, const char *operation, const char *name,
               const char *tenant, uint64_t chunks, const char *detail);

/* Adds chunks that one message has evicted, pinned or unpinned. Consecutive messages of a session
 * with the same operation and namespace share a line, which audit_tick() writes once its first
 * message is AUDIT_KEYS_S seconds old. */
enum { AUDIT_KEYS_S = 2 };
void audit_add(struct client *client, const char *operation, uint32_t namespace_id,
               uint64_t chunks);
/* Writes the line of chunks that audit_add() has added for the client, if there are any. */
void audit_flush(struct client *client);
/* Writes the lines that are due. Call it about once a second. */
void audit_tick(struct service *service, uint64_t now_ns);
