/* SPDX-License-Identifier: Apache-2.0 */
/* A backend that wraps another and makes its operations fail by plan: errors, short transfers, late
 * ones, and such that never come back. One plan for the whole process; any thread may set it at any
 * time. For kio_start_with(). */
#pragma once

#include "io/backend.h"
#include "io/io.h"

enum fault_kind {
        FAULT_ERROR, /* fails with `error`, moves nothing */
        FAULT_LIES,  /* is done, and fails with `error` all the same */
        FAULT_TORN,  /* half of it is done, and it fails with `error` */
        FAULT_SHORT, /* moves `short_bytes` of what was asked, half if 0, and says so */
        FAULT_LATE,  /* reaches the device `late_ns` later */
        FAULT_NEVER, /* is held until fault_release() */
};

struct fault_plan {
        unsigned ops; /* 1u << KIO_READ | ...; 0: every operation of the device */
        bool one_fd;  /* only those on `fd` */
        int fd;
        unsigned volume; /* only those of this volume; 0: of any */
        enum fault_kind kind;
        int error;
        uint64_t short_bytes;
        uint64_t late_ns;

        /* Which of those that match: `count` of them (0: one) from the `first` on, the first being
         * 1; or, where first is 0, each with a chance of one in `one_in`, drawn from `seed`. */
        uint64_t first, count;
        uint32_t one_in;
        uint64_t seed;
        /* Instead of those: fills in `kind` and what belongs to it. On any thread. */
        bool (*choose)(const struct kio_request *req, struct fault_plan *plan);
};

#define FAULT_FOR_EVER UINT64_MAX

/* The wrapper; valid until the next call. `inner` is used by queues opened from now on. */
const struct kio_backend *fault_wrap(const struct kio_backend *inner);

/* From now on; counts from zero again. NULL: no faults. */
void fault_set(const struct fault_plan *plan);
/* What FAULT_NEVER and FAULT_LATE hold goes to the device. kio_stop() waits for it, so call this
 * before. */
void fault_release(void);
/* While `error` is not 0, entering any queue fails with it and nothing comes back. */
void fault_break_submit(int error);

/* Holds the workers: close() returns when every queue's worker stands at the gate, on its way into
 * the queue; what is submitted until open() it takes in together. Only while all workers run. */
void fault_gate_close(void);
void fault_gate_open(void);

uint64_t fault_matched(void);        /* operations that the plan was asked about and that matched */
uint64_t fault_hits(void);           /* those that were made to fail */
unsigned fault_most_in_flight(void); /* of any one queue, since the last fault_set() */
unsigned fault_most_in_flight_of(enum kio_class class); /* likewise */
