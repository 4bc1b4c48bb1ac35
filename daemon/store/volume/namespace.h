/* SPDX-License-Identifier: Apache-2.0 */
/* The list of a volume's namespaces, with the sequence up to which each is purged. The list is kept
 * in memory and in two files with the same content. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "store/volume/dir.h"
#include "store/volume/names.h"
#include "store/volume/types.h"

struct namespaces;

struct namespace
{
        struct store_namespace seen; /* the part that callers of the store see; the volume's other
                                        files maintain its counts */
        char *text; /* name and fingerprint as they are in a file, then a NUL; never changes */
        uint16_t name_length, fingerprint_length;
        struct list_node dropped; /* in namespaces.dropped, after the namespace was removed */
        struct name_node node;
        uint64_t pending;   /* number of puts of the namespace that are in the index but not written
                               yet */
        uint64_t purge_seq; /* chunks up to this sequence are purged */
        uint64_t generation;   /* generation of the first list with the namespace */
        uint64_t lifetime_set; /* generation of the first list with the present lifetime; 0 if the
                                  lifetime has not changed since the volume was opened */
        struct store_purge *sweep; /* the purge that counts the namespace's chunks as they are
                                      removed from the index; see purge.c */
};

/* Reads both files, and creates those that are missing, with `reserve_bytes` each. Sets *ret_lost
 * to whether neither file is whole although the volume is not new, so that the table's chunks
 * belong to no namespace. */
int namespaces_open(struct namespaces **ret, const struct dir *dir, uint64_t reserve_bytes,
                    bool *ret_lost, char ret_error[static STORE_ERROR_BYTES]);
struct namespaces *namespaces_free(struct namespaces *n);
/* Writes the list to both files at once if it has changed. Blocks; used while the volume has no I/O
 * in flight. Returns 0 if at least one file has the list on stable storage, otherwise -errno. */
int namespaces_write_now(struct namespaces *n);
/* Sets how the list is written from now on. `volume` is the number of the volume in kio. progress()
 * is called after every completed operation. make_room() is called if the file system has no room
 * for a write, and returns whether the write should be tried again. */
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
/* Adds a namespace that another volume of the store has. The list is written with the next change.
 * `room` and `seq` are as for namespaces_open_one(). Returns 0 or -errno. */
int namespaces_adopt(struct namespaces *n, const struct store_namespace *ns, uint64_t room,
                     uint64_t seq);
/* Returns the lifetime as the files can store it, which may be rounded up. */
uint32_t namespaces_lifetime(uint32_t lifetime_s);
/* Sets a namespace's lifetime to that of the other volumes. The list is written with the next
 * change. */
void namespaces_note_lifetime(struct namespaces *n, struct namespace *ns, uint32_t lifetime_s);
/* Removes a namespace from the list. None of its chunks may be in the index. The list is written
 * with the next change. */
void namespaces_drop(struct namespaces *n, struct namespace *ns);

/* Returns what this volume has recorded about the set; see struct volume_set. The list owns the
 * result. */
const struct volume_set *namespaces_set(const struct namespaces *n);
/* Takes over the record of the set. With `emptied`, also records that this volume was emptied for
 * the purges that it had missed. The list is written with the next change. */
void namespaces_note_set(struct namespaces *n, const struct volume_set *set, bool emptied);

/* Returns whether name and fingerprint are valid. */
bool namespaces_may_open(const struct store_namespace_open *req);
/* Queues the request. namespaces_reap() completes it, with `id` set if the result is 0 or
 * STORE_MISMATCH. `room` is the number of bytes that the files may grow. `seq` is the last sequence
 * that was given: table entries up to it under the id of a new namespace belonged to another
 * namespace, and are dead. */
void namespaces_open_one(struct namespaces *n, struct store_namespace_open *req, uint64_t room,
                         uint64_t seq);
/* Purges at sequence `seq`, in memory at once, and queues the request until the list is written.
 * `set`, which may be NULL, is written together with the purge. If req->namespace_id is 0 and
 * req->all is not set, only `set` is written. */
void namespaces_purge(struct namespaces *n, struct store_purge *req, uint64_t seq,
                      const struct volume_set *set);
/* Removes req->namespace_id from the list in memory at once, and queues the request, which
 * completes like a purge once a list without the namespace is written. */
void namespaces_remove(struct namespaces *n, struct store_purge *req, const struct volume_set *set);
/* Number of requests of namespaces_purge() and namespaces_remove(), and of those that have ended,
 * successfully or not; they end in order. */
struct namespaces_purges {
        uint64_t begun, over;
        uint64_t lost; /* generation of the last list with a purge that could not be written */
};
/* Returns whether a purge could not be written, and no later write of the list has succeeded. A
 * crash would undo such a purge. */
bool namespaces_purge_is_lost(const struct namespaces *n);
const struct namespaces_purges *namespaces_purges(const struct namespaces *n);
/* Purges everything up to `seq`. The list is written with the next change. */
void namespaces_purge_all(struct namespaces *n, uint64_t seq);

/* Starts a write if the list has changed. With `retry`, also starts the retry of a failed write
 * once its time has come. */
void namespaces_iterate(struct namespaces *n, uint64_t now_ns, bool retry);
/* Returns the CLOCK_MONOTONIC time of the next retry; 0 if nothing is to be retried. */
uint64_t namespaces_deadline_ns(const struct namespaces *n);
/* Calls complete() for the finished requests. Returns whether there were any. */
bool namespaces_reap(struct namespaces *n);
/* Returns the number of uncompleted requests and internal operations. */
uint64_t namespaces_pending(const struct namespaces *n);
uint64_t namespaces_sync_errors(const struct namespaces *n);
int namespaces_last_error(const struct namespaces *n);
