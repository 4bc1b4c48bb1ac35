/* SPDX-License-Identifier: Apache-2.0 */
/* A start on any disk: superblock, namespaces and table ring are whatever the input makes of a good
 * store's. The store opens or says why not; what it then gives out was put, byte for byte; a put,
 * a drop and a purge go on; and the next start opens it.
 *
 * libFuzzer runs it. A good store is made once and kept in memory. The input is a list of changes:
 * a byte for the kind and the file, three for the place, one for the length, then the bytes. A kind
 * makes checksums right afterwards, so that what lies behind them is reached as well; another
 * copies a page of the ring over another one, or cuts a file short. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "checked.h"
#include "io/backend.h"
#include "store/format.h"
#include "store/store.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FILES = 8, KEYS = 96, ROOM = 16384, LIMIT = 4 << 20, NAMES = 3 };

static struct file {
        char name[32];
        uint8_t *bytes, *changed;
        size_t n, n_changed;
} files[FILES];
static unsigned n_files;
static char dir[] = "/dev/shm/kvcache-fuzz-XXXXXX";
static int dir_fd = -1;
static uint8_t uuid[DISK_UUID_BYTES];
static struct kio *io;
static struct store *s;
static char *buf;
static bool done;

/* --- the store --- */

static int open_store(char error[static 512])
{
        const char *paths[] = { dir };
        struct store_params params = {
                .paths = paths,
                .n_paths = 1,
                .limit = LIMIT,
                .segment_bytes = 1 << 20,
                .entries = 4096,
                .policy = "lru",
                .pool_slab_bytes = ROOM,
                .secret = { { 3, 4 } },
                .lock_wait_ms = 30000,
        };
        int r = store_prepare(&s, &params, error);

        if (r < 0)
                return r;
        r = store_open(s, io, error);
        if (r < 0)
                s = store_close(s);
        return r;
}

static void wait_for(const bool *what)
{
        while (what ? !*what : store_pending(s) > 0) {
                struct pollfd p = { .fd = kio_fd(io), .events = POLLIN };

                store_turn(s);
                kio_flush(io);
                if (kio_pending(io) > 0)
                        poll(&p, 1, 10000);
                kio_reap(io);
        }
}

static void close_store(void)
{
        store_stop(s);
        wait_for(NULL);
        s = store_close(s);
}

static struct key key_of(uint32_t k)
{
        struct key key = { { 7 } };

        memcpy(key.bytes + 4, &k, sizeof(k));
        return key;
}

static uint32_t length_of(uint32_t k)
{
        return 1 + k * 97 % ROOM;
}

static void fill(uint32_t k, char *to)
{
        for (uint32_t i = 0, x = k * 2654435761u + 1; i < length_of(k); i++)
                to[i] = (char)(x = x * 1664525u + 1013904223u, x >> 24);
}

static void put_done(struct store_put *req)
{
        done = true;
}

static int put(uint32_t ns, uint32_t k)
{
        static struct store_put req;
        int r;

        fill(k, buf);
        req = (struct store_put){
                .namespace_id = ns,
                .key = key_of(k),
                .buf = buf,
                .length = length_of(k),
                .crc = kio_crc32c(buf, length_of(k)),
                .complete = put_done,
        };
        req.hash = store_hash(s, ns, &req.key);
        done = false;
        r = store_put(s, &req);
        if (r != 0)
                return r;
        wait_for(&done);
        return req.result;
}

static void get_done(struct store_get *req)
{
        done = true;
}

/* Whatever comes is what was put. */
static void get(uint32_t ns, uint32_t k)
{
        static char right[ROOM];
        static struct store_get req;

        req = (struct store_get){
                .namespace_id = ns,
                .key = key_of(k),
                .buf = buf,
                .room = ROOM,
                .complete = get_done,
        };
        req.hash = store_hash(s, ns, &req.key);
        done = false;
        if (store_get(s, &req) != 0)
                return;
        wait_for(&done);
        if (req.result != 0)
                return;
        /* A checksum that was made right may say any length; the bytes are from the payload. */
        if (req.length != length_of(k))
                return;
        fill(k, right);
        assert(memcmp(right, buf, req.length) == 0);
}

static void opened(struct store_namespace_open *req)
{
        done = true;
}

static uint32_t open_namespace(unsigned n)
{
        char name[8] = { 'n', (char)('0' + n) };
        struct store_namespace_open req = { .name = name,
                                            .name_length = 2,
                                            .fingerprint = "a=1\n",
                                            .fingerprint_length = 4,
                                            .complete = opened };

        done = false;
        store_namespace_open(s, &req);
        wait_for(&done);
        return req.result == 0 ? req.namespace->id : 0;
}

static void purged(struct store_purge *req)
{
        done = true;
}

/* --- files --- */

static void files_read(void)
{
        DIR *d = opendir(dir);

        assert(d);
        for (struct dirent *e; (e = readdir(d));) {
                struct file *f = &files[n_files];
                struct stat st;
                int fd;

                if (e->d_name[0] == '.' || strcmp(e->d_name, "LOCK") == 0)
                        continue;
                assert(n_files < FILES && strlen(e->d_name) < sizeof(f->name));
                n_files++;
                strcpy(f->name, e->d_name);
                fd = openat(dirfd(d), e->d_name, O_RDONLY);
                if (fd < 0 || fstat(fd, &st) < 0)
                        abort();
                f->n = (size_t)st.st_size;
                f->bytes = aligned_alloc(DISK_PAGE, round_up(f->n, DISK_PAGE));
                f->changed = aligned_alloc(DISK_PAGE, round_up(f->n, DISK_PAGE));
                assert(f->bytes && f->changed);
                if (pread(fd, f->bytes, f->n, 0) != (ssize_t)f->n)
                        abort();
                close(fd);
        }
        closedir(d);
}

static struct file *file_named(const char *name)
{
        for (unsigned i = 0; i < n_files; i++)
                if (strcmp(files[i].name, name) == 0)
                        return &files[i];
        abort();
}

static void folder_empty(void)
{
        DIR *d = opendir(dir);

        for (struct dirent *e; d && (e = readdir(d));)
                if (e->d_name[0] != '.')
                        unlinkat(dirfd(d), e->d_name, 0);
        if (d)
                closedir(d);
}

static void clean_up(void)
{
        kio_stop(io);
        folder_empty();
        rmdir(dir);
        for (unsigned i = 0; i < n_files; i++) {
                free(files[i].bytes);
                free(files[i].changed);
        }
        free(buf);
        close(dir_fd);
}

static void make_store(void)
{
        struct kio_params params = {
                .workers = 1, .depth = 32, .posix_threads = 1, .probe_fd = -1
        };
        char error[512] = "";
        uint32_t ids[NAMES];
        int r;

        log_set_level(LOG_LEVEL_ERROR);
        buf = aligned_alloc(4096, ROOM);
        assert(buf && mkdtemp(dir));
        dir_fd = open(dir, O_RDONLY | O_DIRECTORY);
        r = kio_start_with(&io, &params, &kio_backend_posix, error);
        assert(r == 0);
        r = open_store(error);
        assert(r == 0);
        for (unsigned n = 0; n < NAMES; n++)
                ids[n] = open_namespace(n);
        for (uint32_t k = 0; k < KEYS; k++) {
                struct key key = key_of(k);

                put(ids[k % NAMES], k);
                if (k % 7 == 0)
                        store_drop(s, ids[k % NAMES], &key, store_hash(s, ids[k % NAMES], &key));
        }
        close_store();
        files_read();
        memcpy(uuid, ((struct disk_superblock *)file_named("superblock")->bytes)->uuid,
               DISK_UUID_BYTES);
        atexit(clean_up);
}

/* --- changes --- */

static void make_right(struct file *f, size_t at)
{
        size_t page = at / DISK_PAGE * DISK_PAGE;

        if (page + DISK_PAGE > f->n)
                return;
        if (strcmp(f->name, "superblock") == 0) {
                struct disk_superblock *sb = (void *)(f->changed + page);

                sb->crc = disk_superblock_crc(sb);
        } else if (strcmp(f->name, "table") == 0) {
                struct disk_page *p = (void *)(f->changed + page);

                for (unsigned i = 0; i < DISK_PAGE_ENTRIES; i++)
                        p->entries[i].crc = disk_entry_crc(&p->entries[i], uuid);
                p->crc = disk_page_crc(p);
        } else if (strncmp(f->name, "namespaces", 10) == 0) {
                struct disk_namespaces *h = (void *)f->changed;

                if (h->bytes >= sizeof(*h) && h->bytes <= f->n)
                        h->crc = kio_crc32c(f->changed + 12, h->bytes - 12);
        }
}

static void change(const uint8_t *data, size_t size)
{
        static const char *const names[] = { "table", "superblock", "namespaces.0",
                                             "namespaces.1" };

        for (unsigned i = 0; i < n_files; i++) {
                memcpy(files[i].changed, files[i].bytes, files[i].n);
                files[i].n_changed = files[i].n;
        }
        while (size >= 5) {
                unsigned kind = data[0] >> 4, length = data[4];
                struct file *f = file_named(names[data[0] & 3]);
                size_t at = ((size_t)data[1] << 16 | (size_t)data[2] << 8 | data[3]) % f->n;

                data += 5;
                size -= 5;
                length = (unsigned)MIN(MIN(length, size), f->n - at);
                switch (kind) {
                case 0: /* cut short */
                        f->n_changed = at;
                        break;
                case 1: /* a page over another one */
                        if (strcmp(f->name, "table") == 0 && length > 0) {
                                size_t to = (size_t)data[0] % (f->n / DISK_PAGE);

                                memmove(f->changed + to * DISK_PAGE,
                                        f->changed + at / DISK_PAGE * DISK_PAGE, DISK_PAGE);
                                ((struct disk_page *)(f->changed + to * DISK_PAGE))->position =
                                        (uint32_t)to;
                                make_right(f, to * DISK_PAGE);
                        }
                        break;
                case 2: /* both copies of the namespaces, or all superblocks, alike */
                        memcpy(f->changed + at, data, length);
                        make_right(f, at);
                        if (strncmp(f->name, "namespaces", 10) == 0)
                                for (unsigned i = 2; i < 4; i++)
                                        memcpy(file_named(names[i])->changed, f->changed, f->n);
                        if (strcmp(f->name, "superblock") == 0)
                                for (unsigned i = 0; i < DISK_SUPERBLOCKS; i++)
                                        memmove(f->changed + i * DISK_PAGE,
                                                f->changed + at / DISK_PAGE * DISK_PAGE, DISK_PAGE);
                        break;
                default:
                        memcpy(f->changed + at, data, length);
                        if (kind & 1)
                                make_right(f, at);
                }
                data += length;
                size -= length;
        }
}

static void files_write(void)
{
        static const uint8_t zeros[DISK_PAGE];

        for (unsigned i = 0; i < n_files; i++) {
                int fd = openat(dir_fd, files[i].name, O_RDWR | O_CREAT | O_TRUNC, 0600);

                if (fd < 0 || ftruncate(fd, (off_t)files[i].n_changed) < 0)
                        abort();
                for (size_t at = 0; at < files[i].n_changed; at += DISK_PAGE) {
                        size_t n = MIN(files[i].n_changed - at, (size_t)DISK_PAGE);

                        if (memcmp(files[i].changed + at, zeros, n) != 0 &&
                            pwrite(fd, files[i].changed + at, n, (off_t)at) != (ssize_t)n)
                                abort();
                }
                close(fd);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        char error[512] = "";
        uint32_t ns;
        int r;

        if (dir_fd < 0)
                make_store();
        change(data, size);
        folder_empty();
        files_write();
        r = open_store(error);
        if (r < 0) {
                assert(error[0] != '\0');
                return 0;
        }
        /* A read goes through two threads: a few keys of each start, others each time. */
        for (uint32_t k = (uint32_t)size % 16; k < KEYS; k += 16)
                for (unsigned i = 0; i < NAMES && store_namespace_at(s, i); i++)
                        get(store_namespace_at(s, i)->id, k);
        ns = size % 2 ? open_namespace(1) : 0;
        if (ns) {
                struct store_purge purge = { .namespace_id = ns, .complete = purged };
                struct key key = key_of(KEYS);

                if (put(ns, KEYS) == 0)
                        get(ns, KEYS);
                store_drop(s, ns, &key, store_hash(s, ns, &key));
                done = false;
                store_purge(s, &purge);
                wait_for(&done);
        }
        close_store();
        r = open_store(error);
        if (r == 0)
                close_store();
        return 0;
}
