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
        /* Makes `times` calls of this function fail, each `every`-th after the next `after` calls.
         * `result` is cuFile's number; for cuFileRead and cuFileWrite it is their return value,
         * where -1 sets errno to EIO, and 0 or more is a short transfer. */
        void (*fault)(const char *function, unsigned after, unsigned times, unsigned every,
                      int result);
        unsigned (*calls)(const char *function);
        void (*live)(struct stub_cufile_live *ret);
        /* Reads stop halfway until this is false. */
        void (*hold)(bool on);
        /* Sets the version of nvidia-fs that it reports; 0: none. */
        void (*set_nvfs)(unsigned version);
        /* Forgets all faults and counts; version 2. */
        void (*reset)(void);
};

/* Loads the library as the product does. Returns false if that is not this stub, or fails. */
bool stub_cufile_load(struct stub_cufile *ret);
