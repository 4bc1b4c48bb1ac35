/* SPDX-License-Identifier: Apache-2.0 */
/* The list of namespaces and the functions that namespace.c and namespace-file.c share. Private to
 * both. */
#pragma once

#include <sys/uio.h>

#include "checked.h"
#include "store/volume/namespace.h"

enum writing { WRITING_NOTHING, WRITING_COPY, WRITING_BYTES, WRITING_SYNC };

struct namespaces {
        uint8_t uuid[DISK_UUID_BYTES];
        struct namespace **list; /* ascending by id */
        unsigned count, room;
        struct names names;
        uint32_t next_id;
        uint64_t purge_seq;
        struct volume_set set;
        unsigned number,
                given; /* the volume's number in the set; numbers given out when it was opened */
        unsigned set_numbers; /* numbers of volumes that have given epochs in `set`, or have epochs
                                 there */
        struct namespaces_purges purges;
        uint64_t bytes;   /* current length of a file */
        uint64_t reserve; /* bytes allocated for a file; grows with the longest list so far */

        uint64_t generation; /* generation of the list in memory */
        uint64_t durable;    /* latest generation that is synced in at least one file */
        uint64_t good[DISK_NAMESPACE_FILES]; /* synced generation of each file; 0 if unknown */
        uint64_t retry_ns, retry_pause_ns;   /* after a failed write; 0: none has failed since */
        int fds[DISK_NAMESPACE_FILES];

        struct kio *io;
        unsigned volume;
        void (*progress)(void *userdata);
        bool (*make_room)(void *userdata);
        unsigned tries; /* repetitions of the write in flight */
        void *userdata;
        struct kio_request request;
        enum writing writing;
        unsigned file; /* being written */
        uint64_t writing_generation;
        void *buf; /* the file's contents, assembled for the write */
        uint64_t buf_bytes;
        /* Sources of `buf`, copied when the write begins; see namespaces_gather() */
        struct disk_namespaces header;
        uint64_t tail[VOLUMES_SET_MAX + (VOLUMES_SET_MAX + 1) * VOLUMES_SET_MAX];
        struct disk_namespace *records;
        struct iovec *pieces;
        unsigned gather_room;
        struct list_node dropped; /* namespaces whose text may still be among the pieces */

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

/* Return the bytes of the missed epochs, and of the claims of each volume about each, in a file's
 * tail. */
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

/* Returns the largest length in bytes that a file can need, in whole pages. The claims of all
 * numbers are included from the start, because no claim can wait for room. */
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

/* namespace-file.c: a file is assembled in three steps, so that a worker can do the step whose cost
 * grows with the list. namespaces_gather() records in n->pieces what the file will hold; the
 * n->header.bytes - NAMESPACES_COPY_OFFSET bytes of these are copied to NAMESPACES_COPY_OFFSET in
 * n->buf; namespaces_seal() takes the CRC32C of the copied bytes. namespaces_gather() returns 0 or
 * -ENOMEM. */
enum { NAMESPACES_COPY_OFFSET = offsetof(struct disk_namespaces, count) };
int namespaces_gather(struct namespaces *n);
void namespaces_seal(struct namespaces *n, uint32_t crc);
