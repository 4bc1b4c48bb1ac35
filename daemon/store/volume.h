/* SPDX-License-Identifier: Apache-2.0 */
/* One path of the store: a directory with its superblock, namespaces, table ring and data files, and
 * the index of what lies in it. store.c is the only caller and adds what several of them are
 * together; each function does for one path what store.h says its namesake does for all. */
#pragma once

#include "store/store.h"

struct volume;

int volume_prepare(struct volume **ret, const struct store_params *params, const char *path,
                   char ret_error[static 512]);
int volume_lock_fd(const struct volume *v);
int volume_probe_fd(const struct volume *v);
int volume_open(struct volume *v, struct kio *io, char ret_error[static 512]);
void volume_stop(struct volume *v);
uint64_t volume_pending(const struct volume *v);
struct volume *volume_close(struct volume *v);
void volume_turn(struct volume *v);
uint64_t volume_max_chunk(const struct volume *v);
const char *volume_path(const struct volume *v);

void volume_namespace_open(struct volume *v, struct store_namespace_open *req);
const struct store_namespace *volume_namespace_get(const struct volume *v, uint32_t id);
const struct store_namespace *volume_namespace_at(const struct volume *v, unsigned i);

int volume_find(const struct volume *v, uint32_t namespace_id, const struct key *key, uint64_t hash,
                struct store_ref *ret_ref, struct store_chunk *ret_chunk);
void volume_touch(struct volume *v, struct store_ref ref);
int volume_put(struct volume *v, struct store_put *req);
void volume_sync(struct volume *v, struct store_put *req);
int volume_get(struct volume *v, struct store_get *req);
int volume_drop(struct volume *v, uint32_t namespace_id, const struct key *key, uint64_t hash);
void volume_settle_drops(struct volume *v, struct store_put *req);
void volume_purge(struct volume *v, struct store_purge *req);
unsigned volume_list(const struct volume *v, uint32_t namespace_id, uint64_t *cursor,
                     struct store_chunk *ret, unsigned max);
void volume_get_stats(const struct volume *v, struct store_stats *ret);
