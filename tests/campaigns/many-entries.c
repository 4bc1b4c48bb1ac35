/* SPDX-License-Identifier: Apache-2.0 */
/* Creates a store of many entries without their bytes: many-entries DIR ENTRIES [--history N]
 * [--slot BYTES].
 *
 * The store itself creates superblock and namespace. Then the table ring is written as after years
 * of puts: each slot's entry once, preceded by N rounds of superseded entries (0 to 2: a ring has
 * room for three per slot). A chunk is as long as its slot, 2 MiB unless --slot gives another power
 * of two. Segments are sparse files of the right size, so that a chunk reads as zeros, whose CRC is
 * in its entry. Key number i has i in its first eight bytes, little-endian, and 0xa5 in the others.
 * Prints the limit with which the store must be opened. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "io/backend.h"
#include "io/io.h"
#include "store/volume/format.h"
#include "store/store.h"

enum { SLOT_BYTES_MAX = 2 << 20, SEGMENT_BYTES = 1 << 30, BATCH_PAGES = 256 };

static _Noreturn void give_up(const char *what, int r)
{
        fprintf(stderr, "many-entries: %s: %s\n", what, strerror(-r));
        exit(1);
}

static bool is_open;

static void opened(struct store_namespace_open *req)
{
        is_open = true;
}

static void finish(struct store *s, struct kio *io)
{
        while (store_pending(s) > 0) {
                struct pollfd p = { .fd = kio_fd(io), .events = POLLIN };

                store_iterate(s);
                kio_flush(io);
                if (store_pending(s) > 0 && kio_pending(io) > 0)
                        poll(&p, 1, -1);
                kio_reap(io);
        }
}

/* Creates an empty store with one namespace. Returns the namespace's number. */
static uint32_t make_store(const char *dir, uint64_t limit)
{
        const char *paths[] = { dir };
        struct store_params params = {
                .paths = paths,
                .n_paths = 1,
                .limit = limit,
                .segment_bytes = SEGMENT_BYTES,
                .policy = "lru",
                .pool_slab_bytes = SLOT_BYTES_MAX,
        };
        struct kio_params io_params = { .workers = 1, .depth = 8, .probe_fd = -1 };
        struct store_namespace_open req = {
                .name = "many", .name_length = 4, .fingerprint = "", .complete = opened
        };
        struct store *s = NULL;
        struct kio *io = NULL;
        char error[512] = "";
        uint32_t id;

        if (store_prepare(&s, &params, error) < 0 ||
            kio_start_with(&io, &io_params, &kio_backend_posix, error) < 0 ||
            store_open(s, io, error) < 0) {
                fprintf(stderr, "many-entries: %s\n", error);
                exit(1);
        }
        store_namespace_open(s, &req);
        finish(s, io);
        if (!is_open || req.result != 0)
                give_up("the namespace", -EIO);
        id = req.namespace->id;
        store_stop(s);
        finish(s, io);
        store_close(s);
        kio_stop(io);
        return id;
}

static void key_number(uint64_t i, struct key *ret)
{
        memset(ret->bytes, 0xa5, sizeof(ret->bytes));
        memcpy(ret->bytes, &i, sizeof(i));
}

static void write_table(int dir, const struct disk_superblock *sb, uint32_t namespace_id,
                        uint64_t entries, unsigned history, uint32_t slot_bytes)
{
        const uint32_t slots = SEGMENT_BYTES / slot_bytes;
        uint64_t n_segments = (entries + slots - 1) / slots, seq = n_segments + 1, at = 0,
                 total = entries * (history + 1),
                 pages = (total + DISK_PAGE_ENTRIES - 1) / DISK_PAGE_ENTRIES,
                 room = round_up((3 * entries + DISK_PAGE_ENTRIES - 1) / DISK_PAGE_ENTRIES + 16,
                                 16);
        struct disk_page *buf = aligned_alloc(DISK_PAGE, (size_t)BATCH_PAGES * DISK_PAGE);
        uint8_t *zeros = calloc(1, slot_bytes);
        uint32_t crc;
        int fd = openat(dir, "table", O_RDWR | O_CLOEXEC);

        if (fd < 0 || !buf || !zeros)
                give_up("the table", -errno);
        crc = kio_crc32c(zeros, slot_bytes);
        free(zeros);
        if (ftruncate(fd, 0) < 0 || posix_fallocate(fd, 0, (off_t)(room * DISK_PAGE)) != 0)
                give_up("room for the table", -ENOSPC);
        for (uint64_t page = 0; page < pages;) {
                uint64_t n = MIN(pages - page, (uint64_t)BATCH_PAGES);

                memset(buf, 0, (size_t)BATCH_PAGES * DISK_PAGE);
                for (uint64_t i = 0; i < n; i++) {
                        struct disk_page *p = &buf[i];

                        p->magic = DISK_PAGE_MAGIC;
                        memcpy(p->uuid, sb->uuid, DISK_UUID_BYTES);
                        p->sequence = page + i + 1;
                        p->position = (uint32_t)(page + i);
                        p->ring_pages = (uint32_t)room;
                        p->run_sequence = 1;
                        for (; p->count < DISK_PAGE_ENTRIES && at < total; p->count++, at++) {
                                struct disk_entry *e = &p->entries[p->count];
                                /* The order differs from that of the slots. */
                                uint64_t slot = at % entries * 7919 % entries;

                                *e = (struct disk_entry){
                                        .seq = ++seq,
                                        .segment = (uint32_t)(slot / slots),
                                        .slot_offset =
                                                (uint32_t)(slot % slots) * (slot_bytes / DISK_PAGE),
                                        .slot_pages = slot_bytes / DISK_PAGE,
                                        .length = slot_bytes,
                                        .payload_crc = crc,
                                        .namespace_id = namespace_id,
                                        .created_ms = UINT64_C(1700000000000) + at / 4,
                                        .segment_epoch = slot / slots + 1,
                                };
                                /* Each slot has only the key of the last round. */
                                key_number(slot + (history - at / entries) * entries, &e->key);
                                e->crc = disk_entry_crc(e, sb->uuid);
                        }
                        p->crc = disk_page_crc(p);
                }
                if (pwrite(fd, buf, n * DISK_PAGE, (off_t)(page * DISK_PAGE)) !=
                    (ssize_t)(n * DISK_PAGE))
                        give_up("writing the table", -errno);
                page += n;
        }
        if (fdatasync(fd) < 0)
                give_up("writing the table", -errno);
        close(fd);
        free(buf);
        for (uint64_t i = 0; i < n_segments; i++) {
                char name[32];

                snprintf(name, sizeof(name), "segment-%04x", (unsigned)i);
                fd = openat(dir, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
                if (fd < 0 || ftruncate(fd, SEGMENT_BYTES) < 0)
                        give_up(name, -errno);
                close(fd);
        }
}

int main(int argc, char **argv)
{
        uint64_t entries = argc > 2 ? strtoull(argv[2], NULL, 10) : 0, limit;
        uint32_t slot_bytes = SLOT_BYTES_MAX;
        unsigned history = 0;
        bool good = argc % 2 == 1;
        struct disk_superblock sb;
        uint32_t namespace_id;
        int dir, fd;

        for (int i = 3; good && i + 1 < argc; i += 2) {
                if (strcmp(argv[i], "--history") == 0)
                        history = (unsigned)strtoul(argv[i + 1], NULL, 10);
                else if (strcmp(argv[i], "--slot") == 0)
                        slot_bytes = (uint32_t)strtoul(argv[i + 1], NULL, 10);
                else
                        good = false;
        }
        if (!good || entries < 1000 || entries > 8000000 || history > 2 || entries % 7919 == 0 ||
            slot_bytes < DISK_PAGE || slot_bytes > SLOT_BYTES_MAX ||
            (slot_bytes & (slot_bytes - 1)) != 0) {
                fprintf(stderr,
                        "usage: many-entries DIR ENTRIES [--history 0|1|2] [--slot BYTES]\n");
                return 2;
        }
        limit = entries * (slot_bytes + 1024) + ((uint64_t)4 << 30);
        namespace_id = make_store(argv[1], limit);
        dir = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        fd = openat(dir, "superblock", O_RDONLY | O_CLOEXEC);
        if (fd < 0 || pread(fd, &sb, sizeof(sb), 0) != sizeof(sb))
                give_up("the superblock", -EIO);
        close(fd);
        write_table(dir, &sb, namespace_id, entries, history, slot_bytes);
        printf("%llu\n", (unsigned long long)limit);
        return 0;
}
