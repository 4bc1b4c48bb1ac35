/* SPDX-License-Identifier: Apache-2.0 */
/* Reads block traces in the Mooncake format, a JSON object per line:
 *
 *     {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [id, ...]}
 *
 * An id stands for a block of 512 tokens together with everything before it. Only `hash_ids` is
 * required; other members and blank lines are ignored. One line is read and kept at a time. An
 * invalid line ends the reading with file, line and reason, because a partially understood trace
 * would give wrong results. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct trace;

struct trace_request {
        uint64_t timestamp_ms;                /* without one: that of the previous line */
        uint64_t input_tokens, output_tokens; /* 0: not given */
        const uint64_t *ids;                  /* owned by the reader, valid until the next call */
        size_t n_ids;
};

enum { TRACE_ERROR_BYTES = 512 };

/* Opens a trace; "-" is standard input. Returns 0 or -errno, with a message in `ret_error`. */
int trace_open(struct trace **ret, const char *path, char ret_error[static TRACE_ERROR_BYTES]);
struct trace *trace_close(struct trace *t);
/* Reads the next request. Returns 1; 0 at the end; -EBADMSG for a malformed line; -errno. */
int trace_next(struct trace *t, struct trace_request *ret,
               char ret_error[static TRACE_ERROR_BYTES]);
