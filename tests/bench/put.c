/* SPDX-License-Identifier: Apache-2.0 */
/* Measures puts. Each one stores a new chunk, whose contents derive from its number. */
#include "traffic.h"

static int put_submit(struct traffic *t, uint32_t flight)
{
        const struct bench_options *o = t->o;
        struct flight *f = &t->flights[flight];
        uint64_t place = traffic_take_place(t, flight);

        for (uint64_t i = 0; i < o->batch; i++) {
                uint8_t *data = t->places[place] + i * o->size;

                content_stamp(data, o->size, t->next_number, place * o->batch + i);
                f->entries[i] = (struct kvcache_entry){ .key = bench_key(o, t->next_number),
                                                        .data = data,
                                                        .length = o->size };
                t->next_number++;
        }
        struct kvcache_request request;

        kvcache_prep_put(&request, t->namespace_handle, f->entries, o->batch, o->ack, f->results);
        request.timeout_ms = TRAFFIC_STUCK_MS;
        request.user_data = flight;
        return kvcache_submit(t->kv, &request);
}

static void put_take(struct traffic *t, uint32_t flight)
{
        const struct flight *f = &t->flights[flight];

        traffic_give_place(t, flight);
        for (uint64_t i = 0; i < t->o->batch; i++) {
                if (f->results[i].status == KVCACHE_OK) {
                        t->counts.keys++;
                        t->counts.bytes += t->o->size;
                } else {
                        traffic_count_failure(&t->counts, f->results[i].status);
                }
        }
}

int mode_put(const struct bench_options *o)
{
        struct bench_step step;
        struct traffic t;
        int r;

        r = traffic_init(&t, o, false);
        if (r == 0)
                r = traffic_make_places(&t);
        t.next_number = o->first;
        while (r == 0 && bench_next(o, &step))
                r = traffic_slice(&t, &step, put_submit, put_take);
        traffic_fini(&t);
        return r;
}
