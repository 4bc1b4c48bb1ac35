/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of io/. Private to io/. */
#pragma once

#include <pthread.h>

/* Runs `run` on a thread of this name (15 characters at most) to which no signal is sent. 0,
 * -errno. */
int thread_start(pthread_t *ret, const char *name, void *(*run)(void *userdata), void *userdata);
