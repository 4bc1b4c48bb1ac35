/* SPDX-License-Identifier: Apache-2.0 */
/* Messages and descriptors arrive together, and no descriptor is ever left behind. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../lib/open-fds.h"
#include "fdpass.h"

struct pair {
        int a, b;
        unsigned open_before;
};

static int setup(void **state)
{
        static struct pair p;
        int fds[2];

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
                return -1;
        p = (struct pair){ .a = fds[0], .b = fds[1] };
        p.open_before = open_fds();
        *state = &p;
        return 0;
}

static int teardown(void **state)
{
        struct pair *p = *state;

        if (p->a >= 0)
                close(p->a);
        close(p->b);
        return 0;
}

static void assert_same_file(int a, int b)
{
        struct stat x, y;

        assert_int_equal(fstat(a, &x), 0);
        assert_int_equal(fstat(b, &y), 0);
        assert_int_equal(x.st_dev, y.st_dev);
        assert_int_equal(x.st_ino, y.st_ino);
}

/* Sends with the plain system call, as a client that is not ours would: any number of descriptors.
 */
static void send_raw(int sock, const void *msg, size_t bytes, const int *fds, unsigned n_fds)
{
        union {
                struct cmsghdr align;
                char bytes[CMSG_SPACE(64 * sizeof(int))];
        } control = { 0 };
        struct iovec iov = { .iov_base = (void *)msg, .iov_len = bytes };
        struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

        if (n_fds > 0) {
                struct cmsghdr *c;

                m.msg_control = control.bytes;
                m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
                c = CMSG_FIRSTHDR(&m);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
                memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
        }
        assert_int_equal(sendmsg(sock, &m, MSG_NOSIGNAL), bytes);
}

static void messages_keep_their_borders_and_order(void **state)
{
        struct pair *p = *state;
        char buf[64];
        int fds[WIRE_MAX_FDS];
        unsigned n_fds = 77;

        assert_int_equal(fdpass_send(p->a, "one", 3, NULL, 0), 0);
        assert_int_equal(fdpass_send(p->a, "second", 6, NULL, 0), 0);
        assert_int_equal(fdpass_recv(p->b, buf, sizeof(buf), fds, &n_fds), 3);
        assert_memory_equal(buf, "one", 3);
        assert_int_equal(n_fds, 0);
        assert_int_equal(fdpass_recv(p->b, buf, sizeof(buf), fds, &n_fds), 6);
        assert_memory_equal(buf, "second", 6);
}

static void an_empty_socket_says_so_at_once(void **state)
{
        struct pair *p = *state;
        int fds[WIRE_MAX_FDS] = { 11, 12, 13, 14 };
        unsigned n_fds = 77;
        char buf[8];

        assert_int_equal(fdpass_recv(p->b, buf, sizeof(buf), fds, &n_fds), -EAGAIN);
        assert_int_equal(n_fds, 0);
        assert_int_equal(fds[0], 11);
}

static void the_largest_message_goes_through_and_one_byte_more_is_lost(void **state)
{
        struct pair *p = *state;
        char *out = calloc(1, WIRE_MAX_MESSAGE + 1), *in = malloc(WIRE_MAX_MESSAGE);
        int fds[WIRE_MAX_FDS], null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        unsigned n_fds;

        assert_true(out && in && null >= 0);
        out[WIRE_MAX_MESSAGE - 1] = 'e';
        assert_int_equal(fdpass_send(p->a, out, WIRE_MAX_MESSAGE, NULL, 0), 0);
        assert_int_equal(fdpass_recv(p->b, in, WIRE_MAX_MESSAGE, fds, &n_fds), WIRE_MAX_MESSAGE);
        assert_int_equal(in[WIRE_MAX_MESSAGE - 1], 'e');

        assert_int_equal(fdpass_send(p->a, out, WIRE_MAX_MESSAGE + 1, &null, 1), 0);
        close(null);
        assert_int_equal(fdpass_recv(p->b, in, WIRE_MAX_MESSAGE, fds, &n_fds), -EMSGSIZE);
        assert_int_equal(open_fds(), p->open_before);
        /* The next message is whole again. */
        assert_int_equal(fdpass_send(p->a, "x", 1, NULL, 0), 0);
        assert_int_equal(fdpass_recv(p->b, in, WIRE_MAX_MESSAGE, fds, &n_fds), 1);
        free(out);
        free(in);
}

static void descriptors_arrive_in_order_and_close_on_exec(void **state)
{
        struct pair *p = *state;

        for (unsigned n = 1; n <= WIRE_MAX_FDS; n++) {
                static const char *const paths[] = { "/dev/null", "/dev/zero", "/", "/proc" };
                int sent[WIRE_MAX_FDS], got[WIRE_MAX_FDS];
                unsigned n_got;
                char buf[8];

                for (unsigned i = 0; i < n; i++) {
                        sent[i] = open(paths[i], O_RDONLY);
                        assert_true(sent[i] >= 0);
                }
                assert_int_equal(fdpass_send(p->a, "fds", 3, sent, n), 0);
                assert_int_equal(fdpass_recv(p->b, buf, sizeof(buf), got, &n_got), 3);
                assert_int_equal(n_got, n);
                for (unsigned i = 0; i < n; i++) {
                        assert_same_file(sent[i], got[i]);
                        assert_int_equal(fcntl(got[i], F_GETFD), FD_CLOEXEC);
                        close(sent[i]);
                        close(got[i]);
                }
        }
        assert_int_equal(open_fds(), p->open_before);
}

static void too_many_descriptors_are_refused_and_all_closed(void **state)
{
        struct pair *p = *state;

        for (unsigned n = WIRE_MAX_FDS + 1; n <= 64; n++) {
                int many[64], got[WIRE_MAX_FDS];
                unsigned n_got = 77;
                char buf[8];

                for (unsigned i = 0; i < n; i++)
                        many[i] = p->a;
                send_raw(p->a, "many", 4, many, n);
                assert_int_equal(fdpass_recv(p->b, buf, sizeof(buf), got, &n_got), -EBADMSG);
                assert_int_equal(n_got, 0);
                assert_int_equal(open_fds(), p->open_before);
        }
}

static void descriptors_that_we_have_no_number_for_are_refused(void **state)
{
        struct pair *p = *state;
        int sent[2] = { p->a, p->b }, got[WIRE_MAX_FDS], top;
        struct rlimit old, tight;
        unsigned n_got;
        char buf[8];
        ssize_t n;

        send_raw(p->a, "two", 3, sent, 2);
        top = open("/dev/null", O_RDONLY | O_CLOEXEC);
        assert_true(top >= 0);
        assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
        tight = (struct rlimit){ .rlim_cur = (rlim_t)top + 1, .rlim_max = old.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
        n = fdpass_recv(p->b, buf, sizeof(buf), got, &n_got);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
        assert_int_equal(n, -EBADMSG);
        close(top);
        assert_int_equal(open_fds(), p->open_before);
}

static void an_empty_message_is_an_end_and_leaves_nothing_open(void **state)
{
        struct pair *p = *state;
        int got[WIRE_MAX_FDS], sent = p->a;
        unsigned n_got = 77;
        char buf[8];

        send_raw(p->a, "", 0, &sent, 1);
        assert_int_equal(fdpass_recv(p->b, buf, sizeof(buf), got, &n_got), 0);
        assert_int_equal(n_got, 0);
        assert_int_equal(open_fds(), p->open_before);
}

static void the_end_is_seen_after_what_was_sent(void **state)
{
        struct pair *p = *state;
        int fds[WIRE_MAX_FDS];
        unsigned n_fds;
        char buf[8];

        assert_int_equal(fdpass_send(p->a, "last", 4, NULL, 0), 0);
        close(p->a);
        p->a = -1;
        assert_int_equal(fdpass_recv(p->b, buf, sizeof(buf), fds, &n_fds), 4);
        assert_int_equal(fdpass_recv(p->b, buf, sizeof(buf), fds, &n_fds), 0);
}

static void a_peer_that_left_is_an_error_and_no_signal(void **state)
{
        struct pair *p = *state;

        /* SIGPIPE has its default action here, which would end this program. */
        assert_ptr_equal(signal(SIGPIPE, SIG_DFL), SIG_DFL);
        close(p->a);
        p->a = -1;
        assert_int_equal(fdpass_send(p->b, "x", 1, NULL, 0), -EPIPE);
}

static void a_full_queue_says_again_and_takes_none_of_it(void **state)
{
        struct pair *p = *state;
        static char out[8192], in[8192];
        int fds[WIRE_MAX_FDS], sent = p->a;
        unsigned n_fds, queued = 0;
        int r;

        while ((r = fdpass_send(p->a, out, sizeof(out), &sent, 1)) == 0)
                queued++;
        assert_int_equal(r, -EAGAIN);
        assert_true(queued > 0);
        for (unsigned i = 0; i < queued; i++) {
                assert_int_equal(fdpass_recv(p->b, in, sizeof(in), fds, &n_fds), sizeof(in));
                assert_int_equal(n_fds, 1);
                close(fds[0]);
        }
        assert_int_equal(fdpass_recv(p->b, in, sizeof(in), fds, &n_fds), -EAGAIN);
        assert_int_equal(fdpass_send(p->a, out, sizeof(out), NULL, 0), 0);
        assert_int_equal(open_fds(), p->open_before);
}

static void ignore_signal(int signal)
{
}

static void a_wait_ends_with_a_message_a_signal_or_its_time(void **state)
{
        struct pair *p = *state;
        struct itimerval soon = { .it_value.tv_usec = 1000 };
        struct sigaction action = { .sa_handler = ignore_signal }; /* no SA_RESTART */
        char buf[16];
        int fds[WIRE_MAX_FDS];
        unsigned n_fds;

        assert_int_equal(fdpass_send(p->a, "abc", 3, NULL, 0), 0);
        assert_int_equal(fdpass_wait(p->b, buf, sizeof(buf), fds, &n_fds), 3);
        assert_int_equal(n_fds, 0);

        sigaction(SIGALRM, &action, NULL);
        setitimer(ITIMER_REAL, &soon, NULL);
        assert_int_equal(fdpass_wait(p->b, buf, sizeof(buf), fds, &n_fds), -EINTR);

        setsockopt(p->b, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ .tv_usec = 1000 },
                   sizeof(struct timeval));
        assert_int_equal(fdpass_wait(p->b, buf, sizeof(buf), fds, &n_fds), -EAGAIN);
        close(p->a);
        p->a = -1;
        assert_int_equal(fdpass_wait(p->b, buf, sizeof(buf), fds, &n_fds), 0);
}

static void what_is_no_socket_is_an_error(void **state)
{
        int fds[WIRE_MAX_FDS], pipes[2];
        unsigned n_fds;
        char buf[8];

        assert_int_equal(pipe(pipes), 0);
        assert_int_equal(fdpass_send(pipes[1], "x", 1, NULL, 0), -ENOTSOCK);
        assert_int_equal(fdpass_recv(pipes[0], buf, sizeof(buf), fds, &n_fds), -ENOTSOCK);
        assert_int_equal(fdpass_recv(-1, buf, sizeof(buf), fds, &n_fds), -EBADF);
        close(pipes[0]);
        close(pipes[1]);
}

#define test(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                test(messages_keep_their_borders_and_order),
                test(an_empty_socket_says_so_at_once),
                test(the_largest_message_goes_through_and_one_byte_more_is_lost),
                test(descriptors_arrive_in_order_and_close_on_exec),
                test(too_many_descriptors_are_refused_and_all_closed),
                test(descriptors_that_we_have_no_number_for_are_refused),
                test(an_empty_message_is_an_end_and_leaves_nothing_open),
                test(the_end_is_seen_after_what_was_sent),
                test(a_peer_that_left_is_an_error_and_no_signal),
                test(a_full_queue_says_again_and_takes_none_of_it),
                test(what_is_no_socket_is_an_error),
                test(a_wait_ends_with_a_message_a_signal_or_its_time),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
