/* SPDX-License-Identifier: Apache-2.0 */
/* The store's door: see store.h for the contract and README.md for the format.
 *
 * Opens the parts in order (directory; then tables, index, segments), runs what is due at the end
 * of each loop turn, answers look-ups, closes. Owns nothing that another file here does not know
 * better.
 *
 * Completions never run where they come about: they are listed, and store_turn() calls them. Once
 * the store stops nobody may call that any more, so from then on every completed operation does. */
#include "store/store.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "store/internal.h"

enum { DEFAULT_LOCK_WAIT_MS = 5000, LIST_LOOKS = 64 };

DEFINE_CLEANUP(struct store *, store_close);

/* --- open --- */

static int check_params(const struct store_params *params, char ret_error[static STORE_ERROR_BYTES])
{
        if (params->n_paths == 0 || !params->paths[0])
                return store_error(ret_error, -EINVAL, "store.path: there must be one");
        if (params->n_paths > 1)
                return store_error(ret_error, -EINVAL,
                                   "store.path: several paths are not supported by this version");
        if (params->limit < STORE_MIN_LIMIT || params->limit > INT64_MAX / 2)
                return store_error(
                        ret_error, -EINVAL, "store.limit: %llu bytes, must be at least %u MiB",
                        (unsigned long long)params->limit, STORE_MIN_LIMIT / 1024 / 1024);
        if (!evict_policy_exists(params->policy))
                return store_error(ret_error, -EINVAL, "eviction.policy: there is no \"%s\"",
                                   params->policy);
        return 0;
}

static uint32_t entries_max(const struct store_params *params)
{
        uint64_t n = params->entries;

        if (n == 0)
                n = MAX(params->limit / (256 * 1024), UINT64_C(1) << 20);
        /* A chunk has at least a page; a record's number is an owner in slab.h. */
        n = MIN(n, params->limit / DISK_PAGE);
        return (uint32_t)MIN(MAX(n, UINT64_C(16)), (uint64_t)INT32_MAX - 1);
}

int store_prepare(struct store **ret, const struct store_params *params, char ret_error[static 512])
{
        _cleanup_(store_closep) struct store *s = NULL;
        int r = check_params(params, ret_error);

        if (r < 0)
                return r;
        s = calloc(1, sizeof(*s));
        if (!s)
                return store_error(ret_error, -ENOMEM, "out of memory");
        s->table_fd = -1;
        s->no_room_for = UINT64_MAX;
        list_init(&s->dirty_segments);
        list_init(&s->sync_waiting);
        list_init(&s->sync_flying);
        list_init(&s->slot_waiting);
        list_init(&s->done_puts);
        list_init(&s->drops_waiting);
        list_init(&s->done_gets);
        s->path = strdup(params->paths[0]);
        s->policy = strdup(params->policy);
        if (!s->path || !s->policy)
                return store_error(ret_error, -ENOMEM, "out of memory");
        s->params = *params;
        s->params.paths = NULL; /* the caller's */
        s->params.policy = s->policy;

        r = dir_open(&s->dir,
                     &(struct dir_params){
                             .path = s->path,
                             .index = 0,
                             .count = 1,
                             .direct = params->direct,
                             .lock_wait_ms = params->lock_wait_ms ? params->lock_wait_ms
                                                                  : DEFAULT_LOCK_WAIT_MS,
                     },
                     ret_error);
        if (r < 0)
                return r;
        s->stats.clean_start = s->dir->superblock.clean == 1;
        *ret = TAKE_PTR(s);
        return 0;
}

unsigned store_lock_fds(const struct store *s, int ret_fds[static STORE_MAX_PATHS])
{
        ret_fds[0] = s->dir->lock_fd;
        return 1;
}

int store_probe_fd(const struct store *s)
{
        return s->dir->superblock_fd;
}

const char *store_path(const struct store *s, unsigned i)
{
        return i == 0 ? s->path : NULL;
}

static void namespaces_progress(void *userdata)
{
        store_progress(userdata);
}

/* The largest chunk that some segment takes: one that is there, or the next. */
static uint64_t largest_chunk(const struct store *s)
{
        uint64_t bytes = segments_next_bytes(s);

        for (uint32_t i = 0; i < s->n_segments; i++)
                if (s->segments[i]->fd >= 0)
                        bytes = MAX(bytes, s->segments[i]->bytes);
        if (s->params.pool_slab_bytes)
                bytes = MIN(bytes, s->params.pool_slab_bytes);
        return MIN(bytes, round_down(UINT32_MAX, DISK_PAGE));
}

int store_open(struct store *s, struct kio *io, char ret_error[static 512])
{
        int r;

        assert(!s->open);
        s->io = io;
        s->segment_bytes = segment_bytes_for(s->params.limit, s->params.segment_bytes);
        r = index_new(&s->index, entries_max(&s->params));
        if (r == 0)
                r = evict_new(&s->evict, s->policy, index_max(s->index), SLAB_MAX_CLASSES);
        if (r < 0)
                return store_error(ret_error, r, "%s: making the index: %s", s->path, strerror(-r));
        s->zeros = mmap(NULL, STORE_PREWRITE_BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (s->zeros == MAP_FAILED) {
                s->zeros = NULL;
                return store_error(ret_error, -ENOMEM, "out of memory");
        }

        r = recover(s, ret_error);
        if (r < 0)
                return r;
        if (s->n_segments == 0) {
                r = segments_format_now(s);
                if (r < 0)
                        return store_error(ret_error, r, "%s: cannot make the first data file: %s",
                                           s->path, strerror(-r));
        }
        s->max_chunk = largest_chunk(s);
        s->dir->superblock.limit = s->params.limit;
        s->dir->superblock.segment_bytes = s->segment_bytes;
        s->dir->superblock.clean = 0;
        r = dir_write_superblock(s->dir);
        if (r == 0)
                r = dir_sync(s->dir);
        if (r < 0)
                return store_error(ret_error, r, "%s: cannot write the superblock: %s", s->path,
                                   strerror(-r));
        namespaces_set_io(s->namespaces, io, namespaces_progress, s);
        s->open = true;
        return 0;
}

/* --- turning --- */

static bool drain(struct store *s)
{
        struct list_node puts = LIST_INIT(puts), gets = LIST_INIT(gets), *n;
        bool any = false;

        list_splice(&puts, &s->done_puts);
        list_splice(&gets, &s->done_gets);
        while ((n = list_pop(&gets))) {
                struct store_get *req = container_of(n, struct store_get, node);

                any = true;
                s->requests--;
                req->complete(req);
        }
        while ((n = list_pop(&puts))) {
                struct store_put *req = container_of(n, struct store_put, node);

                any = true;
                s->requests--;
                req->complete(req);
        }
        return namespaces_drain(s->namespaces) || any;
}

void store_turn(struct store *s)
{
        if (!s->open)
                return;
        /* What completes makes work, and some work completes at once. */
        do {
                namespaces_turn(s->namespaces);
                put_serve_waiting(s);
                segments_turn(s);
                ring_turn(s);
                table_kick(s);
                sync_turn(s);
        } while (drain(s));
}

void store_progress(struct store *s)
{
        if (!s->stopping)
                return;
        store_turn(s);
        kio_flush(s->io);
}

static int do_nothing(struct kio_request *req)
{
        return 0;
}

static void nudged(struct kio_request *req)
{
        struct store *s = container_of(req, struct store, nudge_io);

        s->nudged = false;
        s->operations--;
        store_progress(s);
}

/* A request came after the stop: its completion may not be called from here, and perhaps nothing
 * else will come. */
static void nudge(struct store *s)
{
        if (!s->stopping || s->nudged)
                return;
        s->nudged = true;
        s->nudge_io = (struct kio_request){
                .op = KIO_CALL,
                .class = KIO_CLASS_GET,
                .call = do_nothing,
                .complete = nudged,
        };
        list_init(&s->nudge_io.node);
        s->operations++;
        kio_submit(s->io, &s->nudge_io, 0);
        kio_flush(s->io);
}

void store_stop(struct store *s)
{
        if (!s || s->stopping)
                return;
        s->stopping = true;
        if (s->open)
                store_progress(s);
}

uint64_t store_pending(const struct store *s)
{
        if (!s->open)
                return 0;
        return s->requests + s->operations + s->tombstones + namespaces_pending(s->namespaces);
}

/* Everything to stable storage; then, and only then, the store is clean. */
static int close_clean(struct store *s)
{
        int r;

        list_for_each (&s->dirty_segments, n)
                if (fdatasync(container_of(n, struct segment, dirty_node)->fd) < 0)
                        return -errno;
        if (fdatasync(s->table_fd) < 0)
                return -errno;
        r = dir_sync(s->dir);
        if (r < 0)
                return r;
        r = namespaces_write_now(s->namespaces);
        if (r < 0)
                return r;
        s->dir->superblock.clean = 1;
        return dir_write_superblock(s->dir);
}

struct store *store_close(struct store *s)
{
        if (!s)
                return NULL;
        assert(store_pending(s) == 0);
        if (s->open && !s->bypassed && !s->sync_failed)
                close_clean(s); /* else the next start finds it as after a crash, and works */
        for (uint32_t i = 0; s->segments && i < s->n_segments; i++)
                segment_free(s->segments[i]);
        free(s->segments);
        if (s->table_fd >= 0)
                close(s->table_fd);
        if (s->zeros)
                munmap(s->zeros, STORE_PREWRITE_BYTES);
        table_free(s->table);
        namespaces_free(s->namespaces);
        index_free(s->index);
        slabs_free(s->slabs);
        evict_free(s->evict);
        dir_close(s->dir);
        free(s->path);
        free(s->policy);
        free(s);
        return NULL;
}

/* --- namespaces --- */

void store_namespace_open(struct store *s, struct store_namespace_open *req)
{
        uint64_t charged = store_charged(s);

        namespaces_open_one(s->namespaces, req,
                            s->params.limit > charged ? s->params.limit - charged : 0);
        /* Too large, or no room among the classes: then chunks use the shared classes. */
        if (req->namespace && req->namespace->chunk_bytes)
                slabs_declare_class(s->slabs, req->namespace->chunk_bytes);
        nudge(s);
}

const struct store_namespace *store_namespace_get(const struct store *s, uint32_t id)
{
        const struct namespace *ns = namespaces_get(s->namespaces, id);

        return ns ? &ns->seen : NULL;
}

const struct store_namespace *store_namespace_at(const struct store *s, unsigned i)
{
        const struct namespace *ns = namespaces_at(s->namespaces, i);

        return ns ? &ns->seen : NULL;
}

void store_purge(struct store *s, struct store_purge *req)
{
        req->dropped = 0;
        list_init(&req->node);
        for (uint32_t i = 0; i < index_high(s->index); i++) {
                const struct chunk *c = store_chunk_at(s, i);

                if (!(c->flags & CHUNK_LINKED) ||
                    (!req->all && c->namespace_id != req->namespace_id))
                        continue;
                req->dropped += !(c->flags & CHUNK_PENDING);
                chunk_remove(s, i);
        }
        s->stats.purges++;
        namespaces_purge(s->namespaces, req, ++s->seq);
        nudge(s);
}

/* --- chunks --- */

uint64_t store_max_chunk(const struct store *s)
{
        return s->max_chunk;
}

uint64_t store_hash(const struct store *s, uint32_t namespace_id, const struct key *key)
{
        return key_hash(&s->params.secret, namespace_id, key);
}

static struct store_chunk describe(const struct chunk *c)
{
        return (struct store_chunk){
                .key = c->key,
                .namespace_id = c->namespace_id,
                .length = c->length,
                .crc = c->crc,
                .created_ms = c->created_ms,
        };
}

int store_find(const struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
               struct store_ref *ret_ref, struct store_chunk *ret_chunk)
{
        uint32_t i = index_find(s->index, namespace_id, key, hash);
        const struct chunk *c;

        if (i == INDEX_NONE)
                return STORE_MISS;
        c = store_chunk_at(s, i);
        if (c->flags & CHUNK_PENDING)
                return STORE_MISS;
        if (ret_ref)
                *ret_ref = (struct store_ref){ .index = i, .generation = c->generation };
        if (ret_chunk)
                *ret_chunk = describe(c);
        return 0;
}

void store_touch(struct store *s, struct store_ref ref)
{
        if (ref.index >= index_high(s->index) ||
            store_chunk_at(s, ref.index)->generation != ref.generation)
                return;
        if (store_chunk_at(s, ref.index)->flags & CHUNK_LINKED)
                evict_touch(s->evict, ref.index);
}

int store_drop(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash)
{
        uint32_t i = index_find(s->index, namespace_id, key, hash);

        if (i == INDEX_NONE || store_chunk_at(s, i)->flags & CHUNK_PENDING)
                return STORE_MISS;
        chunk_drop(s, i);
        s->stats.drops++;
        nudge(s);
        return 0;
}

void store_sync(struct store *s, struct store_put *req)
{
        list_init(&req->node);
        s->requests++;
        sync_want_all(s);
        if (list_empty(&s->dirty_segments) && !table_is_dirty(s->table) && s->sync_outstanding == 0)
                put_finish(s, req, s->sync_failed || !s->dir->can_sync ? STORE_NOT_DURABLE : 0);
        else
                list_append(&s->sync_waiting, &req->node);
        nudge(s);
}

unsigned store_list(const struct store *s, uint32_t namespace_id, uint64_t *cursor,
                    struct store_chunk *ret, unsigned max)
{
        uint64_t i = *cursor, high = index_high(s->index);
        uint64_t end = MIN(high, i < high ? i + (uint64_t)max * LIST_LOOKS : high);
        unsigned n = 0;

        for (; i < end && n < max; i++) {
                const struct chunk *c = store_chunk_at(s, (uint32_t)i);

                if ((c->flags & (CHUNK_LINKED | CHUNK_PENDING)) == CHUNK_LINKED &&
                    c->namespace_id == namespace_id)
                        ret[n++] = describe(c);
        }
        *cursor = i < high ? i : 0;
        return n;
}

/* --- what is seen from outside --- */

void store_get_stats(const struct store *s, struct store_stats *ret)
{
        struct table_stats table = { 0 };

        *ret = s->stats;
        ret->limit = s->params.limit;
        ret->direct = s->dir->direct;
        ret->direct_reason = s->dir->direct_reason;
        ret->bypassed = s->bypassed;
        if (!s->open)
                return;
        table_get_stats(s->table, &table);
        ret->used_bytes = store_charged(s);
        ret->payload_bytes = s->payload_bytes;
        ret->chunks = s->chunks;
        ret->entries_max = index_max(s->index);
        ret->slots = s->cut_slots;
        ret->segments = s->n_segments - s->n_retired;
        ret->segment_bytes = s->segment_bytes;
        ret->segments_max =
                MIN(s->params.limit / s->segment_bytes + 1, (uint64_t)DISK_SEGMENTS_MAX);
        ret->index_bytes = index_bytes(s->index) + (uint64_t)index_high(s->index) * 16 +
                           s->cut_slots * 4 + table_bytes(s->table);
        ret->table_pages = table_pages(s->table);
        ret->table_pages_written = table.pages_written;
        ret->table_entries_written = table.entries_written;
        ret->table_entries_carried = table.entries_carried;
        ret->sync_errors += namespaces_sync_errors(s->namespaces);
        ret->namespaces = namespaces_count(s->namespaces);
}
