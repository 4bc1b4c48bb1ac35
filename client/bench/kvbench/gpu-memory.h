/* SPDX-License-Identifier: Apache-2.0 */
/* GPU memory of one thread, which stands for an engine's memory. The CUDA driver is loaded at run
 * time; a build needs no CUDA.
 *
 * Each memory has a mirror in host memory, through which its bytes are written and read. Uploads
 * and downloads of the mirror are synchronous and are made outside of measured time. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { GPU_MEMORY_TEXT = 256 };

struct gpu_driver;

struct gpu_memory {
        struct gpu_driver *driver;
        int ordinal; /* number of the device, whose primary context is current in this thread */
        void *stream;
        uint64_t address;
        uint64_t bytes;
        uint8_t *mirror;
};

/* Checks for a driver and a device of this number. Returns 0, with the device's name in `ret` (may
 * be NULL); negative, with a message in `ret`. `ret` has GPU_MEMORY_TEXT bytes. */
int gpu_memory_probe(int ordinal, char *ret);
/* Allocates memory. Returns 0; negative, with a message in `ret_why`. */
int gpu_memory_open(struct gpu_memory *m, int ordinal, uint64_t bytes,
                    char ret_why[static GPU_MEMORY_TEXT]);
void gpu_memory_close(struct gpu_memory *m);
/* Copy the whole mirror to the device, or back. Return 0; negative, with a message in `ret_why`. */
int gpu_memory_upload(struct gpu_memory *m, char ret_why[static GPU_MEMORY_TEXT]);
int gpu_memory_download(struct gpu_memory *m, char ret_why[static GPU_MEMORY_TEXT]);
