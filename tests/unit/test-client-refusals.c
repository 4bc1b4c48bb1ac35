/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache and messages that the daemon refuses completely: none of their keys is a hit, each
 * reports the reason, and the session continues. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../lib/rig.h"
#include "checked.h"

enum { KEYS = 3, WAIT_MS = 60000 };

/* The status with which the fake daemon answers every batch. With OK it performs the batch. */
static enum wire_status refusal;

static size_t refuse(struct fake_daemon *d, const struct wire_hdr *request,
                     struct wire_reply *reply, size_t bytes)
{
        static const char why[] = "not today";

        if (refusal == WIRE_OK || !wire_op_is_batch(request->op))
                return bytes;
        *reply = (struct wire_reply){ .hdr = reply->hdr, .status = (uint16_t)refusal };
        memcpy(reply + 1, why, strlen(why));
        reply->hdr.len = (uint32_t)(sizeof(*reply) + strlen(why));
        return reply->hdr.len;
}

static int setup(void **state)
{
        static const struct fake_options options = { .reply = refuse };
        struct kvcache_options o = { .size = sizeof(o), .connect_timeout_ms = WAIT_MS };
        struct kvcache_namespace_options ns = { .size = sizeof(ns),
                                                .name = "ns",
                                                .fingerprint = "" };
        struct rig *f;
        int r = rig_setup(state);

        if (r != 0)
                return r;
        f = *state;
        refusal = WIRE_OK;
        f->d = fake_daemon_start(f->path, &options);
        o.socket_path = f->path;
        r = kvcache_connect(&f->kv, &o, NULL, 0);
        return r == 0 ? kvcache_namespace_open(f->kv, &ns, &f->ns) : r;
}

static void answer_with(struct rig *f, enum wire_status status)
{
        fake_daemon_lock(f->d);
        refusal = status;
        fake_daemon_unlock(f->d);
}

/* Submits a request for KEYS keys and returns its completion. */
static struct kvcache_completion ask(struct rig *f, enum kvcache_op op,
                                     struct kvcache_result *results)
{
        struct kvcache_completion c = { 0 };
        struct kvcache_request request;
        struct kvcache_key keys[KEYS];
        struct kvcache_entry entries[KEYS];
        static uint8_t data[KEYS][64];

        memset(entries, 0, sizeof(entries));
        for (unsigned i = 0; i < KEYS; i++) {
                keys[i] = rig_key(i + 1);
                entries[i] = (struct kvcache_entry){ .key = keys[i],
                                                     .data = data[i],
                                                     .length = sizeof(data[i]) };
                rig_fill(data[i], sizeof(data[i]), i + 1);
        }
        kvcache_prep(&request, op, f->ns, KEYS, results);
        if (op == KVCACHE_OP_PUT || op == KVCACHE_OP_GET_INTO)
                request.entries = entries;
        else
                request.keys = keys;
        assert_int_equal(kvcache_submit(f->kv, &request), 0);
        assert_int_equal(kvcache_reap(f->kv, &c, 1, WAIT_MS), 1);
        return c;
}

static const enum kvcache_op ops[] = { KVCACHE_OP_PUT,    KVCACHE_OP_GET,   KVCACHE_OP_GET_INTO,
                                       KVCACHE_OP_EXISTS, KVCACHE_OP_TOUCH, KVCACHE_OP_EVICT,
                                       KVCACHE_OP_STAT };

static void every_key_of_a_refused_message_has_the_status_of_the_refusal(void **state)
{
        static const struct {
                enum wire_status wire;
                int status, error;
        } cases[] = {
                { WIRE_BUSY, KVCACHE_BUSY, -EBUSY },
                { WIRE_QUOTA, KVCACHE_QUOTA, -EDQUOT },
                { WIRE_DENIED, KVCACHE_DENIED, -EACCES },
                { WIRE_SHUTDOWN, KVCACHE_SHUTDOWN, -ESHUTDOWN },
                { WIRE_NO_NAMESPACE, KVCACHE_NO_NAMESPACE, -ENOENT },
                { WIRE_STATUS_END + 5, KVCACHE_FAILED, -EIO }, /* known to a later daemon only */
        };
        struct rig *f = *state;

        for (unsigned i = 0; i < ARRAY_SIZE(cases); i++)
                for (unsigned k = 0; k < ARRAY_SIZE(ops); k++) {
                        struct kvcache_result results[KEYS] = { 0 };

                        answer_with(f, cases[i].wire);
                        assert_int_equal(ask(f, ops[k], results).error, cases[i].error);
                        for (unsigned n = 0; n < KEYS; n++)
                                assert_int_equal(results[n].status, cases[i].status);
                }
}

static void a_call_that_waits_says_why_it_was_refused(void **state)
{
        struct kvcache_key key = rig_key(1);
        struct kvcache_result result = { 0 };
        struct kvcache_request request;
        struct rig *f = *state;

        kvcache_prep_get(&request, f->ns, &key, 1, &result);
        answer_with(f, WIRE_BUSY);
        assert_int_equal(kvcache_submit_and_wait(f->kv, &request, NULL), -EBUSY);
        assert_non_null(strstr(kvcache_error(f->kv), "not today"));
        assert_int_equal(result.status, KVCACHE_BUSY);
}

static void a_refused_match_finds_nothing(void **state)
{
        struct rig *f = *state;
        struct kvcache_result results[KEYS] = { 0 };
        struct kvcache_completion c;

        assert_int_equal(ask(f, KVCACHE_OP_PUT, results).error, 0);
        assert_int_equal(ask(f, KVCACHE_OP_MATCH, results).value, KEYS);
        answer_with(f, WIRE_BUSY);
        c = ask(f, KVCACHE_OP_MATCH, results);
        assert_int_equal(c.error, -EBUSY);
        assert_int_equal(c.value, 0);
        for (unsigned n = 0; n < KEYS; n++)
                assert_int_equal(results[n].status, KVCACHE_BUSY);
}

static void the_session_goes_on_after_a_refusal(void **state)
{
        struct kvcache_info info = { .size = sizeof(info) };
        struct kvcache_result results[KEYS] = { 0 };
        struct rig *f = *state;

        answer_with(f, WIRE_BUSY);
        assert_int_equal(ask(f, KVCACHE_OP_PUT, results).error, -EBUSY);
        answer_with(f, WIRE_OK);
        assert_int_equal(ask(f, KVCACHE_OP_PUT, results).error, 0);
        assert_int_equal(ask(f, KVCACHE_OP_GET_INTO, results).error, 0);
        for (unsigned n = 0; n < KEYS; n++)
                assert_int_equal(results[n].status, KVCACHE_OK);
        assert_int_equal(kvcache_get_info(f->kv, &info), 0);
        assert_int_equal(info.reconnects, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, rig_teardown)

int main(void)
{
        const struct CMUnitTest tests[] = {
                TEST(every_key_of_a_refused_message_has_the_status_of_the_refusal),
                TEST(a_call_that_waits_says_why_it_was_refused),
                TEST(a_refused_match_finds_nothing),
                TEST(the_session_goes_on_after_a_refusal),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
