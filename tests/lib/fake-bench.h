/* SPDX-License-Identifier: Apache-2.0 */
/* Fakes the calls that only kvcache-bench makes: reaped requests, buffers, counted transfers and
 * benchmark sessions. Every request completes when it is submitted. Any thread; a handle belongs to
 * one at a time. */
#pragma once

#include "fake-kvcache.h"

struct fake_bench {
        /* Set by the test: */
        const char *session; /* result of kvcache_bench_session(); NULL: it fails with
                                session_error */
        int session_error;   /* -errno; 0: -ESRCH */

        /* Recorded: */
        uint64_t transfers; /* copies that clients have counted */
        unsigned action, flags;
        char name[80]; /* "": the active session */
};
extern struct fake_bench fake_bench;

/* Resets this structure, and calls fake_reset(). */
void fake_bench_reset(void);
