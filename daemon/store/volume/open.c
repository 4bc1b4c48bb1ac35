/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a volume, in the steps that volume.h describes. volume_prepare() opens and locks the
 * directory, and reads its superblock; volume_make() writes the superblock of an empty directory.
 * Once the limit is divided among the volumes, volume_open() creates the index and the eviction
 * order, runs the recovery, makes a first data file if there is none, and writes the superblock,
 * which then says that the volume is in use.
 *
 * Blocks. Runs on the loop thread, or on the volume's blocking-call thread while no other thread
 * uses the volume.
 *
 * Failures: the caller gets one sentence, and must call volume_close(). */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "store/volume/internal.h"
#include "store/volume/scrub.h"

enum { DEFAULT_LOCK_WAIT_MS = 5000 };

DEFINE_CLEANUP(struct volume *, volume_close);

static uint32_t entries_max(const struct store_params *params)
{
        uint64_t n = params->entries;

        if (n == 0)
                n = volume_auto_entries(params->limit);
        /* a chunk takes at least one page, and a record's number must be a valid owner for
         * slab.h */
        n = MIN(n, params->limit / DISK_PAGE);
        return (uint32_t)MIN(MAX(n, UINT64_C(16)), (uint64_t)INT32_MAX - 1);
}

int volume_prepare(struct volume **ret, const struct volume_params *params,
                   char ret_error[static 512])
{
        _cleanup_(volume_closep) struct volume *v = NULL;
        int r;

        v = calloc(1, sizeof(*v));
        if (!v)
                return store_error(ret_error, -ENOMEM, "out of memory for the store");
        v->table_fd = -1;
        v->no_room_for = UINT64_MAX;
        emptying_init(v);
        list_init(&v->dirty_segments);
        list_init(&v->sync_waiting);
        list_init(&v->sync_flying);
        list_init(&v->records_waiting);
        list_init(&v->records_flying);
        turns_init(&v->slot_waiting);
        list_init(&v->sweeps);
        list_init(&v->gets_flying);
        list_init(&v->puts_flying);
        list_init(&v->done_puts);
        list_init(&v->drops_waiting);
        list_init(&v->done_gets);
        v->ops = *params->ops;
        v->number = params->number;
        v->kio_volume = params->number + 1;
        v->path = strdup(params->path);
        v->policy = strdup(params->store->policy);
        v->tenants = calloc(UINT16_MAX + 1, sizeof(*v->tenants));
        if (!v->path || !v->policy || !v->tenants)
                return store_error(ret_error, -ENOMEM, "out of memory for the store");
        v->params = *params->store;
        v->params.paths = NULL; /* the array belongs to the caller */
        v->params.policy = v->policy;

        r = dir_open(&v->dir,
                     &(struct dir_params){
                             .path = v->path,
                             .direct = v->params.direct,
                             .lock_wait_ms = v->params.lock_wait_ms ? v->params.lock_wait_ms
                                                                    : DEFAULT_LOCK_WAIT_MS,
                             .lock_fd = params->lock_fd,
                     },
                     ret_error);
        if (r < 0)
                return r;
        v->stats.clean_start = v->dir->superblock.clean == 1;
        if (v->params.as_is) {
                v->params.limit = MAX(v->dir->superblock.limit, (uint64_t)STORE_MIN_LIMIT);
                v->params.limit = MIN(v->params.limit, UINT64_C(1) << 60);
                v->params.segment_bytes = v->dir->superblock.segment_bytes;
        }
        *ret = TAKE_PTR(v);
        return 0;
}

int volume_lock_fd(const struct volume *v)
{
        return v->dir->lock_fd;
}

int volume_probe_fd(const struct volume *v)
{
        return v->dir->superblock_fd;
}

bool volume_is_fresh(const struct volume *v)
{
        return v->dir->fresh;
}

int volume_make(struct volume *v, const uint8_t *set, unsigned index, unsigned count,
                char ret_error[static 512])
{
        int r = dir_make(v->dir, set, index, count, ret_error);

        v->stats.clean_start = r == 0;
        return r;
}

bool volume_is_half_made(const struct volume *v)
{
        return v->dir->half_made;
}

struct disk_superblock *volume_superblock(struct volume *v)
{
        return &v->dir->superblock;
}

int volume_write_superblock(struct volume *v)
{
        return dir_write_superblock(v->dir);
}

int volume_space(const struct volume *v, uint64_t *ret_bytes, uint64_t *ret_device)
{
        struct statvfs fs;
        struct stat st;

        if (fstatvfs(v->dir->fd, &fs) < 0 || fstat(v->dir->fd, &st) < 0)
                return -errno;
        *ret_bytes = (uint64_t)fs.f_blocks * fs.f_frsize;
        *ret_device = st.st_dev;
        return 0;
}

void volume_set_limit(struct volume *v, uint64_t limit, uint64_t entries)
{
        assert(!v->open);
        if (v->params.as_is)
                return;
        v->params.limit = limit;
        v->params.entries = entries;
}

static void namespaces_progress(void *userdata)
{
        struct volume *v = userdata;
        uint64_t errors = namespaces_sync_errors(v->namespaces);

        if (errors > v->names_errors)
                volume_note_error(v, "writing the namespaces",
                                  namespaces_last_error(v->namespaces));
        v->names_errors = errors;
        volume_progress(v);
}

static bool make_room(void *userdata)
{
        struct volume *v = userdata;

        return space_make(v, v->space_epoch);
}

/* Returns the largest chunk that fits into an existing segment or the next one, and into
 * store_params.pool_slab_bytes. */
static uint64_t largest_chunk(const struct volume *v)
{
        uint64_t bytes = segments_next_bytes(v);

        for (uint32_t i = 0; i < v->n_segments; i++)
                if (v->segments[i]->fd >= 0)
                        bytes = MAX(bytes, v->segments[i]->bytes);
        if (v->params.pool_slab_bytes)
                bytes = MIN(bytes, v->params.pool_slab_bytes);
        return MIN(bytes, round_down(CHUNK_LENGTH_MAX, DISK_PAGE));
}

static uint64_t hash_chunk(const void *userdata, uint32_t namespace_id, const struct key *key)
{
        return key_hash(userdata, namespace_id, key);
}

/* Lowers doubt_seq to the highest sequence that recovery has found, so that later puts are not in
 * doubt. Sets it to 0 if none of the chunks in doubt exists any longer. */
static void settle_doubt(struct volume *v)
{
        uint64_t *doubt = &v->dir->superblock.doubt_seq, oldest = UINT64_MAX;

        if (*doubt == 0)
                return;
        for (uint32_t i = 0; i < index_high(v->index); i++)
                if (volume_chunk_at(v, i)->flags & CHUNK_LINKED)
                        oldest = MIN(oldest, (uint64_t)volume_chunk_at(v, i)->seq);
        *doubt = oldest <= *doubt ? MIN(*doubt, v->seq) : 0;
}

int volume_open(struct volume *v, struct kio *io, char ret_error[static 512])
{
        int r;

        assert(!v->open);
        v->io = io;
        v->segment_bytes = segment_bytes_for(v->params.limit, v->params.segment_bytes);
        r = index_new(&v->index, entries_max(&v->params), hash_chunk, &v->params.secret);
        if (r == 0)
                r = evict_new(&v->evict, v->policy, index_max(v->index), SLAB_MAX_CLASSES);
        if (r < 0)
                return store_error(ret_error, r, "%s: cannot allocate the index: %s", v->path,
                                   strerror(-r));
        v->zeros = mmap(NULL, STORE_PREWRITE_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (v->zeros == MAP_FAILED) {
                v->zeros = NULL;
                return store_error(ret_error, -ENOMEM, "out of memory for the store");
        }

        index_populate_ahead(v->index, false);
        evict_populate_ahead(v->evict, false);
        r = recovery_run(v, ret_error);
        if (r < 0)
                return r;
        v->opened_seq = v->seq;
        index_populate_ahead(v->index, true);
        evict_populate_ahead(v->evict, true);
        if (v->n_segments == 0 && !v->params.as_is) {
                r = segments_format_now(v);
                if (r < 0)
                        return store_error(ret_error, r,
                                           "%s: cannot create the first data file: %s", v->path,
                                           strerror(-r));
        }
        v->max_chunk = largest_chunk(v);
        v->dir->superblock.limit = v->params.limit;
        v->dir->superblock.segment_bytes = v->segment_bytes;
        v->dir->superblock.clean = 0;
        v->dir->superblock.unsynced = 0;
        if (v->params.rights != 0)
                v->dir->superblock.rights = v->params.rights;
        settle_doubt(v);
        sequence_reserve(v, false);
        sizes_update(v);
        r = dir_write_superblock(v->dir);
        if (r == 0)
                r = dir_sync(v->dir);
        if (r < 0)
                return store_error(ret_error, r, "%s: cannot write the superblock: %s", v->path,
                                   strerror(-r));
        r = scrub_new(&v->scrub, v, clock_mono_ns());
        if (r < 0)
                return store_error(ret_error, r, "out of memory for the store");
        scrub_set(v->scrub, &v->params.scrub);
        sequence_reserved(v);
        namespaces_set_io(v->namespaces, io, v->kio_volume, namespaces_progress, make_room, v);
        /* the writes of a process that was killed may exist in the page cache only */
        for (uint32_t i = 0; !v->stats.clean_start && i < v->n_segments; i++)
                if (v->segments[i]->fd >= 0)
                        sync_mark_dirty(v->segments[i]);
        v->open = true;
        return 0;
}
