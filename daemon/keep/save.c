/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the map when a daemon stops, and reads it when the next one starts. Also keeps the number
 * by which the two daemons know that no other process had the store between them. See format.h for
 * the format.
 *
 * Runs on the loop thread, which serves no client at either time. Failures: the memory is not taken
 * over. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/small-file.h"
#include "cache/pool.h"
#include "checked.h"
#include "cleanup.h"
#include "keep/internal.h"

#define NUMBER_FILE "kept-memory"

/* --- writing --- */

/* Returns the next `bytes` of the map, which are aligned and zero. */
static void *take(char **at, size_t bytes)
{
        void *taken = *at;

        *at += bytes;
        return taken;
}

static void save_pool(const struct keep_tenant *t, const char *files, bool many_readers, char **at)
{
        const struct pool *pool = t->pool;
        uint32_t n = pool_open_slabs(pool);
        struct keep_pool *p = take(at, keep_pool_bytes(n));
        struct pool_stats stats;
        struct stat st;

        pool_get_stats(pool, &stats);
        snprintf(p->name, sizeof(p->name), "%s", t->name);
        snprintf(p->files, sizeof(p->files), "%s", files);
        snprintf(p->policy, sizeof(p->policy), "%s", evict_policy(pool_eviction(pool)));
        p->bytes = pool_bytes(pool);
        p->slab_bytes = pool_slab_bytes(pool);
        p->inode = fstat(pool_fd(pool), &st) == 0 ? (uint64_t)st.st_ino : 0;
        p->n_slabs = n;
        p->flags = many_readers ? KEEP_POOL_MANY_READERS : 0;
        for (uint32_t slab = 0; slab < n; slab++)
                p->slot_bytes[slab] = (uint32_t)pool_slab_slot_bytes(pool, slab);
}

static void save_holder(const struct keep *k, const struct holder *from, char **at)
{
        struct keep_holder *h = take(at, keep_holder_bytes(from->n_chunks));

        memcpy(h->name, from->name, sizeof(h->name));
        h->pool = from->tenant;
        h->n_slots = from->n_chunks;
        for (uint32_t i = 0; i < from->n_chunks; i++) {
                const struct pool_chunk *c =
                        pool_chunk(k->tenants[from->tenant].pool, from->chunks[i]);

                h->slots[i] = (struct keep_slot){ .slab = c->slab, .slot = c->slot };
        }
}

struct saving {
        struct keep_chunk *chunks;
        uint64_t n, room;
};

static void save_chunk(void *userdata, const struct pool_kept *kept)
{
        struct saving *s = userdata;

        if (s->n == s->room)
                return;
        s->chunks[s->n++] = (struct keep_chunk){
                .key = kept->key,
                .namespace_id = kept->namespace_id,
                .length = kept->length,
                .payload_crc = kept->crc,
                .slab = kept->slab,
                .slot = kept->slot,
                .flags = (kept->flags & POOL_STORED ? KEEP_STORED : 0u) |
                         (kept->flags & POOL_REFUSED ? KEEP_REFUSED : 0u),
                .user = kept->user,
                .created_ms = kept->created_ms,
                .record = kept->record,
        };
}

static int by_touched(const void *a, const void *b)
{
        const struct keep_chunk *x = a, *y = b;

        return (x->record.touched > y->record.touched) - (x->record.touched < y->record.touched);
}

static size_t index_bytes_of(const struct keep *k, const struct keep_handover *handover)
{
        size_t bytes = sizeof(struct keep_head) + handover->n_readers * sizeof(struct keep_reader);

        for (unsigned i = 0; i < k->params.n_tenants; i++)
                bytes += keep_pool_bytes(pool_open_slabs(k->tenants[i].pool));
        for (unsigned i = 0; i < k->n_holders; i++)
                bytes += keep_holder_bytes(k->holders[i].n_chunks);
        return bytes;
}

static size_t most_chunks_of(const struct keep *k)
{
        size_t n = 0;

        for (unsigned i = 0; i < k->params.n_tenants; i++) {
                struct pool_stats stats;

                pool_get_stats(k->tenants[i].pool, &stats);
                n += stats.chunks;
        }
        return n;
}

/* Writes the map into zeroed memory. Returns its length. */
static size_t save(const struct keep *k, const struct keep_handover *handover, char *map,
                   size_t index_bytes, uint64_t *ret_chunks)
{
        char *at = map, *pool_at_index;
        struct keep_head *head = take(&at, sizeof(*head));
        struct keep_chunk *chunks = (struct keep_chunk *)(map + index_bytes);
        uint64_t n = 0;

        head->saved_ms = clock_unix_ms();
        head->n_pools = k->params.n_tenants;
        head->n_holders = k->n_holders;
        head->n_readers = handover->n_readers;
        head->rights = handover->rights;
        memcpy(head->number, handover->number, sizeof(head->number));
        pool_at_index = at;
        for (unsigned i = 0; i < k->params.n_tenants; i++)
                save_pool(&k->tenants[i], handover->files[i], handover->many_readers[i], &at);
        for (unsigned i = 0; i < k->n_holders; i++)
                save_holder(k, &k->holders[i], &at);
        if (handover->n_readers > 0)
                memcpy(at, handover->readers, handover->n_readers * sizeof(struct keep_reader));
        for (unsigned i = 0; i < k->params.n_tenants; i++) {
                struct keep_pool *p = (struct keep_pool *)pool_at_index;
                struct saving s = { .chunks = chunks + n };
                struct pool_stats stats;

                pool_get_stats(k->tenants[i].pool, &stats);
                s.room = stats.chunks;
                pool_each_kept(k->tenants[i].pool, save_chunk, &s);
                qsort(s.chunks, s.n, sizeof(*s.chunks), by_touched);
                for (uint64_t c = 0; c < s.n; c++)
                        s.chunks[c].crc = keep_chunk_crc(head, &s.chunks[c], n + c);
                p->n_chunks = s.n;
                n += s.n;
                pool_at_index += keep_pool_bytes(p->n_slabs);
        }
        keep_seal(head, index_bytes + n * sizeof(*chunks), index_bytes);
        *ret_chunks = n;
        return head->bytes;
}

int keep_save(const struct keep *k, const struct keep_handover *handover, int *ret_fd,
              uint64_t *ret_chunks)
{
        _cleanup_(closep) int fd = memfd_create("kvcache-map", MFD_CLOEXEC);
        size_t index_bytes = index_bytes_of(k, handover),
               room = index_bytes + most_chunks_of(k) * sizeof(struct keep_chunk), used;
        void *map;

        if (fd < 0 || ftruncate(fd, (off_t)room) < 0)
                return -errno;
        map = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return -errno;
        used = save(k, handover, map, index_bytes, ret_chunks);
        munmap(map, room);
        if (ftruncate(fd, (off_t)used) < 0)
                return -errno;
        *ret_fd = TAKE_FD(fd);
        return 0;
}

/* --- reading --- */

static int fail(char error[static KEEP_ERROR_BYTES], int r, const char *text)
{
        snprintf(error, KEEP_ERROR_BYTES, "%s", text);
        return r;
}

DEFINE_CLEANUP(struct keep_file *, keep_file_free);

int keep_file_read(struct keep_file **ret, int fd, char ret_error[static KEEP_ERROR_BYTES])
{
        _cleanup_(keep_file_freep) struct keep_file *f = calloc(1, sizeof(*f));
        static const char nothing[sizeof(struct keep_head)];
        const char *wrong;
        struct stat st;
        int64_t got;
        int r;

        if (!f)
                return fail(ret_error, -ENOMEM, "out of memory");
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
                return fail(ret_error, -EBADMSG,
                            "the service manager returned a descriptor that is no regular file");
        f->bytes = malloc(MAX((size_t)st.st_size, sizeof(struct keep_head)));
        got = f->bytes ? small_file_read(fd, f->bytes, (size_t)st.st_size) : -ENOMEM;
        r = got < 0 ? (int)got : got < st.st_size ? -ENODATA : 0;
        if (r == 0 && pwrite(fd, nothing, sizeof(nothing), 0) != (ssize_t)sizeof(nothing))
                r = -EIO;
        if (r < 0)
                return fail(ret_error, r, strerror(-r));
        wrong = keep_check(f->bytes, (size_t)st.st_size, &f->map);
        if (wrong)
                return fail(ret_error, -EBADMSG, wrong);
        *ret = TAKE_PTR(f);
        return 0;
}

struct keep_file *keep_file_free(struct keep_file *f)
{
        if (!f)
                return NULL;
        free(f->bytes);
        free(f);
        return NULL;
}

/* Returns whether every slab exists and can be cut into its slots. */
static bool fits(const struct keep_pool *p)
{
        if (p->n_slabs > p->bytes / p->slab_bytes)
                return false;
        for (uint32_t slab = 0; slab < p->n_slabs; slab++)
                if (p->slot_bytes[slab] > p->slab_bytes || p->slot_bytes[slab] % 4096 != 0)
                        return false;
        return true;
}

static bool has_slots(const struct keep_pool *p, const struct keep_holder *h)
{
        for (uint32_t i = 0; i < h->n_slots; i++) {
                const struct keep_slot *s = &h->slots[i];

                if (s->slab >= p->n_slabs || p->slot_bytes[s->slab] == 0 ||
                    s->slot >= p->slab_bytes / p->slot_bytes[s->slab])
                        return false;
        }
        return true;
}

void keep_file_size(const struct keep_file *f, const char *tenant, uint64_t *bytes,
                    uint64_t *slab_bytes)
{
        for (unsigned i = 0; i < f->map.head->n_pools; i++) {
                const struct keep_pool *p = f->map.pools[i];
                uint64_t slab;

                if (strcmp(p->name, tenant) != 0 || p->bytes == 0 ||
                    pool_whole_bytes(p->bytes, &slab) != p->bytes || slab != p->slab_bytes)
                        continue;
                *bytes = p->bytes;
                *slab_bytes = slab;
        }
}

int keep_file_find(const struct keep_file *f, const char *tenant, uint64_t bytes,
                   uint64_t slab_bytes, bool (*has_socket)(void *userdata, const char *name),
                   void *userdata, char ret_error[static KEEP_ERROR_BYTES])
{
        const struct keep_map *map = &f->map;
        const struct keep_pool *p = NULL;
        unsigned i = 0;

        for (; i < map->head->n_pools; i++) {
                p = map->pools[i];
                if (strcmp(p->name, tenant) == 0)
                        break;
        }
        if (i == map->head->n_pools)
                return fail(ret_error, -1, "the previous daemon had no tenant of this name");
        if (p->bytes != bytes || p->slab_bytes != slab_bytes)
                return fail(ret_error, -1, "the pool's size was changed (memory.pool, tenants)");
        if (!fits(p))
                return fail(ret_error, -1,
                            "the previous daemon's version divides the pool in another way");
        for (uint32_t h = 0; h < map->head->n_holders; h++) {
                const struct keep_holder *holder = map->holders[h];

                if (holder->pool != i)
                        continue;
                if (!has_slots(p, holder))
                        return fail(ret_error, -1, "the list of its clients' leases is damaged");
                if (!has_socket(userdata, holder->name))
                        return fail(ret_error, -1,
                                    "the service manager has not kept the socket of a client with "
                                    "leases (FileDescriptorStoreMax=)");
        }
        return (int)i;
}

/* --- the number of the map, in a file of the store --- */

int keep_number_put(const char *folder, const uint8_t number[static KEEP_NUMBER_BYTES])
{
        _cleanup_(closep) int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_(closep) int fd = -1;

        if (dir < 0 || (unlinkat(dir, NUMBER_FILE, 0) < 0 && errno != ENOENT))
                return -errno;
        fd = openat(dir, NUMBER_FILE, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
                return -errno;
        if (write(fd, number, KEEP_NUMBER_BYTES) != KEEP_NUMBER_BYTES) {
                (void)unlinkat(dir, NUMBER_FILE, 0);
                return -EIO;
        }
        return 0;
}

int keep_number_take(const char *folder, uint8_t ret[static KEEP_NUMBER_BYTES])
{
        _cleanup_(closep) int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        _cleanup_(closep) int fd = -1;
        uint8_t number[KEEP_NUMBER_BYTES];

        if (dir < 0)
                return -errno;
        /* O_NONBLOCK: a FIFO at this place would block startup */
        fd = openat(dir, NUMBER_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (unlinkat(dir, NUMBER_FILE, 0) < 0 || fd < 0)
                return -errno;
        if (read(fd, number, sizeof(number)) != (ssize_t)sizeof(number))
                return -EBADMSG;
        memcpy(ret, number, sizeof(number));
        return 0;
}
