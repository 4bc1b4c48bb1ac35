/* SPDX-License-Identifier: Apache-2.0 */
/* Who may connect and who is an admin; what is charged is uncharged, and never more than the limit.
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

#include "tenant.h"

enum { NOBODY = 65534 };

static struct tenants *tenants(const char *user, const char *group, const char *admin,
                               const char *admin_group, struct tenant_limits limits)
{
        char *users[] = { (char *)user }, *groups[] = { (char *)group };
        char *admins[] = { (char *)admin }, *admin_groups[] = { (char *)admin_group };
        struct tenant_access clients = { users, user != NULL, groups, group != NULL };
        struct tenant_access admin_access = { admins, admin != NULL, admin_groups,
                                              admin_group != NULL };
        struct tenants *t = NULL;
        char error[256] = "";

        if (tenants_new(&t, &clients, &admin_access, &limits, error) < 0)
                fail_msg("%s", error);
        return t;
}

static int who(const struct tenants *t, struct peer p, bool *ret_admin)
{
        uint16_t tenant = 77;
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
        struct tenants *t = tenants(NULL, NULL, NULL, NULL, (struct tenant_limits){ 1, 1 });
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
        struct tenants *t = tenants("4711", "4712", "root", "4713", (struct tenant_limits){ 1, 1 });
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
        struct tenants *t = tenants("65534", NULL, NULL, NULL, (struct tenant_limits){ 1, 1 });
        bool admin = true;

        assert_int_equal(who(t, (struct peer){ .uid = NOBODY, .gid = NOBODY }, &admin), 0);
        assert_false(admin);
        tenants_free(t);
}

static void a_name_that_is_not_known_is_said(void **state)
{
        char *users[] = { (char *)"no such user, I hope" }, *odd[] = { (char *)"-1" },
             *large[] = { (char *)"99999999999" };
        struct tenant_limits limits = { 1, 1 };
        struct tenant_access none = { 0 };
        struct tenants *t = NULL;
        char error[256];

        assert_int_equal(tenants_new(&t, &(struct tenant_access){ .users = users, .n_users = 1 },
                                     &none, &limits, error),
                         -EINVAL);
        assert_non_null(strstr(error, users[0]));
        assert_int_equal(tenants_new(&t, &none,
                                     &(struct tenant_access){ .groups = users, .n_groups = 1 },
                                     &limits, error),
                         -EINVAL);
        assert_non_null(strstr(error, "group"));
        assert_int_equal(tenants_new(&t, &(struct tenant_access){ .users = odd, .n_users = 1 },
                                     &none, &limits, error),
                         -EINVAL);
        assert_int_equal(tenants_new(&t, &(struct tenant_access){ .users = large, .n_users = 1 },
                                     &none, &limits, error),
                         -EINVAL);
        assert_null(t);
}

static void charges_end_at_the_limit_and_are_given_back(void **state)
{
        struct tenants *t = tenants(NULL, NULL, NULL, NULL,
                                    (struct tenant_limits){ .connections = 2, .lane_bytes = 1000 });
        struct tenant_usage u;

        assert_int_equal(tenants_charge_connection(t, 0), 0);
        assert_int_equal(tenants_charge_connection(t, 0), 0);
        assert_int_equal(tenants_charge_connection(t, 0), TENANT_QUOTA);
        tenants_uncharge_connection(t, 0);
        assert_int_equal(tenants_charge_connection(t, 0), 0);

        assert_int_equal(tenants_charge_lane(t, 0, 1001), TENANT_QUOTA);
        assert_int_equal(tenants_charge_lane(t, 0, UINT64_MAX), TENANT_QUOTA);
        assert_int_equal(tenants_charge_lane(t, 0, 600), 0);
        assert_int_equal(tenants_charge_lane(t, 0, 401), TENANT_QUOTA);
        assert_int_equal(tenants_charge_lane(t, 0, 400), 0);
        /* Lowered below what is held: nothing more, and what is held comes back. */
        tenants_set_limits(t, &(struct tenant_limits){ .connections = 1, .lane_bytes = 500 });
        assert_int_equal(tenants_charge_lane(t, 0, 1), TENANT_QUOTA);
        assert_int_equal(tenants_charge_connection(t, 0), TENANT_QUOTA);
        tenants_uncharge_lane(t, 0, 600);
        tenants_uncharge_lane(t, 0, 400);
        tenants_uncharge_connection(t, 0);
        tenants_uncharge_connection(t, 0);
        tenants_get_usage(t, 0, &u);
        assert_int_equal(u.connections + u.lane_bytes + u.lanes, 0);
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
                cmocka_unit_test(charges_end_at_the_limit_and_are_given_back),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
