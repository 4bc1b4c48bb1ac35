/* SPDX-License-Identifier: Apache-2.0 */
/* The engine of `kvcache-bench profile`, with an array in place of the daemon: every block moves
 * exactly once in each pass, in order where necessary, within the window; failures end the run, and
 * wrong contents are found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "kvbench/family.h"
#include "kvbench/gpu-shape.h"
#include "kvbench/profile.h"

enum { MOST_BLOCKS = 4096 };

struct fake {
        struct profile *profile;
        atomic_uint moved[MOST_BLOCKS]; /* times, in all passes */
        atomic_uint pass[MOST_BLOCKS];  /* times, in this pass */
        atomic_uint checked[MOST_BLOCKS];
        atomic_uint last[MOST_BLOCKS]; /* per user, the block moved last, plus one */
        atomic_uint clients, most_window, passes, writes, cold, disordered;
        uint64_t users;
        _Atomic uint64_t generation;
        uint64_t fail_block; /* moving it fails; UINT64_MAX: none */
        struct profile_side side;
};

static int fake_new(void *self, struct profile *p, void **ret)
{
        struct fake *f = self;

        atomic_fetch_add(&f->clients, 1);
        *ret = f;
        return 0;
}

static void fake_free(void *client)
{
        struct fake *f = client;

        atomic_fetch_sub(&f->clients, 1);
}

static int fake_before(void *self, struct profile *p, enum profile_pass pass)
{
        struct fake *f = self;

        for (uint64_t i = 0; i < p->job->n_blocks; i++) {
                if (f->passes > 0 && f->pass[i] != 1)
                        return profile_fail(p, "block %d moved %u times", (int)i, f->pass[i]);
                f->pass[i] = 0;
        }
        f->passes++;
        f->writes += pass == PROFILE_WRITE;
        f->cold += pass == PROFILE_READ_COLD;
        memset(f->last, 0, sizeof(f->last));
        return 0;
}

static uint64_t user_of(uint64_t block, uint64_t n, uint64_t users)
{
        uint64_t each = n / users, rest = n % users;

        return block < rest * (each + 1) ? block / (each + 1)
                                         : rest + (block - rest * (each + 1)) / each;
}

static int fake_move(void *client, const struct profile_work *work)
{
        struct fake *f = client;
        const struct profile_job *job = f->profile->job;
        unsigned blocks = 0;

        for (size_t i = 0; i < work->n_pieces; i++) {
                const struct profile_piece *piece = &work->pieces[i];
                uint64_t user = user_of(piece->first, job->n_blocks, f->users),
                         at[4] = { 1, 2, 4, 8 };

                if (piece->count > f->profile->piece_blocks || piece->at != blocks ||
                    user_of(piece->first + piece->count - 1, job->n_blocks, f->users) != user)
                        return profile_fail(f->profile, "a piece of several users, or too long");
                if (piece->root != (piece->first == 0 ||
                                    user_of(piece->first - 1, job->n_blocks, f->users) != user))
                        return profile_fail(f->profile, "a root that is none");
                for (uint32_t k = 0; k < piece->count; k++) {
                        uint64_t block = piece->first + k;

                        if (block == f->fail_block)
                                return profile_fail(f->profile, "block %d fails", (int)block);
                        f->moved[block]++;
                        f->pass[block]++;
                        if (f->last[user] != 0 && f->last[user] != block)
                                f->disordered++;
                        f->last[user] = (unsigned)block + 1;
                        blocks++;
                }
                profile_count(work->tally, piece->count, job->io_size, at);
        }
        if (blocks != work->n_blocks)
                return profile_fail(f->profile, "a window's size is wrong");
        if (!work->write && blocks > f->most_window)
                f->most_window = blocks;
        f->generation = work->generation;
        return 0;
}

static int fake_check(void *client, const struct profile_work *work)
{
        struct fake *f = client;

        for (size_t i = 0; i < work->n_pieces; i++)
                for (uint32_t k = 0; k < work->pieces[i].count; k++) {
                        f->checked[work->pieces[i].first + k]++;
                        work->tally->bytes_verified += f->profile->job->io_size;
                }
        return 0;
}

static struct fake *fake_make(struct profile *p, const struct profile_job *job,
                              uint64_t window_blocks)
{
        struct fake *f = test_calloc(1, sizeof(*f));

        f->profile = p;
        f->users = job->users < job->n_blocks ? job->users : job->n_blocks;
        f->fail_block = UINT64_MAX;
        f->side = (struct profile_side){
                .name = "fake",
                .self = f,
                .window_bytes = window_blocks * 4096,
                .depth = 64,
                .client_new = fake_new,
                .client_free = fake_free,
                .before = fake_before,
                .move = fake_move,
                .check = fake_check,
        };
        return f;
}

static void every_block_moves_once_a_pass(void **state)
{
        static const struct {
                uint64_t blocks, users;
                unsigned clients;
        } cases[] = { { 1, 1, 1 },   { 7, 3, 2 },     { 64, 1, 4 },     { 1000, 10, 1 },
                      { 999, 7, 3 }, { 100, 100, 8 }, { 10, 1000, 10 }, { 4096, 5, 2 } };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
                for (unsigned write = 0; write < 2; write++) {
                        struct profile_job job = { .name = "test",
                                                   .io_size = 100,
                                                   .n_blocks = cases[i].blocks,
                                                   .users = cases[i].users,
                                                   .clients = cases[i].clients,
                                                   .write = write,
                                                   .iterations = 3,
                                                   .warmup = 2 };
                        struct profile p;
                        struct profile_result result;
                        struct profile_side *side;
                        struct fake *f;

                        assert_int_equal(profile_init(&p, &job, NULL), 0);
                        f = fake_make(&p, &job, 24);
                        side = &f->side;
                        assert_int_equal(profile_run(&p, &side, 1, &result), 0);
                        assert_string_equal(p.error, "");
                        /* A write job has one more pass, which reads the blocks back. */
                        assert_int_equal(f->passes, 5 + write);
                        assert_int_equal(f->writes, write ? 5 : 0);
                        assert_int_equal(f->cold, 1);
                        for (uint64_t k = 0; k < job.n_blocks; k++) {
                                assert_int_equal(f->moved[k], 5 + write);
                                assert_int_equal(f->checked[k], write ? 1 : 5);
                        }
                        assert_true(f->most_window <= 24);
                        assert_int_equal(f->generation, 0);
                        assert_int_equal(f->clients, 0);
                        assert_int_equal(result.tally.bytes, 3 * 100 * job.n_blocks);
                        assert_int_equal(result.tally.blocks, 3 * job.n_blocks);
                        assert_int_equal(result.tally.bytes_verified,
                                         (write ? 1 : 3) * 100 * job.n_blocks);
                        assert_int_equal(latency_quantile(&result.tally.latency, 0.5), 7);
                        assert_int_equal(latency_quantile(&result.tally.post, 0.5), 2);
                        assert_true(result.seconds > 0);
                        profile_result_fini(&result);
                        profile_fini(&p);
                        test_free(f);
                }
}

static void writes_keep_the_order_of_a_chain(void **state)
{
        struct profile_job job = { .name = "test",
                                   .io_size = 10,
                                   .n_blocks = 500,
                                   .users = 6,
                                   .clients = 3,
                                   .write = true,
                                   .iterations = 1 };
        struct profile p;
        struct profile_result result;
        struct profile_side *side;
        struct fake *f;

        assert_int_equal(profile_init(&p, &job, NULL), 0);
        f = fake_make(&p, &job, 1000);
        side = &f->side;
        assert_int_equal(profile_write_once(&p, side), 0);
        assert_int_equal(f->disordered, 0);
        /* reads do not, because their offsets vary */
        job.write = false;
        f->passes = 0;
        assert_int_equal(profile_run(&p, &side, 1, &result), 0);
        assert_true(f->disordered > 0);
        profile_result_fini(&result);
        profile_fini(&p);
        test_free(f);
}

static void a_failure_ends_the_run_and_keeps_its_reason(void **state)
{
        for (unsigned turn = 0; turn < 2; turn++) {
                struct profile_job job = { .name = "test",
                                           .io_size = 10,
                                           .n_blocks = 300,
                                           .users = 4,
                                           .clients = 4,
                                           .write = turn,
                                           .iterations = 1000000 };
                struct profile p;
                struct profile_result results[2];
                struct profile_side *sides[2];
                struct fake *good, *bad;

                assert_int_equal(profile_init(&p, &job, NULL), 0);
                good = fake_make(&p, &job, 50);
                bad = fake_make(&p, &job, 50);
                bad->fail_block = 299;
                sides[0] = &good->side;
                sides[1] = &bad->side;
                assert_true(profile_run(&p, sides, 2, results) < 0);
                assert_string_equal(p.error, "block 299 fails");
                assert_int_equal(good->clients, 0);
                assert_int_equal(bad->clients, 0);
                profile_result_fini(&results[0]);
                profile_result_fini(&results[1]);
                profile_fini(&p);
                test_free(good);
                test_free(bad);
        }
}

static void an_interruption_ends_the_run(void **state)
{
        atomic_int interrupted = 1;
        struct profile_job job = { .name = "test",
                                   .io_size = 10,
                                   .n_blocks = 300,
                                   .users = 4,
                                   .clients = 2,
                                   .iterations = 1000000 };
        struct profile p;
        struct profile_result result;
        struct profile_side *side;
        struct fake *f;

        assert_int_equal(profile_init(&p, &job, &interrupted), 0);
        f = fake_make(&p, &job, 50);
        side = &f->side;
        assert_true(profile_run(&p, &side, 1, &result) < 0);
        assert_string_equal(p.error, "");
        profile_result_fini(&result);
        profile_fini(&p);
        test_free(f);
}

static void keys_differ(void **state)
{
        struct profile_job job = { .name = "a",
                                   .io_size = 10,
                                   .n_blocks = 1000,
                                   .users = 1,
                                   .clients = 1 },
                           other = job;
        struct profile p, q;

        other.name = "b";
        assert_int_equal(profile_init(&p, &job, NULL), 0);
        assert_int_equal(profile_init(&q, &other, NULL), 0);
        for (uint64_t i = 0; i < job.n_blocks; i++) {
                assert_memory_not_equal(&p.keys[i], &q.keys[i], sizeof(p.keys[i]));
                for (uint64_t k = 0; k < i; k++)
                        assert_memory_not_equal(&p.keys[i], &p.keys[k], sizeof(p.keys[i]));
        }
        profile_fini(&p);
        profile_fini(&q);
}

static void every_wrong_byte_of_contents_is_found(void **state)
{
        static const size_t sizes[] = { 1, 8, 15, 16, 17, 72, 512, 513, 1728, 4096, 9216 };

        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
                size_t n = sizes[i], first = 0;
                uint8_t *data = test_malloc(n);
                struct content c;

                assert_int_equal(content_init(&c, n, "test"), 0);
                content_fill(&c, data);
                content_stamp(&c, data, 7, 3);
                assert_int_equal(content_check(&c, data, 7, 3, &first), 0);
                for (size_t at = 0; at < n; at++) {
                        data[at] ^= 0x10;
                        assert_int_equal(content_check(&c, data, 7, 3, &first), 1);
                        assert_int_equal(first, at);
                        data[at] ^= 0x10;
                }
                if (n >= 16) {
                        assert_true(content_check(&c, data, 8, 3, &first) > 0);
                        assert_true(content_check(&c, data, 7, 2, &first) > 0);
                        memset(data, 0, n);
                        assert_true(content_check(&c, data, 7, 3, &first) > 0);
                }
                /* A new stamp makes the contents right, whichever block was there. */
                content_fill(&c, data);
                content_stamp(&c, data, 1, 0);
                content_stamp(&c, data, 7, 3);
                assert_int_equal(content_check(&c, data, 7, 3, &first), 0);
                content_fini(&c);
                test_free(data);
        }
}

static void sectors_that_are_swapped_are_found(void **state)
{
        uint8_t data[4096], sector[512];
        struct content c;
        size_t first = 0;

        assert_int_equal(content_init(&c, sizeof(data), "test"), 0);
        content_fill(&c, data);
        content_stamp(&c, data, 7, 0);
        memcpy(sector, data, sizeof(sector));
        memcpy(data, data + 1024, sizeof(sector));
        memcpy(data + 1024, sector, sizeof(sector));
        assert_true(content_check(&c, data, 7, 0, &first) > 500);
        assert_true(first < 16);
        content_fini(&c);
}

/* --- in GPU memory --- */

static struct gpu_shape shape(const char *family, uint64_t layers, uint64_t pp, const char *pattern,
                              uint64_t page, uint64_t io_size)
{
        struct kvbench_model model = { .family = family_by_name(family), .num_layers = layers };
        struct kvbench_deployment deployment = { .strategy.pp_size = pp, .system.page_size = page };
        struct gpu_shape ret;

        assert_non_null(model.family);
        snprintf(deployment.system.access_pattern, sizeof(deployment.system.access_pattern), "%s",
                 pattern);
        gpu_shape_of(&ret, KVCACHE_LAYOUT_OUTER_FIRST, &model, &deployment, io_size);
        return ret;
}

static void a_block_lies_as_the_model_has_it(void **state)
{
        struct gpu_shape s = shape("llama3.1", 80, 1, "block", 16, 5 << 20);

        assert_int_equal(s.region_bytes, 32 << 10); /* 160 pieces of 32 KiB */
        assert_int_equal(gpu_shape_pieces(&s), 160);
        assert_int_equal(s.inner * s.page_tokens, s.region_bytes);
        assert_false(s.whole);
        s = shape("deepseek_r1", 61, 16, "block", 256, 589824);
        assert_int_equal(s.layers, 4); /* 61 / 16, rounded up */
        assert_int_equal(s.outer, 1);
        s = shape("llama3.1", 80, 16, "layer", 16, 64 << 10);
        assert_int_equal(s.layers, 1);
        assert_int_equal(s.outer, 2);
}

static void a_block_that_is_no_whole_number_of_layers_is_one_piece(void **state)
{
        struct gpu_shape s = shape("qwen3", 36, 8, "block", 16, 147456);

        assert_true(s.whole); /* 4.5 layers */
        assert_int_equal(s.region_bytes, 147456);
        assert_int_equal(gpu_shape_pieces(&s), 1);
        assert_true(shape("llama3.1", 32, 1, "block", 16, 5000).whole);
        assert_true(shape("llama3.1", 32, 1, "block", UINT64_MAX, 5000).whole);
        assert_true(shape("llama3.1", 32, 1, "block", UINT32_MAX, UINT64_MAX).whole);
        assert_true(shape("llama3.1", UINT64_MAX, 1, "block", 16, 1 << 20).whole);
        assert_true(shape("deepseek_r1", UINT64_MAX, UINT64_MAX - 1, "block", 1 << 20, 1).whole);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(every_block_moves_once_a_pass),
                cmocka_unit_test(writes_keep_the_order_of_a_chain),
                cmocka_unit_test(a_failure_ends_the_run_and_keeps_its_reason),
                cmocka_unit_test(an_interruption_ends_the_run),
                cmocka_unit_test(keys_differ),
                cmocka_unit_test(every_wrong_byte_of_contents_is_found),
                cmocka_unit_test(sectors_that_are_swapped_are_found),
                cmocka_unit_test(a_block_lies_as_the_model_has_it),
                cmocka_unit_test(a_block_that_is_no_whole_number_of_layers_is_one_piece),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
