/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of namespaces for each limit, of sessions that have one open, and the largest namespaces:
 * exact after any order of creations, removals, opens and closes. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "fair/user.h"
#include "tenant/namespace-counts.h"
#include "checked.h"

enum { HIDDEN = UINT16_MAX };

/* The store's list. */
static struct store_namespace list[STORE_MAX_NAMESPACES];
static unsigned n_list;
static uint64_t version;
static uint32_t next_id;
static struct namespace_counts *namespace_counts;

void __wrap_store_namespaces_walk(const struct store *s, bool counted,
                                  bool (*each)(void *userdata, const struct store_namespace *ns),
                                  void *userdata);
uint64_t __wrap_store_namespaces_version(const struct store *s);

void __wrap_store_namespaces_walk(const struct store *s, bool counted,
                                  bool (*each)(void *userdata, const struct store_namespace *ns),
                                  void *userdata)
{
        for (unsigned i = 0; i < n_list; i++)
                if (!each(userdata, &list[i]))
                        return;
}

uint64_t __wrap_store_namespaces_version(const struct store *s)
{
        return version;
}

/* The last line of the log, and the number of lines. */
static char line[512];
static unsigned lines;

void __wrap_log_write(enum log_level level, const char *file, int number, const char *func,
                      const char *fmt, ...) __attribute__((format(printf, 5, 6)));

void __wrap_log_write(enum log_level level, const char *file, int number, const char *func,
                      const char *fmt, ...)
{
        va_list ap;

        va_start(ap, fmt);
        vsnprintf(line, sizeof(line), fmt, ap);
        va_end(ap);
        lines++;
}

static void make(uint16_t tenant, uint32_t owner, unsigned count)
{
        for (unsigned i = 0; i < count; i++) {
                assert_true(n_list < STORE_MAX_NAMESPACES);
                next_id++;
                list[n_list++] = (struct store_namespace){
                        .id = next_id, .tenant = tenant, .owner = owner, .bytes = next_id % 1000
                };
        }
        version++;
}

static void drop_last(unsigned count)
{
        n_list -= count;
        version++;
}

static int setup(void **state)
{
        n_list = 0;
        next_id = 0;
        return namespace_counts_new(&namespace_counts, NULL, HIDDEN);
}

static int teardown(void **state)
{
        namespace_counts = namespace_counts_free(namespace_counts);
        assert_int_equal(fair_users(), 0);
        return 0;
}

static void limit(unsigned user, unsigned n_tenants, unsigned most)
{
        struct namespace_limits limits = { .user = user, .n_tenants = n_tenants };

        for (unsigned i = 0; i < n_tenants; i++)
                limits.tenants[i] = (struct namespace_tenant){ .store_tenant = (uint16_t)(10 * i),
                                                               .name = "t",
                                                               .most = i == 0 ? most : 0 };
        namespace_counts_set_limits(namespace_counts, &limits);
}

/* Returns the scope whose limit refuses another namespace, or -1 if none does. */
static int refused_by(uint16_t tenant, uint32_t uid)
{
        struct namespace_use use;

        return namespace_counts_may_make(namespace_counts, tenant, uid, &use) ? -1 : (int)use.scope;
}

static void the_limits_of_user_tenant_and_store_hold(void **state)
{
        struct namespace_counts_stats stats;

        limit(3, 2, 5);
        assert_int_equal(refused_by(0, 1), -1);
        make(0, 1, 3);
        assert_int_equal(refused_by(0, 1), NAMESPACES_OF_USER);
        assert_int_equal(refused_by(0, 2), -1);
        assert_int_equal(refused_by(10, 1), -1); /* a user counts in each tenant separately */
        make(0, 2, 1);
        make(0, STORE_NO_OWNER, 1);
        assert_int_equal(refused_by(0, 2), NAMESPACES_OF_TENANT);
        assert_int_equal(refused_by(10, 2), -1);
        drop_last(2);
        assert_int_equal(refused_by(0, 2), -1);
        limit(4, 2, 5); /* after a reload */
        assert_int_equal(refused_by(0, 1), -1);

        make(77, STORE_NO_OWNER, STORE_MAX_NAMESPACES - n_list - 4);
        make(HIDDEN, STORE_NO_OWNER, 4);
        assert_int_equal(refused_by(10, 9), NAMESPACES_OF_STORE);
        namespace_counts_get_stats(namespace_counts, &stats);
        assert_int_equal(stats.count, STORE_MAX_NAMESPACES - 4);
        assert_int_equal(stats.most, STORE_MAX_NAMESPACES - 4);
        assert_true(stats.store_near);
        assert_int_equal(stats.refused[NAMESPACES_OF_STORE], 0);
        namespace_counts_count_refusal(namespace_counts, NAMESPACES_OF_STORE);
        namespace_counts_get_stats(namespace_counts, &stats);
        assert_int_equal(stats.refused[NAMESPACES_OF_USER], 0);
        assert_int_equal(stats.refused[NAMESPACES_OF_STORE], 1);
}

/* Namespaces keep a user object only while they exist, also if something else keeps it longer. */
static void owners_exist_while_they_have_namespaces(void **state)
{
        struct fair_user *connected = fair_user_get(1);
        struct namespace_counts_stats stats;

        limit(3, 2, 100);
        make(0, 1, 3);
        for (uint32_t uid = 2; uid < 20; uid++)
                make(10, uid, 2);
        make(10, 1, 2);
        make(77, 1, 1); /* no configured tenant */
        assert_int_equal(refused_by(0, 1), NAMESPACES_OF_USER);
        assert_int_equal(refused_by(10, 1), -1);
        assert_int_equal(fair_users(), 19);
        namespace_counts_get_stats(namespace_counts, &stats);
        assert_int_equal(stats.users_near, 1);
        drop_last(n_list);
        assert_int_equal(refused_by(0, 1), -1);
        assert_int_equal(fair_users(), 1);
        make(0, 1, 3);
        fair_user_unref(connected);
        assert_int_equal(refused_by(0, 1), NAMESPACES_OF_USER);
        assert_int_equal(fair_users(), 1);
        drop_last(3);
        assert_int_equal(refused_by(0, 1), -1);
        assert_int_equal(fair_users(), 0);
}

/* Returns the namespace that has been unused for longest; 0: there is none. */
static uint32_t unused_of(int tenant, uint32_t owner)
{
        struct unused_namespace unused;

        if (!namespace_counts_find_unused(namespace_counts, tenant, owner, &unused))
                return 0;
        assert_in_range(unused.since_ns, 1, clock_mono_ns());
        return unused.id;
}

static void the_namespace_unused_for_longest_is_found(void **state)
{
        assert_int_equal(unused_of(-1, STORE_NO_OWNER), 0);
        make(0, 1, 4);                   /* ids 1 to 4 */
        make(10, 1, 1);                  /* 5 */
        make(0, 2, 1);                   /* 6 */
        make(HIDDEN, STORE_NO_OWNER, 1); /* 7 */
        for (unsigned i = 0; i < n_list; i++)
                list[i].created_ms = 100 - i;
        assert_int_equal(unused_of(-1, STORE_NO_OWNER), 6); /* the one made first */
        assert_int_equal(unused_of(0, 1), 4);
        assert_int_equal(unused_of(10, 1), 5);
        assert_int_equal(unused_of(10, 2), 0);

        assert_int_equal(namespace_counts_ref(namespace_counts, 4), 0);
        assert_int_equal(unused_of(0, 1), 3);
        list[2].chunks = 1;
        assert_int_equal(unused_of(0, 1), 2);
        list[2].chunks = 0; /* 3 and 4 were used later */
        namespace_counts_unref(namespace_counts, 4);
        assert_int_equal(unused_of(0, 1), 2);
        list[1].chunks = list[0].chunks = 1;
        assert_int_equal(unused_of(0, 1), 3); /* 3 was used before 4 was closed */
        list[1].chunks = list[0].chunks = 0;
        assert_int_equal(unused_of(0, 1), 3);
        namespace_counts_claim(namespace_counts, 3, true); /* a removal has begun */
        assert_int_equal(unused_of(0, 1), 4);
        namespace_counts_claim(namespace_counts, 3, false);
        assert_int_equal(unused_of(0, 1), 3);
}

static void a_namespace_made_after_the_start_counts_from_then(void **state)
{
        struct unused_namespace unused;
        uint64_t now_ms = clock_unix_ms();

        make(0, 1, 2);
        list[0].created_ms = now_ms + 3600 * 1000; /* by a clock that is ahead */
        list[1].created_ms = 1;
        assert_int_equal(unused_of(0, 1), 2);
        assert_int_equal(namespace_counts_ref(namespace_counts, 2), 0);
        assert_true(namespace_counts_find_unused(namespace_counts, 0, 1, &unused));
        assert_int_equal(unused.id, 1);
        assert_true(unused.since_ns <= clock_mono_ns());
}

static void by_default_each_has_a_share(void **state)
{
        struct namespace_use use;

        for (unsigned n = 1; n <= NAMESPACE_MAX_TENANTS; n++) {
                limit(0, n, 0);
                assert_true(namespace_counts_get_tenant(namespace_counts, 0, &use));
                assert_int_equal(use.most, STORE_MAX_NAMESPACES / n);
                use = namespace_counts_get_user(namespace_counts, 0, 1);
                assert_int_equal(use.most, MIN((unsigned)STORE_MAX_NAMESPACES / n / 2, 512u));
        }
        assert_false(namespace_counts_get_tenant(namespace_counts, 5, &use));
        limit(0, 1, 1); /* a single user may have one */
        assert_int_equal(refused_by(0, 1), -1);
}

static void who_is_near_a_limit_is_counted(void **state)
{
        struct namespace_counts_stats stats;

        limit(10, 2, 20);
        make(0, 1, 7);
        namespace_counts_get_stats(namespace_counts, &stats);
        assert_int_equal(stats.users_near, 0);
        make(0, 1, 1);
        make(0, 2, 8);
        namespace_counts_get_stats(namespace_counts, &stats);
        assert_int_equal(stats.users_near, 2);
        assert_int_equal(stats.tenants_near, 1);
        assert_false(stats.store_near);
}

static void warning_names_the_setting_that_limits_the_user(void **state)
{
        static const struct {
                unsigned user, tenants, of_tenant;
                const char *text;
        } cases[] = {
                { 8, 2, 10, "user 1 has 7 of at most 8 namespaces (limits.uid_namespaces);" },
                { 0, 2, 16, "user 1 has 7 of at most 8 namespaces (limits.uid_namespaces);" },
                { 8, 1, 8,
                  "user 1 has 7 of at most 8 namespaces (limits.uid_namespaces and "
                  "tenants.namespaces);" },
                { 100, 1, 8, "user 1 has 7 of at most 8 namespaces (tenants.namespaces);" },
        };

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                limit(cases[i].user, cases[i].tenants, cases[i].of_tenant);
                make(0, 1, 6);
                lines = 0;
                namespace_counts_made(namespace_counts, 0, 1);
                assert_int_equal(lines, 0);
                make(0, 1, 1);
                namespace_counts_made(namespace_counts, 0, 1);
                assert_int_equal(lines, 1);
                if (strncmp(line, cases[i].text, strlen(cases[i].text)) != 0)
                        fail_msg("case %zu: %s", i, line);
                drop_last(7);
        }
        limit(STORE_MAX_NAMESPACES, 1, 0);
        for (uint16_t tenant = 0; tenant < 10; tenant += 5)
                assert_string_equal(namespace_counts_get_user(namespace_counts, tenant, 1).setting,
                                    "a fixed limit");
}

static void sessions_are_counted_whatever_the_order(void **state)
{
        enum { IDS = 6000, LIVE = STORE_MAX_NAMESPACES };
        static unsigned sessions[IDS + 1];
        static bool known[IDS + 1];
        unsigned n_known = 0, seed = 5;

        memset(sessions, 0, sizeof(sessions));
        memset(known, 0, sizeof(known));
        for (unsigned i = 0; i < 300000; i++) {
                uint32_t id;

                seed = seed * 1103515245 + 12345;
                id = 1 + (seed >> 8) % IDS;
                switch (seed >> 30) {
                case 0:
                case 1:
                        if (!known[id] && n_known == LIVE) {
                                assert_int_equal(namespace_counts_ref(namespace_counts, id),
                                                 -ENOMEM);
                                break;
                        }
                        assert_int_equal(namespace_counts_ref(namespace_counts, id), 0);
                        sessions[id]++;
                        n_known += !known[id];
                        known[id] = true;
                        break;
                case 2:
                        if (sessions[id] > 0) {
                                namespace_counts_unref(namespace_counts, id);
                                sessions[id]--;
                        }
                        break;
                default:
                        for (; sessions[id] > 0; sessions[id]--)
                                namespace_counts_unref(namespace_counts, id);
                        namespace_counts_removed(namespace_counts, id);
                        n_known -= known[id];
                        known[id] = false;
                }
                assert_int_equal(namespace_counts_sessions(namespace_counts, id), sessions[id]);
                if (i % 5000 == 0)
                        for (uint32_t k = 1; k <= IDS; k++)
                                assert_int_equal(namespace_counts_sessions(namespace_counts, k),
                                                 sessions[k]);
        }
}

static void the_largest_come_in_order_and_all_are_in_the_sums(void **state)
{
        static struct largest_namespaces l;
        uint64_t bytes = 0;

        limit(0, 1, 0);
        make(0, 1, 1500);
        make(7, 1, 30);
        make(HIDDEN, 1, 3);
        for (unsigned i = 0; i < 1530; i++)
                bytes += list[i].bytes;
        namespace_counts_get_largest(namespace_counts, -1, &l);
        assert_int_equal(l.n, NAMESPACE_LARGEST_MAX);
        assert_int_equal(l.count, 1530);
        assert_true(l.bytes == bytes);
        assert_int_equal(l.list[0].bytes, 999);
        for (unsigned i = 1; i < l.n; i++)
                assert_true(l.list[i - 1].bytes >= l.list[i].bytes);
        namespace_counts_get_largest(namespace_counts, 7, &l);
        assert_int_equal(l.count, 30);
        for (unsigned i = 0; i < l.n; i++)
                assert_int_equal(l.list[i].tenant, 7);
}

static void the_highest_id_is_not_forgotten(void **state)
{
        make(0, 1, 10);
        assert_int_equal(namespace_counts_highest_id(namespace_counts), 10);
        drop_last(5);
        assert_int_equal(namespace_counts_highest_id(namespace_counts), 10);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(the_limits_of_user_tenant_and_store_hold),
                TEST(owners_exist_while_they_have_namespaces),
                TEST(by_default_each_has_a_share),
                TEST(who_is_near_a_limit_is_counted),
                TEST(warning_names_the_setting_that_limits_the_user),
                TEST(sessions_are_counted_whatever_the_order),
                TEST(the_largest_come_in_order_and_all_are_in_the_sums),
                TEST(the_highest_id_is_not_forgotten),
                TEST(the_namespace_unused_for_longest_is_found),
                TEST(a_namespace_made_after_the_start_counts_from_then),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
