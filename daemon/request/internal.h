/* SPDX-License-Identifier: Apache-2.0 */
/* A message that names keys, while it is under way: the batch, and what the files that work on it
 * offer each other. Only those files of this room include this. Loop thread. */
#pragma once

#include "request/chain.h"
#include "request/buffers.h"
#include "request/memory.h"
#include "request/reply.h"
#include "checked.h"
#include "request/request.h"

enum {
        BATCH_FETCH_KEYS = 16, /* whose memory is fetched together */
        /* Of a GET, with what touches them: with more, the first would be out of the cache again
         * when the batch ends and touches them. */
        BATCH_FETCH_TOUCHES = 256,
};

/* One key of a PUT or GET under way. */
struct slot {
        struct cache_request req;
        struct batch *batch;
};

struct batch {
        struct list_node node;     /* in client.unstarted until all keys are */
        struct list_node inflight; /* in client.batches */
        struct list_node waits;    /* its requests to the cache that wait for room, or their turn */
        struct request request;
        struct wire_batch head;
        uint64_t number; /* no other has it */
        uint32_t started, done;
        uint64_t started_ns, submitted_ns; /* its first key, all of them; 0 unless stages_on() */
        uint64_t hashes[4 * BATCH_FETCH_KEYS]; /* of the keys around `started` */
        uint32_t value;                        /* MATCH: the run; else stale releases */
        uint64_t value64;                      /* MATCH: what the shared tier has behind it */
        uint32_t resident;                     /* GET: in memory, and their time not counted yet */
        struct tally_keys keys;                /* EXISTS, MATCH, GET: so far */
        bool running;                          /* request_run() is in it: it ends it */
        bool cancelled;                        /* by CANCEL */
        bool is_expired;        /* the key that is being started was, and is dropped */
        uint64_t born_after_ms; /* what was put before has expired; 0: nothing has */
        bool is_shared;         /* HINT: what is left of it, by another chain */
        struct chain_part *part;
        uint8_t *entries;           /* then pieces */
        struct slot *slots;         /* PUT; GET, once a key is not at hand */
        struct iovec *places;       /* of pieces: in their stead, once they are found */
        uint8_t *found;             /* which are, by bit */
        uint64_t charged;           /* bytes of memory, to its user */
        uint64_t regions;           /* registered ones that it names, by bit: kept until it ends */
        struct cache_settle settle; /* EVICT */
        uint8_t *reply;             /* head and results */
        size_t reply_bytes;
        void *part_room; /* for chain_join() */
        bool again;      /* its memory is one of the tenant's blocks */
};

static inline void *batch_result(const struct batch *b, uint32_t i)
{
        return b->reply + sizeof(struct wire_reply) + i * wire_result_bytes(b->head.hdr.op);
}

static inline const void *batch_entry(const struct batch *b, uint32_t i)
{
        return b->entries + i * wire_entry_bytes(b->head.hdr.op);
}

/* Of a key that is being started. */
static inline uint64_t batch_hash(const struct batch *b, uint32_t i)
{
        return b->hashes[i % ARRAY_SIZE(b->hashes)];
}

static inline uint32_t slot_index(const struct slot *s)
{
        return (uint32_t)(s - s->batch->slots);
}

/* batch.c */
/* The message and its entries copied, and all zero: a reply, slots if it surely needs them. Charged
 * to the client. OK; QUOTA, BUSY: there is no memory for it, or not for this client. */
enum wire_status batch_new(struct request req, const struct wire_batch *msg, struct batch **ret);
/* Slots for the keys of a batch that turns out to need them. False: there is no memory. */
bool batch_add_slots(struct batch *b);
void batch_free(struct batch *b);
/* A key has its result; the last one's answers the batch, which is freed then, unless request_run()
 * is in it. */
void batch_key_end(struct batch *b, enum wire_status status);
void batch_keys_ended(struct batch *b); /* all have */
/* Is what became of its keys known only when the store has written it? */
bool batch_is_settled_at_its_end(const struct batch *b);
enum wire_status batch_status(enum cache_status status);
/* The same, of a key of this batch, which may be cancelled. */
enum wire_status batch_slot_status(const struct slot *s);
/* How long ago the batch could be read, in ns. */
uint64_t batch_age(const struct batch *b);
/* The request in the key's slot, but for where its bytes are. */
void batch_request_init(struct batch *b, uint32_t i, const struct key *key,
                        void (*complete)(struct cache_request *));
/* The registered buffers that a message names and may, by bit. */
uint64_t batch_regions(const struct client *client, const struct wire_batch *msg);
/* Fills in the request's memory. False: some of it is not the client's to name. `first`, `n`,
 * `length`: as of the entry. */
bool batch_find_memory(struct batch *b, struct cache_request *req, uint64_t first, uint32_t n,
                       uint32_t length);

/* cancel.c: CANCEL. */
void cancel_batch(struct request req, const struct wire_cancel *msg);
/* Ends what all batches of the client have waiting for room, or for their turn: *steps keys at
 * most, which becomes what is left of that. True: more of them wait. */
bool batches_cancel_some(struct client *client, uint32_t *steps);

/* loans.c: chunks that a client reads from the data files by itself (GPUDirect Storage). */
/* A key that is not in memory, if it is on disk: lends it, and has answered it then. False: it is
 * for the GET to do, and the result says why. */
bool loan_begin(struct batch *b, uint32_t i, const struct key *key);
enum wire_status loan_end(struct client *client, const struct wire_lease *loan);
/* LENT_FILE. */
void loan_file(struct request req, const struct wire_lent_file *msg);
/* Ends so many of its loans at most, the latest first; returns how many there were. */
uint32_t loans_end_some(struct client *client, uint32_t most);

/* recorder.c: RECORD; a PUT that begins, with all of its keys; a GET that has ended, with the
 * leading ones that it found. The latter two of a service that has a recorder. */
void recorder_start(struct request req, const struct wire_record *msg);
void recorder_put(struct recorder *r, const struct batch *b);
void recorder_got(struct recorder *r, const struct batch *b);

/* get.c, put.c: start a key. */
void request_get(struct batch *b, uint32_t i);
/* Some of the keys have been: counts how long those took that were in memory, all of them alike. */
void request_got(struct batch *b);
void request_put(struct batch *b, uint32_t i);
