/* SPDX-License-Identifier: Apache-2.0 */
/* See stub-capture.h. */
#include "stub-capture.h"

#include <stddef.h>
#include <string.h>

#include "checked.h"

enum { MOST_CAPTURES = 4, FOREIGN = 1 };

/* Calls that no capture of another stream forbids. Every other call counts as potentially unsafe.
 */
static const char *const safe[] = {
        "cuMemcpyAsync",     "cuMemcpyBatchAsync",  "cuMemcpyBatchAsync_v2",
        "cuLaunchKernel",    "cuLaunchHostFunc",    "cuEventRecord",
        "cuStreamWaitEvent", "cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode",
};

static struct {
        cu_stream stream;
        unsigned thread;
        int mode;
        bool is_active, is_valid;
} captures[MOST_CAPTURES];

static unsigned last_thread = FOREIGN;
static _Thread_local unsigned this_thread; /* 0: it has no number yet */
static _Thread_local int mode;
static unsigned armed_at, calls;
static char foreign_stream; /* the handle is its address */

static unsigned thread_number(void)
{
        if (this_thread == 0)
                this_thread = ++last_thread;
        return this_thread;
}

static void begin(cu_stream stream, int capture_mode, unsigned thread)
{
        for (unsigned i = 0; i < MOST_CAPTURES; i++)
                if (!captures[i].is_active) {
                        captures[i].stream = stream;
                        captures[i].thread = thread;
                        captures[i].mode = capture_mode;
                        captures[i].is_active = captures[i].is_valid = true;
                        return;
                }
}

/* Returns whether the capture prohibits potentially unsafe calls of this thread. */
static bool forbids(unsigned i)
{
        if (!captures[i].is_active || mode == CU_CAPTURE_MODE_RELAXED)
                return false;
        if (captures[i].thread == thread_number())
                return captures[i].mode != CU_CAPTURE_MODE_RELAXED;
        return mode == CU_CAPTURE_MODE_GLOBAL && captures[i].mode == CU_CAPTURE_MODE_GLOBAL;
}

cu_result capture_check(const char *function)
{
        cu_result r = CU_OK;

        if (armed_at > 0 && ++calls == armed_at)
                begin((cu_stream)&foreign_stream, CU_CAPTURE_MODE_GLOBAL, FOREIGN);
        for (size_t i = 0; i < ARRAY_SIZE(safe); i++)
                if (strcmp(function, safe[i]) == 0)
                        return CU_OK;
        for (unsigned i = 0; i < MOST_CAPTURES; i++)
                if (forbids(i)) {
                        captures[i].is_valid = false;
                        r = CU_ERROR_CAPTURE_UNSUPPORTED;
                }
        return r;
}

cu_result capture_check_stream(cu_stream stream)
{
        bool is_legacy = (uintptr_t)stream <= 1;
        cu_result r = CU_OK;

        for (unsigned i = 0; i < MOST_CAPTURES; i++)
                if (captures[i].is_active && (is_legacy || captures[i].stream == stream)) {
                        captures[i].is_valid = false;
                        r = is_legacy ? CU_ERROR_CAPTURE_IMPLICIT : CU_ERROR_CAPTURE_ISOLATION;
                }
        return r;
}

cu_result capture_begin(cu_stream stream, int capture_mode)
{
        begin(stream, capture_mode, thread_number());
        return CU_OK;
}

cu_result capture_end(cu_stream stream)
{
        for (unsigned i = 0; i < MOST_CAPTURES; i++)
                if (captures[i].is_active && captures[i].stream == stream) {
                        captures[i].is_active = false;
                        return captures[i].is_valid ? CU_OK : CU_ERROR_CAPTURE_INVALIDATED;
                }
        return CU_ERROR_INVALID_VALUE;
}

bool capture_is_active(cu_stream stream)
{
        for (unsigned i = 0; i < MOST_CAPTURES; i++)
                if (captures[i].is_active && (!stream || captures[i].stream == stream))
                        return true;
        return false;
}

int capture_exchange_mode(int new_mode)
{
        int before = mode;

        mode = new_mode;
        return before;
}

int capture_mode(void)
{
        return mode;
}

void capture_arm(unsigned number)
{
        armed_at = number;
        calls = 0;
}

bool capture_disarm(unsigned *ret_calls)
{
        bool was_begun = capture_is_active((cu_stream)&foreign_stream);

        *ret_calls = calls;
        armed_at = 0;
        return !was_begun || capture_end((cu_stream)&foreign_stream) == CU_OK;
}

void capture_reset(void)
{
        memset(captures, 0, sizeof(captures));
        armed_at = 0;
}
