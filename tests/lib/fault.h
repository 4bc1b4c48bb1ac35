/* SPDX-License-Identifier: Apache-2.0 */
/* A backend that wraps another and makes operations fail according to a plan: errors, short
 * transfers, late ones, and operations that never complete. One plan for the whole process; any
 * thread may set it at any time. For kio_start_with(). */
#pragma once

#include "io/backend.h"
#include "io/io.h"

enum fault_kind {
        FAULT_ERROR, /* fails with `error`, and moves nothing */
        FAULT_LIES,  /* is done, but reports `error` */
        FAULT_TORN,  /* is half done, and fails with `error` */
        FAULT_SHORT, /* moves `short_bytes` of the request, half if 0, and reports that */
        FAULT_LATE,  /* reaches the device `late_ns` later */
        FAULT_NEVER, /* is held until fault_release(); fails then if `error` is set */
};

struct fault_plan {
        unsigned ops; /* 1u << KIO_READ | ...; 0: every operation on the device */
        bool one_fd;  /* only operations on `fd` */
        int fd;
        unsigned volume; /* only operations of this volume; 0: any */
        enum fault_kind kind;
        int error;
        uint64_t short_bytes;
        uint64_t late_ns;

        /* Selects among matching operations: `count` of them (0: one) from number `first` on,
         * counted from 1; or, if first is 0, each with probability 1 / `one_in`, drawn from
         * `seed`. */
        uint64_t first, count;
        uint32_t one_in;
        uint64_t seed;
        /* Replaces the selection: returns whether an operation fails, and sets `kind` and its
         * parameters. On any thread. */
        bool (*choose)(const struct kio_request *req, struct fault_plan *plan);
};

#define FAULT_FOR_EVER UINT64_MAX

/* Returns the wrapper, valid until the next call. `inner` is used by queues opened later. */
const struct kio_backend *fault_wrap(const struct kio_backend *inner);

/* Sets the plan, and resets its counters. NULL: no faults. */
void fault_set(const struct fault_plan *plan);
/* Passes operations held by FAULT_NEVER and FAULT_LATE to the device. kio_stop() waits for them, so
 * call this first. */
void fault_release(void);
/* While `error` is not 0, entering any queue fails with it and nothing completes. */
void fault_break_submit(int error);
/* Does the same to the queue of one worker only, until fault_break_submit(0). */
void fault_break_submit_of(unsigned worker, int error);

/* Holds the workers. fault_gate_close() returns when every worker waits at the gate before its
 * queue; it takes all requests submitted until fault_gate_open() together. Only while all workers
 * run. */
void fault_gate_close(void);
void fault_gate_open(void);

uint64_t fault_matched(void);          /* matching operations */
uint64_t fault_hits(void);             /* operations that were made to fail */
unsigned fault_first_submission(void); /* operations of the first one since the last fault_set() */
unsigned fault_most_in_flight(void);   /* maximum of any queue since the last fault_set() */
unsigned fault_most_in_flight_of(enum kio_class class); /* maximum for one class */
