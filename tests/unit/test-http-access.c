/* SPDX-License-Identifier: Apache-2.0 */
/* Access over HTTP: token files, comparison of tokens, names of this host, and the connections and
 * pages counted for an address. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "report/http-host.h"
#include "report/http-peers.h"
#include "report/http-token.h"

static char folder[] = "/tmp/kvcache-http-access-XXXXXX";
static char path[64];
static char error[256];

static int setup_folder(void **state)
{
        if (!mkdtemp(folder))
                return -1;
        snprintf(path, sizeof(path), "%s/token", folder);
        return 0;
}

static int remove_folder(void **state)
{
        unlink(path);
        return rmdir(folder);
}

static void write_file(const void *bytes, size_t n, mode_t mode)
{
        _cleanup_(closep) int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

        assert_true(fd >= 0);
        assert_int_equal(write(fd, bytes, n), n);
        assert_int_equal(fchmod(fd, mode), 0);
}

#define TOKEN "s3cret-s3cret-s3cret"

static void a_token_is_one_line_of_a_file_that_others_cannot_read(void **state)
{
        static const struct {
                const char *text;
                mode_t mode;
                int result;
                const char *why;
        } cases[] = {
                { TOKEN, 0600, 0, "" },
                { TOKEN "\n", 0640, 0, "" },
                { TOKEN "\n", 0400, 0, "" },
                { TOKEN "\n", 0440, 0, "" },
                { TOKEN "\n", 0644, -EINVAL, "mode 0644 lets other users read the file: chmod" },
                { TOKEN "\n", 0604, -EINVAL, "lets other users read" },
                { TOKEN "\n", 0602, -EINVAL, "lets other users change" },
                { TOKEN "\n", 0660, -EINVAL, "lets other users change" },
                { "", 0600, -EINVAL, "the file is empty; create a token with openssl rand" },
                { "\n", 0600, -EINVAL, "the file is empty" },
                { "s3cret-s3cret-s\n", 0600, -EINVAL, "shorter than 16 characters" },
                { "\n" TOKEN, 0600, -EINVAL, "one line of printable ASCII" },
                { TOKEN "\n\n", 0600, -EINVAL, "one line of printable ASCII" },
                { TOKEN " " TOKEN, 0600, -EINVAL, "without a space" },
                { " " TOKEN, 0600, -EINVAL, "without a space" },
                { TOKEN " \n", 0600, -EINVAL, "without a space" },
                { TOKEN "\r\n", 0600, -EINVAL, "without a space" },
                { TOKEN "\xc3\xa4", 0600, -EINVAL, "printable ASCII" },
                { TOKEN "\x7f", 0600, -EINVAL, "printable ASCII" },
        };
        struct http_token token;

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
                int r;

                write_file(cases[i].text, strlen(cases[i].text), cases[i].mode);
                token = (struct http_token){ .n = 1 };
                error[0] = '\0';
                r = http_token_read(&token, path, error);
                if (r != cases[i].result || !strstr(error, cases[i].why))
                        fail_msg("case %zu: %d, \"%s\"", i, r, error);
                assert_int_equal(token.n, r == 0 ? strlen(TOKEN) : 1);
                assert_null(strstr(error, "s3cret"));
                assert_true(r == 0 || strstr(error, path));
        }
        assert_int_equal(http_token_read(&token, "off", error), 0);
        assert_int_equal(token.n, 0);
}

static void the_longest_token_is_taken_and_a_longer_one_is_not(void **state)
{
        static char text[8192];
        struct http_token token;
        char header[HTTP_TOKEN_MAX + 16];

        memset(text, 'x', sizeof(text));
        text[HTTP_TOKEN_MAX] = '\n';
        write_file(text, HTTP_TOKEN_MAX + 1, 0600);
        assert_int_equal(http_token_read(&token, path, error), 0);
        assert_int_equal(token.n, HTTP_TOKEN_MAX);
        snprintf(header, sizeof(header), "Bearer %.*s", HTTP_TOKEN_MAX, text);
        assert_true(http_token_matches(&token, header));
        strcat(header, "x");
        assert_false(http_token_matches(&token, header));

        text[HTTP_TOKEN_MAX] = 'x';
        for (size_t n = HTTP_TOKEN_MAX + 1; n <= sizeof(text); n += 1021) {
                write_file(text, n, 0600);
                assert_int_equal(http_token_read(&token, path, error), -EINVAL);
                assert_non_null(strstr(error, "longer than 512 characters"));
        }
        /* A NUL does not end the token early. */
        text[20] = '\0';
        write_file(text, 40, 0600);
        assert_int_equal(http_token_read(&token, path, error), -EINVAL);
}

static void what_is_no_file_is_not_waited_for(void **state)
{
        struct http_token token;
        char link[80];

        unlink(path);
        assert_int_equal(http_token_read(&token, path, error), -ENOENT);
        assert_non_null(strstr(error, "No such file"));
        assert_int_equal(http_token_read(&token, folder, error), -EINVAL);
        assert_non_null(strstr(error, "not a regular file"));
        assert_int_equal(http_token_read(&token, "/dev/zero", error), -EINVAL);
        assert_int_equal(mkfifo(path, 0600), 0);
        assert_int_equal(http_token_read(&token, path, error), -EINVAL);
        unlink(path);
        /* Kubernetes provides secrets in this form. */
        snprintf(link, sizeof(link), "%s-link", path);
        write_file(TOKEN, strlen(TOKEN), 0440);
        assert_int_equal(symlink(path, link), 0);
        assert_int_equal(http_token_read(&token, link, error), 0);
        write_file(TOKEN, strlen(TOKEN), 0444);
        assert_int_equal(http_token_read(&token, link, error), -EINVAL);
        unlink(link);
}

static void tokens_are_compared_whole(void **state)
{
        struct http_token token = { .n = 16, .bytes = "0123456789abcdef" }, same = token,
                          longer = { .n = 17, .bytes = "0123456789abcdef" }, none = { 0 };

        assert_true(http_token_equal(&token, &same));
        assert_false(http_token_equal(&token, &longer));
        assert_false(http_token_equal(&token, &none));
        assert_true(http_token_matches(&none, NULL));
        assert_true(http_token_matches(&none, "Bearer wrong"));
        assert_false(http_token_matches(&token, NULL));
        for (unsigned i = 0; i < 16; i++) {
                char header[] = "Bearer 0123456789abcdef";

                assert_true(http_token_matches(&token, header));
                header[7 + i] ^= 1;
                assert_false(http_token_matches(&token, header));
        }
}

/* --- addresses --- */

static struct http_peers peers;
enum { S = 1000000000 };

static struct http_peer *peer_of(const char *text, uint64_t now_ns)
{
        struct sockaddr_in in = { .sin_family = AF_INET };
        struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };

        if (inet_pton(AF_INET, text, &in.sin_addr) == 1)
                return http_peers_open(&peers, (struct sockaddr *)&in, now_ns);
        assert_int_equal(inet_pton(AF_INET6, text, &in6.sin6_addr), 1);
        return http_peers_open(&peers, (struct sockaddr *)&in6, now_ns);
}

static int clear(void **state)
{
        peers = (struct http_peers){ 0 };
        return 0;
}

static void an_address_is_one_however_it_is_written(void **state)
{
        struct sockaddr un = { .sa_family = AF_UNIX };

        assert_ptr_equal(peer_of("192.0.2.1", 0), peer_of("::ffff:192.0.2.1", 0));
        assert_ptr_equal(peer_of("2001:db8::1", 0), peer_of("2001:db8::ffff:1", 0));
        assert_ptr_not_equal(peer_of("2001:db8::1", 0), peer_of("2001:db8:0:1::1", 0));
        assert_ptr_not_equal(peer_of("192.0.2.1", 0), peer_of("192.0.2.2", 0));
        assert_true(peer_of("192.0.2.1", 0)->remote && peer_of("2001:db8::1", 0)->remote);
        assert_false(peer_of("127.0.0.1", 0)->remote);
        assert_false(peer_of("127.9.9.9", 0)->remote);
        assert_false(peer_of("::1", 0)->remote);
        assert_false(peer_of("::ffff:127.0.0.1", 0)->remote);
        assert_null(http_peers_open(&peers, &un, 0));
}

static void the_rate_is_kept_over_time_and_a_second_of_it_at_once(void **state)
{
        struct http_peer *peer = peer_of("192.0.2.1", 0);
        uint64_t now_ns = 5 * (uint64_t)S;
        unsigned passed = 0;

        for (unsigned i = 0; i < 50; i++)
                passed += http_peer_request(peer, 10, now_ns);
        assert_int_equal(passed, 10);
        /* One request is earned every tenth of a second. */
        for (unsigned i = 0; i < 100; i++)
                passed += http_peer_request(peer, 10, now_ns += S / 20);
        assert_in_range(passed, 59, 60);
        /* Refused requests cost nothing, and unused allowance does not accumulate. */
        now_ns += 100 * (uint64_t)S;
        passed = 0;
        for (unsigned i = 0; i < 50; i++)
                passed += http_peer_request(peer, 10, now_ns);
        assert_int_equal(passed, 10);
        assert_true(http_peer_request(peer, 0, now_ns));
        assert_true(http_peer_request(peer_of("192.0.2.2", now_ns), 1, now_ns));
        assert_false(http_peer_request(peer_of("192.0.2.2", now_ns), 1, now_ns));
}

/* An address that has used up its rate does not get it again by making other addresses replace its
 * entry. */
static void a_full_table_forgets_only_what_does_not_matter(void **state)
{
        struct http_peer *first = peer_of("192.0.2.1", 0), *shared;
        char text[32];

        assert_true(http_peer_request(first, 1, 0));
        http_peer_close(first);
        for (unsigned i = 0; i < 2 * HTTP_PEERS; i++) {
                struct http_peer *peer;

                snprintf(text, sizeof(text), "10.0.%u.%u", i / 256, i % 256);
                peer = peer_of(text, S / 2);
                (void)http_peer_request(peer, 1, S / 2);
                http_peer_close(peer);
        }
        assert_false(http_peer_request(peer_of("192.0.2.1", S / 2), 1, S / 2));
        http_peer_close(first);
        shared = peer_of("198.51.100.1", S / 2);
        assert_ptr_equal(shared, peer_of("198.51.100.2", S / 2));
        assert_true(shared->remote);
        assert_int_equal(shared->open, 2);
        assert_false(peer_of("127.0.0.1", S / 2)->remote);
        http_peer_close(shared);
        http_peer_close(shared);

        /* Two seconds later each address has earned its requests again, and the entries are
         * free. */
        assert_ptr_not_equal(peer_of("198.51.100.1", 3 * (uint64_t)S), shared);
        assert_true(http_peer_request(peer_of("192.0.2.1", 3 * (uint64_t)S), 1, 3 * (uint64_t)S));
}

static void only_addresses_and_names_of_this_host_are_its_own(void **state)
{
        static char kvcache[] = "kvcache.example.com", service[] = "_svc-1";
        static char *const further[] = { kvcache, service };
        static const struct http_host_names names = { .own = "Node1.example.org",
                                                      .names = further,
                                                      .n = ARRAY_SIZE(further) };
        static const struct {
                const char *host;
                enum http_host verdict;
        } cases[] = {
                { "127.0.0.1", HTTP_HOST_OWN },
                { "10.20.30.40:65535", HTTP_HOST_OWN },
                { "[::1]", HTTP_HOST_OWN },
                { "[2001:db8::1]:9750", HTTP_HOST_OWN },
                { "[::ffff:10.0.0.1]:", HTTP_HOST_OWN },
                { "localhost", HTTP_HOST_OWN },
                { "LOCALHOST.:80", HTTP_HOST_OWN },
                { "node1.example.org", HTTP_HOST_OWN },
                { "NODE1:9750", HTTP_HOST_OWN },
                { "kvcache.EXAMPLE.com", HTTP_HOST_OWN },
                { "_svc-1", HTTP_HOST_OWN },
                { "node1.", HTTP_HOST_OWN },
                { "node", HTTP_HOST_OTHER },
                { "node1.example", HTTP_HOST_OTHER },
                { "node1.example.org.evil.example", HTTP_HOST_OTHER },
                { "node1.evil.example", HTTP_HOST_OTHER },
                { "localhost.evil.example", HTTP_HOST_OTHER },
                { "127.0.0.1.evil.example", HTTP_HOST_OTHER },
                { "127.0.0.1..", HTTP_HOST_OTHER },
                { "127.1", HTTP_HOST_OTHER },
                { "0x7f000001", HTTP_HOST_OTHER },
                { "kvcache.example.com.evil.example", HTTP_HOST_OTHER },
                { "xkvcache.example.com", HTTP_HOST_OTHER },
                { "..", HTTP_HOST_OTHER },
                { "", HTTP_HOST_MALFORMED },
                { ":80", HTTP_HOST_MALFORMED },
                { "localhost:http", HTTP_HOST_MALFORMED },
                { "localhost:123456", HTTP_HOST_MALFORMED },
                { "localhost:80 ", HTTP_HOST_MALFORMED },
                { "::1", HTTP_HOST_MALFORMED },
                { "[]", HTTP_HOST_MALFORMED },
                { "[", HTTP_HOST_MALFORMED },
                { "[::1]x", HTTP_HOST_MALFORMED },
                { "[::1]:x", HTTP_HOST_MALFORMED },
                { "[localhost]", HTTP_HOST_MALFORMED },
                { "[0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0001]",
                  HTTP_HOST_MALFORMED },
                { "local host", HTTP_HOST_MALFORMED },
                { "a/localhost", HTTP_HOST_MALFORMED },
                { "evil.example#@localhost", HTTP_HOST_MALFORMED },
        };
        char longest[300];

        for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
                if (http_host_judge(cases[i].host, &names) != cases[i].verdict)
                        fail_msg("\"%s\" is not %d", cases[i].host, cases[i].verdict);
        memset(longest, 'a', sizeof(longest));
        longest[255] = '\0';
        assert_int_equal(http_host_judge(longest, &names), HTTP_HOST_OTHER);
        longest[255] = 'a';
        longest[256] = '\0';
        assert_int_equal(http_host_judge(longest, &names), HTTP_HOST_MALFORMED);
        /* A host without a name has none that a request could contain. */
        assert_int_equal(http_host_judge(".", &(struct http_host_names){ .own = "" }),
                         HTTP_HOST_OTHER);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_token_is_one_line_of_a_file_that_others_cannot_read),
                cmocka_unit_test(the_longest_token_is_taken_and_a_longer_one_is_not),
                cmocka_unit_test(what_is_no_file_is_not_waited_for),
                cmocka_unit_test(tokens_are_compared_whole),
                cmocka_unit_test(only_addresses_and_names_of_this_host_are_its_own),
                cmocka_unit_test_setup(an_address_is_one_however_it_is_written, clear),
                cmocka_unit_test_setup(the_rate_is_kept_over_time_and_a_second_of_it_at_once,
                                       clear),
                cmocka_unit_test_setup(a_full_table_forgets_only_what_does_not_matter, clear),
        };

        return cmocka_run_group_tests(tests, setup_folder, remove_folder);
}
