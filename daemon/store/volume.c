/* SPDX-License-Identifier: Apache-2.0 */
/* One path of the store: see volume.h, and README.md for the format.
 *
 * Opens the parts in order (directory; then tables, index, segments), runs what is due at the end
 * of each loop turn, answers look-ups, closes. Owns nothing that another file here does not know
 * better.
 *
 * Completions never run where they come about: they are listed, and volume_turn() calls them. Once
 * the volume stops nobody may call that any more, so from then on every completed operation does.
 */
#include "store/volume.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "prefetch.h"
#include "store/internal.h"

enum { DEFAULT_LOCK_WAIT_MS = 5000, LIST_LOOKS = 64, DEFAULT_ERROR_BUDGET = 16 };
#define ERROR_WINDOW_NS (UINT64_C(60) * 1000000000)

DEFINE_CLEANUP(struct volume *, volume_close);

/* --- open --- */

static uint32_t entries_max(const struct store_params *params)
{
        uint64_t n = params->entries;

        if (n == 0)
                n = volume_auto_entries(params->limit);
        /* A chunk has at least a page; a record's number is an owner in slab.h. */
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
                return store_error(ret_error, -ENOMEM, "out of memory");
        v->table_fd = -1;
        v->no_room_for = UINT64_MAX;
        list_init(&v->dirty_segments);
        list_init(&v->sync_waiting);
        list_init(&v->sync_flying);
        list_init(&v->slot_waiting);
        list_init(&v->gets_flying);
        list_init(&v->puts_flying);
        list_init(&v->done_puts);
        list_init(&v->drops_waiting);
        list_init(&v->done_gets);
        v->ops = *params->ops;
        v->number = params->number;
        v->kio_path = params->number + 1;
        v->path = strdup(params->path);
        v->policy = strdup(params->store->policy);
        v->tenants = calloc(UINT16_MAX + 1, sizeof(*v->tenants));
        if (!v->path || !v->policy || !v->tenants)
                return store_error(ret_error, -ENOMEM, "out of memory");
        v->params = *params->store;
        v->params.paths = NULL; /* the caller's */
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

const char *volume_path(const struct volume *v)
{
        return v->path;
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

/* The largest chunk that some segment takes: one that is there, or the next. */
static uint64_t largest_chunk(const struct volume *v)
{
        uint64_t bytes = segments_next_bytes(v);

        for (uint32_t i = 0; i < v->n_segments; i++)
                if (v->segments[i]->fd >= 0)
                        bytes = MAX(bytes, v->segments[i]->bytes);
        if (v->params.pool_slab_bytes)
                bytes = MIN(bytes, v->params.pool_slab_bytes);
        return MIN(bytes, round_down(UINT32_MAX, DISK_PAGE));
}

static uint64_t hash_chunk(const void *userdata, const struct chunk *c)
{
        return key_hash(userdata, c->namespace_id, &c->key);
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
                return store_error(ret_error, r, "%s: making the index: %s", v->path, strerror(-r));
        v->zeros = mmap(NULL, STORE_PREWRITE_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (v->zeros == MAP_FAILED) {
                v->zeros = NULL;
                return store_error(ret_error, -ENOMEM, "out of memory");
        }

        r = recover(v, ret_error);
        if (r < 0)
                return r;
        if (v->n_segments == 0 && !v->params.as_is) {
                r = segments_format_now(v);
                if (r < 0)
                        return store_error(ret_error, r, "%s: cannot make the first data file: %s",
                                           v->path, strerror(-r));
        }
        v->max_chunk = largest_chunk(v);
        v->dir->superblock.limit = v->params.limit;
        v->dir->superblock.segment_bytes = v->segment_bytes;
        v->dir->superblock.clean = 0;
        v->dir->superblock.unsynced = 0;
        r = dir_write_superblock(v->dir);
        if (r == 0)
                r = dir_sync(v->dir);
        if (r < 0)
                return store_error(ret_error, r, "%s: cannot write the superblock: %s", v->path,
                                   strerror(-r));
        r = scrub_new(&v->scrub, v, clock_mono_ns());
        if (r < 0)
                return store_error(ret_error, r, "out of memory");
        scrub_set(v->scrub, &v->params.scrub);
        namespaces_set_io(v->namespaces, io, v->kio_path, namespaces_progress, v);
        v->open = true;
        return 0;
}

/* --- with others --- */

int volume_check_namespaces(const struct volume *v, const struct volume_join *join,
                            char ret_error[static 512])
{
        for (unsigned i = 0; i < join->n_namespaces; i++) {
                const struct store_namespace *other = &join->namespaces[i];
                const struct namespace *same_id = namespaces_get(v->namespaces, other->id),
                                       *same_name = namespaces_find(v->namespaces, other->tenant,
                                                                    other->name);

                if (same_id == same_name &&
                    (!same_id || strcmp(same_id->seen.fingerprint, other->fingerprint) == 0))
                        continue;
                return store_error(ret_error, -EUCLEAN,
                                   "%s: its namespaces contradict those of the other paths: the "
                                   "name \"%.100s\" or its number %u is another one's here; these "
                                   "are not the paths of one store, or they were used apart",
                                   v->path, other->name, other->id);
        }
        return 0;
}

/* What is found is gone; the caller writes the namespaces. */
static void forget_all(struct volume *v)
{
        for (uint32_t i = 0; i < index_high(v->index); i++)
                if (volume_chunk_at(v, i)->flags & CHUNK_LINKED)
                        chunk_remove(v, i);
        namespaces_purge_all(v->namespaces, ++v->seq);
}

int volume_join(struct volume *v, const struct volume_join *join, bool *ret_emptied,
                char ret_error[static 512])
{
        uint64_t charged = volume_charged(v),
                 room = v->params.limit > charged ? v->params.limit - charged : 0;
        struct disk_superblock *sb = &v->dir->superblock;
        bool away = sb->away;
        int r = volume_check_namespaces(v, join, ret_error);

        if (r < 0)
                return r;
        *ret_emptied = join->empty || (away && !join->witnessed);
        if (*ret_emptied)
                forget_all(v);
        *ret_emptied = *ret_emptied && v->stats.recovered_chunks > 0;
        namespaces_note_purges(v->namespaces, join->purges);
        if (join->next_id > 0)
                namespaces_reserve_id(v->namespaces, join->next_id - 1);
        for (unsigned i = 0; i < join->n_namespaces && r == 0; i++) {
                const struct store_namespace *other = &join->namespaces[i];

                if (namespaces_get(v->namespaces, other->id))
                        continue;
                r = namespaces_adopt(v->namespaces, other, room);
                if (r == 0 && other->chunk_bytes)
                        slabs_declare_class(v->slabs, other->chunk_bytes);
        }
        if (r == 0)
                r = namespaces_write_now(v->namespaces);
        if (r == 0 && away) {
                sb->away = 0;
                r = dir_write_superblock(v->dir);
        }
        if (r == 0)
                return 0;
        v->open = false; /* what could not be written keeps nobody from closing it */
        return store_error(ret_error, r, "%s: cannot write the namespaces: %s", v->path,
                           strerror(-r));
}

uint32_t volume_next_id(const struct volume *v)
{
        return namespaces_next_id(v->namespaces);
}

const struct volume_set *volume_set(const struct volume *v)
{
        return namespaces_set(v->namespaces);
}

/* --- trouble --- */

void volume_bypass(struct volume *v, const char *reason)
{
        if (v->bypassed)
                return;
        v->bypassed = true;
        snprintf(v->reason, sizeof(v->reason), "%s", reason);
        v->ops.bypassed(v->ops.userdata, v);
}

bool volume_is_open(const struct volume *v)
{
        return v->open;
}

bool volume_is_bypassed(const struct volume *v)
{
        return v->bypassed;
}

const char *volume_reason(const struct volume *v)
{
        return v->reason;
}

void volume_note_full(struct volume *v, bool full)
{
        if (full) {
                v->full_ns = clock_mono_ns();
                v->full_refusals++;
        }
        if (v->full == full)
                return;
        v->full = full;
        v->ops.full(v->ops.userdata, v, full);
}

bool volume_is_full(const struct volume *v, uint64_t *ret_refusals)
{
        *ret_refusals = v->full_refusals;
        return v->full;
}

int volume_check_space(const struct volume *v, uint64_t bytes)
{
        struct statvfs fs;
        uint64_t reserve = v->params.reserve;

        if (!v->open || fstatvfs(v->dir->fd, &fs) < 0)
                return 0;
        if (reserve == 0)
                reserve = MIN((uint64_t)fs.f_blocks * fs.f_frsize / 100, UINT64_C(1) << 30);
        return (uint64_t)fs.f_bavail * fs.f_frsize < bytes + reserve ? -ENOSPC : 0;
}

/* The device's fault, as far as an errno can tell: not ours, not memory's, not a queue's. */
static bool is_device_error(int64_t r)
{
        return r < 0 && r != -ENOMEM && r != -EAGAIN && r != -EINTR && r != -ECANCELED &&
               r != -EFAULT && r != -EINVAL && r != -EBUSY && !volume_is_no_space(r);
}

void volume_note_error(struct volume *v, const char *what, int64_t r)
{
        uint64_t budget = v->params.error_budget ? v->params.error_budget : DEFAULT_ERROR_BUDGET;
        uint64_t now = clock_mono_ns();
        char reason[sizeof(v->reason)];

        if (volume_is_no_space(r))
                volume_note_full(v, true);
        if (v->bypassed || !is_device_error(r))
                return;
        if (r == -EROFS) {
                snprintf(reason, sizeof(reason), "%s: %s", what, strerror((int)-r));
                volume_bypass(v, reason);
                return;
        }
        if (v->window_errors == 0 || now - v->window_ns > ERROR_WINDOW_NS) {
                v->window_ns = now;
                v->window_errors = 0;
        }
        if (++v->window_errors <= budget)
                return;
        snprintf(reason, sizeof(reason),
                 "more than %llu errors in a minute (store.error_budget), the last one %s: %s",
                 (unsigned long long)budget, what, strerror((int)-r));
        volume_bypass(v, reason);
}

bool volume_is_quiet(const struct volume *v)
{
        return v->requests == 0 && v->tombstones == 0 && !table_in_flight(v->table) &&
               !table_has_queued(v->table) && v->sync_outstanding == 0;
}

void volume_abandon(struct volume *v)
{
        struct list_node *n;

        if (!v->open)
                return;
        gets_abandon(v);
        puts_abandon(v);
        /* Written, and no device has their bytes. */
        while ((n = list_pop(&v->sync_waiting)) || (n = list_pop(&v->sync_flying)))
                put_finish(v, container_of(n, struct store_put, node), STORE_NOT_DURABLE);
}

static int close_clean(struct volume *v);

int volume_rest(struct volume *v, bool away)
{
        struct disk_superblock *sb = &v->dir->superblock;
        int r;

        sb->away = away;
        r = v->sync_failed ? -EIO : close_clean(v);
        if (r < 0)
                r = dir_write_superblock(v->dir);
        return r;
}

/* --- turning --- */

static bool drain(struct volume *v)
{
        struct list_node puts = LIST_INIT(puts), gets = LIST_INIT(gets), *n;
        bool any = false;

        list_splice(&puts, &v->done_puts);
        list_splice(&gets, &v->done_gets);
        while ((n = list_pop(&gets))) {
                struct store_get *req = container_of(n, struct store_get, node);

                any = true;
                v->requests--;
                req->complete(req);
        }
        while ((n = list_pop(&puts))) {
                struct store_put *req = container_of(n, struct store_put, node);

                any = true;
                v->requests--;
                v->ops.put_done(v->ops.userdata, req);
        }
        any = scrub_drain(v->scrub) || any;
        return namespaces_drain(v->namespaces) || any;
}

void volume_turn(struct volume *v)
{
        if (!v->open)
                return;
        /* What completes makes work, and some work completes at once. */
        do {
                namespaces_turn(v->namespaces);
                put_serve_waiting(v);
                segments_turn(v);
                ring_turn(v);
                table_kick(v);
                sync_turn(v);
                scrub_turn(v->scrub, clock_mono_ns());
                drops_settle(v);
        } while (drain(v));
}

void volume_progress(struct volume *v)
{
        if (!v->stopping)
                return;
        volume_turn(v);
        kio_flush(v->io);
}

static int do_nothing(struct kio_request *req)
{
        return 0;
}

static void nudged(struct kio_request *req)
{
        struct volume *v = container_of(req, struct volume, nudge_io);

        v->nudged = false;
        v->operations--;
        volume_progress(v);
}

/* A request came after the stop: its completion may not be called from here, and perhaps nothing
 * else will come. */
static void nudge(struct volume *v)
{
        if (!v->stopping || v->nudged)
                return;
        v->nudged = true;
        v->nudge_io = (struct kio_request){
                .op = KIO_CALL, /* of no path: it may not wait for a device */
                .class = KIO_CLASS_GET,
                .call = do_nothing,
                .complete = nudged,
        };
        list_init(&v->nudge_io.node);
        v->operations++;
        kio_submit(v->io, &v->nudge_io, 0);
        kio_flush(v->io);
}

void volume_stop(struct volume *v)
{
        if (!v || v->stopping)
                return;
        v->stopping = true;
        if (v->open)
                volume_progress(v);
}

uint64_t volume_pending(const struct volume *v)
{
        if (!v->open)
                return 0;
        return v->requests + v->operations + v->tombstones + namespaces_pending(v->namespaces);
}

/* Everything to stable storage; then, and only then, the store is clean. */
static int close_clean(struct volume *v)
{
        int r;

        list_for_each (&v->dirty_segments, n)
                if (fdatasync(container_of(n, struct segment, dirty_node)->fd) < 0)
                        return -errno;
        if (fdatasync(v->table_fd) < 0)
                return -errno;
        r = dir_sync(v->dir);
        if (r < 0)
                return r;
        r = namespaces_write_now(v->namespaces);
        if (r < 0)
                return r;
        v->dir->superblock.clean = 1;
        return dir_write_superblock(v->dir);
}

struct volume *volume_close(struct volume *v)
{
        if (!v)
                return NULL;
        assert(volume_pending(v) == 0);
        if (v->open && !v->bypassed && !v->sync_failed && v->stopping)
                close_clean(v); /* else the next start finds it as after a crash, and works */
        for (uint32_t i = 0; v->segments && i < v->n_segments; i++)
                segment_free(v->segments[i]);
        free(v->segments);
        if (v->table_fd >= 0)
                close(v->table_fd);
        if (v->zeros)
                munmap(v->zeros, STORE_PREWRITE_BYTES);
        scrub_free(v->scrub);
        table_free(v->table);
        namespaces_free(v->namespaces);
        index_free(v->index);
        slabs_free(v->slabs);
        free(v->tenants);
        evict_free(v->evict);
        dir_close(v->dir);
        free(v->path);
        free(v->policy);
        free(v);
        return NULL;
}

/* --- namespaces --- */

void volume_namespace_open(struct volume *v, struct store_namespace_open *req)
{
        uint64_t charged = volume_charged(v);

        namespaces_open_one(v->namespaces, req,
                            v->params.limit > charged ? v->params.limit - charged : 0);
        /* Too large, or no room among the classes: then chunks use the shared classes. */
        if (req->namespace && req->namespace->chunk_bytes)
                slabs_declare_class(v->slabs, req->namespace->chunk_bytes);
        nudge(v);
}

const struct store_namespace *volume_namespace_get(const struct volume *v, uint32_t id)
{
        const struct namespace *ns = namespaces_get(v->namespaces, id);

        return ns ? &ns->seen : NULL;
}

const struct store_namespace *volume_namespace_at(const struct volume *v, unsigned i)
{
        const struct namespace *ns = namespaces_at(v->namespaces, i);

        return ns ? &ns->seen : NULL;
}

const struct store_namespace *volume_namespace_find(const struct volume *v, uint16_t tenant,
                                                    const char *name, size_t length)
{
        char text[STORE_MAX_NAME + 1];
        const struct namespace *ns;

        if (length > STORE_MAX_NAME)
                return NULL;
        memcpy(text, name, length);
        text[length] = '\0';
        ns = namespaces_find(v->namespaces, tenant, text);
        return ns ? &ns->seen : NULL;
}

void volume_purge(struct volume *v, struct store_purge *req, const struct volume_set *set)
{
        req->dropped = 0;
        list_init(&req->node);
        for (uint32_t i = 0; i < index_high(v->index); i++) {
                const struct chunk *c = volume_chunk_at(v, i);

                if (!req->all && req->namespace_id == 0)
                        break; /* nobody's: only the count is noted */
                if (!(c->flags & CHUNK_LINKED) ||
                    (!req->all && c->namespace_id != req->namespace_id))
                        continue;
                req->dropped += !(c->flags & CHUNK_PENDING);
                chunk_remove(v, i);
        }
        v->stats.purges += req->all || req->namespace_id != 0;
        namespaces_purge(v->namespaces, req, ++v->seq, set);
        nudge(v);
}

/* --- chunks --- */

uint64_t volume_max_chunk(const struct volume *v)
{
        return v->max_chunk;
}

struct store_chunk volume_describe(const struct chunk *c)
{
        return (struct store_chunk){
                .key = c->key,
                .namespace_id = c->namespace_id,
                .length = c->length,
                .crc = c->crc,
                .created_ms = c->created_ms,
        };
}

int volume_find(const struct volume *v, uint32_t namespace_id, const struct key *key, uint64_t hash,
               struct store_ref *ret_ref, struct store_chunk *ret_chunk)
{
        uint32_t i = index_find(v->index, namespace_id, key, hash);
        const struct chunk *c;

        if (i == INDEX_NONE)
                return STORE_MISS;
        c = volume_chunk_at(v, i);
        if (c->flags & CHUNK_PENDING)
                return STORE_MISS;
        if (ret_ref)
                *ret_ref = volume_ref(v, i);
        if (ret_chunk)
                *ret_chunk = volume_describe(c);
        return 0;
}

bool volume_has(const struct volume *v, uint32_t namespace_id, const struct key *key, uint64_t hash)
{
        return index_find(v->index, namespace_id, key, hash) != INDEX_NONE;
}

uint64_t volume_displaced(const struct volume *v)
{
        return v->displaced;
}

void volume_prefetch(const struct volume *v, uint64_t hash, unsigned step)
{
        index_prefetch(v->index, hash, step);
}

void volume_prefetch_touch(const struct volume *v, struct store_ref ref, unsigned step)
{
        if (ref.index >= index_high(v->index))
                return;
        if (step == 0) {
                const struct chunk *c = volume_chunk_at(v, ref.index);

                /* From its sequence to its flags: a touch looks at no more. */
                prefetch((const char *)&c->crc + sizeof(c->crc));
                prefetch((const char *)c->parent - 1);
        }
        evict_prefetch(v->evict, ref.index, step);
}

void volume_touch(struct volume *v, struct store_ref ref)
{
        const struct chunk *c;

        if (ref.index >= index_high(v->index) ||
            volume_ref(v, ref.index).generation != ref.generation)
                return;
        c = volume_chunk_at(v, ref.index);
        if (c->flags & CHUNK_LINKED && c->slab != INDEX_NO_SLAB)
                evict_touch(v->evict, ref.index, (uint32_t)slabs_slab_class(v->slabs, c->slab));
}

int volume_drop(struct volume *v, uint32_t namespace_id, const struct key *key, uint64_t hash)
{
        uint32_t i = index_find(v->index, namespace_id, key, hash);

        if (i == INDEX_NONE || volume_chunk_at(v, i)->flags & CHUNK_PENDING)
                return STORE_MISS;
        chunk_drop(v, i);
        v->stats.drops++;
        nudge(v);
        return 0;
}

void volume_sync(struct volume *v, struct store_put *req)
{
        list_init(&req->node);
        v->requests++;
        sync_want_all(v);
        if (list_empty(&v->dirty_segments) && !table_is_dirty(v->table) && v->sync_outstanding == 0)
                put_finish(v, req, v->sync_failed || !v->dir->can_sync ? STORE_NOT_DURABLE : 0);
        else
                list_append(&v->sync_waiting, &req->node);
        nudge(v);
}

unsigned volume_list(const struct volume *v, uint32_t namespace_id, uint64_t *cursor,
                    struct store_chunk *ret, unsigned max)
{
        uint64_t i = *cursor, high = index_high(v->index);
        uint64_t end = MIN(high, i < high ? i + (uint64_t)max * LIST_LOOKS : high);
        unsigned n = 0;

        for (; i < end && n < max; i++) {
                const struct chunk *c = volume_chunk_at(v, (uint32_t)i);

                if ((c->flags & (CHUNK_LINKED | CHUNK_PENDING)) == CHUNK_LINKED &&
                    c->namespace_id == namespace_id)
                        ret[n++] = volume_describe(c);
        }
        *cursor = i < high ? i : 0;
        return n;
}

void volume_set_watch(struct volume *v, const struct store_watch *watch)
{
        v->watch = watch;
}

bool volume_walk(const struct volume *v, uint32_t *i, unsigned looks,
                 void (*each)(void *userdata, uint32_t namespace_id, const struct key *key),
                 void *userdata)
{
        uint32_t high = index_high(v->index);

        for (; *i < high && looks > 0; looks--, ++*i) {
                const struct chunk *c = volume_chunk_at(v, *i);
                struct key key;

                if ((c->flags & (CHUNK_LINKED | CHUNK_PENDING)) != CHUNK_LINKED)
                        continue;
                key = c->key;
                each(userdata, c->namespace_id, &key);
        }
        return *i < high;
}

/* --- reading back --- */

void volume_set_scrub(struct volume *v, const struct store_scrub *scrub)
{
        v->params.scrub = *scrub;
        if (v->scrub)
                scrub_set(v->scrub, scrub);
}

int volume_verify(struct volume *v, struct store_verify *req)
{
        list_init(&req->node);
        return v->open ? scrub_verify(v->scrub, req) : STORE_BYPASSED;
}

uint64_t volume_deadline_ns(const struct volume *v)
{
        uint64_t scrub, segments;

        if (!v->open)
                return 0;
        scrub = scrub_deadline_ns(v->scrub);
        segments = segments_deadline_ns(v);
        return scrub && segments ? MIN(scrub, segments) : scrub + segments;
}

/* --- what is seen from outside --- */

void volume_take_counts(struct volume *v, const struct volume *earlier)
{
        struct store_stats now = v->stats;

        /* What is no count is filled in anew whenever it is asked for. */
        volume_get_stats(earlier, &v->stats);
        v->stats.clean_start = now.clean_start;
        v->stats.recovered_chunks = now.recovered_chunks;
        v->stats.recovered_pages = now.recovered_pages;
        v->stats.skipped_pages = now.skipped_pages;
        v->stats.recover_ms = now.recover_ms;
        v->full_refusals = earlier->full_refusals;
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
        ret->segments_max =
                MIN(v->params.limit / v->segment_bytes + 1, (uint64_t)DISK_SEGMENTS_MAX);
        ret->index_bytes = index_bytes(v->index) + (uint64_t)index_high(v->index) * (12 + 4) +
                           v->cut_slots * 4 + table_bytes(v->table);
        ret->table_pages = table_pages(v->table);
        ret->table_pages_written += table.pages_written;
        ret->table_entries_written += table.entries_written;
        ret->table_entries_carried += table.entries_carried;
        ret->sync_errors += namespaces_sync_errors(v->namespaces);
        ret->namespaces = namespaces_count(v->namespaces);
        scrub_get_stats(v->scrub, ret);
}
