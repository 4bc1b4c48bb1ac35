/* SPDX-License-Identifier: Apache-2.0 */
/* The namespaces that exist, for the commands that show them. */
#pragma once

#include <stddef.h>

#include "common.h"

/* All that this user may know of, the largest first; `tenant` as of kvcache_namespace_list(). An
 * exit status; `what`: the command, for messages. */
int namespaces_fetch(struct ctl *ctl, const char *what, const char *tenant,
                     struct kvcache_namespace_info **ret, size_t *ret_n);
/* Prints the `limit` largest. */
int namespaces_list(struct ctl *ctl, const char *what, const char *tenant, uint64_t limit);
