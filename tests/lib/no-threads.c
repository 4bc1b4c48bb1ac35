/* SPDX-License-Identifier: Apache-2.0 */
/* Ends a test program that begins a thread although it says that it has only one. Linked with
 * --wrap=pthread_create. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *userdata);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                          void *(*start)(void *), void *userdata)
{
        fputs("this program begins a thread: link it without no-threads.c in "
              "tests/unit/meson.build\n",
              stderr);
        abort();
}
