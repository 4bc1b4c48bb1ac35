/* SPDX-License-Identifier: Apache-2.0 */
/* A message to the daemon, and the request or call that waits for its reply.
 *
 * A message is owned first by the queue, then by the window, and then by the code that takes its
 * reply. If the session ends without a reply and the message names memory in which the daemon
 * may still move bytes, the session keeps the message as a ghost. */
#pragma once

#include "lib/handle.h"

/* Result of one reply, on the stack of the caller that waits for it. */
struct control {
        bool done;
        int error; /* 0, or -errno: the daemon's refusal, the end of the session, or a staging area
                      that cannot be mapped */
        uint32_t value;
        uint64_t value64;
        uint16_t count;
        void *payload;        /* the bytes after the reply's head are copied here; may be NULL */
        size_t payload_bytes; /* in: room at `payload`; out: bytes copied */
        int fd;               /* -1, or a descriptor that the caller owns */
};

struct message {
        TAILQ_ENTRY(message) link;
        struct request *request; /* NULL: no request waits for the reply */
        struct control *control; /* NULL: no call waits for the reply */
        size_t first;       /* index of the message's first entry among the keys of `request` */
        uint16_t op, count; /* wire op; number of entries */
        uint32_t bytes;
        /* Whether the message names places to or from which the daemon moves bytes. The message
         * holds a reference to each such place in the staging area. */
        bool moves;
        uint16_t n_pieces;  /* number of struct wire_piece at data + pieces_at */
        uint32_t pieces_at; /* offset of the pieces in `data`; 0: each entry names one place */
        int fd;             /* descriptor to send with the message, borrowed; -1: none */
        uint32_t region;    /* REGISTER, UNREGISTER: the handle's number of the buffer */
        bool cancelled;     /* a CANCEL for the message has been queued */
        bool is_unanswered; /* the daemon does not reply: freed once sent */
        uint64_t tag;
        _Alignas(8) uint8_t data[]; /* struct wire_hdr and the body */
};

/* Returns a message of `bytes` bytes, zero except for its header, or NULL if memory is short. */
struct message *message_new(unsigned op, size_t bytes);
void message_free(struct message *m);
/* Drops the message's references to places in the staging area. */
void message_unref_staging(struct message *m, struct staging *l);
/* A range of the client's memory, as messages name it. */
struct place {
        uint32_t region; /* WIRE_REGION_STAGING, or the daemon's number of a registered buffer */
        uint64_t offset, bytes;
};
/* Return the number of places that a message names, and the i-th of them. */
unsigned message_places(const struct message *m);
struct place message_place(const struct message *m, unsigned i);

/* Appends the message to the queue; flow() sends it. */
void message_queue(struct kvcache *kv, struct message *m);
/* Asks the daemon to cancel the entries of `m`, a message in flight, that are still waiting there.
 * Has no effect if `m` is neither a PUT nor a GET, or the daemon does not support CANCEL. */
void message_cancel(struct kvcache *kv, struct message *m);
/* Queues a lease for release with the next batch message, or with a RELEASE once enough leases or
 * bytes are queued. `length`: the bytes of the lease. Returns 0 or -ENOMEM. */
int message_release(struct kvcache *kv, struct wire_lease lease, uint32_t length);
/* Queues a RELEASE message for releases that no other message carries. Returns 0 or -ENOMEM. */
int message_flush_releases(struct kvcache *kv);
/* Requests, once per session, the page that counts the program's own transfers. No call waits for
 * the reply. */
void message_ask_for_transfers(struct kvcache *kv);
/* Counts `blocks` chunks that the library copied from the pool since `began_ns` as transfers from
 * host to host, as the daemon counts its own copies. */
void message_count_copies(struct kvcache *kv, uint64_t blocks, uint64_t bytes, int64_t began_ns);

/* Returns the errno of a daemon's status, 0 for WIRE_OK. */
int message_errno(unsigned wire_status);
