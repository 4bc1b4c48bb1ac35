/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA driver without a GPU: libcuda.so.1 for tests. Device memory is host memory behind
 * addresses that the CPU cannot use. Work in a stream is performed later, so that bytes that are
 * read or reused too early are wrong.
 *
 * A test finds these functions in the library by dlsym(). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct stub_live {
        unsigned contexts, streams, events, allocations, registrations, modules, pushed;
        int capture_mode; /* the calling thread has this one; GLOBAL at first */
};

struct stub_cuda {
        /* True: a thread carries streams out, in any order that they allow. False: stub_step()
         * does.
         */
        void (*run)(bool automatic);
        /* Performs one operation of a stream that `seed` chooses. Returns false if none is
         * possible. */
        bool (*step)(unsigned seed);
        /* Makes `times` calls of this function fail with `result`, after the next `after` calls. */
        void (*fault)(const char *function, unsigned after, unsigned times, int result);
        unsigned (*calls)(const char *function);
        void (*live)(struct stub_live *ret);
        /* Device memory, as the CPU may use it. NULL: no such memory. */
        void *(*memory)(uint64_t address);
        /* Begins and ends a capture of a stream in this thread. end_capture: is the capture valid?
         */
        int (*begin_capture)(void *stream, int mode);
        bool (*end_capture)(void *stream);
        /* Lets another thread begin a global capture before the call of that number, counted from
         * now on from 1; and ends it. disarm_capture: is it valid? *ret_calls: calls in between. */
        void (*arm_capture)(unsigned number);
        bool (*disarm_capture)(unsigned *ret_calls);
        /* Forgets all faults, errors and counts. */
        void (*reset)(void);
};

/* Loads the library as the product does; false: it is another one, or none. */
bool stub_cuda_load(struct stub_cuda *ret);
