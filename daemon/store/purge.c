/* SPDX-License-Identifier: Apache-2.0 */
/* Removes purged chunks from the indexes: one step of one volume in each iteration of the loop,
 * with the volumes in turn. volume/purge.c implements the step.
 *
 * Loop thread. While steps are left, an empty operation is in flight, whose completion makes the
 * loop iterate. Once the store stops, that completion runs the next step itself. A volume is not
 * closed before its sweeps have ended. */
#include "base/clock.h"
#include "base/histogram.h"
#include "store/internal.h"

static int do_nothing(struct kio_request *req)
{
        return 0;
}

static void on_step(struct kio_request *req)
{
        struct store *s = container_of(req, struct store, sweep_io);

        s->sweeping = false;
        if (s->stopping) { /* store_iterate() is no longer called */
                store_sweep(s);
                store_nudge(s);
        }
}

void store_sweep(struct store *s)
{
        bool stepped = false, more = false;
        uint64_t began_ns;

        if (s->sweeping)
                return;
        began_ns = clock_mono_ns();
        for (unsigned n = 0; n < s->n_volumes; n++) {
                unsigned i = (s->sweep_volume + n) % s->n_volumes;

                if (!member_has_volume(s, i) || !volume_is_sweeping(s->volumes[i].volume))
                        continue;
                if (stepped) {
                        s->sweep_volume = i;
                        more = true;
                        break;
                }
                stepped = true;
                more = volume_sweep(s->volumes[i].volume);
                volume_progress(s->volumes[i].volume);
        }
        if (stepped && s->sweep_times)
                histogram_add(s->sweep_times, clock_mono_ns() - began_ns);
        if (!more)
                return;
        s->sweeping = true;
        s->sweep_io = (struct kio_request){
                .op = KIO_CALL, /* .volume is not set, because the call must not wait behind a
                                   device's operations */
                .class = KIO_CLASS_GET,
                .call = do_nothing,
                .complete = on_step,
        };
        list_init(&s->sweep_io.node);
        kio_submit(s->io, &s->sweep_io, 0);
        if (s->stopping)
                kio_flush(s->io);
}

void store_time_sweeps(struct store *s, struct histogram *times)
{
        s->sweep_times = times;
}
