/* SPDX-License-Identifier: Apache-2.0 */
/* Reads block traces in the Mooncake format, a JSON object per line:
 *
 * {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [id, ...]}
 *
 * where an id stands for a block of tokens together with all tokens before it. Only `hash_ids`
 * is required. Other members and blank lines are ignored. The reader keeps one line at a time.
 * The reader refuses a malformed line, and a trace in units other than expected, with file, line
 * and reason, because results of a trace that is partly misread would be meaningless. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct trace;

enum trace_unit {
        TRACE_UNKNOWN, /* milliseconds; a timestamp with a fraction is refused */
        TRACE_MILLISECONDS,
        TRACE_SECONDS,
};

enum { TRACE_BLOCK_TOKENS = 512 };

struct trace_format {
        enum trace_unit unit;
        /* Number of tokens in a block. 0: TRACE_BLOCK_TOKENS, and the reader refuses a request
         * whose number of blocks does not fit its input_length. */
        uint64_t block_tokens;
};

struct trace_request {
        uint64_t timestamp_ms; /* not less than that of the line before; a line without a timestamp
                                  has that of the line before */
        uint64_t input_tokens, output_tokens; /* 0: the line does not have it */
        const uint64_t *ids; /* memory of the reader, valid until the next trace_next() or
                                trace_close(); may be NULL if `n_ids` is 0 */
        size_t n_ids;
};

enum { TRACE_ERROR_BYTES = 512 };

/* Opens a trace; "-" is standard input. Returns 0; -ENOMEM, which may leave `ret_error` untouched;
 * or another -errno with a message in `ret_error`. */
int trace_open(struct trace **ret, const char *path, const struct trace_format *format,
               char ret_error[static TRACE_ERROR_BYTES]);
struct trace *trace_close(struct trace *t);
/* Reads the next request. Returns 1; 0 at the end; -EBADMSG for a line that is malformed or does
 * not fit the format, or -EIO, with a message in `ret_error`; -ENOMEM, which may leave `ret_error`
 * untouched. */
int trace_next(struct trace *t, struct trace_request *ret,
               char ret_error[static TRACE_ERROR_BYTES]);
