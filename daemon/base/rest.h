/* SPDX-License-Identifier: Apache-2.0 */
/* Rests between stretches of the event loop's work for which no client waits, such as the work that
 * an ended session leaves. The kernel may let a client that has received its reply wait for some
 * milliseconds until a loop that does not sleep leaves the processor. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
        REST_STRETCH_NS = 250 * 1000, /* length of a stretch of work without a rest */
        REST_NS = 750 * 1000,         /* length of a rest that no event ends */
};

struct rest {
        uint64_t began_ns; /* time at which the current stretch began; 0: there is none */
};

/* Ends an iteration of the loop that has nothing else to continue. Returns the time until which the
 * loop rests, if there is such work and its stretch has ended; 0 if the loop need not rest. */
static inline uint64_t rest_until(struct rest *r, bool is_there, uint64_t now_ns)
{
        if (is_there && r->began_ns == 0)
                r->began_ns = now_ns;
        if (is_there && now_ns - r->began_ns < REST_STRETCH_NS)
                return 0;
        r->began_ns = 0;
        return is_there ? now_ns + REST_NS : 0;
}
