/* SPDX-License-Identifier: Apache-2.0 */
/* Captures of CUDA graphs in the stub driver: which calls a capture forbids, by the CUDA Driver API
 * reference manual (cuThreadExchangeStreamCaptureMode) and by what PyTorch's and NVIDIA's trackers
 * report. All functions are called with the stub's lock held. */
#pragma once

#include <stdbool.h>

#include "gpu/cuda-api.h"

/* Returns CU_OK if this thread may make the call now. Otherwise returns the error of the real
 * driver, and invalidates the captures that forbid the call. */
cu_result capture_check(const char *function);
/* Does the same for a call that puts work into this stream. */
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
