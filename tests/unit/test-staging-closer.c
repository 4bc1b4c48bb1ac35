/* SPDX-License-Identifier: Apache-2.0 */
/* A thread frees staging areas, alternating between users, and they are charged until then. The
 * test blocks that thread to observe the state before. */
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "base/list.h"
#include "base/pages.h"
#include "checked.h"
#include "session/staging-closer.h"
#include "tiers.h"

enum { MIB = 1 << 20, BYTES = 20 * MIB, FIRST = 1001, SECOND = 1002 };

static struct tiers t;
static struct quotas *quotas;
static struct staging_closer *closer;
static bool no_memory;

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);

void *__wrap_calloc(size_t n, size_t bytes)
{
        return no_memory ? NULL : __real_calloc(n, bytes);
}

static uint64_t used(enum quota_thing what)
{
        struct quota_usage usage;

        quotas_get_total(quotas, &usage);
        return usage.used[what];
}

static void wait_for_count(unsigned count)
{
        while (staging_closer_count(closer) != count) {
                tiers_wait_io(&t);
                kio_reap(t.io);
        }
}

/* --- a call that holds the thread up --- */

struct hold {
        struct kio_request call;
        sem_t entered, released;
        bool done;
};

static int run_hold(struct kio_request *call)
{
        struct hold *h = container_of(call, struct hold, call);

        sem_post(&h->entered);
        sem_wait(&h->released);
        return 0;
}

static void on_held(struct kio_request *call)
{
        container_of(call, struct hold, call)->done = true;
}

/* Blocks the thread after its earlier work. */
static void hold(struct hold *h)
{
        *h = (struct hold){
                .call = { .op = KIO_CALL,
                          .class = KIO_CLASS_BACKGROUND,
                          .volume = STAGING_THREAD,
                          .call = run_hold,
                          .complete = on_held },
        };
        sem_init(&h->entered, 0, 0);
        sem_init(&h->released, 0, 0);
        kio_submit(t.io, &h->call, 0);
}

static void release(struct hold *h)
{
        sem_post(&h->released);
        while (!h->done) {
                tiers_wait_io(&t);
                kio_reap(t.io);
        }
        sem_destroy(&h->entered);
        sem_destroy(&h->released);
}

/* --- a session's resources, and its end --- */

static void *open_and_end(uid_t uid)
{
        struct quota_holder holds;
        struct staging area;
        void *base;

        assert_int_equal(quota_holder_open(&holds, quotas, TENANT_DEFAULT, uid), 0);
        assert_int_equal(quota_charge(&holds, QUOTA_STAGINGS, 1), 0);
        assert_int_equal(quota_charge(&holds, QUOTA_STAGING_BYTES, BYTES), 0);
        assert_int_equal(staging_open(&area, BYTES), 0);
        base = area.base;
        memset(base, 1, BYTES);
        staging_closer_add(closer, &area, &holds);
        assert_null(area.base);
        assert_int_equal(area.fd, -1);
        quota_holder_close(&holds);
        assert_int_equal(used(QUOTA_CONNECTIONS), 0);
        return base;
}

static bool is_mapped(const void *p)
{
        unsigned char page;

        return mincore((void *)(uintptr_t)p, 1, &page) == 0;
}

static int setup(void **state)
{
        struct quota_params only = { .name = "default" };
        struct quota_limits none;
        char error[256];

        for (unsigned i = 0; i < QUOTA_THINGS; i++) {
                none.most[i] = QUOTA_NO_LIMIT;
                none.shared[i] = false;
        }
        only.limits = none;
        t = (struct tiers){ 0 };
        tiers_open(&t);
        assert_int_equal(
                quotas_new(&quotas, &only, 1, &(struct quota_access){ 0 }, &none, &none, error), 0);
        assert_int_equal(staging_closer_new(&closer, t.io), 0);
        return 0;
}

static int teardown(void **state)
{
        wait_for_count(0);
        for (unsigned i = 0; i < QUOTA_THINGS; i++)
                assert_int_equal(used((enum quota_thing)i), 0);
        assert_int_equal(quotas_users(quotas), 0);
        closer = staging_closer_free(closer);
        quotas = quotas_free(quotas);
        tiers_remove(&t);
        return 0;
}

/* --- tests --- */

static void test_R10_an_area_is_freed_off_the_loop_and_charged_until_then(void **state)
{
        struct hold h;
        void *base;

        hold(&h);
        sem_wait(&h.entered);
        base = open_and_end(FIRST);
        for (unsigned i = 0; i < 100; i++)
                kio_reap(t.io);
        assert_true(is_mapped(base));
        assert_int_equal(staging_closer_count(closer), 1);
        assert_int_equal(used(QUOTA_STAGINGS), 1);
        assert_int_equal(used(QUOTA_STAGING_BYTES), BYTES);
        assert_int_equal(quotas_users(quotas), 1);
        release(&h);
        wait_for_count(0);
        assert_false(is_mapped(base));
        assert_false(is_mapped((char *)base + BYTES - 4096));
        assert_int_equal(used(QUOTA_STAGING_BYTES), 0);
}

/* Many sessions of one user end at once; another user's area does not wait for all of theirs. */
static void test_R10_areas_of_users_are_freed_in_turn(void **state)
{
        enum { MANY = 5 };
        struct hold before, behind;
        void *areas[MANY], *other;

        hold(&before);
        sem_wait(&before.entered);
        for (unsigned i = 0; i < MANY; i++)
                areas[i] = open_and_end(FIRST);
        other = open_and_end(SECOND);
        hold(&behind);
        release(&before);
        sem_wait(&behind.entered);
        wait_for_count(MANY - 1);
        assert_false(is_mapped(areas[0]));
        assert_false(is_mapped(other));
        for (unsigned i = 1; i < MANY; i++)
                assert_true(is_mapped(areas[i]));
        assert_int_equal(quotas_users(quotas), 1);
        assert_int_equal(used(QUOTA_STAGINGS), MANY - 1);
        release(&behind);
        wait_for_count(0);
        for (unsigned i = 0; i < MANY; i++)
                assert_false(is_mapped(areas[i]));
}

static void without_memory_an_area_is_freed_at_once(void **state)
{
        struct quota_holder holds;
        struct staging area;
        const void *base;

        assert_int_equal(quota_holder_open(&holds, quotas, TENANT_DEFAULT, FIRST), 0);
        assert_int_equal(quota_charge(&holds, QUOTA_STAGINGS, 1), 0);
        assert_int_equal(quota_charge(&holds, QUOTA_STAGING_BYTES, BYTES), 0);
        assert_int_equal(staging_open(&area, BYTES), 0);
        base = area.base;
        no_memory = true;
        staging_closer_add(closer, &area, &holds);
        no_memory = false;
        assert_false(is_mapped(base));
        assert_int_equal(staging_closer_count(closer), 0);
        assert_int_equal(used(QUOTA_STAGING_BYTES), 0);
        quota_holder_close(&holds);
}

/* Any range is unmapped completely, and nothing outside it. */
static void pages_are_unmapped_piece_by_piece(void **state)
{
        enum { PAGE = 4096, ALL = 40 * MIB };
        const uint64_t begins[] = { 0, PAGE, 8 * MIB - PAGE, 8 * MIB },
                       ends[] = { 8 * MIB, 8 * MIB + PAGE, 24 * MIB - PAGE, 39 * MIB };

        for (unsigned i = 0; i < ARRAY_SIZE(begins) * ARRAY_SIZE(ends); i++) {
                uint64_t begin = begins[i % ARRAY_SIZE(begins)], end = ends[i / ARRAY_SIZE(begins)];
                char *all = mmap(NULL, ALL, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

                assert_true(all != MAP_FAILED);
                if (begin < end)
                        pages_unmap(all + begin, end - begin);
                for (uint64_t at = 0; at < ALL; at += PAGE)
                        assert_int_equal(is_mapped(all + at), at < begin || at >= end);
                munmap(all, ALL);
        }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(test_R10_an_area_is_freed_off_the_loop_and_charged_until_then),
                TEST(test_R10_areas_of_users_are_freed_in_turn),
                TEST(without_memory_an_area_is_freed_at_once),
                cmocka_unit_test(pages_are_unmapped_piece_by_piece),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
