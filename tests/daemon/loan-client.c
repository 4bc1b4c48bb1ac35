/* SPDX-License-Identifier: Apache-2.0 */
/* Uses the library's loans, for test_gds.py: loan-client SOCKET SCENARIO
 *
 *     roundtrip   borrowed chunks, read with pread() and returned, have the bytes that were put
 *     denied      nothing is lent to this user, and gets work as usual
 *     restart     prints "ready" and waits for a line, while the test restarts the daemon
 *
 * The last line is "ok", and the exit status 0, if everything was right. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvcache.h>

enum { KEYS = 2100, MOST = 3 * 4096, ROOM = 4 * 4096 };

#define CHECK(x)                                                                                   \
        do {                                                                                       \
                if (!(x)) {                                                                        \
                        printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #x,                          \
                               kv ? kvcache_error(kv) : "");                                       \
                        exit(1);                                                                   \
                }                                                                                  \
        } while (0)

static struct kvcache *kv;
static uint32_t ns;
static struct kvcache_key keys[KEYS];
static struct kvcache_result results[KEYS];
static struct kvcache_loan loans[KEYS];
static uint8_t *room;

static size_t length_of(size_t i)
{
        return 1 + i * 7919 % MOST;
}

static void fill(uint8_t *to, size_t i)
{
        for (size_t n = 0; n < length_of(i); n++)
                to[n] = (uint8_t)(i * 31 + n * 7 + n / 256);
}

static void check(const uint8_t *data, size_t i)
{
        static uint8_t wanted[MOST];

        fill(wanted, i);
        CHECK(memcmp(data, wanted, length_of(i)) == 0);
}

static void start(const char *socket_path)
{
        struct kvcache_options o = { .size = sizeof(o), .socket_path = socket_path };
        struct kvcache_namespace_options n = { .size = sizeof(n), .name = "loans" };
        char why[512] = "";

        n.fingerprint = "";
        if (kvcache_connect(&kv, &o, why, sizeof(why)) < 0) {
                printf("no daemon: %s\n", why);
                exit(1);
        }
        CHECK(kvcache_namespace_open(kv, &n, &ns) == 0);
        for (size_t i = 0; i < KEYS; i++)
                memcpy(keys[i].bytes, &(uint64_t){ i + 1 }, sizeof(uint64_t));
        room = aligned_alloc(4096, ROOM);
        CHECK(room);
}

static void forget(void)
{
        struct kvcache_request q;

        kvcache_prep_evict(&q, ns, keys, KEYS, KVCACHE_TIER_MEMORY, results);
        CHECK(kvcache_submit_and_wait(kv, &q, NULL) == 0);
}

static void get(uint32_t flags)
{
        struct kvcache_request q;

        kvcache_prep_get(&q, ns, keys, KEYS, results);
        q.flags = flags;
        CHECK(kvcache_submit_and_wait(kv, &q, NULL) == 0);
}

/* Checks that the chunks were not lent but returned as usual, and releases them. */
static void check_and_release(uint32_t not_lent)
{
        for (size_t i = 0; i < KEYS; i++) {
                CHECK(results[i].status == KVCACHE_OK && results[i].loan.generation == 0);
                CHECK(results[i].not_lent == not_lent && results[i].length == length_of(i));
                check(results[i].data, i);
                CHECK(kvcache_release(kv, &results[i].lease, 1) == 0);
        }
        CHECK(kvcache_flush(kv) == 0);
}

static void put(void)
{
        static uint8_t data[MOST];

        for (size_t i = 0; i < KEYS; i++) {
                fill(data, i);
                CHECK(kvcache_status_ok(
                        kvcache_put(kv, ns, &keys[i], data, length_of(i), KVCACHE_WRITTEN)));
        }
        forget();
}

static void borrow(void)
{
        get(KVCACHE_LEND);
        for (size_t i = 0; i < KEYS; i++) {
                CHECK(results[i].status == KVCACHE_OK && results[i].loan.generation != 0);
                CHECK(!results[i].data && results[i].lease.generation == 0);
                CHECK(results[i].tiers == KVCACHE_TIER_DISK &&
                      results[i].chunk_length == length_of(i) &&
                      results[i].loan.length == length_of(i));
                loans[i] = results[i].loan;
        }
}

static void read_all(void)
{
        uint32_t file = 0;
        int fd = -1;

        for (size_t i = 0; i < KEYS; i++) {
                size_t pages = (length_of(i) + 4095) / 4096 * 4096;

                if (loans[i].file != file) {
                        if (fd >= 0)
                                close(fd);
                        CHECK(kvcache_lent_file(kv, &loans[i], &fd) == 0);
                        file = loans[i].file;
                }
                CHECK(pread(fd, room, pages, (off_t)loans[i].offset) == (ssize_t)pages);
                check(room, i);
        }
        close(fd);
}

static void give_back(int status)
{
        struct kvcache_request q;

        kvcache_prep_give_back(&q, loans, KEYS, results);
        CHECK(kvcache_submit_and_wait(kv, &q, NULL) == 0);
        for (size_t i = 0; i < KEYS; i++)
                CHECK(results[i].status == status);
}

static void misuse(void)
{
        struct kvcache_loan loan = loans[0];
        struct kvcache_request q;
        int fd = -1;

        loan.generation = 0;
        CHECK(kvcache_lent_file(kv, &loan, &fd) == -EINVAL);
        loan = loans[0];
        loan.session++;
        CHECK(kvcache_lent_file(kv, &loan, &fd) == -ESTALE && fd == -1);
        loan = loans[0];
        loan.file = UINT32_MAX;
        CHECK(kvcache_lent_file(kv, &loan, &fd) == -ESTALE && fd == -1);
        kvcache_prep_give_back(&q, NULL, 1, results);
        CHECK(kvcache_submit_and_wait(kv, &q, NULL) == -EINVAL);
        kvcache_prep_give_back(&q, loans, 1, results);
        q.keys = keys;
        CHECK(kvcache_submit_and_wait(kv, &q, NULL) == -EINVAL);
        kvcache_prep_get(&q, ns, keys, 1, results);
        q.loans = loans;
        CHECK(kvcache_submit_and_wait(kv, &q, NULL) == -EINVAL);
        kvcache_prep_exists(&q, ns, keys, 1, results);
        q.flags = KVCACHE_LEND;
        CHECK(kvcache_submit_and_wait(kv, &q, NULL) == -EINVAL);
        kvcache_prep_give_back(&q, loans, 0, results);
        CHECK(kvcache_submit_and_wait(kv, &q, NULL) == 0);
}

static void wait_for_a_line(void)
{
        char line[16];

        puts("ready");
        fflush(stdout);
        CHECK(fgets(line, sizeof(line), stdin));
}

int main(int argc, char **argv)
{
        struct kvcache_info info = { .size = sizeof(info) };
        int denied = argc > 2 && strcmp(argv[2], "denied") == 0;

        if (argc != 3)
                return 2;
        start(argv[1]);
        CHECK(kvcache_get_info(kv, &info) == 0 && info.lends == !denied);
        put();
        get(KVCACHE_LEND);
        check_and_release(denied ? KVCACHE_NOT_LENT_DENIED : KVCACHE_NOT_LENT_UNVERIFIED);
        forget();
        if (denied) {
                get(KVCACHE_LEND);
                check_and_release(KVCACHE_NOT_LENT_DENIED);
        } else {
                borrow();
                read_all();
                misuse();
                if (strcmp(argv[2], "restart") == 0) {
                        wait_for_a_line();
                        give_back(KVCACHE_STALE);
                        get(KVCACHE_LEND);
                        check_and_release(KVCACHE_NOT_LENT_UNVERIFIED);
                        forget();
                        borrow();
                        read_all();
                }
                give_back(KVCACHE_OK);
                give_back(KVCACHE_STALE);
        }
        kvcache_close(kv);
        free(room);
        puts("ok");
        return 0;
}
