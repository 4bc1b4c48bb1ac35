/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that only kvcache-bench makes: requests that are reaped, buffers, counted transfers and
 * benchmark sessions. Every request is answered when it is submitted. Any thread; a handle belongs
 * to one at a time. */
#pragma once

#include "fake-kvcache.h"

struct fake_bench {
        /* set by the test */
        const char *session; /* kvcache_bench_session() answers it; NULL: session_error */
        int session_error;   /* -errno; 0: -ESRCH */

        /* recorded */
        uint64_t transfers; /* copies that clients have counted */
        unsigned action, flags;
        char name[80]; /* "": the active session */
};
extern struct fake_bench fake_bench;

/* Forgets everything and calls fake_reset(). */
void fake_bench_reset(void);
