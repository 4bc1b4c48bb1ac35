/* SPDX-License-Identifier: Apache-2.0 */
/* Polling before sleeping; see spin.h. */
#include "spin.h"

#include <sched.h>

unsigned spin_cpus(void)
{
        cpu_set_t set;

        /* The call fails on hosts with more processors than a cpu_set_t holds. */
        return sched_getaffinity(0, sizeof(set), &set) == 0 ? (unsigned)CPU_COUNT(&set)
                                                            : CPU_SETSIZE;
}

uint32_t spin_limit_of_host(void)
{
        return spin_cpus() < SPIN_LEAST_CPUS ? 0 : SPIN_LIMIT_NS;
}

uint32_t spin_limit_of_client(uint32_t daemon_us)
{
        uint64_t ns = UINT64_C(1000) * daemon_us;

        if (ns < SPIN_LIMIT_NS)
                return SPIN_LIMIT_NS;
        return ns < SPIN_LONG_LIMIT_NS ? (uint32_t)ns : SPIN_LONG_LIMIT_NS;
}
