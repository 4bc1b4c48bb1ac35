/* SPDX-License-Identifier: Apache-2.0 */
#include "traffic.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "checked.h"

enum { REAP_MAX = 64 };

void traffic_fini(struct traffic *t)
{
        kvcache_close(t->kv);
        for (uint64_t i = 0; t->flights && i < t->n_flights; i++) {
                free(t->flights[i].entries);
                free(t->flights[i].results);
                free(t->flights[i].keys);
                free(t->flights[i].leases);
        }
        free(t->flights);
        free(t->idle);
        free(t->places);
        free(t->place_busy);
        free(t->place_of);
        free(t->numbers);
}

int traffic_init(struct traffic *t, const struct bench_options *o, bool attach)
{
        int r;

        *t = (struct traffic){ .o = o };
        r = bench_open(o, attach, &t->kv, &t->namespace_handle);
        if (r != 0)
                return r;
        t->n_flights = (o->outstanding + o->batch - 1) / o->batch;
        t->flights = calloc(t->n_flights, sizeof(*t->flights));
        t->idle = calloc(t->n_flights, sizeof(*t->idle));
        t->place_of = calloc(t->n_flights, sizeof(*t->place_of));
        if (!t->flights || !t->idle || !t->place_of)
                return bench_fail("out of memory");
        for (uint64_t i = 0; i < t->n_flights; i++) {
                struct flight *f = &t->flights[i];

                f->entries = calloc(o->batch, sizeof(*f->entries));
                f->results = calloc(o->batch, sizeof(*f->results));
                f->keys = calloc(o->batch, sizeof(*f->keys));
                f->leases = calloc(o->batch, sizeof(*f->leases));
                if (!f->entries || !f->results || !f->keys || !f->leases)
                        return bench_fail("out of memory");
                t->idle[t->n_idle++] = (uint32_t)i;
        }
        return 0;
}

void traffic_count_failure(struct counts *c, int status)
{
        switch (status) {
        case KVCACHE_MISS:
                c->misses++;
                break;
        case KVCACHE_EXISTS:
                c->exists++;
                break;
        case KVCACHE_BUSY:
        case KVCACHE_QUOTA:
                c->busy++;
                break;
        default:
                c->failed++;
                break;
        }
}

static void print_counts(const struct traffic *t)
{
        const struct counts *c = &t->counts;

        printf("{\"seconds\": %.6f, \"cpu_seconds\": %.6f, \"bytes\": %" PRIu64
               ", \"keys\": %" PRIu64 ", \"from_memory\": %" PRIu64 ", \"memory_bytes\": %" PRIu64
               ", \"misses\": %" PRIu64 ", \"exists\": %" PRIu64 ", \"busy\": %" PRIu64
               ", \"failed\": %" PRIu64 ", \"next\": %" PRIu64 "}",
               c->seconds, c->cpu_seconds, c->bytes, c->keys, c->memory, c->memory_bytes, c->misses,
               c->exists, c->busy, c->failed, t->next_number);
        bench_answer();
}

int traffic_slice(struct traffic *t, const struct bench_step *step, traffic_submit_fn submit,
                  traffic_take_fn take)
{
        uint64_t begin = bench_now_ns(),
                 end = step->seconds > 0 ? begin + (uint64_t)(step->seconds * 1e9) : UINT64_MAX;
        uint64_t cpu_begin = bench_cpu_ns(), submitted = 0,
                 request_bytes = t->o->batch * t->o->size;
        struct kvcache_completion done[REAP_MAX];
        int n, r;

        t->counts = (struct counts){ 0 };
        for (;;) {
                while (t->n_idle > 0 && (step->bytes == 0 || submitted < step->bytes) &&
                       bench_now_ns() < end) {
                        uint32_t flight = t->idle[t->n_idle - 1];

                        r = submit(t, flight);
                        if (r < 0)
                                return bench_fail("cannot submit: %s", kvcache_error(t->kv));
                        t->n_idle--;
                        submitted += request_bytes;
                }
                if (t->n_idle == t->n_flights)
                        break;
                n = kvcache_reap(t->kv, done, REAP_MAX, TRAFFIC_STUCK_MS);
                if (n <= 0)
                        return bench_fail("no answer: %s",
                                          n < 0 ? kvcache_error(t->kv) : "timed out");
                for (int i = 0; i < n; i++) {
                        uint32_t flight = (uint32_t)done[i].user_data;

                        if (done[i].error < 0)
                                return bench_fail("a request failed: %s", kvcache_error(t->kv));
                        take(t, flight);
                        t->idle[t->n_idle++] = flight;
                }
        }
        t->counts.seconds = (double)(bench_now_ns() - begin) / 1e9;
        t->counts.cpu_seconds = (double)(bench_cpu_ns() - cpu_begin) / 1e9;
        (void)kvcache_flush(t->kv);
        print_counts(t);
        return 0;
}

/* --- places --- */

static int add_place(struct traffic *t, void *place)
{
        uint8_t **places = realloc(t->places, (t->n_places + 1) * sizeof(*places));

        if (!places)
                return bench_fail("out of memory");
        t->places = places;
        t->places[t->n_places++] = place;
        return 0;
}

static int places_of_staging(struct traffic *t, uint64_t room)
{
        void *place;
        int r;

        while ((r = kvcache_staging_acquire(t->kv, room, &place)) >= 0) {
                r = add_place(t, place);
                if (r != 0)
                        return r;
        }
        return r == -ENOBUFS || r == -E2BIG
                       ? 0
                       : bench_fail("no staging area: %s", kvcache_error(t->kv));
}

static int places_of_region(struct traffic *t, uint64_t room)
{
        struct kvcache_buffer_options options = { .size = sizeof(options),
                                                  .bytes = round_up(t->o->region, 4096) };
        int fd = memfd_create("kvcache-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING), r;
        uint32_t region;
        void *base;

        if (fd < 0 || ftruncate(fd, (off_t)options.bytes) < 0 ||
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0) {
                r = bench_fail("no memory to register: %s", strerror(errno));
        } else {
                options.fd = fd;
                r = kvcache_buffer_register(t->kv, &options, &region, &base);
                if (r < 0)
                        r = bench_fail("cannot register memory: %s", kvcache_error(t->kv));
        }
        if (fd >= 0)
                close(fd);
        for (uint64_t at = 0; r == 0 && at + room <= options.bytes; at += room)
                r = add_place(t, (uint8_t *)base + at);
        return r;
}

int traffic_make_places(struct traffic *t)
{
        const struct bench_options *o = t->o;
        uint64_t room = o->batch * o->size;
        int r;

        r = o->region > 0 ? places_of_region(t, round_up(room, 4096)) : places_of_staging(t, room);
        if (r != 0)
                return r;
        if (t->n_places < t->n_flights)
                return bench_fail("%" PRIu64 " places have no room for %" PRIu64
                                  " keys on their way",
                                  t->n_places, o->outstanding);
        for (uint64_t n = 0; n < t->n_places * o->batch; n++)
                content_fill(t->places[n / o->batch] + n % o->batch * o->size, o->size, n);
        t->place_busy = calloc(t->n_places, sizeof(*t->place_busy));
        return t->place_busy ? 0 : bench_fail("out of memory");
}

uint64_t traffic_take_place(struct traffic *t, uint32_t flight)
{
        uint64_t place = t->next_place;

        while (t->place_busy[place])
                place = (place + 1) % t->n_places;
        t->next_place = (place + 1) % t->n_places;
        t->place_busy[place] = true;
        t->place_of[flight] = place;
        return place;
}

void traffic_give_place(struct traffic *t, uint32_t flight)
{
        t->place_busy[t->place_of[flight]] = false;
}
