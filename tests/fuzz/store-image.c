/* SPDX-License-Identifier: Apache-2.0 */
/* See store-image.h. */
#include "store-image.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "checked.h"
#include "inline-clock.h"
#include "inline-io.h"
#include "io/io.h"
#include "memory-files.h"

enum { ROOM = 16384, TURNS = 100000 };

struct store *image_store;

static uint8_t uuid[DISK_UUID_BYTES];
static struct kio *io;
static char *buf;
static char payloads[IMAGE_KEYS + 1][ROOM]; /* contents of puts */
static bool done;

/* --- the store --- */

int image_open(uint64_t limit, bool as_is, char error[static 512])
{
        const char *paths[] = { MEMORY_FILES_PATH };
        struct store_params params = {
                .paths = paths,
                .n_paths = 1,
                .limit = limit,
                .segment_bytes = 1 << 20,
                .entries = 512,
                .policy = "lru",
                .pool_slab_bytes = ROOM,
                .secret = { { 3, 4 } },
                .as_is = as_is,
        };
        int r = store_prepare(&image_store, &params, error);

        if (r < 0)
                return r;
        r = store_open(image_store, io, error);
        if (r < 0)
                image_store = store_close(image_store);
        return r;
}

static void wait_for(const bool *what)
{
        for (unsigned turns = 0; what ? !*what : store_pending(image_store) > 0; turns++) {
                assert(turns < TURNS);
                inline_clock_advance_ms(1);
                store_iterate(image_store);
                kio_flush(io);
                kio_reap(io);
        }
}

void image_close(void)
{
        store_stop(image_store);
        wait_for(NULL);
        image_store = store_close(image_store);
}

struct key image_key(uint32_t k)
{
        struct key key = { { 7 } };

        memcpy(key.bytes + 4, &k, sizeof(k));
        return key;
}

static uint32_t length_of(uint32_t k)
{
        return 1 + k * 97 % ROOM;
}

static void fill(uint32_t k)
{
        for (uint32_t i = 0, x = k * 2654435761u + 1; i < length_of(k); i++)
                payloads[k][i] = (char)(x = x * 1664525u + 1013904223u, x >> 24);
}

static void put_done(struct store_put *req)
{
        done = true;
}

int image_put(uint32_t ns, uint32_t k)
{
        static struct store_put req;
        int r;

        memcpy(buf, payloads[k], length_of(k));
        req = (struct store_put){
                .namespace_id = ns,
                .key = image_key(k),
                .buf = buf,
                .length = length_of(k),
                .crc = kio_crc32c(buf, length_of(k)),
                .complete = put_done,
        };
        req.hash = store_hash(image_store, ns, &req.key);
        done = false;
        r = store_put(image_store, &req);
        if (r != 0)
                return r;
        wait_for(&done);
        return req.result;
}

static void get_done(struct store_get *req)
{
        done = true;
}

/* Gets a key; a hit must have the bytes that were put. */
void image_get(uint32_t ns, uint32_t k)
{
        static struct store_get req;

        req = (struct store_get){
                .namespace_id = ns,
                .key = image_key(k),
                .buf = buf,
                .room = ROOM,
                .complete = get_done,
        };
        req.hash = store_hash(image_store, ns, &req.key);
        done = false;
        if (store_get(image_store, &req) != 0)
                return;
        wait_for(&done);
        if (req.result != 0)
                return;
        /* A corrected checksum may state any length; the bytes come from the payload. */
        if (req.length != length_of(k))
                return;
        assert(memcmp(payloads[k], buf, req.length) == 0);
}

static void opened(struct store_namespace_open *req)
{
        done = true;
}

uint32_t image_namespace(unsigned n)
{
        char name[8] = { 'n', (char)('0' + n) };
        struct store_namespace_open req = { .name = name,
                                            .name_length = 2,
                                            .fingerprint = "a=1\n",
                                            .fingerprint_length = 4,
                                            .complete = opened };

        done = false;
        store_namespace_open(image_store, &req);
        wait_for(&done);
        return req.result == 0 ? req.namespace->id : 0;
}

static void purged(struct store_purge *req)
{
        done = true;
}

void image_purge(uint32_t namespace_id)
{
        struct store_purge purge = { .namespace_id = namespace_id, .complete = purged };

        done = false;
        store_purge(image_store, &purge);
        wait_for(&done);
}

static void clean_up(void)
{
        kio_stop(io);
        free(buf);
}

const uint8_t *image_uuid(void)
{
        return uuid;
}

void image_make(void)
{
        struct kio_params params = { .workers = 1, .depth = 32, .probe_fd = -1 };
        char error[512] = "";
        uint32_t ids[IMAGE_NAMES];
        size_t bytes;
        int r;

        log_set_level(LOG_LEVEL_ERROR);
        buf = aligned_alloc(4096, ROOM);
        for (uint32_t k = 0; k <= IMAGE_KEYS; k++)
                fill(k);
        r = buf ? kio_start(&io, &params, error) : -ENOMEM;
        assert(r == 0);
        r = image_open(IMAGE_LIMIT, false, error);
        assert(r == 0);
        for (unsigned n = 0; n < IMAGE_NAMES; n++)
                ids[n] = image_namespace(n);
        for (uint32_t k = 0; k < IMAGE_KEYS; k++) {
                struct key key = image_key(k);

                image_put(ids[k % IMAGE_NAMES], k);
                if (k % 7 == 0)
                        store_drop(image_store, ids[k % IMAGE_NAMES], &key,
                                   store_hash(image_store, ids[k % IMAGE_NAMES], &key));
        }
        image_close();
        memory_files_keep();
        memcpy(uuid, ((struct disk_superblock *)memory_file_bytes("superblock", &bytes))->uuid,
               DISK_UUID_BYTES);
        atexit(clean_up);
}

/* --- changes --- */

static void make_right(const char *name, size_t at)
{
        size_t page = at / DISK_PAGE * DISK_PAGE, n;
        uint8_t *bytes = memory_file_bytes(name, &n);

        if (page + DISK_PAGE > n)
                return;
        if (strcmp(name, "superblock") == 0) {
                struct disk_superblock *sb = (void *)(bytes + page);

                sb->crc = disk_superblock_crc(sb);
        } else if (strcmp(name, "table") == 0) {
                struct disk_page *p = (void *)(bytes + page);

                for (unsigned i = 0; i < DISK_PAGE_ENTRIES; i++)
                        p->entries[i].crc = disk_entry_crc(&p->entries[i], uuid);
                p->crc = disk_page_crc(p);
                memory_file_touch(name, page, DISK_PAGE);
        } else {
                struct disk_namespaces *h = (void *)bytes;

                if (h->bytes >= sizeof(*h) && h->bytes <= n)
                        h->crc = kio_crc32c(bytes + 12, h->bytes - 12);
                memory_file_touch(name, 0, sizeof(*h));
        }
}

static void change_one(unsigned kind, const char *name, size_t at, const uint8_t *data,
                       unsigned length)
{
        size_t n, to;
        uint8_t *bytes = memory_file_bytes(name, &n), *other;

        at %= n;
        length = (unsigned)MIN((size_t)length, n - at);
        switch (kind) {
        case 0: /* cut short, or made longer */
                memory_file_resize(name,
                                   length % 2 && at + n <= MEMORY_FILE_ROOM / 4 ? at + n : at);
                return;
        case 1: /* a page over another one */
                if (strcmp(name, "table") != 0 || length == 0 || n < DISK_PAGE)
                        return;
                to = (size_t)data[0] % (n / DISK_PAGE);
                memmove(bytes + to * DISK_PAGE,
                        bytes + MIN(at, n - DISK_PAGE) / DISK_PAGE * DISK_PAGE, DISK_PAGE);
                ((struct disk_page *)(bytes + to * DISK_PAGE))->position = (uint32_t)to;
                memory_file_touch(name, to * DISK_PAGE, DISK_PAGE);
                make_right(name, to * DISK_PAGE);
                return;
        }
        memcpy(bytes + at, data, length);
        memory_file_touch(name, at, length);
        if (kind & 1 || kind == 2)
                make_right(name, at);
        if (kind != 2)
                return;
        /* Damages both copies of the namespaces, or all superblocks, in the same way. */
        if (strcmp(name, "superblock") == 0 && n == DISK_SUPERBLOCKS * DISK_PAGE) {
                for (unsigned i = 0; i < DISK_SUPERBLOCKS; i++)
                        memmove(bytes + i * DISK_PAGE, bytes + at / DISK_PAGE * DISK_PAGE,
                                DISK_PAGE);
                memory_file_touch(name, 0, n);
        } else if (strcmp(name, "namespaces.0") == 0) {
                memory_file_resize("namespaces.1", n);
                other = memory_file_bytes("namespaces.1", &n);
                memcpy(other, bytes, n);
                memory_file_touch("namespaces.1", 0, n);
        }
}

void image_change(const char *only, const uint8_t *data, size_t size)
{
        static const char *const names[] = { "table", "superblock", "namespaces.0",
                                             "namespaces.1" };

        while (size >= 5) {
                unsigned kind = data[0] >> 4, length = (unsigned)MIN((size_t)data[4], size - 5);
                const char *name = names[data[0] & 3];
                size_t at = (size_t)data[1] << 16 | (size_t)data[2] << 8 | data[3], n;

                if (only && strncmp(only, name, 9) != 0)
                        name = only;
                memory_file_bytes(name, &n);
                if (n == 0)
                        memory_file_resize(name, n = DISK_PAGE);
                change_one(kind, name, at, data + 5, length);
                data += 5 + length;
                size -= 5 + length;
        }
}
