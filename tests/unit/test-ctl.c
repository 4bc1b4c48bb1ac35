/* SPDX-License-Identifier: Apache-2.0 */
/* kvcachectl's commands for answers that no daemon gives in a test, or not soon: their output and
 * exit status. The functions here replace the library, and give the answers that a test has set. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "commands.h"
#include "common.h"

/* --- the library --- */

struct kvcache {
        int unused;
};

static struct {
        const char *error;         /* error text of the handle */
        const char *status_report; /* NULL: fails */
        int call_status;           /* status of every key of a request */
        int verify, purge, device; /* results of these calls */
        struct kvcache_verify found;
        int request_timeout_ms; /* option of the last connection */
        struct kvcache handle;
} fake;

static int reset(void **state)
{
        memset(&fake, 0, sizeof(fake));
        fake.status_report = "{\"store\":{\"volumes\":[{\"volume\":\"/a\"}]}}";
        fake.error = "";
        return 0;
}

int kvcache_connect(struct kvcache **ret, const struct kvcache_options *options, char *ret_error,
                    size_t error_bytes)
{
        fake.request_timeout_ms = options->request_timeout_ms;
        *ret = &fake.handle;
        return 0;
}

const char *kvcache_error(const struct kvcache *kv)
{
        return fake.error;
}

const char *kvcache_status_name(int status)
{
        return "?";
}

int kvcache_namespace_open(struct kvcache *kv, const struct kvcache_namespace_options *options,
                           uint32_t *ret_handle)
{
        *ret_handle = 1;
        return 0;
}

int kvcache_submit_and_wait(struct kvcache *kv, const struct kvcache_request *request,
                            uint64_t *ret_value)
{
        for (size_t i = 0; i < request->count; i++)
                request->results[i].status = fake.call_status;
        return 0;
}

int kvcache_list_sized(struct kvcache *kv, uint32_t namespace_handle, uint64_t *cursor,
                       struct kvcache_listed *ret, size_t listed_size, size_t max)
{
        *cursor = 0;
        return 0;
}

int kvcache_namespace_list_sized(struct kvcache *kv, const char *tenant, uint64_t *cursor,
                                 struct kvcache_namespace_info *ret, size_t info_size, size_t max)
{
        return -EOPNOTSUPP;
}

int kvcache_namespace_stat_sized(struct kvcache *kv, const char *name, const char *tenant,
                                 struct kvcache_namespace_info *ret, size_t info_size,
                                 char **ret_fingerprint)
{
        return -EOPNOTSUPP;
}

int kvcache_namespace_set_lifetime(struct kvcache *kv, const char *name, const char *tenant,
                                   uint32_t lifetime_s)
{
        return -EOPNOTSUPP;
}

int kvcache_namespace_remove(struct kvcache *kv, const char *name, const char *tenant,
                             uint32_t flags, uint64_t *ret_dropped)
{
        return -EOPNOTSUPP;
}

int kvcache_report(struct kvcache *kv, enum kvcache_report what, char **ret_text)
{
        if (!fake.status_report)
                return -EIO;
        *ret_text = strdup(fake.status_report);
        return 0;
}

int kvcache_events_next_sized(struct kvcache *kv, struct kvcache_events_position *position,
                              struct kvcache_event *ret, size_t event_size, size_t max,
                              uint32_t wait_ms)
{
        return -EOPNOTSUPP;
}

int kvcache_events_snapshot_sized(struct kvcache *kv,
                                  const struct kvcache_events_position *position, uint64_t *cursor,
                                  struct kvcache_event *ret, size_t event_size, size_t max)
{
        return -EOPNOTSUPP;
}

int kvcache_verify(struct kvcache *kv, struct kvcache_verify *verify)
{
        if (fake.verify < 0)
                return fake.verify;
        verify->volumes = verify->segments = verify->segment = 1;
        verify->chunks = fake.found.chunks;
        verify->mismatched = fake.found.mismatched;
        verify->skipped = fake.found.skipped;
        return 0;
}

int kvcache_purge(struct kvcache *kv, uint32_t namespace_handle, uint64_t *ret_dropped)
{
        return fake.purge;
}

int kvcache_purge_all(struct kvcache *kv, uint64_t *ret_dropped)
{
        return fake.purge;
}

int kvcache_purge_remote(struct kvcache *kv, uint32_t namespace_handle, uint64_t *ret_dropped,
                         uint32_t *ret_seconds)
{
        return fake.purge;
}

int kvcache_purge_all_remote(struct kvcache *kv, uint64_t *ret_dropped, uint32_t *ret_seconds)
{
        return fake.purge;
}

int kvcache_device_suspend(struct kvcache *kv, uint32_t volume)
{
        return fake.device;
}

int kvcache_device_resume(struct kvcache *kv, uint32_t volume)
{
        return fake.device;
}

/* --- a run of a command --- */

static char said[4096], complained[4096];

static int into_file(int fd, FILE *file)
{
        int saved = dup(fd);

        assert_true(saved >= 0);
        assert_true(dup2(fileno(file), fd) >= 0);
        return saved;
}

static void out_of_file(int fd, int saved, FILE *file, char *ret, size_t room)
{
        size_t n;

        assert_true(dup2(saved, fd) >= 0);
        close(saved);
        rewind(file);
        n = fread(ret, 1, room - 1, file);
        ret[n] = '\0';
        fclose(file);
}

/* Runs it as main() does; its output is in `said` and `complained`. */
static int run(const struct command *command, bool json, const char *a, const char *b,
               const char *c)
{
        char *argv[] = { (char *)command->name, (char *)a, (char *)b, (char *)c, NULL };
        struct ctl ctl = { .json = json };
        FILE *out = tmpfile(), *err = tmpfile();
        int saved_out, saved_err, status, argc = 1;

        while (argv[argc])
                argc++;
        assert_true(out && err);
        optind = 0; /* makes getopt_long() start again */
        fflush(stdout);
        saved_out = into_file(STDOUT_FILENO, out);
        saved_err = into_file(STDERR_FILENO, err);
        status = command->run(&ctl, command, argc, argv);
        fflush(stdout);
        out_of_file(STDOUT_FILENO, saved_out, out, said, sizeof(said));
        out_of_file(STDERR_FILENO, saved_err, err, complained, sizeof(complained));
        return status;
}

static void assert_says(const char *text, const char *part)
{
        if (!strstr(text, part))
                fail_msg("\"%s\" is not in: %s", part, text);
}

static void assert_not_says(const char *text, const char *part)
{
        if (strstr(text, part))
                fail_msg("\"%s\" is in: %s", part, text);
}

/* --- evict --- */

static void evict_says_what_is_kept_because_it_is_not_on_disk_yet(void **state)
{
        fake.call_status = KVCACHE_BUSY;
        assert_int_equal(run(&command_evict, false, "--tier=memory", "k", "l"), EXIT_REFUSED);
        assert_string_equal(said, "k  not on disk yet, and kept\nl  not on disk yet, and kept\n");
        assert_int_equal(run(&command_evict, true, "--tier=memory", "k", "l"), EXIT_REFUSED);
        assert_says(said, "\"name\":\"l\",\"status\":");
        assert_says(said, "],\"evicted\":0,\"missing\":0,\"unwritten\":2}\n");
        fake.call_status = KVCACHE_OK;
        assert_int_equal(run(&command_evict, false, "k", "l", NULL), EXIT_OK);
        assert_string_equal(said, "k  evicted\nl  evicted\n");
}

/* --- calls that take long --- */

static void call_without_an_answer_in_time_is_not_a_daemon_that_went_away(void **state)
{
        fake.verify = fake.purge = fake.device = -ETIMEDOUT;
        fake.error = "the daemon did not answer in time";
        assert_int_equal(run(&command_purge, false, "ns", NULL, NULL), EXIT_UNREACHABLE);
        assert_string_equal(complained, "kvcachectl: purge: the daemon did not answer in time; the "
                                        "daemon may still be processing the request\n");
        assert_int_equal(run(&command_device, false, "resume", "0", NULL), EXIT_UNREACHABLE);
        assert_says(complained, "device resume: the daemon did not answer in time; the daemon may");
        assert_int_equal(run(&command_verify, false, NULL, NULL, NULL), 2);
        assert_says(complained, "/a: the daemon did not answer in time; the daemon may");
        fake.purge = -ECONNRESET;
        fake.error = "the daemon closed the connection";
        assert_int_equal(run(&command_purge, false, "ns", NULL, NULL), EXIT_UNREACHABLE);
        assert_says(complained, "purge: the daemon went away: the daemon closed");
}

static void calls_that_move_much_may_take_longer_than_others(void **state)
{
        enum { TEN_MINUTES = 600000 };

        run(&command_purge, false, "ns", NULL, NULL);
        assert_int_equal(fake.request_timeout_ms, TEN_MINUTES);
        run(&command_device, false, "suspend", "0", NULL);
        assert_int_equal(fake.request_timeout_ms, TEN_MINUTES);
        run(&command_verify, false, NULL, NULL, NULL);
        assert_int_equal(fake.request_timeout_ms, TEN_MINUTES);
        run(&command_evict, false, "k", NULL, NULL);
        assert_int_equal(fake.request_timeout_ms, 0); /* the library's own */
}

/* --- verify --- */

static void verify_calls_nothing_good_that_was_not_read(void **state)
{
        fake.found = (struct kvcache_verify){ .chunks = 10, .skipped = 3 };
        assert_int_equal(run(&command_verify, false, NULL, NULL, NULL), 2);
        assert_not_says(said, "all good");
        assert_says(said, "nothing bad so far; 3 were not read");
        assert_int_equal(run(&command_verify, true, NULL, NULL, NULL), 2);
        assert_says(said, "\"complete\":false");
        fake.found.mismatched = 1;
        assert_int_equal(run(&command_verify, false, NULL, NULL, NULL), 1);
        assert_says(said, "1 did not match, 0 could not be read: dropped; 3 were not read");
        fake.found = (struct kvcache_verify){ .chunks = 10 };
        assert_int_equal(run(&command_verify, false, NULL, NULL, NULL), 0);
        assert_says(said, ": all good\n");
        assert_int_equal(run(&command_verify, true, NULL, NULL, NULL), 0);
        assert_says(said, "\"complete\":true");
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, reset)
        const struct CMUnitTest tests[] = {
                CASE(evict_says_what_is_kept_because_it_is_not_on_disk_yet),
                CASE(call_without_an_answer_in_time_is_not_a_daemon_that_went_away),
                CASE(calls_that_move_much_may_take_longer_than_others),
                CASE(verify_calls_nothing_good_that_was_not_read),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
