/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a volume's namespaces, with the sequence up to which each is purged. It is kept in
 * memory and in two files with the same content. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "store/volume/dir.h"
#include "store/volume/names.h"
#include "store/volume/types.h"

struct namespaces;

struct namespace
{
        struct store_namespace seen; /* the public part; the store keeps the counts */
        char *text; /* name and fingerprint as a file has them, then a NUL: does not change */
        uint16_t name_length, fingerprint_length;
        struct list_node dropped; /* in namespaces.dropped */
        struct name_node node;
        uint64_t pending; /* puts of the namespace that are in the index but not written yet */
        uint64_t purge_seq;
        uint64_t generation;   /* first generation of the files that contains the namespace */
        uint64_t lifetime_set; /* first generation with the present lifetime; 0 if that has not
                                  changed since opening */
        struct store_purge
                *sweep; /* the purge that counts its chunks as they are dropped; see purge.c */
};

/* Reads both files, or creates them. `reserve_bytes` is allocated for each at first. Sets *ret_lost
 * if neither file is whole, so that the table's chunks belong to no namespace. */
int namespaces_open(struct namespaces **ret, const struct dir *dir, uint64_t reserve_bytes,
                    bool *ret_lost, char ret_error[static STORE_ERROR_BYTES]);
struct namespaces *namespaces_free(struct namespaces *n);
/* Writes both files now if anything changed; used while there is no I/O to wait for. Returns 0 or
 * -errno. */
int namespaces_write_now(struct namespaces *n);
/* Sets the I/O. `volume` is the files' volume in kio. make_room() is called if the file system has
 * no room for a write; it returns whether another try is worthwhile. */
void namespaces_set_io(struct namespaces *n, struct kio *io, unsigned volume,
                       void (*progress)(void *userdata), bool (*make_room)(void *userdata),
                       void *userdata);

/* Returns the bytes of the limit that both files take. */
uint64_t namespaces_charged(const struct namespaces *n);

unsigned namespaces_count(const struct namespaces *n);
struct namespace *namespaces_get(const struct namespaces *n, uint32_t id);
struct namespace *namespaces_at(const struct namespaces *n, unsigned i);
uint64_t namespaces_max_seq(const struct namespaces *n); /* highest sequence of all purges */
/* Returns whether an entry of this sequence and namespace is dead, because it was purged or the
 * namespace is unknown. */
bool namespaces_is_dead(const struct namespaces *n, uint32_t id, uint64_t seq);
/* Excludes ids up to this one from new namespaces. */
void namespaces_reserve_id(struct namespaces *n, uint32_t id);
uint32_t namespaces_next_id(const struct namespaces *n);
struct namespace *namespaces_find(const struct namespaces *n, uint16_t tenant, const char *name);
/* Adds a namespace that another volume of the store has; written with the next change. `room` and
 * `seq` are as below. Returns 0 or -errno. */
int namespaces_adopt(struct namespaces *n, const struct store_namespace *ns, uint64_t room,
                     uint64_t seq);
/* Returns the lifetime as the files can store it, which may be rounded up. */
uint32_t namespaces_lifetime(uint32_t lifetime_s);
/* Records a lifetime that the other volumes have; written with the next change. */
void namespaces_note_lifetime(struct namespaces *n, struct namespace *ns, uint32_t lifetime_s);
/* Removes a namespace from the list, which is written with the next change. None of its chunks may
 * be in the index. */
void namespaces_drop(struct namespaces *n, struct namespace *ns);

/* Returns this volume's record of the others; see struct volume_set. The list owns it. */
const struct volume_set *namespaces_set(const struct namespaces *n);
/* Records the state of the other volumes. `emptied` also records that this volume was emptied for
 * the purges that it had missed. Written with the next change. */
void namespaces_note_set(struct namespaces *n, const struct volume_set *set, bool emptied);

/* Returns whether name and fingerprint are valid. */
bool namespaces_may_open(const struct store_namespace_open *req);
/* Queues the request. namespaces_reap() completes it, with `id` set if the result is 0 or
 * STORE_MISMATCH. `room` is the number of bytes that the files may grow. `seq` is the last sequence
 * that was given: table entries up to it under the id of a new namespace belonged to another
 * namespace, and are dead. */
void namespaces_open_one(struct namespaces *n, struct store_namespace_open *req, uint64_t room,
                         uint64_t seq);
/* Queues a purge. `set` is recorded with it and may be NULL; with a namespace id of 0 only `set` is
 * recorded. */
void namespaces_purge(struct namespaces *n, struct store_purge *req, uint64_t seq,
                      const struct volume_set *set);
/* Queues the removal of req->namespace_id from the list, like namespaces_purge(). */
void namespaces_remove(struct namespaces *n, struct store_purge *req, const struct volume_set *set);
/* Counts of purges: requested, and completed in order. */
struct namespaces_purges {
        uint64_t begun, over;
        uint64_t lost; /* last generation with a purge that could not be written */
};
/* Returns whether a purge could not be written and has not been written since, so that a crash
 * would undo it. */
bool namespaces_purge_is_lost(const struct namespaces *n);
const struct namespaces_purges *namespaces_purges(const struct namespaces *n);
/* Purges everything up to `seq`; written with the next change. */
void namespaces_purge_all(struct namespaces *n, uint64_t seq);

/* Starts the next write if one is needed. With `retry`, also retries a failed write whose time has
 * come. */
void namespaces_iterate(struct namespaces *n, uint64_t now_ns, bool retry);
/* Returns the CLOCK_MONOTONIC time of the next retry; 0 if nothing is to be retried. */
uint64_t namespaces_deadline_ns(const struct namespaces *n);
/* Calls complete() for the finished requests. Returns whether there were any. */
bool namespaces_reap(struct namespaces *n);
/* Returns the number of uncompleted requests and internal operations. */
uint64_t namespaces_pending(const struct namespaces *n);
uint64_t namespaces_sync_errors(const struct namespaces *n);
int namespaces_last_error(const struct namespaces *n);
