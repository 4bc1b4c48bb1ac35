/* SPDX-License-Identifier: Apache-2.0 */
/* See spin.h. */
#include "spin.h"

#include <sched.h>

uint32_t spin_limit_of_host(void)
{
        cpu_set_t set;

        /* It fails where there are more processors than a set holds. */
        if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) < SPIN_LEAST_CPUS)
                return 0;
        return SPIN_LIMIT_NS;
}
