/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of benchmark sessions that are parsed while memory is short. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#include "cleanup.h"
#include "snapshot.h"

/* Number of allocations that succeed before one fails; -1: all succeed. */
static int allocations_left = -1;

static bool allocation_fails(void)
{
        if (allocations_left != 0) {
                allocations_left -= allocations_left > 0;
                return false;
        }
        errno = ENOMEM;
        return true;
}

void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes)
{
        return allocation_fails() ? NULL : __real_calloc(n, bytes);
}

static void *allocate(size_t bytes)
{
        return allocation_fails() ? NULL : malloc(bytes);
}

static void each_failed_allocation_is_reported_as_enomem(void **state)
{
        cJSON_Hooks hooks = { .malloc_fn = allocate, .free_fn = free };
        static char text[1 << 20];
        FILE *f = fopen(GOLDEN_SESSION "/A.json", "re");
        unsigned failures = 0;
        size_t bytes;
        int r;

        assert_non_null(f);
        bytes = fread(text, 1, sizeof(text), f);
        fclose(f);
        cJSON_InitHooks(&hooks);
        do {
                _cleanup_(snapshot_freep) struct snapshot *s = NULL;
                char error[SNAPSHOT_ERROR_BYTES] = "";

                allocations_left = (int)failures;
                r = snapshot_parse(text, bytes, "A.json", &s, error);
                allocations_left = -1;
                if (r == 0)
                        break;
                assert_int_equal(r, -ENOMEM);
                assert_string_equal(error, "A.json: out of memory");
                assert_null(s);
                failures++;
        } while (true);
        cJSON_InitHooks(NULL);
        assert_true(failures > 100);
}

static void text_that_is_not_json_is_no_lack_of_memory(void **state)
{
        char error[SNAPSHOT_ERROR_BYTES];
        struct snapshot *s = NULL;

        errno = ENOMEM; /* left over from an earlier call */
        assert_int_equal(snapshot_parse("{]", 2, "it", &s, error), -EBADMSG);
        assert_string_equal(error, "it: line 1, column 2: not JSON from here on");
}

int main(void)
{
        static const struct CMUnitTest tests[] = {
                cmocka_unit_test(each_failed_allocation_is_reported_as_enomem),
                cmocka_unit_test(text_that_is_not_json_is_no_lack_of_memory),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
