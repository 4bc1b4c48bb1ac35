/* SPDX-License-Identifier: Apache-2.0 */
/* server-keep.c: the log of a daemon that cannot hand its pools over to the next one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "request-fixture.h"
#include "server-internal.h"

/* Calls a function of the server, whose pools are ready to be handed over. Expects that it gives
 * this up with these words in the log. */
static void call_and_expect(void (*function)(struct server *s), const char *words)
{
        int stderr_before = dup(STDERR_FILENO), fd = memfd_create("log", MFD_CLOEXEC);
        struct server *server = calloc(1, sizeof(*server));
        char text[4096] = "";

        assert_non_null(server);
        assert_true(stderr_before >= 0 && fd >= 0);
        server->service = rig.service;
        server->sessions = rig.sessions;
        server->config = &rig.config;
        server->keep.keep = rig.keep;
        server->keep.ready = true;
        fflush(stderr);
        dup2(fd, STDERR_FILENO);
        log_set_level(LOG_LEVEL_WARNING);
        function(server);
        log_set_level(LOG_LEVEL_ERROR);
        fflush(stderr);
        dup2(stderr_before, STDERR_FILENO);
        close(stderr_before);
        assert_true(pread(fd, text, sizeof(text) - 1, 0) >= 0);
        close(fd);
        assert_false(server->keep.ready);
        free(server);
        if (!strstr(text, words))
                fail_msg("not in the log: %s\n%s", words, text);
}

static int forget_manager(void **state)
{
        unsetenv("FDSTORE");
        unsetenv("NOTIFY_SOCKET");
        return rig_teardown(state);
}

static void a_descriptor_store_that_is_too_small_is_named_with_both_numbers(void **state)
{
        setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
        setenv("FDSTORE", "4", 1);
        call_and_expect(server_hand_on_memory,
                        "memory.keep: no pool is handed over to the next daemon: 5 descriptors are "
                        "to be kept, but the service manager keeps 4: raise "
                        "FileDescriptorStoreMax= of the unit");
}

static void a_service_manager_that_does_not_take_the_map_is_named(void **state)
{
        setenv("NOTIFY_SOCKET", "/nonexistent/notify", 1);
        setenv("FDSTORE", "5", 1);
        call_and_expect(server_hand_on_memory,
                        "memory.keep: no pool is handed over to the next daemon: the service "
                        "manager does not take the map of the pools: No such file or directory");
}

static void a_number_that_cannot_be_written_is_named(void **state)
{
        char folder[600], moved[620];

        snprintf(folder, sizeof(folder), "%s", store_volume_path(rig.t.store, 0));
        snprintf(moved, sizeof(moved), "%s.moved", folder);
        assert_int_equal(rename(folder, moved), 0);
        call_and_expect(server_number_memory,
                        "memory.keep: no pool is handed over to the next daemon: writing the "
                        "number of the map to the first volume failed: No such file or directory");
        assert_int_equal(rename(moved, folder), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, rig_setup, forget_manager)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(a_descriptor_store_that_is_too_small_is_named_with_both_numbers),
                TEST(a_service_manager_that_does_not_take_the_map_is_named),
                TEST(a_number_that_cannot_be_written_is_named),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
