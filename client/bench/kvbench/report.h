/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the results of profile on standard output: tables like those of nixlbench, JSON (one
 * array, an object for each run), or CSV (a row for each side of each run). */
#pragma once

#include "profile.h"
#include "through.h"
#include "workload.h"

struct report_entry {
        const struct kvbench_workload *workload;
        const struct profile_job *job;
        struct profile_result *results; /* [0]: result of the requested side; [1]: that of RAW, if
                                           RAW ran for comparison. The report sorts their samples */
        unsigned n_results;
        const char *daemon;   /* "embedded" or "running"; NULL: none */
        const char *where;    /* socket and store of the daemon, or directory of RAW, for people */
        const char *io[2];    /* for each result: "io_uring, O_DIRECT" */
        const char *raw_note; /* why RAW was not run or deviates from the options, and how blocks in
                                 GPU memory deviate from the layout; NULL: none of them */
        const char *error;    /* reason of the failure, without results; NULL: the run succeeded */
        const struct through_gpu_options *gpu; /* blocks in GPU memory; NULL: in host memory */
        const struct through_gpu *gpu_counts;
        const char *gpu_name;
};

struct report {
        const struct kvbench_options *options;
        enum kvbench_format format;
        cJSON *array;
        bool begun;
};

void report_init(struct report *r, const struct kvbench_options *options);
void report_add(struct report *r, const struct report_entry *entry);
/* Ends the output. Returns an exit status. */
int report_end(struct report *r);
