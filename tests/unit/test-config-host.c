/* SPDX-License-Identifier: Apache-2.0 */
/* config/: settings that depend on the host: auto values, folders, free space, memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "checked.h"
#include "cleanup.h"
#include "config-fixture.h"

static void auto_becomes_a_choice_that_is_reported(void **state)
{
        static const char *const chosen[] = { "listen.socket",      "store.path",  "store.limit",
                                              "store.entries",      "memory.pool", "io.workers",
                                              "limits.leased_bytes" };
        char path[256];
        unsigned before;

        setenv("RUNTIME_DIRECTORY", in_folder("run", path), 1);
        setenv("STATE_DIRECTORY", in_folder("state/deep:/other", path), 1);
        assert_int_equal(config_resolve(&config, say, say, &fault), 0);
        assert_string_equal(config.listen.socket, in_folder("run/kvcache.sock", path));
        assert_int_equal(config.store.path.n, 1);
        assert_string_equal(config.store.path.items[0], in_folder("state/deep", path));
        assert_true(config.store.limit >= 16 * MIB && config.store.limit <= 64 * GIB);
        assert_int_equal(config.store.limit % MIB, 0);
        assert_true(config.store.entries >= 1 << 20);
        assert_true(config.memory.pool >= 16 * MIB && config.memory.pool <= 4 * GIB);
        assert_int_equal(config.memory.pool % (2 * MIB), 0);
        assert_in_range(config.io.workers, 1, 4);
        assert_int_equal(config.limits.leased_bytes, config.memory.pool / 8 * 3);
        assert_int_equal(n_said, ARRAY_SIZE(chosen));
        for (size_t i = 0; i < ARRAY_SIZE(chosen); i++) {
                char part[64];

                snprintf(part, sizeof(part), "%s is ", chosen[i]);
                assert_int_equal(strncmp(said[i], part, strlen(part)), 0);
                assert_false(config_given(&config, chosen[i]));
        }
        assert_true(was_said("iB of memory"));
        assert_reads_back();

        before = n_said; /* once is enough */
        assert_int_equal(config_resolve(&config, say, say, &fault), 0);
        assert_int_equal(n_said, before);
        unsetenv("RUNTIME_DIRECTORY");
        unsetenv("STATE_DIRECTORY");
}

static void what_was_given_is_left_alone(void **state)
{
        char path[256], set[320];

        snprintf(set, sizeof(set), "store.path=%s", in_folder("s", path));
        assert_int_equal(config_set(&config, set, "--set", &fault), 0);
        assert_int_equal(load("listen.socket: /run/x\nstore: {limit: 1PiB, entries: "
                              "5000}\nmemory.pool: 8MiB\n"
                              "io.workers: 9\nlimits.leased_bytes: 1MiB\n"),
                         0);
        assert_int_equal(config_set(&config, set, "--set", &fault), 0);
        assert_int_equal(config_resolve(&config, say, say, &fault), 0);
        assert_string_equal(config.listen.socket, "/run/x");
        assert_true(config.store.limit == PIB);
        assert_int_equal(config.store.entries, 5000);
        assert_int_equal(config.memory.pool, 8 * MIB);
        assert_int_equal(config.io.workers, 9);
        assert_int_equal(n_said, 1); /* the host does not have a petabyte */
        assert_true(was_said("store.limit is 1 PiB, but only "));
}

/* The check includes memory that a pool has from the previous daemon. */
static void a_pool_that_cannot_fill_is_reported(void **state)
{
        char path[256], set[320];
        bool limited;

        snprintf(set, sizeof(set), "store.path=%s", in_folder("s", path));
        assert_int_equal(config_set(&config, set, "--set", &fault), 0);
        assert_int_equal(config_set(&config, "listen.socket=/run/x", "--set", &fault), 0);
        assert_int_equal(config_set(&config, "memory.pool=1TiB", "--set", &fault), 0);
        assert_true(config_available_memory("", &limited) < 1024 * GIB);
        config.kept_bytes = 1024 * GIB - 64 * MIB;
        assert_int_equal(config_resolve(&config, say, say, &fault), 0);
        assert_false(was_said("it cannot fill"));
        config.kept_bytes = 64 * MIB;
        assert_int_equal(config_resolve(&config, say, say, &fault), 0);
        assert_true(was_said("memory.pool is 1 TiB, but only "));
        assert_true(was_said("it cannot fill"));
}

static void folders_that_cannot_be_are_refused(void **state)
{
        char path[256], set[320], file[256];

        write_file(in_folder("file", file), "x", 1);
        snprintf(set, sizeof(set), "store.path=%s", in_folder("file", path));
        assert_int_equal(config_set(&config, set, "--set", &fault), 0);
        assert_int_equal(config_resolve(&config, say, say, &fault), -ENOTDIR);
        snprintf(set, sizeof(set), "store.path=%s", in_folder("file/below", path));
        assert_int_equal(config_set(&config, set, "--set", &fault), 0);
        assert_int_equal(config_resolve(&config, say, say, &fault), -ENOTDIR);
        assert_true(strncmp(fault.text, "store.path: /tmp/", 17) == 0);
}

static void own_files_count_as_free_space(void **state)
{
        uint64_t full, empty, device_full, device_empty;
        char path[256], file[300];
        _cleanup_(closep) int fd = -1;

        assert_int_equal(mkdir(in_folder("full", path), 0700), 0);
        snprintf(file, sizeof(file), "%s/segment-0000", path);
        fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        if (posix_fallocate(fd, 0, 64 << 20) != 0)
                skip();
        assert_int_equal(config_available_space(path, &full, &device_full), 0);
        assert_int_equal(
                config_available_space(in_folder("none/../none", path), &empty, &device_empty), 0);
        assert_int_equal(device_full, device_empty);
        assert_true(full > empty + (32 << 20)); /* other programs may use the disk meanwhile */
}

static void make_memory(const char *cgroup, const char *group, const char *file, const char *limit)
{
        static const char meminfo[] =
                "MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable:    8388608 kB\n";
        char path[512];

        snprintf(path, sizeof(path), "%s/proc", folder);
        mkdir(path, 0700);
        snprintf(path, sizeof(path), "%s/proc/self", folder);
        mkdir(path, 0700);
        snprintf(path, sizeof(path), "%s/proc/meminfo", folder);
        write_file(path, meminfo, strlen(meminfo));
        snprintf(path, sizeof(path), "%s/proc/self/cgroup", folder);
        write_file(path, cgroup, strlen(cgroup));
        if (!file)
                return;
        snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s", folder, group);
        for (char *p = path + strlen(folder) + 1;; p++)
                if (*p == '/' || *p == '\0') {
                        char was = *p;

                        *p = '\0';
                        mkdir(path, 0700);
                        *p = was;
                        if (was == '\0')
                                break;
                }
        snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s/%s", folder, group, file);
        write_file(path, limit, strlen(limit));
}

static void assert_memory(uint64_t expected, bool expected_limited)
{
        bool limited;

        assert_int_equal(config_available_memory(folder, &limited), expected);
        assert_int_equal(limited, expected_limited);
}

static void memory_is_what_the_strictest_says(void **state)
{
        make_memory("0::/\n", NULL, NULL, NULL);
        assert_memory(8 * GIB, false);
        make_memory("0::/a/b\n", "/a/b", "memory.max", "max\n");
        assert_memory(8 * GIB, false);
        make_memory("0::/a/b\n", "/a", "memory.max", "1073741824\n"); /* above the own group */
        assert_memory(GIB, true);
        make_memory("0::/a/b\n", "/a/b", "memory.max", "536870912\n");
        assert_memory(512 * MIB, true);
        make_memory("0::/a/b\n", "/a/b", "memory.max",
                    "17179869184\n"); /* more than the host has */
        assert_memory(GIB, true);
        make_memory("0::/../../x\n", "", "memory.max", "268435456\n"); /* outside the namespace */
        assert_memory(256 * MIB, true);
        make_memory("nonsense\n:::\n::\n12\n0::\n0:memory\n5:cpu,memory:\n", NULL, NULL, NULL);
        assert_memory(8 * GIB, false);
        make_memory("12:cpu,cpuacct:/x\n7:memory:/docker/1\n", "/memory/docker/1",
                    "memory.limit_in_bytes", "134217728\n");
        assert_memory(128 * MIB, true);
        make_memory("7:memory:/elsewhere\n", "/memory", "memory.limit_in_bytes",
                    "9223372036854771712\n");
        assert_memory(8 * GIB, false);
        make_memory("7:memory:/elsewhere\n", "/memory", "memory.limit_in_bytes", "garbage\n");
        assert_memory(8 * GIB, false);
}

/* Checks a pool of `pool` bytes, and one of each of `tenants` tenants, against the control groups.
 */
static int check_pools(uint64_t pool, unsigned tenants)
{
        char text[512];
        int at = snprintf(text, sizeof(text), "memory.pool: %llu\ntenants:\n",
                          (unsigned long long)pool);

        for (unsigned i = 0; i < tenants; i++)
                at += snprintf(text + at, sizeof(text) - (size_t)at,
                               "  - {name: t%u, users: [%u], pool: 64MiB}\n", i, 1000 + i);
        if (tenants == 0)
                text[strcspn(text, "\n") + 1] = '\0';
        assert_int_equal(load(text), 0);
        return config_check_memory(&config, folder, &fault);
}

static void pools_above_the_limit_of_the_control_group_are_refused(void **state)
{
        make_memory("0::/p/q\n", "/p", "memory.max", "209715200\n");
        assert_int_equal(check_pools(200 * MIB, 0), 0);
        assert_int_equal(check_pools(201 * MIB, 0), -EINVAL);
        assert_non_null(strstr(fault.text, "memory.pool: 201 MiB is more than the memory limit of "
                                           "the daemon's control group, 200 MiB"));
        assert_int_equal(check_pools(72 * MIB, 2), 0);
        assert_int_equal(check_pools(73 * MIB, 2), -EINVAL);
        assert_non_null(strstr(fault.text, "with the pools of all tenants, 201 MiB is more"));
        config.kept_bytes = GIB; /* kept memory counts in the group as well */
        assert_int_equal(config_check_memory(&config, folder, &fault), -EINVAL);
        make_memory("0::/unbounded\n", "/unbounded", "memory.max", "max\n");
        unlink(in_folder("sys/fs/cgroup/memory.max", (char[256]){}));
        assert_int_equal(check_pools(201 * MIB, 0), 0);
        make_memory("4:memory:/v1\n", "/memory/v1", "memory.limit_in_bytes", "104857600\n");
        assert_int_equal(check_pools(100 * MIB, 0), 0);
        assert_int_equal(check_pools(101 * MIB, 0), -EINVAL);
}

static void automatic_staging_leaves_room_for_the_pools(void **state)
{
        make_memory("0::/s\n", "/s", "memory.max", "838860800\n");
        assert_int_equal(check_pools(200 * MIB, 0), 0);
        assert_int_equal(config_auto_staging(&config, folder), 400 * MIB);
        assert_int_equal(check_pools(600 * MIB, 0), 0);
        assert_int_equal(config_auto_staging(&config, folder), 200 * MIB);
        assert_int_equal(check_pools(536 * MIB, 2), 0);
        assert_int_equal(config_auto_staging(&config, folder), 136 * MIB);
        assert_int_equal(check_pools(790 * MIB, 0), 0);
        assert_int_equal(config_auto_staging(&config, folder), 100 * MIB);
}

static void automatic_pools_fit_into_the_memory_however_many_tenants_there_are(void **state)
{
        char path[256], set[320], text[8192] = "tenants:\n";
        bool limited;
        size_t at = strlen(text);
        uint64_t available, pools;

        for (unsigned i = 0; i < 15; i++)
                at += (size_t)snprintf(text + at, sizeof(text) - at,
                                       "  - {name: t%u, users: [%u]}\n", i, 1000 + i);
        assert_int_equal(load(text), 0);
        snprintf(set, sizeof(set), "store.path=%s", in_folder("s", path));
        assert_int_equal(config_set(&config, set, "--set", &fault), 0);
        assert_int_equal(config_set(&config, "listen.socket=/run/x", "--set", &fault), 0);
        available = config_available_memory("", &limited);
        if (available < GIB)
                skip(); /* the least pools of 15 tenants have to fit */
        assert_int_equal(config_set(&config, "memory.pool=auto", "--set", &fault), 0);
        if (config_resolve(&config, say, say, &fault) < 0)
                fail_msg("%s", fault.text);
        pools = config_pools_bytes(&config);
        assert_true(pools <= available / 100 * 80); /* other processes use memory meanwhile */
        assert_true(pools >= config.memory.pool + 15 * 16 * MIB);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                CASE(auto_becomes_a_choice_that_is_reported),
                CASE(what_was_given_is_left_alone),
                CASE(a_pool_that_cannot_fill_is_reported),
                CASE(folders_that_cannot_be_are_refused),
                CASE(own_files_count_as_free_space),
                CASE(memory_is_what_the_strictest_says),
                CASE(pools_above_the_limit_of_the_control_group_are_refused),
                CASE(automatic_staging_leaves_room_for_the_pools),
                CASE(automatic_pools_fit_into_the_memory_however_many_tenants_there_are),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
