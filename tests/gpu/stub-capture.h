/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of CUDA graphs in the stub driver: which calls a capture forbids, by the CUDA Driver API
 * reference manual (cuThreadExchangeStreamCaptureMode) and by what PyTorch's and NVIDIA's trackers
 * report. All functions are called with the stub's lock held. */
#pragma once

#include <stdbool.h>

#include "gpu/cuda-api.h"

/* Is this call allowed for this thread now? CU_OK; or the error by which the real driver refuses
 * it, and then the captures that forbid it are invalid from now on. */
cu_result capture_check(const char *function);
/* May work be put into this stream? The same for calls that name it. */
cu_result capture_check_stream(cu_stream stream);

cu_result capture_begin(cu_stream stream, int mode);
/* CU_OK; CU_ERROR_CAPTURE_INVALIDATED: the capture had become invalid; it is over anyway. */
cu_result capture_end(cu_stream stream);
bool capture_is_active(cu_stream stream); /* NULL: of any stream */
/* Sets the calling thread's mode. Returns the mode before. */
int capture_exchange_mode(int mode);
int capture_mode(void);

/* Lets another thread begin a global capture of a stream of its own before the call of that number,
 * counted from now on from 1. */
void capture_arm(unsigned number);
/* Ends that capture. Returns whether it is valid, or was never begun; *ret_calls: calls since it
 * was armed. */
bool capture_disarm(unsigned *ret_calls);
/* Ends all captures. */
void capture_reset(void);
