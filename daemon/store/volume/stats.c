/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of a volume: its counters, and values that are computed on request. When a volume is
 * resumed, the new struct takes over the counters of the old one. Loop thread. */
#include "checked.h"
#include "store/volume/internal.h"
#include "store/volume/scrub.h"

void volume_take_counts(struct volume *v, const struct volume *earlier)
{
        struct store_stats now = v->stats;

        /* also copies values that are not counters; volume_get_stats() computes these again */
        volume_get_stats(earlier, &v->stats);
        v->stats.clean_start = now.clean_start;
        v->stats.recovered_chunks = now.recovered_chunks;
        v->stats.recovered_pages = now.recovered_pages;
        v->stats.skipped_pages = now.skipped_pages;
        v->stats.recover_ms = now.recover_ms;
        v->stats.detached_files += now.detached_files;
        v->stats.lost_chunks += now.lost_chunks;
        v->stats.lost_files += now.lost_files;
        v->stats.lost_ns = MAX(v->stats.lost_ns, now.lost_ns);
        v->full_refusals = earlier->full_refusals;
        v->evicted_ages = earlier->evicted_ages;
}

const struct histogram *volume_evicted_ages(const struct volume *v)
{
        return &v->evicted_ages;
}

static void get_memory(const struct volume *v, const struct evict_stats *evict,
                       uint64_t ret[static STORE_MEMORY_PARTS])
{
        uint32_t high = index_high(v->index);

        index_bytes(v->index, &ret[STORE_MEMORY_RECORDS], &ret[STORE_MEMORY_HASH]);
        ret[STORE_MEMORY_SLOTS] = slabs_word_bytes(v->slabs, v->cut_slots);
        ret[STORE_MEMORY_TABLE] = table_bytes(v->table, high);
        ret[STORE_MEMORY_EVICTION] = (uint64_t)high * evict->item_bytes;
        ret[STORE_MEMORY_FORKS] = evict->fork_bytes;
        ret[STORE_MEMORY_GHOSTS] = evict->ghosts * evict->ghost_bytes;
}

void volume_get_stats(const struct volume *v, struct store_stats *ret)
{
        struct table_stats table = { 0 };

        *ret = v->stats;
        ret->limit = v->params.limit;
        ret->direct = v->dir->direct;
        ret->direct_reason = v->dir->direct_reason;
        ret->bypassed = v->bypassed;
        if (!v->open)
                return;
        table_get_stats(v->table, &table);
        ret->used_bytes = volume_charged(v);
        ret->payload_bytes = v->payload_bytes;
        ret->chunks = v->chunks;
        ret->entries_max = index_max(v->index);
        ret->slots = v->cut_slots;
        ret->segments = v->n_segments - v->n_retired;
        ret->segment_bytes = v->segment_bytes;
        ret->segments_max = segments_max(v);
        evict_get_stats(v->evict, &ret->evict);
        get_memory(v, &ret->evict, ret->memory);
        ret->table_pages = table_pages(v->table);
        ret->table_pages_written += table.pages_written;
        ret->table_entries_written += table.entries_written;
        ret->table_entries_carried += table.entries_carried;
        ret->sync_errors += namespaces_sync_errors(v->namespaces);
        ret->namespaces = namespaces_count(v->namespaces);
        scrub_get_stats(v->scrub, ret);
}

const struct file_system *volume_file_system(const struct volume *v)
{
        return v->dir->file_system;
}
