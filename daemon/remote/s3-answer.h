/* SPDX-License-Identifier: Apache-2.0 */
/* What an answer of S3 means, as backend.h has it. A function of its arguments. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "remote/backend.h"

/* `body`: the beginning of an answer that is an error, with a NUL. `ret_error` may get a sentence:
 * of the server's, only the code is in it, which is letters and digits. */
int s3_answer(enum backend_op_kind kind, long status, const char *body, const char *bucket,
              char ret_error[static 120]);
/* The server may not know If-None-Match. */
bool s3_answer_refuses_condition(long status, const char *body);
/* Does it begin as S3's errors do, whatever its status? */
bool s3_answer_is_error(const char *body, size_t n);
