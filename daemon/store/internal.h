/* SPDX-License-Identifier: Apache-2.0 */
/* The store, its members and the functions that the store's files share. Private to these files,
 * which use volumes through volume.h; a volume's files know nothing of the store. Everything runs
 * on the loop thread unless marked otherwise.
 *
 *   store.c              prepare, open, iterate and close the store; statistics
 *   membership.c         which directories form one store, and which of them have missed a purge
 *   capacity.c           each volume's share of the limit and of tenants' limits
 *   placement.c          the volume of each chunk: put, find, get, drop, list
 *   fan-out.c            namespaces and purges: a request for each volume, one answer
 *   sync-all.c           syncs and settled drops: one pass over the volumes for all waiters
 *   membership-record.c  writes to stable storage which volumes have missed something
 *   namespaces.c         one list of namespaces, with the same ids on all volumes
 *   purge.c expire.c     steps that remove purged and expired chunks, one volume at a time
 *   loans.c              loans: chunks that clients read directly from data files
 *   health.c             which volumes are in use: bypass, hang, suspend, resume
 *
 * Lifetime: store_prepare() creates struct store, and store_close() frees it. The volume of a
 * member is NULL if its directory could not be opened, or if startup has left the volume out; it is
 * replaced when the volume is resumed. `up` has a bit for each volume that is in use; the others
 * are offline.
 *
 * Terms. The *set* is all volumes that have formed this store; each has a number in it, which is
 * never given to another one. A *claim* on a volume says that the volume has missed a purge, a drop
 * or the removal of a namespace, and must be emptied before it is used again. A volume is *emptied*
 * when all its chunks are dropped. A claim consists of an *epoch*, which is a rising
 * number, and the *claimant*, the volume that has given the epoch. The *record* is the table of all
 * claims, of which each volume has a copy (membership.c). */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/list.h"
#include "checked.h"
#include "io/io.h"
#include "key.h"
#include "store/volume/dir.h"
#include "store/volume/format.h"
#include "store/volume/names.h"
#include "store/store.h"
#include "store/volume/volume.h"

enum { VOLUMES_MIN_LIMIT = 4 * 1024 * 1024 }; /* smallest limit of a volume, in bytes */

/* A namespace of the store. The list, each open or removal in progress and each snapshot have a
 * reference to it, so its memory is not freed while it is used after its removal. The texts never
 * change, and so may be read on any thread. */
struct set_namespace {
        struct store_namespace seen; /* the part that callers of the store see */
        struct name_node node;
        unsigned refs;
        unsigned opens; /* number of opens in progress, during which the namespace cannot be removed
                         */
        bool listed;    /* the namespace is in store.namespaces */
        bool refused; /* the namespace could be created on no volume, but stays in the list because
                         a snapshot has it */
};

/* A copy of the list of namespaces, for a volume's blocking-call thread. */
struct namespaces_snapshot {
        unsigned n;
        struct store_namespace *seen; /* copies, which share the texts of `list` */
        struct set_namespace **list;  /* the namespaces, with a reference to each */
};

/* A volume as a member of the store: its state, its share of the limits, and a suspend or resume in
 * progress. */
struct member {
        struct store *store;
        unsigned number; /* index in store.volumes */
        char *name;
        struct volume *volume; /* the volume, which is open unless volume_open() failed; NULL if
                                  its directory could not be opened or startup has left it out */
        enum store_volume_state state;
        char reason[STORE_ERROR_BYTES];
        uint64_t since_ms,
                bypasses; /* Unix time when the state began (0: startup); bypasses and suspends */
        uint64_t limit, entries; /* the volume's shares: of the store's limit in bytes, and of its
                                    index entries */
        uint64_t threshold; /* the volume is the placement of keys for which the upper 32 bits of
                               the placement hash are below this number, but not below the
                               threshold of the volume before it */
        uint64_t puts_away; /* number of puts in flight to this volume whose placement is another
                               volume */
        bool news;   /* the volume was bypassed, and health_tell_news() has not reported that yet */
        bool hung;   /* the device hangs, and the requests that waited for it were answered */
        bool missed; /* the volume has missed a purge, drop or removal, and must be emptied before
                        it is used again */
        bool unsure; /* a chunk may be on this volume although it was dropped, and no other volume
                        can record the drop */
        bool suspending; /* the volume is being suspended: it is not used, and its operations in
                            progress continue */
        bool resting; /* the suspend is in its last step: the operations have ended, and the files
                         are being synced */
        bool calling; /* `call` is in flight on the volume's blocking-call thread */
        struct kio_request call;
        struct store_device *device; /* the admin's request for a suspend or resume that is in
                                        progress; NULL if there is none */

        /* State of a resume. `set_count`, `numbers`, `snapshot` and `join` are copies of the
         * store's state for the blocking-call thread, because the loop thread may change the
         * originals. */
        struct volume *next; /* the volume that is being opened, to replace `volume` */
        unsigned set_count;
        unsigned numbers[STORE_MAX_VOLUMES]; /* for each other volume, its number in the set plus 1;
                                                0 if it could not be opened */
        struct namespaces_snapshot *snapshot;
        struct volume_join join;
        uint64_t join_changes; /* store.changes when `snapshot` was made */
        unsigned join_rounds;  /* number of times that `next` was joined in this resume */
        bool numbering;        /* the other volumes are recording a new number for this volume */
        unsigned given; /* the new number plus 1; 0 if the volume got no new number, or has been in
                           use since */
        int leave_result; /* the resume's error, while the superblock of `next` is being marked */
        bool emptied;     /* chunks of `next`, or at startup of `volume`, were dropped, because it
                             had missed a purge or drop */
        char error[STORE_ERROR_BYTES]; /* the reason of the last failure */
};

struct tenant_limit {
        uint16_t tenant;
        uint64_t bytes;
};

/* A request to all volumes, made once for all callers that wait; see sync-all.c. */
enum sync_all_kind { SYNC_ALL_SYNC, SYNC_ALL_DROPS, SYNC_ALL_END };

struct sync_all {
        enum sync_all_kind kind;
        struct list_node waiting, flying; /* struct store_sync: requests that wait for the next
                                             pass; requests that the running pass serves */
        bool running;
        uint32_t volumes_waiting; /* volumes that have not answered, by bit */
        unsigned succeeded;       /* volumes whose request ended with 0 */
        int result;               /* result of the first request that failed on a volume in use */
        bool bad;    /* a request has failed, or was abandoned, on a volume that is now offline */
        bool noting; /* membership_record_settle() has begun to write the membership record for this
                        pass */
        uint64_t note_failures; /* store.record.failures when `noting` was set */
        struct sync_all_request {
                struct sync_all *pass;
                unsigned volume;
                struct store_put put;
        } requests[STORE_MAX_VOLUMES];
        struct store *store;
};

/* State of the write of the set's record of claims to the volumes; see membership-record.c. */
struct membership_record {
        uint32_t waiting;  /* volumes that have not stored the record yet, by bit */
        uint64_t epoch;    /* store.recorded_at when the write began */
        bool failed;       /* the write in flight has failed on a volume */
        uint64_t failures; /* number of writes that have failed */
        struct membership_record_request {
                struct store *store;
                unsigned volume;
                struct store_purge purge;
        } requests[STORE_MAX_VOLUMES];
};

struct store {
        struct store_params params;
        char *policy;           /* eviction policy at startup; other threads may read it */
        const char *policy_now; /* eviction policy that was set last; a volume without memory for
                                   the change keeps its previous one */
        struct kio *io;
        struct volume_ops ops;
        struct member volumes[STORE_MAX_VOLUMES];
        unsigned n_volumes;
        uint32_t up;                /* volumes in use, by bit */
        bool open, stopping, again; /* `again`: store_reap() must run once more */

        bool in_set; /* the store has, or once had, several volumes */
        uint8_t set[DISK_UUID_BYTES];
        struct key_secret
                placement; /* key of the placement hash: the uuid of the set, which never changes */
        unsigned set_count; /* number of volume numbers given out */
        struct volume_set
                sum; /* the set's record of claims (membership.c), which all volumes store */
        uint64_t recorded_at; /* epoch of the last claim, made when a volume missed something; see
                                 membership.c */
        uint64_t noted_at;    /* epoch of the record that all volumes in use have on disk */
        uint64_t missed;      /* offline volumes on which a claim was made since a volume last went
                                 offline, one bit for each number in the set */
        unsigned claimant;    /* number, in the set, of the volume that last gave an epoch */
        struct membership_record record;

        struct loan *loans;              /* used by loans.c; NULL before the first loan */
        uint32_t loans_high, loans_free; /* number of elements of `loans` ever used; index of the
                                            first free one */
        struct store_loan_stats lent;
        uint32_t lent_files; /* the last number that was given to a lent data file */

        struct set_namespace **namespaces; /* the list of namespaces, in ascending order of id */
        unsigned n_namespaces, namespaces_room;
        struct names names;
        uint32_t next_id, reused_id; /* `next_id`: id of the next namespace; `reused_id`: the last
                                        id of a removed namespace that was assigned again */
        uint64_t changes; /* version of the list of namespaces; see store_namespaces_version() */
        unsigned n_lifetimes; /* number of namespaces with a lifetime */
        uint64_t purges;      /* number of purges since startup; see store_put.purges */
        uint64_t lost_drops;  /* number of drops and purges that a store of one volume has failed to
                                 make permanent */

        struct tenant_limit *tenant_limits;
        unsigned n_tenant_limits;

        struct list_node watches; /* struct store_watch: all watches that were added */

        struct list_node fan_outs;
        struct list_node
                removals; /* struct fan_out: removals of namespaces that are not answered yet */
        struct list_node held; /* struct fan_out: opens that wait, because a namespace of the same
                                  name is being removed */
        struct list_node done; /* struct fan_out: requests that are complete, and to be answered */
        struct sync_all passes[SYNC_ALL_END];
        uint64_t waiting; /* number of unanswered requests, including suspends and resumes */
        struct kio_request nudge_io; /* does nothing; its completion calls store_reap() */
        bool nudged;                 /* nudge_io is in flight */

        /* used by purge.c and expire.c */
        struct kio_request sweep_io;
        struct histogram *sweep_times; /* histogram of store_time_sweeps(); NULL if there is none */
        bool sweeping;          /* `sweep_io`, whose completion continues the sweep, is in flight */
        unsigned sweep_volume;  /* index of the volume whose sweep makes the next step */
        unsigned expire_volume; /* index of the volume at which the expiry walk continues */
};

static inline bool member_is_up(const struct store *s, unsigned i)
{
        return s->up & 1u << i;
}

/* Sets the reason of the volume's state. `text` may be p->reason itself. */
static inline void member_set_reason(struct member *p, const char *text)
{
        size_t n = MIN(strlen(text), sizeof(p->reason) - 1);

        memmove(p->reason, text, n);
        p->reason[n] = '\0';
}

static inline bool member_has_volume(const struct store *s, unsigned i)
{
        return s->volumes[i].volume;
}

/* --- store.c --- */

/* Prepares a volume as at startup: opens and locks its directory and reads its superblock.
 * `lock_fd` is the descriptor of a lock that is already held, or -1. Runs on any thread, while no
 * other thread uses the volume. */
int store_prepare_volume(struct member *p, int lock_fd, struct volume **ret,
                         char ret_error[static STORE_ERROR_BYTES]);
/* Reports changes of volumes and completes the requests that are due. Called in every iteration
 * and, once the store stops, after every completion. */
void store_reap(struct store *s);
/* Requests a call of store_reap(): in the present or next iteration or, once the store stops and is
 * no longer iterated, by a completion. */
void store_nudge(struct store *s);

/* --- membership.c --- */

/* Return volume numbers of the set as bits. membership_bits_all() returns all numbers that were
 * given out. membership_bits_of() returns the number of one volume or, if its superblock could not
 * be read, all numbers that belong to no other volume. */
uint64_t membership_bits_all(const struct store *s);
uint64_t membership_bits_of(const struct store *s, const struct member *p);

/* Checks that the volumes belong to one store and are distinct, and finds the set's uuid. */
int membership_check(struct store *s, char ret_error[static STORE_ERROR_BYTES]);
/* Forms a set of the volumes: chooses a uuid if they have none, and records the numbers of new
 * volumes in the superblocks of the existing ones. */
int membership_found(struct store *s, char ret_error[static STORE_ERROR_BYTES]);
/* Sets the limits of `v`, and copies the set's state into its superblock, which volume_open()
 * writes. `set_count`: how many volume numbers the set has given out. Runs on any thread. */
void membership_prepare_superblock(const struct member *p, struct volume *v, unsigned set_count);
/* Called when all volumes that are up have been opened: gives each volume the others' records, and
 * empties the volumes that have missed something. */
int membership_join_all(struct store *s, char ret_error[static STORE_ERROR_BYTES]);

/* Record that offline volumes, by number in the set or by member, have missed a drop or purge;
 * membership-record.c writes the record to the disks. In a store that never had several volumes,
 * membership_record_missed() has no effect, and membership_volume_missed() only sets member.unsure
 * and counts in store.lost_drops. */
void membership_record_missed(struct store *s, uint64_t bits);
void membership_volume_missed(struct store *s, struct member *p);
/* Record that the offline volumes miss a purge or the removal of a namespace. The requests for the
 * purge or removal carry the new record to the other volumes. */
void membership_record_purge(struct store *s);
void membership_record_removal(struct store *s);
/* Returns whether the record on disk is older than `recorded_at`, so that a drop answered now might
 * be undone. */
static inline bool membership_wants_record(const struct store *s)
{
        return s->recorded_at > s->noted_at;
}
/* Merges a volume's record into the set's, at startup or after a resume. */
void membership_learn(struct store *s, const struct volume *v);
/* Notes that a volume is in use again, and has the set's record on disk. */
void membership_is_back(struct store *s, struct member *p);
/* membership_has_missed() returns whether `set` has a claim on the volume for which the volume has
 * not been emptied. membership_is_apart() returns whether the volume has a record that `set` lacks,
 * so it may have been used without the others. Both run on any thread. */
bool membership_has_missed(const struct volume_set *set, struct volume *v);
bool membership_is_apart(const struct volume_set *set, struct volume *v);
/* Returns whether `p` has missed the removal of a namespace that `of` has recorded. Returns false
 * if `p` has chunks and is not going to be emptied. */
bool membership_has_missed_removal(const struct member *p, const struct member *of);

/* --- capacity.c --- */

/* Divides the store's limit and index entries among the volumes, including those that could not be
 * opened, and calls placement_set_thresholds(). */
void capacity_give_out(struct store *s);
/* Sets a volume's share of a tenant's limit. */
void capacity_limit_tenant(struct member *p, const struct tenant_limit *l);

/* --- placement.c --- */

void placement_set_thresholds(struct store *s);
/* Implement volume_ops.placement and .put_done; userdata is the store. */
unsigned placement_of(const void *userdata, uint32_t namespace_id, const struct key *key);
void placement_put_done(void *userdata, struct store_put *req);

/* --- purge.c --- */

/* Removes purged chunks from the index for one step, and requests another iteration if more are
 * left. */
void store_sweep(struct store *s);

/* --- fan-out.c --- */

/* Makes all fan-outs stop waiting for a volume, because it was bypassed. */
void fan_out_forget_volume(struct store *s, unsigned volume);
/* Answers all requests that are complete; sets store.again if there were any. */
void fan_out_answer_due(struct store *s);
void fan_out_fini(struct store *s);

/* --- sync-all.c --- */

void sync_all_init(struct store *s);
void sync_all_forget_volume(struct store *s, unsigned volume);
/* Begins passes that requests wait for, and answers the requests of complete ones; sets store.again
 * if there were any. */
void sync_all_iterate(struct store *s);

/* --- membership-record.c --- */

/* Makes the record of what offline volumes have missed permanent. Returns 0 if all volumes in use
 * have the present record on stable storage; MEMBERSHIP_RECORD_WAITS if it is being written:
 * store_nudge() follows, then call again; or -EIO if it cannot be written. `noting` and `failures`
 * keep the caller's state between the calls, and must be false and 0 at first. */
enum { MEMBERSHIP_RECORD_WAITS = 1 };
int membership_record_settle(struct store *s, bool *noting, uint64_t *failures);
void membership_record_forget_volume(struct store *s, unsigned volume);

/* --- namespaces.c --- */

/* Returns the namespace, or NULL if none has this id. */
struct set_namespace *set_namespaces_by_id(const struct store *s, uint32_t id);
struct set_namespace *set_namespaces_ref(struct set_namespace *ns);
void set_namespaces_unref(struct set_namespace *ns);
/* Finds the namespace that an open names, or creates it in memory. Returns 0 or STORE_MISMATCH with
 * a reference to the namespace, and STORE_MISS or -errno without one. */
int set_namespaces_prepare(struct store *s, const struct store_namespace_open *req,
                           struct set_namespace **ret);
/* Called after an open failed: removes the namespace from the list unless a volume has it, no
 * volume is up, another open of it is in progress, or a snapshot has it. In the last case
 * set_namespaces_release() calls this function again. */
void set_namespaces_forget(struct store *s, struct set_namespace *ns);
/* Removes a namespace from the list and releases the list's reference. */
void set_namespaces_remove(struct store *s, struct set_namespace *ns);
/* Makes a snapshot of the list, with references, and fills in the join parameters that follow from
 * the store's state. */
int set_namespaces_snapshot(const struct store *s, struct namespaces_snapshot **ret,
                            struct volume_join *ret_join);
/* Frees a snapshot; NULL is allowed. */
struct namespaces_snapshot *set_namespaces_release(struct store *s,
                                                   struct namespaces_snapshot *snapshot);
/* Merges a volume's list into the store's. Returns 0, -EUCLEAN if they contradict each other, or
 * -ENOMEM. If `behind` is set, the volume has missed removals, so those of its namespaces that may
 * have been removed, or that contradict the list, are ignored. */
int set_namespaces_learn(struct store *s, const struct member *p, bool behind,
                         char ret_error[static STORE_ERROR_BYTES]);
void set_namespaces_fini(struct store *s);

/* --- loans.c --- */

/* Makes all loans of chunks on a volume void, because the volume is being replaced or closed. */
void loans_forget_volume(struct store *s, unsigned volume);

/* --- health.c --- */

/* Reports an event of a volume through store_params.on_volume, if that callback is set. */
void health_tell(struct member *p, enum store_volume_event event, const char *text);
/* Reports what opening the volume has found: that the volume is new, data files that were copied,
 * and losses. */
void health_tell_losses(struct member *p);
/* Sets the state of a volume. No other function changes `up`. */
void health_set_state(struct member *p, enum store_volume_state state, const char *reason);
/* Implement the callbacks of the same names in struct volume_ops; `userdata` is the store. */
void health_on_bypassed(void *userdata, struct volume *v);
void health_on_doubtful(void *userdata, struct volume *v);
void health_on_full(void *userdata, struct volume *v, bool full);
void health_on_gave_up(void *userdata, struct volume *v, uint32_t segment, uint64_t chunks);
void health_on_astray(void *userdata, struct volume *v, const char *reason);

/* Returns whether startup may continue without a volume that failed with `r`. Startup may continue
 * if there are several volumes, and `r` is an error of the device and not of the configuration, of
 * the volume's contents or for lack of memory. */
bool health_may_start_without(const struct store *s, int r);
/* Closes and bypasses a volume that cannot be used at startup, with p->error as the reason. Returns
 * 0, or `r` without effect if startup may not continue without the volume. */
int health_leave_out(struct member *p, int r, char ret_error[static STORE_ERROR_BYTES]);

/* Called by store_reap(): health_tell_news() reports a bypass and ends all waits for the volume;
 * health_rest_when_quiet() continues a suspend once the volume's operations have ended. */
void health_tell_news(struct member *p);
void health_rest_when_quiet(struct member *p);
/* Continues a resume whose volume number has been recorded; store_reap() calls it. */
void health_number_when_marked(struct member *p);
/* Ends a suspend, or a resume that waits for its volume number, when the store stops. A call that
 * is in flight on the blocking-call thread ends the suspend or resume itself when it returns. */
void health_stop(struct member *p);
