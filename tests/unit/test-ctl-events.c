/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl events: how events, gaps and snapshots are printed. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "ctl-fixture.h"
#include "fake-admin.h"
#include "interrupt.h"

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"

static const struct kvcache_event events[] = {
        { .sequence = 5,
          .time_ms = 3661001,
          .length = 1536,
          .namespace_name = "n\033",
          .namespace_number = 1,
          .kind = KVCACHE_EVENT_STORED,
          .tier = KVCACHE_TIER_MEMORY },
        { .sequence = 6,
          .time_ms = 3661002,
          .length = 1,
          .namespace_number = 2,
          .kind = KVCACHE_EVENT_REMOVED,
          .tier = KVCACHE_TIER_DISK },
        { .sequence = 7,
          .time_ms = 3661003,
          .namespace_number = 2,
          .kind = KVCACHE_EVENT_NAMESPACE_REMOVED },
        { .sequence = 8, .time_ms = 3661004, .namespace_number = 3, .kind = 77, .tier = 9 },
};

static void answer(const int *results, size_t n, const int *snapshots, size_t n_snapshots)
{
        setenv("TZ", "UTC", 1);
        fake_admin.events = events;
        fake_admin.event_results = results;
        fake_admin.n_event_results = n;
        fake_admin.snapshot_results = snapshots;
        fake_admin.n_snapshot_results = n_snapshots;
}

static void events_prints_a_line_for_each(void **state)
{
        static const int results[] = { -ESTALE, 3, 1 };

        answer(results, 3, NULL, 0);
        ctl_expect(EXIT_OK,
                   "01:01:01.001  stored    memory " ZEROS "  1.5 KiB  n?\n"
                   "01:01:01.002  removed   disk   " ZEROS "  1 B  #2\n"
                   "01:01:01.003  removed   #2\n"
                   "01:01:01.004  unknown   -      " ZEROS "  0 B  #3\n",
                   "", "events");
}

static void events_in_json_prints_an_object_for_each(void **state)
{
        static const int results[] = { -ESTALE, 3 };

        answer(results, 2, NULL, 0);
        ctl_expect(
                EXIT_UNREACHABLE,
                "{\"kind\":\"stored\",\"sequence\":5,\"time_ms\":3661001,\"namespace_number\":1,"
                "\"namespace\":\"n\\u001b\",\"key\":\"" ZEROS
                "\",\"tier\":\"memory\",\"bytes\":1536}\n"
                "{\"kind\":\"removed\",\"sequence\":6,\"time_ms\":3661002,\"namespace_number\":2,"
                "\"key\":\"" ZEROS "\",\"tier\":\"disk\",\"bytes\":1}\n"
                "{\"kind\":\"namespace_removed\",\"sequence\":7,\"time_ms\":3661003,"
                "\"namespace_number\":2}\n",
                NULL, "-j", "events", "--follow");
}

static void events_says_where_some_were_lost(void **state)
{
        static const int results[] = { -ESTALE, 1, -ESTALE, 1 };

        answer(results, 4, NULL, 0);
        ctl_expect(EXIT_OK,
                   "01:01:01.001  stored    memory " ZEROS "  1.5 KiB  n?\n"
                   "gap: some events were lost\n"
                   "01:01:01.002  removed   disk   " ZEROS "  1 B  #2\n",
                   "", "events");
}

static void a_snapshot_replaces_earlier_events(void **state)
{
        static const int results[] = { -ESTALE, 1 };
        static const int snapshots[] = { 1, 0 };

        answer(results, 2, snapshots, 2);
        ctl_expect(
                EXIT_UNREACHABLE,
                "{\"kind\":\"gap\",\"next\":9}\n"
                "{\"kind\":\"snapshot\",\"namespace_number\":1,\"namespace\":\"n\\u001b\",\"key\":"
                "\"" ZEROS "\",\"tier\":\"memory\",\"bytes\":1536}\n"
                "{\"kind\":\"snapshot_end\",\"next\":9}\n"
                "{\"kind\":\"removed\",\"sequence\":6,\"time_ms\":3661002,\"namespace_number\":2,"
                "\"key\":\"" ZEROS "\",\"tier\":\"disk\",\"bytes\":1}\n",
                NULL, "-j", "events", "--snapshot", "--follow");
}

static void a_snapshot_that_a_restart_interrupts_begins_again(void **state)
{
        static const int results[] = { -ESTALE, -ESTALE };
        static const int snapshots[] = { -ESTALE, 1 };

        answer(results, 2, snapshots, 2);
        ctl_expect(EXIT_OK,
                   "gap: some events were lost\n"
                   "snapshot  memory " ZEROS "  1.5 KiB  n?\n",
                   "", "events", "--snapshot");
}

/* Answers with a snapshot of two parts, and interrupts the command during the first one. */
static void answer_and_interrupt(int signal)
{
        static const int results[] = { -ESTALE, 1 };
        static const int snapshots[] = { 1, 1 };

        answer(results, 2, snapshots, 2);
        fake_admin.snapshot_signal = signal;
        interrupted = 0;
}

static void an_interrupted_snapshot_is_reported_as_incomplete(void **state)
{
        static const char message[] =
                "kvcachectl: events: interrupted; the snapshot is incomplete\n";

        answer_and_interrupt(SIGINT);
        ctl_expect(EXIT_INTERRUPTED, "snapshot  memory " ZEROS "  1.5 KiB  n?\n", message, "events",
                   "--snapshot");
        assert_int_equal(fake_admin.n_snapshot_results, 1);
        answer_and_interrupt(SIGTERM);
        assert_int_equal(ctl("-j", "events", "--snapshot", "--follow"), EXIT_INTERRUPTED);
        has(ctl_out, "{\"kind\":\"snapshot\",");
        lacks(ctl_out, "snapshot_end");
        answer_and_interrupt(SIGTERM);
        assert_int_equal(ctl("-j", "events", "--snapshot"), EXIT_INTERRUPTED);
        assert_string_equal(ctl_out, "");
        interrupted = 0;
}

/* An interrupt ends --follow as intended, but makes the list of earlier events incomplete. */
static void an_interrupt_ends_following_with_0_and_a_list_with_130(void **state)
{
        static const int results[] = { -ESTALE, 1 };
        static const int snapshots[] = { 1 };

        answer(results, 2, snapshots, 1);
        fake_admin.snapshot_signal = SIGINT;
        interrupted = 0;
        assert_int_equal(ctl("-j", "events", "--snapshot", "--follow"), EXIT_OK);
        has(ctl_out, "\"snapshot_end\"");
        answer(results, 2, snapshots, 1);
        interrupted = 0;
        ctl_expect(EXIT_INTERRUPTED, NULL,
                   "kvcachectl: events: interrupted; later events were not printed\n", "events",
                   "--snapshot");
        interrupted = 0;
}

static void a_snapshot_ends_at_a_failed_write(void **state)
{
        static const int results[] = { -ESTALE, 1 };
        static const int snapshots[] = { 1, 1, 1 };

        answer(results, 2, snapshots, 3);
        ctl_output_to("/dev/full");
        ctl_expect(EXIT_LOCAL, NULL,
                   "kvcachectl: cannot write the output: No space left on device\n", "events",
                   "--snapshot");
        assert_int_equal(fake_admin.n_snapshot_results, 2);
}

static void events_in_json_without_following_is_one_object(void **state)
{
        static const int results[] = { -ESTALE, 1, -ESTALE };

        answer(results, 3, NULL, 0);
        ctl_expect(EXIT_OK,
                   "{\"events\":[{\"kind\":\"stored\",\"sequence\":5,\"time_ms\":3661001,"
                   "\"namespace_number\":1,\"namespace\":\"n\\u001b\",\"key\":\"" ZEROS
                   "\",\"tier\":\"memory\",\"bytes\":1536},{\"kind\":\"gap\",\"next\":9}],"
                   "\"next\":5}\n",
                   "", "-j", "events");
}

static void failures_are_reported(void **state)
{
        static const int refused[] = { -EOPNOTSUPP };
        static const int results[] = { -ESTALE };
        static const int snapshots[] = { -EBUSY };

        answer(refused, 1, NULL, 0);
        assert_int_equal(ctl("events"), EXIT_REFUSED);
        answer(results, 1, snapshots, 1);
        assert_int_equal(ctl("events", "--snapshot"), EXIT_REFUSED);
        assert_int_equal(ctl("events", "operand"), EXIT_WRONG_USAGE);
        assert_int_equal(ctl("events", "--snapshots"), EXIT_WRONG_USAGE);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CTL_TEST(events_prints_a_line_for_each),
                CTL_TEST(events_in_json_prints_an_object_for_each),
                CTL_TEST(events_says_where_some_were_lost),
                CTL_TEST(a_snapshot_replaces_earlier_events),
                CTL_TEST(a_snapshot_that_a_restart_interrupts_begins_again),
                CTL_TEST(an_interrupted_snapshot_is_reported_as_incomplete),
                CTL_TEST(an_interrupt_ends_following_with_0_and_a_list_with_130),
                CTL_TEST(a_snapshot_ends_at_a_failed_write),
                CTL_TEST(events_in_json_without_following_is_one_object),
                CTL_TEST(failures_are_reported),
        };

        return cmocka_run_group_tests(tests, NULL, ctl_remove_files);
}
