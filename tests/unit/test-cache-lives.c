/* SPDX-License-Identifier: Apache-2.0 */
/* Random histories of a cache that lives several times: it is stopped, or killed with operations in
 * flight, and opened again. Its devices work, stand still, fail or are full; with several volumes
 * some are suspended and resumed. What is found agrees with a model: no older bytes, nothing that
 * was dropped, and all that was answered as written.
 *
 * `test-cache-lives FIRST COUNT` runs the histories of these seeds. */
#include <errno.h>
#include <stdlib.h>

#include "checked.h"
#include "history-actions.h"
#include "history-loans.h"
#include "history-model.h"

enum {
        LIVES = 3,
        STEPS = 250,
        SMALL_LIMIT = 6 * MIB, /* limit of every second store, which evicts; twice with volumes */
};

static unsigned first_seed = 1, n_seeds = 2;
static uint64_t found_on_disk;
static struct store_device devices[STORE_MAX_VOLUMES];
static bool fails;

/* --- devices --- */

/* A chunk that the device cannot read is dropped, so no read fails unless the history allows for
 * losses. */
static void change_device(void)
{
        static const unsigned ops[] = { 1U << KIO_WRITE, 1U << KIO_SYNC, 1U << KIO_READ,
                                        1U << KIO_WRITE | 1U << KIO_SYNC };
        static const int errors[] = { EIO, EIO, EIO, ENOSPC, EROFS };
        struct fault_plan plan = { .kind = FAULT_NEVER,
                                   .ops = ops[draw(ARRAY_SIZE(ops))],
                                   .volume = draw(t.volumes + 1),
                                   .first = 1 + draw(3),
                                   .count = draw(3) ? FAULT_FOR_EVER : 1 + draw(4) };

        if (draw(2) == 0) {
                release();
                if (!fails || draw(6) > 0)
                        return;
                plan.kind = FAULT_ERROR;
        }
        if (fails && (plan.kind == FAULT_ERROR || draw(6) == 0)) {
                plan.error = plan.ops & 1U << KIO_READ ? EIO : errors[draw(ARRAY_SIZE(errors))];
                plan.count = MIN(plan.count, (uint64_t)4);
        }
        if (plan.kind == FAULT_NEVER || plan.error)
                fault_set(&plan);
}

static void on_finding(void *userdata, const struct store_finding *finding)
{
        if (finding->error != 0)
                model_chunk_is_lost(number_of(&finding->chunk->key));
}

static void on_device(struct store_device *d)
{
        d->complete = NULL;
        model_volume_is_back();
}

static void change_volume(unsigned i)
{
        struct store_volume_stats st;
        bool resumes;

        assert_true(store_get_volume_stats(t.store, i, &st));
        resumes = st.state != STORE_VOLUME_UP;
        if (devices[i].complete || (!resumes && (store_volumes_up(t.store) < 2 || draw(3) > 0)))
                return;
        model.may_hide = true;
        devices[i] = (struct store_device){ .volume = i, .complete = on_device };
        (resumes ? store_resume : store_suspend)(t.store, &devices[i]);
}

/* --- histories --- */

static void purge_or_remove(void)
{
        if (draw(3) > 0) {
                purge_all();
                return;
        }
        release();
        remove_namespace();
}

static void step(void)
{
        uint32_t n = draw(MODEL_KEYS), what = draw(100);

        model.now++;
        end_requests(false);
        if (what < 36)
                put_one(n);
        else if (what < 56)
                get_one(n);
        else if (what < 64)
                evict_one(n);
        else if (what < 67)
                (void)evict(n, true);
        else if (what == 67 && draw(3) == 0)
                purge_or_remove();
        else if (what < 71)
                expire_one(n);
        else if (what < 73)
                pin_one(n);
        else if (what < 76)
                retain_one(n);
        else if (what < 78)
                (void)prefetch(n);
        else if (what < 80)
                lend_one(n);
        else if (what < 82)
                give_back_one();
        else if (what < 87)
                change_device();
        else if (what < 89)
                change_volume(draw(store_volumes(t.store)));
        else {
                t.later_ns += draw(4) == 0 ? UINT64_C(10000000000) : 0;
                kio_reap(t.io);
                tiers_iterate(&t);
        }
}

static void settle(void)
{
        do
                tiers_settle(&t);
        while (cache_has_work(t.cache));
        end_requests(false);
}

static void end_everything(void)
{
        release();
        settle();
        assert_all_have_ended();
        assert_int_equal(t.cache->unwritten, 0);
        assert_int_equal(t.cache->copying, 0);
        assert_int_equal(stats().putting_users, 0);
        assert_int_equal(stats().queued_writes, 0);
        assert_int_equal(stats().queued_reads, 0);
        assert_int_equal(stats().direct_bytes, 0);
}

/* After a restart some keys are not read, so that puts and gets of the next life meet chunks that
 * its process has not read yet. */
static void check_keys(const char *when, bool restarted)
{
        note_losses();
        for (uint32_t n = 0; n < MODEL_KEYS; n++) {
                bool is_on_disk = tiers_of(n) & CACHE_DISK;
                enum cache_status status;

                if (model.keys[n].is_on_disk && !is_on_disk)
                        fail_msg("key %u is not on disk %s", n, when);
                found_on_disk += is_on_disk;
                if (restarted && draw(2) == 0)
                        continue;
                status = get_now(n);
                /* the slot of one that was evicted or expired may have other bytes */
                if (model.keys[n].is_on_disk)
                        assert_int_equal(status, CACHE_OK);
        }
}

static void resume_all(void)
{
        for (unsigned i = 0; i < store_volumes(t.store); i++) {
                struct store_volume_stats st;

                assert_true(store_get_volume_stats(t.store, i, &st));
                if (st.state == STORE_VOLUME_UP)
                        continue;
                change_volume(i);
                settle();
        }
        if (store_volumes_up(t.store) < store_volumes(t.store))
                model_disk_loses();
}

static bool has_device_call(void)
{
        for (unsigned i = 0; i < store_volumes(t.store); i++)
                if (devices[i].complete)
                        return true;
        return false;
}

static void end_life(unsigned how)
{
        give_back_all();
        unpin_pinned();
        model.now++;
        end_requests(false);
        if (how == 0) {
                end_everything();
                resume_all();
                check_keys("while it lives on", false);
                return;
        }
        if (how == 1 || has_device_call()) { /* a resume makes files that cannot be copied */
                cache_stop(t.cache);
                end_everything();
                tiers_close(&t);
                history_crashes();
        } else {
                history_crashes();
                tiers_kill(&t);
                end_requests(true);
        }
        model_crashed();
        tiers_open(&t);
        model.now++;
        check_keys(how == 1 ? "after a stop" : "after a kill", true);
}

static void run_histories(void **state, unsigned volumes, bool with_failures)
{
        found_on_disk = 0;
        for (uint32_t seed = first_seed; seed < first_seed + n_seeds; seed++) {
                teardown(state);
                t = (struct tiers){ .volumes = volumes,
                                    .limit = seed % 2  ? 0
                                             : volumes ? 2 * SMALL_LIMIT
                                                       : SMALL_LIMIT,
                                    .error_budget = UINT16_MAX,
                                    .on_finding = on_finding };
                tiers_open(&t);
                fails = with_failures;
                history_begin(seed);
                print_message("seed %u\n", seed);
                for (unsigned i = 0; i < LIVES; i++) {
                        for (unsigned n = 0; n < STEPS; n++)
                                step();
                        end_life(draw(4) == 0 ? 0 : 1 + draw(2));
                }
                end_everything();
        }
        assert_true(found_on_disk > 0);
}

static void a_cache_finds_what_was_written_and_nothing_that_was_dropped(void **state)
{
        run_histories(state, 0, false);
}

static void a_cache_on_a_device_that_fails_finds_nothing_that_was_dropped(void **state)
{
        run_histories(state, 0, true);
}

static void a_cache_on_several_volumes_finds_nothing_that_was_dropped(void **state)
{
        run_histories(state, 3, true);
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(a_cache_finds_what_was_written_and_nothing_that_was_dropped),
                TEST(a_cache_on_a_device_that_fails_finds_nothing_that_was_dropped),
                TEST(a_cache_on_several_volumes_finds_nothing_that_was_dropped),
        };

        if (getenv("KVCACHE_TEST_LONG"))
                n_seeds = 200;
        if (argc == 3) {
                first_seed = (unsigned)strtoul(argv[1], NULL, 10);
                n_seeds = (unsigned)strtoul(argv[2], NULL, 10);
        }
        return cmocka_run_group_tests(tests, NULL, NULL);
}
