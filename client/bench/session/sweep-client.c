/* SPDX-License-Identifier: Apache-2.0 */
/* A client of the sweep, in its own thread during a pass. Keeps `depth` blocks in flight, each
 * in its own request. A block that is refused, lost or of another length ends the sweep, because
 * an incomplete measurement is worthless. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "checked.h"
#include "cleanup.h"
#include "kvcache-transfer.h"
#include "sweep.h"

enum { REAP_MAX = 64, REAP_MS = 100, STUCK_MS = 60000, EVICT_KEYS = 1024 };

struct flight {
        void *place; /* puts: place in staging */
        uint64_t block, begun_ns;
        struct kvcache_result result;
};

struct moving {
        struct flight *flights;
        uint32_t *idle;
        size_t n, n_idle;
};

__attribute__((format(printf, 3, 4))) static int failed(struct sweep_client *c, int r,
                                                        const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(c->message, sizeof(c->message), format, arguments);
        va_end(arguments);
        c->error = r;
        return r;
}

/* Selects the block of step `i`. Returns true if it is to be put, false if it is to be got. In the
 * operation mixed, the blocks of the first half, which were put before, are got, and those of the
 * second half are put. */
static bool step(const struct sweep_pass *pass, uint64_t i, uint64_t *ret_block)
{
        if (pass->op != SWEEP_MIXED) {
                *ret_block = i;
                return pass->op == SWEEP_PUT;
        }
        *ret_block = i / 2 + (i % 2) * (pass->blocks / 2);
        return i % 2;
}

static uint64_t steps_of(const struct sweep_pass *pass)
{
        return pass->op == SWEEP_MIXED ? pass->blocks / 2 * 2 : pass->blocks;
}

/* Records a gather or scatter and its time, in the client's calls and in the daemon's benchmark
 * session. */
static void note_call(struct sweep_client *c, uint64_t begun_ns,
                      const struct kvcache_layout_moved *moved)
{
        struct sweep_call call = { begun_ns, latency_now_ns() };
        struct kvcache_transfer transfer = {
                .size = sizeof(transfer),
                .path = KVCACHE_HOST_TO_HOST,
                .layout = c->blocks->layout.kind,
                .technology = KVCACHE_MEMCPY,
                .transfers = moved->copies,
                .blocks = moved->blocks,
                .regions = moved->regions,
                .bytes = moved->bytes,
                .device_bytes = moved->device_bytes,
                .duration_ns = call.ended_ns - call.begun_ns,
        };

        /* The call fails with older daemons, which do not count such transfers. */
        (void)kvcache_count_transfer(c->kv, &transfer);
        c->calls[c->n_calls++] = call;
        c->moved.blocks += moved->blocks;
        c->moved.regions += moved->regions;
        c->moved.copies += moved->copies;
        c->moved.bytes += moved->bytes;
        c->moved.device_bytes += moved->device_bytes;
}

static int begin_put(struct sweep_client *c, struct flight *f, struct kvcache_entry *entry)
{
        struct kvcache_layout_copy copy = {
                .block = f->block,
                .chunk = f->place,
                .chunk_bytes = c->blocks->info.block_bytes,
        };
        struct kvcache_layout_moved moved = { .size = sizeof(moved) };
        char error[256];
        int r = kvcache_layout_gather(&c->blocks->layout, 0, 0, &copy, 1, &moved, error,
                                      sizeof(error));

        if (r < 0)
                return failed(c, r, "block %" PRIu64 " cannot be gathered: %s", f->block, error);
        note_call(c, f->begun_ns, &moved);
        *entry = (struct kvcache_entry){ .key = c->keys[f->block],
                                         .data = f->place,
                                         .length = copy.chunk_bytes };
        return 0;
}

static int begin_step(struct sweep_client *c, struct moving *m, uint64_t i)
{
        uint32_t number = m->idle[m->n_idle - 1];
        struct flight *f = &m->flights[number];
        struct kvcache_request request;
        struct kvcache_entry entry;
        bool put = step(c->pass, i, &f->block);
        int r;

        f->begun_ns = latency_now_ns();
        if (put) {
                r = begin_put(c, f, &entry);
                if (r < 0)
                        return r;
                kvcache_prep_put(&request, c->namespace_handle, &entry, 1, c->pass->ack,
                                 &f->result);
        } else {
                kvcache_prep_get(&request, c->namespace_handle, &c->keys[f->block], 1, &f->result);
        }
        request.user_data = (uint64_t)number << 1 | put;
        request.timeout_ms = STUCK_MS;
        r = kvcache_submit(c->kv, &request);
        if (r < 0)
                return failed(c, r, "a request cannot be sent: %s", kvcache_error(c->kv));
        m->n_idle--;
        return 0;
}

static int end_get(struct sweep_client *c, const struct flight *f)
{
        struct kvcache_layout_copy copy = {
                .block = f->block,
                .chunk = (void *)f->result.data, /* scatter only reads it */
                .chunk_bytes = f->result.length,
        };
        struct kvcache_layout_moved moved = { .size = sizeof(moved) };
        uint64_t begun = latency_now_ns();
        char error[256];
        int r;

        if (!f->result.data)
                return failed(c, -EBADMSG, "block %" PRIu64 " came without data", f->block);
        r = kvcache_layout_scatter(&c->blocks->layout, 0, 0, &copy, 1, &moved, error,
                                   sizeof(error));
        if (r < 0)
                return failed(c, r, "block %" PRIu64 " cannot be scattered: %s", f->block, error);
        note_call(c, begun, &moved);
        (void)kvcache_release(c->kv, &f->result.lease, 1);
        c->got++;
        c->got_from_disk += !(f->result.tiers & KVCACHE_TIER_MEMORY);
        return 0;
}

static int end_step(struct sweep_client *c, struct moving *m, const struct kvcache_completion *done)
{
        struct flight *f = &m->flights[done->user_data >> 1];
        bool put = done->user_data & 1;
        int r = 0;

        if (f->result.status == KVCACHE_LOST)
                return failed(c, -EIO, "the daemon went away before block %" PRIu64 " was %s",
                              f->block, put ? "put" : "got");
        if (done->error < 0 || f->result.status != KVCACHE_OK)
                return failed(c, -EIO, "block %" PRIu64 " cannot be %s: the daemon answered %s",
                              f->block, put ? "put" : "got", kvcache_status_name(f->result.status));
        if (!put)
                r = end_get(c, f);
        latency_add(&c->latency, latency_now_ns() - f->begun_ns);
        m->idle[m->n_idle++] = (uint32_t)(done->user_data >> 1);
        return r;
}

static int reap(struct sweep_client *c, struct moving *m, uint64_t *last_ns, uint64_t *ret_done)
{
        struct kvcache_completion done[REAP_MAX];
        int n = kvcache_reap(c->kv, done, REAP_MAX, REAP_MS);

        if (n < 0)
                return failed(c, n, "completions cannot be taken: %s", kvcache_error(c->kv));
        if (*c->interrupted)
                return failed(c, -ECANCELED, "interrupted");
        if (n > 0)
                *last_ns = latency_now_ns();
        else if (latency_now_ns() - *last_ns > STUCK_MS * UINT64_C(1000000))
                return failed(c, -ETIMEDOUT, "the daemon has not answered for %d s",
                              STUCK_MS / 1000);
        for (int i = 0; i < n; i++) {
                int r = end_step(c, m, &done[i]);

                if (r < 0)
                        return r;
        }
        *ret_done += (uint64_t)n;
        return 0;
}

/* Allocates `depth` flights and acquires a place in staging for each, unless the operation only
 * gets. Returns 0, or the error that failed() recorded: memory is short, or staging does not have
 * room for all. */
static int take_flights(struct sweep_client *c, struct moving *m)
{
        int r = 0;

        m->flights = calloc(c->pass->depth, sizeof(*m->flights));
        m->idle = calloc(c->pass->depth, sizeof(*m->idle));
        if (!m->flights || !m->idle)
                return failed(c, -ENOMEM, "out of memory");
        for (; m->n < c->pass->depth; m->n++) {
                if (c->pass->op != SWEEP_GET)
                        r = kvcache_staging_acquire(c->kv, c->blocks->info.block_bytes,
                                                    &m->flights[m->n].place);
                if (r < 0)
                        break;
                m->idle[m->n_idle++] = (uint32_t)m->n;
        }
        if (m->n < c->pass->depth)
                return failed(c, r,
                              "no staging memory for %" PRIu64 " blocks of %" PRIu64
                              " bytes in flight: %s",
                              c->pass->depth, c->blocks->info.block_bytes, kvcache_error(c->kv));
        return 0;
}

static void release_flights(struct sweep_client *c, struct moving *m)
{
        for (size_t i = 0; m->flights && i < m->n; i++)
                if (m->flights[i].place)
                        kvcache_staging_release(c->kv, m->flights[i].place);
        /* Requests in flight write to their results; closing the connection ends them. */
        if (m->n_idle < m->n && c->error) {
                kvcache_close(c->kv);
                c->kv = NULL;
        }
        free(m->flights);
        free(m->idle);
}

int sweep_client_move(struct sweep_client *c)
{
        uint64_t next = 0, done = 0, steps = steps_of(c->pass), last;
        struct moving m = { 0 };
        int r = take_flights(c, &m);

        c->n_calls = 0;
        c->moved = (struct kvcache_layout_moved){ 0 };
        c->begun_ns = last = latency_now_ns();
        while (r == 0 && done < steps) {
                while (r == 0 && next < steps && m.n_idle > 0)
                        r = begin_step(c, &m, next++);
                if (r == 0)
                        r = reap(c, &m, &last, &done);
        }
        c->ended_ns = latency_now_ns();
        if (r == 0 && kvcache_flush(c->kv) < 0)
                r = failed(c, -EIO, "leases cannot be released: %s", kvcache_error(c->kv));
        release_flights(c, &m);
        return r;
}

int sweep_client_evict(struct sweep_client *c, uint32_t tiers)
{
        _cleanup_(freep) struct kvcache_result *results = calloc(EVICT_KEYS, sizeof(*results));

        if (!results)
                return failed(c, -ENOMEM, "out of memory");
        for (uint64_t i = 0; i < c->n_keys; i += EVICT_KEYS) {
                struct kvcache_request request;
                int r;

                kvcache_prep_evict(&request, c->namespace_handle, c->keys + i,
                                   MIN(c->n_keys - i, (uint64_t)EVICT_KEYS), tiers, results);
                request.timeout_ms = STUCK_MS;
                r = kvcache_submit_and_wait(c->kv, &request, NULL);
                if (r < 0)
                        return failed(c, r, "chunks cannot be evicted: %s", kvcache_error(c->kv));
        }
        return 0;
}
