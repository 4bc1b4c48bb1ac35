/* SPDX-License-Identifier: Apache-2.0 */
/* A user's request: split into messages when it is sent, and one status per key when it
 * completes. */
#pragma once

#include "checked.h"
#include "copy.h"
#include "lib/message.h"
#include "lib/results.h"

/* One contiguous part of a key's bytes, or of the room for them. */
struct resolved_piece {
        void *data;
        uint64_t bytes;
        struct place place; /* valid if the key is shared */
};

struct resolved_key {
        int status;         /* KVCACHE_OK, or the final status of a key that is not sent */
        bool shared;        /* all of its bytes are in memory that the daemon maps, too */
        uint32_t n_pieces;  /* 1 or more */
        size_t first_piece; /* index in resolved.pieces */
        uint64_t bytes;     /* sum of its pieces */
};

struct resolved {
        uint64_t session; /* session in which `place` and `status` are valid; 0: nothing is
                             resolved */
        size_t count;
        struct resolved_key *keys; /* owned, one allocation with the pieces; NULL: the operation
                                      moves no bytes */
        struct resolved_piece *pieces;
        bool needs_staging; /* some bytes of a put are in no shared memory and must be copied to
                               staging */
        bool all_shared;    /* each key that will be sent is shared */
        bool all_firm;      /* writing to the keys' shared memory raises no SIGBUS */
        int refused; /* 0, or -errno with which the daemon refused to register a buffer again */
};

/* Copies `length` bytes of `data` to the target of key `i`, which has room for them. */
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
        TAILQ_ENTRY(request) link; /* in kvcache.requests, then in kvcache.ready */
        enum kvcache_op op;
        size_t count;
        struct results results;
        struct resolved targets; /* targets of a `get into` that the library copies itself;
                                    otherwise empty */
        uint64_t user_data;
        int64_t deadline;
        size_t n_messages; /* number of unanswered messages */
        size_t n_sent;
        size_t run; /* MATCH: upper bound of the leading run, in keys */
        int error;
        bool done;
        bool waited; /* a blocking call waits for the request and frees it: it is not reaped */
};

void resolved_fini(struct resolved *r);
/* Frees a request; NULL is allowed. */
void request_free(struct request *q);

/* Record that one of the request's messages was sent, or was lost with its session. */
void request_sent(struct request *q);
void request_lost(struct kvcache *kv, struct message *m, int error);
/* Sets the status of keys [first, first + count), and zeroes the rest of their results. For a
 * MATCH, the run ends at `first` at the latest unless the status is KVCACHE_OK. */
void request_set(struct request *q, size_t first, size_t count, int status);
/* Records that one of the request's messages needs no further reply, and completes the request with
 * the last one. */
void request_message_done(struct kvcache *kv, struct request *q);

/* Completes the request: the user reaps it, or its waiting call continues. */
void request_complete(struct kvcache *kv, struct request *q);
/* Completes the requests whose deadline has passed at `now` (ns): keys without an answer get
 * KVCACHE_PENDING, or KVCACHE_BUSY if no message of the request was sent. */
void request_expire(struct kvcache *kv, int64_t now);
/* Takes back the request's queued messages, and asks the daemon to cancel those in flight. */
void request_cancel(struct kvcache *kv, struct request *q);
/* Returns whether the library will copy to [data, data + bytes) when a reply arrives. */
bool request_copies_to(const struct kvcache *kv, const void *data, uint64_t bytes);
