/* SPDX-License-Identifier: Apache-2.0 */
/* A model of the bytes that may be found under each key, for random histories of a cache that is
 * stopped, killed and opened again. Puts, gets and drops of one key may be in flight together. Each
 * put has bytes of its own, its version. */
#pragma once

#include "cache-fixture.h"

enum { MODEL_KEYS = 24, MODEL_VERSIONS = 250 };

struct model_version {
        bool is_flying;   /* The put has not ended. */
        bool was_alone;   /* No other put of the key was in flight meanwhile. */
        bool is_dropped;  /* The chunk was dropped during the put. */
        bool now;         /* A get may return it. */
        bool after_crash; /* A get may return it after a crash, or when a volume is back. */
        uint64_t began, ended;
        uint64_t replaced_at; /* step in which a request showed that another one has replaced it */
};

struct model_key {
        struct model_version versions[MODEL_VERSIONS + 1]; /* from 1 */
        unsigned n, n_flying;
        bool is_on_disk; /* a chunk must be found there */
        uint64_t dropped_at, lost_at;
};

/* Chunks on disk can be hidden while a volume is not in use: they may be back, beside newer ones.
 */
struct model {
        struct model_key keys[MODEL_KEYS];
        uint64_t now; /* counts the steps */
        bool may_hide;
};
extern struct model model;

struct model_get {
        bool may_return[MODEL_VERSIONS + 1];
        bool must_find; /* The chunk is on disk. */
        uint64_t began;
};

/* The versions of one key that a drop is to keep away. */
struct model_drop {
        unsigned versions[MODEL_VERSIONS], n;
        uint32_t key;
};

/* Returns the version, or 0 if the key has had too many. */
unsigned model_put_begins(uint32_t n);
/* `found`: the version that the answer came with, or 0. */
void model_put_ended(uint32_t n, unsigned version, const struct cache_request *req, unsigned found);
/* Ends a put whose answer the killed daemon did not give. */
void model_put_was_killed(uint32_t n, unsigned version);
void model_get_begins(uint32_t n, struct model_get *get);
/* Ends a get that was answered as a miss. */
void model_get_missed(uint32_t n, const struct model_get *get);
void model_get_ended(uint32_t n, const struct model_get *get, unsigned found);
/* Notes that a key was dropped from memory and disk. `flying`: the version in flight that was
 * dropped, too, or 0. */
void model_drop(uint32_t n, unsigned flying, struct model_drop *ret);
/* Notes that no crash can undo the drop. */
void model_drop_is_kept(const struct model_drop *drop);
/* Notes that the device could not read the chunk of a key, which is dropped. */
void model_chunk_is_lost(uint32_t n);
/* Notes that chunks may have left the disk for lack of room, or with a volume. */
void model_disk_loses(void);
void model_crashed(void);
void model_volume_is_back(void);
