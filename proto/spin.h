/* SPDX-License-Identifier: Apache-2.0 */
/* Polling for a moment before sleeping. Waking a thread costs the waking thread a few
 * microseconds and the woken thread tens of microseconds, so a thread whose event arrives within
 * that time should stay awake. Each wait polls for at most the limit, and does not poll if
 * recent waits were longer than the limit. Idle threads and threads that wait for a slow disk
 * therefore sleep; with the long limit, a thread also polls for a fast disk. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
        SPIN_LIMIT_NS = 50 * 1000,
        SPIN_LONG_LIMIT_NS = 2 * 1000 * 1000,
        SPIN_CLIENT_NS = 10 * 1000 * 1000, /* time after a client's request for which the daemon's
                                              threads poll; they do not poll for background work */
        SPIN_LEAST_CPUS = 4, /* number of processors below which clients, and daemons with io.spin:
                                auto, do not poll, because polling would take the processor from the
                                thread that it waits for */
};

struct spin {
        uint32_t limit_ns;   /* 0: never poll */
        uint32_t typical_ns; /* moving average of the lengths of recent waits */
};

/* Returns the number of processors that this process may use. */
unsigned spin_cpus(void);
/* Returns SPIN_LIMIT_NS, or 0 if this process may use fewer than SPIN_LEAST_CPUS processors. */
uint32_t spin_limit_of_host(void);
/* Returns the limit of a client of a daemon that polls for `daemon_us`: the same time, but at least
 * SPIN_LIMIT_NS and at most SPIN_LONG_LIMIT_NS. A client's wait includes the waits of the daemon's
 * threads. */
uint32_t spin_limit_of_client(uint32_t daemon_us);

/* Returns how long the next wait polls, in ns; 0: sleep at once. */
static inline uint64_t spin_budget(const struct spin *s)
{
        return s->typical_ns <= s->limit_ns ? s->limit_ns : 0;
}

/* Returns how long the next wait of a thread of the daemon polls, in ns; 0: sleep at once.
 * `client_ns`: time of the last client request. */
static inline uint64_t spin_budget_of_daemon(const struct spin *s, uint64_t client_ns,
                                             uint64_t now_ns)
{
        return now_ns <= client_ns + SPIN_CLIENT_NS ? spin_budget(s) : 0;
}

/* Returns when polling that began at `began_ns` ends: no later than `wake_ns`, the thread's next
 * deadline; 0: there is none. */
static inline uint64_t spin_end(uint64_t began_ns, uint64_t budget_ns, uint64_t wake_ns)
{
        uint64_t end_ns = began_ns + budget_ns;

        return wake_ns > 0 && wake_ns < end_ns ? wake_ns : end_ns;
}

/* Updates the typical wait with one that lasted `waited_ns`. A long wait counts as four times the
 * limit at most, so that polling resumes after a dozen short waits. */
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
