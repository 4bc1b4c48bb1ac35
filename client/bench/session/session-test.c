/* SPDX-License-Identifier: Apache-2.0 */
/* test: checks the arithmetic of sessions with records of known totals. The records are counted,
 * written as a snapshot and read back; the result is compared with totals that are computed
 * independently here. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "common.h"
#include "session.h"

enum { KEYS = 3 };

static const struct {
        unsigned path, layout, technology;
} keys[KEYS] = {
        { TRANSFER_HOST_TO_DISK, TRANSFER_FULLY_CONTIGUOUS, TRANSFER_IO_URING },
        { TRANSFER_HOST_TO_DEVICE, TRANSFER_LAYER_SEPARATE_BLOCK_FIRST, TRANSFER_CUDA_BATCH },
        { TRANSFER_DEVICE_TO_HOST, TRANSFER_LAYER_SEPARATE_OUTER_FIRST, TRANSFER_CUDA_BATCH },
};

struct totals {
        uint64_t transfers, bytes, blocks, min, max;
};

/* Totals of 100 records in all, by key; constants, so that a mistake of expect() is noticed. */
static const struct totals golden[KEYS] = {
        { 34, 356864, 102, 8192, 12800 },
        { 33, 142848, 100, 2048, 6656 },
        { 33, 144384, 98, 2048, 6656 },
};

static uint64_t bytes_of(uint64_t record)
{
        return (record % KEYS == 0 ? 8192 : 2048) + record % 10 * 512;
}

static uint64_t blocks_of(uint64_t record)
{
        return 1 + record % 5;
}

static void expect(uint64_t count, struct totals ret[static KEYS])
{
        memset(ret, 0, KEYS * sizeof(*ret));
        for (uint64_t i = 0; i < count; i++) {
                struct totals *t = &ret[i % KEYS];

                t->min = t->transfers ? MIN(t->min, bytes_of(i)) : bytes_of(i);
                t->max = MAX(t->max, bytes_of(i));
                t->transfers++;
                t->bytes += bytes_of(i);
                t->blocks += blocks_of(i);
        }
}

/* Returns the snapshot of a session with `count` records, in JSON as a daemon would write it, or
 * NULL if memory is short. The caller frees it. */
static char *record_session(uint64_t count)
{
        struct snapshot_metric metrics[KEYS] = { 0 };
        struct snapshot s = { .name = "test",
                              .active = true,
                              .enabled = true,
                              .metrics = metrics,
                              .n_metrics = KEYS };
        _cleanup_(cJSON_Deletep) cJSON *json = NULL;

        for (unsigned k = 0; k < KEYS; k++) {
                metrics[k].path = keys[k].path;
                metrics[k].layout = keys[k].layout;
                metrics[k].technology = keys[k].technology;
                transfer_counts_init(&metrics[k].counts);
        }
        for (uint64_t i = 0; i < count; i++) {
                struct transfer_record record = {
                        .result = TRANSFER_OK,
                        .blocks = blocks_of(i),
                        .regions = blocks_of(i),
                        .bytes = bytes_of(i),
                        .device_bytes = bytes_of(i),
                        .latency_ns = 1000,
                };

                transfer_counts_add(&metrics[i % KEYS].counts, &record);
        }
        json = snapshot_json(&s);
        return json ? cJSON_PrintUnformatted(json) : NULL;
}

static const struct snapshot_metric *metric_of(const struct snapshot *s, unsigned key)
{
        for (size_t i = 0; i < s->n_metrics; i++)
                if (s->metrics[i].path == keys[key].path)
                        return &s->metrics[i];
        return NULL;
}

static bool agree(const char *what, unsigned key, uint64_t is, uint64_t must)
{
        if (is != must)
                complain(SESSION_FAILED,
                         "%s, %s: the counter of %s is %" PRIu64 ", but must be %" PRIu64,
                         transfer_path_name(keys[key].path), transfer_layout_name(keys[key].layout),
                         what, is, must);
        return is == must;
}

static bool check_totals(const struct snapshot *s, const struct totals expected[static KEYS])
{
        bool right = true;

        for (unsigned k = 0; k < KEYS; k++) {
                const struct snapshot_metric *m = metric_of(s, k);
                const struct transfer_counts *c = m ? &m->counts : NULL;
                const struct totals *t = &expected[k];

                right = c && agree("transfers", k, c->transfers, t->transfers) && right;
                right = c && agree("bytes", k, c->bytes, t->bytes) && right;
                right = c && agree("blocks", k, c->blocks, t->blocks) && right;
                right = c && agree("smallest", k, c->transfers ? c->min_bytes : 0, t->min) && right;
                right = c && agree("largest", k, c->max_bytes, t->max) && right;
        }
        return right;
}

static int test_arithmetic(struct ctl *ctl, uint64_t count)
{
        _cleanup_(freep) char *text = record_session(count);
        _cleanup_(snapshot_freep) struct snapshot *s = NULL;
        struct totals expected[KEYS];
        char error[SNAPSHOT_ERROR_BYTES];
        uint64_t bytes = 0;

        if (!text)
                return complain_memory();
        if (snapshot_parse(text, strlen(text), "the snapshot", &s, error) < 0)
                return complain(SESSION_FAILED, "%s", error);
        expect(count, expected);
        if (!check_totals(s, expected) || (count == 100 && !check_totals(s, golden)))
                return SESSION_FAILED;
        for (unsigned k = 0; k < KEYS; k++)
                bytes += expected[k].bytes;
        if (!ctl->json)
                printf("arithmetic: %" PRIu64 " transfers, %" PRIu64 " bytes, %d keys: right\n",
                       count, bytes, KEYS);
        return SESSION_OK;
}

int session_test(struct ctl *ctl, const struct session_arguments *a)
{
        int status = test_arithmetic(ctl, a->count);

        if (status == SESSION_OK && a->io)
                status = session_test_io(ctl);
        if (status == SESSION_OK && ctl->json)
                puts("{\"right\":true}");
        return status;
}
