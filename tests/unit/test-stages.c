/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of stages, and the waterfall made from it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/stages.h"
#include "checked.h"
#include "io/io.h"
#include "report/stages-print.h"
#include "waterfall.h"
#include "wire.h"

static struct stages stages;
static struct waterfall fall;

static int reset(void **state)
{
        stages_fini(&stages);
        stages = (struct stages){ 0 };
        waterfall_fini(&fall);
        fall = (struct waterfall){ 0 };
        return 0;
}

static struct stages_event operation(enum kio_op op, uint64_t chunks, const uint64_t at[5])
{
        struct stages_event e = {
                .kind = STAGES_OPERATION, .op = op, .bytes = 4096, .chunks = chunks
        };

        memcpy(e.at_ns, at, sizeof(e.at_ns));
        return e;
}

static void off_until_it_is_turned_on(void **state)
{
        assert_false(stages_on(&stages));
        assert_null(stages_event(&stages, 0));
        assert_int_equal(stages_set(&stages, true), 0);
        assert_true(stages_on(&stages));
        assert_null(stages_event(&stages, 0));
        assert_int_equal(stages_set(&stages, false), 0);
        assert_false(stages_on(&stages));
}

static void the_latest_events_stay_and_turning_on_begins_anew(void **state)
{
        struct stages_event e = { .kind = STAGES_BATCH };

        assert_int_equal(stages_set(&stages, true), 0);
        for (uint32_t i = 0; i < STAGES_EVENTS + 3; i++) {
                e.keys = i;
                stages_add(&stages, &e);
                assert_int_equal(stages_event(&stages, MIN(i, (uint32_t)STAGES_EVENTS - 1))->keys,
                                 i);
        }
        assert_int_equal(stages_event(&stages, 0)->keys, 3);
        assert_null(stages_event(&stages, STAGES_EVENTS));
        assert_int_equal(stages_set(&stages, true), 0); /* recording is on */
        assert_non_null(stages_event(&stages, 0));
        stages_set(&stages, false);
        assert_non_null(stages_event(&stages, 0));
        stages_set(&stages, true);
        assert_null(stages_event(&stages, 0));
}

static void each_stage_has_its_time(void **state)
{
        struct stages_event batch = { .kind = STAGES_BATCH, .at_ns = { 100, 101, 103, 900 } };
        struct stages_event read = operation(KIO_READ, 1, (uint64_t[]){ 10, 14, 22, 38, 70 });
        struct stages_event copy = operation(KIO_COPY, 1, (uint64_t[]){ 10, 11, 11, 13, 12 });

        stages_set(&stages, true);
        stages_add(&stages, &batch);
        stages_add(&stages, &read);
        assert_int_equal(stages.time[STAGE_WAIT].sum, 1);
        assert_int_equal(stages.time[STAGE_SUBMIT].sum, 2);
        assert_int_equal(stages.time[STAGE_QUEUE].sum, 4);
        assert_int_equal(stages.time[STAGE_DEVICE].sum, 8);
        assert_int_equal(stages.time[STAGE_COMPUTE].sum, 16);
        assert_int_equal(stages.time[STAGE_RETURN].sum, 32);
        /* A copy has no device time, and no time is negative. */
        stages_add(&stages, &copy);
        assert_int_equal(stages.time[STAGE_DEVICE].count, 1);
        assert_int_equal(stages.time[STAGE_COMPUTE].sum, 18);
        assert_int_equal(stages.time[STAGE_RETURN].sum, 32);
        assert_int_equal(stages.time[STAGE_RETURN].count, 2);
}

static cJSON *printed(void)
{
        char *text = NULL;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);
        cJSON *parsed;

        stages_print(&stages, f);
        fclose(f);
        assert_true(bytes <= 256 * 1024);
        parsed = cJSON_Parse(text);
        assert_non_null(parsed);
        free(text);
        return parsed;
}

static void a_full_report_keeps_its_size(void **state)
{
        const uint64_t late = UINT64_C(8999999999999999);
        struct stages_event e =
                operation(KIO_WRITE, UINT32_MAX, (uint64_t[]){ late, late, late, late, late });
        cJSON *report;

        e.bytes = UINT32_MAX;
        e.background = true;
        stages_set(&stages, true);
        for (unsigned i = 0; i < STAGES_EVENTS; i++)
                stages_add(&stages, &e);
        report = printed();
        assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(report, "events")), STAGES_EVENTS);
        cJSON_Delete(report);
}

static uint64_t point(enum waterfall_point p)
{
        assert_int_equal(fall.points[p].n, 1);
        return latency_quantile(&fall.points[p], 0.5);
}

/* One batch of two keys lasts from 1000 to 2000, among events of other clients. */
static void a_batch_is_joined_with_the_operations_within_its_call(void **state)
{
        struct stages_event batch = {
                .kind = STAGES_BATCH, .op = WIRE_GET, .keys = 2, .at_ns = { 990, 1010, 1020, 1980 }
        };
        struct stages_event other = {
                .kind = STAGES_BATCH, .op = WIRE_GET, .keys = 3, .at_ns = { 1100, 1101, 1102, 1103 }
        };
        struct stages_event events[] = {
                operation(KIO_READ, 1, (uint64_t[]){ 900, 1001, 1002, 1003, 1004 }), /* before it */
                operation(KIO_READ, 1, (uint64_t[]){ 1015, 1030, 1100, 1150, 1160 }),
                operation(KIO_READ, 1, (uint64_t[]){ 1016, 1031, 1300, 1350, 1400 }),
                operation(KIO_WRITE, 0, (uint64_t[]){ 1016, 1040, 1500, 1500, 1600 }),
                operation(KIO_READ, 1, (uint64_t[]){ 1015, 1030, 1100, 1150, 2001 }), /* after it */
        };
        enum waterfall_point order[WATERFALL_POINTS];
        static const enum waterfall_point expected[] = {
                WATERFALL_RECEIVED,    WATERFALL_SUBMITTED,    WATERFALL_READ_BEGUN,
                WATERFALL_TABLE_BEGUN, WATERFALL_READ_DEVICE,  WATERFALL_READ_DONE,
                WATERFALL_READ_TAKEN,  WATERFALL_TABLE_DEVICE, WATERFALL_TABLE_TAKEN,
                WATERFALL_REPLIED,     WATERFALL_ENDED,
        };
        cJSON *report;

        stages_set(&stages, true);
        for (size_t i = 0; i < ARRAY_SIZE(events); i++)
                stages_add(&stages, &events[i]);
        stages_add(&stages, &other);
        stages_add(&stages, &batch);
        report = printed();
        assert_int_equal(waterfall_add(&fall, report, "GET", 2, 1000, 2000), 0);
        assert_int_equal(point(WATERFALL_RECEIVED), 0); /* the loop was awake before it */
        assert_int_equal(point(WATERFALL_SUBMITTED), 20);
        assert_int_equal(point(WATERFALL_READ_BEGUN), 30);
        assert_int_equal(point(WATERFALL_READ_DEVICE), 300);
        assert_int_equal(point(WATERFALL_READ_DONE), 350);
        assert_int_equal(point(WATERFALL_READ_TAKEN), 400);
        assert_int_equal(point(WATERFALL_TABLE_DEVICE), 500);
        assert_int_equal(point(WATERFALL_REPLIED), 980);
        assert_int_equal(point(WATERFALL_ENDED), 1000);
        assert_int_equal(fall.points[WATERFALL_WRITE_DEVICE].n, 0);
        assert_int_equal(waterfall_order(&fall, order), ARRAY_SIZE(expected));
        for (size_t i = 0; i < ARRAY_SIZE(expected); i++) {
                assert_int_equal(order[i], expected[i]);
                assert_non_null(waterfall_point_name(order[i]));
        }

        assert_int_equal(waterfall_add(&fall, report, "PUT", 2, 1000, 2000), 0);
        assert_int_equal(waterfall_add(&fall, report, "GET", 2, 3000, 4000), 0);
        assert_int_equal(fall.unseen, 2);
        assert_int_equal(fall.points[WATERFALL_ENDED].n, 1);
        cJSON_Delete(report);
}

/* The daemon writes zeros ahead while a volume rests, and tables that no batch waits for. */
static void an_operation_that_the_reply_did_not_wait_for_is_left_out(void **state)
{
        struct stages_event batch = {
                .kind = STAGES_BATCH, .op = WIRE_GET, .keys = 2, .at_ns = { 1001, 1010, 1020, 1100 }
        };
        struct stages_event zeros =
                operation(KIO_WRITE, 0, (uint64_t[]){ 1015, 1030, 1040, 1050, 1060 });
        struct stages_event late =
                operation(KIO_WRITE, 0, (uint64_t[]){ 1050, 1060, 1070, 1080, 1101 });
        cJSON *report;

        zeros.background = true;
        stages_set(&stages, true);
        stages_add(&stages, &zeros);
        stages_add(&stages, &batch);
        stages_add(&stages, &late);
        report = printed();
        assert_int_equal(waterfall_add(&fall, report, "GET", 2, 1000, 2000), 0);
        assert_int_equal(point(WATERFALL_REPLIED), 100);
        assert_int_equal(fall.points[WATERFALL_TABLE_BEGUN].n, 0);
        cJSON_Delete(report);
}

static void a_malformed_report_is_refused(void **state)
{
        static const char *const reports[] = {
                "{}",
                "[]",
                "{\"events\": 1}",
                "{\"events\": [1]}",
                "{\"events\": [{}]}",
                "{\"events\": [{\"batch\": \"GET\", \"keys\": 1, \"at_ns\": [1, 2, 3]}]}",
                "{\"events\": [{\"batch\": \"GET\", \"keys\": 1, \"at_ns\": [1, 2, 3, \"4\"]}]}",
                "{\"events\": [{\"batch\": \"GET\", \"keys\": 1, \"at_ns\": [1, 2, 3, -4]}]}",
                "{\"events\": [{\"batch\": \"GET\", \"keys\": 1, \"at_ns\": [1, 2, 3, 1e300]}]}",
                "{\"events\": [{\"operation\": 3, \"at_ns\": [1, 2, 3, 4, 5]}]}",
                "{\"events\": [{\"operation\": \"read\", \"at_ns\": [1, 2, 3, 4]}]}",
        };

        for (size_t i = 0; i < ARRAY_SIZE(reports); i++) {
                cJSON *report = cJSON_Parse(reports[i]);

                assert_non_null(report);
                assert_int_equal(waterfall_add(&fall, report, "GET", 1, 0, 10), -EINVAL);
                cJSON_Delete(report);
        }
        assert_int_equal(waterfall_add(&fall, NULL, "GET", 1, 0, 10), -EINVAL);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup(off_until_it_is_turned_on, reset),
                cmocka_unit_test_setup(the_latest_events_stay_and_turning_on_begins_anew, reset),
                cmocka_unit_test_setup(each_stage_has_its_time, reset),
                cmocka_unit_test_setup(a_full_report_keeps_its_size, reset),
                cmocka_unit_test_setup(a_batch_is_joined_with_the_operations_within_its_call,
                                       reset),
                cmocka_unit_test_setup(an_operation_that_the_reply_did_not_wait_for_is_left_out,
                                       reset),
                cmocka_unit_test_setup(a_malformed_report_is_refused, reset),
        };
        int r = cmocka_run_group_tests(tests, NULL, NULL);

        reset(NULL);
        return r;
}
