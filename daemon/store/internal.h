/* SPDX-License-Identifier: Apache-2.0 */
/* The store, its members and the functions that its files share. Private to these files, which use
 * volumes through volume.h; a volume's files know nothing of the store. Everything runs on the loop
 * thread unless marked otherwise.
 *
 *   store.c              prepare, open, iterate and close the store; statistics
 *   membership.c         which directories form one store, and which of them have missed a purge
 *   capacity.c           each volume's share of the limit and of tenants' limits
 *   placement.c          the volume of each chunk: put, find, get, drop, list
 *   fan-out.c            namespaces and purges: a request for each volume, one answer
 *   sync-all.c           syncs and settled drops: one pass over the volumes for all waiters
 *   membership-record.c  writes to stable storage which volumes have missed something
 *   namespaces.c         one list of namespaces, with the same ids on all volumes
 *   loans.c              which client reads which chunk directly from data files
 *   health.c             which volumes are in use: bypass, hang, suspend, resume
 *
 * Lifetime: store_prepare() creates struct store, and store_close() frees it. The volume of a
 * member is NULL until its directory could be opened; after that it is replaced only when the
 * volume is resumed. `up` names the volumes that may be used. */
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

enum { VOLUMES_MIN_LIMIT = 4 * 1024 * 1024 }; /* limit of each volume */

/* A namespace of the store. The list, each open in progress and each snapshot have a reference to
 * it, so its memory is not freed while it is used after its removal. The texts never change, and so
 * may be read on any thread. */
struct set_namespace {
        struct store_namespace seen;
        struct name_node node;
        unsigned refs;
        unsigned opens; /* opens in progress; the namespace is not removed during these */
        bool listed;
        bool refused; /* no volume took the namespace, but a snapshot has it */
};

/* The namespaces as passed to a volume's thread. */
struct namespaces_snapshot {
        unsigned n;
        struct store_namespace *seen; /* copies, which share the texts of `list` */
        struct set_namespace **list;
};

struct member {
        struct store *store;
        unsigned number;
        char *name;
        struct volume *volume; /* NULL if it could not be opened */
        enum store_volume_state state;
        char reason[STORE_ERROR_BYTES];
        uint64_t since_ms, bypasses;
        uint64_t limit, entries;
        uint64_t threshold; /* the volume gets keys drawn below this and not below the preceding
                               volume's threshold */
        uint64_t puts_away; /* puts in flight to this volume whose placement is another one */
        bool news;          /* the bypass is still to be reported */
        bool hung;          /* the waiters for its device have been answered */
        bool missed;        /* a purge or drop happened while the volume was offline */
        bool unsure; /* a dropped chunk may be on this volume, and no other volume can record that
                      */
        bool suspending; /* being suspended: waits until the volume is quiet */
        bool resting;    /* the volume is quiet and is being synced */
        bool calling;
        struct kio_request call;
        struct store_device *device; /* the request that waits for a suspend or resume */

        /* State of a resume. The volume's thread must not read what the loop thread changes
         * meanwhile, so it gets copies of the store's state. */
        struct volume *next;
        unsigned set_count;
        unsigned numbers[STORE_MAX_VOLUMES]; /* number in the set, plus 1, of each other volume that
                                                could be opened; else 0 */
        struct namespaces_snapshot *snapshot;
        struct volume_join join;
        uint64_t join_changes;
        unsigned join_rounds;
        bool numbering; /* the other volumes are recording the number that it gets */
        unsigned given; /* that number plus 1; 0 if none, or once the volume has been up */
        int leave_result;
        bool emptied;
        char error[STORE_ERROR_BYTES];
};

struct tenant_limit {
        uint16_t tenant;
        uint64_t bytes;
};

/* One pass over all volumes, for all waiters; see sync-all.c. */
enum sync_all_kind { SYNC_ALL_SYNC, SYNC_ALL_DROPS, SYNC_ALL_END };

struct sync_all {
        enum sync_all_kind kind;
        struct list_node waiting, flying; /* struct store_sync */
        bool running;
        uint32_t volumes_waiting; /* volumes that have not answered, by bit */
        unsigned succeeded;       /* requests that ended with 0 */
        int result;               /* result of the first request that failed */
        bool bad; /* a request failed or was abandoned on a volume that is now offline */
        bool noting;
        uint64_t note_failures; /* record.failures when the pass asked for the record */
        struct sync_all_request {
                struct sync_all *pass;
                unsigned volume;
                struct store_put put;
        } requests[STORE_MAX_VOLUMES];
        struct store *store;
};

/* The write of the set's record to the volumes; see membership-record.c. */
struct membership_record {
        uint32_t waiting; /* volumes, by bit */
        uint64_t epoch;
        bool failed;
        uint64_t failures;
        struct membership_record_request {
                struct store *store;
                unsigned volume;
                struct store_purge purge;
        } requests[STORE_MAX_VOLUMES];
};

struct store {
        struct store_params params;
        char *policy;           /* policy at startup, which other threads read */
        const char *policy_now; /* present policy of the volumes in use */
        struct kio *io;
        struct volume_ops ops;
        struct member volumes[STORE_MAX_VOLUMES];
        unsigned n_volumes;
        uint32_t up; /* volumes in use, by bit */
        bool open, stopping, again;

        bool in_set; /* the store has, or once had, several volumes */
        uint8_t set[DISK_UUID_BYTES];
        struct key_secret placement; /* key of the placement hash: the set's uuid, so that
                                        placements never change */
        unsigned set_count;          /* number of volume numbers given out */
        struct volume_set sum;       /* the set's record, which all volumes are to store */
        uint64_t recorded_at;        /* epoch at which a volume last began to miss something */
        uint64_t noted_at; /* epoch up to which the volumes that are up have the record on disk */
        uint64_t missed;   /* volumes that are recorded as having missed something, by number in the
                              set */
        unsigned claimant; /* number of the volume that last gave an epoch */
        struct membership_record record;

        struct loan *loans; /* used by loans.c; NULL before the first loan */
        uint32_t loans_high, loans_free;
        struct store_loan_stats lent;
        uint32_t lent_files; /* last number that was given to a data file */

        struct set_namespace **namespaces; /* ascending by id */
        unsigned n_namespaces, namespaces_room;
        struct names names;
        uint32_t next_id, reused_id; /* last id that was assigned a second time */
        uint64_t changes;            /* version of the list of namespaces */
        unsigned n_lifetimes;        /* namespaces with a lifetime */
        uint64_t purges;
        uint64_t lost_drops; /* drops or purges that no other volume could record */

        struct tenant_limit *tenant_limits;
        unsigned n_tenant_limits;

        struct list_node watches; /* struct store_watch */

        struct list_node fan_outs;
        struct list_node removals; /* removals of namespaces that are not answered yet */
        struct list_node held;     /* opens of names that are being removed */
        struct list_node done;     /* struct fan_out, to be answered */
        struct sync_all passes[SYNC_ALL_END];
        uint64_t waiting; /* unanswered requests, including suspends and resumes */
        struct kio_request nudge_io;
        bool nudged;

        /* purge.c */
        struct kio_request sweep_io;
        struct histogram *sweep_times; /* NULL if not measured */
        bool sweeping;                 /* sweep_io is in flight */
        unsigned sweep_volume;         /* volume of the next step */
        unsigned expire_volume;        /* volume of the next step of the expiry walk */
};

static inline bool member_is_up(const struct store *s, unsigned i)
{
        return s->up & 1u << i;
}

/* Sets the reason; `text` may be the present one. */
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

/* Prepares a volume's directory, lock and superblock like startup. `lock_fd` is a lock that is
 * already held, or -1. Runs on any thread, while no other thread uses the volume. */
int store_prepare_volume(struct member *p, int lock_fd, struct volume **ret,
                         char ret_error[static STORE_ERROR_BYTES]);
/* Reports events and answers requests that are due. Called in an iteration, or, once the store
 * stops, after every completion. */
void store_reap(struct store *s);
/* Has store_reap() called: in this iteration or, once the store stops and no caller requests
 * iterations, soon. */
void store_nudge(struct store *s);

/* --- membership.c --- */

/* Return volume numbers as bits: all that were given out; and that of one volume, or, if its
 * superblock was not read, all numbers that belong to no other volume. */
uint64_t membership_bits_all(const struct store *s);
uint64_t membership_bits_of(const struct store *s, const struct member *p);

/* Checks that the volumes belong to one store and are distinct, and finds the set's uuid. */
int membership_check(struct store *s, char ret_error[static STORE_ERROR_BYTES]);
/* Makes a set of the volumes: chooses its uuid and announces the numbers of new volumes. */
int membership_found(struct store *s, char ret_error[static STORE_ERROR_BYTES]);
/* Copies limit and set into the superblock of `v`, which volume_open() writes. The set has given
 * out `set_count` numbers. Runs on any thread. */
void membership_prepare_superblock(const struct member *p, struct volume *v, unsigned set_count);
/* Called when all volumes that are up have been opened: gives each volume the others' records, and
 * empties the volumes that have missed something. */
int membership_join_all(struct store *s, char ret_error[static STORE_ERROR_BYTES]);

/* Record that volumes which are not up begin to miss something; membership-record.c writes the
 * record. No effect in a store that never had several volumes. */
void membership_record_missed(struct store *s, uint64_t bits);
void membership_volume_missed(struct store *s, struct member *p);
/* Record that the volumes which are not up miss a purge or the removal of a namespace. The requests
 * of that purge carry the new record to the volumes. */
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
/* Notes that a volume is up, and has the set's record on disk. */
void membership_is_back(struct store *s, struct member *p);
/* Return whether `set` says that the volume has missed something, and whether the volume knows
 * something that `set` does not. Run on any thread. */
bool membership_has_missed(const struct volume_set *set, struct volume *v);
bool membership_is_apart(const struct volume_set *set, struct volume *v);
/* Returns whether `p` has missed the removal of a namespace that `of` knows of. */
bool membership_has_missed_removal(const struct member *p, const struct member *of);

/* --- capacity.c --- */

/* Divides limit and entries among the volumes, including absent ones; calls
 * placement_set_thresholds(). */
void capacity_give_out(struct store *s);
/* Sets a volume's share of a tenant's limit. */
void capacity_limit_tenant(struct member *p, const struct tenant_limit *l);

/* --- placement.c --- */

void placement_set_thresholds(struct store *s);
/* Implement volume_ops.placement and .put_done; userdata is the store. */
unsigned placement_of(const void *userdata, uint32_t namespace_id, const struct key *key);
void placement_put_done(void *userdata, struct store_put *req);

/* --- purge.c --- */

/* Drops purged chunks for one step, and makes the next iteration come if there are more. */
void store_sweep(struct store *s);

/* --- fan-out.c --- */

/* Ends all waits for a volume. */
void fan_out_forget_volume(struct store *s, unsigned volume);
/* Answers all requests that are complete; sets `again` if there were any. */
void fan_out_answer_due(struct store *s);
void fan_out_fini(struct store *s);

/* --- sync-all.c --- */

void sync_all_init(struct store *s);
void sync_all_forget_volume(struct store *s, unsigned volume);
/* Begins waiting passes and answers complete ones; sets `again` if there were any. */
void sync_all_iterate(struct store *s);

/* --- membership-record.c --- */

/* Returns 0 if everything that was missed until now is on stable storage on all volumes that are
 * up; MEMBERSHIP_RECORD_WAITS if not yet, and then store_nudge() follows; -EIO if it cannot be
 * written. `noting` and `failures` belong to the waiter, and are false and 0 at first. */
enum { MEMBERSHIP_RECORD_WAITS = 1 };
int membership_record_settle(struct store *s, bool *noting, uint64_t *failures);
void membership_record_forget_volume(struct store *s, unsigned volume);

/* --- namespaces.c --- */

/* Returns NULL if there is none. */
struct set_namespace *set_namespaces_by_id(const struct store *s, uint32_t id);
struct set_namespace *set_namespaces_ref(struct set_namespace *ns);
void set_namespaces_unref(struct set_namespace *ns);
/* Finds the namespace of an open, or creates it in memory. Returns 0 or STORE_MISMATCH with a
 * reference to it, and STORE_MISS or -errno without one. */
int set_namespaces_prepare(struct store *s, const struct store_namespace_open *req,
                           struct set_namespace **ret);
/* Called after an open failed: removes the namespace from the list unless a volume has it, or
 * another open waits. */
void set_namespaces_forget(struct store *s, struct set_namespace *ns);
/* Removes a namespace from the list. */
void set_namespaces_remove(struct store *s, struct set_namespace *ns);
/* Makes a snapshot of the list, with references, and fills in what a joining volume must know. */
int set_namespaces_snapshot(const struct store *s, struct namespaces_snapshot **ret,
                            struct volume_join *ret_join);
/* Frees a snapshot; NULL is allowed. */
struct namespaces_snapshot *set_namespaces_release(struct store *s,
                                                   struct namespaces_snapshot *snapshot);
/* Merges a volume's list into the store's. Returns 0, or -EUCLEAN if they contradict each other. If
 * `behind` is set, the volume has missed removals, so its namespaces that may have been removed, or
 * that contradict the list, do not count. */
int set_namespaces_learn(struct store *s, const struct member *p, bool behind,
                         char ret_error[static STORE_ERROR_BYTES]);
void set_namespaces_fini(struct store *s);

/* --- loans.c --- */

/* Makes all loans of a volume void, because it is being replaced or closed. */
void loans_forget_volume(struct store *s, unsigned volume);

/* --- health.c --- */

/* Reports an event of a volume to the store's owner, if it has set a callback. */
void health_tell(struct member *p, enum store_volume_event event, const char *text);
/* Reports that the volume is new, and the losses that opening it has found. */
void health_tell_losses(struct member *p);
/* Sets the state of a volume. No other function changes `up`. */
void health_set_state(struct member *p, enum store_volume_state state, const char *reason);
/* Implement volume_ops.bypassed, .doubtful and .full; userdata is the store. */
void health_on_bypassed(void *userdata, struct volume *v);
void health_on_doubtful(void *userdata, struct volume *v);
void health_on_full(void *userdata, struct volume *v, bool full);
void health_on_gave_up(void *userdata, struct volume *v, uint32_t segment, uint64_t chunks);
void health_on_astray(void *userdata, struct volume *v, const char *reason);

/* Returns whether startup may continue without a volume that failed with `r`. It may if there are
 * several volumes and `r` is not a mistake that must be reported. */
bool health_may_start_without(const struct store *s, int r);
/* Bypasses a volume that cannot be used, with p->error as the reason. Returns 0, or `r` if the
 * other volumes cannot continue without it. */
int health_leave_out(struct member *p, int r, char ret_error[static STORE_ERROR_BYTES]);

/* Called by store_reap(): report a bypass, and continue a suspend. */
void health_tell_news(struct member *p);
void health_rest_when_quiet(struct member *p);
/* Continues a resume whose volume number has been recorded; store_reap() calls it. */
void health_number_when_marked(struct member *p);
/* Ends a suspend or resume that has not completed, when the store stops. */
void health_stop(struct member *p);
