/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over all tenants. Loop thread. */
#pragma once

#include "lookup/counters.h"

struct cache_stats;
struct service;
struct pool_stats;

void status_collect_cache(const struct service *service, struct cache_stats *ret);
void status_collect_pools(const struct service *service, struct pool_stats *ret);
/* Returns the keys of lookups that the daemon answered and of those that clients answered
 * themselves, added up. */
struct lookup_counts status_lookups(const struct lookup_counts of[COUNTED_KINDS]);
/* Computes the share of requested keys that were found, over all tenants, as of the last
 * sessions_count_lookups(). Lookups count, or gets if there were no lookups, but never both, since
 * a client that looks up a key and then gets it has requested it once. Returns "lookups" or "gets",
 * or NULL if no keys were requested. */
const char *status_hit_ratio(const struct service *service, double *ret_ratio);
