/* SPDX-License-Identifier: Apache-2.0 */
/* The two files of a volume's namespaces: assembles their content, reads them at startup, and
 * writes both while the volume has no I/O in flight. namespace.c keeps the list and writes its
 * changes.
 *
 * Runs on the loop thread, and on the volume's blocking-call thread while the volume is being
 * opened, joined or suspended. Each file has a header and records under one CRC, and a tail with
 * the record of the set under two more. Startup uses the whole file with the higher generation.
 * When no write is pending, both files have the same content, so damage to one of them loses
 * nothing. Startup writes the newer file again and syncs it before it writes the other one, because
 * the bytes of a process that was killed between write and sync may exist in the page cache only.
 *
 * Failures: a file that cannot be read, or is not whole, is written again with the content of the
 * other file; if that fails, later. If neither file is whole, the list is empty, and *ret_lost is
 * set. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/small-file.h"
#include "checked.h"
#include "cleanup.h"
#include "store/volume/namespace-internal.h"

enum { READ_TRIES = 3 };

DEFINE_CLEANUP(struct namespaces *, namespaces_free);

static int grow_buffer(struct namespaces *n, uint64_t bytes)
{
        void *p;

        bytes = round_up(bytes, DISK_PAGE);
        if (bytes <= n->buf_bytes)
                return 0;
        bytes = MAX(bytes, 2 * n->buf_bytes);
        p = aligned_alloc(DISK_PAGE, bytes);
        if (!p)
                return -ENOMEM;
        free(n->buf);
        n->buf = p;
        n->buf_bytes = bytes;
        return 0;
}

static int grow_pieces(struct namespaces *n)
{
        unsigned room = MAX(n->count, 2 * n->gather_room);
        _cleanup_(freep) struct disk_namespace *records = NULL;
        struct iovec *pieces;

        if (n->pieces && n->count <= n->gather_room)
                return 0;
        records = malloc(room * sizeof(*records));
        pieces = malloc((1 + 2 * (size_t)room) * sizeof(*pieces));
        if ((!records && room > 0) || !pieces) {
                free(pieces);
                return -ENOMEM;
        }
        free(n->records);
        free(n->pieces);
        n->records = TAKE_PTR(records);
        n->pieces = pieces;
        n->gather_room = room;
        return 0;
}

static uint64_t highest(const uint64_t epochs[static VOLUMES_SET_MAX])
{
        uint64_t epoch = 0;

        for (unsigned i = 0; i < VOLUMES_SET_MAX; i++)
                epoch = MAX(epoch, epochs[i]);
        return epoch;
}

/* Assembles the tail of the file: the record of claims, which older versions do not read. For
 * these, the tail begins with the highest epoch at which each volume missed something, and the
 * header has the highest of these epochs. The epoch for which this volume itself was emptied is
 * only in the header. */
static void gather_set(struct namespaces *n)
{
        const struct volume_set *set = &n->set;
        struct disk_namespaces *h = &n->header;
        unsigned count = n->set_numbers;
        uint64_t *claims;

        h->set_epoch = set->epoch;
        h->set_removed_at = highest(set->removed_at);
        h->set_emptied_at = highest(set->missed_at[n->number]) + 1;
        memset(n->tail, 0, sizeof(n->tail));
        for (unsigned i = 0; i < count; i++) {
                n->tail[i] = i == n->number ? 0 : highest(set->missed_at[i]);
                if (n->tail[i] == 0)
                        continue;
                h->set_missed |= UINT64_C(1) << i;
                h->set_missed_at = MAX(h->set_missed_at, n->tail[i]);
                h->set_missed_count = i + 1;
        }
        h->set_missed_crc = kio_crc32c(n->tail, namespaces_missed_bytes(h->set_missed_count));
        claims = &n->tail[h->set_missed_count];
        for (unsigned i = 0; i <= count; i++)
                memcpy(&claims[i * count], i < count ? set->missed_at[i] : set->removed_at,
                       count * sizeof(claims[0]));
        h->set_claims_count = count;
        h->set_claims_crc = kio_crc32c(claims, namespaces_claims_bytes(count));
}

int namespaces_gather(struct namespaces *n)
{
        int r = grow_buffer(n, namespaces_file_bytes(n));

        if (r == 0)
                r = grow_pieces(n);
        if (r < 0)
                return r;
        n->header = (struct disk_namespaces){
                .count = n->count,
                .generation = n->generation,
                .bytes = n->bytes,
                .purge_seq = n->purge_seq,
                .next_id = n->next_id,
        };
        memcpy(n->header.uuid, n->uuid, DISK_UUID_BYTES);
        gather_set(n);
        n->pieces[0] = (struct iovec){ (char *)&n->header + NAMESPACES_COPY_OFFSET,
                                       sizeof(n->header) - NAMESPACES_COPY_OFFSET };
        for (unsigned i = 0; i < n->count; i++) {
                const struct namespace *ns = n->list[i];

                n->records[i] = (struct disk_namespace){
                        .id = ns->seen.id,
                        .tenant = ns->seen.tenant,
                        .name_length = ns->name_length,
                        .fingerprint_length = ns->fingerprint_length,
                        .lifetime = disk_lifetime_encode(ns->seen.lifetime_s),
                        .owner = ns->seen.owner == STORE_NO_OWNER ? 0 : ns->seen.owner + 1,
                        .chunk_bytes = ns->seen.chunk_bytes,
                        .purge_seq = ns->purge_seq,
                        .created_ms = ns->seen.created_ms,
                };
                n->pieces[1 + 2 * i] = (struct iovec){ &n->records[i], sizeof(n->records[i]) };
                n->pieces[2 + 2 * i] =
                        (struct iovec){ ns->text, namespace_text_bytes(ns->name_length,
                                                                       ns->fingerprint_length) };
        }
        return 0;
}

void namespaces_seal(struct namespaces *n, uint32_t crc)
{
        struct disk_namespaces *header = n->buf;
        uint64_t tail = namespaces_tail_bytes(&n->header), bytes = n->header.bytes + tail;
        struct list_node *i;

        memcpy(header->magic, DISK_NAMESPACES_MAGIC, sizeof(header->magic));
        header->crc = crc;
        memcpy((char *)n->buf + n->header.bytes, n->tail, tail);
        memset((char *)n->buf + bytes, 0, round_up(bytes, DISK_PAGE) - bytes);
        while ((i = list_pop(&n->dropped)))
                namespace_free(container_of(i, struct namespace, dropped));
}

/* Assembles a file on this thread. Returns the bytes to write, in whole pages, or -errno. */
static int64_t build_now(struct namespaces *n)
{
        char *p;
        uint32_t crc = 0;
        int r = namespaces_gather(n);

        if (r < 0)
                return r;
        p = (char *)n->buf + NAMESPACES_COPY_OFFSET;
        for (unsigned i = 0; i < 1 + 2 * n->count; i++) {
                crc = kio_copy_crc32c(crc, p, n->pieces[i].iov_base, n->pieces[i].iov_len);
                p += n->pieces[i].iov_len;
        }
        assert((uint64_t)(p - (char *)n->buf) == n->bytes);
        namespaces_seal(n, crc);
        return (int64_t)round_up(n->bytes + namespaces_tail_bytes(&n->header), DISK_PAGE);
}

static bool tail_valid(const struct disk_namespaces *h, uint64_t bytes)
{
        const char *missed = (const char *)h + h->bytes;
        const char *claims;

        if (h->set_missed_count > VOLUMES_SET_MAX || h->set_claims_count > VOLUMES_SET_MAX ||
            !range_within(h->bytes, namespaces_tail_bytes(h), bytes))
                return false;
        claims = missed + namespaces_missed_bytes(h->set_missed_count);
        return h->set_missed_crc ==
                       kio_crc32c(missed, namespaces_missed_bytes(h->set_missed_count)) &&
               h->set_claims_crc ==
                       kio_crc32c(claims, namespaces_claims_bytes(h->set_claims_count));
}

/* Returns whether a buffer holds a whole file of this volume. The CRC shows that a daemon wrote it;
 * the other checks make bugs and CRC collisions harmless. */
static bool copy_valid(const struct namespaces *n, const void *buf, uint64_t bytes)
{
        const struct disk_namespaces *h = buf;
        uint64_t offset = sizeof(*h);
        uint32_t last_id = 0;

        if (bytes < sizeof(*h) || memcmp(h->magic, DISK_NAMESPACES_MAGIC, sizeof(h->magic)) != 0 ||
            memcmp(h->uuid, n->uuid, DISK_UUID_BYTES) != 0 || h->bytes < sizeof(*h) ||
            h->bytes > bytes ||
            h->crc != kio_crc32c(&h->count, h->bytes - offsetof(struct disk_namespaces, count)) ||
            h->count > STORE_MAX_NAMESPACES || h->purge_seq >= UINT64_MAX / 2 ||
            h->set_epoch >= UINT64_MAX / 2 || !tail_valid(h, bytes))
                return false;
        for (uint32_t i = 0; i < h->count; i++) {
                struct disk_namespace record;
                const char *name = (const char *)buf + offset + sizeof(record);
                uint64_t more;

                if (!range_within(offset, sizeof(record), h->bytes))
                        return false;
                memcpy(&record, (const char *)buf + offset, sizeof(record));
                more = namespace_record_bytes(record.name_length, record.fingerprint_length);
                if (!range_within(offset, more, h->bytes) || record.id <= last_id ||
                    record.name_length == 0 || record.name_length > STORE_MAX_NAME ||
                    record.fingerprint_length > STORE_MAX_FINGERPRINT ||
                    record.purge_seq >= UINT64_MAX / 2 ||
                    memchr(name, '\0', (size_t)record.name_length + record.fingerprint_length))
                        return false;
                last_id = record.id;
                offset += more;
        }
        return offset == h->bytes && h->next_id > last_id;
}

/* Loads the record of a version that kept one epoch for each volume, and not which volume gave it.
 * Treats all these epochs as given by this volume. */
static void load_older_set(struct namespaces *n, const struct disk_namespaces *h)
{
        uint64_t emptied_at = h->set_emptied_at > 0 ? h->set_emptied_at - 1 : h->set_epoch;
        uint64_t missed_at[VOLUMES_SET_MAX] = { 0 };

        memcpy(missed_at, (const char *)h + h->bytes, namespaces_missed_bytes(h->set_missed_count));
        for (unsigned i = 0; i < VOLUMES_SET_MAX; i++)
                n->set.missed_at[i][n->number] = h->set_missed_count > 0  ? missed_at[i]
                                                 : h->set_missed >> i & 1 ? h->set_missed_at
                                                                          : 0;
        for (unsigned i = 0; i < n->given; i++) {
                n->set.removed_at[i] = h->set_removed_at;
                n->set.missed_at[n->number][i] = emptied_at;
        }
}

static void load_set(struct namespaces *n, const struct disk_namespaces *h)
{
        unsigned count = h->set_claims_count;
        const char *claims =
                (const char *)h + h->bytes + namespaces_missed_bytes(h->set_missed_count);

        n->set.epoch = h->set_epoch;
        if (count == 0)
                load_older_set(n, h);
        for (unsigned i = 0; i <= count && count > 0; i++)
                memcpy(i < count ? n->set.missed_at[i] : n->set.removed_at,
                       claims + namespaces_missed_bytes(i * count), namespaces_missed_bytes(count));
        namespaces_count_numbers(n);
}

static int load(struct namespaces *n, const void *buf)
{
        const struct disk_namespaces *h = buf;
        const char *p = (const char *)(h + 1);

        for (uint32_t i = 0; i < h->count; i++) {
                struct disk_namespace record;
                struct namespace *ns;
                int r;

                memcpy(&record, p, sizeof(record));
                r = namespace_new(&ns, p + sizeof(record), record.name_length,
                                  p + sizeof(record) + record.name_length,
                                  record.fingerprint_length);
                if (r < 0)
                        return r;
                ns->seen.id = record.id;
                ns->seen.tenant = record.tenant;
                ns->seen.chunk_bytes = record.chunk_bytes;
                ns->purge_seq = record.purge_seq;
                ns->seen.owner = record.owner == 0 ? STORE_NO_OWNER : record.owner - 1;
                ns->seen.created_ms = record.created_ms;
                ns->seen.lifetime_s = disk_lifetime_decode(record.lifetime);
                ns->generation = h->generation;
                r = namespaces_append(n, ns);
                if (r < 0) {
                        namespace_free(ns);
                        return r;
                }
                p += namespace_record_bytes(record.name_length, record.fingerprint_length);
        }
        n->generation = n->durable = h->generation;
        n->purge_seq = h->purge_seq;
        n->next_id = h->next_id;
        load_set(n, h);
        n->bytes = h->bytes;
        return 0;
}

static int read_once(int fd, void **ret, uint64_t *ret_bytes)
{
        _cleanup_(freep) char *buf = NULL;
        uint64_t bytes;
        struct stat st;
        int64_t got;

        if (fstat(fd, &st) < 0)
                return -errno;
        /* discards cached pages that the kernel could not write to the disk */
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        /* the largest file that a daemon writes */
        bytes = MIN((uint64_t)st.st_size,
                    sizeof(struct disk_namespaces) + sizeof(((struct namespaces *)0)->tail) +
                            STORE_MAX_NAMESPACES *
                                    namespace_record_bytes(STORE_MAX_NAME, STORE_MAX_FINGERPRINT));
        buf = aligned_alloc(DISK_PAGE, round_up(bytes + 1, DISK_PAGE));
        if (!buf)
                return -ENOMEM;
        memset(buf, 0, round_up(bytes + 1, DISK_PAGE));
        got = small_file_read(fd, buf, bytes);
        if (got < 0)
                return (int)got;
        *ret = TAKE_PTR(buf);
        *ret_bytes = (uint64_t)got;
        return 0;
}

/* Reads a file, with retries, so that a temporary error does not make startup use the older
 * file. */
static int read_file(int fd, void **ret, uint64_t *ret_bytes)
{
        int r = -EIO;

        for (unsigned tries = 0; r < 0 && r != -ENOMEM && tries < READ_TRIES; tries++)
                r = read_once(fd, ret, ret_bytes);
        return r;
}

int namespaces_write_now(struct namespaces *n)
{
        assert(n->writing == WRITING_NOTHING);
        if (n->generation == n->writing_generation && n->generation != n->durable)
                n->generation++; /* a failed write may have put this generation on the disk; see
                                    namespaces_iterate() */
        while (!namespaces_at_rest(n)) {
                unsigned i = namespaces_next_file(n);
                int64_t bytes = build_now(n);
                int r;

                if (bytes < 0)
                        return (int)bytes;
                n->good[i] = 0;
                n->writing_generation = n->generation;
                r = dir_write_synced(n->fds[i], n->buf, (size_t)bytes, 0);
                /* one whole file suffices; the other is written later */
                if (r < 0)
                        return n->durable == n->generation ? 0 : r;
                n->good[i] = n->durable = n->generation;
        }
        return 0;
}

/* The content of a file at startup. */
struct copy {
        struct disk_namespaces *header; /* the whole file, in whole pages; NULL if it is missing,
                                           damaged or cannot be read */
        uint64_t bytes;                 /* bytes that were read */
};

static void copy_fini(struct copy *copy)
{
        free(copy->header);
}

static const char *const file_names[DISK_NAMESPACE_FILES] = { "namespaces.0", "namespaces.1" };

/* Reads one file. Leaves copy->header NULL if the file is missing, damaged or cannot be read. Fails
 * only if the file cannot be opened, or memory is short. */
static int read_copy(struct namespaces *n, const struct dir *dir, const char *name,
                     struct copy *copy, char ret_error[static STORE_ERROR_BYTES])
{
        _cleanup_(closep) int fd = dir_open_buffered(dir, name);
        _cleanup_(freep) void *buf = NULL;

        if (fd == -ENOENT)
                return 0;
        if (fd < 0)
                return store_error(ret_error, fd, "%s/%s: cannot open: %s", dir->path, name,
                                   dir_strerror(fd));
        if (read_file(fd, &buf, &copy->bytes) == -ENOMEM)
                return store_error(ret_error, -ENOMEM, "out of memory for the store");
        n->reserve = MAX(n->reserve, round_up(copy->bytes, DISK_PAGE));
        if (buf && copy_valid(n, buf, copy->bytes))
                copy->header = TAKE_PTR(buf);
        return 0;
}

static bool is_same_list(const struct disk_namespaces *a, const struct disk_namespaces *b)
{
        return a && a->bytes == b->bytes && memcmp(a, b, a->bytes) == 0;
}

/* Writes a file again, with the bytes that were read. The bytes may exist in the page cache only,
 * if a process was killed before its sync or its sync failed, and the kernel may never write them.
 * The next change overwrites one file and relies on the other. The bytes are the same, so a power
 * loss cannot tear a file that is on the disk already. */
static int write_again(struct namespaces *n, unsigned i, const struct copy *copy)
{
        uint64_t used = copy->header->bytes + namespaces_tail_bytes(copy->header);

        n->good[i] = copy->header->generation;
        return dir_write_synced(n->fds[i], copy->header, round_up(used, DISK_PAGE), 0);
}

static struct namespaces *namespaces_new(const struct dir *dir, uint64_t reserve_bytes)
{
        struct namespaces *n = calloc(1, sizeof(*n));

        if (!n)
                return NULL;
        memcpy(n->uuid, dir->superblock.uuid, DISK_UUID_BYTES);
        n->number = dir->superblock.volume_index;
        n->given = MIN((unsigned)dir->superblock.volume_count, (unsigned)VOLUMES_SET_MAX);
        n->fds[0] = n->fds[1] = -1;
        n->next_id = 1;
        n->bytes = sizeof(struct disk_namespaces);
        n->reserve = round_up(reserve_bytes, DISK_PAGE);
        list_init(&n->opens_waiting);
        list_init(&n->opens_flying);
        list_init(&n->opens_done);
        list_init(&n->purges_waiting);
        list_init(&n->purges_flying);
        list_init(&n->purges_done);
        list_init(&n->dropped);
        return n;
}

/* Reads both files. Stores the newest whole one in *ret_best, or NULL if there is none. */
static int read_copies(struct namespaces *n, const struct dir *dir, struct copy *const *copies,
                       const struct disk_namespaces **ret_best,
                       char ret_error[static STORE_ERROR_BYTES])
{
        const struct disk_namespaces *best = NULL;

        for (unsigned i = 0; i < DISK_NAMESPACE_FILES; i++) {
                int r = read_copy(n, dir, file_names[i], copies[i], ret_error);
                const struct disk_namespaces *h = copies[i]->header;

                if (r < 0)
                        return r;
                if (h && (!best || h->generation > best->generation))
                        best = h;
        }
        *ret_best = best;
        return 0;
}

static int open_files(struct namespaces *n, const struct dir *dir,
                      char ret_error[static STORE_ERROR_BYTES])
{
        for (unsigned i = 0; i < DISK_NAMESPACE_FILES; i++) {
                int r;

                n->fds[i] = dir_open_file(dir, file_names[i], O_RDWR | O_CREAT);
                if (n->fds[i] < 0)
                        return store_error(ret_error, n->fds[i], "%s/%s: cannot open or create: %s",
                                           dir->path, file_names[i], dir_strerror(n->fds[i]));
                r = dir_allocate(n->fds[i], n->reserve);
                if (r < 0)
                        return store_error(ret_error, r, "%s/%s: cannot allocate %llu bytes: %s",
                                           dir->path, file_names[i], (unsigned long long)n->reserve,
                                           dir_strerror(r));
        }
        return 0;
}

int namespaces_open(struct namespaces **ret, const struct dir *dir, uint64_t reserve_bytes,
                    bool *ret_lost, char ret_error[static STORE_ERROR_BYTES])
{
        _cleanup_(namespaces_freep) struct namespaces *n = namespaces_new(dir, reserve_bytes);
        _cleanup_(copy_fini) struct copy first = { 0 }, second = { 0 };
        struct copy *const copies[DISK_NAMESPACE_FILES] = { &first, &second };
        const struct disk_namespaces *best;
        int r;

        if (!n)
                return store_error(ret_error, -ENOMEM, "out of memory for the store");
        r = read_copies(n, dir, copies, &best, ret_error);
        if (r < 0)
                return r;
        if (best && load(n, best) < 0)
                return store_error(ret_error, -ENOMEM, "out of memory for the store");
        *ret_lost = !best && !dir->fresh;
        r = open_files(n, dir, ret_error);
        if (r < 0)
                return r;
        for (unsigned i = 0; best && i < DISK_NAMESPACE_FILES; i++) {
                if (!is_same_list(copies[i]->header, best))
                        continue;
                r = write_again(n, i, copies[i]);
                if (r < 0)
                        return store_error(ret_error, r, "%s/%s: cannot write: %s", dir->path,
                                           file_names[i], strerror(-r));
        }
        if (n->durable == 0 || !namespaces_at_rest(n)) {
                n->generation++;
                r = namespaces_write_now(n);
                if (r < 0)
                        return store_error(ret_error, r, "%s: cannot write the namespaces: %s",
                                           dir->path, strerror(-r));
        }
        *ret = TAKE_PTR(n);
        return 0;
}
