/* SPDX-License-Identifier: Apache-2.0 */
/* The shared tier as a whole: creates its parts, which have files of their own, runs their due
 * work, and shuts down. Loop thread.
 *
 * Operations that still hang in the back end when the tier is freed are abandoned, together with
 * the memory that they may still write to and the completions that they end in. */
#include "remote/remote.h"

#include <errno.h>
#include <stdio.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "checked.h"
#include "remote/internal.h"

static struct list_node all_abandoned = LIST_INIT(all_abandoned);

static int fail(char ret_error[static 256], int r, const char *text)
{
        snprintf(ret_error, 256, "%s: %s", text, strerror(-r));
        return r;
}

static void free_parts(struct remote *r)
{
        remote_namespaces_fini(r);
        if (r->loading == 0) /* while a load is in progress, its end needs the queue */
                queue_fini(&r->queue);
        presence_fini(&r->presence);
}

static void free_rest(struct remote *r)
{
        buffers_fini(&r->read_buffers);
        buffers_fini(&r->write_buffers);
        deadlines_fini(&r->deadlines);
        completions_fini(&r->completions);
        free(r->record);
        free(r->prefix);
        free(r->state_path);
        free(r);
}

/* Reads the state file. An unreadable file counts as missing, which may cause an unnecessary
 * purge. */
static void read_state(struct remote *r)
{
        int e = r->state_path ? generations_read(&r->generations, r->state_path) : -ENOENT;

        if (e < 0 && e != -ENOENT)
                snprintf(r->reason, sizeof(r->reason),
                         "%s is not used: %s; namespaces may be purged here again", r->state_path,
                         e == -EBADMSG ? "the file is damaged" : strerror(-e));
}

int remote_new(struct remote **ret, const struct remote_params *params, char ret_error[static 256])
{
        struct remote *r = calloc(1, sizeof(*r));
        uint64_t now_ns = clock_mono_ns();
        int e;

        if (!r)
                return fail(ret_error, -ENOMEM, "the shared tier cannot be started");
        r->params = *params;
        r->completions.fd = -1;
        list_init(&r->operations);
        list_init(&r->purges);
        list_init(&r->searches);
        sfq_init(&r->waiting);
        list_init(&r->abandoned);
        breaker_init(&r->breaker, params->timeout_ns / 2, now_ns);
        buffers_init(&r->read_buffers, params->read_inflight);
        buffers_init(&r->write_buffers, params->write_inflight);
        r->prefix = strdup(params->prefix);
        r->state_path = params->state_path ? strdup(params->state_path) : NULL;
        e = completions_init(&r->completions);
        if (e == 0 && (!r->prefix || (params->state_path && !r->state_path)))
                e = -ENOMEM;
        if (e == 0)
                e = presence_init(&r->presence, PRESENCE_KEYS, now_ns);
        if (e == 0)
                e = queue_init(&r->queue, params->write_queue);
        ret_error[0] = '\0';
        if (e == 0) {
                read_state(r);
                e = params->ops->open(&r->backend, &params->backend, ret_error);
        }
        if (e < 0 && !ret_error[0])
                fail(ret_error, e, "the shared tier cannot be started");
        if (e < 0) {
                free_parts(r);
                free_rest(r);
                return e;
        }
        *ret = r;
        return 0;
}

int remote_fd(const struct remote *r)
{
        return r->completions.fd;
}

unsigned remote_reap(struct remote *r)
{
        return completions_reap(&r->completions, REAP_MOST);
}

static uint64_t sooner(uint64_t a, uint64_t b, uint64_t now_ns)
{
        /* Ignores `b` if it has passed: that work waits for another operation to end, which causes
         * an iteration. */
        return b <= now_ns || b == UINT64_MAX ? a : a == 0 ? b : MIN(a, b);
}

uint64_t remote_iterate(struct remote *r, uint64_t now_ns)
{
        uint64_t next;

        if (r->stopping)
                return 0;
        deadlines_run(&r->deadlines, now_ns, UINT_MAX);
        remote_trial(r, now_ns);
        remote_namespaces_iterate(r, now_ns);
        gets_iterate(r, now_ns);
        puts_iterate(r, now_ns);
        matches_iterate(r, now_ns);
        next = deadlines_next(&r->deadlines);
        if (next == UINT64_MAX)
                next = 0;
        next = sooner(next, breaker_next(&r->breaker), now_ns);
        next = sooner(next, remote_namespaces_next(r), now_ns);
        next = sooner(next, puts_next(r), now_ns);
        return sooner(next, matches_next(r), now_ns);
}

void remote_configure(struct remote *r, const struct remote_params *params)
{
        r->params.write = params->write;
        r->params.write_rate = params->write_rate;
        r->params.presence_ns = params->presence_ns;
        r->params.absence_ns = params->absence_ns;
        r->params.generation_interval_ns = params->generation_interval_ns;
        r->params.probe_rate = params->probe_rate;
        r->write_rate = (struct rate){ 0 };
        remote_namespaces_read_soon(r, clock_mono_ns());
}

/* --- stopping and freeing --- */

void remote_stop(struct remote *r)
{
        if (r->stopping)
                return;
        r->stopping = true;
        sweep_stop(r);
        gets_fail_waiting(r);
        matches_cancel(r, NULL);
        operations_cancel(r);
        remote_namespaces_stop(r);
        r->params.ops->stop(r->backend);
}

static void abandon(struct remote *r)
{
        job_abandon(&r->recorder);
        list_append(&all_abandoned, &r->abandoned);
}

struct remote *remote_free(struct remote *r)
{
        bool swept;

        if (!r)
                return NULL;
        remote_stop(r);
        while (remote_reap(r) > 0)
                ;
        /* If the sweeper's thread is inside the back end, the back end is abandoned as well. */
        swept = sweep_fini(r);
        if (swept)
                r->params.ops->close(r->backend);
        while (remote_reap(r) > 0)
                ;
        free_parts(r);
        if (swept && list_empty(&r->operations) && !r->recorder.running)
                free_rest(r);
        else
                abandon(r);
        return NULL;
}

uint64_t remote_timeout_ns(const struct remote *r)
{
        return r->params.timeout_ns;
}

/* --- statistics --- */

void remote_get_stats(const struct remote *r, struct remote_stats *ret)
{
        *ret = r->stats;
        ret->queued = r->queue.n;
        ret->queued_bytes = r->queue.bytes;
        ret->reading_bytes = r->read_buffers.used;
        ret->writing_bytes = r->write_buffers.used;
        ret->inflight = r->inflight;
        ret->trips = r->breaker.trips;
}

void remote_get_status(const struct remote *r, struct remote_status *ret)
{
        uint64_t now_ns = clock_mono_ns();

        *ret = (struct remote_status){
                .backend = r->params.ops->name,
                .breaker = r->breaker.state,
                .since_ns = r->breaker.since_ns,
                .full = r->full,
                .namespaces = r->n_namespaces,
                .rate_bytes = r->busy_ns > 0 ? (uint64_t)(r->read_bytes * 1e9 / r->busy_ns) : 0,
                .latency_ns = (uint64_t)r->latency_ns,
                .sweeping = r->sweeper != NULL,
        };
        snprintf(ret->reason, sizeof(ret->reason), "%s", r->reason);
        for (unsigned i = 0; i < r->n_namespaces; i++)
                ret->unknown += !remote_namespace_is_usable(r->namespaces[i], now_ns);
}
