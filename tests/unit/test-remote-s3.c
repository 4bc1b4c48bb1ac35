/* SPDX-License-Identifier: Apache-2.0 */
/* remote/s3.c over libcurl and tests/lib/s3-server.py, which verifies signatures and behaves badly.
 *
 *     test-remote-s3 PYTHON SERVER */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend-contract.h"
#include "base/clock.h"
#include "checked.h"
#include "remote/libcurl.h"

static const char *python, *server_script;
static char folder[64], credentials[128], certificate[128], key_file[128], endpoint[64];
static pid_t server;
static int server_stdin = -1;
static struct backend *b;

static void write_credentials(const char *text)
{
        char new[140];
        FILE *f;

        snprintf(new, sizeof(new), "%s.new", credentials);
        f = fopen(new, "w");
        assert_non_null(f);
        fputs(text, f);
        assert_int_equal(fchmod(fileno(f), 0600), 0);
        fclose(f);
        assert_int_equal(rename(new, credentials), 0);
}

#define GOOD                                                                                       \
        "# a comment\n[other]\naws_access_key_id = AKIANONE\naws_secret_access_key = none\n"       \
        "[default]\r\naws_access_key_id=AKIATEST\r\n  aws_secret_access_key = "                    \
        "test-secret/with+signs \r\n"

static void stop_server(void)
{
        if (server_stdin >= 0) {
                close(server_stdin);
                server_stdin = -1;
                waitpid(server, NULL, 0);
        }
}

static void start_server(bool tls)
{
        int in[2], out[2], port;
        FILE *f;

        assert_int_equal(pipe2(in, O_CLOEXEC), 0);
        assert_int_equal(pipe2(out, O_CLOEXEC), 0);
        server = fork();
        if (server == 0) {
                dup2(in[0], 0);
                dup2(out[1], 1);
                if (tls)
                        execl(python, python, server_script, "--tls", certificate, key_file, NULL);
                else
                        execl(python, python, server_script, NULL);
                _exit(127);
        }
        close(in[0]);
        close(out[1]);
        server_stdin = in[1];
        f = fdopen(out[0], "r");
        assert_int_equal(fscanf(f, "%d", &port), 1);
        fclose(f);
        snprintf(endpoint, sizeof(endpoint), "%s://127.0.0.1:%d", tls ? "https" : "http", port);
}

static struct backend_params params_of(unsigned depth)
{
        return (struct backend_params){ .prefix = "kv",
                                        .endpoint = endpoint,
                                        .bucket = "bucket",
                                        .region = "test-region-1",
                                        .credentials = credentials,
                                        .depth = depth,
                                        .timeout_ns = 300 * SECOND_NS };
}

static void start_with(const struct backend_params *p)
{
        char error[256] = "";

        if (backend_s3.open(&b, p, error) < 0)
                fail_msg("%s", error);
}

static void start(void)
{
        struct backend_params p = params_of(4);

        start_with(&p);
}

static void stop(void)
{
        backend_s3.stop(b);
        b = backend_s3.close(b);
        assert_null(b);
}

/* All tests share one server, in which each has its own names. */
static unsigned test_number;

static int setup(void **state)
{
        test_number++;
        write_credentials(GOOD);
        if (server_stdin < 0)
                start_server(false);
        return 0;
}

static int teardown(void **state)
{
        if (b)
                stop();
        return 0;
}

static const char *name_of(const char *rest)
{
        static char name[REMOTE_NAME_MAX];

        snprintf(name, sizeof(name), "kv/1/id/%02x/%s", test_number, rest);
        return name;
}

/* Performs an operation. Returns its result and its error text. */
static int run_op(enum backend_op_kind kind, const char *rest, uint64_t bytes, uint64_t for_ns,
                  char ret_error[static 120])
{
        struct operation *o = operation_new(kind, name_of(rest), bytes, true);
        int r;

        operation_fill(o, 1);
        if (for_ns)
                o->op.deadline_ns = clock_mono_ns() + for_ns;
        backend_s3.submit(b, &o->op);
        r = operation_wait(o);
        memcpy(ret_error, o->op.error, 120);
        operation_free(o);
        return r;
}

static int put(const char *rest, uint64_t bytes, uint64_t seed)
{
        return backend_write(&backend_s3, b, BACKEND_CREATE, name_of(rest), bytes, seed);
}

static int get(const char *rest, uint64_t bytes, uint64_t seed)
{
        return backend_read(&backend_s3, b, name_of(rest), bytes, seed);
}

static unsigned number(const char *what)
{
        struct operation *o = operation_new(BACKEND_READ, name_of(what), 8, false);
        char text[9] = "";
        unsigned n;

        backend_s3.submit(b, &o->op);
        assert_int_equal(operation_wait(o), 0);
        memcpy(text, o->memory, 8);
        n = (unsigned)strtoul(text, NULL, 10);
        operation_free(o);
        return n;
}

static void it_keeps_the_contract(void **state)
{
        struct backend_params p = params_of(8);
        unsigned checks;

        assert_int_equal(backend_contract(&backend_s3, &p, &checks), 0);
        assert_true(checks > 100);
}

static void connections_are_kept_and_capped(void **state)
{
        enum { N = 60 };
        struct operation *o[N];
        unsigned before;

        start();
        before = number("n-connections");
        assert_int_equal(put("kept", 50000, 1), 0);
        for (unsigned round = 0; round < 3; round++) {
                for (unsigned i = 0; i < N; i++) {
                        o[i] = operation_new(BACKEND_READ, name_of("kept"), 50000, false);
                        backend_s3.submit(b, &o[i]->op);
                }
                for (unsigned i = 0; i < N; i++) {
                        assert_int_equal(operation_wait(o[i]), 0);
                        operation_free(o[i]);
                }
        }
        assert_true(number("n-connections") <= before + 3);
}

static void answers_are_those_of_the_contract(void **state)
{
        static const struct {
                const char *name;
                enum backend_op_kind kind;
                int want;
                const char *text;
        } cases[] = {
                { "status-503-SlowDown", BACKEND_READ, -EBUSY, "503 SlowDown" },
                { "status-503-SlowDown", BACKEND_CREATE, -EBUSY, "503 SlowDown" },
                { "status-429", BACKEND_READ, -EBUSY, "429" },
                { "status-403-AccessDenied", BACKEND_READ, -EACCES, "403 AccessDenied" },
                { "status-403-QuotaExceeded", BACKEND_CREATE, -ENOSPC, "QuotaExceeded" },
                { "status-507-XMinioStorageFull", BACKEND_CREATE, -ENOSPC, "507" },
                { "status-500-InternalError", BACKEND_READ, -EIO, "500 InternalError" },
                { "status-400-EntityTooLarge", BACKEND_REPLACE, -E2BIG, "EntityTooLarge" },
                { "status-404-NoSuchKey", BACKEND_READ, -ENOENT, "" },
                { "status-404", BACKEND_READ, -ENOENT, "" },
                { "status-404-NoSuchKey", BACKEND_CREATE, -EIO, "404" },
                { "status-404-NoSuchKey", BACKEND_DELETE, -ENOENT, "" },
                { "status-409-ConditionalRequestConflict", BACKEND_CREATE, -EEXIST, "" },
                { "status-412-PreconditionFailed", BACKEND_REPLACE, -EIO, "412" },
                { "status-204", BACKEND_READ, -EIO, "" },
                { "redirect", BACKEND_READ, -EIO, "remote.endpoint" },
                { "redirect", BACKEND_CREATE, -EIO, "remote.endpoint" },
                { "status-301-PermanentRedirect", BACKEND_READ, -EIO, "remote.region" },
                { "error-200", BACKEND_READ, -EIO, "200" },
                { "error-200", BACKEND_CREATE, -EIO, "200" },
                { "long-code", BACKEND_READ, -EACCES, "403" },
                { "odd-code", BACKEND_READ, -EACCES, "403" },
                { "close", BACKEND_READ, -EIO, "" },
                { "garbage", BACKEND_READ, -EIO, "" },
                { "garbage", BACKEND_CREATE, -EIO, "" },
                { "huge-error", BACKEND_READ, -EIO, "500" },
                { "huge-error", BACKEND_CREATE, -EIO, "500" },
                { "huge-headers", BACKEND_READ, -EIO, "" },
        };
        char error[120];

        start();
        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
                int r = run_op(cases[i].kind, cases[i].name, 9000, 20 * SECOND_NS, error);

                if (r != cases[i].want || !strstr(error, cases[i].text))
                        fail_msg("%s: %d, %s", cases[i].name, r, error);
                assert_null(strstr(error, "secret"));
                for (const char *p = error; *p; p++)
                        assert_true(*p >= ' ' && *p <= '~');
        }
        assert_int_equal(put("after", 9000, 1), 0);
        assert_int_equal(get("after", 9000, 1), 0);
}

static void bytes_that_are_wrong_in_number_are_refused(void **state)
{
        static const char *const bad[] = { "cut", "short", "long", "no-size", "odd-size" };
        static const char *const good[] = { "no-range", "chunked", "slow" };
        char error[120];

        start();
        for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
                assert_int_equal(put(bad[i], 9000, 1), 0);
                assert_int_equal(run_op(BACKEND_READ, bad[i], 9000, 20 * SECOND_NS, error), -EIO);
                assert_string_not_equal(error, "");
        }
        for (unsigned i = 0; i < ARRAY_SIZE(good); i++) {
                assert_int_equal(put(good[i], 9000, 1), 0);
                assert_int_equal(get(good[i], 9000, 1), 0);
        }
}

static void an_empty_object_is_read(void **state)
{
        static const char *const names[] = { "empty", "empty-as-rgw" };

        start();
        for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
                struct operation *o = operation_new(BACKEND_READ, name_of(names[i]), 5000, true);

                assert_int_equal(put(names[i], 0, 1), 0);
                backend_s3.submit(b, &o->op);
                assert_int_equal(operation_wait(o), 0);
                assert_true(o->op.size == 0 && o->op.transferred == 0);
                operation_free(o);
        }
}

/* With a server that ignores Range, the beginning is used, and the rest is not awaited. */
static void no_more_is_read_than_was_asked_for(void **state)
{
        struct operation *o = operation_new(BACKEND_READ, name_of("endless"), 5000, true);

        start();
        assert_int_equal(put("endless", 9000, 1), 0);
        backend_s3.submit(b, &o->op);
        assert_int_equal(operation_wait(o), 0);
        assert_int_equal(o->op.transferred, 5000);
        assert_true(o->op.size == 100000000000);
        assert_true(operation_holds(o, 5000, 1));
        operation_free(o);
}

static void what_hangs_ends_at_its_deadline(void **state)
{
        static const struct {
                const char *name;
                enum backend_op_kind kind;
        } cases[] = { { "hang", BACKEND_READ },
                      { "hang", BACKEND_CREATE },
                      { "hang", BACKEND_DELETE },
                      { "hang-continue", BACKEND_CREATE },
                      { "hang-body", BACKEND_READ } };
        char error[120];

        start();
        assert_int_equal(put("hang-body", 9000, 1), 0);
        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
                uint64_t began = clock_mono_ns();

                assert_int_equal(run_op(cases[i].kind, cases[i].name, 9000, SECOND_NS / 10, error),
                                 -ETIMEDOUT);
                assert_true(clock_mono_ns() - began >= SECOND_NS / 10);
                assert_true(clock_mono_ns() - began < 60 * SECOND_NS);
        }
}

static void what_waits_ends_at_its_deadline(void **state)
{
        struct operation *o[6];
        struct backend_params p = params_of(2);

        start_with(&p);
        for (unsigned i = 0; i < 6; i++) {
                o[i] = operation_new(BACKEND_READ, name_of("hang"), 9000, false);
                o[i]->op.deadline_ns =
                        clock_mono_ns() + (i < 2 ? 60 : 0) * SECOND_NS + SECOND_NS / 10;
                backend_s3.submit(b, &o[i]->op);
        }
        for (unsigned i = 2; i < 6; i++)
                assert_int_equal(operation_wait(o[i]), -ETIMEDOUT);
        assert_false(operation_has_ended(o[0]) || operation_has_ended(o[1]));
        backend_s3.stop(b);
        for (unsigned i = 0; i < 6; i++) {
                if (i < 2)
                        assert_int_equal(operation_wait(o[i]), -ECANCELED);
                operation_free(o[i]);
        }
}

/* The answer is 501, or 400 with a code that may mean the same: the operation is repeated without
 * the condition, and later ones omit it. */
static void a_server_without_conditions_is_remembered(void **state)
{
        static const char *const names[] = { "no-condition-501", "no-condition-400",
                                             "no-condition-argument" };

        for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
                char count[64];

                snprintf(count, sizeof(count), "%s/n-requests", names[i]);
                start();
                assert_int_equal(put(names[i], 9000, 1), 0);
                assert_int_equal(get(names[i], 9000, 1), 0);
                assert_int_equal(number(count), 3);
                assert_int_equal(put(names[i], 8000, 2), 0); /* the last one wins */
                assert_int_equal(number(count), 4);
                assert_int_equal(get(names[i], 8000, 2), 0);
                stop();
        }
}

static void what_was_not_the_condition_is_not_remembered(void **state)
{
        char error[120];

        start();
        assert_int_equal(run_op(BACKEND_CREATE, "status-400-BadRequest", 9000, 0, error), -EIO);
        assert_int_equal(run_op(BACKEND_CREATE, "times-out-once", 9000, 0, error), -EBUSY);
        assert_int_equal(put("times-out-once", 9000, 1), 0);
        assert_int_equal(put("first", 9000, 1), 0);
        assert_int_equal(put("first", 9000, 2), -EEXIST);
}

/* The body is sent again from its beginning. */
static void a_connection_that_was_closed_is_made_again(void **state)
{
        start();
        for (unsigned i = 0; i < 4; i++) {
                const char *name = name_of("closes-later");

                assert_int_equal(backend_write(&backend_s3, b, BACKEND_REPLACE, name, 30000, i), 0);
                assert_int_equal(get("closes-later", 30000, i), 0);
        }
}

static void a_server_may_send_no_continue(void **state)
{
        start();
        assert_int_equal(put("no-continue", 3 << 20, 1), 0);
        assert_int_equal(get("no-continue", 3 << 20, 1), 0);
}

static void odd_names_are_signed_as_they_are_sent(void **state)
{
        static const char *const names[] = { "with space", "a+b", "a%b", "\xc3\xa4", "~a_b-c.d" };

        start();
        for (unsigned i = 0; i < ARRAY_SIZE(names); i++) {
                assert_int_equal(put(names[i], 5000, i), 0);
                assert_int_equal(get(names[i], 5000, i), 0);
        }
}

static void wrong_keys_are_refused(void **state)
{
        char error[120];
        struct backend_params p = params_of(4);

        write_credentials("aws_access_key_id=AKIATEST\naws_secret_access_key=wrong-key\n");
        start();
        assert_int_equal(run_op(BACKEND_READ, "x", 9000, 0, error), -EACCES);
        assert_non_null(strstr(error, "SignatureDoesNotMatch"));
        assert_null(strstr(error, "wrong-key"));
        stop();
        write_credentials(GOOD);
        p.region = "elsewhere";
        start_with(&p);
        assert_int_equal(run_op(BACKEND_READ, "x", 9000, 0, error), -EACCES);
        stop();
        p = params_of(4);
        p.bucket = "no-bucket";
        start_with(&p);
        assert_int_equal(run_op(BACKEND_READ, "x", 9000, 0, error), -EIO);
        assert_non_null(strstr(error, "no bucket no-bucket"));
}

/* Keys are replaced while it runs, and include a session token. */
static void credentials_are_read_again(void **state)
{
        uint64_t until = clock_mono_ns() + 60 * SECOND_NS;
        char error[120];
        int r;

        write_credentials("aws_access_key_id=AKIATOKEN\naws_secret_access_key=token-secret\n"
                          "aws_session_token=expired\n");
        start();
        assert_int_equal(run_op(BACKEND_READ, "x", 9000, 0, error), -EACCES);
        assert_non_null(strstr(error, "InvalidToken"));
        write_credentials("aws_access_key_id=AKIATOKEN\naws_secret_access_key=token-secret\n"
                          "aws_session_token=a-token/with+signs==\n");
        do
                r = run_op(BACKEND_CREATE, "x", 9000, 0, error);
        while (r == -EACCES && clock_mono_ns() < until);
        assert_int_equal(r, 0);
        /* Unreadable credentials leave the present ones in use. */
        write_credentials("nothing\n");
        assert_int_equal(get("x", 9000, 1), 0);
}

static void a_bad_credentials_file_is_named(void **state)
{
        static const struct {
                const char *text;
                mode_t mode;
                const char *want;
        } cases[] = {
                { GOOD, 0604, "chmod" },
                { "", 0600, "aws_access_key_id" },
                { "aws_access_key_id=a\n", 0600, "aws_secret_access_key" },
                { "[other]\naws_access_key_id=a\naws_secret_access_key=b\n", 0600, "[default]" },
                { "aws_access_key_id=a\naws_secret_access_key=\n", 0600, "empty" },
                { "aws_access_key_id=a\naws_secret_access_key=b c\n", 0600, "character" },
                { "aws_access_key_id=a\naws_secret_access_key=b\033\n", 0600, "character" },
        };
        struct backend_params p = params_of(4);
        char error[256];

        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
                write_credentials(cases[i].text);
                assert_int_equal(chmod(credentials, cases[i].mode), 0);
                *error = 0;
                assert_true(backend_s3.open(&b, &p, error) < 0);
                if (!strstr(error, cases[i].want) || !strstr(error, credentials))
                        fail_msg("%u: %s", i, error);
        }
        p.credentials = "/nonexistent";
        assert_int_equal(backend_s3.open(&b, &p, error), -ENOENT);
        p.credentials = NULL;
        unsetenv("AWS_ACCESS_KEY_ID");
        assert_true(backend_s3.open(&b, &p, error) < 0);
        assert_non_null(strstr(error, "AWS_ACCESS_KEY_ID"));
        assert_null(b);
}

static void keys_may_come_from_the_environment(void **state)
{
        struct backend_params p = params_of(4);

        setenv("AWS_ACCESS_KEY_ID", "AKIAOTHER", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "other-secret", 1);
        p.credentials = NULL;
        start_with(&p);
        assert_int_equal(put("x", 9000, 1), 0);
        unsetenv("AWS_ACCESS_KEY_ID");
        unsetenv("AWS_SECRET_ACCESS_KEY");
}

static void a_wrong_setting_is_named(void **state)
{
        static const char *const endpoints[] = {
                "127.0.0.1:9000",        "ftp://host",       "http://",
                "http://user:pass@host", "http://host/path", "http://host?x=y",
                "https://host:9000/",    "http://a b"
        };
        struct backend_params p = params_of(4);
        char error[256];

        for (unsigned i = 0; i < ARRAY_SIZE(endpoints); i++) {
                p.endpoint = endpoints[i];
                assert_int_equal(backend_s3.open(&b, &p, error), -EINVAL);
                assert_non_null(strstr(error, "remote.endpoint"));
        }
        p = params_of(4);
        p.bucket = "a/b";
        assert_int_equal(backend_s3.open(&b, &p, error), -EINVAL);
        assert_non_null(strstr(error, "remote.bucket"));
        p = params_of(4);
        p.region = "a:b";
        assert_int_equal(backend_s3.open(&b, &p, error), -EINVAL);
        assert_non_null(strstr(error, "remote.region"));
        p = params_of(4);
        p.ca = "/nonexistent";
        assert_int_equal(backend_s3.open(&b, &p, error), -ENOENT);
        assert_non_null(strstr(error, "remote.ca"));
        assert_null(b);
}

static void nothing_listens(void **state)
{
        char error[120];

        start();
        stop_server();
        assert_int_equal(run_op(BACKEND_READ, "x", 9000, 0, error), -ECONNREFUSED);
        assert_string_not_equal(error, "");
}

/* TLS: only with the CA that signed the server's certificate. */
static void certificates_are_verified(void **state)
{
        struct backend_params p;
        char error[120], command[600];

        snprintf(command, sizeof(command),
                 "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days "
                 "2 -subj /CN=127.0.0.1 "
                 "-addext subjectAltName=IP:127.0.0.1 -keyout %s -out %s >/dev/null 2>&1",
                 key_file, certificate);
        if (system(command) != 0)
                skip(); /* no openssl */
        stop_server();
        start_server(true);
        p = params_of(4);
        start_with(&p);
        assert_int_equal(run_op(BACKEND_READ, "x", 9000, 0, error), -EIO);
        assert_non_null(strstr(error, "certificate"));
        stop();
        p.ca = certificate;
        start_with(&p);
        assert_int_equal(put("x", 3 << 20, 1), 0);
        assert_int_equal(get("x", 3 << 20, 1), 0);
        stop();
        stop_server();
}

static void stop_and_close_do_not_wait(void **state)
{
        struct operation *o = operation_new(BACKEND_READ, name_of("hang"), 9000, false);
        uint64_t began;

        start();
        backend_s3.submit(b, &o->op);
        began = clock_mono_ns();
        stop();
        assert_true(clock_mono_ns() - began < 60 * SECOND_NS);
        assert_int_equal(operation_wait(o), -ECANCELED);
        operation_free(o);
}

static int group_setup(void **state)
{
        snprintf(folder, sizeof(folder), "/tmp/kvcache-s3-XXXXXX");
        if (!mkdtemp(folder))
                return -1;
        snprintf(credentials, sizeof(credentials), "%s/credentials", folder);
        snprintf(certificate, sizeof(certificate), "%s/certificate", folder);
        snprintf(key_file, sizeof(key_file), "%s/key", folder);
        return 0;
}

static int group_teardown(void **state)
{
        stop_server();
        unlink(credentials);
        unlink(certificate);
        unlink(key_file);
        return rmdir(folder);
}

int main(int argc, char **argv)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
        const struct CMUnitTest tests[] = {
                TEST(it_keeps_the_contract),
                TEST(connections_are_kept_and_capped),
                TEST(answers_are_those_of_the_contract),
                TEST(bytes_that_are_wrong_in_number_are_refused),
                TEST(an_empty_object_is_read),
                TEST(no_more_is_read_than_was_asked_for),
                TEST(what_hangs_ends_at_its_deadline),
                TEST(what_waits_ends_at_its_deadline),
                TEST(a_server_without_conditions_is_remembered),
                TEST(what_was_not_the_condition_is_not_remembered),
                TEST(a_connection_that_was_closed_is_made_again),
                TEST(a_server_may_send_no_continue),
                TEST(odd_names_are_signed_as_they_are_sent),
                TEST(wrong_keys_are_refused),
                TEST(credentials_are_read_again),
                TEST(a_bad_credentials_file_is_named),
                TEST(keys_may_come_from_the_environment),
                TEST(a_wrong_setting_is_named),
                TEST(nothing_listens),
                TEST(certificates_are_verified),
                TEST(stop_and_close_do_not_wait),
        };
        struct libcurl library;
        char why[256];

        if (argc != 3)
                return 2;
        if (libcurl_open(&library, true, why) < 0) {
                printf("%s\n", why);
                return 77;
        }
        python = argv[1];
        server_script = argv[2];
        signal(SIGPIPE, SIG_IGN);
        return cmocka_run_group_tests_name("remote-s3", tests, group_setup, group_teardown);
}
