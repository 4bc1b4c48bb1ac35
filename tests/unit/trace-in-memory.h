/* SPDX-License-Identifier: Apache-2.0 */
/* Builds one workload in memory, request by request. Each test program that includes this has a
 * workload and a simulation of its own. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "simulate.h"

enum { MOST_REQUESTS = 400, MOST_IDS = 4000, END = -1 };

static struct workload_request requests[MOST_REQUESTS];
static uint64_t ids[MOST_IDS];
static struct workload workload;
static struct simulation simulation;

static void begin(void)
{
        workload = (struct workload){ .kind = "trace", .requests = requests, .ids = ids };
}

/* Adds a request for blocks up to END. */
static void request(uint64_t ms, const int64_t *blocks)
{
        size_t first = workload.n_ids;

        assert_true(workload.n_requests < MOST_REQUESTS);
        for (; *blocks != END; blocks++) {
                assert_true(workload.n_ids < MOST_IDS);
                ids[workload.n_ids++] = (uint64_t)*blocks;
        }
        requests[workload.n_requests++] = (struct workload_request){
                .timestamp_ms = ms, .first_id = first, .n_ids = workload.n_ids - first
        };
}

#define REQUEST(ms, ...) request((ms), (const int64_t[]){ __VA_ARGS__, END })
