/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that no signal reaches: they are handled on the loop thread. */
#pragma once

#include <pthread.h>

/* Runs `run` on a thread of this name (15 characters at most) to which no signal is sent. 0,
 * -errno. */
int thread_start(pthread_t *ret, const char *name, void *(*run)(void *userdata), void *userdata);
