/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that receive no signals, because the loop thread handles them. */
#pragma once

#include <pthread.h>

/* Starts a thread with this name, of at most 15 characters, that receives no signals. Returns 0 or
 * -errno. */
int thread_start(pthread_t *ret, const char *name, void *(*run)(void *userdata), void *userdata);
