/* SPDX-License-Identifier: Apache-2.0 */
/* Namespaces: which there are, and up to which sequence they are purged. In memory, and in two
 * files that hold the same. Loop thread. */
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
        uint64_t pending; /* puts of it that are in the index and not written yet */
        uint64_t purge_seq;
        uint64_t generation;       /* first generation of the files that contains the namespace */
        uint64_t lifetime_set;     /* ... and its lifetime; 0: since they were opened the same */
        struct store_purge *sweep; /* that counts its chunks as they are dropped; see purge.c */
};

/* Reads both files, or makes them. `reserve_bytes`: what is allocated of each from the start.
 * *ret_lost: neither is whole: what the table holds is unreferenced. */
int namespaces_open(struct namespaces **ret, const struct dir *dir, uint64_t reserve_bytes,
                    bool *ret_lost, char ret_error[static STORE_ERROR_BYTES]);
struct namespaces *namespaces_free(struct namespaces *n);
/* Writes both now, if anything changed: for opening, when there is no I/O to wait for. */
int namespaces_write_now(struct namespaces *n);
/* `volume`: the one that the files lie on, for kio. */
/* `make_room`: the file system has no room for a write; returns whether it is worth another try. */
void namespaces_set_io(struct namespaces *n, struct kio *io, unsigned volume,
                       void (*progress)(void *userdata), bool (*make_room)(void *userdata),
                       void *userdata);

/* Returns the bytes of the limit that both files take. */
uint64_t namespaces_charged(const struct namespaces *n);

unsigned namespaces_count(const struct namespaces *n);
struct namespace *namespaces_get(const struct namespaces *n, uint32_t id);
struct namespace *namespaces_at(const struct namespaces *n, unsigned i);
uint64_t namespaces_max_seq(const struct namespaces *n); /* highest sequence of all purges */
/* Is an entry of this sequence in this namespace dead, by purges or because it is unknown? */
bool namespaces_is_dead(const struct namespaces *n, uint32_t id, uint64_t seq);
/* Excludes ids up to this one from new namespaces. */
void namespaces_reserve_id(struct namespaces *n, uint32_t id);
uint32_t namespaces_next_id(const struct namespaces *n);
struct namespace *namespaces_find(const struct namespaces *n, uint16_t tenant, const char *name);
/* Makes one that another volume of the store has; written with the next change. `room` and `seq` as
 * below. */
int namespaces_adopt(struct namespaces *n, const struct store_namespace *ns, uint64_t room,
                     uint64_t seq);
/* Returns the lifetime as the files can store it, which may be rounded up. */
uint32_t namespaces_lifetime(uint32_t lifetime_s);
/* The other volumes of the store say so; written with the next change. */
void namespaces_note_lifetime(struct namespaces *n, struct namespace *ns, uint32_t lifetime_s);
/* Takes it off the list, which is written with the next change. Nothing of it may be in the index.
 */
void namespaces_drop(struct namespaces *n, struct namespace *ns);

/* Returns this volume's record of the others; see struct volume_set. The list owns it. */
const struct volume_set *namespaces_set(const struct namespaces *n);
/* Records the state of the other volumes. `emptied` also records that this volume was emptied for
 * the purges that it had missed. Written with the next change. */
void namespaces_note_set(struct namespaces *n, const struct volume_set *set, bool emptied);

/* Returns whether name and fingerprint are valid. */
bool namespaces_may_open(const struct store_namespace_open *req);
/* Queues the request: namespaces_reap() completes it, with `id` set where the result is 0 or
 * STORE_MISMATCH. `room`: bytes that the files may grow. `seq`: the last sequence that was given.
 * What the table has under the id of a new namespace up to that one was another's, and is dead. */
void namespaces_open_one(struct namespaces *n, struct store_namespace_open *req, uint64_t room,
                         uint64_t seq);
/* `set`: what is noted with it; may be NULL. A namespace id of 0 notes only that. */
void namespaces_purge(struct namespaces *n, struct store_purge *req, uint64_t seq,
                      const struct volume_set *set);
/* Queues the removal of req->namespace_id from the list, like namespaces_purge(). */
void namespaces_remove(struct namespaces *n, struct store_purge *req, const struct volume_set *set);
/* Purges asked for; of these, from the first on, those that are over. */
struct namespaces_purges {
        uint64_t begun, over;
        uint64_t lost; /* generation of the last one of something that could not be written */
};
/* Could one not be written, nor has it been since? Then a kill takes it back. */
bool namespaces_purge_is_lost(const struct namespaces *n);
const struct namespaces_purges *namespaces_purges(const struct namespaces *n);
/* Everything up to `seq` is dead; written with the next change. */
void namespaces_purge_all(struct namespaces *n, uint64_t seq);

/* Starts the next write if one is needed. `retry`: also one that failed before, when its time has
 * come. */
void namespaces_iterate(struct namespaces *n, uint64_t now_ns, bool retry);
/* Returns the CLOCK_MONOTONIC time of the next retry; 0 if nothing is to be retried. */
uint64_t namespaces_deadline_ns(const struct namespaces *n);
/* Calls complete() for the finished requests. Returns whether there were any. */
bool namespaces_reap(struct namespaces *n);
/* Requests not completed, and own operations. */
uint64_t namespaces_pending(const struct namespaces *n);
uint64_t namespaces_sync_errors(const struct namespaces *n);
int namespaces_last_error(const struct namespaces *n);
