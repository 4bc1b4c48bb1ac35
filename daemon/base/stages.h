/* SPDX-License-Identifier: Apache-2.0 */
/* When the stages of requests and of I/O operations began and ended: a ring of the latest events,
 * and a histogram for each stage. Off unless an admin turns it on (io.stages). Loop thread.
 *
 * Parts that record ask stages_on() first, which is all that it costs while it is off. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/histogram.h"

/* Parts of the way of a request, in order. */
enum stage {
        STAGE_WAIT,    /* a batch: from when it could be read to its first key */
        STAGE_SUBMIT,  /* a batch: from there until all of its keys have been begun */
        STAGE_QUEUE,   /* an operation: from its submission until a worker begins it */
        STAGE_DEVICE,  /* a read, write or sync: with the device */
        STAGE_COMPUTE, /* a copy, or the checksum of what was read */
        STAGE_RETURN,  /* an operation: until the loop takes it back */
        STAGES
};

enum stages_kind { STAGES_BATCH, STAGES_OPERATION };

enum { STAGES_EVENTS = 1024, STAGES_STAMPS = 5 };

/* CLOCK_MONOTONIC in ns. Of a batch: when it could be read, its first key was begun, all of them
 * were, and its reply was given to the socket. Of an operation: when it was submitted, a worker
 * began it, the device was done, the worker was done, the loop took it back. */
struct stages_event {
        uint8_t kind;
        uint8_t op;      /* enum wire_op, or enum kio_op */
        bool background; /* an operation that no batch waits for: writes of zeros, scrubs */
        uint32_t keys;   /* of a batch */
        uint64_t bytes;  /* of an operation: that it moves ... */
        uint64_t chunks; /* ... and how many of them are bytes of chunks */
        uint64_t at_ns[STAGES_STAMPS];
};

struct stages {
        bool on;
        uint64_t n; /* events ever recorded; the latest STAGES_EVENTS are there */
        struct stages_event *events;
        struct histogram time[STAGES]; /* ns */
};

static inline bool stages_on(const struct stages *s)
{
        return __builtin_expect(s->on, false);
}

/* 0, -ENOMEM: it stays as it was. What was recorded stays until it is turned on again. */
int stages_set(struct stages *s, bool on);
void stages_fini(struct stages *s);

/* While it is on: takes the event in, and counts its stages. */
void stages_add(struct stages *s, const struct stages_event *event);
/* Number `i` of those that are there, the oldest first; NULL: there are no more. */
const struct stages_event *stages_event(const struct stages *s, uint64_t i);
