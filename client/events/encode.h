/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes batches of events as vLLM's publisher does (vllm/distributed/kv_events.py): as
 * msgpack, an array [time, events], where each event is a map with the member "type". */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kvcache-admin.h>

struct batch {
        uint8_t *data; /* memory of the encoded batch, owned */
        size_t bytes, room;
        uint32_t events;
        bool failed; /* memory ran out; the batch is incomplete */
};

/* Begins a batch and reuses the memory of the last one. `ts`: seconds of Unix time. */
void batch_begin(struct batch *b, double ts);
/* Adds AllBlocksCleared. */
void batch_add_cleared(struct batch *b);
/* Adds BlockStored and BlockRemoved. Consecutive events of one kind, tier and namespace become
 * one BlockStored or BlockRemoved; events of other kinds are skipped. `block_size`: number of
 * tokens in a block. */
void batch_add(struct batch *b, const struct kvcache_event *events, size_t n, uint32_t block_size);
/* Ends the batch. Returns 0 or -ENOMEM. */
int batch_end(struct batch *b);
void batch_fini(struct batch *b);
