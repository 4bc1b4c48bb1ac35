/* SPDX-License-Identifier: Apache-2.0 */
/* Messages that inspect and administer the daemon: REPORT, NAMESPACES, NAMESPACE_REMOVE, NAMESPACE
 * that sets a lifetime, LIST, PURGE, VERIFY, DEVICE, BENCH, RELOAD, SWEEP. Some require an admin.
 * Each function answers the request, at once or later. Loop thread. */
#pragma once

#include "request/reply.h"

void admin_report(struct request req, const struct wire_report_request *msg);
void admin_list(struct request req, const struct wire_list *msg);
void admin_namespaces(struct request req, const struct wire_namespaces *msg);
void admin_namespace_set(struct request req, const struct wire_namespace *msg);
void admin_namespace_remove(struct request req, const struct wire_namespace_remove *msg);
void admin_purge(struct request req, const struct wire_purge *msg);
void admin_verify(struct request req, const struct wire_verify *msg);
void admin_device(struct request req, const struct wire_device *msg);
void admin_reload(struct request req);
void admin_sweep(struct request req, const struct wire_sweep *msg);
void admin_bench(struct request req, const struct wire_bench *msg);
