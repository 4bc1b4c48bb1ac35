/* SPDX-License-Identifier: Apache-2.0 */
/* What profile prints on standard output: tables in the manner of nixlbench, JSON (one array, an
 * object for each run), or CSV (a row for each side of each run). */
#pragma once

#include "profile.h"
#include "through.h"
#include "workload.h"

struct report_entry {
        const struct kvbench_workload *workload;
        const struct profile_job *job;
        const struct profile_result *results; /* the side that was asked for, then RAW beside it */
        unsigned n_results;
        const char *daemon;   /* "embedded", "running"; NULL: none */
        const char *where;    /* its socket and store, or RAW's directory: for people */
        const char *io[2];    /* of each result: "io_uring, O_DIRECT" */
        const char *raw_note; /* why RAW is missing, or what is odd about it; NULL: nothing */
        const char *error;    /* then there are no results */
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
/* An exit status. */
int report_end(struct report *r);
