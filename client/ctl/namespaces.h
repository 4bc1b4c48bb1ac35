/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of existing namespaces, for the commands that show them. */
#pragma once

#include "common.h"

/* Prints the samples of a namespace, and the chunks of it that are evicted next. With `object`,
 * adds both to it and prints it as JSON. Returns an exit status. */
int namespace_print_samples(struct ctl *ctl, const char *name, const char *tenant,
                            struct cJSON *object);
/* Prints the `limit` largest namespaces, in bytes, of `tenant`, which may be NULL as for
 * kvcache_namespace_list(). `what`: name of the command, for messages. Returns an exit status. */
int namespaces_list(struct ctl *ctl, const char *what, const char *tenant, uint64_t limit);
