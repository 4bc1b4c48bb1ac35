/* SPDX-License-Identifier: Apache-2.0 */
#include "sweep-tally.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "latency.h"

static unsigned layout_of(uint32_t kind)
{
        switch (kind) {
        case KVCACHE_LAYOUT_CONTIGUOUS:
                return TRANSFER_FULLY_CONTIGUOUS;
        case KVCACHE_LAYOUT_BLOCK_FIRST:
                return TRANSFER_LAYER_SEPARATE_BLOCK_FIRST;
        default:
                return TRANSFER_LAYER_SEPARATE_OUTER_FIRST;
        }
}

void sweep_tally_init(struct sweep_tally *t)
{
        *t = (struct sweep_tally){ .begun_ms = latency_unix_ms() };
        for (uint32_t k = 0; k < SWEEP_LAYOUTS; k++) {
                t->metrics[k].path = TRANSFER_HOST_TO_HOST;
                t->metrics[k].layout = layout_of(k + 1);
                t->metrics[k].technology = TRANSFER_MEMCPY;
                transfer_counts_init(&t->metrics[k].counts);
        }
}

static void add_layout(void *userdata, const struct kvcache_layout *l)
{
        struct sweep_tally *t = userdata;
        struct snapshot_layout layout = {
                .layout = layout_of(l->kind),
                .blocks = l->blocks,
                .layers = l->layers,
                .outer = l->outer,
                .page_tokens = l->page_tokens,
                .inner = l->inner,
                .dtype_bytes = l->dtype_bytes,
                .alignment = l->alignment,
        };

        for (size_t i = 0; i < t->n_layouts; i++)
                if (memcmp(&t->layouts[i], &layout, sizeof(layout)) == 0)
                        return;
        if (t->n_layouts < SNAPSHOT_MAX_LAYOUTS)
                t->layouts[t->n_layouts++] = layout;
}

static int compare_calls(const void *a, const void *b)
{
        const struct sweep_call *x = a, *y = b;

        return (x->begun_ns > y->begun_ns) - (x->begun_ns < y->begun_ns);
}

/* Returns the time in which at least one call was in progress. Sorts the calls. */
static uint64_t busy_ns(struct sweep_call *calls, size_t n)
{
        uint64_t busy = 0, until = 0;

        qsort(calls, n, sizeof(*calls), compare_calls);
        for (size_t i = 0; i < n; i++) {
                uint64_t from = MAX(calls[i].begun_ns, until);

                if (calls[i].ended_ns > from)
                        busy += calls[i].ended_ns - from;
                until = MAX(until, calls[i].ended_ns);
        }
        return busy;
}

/* Adds the client's calls to a metric, as a record for each copy. A call made one or more copies of
 * equal size, one after the other, so each copy gets an equal part of the time. */
static void add_calls(struct snapshot_metric *m, const struct sweep_client *c)
{
        const struct kvcache_layout_moved *moved = &c->moved;
        uint64_t copies = c->n_calls ? moved->copies / c->n_calls : 0;

        for (size_t i = 0; i < c->n_calls; i++)
                for (uint64_t k = 0; k < copies; k++) {
                        bool first = k == 0; /* the first copy of a call counts its block */
                        struct transfer_record record = {
                                .result = TRANSFER_OK,
                                .blocks = first ? moved->blocks / c->n_calls : 0,
                                .regions = first ? moved->regions / c->n_calls : 0,
                                .bytes = moved->bytes / moved->copies,
                                .device_bytes = moved->device_bytes / moved->copies,
                                .latency_ns =
                                        (c->calls[i].ended_ns - c->calls[i].begun_ns) / copies,
                        };

                        transfer_counts_add(&m->counts, &record);
                        m->latency_secs += (double)record.latency_ns / 1e9;
                }
}

static int add_pass(void *userdata, const struct sweep_client *clients, size_t n, double seconds)
{
        struct sweep_tally *t = userdata;
        struct snapshot_metric *m = &t->metrics[clients[0].blocks->layout.kind - 1];
        _cleanup_(freep) struct sweep_call *all = NULL;
        size_t n_all = 0;

        for (size_t i = 0; i < n; i++)
                n_all += clients[i].n_calls;
        all = calloc(n_all + 1, sizeof(*all));
        if (!all)
                return -ENOMEM;
        n_all = 0;
        for (size_t i = 0; i < n; i++) {
                memcpy(all + n_all, clients[i].calls, clients[i].n_calls * sizeof(*all));
                n_all += clients[i].n_calls;
                add_calls(m, &clients[i]);
        }
        m->busy_secs += (double)busy_ns(all, n_all) / 1e9;
        t->enabled_secs += seconds;
        return 0;
}

struct sweep_observer sweep_tally_observer(struct sweep_tally *t)
{
        return (struct sweep_observer){ .userdata = t, .layout = add_layout, .pass = add_pass };
}

void sweep_tally_snapshot(struct sweep_tally *t, const char *name, struct snapshot *ret)
{
        size_t n = 0;

        *ret = (struct snapshot){
                .idle = true,
                .enabled_secs = t->enabled_secs,
                .layouts = t->layouts,
                .n_layouts = t->n_layouts,
                .metrics = t->metrics,
        };
        snprintf(ret->name, sizeof(ret->name), "%s", name);
        snapshot_name_host(ret, kvcache_version());
        snapshot_name_time(t->begun_ms, ret->created);
        snapshot_name_time(latency_unix_ms(), ret->updated);
        for (unsigned k = 0; k < SWEEP_LAYOUTS; k++)
                if (t->metrics[k].counts.transfers > 0)
                        t->metrics[n++] = t->metrics[k];
        ret->n_metrics = n;
}
