/* SPDX-License-Identifier: Apache-2.0 */
/* Implements audit.h. The line is written when the operation ends, so that it contains the number
 * of chunks, and before the operation is answered.
 *
 * `kvcachectl evict --all` and `pin` send many messages of keys. Their chunks are added up by
 * client, namespace and operation; the line is written when any of these changes, when the client
 * ends, or by the tick.
 *
 * Failures: clients can cause lines, so a user has AUDIT_BURST of them and then one per second. The
 * limit belongs to the uid (users whose uids are equal modulo SERVICE_AUDIT_USERS share one) and
 * outlives its sessions. Lines beyond it are counted in the next line that passes. If the daemon is
 * killed, the lines of keys of the last AUDIT_KEYS_S seconds are lost. */
#include "request/audit.h"

#include <inttypes.h>

#include "base/clock.h"
#include "units.h"

enum { AUDIT_BURST = 256 };

void audit_init(struct service *service)
{
        list_init(&service->audits);
        for (unsigned i = 0; i < SERVICE_AUDIT_USERS; i++)
                service->audit_lines[i] = (struct log_ratelimit)LOG_RATELIMIT_INIT(AUDIT_BURST);
}

void audit_log(const struct client *client, const char *operation, const char *name,
               const char *tenant, uint64_t chunks, const char *detail)
{
        struct service *service = client->tenant->service;
        struct log_operation fields = {
                .operation = operation,
                .namespace_name = name,
                .tenant = tenant,
                .chunks = chunks,
        };
        char counted[UNITS_TEXT], held[64] = "";
        uint32_t held_back = 0;

        if (!log_ratelimit_pass(&service->audit_lines[client->uid % SERVICE_AUDIT_USERS],
                                &held_back)) {
                service->audit_lines_held_back++;
                return;
        }
        if (held_back > 0)
                snprintf(held, sizeof(held), " (%" PRIu32 " similar lines held back)", held_back);
        log_set_context(&(struct log_context){ .session = client->id,
                                               .pid = client->pid,
                                               .uid = client->uid,
                                               .client = client->name });
        log_set_operation(&fields);
        units_count(chunks, "chunk", counted);
        if (name)
                log_notice("%s: namespace \"%s\" of tenant %s, %s%s%s", operation, name,
                           tenant ? tenant : "(unknown)", counted, detail, held);
        else
                log_notice("%s: %s%s%s", operation, counted, detail, held);
        log_set_operation(NULL);
        log_set_context(NULL);
}

/* --- keys that were evicted, pinned or unpinned --- */

void audit_flush(struct client *client)
{
        struct audit *audit = &client->audit;
        const struct service *service = client->tenant->service;
        const struct store_namespace *ns;

        if (!audit->operation)
                return;
        ns = store_namespace_get(service->store, audit->namespace_id);
        audit_log(client, audit->operation, ns ? ns->name : "(removed)",
                  ns ? tenant_name_in_store(service, ns->tenant) : tenant_name(client->tenant),
                  audit->chunks, "");
        list_unlink(&audit->node);
        *audit = (struct audit){ .operation = NULL };
}

void audit_add(struct client *client, const char *operation, uint32_t namespace_id, uint64_t chunks)
{
        struct audit *audit = &client->audit;

        if (chunks == 0)
                return;
        if (audit->operation != operation || audit->namespace_id != namespace_id)
                audit_flush(client);
        if (!audit->operation) {
                audit->operation = operation;
                audit->namespace_id = namespace_id;
                audit->since_ns = clock_mono_ns();
                list_init(&audit->node);
                list_append(&client->tenant->service->audits, &audit->node);
        }
        audit->chunks += chunks;
}

void audit_tick(struct service *service, uint64_t now_ns)
{
        list_for_each_safe (&service->audits, n) {
                struct audit *audit = container_of(n, struct audit, node);

                if (now_ns - audit->since_ns < AUDIT_KEYS_S * UINT64_C(1000000000))
                        break; /* the list is in order of since_ns */
                audit_flush(container_of(audit, struct client, audit));
        }
}
