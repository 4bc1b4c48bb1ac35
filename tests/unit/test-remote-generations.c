/* SPDX-License-Identifier: Apache-2.0 */
/* Purges of the shared tier: by this host, by others, while this one was down, at the same time,
 * and after the state file or the engine has forgotten them. There is one host; the test changes
 * the objects as another one would. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "remote-fixture.h"

static uint64_t generation(void)
{
        return remote_namespace_find(rig.r, NS)->generation;
}

static const char *generation_name(void)
{
        static char name[REMOTE_NAME_MAX];

        remote_generation_name("kvcache", &remote_namespace_find(rig.r, NS)->identity, name);
        return name;
}

static uint64_t on_engine(void)
{
        const struct remote_identity *id = &remote_namespace_find(rig.r, NS)->identity;
        uint64_t ret = 0;
        const uint8_t *bytes;
        size_t size;

        bytes = fake_bytes(generation_name(), &size);
        if (bytes)
                assert_int_equal(remote_generation_read(bytes, size, id, &ret), REMOTE_ACCEPTED);
        return ret;
}

/* Purges as another host does. */
static void purge_by_another(uint64_t new)
{
        uint8_t bytes[REMOTE_HEADER_BYTES];

        remote_generation_write(&remote_namespace_find(rig.r, NS)->identity, new, 5, bytes);
        fake_put(generation_name(), bytes, sizeof(bytes), 0);
}

struct purging {
        struct remote_purge purge;
        unsigned completed;
};

static void on_purged(struct remote_purge *purge)
{
        container_of(purge, struct purging, purge)->completed++;
}

static void purge(struct purging *p)
{
        *p = (struct purging){ .purge = { .namespace_id = NS, .complete = on_purged } };
        remote_purge(rig.r, &p->purge);
        assert_int_equal(p->completed, 0); /* not from within */
}

static bool is_usable(void)
{
        struct asked a;

        if (!get(&a, 999, SECOND))
                return false;
        step();
        assert_int_equal(a.completed, 1);
        advance(rig.params.absence_ns);
        return true;
}

/* --- one host --- */

static void all_is_a_miss_until_the_generation_is_known(void **state)
{
        struct asked a;
        bool known = true;

        make_bare();
        fake_set_end(BACKEND_READ, FAKE_HELD);
        assert_int_equal(remote_namespace_add(rig.r, NS, "model", "fp", "s", 1), 0);
        step();
        assert_false(get(&a, 1, SECOND));
        assert_int_equal(stats().refused[2], 1);
        assert_int_equal(match(10, &known), 0);
        assert_false(known); /* soon */
        assert_int_equal(status().namespaces, 1);
        assert_int_equal(status().unknown, 1);
        fake_set_end(BACKEND_READ, FAKE_WITHIN);
        assert_int_equal(fake_release(1), 1);
        step();
        assert_int_equal(status().unknown, 0);
        put_object(1, CHUNK);
        assert_true(finds(1, CHUNK));
}

static void what_is_offered_waits_for_the_first_generation(void **state)
{
        struct purging p;

        make_bare();
        fake_set_end(BACKEND_READ, FAKE_HELD);
        assert_int_equal(remote_namespace_add(rig.r, NS, "model", "fp", "s", 1), 0);
        step();
        offer(1);
        step();
        assert_int_equal(stats().queued, 1);
        assert_int_equal(rig.loads, 0);
        assert_int_equal(remote_iterate(rig.r, now_ns()), now_ns() + rig.params.timeout_ns);
        fake_set_end(BACKEND_READ, FAKE_WITHIN);
        assert_int_equal(fake_release(1), 1);
        step();
        assert_int_equal(stats().puts, 1);
        /* A chunk is not queued during a purge, which may concern it. */
        fake_set_end(BACKEND_REPLACE, FAKE_HELD);
        purge(&p);
        offer(2);
        assert_int_equal(stats().queued, 0);
        (void)fake_release(1);
        step();
        offer(2);
        assert_int_equal(stats().queued, 0);
        /* A generation that the engine does not answer does not count either. */
        remote_namespace_remove(rig.r, NS);
        fake_fail(BACKEND_READ, -EIO, 1);
        fake_set_end(BACKEND_READ, FAKE_HELD);
        assert_int_equal(remote_namespace_add(rig.r, NS, "other", "fp", "s", 1), 0);
        step();
        offer(3);
        assert_int_equal(stats().queued, 1);
        (void)fake_release(1);
        step();
        assert_int_equal(stats().queued, 0);
        offer(3);
        assert_int_equal(stats().queued, 0);
}

static void a_purge_hides_what_was_there(void **state)
{
        struct purging p;
        bool known;

        make();
        for (unsigned i = 0; i < 10; i++)
                put_object(i, CHUNK);
        assert_true(finds(1, CHUNK));
        purge(&p);
        step();
        assert_int_equal(p.completed, 1);
        assert_int_equal(p.purge.result, 0);
        assert_int_equal(stats().purges, 1);
        assert_true(on_engine() > 0);
        assert_int_equal(on_engine(), generation());
        /* The tier is not used before this host's own chunks are purged, too. */
        assert_false(is_usable());
        offer(5);
        assert_int_equal(stats().queued, 0);
        remote_purged(rig.r, NS);
        step();
        assert_true(is_usable());
        for (unsigned i = 0; i < 10; i++)
                assert_false(finds(i, CHUNK));
        assert_int_equal(match(0, &known), 0);
        assert_int_equal(rig.purged, 0);
        /* The state file knows the purge after a restart. */
        wait_until(is_recorded());
        make_again();
        assert_false(finds(1, CHUNK));
        assert_int_equal(rig.purged, 0);
        put_object(1, CHUNK);
        advance(rig.params.absence_ns);
        assert_true(finds(1, CHUNK));
}

static void a_purge_that_fails_says_so(void **state)
{
        struct purging p;

        make();
        put_object(1, CHUNK);
        fake_fail(BACKEND_REPLACE, -EACCES, 1);
        purge(&p);
        step();
        assert_int_equal(p.completed, 1);
        assert_int_equal(p.purge.result, -EACCES);
        assert_int_equal(stats().purges, 0);
        advance(SECOND); /* the generation is read again, because it is unknown what was written */
        step();
        assert_int_equal(rig.purged, 0);
        assert_true(finds(1, CHUNK));
        p.purge.namespace_id = 55;
        p.completed = 0;
        remote_purge(rig.r, &p.purge);
        assert_int_equal(p.completed, 0);
        step();
        assert_int_equal(p.purge.result, -ENOENT);
}

static void a_purge_ends_at_its_deadline_and_what_it_did_is_seen(void **state)
{
        struct purging p;

        make();
        put_object(1, CHUNK);
        fake_set_end(BACKEND_REPLACE, FAKE_HUNG);
        purge(&p);
        step();
        assert_false(is_usable());
        advance(rig.params.timeout_ns);
        assert_int_equal(p.completed, 1);
        assert_int_equal(p.purge.result, -ETIMEDOUT);
        fake_set_end(BACKEND_REPLACE, FAKE_WITHIN);
        assert_int_equal(fake_release(1), 1); /* the generation is written nevertheless */
        step();
        advance(rig.params.generation_interval_ns);
        assert_int_equal(rig.purged, 1);
        step();
        assert_false(finds(1, CHUNK));
        assert_true(is_usable());
}

static void what_is_under_way_during_a_purge_is_a_miss(void **state)
{
        struct purging p;
        struct asked a;
        bool known;

        rig.params.write_rate = 1;
        make();
        put_object(1, CHUNK);
        offer(2); /* goes at once, and is loaded */
        rig.load_later = true;
        offer(3); /* waits */
        fake_set_end(BACKEND_READ, FAKE_HELD);
        assert_true(get(&a, 1, SECOND));
        (void)match(20, &known);
        step();
        assert_int_equal(rig.loads, 1);
        purge(&p);
        step();
        assert_int_equal(p.purge.result, 0);
        remote_purged(rig.r, NS);
        remote_put_loaded(rig.put, true);
        fake_set_end(BACKEND_READ, FAKE_WITHIN);
        (void)fake_release(100);
        step();
        assert_int_equal(a.completed, 1);
        assert_false(a.get.found);
        advance(MINUTE * 60 * 24);
        step();
        assert_int_equal(fake_count(BACKEND_CREATE), 0);
        assert_int_equal(stats().dropped[1], 2);
        assert_int_equal(remote_presence(rig.r, NS, hash_of(1)), -1);
}

/* --- two hosts --- */

static void the_purge_of_another_host_is_seen_within_the_interval(void **state)
{
        make();
        put_object(1, CHUNK);
        assert_true(finds(1, CHUNK));
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns - 1);
        assert_int_equal(rig.purged, 0);
        advance(1);
        assert_int_equal(rig.purged, 1);
        assert_int_equal(stats().purges_seen, 1);
        assert_int_equal(generation(), 5000);
        step();
        assert_false(finds(1, CHUNK));
        for (unsigned i = 0; i < 20; i++)
                advance(rig.params.generation_interval_ns);
        assert_int_equal(rig.purged, 1); /* once */
        wait_until(is_recorded());
        make_again();
        assert_int_equal(rig.purged, 1);
}

static void two_purges_are_two(void **state)
{
        make();
        rig.keep_purges = true;
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns);
        assert_int_equal(rig.purged, 1);
        purge_by_another(6000);
        for (unsigned i = 0; i < 5; i++)
                advance(rig.params.generation_interval_ns);
        assert_int_equal(rig.purged, 1); /* this host still knows only the first */
        assert_false(is_usable());
        remote_purged(rig.r, NS);
        step();
        assert_int_equal(rig.purged, 2);
        assert_int_equal(generation(), 6000);
        remote_purged(rig.r, NS);
        step();
        assert_true(is_usable());
        wait_until(is_recorded());
        make_again();
        assert_int_equal(rig.purged, 2);
}

static void a_purge_here_during_one_of_another_host_waits_for_both(void **state)
{
        struct purging p;

        make();
        rig.keep_purges = true;
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns);
        assert_int_equal(rig.purged, 1);
        purge(&p);
        step();
        assert_int_equal(p.purge.result, 0);
        remote_purged(rig.r, NS); /* the first one */
        step();
        assert_false(is_usable());
        remote_purged(rig.r, NS);
        step();
        assert_true(is_usable());
        assert_int_equal(rig.purged, 1);
        assert_int_equal(on_engine(), generation());
}

/* Two hosts have read generation 5000, and both write a new one. A host that has seen the first one
 * as a purge must also recognize the second, even if it is lower, because the clock of that host
 * may be slow. */
static void a_purge_with_a_slow_clock_is_one(void **state)
{
        make();
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns);
        put_object(1, CHUNK);
        assert_true(finds(1, CHUNK));
        assert_int_equal(rig.purged, 1);
        purge_by_another(4900);
        advance(rig.params.generation_interval_ns);
        step();
        assert_int_equal(rig.purged, 2);
        assert_true(on_engine() > 5000); /* equal generations, and nothing older returns */
        assert_int_equal(on_engine(), generation());
        assert_false(finds(1, CHUNK));
        for (unsigned i = 0; i < 5; i++)
                advance(rig.params.generation_interval_ns);
        assert_int_equal(rig.purged, 2);
}

static void two_purges_at_once_write_different_generations(void **state)
{
        struct purging p, q;
        uint64_t first;

        make();
        fake_set_end(BACKEND_REPLACE, FAKE_HELD);
        purge(&p);
        purge(&q);
        step();
        assert_int_equal(fake_release(1), 1);
        step();
        first = on_engine();
        assert_int_equal(p.completed + q.completed, 1);
        assert_int_equal(fake_release(1), 1);
        step();
        assert_int_equal(p.completed + q.completed, 2);
        assert_true(first > 0 && on_engine() != first);
        remote_purged(rig.r, NS);
        remote_purged(rig.r, NS);
        fake_set_end(BACKEND_REPLACE, FAKE_WITHIN);
        step();
        assert_true(is_usable());
        assert_int_equal(generation(), on_engine());
        assert_int_equal(rig.purged, 0);
}

/* --- down, lost, damaged --- */

static void a_host_that_was_down_during_the_purge_learns_of_it(void **state)
{
        make();
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns);
        wait_until(is_recorded());
        put_object(1, CHUNK);
        purge_by_another(6000);
        assert_int_equal(rig.purged, 1);
        make_again();
        assert_int_equal(rig.purged, 2);
        step();
        assert_false(finds(1, CHUNK));
        assert_int_equal(generation(), 6000);
}

static void without_the_state_file_chunks_are_purged_if_there_was_a_purge(void **state)
{
        make(); /* there was none */
        put_object(1, CHUNK);
        assert_int_equal(access(rig.state, F_OK), -1); /* there is nothing to record */
        make_again();
        assert_int_equal(rig.purged, 0);
        assert_true(finds(1, CHUNK));
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns);
        wait_until(is_recorded());
        assert_int_equal(rig.purged, 1);
        assert_int_equal(unlink(rig.state), 0);
        make_again();
        assert_int_equal(rig.purged, 2);
        assert_int_equal(unlink(rig.state), 0);
        make_again();
        assert_int_equal(rig.purged, 3);
        assert_int_equal(generation(), 5000);
        wait_until(is_recorded());
        make_again();
        assert_int_equal(rig.purged, 3);
}

static void a_damaged_state_file_is_as_none(void **state)
{
        int fd;

        make();
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns);
        wait_until(is_recorded());
        assert_int_equal(rig.purged, 1);
        fd = open(rig.state, O_WRONLY);
        assert_true(fd >= 0 && pwrite(fd, "x", 1, 30) == 1);
        close(fd);
        rig.r = remote_free(rig.r);
        make_bare();
        assert_non_null(strstr(status().reason, "is not used: the file is damaged"));
        rig.r = remote_free(rig.r);
        make_again();
        assert_int_equal(rig.purged, 2);
        make_again(); /* the file was written again */
        assert_int_equal(rig.purged, 2);
}

static void a_state_file_that_cannot_be_written_is_tried_again(void **state)
{
        rig.params.state_path = "/nowhere/at/all";
        make();
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns);
        wait_until(!rig.r->recorder.running);
        assert_string_equal(status().reason,
                            "/nowhere/at/all cannot be written (No such file or directory), so a "
                            "restart may purge namespaces again");
        assert_true(rig.r->record_due);
        assert_true(is_usable());
        assert_true(remote_iterate(rig.r, now_ns()) > now_ns());
}

static void a_crash_between_the_purge_and_the_state_file_purges_again(void **state)
{
        make();
        rig.keep_purges = true;
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns);
        assert_int_equal(rig.purged, 1);
        rig.keep_purges = false;
        make_again(); /* the file does not have it, as this host may still have the chunks */
        assert_int_equal(rig.purged, 2);
}

static void a_generation_that_is_removed_is_written_again(void **state)
{
        make();
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns);
        put_object(1, CHUNK);
        assert_true(fake_remove(generation_name()));
        advance(rig.params.generation_interval_ns);
        assert_int_equal(on_engine(), 5000);
        assert_int_equal(rig.purged, 1);
        assert_true(finds(1, CHUNK));
        /* The generation that this host writes again must not replace that of a concurrent purge.
         */
        assert_true(fake_remove(generation_name()));
        fake_set_end(BACKEND_CREATE, FAKE_HELD);
        advance(rig.params.generation_interval_ns);
        assert_int_equal(fake_held(), 1);
        purge_by_another(6000);
        assert_int_equal(fake_release(1), 1);
        step();
        assert_int_equal(on_engine(), 6000);
        assert_int_equal(generation(), 6000);
        assert_int_equal(rig.purged, 2);
        /* If it cannot be written, it is not relied on for long, and its absence may mean a
         * purge. */
        assert_true(fake_remove(generation_name()));
        fake_set_end(BACKEND_CREATE, FAKE_WITHIN);
        fake_fail(BACKEND_CREATE, -EACCES, 4);
        for (unsigned i = 0; i < 8; i++)
                advance(rig.params.generation_interval_ns);
        assert_int_equal(rig.purged, 3);
        assert_true(on_engine() > 6000);
}

static void a_stop_while_a_generation_is_written_again_leaves_nothing(void **state)
{
        make();
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns);
        assert_true(fake_remove(generation_name()));
        fake_set_end(BACKEND_CREATE, FAKE_HELD);
        advance(rig.params.generation_interval_ns);
        assert_non_null(remote_namespace_find(rig.r, NS)->reading);
        remote_stop(rig.r);
        assert_null(remote_namespace_find(rig.r, NS)->reading);
}

static void a_generation_that_was_lost_while_this_host_was_down_purges(void **state)
{
        make();
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns);
        wait_until(is_recorded());
        assert_int_equal(rig.purged, 1);
        assert_true(fake_remove(generation_name()));
        make_again();
        step();
        assert_int_equal(rig.purged, 2); /* there may have been a purge meanwhile */
        assert_true(on_engine() > 5000);
        assert_int_equal(on_engine(), generation());
        assert_true(is_usable());
}

static void a_damaged_generation_makes_the_namespace_unknown(void **state)
{
        struct purging p;
        bool known = false;

        make();
        purge_by_another(5000);
        advance(rig.params.generation_interval_ns);
        put_object(1, CHUNK);
        assert_true(fake_flip(generation_name(), 17));
        advance(rig.params.generation_interval_ns);
        assert_int_equal(rig.purged, 1);
        assert_int_equal(stats().rejected[REMOTE_BAD_HEADER], 1);
        assert_int_equal(status().unknown, 1);
        assert_false(finds(1, CHUNK));
        assert_int_equal(match(10, &known), 0);
        assert_true(known);
        assert_true(fake_flip(generation_name(), 17)); /* the network caused the fault */
        advance(rig.params.generation_interval_ns);
        assert_int_equal(status().unknown, 0);
        assert_true(finds(1, CHUNK));
        assert_int_equal(rig.purged, 1);
        assert_true(fake_cut(generation_name(), 10)); /* a purge puts it right */
        advance(rig.params.generation_interval_ns);
        assert_int_equal(status().unknown, 1);
        purge(&p);
        step();
        assert_int_equal(p.purge.result, 0);
        remote_purged(rig.r, NS);
        step();
        assert_int_equal(status().unknown, 0);
}

static void a_generation_that_cannot_be_read_for_long_is_not_relied_on(void **state)
{
        make();
        put_object(1, CHUNK);
        fake_fail(BACKEND_READ, -EIO, BREAKER_IN_A_ROW - 1);
        advance(rig.params.generation_interval_ns);
        assert_true(finds(1, CHUNK) || true);
        fake_fail(BACKEND_READ, 0, 0);
        fake_set_end(BACKEND_READ, FAKE_HUNG);
        for (unsigned i = 0; i < 10; i++)
                advance(rig.params.generation_interval_ns / 2);
        assert_int_equal(status().unknown, 1);
        purge_by_another(5000);
        fake_set_end(BACKEND_READ, FAKE_WITHIN);
        (void)fake_release(100);
        for (unsigned i = 0; i < 10; i++)
                advance(20 * SECOND);
        assert_int_equal(rig.purged, 1);
        assert_int_equal(status().unknown, 0);
}

static void an_engine_that_comes_late_purges_what_came_before(void **state)
{
        make_bare();
        fake_fail(BACKEND_READ, -EIO, 1);
        assert_int_equal(remote_namespace_add(rig.r, NS, "model", "fp", "s", 1), 0);
        step();
        purge_by_another(5000); /* meanwhile chunks have come here */
        advance(rig.params.generation_interval_ns);
        assert_int_equal(rig.purged, 1);
}

static void what_came_during_the_first_read_is_purged(void **state)
{
        make_bare();
        fake_set_end(BACKEND_READ, FAKE_HELD);
        assert_int_equal(remote_namespace_add(rig.r, NS, "model", "fp", "s", 1), 0);
        step();
        offer(1);
        step();
        assert_int_equal(stats().queued, 1);
        purge_by_another(5000);
        fake_set_end(BACKEND_READ, FAKE_WITHIN);
        assert_int_equal(fake_release(1), 1);
        step();
        assert_int_equal(generation(), 5000);
        assert_int_equal(rig.purged, 1);
        assert_int_equal(stats().puts, 0);
        assert_false(finds(1, CHUNK));
}

static void what_was_read_before_a_purge_is_not_believed_after_it(void **state)
{
        struct purging p;
        uint64_t new;

        make();
        put_object(1, CHUNK);
        fake_set_end(BACKEND_READ, FAKE_HELD);
        advance(rig.params.generation_interval_ns);
        assert_int_equal(fake_held(), 1); /* the generation */
        purge(&p);
        fake_set_end(BACKEND_READ, FAKE_WITHIN);
        step();
        remote_purged(rig.r, NS);
        step();
        new = on_engine();
        assert_true(fake_remove(generation_name()));
        assert_int_equal(fake_release(1), 1); /* the read returns the state at its beginning */
        purge_by_another(new);
        step();
        assert_int_equal(generation(), on_engine());
        assert_int_equal(rig.purged, 0);
        assert_false(finds(1, CHUNK));
}

/* --- namespaces --- */

static void a_namespace_that_was_removed_has_nothing_there(void **state)
{
        struct asked a;

        make();
        put_object(1, CHUNK);
        fake_set_end(BACKEND_READ, FAKE_HELD);
        assert_true(get(&a, 1, SECOND));
        offer(2);
        remote_namespace_remove(rig.r, NS);
        remote_namespace_remove(rig.r, NS);
        (void)fake_release(1);
        step();
        assert_int_equal(a.completed, 1);
        assert_false(a.get.found);
        assert_int_equal(fake_count(BACKEND_CREATE), 0);
        assert_false(remote_has_namespace(rig.r, NS));
        fake_set_end(BACKEND_READ, FAKE_WITHIN);
        /* The number belongs to another namespace now. */
        assert_int_equal(remote_namespace_add(rig.r, NS, "other", "fp", NULL, 0), 0);
        step();
        assert_false(finds(1, CHUNK));
        assert_int_equal(remote_namespace_add(rig.r, NS, "model", "fp", "s", 1), 0);
        step();
        assert_true(finds(1, CHUNK));
}

static void a_namespace_that_is_there_keeps_what_is_known(void **state)
{
        make();
        put_object(1, CHUNK);
        assert_int_equal(remote_namespace_add(rig.r, NS, "model", "fp", "s", 1), 0);
        assert_true(finds(1, CHUNK));
        assert_int_equal(fake_count(BACKEND_READ), 2);
}

static void many_namespaces_are_found(void **state)
{
        char name[16];

        make();
        for (uint32_t id = 2000; id > 100; id--) {
                snprintf(name, sizeof(name), "ns%u", id);
                assert_int_equal(remote_namespace_add(rig.r, id, name, "fp", NULL, 0), 0);
        }
        step();
        assert_int_equal(status().namespaces, 1901);
        for (unsigned i = 0; i < 10; i++)
                advance(20 * MS);
        assert_int_equal(status().unknown, 0);
        for (uint32_t id = 101; id <= 2000; id += 2)
                remote_namespace_remove(rig.r, id);
        for (uint32_t id = 101; id <= 2000; id++)
                assert_int_equal(remote_has_namespace(rig.r, id), id % 2 == 0);
        put_object(1, CHUNK);
        assert_true(finds(1, CHUNK));
}

static void reads_of_generations_that_hang_are_bounded(void **state)
{
        struct purging p;
        uint64_t next;
        char name[16];

        make_bare();
        fake_set_end(BACKEND_READ, FAKE_HUNG);
        for (uint32_t id = 0; id < 2000; id++) {
                snprintf(name, sizeof(name), "ns%u", id);
                assert_int_equal(remote_namespace_add(rig.r, id, name, "fp", NULL, 0), 0);
        }
        step();
        assert_int_equal(fake_held(), SMALL_MAX);
        for (unsigned i = 0; i < 100; i++)
                advance(100 * MS);
        assert_int_equal(fake_held(), SMALL_MAX);
        /* A purge is sent to the engine nevertheless. */
        p = (struct purging){ .purge = { .namespace_id = 1999, .complete = on_purged } };
        remote_purge(rig.r, &p.purge);
        step();
        assert_int_equal(p.completed, 1);
        assert_int_equal(p.purge.result, 0);
        next = remote_iterate(rig.r, now_ns());
        assert_true(next > now_ns());
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
        const struct CMUnitTest tests[] = {
                TEST(all_is_a_miss_until_the_generation_is_known),
                TEST(a_purge_hides_what_was_there),
                TEST(a_purge_that_fails_says_so),
                TEST(a_purge_ends_at_its_deadline_and_what_it_did_is_seen),
                TEST(what_is_under_way_during_a_purge_is_a_miss),
                TEST(the_purge_of_another_host_is_seen_within_the_interval),
                TEST(two_purges_are_two),
                TEST(a_purge_here_during_one_of_another_host_waits_for_both),
                TEST(a_purge_with_a_slow_clock_is_one),
                TEST(two_purges_at_once_write_different_generations),
                TEST(a_host_that_was_down_during_the_purge_learns_of_it),
                TEST(without_the_state_file_chunks_are_purged_if_there_was_a_purge),
                TEST(a_damaged_state_file_is_as_none),
                TEST(a_state_file_that_cannot_be_written_is_tried_again),
                TEST(a_crash_between_the_purge_and_the_state_file_purges_again),
                TEST(a_generation_that_is_removed_is_written_again),
                TEST(a_stop_while_a_generation_is_written_again_leaves_nothing),
                TEST(a_generation_that_was_lost_while_this_host_was_down_purges),
                TEST(what_is_offered_waits_for_the_first_generation),
                TEST(a_damaged_generation_makes_the_namespace_unknown),
                TEST(a_generation_that_cannot_be_read_for_long_is_not_relied_on),
                TEST(an_engine_that_comes_late_purges_what_came_before),
                TEST(what_came_during_the_first_read_is_purged),
                TEST(what_was_read_before_a_purge_is_not_believed_after_it),
                TEST(a_namespace_that_was_removed_has_nothing_there),
                TEST(a_namespace_that_is_there_keeps_what_is_known),
                TEST(many_namespaces_are_found),
                TEST(reads_of_generations_that_hang_are_bounded),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
