/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a daemon leaves to the next: the saved chunks of a pool are found in another one over
 * the same bytes once they are verified. Damage to the map affects only what is damaged, and slots
 * that clients may still read are not reused. The store is a substitute. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <event2/event.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cache/cache.h"
#include "checked.h"
#include "cleanup.h"
#include "io/io.h"
#include "keep/keep.h"
#include "store/store.h"

enum { POOL = 32 << 20, LENGTH = 100000, SLOT = 25 * 4096, CHUNKS = 24, NAMESPACE = 7 };

static struct {
        struct pool *old, *new;
        struct kio *io;
        struct event_base *base;
        struct keep *keep;
        struct store_chunk stored; /* chunk of every key; length 0: the store has none */
        unsigned more_room, ended;
} t;

/* --- the store --- */

const struct store_namespace *__wrap_store_namespace_get(const struct store *s, uint32_t id);
const struct store_namespace *__wrap_store_namespace_get(const struct store *s, uint32_t id)
{
        static const struct store_namespace ns = { .id = NAMESPACE };

        return id == NAMESPACE ? &ns : NULL;
}

uint64_t __wrap_store_hash(const struct store *s, uint32_t namespace_id, const struct key *key);
uint64_t __wrap_store_hash(const struct store *s, uint32_t namespace_id, const struct key *key)
{
        uint64_t hash;

        memcpy(&hash, key, sizeof(hash));
        return hash * 31 + namespace_id;
}

int __wrap_store_find(const struct store *s, uint32_t namespace_id, const struct key *key,
                      uint64_t hash, struct store_ref *ret_ref, struct store_chunk *ret_chunk);
int __wrap_store_find(const struct store *s, uint32_t namespace_id, const struct key *key,
                      uint64_t hash, struct store_ref *ret_ref, struct store_chunk *ret_chunk)
{
        if (t.stored.length == 0)
                return STORE_MISS;
        *ret_chunk = t.stored;
        *ret_ref = (struct store_ref){ .index = 1 };
        return 0;
}

/* --- pools --- */

static struct key key_of(unsigned i)
{
        struct key key = { 0 };

        memcpy(&key, &i, sizeof(i));
        return key;
}

static uint32_t find(const struct pool *p, unsigned i)
{
        struct key key = key_of(i);

        return pool_find(p, NAMESPACE, &key, __wrap_store_hash(NULL, NAMESPACE, &key));
}

static void open_slabs(struct pool *p)
{
        while (pool_next_slab(p) >= 0)
                assert_int_equal(pool_open_slab(p, 0), 0);
}

/* Stores a chunk, and returns it pinned. */
static uint32_t put(struct pool *p, unsigned i, char byte)
{
        struct key key = key_of(i);
        uint32_t chunk;

        assert_int_equal(pool_acquire(p, NAMESPACE, &key, __wrap_store_hash(NULL, NAMESPACE, &key),
                                      LENGTH, 0, &chunk),
                         0);
        memset(pool_at(p, chunk), byte, LENGTH);
        pool_commit(p, chunk, kio_crc32c(pool_at(p, chunk), LENGTH));
        return chunk;
}

static void start_io(void)
{
        struct kio_params io = { .backend = "posix",
                                 .workers = 1,
                                 .depth = 8,
                                 .posix_threads = 2,
                                 .pool = pool_base(t.new),
                                 .pool_bytes = pool_bytes(t.new),
                                 .piece_bytes = pool_slab_bytes(t.new),
                                 .probe_fd = -1 };
        char error[256] = "";

        assert_int_equal(kio_start(&t.io, &io, error), 0);
}

static void on_more_room(void *userdata, unsigned tenant)
{
        t.more_room++;
}

static void on_ended(void *userdata, const char *name, int fd)
{
        t.ended++;
        close(fd);
}

static struct keep *keep_of(struct pool *p, int kept)
{
        struct keep_tenant tenant = { .name = "default", .pool = p, .kept = kept };
        struct keep_params params = { .base = t.base,
                                      .io = t.io,
                                      .tenants = &tenant,
                                      .n_tenants = 1,
                                      .more_room = on_more_room,
                                      .ended = on_ended };
        struct keep *k;

        assert_int_equal(keep_new(&k, &params), 0);
        return k;
}

static int set_up(void **state)
{
        memset(&t, 0, sizeof(t));
        t.base = event_base_new();
        assert_int_equal(pool_new(&t.old, POOL, "lru"), 0);
        assert_int_equal(pool_new(&t.new, POOL, "lru"), 0);
        open_slabs(t.old);
        pool_declare(t.old, LENGTH);
        for (unsigned i = 0; i < CHUNKS; i++)
                (void)pool_unpin(t.old, put(t.old, i, (char)('a' + i)));
        start_io();
        return 0;
}

static int tear_down(void **state)
{
        t.io = kio_stop(t.io);
        t.keep = keep_free(t.keep);
        pool_free(t.old);
        pool_free(t.new);
        event_base_free(t.base);
        return 0;
}

static const char files[1][KEEP_NAME_BYTES] = { "kept-pool-1" };
static const uint8_t number[KEEP_NUMBER_BYTES] = "0123456789abcde";

/* Saves the map of the old pool, whose bytes the new one then has. */
static int save(struct keep *k)
{
        static const struct keep_reader readers[2] = {
                { .uid = 1, .gid = 2, .n_groups = KEEP_MAX_GROUPS, .groups = { 3 } },
                { .uid = UINT32_MAX },
        };
        const struct keep_handover handover = { .files = files,
                                                .number = number,
                                                .rights = 4,
                                                .readers = readers,
                                                .n_readers = ARRAY_SIZE(readers),
                                                .many_readers = { true } };
        uint64_t chunks;
        int fd;

        assert_int_equal(keep_save(k, &handover, &fd, &chunks), 0);
        memcpy(pool_base(t.new), pool_base(t.old), pool_bytes(t.old));
        return fd;
}

static bool has_socket(void *userdata, const char *name)
{
        return userdata != NULL;
}

static int take_socket(void *userdata, const char *name)
{
        return dup(*(int *)userdata);
}

static struct keep_file *read_map(int fd)
{
        char error[KEEP_ERROR_BYTES];
        struct keep_file *f;

        assert_int_equal(keep_file_read(&f, fd, error), 0);
        return f;
}

static void adopt(int map, int *socket)
{
        _cleanup_(closep) int fd = map;
        char error[KEEP_ERROR_BYTES] = "";
        struct keep_file *f = read_map(fd);

        if (keep_file_find(f, "default", pool_bytes(t.new), pool_slab_bytes(t.new), has_socket,
                           socket, error) != 0)
                fail_msg("%s", error);
        t.keep = keep_of(t.new, 0);
        assert_int_equal(keep_adopt(t.keep, f, true, take_socket, socket), 0);
        keep_file_free(f);
}

static struct keep_stats stats(void)
{
        struct keep_stats s;

        keep_get_stats(t.keep, &s);
        return s;
}

static void verify(void)
{
        while (stats().pending > 0) {
                (void)keep_iterate(t.keep);
                kio_wait(t.io, 100);
        }
}

static void hand_over(void)
{
        struct keep *k = keep_of(t.old, -1);
        int fd = save(k);

        keep_free(k);
        adopt(fd, NULL);
}

/* --- tests --- */

static void what_is_saved_is_found_once_it_is_verified(void **state)
{
        hand_over();
        assert_int_equal(stats().mapped, CHUNKS);
        assert_int_equal(stats().pending, CHUNKS);
        for (unsigned i = 0; i < CHUNKS; i++)
                assert_int_equal(find(t.new, i), POOL_NONE);
        verify();
        assert_int_equal(stats().verified, CHUNKS);
        assert_int_equal(stats().verified_bytes, CHUNKS * LENGTH);
        for (unsigned i = 0; i < CHUNKS; i++) {
                uint32_t old = find(t.old, i), new = find(t.new, i);

                assert_int_not_equal(new, POOL_NONE);
                assert_int_equal(pool_offset(t.new, new), pool_offset(t.old, old));
                assert_int_equal(*(char *)pool_at(t.new, new), 'a' + i);
        }
        /* The memory is already populated, but populating still visits it. */
        open_slabs(t.new);
        assert_int_equal(pool_next_slab(t.new), -1);
        assert_int_equal(pool_open_slabs(t.new), pool_open_slabs(t.old));
}

static void bytes_that_have_changed_are_dropped(void **state)
{
        struct keep *k = keep_of(t.old, -1);
        int fd = save(k);

        ((char *)pool_base(t.new))[pool_offset(t.old, find(t.old, 3)) + LENGTH - 1] ^= 1;
        keep_free(k);
        adopt(fd, NULL);
        verify();
        assert_int_equal(stats().verified, CHUNKS - 1);
        assert_int_equal(stats().refused[KEEP_DAMAGED], 1);
        assert_int_equal(find(t.new, 3), POOL_NONE);
}

static void what_the_store_knows_better_is_not_taken(void **state)
{
        t.stored = (struct store_chunk){ .length = LENGTH, .crc = 1 };
        hand_over();
        assert_int_equal(stats().refused[KEEP_CHANGED], CHUNKS);
        assert_int_equal(stats().pending, 0);
}

static void on_purged(struct pool_purge *purge)
{
}

static void what_comes_before_it_is_verified_wins(void **state)
{
        struct pool_purge purge = { .namespace_id = NAMESPACE, .complete = on_purged };
        struct key key = key_of(1);
        uint32_t chunk;

        hand_over();
        /* The key is put, or read from disk, before its kept chunk is verified. */
        chunk = put(t.new, 0, 'X');
        assert_int_equal(find(t.new, 0), chunk);
        /* The key is evicted on request: it is known, although it is not found. */
        chunk = pool_find_any(t.new, NAMESPACE, &key, __wrap_store_hash(NULL, NAMESPACE, &key));
        assert_int_not_equal(chunk, POOL_NONE);
        pool_drop(t.new, chunk);
        /* The key is put to the disk without the pool. A chunk that is already verified is not
         * dropped. */
        key = key_of(2);
        pool_drop_unverified(t.new, NAMESPACE, &key, __wrap_store_hash(NULL, NAMESPACE, &key));
        key = key_of(0);
        pool_drop_unverified(t.new, NAMESPACE, &key, __wrap_store_hash(NULL, NAMESPACE, &key));
        key = key_of(9999);
        pool_drop_unverified(t.new, NAMESPACE, &key, __wrap_store_hash(NULL, NAMESPACE, &key));
        verify();
        assert_int_equal(stats().refused[KEEP_REPLACED], 3);
        assert_int_equal(stats().verified, CHUNKS - 3);
        assert_int_equal(find(t.new, 1), POOL_NONE);
        assert_int_equal(find(t.new, 2), POOL_NONE);
        assert_int_equal(*(char *)pool_at(t.new, find(t.new, 0)), 'X');

        /* A purge arrives, also while a worker is reading. */
        t.keep = keep_free(t.keep);
        pool_free(t.new);
        assert_int_equal(pool_new(&t.new, POOL, "lru"), 0);
        hand_over();
        (void)keep_iterate(t.keep);
        pool_purge(t.new, &purge);
        verify();
        while (pool_is_sweeping(t.new))
                (void)pool_sweep(t.new);
        assert_int_equal(stats().verified, 0);
        assert_int_equal(stats().refused[KEEP_REPLACED], CHUNKS);
        for (unsigned i = 0; i < CHUNKS; i++)
                assert_int_equal(find(t.new, i), POOL_NONE);
}

static void unverified_chunks_are_evicted_like_others(void **state)
{
        struct pool_stats pool;

        hand_over();
        open_slabs(t.new);
        for (unsigned i = 0; i < 2 * POOL / SLOT; i++)
                (void)pool_unpin(t.new, put(t.new, 1000 + i, 'y'));
        verify();
        assert_int_equal(stats().refused[KEEP_REPLACED], CHUNKS);
        pool_get_stats(t.new, &pool);
        assert_int_equal(pool.unverified, 0);
}

static void what_was_used_last_is_evicted_last(void **state)
{
        struct keep_stats s;

        pool_touch(t.old, find(t.old, 0), pool_chunk(t.old, find(t.old, 0))->generation, 0);
        hand_over();
        verify();
        open_slabs(t.new);
        for (unsigned i = 0; find(t.new, 1) != POOL_NONE; i++)
                (void)pool_unpin(t.new, put(t.new, 1000 + i, 'y'));
        assert_int_not_equal(find(t.new, 0), POOL_NONE);
        keep_get_stats(t.keep, &s);
        assert_int_equal(s.verified, CHUNKS);
}

/* Keeps a cached chunk, and one that was evicted while leased. */
static void what_a_client_may_read_stays_until_it_has_closed(void **state)
{
        struct keep *k = keep_of(t.old, -1);
        uint32_t cached = find(t.old, 0), evicted = find(t.old, 1), slot, slab;
        uint64_t at[2] = { pool_offset(t.old, cached), pool_offset(t.old, evicted) };
        int ends[2], fd;

        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        slab = pool_chunk(t.old, evicted)->slab;
        slot = pool_chunk(t.old, evicted)->slot;
        assert_int_equal(keep_hold(k, 0, ends[0]), 0);
        assert_int_equal(keep_hold_chunk(k, cached), 0);
        assert_int_equal(keep_hold_chunk(k, evicted), 0);
        pool_drop(t.old, evicted);
        fd = save(k);
        keep_free(k);
        assert_int_equal(shutdown(ends[0], SHUT_WR), 0);
        adopt(fd, &ends[0]);
        assert_int_equal(stats().holders, 1);
        assert_int_equal(stats().held_slots, 2);
        assert_int_not_equal(pool_at_slot(t.new, slab, slot), POOL_NONE);
        assert_int_equal(pool_chunk(t.new, pool_at_slot(t.new, slab, slot))->leases, 1);
        verify();
        assert_int_equal(find(t.new, 1), POOL_NONE);
        open_slabs(t.new);
        for (unsigned i = 0; i < 2 * POOL / SLOT; i++)
                (void)pool_unpin(t.new, put(t.new, 1000 + i, 'y'));
        assert_int_equal(((char *)pool_base(t.new))[at[0]], 'a');
        assert_int_equal(((char *)pool_base(t.new))[at[1]], 'b');

        assert_int_equal(event_base_loop(t.base, EVLOOP_NONBLOCK), 0);
        assert_int_equal(t.ended, 0);
        close(ends[1]);
        assert_int_equal(event_base_loop(t.base, EVLOOP_NONBLOCK), 0);
        (void)keep_iterate(t.keep);
        assert_int_equal(t.ended, 1);
        assert_int_equal(stats().held_slots, 0);
        assert_int_equal(pool_at_slot(t.new, slab, slot), POOL_NONE);
        close(ends[0]);
}

static void leases_of_a_kept_client_end_in_steps(void **state)
{
        enum { LEASES = 5000, MOST = 1024 };
        struct keep *k = keep_of(t.old, -1);
        int ends[2], fd;

        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        assert_int_equal(keep_hold(k, 0, ends[0]), 0);
        for (unsigned i = 0; i < LEASES; i++)
                assert_int_equal(keep_hold_chunk(k, find(t.old, i % CHUNKS)), 0);
        fd = save(k);
        keep_free(k);
        assert_int_equal(shutdown(ends[0], SHUT_WR), 0);
        adopt(fd, &ends[0]);
        verify();
        close(ends[1]);
        assert_int_equal(event_base_loop(t.base, EVLOOP_NONBLOCK), 0);
        for (uint64_t left = LEASES; left > 0;) {
                bool more;

                assert_int_equal(t.ended, 0);
                more = keep_iterate(t.keep);
                assert_int_equal(more, stats().held_slots > 0);
                assert_in_range(left - stats().held_slots, 1, MOST);
                left = stats().held_slots;
        }
        assert_int_equal(t.ended, 1);
        assert_true(t.more_room > 0);
        assert_int_equal(stats().holders, 0);
        for (unsigned i = 0; i < CHUNKS; i++)
                assert_int_equal(pool_chunk(t.new, find(t.new, i))->leases, 0);
        close(ends[0]);
}

static void a_map_is_used_once(void **state)
{
        struct keep *k = keep_of(t.old, -1);
        char error[KEEP_ERROR_BYTES] = "";
        int fd = save(k);
        struct keep_file *f = read_map(fd), *again;

        assert_true(keep_file_read(&again, fd, error) < 0);
        assert_non_null(strstr(error, "used already"));
        keep_file_free(f);
        keep_free(k);
        close(fd);
}

static void what_does_not_fit_is_not_taken(void **state)
{
        struct keep *k = keep_of(t.old, -1);
        uint64_t bytes = pool_bytes(t.new), slab = pool_slab_bytes(t.new);
        char error[KEEP_ERROR_BYTES] = "";
        struct keep_file *f;
        int fd;

        assert_int_equal(keep_hold(k, 0, STDIN_FILENO), 0);
        assert_int_equal(keep_hold_chunk(k, find(t.old, 0)), 0);
        fd = save(k);
        f = read_map(fd);
        assert_int_equal(keep_file_find(f, "default", bytes, slab, has_socket, &fd, error), 0);
        assert_int_equal(keep_file_find(f, "default", bytes, slab, has_socket, NULL, error), -1);
        assert_non_null(strstr(error, "socket"));
        assert_int_equal(keep_file_find(f, "other", bytes, slab, has_socket, &fd, error), -1);
        assert_int_equal(keep_file_find(f, "default", 2 * bytes, slab, has_socket, &fd, error), -1);
        assert_non_null(strstr(error, "size"));
        ((struct keep_slot *)(uintptr_t)f->map.holders[0]->slots)->slot = UINT32_MAX;
        assert_int_equal(keep_file_find(f, "default", bytes, slab, has_socket, &fd, error), -1);
        assert_non_null(strstr(error, "leases is damaged"));
        ((struct keep_pool *)(uintptr_t)f->map.pools[0])->slot_bytes[0] = UINT32_MAX;
        assert_int_equal(keep_file_find(f, "default", bytes, slab, has_socket, &fd, error), -1);
        keep_file_free(f);
        keep_free(k);
        close(fd);
}

/* Flips every bit: in the index it invalidates the map, in a chunk only that chunk. A map truncated
 * to any length is invalid. */
static void no_bit_of_a_map_can_change(void **state)
{
        struct keep *k = keep_of(t.old, -1);
        int fd = save(k);
        size_t bytes = (size_t)lseek(fd, 0, SEEK_END);
        char *map = malloc(bytes), *cut;
        const struct keep_head *head = (const void *)map;
        struct keep_map parts;

        assert_int_equal(pread(fd, map, bytes, 0), bytes);
        assert_null(keep_check(map, bytes, &parts));
        for (size_t bit = 0; bit < 8 * bytes; bit++) {
                size_t index = head->index_bytes;
                unsigned good = 0;
                const char *wrong;

                map[bit / 8] ^= (char)(1 << bit % 8);
                wrong = keep_check(map, bytes, &parts);
                assert_true((wrong != NULL) == (bit / 8 < index));
                for (unsigned i = 0; !wrong && i < CHUNKS; i++)
                        good += parts.chunks[0][i].crc ==
                                keep_chunk_crc(parts.head, &parts.chunks[0][i], i);
                assert_true(wrong || good == CHUNKS - 1);
                map[bit / 8] ^= (char)(1 << bit % 8);
        }
        for (size_t length = 0; length < bytes; length++) {
                cut = malloc(length + 1); /* a separate allocation, so that reads beyond its end
                                             are detected */
                memcpy(cut, map, length);
                assert_non_null(keep_check(cut, length, &parts));
                free(cut);
        }
        free(map);
        keep_free(k);
        close(fd);
}

static void a_map_has_the_readers_of_each_pool(void **state)
{
        struct keep *k = keep_of(t.old, -1);
        int fd = save(k);
        struct keep_file *f = read_map(fd);
        struct keep_head *head = f->bytes;
        struct keep_reader *readers = (void *)(uintptr_t)f->map.readers;
        struct keep_map map;

        assert_int_equal(head->n_readers, 2);
        assert_int_equal(head->rights, 4);
        assert_int_equal(f->map.pools[0]->flags, KEEP_POOL_MANY_READERS);
        assert_int_equal(readers[0].uid, 1);
        assert_int_equal(readers[0].groups[0], 3);
        assert_int_equal(readers[1].uid, UINT32_MAX);

        readers[1].pool = 1;
        keep_seal(head, head->bytes, head->index_bytes);
        assert_string_equal(keep_check(f->bytes, head->bytes, &map),
                            "the credentials of a client are malformed");
        readers[1] = (struct keep_reader){ .n_groups = KEEP_MAX_GROUPS + 1 };
        keep_seal(head, head->bytes, head->index_bytes);
        assert_non_null(keep_check(f->bytes, head->bytes, &map));
        readers[1].n_groups = 0;
        for (uint32_t n = 0; n < 5; n++) {
                head->n_readers = n;
                keep_seal(head, head->bytes, head->index_bytes);
                assert_true((keep_check(f->bytes, head->bytes, &map) == NULL) == (n == 2));
        }
        head->n_readers = UINT32_MAX;
        keep_seal(head, head->bytes, head->index_bytes);
        assert_string_equal(keep_check(f->bytes, head->bytes, &map), "the map has too many parts");
        keep_file_free(f);
        keep_free(k);
        close(fd);
}

static void a_number_is_there_once(void **state)
{
        char folder[] = "/tmp/kvcache-keep-XXXXXX";
        uint8_t got[KEEP_NUMBER_BYTES];

        assert_non_null(mkdtemp(folder));
        assert_int_equal(keep_number_take(folder, got), -ENOENT);
        assert_int_equal(keep_number_put(folder, number), 0);
        assert_int_equal(keep_number_put(folder, number), 0);
        assert_int_equal(keep_number_take(folder, got), 0);
        assert_memory_equal(got, number, sizeof(got));
        assert_int_equal(keep_number_take(folder, got), -ENOENT);
        assert_int_equal(rmdir(folder), 0);
        assert_int_equal(keep_number_put(folder, number), -ENOENT);
}

int main(void)
{
#define KEEP_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
        const struct CMUnitTest tests[] = {
                KEEP_TEST(what_is_saved_is_found_once_it_is_verified),
                KEEP_TEST(bytes_that_have_changed_are_dropped),
                KEEP_TEST(what_the_store_knows_better_is_not_taken),
                KEEP_TEST(what_comes_before_it_is_verified_wins),
                KEEP_TEST(unverified_chunks_are_evicted_like_others),
                KEEP_TEST(what_was_used_last_is_evicted_last),
                KEEP_TEST(what_a_client_may_read_stays_until_it_has_closed),
                KEEP_TEST(leases_of_a_kept_client_end_in_steps),
                KEEP_TEST(a_map_is_used_once),
                KEEP_TEST(what_does_not_fit_is_not_taken),
                KEEP_TEST(no_bit_of_a_map_can_change),
                KEEP_TEST(a_map_has_the_readers_of_each_pool),
                KEEP_TEST(a_number_is_there_once),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
