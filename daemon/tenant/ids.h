/* SPDX-License-Identifier: Apache-2.0 */
/* The id under which a tenant's namespaces and chunks are stored. It belongs to the tenant's name
 * for good, whatever the configuration's order; a tenant that is removed from the configuration and
 * added again finds its chunks. `default` is 0. */
#pragma once

#include <stdint.h>

struct kio;
struct store;

/* The reserved tenant: each of its namespaces has a tenant's name and, as its fingerprint, that
 * tenant's id. */
enum { TENANT_IDS = UINT16_MAX };

/* At the start, while nothing else is under way: looks the names up, gives numbers to new ones and
 * waits until these are on stable storage. 0; -EUCLEAN: the store contradicts itself; -errno; a
 * sentence in `ret_error`. */
/* The name that has this number, NULL: none; and the number of a name, 0: none. */
const char *tenant_id_name(const struct store *store, uint16_t number);
uint16_t tenant_id_of(const struct store *store, const char *name);

int tenant_ids_assign(struct store *store, struct kio *io, const char *const *names, unsigned n,
                      uint16_t *ret_numbers, char ret_error[static 256]);
