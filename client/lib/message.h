/* SPDX-License-Identifier: Apache-2.0 */
/* A message: what goes to the daemon, and what waits for the reply.
 *
 * A message belongs to the queue, then to the window, then to the code that takes its reply. When
 * the session ends without a reply, it becomes a ghost of the session if it names memory that the
 * daemon may still move bytes in. */
#pragma once

#include "lib/handle.h"

/* Where a caller that waits for one reply finds it; on its stack. */
struct control {
        bool done;
        int error; /* 0; -errno of the session or of the daemon's refusal */
        uint32_t value;
        uint64_t value64;
        uint16_t count;
        void *payload;        /* what follows the reply's head is copied here */
        size_t payload_bytes; /* its room; then what was copied */
        int fd;               /* -1, or a descriptor that is the caller's */
};

struct message {
        TAILQ_ENTRY(message) link;
        struct request *request; /* NULL: no call waits for it any more */
        struct control *control; /* the same, of control messages */
        size_t first;            /* key of the request that its first entry is */
        uint16_t op, count;      /* wire op; entries */
        uint32_t bytes;
        /* It names places that the daemon moves bytes to or from; those in the staging area hold a
         * reference each. */
        bool moves;
        uint16_t n_pieces;  /* of them, where they are pieces: at data + pieces_at */
        uint32_t pieces_at; /* 0: each entry is one place */
        int fd;             /* to go with it: borrowed; -1: none */
        uint32_t region;    /* REGISTER, UNREGISTER: the handle's number for it */
        bool cancelled;     /* a CANCEL for it has been queued */
        bool is_unanswered; /* nothing comes back: it is over once it is sent */
        uint64_t tag;
        _Alignas(8) uint8_t data[]; /* struct wire_hdr and what follows */
};

/* All zero but the header. NULL: out of memory. */
struct message *message_new(unsigned op, size_t bytes);
void message_free(struct message *m);
/* Gives its references on the staging area back. */
void message_unref_staging(struct message *m, struct staging *l);
/* A place in the client's memory, as the daemon knows it. */
struct place {
        uint32_t region; /* WIRE_REGION_STAGING, or the daemon's number for a registered one */
        uint64_t offset, bytes;
};
/* How many places a message names, and the i-th of them. */
unsigned message_places(const struct message *m);
struct place message_place(const struct message *m, unsigned i);

/* At the queue's end; flow() sends it. */
void message_queue(struct kvcache *kv, struct message *m);
/* Has the daemon cancel what waits of `m`, which is in flight, if it can. */
void message_cancel(struct kvcache *kv, struct message *m);
/* To be released with the next message. 0 or -ENOMEM. */
int message_release(struct kvcache *kv, struct wire_lease lease, uint32_t length);
/* Queues a message for releases that nothing else takes along. */
int message_flush_releases(struct kvcache *kv);
/* Once a session: the page that what the program moves by itself is counted in. Nothing waits for
 * it. */
void message_ask_for_transfers(struct kvcache *kv);
/* Blocks that the library copied from the pool since `began_ns`, in the daemon's stead. */
void message_count_copies(struct kvcache *kv, uint64_t blocks, uint64_t bytes, int64_t began_ns);

/* A daemon's status as an errno. */
int message_errno(unsigned wire_status);
