/* SPDX-License-Identifier: Apache-2.0 */
/* Who may connect, as which tenant, and who is an admin; what is charged is uncharged, and never
 * more than the limit.
 */
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

enum { NOBODY = 65534 };

static const struct tenant_limits none = { { [0 ... TENANT_THINGS - 1] = TENANT_NO_LIMIT } };

static struct tenants *tenants(const char *user, const char *group, const char *admin,
                               const char *admin_group)
{
        char *users[] = { (char *)user }, *groups[] = { (char *)group };
        char *admins[] = { (char *)admin }, *admin_groups[] = { (char *)admin_group };
        struct tenant_params only = { .name = "default",
                                      .access = { users, user != NULL, groups, group != NULL },
                                      .limits = none };
        struct tenant_access admin_access = { admins, admin != NULL, admin_groups,
                                              admin_group != NULL };
        struct tenants *t = NULL;
        char error[256] = "";

        if (tenants_new(&t, &only, 1, &admin_access, &none, &none, error) < 0)
                fail_msg("%s", error);
        return t;
}

static int who(const struct tenants *t, struct peer p, bool *ret_admin)
{
        unsigned tenant = 77;
        int r = tenants_identify(t, &p, &tenant, ret_admin);

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
        struct tenants *t = tenants(NULL, NULL, NULL, NULL);
        bool admin = true;

        assert_int_equal(who(t, (struct peer){ .uid = 4711, .gid = 4711 }, &admin), 0);
        assert_false(admin);
        assert_int_equal(who(t, (struct peer){ .uid = 0 }, &admin), 0);
        assert_true(admin);
        if (geteuid() != NOBODY)
                assert_int_equal(who(t, (struct peer){ .uid = NOBODY, .gid = NOBODY }, &admin),
                                 TENANT_REFUSED);
        tenants_free(t);
}

static void lists_name_users_and_groups_by_number_and_by_name(void **state)
{
        struct tenants *t = tenants("4711", "4712", "root", "4713");
        bool admin;

        assert_int_equal(who(t, (struct peer){ .uid = 4711, .gid = 1 }, &admin), 0);
        assert_false(admin);
        assert_int_equal(who(t, (struct peer){ .uid = 1, .gid = 4712 }, &admin), 0);
        assert_false(admin);
        assert_int_equal(
                who(t, (struct peer){ .uid = 1, .gid = 1, .groups = { 5, 4712 }, .n_groups = 2 },
                    &admin),
                0);
        /* groups that are not said to be there are not looked at */
        assert_int_equal(
                who(t, (struct peer){ .uid = 1, .gid = 1, .groups = { 5, 4712 }, .n_groups = 1 },
                    &admin),
                TENANT_REFUSED);
        assert_int_equal(who(t, (struct peer){ .uid = 4712, .gid = 4711 }, &admin), TENANT_REFUSED);
        /* an admin need not be in the other lists */
        assert_int_equal(who(t, (struct peer){ .uid = 1, .gid = 4713 }, &admin), 0);
        assert_true(admin);
        tenants_free(t);
}

static void nobody_is_let_in_where_it_is_named_and_is_no_admin_by_that(void **state)
{
        struct tenants *t = tenants("65534", NULL, NULL, NULL);
        bool admin = true;

        assert_int_equal(who(t, (struct peer){ .uid = NOBODY, .gid = NOBODY }, &admin), 0);
        assert_false(admin);
        tenants_free(t);
}

static int made_with(struct tenant_access access, char *error)
{
        struct tenant_params params[] = { { .name = "default", .limits = none },
                                          { .name = "a", .access = access, .limits = none } };
        struct tenant_access admins = { 0 };
        struct tenants *t = NULL;
        int r = tenants_new(&t, params, 2, &admins, &none, &none, error);

        assert_true(r == 0 || !t);
        tenants_free(t);
        return r;
}

static void a_name_that_is_not_known_is_said(void **state)
{
        char *users[] = { (char *)"no such user, I hope" }, *odd[] = { (char *)"-1" },
             *large[] = { (char *)"99999999999" };
        char error[256];

        assert_int_equal(made_with((struct tenant_access){ .users = users, .n_users = 1 }, error),
                         -EINVAL);
        assert_non_null(strstr(error, users[0]));
        assert_int_equal(made_with((struct tenant_access){ .groups = users, .n_groups = 1 }, error),
                         -EINVAL);
        assert_non_null(strstr(error, "group"));
        assert_int_equal(made_with((struct tenant_access){ .users = odd, .n_users = 1 }, error),
                         -EINVAL);
        assert_int_equal(made_with((struct tenant_access){ .users = large, .n_users = 1 }, error),
                         -EINVAL);
}

/* Three tenants: default, which takes 30 alone; "first" with user 10 and group 100; "second" with
 * users 10 and 20 and group 100. */
static struct tenants *three(const struct tenant_limits *first, const struct tenant_limits *all,
                             const struct tenant_limits *user)
{
        static char *last[] = { (char *)"30" }, *ten[] = { (char *)"10" },
                    *both[] = { (char *)"20", (char *)"10" }, *group[] = { (char *)"100" };
        struct tenant_params params[] = {
                { "default", { last, 1, NULL, 0 }, none },
                { "first", { ten, 1, group, 1 }, *first },
                { "second", { both, 2, group, 1 }, none },
        };
        struct tenant_access admins = { last, 1, NULL, 0 };
        struct tenants *t = NULL;
        char error[256] = "";

        if (tenants_new(&t, params, 3, &admins, all, user, error) < 0)
                fail_msg("%s", error);
        return t;
}

static int tenant_of(const struct tenants *t, uid_t uid, gid_t gid)
{
        bool admin;
        unsigned tenant = 77;

        return tenants_identify(t, &(struct peer){ .uid = uid, .gid = gid }, &tenant, &admin) == 0
                       ? (int)tenant
                       : -1;
}

static void the_first_tenant_that_matches_decides_and_default_comes_last(void **state)
{
        struct tenants *t = three(&none, &none, &none);

        assert_int_equal(tenant_of(t, 10, 1), 1);
        assert_int_equal(tenant_of(t, 20, 1), 2);
        assert_int_equal(tenant_of(t, 20, 100), 1);
        assert_int_equal(tenant_of(t, 30, 1), TENANT_DEFAULT);
        assert_int_equal(tenant_of(t, 30, 100), 1);
        assert_int_equal(tenant_of(t, 40, 1), -1);
        if (geteuid() != NOBODY)
                assert_int_equal(tenant_of(t, NOBODY, 100), -1);
        assert_int_equal(tenants_count(t), 3);
        assert_string_equal(tenants_name(t, 2), "second");
        tenants_free(t);
}

static void
test_R10_charges_end_at_the_limit_of_user_tenant_and_all_and_are_given_back(void **state)
{
        struct tenant_limits first = none, all = none, user = none;
        struct tenant_holder a, b, c, d;
        struct tenant_usage u;
        struct tenants *t;

        first.most[TENANT_CONNECTIONS] = 2;
        first.most[TENANT_LANE_BYTES] = 1000;
        all.most[TENANT_LANE_BYTES] = 1500;
        user.most[TENANT_LANE_BYTES] = 700;
        t = three(&first, &all, &user);

        assert_int_equal(tenant_holder_open(&a, t, 1, 10), 0);
        assert_int_equal(tenant_holder_open(&b, t, 1, 11), 0);
        assert_int_equal(tenant_holder_open(&c, t, 1, 12), TENANT_QUOTA);
        assert_int_equal(tenants_users(t), 2);
        tenant_holder_close(&b);
        assert_int_equal(tenants_users(t), 1);
        assert_int_equal(tenant_holder_open(&b, t, 1, 11), 0);
        assert_int_equal(tenant_holder_open(&c, t, 2, 10), 0);
        assert_int_equal(tenant_holder_open(&d, t, 2, 13), 0);
        assert_int_equal(tenants_users(t), 3);

        /* A user's limit goes over its tenants. */
        assert_int_equal(tenant_charge(&a, TENANT_LANE_BYTES, 701), TENANT_QUOTA_USER);
        assert_int_equal(tenant_charge(&a, TENANT_LANE_BYTES, 700), 0);
        assert_int_equal(tenant_charge(&c, TENANT_LANE_BYTES, 1), TENANT_QUOTA_USER);
        assert_int_equal(tenant_charge(&b, TENANT_LANE_BYTES, 301), TENANT_QUOTA);
        assert_int_equal(tenant_charge(&b, TENANT_LANE_BYTES, 300), 0);
        assert_int_equal(tenant_charge(&d, TENANT_LANE_BYTES, 501), TENANT_FULL);
        assert_int_equal(tenant_charge(&d, TENANT_LANE_BYTES, 500), 0);
        /* Another thing is another sum. */
        assert_int_equal(tenant_charge(&d, TENANT_KEYS, UINT64_MAX / 2), 0);

        tenants_get_usage(t, 1, &u);
        assert_int_equal(u.used[TENANT_LANE_BYTES], 1000);
        assert_int_equal(u.most[TENANT_LANE_BYTES], 1000);
        assert_int_equal(u.refused[TENANT_LANE_BYTES], 2);
        assert_int_equal(u.refused[TENANT_CONNECTIONS], 1);
        tenants_get_total(t, &u);
        assert_int_equal(u.used[TENANT_LANE_BYTES], 1500);
        assert_int_equal(u.used[TENANT_CONNECTIONS], 4);

        tenant_uncharge(&a, TENANT_LANE_BYTES, 100);
        assert_int_equal(tenant_charge(&b, TENANT_LANE_BYTES, 101), TENANT_QUOTA);
        tenant_settle(&a, TENANT_LANE_BYTES, 600);
        tenant_settle(&a, TENANT_LANE_BYTES, 200);
        assert_int_equal(a.used[TENANT_LANE_BYTES], 200);
        /* Lowered below what is held: nothing more, and what is held comes back. */
        first.most[TENANT_LANE_BYTES] = 10;
        tenants_set_limits(t, 1, &first);
        assert_int_equal(tenant_charge(&b, TENANT_LANE_BYTES, 1), TENANT_QUOTA);

        tenant_holder_close(&a);
        tenant_holder_close(&b);
        tenant_holder_close(&c);
        tenant_holder_close(&d);
        tenant_holder_close(&d);
        for (unsigned i = 0; i < 3; i++) {
                tenants_get_usage(t, i, &u);
                for (unsigned k = 0; k < TENANT_THINGS; k++)
                        assert_int_equal(u.used[k], 0);
        }
        assert_int_equal(tenants_users(t), 0);
        tenants_free(t);
}

/* However many users take what they can, there is something left for one more; an admin may take
 * that. */
static void test_R10_users_share_what_is_left(void **state)
{
        enum { ALL = 64, USERS = 5 };
        struct tenant_limits all = none, user = none;
        struct tenant_params params = { .name = "default", .limits = none };
        struct tenant_holder holders[USERS], second, admin;
        uint64_t largest[TENANT_THINGS], before = ALL;
        struct tenant_usage total;
        struct tenants *t;
        char error[256];

        all.most[TENANT_REGIONS] = ALL;
        user.shared[TENANT_REGIONS] = true;
        assert_int_equal(
                tenants_new(&t, &params, 1, &(struct tenant_access){ 0 }, &all, &user, error), 0);
        for (unsigned i = 0; i < USERS; i++) {
                uint64_t n = 0;

                assert_int_equal(tenant_holder_open(&holders[i], t, 0, 100 + i), 0);
                while (tenant_charge(&holders[i], TENANT_REGIONS, 1) == 0)
                        n++;
                assert_int_equal(tenant_charge(&holders[i], TENANT_REGIONS, 1), TENANT_FULL);
                assert_true(i == 0 ? n == ALL / 4 * 3 : i < 3 ? n > 0 && n < before : n <= before);
                before = n;
        }
        /* Another connection of the same user has nothing more; too much at once is refused whole.
         */
        assert_int_equal(tenant_holder_open(&second, t, 0, 100), 0);
        assert_ptr_equal(second.user, holders[0].user);
        assert_int_equal(tenant_user_uid(second.user), 100);
        assert_int_equal(tenant_charge(&second, TENANT_REGIONS, 1), TENANT_FULL);
        assert_int_equal(tenant_charge(&second, TENANT_REGIONS, ALL + 1), TENANT_FULL);

        tenants_get_largest_user(t, largest);
        assert_int_equal(largest[TENANT_REGIONS], ALL / 4 * 3);
        assert_int_equal(largest[TENANT_CONNECTIONS], 2);
        tenants_get_total(t, &total);
        assert_true(total.refused[TENANT_REGIONS] > USERS);
        assert_int_equal(tenant_holder_open(&admin, t, 0, 1), 0);
        admin.admin = true;
        assert_int_equal(tenant_charge(&admin, TENANT_REGIONS, ALL - total.used[TENANT_REGIONS]),
                         0);
        assert_int_equal(tenant_charge(&admin, TENANT_REGIONS, 1), TENANT_FULL);
        /* What must be kept is charged over the limit, and given back as all else. */
        tenant_charge_anyway(&second, TENANT_REGIONS, 3);
        tenants_get_total(t, &total);
        assert_int_equal(total.used[TENANT_REGIONS], ALL + 3);
        tenant_holder_close(&second);
        tenant_holder_close(&admin);
        for (unsigned i = 0; i < USERS; i++)
                tenant_holder_close(&holders[i]);
        tenants_get_total(t, &total);
        assert_int_equal(total.used[TENANT_REGIONS], 0);
        tenants_free(t);
}

static void test_R10_a_sum_that_overflows_is_over_the_limit(void **state)
{
        struct tenants *t = three(&none, &none, &none);
        struct tenant_holder a, b;

        assert_int_equal(tenant_holder_open(&a, t, 1, 10), 0);
        assert_int_equal(tenant_holder_open(&b, t, 1, 11), 0);
        assert_int_equal(tenant_charge(&a, TENANT_LEASED_BYTES, UINT64_MAX - 5), 0);
        assert_int_equal(tenant_charge(&a, TENANT_LEASED_BYTES, 6), TENANT_QUOTA_USER);
        assert_int_equal(tenant_charge(&a, TENANT_LEASED_BYTES, UINT64_MAX), TENANT_QUOTA_USER);
        assert_int_equal(tenant_charge(&b, TENANT_LEASED_BYTES, 6), TENANT_QUOTA);
        assert_int_equal(tenant_charge(&b, TENANT_LEASED_BYTES, 5), 0);
        tenant_holder_close(&a);
        tenant_holder_close(&b);
        tenants_free(t);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_peer_has_the_credentials_of_its_socket),
                cmocka_unit_test(without_lists_everybody_but_nobody_may_connect),
                cmocka_unit_test(lists_name_users_and_groups_by_number_and_by_name),
                cmocka_unit_test(nobody_is_let_in_where_it_is_named_and_is_no_admin_by_that),
                cmocka_unit_test(a_name_that_is_not_known_is_said),
                cmocka_unit_test(the_first_tenant_that_matches_decides_and_default_comes_last),
                cmocka_unit_test(
                        test_R10_charges_end_at_the_limit_of_user_tenant_and_all_and_are_given_back),
                cmocka_unit_test(test_R10_users_share_what_is_left),
                cmocka_unit_test(test_R10_a_sum_that_overflows_is_over_the_limit),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
