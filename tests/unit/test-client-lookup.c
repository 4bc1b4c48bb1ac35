/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache's lookup index, against a fake daemon: when it is asked for, when it is believed,
 * what comes of it, and that nothing a daemon can put there makes the library look elsewhere. The
 * tables are the daemon's own code; what the fake daemon keeps and what they say is up to each
 * test, so that it shows which side answered. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../lib/rig.h"
#include "../lib/timeout.h"
#include "checked.h"
#include "cleanup.h"
#include "lookup/table.h"

enum {
        TALLY_BYTES = WIRE_TALLY_BYTES,
        OLD_TALLY_BYTES = WIRE_TALLY_LOADS_OFFSET, /* size of a page without declined loads */
};

static struct {
        struct lookup_table *now;
        struct key_secret secret; /* secret of the namespace in the table */
        bool stands;              /* the clock does not advance */
        int tally_fd;             /* -1: there is none */
        const struct wire_tally *tally;
} table;

static uint64_t now_ms(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* Replaces the present table by another one. */
static void make_table(struct rig *f, uint32_t n_buckets)
{
        struct lookup_table *old = table.now;

        assert_int_equal(lookup_table_new(&table.now, n_buckets), 0);
        lookup_namespace_secret(&table.now->secret, "ns", 2, &table.secret);
        lookup_table_set_clock(table.now, now_ms());
        lookup_table_set_state(table.now, LOOKUP_LIVE);
        if (f->d) {
                fake_daemon_lock(f->d);
                f->d->lookup_fd = table.now->backing.fd;
                f->d->lookup_bytes = table.now->backing.bytes;
                fake_daemon_unlock(f->d);
        }
        if (old)
                lookup_table_set_state(old, LOOKUP_SUPERSEDED);
        lookup_table_free(old);
}

static int setup(void **state)
{
        memset(&table, 0, sizeof(table));
        table.tally_fd = -1;
        return rig_setup(state);
}

static int teardown(void **state)
{
        struct rig *f = *state;

        if (f->d) {
                fake_daemon_lock(f->d);
                f->d->lookup_fd = f->d->tally_fd = -1;
                fake_daemon_unlock(f->d);
        }
        lookup_table_free(table.now);
        if (table.tally)
                munmap((void *)table.tally, TALLY_BYTES);
        closep(&table.tally_fd);
        return rig_teardown(state);
}

static void connect_with(struct rig *f, uint32_t flags)
{
        struct kvcache_options o = {
                .size = sizeof(o),
                .flags = flags,
                .socket_path = f->path,
                .connect_timeout_ms = test_timeout_ms(60000),
                .request_timeout_ms = test_timeout_ms(60000),
        };
        struct kvcache_namespace_options n = { .size = sizeof(n),
                                               .name = "ns",
                                               .fingerprint = "dtype=bf16\n" };
        char why[512] = "";

        if (kvcache_connect(&f->kv, &o, why, sizeof(why)) < 0)
                fail_msg("%s", why);
        assert_int_equal(kvcache_namespace_open(f->kv, &n, &f->ns), 0);
}

static void start(struct rig *f)
{
        f->d = fake_daemon_start(f->path, &(struct fake_options){ .lookup = true });
        make_table(f, 64);
        connect_with(f, 0);
}

static void add(struct rig *f, uint64_t n, unsigned tier)
{
        struct kvcache_key k = rig_key(n);
        struct key key;

        memcpy(&key, &k, sizeof(key));
        lookup_table_add(table.now, lookup_hash(&table.secret, &key), tier);
}

static void take_out(struct rig *f, uint64_t n, unsigned tier)
{
        struct kvcache_key k = rig_key(n);
        struct key key;

        memcpy(&key, &k, sizeof(key));
        lookup_table_remove(table.now, lookup_hash(&table.secret, &key), tier);
}

/* Advances the clock, so that it is that of a daemon which lives, however slow the machine is. */
static void tick(struct rig *f)
{
        if (table.now && !table.stands)
                lookup_table_set_clock(table.now, now_ms());
}

/* Returns the tiers of one key, or 0 for a miss. */
static unsigned exists(struct rig *f, uint64_t n)
{
        struct kvcache_key k = rig_key(n);
        struct kvcache_result result = { .status = -1, .length = 7, .leases = 7 };
        struct kvcache_request r = rig_request(f, KVCACHE_OP_EXISTS, &k, 1, &result);

        tick(f);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &r, NULL), 0);
        assert_int_equal(result.status, result.tiers ? KVCACHE_OK : KVCACHE_MISS);
        assert_int_equal(result.length, 0);
        assert_int_equal(result.leases, 0);
        return result.tiers;
}

/* Matches keys [first, first + n). */
static uint64_t match(struct rig *f, uint64_t first, size_t n)
{
        struct kvcache_key *keys = calloc(n, sizeof(*keys));
        struct kvcache_request r = rig_request(f, KVCACHE_OP_MATCH, keys, n, NULL);
        uint64_t value = 999999;

        assert_non_null(keys);
        for (size_t i = 0; i < n; i++)
                keys[i] = rig_key(first + i);
        tick(f);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &r, &value), 0);
        free(keys);
        return value;
}

static unsigned requests(struct rig *f, unsigned op)
{
        unsigned n;

        fake_daemon_lock(f->d);
        n = f->d->requests[op];
        fake_daemon_unlock(f->d);
        return n;
}

/* Returns the library's own counters, without asking the daemon. */
static struct kvcache_info info_of(struct rig *f)
{
        struct kvcache_info info = { .size = sizeof(info) };

        assert_int_equal(kvcache_get_info(f->kv, &info), 0);
        return info;
}

/* Looks up missing keys until the client has the table. */
static void settle(struct rig *f)
{
        uint64_t end = now_ms() + 20000;

        while (info_of(f).lookup_bytes == 0) {
                exists(f, 1000000);
                assert_true(now_ms() < end);
        }
}

static void the_first_question_asks_for_the_index_and_the_rest_is_answered_from_it(void **state)
{
        struct rig *f = *state;
        unsigned asked;

        start(f);
        add(f, 1, WIRE_TIER_MEMORY);
        add(f, 2, WIRE_TIER_DISK);
        add(f, 3, WIRE_TIER_MEMORY);
        add(f, 3, WIRE_TIER_DISK);
        assert_int_equal(requests(f, WIRE_LOOKUP), 0);
        assert_int_equal(exists(f, 1), 0); /* the fake daemon has nothing */
        assert_true(fake_daemon_wait(f->d, &f->d->requests[WIRE_LOOKUP], 1));
        settle(f);
        asked = requests(f, WIRE_EXISTS);
        assert_int_equal(exists(f, 1), KVCACHE_TIER_MEMORY);
        assert_int_equal(exists(f, 2), KVCACHE_TIER_DISK);
        assert_int_equal(exists(f, 3), KVCACHE_TIER_ALL);
        assert_int_equal(exists(f, 4), 0);
        assert_int_equal(match(f, 1, 3), 3);
        assert_int_equal(match(f, 1, 10), 3);
        assert_int_equal(match(f, 4, 10), 0);
        assert_int_equal(requests(f, WIRE_EXISTS), asked);
        assert_int_equal(requests(f, WIRE_MATCH), 0);
        assert_int_equal(requests(f, WIRE_LOOKUP), 1);
        assert_int_equal(info_of(f).lookups_local, 4 + 3 + 10 + 10);
        assert_int_equal(info_of(f).lookup_bytes, table.now->backing.bytes);

        /* Changes are seen at once. */
        take_out(f, 1, WIRE_TIER_MEMORY);
        assert_int_equal(exists(f, 1), 0);
        add(f, 4, WIRE_TIER_MEMORY);
        assert_int_equal(exists(f, 4), KVCACHE_TIER_MEMORY);
        assert_int_equal(requests(f, WIRE_EXISTS), asked);
}

static void a_run_of_any_length_is_measured(void **state)
{
        struct rig *f = *state;

        start(f);
        make_table(f, 2000);
        settle(f);
        for (uint64_t n = 0; n < 5000; n++)
                add(f, n, 1 + n % 2);
        for (size_t n = 1; n < 70; n++) {
                assert_int_equal(match(f, 0, n), n);
                for (size_t gap = 0; gap < n; gap += 1 + n / 9) {
                        take_out(f, gap, 1 + gap % 2);
                        assert_int_equal(match(f, 0, n), gap);
                        add(f, gap, 1 + gap % 2);
                }
        }
        assert_int_equal(match(f, 0, 5000), 5000);
        assert_int_equal(match(f, 0, 8192), 5000);
        assert_int_equal(match(f, 4999, 2), 1);
        assert_int_equal(requests(f, WIRE_MATCH), 0);
}

static void entries_do_as_well_as_keys(void **state)
{
        struct rig *f = *state;
        struct kvcache_entry entries[40];
        struct kvcache_result results[40];
        struct kvcache_request r = rig_request(f, KVCACHE_OP_EXISTS, NULL, 40, results);
        uint64_t run = 0;

        start(f);
        settle(f);
        memset(entries, 0, sizeof(entries));
        for (unsigned i = 0; i < 40; i++) {
                entries[i].key = rig_key(i);
                if (i != 33)
                        add(f, i, WIRE_TIER_DISK);
        }
        r.namespace_handle = f->ns;
        r.entries = entries;
        tick(f);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &r, NULL), 0);
        for (unsigned i = 0; i < 40; i++) {
                assert_int_equal(results[i].status, i == 33 ? KVCACHE_MISS : KVCACHE_OK);
                assert_int_equal(results[i].tiers, i == 33 ? 0 : KVCACHE_TIER_DISK);
        }
        r.op = KVCACHE_OP_MATCH;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &r, &run), 0);
        assert_int_equal(run, 33);
        for (unsigned i = 0; i < 40; i++) {
                assert_int_equal(results[i].status, i < 33 ? KVCACHE_OK : KVCACHE_MISS);
                assert_int_equal(results[i].tiers, 0);
        }
        assert_int_equal(requests(f, WIRE_MATCH), 0);
}

/* A lookup is complete when it is submitted, and the descriptor shows that. */
static void what_is_submitted_is_complete_at_once(void **state)
{
        struct rig *f = *state;
        struct kvcache_key keys[2] = { rig_key(1), rig_key(2) };
        struct kvcache_result results[2] = { { .status = -1 }, { .status = -1 } };
        struct kvcache_request e = rig_request(f, KVCACHE_OP_EXISTS, keys, 2, results),
                               m = rig_request(f, KVCACHE_OP_MATCH, keys, 2, NULL);
        struct kvcache_completion c[4];
        unsigned asked;

        start(f);
        settle(f);
        add(f, 1, WIRE_TIER_MEMORY);
        e.namespace_handle = m.namespace_handle = f->ns;
        e.user_data = 11;
        m.user_data = 12;
        asked = requests(f, WIRE_EXISTS);
        for (int known = 0; known < 2; known++) {
                tick(f);
                if (known) {
                        struct pollfd p = { .fd = kvcache_fd(f->kv), .events = POLLIN };

                        assert_int_equal(poll(&p, 1, 0), 0);
                }
                assert_int_equal(kvcache_submit(f->kv, &e), 0);
                assert_int_equal(results[0].status, KVCACHE_OK);
                assert_int_equal(results[1].status, KVCACHE_MISS);
                assert_int_equal(kvcache_submit(f->kv, &m), 0);
                assert_int_equal(kvcache_inflight(f->kv), 2);
                if (known) {
                        struct pollfd p = { .fd = kvcache_fd(f->kv), .events = POLLIN };

                        assert_int_equal(poll(&p, 1, test_timeout_ms(60000)), 1);
                }
                assert_int_equal(kvcache_reap(f->kv, c, 4, 0), 2);
                assert_int_equal(c[0].user_data, 11);
                assert_int_equal(c[0].error, 0);
                assert_int_equal(c[0].value, 0);
                assert_int_equal(c[0].count, 2);
                assert_int_equal(c[1].user_data, 12);
                assert_int_equal(c[1].op, KVCACHE_OP_MATCH);
                assert_int_equal(c[1].value, 1);
                assert_int_equal(kvcache_inflight(f->kv), 0);
        }
        /* a completion from before the first use of the descriptor */
        assert_int_equal(requests(f, WIRE_EXISTS), asked);
        assert_int_equal(requests(f, WIRE_MATCH), 0);
}

static void an_fd_that_is_asked_for_late_tells_of_what_is_complete(void **state)
{
        struct rig *f = *state;
        struct kvcache_key key = rig_key(1);
        struct kvcache_request m = rig_request(f, KVCACHE_OP_MATCH, &key, 1, NULL);
        struct kvcache_completion c;
        struct pollfd p = { .events = POLLIN };

        start(f);
        settle(f);
        m.namespace_handle = f->ns;
        assert_int_equal(kvcache_submit(f->kv, &m), 0);
        p.fd = kvcache_fd(f->kv);
        assert_int_equal(poll(&p, 1, test_timeout_ms(60000)), 1);
        assert_int_equal(kvcache_reap(f->kv, &c, 1, 0), 1);
        assert_int_equal(poll(&p, 1, 0), 0);
}

/* A client that disables the index, or to which no table is offered, asks the daemon each time. */
static void no_client_is_made_to_use_it(void **state)
{
        struct rig *f = *state;

        f->d = fake_daemon_start(f->path, &(struct fake_options){ .lookup = true });
        make_table(f, 64);
        connect_with(f, KVCACHE_NO_LOOKUP);
        add(f, 1, WIRE_TIER_MEMORY);
        for (unsigned i = 0; i < 5; i++)
                assert_int_equal(exists(f, 1), 0);
        assert_int_equal(requests(f, WIRE_EXISTS), 5);
        assert_int_equal(requests(f, WIRE_LOOKUP), 0);
        kvcache_close(f->kv);
        f->kv = NULL;

        fake_daemon_free(f->d);
        f->d = fake_daemon_start(f->path, NULL);
        connect_with(f, 0);
        for (unsigned i = 0; i < 5; i++)
                assert_int_equal(exists(f, 1), 0);
        assert_int_equal(requests(f, WIRE_EXISTS), 5);
        assert_int_equal(requests(f, WIRE_LOOKUP), 0);
        assert_int_equal(info_of(f).lookup_bytes, 0);
        assert_int_equal(info_of(f).lookups_local, 0);
}

static void a_refusal_is_not_asked_for_again_and_again(void **state)
{
        struct rig *f = *state;

        f->d = fake_daemon_start(f->path, &(struct fake_options){ .lookup = true });
        connect_with(f, 0);
        for (unsigned i = 0; i < 50; i++)
                assert_int_equal(exists(f, 1), 0);
        assert_int_equal(requests(f, WIRE_EXISTS), 50);
        assert_int_equal(requests(f, WIRE_LOOKUP), 1);
}

/* While the index is being built, lookups are sent to the daemon, and only the request for the
 * index waits. */
static void questions_go_on_while_the_index_is_awaited(void **state)
{
        struct rig *f = *state;
        uint64_t ns;

        start(f);
        add(f, 1, WIRE_TIER_DISK);
        fake_daemon_hold(f->d, 1u << WIRE_LOOKUP);
        for (unsigned i = 0; i < 20; i++)
                assert_int_equal(exists(f, 1), 0);
        assert_int_equal(match(f, 1, 3), 0);
        assert_int_equal(kvcache_ping(f->kv, &ns), 0);
        assert_int_equal(requests(f, WIRE_LOOKUP), 1);
        assert_int_equal(info_of(f).lookup_bytes, 0);
        fake_daemon_hold(f->d, 0);
        settle(f);
        assert_int_equal(exists(f, 1), KVCACHE_TIER_DISK);
        assert_int_equal(requests(f, WIRE_LOOKUP), 1);
}

static void a_clock_that_stands_is_not_believed(void **state)
{
        struct rig *f = *state;
        const int64_t wrong[] = { -3100, -10000, 5000, INT64_MAX / 2000 };

        start(f);
        add(f, 1, WIRE_TIER_DISK);
        settle(f);
        table.stands = true;
        for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
                unsigned asked = requests(f, WIRE_EXISTS);

                lookup_table_set_clock(table.now, now_ms() + (uint64_t)wrong[i]);
                assert_int_equal(exists(f, 1), 0);
                assert_int_equal(match(f, 1, 1), 0);
                assert_int_equal(requests(f, WIRE_EXISTS), asked + 1);
                lookup_table_set_clock(table.now, now_ms());
                assert_int_equal(exists(f, 1), KVCACHE_TIER_DISK);
                assert_int_equal(requests(f, WIRE_EXISTS), asked + 1);
        }
        lookup_table_set_clock(table.now, 0);
        assert_int_equal(exists(f, 1), 0);
        assert_int_equal(requests(f, WIRE_LOOKUP), 1); /* a second one cannot help */
}

static void one_that_is_superseded_is_given_up_for_the_next(void **state)
{
        struct rig *f = *state;

        start(f);
        add(f, 1, WIRE_TIER_DISK);
        settle(f);
        for (unsigned i = 0; i < 5; i++) {
                uint64_t until_ms = now_ms() + (uint64_t)test_timeout_ms(60000);
                unsigned asked = requests(f, WIRE_LOOKUP), waited = 0;

                assert_int_equal(exists(f, 1), KVCACHE_TIER_DISK);
                make_table(f, 64 + i);
                add(f, 1, WIRE_TIER_DISK);
                for (; exists(f, 1) == 0; waited++)
                        assert_true(now_ms() < until_ms);
                assert_true(waited > 0);
                assert_int_equal(requests(f, WIRE_LOOKUP), asked + 1);
                assert_int_equal(info_of(f).lookup_bytes, table.now->backing.bytes);
        }
        /* An index that arrives superseded is not requested repeatedly. */
        lookup_table_set_state(table.now, LOOKUP_SUPERSEDED);
        fake_daemon_lock(f->d);
        f->d->requests[WIRE_LOOKUP] = 0;
        fake_daemon_unlock(f->d);
        for (unsigned i = 0; i < 1000; i++)
                assert_int_equal(exists(f, 1), 0);
        assert_true(requests(f, WIRE_LOOKUP) <= 50);
}

/* The daemon is asked if a bucket, both buckets, or the stash have overflowed. */
static void of_what_the_table_does_not_know_the_daemon_is_asked(void **state)
{
        struct rig *f = *state;
        unsigned asked;

        start(f);
        make_table(f, 2);
        settle(f);
        for (uint64_t n = 0; n < 3000 && table.now->unplaced < 20; n++)
                add(f, n, WIRE_TIER_DISK);
        assert_true(table.now->unplaced >= 20);
        asked = requests(f, WIRE_EXISTS);
        for (uint64_t n = 0; n < 200; n++)
                if (requests(f, WIRE_EXISTS) == asked)
                        assert_int_equal(exists(f, n) & ~KVCACHE_TIER_DISK, 0);
        /* Each key was reported or asked for; none was reported as absent without the daemon. */
        asked = requests(f, WIRE_EXISTS);
        for (uint64_t n = 0; n < 200; n++) {
                unsigned before = requests(f, WIRE_EXISTS), tiers = exists(f, n);

                assert_true(tiers == KVCACHE_TIER_DISK || requests(f, WIRE_EXISTS) == before + 1);
        }
        /* The unknown keys of a chain need not be asked for after an absent one, which ends the
         * run. */
        make_table(f, 64);
        (void)exists(f, 1000000); /* sees that the other is superseded */
        settle(f);
        add(f, 10, WIRE_TIER_DISK);
        for (uint32_t b = 0; b < table.now->n_buckets + table.now->n_stash; b++)
                table.now->buckets[b].words[0] |= LOOKUP_OVERFLOW;
        asked = requests(f, WIRE_MATCH);
        assert_int_equal(match(f, 10, 1), 1);
        assert_int_equal(requests(f, WIRE_MATCH), asked);
        assert_int_equal(match(f, 10, 2), 0); /* the fake daemon's answer */
        assert_int_equal(requests(f, WIRE_MATCH), asked + 1);
        assert_int_equal(exists(f, 10), 0); /* the key may be in memory, too */
}

/* Some of the stored keys are in neither of their buckets. */
static void what_is_in_the_stash_belongs_to_the_run(void **state)
{
        enum { BUCKETS = 128, MOST = BUCKETS * LOOKUP_WORDS };
        struct rig *f = *state;
        uint64_t in_main = 0, n = 0;
        unsigned asked;

        start(f);
        make_table(f, BUCKETS);
        settle(f);
        for (; n < MOST && table.now->unplaced == 0; n++)
                add(f, n, WIRE_TIER_DISK);
        for (size_t i = 0; i < BUCKETS * (size_t)LOOKUP_WORDS; i++)
                in_main += (table.now->buckets[i / LOOKUP_WORDS].words[i % LOOKUP_WORDS] &
                            LOOKUP_TIER_BITS) != 0;
        n -= table.now->unplaced;
        assert_true(table.now->words == n && n > in_main + 10);
        asked = requests(f, WIRE_MATCH);
        for (uint64_t i = 1; i <= n; i += 13)
                assert_int_equal(match(f, 0, i), i);
        assert_int_equal(match(f, 0, n), n);
        assert_int_equal(requests(f, WIRE_MATCH), asked);
}

static void what_no_client_may_ask_is_left_to_the_daemon(void **state)
{
        struct rig *f = *state;
        struct kvcache_key keys[3] = { rig_key(1), { { 0 } }, rig_key(2) };
        struct kvcache_result results[3];
        struct kvcache_request r = rig_request(f, KVCACHE_OP_EXISTS, keys, 3, results);
        uint64_t run = 9;

        start(f);
        add(f, 1, WIRE_TIER_DISK);
        settle(f);
        r.namespace_handle = f->ns;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &r, NULL), 0);
        assert_int_equal(results[0].status, KVCACHE_MISS); /* by the fake daemon */
        assert_int_equal(results[1].status, KVCACHE_INVALID);
        r.op = KVCACHE_OP_MATCH;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &r, &run), 0);
        assert_int_equal(run, 0);
        r.count = 0;
        r.keys = NULL;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &r, &run), 0);
        assert_int_equal(run, 0);
        r.count = 1;
        r.keys = keys;
        r.namespace_handle = 77;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &r, &run), -EINVAL);
        r.namespace_handle = f->ns;
        r.flags = KVCACHE_MORE;
        assert_int_equal(kvcache_submit_and_wait(f->kv, &r, &run), -EINVAL);
}

/* An evict that was sent before takes effect before the lookup. */
static void an_evict_is_not_overtaken(void **state)
{
        struct rig *f = *state;
        struct kvcache_key key = rig_key(1);
        struct kvcache_result result;
        struct kvcache_request r = rig_request(f, KVCACHE_OP_EVICT, &key, 1, &result);
        struct kvcache_completion c;
        unsigned asked;

        start(f);
        settle(f);
        add(f, 1, WIRE_TIER_DISK);
        assert_int_equal(exists(f, 1), KVCACHE_TIER_DISK);
        fake_daemon_hold(f->d, 1u << WIRE_EVICT);
        r.namespace_handle = f->ns;
        assert_int_equal(kvcache_submit(f->kv, &r), 0);
        asked = requests(f, WIRE_EXISTS);
        assert_int_equal(exists(f, 1), 0);
        assert_int_equal(requests(f, WIRE_EXISTS), asked + 1);
        fake_daemon_hold(f->d, 0);
        assert_int_equal(kvcache_reap(f->kv, &c, 1, test_timeout_ms(60000)), 1);
        assert_int_equal(exists(f, 1), KVCACHE_TIER_DISK); /* the test did not take it out */
}

/* Namespaces are distinguished, and one that was opened again after a reconnect is found again. */
static void each_namespace_and_each_session_has_its_own(void **state)
{
        struct rig *f = *state;
        struct kvcache_namespace_options o = { .size = sizeof(o),
                                               .name = "other",
                                               .fingerprint = "" };
        uint32_t other, first;

        start(f);
        settle(f);
        add(f, 1, WIRE_TIER_DISK);
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &other), 0);
        first = f->ns;
        f->ns = other;
        assert_int_equal(exists(f, 1), 0);
        f->ns = first;
        assert_int_equal(exists(f, 1), KVCACHE_TIER_DISK);

        fake_daemon_free(f->d);
        f->d = fake_daemon_start(f->path, &(struct fake_options){ .lookup = true });
        /* The old table is believed for as long as its clock goes: see the header. */
        assert_int_equal(exists(f, 1), KVCACHE_TIER_DISK);
        table.stands = true;
        lookup_table_set_clock(table.now, 0);
        assert_int_equal(exists(f, 1), 0);
        table.stands = false;
        assert_int_equal(info_of(f).reconnects, 1);
        assert_int_equal(info_of(f).lookup_bytes, 0);
        make_table(f, 100);
        add(f, 1, WIRE_TIER_MEMORY);
        kvcache_close(f->kv);
        connect_with(f, 0);
        settle(f);
        assert_int_equal(exists(f, 1), KVCACHE_TIER_MEMORY);
}

/* The table of an ended daemon, whose clock seems to advance, lacks chunks that the next one has
 * stored: the client asks until it notices that, with each kind of request. */
static void absence_is_not_believed_of_a_daemon_that_has_ended(void **state)
{
        struct rig *f = *state;

        start(f);
        add(f, 1, WIRE_TIER_DISK);
        for (unsigned way = 0; way < 3; way++) {
                struct kvcache_key key = rig_key(2);
                struct kvcache_result result;
                struct kvcache_request r = rig_request(f, KVCACHE_OP_EXISTS, &key, 1, &result);
                struct kvcache_completion c;
                uint64_t end = now_ms() + 5000;
                unsigned asked;

                settle(f);
                asked = requests(f, WIRE_EXISTS);
                for (unsigned i = 0; i < 1000; i++)
                        assert_int_equal(exists(f, 2), 0);
                assert_int_equal(requests(f, WIRE_EXISTS), asked);
                fake_daemon_free(f->d);
                f->d = fake_daemon_start(f->path, &(struct fake_options){ .lookup = true });
                while (requests(f, way == 1 ? WIRE_MATCH : WIRE_EXISTS) == 0) {
                        assert_true(now_ms() < end);
                        if (way == 0) {
                                assert_int_equal(exists(f, 2), 0);
                        } else if (way == 1) {
                                assert_in_range(match(f, 1, 2), 0, 1);
                        } else {
                                tick(f);
                                assert_int_equal(kvcache_submit(f->kv, &r), 0);
                                assert_int_equal(kvcache_reap(f->kv, &c, 1, test_timeout_ms(60000)),
                                                 1);
                                assert_int_equal(c.error, 0);
                        }
                }
                assert_int_equal(info_of(f).reconnects, 1);
                fake_daemon_lock(f->d);
                f->d->lookup_fd = table.now->backing.fd;
                f->d->lookup_bytes = table.now->backing.bytes;
                fake_daemon_unlock(f->d);
                kvcache_close(f->kv);
                connect_with(f, 0);
        }
}

static void a_child_is_refused_as_one(void **state)
{
        struct rig *f = *state;
        int status;
        pid_t pid;

        start(f);
        add(f, 1, WIRE_TIER_DISK);
        settle(f);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                struct kvcache_key k = rig_key(1);
                struct kvcache_result result;
                struct kvcache_request r = rig_request(f, KVCACHE_OP_EXISTS, &k, 1, &result);

                _exit(kvcache_submit_and_wait(f->kv, &r, NULL) == -ECHILD ? 0 : 1);
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
        assert_int_equal(exists(f, 1), KVCACHE_TIER_DISK);
}

static int plain_memfd(uint64_t size, int seals, const void *content, size_t bytes)
{
        int fd = memfd_create("test-lookup", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        assert_true(fd >= 0);
        assert_int_equal(ftruncate(fd, (off_t)size), 0);
        assert_int_equal(pwrite(fd, content, bytes, 0), bytes);
        assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
        return fd;
}

/* --- counters --- */

/* Starts a daemon whose page for lookup counters has this size. */
static void start_with_tally(struct rig *f, uint64_t bytes, int seals)
{
        if (table.tally) {
                munmap((void *)table.tally, TALLY_BYTES);
                closep(&table.tally_fd);
        }
        f->d = fake_daemon_start(f->path, &(struct fake_options){ .lookup = true, .tally = true });
        make_table(f, 2000);
        table.tally_fd = plain_memfd(bytes, seals, "", 0);
        table.tally = mmap(NULL, TALLY_BYTES, PROT_READ, MAP_SHARED, table.tally_fd, 0);
        assert_true(table.tally != MAP_FAILED);
        fake_daemon_lock(f->d);
        f->d->tally_fd = table.tally_fd;
        fake_daemon_unlock(f->d);
        connect_with(f, 0);
        settle(f);
}

static void assert_tally(unsigned number, uint64_t found, uint64_t missing)
{
        assert_int_equal(table.tally[number - 1].found, found);
        assert_int_equal(table.tally[number - 1].missing, missing);
}

static void what_is_answered_here_is_counted_for_the_daemon(void **state)
{
        struct kvcache_namespace_options o = { .size = sizeof(o),
                                               .name = "other",
                                               .fingerprint = "" };
        struct rig *f = *state;
        struct kvcache_key keys[2] = { rig_key(1), { { 0 } } };
        struct kvcache_result results[2];
        struct kvcache_request root, submitted;
        struct kvcache_completion c;
        uint64_t base, value;
        uint32_t first, other;

        start_with_tally(f, TALLY_BYTES, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        base = info_of(f).lookups_local; /* of settle() */
        for (uint64_t n = 0; n < 1000; n++)
                add(f, n, WIRE_TIER_DISK);
        assert_tally(1, 0, base);
        assert_int_equal(exists(f, 1), KVCACHE_TIER_DISK);
        assert_tally(1, 1, base);
        assert_int_equal(exists(f, 5000), 0);
        assert_tally(1, 1, base + 1);
        assert_int_equal(match(f, 0, 32), 32);
        assert_tally(1, 33, base + 1);
        assert_int_equal(match(f, 990, 32), 10); /* all requested keys of a chain count */
        assert_tally(1, 43, base + 23);
        assert_int_equal(match(f, 5000, 8192), 0);
        assert_tally(1, 43, base + 8215);

        submitted = rig_request(f, KVCACHE_OP_EXISTS, keys, 1, results);
        tick(f);
        assert_int_equal(kvcache_submit(f->kv, &submitted), 0);
        assert_int_equal(kvcache_reap(f->kv, &c, 1, test_timeout_ms(60000)), 1);
        assert_tally(1, 44, base + 8215);

        /* Lookups that the daemon answers are not counted here, because it counts them itself. */
        root = rig_request(f, KVCACHE_OP_EXISTS, keys, 2, results);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &root, &value), 0);
        table.stands = true;
        lookup_table_set_clock(table.now, 0);
        assert_int_equal(exists(f, 1), 0);
        table.stands = false;
        assert_tally(1, 44, base + 8215);

        /* Counts are indexed by the daemon's number of the namespace. */
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &other), 0);
        first = f->ns;
        f->ns = other;
        assert_int_equal(match(f, 1, 3), 0);
        assert_tally(2, 0, 3);
        f->ns = first;
        assert_tally(1, 44, base + 8215);
        assert_int_equal(info_of(f).lookups_local, base + 44 + 8215 + 3);

        /* Asked for once in a session, however often the table changes. */
        make_table(f, 100);
        (void)exists(f, 1);
        settle(f);
        assert_int_equal(requests(f, WIRE_LOOKUP), 2);
        fake_daemon_lock(f->d);
        assert_int_equal(f->d->tallies_asked, 1);
        fake_daemon_unlock(f->d);
}

static const struct wire_tally_loads *loads_of(unsigned number)
{
        return (const struct wire_tally_loads *)(table.tally + WIRE_TALLY_NAMESPACES) + number - 1;
}

/* Adds to the count in the daemon's page, by the daemon's number of the namespace. */
static void declined_loads_are_counted_where_the_daemon_reads(void **state)
{
        struct kvcache_namespace_options o = { .size = sizeof(o),
                                               .name = "other",
                                               .fingerprint = "" };
        struct rig *f = *state;
        uint32_t other;

        start_with_tally(f, TALLY_BYTES, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        assert_int_equal(kvcache_count_declined(f->kv, f->ns, 5), 0);
        assert_int_equal(kvcache_count_declined(f->kv, f->ns, 1), 0);
        assert_int_equal(loads_of(1)->declined, 6);
        assert_int_equal(kvcache_namespace_open(f->kv, &o, &other), 0);
        assert_int_equal(kvcache_count_declined(f->kv, other, UINT64_MAX), 0);
        assert_int_equal(loads_of(2)->declined, UINT64_MAX);
        assert_int_equal(loads_of(1)->declined, 6);
        assert_int_equal(kvcache_count_declined(f->kv, 0, 1), -EINVAL);
        assert_int_equal(kvcache_count_declined(f->kv, 3, 1), -EINVAL);
        assert_string_equal(
                kvcache_error(f->kv),
                "3 is not a namespace of this handle: open one with kvcache_namespace_open()");
}

static void an_older_daemon_has_no_place_for_declined_loads(void **state)
{
        struct rig *f = *state;

        start_with_tally(f, OLD_TALLY_BYTES, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        assert_int_equal(kvcache_count_declined(f->kv, f->ns, 5), 1);
        add(f, 1, WIRE_TIER_DISK);
        assert_int_equal(match(f, 1, 2), 1);
        assert_int_equal(table.tally[0].found, 1);
}

/* The next daemon's page begins at zero, and the last one's is no longer written. */
static void each_session_has_a_tally_of_its_own(void **state)
{
        struct rig *f = *state;
        int old_fd;
        uint64_t counts[2];

        start_with_tally(f, TALLY_BYTES, F_SEAL_SHRINK);
        add(f, 1, WIRE_TIER_DISK);
        assert_int_equal(match(f, 1, 2), 1);
        old_fd = dup(table.tally_fd);
        kvcache_close(f->kv);
        fake_daemon_free(f->d);
        assert_int_equal(pread(old_fd, counts, sizeof(counts), 0), sizeof(counts));
        assert_int_equal(counts[0], 1);
        assert_true(counts[1] >= 1);
        start_with_tally(f, TALLY_BYTES, F_SEAL_SHRINK);
        add(f, 1, WIRE_TIER_DISK);
        {
                uint64_t missing = table.tally[0].missing;

                assert_int_equal(match(f, 1, 4), 1);
                assert_tally(1, 1, missing + 3);
        }
        {
                uint64_t now[2];

                assert_int_equal(pread(old_fd, now, sizeof(now), 0), sizeof(now));
                assert_memory_equal(now, counts, sizeof(now));
        }
        close(old_fd);
}

/* Without counters, or with unusable ones, lookups continue. */
static void without_a_tally_look_ups_are_answered_all_the_same(void **state)
{
        struct rig *f = *state;

        start(f);
        settle(f);
        add(f, 1, WIRE_TIER_DISK);
        assert_int_equal(exists(f, 1), KVCACHE_TIER_DISK);
        fake_daemon_lock(f->d);
        assert_int_equal(f->d->tallies_asked, 0);
        fake_daemon_unlock(f->d);
        for (unsigned i = 0; i < 3; i++) {
                kvcache_close(f->kv);
                fake_daemon_free(f->d);
                if (i == 0) {
                        f->d = fake_daemon_start(
                                f->path, &(struct fake_options){ .lookup = true, .tally = true });
                        make_table(f, 64);
                        connect_with(f, 0);
                        settle(f);
                } else {
                        start_with_tally(f, i == 1 ? OLD_TALLY_BYTES / 2 : TALLY_BYTES,
                                         i == 1 ? F_SEAL_SHRINK : F_SEAL_GROW);
                }
                fake_daemon_lock(f->d);
                assert_int_equal(f->d->tallies_asked, 1);
                fake_daemon_unlock(f->d);
                add(f, 1, WIRE_TIER_DISK);
                assert_int_equal(exists(f, 1), KVCACHE_TIER_DISK);
                assert_int_equal(match(f, 1, 2), 1);
                if (i == 2)
                        assert_tally(1, 0, 0);
        }
}

static size_t with_any_number(struct fake_daemon *d, const struct wire_hdr *request,
                              struct wire_reply *reply, size_t bytes)
{
        const uint32_t *number = d->o.user;

        if (request->op == WIRE_NAMESPACE && reply->status == WIRE_OK && number)
                reply->value = *number;
        return bytes;
}

static void a_number_outside_of_the_tally_is_counted_nowhere(void **state)
{
        static uint32_t numbers[] = { 0, WIRE_TALLY_NAMESPACES + 1, UINT32_MAX };
        struct rig *f = *state;
        uint64_t missing;

        start_with_tally(f, TALLY_BYTES, F_SEAL_SHRINK);
        missing = table.tally[0].missing;
        for (unsigned i = 0; i < ARRAY_SIZE(numbers); i++) {
                char name[] = { (char)('a' + i), '\0' };
                struct kvcache_namespace_options o = { .size = sizeof(o),
                                                       .name = name,
                                                       .fingerprint = "" };
                struct wire_tally all[WIRE_TALLY_NAMESPACES] = { { 0, missing } };

                fake_daemon_lock(f->d);
                f->d->o.reply = with_any_number;
                f->d->o.user = &numbers[i];
                fake_daemon_unlock(f->d);
                assert_int_equal(kvcache_namespace_open(f->kv, &o, &f->ns), 0);
                assert_int_equal(match(f, 1, 9), 0);
                assert_int_equal(requests(f, WIRE_MATCH), 0);
                assert_memory_equal(table.tally, all, sizeof(all));
        }
}

/* --- daemons that lie --- */

static void a_table_that_is_not_what_it_must_be_is_not_used(void **state)
{
        enum { ALL = F_SEAL_SHRINK | F_SEAL_GROW | 0x10 | F_SEAL_SEAL };
        struct rig *f = *state;
        struct lookup_header h;
        uint64_t bytes;
        struct {
                uint64_t size;
                int seals;
                uint64_t said;
        } lies[] = {
                { 0, ALL & ~F_SEAL_SHRINK, 0 },
                { 0, ALL & ~F_SEAL_GROW, 0 },
                { 0, ALL & ~0x10, 0 },
                { 0, ALL & ~F_SEAL_SEAL, 0 },
                { 4096, ALL, 0 },
                { 4096, ALL, 4096 },
                { 0, ALL, 4096 },
                { 0, ALL, UINT64_MAX },
                { 0, ALL, 1 },
                { 0, ALL, (UINT64_C(1) << 62) + 1 },
        };

        start(f);
        bytes = table.now->backing.bytes;
        h = *table.now->header;
        for (unsigned i = 0; i < ARRAY_SIZE(lies) + 3; i++) {
                struct lookup_header lie = h;
                int fd, seals = ALL;
                uint64_t size = bytes, said = bytes;

                if (i < ARRAY_SIZE(lies)) {
                        size = lies[i].size ? lies[i].size : bytes;
                        seals = lies[i].seals;
                        said = lies[i].said ? lies[i].said : bytes;
                } else if (i == ARRAY_SIZE(lies)) {
                        lie.n_buckets *= 1000;
                } else if (i == ARRAY_SIZE(lies) + 1) {
                        lie.magic = 0;
                } else {
                        lie.version = 9;
                }
                fd = plain_memfd(size, seals, &lie, MIN(sizeof(lie), (size_t)size));
                fake_daemon_lock(f->d);
                f->d->lookup_fd = fd;
                f->d->lookup_bytes = said;
                f->d->requests[WIRE_LOOKUP] = 0;
                fake_daemon_unlock(f->d);
                kvcache_close(f->kv);
                connect_with(f, 0);
                for (unsigned k = 0; k < 10; k++)
                        assert_int_equal(exists(f, 1), 0);
                assert_int_equal(requests(f, WIRE_LOOKUP), 1);
                assert_int_equal(info_of(f).lookup_bytes, 0);
                assert_int_equal(info_of(f).reconnects, 0);
                fake_daemon_lock(f->d);
                f->d->lookup_fd = -1;
                fake_daemon_unlock(f->d);
                close(fd);
        }
}

/* A reply that lacks its descriptor, or has an unexpected one, is invalid. */
static void a_reply_without_its_descriptor_ends_the_session(void **state)
{
        struct rig *f = *state;

        f->d = fake_daemon_start(f->path, &(struct fake_options){ .lookup = true });
        make_table(f, 64);
        connect_with(f, 0);
        assert_int_equal(exists(f, 1), 0);
        assert_true(fake_daemon_wait(f->d, &f->d->requests[WIRE_LOOKUP], 1));
        settle(f);
        kvcache_close(f->kv);
        f->kv = NULL;
        fake_daemon_free(f->d);

        f->d = fake_daemon_start(f->path, &(struct fake_options){ .lookup = true, .no_fd = true });
        make_table(f, 64);
        connect_with(f, 0);
        for (unsigned i = 0; i < 20 && info_of(f).reconnects == 0; i++) {
                struct kvcache_key k = rig_key(1);
                struct kvcache_result result;
                struct kvcache_request r = rig_request(f, KVCACHE_OP_EXISTS, &k, 1, &result);

                (void)kvcache_submit_and_wait(f->kv, &r, NULL);
                assert_true(result.status == KVCACHE_MISS || result.status == KVCACHE_LOST);
        }
        assert_true(info_of(f).reconnects > 0);
}

/* The writer goes mad: results may be any, but nothing is read elsewhere, and all ends. */
static void words_and_counters_may_be_anything(void **state)
{
        struct rig *f = *state;
        uint64_t x = 88172645463325252u;

        start(f);
        make_table(f, 16);
        settle(f);
        for (unsigned round = 0; round < 200; round++) {
                for (uint32_t b = 0; b < table.now->n_buckets + table.now->n_stash; b++)
                        for (unsigned i = 0; i < LOOKUP_WORDS; i++) {
                                x ^= x << 13;
                                x ^= x >> 7;
                                x ^= x << 17;
                                table.now->buckets[b].words[i] = round % 3 ? x : UINT32_MAX;
                        }
                table.now->header->removals = x;
                /* The reply's sizes are read only once. */
                table.now->header->n_buckets = table.now->header->n_stash = (uint32_t)x;
                table.now->header->bytes = x;
                lookup_table_set_clock(table.now, now_ms());
                (void)exists(f, round);
                assert_true(match(f, round, 40) <= 40);
        }
        assert_true(info_of(f).lookups_local > 0);
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
        const struct CMUnitTest tests[] = {
                CASE(the_first_question_asks_for_the_index_and_the_rest_is_answered_from_it),
                CASE(a_run_of_any_length_is_measured),
                CASE(entries_do_as_well_as_keys),
                CASE(what_is_submitted_is_complete_at_once),
                CASE(an_fd_that_is_asked_for_late_tells_of_what_is_complete),
                CASE(no_client_is_made_to_use_it),
                CASE(a_refusal_is_not_asked_for_again_and_again),
                CASE(questions_go_on_while_the_index_is_awaited),
                CASE(a_clock_that_stands_is_not_believed),
                CASE(one_that_is_superseded_is_given_up_for_the_next),
                CASE(of_what_the_table_does_not_know_the_daemon_is_asked),
                CASE(what_is_in_the_stash_belongs_to_the_run),
                CASE(what_no_client_may_ask_is_left_to_the_daemon),
                CASE(an_evict_is_not_overtaken),
                CASE(each_namespace_and_each_session_has_its_own),
                CASE(absence_is_not_believed_of_a_daemon_that_has_ended),
                CASE(a_child_is_refused_as_one),
                CASE(what_is_answered_here_is_counted_for_the_daemon),
                CASE(declined_loads_are_counted_where_the_daemon_reads),
                CASE(an_older_daemon_has_no_place_for_declined_loads),
                CASE(each_session_has_a_tally_of_its_own),
                CASE(without_a_tally_look_ups_are_answered_all_the_same),
                CASE(a_number_outside_of_the_tally_is_counted_nowhere),
                CASE(a_table_that_is_not_what_it_must_be_is_not_used),
                CASE(a_reply_without_its_descriptor_ends_the_session),
                CASE(words_and_counters_may_be_anything),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
