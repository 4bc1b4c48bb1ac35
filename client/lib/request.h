/* SPDX-License-Identifier: Apache-2.0 */
/* A user's request: cut into messages on the way out, one status per key on the way back. */
#pragma once

#include "checked.h"
#include "copy.h"
#include "lib/message.h"
#include "lib/results.h"

/* One stretch of a key's bytes, or of the room for them. */
struct resolved_piece {
        void *data;
        uint64_t bytes;
        struct place place; /* of it, where the key is shared */
};

struct resolved_key {
        int status;         /* KVCACHE_OK, or what becomes of a key that the daemon never sees */
        bool shared;        /* all of its bytes are in memory that the daemon maps, too */
        uint32_t n_pieces;  /* 1 or more */
        size_t first_piece; /* in resolved.pieces */
        uint64_t bytes;     /* of the pieces together */
};

struct resolved {
        uint64_t session; /* in which `place` and `status` hold; 0: nothing is resolved */
        size_t count;
        struct resolved_key *keys; /* owned, as one allocation with the pieces; NULL: the operation
                                      moves no bytes */
        struct resolved_piece *pieces;
        bool needs_staging; /* some bytes of a put are in no shared memory: they are copied there */
        bool all_shared;    /* each key that a message will name is */
        bool all_firm;      /* and writing to any of it raises no signal */
        int refused;        /* 0, or -errno: the daemon did not take a region again */
};

/* Copies to where key `i` is wanted, which has room for it. */
static inline void resolved_copy(const struct resolved *r, size_t i, const uint8_t *data,
                                 uint64_t length)
{
        const struct resolved_piece *p = &r->pieces[r->keys[i].first_piece];

        for (; length > 0; p++) {
                uint64_t n = MIN(p->bytes, length);

                copy_past_caches(p->data, data, n);
                data += n;
                length -= n;
        }
}

struct request {
        TAILQ_ENTRY(request) link; /* kvcache.requests, then .ready */
        enum kvcache_op op;
        size_t count;
        struct results results;
        struct resolved targets; /* of a `get into` that the library copies itself; else empty */
        uint64_t user_data;
        int64_t deadline;
        size_t n_messages; /* not answered yet */
        size_t n_sent;
        size_t run; /* MATCH: no key from this one on is in the leading run */
        int error;
        bool done;
        bool waited; /* by a blocking call, which frees it: it is not reaped */
};

void resolved_fini(struct resolved *r);
/* NULL is fine. */
void request_free(struct request *q);

/* A message of it went out; is lost. */
void request_sent(struct request *q);
void request_lost(struct kvcache *kv, struct message *m, int error);
/* The status of its keys [first, first + count), and nothing else of their results. */
void request_set(struct request *q, size_t first, size_t count, int status);
/* One of its messages needs no more waiting for. */
void request_message_done(struct kvcache *kv, struct request *q);

/* All of it is done: it is reaped, or its waiting call goes on. */
void request_complete(struct kvcache *kv, struct request *q);
/* Completes what is due by `now` with KVCACHE_PENDING. */
void request_expire(struct kvcache *kv, int64_t now);
/* Takes what is queued of it back, and has the daemon cancel what is in flight. */
void request_cancel(struct kvcache *kv, struct request *q);
/* Will the library copy to [data, data + bytes) when a reply comes? */
bool request_copies_to(const struct kvcache *kv, const void *data, uint64_t bytes);
