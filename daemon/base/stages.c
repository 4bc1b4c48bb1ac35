/* SPDX-License-Identifier: Apache-2.0 */
/* Implements stages.h. Owns the events, 64 KiB, which are allocated when recording is first turned
 * on. */
#include "base/stages.h"

#include <errno.h>
#include <stdlib.h>

#include "checked.h"

int stages_set(struct stages *s, bool on)
{
        if (on && !s->on) {
                if (!s->events)
                        s->events = calloc(STAGES_EVENTS, sizeof(*s->events));
                if (!s->events)
                        return -ENOMEM;
                s->n = 0;
        }
        s->on = on;
        return 0;
}

void stages_fini(struct stages *s)
{
        free(s->events);
        s->events = NULL;
        s->on = false;
}

/* Adds a stage's time, or 0 if the times are out of order, as times from different threads may be
 * slightly. */
static void add_time(struct stages *s, enum stage stage, uint64_t from, uint64_t to)
{
        histogram_add(&s->time[stage], to > from ? to - from : 0);
}

void stages_add(struct stages *s, const struct stages_event *event)
{
        const uint64_t *at = event->at_ns;

        s->events[s->n++ % STAGES_EVENTS] = *event;
        if (event->kind == STAGES_BATCH) {
                add_time(s, STAGE_WAIT, at[0], at[1]);
                add_time(s, STAGE_SUBMIT, at[1], at[2]);
                return;
        }
        add_time(s, STAGE_QUEUE, at[0], at[1]);
        if (at[2] > at[1])
                add_time(s, STAGE_DEVICE, at[1], at[2]);
        if (at[3] > at[2])
                add_time(s, STAGE_COMPUTE, at[2], at[3]);
        add_time(s, STAGE_RETURN, at[3], at[4]);
}

const struct stages_event *stages_event(const struct stages *s, uint64_t i)
{
        uint64_t there = MIN(s->n, (uint64_t)STAGES_EVENTS);

        return i < there ? &s->events[(s->n - there + i) % STAGES_EVENTS] : NULL;
}
