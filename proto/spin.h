/* SPDX-License-Identifier: Apache-2.0 */
/* Polling for a moment before sleeping. Waking a thread costs its waker microseconds, and the
 * thread itself tens of them: a thread whose event comes sooner than that had better stay awake.
 * Each wait polls for at most the limit, and does not poll while recent waits have been longer. An
 * idle thread and one that waits for a disk therefore sleep; with the long limit, a thread polls
 * for a fast disk, too. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
        SPIN_LIMIT_NS = 50 * 1000,
        SPIN_LONG_LIMIT_NS = 2 * 1000 * 1000,
        SPIN_CLIENT_NS = 10 * 1000 * 1000, /* the daemon's threads poll for so long after a request:
                                              not for what it does by itself */
        SPIN_LEAST_CPUS = 4, /* with fewer it takes the processor from what it waits for */
};

struct spin {
        uint32_t limit_ns;   /* 0: never */
        uint32_t typical_ns; /* typical length of recent waits */
};

/* Processors that this process may use. */
unsigned spin_cpus(void);
/* SPIN_LIMIT_NS; 0 where this process may use fewer than SPIN_LEAST_CPUS processors. */
uint32_t spin_limit_of_host(void);
/* Of a client that polls, to whose waits those of the daemon's threads add up: as long as these,
 * within the two limits. */
uint32_t spin_limit_of_client(uint32_t daemon_us);

/* Of the wait that begins: how long to poll. 0: sleep at once. */
static inline uint64_t spin_budget(const struct spin *s)
{
        return s->typical_ns <= s->limit_ns ? s->limit_ns : 0;
}

/* Likewise of a thread of the daemon, which works for a client since `client_ns` or for itself. */
static inline uint64_t spin_budget_of_daemon(const struct spin *s, uint64_t client_ns,
                                             uint64_t now_ns)
{
        return now_ns <= client_ns + SPIN_CLIENT_NS ? spin_budget(s) : 0;
}

/* Until when a wait polls that began at `began_ns`: never past the deadline of what waits with it,
 * `wake_ns`; 0: there is none. */
static inline uint64_t spin_end(uint64_t began_ns, uint64_t budget_ns, uint64_t wake_ns)
{
        uint64_t end_ns = began_ns + budget_ns;

        return wake_ns > 0 && wake_ns < end_ns ? wake_ns : end_ns;
}

/* A wait has lasted so long. A long one counts no more than four times the limit: a dozen short
 * ones, and it polls again. */
static inline void spin_learn(struct spin *s, uint64_t waited_ns)
{
        uint64_t most = UINT64_C(4) * s->limit_ns, ns = waited_ns < most ? waited_ns : most;

        s->typical_ns = (uint32_t)((UINT64_C(7) * s->typical_ns + ns) / 8);
}

static inline void spin_pause(void)
{
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
}
