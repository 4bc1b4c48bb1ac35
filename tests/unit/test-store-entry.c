/* SPDX-License-Identifier: Apache-2.0 */
/* store/: what an entry takes of memory, and which parent its entry in the table names. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "lookup.h"
#include "store-fixture.h"
#include "store/volume/index.h"
#include "store/volume/table.h"

/* The documented bytes of an entry with the default policy (README.md, conf/sizing.md), without
 * the rest of the daemon, in this store of at most 16384 entries: the numbers of larger ones take
 * up to two bytes more, in the slots and in the ring. */
enum { ENTRY_BYTES = 102, NUMBER_BITS = 16 };

static void start_cq(uint64_t limit)
{
        struct store_params params = params_of(limit);

        params.policy = "cq";
        start(&params);
}

/* Words of a full lookup index, whose tables are made with 97 % of their words in use. */
static double lookup_index_bytes(void)
{
        return sizeof(uint32_t) / 0.97 * (1 + 1.0 / LOOKUP_STASH_PART);
}

/* Pages of the ring have a word each, and there is room for three entries a slot. */
static double ring_bytes(void)
{
        return 3.0 / DISK_PAGE_ENTRIES * sizeof(uint32_t);
}

static uint64_t memory_of(const struct store_stats *s)
{
        uint64_t bytes = 0;

        for (unsigned i = 0; i < STORE_MEMORY_PARTS; i++)
                bytes += s->memory[i];
        return bytes;
}

static void an_entry_takes_no_more_than_documented(void **state)
{
        enum { FEW = 2048, MANY = 6144 };
        struct store_stats few, many;
        double bytes;

        start_cq(64 * MIB);
        put_range(0, FEW, 4096);
        few = stats();
        put_range(FEW, MANY - FEW, 4096);
        many = stats();
        assert_int_equal(many.chunks, MANY);
        assert_int_equal(few.chunks, FEW);
        /* The slots of whole data files count; these had room for all chunks. */
        bytes = (double)(memory_of(&many) - memory_of(&few)) / (MANY - FEW) + ring_bytes() +
                lookup_index_bytes();
        if (bytes > ENTRY_BYTES)
                print_error("%.1f bytes an entry\n", bytes);
        assert_true(bytes <= ENTRY_BYTES);
        assert_true(bytes > ENTRY_BYTES - 2);

        assert_int_equal(many.evict.item_bytes + sizeof(struct chunk), 28 + 60);
        assert_int_equal(many.memory[STORE_MEMORY_RECORDS] - few.memory[STORE_MEMORY_RECORDS],
                         (MANY - FEW) * sizeof(struct chunk));
        assert_int_equal(many.memory[STORE_MEMORY_EVICTION] - few.memory[STORE_MEMORY_EVICTION],
                         (MANY - FEW) * many.evict.item_bytes);
        /* Whole buckets of 16 words, of which 90 % are in use. */
        assert_int_equal(many.memory[STORE_MEMORY_HASH] - few.memory[STORE_MEMORY_HASH],
                         (MANY * 10 / (9 * 16) - FEW * 10 / (9 * 16)) * 64);
        assert_int_equal(many.memory[STORE_MEMORY_TABLE] - few.memory[STORE_MEMORY_TABLE],
                         (MANY - FEW) * NUMBER_BITS / 8);
        assert_int_equal(many.memory[STORE_MEMORY_FORKS], 0);
        assert_int_equal(many.evict.ghost_bytes, 16);
        stop();
}

/* Finds the entry of a chunk in the newest page of the table that has one. Returns the sequence of
 * that page. */
static uint64_t newest_entry(uint64_t n, struct disk_entry *ret)
{
        int fd = file_of("table", O_RDONLY);
        struct key key = key_of(n);
        struct disk_page page;
        uint64_t newest = 0;

        for (off_t at = 0; pread(fd, &page, sizeof(page), at) == sizeof(page); at += sizeof(page)) {
                if (page.magic != DISK_PAGE_MAGIC || page.sequence <= newest)
                        continue;
                for (unsigned i = 0; i < MIN((unsigned)page.count, (unsigned)DISK_PAGE_ENTRIES);
                     i++)
                        if (key_equal(&page.entries[i].key, &key)) {
                                *ret = page.entries[i];
                                newest = page.sequence;
                        }
        }
        close(fd);
        assert_true(newest > 0);
        return newest;
}

static struct store_ref ref_of(uint64_t n)
{
        struct key key = key_of(n);
        struct store_ref ref;

        assert_int_equal(store_find(t.s, t.ns, &key, store_hash(t.s, t.ns, &key), &ref, NULL), 0);
        return ref;
}

static bool put_is_over(const void *arg)
{
        return ((const struct store_put *)arg)->complete == NULL;
}

static void end_put(struct store_put *req)
{
        req->complete = NULL;
}

static void put_child(uint64_t n, uint64_t parent)
{
        static struct store_put req;

        payload_of(n, t.bufs[0], 4096);
        req = (struct store_put){ .namespace_id = t.ns,
                                  .key = key_of(n),
                                  .parent = key_of(parent),
                                  .buf = t.bufs[0],
                                  .length = 4096,
                                  .crc = kio_crc32c(t.bufs[0], 4096),
                                  .complete = end_put };
        req.hash = store_hash(t.s, t.ns, &req.key);
        assert_int_equal(store_put(t.s, &req), 0);
        turn(put_is_over, &req);
        assert_int_equal(req.result, 0);
}

static bool names_parent(const struct disk_entry *entry, uint64_t parent)
{
        struct key key = key_of(parent);

        return memcmp(entry->parent, key.bytes, sizeof(entry->parent)) == 0;
}

/* Puts and drops other chunks until the chunk's entry has been carried forward. */
static void carry(uint64_t n, struct disk_entry *ret)
{
        uint64_t before = newest_entry(n, ret);

        for (uint64_t i = 0; newest_entry(n, ret) == before; i++) {
                assert_true(i < 2000);
                assert_int_equal(put(1000 + i, 4096), 0);
                assert_int_equal(drop(1000 + i), 0);
        }
}

/* The parent of a put is in its entry. Records do not keep it: an entry that is carried forward
 * names the parent that the eviction policy has linked, while that is stored. */
static void a_carried_entry_names_the_parent_that_is_linked(void **state)
{
        enum { PARENT = 1, LINKED, UNLINKED };
        static const uint8_t none[sizeof(((struct disk_entry *)0)->parent)];
        struct disk_entry entry;

        start_cq(16 * MIB);
        assert_int_equal(put(PARENT, 4096), 0);
        put_child(LINKED, PARENT);
        put_child(UNLINKED, PARENT);
        store_chain(t.s, ref_of(LINKED), ref_of(PARENT), 1, 1, false);
        newest_entry(PARENT, &entry);
        assert_memory_equal(entry.parent, none, sizeof(none));
        newest_entry(LINKED, &entry);
        assert_true(names_parent(&entry, PARENT));
        newest_entry(UNLINKED, &entry);
        assert_true(names_parent(&entry, PARENT));

        carry(UNLINKED, &entry);
        assert_memory_equal(entry.parent, none, sizeof(none));
        newest_entry(LINKED, &entry); /* carried with the one after it */
        assert_true(names_parent(&entry, PARENT));

        assert_int_equal(drop(PARENT), 0);
        carry(LINKED, &entry);
        assert_memory_equal(entry.parent, none, sizeof(none));
        assert_int_equal(get(LINKED, 4096), 0);
        assert_int_equal(get(UNLINKED, 4096), 0);
        stop();
        start_cq(16 * MIB);
        assert_int_equal(get(LINKED, 4096), 0);
        assert_int_equal(get(UNLINKED, 4096), 0);
        stop();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(an_entry_takes_no_more_than_documented),
                TEST(a_carried_entry_names_the_parent_that_is_linked),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), NULL, 0);
}
