/* SPDX-License-Identifier: Apache-2.0 */
/* A client of the side KVCACHE. Runs in its own thread, and owns its connection, the places of the
 * staging area for its writes, and its requests in flight.
 *
 * Up to `depth` blocks are in flight, a request for each piece. A request that is lost, refused or
 * incomplete ends the job, because an incomplete measurement is worthless. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "checked.h"
#include "common.h"
#include "through.h"

enum {
        REAP_MAX = 64,
        PLACE_ALIGN = 64,
        MOST_PLACES = 256,
};

struct flight {
        const struct profile_piece *piece;
        uint8_t *place; /* place in staging, for a write */
        uint64_t at[4];
};

struct client {
        struct through *through;
        struct profile *profile;
        struct kvcache *kv;
        uint32_t namespace_handle;

        uint64_t stride; /* distance between blocks in a place */
        void *places[MOST_PLACES];
        size_t n_places, n_free;

        struct flight *flights;
        uint32_t *idle;
        size_t n_flights, n_idle;
        struct kvcache_result *results; /* reads: results of the blocks of a window; writes: results
                                           of each request in flight */
        size_t results_room;
        struct kvcache_entry *entries; /* entries of one request */
};

void through_client_free(void *userdata)
{
        struct client *c = userdata;

        kvcache_close(c->kv);
        free(c->flights);
        free(c->idle);
        free(c->results);
        free(c->entries);
        free(c);
}

/* Acquires as many places in the staging area as the depth requires, or fewer, but at least one, if
 * the area is too small, and fills them with the pattern. */
static int client_take_places(struct client *c)
{
        struct profile *p = c->profile;
        uint64_t blocks = p->piece_blocks,
                 want = MIN(c->through->side.depth / blocks + 2, (uint64_t)MOST_PLACES);
        int r = 0;

        c->stride = round_up(p->job->io_size, PLACE_ALIGN);
        for (; c->n_places < want; c->n_places++) {
                r = kvcache_staging_acquire(c->kv, blocks * c->stride, &c->places[c->n_places]);
                if (r < 0)
                        break;
        }
        if (c->n_places == 0)
                return profile_fail(p, "cannot get staging memory for writes: %s",
                                    kvcache_error(c->kv));
        for (size_t i = 0; i < c->n_places; i++)
                for (uint64_t k = 0; k < blocks; k++)
                        content_fill(&p->content, (uint8_t *)c->places[i] + k * c->stride);
        c->n_free = c->n_places;
        return 0;
}

int through_client_new(void *self, struct profile *p, void **ret)
{
        struct through *t = self;
        struct client *c = calloc(1, sizeof(*c));
        int r;

        if (!c)
                return profile_fail(p, "out of memory");
        *ret = c;
        c->through = t;
        c->profile = p;
        r = through_connect(t, p, &c->kv, &c->namespace_handle);
        if (r == 0 && p->job->write)
                r = client_take_places(c);
        if (r < 0)
                return r;
        c->n_flights = t->side.depth;
        c->flights = calloc(c->n_flights, sizeof(*c->flights));
        c->idle = calloc(c->n_flights, sizeof(*c->idle));
        c->entries = calloc(PROFILE_PIECE_BLOCKS, sizeof(*c->entries));
        if (!c->flights || !c->idle || !c->entries)
                return profile_fail(p, "out of memory");
        for (size_t i = 0; i < c->n_flights; i++)
                c->idle[c->n_idle++] = (uint32_t)i;
        return through_check_instance(t, p, c->kv);
}

static int client_reserve(struct client *c, size_t n)
{
        void *p;

        if (n <= c->results_room)
                return 0;
        p = reallocarray(c->results, n, sizeof(*c->results));
        if (!p)
                return profile_fail(c->profile, "out of memory");
        c->results = p;
        c->results_room = n;
        return 0;
}

static struct kvcache_result *flight_results(struct client *c, const struct profile_work *work,
                                             uint32_t flight)
{
        return c->results +
               (work->write ? (size_t)flight * PROFILE_PIECE_BLOCKS : c->flights[flight].piece->at);
}

static int client_submit(struct client *c, const struct profile_work *work,
                         const struct profile_piece *piece)
{
        struct profile *p = c->profile;
        uint32_t number = c->idle[c->n_idle - 1];
        struct flight *f = &c->flights[number];
        struct kvcache_request request;
        struct kvcache_result *results;

        *f = (struct flight){ .piece = piece };
        f->at[0] = profile_now_ns();
        results = flight_results(c, work, number);
        if (work->write) {
                f->place = c->places[--c->n_free];
                for (uint32_t i = 0; i < piece->count; i++) {
                        uint8_t *data = f->place + i * c->stride;

                        content_stamp(&p->content, data, piece->first + i, work->generation);
                        c->entries[i] = (struct kvcache_entry){
                                .key = p->keys[piece->first + i],
                                .data = data,
                                .length = p->job->io_size,
                        };
                }
                kvcache_prep_put(&request, c->namespace_handle, c->entries, piece->count,
                                 KVCACHE_WRITTEN, results);
        } else {
                kvcache_prep_get(&request, c->namespace_handle, &p->keys[piece->first],
                                 piece->count, results);
        }
        request.parent = piece->root ? NULL : &p->keys[piece->first - 1];
        request.timeout_ms = PROFILE_STUCK_MS;
        request.user_data = number;
        f->at[1] = profile_now_ns();
        if (kvcache_submit(c->kv, &request) < 0)
                return profile_fail(p, "a request cannot be sent: %s", kvcache_error(c->kv));
        f->at[2] = profile_now_ns();
        c->n_idle--;
        return 0;
}

static int client_take(struct client *c, const struct profile_work *work, uint32_t number)
{
        const struct flight *f = &c->flights[number];
        const struct kvcache_result *results = flight_results(c, work, number);
        uint64_t io_size = c->profile->job->io_size;
        int r = 0;

        for (uint32_t i = 0; r == 0 && i < f->piece->count; i++) {
                if (results[i].status != KVCACHE_OK ||
                    (!work->write && (results[i].length != io_size || !results[i].data)))
                        r = through_block_failed(c->profile, work->write, f->piece->first + i,
                                                 results[i].status, results[i].length);
                else if (!work->write && results[i].tiers & KVCACHE_TIER_MEMORY)
                        work->tally->bytes_memory += io_size;
                else if (!work->write)
                        work->tally->bytes_disk += io_size;
        }
        if (r < 0)
                return r;
        profile_count(work->tally, f->piece->count, io_size, f->at);
        atomic_fetch_add_explicit(&c->profile->done_blocks, f->piece->count, memory_order_relaxed);
        return 0;
}

int through_client_move(void *userdata, const struct profile_work *work)
{
        struct client *c = userdata;
        struct profile *p = c->profile;
        struct kvcache_completion done[REAP_MAX];
        uint64_t on_way = 0, last = profile_now_ns(), depth = c->through->side.depth;
        size_t next = 0;
        int r;

        r = through_check_instance(c->through, p, c->kv);
        if (r == 0)
                r = client_reserve(c, work->write ? c->n_flights * PROFILE_PIECE_BLOCKS
                                                  : work->n_blocks);
        if (r < 0)
                return r;
        while (next < work->n_pieces || on_way > 0) {
                int n;

                while (next < work->n_pieces && c->n_idle > 0 &&
                       (on_way == 0 || on_way + work->pieces[next].count <= depth) &&
                       (!work->write || c->n_free > 0)) {
                        r = client_submit(c, work, &work->pieces[next]);
                        if (r < 0)
                                return r;
                        on_way += work->pieces[next++].count;
                }
                n = kvcache_reap(c->kv, done, REAP_MAX, THROUGH_REAP_MS);
                r = through_reaped(p, n, kvcache_error(c->kv), &last);
                if (r < 0)
                        return r;
                for (int i = 0; i < n; i++) {
                        uint32_t number = (uint32_t)done[i].user_data;
                        struct flight *f = &c->flights[number];

                        f->at[3] = last;
                        r = client_take(c, work, number);
                        if (r < 0)
                                return r;
                        on_way -= f->piece->count;
                        if (f->place)
                                c->places[c->n_free++] = f->place;
                        c->idle[c->n_idle++] = number;
                }
        }
        return 0;
}

int through_client_check(void *userdata, const struct profile_work *work)
{
        struct client *c = userdata;
        struct profile *p = c->profile;
        uint64_t io_size = p->job->io_size;

        for (size_t i = 0; i < work->n_pieces; i++) {
                const struct profile_piece *piece = &work->pieces[i];

                for (uint32_t k = 0; k < piece->count; k++) {
                        const struct kvcache_result *result = &c->results[piece->at + k];
                        size_t first = 0;
                        uint64_t wrong = content_check(&p->content, result->data, piece->first + k,
                                                       work->generation, &first);

                        if (wrong > 0)
                                return profile_fail(
                                        p,
                                        "block %" PRIu64 " is wrong: %" PRIu64 " of %" PRIu64
                                        " bytes differ, the first at offset %zu (from %s)",
                                        piece->first + k, wrong, io_size, first,
                                        tiers_text(result->tiers));
                        work->tally->bytes_verified += io_size;
                        if (result->lease.generation != 0)
                                (void)kvcache_release(c->kv, &result->lease, 1);
                }
                if (profile_should_stop(p))
                        return -ECANCELED;
        }
        if (kvcache_flush(c->kv) < 0)
                return profile_fail(p, "leases cannot be released: %s", kvcache_error(c->kv));
        return 0;
}
