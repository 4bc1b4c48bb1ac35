/* SPDX-License-Identifier: Apache-2.0 */
/* Reader of block traces in the Mooncake form: a JSON object a line,
 *
 *     {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [id, ...]}
 *
 * where an id stands for a block of 512 tokens together with all that is before it. Only `hash_ids`
 * must be there; other members are ignored, and so are blank lines. Reads a line at a time and
 * keeps one line. A line that is not as it should be ends the reading with file, line and reason: a
 * trace that is half understood measures nothing. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct trace;

struct trace_request {
        uint64_t timestamp_ms;                /* without one: that of the line before */
        uint64_t input_tokens, output_tokens; /* 0: not said */
        const uint64_t *ids;                  /* the reader's, until the next call */
        size_t n_ids;
};

enum { TRACE_ERROR_BYTES = 512 };

/* "-" is standard input. 0, -errno; ret_error gets a sentence. */
int trace_open(struct trace **ret, const char *path, char ret_error[static TRACE_ERROR_BYTES]);
struct trace *trace_close(struct trace *t);
/* 1: a request; 0: the end; -EBADMSG: a malformed line; -errno. */
int trace_next(struct trace *t, struct trace_request *ret,
               char ret_error[static TRACE_ERROR_BYTES]);
