/* SPDX-License-Identifier: Apache-2.0 */
/* The workload of a replay: requests in order of time, each a chain of block ids, root first. A
 * workload comes from a trace file or from the generator of chat sessions, and is held in memory
 * as a whole, so that a malformed trace is refused before any request is sent. A large
 * trace takes 8 bytes for each id and 32 for each request, or up to twice that because its arrays
 * grow by doubling. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kvcache.h"
#include "trace.h"

enum { WORKLOAD_ERROR_BYTES = 512 };

struct workload_request {
        uint64_t timestamp_ms;
        uint64_t input_tokens; /* 0: not known */
        size_t first_id;       /* index in workload.ids */
        size_t n_ids;
};

struct workload {
        const char *kind; /* "trace" or "chat": part of the input of a key */
        uint64_t seed;
        uint64_t block_tokens;
        struct workload_request *requests;
        size_t n_requests;
        uint64_t *ids;
        size_t n_ids;
        size_t requests_room, ids_room;
};

struct workload *workload_free(struct workload *w);

/* Loads the first `max_requests` requests of a trace, or all if 0. Returns 0; -EBADMSG if the trace
 * is malformed or does not fit `format`; -ENODATA if it has no request; or another -errno: of
 * opening or reading the file, or -ENOMEM. Sets `ret_error` except perhaps with -ENOMEM. */
int workload_load(struct workload **ret, const char *path, const struct trace_format *format,
                  uint64_t max_requests, uint64_t seed,
                  char ret_error[static WORKLOAD_ERROR_BYTES]);

/* Generates chat sessions. Sessions arrive at random, begin with one of a few shared system prompts
 * of different popularity, last for one or more turns, and pause between turns. Each request
 * repeats the whole history of its session; some users paste a document. Requests contain only full
 * blocks of a prompt. The same seed gives the same workload. Returns 0 or -ENOMEM. */
int workload_chat(struct workload **ret, uint64_t requests, uint64_t seed);

/* Writes the workload as a trace, with these times of its requests, which may be out of order:
 * nanoseconds plus 1, or 0 for a request that is left out. Returns 0 or -ENOMEM; write errors stay
 * in `out`. */
int workload_write(const struct workload *w, const uint64_t *times_ns, FILE *out);

/* Counts the distinct ids. Returns 0 or -ENOMEM. */
int workload_distinct(const struct workload *w, size_t *ret);

/* Computes the key of a block: SHA-256 over kind, seed and id. */
void workload_key(const struct workload *w, uint64_t id, struct kvcache_key *ret);
