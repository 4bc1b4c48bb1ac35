/* SPDX-License-Identifier: Apache-2.0 */
/* store/: the state after a kill, the effect of damage, and the range of sequences. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "store-fixture.h"

static void restart_keeps_everything(void **state)
{
        start_limit(64 * MIB);
        assert_true(stats().clean_start);
        put_range(0, 300, 16384);
        put_range(1000, 50, 100001);
        assert_int_equal(drop(7), 0);
        stop();
        for (unsigned round = 0; round < 3; round++) {
                start_limit(64 * MIB);
                assert_true(stats().clean_start);
                assert_int_equal(stats().recovered_chunks, 349);
                for (uint64_t i = 0; i < 300; i++)
                        assert_int_equal(get(i, 16384), i == 7 ? STORE_MISS : 0);
                for (uint64_t i = 1000; i < 1050; i++)
                        assert_int_equal(get(i, 100001), 0);
                stop();
        }
}

static void a_kill_loses_nothing_written(void **state)
{
        in_killed_process(put_some);
        start_limit(64 * MIB);
        assert_false(stats().clean_start);
        for (uint64_t i = 0; i < 300; i++)
                assert_int_equal(get(i, 16384), 0);
        for (uint64_t i = 1000; i < 1050; i++)
                assert_int_equal(get(i, 100001), 0);
        stop();
}

static void put_more_with_gaps(void)
{
        start_limit(64 * MIB);
        put_range(2000, 2000, 8192);
        /* Many in flight: some are on disk, some are not, none may be wrong. */
        for (uint64_t i = 0; i < DEPTH; i++)
                submit_put(5000 + i, 8192, false);
        turn_once();
}

static void kill_after_kill_never_gives_a_wrong_byte(void **state)
{
        for (unsigned round = 0; round < 4; round++) {
                in_killed_process(round == 0 ? put_some : put_more_with_gaps);
                start_limit(64 * MIB);
                for (uint64_t i = 0; i < 300; i++)
                        assert_int_equal(get(i, 16384), 0);
                for (uint64_t i = 5000; i < 5000 + DEPTH; i++)
                        if (present(i))
                                assert_int_equal(get(i, 8192), 0);
                if (round > 0) {
                        assert_int_equal(count_present(2000, 2000), 2000);
                        for (uint64_t i = 2000; i < 4000; i++)
                                assert_int_equal(drop(i), 0);
                        for (uint64_t i = 5000; i < 5000 + DEPTH; i++)
                                drop(i);
                }
                stop();
        }
}

/* Records of the process that will be killed, in memory that outlives it. */
struct said {
        uint64_t acked;
        uint8_t keys[256]; /* 1: written, 2: dropped and settled */
};
static struct said *said;

/* Writes a byte to `reached` when `until` is. */
static void churn(int reached, uint64_t until)
{
        start_limit(64 * MIB);
        for (uint64_t n = said->acked;; n++) {
                uint64_t k = n % ARRAY_SIZE(said->keys);

                if (said->keys[k] == 1) {
                        said->keys[k] = 0;
                        assert_int_equal(drop(k), 0);
                        if (n % 64 == 0) {
                                settle();
                                said->keys[k] = 2;
                        }
                }
                said->keys[k] = said->keys[k] == 2 && n % 3 == 0 ? 2 : 0;
                if (said->keys[k] == 0 && put(k, 6000) == 0)
                        said->keys[k] = 1;
                __atomic_store_n(&said->acked, n + 1, __ATOMIC_RELEASE);
                if (n + 1 == until)
                        assert_int_equal(write(reached, "", 1), 1);
        }
}

static void a_kill_at_any_moment_loses_nothing_answered(void **state)
{
        uint64_t x = 88172645463325252;

        said = mmap(NULL, sizeof(*said), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_ptr_not_equal(said, MAP_FAILED);
        for (unsigned round = 0; round < 6; round++) {
                int status, reached[2];
                uint64_t until;
                char byte;
                pid_t pid;

                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                until = said->acked + 1 + x % 375;
                assert_int_equal(pipe2(reached, O_CLOEXEC), 0);
                pid = fork();
                assert_true(pid >= 0);
                if (pid == 0) {
                        close(reached[0]);
                        churn(reached[1], until);
                        _exit(1);
                }
                close(reached[1]);
                if (read(reached[0], &byte, 1) != 1)
                        fail_msg("the other process ended");
                close(reached[0]);
                kill(pid, SIGKILL);
                assert_int_equal(waitpid(pid, &status, 0), pid);
                start_limit(64 * MIB);
                for (uint64_t k = 0; k < ARRAY_SIZE(said->keys); k++) {
                        if (said->keys[k] == 1)
                                assert_int_equal(get(k, 6000), 0);
                        else if (said->keys[k] == 2)
                                assert_false(present(k));
                        else if (present(k))
                                assert_int_equal(get(k, 6000), 0);
                        said->keys[k] = present(k);
                }
                stop();
        }
        munmap(said, sizeof(*said));
}

static void drop_every_third(uint64_t n)
{
        for (uint64_t i = 0; i < n; i += 3)
                assert_int_equal(drop(i), 0);
        assert_int_equal(drop(0), STORE_MISS);
        /* A dropped key may be put again. */
        assert_int_equal(put(3, 20000), 0);
        settle();
}

static void drop_and_settle(void)
{
        start_limit(64 * MIB);
        drop_every_third(300);
}

static void a_drop_survives_a_kill(void **state)
{
        in_killed_process(put_some);
        in_killed_process(drop_and_settle);
        start_limit(64 * MIB);
        for (uint64_t i = 0; i < 300; i++)
                assert_int_equal(get(i, i == 3 ? 20000 : 16384),
                                 i % 3 == 0 && i != 3 ? STORE_MISS : 0);
        stop();
}

static void drop_and_go_round(void)
{
        struct store_stats before;

        start_limit(16 * MIB);
        put_range(0, 100, 4096);
        for (uint64_t i = 0; i < 100; i++)
                assert_int_equal(drop(i), 0);
        /* Runs until the ring has been overwritten twice, with at most some hundred keys at
         * once. */
        before = stats();
        for (uint64_t i = 1000;
             stats().table_pages_written < before.table_pages_written + 2 * before.table_pages;
             i++) {
                assert_int_equal(put(i, 4096), 0);
                if (i >= 1100)
                        assert_int_equal(drop(i - 100), 0);
        }
        settle();
}

static void a_drop_survives_the_ring_going_round(void **state)
{
        in_killed_process(drop_and_go_round);
        start_limit(16 * MIB);
        assert_int_equal(count_present(0, 1000), 0);
        assert_true(stats().chunks <= 100);
        stop();
}

static void a_flipped_bit_is_a_miss_and_the_chunk_is_dropped(void **state)
{
        char name[64];
        off_t offset;

        start_limit(64 * MIB);
        put_range(0, 20, 10000);
        stop();
        assert_true(find_payload(5, 10000, name, &offset));
        flip_byte(name, offset + 9999);
        assert_true(find_payload(6, 10000, name, &offset));
        flip_byte(name, offset + 10000); /* past its end: of no chunk */
        start_limit(64 * MIB);
        assert_true(present(5));
        assert_int_equal(get(5, 10000), STORE_MISS);
        assert_int_equal(stats().crc_rereads, 1);
        assert_int_equal(stats().crc_failures, 1);
        assert_false(present(5));
        for (uint64_t i = 0; i < 20; i++)
                assert_int_equal(get(i, 10000), i == 5 ? STORE_MISS : 0);
        stop();
        start_limit(64 * MIB);
        assert_false(present(5));
        assert_int_equal(put(5, 10000), 0);
        assert_int_equal(get(5, 10000), 0);
        stop();
}

static void erase_table_pages(uint32_t first, uint32_t n)
{
        static const uint8_t zeros[DISK_PAGE];
        int fd = file_of("table", O_RDWR);

        for (uint32_t i = first; i < first + n; i++)
                assert_int_equal(pwrite(fd, zeros, DISK_PAGE, (off_t)i * DISK_PAGE), DISK_PAGE);
        close(fd);
}

/* Someone cuts the table, and a later write gives it its old length. */
static void pages_of_an_earlier_run_that_were_cut_off_are_reported(void **state)
{
        start_limit(64 * MIB);
        for (uint64_t i = 0; i < 30; i++)
                assert_int_equal(put(i, 4096), 0); /* one page each */
        stop();
        start_limit(64 * MIB);
        for (uint64_t i = 30; i < 50; i++)
                assert_int_equal(put(i, 4096), 0);
        stop();
        erase_table_pages(10, 7);
        start_limit(64 * MIB);
        assert_int_equal(stats().skipped_pages, 7);
        assert_int_equal(count_present(0, 50), 50 - 7);
        for (uint64_t i = 50; i < 54; i++)
                assert_int_equal(put(i, 4096), 0);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(stats().skipped_pages, 0); /* once */
        stop();
}

static void a_damaged_table_page_costs_its_own_entries(void **state)
{
        uint64_t there;

        start_limit(64 * MIB);
        for (uint64_t i = 0; i < 64; i++)
                assert_int_equal(put(i, 4096), 0); /* one page each */
        stop();
        flip_byte("table", 20 * 4096 + 130);
        start_limit(64 * MIB);
        assert_int_equal(stats().skipped_pages, 1);
        there = count_present(0, 64);
        assert_true(there >= 63);
        for (uint64_t i = 0; i < 64; i++)
                if (present(i))
                        assert_int_equal(get(i, 4096), 0);
        assert_int_equal(put(1000, 4096), 0);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 64), there);
        assert_true(present(1000));
        stop();
}

/* A direct read with a bad page fails completely, and each failing read may take a device
 * seconds. */
static struct {
        ino_t table;
        off_t bad;
        unsigned reads, failed;
} reads_of;

ssize_t __real_pread64(int fd, void *buf, size_t bytes, off_t offset);
ssize_t __wrap_pread64(int fd, void *buf, size_t bytes, off_t offset);

ssize_t __wrap_pread64(int fd, void *buf, size_t bytes, off_t offset)
{
        ino_t table = __atomic_load_n(&reads_of.table, __ATOMIC_ACQUIRE);
        struct stat st;
        off_t bad;

        if (table == 0 || fstat(fd, &st) < 0 || st.st_ino != table)
                return __real_pread64(fd, buf, bytes, offset);
        bad = reads_of.bad;
        __atomic_add_fetch(&reads_of.reads, 1, __ATOMIC_RELAXED);
        if (offset + (off_t)bytes <= bad || offset >= bad + DISK_PAGE)
                return __real_pread64(fd, buf, bytes, offset);
        __atomic_add_fetch(&reads_of.failed, 1, __ATOMIC_RELAXED);
        errno = EIO;
        return -1;
}

static void a_table_page_that_cannot_be_read_costs_a_few_reads(void **state)
{
        static const char zeros[4 * DISK_PAGE];
        struct stat st;
        int fd;

        start_limit(256 * MIB);
        put_range(0, 200, 5000);
        stop();
        /* An empty page that was written before, because others are not read. */
        fd = file_of("table", O_RDWR);
        assert_int_equal(fstat(fd, &st), 0);
        assert_int_equal(pwrite(fd, zeros, sizeof(zeros), st.st_size - (off_t)sizeof(zeros)),
                         sizeof(zeros));
        close(fd);
        /* Bad pages late in a file that is read completely, in small blocks, and in larger ones. */
        for (unsigned i = 0; i < 4; i++) {
                reads_of.bad = st.st_size - (off_t)(1 + i) * DISK_PAGE;
                reads_of.reads = reads_of.failed = 0;
                __atomic_store_n(&reads_of.table, st.st_ino, __ATOMIC_RELEASE);
                start_limit(256 * MIB);
                __atomic_store_n(&reads_of.table, 0, __ATOMIC_RELEASE);
                assert_in_range(reads_of.failed, 1, 2 * 9 + 2); /* a MiB is 2^8 pages; two looks */
                assert_true(reads_of.reads <= 2 * (unsigned)(st.st_size / DISK_PAGE) + 64);
                assert_int_equal(count_present(0, 200), 200);
                stop();
        }
}

static void a_table_of_garbage_is_an_empty_table(void **state)
{
        _cleanup_(freep) char *garbage = malloc(64 * 4096);
        int fd;

        start_limit(64 * MIB);
        put_range(0, 200, 4096);
        stop();
        payload_of(99, garbage, 64 * 4096);
        fd = file_of("table", O_RDWR);
        assert_int_equal(pwrite(fd, garbage, 64 * 4096, 0), 64 * 4096);
        close(fd);
        start_limit(64 * MIB);
        assert_true(count_present(0, 200) < 200);
        put_range(1000, 500, 4096);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(count_present(1000, 500), 500);
        stop();
}

static void one_copy_of_the_namespaces_is_enough(void **state)
{
        uint32_t id;

        start_limit(64 * MIB);
        id = t.ns;
        put_range(0, 20, 4096);
        stop();
        for (unsigned i = 0; i < 2; i++) {
                char name[] = "namespaces.0";

                name[11] = (char)('0' + i);
                flip_byte(name, 150);
                start_limit(64 * MIB);
                assert_int_equal(t.ns, id);
                assert_int_equal(count_present(0, 20), 20);
                stop();
        }
}

static void without_namespaces_nothing_is_anybodys(void **state)
{
        uint32_t id;

        start_limit(64 * MIB);
        id = t.ns;
        put_range(0, 20, 4096);
        stop();
        flip_byte("namespaces.0", 50);
        flip_byte("namespaces.1", 150);
        start_limit(64 * MIB);
        assert_true(t.ns > id); /* the number is not given to another namespace */
        assert_int_equal(stats().chunks, 0);
        t.ns = id;
        assert_int_equal(count_present(0, 20), 0);
        stop();
}

/* Changes some bytes of some table entries and makes the CRCs right again: what a bug or malice
 * could write. */
static void forge_entries(uint64_t *x, unsigned n)
{
        int sb_fd = file_of("superblock", O_RDONLY), fd = file_of("table", O_RDWR);
        struct disk_superblock sb;

        assert_int_equal(pread(sb_fd, &sb, sizeof(sb), 0), sizeof(sb));
        close(sb_fd);
        for (unsigned i = 0; i < n; i++) {
                struct disk_page page;
                uint32_t p;
                struct disk_entry *e;

                *x = *x * UINT64_C(6364136223846793005) + 1442695040888963407;
                p = (uint32_t)(*x >> 33) % 64;
                assert_int_equal(pread(fd, &page, sizeof(page), (off_t)p * DISK_PAGE),
                                 sizeof(page));
                if (!disk_page_valid(&page, sb.uuid, p))
                        continue;
                e = &page.entries[(*x >> 40) % DISK_PAGE_ENTRIES];
                for (unsigned j = 0; j < 1 + i % 4; j++) {
                        *x = *x * UINT64_C(6364136223846793005) + 1442695040888963407;
                        /* Changes everything except the key, because an attacker who forges our
                         * CRCs can rename a chunk, which no store could detect. */
                        ((uint8_t *)
                                 e)[sizeof(e->key) + (*x >> 33) % (sizeof(*e) - sizeof(e->key))] =
                                (uint8_t)(*x >> 50) & (i % 2 ? 0xff : 0x03);
                }
                if (i % 5 == 0) {
                        page.safe = (uint32_t)(*x >> 20);
                        page.ring_pages = (uint32_t)(*x >> 30) >> (i % 32);
                        page.run_sequence = *x >> (i % 64);
                }
                if (i % 11 == 0)
                        page.sequence = *x >> (1 + i % 63);
                e->crc = disk_entry_crc(e, sb.uuid);
                page.crc = disk_page_crc(&page);
                assert_int_equal(pwrite(fd, &page, sizeof(page), (off_t)p * DISK_PAGE),
                                 sizeof(page));
        }
        close(fd);
}

static void damage_at_random_gives_misses_and_never_a_wrong_byte(void **state)
{
        static const char *const files[] = { "table", "segment-0000", "segment-0001",
                                             "namespaces.0", "namespaces.1" };
        uint64_t x = 4711, misses = 0, hits = 0;

        for (unsigned round = 0; round < 40; round++) {
                start_limit(12 * MIB);
                for (uint64_t i = 0; i < 150; i++) {
                        uint32_t length = i % 2 ? 5000 : 16384;
                        int r = get(i, length);

                        assert_true(r == 0 || r == STORE_MISS);
                        hits += r == 0;
                        misses += r != 0;
                        if (r != 0)
                                assert_true((r = put(i, length)) == 0 || r == STORE_EXISTS);
                        if (i % 10 == round % 10)
                                drop(i);
                }
                stop();
                assert_true(du() <= 12 * MIB);
                if (round % 2) {
                        forge_entries(&x, 40);
                        continue;
                }
                for (unsigned i = 0; i < 10; i++) {
                        const char *file = files[(x >> 33) % ARRAY_SIZE(files)];

                        x = x * UINT64_C(6364136223846793005) + 1442695040888963407;
                        /* Within the first 256 KiB, which contain the whole used part of a table or
                         * a namespaces file. */
                        flip_byte(file, (off_t)((x >> 33) %
                                                (strncmp(file, "names", 5) == 0 ? 200 : 250000)));
                }
        }
        assert_true(hits > 1000);
        assert_true(misses > 100);
}

/* Gives `change` each page of the table that is one, and its number; makes its CRCs right again. */
static void change_pages(void (*change)(struct disk_page *pages, uint32_t n))
{
        enum { MOST = 512 }; /* each entry in one of its own */
        static struct disk_page pages[MOST];
        int sb_fd = file_of("superblock", O_RDONLY), fd = file_of("table", O_RDWR);
        struct disk_superblock sb;
        uint32_t n = 0;

        assert_int_equal(pread(sb_fd, &sb, sizeof(sb), 0), sizeof(sb));
        close(sb_fd);
        assert_true(pread(fd, pages, sizeof(pages), 0) > 0);
        while (n < MOST && disk_page_valid(&pages[n], sb.uuid, n))
                n++;
        assert_true(n > 2 && n < MOST);
        change(pages, n);
        for (uint32_t i = 0; i < n; i++) {
                for (unsigned j = 0; j < pages[i].count; j++)
                        pages[i].entries[j].crc = disk_entry_crc(&pages[i].entries[j], sb.uuid);
                pages[i].position = i;
                pages[i].crc = disk_page_crc(&pages[i]);
        }
        assert_int_equal(pwrite(fd, pages, sizeof(pages[0]) * n, 0), sizeof(pages[0]) * n);
        close(fd);
}

static void turn_all_but_the_newest_round(struct disk_page *pages, uint32_t n)
{
        struct disk_page swap;

        /* The free part after the newest page must not have reached the first pages, whose contents
         * would rightly be dropped. */
        assert_true(n + pages[n - 1].safe <= pages[n - 1].ring_pages);
        for (uint32_t a = 0, b = n - 2; a < b; a++, b--) {
                swap = pages[a];
                pages[a] = pages[b];
                pages[b] = swap;
        }
        pages[n - 1].run_sequence = pages[n - 1].sequence; /* the other pages are of an earlier
                                                              run */
}

/* Puts each chunk in a page of its own, so that the number of pages does not depend on the
 * machine's speed. */
static void put_few(void)
{
        start_limit(64 * MIB);
        for (uint64_t i = 0; i < 30; i++)
                assert_int_equal(put(i, 16384), 0);
}

static void drop_few_and_settle(void)
{
        start_limit(64 * MIB);
        drop_every_third(30);
}

/* The tombstones precede the entries that they remove. */
static void a_drop_counts_wherever_the_ring_has_it(void **state)
{
        in_killed_process(put_few);
        in_killed_process(drop_few_and_settle);
        change_pages(turn_all_but_the_newest_round);
        start_limit(64 * MIB);
        for (uint64_t i = 0; i < 30; i++)
                assert_int_equal(get(i, i == 3 ? 20000 : 16384),
                                 i % 3 == 0 && i != 3 ? STORE_MISS : 0);
        stop();
}

static void use_up_sequences(struct disk_page *pages, uint32_t n)
{
        pages[0].entries[0].seq = (UINT64_C(1) << 52) - 1;
}

static void exceed_sequences(struct disk_page *pages, uint32_t n)
{
        pages[0].entries[0].seq = UINT64_C(1) << 52;
}

static void a_sequence_has_52_bits_and_no_more_are_given(void **state)
{
        in_killed_process(put_few);
        change_pages(exceed_sequences);
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 30), 29);
        stop();
        change_pages(use_up_sequences);
        expect_refused(-EOVERFLOW, "no sequence numbers are left");
}

static void table_is_bad_at(off_t offset)
{
        struct stat st;
        int fd = file_of("table", O_RDONLY);

        assert_int_equal(fstat(fd, &st), 0);
        close(fd);
        reads_of.bad = offset;
        __atomic_store_n(&reads_of.table, st.st_ino, __ATOMIC_RELEASE);
}

static void start_only(void)
{
        struct store_params params = params_of(64 * MIB);
        char error[512] = "";

        params.prewrite = false;
        if (try_open(&params, error) < 0)
                fail_msg("open: %s", error);
}

/* Stops as a kill does, with the superblock of startup. */
static void stop_as_killed(const struct disk_superblock *sb)
{
        int fd;

        stop();
        fd = file_of("superblock", O_RDWR);
        for (unsigned i = 0; i < DISK_SUPERBLOCKS; i++)
                assert_int_equal(pwrite(fd, sb, sizeof(*sb), i * DISK_PAGE), sizeof(*sb));
        close(fd);
}

/* However often a page cannot be read, and however the daemon ends, recovery uses a bounded number
 * of sequences: 2^32 startups are possible, where 4,096 were. */
static void starts_with_a_damaged_table_do_not_use_up_sequences(void **state)
{
        const unsigned starts = 100;
        struct disk_superblock first, sb;

        start_limit(64 * MIB);
        put_range(0, 300, 5000);
        stop();
        first = superblock();
        assert_true(first.seq_ceiling > 300 && first.seq_ceiling < 10000);
        table_is_bad_at(DISK_PAGE);
        for (unsigned i = 0; i < starts; i++) {
                start_only();
                sb = superblock();
                if (i % 2)
                        stop_as_killed(&sb);
                else
                        stop();
                assert_true(reads_of.failed > 0);
        }
        __atomic_store_n(&reads_of.table, 0, __ATOMIC_RELEASE);
        sb = superblock();
        assert_true(sb.seq_ceiling > first.seq_ceiling);
        assert_true((sb.seq_ceiling - first.seq_ceiling) / starts <= UINT64_C(1) << 20);
        assert_true((sb.page_ceiling - first.page_ceiling) / starts <= UINT64_C(1) << 20);
        /* When everything is readable, nothing is skipped. */
        start_limit(64 * MIB);
        stop();
        assert_true(superblock().seq_ceiling <= sb.seq_ceiling + 10);
}

static off_t newest_page(void)
{
        struct disk_page page;
        uint64_t sequence = 0;
        off_t newest = 0;
        int fd = file_of("table", O_RDONLY);

        for (off_t i = 0; pread(fd, &page, sizeof(page), i * DISK_PAGE) == sizeof(page); i++)
                if (page.magic == DISK_PAGE_MAGIC && page.sequence > sequence) {
                        sequence = page.sequence;
                        newest = i;
                }
        close(fd);
        return newest;
}

/* Writes of the file that cover this place are counted; 0: no file's. */
static struct {
        ino_t file;
        off_t at;
        unsigned met;
} writes_of;

ssize_t __real_pwrite64(int fd, const void *buf, size_t bytes, off_t offset);
ssize_t __wrap_pwrite64(int fd, const void *buf, size_t bytes, off_t offset);

ssize_t __wrap_pwrite64(int fd, const void *buf, size_t bytes, off_t offset)
{
        ino_t file = __atomic_load_n(&writes_of.file, __ATOMIC_RELAXED);
        struct stat st;

        if (file != 0 && fstat(fd, &st) == 0 && st.st_ino == file && offset <= writes_of.at &&
            writes_of.at < offset + (off_t)bytes)
                __atomic_add_fetch(&writes_of.met, 1, __ATOMIC_RELAXED);
        return __real_pwrite64(fd, buf, bytes, offset);
}

/* The pages may exist in the page cache only, after a failed sync of another process. */
static void the_newest_pages_are_written_again_after_a_kill(void **state)
{
        struct stat st;
        int fd;

        in_killed_process(put_some);
        fd = file_of("table", O_RDONLY);
        assert_int_equal(fstat(fd, &st), 0);
        close(fd);
        writes_of.at = newest_page() * DISK_PAGE;
        writes_of.met = 0;
        __atomic_store_n(&writes_of.file, st.st_ino, __ATOMIC_RELAXED);
        start_limit(64 * MIB);
        __atomic_store_n(&writes_of.file, 0, __ATOMIC_RELAXED);
        assert_int_equal(writes_of.met, 1);
        assert_int_equal(count_present(0, 300), 300);
        stop();
}

/* Sequences on an unreadable page are below those assigned later, so a later purge covers them. */
static void what_could_not_be_read_is_older_than_a_later_purge(void **state)
{
        struct disk_superblock sb;

        start_limit(64 * MIB);
        put_range(0, 300, 5000);
        sb = superblock();
        stop_as_killed(&sb);
        table_is_bad_at(newest_page() * DISK_PAGE);
        start_limit(64 * MIB);
        assert_true(reads_of.failed > 0);
        assert_true(purge(true) <= 300);
        stop();
        __atomic_store_n(&reads_of.table, 0, __ATOMIC_RELEASE);
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 300), 0);
        stop();
}

/* Returns the page of the table that has the key's entry. */
static off_t page_of(uint64_t n)
{
        struct key k = key_of(n);
        struct disk_page page;
        off_t found = -1;
        int fd = file_of("table", O_RDONLY);

        for (off_t i = 0; pread(fd, &page, sizeof(page), i * DISK_PAGE) == sizeof(page); i++)
                for (unsigned j = 0; j < page.count; j++)
                        if (memcmp(&page.entries[j].key, &k, sizeof(k)) == 0)
                                found = i;
        close(fd);
        assert_true(found >= 0);
        return found;
}

/* A later startup may read the page. A drop that was answered must cover its entries. */
static void a_drop_covers_entries_that_could_not_be_read(void **state)
{
        struct key k = key_of(5);

        start_limit(64 * MIB);
        put_range(0, 300, 5000);
        stop();
        table_is_bad_at(page_of(5) * DISK_PAGE);
        start_limit(64 * MIB);
        assert_true(reads_of.failed > 0);
        assert_false(present(5));
        store_forget(t.s, t.ns, &k, store_hash(t.s, t.ns, &k));
        settle();
        stop();
        __atomic_store_n(&reads_of.table, 0, __ATOMIC_RELEASE);
        start_limit(64 * MIB);
        assert_false(present(5));
        assert_true(count_present(0, 300) >= 300 - DISK_PAGE_ENTRIES);
        stop();
}

static void rewrite_superblocks(void (*change)(struct disk_superblock *sb), unsigned first,
                                unsigned n);

static void as_an_older_daemon(struct disk_superblock *sb)
{
        sb->generation++;
}

static void what_an_older_daemon_left_in_the_superblock_is_not_believed(void **state)
{
        start_limit(64 * MIB);
        put_range(0, 300, 5000);
        stop();
        rewrite_superblocks(as_an_older_daemon, 0, DISK_SUPERBLOCKS);
        table_is_bad_at(DISK_PAGE);
        start_only();
        __atomic_store_n(&reads_of.table, 0, __ATOMIC_RELEASE);
        assert_true(superblock().seq_ceiling > UINT64_C(1) << 40);
        stop();
}

/* The file whose syncs fail; 0: none do. */
static struct {
        ino_t file;
        unsigned failed;
} syncs_of;

int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);

int __wrap_fdatasync(int fd)
{
        ino_t file = __atomic_load_n(&syncs_of.file, __ATOMIC_RELAXED);
        struct stat st;

        if (file == 0 || fstat(fd, &st) < 0 || st.st_ino != file)
                return __real_fdatasync(fd);
        __atomic_add_fetch(&syncs_of.failed, 1, __ATOMIC_RELAXED);
        errno = EIO;
        return -1;
}

static void start_with_reserve(uint64_t sequences)
{
        struct store_params params = params_of(64 * MIB);

        params.prewrite = false;
        params.sequence_reserve = sequences;
        start(&params);
}

static void a_put_that_is_refused_takes_no_sequence(void **state)
{
        uint64_t before;

        start_limit(64 * MIB);
        put_range(0, 10, 5000);
        stop();
        before = superblock().seq_ceiling; /* exact after a clean stop */
        start_limit(64 * MIB);
        store_set_tenant_limit(t.s, 0, 1);
        for (uint64_t i = 0; i < 100; i++)
                assert_int_equal(submit_put(100 + i, 5000, false), STORE_TOO_LARGE);
        stop();
        assert_int_equal(superblock().seq_ceiling, before);
}

/* Each put uses a sequence. Without new ceilings, the volume would be bypassed meanwhile. */
static void ceilings_of_sequences_are_raised_while_it_runs(void **state)
{
        enum { RESERVED = 256, EACH = 8, PUTS = 80 * EACH };
        struct disk_superblock sb;

        start_with_reserve(RESERVED);
        assert_true(superblock().seq_ceiling <= 2 * RESERVED);
        for (unsigned i = 0; i < PUTS; i += EACH) {
                put_range(i, EACH, 500);
                settle(); /* a slow superblock may fall behind puts that do not wait for it */
        }
        sb = superblock();
        assert_true(sb.seq_ceiling > PUTS && sb.seq_ceiling <= PUTS + 2 * RESERVED);
        assert_true(sb.page_ceiling > PUTS / EACH);
        assert_false(stats().bypassed);
        /* A startup that does not see all sequences continues above them, so that a purge covers
         * the missed entries. */
        stop_as_killed(&sb);
        table_is_bad_at(10 * DISK_PAGE);
        start_with_reserve(RESERVED);
        assert_true(reads_of.failed > 0);
        assert_true(purge(true) <= PUTS);
        stop();
        __atomic_store_n(&reads_of.table, 0, __ATOMIC_RELEASE);
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, PUTS), 0);
        stop();
}

static void a_volume_that_cannot_raise_its_ceilings_is_bypassed_before_them(void **state)
{
        enum { RESERVED = 256 };
        struct stat st;
        uint64_t n = 0, ceiling, page_ceiling;
        int r, fd;

        start_with_reserve(RESERVED);
        ceiling = superblock().seq_ceiling;
        page_ceiling = superblock().page_ceiling;
        fd = file_of("superblock", O_RDONLY);
        assert_int_equal(fstat(fd, &st), 0);
        close(fd);
        __atomic_store_n(&syncs_of.failed, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&syncs_of.file, st.st_ino, __ATOMIC_RELAXED);
        while ((r = put(n, 500)) == 0)
                assert_true(++n < MIN(ceiling, page_ceiling));
        assert_int_equal(r, STORE_BYPASSED);
        assert_true(n > RESERVED / 4 && stats().bypassed);
        /* The sync is not repeated endlessly. */
        assert_in_range(__atomic_load_n(&syncs_of.failed, __ATOMIC_RELAXED), 1, 16);
        settle();
        __atomic_store_n(&syncs_of.file, 0, __ATOMIC_RELAXED);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, n), n);
        assert_int_equal(put(n, 500), 0);
        stop();
}

/* The table claims to be larger than that of any store with this limit. */
static void a_table_that_is_too_large_is_cut_and_not_allocated(void **state)
{
        struct stat st;
        int fd;

        start_limit(64 * MIB);
        put_range(0, 100, 5000);
        stop();
        fd = file_of("table", O_RDWR);
        assert_int_equal(ftruncate(fd, (off_t)1 << 40), 0);
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 100), 100);
        assert_int_equal(fstat(fd, &st), 0);
        close(fd);
        assert_true((uint64_t)st.st_size <= 64 * MIB / 8);
        assert_true(du() <= 64 * MIB);
        stop();
}

static void rewrite_superblocks(void (*change)(struct disk_superblock *sb), unsigned first,
                                unsigned n)
{
        int fd = file_of("superblock", O_RDWR);

        for (unsigned i = first; i < first + n; i++) {
                struct disk_superblock sb;

                assert_int_equal(pread(fd, &sb, sizeof(sb), i * DISK_PAGE), sizeof(sb));
                change(&sb);
                sb.crc = disk_superblock_crc(&sb);
                assert_int_equal(pwrite(fd, &sb, sizeof(sb), i * DISK_PAGE), sizeof(sb));
        }
        close(fd);
}

static void set_incompat(struct disk_superblock *sb)
{
        sb->incompat = UINT64_C(1) << 40;
}

static void set_ro_compat(struct disk_superblock *sb)
{
        sb->incompat = 0;
        sb->ro_compat = 4;
}

static void set_compat(struct disk_superblock *sb)
{
        sb->ro_compat = 0;
        sb->compat = 4;
}

static void set_version(struct disk_superblock *sb)
{
        sb->version = 2;
}

static void an_unknown_format_is_refused(void **state)
{
        start_limit(64 * MIB);
        put_range(0, 20, 4096);
        stop();
        rewrite_superblocks(set_incompat, 0, 4);
        expect_refused(-EPROTO, "incompat 0x10000000000");
        rewrite_superblocks(set_ro_compat, 0, 4);
        expect_refused(-EPROTO, "ro_compat 0x4");
        rewrite_superblocks(set_compat, 0, 4);
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 20), 20);
        stop();
        rewrite_superblocks(set_version, 0, 4);
        expect_refused(-EPROTO, "version 2");
}

static void one_superblock_of_four_is_enough(void **state)
{
        for (unsigned keep = 0; keep < 4; keep++) {
                start_limit(64 * MIB);
                assert_int_equal(count_present(0, 20), keep == 0 ? 0 : 20);
                if (keep == 0)
                        put_range(0, 20, 4096);
                stop();
                for (unsigned i = 0; i < 4; i++)
                        if (i != keep)
                                flip_byte("superblock", i * 4096 + 100 * i);
        }
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 20), 20);
        stop();
        for (unsigned i = 0; i < 4; i++)
                flip_byte("superblock", i * 4096 + 1000);
        expect_refused(-EPROTO, "superblock");
}

static void a_missing_segment_costs_its_own_chunks(void **state)
{
        char path[PATH_MAX + 64];
        uint64_t there;

        start_limit(32 * MIB);
        put_range(0, 500, 16384);
        stop();
        snprintf(path, sizeof(path), "%s/segment-0002", t.dir);
        assert_int_equal(unlink(path), 0);
        start_limit(32 * MIB);
        there = count_present(0, 500);
        assert_true(there >= 500 - 64 && there < 500);
        for (uint64_t i = 0; i < 500; i++)
                if (present(i))
                        assert_int_equal(get(i, 16384), 0);
        put_range(1000, 2000, 16384);
        assert_true(du() <= 32 * MIB);
        assert_int_equal(get(2999, 16384), 0);
        stop();
        start_limit(32 * MIB);
        assert_int_equal(get(2999, 16384), 0);
        stop();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(restart_keeps_everything),
                TEST(a_kill_loses_nothing_written),
                TEST(kill_after_kill_never_gives_a_wrong_byte),
                TEST(a_kill_at_any_moment_loses_nothing_answered),
                TEST(a_drop_survives_a_kill),
                TEST(a_drop_survives_the_ring_going_round),
                TEST(a_flipped_bit_is_a_miss_and_the_chunk_is_dropped),
                TEST(pages_of_an_earlier_run_that_were_cut_off_are_reported),
                TEST(a_damaged_table_page_costs_its_own_entries),
                TEST(a_table_page_that_cannot_be_read_costs_a_few_reads),
                TEST(a_table_of_garbage_is_an_empty_table),
                TEST(one_copy_of_the_namespaces_is_enough),
                TEST(without_namespaces_nothing_is_anybodys),
                TEST(a_drop_counts_wherever_the_ring_has_it),
                TEST(a_sequence_has_52_bits_and_no_more_are_given),
                TEST(a_put_that_is_refused_takes_no_sequence),
                TEST(ceilings_of_sequences_are_raised_while_it_runs),
                TEST(a_volume_that_cannot_raise_its_ceilings_is_bypassed_before_them),
                TEST(what_could_not_be_read_is_older_than_a_later_purge),
                TEST(a_drop_covers_entries_that_could_not_be_read),
                TEST(the_newest_pages_are_written_again_after_a_kill),
                TEST(what_an_older_daemon_left_in_the_superblock_is_not_believed),
                TEST(a_table_that_is_too_large_is_cut_and_not_allocated),
                TEST(an_unknown_format_is_refused),
                TEST(one_superblock_of_four_is_enough),
                TEST(a_missing_segment_costs_its_own_chunks),
        };

        /* Long ones, once. */
        static const struct CMUnitTest long_tests[] = {
                TEST(damage_at_random_gives_misses_and_never_a_wrong_byte),
                TEST(starts_with_a_damaged_table_do_not_use_up_sequences),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), long_tests,
                               ARRAY_SIZE(long_tests));
}
