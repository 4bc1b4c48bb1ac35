/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one workload at one block size and one batch size, from finding a daemon to the report. */
#pragma once

#include <stdatomic.h>

#include "report.h"
#include "workload.h"

/* Runs a workload with `n_blocks` blocks of `io_size` bytes, and adds the results to `report`.
 * Returns an exit status, after reporting a failure. */
int profile_job_run(struct ctl *ctl, const struct kvbench_options *options,
                    const struct kvbench_workload *w, struct report *report, uint64_t io_size,
                    uint64_t n_blocks, const atomic_int *interrupted);
