/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes batches of events as vLLM's publisher does (vllm/distributed/kv_events.py): msgpack, an
 * array [time, events], and in it a map with "type" for each event. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache-admin.h>

struct batch {
        uint8_t *data; /* owned */
        size_t bytes, room;
        uint32_t events;
        bool failed; /* memory ran out; the batch is incomplete */
};

/* Begins a batch, whose memory is used again. `ts`: seconds of Unix time. */
void batch_begin(struct batch *b, double ts);
/* Adds AllBlocksCleared. */
void batch_add_cleared(struct batch *b);
/* Adds BlockStored and BlockRemoved. Neighbouring events of one kind, tier and namespace share one.
 * `block_size`: tokens of a block, as subscribers expect it. */
void batch_add(struct batch *b, const struct kvcache_event *events, size_t n, uint32_t block_size);
/* Ends the batch. Returns 0 or -ENOMEM. */
int batch_end(struct batch *b);
void batch_fini(struct batch *b);
