/* SPDX-License-Identifier: Apache-2.0 */
/* Records when the stages of requests and I/O operations began and ended: a ring of the latest
 * events, and a histogram per stage. Off unless an admin turns it on (io.stages). Loop thread.
 *
 * Callers check stages_on() first, which is the only cost while recording is off. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/histogram.h"

/* Stages in order: of a batch, then of an I/O operation. */
enum stage {
        STAGE_WAIT,    /* batch: from the time at which the message could be read to the start of
                        * its first key */
        STAGE_SUBMIT,  /* batch: from the start of its first key until all its keys have been
                        * started */
        STAGE_QUEUE,   /* operation: from its submission until a worker begins it */
        STAGE_DEVICE,  /* read, write or sync: at the device */
        STAGE_COMPUTE, /* operation: a worker copies, or computes the checksum of a read */
        STAGE_RETURN,  /* operation: from the end of the worker's part until the loop reaps it */
        STAGES
};

enum stages_kind { STAGES_BATCH, STAGES_OPERATION };

enum { STAGES_EVENTS = 1024, STAGES_STAMPS = 5 };

/* An event. Times are CLOCK_MONOTONIC in ns. For a batch: when it could be read, its first key was
 * started, all keys were started, and the reply was passed to the socket. For an operation: when it
 * was submitted, a worker began it, the device finished, the worker finished, and the loop reaped
 * it. */
struct stages_event {
        uint8_t kind;
        uint8_t op;      /* enum wire_op or enum kio_op */
        bool background; /* operation that no batch waits for, such as writing zeros or scrubbing */
        uint32_t keys;   /* batch: number of keys */
        uint64_t bytes;  /* operation: its length in bytes, with padding; 0 for a sync */
        uint64_t chunks; /* operation: the part of `bytes` that is payload of chunks */
        uint64_t at_ns[STAGES_STAMPS];
};

struct stages {
        bool on;
        uint64_t n; /* events recorded since recording was last turned on; the latest STAGES_EVENTS
                     * are kept */
        struct stages_event *events;
        struct histogram time[STAGES]; /* ns in each stage, of all events recorded since startup */
};

static inline bool stages_on(const struct stages *s)
{
        return __builtin_expect(s->on, false);
}

/* Turns recording on or off. Returns 0, or -ENOMEM without a change. Recorded events stay until
 * recording is turned on again. */
int stages_set(struct stages *s, bool on);
void stages_fini(struct stages *s);

/* Records an event and counts its stages. Only while recording is on. */
void stages_add(struct stages *s, const struct stages_event *event);
/* Returns the i-th event that is kept, counted from 0 at the oldest, or NULL if fewer are kept. */
const struct stages_event *stages_event(const struct stages *s, uint64_t i);
