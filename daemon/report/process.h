/* SPDX-License-Identifier: Apache-2.0 */
/* Resources used by the process, as counted by the kernel: the process_* metrics. Loop thread. */
#pragma once

#include <stdint.h>

struct process_stats {
        uint64_t cpu_ns; /* user and system, all threads */
        uint64_t resident_bytes, virtual_bytes;
        uint64_t open_fds;
        uint64_t max_fds; /* limit of open descriptors; UINT64_MAX: none */
};

/* Fills *ret; a number that the kernel does not provide is 0. */
void process_get_stats(struct process_stats *ret);
