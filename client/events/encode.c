/* SPDX-License-Identifier: Apache-2.0 */
/* Implements encode.h. Lengths of arrays are written in four bytes, so that they can be filled in
 * when the elements are known. */
#include "events/encode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"

enum {
        NIL = 0xc0,
        BIN8 = 0xc4,
        FLOAT64 = 0xcb,
        UINT32 = 0xce,
        STR8 = 0xd9,
        ARRAY32 = 0xdd,
        FIXMAP = 0x80,
        FIXARRAY = 0x90,
        EVENTS_AT = 10, /* offset of the array of events; its length follows the type's byte */
};

static void put(struct batch *b, const void *data, size_t bytes)
{
        if (b->room - b->bytes < bytes) {
                size_t room = MAX(b->room * 2, b->bytes + bytes + 4096);
                uint8_t *larger = b->failed ? NULL : realloc(b->data, room);

                if (!larger) {
                        b->failed = true;
                        return;
                }
                b->data = larger;
                b->room = room;
        }
        memcpy(b->data + b->bytes, data, bytes);
        b->bytes += bytes;
}

static void put_byte(struct batch *b, unsigned byte)
{
        put(b, &(uint8_t){ (uint8_t)byte }, 1);
}

static void big_endian(uint8_t ret[static 4], uint32_t n)
{
        for (unsigned i = 0; i < 4; i++)
                ret[i] = (uint8_t)(n >> (24 - 8 * i));
}

static void put_number(struct batch *b, unsigned type, uint32_t n)
{
        uint8_t bytes[4];

        big_endian(bytes, n);
        put_byte(b, type);
        put(b, bytes, sizeof(bytes));
}

static void put_text(struct batch *b, const char *text)
{
        size_t n = MIN(strlen(text), (size_t)UINT8_MAX);

        put_byte(b, STR8);
        put_byte(b, (unsigned)n);
        put(b, text, n);
}

static void set_length(struct batch *b, size_t at, uint32_t n)
{
        if (!b->failed)
                big_endian(b->data + at, n);
}

void batch_begin(struct batch *b, double ts)
{
        uint64_t bits;
        uint8_t bytes[8];

        memcpy(&bits, &ts, sizeof(bits));
        for (unsigned i = 0; i < sizeof(bytes); i++)
                bytes[i] = (uint8_t)(bits >> (56 - 8 * i));
        b->bytes = 0;
        b->events = 0;
        b->failed = false;
        put_byte(b, FIXARRAY | 2);
        put_byte(b, FLOAT64);
        put(b, bytes, sizeof(bytes));
        put_number(b, ARRAY32, 0);
}

int batch_end(struct batch *b)
{
        set_length(b, EVENTS_AT + 1, b->events);
        return b->failed ? -ENOMEM : 0;
}

void batch_fini(struct batch *b)
{
        free(b->data);
        *b = (struct batch){ 0 };
}

void batch_add_cleared(struct batch *b)
{
        put_byte(b, FIXMAP | 1);
        put_text(b, "type");
        put_text(b, "AllBlocksCleared");
        b->events++;
}

static const char *medium_of(uint32_t tier)
{
        return tier == KVCACHE_TIER_MEMORY ? "CPU" : "STORAGE";
}

/* Adds one BlockStored or BlockRemoved for events of one kind, tier and namespace. */
static void add_group(struct batch *b, const struct kvcache_event *events, size_t n,
                      uint32_t block_size)
{
        bool is_stored = events->kind == KVCACHE_EVENT_STORED, has_name = events->namespace_name;

        put_byte(b, FIXMAP | ((is_stored ? 10u : 5u) + has_name));
        put_text(b, "type");
        put_text(b, is_stored ? "BlockStored" : "BlockRemoved");
        put_text(b, "block_hashes");
        put_number(b, ARRAY32, (uint32_t)n);
        for (size_t i = 0; i < n; i++) {
                put_byte(b, BIN8);
                put_byte(b, sizeof(events[i].key.bytes));
                put(b, events[i].key.bytes, sizeof(events[i].key.bytes));
        }
        if (is_stored) {
                put_text(b, "parent_block_hash");
                put_byte(b, NIL);
                put_text(b, "token_ids");
                put_byte(b, FIXARRAY);
                put_text(b, "block_size");
                put_number(b, UINT32, block_size);
                put_text(b, "lora_id");
                put_byte(b, NIL);
                put_text(b, "lora_name");
                put_byte(b, NIL);
        }
        put_text(b, "medium");
        put_text(b, medium_of(events->tier));
        put_text(b, "group_idx");
        put_number(b, UINT32, events->namespace_number);
        put_text(b, "locality");
        put_text(b, "LOCAL");
        if (has_name) {
                put_text(b, "ownership");
                put_text(b, events->namespace_name);
        }
        b->events++;
}

void batch_add(struct batch *b, const struct kvcache_event *events, size_t n, uint32_t block_size)
{
        for (size_t first = 0, end; first < n; first = end) {
                const struct kvcache_event *e = &events[first];

                for (end = first + 1; end < n; end++)
                        if (events[end].kind != e->kind || events[end].tier != e->tier ||
                            events[end].namespace_number != e->namespace_number)
                                break;
                if (e->kind == KVCACHE_EVENT_STORED || e->kind == KVCACHE_EVENT_REMOVED)
                        add_group(b, e, end - first, block_size);
        }
}
