/* SPDX-License-Identifier: Apache-2.0 */
/* Tests each reader of startup separately: the superblock, the namespaces files, the pages and
 * entries of the table ring. Whatever a reader accepts must fulfil its guarantees, and must be read
 * back equal after it was written again.
 *
 * libFuzzer runs it on the image of a good store: tens of thousands of runs a second, because
 * fuzz-store opens the whole store. The first byte selects the reader; the others are changes for
 * image_change(). */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "memory-files.h"
#include "store-image.h"
#include "store/volume/dir.h"
#include "store/volume/namespace.h"
#include "store/volume/table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

/* --- superblock --- */

static struct dir *open_dir(void)
{
        struct dir_params params = { .path = MEMORY_FILES_PATH, .lock_fd = -1 };
        char error[STORE_ERROR_BYTES] = "";
        struct dir *dir = NULL;
        int r = dir_open(&dir, &params, error);

        assert(r < 0 ? !dir && error[0] != '\0' : dir && error[0] == '\0');
        return dir;
}

static void read_superblock(void)
{
        struct disk_superblock *sb, before;
        struct dir *dir = open_dir();
        int r;

        if (!dir)
                return;
        sb = &dir->superblock;
        assert(sb->version == DISK_VERSION && sb->volume_index < sb->volume_count);
        assert(!(sb->incompat & ~DISK_INCOMPAT) && !(sb->ro_compat & ~DISK_RO_COMPAT));
        /* Writes four copies of the accepted superblock, which must be read back unchanged. */
        r = dir_write_superblock(dir);
        assert(r == 0);
        before = *sb;
        dir_close(dir);
        dir = open_dir();
        /* The highest number there is has none after it. */
        assert(dir ? before.generation == 0 ||
                               memcmp(&before, &dir->superblock, sizeof(before)) == 0
                   : before.generation == 0);
        dir_close(dir);
}

/* --- namespaces --- */

static struct namespaces *open_namespaces(const struct dir *dir, bool *ret_lost)
{
        char error[STORE_ERROR_BYTES] = "";
        struct namespaces *n = NULL;
        int r = namespaces_open(&n, dir, 16 * 1024, ret_lost, error);

        assert(r < 0 ? !n && error[0] != '\0' : n != NULL);
        return n;
}

static void check_namespaces(const struct namespaces *n)
{
        uint32_t last = 0;

        assert(namespaces_count(n) <= STORE_MAX_NAMESPACES);
        for (unsigned i = 0; i < namespaces_count(n); i++) {
                const struct namespace *ns = namespaces_at(n, i);
                size_t name = strlen(ns->seen.name), fingerprint = strlen(ns->seen.fingerprint);

                assert(ns->seen.id > last && ns->seen.id < namespaces_next_id(n));
                assert(name > 0 && name <= STORE_MAX_NAME && fingerprint <= STORE_MAX_FINGERPRINT);
                assert(namespaces_get(n, ns->seen.id) == ns);
                assert(namespaces_max_seq(n) >= ns->purge_seq);
                assert(namespaces_is_dead(n, ns->seen.id, ns->purge_seq));
                last = ns->seen.id;
        }
}

static void read_namespaces(void)
{
        bool lost = false, lost_again = true;
        struct namespaces *first, *second;
        struct dir *dir = open_dir();

        first = open_namespaces(dir, &lost);
        if (first) {
                check_namespaces(first);
                /* At least one copy is valid now. */
                second = open_namespaces(dir, &lost_again);
                assert(second && !lost_again);
                assert(namespaces_count(first) == namespaces_count(second));
                for (unsigned i = 0; i < namespaces_count(first); i++) {
                        const struct namespace *a = namespaces_at(first, i),
                                               *b = namespaces_at(second, i);

                        assert(a->seen.id == b->seen.id && a->seen.tenant == b->seen.tenant &&
                               a->purge_seq == b->purge_seq &&
                               strcmp(a->seen.name, b->seen.name) == 0 &&
                               strcmp(a->seen.fingerprint, b->seen.fingerprint) == 0);
                }
                namespaces_free(second);
        }
        namespaces_free(first);
        dir_close(dir);
}

/* --- table --- */

static void read_table(void)
{
        static uint64_t sequences[MEMORY_FILE_ROOM / DISK_PAGE];
        const uint8_t *uuid = image_uuid(), *bytes;
        struct disk_page *page = malloc(sizeof(*page));
        uint64_t sum = 0, highest = 0;
        uint32_t pages, newest, stale = 0;
        size_t size;

        assert(page);
        bytes = memory_file_bytes("table", &size);
        pages = (uint32_t)(size / DISK_PAGE);
        for (uint32_t i = 0; i < pages; i++) {
                memcpy(page, bytes + (size_t)i * DISK_PAGE, sizeof(*page));
                sequences[i] = 0;
                if (!disk_page_valid(page, uuid, i)) {
                        if (page->magic != 0)
                                sequences[i] = TABLE_STALE;
                        continue;
                }
                assert(page->count <= DISK_PAGE_ENTRIES && page->position == i);
                assert(page->sequence > 0 && page->sequence < TABLE_STALE);
                sequences[i] = page->sequence;
                highest = MAX(highest, page->sequence);
                for (unsigned j = 0; j < page->count; j++)
                        if (disk_entry_valid(&page->entries[j], uuid))
                                sum += page->entries[j].seq;
        }
        sink = sum;
        newest = table_find_newest(sequences, pages);
        assert(newest == UINT32_MAX ? highest == 0
                                    : newest < pages && sequences[newest] == highest);
        if (newest != UINT32_MAX) {
                memcpy(page, bytes + (size_t)newest * DISK_PAGE, sizeof(*page));
                assert(!table_is_stale(page, pages, newest, highest));
                for (uint32_t i = 0; i < pages; i++)
                        stale += sequences[i] != 0 && table_is_stale(page, pages, i, sequences[i]);
                assert(stale < pages);
        }
        free(page);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        static bool made;

        if (!made)
                image_make();
        made = true;
        if (size < 1)
                return 0;
        memory_files_reset();
        switch (data[0] % 3) {
        case 0:
                image_change("superblock", data + 1, size - 1);
                read_superblock();
                break;
        case 1:
                image_change("namespaces.0", data + 1, size - 1);
                read_namespaces();
                break;
        default:
                image_change("table", data + 1, size - 1);
                read_table();
        }
        return 0;
}
