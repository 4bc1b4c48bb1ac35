/* SPDX-License-Identifier: Apache-2.0 */
/* store/: namespaces and purges, on the disk and off it. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sanitizers.h"
#include "checked.h"
#include "fault.h"
#include "store-fixture.h"

static void purge_then_put(void)
{
        start_limit(64 * MIB);
        assert_int_equal(purge(false), 350);
        assert_int_equal(stats().chunks, 20); /* chunks of the other namespace */
        assert_int_equal(put(5, 16384), 0);
}

static void a_purge_survives_a_kill(void **state)
{
        uint32_t first;

        start_limit(64 * MIB);
        first = t.ns;
        assert_int_equal(open_namespace("other", "x=1", false, &t.ns), 0);
        put_range(0, 20, 4096);
        stop();
        in_killed_process(put_some);
        in_killed_process(purge_then_put);
        start_limit(64 * MIB);
        assert_int_equal(t.ns, first);
        assert_int_equal(count_present(0, 2000), 1);
        assert_int_equal(get(5, 16384), 0);
        assert_int_equal(open_namespace("other", "", true, &t.ns), 0);
        for (uint64_t i = 0; i < 20; i++)
                assert_int_equal(get(i, 4096), 0);
        assert_int_equal(purge(true), 21);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(stats().chunks, 0);
        stop();
}

enum { MANY = 3000, STEP_DROPS = 520 };

/* Begins a purge of several steps; nothing of the namespace is found from the first on. */
static void begin_large_purge(struct store_purge *req)
{
        static struct store_chunk chunks[64];
        uint64_t cursor = 0;

        store_purge(t.s, req);
        assert_int_equal(count_present(0, MANY), 0);
        assert_true(stats().chunks >= MANY - STEP_DROPS);
        do
                assert_int_equal(store_list(t.s, t.ns, &cursor, chunks, 64), 0);
        while (cursor != 0);
}

static void a_large_purge_takes_steps(void **state)
{
        struct store_purge one = { .complete = purge_complete },
                           same = { .complete = purge_complete },
                           all = { .all = true, .complete = purge_complete };
        uint64_t before, seen = 0;
        static struct store_get get_req;

        start_limit(64 * MIB);
        put_range(0, MANY, 4096);
        one.namespace_id = same.namespace_id = t.ns;
        begin_large_purge(&one);
        assert_int_equal(get_into(&get_req, MANY - 1, t.bufs[0]), STORE_MISS);
        assert_int_equal(drop(MANY - 2), STORE_MISS);
        /* A put of a key that is still in the index replaces the chunk, and stays. */
        assert_int_equal(submit_put(MANY - 1, 8192, false), 0);
        for (before = stats().chunks; one.complete; before = stats().chunks) {
                wait_io();
                turn_once();
                assert_true(before <= stats().chunks + STEP_DROPS);
                seen++;
        }
        turn(puts_none, NULL);
        assert_int_equal(last_result, 0);
        assert_true(seen >= (MANY - STEP_DROPS) / STEP_DROPS);
        assert_int_equal(one.result, 0);
        assert_int_equal(one.dropped, MANY);
        assert_int_equal(get(MANY - 1, 8192), 0);
        assert_int_equal(stats().chunks, 1);

        /* Concurrent purges count each chunk once. */
        put_range(0, MANY - 1, 4096);
        one.complete = purge_complete;
        begin_large_purge(&one);
        store_purge(t.s, &same);
        store_purge(t.s, &all);
        turn(purge_done, &one);
        turn(purge_done, &same);
        turn(purge_done, &all);
        assert_int_equal(one.dropped + same.dropped + all.dropped, MANY);
        assert_int_equal(stats().chunks, 0);
        stop();
}

static void die_in_a_large_purge(void)
{
        struct store_purge req = { .complete = purge_complete };

        start_limit(64 * MIB);
        req.namespace_id = t.ns;
        put_range(0, MANY, 4096);
        begin_large_purge(&req);
        assert_int_equal(put(7, 8192), 0);
        turn(purge_done, &req);
        assert_int_equal(put(9, 8192), 0);
}

static void a_stop_in_a_large_purge_loses_nothing_of_it(void **state)
{
        struct store_purge req = { .complete = purge_complete };

        in_killed_process(die_in_a_large_purge);
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, MANY), 2);
        assert_int_equal(get(7, 8192), 0);
        put_range(10, MANY, 4096);
        req.namespace_id = t.ns;
        store_purge(t.s, &req);
        assert_non_null(req.complete);
        assert_int_equal(put(8, 8192), 0);
        stop();
        assert_null(req.complete);
        assert_int_equal(req.result, 0);
        assert_int_equal(req.dropped, MANY + 2);
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, MANY + 10), 1);
        assert_int_equal(get(8, 8192), 0);
        stop();
}

static void a_purge_takes_puts_in_flight(void **state)
{
        start_limit(64 * MIB);
        for (uint64_t i = 0; i < 8; i++)
                assert_int_equal(submit_put(i, 8192, false), 0);
        assert_int_equal(purge(false), 0);
        /* Puts the same keys again while the first puts are in flight. */
        turn(puts_none, NULL);
        assert_int_equal(last_result, -ECANCELED);
        assert_int_equal(count_present(0, 8), 0);
        assert_int_equal(put(1, 8192), 0);
        assert_int_equal(get(1, 8192), 0);
        assert_int_equal(stats().chunks, 1);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(count_present(0, 8), 1);
        stop();
}

static void a_purged_read_in_flight_is_a_miss(void **state)
{
        static struct store_get req;

        start_limit(64 * MIB);
        assert_int_equal(put(1, 8192), 0);
        assert_int_equal(get_into(&req, 1, t.bufs[1]), 0);
        assert_int_equal(drop(1), 0);
        assert_int_equal(put(1, 4096), 0); /* another slot, because the first one is being read */
        turn(get_done, NULL);
        assert_int_equal(req.result, STORE_MISS);
        assert_int_equal(get(1, 4096), 0);
        stop();
}

static void namespaces_are_known_again(void **state)
{
        struct store_namespace_open req = { .name = "n",
                                            .name_length = 1,
                                            .fingerprint = "a=1\nb=2",
                                            .fingerprint_length = 7,
                                            .chunk_bytes = 20000,
                                            .complete = ns_complete };
        uint32_t id, id2;

        start_limit(64 * MIB);
        store_namespace_open(t.s, &req);
        turn(ns_done, &req);
        assert_int_equal(req.result, 0);
        id = req.namespace->id;
        assert_int_equal(open_namespace("n", "a=1\nb=3", false, NULL), STORE_MISMATCH);
        assert_int_equal(open_namespace("n", "a=1\nb=2", false, &id2), 0);
        assert_int_equal(id, id2);
        assert_int_equal(open_namespace("n", "", true, &id2), 0);
        assert_int_equal(id, id2);
        assert_int_equal(open_namespace("n", "", false, NULL), STORE_MISMATCH);
        assert_int_equal(open_namespace("m", "", true, NULL), STORE_MISS);
        assert_int_equal(open_namespace("", "x", false, NULL), -EINVAL);
        assert_null(store_namespace_get(t.s, 77));
        stop();
        start_limit(64 * MIB);
        assert_int_equal(open_namespace("n", "a=1\nb=2", false, &id2), 0);
        assert_int_equal(id, id2);
        assert_string_equal(store_namespace_get(t.s, id)->fingerprint, "a=1\nb=2");
        assert_int_equal(store_namespace_get(t.s, id)->chunk_bytes, 20000);
        assert_int_equal(stats().namespaces, 2);
        stop();
}

/* The second open comes before the first one's write, the third during it, and the fourth after
 * it. */
static void all_who_open_one_new_namespace_are_answered(void **state)
{
        struct store_namespace_open reqs[6];

        start_limit(64 * MIB);
        settle();
        for (unsigned i = 0; i < ARRAY_SIZE(reqs); i++) {
                reqs[i] = (struct store_namespace_open){ .name = "shared",
                                                         .name_length = 6,
                                                         .fingerprint = "f",
                                                         .fingerprint_length = 1,
                                                         .complete = ns_complete };
                store_namespace_open(t.s, &reqs[i]);
                if (i >= 1)
                        turn_once();
        }
        for (unsigned i = 0; i < ARRAY_SIZE(reqs); i++) {
                turn(ns_done, &reqs[i]);
                assert_int_equal(reqs[i].result, 0);
                assert_ptr_equal(reqs[i].namespace, reqs[0].namespace);
        }
        settle();
        assert_int_equal(stats().namespaces, 2);
        stop();
}

static void many_namespaces_grow_their_files_up_to_a_bound(void **state)
{
        char name[32];
        int r = 0;
        unsigned i;

        if (SANITIZES_THREADS)
                skip(); /* takes 20 s under TSan, and uses threads as the other tests do */
        start_limit(256 * MIB);
        for (i = 0; i < STORE_MAX_NAMESPACES + 10 && r == 0; i++) {
                snprintf(name, sizeof(name), "namespace-%u", i);
                r = open_namespace(
                        name,
                        "model=m,revision=0123456789abcdef,dtype=bf16,layout=x,block_tokens=16",
                        false, NULL);
        }
        assert_int_equal(r, -ENOSPC);
        assert_int_equal(i, STORE_MAX_NAMESPACES);
        assert_true(du() <= 256 * MIB);
        stop();
        start_limit(256 * MIB);
        assert_int_equal(stats().namespaces, STORE_MAX_NAMESPACES);
        assert_int_equal(open_namespace("namespace-4000", "", true, NULL), 0);
        stop();
}

/* Returns a different text of 4 KiB for each i. */
static const char *long_fingerprint(unsigned i)
{
        static char text[STORE_MAX_FINGERPRINT + 1];

        memset(text, 'a' + (int)(i % 26), STORE_MAX_FINGERPRINT);
        snprintf(text, 16, "%u", i);
        text[strlen(text)] = '-';
        return text;
}

static void remove_complete(struct store_namespace_remove *req)
{
        req->complete = NULL;
}

static bool remove_done(const void *arg)
{
        return ((const struct store_namespace_remove *)arg)->complete == NULL;
}

static int remove_namespace(uint32_t id)
{
        struct store_namespace_remove req = { .id = id, .complete = remove_complete };

        store_namespace_remove(t.s, &req);
        assert_non_null(req.complete);
        turn(remove_done, &req);
        return req.result;
}

static void a_removed_namespace_stays_removed(void **state)
{
        uint32_t first, id;

        start_limit(64 * MIB);
        first = t.ns;
        assert_int_equal(remove_namespace(first + 10), STORE_MISS);
        put_range(0, 20, 5000);
        assert_int_equal(remove_namespace(first), STORE_BUSY);
        assert_int_equal(count_present(0, 20), 20);
        purge(false);
        assert_int_equal(remove_namespace(first), 0);
        assert_int_equal(remove_namespace(first), STORE_MISS);
        assert_null(store_namespace_get(t.s, first));
        assert_null(store_namespace_find(t.s, 0, "model/a", 7));
        assert_int_equal(submit_put(1, 5000, false), -EINVAL);
        assert_int_equal(open_namespace("model/a", "", true, NULL), STORE_MISS);
        stop();
        start_limit(64 * MIB); /* makes it anew */
        assert_int_not_equal(t.ns, first);
        assert_int_equal(count_present(0, 20), 0);
        t.ns = first;
        assert_int_equal(count_present(0, 20), 0);
        assert_int_equal(open_namespace("model/a", "other=1", false, NULL), STORE_MISMATCH);
        assert_int_equal(open_namespace("model/a", "", true, &id), 0);
        assert_int_equal(remove_namespace(id), 0);
        assert_int_equal(open_namespace("model/a", "other=1", false, &id), 0);
        stop();
}

/* A worker builds the list. A namespace that is removed meanwhile is still in this copy, but not in
 * the next. */
static void the_list_of_namespaces_is_put_together_off_the_loop(void **state)
{
        enum { LONG = 200, REMOVED = 40 };
        struct store_namespace_open open[REMOVED];
        struct store_namespace_remove remove[REMOVED];
        struct kio_stats before, after;
        uint32_t ids[LONG];
        char name[16];

        start_limit(256 * MIB);
        for (unsigned i = 0; i < LONG; i++) {
                snprintf(name, sizeof(name), "long-%u", i);
                assert_int_equal(open_namespace(name, long_fingerprint(i), false, &ids[i]), 0);
        }
        settle();
        kio_get_stats(t.io, &before);
        assert_int_equal(open_namespace("one-more", "x", false, NULL), 0);
        settle();
        kio_get_stats(t.io, &after);
        assert_true(after.bytes[KIO_COPY] - before.bytes[KIO_COPY] >=
                    (uint64_t)LONG * STORE_MAX_FINGERPRINT);

        for (unsigned i = 0; i < REMOVED; i++) {
                snprintf(name, sizeof(name), "new-%u", i);
                open[i] = (struct store_namespace_open){ .name = name,
                                                         .name_length = (uint16_t)strlen(name),
                                                         .fingerprint = "f",
                                                         .fingerprint_length = 1,
                                                         .complete = ns_complete };
                store_namespace_open(t.s, &open[i]);
                store_iterate(t.s);
                kio_flush(t.io); /* the copy is in progress */
                remove[i] = (struct store_namespace_remove){ .id = ids[i],
                                                             .complete = remove_complete };
                store_namespace_remove(t.s, &remove[i]);
                turn(ns_done, &open[i]);
                turn(remove_done, &remove[i]);
                assert_int_equal(open[i].result, 0);
                assert_int_equal(remove[i].result, 0);
        }
        stop();
        start_limit(256 * MIB);
        assert_int_equal(stats().namespaces, 2 + LONG);
        for (unsigned i = 0; i < LONG; i++) {
                snprintf(name, sizeof(name), "long-%u", i);
                assert_int_equal(open_namespace(name, "", true, NULL),
                                 i < REMOVED ? STORE_MISS : 0);
                if (i >= REMOVED)
                        assert_int_equal(open_namespace(name, long_fingerprint(i), false, NULL), 0);
        }
        stop();
}

/* The namespace of a pending request stays. */
static void what_is_being_opened_or_written_is_not_removed(void **state)
{
        struct store_namespace_open open = { .name = "busy",
                                             .name_length = 4,
                                             .fingerprint = "f",
                                             .fingerprint_length = 1,
                                             .complete = ns_complete };
        struct store_namespace_remove remove = { .complete = remove_complete };
        uint32_t id;

        start_limit(64 * MIB);
        store_namespace_open(t.s, &open);
        assert_int_equal(open_namespace("busy", "f", false, &id), 0);
        turn(ns_done, &open);

        open.complete = ns_complete;
        store_namespace_open(t.s, &open); /* the namespace exists: only the answer is pending */
        remove.id = id;
        store_namespace_remove(t.s, &remove);
        turn(remove_done, &remove);
        assert_int_equal(remove.result, STORE_BUSY);
        turn(ns_done, &open);
        assert_int_equal(open.result, 0);
        assert_int_equal(open.namespace->id, id);

        assert_int_equal(submit_put(7, 5000, false), 0);
        assert_int_equal(remove_namespace(t.ns), STORE_BUSY);
        settle();
        assert_int_equal(count_present(7, 1), 1);
        assert_int_equal(remove_namespace(id), 0);
        stop();
}

/* A refused opening returns a pointer to the existing namespace, which outlives its removal and a
 * failed removal. */
static void a_refusal_names_a_namespace_that_is_still_memory(void **state)
{
        struct store_namespace_open reqs[8];
        struct store_params params = params_of(64 * MIB);

        t.faults = true;
        params.prewrite = false;
        start(&params);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE,
                                        .kind = FAULT_ERROR,
                                        .error = ENOSPC,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        for (unsigned i = 0; i < ARRAY_SIZE(reqs); i++) {
                reqs[i] = (struct store_namespace_open){ .name = "refused",
                                                         .name_length = 7,
                                                         .fingerprint = i % 2 ? "2" : "1",
                                                         .fingerprint_length = 1,
                                                         .complete = refusal_complete };
                store_namespace_open(t.s, &reqs[i]);
        }
        for (unsigned i = 0; i < ARRAY_SIZE(reqs); i++) {
                turn(ns_done, &reqs[i]);
                assert_int_equal(reqs[i].result, i % 2 ? STORE_MISMATCH : -ENOSPC);
        }
        assert_int_equal(open_namespace("refused", "", true, NULL), STORE_MISS);
        fault_set(NULL);
        assert_int_equal(open_namespace("refused", "2", false, NULL), 0);
        stop();
}

/* Simulates that nearly all ids have been used. */
static void forge_next_id(uint32_t id)
{
        for (unsigned i = 0; i < DISK_NAMESPACE_FILES; i++) {
                const char *names[] = { "namespaces.0", "namespaces.1" };
                int fd = file_of(names[i], O_RDWR);
                struct disk_namespaces *h = calloc(1, MIB);

                assert_true(pread(fd, h, MIB, 0) >= (ssize_t)sizeof(*h));
                h->next_id = id;
                h->crc = kio_crc32c(&h->count, h->bytes - offsetof(struct disk_namespaces, count));
                assert_int_equal(pwrite(fd, h, sizeof(*h), 0), sizeof(*h));
                free(h);
                close(fd);
        }
}

static void an_id_comes_back_without_what_was_under_it(void **state)
{
        uint32_t first, id = 0, others[4], ids[64];
        unsigned rounds = 0;
        char name[16];

        start_limit(64 * MIB);
        first = t.ns;
        put_range(0, 50, 5000);
        stop();
        forge_next_id(UINT32_MAX - 2);
        start_limit(64 * MIB);
        for (unsigned i = 0; i < 2; i++) {
                snprintf(name, sizeof(name), "other-%u", i);
                assert_int_equal(open_namespace(name, "f", false, &others[i]), 0);
                assert_int_equal(others[i], UINT32_MAX - 2 + i);
        }
        /* The ids are given again from here on, except those in use. */
        for (unsigned i = 0; i < ARRAY_SIZE(ids); i++) {
                snprintf(name, sizeof(name), "new-%u", i);
                assert_int_equal(open_namespace(name, "f", false, &ids[i]), 0);
                assert_int_not_equal(ids[i], first);
                assert_true(ids[i] > 0 && ids[i] <= first + ARRAY_SIZE(ids));
        }
        purge(false);
        assert_int_equal(remove_namespace(first), 0);
        stop();
        start_limit(64 * MIB); /* "model/a" has another id by now, or the very same */
        for (; id != first && rounds < 200; rounds++) {
                assert_int_equal(open_namespace("again", "f", false, &id), 0);
                if (id != first)
                        assert_int_equal(remove_namespace(id), 0);
                if (t.ns == first)
                        id = first;
        }
        assert_int_equal(id, first);
        t.ns = first;
        assert_int_equal(count_present(0, 50), 0);
        put_range(100, 10, 5000);
        stop();
        start_limit(64 * MIB);
        t.ns = first;
        assert_int_equal(count_present(0, 50), 0);
        assert_int_equal(count_present(100, 10), 10);
        stop();
}

static void namespaces_come_and_go_and_leave_nothing(void **state)
{
        const bool is_long = getenv("KVCACHE_TEST_LONG");
        unsigned cycles = is_long ? 1000000 : 2000;
        uint64_t used = 0, bytes = 0;
        uint32_t id;

        start_limit(64 * MIB);
        for (unsigned i = 0; i < cycles; i++) {
                char name[32];

                snprintf(name, sizeof(name), "name-%u", i % 3 ? i : 0);
                assert_int_equal(open_namespace(name, "dtype=bf16", false, &id), 0);
                assert_int_equal(remove_namespace(id), 0);
                if (i == 100) {
                        settle(); /* data files are made ahead */
                        used = du();
                        bytes = stats().used_bytes;
                }
        }
        settle();
        assert_int_equal(stats().namespaces, 1);
        assert_int_equal(du(), used);
        assert_int_equal(stats().used_bytes, bytes);
        stop();
        start_limit(64 * MIB);
        assert_int_equal(stats().namespaces, 1);
        stop();
}

/* The store waits until the time for it has come. */
static void retry_writes(void)
{
        while (store_deadline_ns(t.s) && !store_pending(t.s)) {
                uint64_t at = store_deadline_ns(t.s), now = clock_mono_ns();

                if (at > now + UINT64_C(5) * 1000000000)
                        return; /* something else's */
                if (at > now)
                        poll(NULL, 0, (int)((at - now) / 1000000 + 1));
                settle();
        }
}

static bool copies_are_the_same(void)
{
        char *bufs[DISK_NAMESPACE_FILES];
        bool same;

        for (unsigned i = 0; i < DISK_NAMESPACE_FILES; i++) {
                const char *names[] = { "namespaces.0", "namespaces.1" };
                int fd = file_of(names[i], O_RDONLY);

                bufs[i] = calloc(1, 16 * KIB);
                assert_true(pread(fd, bufs[i], 16 * KIB, 0) > 0);
                close(fd);
        }
        same = memcmp(bufs[0], bufs[1], 16 * KIB) == 0;
        free(bufs[0]);
        free(bufs[1]);
        return same;
}

/* Whichever of the two copies could not be written, and whatever the device did with it, that copy
 * is written next, without a request. */
static void a_copy_that_failed_is_the_next_to_be_written(void **state)
{
        for (unsigned nth = 1; nth <= 4; nth++) {
                struct store_params params = params_of(64 * MIB);
                struct store_purge req = { .complete = purge_complete };
                int r;

                params.prewrite = false;
                t.faults = true;
                start(&params);
                put_range(0, 20, 5000);
                settle();
                fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE | 1u << KIO_SYNC,
                                                .kind = FAULT_ERROR,
                                                .error = EIO,
                                                .first = nth });
                req.namespace_id = t.ns;
                store_purge(t.s, &req);
                turn(purge_done, &req);
                r = req.result;
                assert_int_equal(r, nth <= 2 ? -EIO : 0);
                settle();
                assert_int_equal(fault_hits(), 1);
                if (nth == 3)
                        assert_false(copies_are_the_same());
                retry_writes();
                assert_true(copies_are_the_same());
                assert_int_equal(count_present(0, 20), 0);
                fault_set(NULL);
                stop();
        }
}

static void a_failed_namespaces_write_is_the_answer_and_not_the_end(void **state)
{
        struct store_params params = params_of(64 * MIB);
        struct store_purge req = { .complete = purge_complete };

        params.prewrite = false;
        t.faults = true;
        start(&params);
        put_range(0, 20, 5000);
        settle();
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_WRITE | 1u << KIO_SYNC,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1 });
        assert_int_equal(open_namespace("n", "f", false, NULL), -EIO);
        assert_int_equal(open_namespace("n", "f", false, NULL), 0);
        settle();
        fault_set(&(struct fault_plan){
                .ops = 1u << KIO_SYNC, .kind = FAULT_ERROR, .error = EIO, .first = 1 });
        req.namespace_id = t.ns;
        store_purge(t.s, &req);
        turn(purge_done, &req);
        assert_int_equal(req.result, -EIO);
        assert_int_equal(req.dropped, 20);
        assert_int_equal(count_present(0, 20), 0);
        stop();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(a_purge_survives_a_kill),
                TEST(a_large_purge_takes_steps),
                TEST(a_stop_in_a_large_purge_loses_nothing_of_it),
                TEST(a_purge_takes_puts_in_flight),
                TEST(a_purged_read_in_flight_is_a_miss),
                TEST(namespaces_are_known_again),
                TEST(a_removed_namespace_stays_removed),
                TEST(the_list_of_namespaces_is_put_together_off_the_loop),
                TEST(what_is_being_opened_or_written_is_not_removed),
                TEST(a_refusal_names_a_namespace_that_is_still_memory),
                TEST(an_id_comes_back_without_what_was_under_it),
                TEST(a_copy_that_failed_is_the_next_to_be_written),
                TEST(all_who_open_one_new_namespace_are_answered),
                TEST(a_failed_namespaces_write_is_the_answer_and_not_the_end),
        };
        /* Long ones, once. */
        static const struct CMUnitTest long_tests[] = {
                TEST(many_namespaces_grow_their_files_up_to_a_bound),
                TEST(namespaces_come_and_go_and_leave_nothing),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), long_tests,
                               ARRAY_SIZE(long_tests));
}
