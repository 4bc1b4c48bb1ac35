/* SPDX-License-Identifier: Apache-2.0 */
/* Interprets answers of S3 as results of backend.h. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "remote/backend.h"

/* Returns the result for an HTTP status. `body` is the NUL-terminated beginning of an error's body.
 * `bucket` is named in messages. `ret_error` may get a sentence, which contains no more of the
 * answer than its status and error code, in letters and digits. */
int s3_answer(enum backend_op_kind kind, long status, const char *body, const char *bucket,
              char ret_error[static 120]);
/* Returns whether the server does not seem to support If-None-Match. */
bool s3_answer_refuses_condition(long status, const char *body);
/* Returns whether the body begins like an S3 error, whatever the status. */
bool s3_answer_is_error(const char *body, size_t n);
