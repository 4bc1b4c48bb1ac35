/* SPDX-License-Identifier: Apache-2.0 */
/* Permission to connect, tenants and admins; every charge is released, and no limit is exceeded. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "tenant/quota.h"
#include "tenant/readers.h"

enum { NOBODY = 65534 };

static const struct quota_limits none = { { [0 ... QUOTA_THINGS - 1] = QUOTA_NO_LIMIT } };

static struct quotas *tenants(const char *user, const char *group, const char *admin,
                              const char *admin_group)
{
        char *users[] = { (char *)user }, *groups[] = { (char *)group };
        char *admins[] = { (char *)admin }, *admin_groups[] = { (char *)admin_group };
        struct quota_params only = { .name = "default",
                                     .access = { users, user != NULL, groups, group != NULL },
                                     .limits = none };
        struct quota_access admin_access = { admins, admin != NULL, admin_groups,
                                             admin_group != NULL };
        struct quotas *t = NULL;
        char error[256] = "";

        if (quotas_new(&t, &only, 1, &admin_access, &none, &none, error) < 0)
                fail_msg("%s", error);
        return t;
}

static int who(const struct quotas *t, struct peer p, bool *ret_admin)
{
        unsigned tenant = 77;
        int r = quotas_identify(t, &p, &tenant, ret_admin);

        if (r == 0)
                assert_int_equal(tenant, TENANT_DEFAULT);
        return r;
}

static void a_peer_has_the_credentials_of_its_socket(void **state)
{
        struct peer p;
        int pair[2];

        assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
        assert_int_equal(peer_from_socket(pair[0], &p), 0);
        assert_int_equal(p.pid, getpid());
        assert_int_equal(p.uid, getuid());
        assert_int_equal(p.gid, getgid());
        close(pair[0]);
        close(pair[1]);
        assert_true(peer_from_socket(pair[0], &p) < 0);
}

static void without_lists_everybody_but_nobody_may_connect(void **state)
{
        struct quotas *t = tenants(NULL, NULL, NULL, NULL);
        bool admin = true;

        assert_int_equal(who(t, (struct peer){ .uid = 4711, .gid = 4711 }, &admin), 0);
        assert_false(admin);
        assert_int_equal(who(t, (struct peer){ .uid = 0 }, &admin), 0);
        assert_true(admin);
        if (geteuid() != NOBODY)
                assert_int_equal(who(t, (struct peer){ .uid = NOBODY, .gid = NOBODY }, &admin),
                                 QUOTA_REFUSED);
        quotas_free(t);
}

static void different_rights_have_different_digests(void **state)
{
        const char *const lists[][4] = { { NULL, NULL, NULL, NULL }, { "1", NULL, NULL, NULL },
                                         { "2", NULL, NULL, NULL },  { NULL, "1", NULL, NULL },
                                         { NULL, NULL, "1", NULL },  { NULL, NULL, NULL, "1" } };
        enum { N = sizeof(lists) / sizeof(lists[0]) };
        uint64_t digests[N];

        for (unsigned i = 0; i < N; i++) {
                struct quotas *t = tenants(lists[i][0], lists[i][1], lists[i][2], lists[i][3]);
                struct quotas *again = tenants(lists[i][0], lists[i][1], lists[i][2], lists[i][3]);

                digests[i] = quotas_digest(t);
                assert_int_equal(quotas_digest(again), digests[i]);
                for (unsigned k = 0; k < i; k++)
                        assert_int_not_equal(digests[k], digests[i]);
                quotas_free(t);
                quotas_free(again);
        }
}

static void readers_are_recorded_once_and_are_bounded(void **state)
{
        struct peer p = { .uid = 1, .gid = 1, .groups = { 5, 6 }, .n_groups = 2, .pid = 1 };
        struct readers r = { 0 };

        readers_note(&r, &p);
        p.pid = 2;
        readers_note(&r, &p);
        assert_int_equal(r.n, 1);
        p.n_groups = 1;
        readers_note(&r, &p);
        p.gid = 2;
        readers_note(&r, &p);
        assert_int_equal(r.n, 3);
        for (p.uid = 2; r.n < READERS_MAX; p.uid++)
                readers_note(&r, &p);
        assert_false(r.incomplete);
        p.uid = 2;
        readers_note(&r, &p);
        assert_false(r.incomplete);
        p.uid = UINT32_MAX;
        readers_note(&r, &p);
        assert_int_equal(r.n, READERS_MAX);
        assert_true(r.incomplete);
        readers_fini(&r);
}

static void lists_name_users_and_groups_by_number_and_by_name(void **state)
{
        struct quotas *t = tenants("4711", "4712", "root", "4713");
        bool admin;

        assert_int_equal(who(t, (struct peer){ .uid = 4711, .gid = 1 }, &admin), 0);
        assert_false(admin);
        assert_int_equal(who(t, (struct peer){ .uid = 1, .gid = 4712 }, &admin), 0);
        assert_false(admin);
        assert_int_equal(
                who(t, (struct peer){ .uid = 1, .gid = 1, .groups = { 5, 4712 }, .n_groups = 2 },
                    &admin),
                0);
        /* Groups beyond n_groups are ignored. */
        assert_int_equal(
                who(t, (struct peer){ .uid = 1, .gid = 1, .groups = { 5, 4712 }, .n_groups = 1 },
                    &admin),
                QUOTA_REFUSED);
        assert_int_equal(who(t, (struct peer){ .uid = 4712, .gid = 4711 }, &admin), QUOTA_REFUSED);
        /* an admin need not be in the other lists */
        assert_int_equal(who(t, (struct peer){ .uid = 1, .gid = 4713 }, &admin), 0);
        assert_true(admin);
        quotas_free(t);
}

static void nobody_is_let_in_where_it_is_named_and_is_no_admin_by_that(void **state)
{
        struct quotas *t = tenants("65534", NULL, NULL, NULL);
        bool admin = true;

        assert_int_equal(who(t, (struct peer){ .uid = NOBODY, .gid = NOBODY }, &admin), 0);
        assert_false(admin);
        quotas_free(t);
}

static int made_with(struct quota_access access, char *error)
{
        struct quota_params params[] = { { .name = "default", .limits = none },
                                         { .name = "a", .access = access, .limits = none } };
        struct quota_access admins = { 0 };
        struct quotas *t = NULL;
        int r = quotas_new(&t, params, 2, &admins, &none, &none, error);

        assert_true(r == 0 || !t);
        quotas_free(t);
        return r;
}

static void a_name_that_is_not_known_is_said(void **state)
{
        char *users[] = { (char *)"no such user, I hope" }, *odd[] = { (char *)"-1" },
             *large[] = { (char *)"99999999999" };
        char error[256];

        assert_int_equal(made_with((struct quota_access){ .users = users, .n_users = 1 }, error),
                         -EINVAL);
        assert_non_null(strstr(error, users[0]));
        assert_int_equal(made_with((struct quota_access){ .groups = users, .n_groups = 1 }, error),
                         -EINVAL);
        assert_non_null(strstr(error, "group"));
        assert_int_equal(made_with((struct quota_access){ .users = odd, .n_users = 1 }, error),
                         -EINVAL);
        assert_int_equal(made_with((struct quota_access){ .users = large, .n_users = 1 }, error),
                         -EINVAL);
}

/* Makes three tenants: default, which takes user 30 alone; "first" with user 10 and group 100;
 * "second" with users 10 and 20 and group 100. */
static struct quotas *three(const struct quota_limits *first, const struct quota_limits *all,
                            const struct quota_limits *user)
{
        static char *last[] = { (char *)"30" }, *ten[] = { (char *)"10" },
                    *both[] = { (char *)"20", (char *)"10" }, *group[] = { (char *)"100" };
        struct quota_params params[] = {
                { "default", { last, 1, NULL, 0 }, none },
                { "first", { ten, 1, group, 1 }, *first },
                { "second", { both, 2, group, 1 }, none },
        };
        struct quota_access admins = { last, 1, NULL, 0 };
        struct quotas *t = NULL;
        char error[256] = "";

        if (quotas_new(&t, params, 3, &admins, all, user, error) < 0)
                fail_msg("%s", error);
        return t;
}

static int tenant_of(const struct quotas *t, uid_t uid, gid_t gid)
{
        bool admin;
        unsigned tenant = 77;

        return quotas_identify(t, &(struct peer){ .uid = uid, .gid = gid }, &tenant, &admin) == 0
                       ? (int)tenant
                       : -1;
}

static void the_first_tenant_that_matches_decides_and_default_comes_last(void **state)
{
        struct quotas *t = three(&none, &none, &none);

        assert_int_equal(tenant_of(t, 10, 1), 1);
        assert_int_equal(tenant_of(t, 20, 1), 2);
        assert_int_equal(tenant_of(t, 20, 100), 1);
        assert_int_equal(tenant_of(t, 30, 1), TENANT_DEFAULT);
        assert_int_equal(tenant_of(t, 30, 100), 1);
        assert_int_equal(tenant_of(t, 40, 1), -1);
        if (geteuid() != NOBODY)
                assert_int_equal(tenant_of(t, NOBODY, 100), -1);
        assert_string_equal(quotas_tenant_name(t, 2), "second");
        quotas_free(t);
}

static void
test_R10_charges_end_at_the_limit_of_user_tenant_and_all_and_are_given_back(void **state)
{
        struct quota_limits first = none, all = none, user = none;
        struct quota_holder a, b, c, d;
        struct quota_usage u;
        struct quotas *t;

        first.most[QUOTA_CONNECTIONS] = 2;
        first.most[QUOTA_STAGING_BYTES] = 1000;
        all.most[QUOTA_STAGING_BYTES] = 1500;
        user.most[QUOTA_STAGING_BYTES] = 700;
        t = three(&first, &all, &user);

        assert_int_equal(quota_holder_open(&a, t, 1, 10), 0);
        assert_int_equal(quota_holder_open(&b, t, 1, 11), 0);
        assert_int_equal(quota_holder_open(&c, t, 1, 12), QUOTA_OVER_TENANT);
        assert_int_equal(quotas_users(t), 2);
        quota_holder_close(&b);
        assert_int_equal(quotas_users(t), 1);
        assert_int_equal(quota_holder_open(&b, t, 1, 11), 0);
        assert_int_equal(quota_holder_open(&c, t, 2, 10), 0);
        assert_int_equal(quota_holder_open(&d, t, 2, 13), 0);
        assert_int_equal(quotas_users(t), 3);

        /* A user's limit covers all of its tenants. */
        assert_int_equal(quota_charge(&a, QUOTA_STAGING_BYTES, 701), QUOTA_OVER_USER);
        assert_int_equal(quota_charge(&a, QUOTA_STAGING_BYTES, 700), 0);
        assert_int_equal(quota_charge(&c, QUOTA_STAGING_BYTES, 1), QUOTA_OVER_USER);
        assert_int_equal(quota_charge(&b, QUOTA_STAGING_BYTES, 301), QUOTA_OVER_TENANT);
        assert_int_equal(quota_charge(&b, QUOTA_STAGING_BYTES, 300), 0);
        assert_int_equal(quota_charge(&d, QUOTA_STAGING_BYTES, 501), QUOTA_FULL);
        assert_int_equal(quota_charge(&d, QUOTA_STAGING_BYTES, 500), 0);
        /* Each resource has its own sum. */
        assert_int_equal(quota_charge(&d, QUOTA_KEYS, UINT64_MAX / 2), 0);

        quotas_get_usage(t, 1, &u);
        assert_int_equal(u.used[QUOTA_STAGING_BYTES], 1000);
        assert_int_equal(u.most[QUOTA_STAGING_BYTES], 1000);
        assert_int_equal(u.refused[QUOTA_STAGING_BYTES], 2);
        assert_int_equal(u.refused[QUOTA_CONNECTIONS], 1);
        quotas_get_total(t, &u);
        assert_int_equal(u.used[QUOTA_STAGING_BYTES], 1500);
        assert_int_equal(u.used[QUOTA_CONNECTIONS], 4);

        quota_uncharge(&a, QUOTA_STAGING_BYTES, 100);
        assert_int_equal(quota_charge(&b, QUOTA_STAGING_BYTES, 101), QUOTA_OVER_TENANT);
        quota_settle(&a, QUOTA_STAGING_BYTES, 600);
        quota_settle(&a, QUOTA_STAGING_BYTES, 200);
        assert_int_equal(a.used[QUOTA_STAGING_BYTES], 200);
        /* A limit below the present use allows nothing more, and the use can be released. */
        first.most[QUOTA_STAGING_BYTES] = 10;
        quotas_set_limits(t, 1, &first);
        assert_int_equal(quota_charge(&b, QUOTA_STAGING_BYTES, 1), QUOTA_OVER_TENANT);

        quota_holder_close(&a);
        quota_holder_close(&b);
        quota_holder_close(&c);
        quota_holder_close(&d);
        quota_holder_close(&d);
        for (unsigned i = 0; i < 3; i++) {
                quotas_get_usage(t, i, &u);
                for (unsigned k = 0; k < QUOTA_THINGS; k++)
                        assert_int_equal(u.used[k], 0);
        }
        assert_int_equal(quotas_users(t), 0);
        quotas_free(t);
}

/* However many users take all they can, some is left for one more user, and an admin may take
 * that. */
static void test_R10_a_connection_has_a_limit_of_its_own(void **state)
{
        struct quota_limits connection = none;
        struct quota_holder a, b, other;
        struct quota_usage u;
        struct quotas *t = three(&none, &none, &none);

        connection.most[QUOTA_LEASES] = 2;
        connection.most[QUOTA_LEASED_BYTES] = 1000;
        quotas_set_connection_limits(t, 1, &connection);
        assert_int_equal(quota_holder_open(&a, t, 1, 10), 0);
        assert_int_equal(quota_holder_open(&b, t, 1, 10), 0);
        assert_int_equal(quota_holder_open(&other, t, 0, 10), 0);
        assert_int_equal(quota_charge(&a, QUOTA_LEASES, 2), 0);
        assert_int_equal(quota_charge(&a, QUOTA_LEASES, 1), QUOTA_OVER_CONNECTION);
        assert_int_equal(quota_charge(&b, QUOTA_LEASES, 1), 0); /* the same user */
        assert_int_equal(quota_charge(&b, QUOTA_LEASED_BYTES, 1001), QUOTA_OVER_CONNECTION);
        assert_int_equal(quota_charge(&b, QUOTA_LEASED_BYTES, 1000), 0);
        assert_int_equal(quota_charge(&other, QUOTA_LEASES, 100), 0); /* another tenant */
        quotas_get_usage(t, 1, &u);
        assert_int_equal(u.used[QUOTA_LEASES], 3);
        assert_int_equal(u.refused[QUOTA_LEASES], 1);
        assert_int_equal(u.refused[QUOTA_LEASED_BYTES], 1);
        quota_uncharge(&a, QUOTA_LEASES, 1);
        assert_int_equal(quota_charge(&a, QUOTA_LEASES, 1), 0);
        quota_holder_close(&a);
        quota_holder_close(&b);
        quota_holder_close(&other);
        quotas_free(t);
}

static void test_R10_what_is_handed_over_outlives_its_connection(void **state)
{
        struct quota_limits user = none;
        struct quota_holder session, rest = { 0 }, again;
        struct quota_usage u;
        struct quotas *t;

        user.most[QUOTA_STAGING_BYTES] = 1000;
        t = three(&none, &none, &user);
        assert_int_equal(quota_holder_open(&session, t, 0, 10), 0);
        assert_int_equal(quota_charge(&session, QUOTA_STAGING_BYTES, 1000), 0);
        assert_int_equal(quota_charge(&session, QUOTA_KEYS, 5), 0);
        quota_hand_over(&rest, &session, QUOTA_STAGING_BYTES, 600);
        quota_hand_over(&rest, &session, QUOTA_STAGING_BYTES, 300);
        quota_holder_close(&session);
        assert_int_equal(quotas_users(t), 1);
        quotas_get_usage(t, 0, &u);
        assert_int_equal(u.used[QUOTA_CONNECTIONS], 0);
        assert_int_equal(u.used[QUOTA_KEYS], 0);
        assert_int_equal(u.used[QUOTA_STAGING_BYTES], 900);
        assert_int_equal(quota_holder_open(&again, t, 0, 10), 0);
        assert_ptr_equal(again.user, rest.user);
        assert_int_equal(quota_charge(&again, QUOTA_STAGING_BYTES, 101), QUOTA_OVER_USER);
        quota_holder_close(&rest);
        assert_int_equal(quotas_users(t), 1);
        assert_int_equal(quota_charge(&again, QUOTA_STAGING_BYTES, 1000), 0);
        quota_holder_close(&again);
        assert_int_equal(quotas_users(t), 0);
        quotas_free(t);
}

static void test_R10_users_share_what_is_left(void **state)
{
        enum { ALL = 64, USERS = 5 };
        struct quota_limits all = none, user = none;
        struct quota_params params = { .name = "default", .limits = none };
        struct quota_holder holders[USERS], second, admin;
        uint64_t largest[QUOTA_THINGS], before = ALL;
        struct quota_usage total;
        struct quotas *t;
        char error[256];

        all.most[QUOTA_REGIONS] = ALL;
        user.shared[QUOTA_REGIONS] = true;
        assert_int_equal(
                quotas_new(&t, &params, 1, &(struct quota_access){ 0 }, &all, &user, error), 0);
        for (unsigned i = 0; i < USERS; i++) {
                uint64_t n = 0;

                assert_int_equal(quota_holder_open(&holders[i], t, 0, 100 + i), 0);
                while (quota_charge(&holders[i], QUOTA_REGIONS, 1) == 0)
                        n++;
                assert_int_equal(quota_charge(&holders[i], QUOTA_REGIONS, 1), QUOTA_FULL);
                assert_true(i == 0 ? n == ALL / 4 * 3 : i < 3 ? n > 0 && n < before : n <= before);
                before = n;
        }
        /* Another connection of the same user gets nothing more. A request that is too large is
         * refused completely. */
        assert_int_equal(quota_holder_open(&second, t, 0, 100), 0);
        assert_ptr_equal(second.user, holders[0].user);
        assert_int_equal(quota_user_uid(second.user), 100);
        assert_int_equal(quota_charge(&second, QUOTA_REGIONS, 1), QUOTA_FULL);
        assert_int_equal(quota_charge(&second, QUOTA_REGIONS, ALL + 1), QUOTA_FULL);

        quotas_get_largest_user(t, largest);
        assert_int_equal(largest[QUOTA_REGIONS], ALL / 4 * 3);
        assert_int_equal(largest[QUOTA_CONNECTIONS], 2);
        quotas_get_total(t, &total);
        assert_true(total.refused[QUOTA_REGIONS] > USERS);
        assert_int_equal(quota_holder_open(&admin, t, 0, 1), 0);
        admin.admin = true;
        assert_int_equal(quota_charge(&admin, QUOTA_REGIONS, ALL - total.used[QUOTA_REGIONS]), 0);
        assert_int_equal(quota_charge(&admin, QUOTA_REGIONS, 1), QUOTA_FULL);
        /* Resources that must be kept are charged above the limit, and released like others. */
        quota_charge_anyway(&second, QUOTA_REGIONS, 3);
        quotas_get_total(t, &total);
        assert_int_equal(total.used[QUOTA_REGIONS], ALL + 3);
        quota_holder_close(&second);
        quota_holder_close(&admin);
        for (unsigned i = 0; i < USERS; i++)
                quota_holder_close(&holders[i]);
        quotas_get_total(t, &total);
        assert_int_equal(total.used[QUOTA_REGIONS], 0);
        quotas_free(t);
}

static void test_R10_a_sum_that_overflows_is_over_the_limit(void **state)
{
        struct quotas *t = three(&none, &none, &none);
        struct quota_holder a, b;

        assert_int_equal(quota_holder_open(&a, t, 1, 10), 0);
        assert_int_equal(quota_holder_open(&b, t, 1, 11), 0);
        assert_int_equal(quota_charge(&a, QUOTA_LEASED_BYTES, UINT64_MAX - 5), 0);
        assert_int_equal(quota_charge(&a, QUOTA_LEASED_BYTES, 6), QUOTA_OVER_USER);
        assert_int_equal(quota_charge(&a, QUOTA_LEASED_BYTES, UINT64_MAX), QUOTA_OVER_USER);
        assert_int_equal(quota_charge(&b, QUOTA_LEASED_BYTES, 6), QUOTA_OVER_TENANT);
        assert_int_equal(quota_charge(&b, QUOTA_LEASED_BYTES, 5), 0);
        quota_holder_close(&a);
        quota_holder_close(&b);
        quotas_free(t);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_peer_has_the_credentials_of_its_socket),
                cmocka_unit_test(without_lists_everybody_but_nobody_may_connect),
                cmocka_unit_test(different_rights_have_different_digests),
                cmocka_unit_test(readers_are_recorded_once_and_are_bounded),
                cmocka_unit_test(lists_name_users_and_groups_by_number_and_by_name),
                cmocka_unit_test(nobody_is_let_in_where_it_is_named_and_is_no_admin_by_that),
                cmocka_unit_test(a_name_that_is_not_known_is_said),
                cmocka_unit_test(the_first_tenant_that_matches_decides_and_default_comes_last),
                cmocka_unit_test(
                        test_R10_charges_end_at_the_limit_of_user_tenant_and_all_and_are_given_back),
                cmocka_unit_test(test_R10_a_connection_has_a_limit_of_its_own),
                cmocka_unit_test(test_R10_what_is_handed_over_outlives_its_connection),
                cmocka_unit_test(test_R10_users_share_what_is_left),
                cmocka_unit_test(test_R10_a_sum_that_overflows_is_over_the_limit),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
