/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over all tenants. Loop thread. */
#pragma once

#include "lookup/tally.h"

struct cache_stats;
struct service;
struct pool_stats;

void status_collect_cache(const struct service *service, struct cache_stats *ret);
void status_collect_pools(const struct service *service, struct pool_stats *ret);
/* By whomever they were answered. */
struct tally_keys status_lookups(const struct tally_keys of[TALLY_KINDS]);
/* Of all tenants, as of the last sessions_count_lookups(): which part of the keys asked for was
 * there, of those looked up, or, while there are none, of those got. Never of both: a client that
 * looks a key up and then gets it has asked for it once. "lookups" or "gets"; NULL: none were
 * asked for. */
const char *status_hit_ratio(const struct service *service, double *ret_ratio);
