/* SPDX-License-Identifier: Apache-2.0 */
/* cuFile without nvidia-fs or a GPU: libcufile.so.0 for tests, over the memory of stub-cuda. A read
 * or a write first overwrites its target and writes the data after that, so that what uses it too
 * early shows as wrong bytes.
 *
 * A test finds these functions in the library by dlsym(). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct stub_cufile_live {
        unsigned files, buffers; /* registered */
        unsigned misaligned;     /* reads that were no whole pages */
        unsigned misplaced;      /* reads out of a context, or outside of registered memory */
        unsigned most_at_a_time; /* reads */
};

struct stub_cufile {
        /* The calls of this function after the next `after` ones fail with `result`, `times` of
         * them, each `every`-th. `result`: cuFile's number; of cuFileRead and cuFileWrite what they
         * return: -1 sets errno to EIO; 0 and more is short. */
        void (*fault)(const char *function, unsigned after, unsigned times, unsigned every,
                      int result);
        unsigned (*calls)(const char *function);
        void (*live)(struct stub_cufile_live *ret);
        /* Reads stop halfway until this is false. */
        void (*hold)(bool on);
        /* The version of nvidia-fs that it says is there; 0: none. */
        void (*set_nvfs)(unsigned version);
        /* Forgets all faults and counts; version 2. */
        void (*reset)(void);
};

/* Loads the library as the product does; false: it is another one, or none. */
bool stub_cufile_load(struct stub_cufile *ret);
