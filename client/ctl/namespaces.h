/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of existing namespaces, for the commands that show them. */
#pragma once

#include <stddef.h>

#include "common.h"

/* Gets all namespaces that this user may see, the largest first; `tenant` as for
 * kvcache_namespace_list(). `what` names the command in messages. The caller frees `*ret`. Returns
 * an exit status. */
int namespaces_fetch(struct ctl *ctl, const char *what, const char *tenant,
                     struct kvcache_namespace_info **ret, size_t *ret_n);
/* Prints the samples of a namespace, and the chunks of it that are evicted next. With `object`,
 * adds both to it and prints it as JSON. Returns an exit status. */
int namespace_print_samples(struct ctl *ctl, const char *name, const char *tenant,
                            struct cJSON *object);
/* Prints the `limit` largest namespaces. Returns an exit status. */
int namespaces_list(struct ctl *ctl, const char *what, const char *tenant, uint64_t limit);
