/* SPDX-License-Identifier: Apache-2.0 */
/* Workloads: a trace with the contents of its file, and generated chat sessions. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "workload.h"

static const struct trace_format format;

static struct workload *chat(uint64_t requests, uint64_t seed)
{
        struct workload *w = NULL;

        assert_int_equal(workload_chat(&w, requests, seed), 0);
        assert_int_equal(w->n_requests, requests);
        return w;
}

static const uint64_t *ids_of(const struct workload *w, size_t i)
{
        return w->ids + w->requests[i].first_id;
}

static void a_trace_is_loaded_in_order_and_no_more_than_asked(void **state)
{
        char path[] = "/tmp/test-workload-XXXXXX", error[WORKLOAD_ERROR_BYTES] = "";
        int fd = mkstemp(path);
        FILE *file = fdopen(fd, "w");
        struct workload *w = NULL;
        size_t distinct;

        assert_non_null(file);
        for (int i = 0; i < 5000; i++)
                fprintf(file,
                        "{\"timestamp\": %d, \"input_length\": %d, \"hash_ids\": [0, %d, %d]}\n",
                        i * 10, 1500, 2 * i + 1, 2 * i + 2);
        fputs("broken\n", file);
        fclose(file);

        assert_int_equal(workload_load(&w, path, &format, 5000, 7, error), 0);
        assert_int_equal(w->n_requests, 5000);
        assert_int_equal(w->n_ids, 15000);
        for (size_t i = 0; i < 5000; i++) {
                assert_int_equal(w->requests[i].timestamp_ms, i * 10);
                assert_int_equal(w->requests[i].n_ids, 3);
                assert_int_equal(ids_of(w, i)[0], 0);
                assert_int_equal(ids_of(w, i)[2], 2 * i + 2);
        }
        assert_int_equal(workload_distinct(w, &distinct), 0);
        assert_int_equal(distinct, 10001);
        workload_free(w);

        w = NULL;
        assert_int_equal(workload_load(&w, path, &format, 0, 7, error), -EBADMSG);
        assert_non_null(strstr(error, ":5001: "));
        assert_null(w);
        unlink(path);
}

static void an_empty_trace_is_no_workload(void **state)
{
        char error[WORKLOAD_ERROR_BYTES] = "";
        struct workload *w = NULL;

        assert_int_equal(workload_load(&w, "/dev/null", &format, 0, 0, error), -ENODATA);
        assert_non_null(strstr(error, "/dev/null"));
        assert_int_equal(workload_load(&w, "/nonexistent", &format, 0, 0, error), -ENOENT);
        assert_null(w);
}

static void the_same_seed_gives_the_same_sessions(void **state)
{
        struct workload *a = chat(2000, 42), *b = chat(2000, 42), *c = chat(2000, 43),
                        *longer = chat(2500, 42);

        assert_int_equal(a->n_ids, b->n_ids);
        assert_memory_equal(a->ids, b->ids, a->n_ids * sizeof(*a->ids));
        assert_memory_equal(a->requests, b->requests, a->n_requests * sizeof(*a->requests));
        /* A longer workload begins with the shorter one. */
        assert_memory_equal(a->requests, longer->requests, a->n_requests * sizeof(*a->requests));
        assert_true(a->n_ids != c->n_ids ||
                    memcmp(a->ids, c->ids, a->n_ids * sizeof(*a->ids)) != 0);
        workload_free(a);
        workload_free(b);
        workload_free(c);
        workload_free(longer);
}

static void sessions_run_in_time_and_within_their_context(void **state)
{
        struct workload *w = chat(5000, 1);

        for (size_t i = 0; i < w->n_requests; i++) {
                const struct workload_request *r = &w->requests[i];

                assert_true(i == 0 || r->timestamp_ms >= w->requests[i - 1].timestamp_ms);
                assert_int_equal(r->n_ids, r->input_tokens / TRACE_BLOCK_TOKENS);
                assert_true(r->n_ids >= 2 && r->n_ids < 128);
        }
        workload_free(w);
}

/* An id stands for a block and all blocks before it, so it always has the same parent. */
static void ids_are_chained_over_their_prefix(void **state)
{
        struct workload *w = chat(1000, 5);

        for (size_t i = 0; i < w->n_requests; i++)
                for (size_t j = 0; j < i; j++) {
                        size_t n = w->requests[i].n_ids < w->requests[j].n_ids
                                           ? w->requests[i].n_ids
                                           : w->requests[j].n_ids;
                        bool same = true;

                        for (size_t k = 0; k < n; k++) {
                                bool equal = ids_of(w, i)[k] == ids_of(w, j)[k];

                                assert_true(same || !equal);
                                same = equal;
                        }
                }
        workload_free(w);
}

static void most_blocks_of_a_chat_are_there_already(void **state)
{
        struct workload *w = chat(4000, 9);
        size_t distinct, turns_with_history = 0;

        assert_int_equal(workload_distinct(w, &distinct), 0);
        assert_true(distinct < w->n_ids / 2);  /* shared prompts and histories */
        assert_true(distinct > w->n_ids / 50); /* but sessions have much of their own */
        for (size_t i = 1; i < w->n_requests; i++)
                for (size_t j = i; j-- > 0 && i - j < 400;)
                        if (w->requests[j].n_ids > 12 && w->requests[i].n_ids > 12 &&
                            ids_of(w, i)[12] == ids_of(w, j)[12]) {
                                turns_with_history++;
                                break;
                        }
        assert_true(turns_with_history > 200);
        workload_free(w);
}

static void keys_differ_by_id_and_seed_and_kind(void **state)
{
        struct workload a = { .kind = "trace", .seed = 1 }, b = { .kind = "trace", .seed = 2 },
                        c = { .kind = "chat", .seed = 1 };
        struct kvcache_key first, again, other;

        workload_key(&a, 5, &first);
        workload_key(&a, 5, &again);
        assert_memory_equal(&first, &again, sizeof(first));
        workload_key(&a, 6, &other);
        assert_memory_not_equal(&first, &other, sizeof(first));
        workload_key(&b, 5, &other);
        assert_memory_not_equal(&first, &other, sizeof(first));
        workload_key(&c, 5, &other);
        assert_memory_not_equal(&first, &other, sizeof(first));
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(a_trace_is_loaded_in_order_and_no_more_than_asked),
                cmocka_unit_test(an_empty_trace_is_no_workload),
                cmocka_unit_test(the_same_seed_gives_the_same_sessions),
                cmocka_unit_test(sessions_run_in_time_and_within_their_context),
                cmocka_unit_test(ids_are_chained_over_their_prefix),
                cmocka_unit_test(most_blocks_of_a_chat_are_there_already),
                cmocka_unit_test(keys_differ_by_id_and_seed_and_kind),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
