/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that receive no signals, because the loop thread handles them. Only faults such as
 * SIGSEGV and SIGBUS reach the thread that causes them. */
#pragma once

#include <pthread.h>

/* Starts a thread that runs `run`, with a name of at most 15 characters. Returns 0 or -errno. */
int thread_start(pthread_t *ret, const char *name, void *(*run)(void *userdata), void *userdata);
