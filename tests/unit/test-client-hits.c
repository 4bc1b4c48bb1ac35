/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache and the pool index: a get is answered from the index only if each chunk is still the
 * requested one after it is held (--wrap=holds_take changes the index at that moment), whatever the
 * index contains. The test makes the index with proto/pool-index.h; a fake daemon has the chunks
 * and counts requests. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "../lib/rig.h"
#include "checked.h"
#include "lib/holds.h"

enum {
        LENGTH = 5000,
        RECORDS = 4,
        INDEX_BYTES = 2 * 4096,
        TAG = 77,
        ALLOWANCE = 1 << 20,
        WAIT_MS = 60000
};

static struct index {
        struct pool_index_header *header;
        struct pool_index_bucket *bucket;
        struct pool_index_record *records;
        struct pool_page *page;
        int fd, page_fd;
} own;

/* --- the moment in which a chunk is held --- */

static void (*at_hold)(void); /* NULL: nothing happens then */

bool __wrap_holds_take(struct hits *h, uint32_t record, uint32_t length, uint32_t *ret);
bool __real_holds_take(struct hits *h, uint32_t record, uint32_t length, uint32_t *ret);
bool __wrap_holds_take(struct hits *h, uint32_t record, uint32_t length, uint32_t *ret)
{
        bool r = __real_holds_take(h, record, length, ret);

        if (at_hold)
                at_hold();
        return r;
}

/* --- the daemon's side --- */

static void *map_sealed(const char *name, size_t bytes, int seals, int *ret_fd)
{
        void *p;

        *ret_fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        assert_int_equal(ftruncate(*ret_fd, (off_t)bytes), 0);
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *ret_fd, 0);
        assert_ptr_not_equal(p, MAP_FAILED);
        assert_int_equal(fcntl(*ret_fd, F_ADD_SEALS, seals), 0);
        return p;
}

static void make_index(void)
{
        uint8_t *p = map_sealed("index", INDEX_BYTES,
                                F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE,
                                &own.fd);

        own.header = (struct pool_index_header *)p;
        own.bucket = (struct pool_index_bucket *)(p + POOL_INDEX_HEADER_BYTES);
        own.records = (struct pool_index_record *)(own.bucket + 1);
        *own.header = (struct pool_index_header){ .magic = POOL_INDEX_MAGIC,
                                                  .version = POOL_INDEX_VERSION,
                                                  .header_bytes = POOL_INDEX_HEADER_BYTES,
                                                  .bytes = INDEX_BYTES,
                                                  .n_buckets = 1,
                                                  .n_records = RECORDS,
                                                  .secret = { { 5, 6 } },
                                                  .state = LOOKUP_LIVE };
        own.page = map_sealed("page", POOL_PAGE_BYTES, F_SEAL_SEAL | F_SEAL_SHRINK, &own.page_fd);
        own.page->allowance = ALLOWANCE;
        own.page->tags[0] = TAG;
}

/* Enters the chunk of key number `n`, which is at `offset` of the pool. */
static void enter(uint32_t record, uint64_t n, uint64_t offset, uint32_t length)
{
        struct kvcache_key key = rig_key(n);
        struct key k;

        memcpy(&k, &key, sizeof(k));
        own.records[record] = (struct pool_index_record){ .key = k,
                                                          .tag = TAG,
                                                          .offset = offset,
                                                          .length = length,
                                                          .generation = 1,
                                                          .serial = 1 };
        own.bucket->words[record] =
                pool_index_word(pool_index_hash(&own.header->secret, TAG, &k), record);
}

/* --- the client's side --- */

static int setup(void **state)
{
        struct wire_reply reply = { .status = WIRE_OK, .value64 = INDEX_BYTES };
        struct kvcache_options o = { .size = sizeof(o), .connect_timeout_ms = WAIT_MS };
        struct kvcache_namespace_options ns = { .size = sizeof(ns),
                                                .name = "ns",
                                                .fingerprint = "" };
        uint8_t data[LENGTH];
        struct kvcache_result r;
        struct rig *f;

        at_hold = NULL;
        if (rig_setup(state) != 0)
                return -1;
        make_index();
        f = *state;
        f->d = fake_daemon_start(f->path, NULL);
        o.socket_path = f->path;
        if (kvcache_connect(&f->kv, &o, NULL, 0) != 0 ||
            kvcache_namespace_open(f->kv, &ns, &f->ns) != 0)
                return -1;
        for (uint32_t n = 1; n <= 2; n++) {
                struct kvcache_key k = rig_key(n);

                rig_fill(data, LENGTH, n);
                assert_int_equal(kvcache_put(f->kv, f->ns, &k, data, LENGTH, KVCACHE_WRITTEN),
                                 KVCACHE_OK);
                assert_int_equal(kvcache_get_map(f->kv, f->ns, &k, &r), KVCACHE_OK);
                enter(n - 1, n, (uint64_t)((const uint8_t *)r.data - f->kv->conn->pool), LENGTH);
                assert_int_equal(kvcache_release(f->kv, &r.lease, 1), 0);
        }
        holds_map(f->kv, &reply, own.fd, own.page_fd);
        close(own.fd);
        close(own.page_fd);
        return f->kv->conn->hits.page ? 0 : -1;
}

static int teardown(void **state)
{
        munmap(own.header, INDEX_BYTES);
        munmap(own.page, POOL_PAGE_BYTES);
        return rig_teardown(state);
}

static uint64_t held_places(void)
{
        uint64_t n = 0;

        for (unsigned i = 0; i < POOL_PAGE_BUCKETS; i++)
                for (unsigned k = 0; k < POOL_PAGE_WAYS; k++)
                        n += own.page->holds[i][k] != 0;
        return n;
}

/* Gets keys 1 and 2 in place. Returns how many of them the index answered. */
static uint64_t get_both(struct rig *f, struct kvcache_result results[static 2])
{
        struct kvcache_key keys[] = { rig_key(1), rig_key(2) };
        uint64_t before = f->kv->gets_local;
        struct kvcache_request request;
        struct kvcache_completion c;

        kvcache_prep_get(&request, f->ns, keys, 2, results);
        assert_int_equal(kvcache_submit(f->kv, &request), 0);
        assert_int_equal(kvcache_reap(f->kv, &c, 1, WAIT_MS), 1);
        assert_int_equal(c.error, 0);
        return f->kv->gets_local - before;
}

/* Checks the bytes of both chunks, whichever side answered, releases them, and checks that nothing
 * is held then. */
static void check_and_release(struct rig *f, const struct kvcache_result results[static 2])
{
        for (unsigned i = 0; i < 2; i++) {
                assert_int_equal(results[i].status, KVCACHE_OK);
                assert_int_equal(results[i].length, LENGTH);
                assert_true(rig_filled(results[i].data, LENGTH, i + 1));
                assert_int_equal(kvcache_release(f->kv, &results[i].lease, 1), 0);
        }
        assert_int_equal(held_places(), 0);
}

static void chunks_of_the_index_are_held_until_they_are_released(void **state)
{
        struct rig *f = *state;
        struct kvcache_result results[2] = { 0 };

        assert_int_equal(get_both(f, results), 2);
        assert_int_equal(held_places(), 2);
        check_and_release(f, results);
        assert_int_equal(own.page->counts[0].keys, 2);
        assert_int_equal(own.page->counts[0].mapped_bytes, 2 * LENGTH);
}

static void evict_first(void)
{
        own.records[0].serial = 2;
}

static void replace_first(void)
{
        own.records[0].key = own.records[1].key;
        own.records[0].serial = 3;
}

static void lengthen_first(void)
{
        own.records[0].length = LENGTH + 1;
        own.records[0].serial = 3;
}

static void supersede(void)
{
        own.header->state = LOOKUP_SUPERSEDED;
}

static void take_the_namespace_away(void)
{
        own.page->tags[0] = 0;
}

static void a_chunk_that_changes_while_it_is_held_is_asked_of_the_daemon(void **state)
{
        static void (*const changes[])(void) = { evict_first, replace_first, lengthen_first,
                                                 supersede, take_the_namespace_away };
        struct rig *f = *state;
        struct pool_index_record before = own.records[0];

        for (unsigned i = 0; i < ARRAY_SIZE(changes); i++) {
                struct kvcache_result results[2] = { 0 };

                at_hold = changes[i];
                assert_int_equal(get_both(f, results), 0);
                at_hold = NULL;
                check_and_release(f, results);
                own.records[0] = before;
                own.header->state = LOOKUP_LIVE;
                own.page->tags[0] = TAG;
                assert_int_equal(get_both(f, results), 2);
                check_and_release(f, results);
        }
}

static void a_record_that_lies_about_its_place_is_not_believed(void **state)
{
        static const struct {
                uint64_t offset;
                uint32_t length;
        } lies[] = {
                { 4 << 20, LENGTH },
                { (4 << 20) - LENGTH + 1, LENGTH },
                { UINT64_MAX - 100, LENGTH },
                { 0, UINT32_MAX },
                { 0, 0 },
        };
        struct rig *f = *state;
        struct pool_index_record before = own.records[0];

        own.page->allowance = UINT64_C(1) << 40;
        f->kv->conn->hits.allowance = UINT64_C(1) << 40;
        for (unsigned i = 0; i < ARRAY_SIZE(lies); i++) {
                struct kvcache_result results[2] = { 0 };

                own.records[0].offset = lies[i].offset;
                own.records[0].length = lies[i].length;
                assert_int_equal(get_both(f, results), 0);
                check_and_release(f, results);
                own.records[0] = before;
        }
}

static void no_more_is_held_than_is_allowed(void **state)
{
        struct rig *f = *state;
        struct kvcache_result results[2] = { 0 };

        f->kv->conn->hits.allowance = 3 * 4096; /* two chunks take two pages each */
        assert_int_equal(get_both(f, results), 0);
        check_and_release(f, results);
        f->kv->conn->hits.allowance = 4 * 4096;
        assert_int_equal(get_both(f, results), 2);
        check_and_release(f, results);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(chunks_of_the_index_are_held_until_they_are_released),
                TEST(a_chunk_that_changes_while_it_is_held_is_asked_of_the_daemon),
                TEST(a_record_that_lies_about_its_place_is_not_believed),
                TEST(no_more_is_held_than_is_allowed),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
