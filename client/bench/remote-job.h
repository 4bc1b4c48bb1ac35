/* SPDX-License-Identifier: Apache-2.0 */
/* A measurement of `kvcache-bench remote`, and its results. The keys and payloads of the objects
 * are derived from their numbers. Every 4 KiB of a payload begin with a stamp, which depends on the
 * number of the object and the offset in it. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "latency.h"
#include "remote/backend.h"

struct remote_job {
        const struct backend_ops *engine;
        struct backend_params params; /* params.depth equals the member `depth` below */
        char prefix[REMOTE_PREFIX_MAX];
        uint64_t objects, object_bytes; /* number of objects; size of each without the header */
        unsigned depth;
        const atomic_int *interrupted;
};

/* Results of one pass, which writes or reads every object once. */
struct remote_figures {
        bool measured;
        uint64_t objects, bytes, ns;
        struct latency times; /* time of the operation or request of each object, ns */
};

/* Returns bytes per second. */
static inline double remote_rate(const struct remote_figures *f)
{
        return f->ns > 0 ? (double)f->bytes * 1e9 / (double)f->ns : 0;
}

enum { REMOTE_ERROR_BYTES = 512, REMOTE_STAMP_BYTES = 4096 };

/* Computes an object's key. The keys are distributed over the folders of a shared directory, and
 * over the servers of an object store. */
void remote_key_of(uint64_t object, uint8_t ret[static KEY_BYTES]);
/* Fills memory with incompressible bytes, because a back end that compresses would otherwise
 * seem faster. */
void remote_fill(void *memory, uint64_t bytes);
/* Stamp a payload as that of an object, and check the stamps. */
void remote_stamp(uint64_t object, void *payload, uint64_t bytes);
bool remote_is_stamped(uint64_t object, const void *payload, uint64_t bytes);
