/* SPDX-License-Identifier: Apache-2.0 */
/* Benchmark sessions as a client sees them: the commands, their errors, the counts, and the files
 * that outlive the daemon. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "base/clock.h"
#include "benchmark/benchmark.h"
#include "cleanup.h"
#include "request-fixture.h"

struct message {
        struct wire_bench head;
        char name[WIRE_BENCH_NAME];
};

static size_t fill(struct message *m, enum wire_bench_action action, const char *name,
                   uint16_t options)
{
        *m = (struct message){ .head = { .hdr.op = WIRE_BENCH,
                                         .action = (uint8_t)action,
                                         .name_length = (uint8_t)strlen(name),
                                         .options = options } };
        memcpy(m->name, name, strlen(name));
        return sizeof(m->head) + strlen(name);
}

static const struct wire_reply *refused(struct peer_end *c, enum wire_bench_action action,
                                        const char *name)
{
        struct message m;
        size_t bytes = fill(&m, action, name, 0);

        return call(c, &m, bytes);
}

/* Returns the JSON of the reply, to be deleted. */
static cJSON *command(struct peer_end *c, enum wire_bench_action action, const char *name,
                      uint16_t options)
{
        struct message m;
        size_t bytes = fill(&m, action, name, options);
        _cleanup_(freep) char *text = call_for_text(c, &m, bytes);
        cJSON *json = cJSON_Parse(text);

        assert_non_null(json);
        return json;
}

static void run(struct peer_end *c, enum wire_bench_action action, const char *name,
                uint16_t options)
{
        cJSON_Delete(command(c, action, name, options));
}

static bool is(struct peer_end *c, const char *name, const char *member)
{
        cJSON *json = command(c, WIRE_BENCH_STATUS, name, 0);
        bool r = cJSON_IsTrue(cJSON_GetObjectItem(json, member));

        cJSON_Delete(json);
        return r;
}

/* Returns the sum of a session's transfers. */
static double transfers(struct peer_end *c, const char *name)
{
        cJSON *json = command(c, WIRE_BENCH_STATUS, name, 0);
        const cJSON *metrics = cJSON_GetObjectItem(json, "metrics"), *m;
        double sum = 0;

        assert_true(cJSON_IsArray(metrics));
        cJSON_ArrayForEach(m, metrics)
        {
                assert_true(cJSON_IsNumber(cJSON_GetObjectItem(m, "transfer_count")));
                sum += cJSON_GetObjectItem(m, "transfer_count")->valuedouble;
        }
        cJSON_Delete(json);
        return sum;
}

static struct bench_stats stats(void)
{
        struct bench_stats s;

        bench_get_stats(rig.service.bench, &s);
        return s;
}

static void settle(void)
{
        while (kio_pending(rig.t.io) > 0)
                rig_turn(true);
}

static const char *in_folder(const char *name, char ret[static 400])
{
        snprintf(ret, 400, "%s/bench/%s", rig.t.dir, name);
        return ret;
}

/* --- commands --- */

static void a_session_counts_transfers_while_it_is_enabled(void **state)
{
        struct peer_end root;
        double before;

        connect_as(&root, ROOT);
        enter(&root, "a");
        assert_int_equal(put(&root, 1, WIRE_WRITTEN), WIRE_OK);
        run(&root, WIRE_BENCH_INIT, "s", 0);
        assert_true(is(&root, "s", "active"));
        assert_true(is(&root, "s", "enabled"));
        assert_true(transfers(&root, "s") == 0); /* nothing of before */
        assert_int_equal(put(&root, 2, WIRE_WRITTEN), WIRE_OK);
        before = transfers(&root, "s");
        assert_true(before > 0);
        run(&root, WIRE_BENCH_DISABLE, "", 0);
        assert_false(is(&root, "s", "enabled"));
        assert_int_equal(put(&root, 3, WIRE_WRITTEN), WIRE_OK);
        assert_true(transfers(&root, "s") == before);
        run(&root, WIRE_BENCH_ENABLE, "s", 0);
        assert_int_equal(put(&root, 4, WIRE_WRITTEN), WIRE_OK);
        assert_true(transfers(&root, "s") > before);
        run(&root, WIRE_BENCH_RESET, "s", 0);
        assert_true(transfers(&root, "s") == 0);
        hang_up(&root);
}

static void one_session_at_a_time_is_active(void **state)
{
        struct peer_end root;
        cJSON *list;

        connect_as(&root, ROOT);
        enter(&root, "a");
        assert_says(refused(&root, WIRE_BENCH_STATUS, ""), WIRE_STALE,
                    "no benchmark session is active");
        run(&root, WIRE_BENCH_INIT, "first", 0);
        assert_int_equal(put(&root, 1, WIRE_WRITTEN), WIRE_OK);
        run(&root, WIRE_BENCH_INIT, "second", 0);
        assert_false(is(&root, "first", "active"));
        assert_true(is(&root, "second", "active"));
        assert_string_equal(stats().name, "second");
        assert_true(transfers(&root, "first") > 0);
        assert_true(transfers(&root, "second") == 0);
        run(&root, WIRE_BENCH_INIT, "first", WIRE_BENCH_RESUME);
        assert_true(is(&root, "", "active"));
        assert_true(transfers(&root, "") > 0); /* continues from its earlier counters */
        run(&root, WIRE_BENCH_INIT, "first", WIRE_BENCH_FORCE);
        assert_true(transfers(&root, "") == 0);
        list = command(&root, WIRE_BENCH_LIST, "", 0);
        assert_int_equal(cJSON_GetArraySize(list), 2);
        assert_string_equal(cJSON_GetObjectItem(cJSON_GetArrayItem(list, 0), "name")->valuestring,
                            "first");
        assert_true(cJSON_IsTrue(cJSON_GetObjectItem(cJSON_GetArrayItem(list, 0), "active")));
        assert_string_equal(cJSON_GetObjectItem(cJSON_GetArrayItem(list, 1), "name")->valuestring,
                            "second");
        cJSON_Delete(list);
        run(&root, WIRE_BENCH_DELETE, "first", 0);
        assert_says(refused(&root, WIRE_BENCH_STATUS, ""), WIRE_STALE,
                    "no benchmark session is active");
        assert_int_equal(stats().sessions, 1);
        settle();
        hang_up(&root);
}

static void commands_that_cannot_be_carried_out_say_why(void **state)
{
        struct message m;
        struct peer_end root;
        char name[16];
        size_t bytes;

        connect_as(&root, ROOT);
        assert_says(refused(&root, WIRE_BENCH_STATUS, "none"), WIRE_MISS,
                    "session none does not exist");
        assert_says(refused(&root, WIRE_BENCH_INIT, "a/b"), WIRE_INVALID,
                    "a benchmark session's name is");
        assert_says(refused(&root, WIRE_BENCH_INIT, ".."), WIRE_INVALID,
                    "a benchmark session's name is");
        bytes = fill(&m, WIRE_BENCH_INIT, "ab", 0);
        m.name[1] = '\0';
        assert_says(call(&root, &m, bytes), WIRE_INVALID, "a benchmark session's name is");
        for (unsigned i = 0; i < BENCH_MAX_SESSIONS; i++) {
                snprintf(name, sizeof(name), "s%u", i);
                run(&root, WIRE_BENCH_INIT, name, 0);
        }
        assert_says(refused(&root, WIRE_BENCH_INIT, "s7"), WIRE_EXISTS_ALREADY,
                    "session s7 already exists");
        assert_says(refused(&root, WIRE_BENCH_INIT, "more"), WIRE_QUOTA,
                    "the limit of 64 benchmark sessions");
        assert_int_equal(stats().sessions, BENCH_MAX_SESSIONS);
        settle();
        hang_up(&root);
}

static void a_user_may_ask_and_changes_nothing(void **state)
{
        struct peer_end root, user;
        cJSON *list;
        uint64_t saved;

        connect_as(&root, ROOT);
        connect_as(&user, ALICE);
        run(&root, WIRE_BENCH_INIT, "s", 0);
        settle();
        enter(&root, "a");
        assert_int_equal(put(&root, 1, WIRE_WRITTEN), WIRE_OK); /* to be counted and saved */
        saved = stats().saved;
        assert_true(is(&user, "s", "active"));
        list = command(&user, WIRE_BENCH_LIST, "", 0);
        assert_int_equal(cJSON_GetArraySize(list), 1);
        cJSON_Delete(list);
        assert_says(refused(&user, WIRE_BENCH_DISABLE, "s"), WIRE_DENIED, "needs an admin");
        assert_true(is(&user, "s", "enabled"));
        settle();
        assert_int_equal(stats().saved, saved);
        hang_up(&root);
        hang_up(&user);
}

/* --- files --- */

static char warnings[2048];

static void warn(void *userdata, const char *text)
{
        size_t n = strlen(warnings);

        snprintf(warnings + n, sizeof(warnings) - n, "%s\n", text);
}

/* Opens another one over the same folder, as the next daemon would. */
static struct bench *open_again(const char *folder)
{
        struct bench *b;

        warnings[0] = '\0';
        assert_int_equal(
                bench_new(&b,
                          &(struct bench_params){ .io = rig.t.io, .folder = folder, .warn = warn }),
                0);
        return b;
}

static char *status_in(struct bench *b, const char *name)
{
        char *text = NULL;
        size_t n;
        FILE *out = open_memstream(&text, &n);

        assert_int_equal(bench_command(b, BENCH_STATUS, name, BENCH_UNSAVED, out), 0);
        assert_int_equal(fclose(out), 0);
        return text;
}

static void sessions_outlive_the_daemon(void **state)
{
        char folder[400];
        struct bench_stats s;
        struct peer_end root;
        struct bench *next;
        char *text;

        connect_as(&root, ROOT);
        enter(&root, "a");
        run(&root, WIRE_BENCH_INIT, "first", 0);
        run(&root, WIRE_BENCH_INIT, "second", 0);
        run(&root, WIRE_BENCH_INIT, "gone", 0);
        run(&root, WIRE_BENCH_DELETE, "gone", 0);
        run(&root, WIRE_BENCH_INIT, "second", WIRE_BENCH_RESUME);
        assert_int_equal(put(&root, 1, WIRE_WRITTEN), WIRE_OK);
        bench_stop(rig.service.bench);
        settle();
        next = open_again(in_folder("", folder));
        bench_get_stats(next, &s);
        assert_string_equal(warnings, "");
        assert_int_equal(s.sessions, 2);
        assert_true(s.active);
        assert_string_equal(s.name, "second");
        text = status_in(next, "second");
        assert_non_null(strstr(text, "\"transfer_count\""));
        free(text);
        bench_free(next);
        hang_up(&root);
}

static void write_file(const char *path, const char *text)
{
        _cleanup_(closep) int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void files_that_are_no_sessions_are_left_out_and_named(void **state)
{
        char path[400], from[400];
        struct bench_stats s;
        struct peer_end root;
        struct bench *next;

        connect_as(&root, ROOT);
        run(&root, WIRE_BENCH_INIT, "good", 0);
        settle();
        write_file(in_folder("bench_bad.json", path), "{");
        write_file(in_folder("bench_.json", path), "{");
        write_file(in_folder("notes.txt", path), "{");
        assert_int_equal(mkfifo(in_folder("bench_fifo.json", path), 0600), 0);
        assert_int_equal(
                link(in_folder("bench_good.json", from), in_folder("bench_other.json", path)), 0);
        next = open_again(in_folder("", path));
        bench_get_stats(next, &s);
        assert_int_equal(s.sessions, 1);
        assert_string_equal(s.name, "good");
        assert_non_null(strstr(warnings, "bench_bad.json"));
        assert_non_null(strstr(warnings, "bench_fifo.json: not a regular file"));
        assert_non_null(strstr(warnings, "bench_other.json: the file belongs to session good"));
        assert_null(strstr(warnings, "notes.txt"));
        bench_free(next);
        hang_up(&root);
}

static void a_session_that_cannot_be_saved_is_kept_in_memory_and_tried_again(void **state)
{
        char path[400];
        struct bench_stats s;
        struct bench *b;
        char *text = NULL;
        size_t n;
        FILE *out;

        snprintf(path, sizeof(path), "%s/file", rig.t.dir);
        write_file(path, "");
        b = open_again(path);
        assert_non_null(strstr(warnings, "cannot read the benchmark sessions"));
        warnings[0] = '\0';
        out = open_memstream(&text, &n);
        assert_int_equal(bench_command(b, BENCH_INIT, "s", 0, out), 0);
        fclose(out);
        free(text);
        settle();
        assert_non_null(strstr(warnings, "benchmark session s cannot be saved: "));
        warnings[0] = '\0';
        bench_tick(b, clock_mono_ns() + UINT64_C(3600000000000));
        settle();
        assert_string_equal(warnings, ""); /* once is enough */
        bench_get_stats(b, &s);
        assert_int_equal(s.save_errors, 2);
        assert_int_equal(unlink(path), 0);
        bench_tick(b, clock_mono_ns() + UINT64_C(7200000000000));
        settle();
        bench_get_stats(b, &s);
        assert_int_equal(s.saved, 1);
        bench_free(b);
        snprintf(path, sizeof(path), "%s/file/bench_s.json", rig.t.dir);
        assert_int_equal(unlink(path), 0);
        snprintf(path, sizeof(path), "%s/file", rig.t.dir);
        assert_int_equal(rmdir(path), 0);
}

static void a_session_is_resumed_by_its_name_at_startup(void **state)
{
        assert_int_equal(bench_resume(rig.service.bench, "a b"), -EINVAL);
        assert_false(stats().active);
        assert_int_equal(bench_resume(rig.service.bench, "run-1"), 0);
        assert_true(stats().enabled);
        assert_string_equal(stats().name, "run-1");
        settle();
        assert_int_equal(stats().saved, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(a_session_counts_transfers_while_it_is_enabled),
                TEST(one_session_at_a_time_is_active),
                TEST(commands_that_cannot_be_carried_out_say_why),
                TEST(a_user_may_ask_and_changes_nothing),
                TEST(sessions_outlive_the_daemon),
                TEST(files_that_are_no_sessions_are_left_out_and_named),
                TEST(a_session_that_cannot_be_saved_is_kept_in_memory_and_tried_again),
                TEST(a_session_is_resumed_by_its_name_at_startup),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
