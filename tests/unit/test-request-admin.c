/* SPDX-License-Identifier: Apache-2.0 */
/* Administration as a client sees it: the rights that each request needs, its answers, its errors
 * and its limits. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "checked.h"
#include "request-fixture.h"

static struct wire_report_request report_request(enum wire_report what)
{
        return (struct wire_report_request){ .hdr.op = WIRE_REPORT, .what = what };
}

static const struct wire_reply *purge(struct peer_end *c, uint32_t ns, unsigned flags)
{
        struct wire_purge msg = { .hdr = { .op = WIRE_PURGE, .flags = (uint16_t)flags },
                                  .namespace_id = ns };

        return call(c, &msg, sizeof(msg));
}

static const struct wire_reply *device(struct peer_end *c, uint32_t volume,
                                       enum wire_device_action action)
{
        struct wire_device msg = { .hdr.op = WIRE_DEVICE, .volume = volume, .action = action };

        return call(c, &msg, sizeof(msg));
}

static const struct wire_reply *verify(struct peer_end *c, uint32_t volume)
{
        struct wire_verify msg = {
                .hdr.op = WIRE_VERIFY, .volume = volume, .max_chunks = 1000, .max_bytes = 64 * MIB
        };

        return call(c, &msg, sizeof(msg));
}

static const struct wire_reply *sweep(struct peer_end *c, uint64_t limit, uint32_t options)
{
        struct wire_sweep msg = { .hdr.op = WIRE_SWEEP, .limit = limit, .options = options };

        return call(c, &msg, sizeof(msg));
}

/* Sends a BENCH message with a name. */
static const struct wire_reply *bench(struct peer_end *c, enum wire_bench_action action,
                                      const char *name, size_t length)
{
        struct {
                struct wire_bench head;
                char name[WIRE_BENCH_NAME];
        } msg = { .head = { .hdr.op = WIRE_BENCH,
                            .action = (uint8_t)action,
                            .name_length = (uint8_t)length } };

        memcpy(msg.name, name, length);
        return call(c, &msg, sizeof(msg.head) + length);
}

/* Sends a request that nothing follows its header. */
static const struct wire_reply *call_bare(struct peer_end *c, enum wire_op op)
{
        struct wire_hdr msg = { .op = op };

        return call(c, &msg, sizeof(msg));
}

static enum wire_tier tiers_of(struct peer_end *c, uint32_t n)
{
        batch_of_keys(c, WIRE_EXISTS, 0, n, 1);
        return *(const uint8_t *)(call_batch(c) + 1);
}

/* --- rights --- */

static void requests_of_admins_are_denied_to_users(void **state)
{
        struct wire_report_request config = report_request(WIRE_REPORT_CONFIG),
                                   stages = report_request(WIRE_REPORT_STAGES);
        struct wire_record record = { .hdr.op = WIRE_RECORD, .duration_s = 1 };
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        assert_int_equal(put(&c, 1, WIRE_WRITTEN), WIRE_OK);
        assert_says(call(&c, &config, sizeof(config)), WIRE_DENIED, "needs an admin");
        assert_says(call(&c, &stages, sizeof(stages)), WIRE_DENIED, "needs an admin");
        assert_says(call(&c, &record, sizeof(record)), WIRE_DENIED, "needs an admin");
        assert_says(call_bare(&c, WIRE_RELOAD), WIRE_DENIED, "needs an admin");
        assert_int_equal(rig.reloads, 0);
        assert_says(purge(&c, 0, WIRE_F_ALL), WIRE_DENIED, "needs an admin");
        assert_says(device(&c, 0, WIRE_DEVICE_SUSPEND), WIRE_DENIED, "needs an admin");
        assert_says(verify(&c, 0), WIRE_DENIED, "needs an admin");
        assert_says(sweep(&c, 0, 0), WIRE_DENIED, "needs an admin");
        for (enum wire_bench_action a = WIRE_BENCH_INIT; a < WIRE_BENCH_ACTION_END; a++)
                if (a != WIRE_BENCH_STATUS && a != WIRE_BENCH_LIST)
                        assert_says(bench(&c, a, "s", 1), WIRE_DENIED, "needs an admin");
        assert_int_equal(tiers_of(&c, 1), WIRE_TIER_ALL);
        hang_up(&c);
}

static void an_admin_has_the_rights_of_its_own_connection_only(void **state)
{
        struct wire_report_request config = report_request(WIRE_REPORT_CONFIG);
        struct peer_end root, user;
        char *text;

        connect_as(&root, ROOT);
        connect_as(&user, ALICE);
        text = call_for_text(&root, &config, sizeof(config));
        assert_non_null(strstr(text, "store:"));
        free(text);
        assert_says(call(&user, &config, sizeof(config)), WIRE_DENIED, "needs an admin");
        hang_up(&root);
        hang_up(&user);
}

/* --- reports, the configuration --- */

static void a_report_is_a_sealed_text_of_the_length_that_the_reply_says(void **state)
{
        static const struct {
                enum wire_report what;
                const char *begin, *has;
        } cases[] = {
                { WIRE_REPORT_STATUS, "{", "\"uptime_seconds\"" },
                { WIRE_REPORT_STATS, "{", "kvcache_" },
                { WIRE_REPORT_METRICS, "# HELP", "kvcache_" },
                { WIRE_REPORT_CONFIG, "", "listen:" },
                { WIRE_REPORT_STAGES, "{", "\"events\"" },
                { WIRE_REPORT_NAMESPACES, "{", "\"sample_seconds\":15" },
        };
        struct peer_end c;

        connect_as(&c, ROOT);
        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
                struct wire_report_request msg = report_request(cases[i].what);
                char *text = call_for_text(&c, &msg, sizeof(msg));

                assert_int_equal(strncmp(text, cases[i].begin, strlen(cases[i].begin)), 0);
                if (!strstr(text, cases[i].has))
                        fail_msg("report %u lacks %s: %.200s", cases[i].what, cases[i].has, text);
                free(text);
        }
        hang_up(&c);
}

static void reports_that_are_left_unread_are_bounded(void **state)
{
        struct wire_report_request msg = report_request(WIRE_REPORT_STATUS);
        unsigned answered = 0, refused = 0, n = 40;
        struct peer_end c;

        connect_as(&c, ALICE);
        for (unsigned i = 0; i < n; i++)
                send_message(&c, &msg, sizeof(msg));
        rig_turns();
        for (unsigned i = 0; i < n; i++) {
                const struct wire_reply *r = receive_reply(&c, WIRE_REPORT, NULL, NULL);

                answered += r->status == WIRE_OK;
                refused += r->status == WIRE_BUSY;
        }
        assert_int_equal(answered + refused, n);
        assert_true(answered > 0);
        assert_true(refused > 0);
        hang_up(&c);
}

static void a_reload_says_what_became_of_it(void **state)
{
        struct wire_hdr msg = { .op = WIRE_RELOAD };
        struct peer_end c;
        char *text;
        int fd;

        connect_as(&c, ROOT);
        text = call_for_text(&c, &msg, sizeof(msg));
        assert_string_equal(text, "{\"reload\": true}");
        free(text);
        rig.reload_result = 1;
        assert_int_equal(call_for_fd(&c, &msg, sizeof(msg), &fd)->value, 1);
        close(fd);
        rig.reload_result = -ESHUTDOWN;
        assert_says(call(&c, &msg, sizeof(msg)), WIRE_SHUTDOWN, "is stopping");
        rig.reload_result = -ENOMEM;
        assert_says(call(&c, &msg, sizeof(msg)), WIRE_BUSY, "no memory");
        assert_int_equal(rig.reloads, 4);
        hang_up(&c);
}

/* --- lists --- */

static void a_list_gives_each_chunk_once_over_several_messages(void **state)
{
        struct wire_list msg = { .hdr.op = WIRE_LIST, .max = 2 };
        bool seen[7] = { false };
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        for (uint32_t n = 1; n < ARRAY_SIZE(seen); n++)
                assert_int_equal(put(&c, n, WIRE_WRITTEN), WIRE_OK);
        msg.namespace_id = c.ns;
        do {
                const struct wire_reply *r = call(&c, &msg, sizeof(msg));
                const struct wire_list_result *results = (const struct wire_list_result *)(r + 1);

                assert_int_equal(r->status, WIRE_OK);
                assert_in_range(r->count, 0, msg.max);
                for (unsigned i = 0; i < r->count; i++) {
                        uint32_t n;

                        memcpy(&n, results[i].key.bytes + 4, sizeof(n));
                        assert_in_range(n, 1, ARRAY_SIZE(seen) - 1);
                        assert_false(seen[n]);
                        seen[n] = true;
                        assert_int_equal(results[i].length, LENGTH);
                        assert_int_equal(results[i].tiers, WIRE_TIER_ALL);
                        assert_true(results[i].created_ms > 0);
                }
                msg.cursor = r->value64;
        } while (msg.cursor != 0);
        for (uint32_t n = 1; n < ARRAY_SIZE(seen); n++)
                assert_true(seen[n]);
        msg.namespace_id = 9;
        assert_says(call(&c, &msg, sizeof(msg)), WIRE_NO_NAMESPACE, "has not opened");
        hang_up(&c);
}

/* --- purges --- */

static void a_purge_drops_the_chunks_of_its_namespace_only(void **state)
{
        struct peer_end c;
        uint32_t first;

        connect_as(&c, ALICE);
        enter(&c, "a");
        first = c.ns;
        assert_int_equal(put(&c, 1, WIRE_WRITTEN), WIRE_OK);
        assert_int_equal(put(&c, 2, WIRE_WRITTEN), WIRE_OK);
        enter(&c, "b");
        assert_int_equal(put(&c, 1, WIRE_WRITTEN), WIRE_OK);
        assert_int_equal(purge(&c, first, 0)->status, WIRE_OK);
        assert_int_equal(tiers_of(&c, 1), WIRE_TIER_ALL);
        c.ns = first;
        assert_int_equal(tiers_of(&c, 1), 0);
        assert_int_equal(tiers_of(&c, 2), 0);
        assert_int_equal(purge(&c, first, 0)->value64, 0);
        assert_says(purge(&c, 9, 0), WIRE_NO_NAMESPACE, "has not opened");
        assert_says(purge(&c, first, WIRE_F_REMOTE), WIRE_INVALID, "no shared tier");
        hang_up(&c);
}

static void a_purge_of_everything_reaches_the_memory_of_every_tenant(void **state)
{
        struct peer_end root, user, guest;

        connect_as(&root, ROOT);
        connect_as(&user, ALICE);
        connect_as(&guest, GUEST);
        enter(&user, "a");
        enter(&guest, "a");
        assert_int_equal(put(&user, 1, WIRE_WRITTEN), WIRE_OK);
        assert_int_equal(put(&guest, 2, WIRE_WRITTEN), WIRE_OK);
        assert_int_equal(tiers_of(&guest, 1), 0); /* nothing of another tenant is found */
        assert_int_equal(purge(&root, 0, WIRE_F_ALL)->value64, 2);
        assert_int_equal(tiers_of(&user, 1), 0);
        assert_int_equal(tiers_of(&guest, 2), 0);
        hang_up(&root);
        hang_up(&user);
        hang_up(&guest);
}

static void a_purge_that_is_not_on_the_disk_is_no_success(void **state)
{
        struct peer_end c;

        connect_as(&c, ALICE);
        enter(&c, "a");
        assert_int_equal(put(&c, 1, WIRE_WRITTEN), WIRE_OK);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_SYNC | 1u << KIO_WRITE,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        assert_says(purge(&c, c.ns, 0), WIRE_FAILED, "not synced to disk: Input/output error");
        assert_int_equal(tiers_of(&c, 1), 0);
        hang_up(&c);
}

static void a_purge_goes_on_without_the_client_that_asked_for_it(void **state)
{
        struct wire_purge msg = { .hdr.op = WIRE_PURGE };
        struct peer_end c, other;

        connect_as(&c, ALICE);
        connect_as(&other, ALICE);
        enter(&c, "a");
        enter(&other, "a");
        assert_int_equal(put(&c, 1, WIRE_WRITTEN), WIRE_OK);
        msg.namespace_id = c.ns;
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_SYNC | 1u << KIO_WRITE,
                                        .kind = FAULT_NEVER,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        send_message(&c, &msg, sizeof(msg));
        while (fault_hits() == 0)
                rig_turn(false);
        hang_up(&c);
        rig_turns();
        assert_true(rig_used(QUOTA_REQUEST_BYTES) > 0); /* charged to its user until the end */
        fault_set(NULL);
        fault_release();
        while (rig_used(QUOTA_REQUEST_BYTES) > 0)
                rig_turn(true);
        assert_int_equal(tiers_of(&other, 1), 0);
        hang_up(&other);
}

/* --- the store's volumes --- */

static void a_suspended_volume_has_no_chunks_until_it_is_resumed(void **state)
{
        struct peer_end root, c;

        connect_as(&root, ROOT);
        connect_as(&c, ALICE);
        enter(&c, "a");
        assert_int_equal(put(&c, 1, WIRE_WRITTEN), WIRE_OK);
        assert_says(device(&root, 1, WIRE_DEVICE_SUSPEND), WIRE_INVALID,
                    "no volume of that number");
        assert_int_equal(device(&root, 0, WIRE_DEVICE_SUSPEND)->status, WIRE_OK);
        assert_int_equal(device(&root, 0, WIRE_DEVICE_SUSPEND)->value64, 1); /* suspended before */
        assert_int_equal(tiers_of(&c, 1) & WIRE_TIER_DISK, 0);
        assert_says(verify(&root, 0), WIRE_FAILED, "not in use");
        assert_int_equal(device(&root, 0, WIRE_DEVICE_RESUME)->status, WIRE_OK);
        assert_int_equal(device(&root, 0, WIRE_DEVICE_RESUME)->value64, 1);
        assert_int_equal(tiers_of(&c, 1) & WIRE_TIER_DISK, WIRE_TIER_DISK);
        hang_up(&root);
        hang_up(&c);
}

static void a_purge_names_the_volumes_as_the_cause_if_none_is_in_use(void **state)
{
        struct peer_end root, c;

        connect_as(&root, ROOT);
        connect_as(&c, ALICE);
        enter(&c, "a");
        assert_int_equal(device(&root, 0, WIRE_DEVICE_SUSPEND)->status, WIRE_OK);
        assert_says(purge(&c, c.ns, 0), WIRE_FAILED,
                    "not synced to disk: no volume of the store is in use");
        hang_up(&root);
        hang_up(&c);
}

static void a_verification_counts_what_it_reads(void **state)
{
        struct wire_verify_result found;
        struct peer_end root, c;

        connect_as(&root, ROOT);
        connect_as(&c, ALICE);
        enter(&c, "a");
        for (uint32_t n = 1; n < 4; n++)
                assert_int_equal(put(&c, n, WIRE_WRITTEN), WIRE_OK);
        assert_says(verify(&root, 7), WIRE_INVALID, "no volume of that number");
        found = *(const struct wire_verify_result *)(verify(&root, 0) + 1);
        assert_int_equal(found.volumes, 1);
        assert_int_equal(found.chunks, 3);
        assert_int_equal(found.bytes, 3 * LENGTH);
        assert_int_equal(found.mismatched + found.unreadable + found.skipped, 0);
        fault_set(&(struct fault_plan){ .ops = 1u << KIO_READ,
                                        .kind = FAULT_ERROR,
                                        .error = EIO,
                                        .first = 1,
                                        .count = FAULT_FOR_EVER });
        found = *(const struct wire_verify_result *)(verify(&root, 0) + 1);
        assert_int_equal(found.unreadable, 3);
        hang_up(&root);
        hang_up(&c);
}

/* --- limits --- */

static void
an_operation_over_its_users_limit_is_refused_and_costs_another_user_nothing(void **state)
{
        struct wire_list list = { .hdr.op = WIRE_LIST, .max = 1 };
        struct peer_end root, c;

        connect_as(&root, ROOT);
        connect_as(&c, ALICE);
        enter(&c, "a");
        list.namespace_id = c.ns;
        rig_limit(QUOTA_REQUEST_BYTES, 64, QUOTA_NO_LIMIT);
        assert_says(purge(&c, c.ns, 0), WIRE_QUOTA, "this user has too many requests in flight");
        assert_says(call(&c, &list, sizeof(list)), WIRE_QUOTA,
                    "this user has too many requests in flight");
        assert_says(verify(&root, 0), WIRE_QUOTA, "this user has too many requests in flight");
        assert_says(device(&root, 0, WIRE_DEVICE_SUSPEND), WIRE_QUOTA,
                    "this user has too many requests in flight");
        rig_limit(QUOTA_REQUEST_BYTES, QUOTA_NO_LIMIT, 64);
        assert_says(purge(&c, c.ns, 0), WIRE_BUSY, "all clients together");
        assert_int_equal(rig_used(QUOTA_REQUEST_BYTES), 0);
        rig_limit(QUOTA_REQUEST_BYTES, QUOTA_NO_LIMIT, QUOTA_NO_LIMIT);
        rig_limit(QUOTA_REQUESTS, 0, QUOTA_NO_LIMIT);
        assert_says(purge(&c, c.ns, 0), WIRE_QUOTA, "this user has too many requests in flight");
        assert_int_equal(rig_used(QUOTA_REQUEST_BYTES), 0);
        hang_up(&root);
        hang_up(&c);
}

/* --- the shared tier --- */

/* Opens a namespace that the shared tier knows. */
static void enter_shared(struct peer_end *c, const char *name)
{
        enter(c, name);
        rig_turns();
}

static void a_purge_of_the_shared_tier_says_for_how_long_other_hosts_may_have_it(void **state)
{
        struct peer_end c;

        connect_as(&c, ALICE);
        enter_shared(&c, "a");
        assert_int_equal(put(&c, 1, WIRE_WRITTEN), WIRE_OK);
        assert_int_equal(purge(&c, c.ns, WIRE_F_REMOTE)->value, 10);
        assert_int_equal(tiers_of(&c, 1), 0);
        assert_true(fake_count(BACKEND_REPLACE) > 0);
        hang_up(&c);
}

static void a_purge_that_the_shared_tier_refuses_is_no_success(void **state)
{
        struct peer_end root, c;

        connect_as(&c, ALICE);
        connect_as(&root, ROOT);
        enter_shared(&c, "a");
        fake_fail(BACKEND_REPLACE, -EIO, 1000);
        assert_says(purge(&c, c.ns, WIRE_F_REMOTE), WIRE_FAILED, "may restore the chunks");
        assert_says(purge(&root, 0, WIRE_F_ALL | WIRE_F_REMOTE), WIRE_FAILED,
                    "may restore the chunks");
        hang_up(&c);
        hang_up(&root);
}

static void a_sweep_deletes_objects_until_its_limit_holds(void **state)
{
        const struct wire_sweep_result *result;
        struct peer_end root, c;
        unsigned before;

        connect_as(&root, ROOT);
        connect_as(&c, ALICE);
        enter_shared(&c, "a");
        for (uint32_t n = 1; n < 5; n++)
                put_on_shared_tier("a", n, LENGTH);
        before = fake_objects();
        result = (const struct wire_sweep_result *)(sweep(&root, 0, WIRE_SWEEP_DRY_RUN) + 1);
        assert_true(result->seen_bytes >= 4 * LENGTH);
        assert_true(result->deleted_bytes >= 4 * LENGTH);
        assert_int_equal(fake_objects(), before);
        fake_lease("another");
        assert_says(sweep(&root, 0, 0), WIRE_BUSY, "is sweeping");
        fake_lease(NULL);
        result = (const struct wire_sweep_result *)(sweep(&root, UINT64_MAX, 0) + 1);
        assert_int_equal(result->deleted, 0);
        assert_int_equal(fake_objects(), before);
        result = (const struct wire_sweep_result *)(sweep(&root, 0, 0) + 1);
        assert_int_equal(result->deleted, 4);
        assert_int_equal(fake_objects(), before - 4);
        hang_up(&c);
        hang_up(&root);
}

static void a_sweep_needs_a_shared_tier(void **state)
{
        struct peer_end root;

        connect_as(&root, ROOT);
        assert_says(sweep(&root, 0, 0), WIRE_INVALID, "no shared tier");
        hang_up(&root);
}

#define TEST(name)   cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
#define SHARED(name) cmocka_unit_test_setup_teardown(name, rig_setup_remote, rig_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(requests_of_admins_are_denied_to_users),
                TEST(an_admin_has_the_rights_of_its_own_connection_only),
                TEST(a_report_is_a_sealed_text_of_the_length_that_the_reply_says),
                TEST(reports_that_are_left_unread_are_bounded),
                TEST(a_reload_says_what_became_of_it),
                TEST(a_list_gives_each_chunk_once_over_several_messages),
                TEST(a_purge_drops_the_chunks_of_its_namespace_only),
                TEST(a_purge_of_everything_reaches_the_memory_of_every_tenant),
                TEST(a_purge_that_is_not_on_the_disk_is_no_success),
                TEST(a_purge_goes_on_without_the_client_that_asked_for_it),
                TEST(a_suspended_volume_has_no_chunks_until_it_is_resumed),
                TEST(a_purge_names_the_volumes_as_the_cause_if_none_is_in_use),
                TEST(a_verification_counts_what_it_reads),
                TEST(an_operation_over_its_users_limit_is_refused_and_costs_another_user_nothing),
                SHARED(a_purge_of_the_shared_tier_says_for_how_long_other_hosts_may_have_it),
                SHARED(a_purge_that_the_shared_tier_refuses_is_no_success),
                TEST(a_sweep_needs_a_shared_tier),
                SHARED(a_sweep_deletes_objects_until_its_limit_holds),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
