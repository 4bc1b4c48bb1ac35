/* SPDX-License-Identifier: Apache-2.0 */
/* What `kvcache-bench remote` measures, and what came of it: a number of objects, whose keys and
 * payloads follow from their numbers. Every 4 KiB of a payload say which object it is, and where in
 * it they are. */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "latency.h"
#include "remote/backend.h"

struct remote_job {
        const struct backend_ops *engine;
        struct backend_params params; /* `depth` as below */
        char prefix[REMOTE_PREFIX_MAX];
        uint64_t objects, object_bytes; /* without the header */
        unsigned depth;
        const atomic_int *interrupted;
};

/* One way of doing all objects once. */
struct remote_figures {
        bool measured;
        uint64_t objects, bytes, ns;
        struct latency times; /* of an object */
};

/* So many bytes a second. */
static inline double remote_rate(const struct remote_figures *f)
{
        return f->ns > 0 ? (double)f->bytes * 1e9 / (double)f->ns : 0;
}

enum { REMOTE_ERROR_BYTES = 512, REMOTE_STAMP_BYTES = 4096 };

/* Keys are spread over a directory's folders, and an engine's servers. */
void remote_key_of(uint64_t object, uint8_t ret[static KEY_BYTES]);
/* Bytes that cannot be compressed: of an engine that does that, the rate would be another. */
void remote_fill(void *memory, uint64_t bytes);
/* Makes it the payload of this object; and is it still? */
void remote_stamp(uint64_t object, void *payload, uint64_t bytes);
bool remote_is_stamped(uint64_t object, const void *payload, uint64_t bytes);
