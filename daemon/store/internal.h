/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the store share that make one store of several volumes: the store itself, a
 * volume of it, and what each file offers the others. Private to these files. They use a
 * volume through volume.h; the files of a volume know nothing of them. All of it runs on the loop
 * thread, but for what is marked.
 *
 *   store.c              the door: prepare, open, iterate, close; numbers
 *   membership.c         which directories are one store, and which of them have missed a purge
 *   capacity.c           what each volume may hold of the limit, and of a tenant's
 *   placement.c          which volume a chunk goes to and is looked for: put, find, get, drop, list
 *   fan-out.c            namespaces and purges: a part for each volume, one answer
 *   sync-all.c           syncs and settled drops: one pass over the volumes for all waiters
 *   membership-record.c  which volumes have missed something, to stable storage
 *   namespaces.c         one list of namespaces, with the same ids on all volumes
 *   loans.c              who reads which chunk from the data files by itself
 *   health.c             which volumes are used: bypass, hang, suspend, resume
 *
 * Lifetime: struct store is made by store_prepare() and freed by store_close(). The volume of a
 * member is NULL as long as its directory could not be opened; once there, it is replaced only when
 * the volume is resumed. `up` says which volumes may be asked for anything. */
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

enum { VOLUMES_MIN_LIMIT = 4 * 1024 * 1024 }; /* of each */

/* A namespace of the store. The list has a reference, each open under way, and each snapshot:
 * memory that is referred to is not freed when the namespace is forgotten or removed. The texts
 * never change, and so may be read on any thread. */
struct set_namespace {
        struct store_namespace seen;
        struct name_node node;
        unsigned refs;
        unsigned opens; /* under way: it is not removed meanwhile */
        bool listed;
        bool refused; /* no volume took it, but a snapshot has it */
};

/* The namespaces as handed to a volume, on its own thread. */
struct namespaces_snapshot {
        unsigned n;
        struct store_namespace *seen; /* copies; the texts are those of `list` */
        struct set_namespace **list;
};

struct member {
        struct store *store;
        unsigned number;
        char *name;
        struct volume *volume; /* NULL: it could not be opened */
        enum store_volume_state state;
        char reason[STORE_ERROR_BYTES];
        uint64_t since_ms, bypasses;
        uint64_t limit, entries;
        uint64_t threshold; /* placements drawn below it, and not below the one before, are here */
        uint64_t puts_away; /* in flight to it, whose placement is elsewhere */
        bool news;          /* its bypass is still to be reported */
        bool hung;          /* the waiters for its device have been answered */
        bool missed;        /* something was purged or dropped while it was offline */
        bool unsure; /* something was dropped that may be there; no other volume can record it */
        bool suspending; /* until it is quiet */
        bool resting;    /* it is, and is being synced */
        bool calling;
        struct kio_request call;
        struct store_device *device; /* the request that waits for a suspend or resume */

        /* Resuming. */
        struct volume *next;
        struct namespaces_snapshot *snapshot;
        struct volume_join join;
        uint64_t join_changes;
        unsigned join_rounds;
        bool numbering; /* the others write down that it is given a number in the set */
        unsigned given; /* ... which counts from 1; 0: none, or it has been up with it */
        int leave_result;
        bool emptied;
        char error[STORE_ERROR_BYTES];
};

struct tenant_limit {
        uint16_t tenant;
        uint64_t bytes;
};

/* All volumes once, for all waiters: see sync-all.c. */
enum sync_all_kind { SYNC_ALL_SYNC, SYNC_ALL_DROPS, SYNC_ALL_END };

struct sync_all {
        enum sync_all_kind kind;
        struct list_node waiting, flying; /* struct store_put */
        bool running;
        uint32_t parts_waiting; /* volumes, by bit */
        unsigned well;          /* parts that came back with 0 */
        int result;             /* the first that did not */
        bool bad;               /* a part was lost, or failed, on a volume that is offline by now */
        bool noting;
        uint64_t note_failures; /* as of when it asked for a note */
        struct sync_all_part {
                struct sync_all *pass;
                unsigned volume;
                struct store_put put;
        } parts[STORE_MAX_VOLUMES];
        struct store *store;
};

/* The set's record on its way to the volumes: see membership-record.c. */
struct membership_record {
        uint32_t waiting; /* volumes, by bit */
        uint64_t epoch;
        bool failed;
        uint64_t failures;
        struct membership_record_part {
                struct store *store;
                unsigned volume;
                struct store_purge purge;
        } parts[STORE_MAX_VOLUMES];
};

struct store {
        struct store_params params;
        char *policy;           /* at startup: other threads read it */
        const char *policy_now; /* eviction, of volumes in use */
        struct kio *io;
        struct volume_ops ops;
        struct member volumes[STORE_MAX_VOLUMES];
        unsigned n_volumes;
        uint32_t up; /* volumes that are used, by bit */
        bool open, stopping, again;

        bool in_set; /* it has, or has had, several volumes */
        uint8_t set[DISK_UUID_BYTES];
        struct key_secret
                placement;     /* not secret: made of the set's uuid, to be the same each time */
        unsigned set_count;    /* numbers given to its volumes */
        struct volume_set sum; /* what all are to write down */
        uint64_t recorded_at;  /* the epoch at which a volume last began to miss something ... */
        uint64_t noted_at;     /* ... and up to which the volumes that are up have it on disk */
        uint64_t missed;       /* it is claimed, by those that are up: volumes by the bit of their
                                  number in the set */
        unsigned claimant;     /* by its number: the last that could be */
        struct membership_record record;

        struct loan *loans; /* loans.c; NULL: there has been none */
        uint32_t loans_high, loans_free;
        struct store_loan_stats lent;
        uint32_t lent_files; /* the last number that a data file was given */

        struct set_namespace **namespaces; /* ascending by id */
        unsigned n_namespaces, namespaces_room;
        struct names names;
        uint32_t next_id, reused_id; /* the last that was given a second time */
        uint64_t changes;            /* of namespaces */
        unsigned n_lifetimes;        /* namespaces that have one */
        uint64_t purges;

        struct tenant_limit *tenant_limits;
        unsigned n_tenant_limits;

        const struct store_watch *watch;

        struct list_node fan_outs;
        struct list_node removals; /* of namespaces, not yet answered */
        struct list_node held;     /* opens of names that are being removed */
        struct list_node done;     /* struct spread: to be answered */
        struct sync_all passes[SYNC_ALL_END];
        uint64_t waiting; /* requests not answered, devices not completed */
        struct kio_request nudge_io;
        bool nudged;

        /* purge.c */
        struct kio_request sweep_io;
        struct histogram *sweep_times; /* NULL: not measured */
        bool sweeping;                 /* sweep_io is under way */
        unsigned sweep_volume;         /* whose step is the next */
        unsigned expire_volume;        /* likewise, of the walk for what has expired */
};

static inline bool member_is_up(const struct store *s, unsigned i)
{
        return s->up & 1u << i;
}

/* `text` may be the reason that it has. */
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

/* Its directory, lock and superblock, as at startup. `lock_fd`: -1, or one that is held from
 * before. Any thread, while no other thread uses the volume. */
int store_prepare_volume(struct member *p, int lock_fd, struct volume **ret,
                         char ret_error[static STORE_ERROR_BYTES]);
/* Tells and answers what is due: in an iteration, or, once the store stops, whenever something
 * came. */
void store_reap(struct store *s);
/* Something is due: in this iteration, or, as no caller requests one once the store stops, soon. */
void store_nudge(struct store *s);

/* --- membership.c --- */

/* Numbers in the set as bits: all that were given out; those of the volumes that are up; that of a
 * volume, or, of one whose superblock was not read, all that belong to no other volume. */
uint64_t membership_bits_all(const struct store *s);
uint64_t membership_bits_up(const struct store *s);
uint64_t membership_bits_of(const struct store *s, const struct member *p);

/* Are these volumes of one store, each a different one? Finds out which. */
int membership_check(struct store *s, char ret_error[static STORE_ERROR_BYTES]);
/* Makes one of several volumes that are none yet. */
int membership_found(struct store *s, char ret_error[static STORE_ERROR_BYTES]);
/* What is known of the whole into the superblock of `v`, which volume_open() writes. Any thread. */
void membership_prepare_superblock(struct member *p, struct volume *v);
/* All volumes that are up have been opened: lets each know what the others know, and empties those
 * that have missed something. */
int membership_join_all(struct store *s, char ret_error[static STORE_ERROR_BYTES]);

/* These volumes, or this one, which are not up, miss something from now on; membership-record.c has
 * it written. In a store that never had several volumes nothing is. */
void membership_record_missed(struct store *s, uint64_t bits);
void membership_volume_missed(struct store *s, struct member *p);
/* A purge, or the removal of a namespace, which the volumes that are not up miss. The parts of it
 * carry the new sum. */
void membership_record_purge(struct store *s);
void membership_record_removal(struct store *s);
/* Would a drop that is answered now come back? */
static inline bool membership_wants_record(const struct store *s)
{
        return s->recorded_at > s->noted_at;
}
/* What the volume has written down into the sum, at startup or when it has been resumed. */
void membership_learn(struct store *s, const struct volume *v);
/* It is up, and what it has on disk is the sum. */
void membership_is_back(struct store *s, struct member *p);
/* Does `set` say that this volume has missed something? Does this volume know what `set` does not?
 * Any thread. */
bool membership_has_missed(const struct volume_set *set, struct volume *v);
bool membership_is_apart(const struct volume_set *set, struct volume *v);
/* Has `p` missed the removal of a namespace that the other one knows of? */
bool membership_has_missed_removal(const struct member *p, const struct member *of);

/* --- capacity.c --- */

/* Limit and entries of each volume, absent ones included; then placement_set_thresholds(). */
void capacity_give_out(struct store *s);
/* Tells the volume its share of a tenant's limit. */
void capacity_limit_tenant(struct member *p, const struct tenant_limit *l);

/* --- placement.c --- */

void placement_set_thresholds(struct store *s);
/* As volume_ops.placement and .put_done; userdata is the store. */
unsigned placement_of(const void *userdata, uint32_t namespace_id, const struct key *key);
void placement_put_done(void *userdata, struct store_put *req);

/* --- purge.c --- */

/* One step of dropping what was purged, and what makes the next iteration come. */
void store_sweep(struct store *s);

/* --- fan-out.c --- */

/* No request waits for this volume any more. */
void fan_out_forget_volume(struct store *s, unsigned volume);
/* Answers all that are complete; sets `again` if it did. */
void fan_out_answer_due(struct store *s);
void fan_out_fini(struct store *s);

/* --- sync-all.c --- */

void sync_all_init(struct store *s);
void sync_all_forget_volume(struct store *s, unsigned volume);
/* Begins what waits, and answers what is complete; sets `again` if there was something. */
void sync_all_iterate(struct store *s);

/* --- membership-record.c --- */

/* For a waiter: 0, what was missed until now is on stable storage on all volumes that are up;
 * MEMBERSHIP_RECORD_WAITS: not yet, store_nudge() follows; -EIO: it cannot be. `noting` and
 * `failures` are the waiter's, false and 0 at first. */
enum { MEMBERSHIP_RECORD_WAITS = 1 };
int membership_record_settle(struct store *s, bool *noting, uint64_t *failures);
void membership_record_forget_volume(struct store *s, unsigned volume);

/* --- namespaces.c --- */

/* NULL: there is none. */
struct set_namespace *set_namespaces_by_id(const struct store *s, uint32_t id);
struct set_namespace *set_namespaces_ref(struct set_namespace *ns);
void set_namespaces_unref(struct set_namespace *ns);
/* A reference to the one that is asked for, made in memory if it must be. 0, or STORE_MISMATCH, of
 * the existing one; STORE_MISS, -errno, without one. */
int set_namespaces_prepare(struct store *s, const struct store_namespace_open *req,
                           struct set_namespace **ret);
/* An open of it has failed: takes it off the list unless a volume has it, or another open waits. */
void set_namespaces_forget(struct store *s, struct set_namespace *ns);
/* Takes it off the list. */
void set_namespaces_remove(struct store *s, struct set_namespace *ns);
/* What a volume is to know now, with references. */
int set_namespaces_snapshot(const struct store *s, struct namespaces_snapshot **ret,
                            struct volume_join *ret_join);
/* NULL is fine. */
struct namespaces_snapshot *set_namespaces_release(struct store *s,
                                                   struct namespaces_snapshot *snapshot);
/* What the volume knows into what all know; -EUCLEAN if they contradict each other. `behind`: it
 * has missed removals, so a name does not count that may have been removed, or that contradicts. */
int set_namespaces_learn(struct store *s, const struct member *p, bool behind,
                         char ret_error[static STORE_ERROR_BYTES]);
void set_namespaces_fini(struct store *s);

/* --- loans.c --- */

/* The volume is replaced, or closed: nothing that was lent of it counts any more. */
void loans_forget_volume(struct store *s, unsigned volume);

/* --- health.c --- */

/* To the store's owner, if it gave a callback. */
void health_tell(struct member *p, enum store_volume_event event, const char *text);
/* Reports that the volume is new, and the losses that opening it has found. */
void health_tell_losses(struct member *p);
/* The one place that changes `up`. */
void health_set_state(struct member *p, enum store_volume_state state, const char *reason);
/* As volume_ops.bypassed, .doubtful and .full; userdata is the store. */
void health_on_bypassed(void *userdata, struct volume *v);
void health_on_doubtful(void *userdata, struct volume *v);
void health_on_full(void *userdata, struct volume *v, bool full);
void health_on_gave_up(void *userdata, struct volume *v, uint32_t segment, uint64_t chunks);
void health_on_astray(void *userdata, struct volume *v, const char *reason);

/* A volume of several that fails so is left out at startup; anything else is a mistake to be
 * reported. */
bool health_may_start_without(const struct store *s, int r);
/* It cannot be used, for what p->error says: the others do without. `r` if they cannot. */
int health_leave_out(struct member *p, int r, char ret_error[static STORE_ERROR_BYTES]);

/* In store_reap(): it was bypassed; it is being suspended. */
void health_tell_news(struct member *p);
void health_rest_when_quiet(struct member *p);
/* The store stops: a suspend that is not over by now is not waited for. */
void health_number_when_marked(struct member *p);
void health_stop(struct member *p);
