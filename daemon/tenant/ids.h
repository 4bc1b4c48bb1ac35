/* SPDX-License-Identifier: Apache-2.0 */
/* The ids under which tenants' namespaces and chunks are stored. An id belongs to a tenant's name
 * permanently, whatever the order of the configuration: a tenant that is removed from the
 * configuration and added again finds its chunks. `default` has id 0. */
#pragma once

#include <stdint.h>

struct kio;
struct store;

/* The reserved tenant: each of its namespaces has a tenant's name and, as its fingerprint, that
 * tenant's id. */
enum { TENANT_IDS = UINT16_MAX };

/* tenant_id_name() returns the name of the tenant with this id, or NULL. tenant_id_of() returns the
 * id of the tenant with this name, or 0 if the name has none or is `default`. */
const char *tenant_id_name(const struct store *store, uint16_t number);
uint16_t tenant_id_of(const struct store *store, const char *name);

/* Looks up the `n` tenants' names at startup, assigns ids to new ones and waits until these are on
 * stable storage. No other operation of the store may be in flight. `ret_numbers` gets the id of
 * each name, and may be filled in part after a failure. Returns 0; or, with a sentence in
 * `ret_error`, -EUCLEAN if the records of the ids are damaged, -ENOSPC if no id is free, -ETIMEDOUT
 * after a minute, or another -errno. */
int tenant_ids_assign(struct store *store, struct kio *io, const char *const *names, unsigned n,
                      uint16_t *ret_numbers, char ret_error[static 256]);
