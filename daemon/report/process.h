/* SPDX-License-Identifier: Apache-2.0 */
/* What the process uses, as the kernel counts it: the process_* metrics. Loop thread. */
#pragma once

#include <stdint.h>

struct process_stats {
        uint64_t cpu_ns; /* user and system, all threads */
        uint64_t resident_bytes, virtual_bytes;
        uint64_t open_fds;
        uint64_t max_fds; /* UINT64_MAX: no limit */
};

/* 0 where the kernel does not say. */
void process_get_stats(struct process_stats *ret);
