/* SPDX-License-Identifier: Apache-2.0 */
/* The list of namespaces and the functions that namespace.c and namespace-file.c share. Private to
 * both. */
#pragma once

#include <sys/uio.h>

#include "checked.h"
#include "store/volume/namespace.h"

/* The step of the write in flight: none; a worker copies the list into `buf`; the file is written;
 * the file is synced. */
enum writing { WRITING_NOTHING, WRITING_COPY, WRITING_BYTES, WRITING_SYNC };

struct namespaces {
        uint8_t uuid[DISK_UUID_BYTES];
        struct namespace **list; /* ascending by id */
        unsigned count, room;
        struct names names;
        uint32_t next_id;       /* id of the next namespace */
        uint64_t purge_seq;     /* chunks of all namespaces up to this sequence are purged */
        struct volume_set set;  /* this volume's record of the set */
        unsigned number, given; /* the volume's number in the set; how many volume numbers the set
                                   had given out when the volume was opened */
        unsigned set_numbers;   /* 1 + the highest volume number that has an epoch in `set`, or has
                                   given one; see namespaces_count_numbers() */
        struct namespaces_purges purges;
        uint64_t bytes;   /* length of the header and records in a file */
        uint64_t reserve; /* bytes allocated for each file; as many as the longest list so far
                             needed */

        uint64_t generation; /* generation of the list in memory */
        uint64_t durable;    /* latest generation that is synced in at least one file */
        uint64_t good[DISK_NAMESPACE_FILES]; /* generation that each file holds on stable storage; 0
                                                if its content is unknown */
        uint64_t retry_ns, retry_pause_ns; /* CLOCK_MONOTONIC time of the next retry, and the pause
                                              before it; both 0 if the last write succeeded */
        int fds[DISK_NAMESPACE_FILES];

        struct kio *io;
        unsigned volume; /* number of the volume in kio_request.volume */
        void (*progress)(void *userdata);
        bool (*make_room)(void *userdata);
        unsigned tries; /* number of times that the write in flight was repeated for lack of room */
        void *userdata;
        struct kio_request request;
        enum writing writing;
        unsigned file; /* index of the file that is being written */
        uint64_t
                writing_generation; /* generation of the list that is being, or was last, written */
        void *buf;                  /* the file's contents, assembled for the write */
        uint64_t buf_bytes;
        /* The contents of the file in pieces, collected by namespaces_gather() when a write
         * begins. */
        struct disk_namespaces header;
        uint64_t tail[VOLUMES_SET_MAX + (VOLUMES_SET_MAX + 1) * VOLUMES_SET_MAX];
        struct disk_namespace *records;
        struct iovec *pieces;
        unsigned gather_room; /* number of namespaces that `records` and `pieces` have room for */
        struct list_node dropped; /* removed namespaces whose text may still be in `pieces` */

        struct list_node opens_waiting, opens_flying, opens_done;
        struct list_node purges_waiting, purges_flying, purges_done;
        uint64_t requests, sync_errors;
        int last_error;
};

static inline uint64_t namespace_text_bytes(size_t name_length, size_t fingerprint_length)
{
        return round_up(name_length + fingerprint_length, 8);
}

static inline uint64_t namespace_record_bytes(size_t name_length, size_t fingerprint_length)
{
        return sizeof(struct disk_namespace) +
               namespace_text_bytes(name_length, fingerprint_length);
}

/* Return the sizes, in bytes, of two parts of a file's tail for this number of volumes: the missed
 * epochs for older versions, and the record of claims. */
static inline uint64_t namespaces_missed_bytes(unsigned numbers)
{
        return numbers * sizeof(uint64_t);
}

static inline uint64_t namespaces_claims_bytes(unsigned numbers)
{
        return (uint64_t)numbers * (numbers + 1) * sizeof(uint64_t);
}

/* Returns the bytes that follow the list in a file. */
static inline uint64_t namespaces_tail_bytes(const struct disk_namespaces *header)
{
        return namespaces_missed_bytes(header->set_missed_count) +
               namespaces_claims_bytes(header->set_claims_count);
}

/* Returns the length in bytes, in whole pages, that a file may need for the present list. Room for
 * the claims of all volume numbers given out is included, because a claim cannot wait for room. */
static inline uint64_t namespaces_file_bytes(const struct namespaces *n)
{
        return round_up(n->bytes + namespaces_missed_bytes(VOLUMES_SET_MAX) +
                                namespaces_claims_bytes(MAX(n->set_numbers, n->given)),
                        DISK_PAGE);
}

/* namespace.c */
struct namespace *namespace_free(struct namespace *ns);
int namespace_new(struct namespace **ret, const char *name, size_t name_length,
                  const char *fingerprint, size_t fingerprint_length);
int namespaces_append(struct namespaces *n, struct namespace *ns);
/* Updates n->set_numbers after n->set has changed. */
void namespaces_count_numbers(struct namespaces *n);

/* Returns the file to write next, which is never the one with the newest copy known to be whole. */
static inline unsigned namespaces_next_file(const struct namespaces *n)
{
        return n->good[1] < n->good[0];
}

/* Returns whether both files hold the present list. */
static inline bool namespaces_at_rest(const struct namespaces *n)
{
        return n->good[0] == n->generation && n->good[1] == n->generation;
}

/* namespace-file.c: the contents of a file are assembled in three steps, so that a worker can do
 * the second one, whose cost grows with the length of the list. First, namespaces_gather() fills
 * n->pieces with the contents, and returns 0 or -ENOMEM. Then the caller copies the pieces,
 * n->header.bytes - NAMESPACES_COPY_OFFSET bytes in all, to n->buf at NAMESPACES_COPY_OFFSET, and
 * computes the CRC32C of the bytes. Last, namespaces_seal() stores that CRC and adds the tail. */
enum { NAMESPACES_COPY_OFFSET = offsetof(struct disk_namespaces, count) };
int namespaces_gather(struct namespaces *n);
void namespaces_seal(struct namespaces *n, uint32_t crc);
