/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that share a mapping, from REGISTER to the last release, with I/O that happens when the
 * test requests it: what is mapped and charged once, to whom, and what a failure leaves. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "checked.h"
#include "cache/region.h"
#include "inline-io.h"
#include "request/buffers.h"
#include "request/memory.h"

enum { PAGE = 4096, FILE_BYTES = 4 << 20, LIMIT = 8 << 20, CLIENTS = 6, TENANTS = 2 };

/* --- failures by order --- */

static unsigned mmaps, mmaps_to_fail, callocs_to_fail, statx_to_fail;
static size_t calloc_bytes; /* allocations of at least this size fail */

void *__real_mmap64(void *at, size_t bytes, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap64(void *at, size_t bytes, int prot, int flags, int fd, off_t offset);
void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
int __real_statx(int fd, const char *path, int flags, unsigned mask, struct statx *ret);
int __wrap_statx(int fd, const char *path, int flags, unsigned mask, struct statx *ret);

void *__wrap_mmap64(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
        if (fd >= 0 && mmaps_to_fail > 0) {
                mmaps_to_fail--;
                errno = ENOMEM;
                return MAP_FAILED;
        }
        mmaps += fd >= 0;
        return __real_mmap64(at, bytes, prot, flags, fd, offset);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
        if (callocs_to_fail > 0 && n * bytes >= calloc_bytes && --callocs_to_fail == 0)
                return NULL;
        return __real_calloc(n, bytes);
}

int __wrap_statx(int fd, const char *path, int flags, unsigned mask, struct statx *ret)
{
        if (statx_to_fail > 0) {
                statx_to_fail--;
                errno = EINTR;
                return -1;
        }
        return __real_statx(fd, path, flags, mask, ret);
}

/* --- a daemon's part, with clients of three users and two tenants --- */

struct user {
        struct client client;
        struct wire_reply last; /* latest reply of the daemon */
        char text[WIRE_MAX_TEXT + 1];
        unsigned replies;
};

static struct {
        struct service service;
        struct tenant tenants[TENANTS];
        struct user users[CLIENTS];
        int fds;
} world;

/* ALICE three times, BOB, ALICE in another tenant, ALICE as an admin. */
static const struct {
        uid_t uid;
        unsigned tenant;
} who[CLIENTS] = { { 1000, 0 }, { 1000, 0 }, { 1000, 0 }, { 1001, 0 }, { 1000, 1 }, { 1000, 0 } };
enum { ALICE, ALICE_2, ALICE_3, BOB, ALICE_ELSEWHERE, ALICE_ADMIN };

static void keep_reply(struct client *client, const void *msg, size_t bytes, const int *fds,
                       unsigned n_fds)
{
        struct user *u = container_of(client, struct user, client);

        assert_true(bytes >= sizeof(u->last) && bytes <= sizeof(u->last) + WIRE_MAX_TEXT);
        memcpy(&u->last, msg, sizeof(u->last));
        memset(u->text, 0, sizeof(u->text));
        memcpy(u->text, (const char *)msg + sizeof(u->last), bytes - sizeof(u->last));
        u->replies++;
}

static void nothing(struct client *client)
{
}

static int count_fds(void)
{
        int n = 0;

        for (int fd = 0; fd < 256; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

static int setup(void **state)
{
        static const struct quota_access none;
        struct quota_limits all, user = { .shared = { 0 } };
        struct quota_params params[TENANTS] = { { .name = "default" }, { .name = "other" } };
        struct kio_params io = { .depth = 16 };
        char error[256];

        for (unsigned i = 0; i < QUOTA_THINGS; i++)
                all.most[i] = user.most[i] = QUOTA_NO_LIMIT;
        all.most[QUOTA_REGISTERED_BYTES] = LIMIT;
        for (unsigned i = 0; i < TENANTS; i++)
                params[i].limits = user;
        mmaps_to_fail = callocs_to_fail = statx_to_fail = 0;
        world.fds = count_fds();
        world.service = (struct service){ .tenants = world.tenants, .n_tenants = TENANTS };
        assert_int_equal(kio_start(&world.service.io, &io, error), 0);
        assert_int_equal(
                quotas_new(&world.service.quotas, params, TENANTS, &none, &all, &user, error), 0);
        for (unsigned i = 0; i < TENANTS; i++) {
                world.tenants[i] = (struct tenant){ .service = &world.service, .number = i };
                assert_int_equal(request_init(&world.tenants[i]), 0);
        }
        for (unsigned i = 0; i < CLIENTS; i++) {
                struct client *c = &world.users[i].client;

                world.users[i] = (struct user){ .replies = 0 };
                *c = (struct client){ .tenant = &world.tenants[who[i].tenant],
                                      .send = keep_reply,
                                      .idle = nothing };
                assert_int_equal(quota_holder_open(&c->holds, world.service.quotas, who[i].tenant,
                                                   who[i].uid),
                                 0);
                c->holds.admin = i == ALICE_ADMIN;
        }
        return 0;
}

static void settle(void)
{
        while (kio_pending(world.service.io) > 0)
                (void)kio_reap(world.service.io);
}

static uint64_t charged(void)
{
        struct quota_usage usage;

        quotas_get_total(world.service.quotas, &usage);
        return usage.used[QUOTA_REGISTERED_BYTES];
}

/* All clients end, after which nothing is mapped, charged or open. */
static int teardown(void **state)
{
        for (unsigned i = 0; i < CLIENTS; i++) {
                world.users[i].client.ended = true;
                buffers_end(&world.users[i].client);
        }
        settle();
        assert_int_equal(charged(), 0);
        for (unsigned i = 0; i < CLIENTS; i++) {
                assert_int_equal(world.users[i].client.inflight, 0);
                quota_holder_close(&world.users[i].client.holds);
        }
        for (unsigned i = 0; i < TENANTS; i++) {
                const struct registered *r = &world.tenants[i].registered;

                assert_int_equal(r->opening | r->regions | r->shared | r->ring_bytes, 0);
                request_fini(&world.tenants[i]);
        }
        world.service.quotas = quotas_free(world.service.quotas);
        world.service.io = kio_stop(world.service.io);
        assert_int_equal(count_fds(), world.fds);
        return 0;
}

static int memory_fd(void)
{
        int fd = memfd_create("test-mapping", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        assert_true(fd >= 0 && fallocate(fd, 0, 0, FILE_BYTES) == 0);
        return fd;
}

/* --- requests of a client --- */

static struct request request_of(unsigned i, uint16_t op)
{
        struct client *c = &world.users[i].client;

        c->inflight++;
        return (struct request){ .client = c, .header = { .op = op } };
}

static void ask(unsigned i, int fd, uint64_t offset, uint64_t bytes)
{
        struct wire_register msg = { .offset = offset, .bytes = bytes };
        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

        buffer_open(request_of(i, WIRE_REGISTER), &msg, &copy);
        if (copy >= 0)
                close(copy);
}

/* Registers memory. Returns the number of the region. */
static uint32_t lend(unsigned i, int fd, uint64_t offset, uint64_t bytes)
{
        ask(i, fd, offset, bytes);
        settle();
        assert_int_equal(world.users[i].last.status, WIRE_OK);
        assert_int_equal(world.users[i].last.value64, bytes);
        return world.users[i].last.value;
}

static void refused(unsigned i, int fd, uint64_t offset, uint64_t bytes, enum wire_status status,
                    const char *why)
{
        ask(i, fd, offset, bytes);
        settle();
        assert_int_equal(world.users[i].last.status, status);
        assert_non_null(strstr(world.users[i].text, why));
}

static void unregister(unsigned i, uint32_t number)
{
        struct wire_unregister msg = { .region = number };

        buffer_unregister(request_of(i, WIRE_UNREGISTER), &msg);
}

static void take_back(unsigned i, uint32_t number)
{
        unregister(i, number);
        settle();
        assert_int_equal(world.users[i].last.status, WIRE_OK);
}

static char *at(unsigned i, uint32_t number, uint64_t offset, uint64_t length)
{
        struct kio_region *region;

        return buffer_at(&world.users[i].client, number, offset, length, &region);
}

static uint64_t shared(unsigned tenant)
{
        return world.tenants[tenant].registered.shared;
}

/* --- sharing --- */

static void the_same_memory_is_mapped_and_charged_once(void **state)
{
        int fd = memory_fd();
        uint32_t a, b, again;

        mmaps = 0;
        a = lend(ALICE, fd, 0, FILE_BYTES);
        b = lend(ALICE_2, fd, 0, FILE_BYTES);
        again = lend(ALICE, fd, 0, FILE_BYTES);
        assert_int_not_equal(a, again);
        assert_int_equal(mmaps, 1);
        assert_int_equal(charged(), FILE_BYTES);
        assert_int_equal(shared(0), 2);
        assert_int_equal(world.tenants[0].registered.regions, 3);
        assert_ptr_equal(at(ALICE, a, 5, 7), at(ALICE_2, b, 5, 7));

        take_back(ALICE, a);
        take_back(ALICE, again);
        assert_int_equal(charged(), FILE_BYTES);
        assert_int_equal(shared(0), 0);
        memset(at(ALICE_2, b, 0, FILE_BYTES), 'x', FILE_BYTES);
        take_back(ALICE_2, b);
        assert_int_equal(charged(), 0);
        close(fd);
}

static void a_stretch_within_another_is_served_by_it_within_its_own_bounds(void **state)
{
        int fd = memory_fd();
        uint32_t whole = lend(ALICE, fd, 0, FILE_BYTES);
        uint32_t part = lend(ALICE_2, fd, 3 * PAGE, 2 * PAGE);

        assert_int_equal(charged(), FILE_BYTES);
        assert_ptr_equal(at(ALICE_2, part, 1, PAGE), at(ALICE, whole, 3 * PAGE + 1, PAGE));
        assert_non_null(at(ALICE_2, part, PAGE, PAGE));
        assert_null(at(ALICE_2, part, PAGE, PAGE + 1));
        assert_null(at(ALICE_2, part, 2 * PAGE, 1));
        assert_null(at(ALICE_2, part, UINT64_MAX, 1));
        assert_null(at(ALICE_2, part, UINT64_MAX - PAGE, 2));
        /* The larger buffer ends first, and the part keeps the mapping and the charge. */
        take_back(ALICE, whole);
        assert_int_equal(charged(), FILE_BYTES);
        *at(ALICE_2, part, 0, 1) = 'x';
        close(fd);
}

static void stretches_that_do_not_lie_within_each_other_are_mapped_and_charged_apart(void **state)
{
        static const uint64_t places[][2] = { { 0, 4 }, { 2, 4 }, { 6, 2 }, { 0, 5 }, { 0, 100 } };
        int fd = memory_fd(), other = memory_fd();
        uint64_t sum = 0;

        for (unsigned i = 0; i < ARRAY_SIZE(places); i++) {
                (void)lend(ALICE, fd, places[i][0] * PAGE, places[i][1] * PAGE);
                sum += places[i][1] * PAGE;
                assert_int_equal(charged(), sum);
        }
        (void)lend(ALICE_2, other, 0, 4 * PAGE);
        assert_int_equal(charged(), sum + 4 * PAGE);
        assert_int_equal(shared(0), 0);
        close(fd);
        close(other);
}

static void users_and_tenants_never_share(void **state)
{
        int fd = memory_fd();
        uint32_t numbers[CLIENTS];
        char *places[CLIENTS];

        for (unsigned i = 0; i < 5; i++) {
                numbers[i] = lend(i, fd, 0, MIN(FILE_BYTES, LIMIT / 4));
                places[i] = at(i, numbers[i], 0, 1);
        }
        assert_ptr_equal(places[ALICE], places[ALICE_2]);
        assert_ptr_not_equal(places[ALICE], places[BOB]);
        assert_ptr_not_equal(places[ALICE], places[ALICE_ELSEWHERE]);
        assert_ptr_not_equal(places[BOB], places[ALICE_ELSEWHERE]);
        assert_int_equal(charged(), 3 * (LIMIT / 4));
        assert_int_equal(shared(0), 2);
        assert_int_equal(shared(1), 0);
        close(fd);
}

static void a_second_handle_needs_no_room_within_the_limit(void **state)
{
        int fd = memory_fd(), other = memory_fd();

        (void)lend(ALICE, fd, 0, FILE_BYTES);
        (void)lend(BOB, other, 0, FILE_BYTES);
        assert_int_equal(charged(), LIMIT);
        refused(ALICE_2, other, 0, FILE_BYTES, WIRE_BUSY, "limits.registered");
        (void)lend(ALICE_2, fd, 0, FILE_BYTES);
        assert_int_equal(charged(), LIMIT);
        assert_int_equal(world.users[ALICE_2].client.holds.used[QUOTA_REGIONS], 1);
        close(fd);
        close(other);
}

static void a_buffer_costs_each_handle_one_of_its_own(void **state)
{
        int fd = memory_fd();

        for (unsigned i = 0; i < WIRE_MAX_REGIONS; i++)
                (void)lend(ALICE, fd, 0, PAGE);
        refused(ALICE, fd, 0, PAGE, WIRE_INVALID, "maximum number of registered buffers");
        (void)lend(ALICE_2, fd, 0, PAGE);
        assert_int_equal(world.users[ALICE].client.holds.used[QUOTA_REGIONS], WIRE_MAX_REGIONS);
        assert_int_equal(charged(), PAGE);
        close(fd);
}

/* --- R2: the file between registrations --- */

static void test_R2_a_file_is_checked_again_for_each_that_shares_it(void **state)
{
        int fd = memory_fd();
        char path[64];
        int readonly;

        (void)lend(ALICE, fd, 0, FILE_BYTES);
        assert_int_equal(ftruncate(fd, FILE_BYTES - PAGE), 0);
        refused(ALICE_2, fd, 0, FILE_BYTES, WIRE_INVALID, "ends before");
        (void)lend(ALICE_2, fd, 0, FILE_BYTES - PAGE);
        assert_int_equal(charged(), FILE_BYTES);
        assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE), 0);
        refused(ALICE_2, fd, 0, PAGE, WIRE_INVALID, "hole");
        assert_int_equal(fallocate(fd, 0, 0, 2 * FILE_BYTES), 0);
        (void)lend(ALICE_2, fd, 0, FILE_BYTES);
        assert_int_equal(charged(), FILE_BYTES);
        /* The part by which the file has grown is not in the mapping, and is charged. */
        (void)lend(ALICE_2, fd, FILE_BYTES, PAGE);
        assert_int_equal(charged(), FILE_BYTES + PAGE);
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        readonly = open(path, O_RDONLY | O_CLOEXEC);
        refused(ALICE_3, readonly, 0, PAGE, WIRE_INVALID, "reading and writing");
        close(readonly);
        assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
        refused(ALICE_3, fd, 0, PAGE, WIRE_INVALID, "sealed against writing");
        close(fd);
}

/* A file has the numbers of a mapped one only after a counter has wrapped. Then the time of birth
 * distinguishes them, and a file without one differs from a file with one. */
static void a_file_of_another_birth_is_another_file(void **state)
{
        struct region_identity file;
        const char *wrong;
        int fd = memory_fd();

        (void)lend(ALICE, fd, 0, PAGE);
        assert_int_equal(region_check(fd, 0, PAGE, &file, &wrong), 0);
        if (file.born_ns == 0) {
                close(fd);
                print_message("tmpfs records no time of birth here\n");
                skip();
        }
        statx_to_fail = 1;
        (void)lend(ALICE_2, fd, 0, PAGE);
        assert_int_equal(shared(0), 0);
        assert_int_equal(charged(), 2 * PAGE);
        close(fd);
}

/* --- R17: what one handle has in flight --- */

static void test_R17_each_handle_waits_for_its_own_requests_alone(void **state)
{
        struct client *second = &world.users[ALICE_2].client;
        int fd = memory_fd();
        uint32_t a = lend(ALICE, fd, 0, FILE_BYTES), b = lend(ALICE_2, fd, 0, FILE_BYTES);
        uint64_t named = buffers_bit(second, b);
        unsigned replies;
        char *place;

        buffers_use(second, named);
        place = at(ALICE_2, b, PAGE, PAGE);
        take_back(ALICE, a); /* answered although the second has I/O in the same memory */
        memset(place, 'x', PAGE);
        replies = world.users[ALICE_2].replies;
        unregister(ALICE_2, b);
        settle();
        assert_int_equal(world.users[ALICE_2].replies, replies);
        assert_int_equal(charged(), FILE_BYTES);
        memset(place, 'y', PAGE);
        /* A registration that arrives meanwhile shares the existing mapping. */
        (void)lend(ALICE_3, fd, 0, PAGE);
        assert_int_equal(charged(), FILE_BYTES);
        buffers_unuse(second, named);
        settle();
        assert_int_equal(world.users[ALICE_2].replies, replies + 1);
        assert_int_equal(charged(), FILE_BYTES);
        *at(ALICE_3, world.users[ALICE_3].last.value, 0, 1) = 'z';
        close(fd);
}

static void one_that_comes_while_the_last_leaves_gets_a_mapping_of_its_own(void **state)
{
        int fd = memory_fd();
        uint32_t a = lend(ALICE, fd, 0, FILE_BYTES);

        unregister(ALICE, a); /* not unmapped yet */
        assert_int_equal(charged(), FILE_BYTES);
        ask(ALICE_2, fd, 0, FILE_BYTES);
        settle();
        assert_int_equal(world.users[ALICE_2].last.status, WIRE_OK);
        assert_int_equal(charged(), FILE_BYTES);
        *at(ALICE_2, world.users[ALICE_2].last.value, 0, 1) = 'x';
        close(fd);
}

/* Ends while it is checked, while it is mapped, and while it waits for the mapping of another. */
static void a_client_that_ends_at_any_moment_leaves_the_rest_as_it_was(void **state)
{
        int fd = memory_fd();

        inline_io_set(&(struct inline_io_plan){ .at_once = 1 });
        for (unsigned steps = 0; steps < 12; steps++)
                for (unsigned victim = ALICE; victim <= ALICE_2; victim++) {
                        struct client *dead = &world.users[victim].client;
                        unsigned other = ALICE + ALICE_2 - victim;

                        ask(ALICE, fd, 0, FILE_BYTES);
                        ask(ALICE_2, fd, PAGE, PAGE);
                        for (unsigned i = 0; i < steps && kio_pending(world.service.io) > 0; i++)
                                (void)kio_reap(world.service.io);
                        dead->ended = true;
                        buffers_end(dead);
                        settle();
                        assert_int_equal(dead->inflight, 0);
                        assert_int_equal(dead->holds.used[QUOTA_REGIONS], 0);
                        assert_int_equal(world.tenants[0].registered.regions, 1);
                        assert_int_equal(world.users[other].last.status, WIRE_OK);
                        *at(other, world.users[other].last.value, 0, 1) = 'x';
                        dead->ended = false;
                        take_back(other, world.users[other].last.value);
                        assert_int_equal(charged(), 0);
                }
        inline_io_set(&(struct inline_io_plan){ 0 });
        close(fd);
}

/* --- failures --- */

static void what_cannot_be_mapped_fails_all_that_wait_for_it_and_is_not_charged(void **state)
{
        int fd = memory_fd();

        mmaps_to_fail = 1;
        ask(ALICE, fd, 0, FILE_BYTES);
        ask(ALICE_2, fd, 0, FILE_BYTES);
        ask(ALICE_2, fd, PAGE, PAGE);
        settle();
        for (unsigned i = ALICE; i <= ALICE_2; i++) {
                assert_int_equal(world.users[i].last.status, WIRE_FAILED);
                assert_non_null(strstr(world.users[i].text, strerror(ENOMEM)));
        }
        assert_int_equal(world.users[ALICE_2].replies, 2);
        assert_int_equal(mmaps_to_fail, 0);
        assert_int_equal(charged(), 0);
        assert_int_equal(shared(0), 0);
        assert_int_equal(world.users[ALICE].client.holds.used[QUOTA_REGIONS], 0);
        (void)lend(ALICE, fd, 0, FILE_BYTES);
        close(fd);
}

static void without_memory_it_is_refused_and_what_others_have_stays(void **state)
{
        int fd = memory_fd(), other = memory_fd();
        unsigned refusals = 0;

        (void)lend(ALICE, fd, 0, PAGE);
        for (calloc_bytes = 1, callocs_to_fail = 1; callocs_to_fail == 1; refusals++) {
                callocs_to_fail = refusals + 1;
                ask(ALICE_2, other, 0, PAGE);
                settle();
                if (callocs_to_fail > 0)
                        break;
                callocs_to_fail = 1;
                assert_int_equal(world.users[ALICE_2].last.status, WIRE_BUSY);
                assert_int_equal(charged(), PAGE);
        }
        callocs_to_fail = 0;
        assert_int_equal(refusals, 2); /* the buffer, and its mapping */
        assert_int_equal(world.users[ALICE_2].last.status, WIRE_OK);
        *at(ALICE, 1, 0, 1) = 'x';
        close(fd);
        close(other);
}

/* --- many --- */

static void thousands_of_the_same_memory_take_one_mapping(void **state)
{
        static struct user more[40];
        int fd = memory_fd();

        mmaps = 0;
        (void)lend(ALICE, fd, 0, FILE_BYTES);
        for (unsigned k = 0; k < ARRAY_SIZE(more); k++) {
                struct client *c = &more[k].client;

                *c = (struct client){ .tenant = &world.tenants[0],
                                      .send = keep_reply,
                                      .idle = nothing };
                assert_int_equal(
                        quota_holder_open(&c->holds, world.service.quotas, 0, who[ALICE].uid), 0);
                for (unsigned i = 0; i < WIRE_MAX_REGIONS; i++) {
                        struct wire_register msg = { .offset = i * PAGE, .bytes = PAGE };
                        int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

                        c->inflight++;
                        buffer_open(
                                (struct request){ .client = c, .header = { .op = WIRE_REGISTER } },
                                &msg, &copy);
                }
                settle();
        }
        assert_int_equal(mmaps, 1);
        assert_int_equal(charged(), FILE_BYTES);
        assert_int_equal(shared(0), ARRAY_SIZE(more) * WIRE_MAX_REGIONS);
        for (unsigned k = 0; k < ARRAY_SIZE(more); k++) {
                more[k].client.ended = true;
                buffers_end(&more[k].client);
                settle();
                quota_holder_close(&more[k].client.holds);
        }
        assert_int_equal(shared(0), 0);
        assert_int_equal(charged(), FILE_BYTES);
        close(fd);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(the_same_memory_is_mapped_and_charged_once),
                TEST(a_stretch_within_another_is_served_by_it_within_its_own_bounds),
                TEST(stretches_that_do_not_lie_within_each_other_are_mapped_and_charged_apart),
                TEST(users_and_tenants_never_share),
                TEST(a_second_handle_needs_no_room_within_the_limit),
                TEST(a_buffer_costs_each_handle_one_of_its_own),
                TEST(test_R2_a_file_is_checked_again_for_each_that_shares_it),
                TEST(a_file_of_another_birth_is_another_file),
                TEST(test_R17_each_handle_waits_for_its_own_requests_alone),
                TEST(one_that_comes_while_the_last_leaves_gets_a_mapping_of_its_own),
                TEST(a_client_that_ends_at_any_moment_leaves_the_rest_as_it_was),
                TEST(what_cannot_be_mapped_fails_all_that_wait_for_it_and_is_not_charged),
                TEST(without_memory_it_is_refused_and_what_others_have_stays),
                TEST(thousands_of_the_same_memory_take_one_mapping),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
