/* SPDX-License-Identifier: Apache-2.0 */
/* store/: which directories are opened, and which are refused. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checked.h"
#include "store-fixture.h"
#include "store/volume/file-system.h"

static void a_foreign_directory_is_refused_and_untouched(void **state)
{
        char path[PATH_MAX + 64];

        close(file_of("holiday.jpg", O_CREAT | O_WRONLY));
        expect_refused(-EPROTO, "not a kvcache store and not empty");
        snprintf(path, sizeof(path), "%s/LOCK", t.dir);
        assert_int_equal(access(path, F_OK), -1);
        snprintf(path, sizeof(path), "%s/holiday.jpg", t.dir);
        unlink(path);
        close(file_of("segment-0000", O_CREAT | O_WRONLY));
        expect_refused(-EPROTO, "superblock");
        snprintf(path, sizeof(path), "%s/segment-0000", t.dir);
        unlink(path);
        /* Remains of a crash during creation are no obstacle. */
        close(file_of("superblock.new", O_CREAT | O_WRONLY));
        start_limit(64 * MIB);
        stop();
}

static void a_directory_is_made_with_its_parents(void **state)
{
        char root[PATH_MAX];
        struct stat st;

        strcpy(root, t.dir);
        strcat(t.dir, "/a/b");
        start_limit(64 * MIB);
        assert_int_equal(stat(t.dir, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0700);
        stop();
        remove_dir();
        t.dir[strlen(t.dir) - 2] = '\0';
        remove_dir();
        strcpy(t.dir, root);
}

static void a_second_opener_is_refused(void **state)
{
        struct store_params params = params_of(64 * MIB);
        struct store *second;
        char error[512] = "";

        start_limit(64 * MIB);
        params.lock_wait_ms = 1;
        assert_int_equal(store_prepare(&second, &params, error), -EBUSY);
        assert_non_null(strstr(error, "another kvcache-daemon"));
        stop();
}

static void an_opener_waits_for_the_lock(void **state)
{
        struct store_params params = params_of(64 * MIB);
        char error[512] = "";
        int pipes[2], back[2], status;
        char c = 0;
        pid_t pid;

        start_limit(64 * MIB);
        stop();
        assert_int_equal(pipe2(pipes, O_CLOEXEC) | pipe2(back, O_CLOEXEC), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
                struct store *s;

                if (store_prepare(&s, &params, error) < 0)
                        _exit(1);
                /* "x": it has the lock; then it waits until the parent has been refused once. */
                if (write(pipes[1], "x", 1) != 1 || read(back[0], &c, 1) != 1)
                        _exit(2);
                /* The following race has two right outcomes: the parent finds the lock free, or
                 * waits. */
                _exit(0);
        }
        assert_int_equal(read(pipes[0], &c, 1), 1);
        params.lock_wait_ms = 1;
        assert_int_equal(store_prepare(&t.s, &params, error), -EBUSY);
        assert_int_equal(write(back[1], "x", 1), 1);
        params.lock_wait_ms = 30000;
        start(&params);
        stop();
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        for (unsigned i = 0; i < 2; i++) {
                close(pipes[i]);
                close(back[i]);
        }
}

static void bad_parameters_are_refused(void **state)
{
        const char *two[] = { t.dir, t.dir };
        struct store_params params = params_of(1 * MIB);
        char error[512] = "";
        struct store *s;

        assert_int_equal(store_prepare(&s, &params, error), -EINVAL);
        assert_non_null(strstr(error, "store.limit"));
        params = params_of(64 * MIB);
        params.paths = two;
        params.n_paths = 2;
        assert_int_equal(store_prepare(&s, &params, error), -EINVAL);
        assert_non_null(strstr(error, "the same directory"));
        params.n_paths = STORE_MAX_VOLUMES + 1;
        assert_int_equal(store_prepare(&s, &params, error), -EINVAL);
        assert_non_null(strstr(error, "more than 16 directories"));
        params = params_of(64 * MIB);
        params.policy = "belady";
        assert_int_equal(store_prepare(&s, &params, error), -EINVAL);
}

/* Fails unless the sentence has that part, and one remedy behind "; "; an empty part: there is no
 * sentence. */
static void expect_sentence(const char *sentence, const char *part)
{
        const char *remedy = strstr(sentence, "; ");

        if (!*part) {
                assert_string_equal(sentence, "");
                return;
        }
        assert_non_null(strstr(sentence, part));
        assert_non_null(remedy);
        assert_null(strstr(remedy + 2, "; "));
}

static void file_systems_that_lose_chunks_have_a_warning_and_unfit_ones_advice(void **state)
{
        static const struct {
                unsigned long magic;
                const char *name, *warning, *advice;
                bool memory;
        } kinds[] = {
                { 0x01021994, "tmpfs", "lost at a reboot", "", true },
                { 0x858458f6, "ramfs", "lost at a reboot", "", true },
                { 0x794c7630, "overlay", "lost with the container", "", false },
                { 0xef53, "ext4", "", "", false },
                { 0x58465342, "xfs", "", "", false },
                { 0xf2f52010, "f2fs", "", "", false },
                { 0x9123683e, "btrfs", "", "chattr +C", false },
                { 0x2fc12fc1, "zfs", "", "copies on write", false },
                { 0xca451a4e, "bcachefs", "", "copies on write", false },
                { 0x6969, "nfs", "", "on the network", false },
                { 0xff534d42, "cifs", "", "on the network", false },
                { 0xfe534d42, "cifs", "", "on the network", false },
                { 0x00c36400, "ceph", "", "on the network", false },
                { 0x0bd00bd0, "lustre", "", "on the network", false },
                { 0x12345678, "", "", "has not been tried", false },
        };

        for (unsigned i = 0; i < ARRAY_SIZE(kinds); i++) {
                const struct file_system *fs = file_system_by_magic(kinds[i].magic);

                assert_string_equal(fs->name, kinds[i].name);
                assert_int_equal(fs->memory, kinds[i].memory);
                expect_sentence(fs->warning, kinds[i].warning);
                expect_sentence(fs->advice, kinds[i].advice);
        }
        assert_string_equal(file_system_of(-1)->name, "");
}

static unsigned listing_fails_at; /* number of the call that fails; 0: none */

struct dirent64 *__real_readdir64(DIR *dir);
struct dirent64 *__wrap_readdir64(DIR *dir);
struct dirent64 *__wrap_readdir64(DIR *dir)
{
        if (listing_fails_at == 0 || --listing_fails_at > 0)
                return __real_readdir64(dir);
        errno = EIO;
        return NULL;
}

/* A start that misses data files would make new ones in their place. */
static void a_directory_that_cannot_be_listed_is_refused_and_keeps_its_chunks(void **state)
{
        enum { CHUNKS = 60 };
        struct store_params params = params_of(64 * MIB);
        unsigned refused = 0;

        params.prewrite = false;
        start(&params);
        put_range(0, CHUNKS, 65536);
        stop();
        for (unsigned n = 1; n < 1000; n++) {
                char error[512] = "";
                int r;

                listing_fails_at = n;
                r = try_open(&params, error);
                if (r == 0)
                        stop();
                refused += r < 0;
                if (listing_fails_at > 0)
                        break;
                if (r < 0)
                        assert_non_null(strstr(error, "cannot list"));
        }
        listing_fails_at = 0;
        assert_true(refused > 10);
        start(&params);
        assert_int_equal(count_present(0, CHUNKS), CHUNKS);
        stop();
}

int main(int argc, char **argv)
{
        static const struct CMUnitTest tests[] = {
                TEST(a_foreign_directory_is_refused_and_untouched),
                TEST(a_directory_is_made_with_its_parents),
                TEST(a_second_opener_is_refused),
                TEST(an_opener_waits_for_the_lock),
                TEST(bad_parameters_are_refused),
                TEST(a_directory_that_cannot_be_listed_is_refused_and_keeps_its_chunks),
                TEST(file_systems_that_lose_chunks_have_a_warning_and_unfit_ones_advice),
        };

        return run_store_tests(argc, argv, tests, ARRAY_SIZE(tests), NULL, 0);
}
