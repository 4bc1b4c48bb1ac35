/* SPDX-License-Identifier: Apache-2.0 */
/* A batch, which is a message with keys in progress, and the interfaces between the files that work
 * on it. Private to these files. Loop thread. */
#pragma once

#include "request/chain.h"
#include "request/buffers.h"
#include "request/memory.h"
#include "request/reply.h"
#include "checked.h"
#include "request/request.h"

enum {
        BATCH_FETCH_KEYS = 16, /* keys whose index and record memory is prefetched into the CPU
                                * cache together */
        /* Most keys of a GET for which memory of the touches is prefetched as well. In a larger
         * GET, that of the first keys would have left the CPU cache again before the batch ends and
         * touches them. */
        BATCH_FETCH_TOUCHES = 256,
};

/* One key of a PUT or GET in progress. */
struct slot {
        struct cache_request req;
        struct batch *batch;
};

struct batch {
        struct list_node node;     /* in client.unstarted until all keys are started */
        struct list_node inflight; /* in client.batches */
        struct list_node waits;    /* struct cache_request of this batch that wait for room or for
                                    * their user's turn */
        struct request request;
        struct wire_batch head;
        uint64_t number; /* number of the batch, unique in this process */
        uint32_t started, done;
        uint32_t gap_keys; /* PUT: keys, from the first one on, among which the search for a
                            * remembered gap continues before the first key is started */
        uint64_t started_ns, submitted_ns;     /* times at which the first and the last key were
                                                * started; 0 unless stages_on() */
        uint64_t hashes[4 * BATCH_FETCH_KEYS]; /* hashes of the keys around `started` */
        uint32_t value;               /* MATCH: length of the run; otherwise the number of stale
                                       * leases among those that the message releases */
        uint64_t value64;             /* MATCH: keys that follow on the shared tier, and the flag
                                       * WIRE_MATCH_SEARCHING */
        uint32_t resident;            /* GET: keys found in memory whose latency request_got() has
                                       * not counted yet */
        struct lookup_counts keys;    /* keys that EXISTS, MATCH and GET have found, or found
                                       * missing, so far */
        bool running;                 /* request_run() is starting keys and will end the batch
                                       * itself */
        bool cancelled;               /* a CANCEL has named the batch */
        bool is_expired;              /* the key being started has expired and was dropped */
        uint64_t born_after_ms;       /* chunks put before this time have expired; 0: none */
        bool is_shared;               /* HINT: another chain continues from a key, so the remaining
                                       * keys belong to both chains */
        bool is_announced;            /* HINT: `promise` is the announced return of the batch's
                                       * chain */
        struct evict_promise promise; /* HINT; PUT: the expected return; number 0: none */
        struct chain_part *part;
        uint8_t *entries;           /* copy of the message's entries, followed by its pieces */
        struct slot *slots;         /* one per key; NULL except for a PUT, a GET into the client's
                                     * memory, and another GET once a key of it cannot be answered
                                     * at once */
        struct iovec *places;       /* copies of the message's pieces (struct wire_piece), each
                                     * replaced by an iovec when its memory is found */
        uint8_t *found;             /* bit mask of the elements of `places` that are iovecs */
        uint64_t charged;           /* bytes of memory that are charged to the client's user */
        uint64_t regions;           /* bit mask of registered buffers kept until the batch ends */
        struct cache_settle settle; /* used by EVICT to learn that its evictions cannot be undone by
                                     * a crash */
        uint8_t *reply;             /* the reply's header and results */
        size_t reply_bytes;
        void *part_room; /* memory for chain_join() */
        bool again;      /* the batch's memory is a reusable block of its tenant (memory.h) */
};

static inline void *batch_result(const struct batch *b, uint32_t i)
{
        return b->reply + sizeof(struct wire_reply) + i * wire_result_bytes(b->head.hdr.op);
}

static inline const void *batch_entry(const struct batch *b, uint32_t i)
{
        return b->entries + i * wire_entry_bytes(b->head.hdr.op);
}

/* Returns the hash of a key that is being started. */
static inline uint64_t batch_hash(const struct batch *b, uint32_t i)
{
        return b->hashes[i % ARRAY_SIZE(b->hashes)];
}

static inline uint32_t slot_index(const struct slot *s)
{
        return (uint32_t)(s - s->batch->slots);
}

/* batch.c */
/* Creates a batch with copies of the message and its entries, an empty reply, and slots if it
 * certainly needs them, charged to the client. Returns WIRE_OK; QUOTA at a limit of the client, its
 * user or its tenant; or BUSY at a limit of all clients, or without memory. */
enum wire_status batch_new(struct request req, const struct wire_batch *msg, struct batch **ret);
/* Adds slots for the keys of a batch that needs them after all. Returns false without memory, or if
 * a limit refuses the charge for them. */
bool batch_add_slots(struct batch *b);
/* Ends a key. The last key's end answers and frees the batch, unless request_run() is using it; an
 * EVICT is answered once the store has recorded the evictions. */
void batch_key_end(struct batch *b, enum wire_status status);
void batch_keys_ended(struct batch *b); /* answers a batch whose keys have all ended */
/* Returns whether the answer must wait until the store has recorded the evictions of all keys. */
bool batch_is_settled_at_its_end(const struct batch *b);
/* Returns the wire status for the cache's status of a key. */
enum wire_status batch_status(enum cache_status status);
/* Returns the status of a key of this batch, which may have been cancelled. */
enum wire_status batch_slot_status(const struct slot *s);
/* Returns the time in ns since the batch could be read. */
uint64_t batch_age(const struct batch *b);
/* Initializes the request in a key's slot, except for the location of its bytes. */
void batch_request_init(struct batch *b, uint32_t i, const struct key *key,
                        void (*complete)(struct cache_request *));
/* Returns a bit mask of the registered buffers that the message names and that exist. */
uint64_t batch_regions(const struct client *client, const struct wire_batch *msg);
/* Fills in the memory of a request. Returns false if part of it is not the client's, or if it has
 * no bytes. `first` and `n`: index of the entry's first piece and number of pieces; without
 * WIRE_F_PIECES, offset and number of its buffer. */
bool batch_find_memory(struct batch *b, struct cache_request *req, uint64_t first, uint32_t n,
                       uint32_t length);

/* cancel.c: handles CANCEL. */
void cancel_batch(struct request req, const struct wire_cancel *msg);
/* Cancels keys of all batches of the client that wait for room or for their turn, at most *steps,
 * which is reduced by their number. Returns whether more of them wait. */
bool batches_cancel_some(struct client *client, uint32_t *steps);

/* loans.c: chunks that a client reads directly from the data files (GPUDirect Storage). */
/* Lends a key that is on disk but not in memory, and ends the key. Returns false if the GET has to
 * continue without a loan; if the chunk is on disk alone, the result then contains the reason. */
bool loan_begin(struct batch *b, uint32_t i, const struct key *key);
/* Handles GIVE_BACK for one loan, and returns its status. */
enum wire_status loan_end(struct client *client, const struct wire_lease *loan);
/* Handles LENT_FILE. */
void loan_file(struct request req, const struct wire_lent_file *msg);
/* Ends at most `most` of the client's loans, the latest first, and returns their number. */
uint32_t loans_end_some(struct client *client, uint32_t most);

/* recorder.c: handle RECORD, record all keys of a PUT that begins, and the leading keys that a
 * finished GET found. recorder_put() and recorder_got() require that the service has a recorder. */
void recorder_start(struct request req, const struct wire_record *msg);
void recorder_put(struct recorder *r, const struct batch *b);
void recorder_got(struct recorder *r, const struct batch *b);

/* hint.c */
/* Orders the keys of a hint from the end of the chain to its root, if the kind of the hint needs
 * that order. */
void hint_begin(struct batch *b);
/* Applies a HINT to one of its keys, and returns the key's status. */
enum wire_status hint_look_up(struct batch *b, uint32_t i, struct cache *cache,
                              const struct key *key, uint64_t hash);
/* Schedules the batch's keys to be read into memory before the return that `b->promise` announces.
 * `id`: evict_id() of the chain's last key. */
void batch_prefetch(const struct batch *b, uint64_t id);
/* Records what a PUT announces about the next use of its chain. Fills in `b->promise`, whose number
 * stays 0 if nothing is announced or the announcement is not believed. */
void hint_expect(struct batch *b);
/* Ends the announcement that was made for key `i`, because the batch, if it is a GET, PUT or TOUCH,
 * uses that key. No effect on the key for which the batch itself made an announcement. */
void hint_note_use(const struct batch *b, uint32_t i, uint64_t hash);

/* get.c, put.c: start a key. */
void request_get(struct batch *b, uint32_t i);
/* Adds the latency of the keys found in memory since the last call to the histogram, the same value
 * for each. */
void request_got(struct batch *b);
void request_put(struct batch *b, uint32_t i);
