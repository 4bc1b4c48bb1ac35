/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the store share that make one store of several paths: the store itself, a path
 * of it, and what each file offers the others. Nobody else includes this. They see of a path its
 * volume (volume.h); the files of a volume know nothing of them. All of it runs on the loop thread,
 * but for what is marked.
 *
 *   store.c              the door: prepare, open, turn, close; numbers
 *   membership.c         which directories are one store, and who of them has missed a purge
 *   capacity.c           what each path may hold of the limit, and of a tenant's
 *   placement.c          which path a chunk goes to and is looked for: put, find, get, drop, list
 *   fan-out.c            namespaces and purges: a part for each path, one answer
 *   sync-all.c           syncs and settled drops: one pass over the paths for all who wait
 *   membership-record.c  who has missed something, to stable storage
 *   namespaces.c         one list of namespaces, with the same ids on all paths
 *   health.c             which paths are used: bypass, hang, suspend, resume
 *
 * Lifetime: struct store is made by store_prepare() and freed by store_close(). A path's volume is
 * NULL as long as its directory could not be opened; once there, it is replaced only when the path
 * is resumed. `up` says which paths may be asked for anything. */
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

enum {
        PATHS_MIN_LIMIT = 4 * 1024 * 1024, /* of each */
        PATHS_SET_MAX = 64,                /* numbers that a set can give out, in its life */
};

/* A namespace of the store. The list has a reference, each open under way, and each snapshot:
 * memory that is referred to is not freed when the namespace is forgotten or removed. The texts
 * never change, and so may be read on any thread. */
struct path_namespace {
        struct store_namespace seen;
        struct name_node node;
        unsigned refs;
        unsigned opens; /* under way: it is not removed meanwhile */
        bool listed;
        bool refused; /* no path took it, but a snapshot has it */
};

/* What a path is told of the namespaces, on its own thread. */
struct path_snapshot {
        unsigned n;
        struct store_namespace *seen; /* copies; the texts are those of `list` */
        struct path_namespace **list;
};

struct path {
        struct store *store;
        unsigned number;
        char *name;
        struct volume *volume; /* NULL: it could not be opened */
        enum store_path_state state;
        char reason[STORE_ERROR_BYTES];
        uint64_t since_ms, bypasses;
        uint64_t limit, entries;
        uint64_t threshold; /* homes drawn below it, and not below the one before, are here */
        uint64_t puts_away; /* in flight to it, whose home is elsewhere */
        bool news;          /* of being bypassed: to be told */
        bool hung;          /* who waited for its device has been told */
        bool missed;        /* something was purged or dropped while it was aside */
        bool unsure;        /* something was dropped that may be there; nobody else can note it */
        bool suspending;    /* until it is quiet */
        bool resting;       /* it is, and is being synced */
        bool calling;
        struct kio_request call;
        struct store_device *device; /* who waits for a suspend or resume */

        /* Resuming. */
        struct volume *next;
        struct path_snapshot *snapshot;
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

/* All paths once, for those who wait: see sync-all.c. */
enum pass_kind { PASS_SYNC, PASS_DROPS, PASS_END };

struct pass {
        enum pass_kind kind;
        struct list_node waiting, flying; /* struct store_put */
        bool running;
        uint32_t parts_waiting; /* paths, by bit */
        unsigned well;          /* parts that came back with 0 */
        int result;             /* the first that did not */
        bool bad;               /* a part was lost, or failed, on a path that is aside by now */
        bool noting;
        uint64_t note_failures; /* as of when it asked for a note */
        struct pass_part {
                struct pass *pass;
                unsigned path;
                struct store_put put;
        } parts[STORE_MAX_PATHS];
        struct store *store;
};

/* The set's record on its way to the paths: see membership-record.c. */
struct note {
        uint32_t waiting; /* paths, by bit */
        uint64_t epoch;
        bool failed;
        uint64_t failures;
        struct note_part {
                struct store *store;
                unsigned path;
                struct store_purge purge;
        } parts[STORE_MAX_PATHS];
};

struct store {
        struct store_params params;
        char *policy;
        struct kio *io;
        struct volume_ops ops;
        struct path paths[STORE_MAX_PATHS];
        unsigned n_paths;
        uint32_t up; /* paths that are used, by bit */
        bool open, stopping, again;

        bool in_set; /* it has, or has had, several paths */
        uint8_t set[DISK_UUID_BYTES];
        struct key_secret home; /* not secret: made of the set's uuid, to be the same each time */
        unsigned set_count;     /* numbers given to its paths */
        struct volume_set sum;  /* what all are to write down */
        uint64_t noted_at; /* up to this one of sum.missed_at the paths that are up have it on disk
                            */
        uint64_t missed;   /* since this start: paths by the bit of their number in the set */
        struct note note;

        struct path_namespace **namespaces; /* ascending by id */
        unsigned n_namespaces, namespaces_room;
        struct names names;
        uint32_t next_id, reused_id; /* the last that was given a second time */
        uint64_t changes;            /* of namespaces */
        uint64_t purges;

        struct tenant_limit *tenant_limits;
        unsigned n_tenant_limits;

        const struct store_watch *watch;

        struct list_node spreads;
        struct list_node removals; /* of namespaces, not yet answered */
        struct list_node held;     /* opens of names that are being removed */
        struct list_node done;     /* struct spread: to be answered */
        struct pass passes[PASS_END];
        uint64_t waiting; /* requests not answered, devices not completed */
        struct kio_request nudge_io;
        bool nudged;

        /* purge.c */
        struct kio_request sweep_io;
        struct histogram *sweep_times; /* NULL: nobody asked */
        bool sweeping;                 /* sweep_io is under way */
        unsigned sweep_path;           /* whose step is the next */
};

static inline bool path_is_up(const struct store *s, unsigned i)
{
        return s->up & 1u << i;
}

/* `text` may be the reason that it has. */
static inline void path_set_reason(struct path *p, const char *text)
{
        size_t n = MIN(strlen(text), sizeof(p->reason) - 1);

        memmove(p->reason, text, n);
        p->reason[n] = '\0';
}

static inline bool path_has_volume(const struct store *s, unsigned i)
{
        return s->paths[i].volume;
}

/* --- store.c --- */

/* Its directory, lock and superblock, as of a start. `lock_fd`: -1, or one that is held from
 * before. Any thread, while nobody else is at the path. */
int store_prepare_volume(struct path *p, int lock_fd, struct volume **ret,
                         char ret_error[static STORE_ERROR_BYTES]);
/* Tells and answers what is due: in a turn, or, once the store stops, whenever something came. */
void store_drain(struct store *s);
/* Something is due: in this turn, or, as nobody calls for one once the store stops, soon. */
void store_nudge(struct store *s);

/* --- membership.c --- */

/* Numbers in the set as bits: all that were given out; those of the paths that are up; that of a
 * path, or, of one whose superblock nobody has read, all that are nobody else's. */
uint64_t set_bits_all(const struct store *s);
uint64_t set_bits_up(const struct store *s);
uint64_t set_bits_of(const struct store *s, const struct path *p);

/* Are these paths of one store, each a different one? Finds out which. */
int set_check(struct store *s, char ret_error[static STORE_ERROR_BYTES]);
/* Makes one of several paths that are none yet. */
int set_found(struct store *s, char ret_error[static STORE_ERROR_BYTES]);
/* What is known of the whole into the superblock of `v`, which volume_open() writes. Any thread. */
void set_prepare_superblock(struct path *p, struct volume *v);
/* All paths that are up have been opened: lets each know what the others know, and empties who has
 * missed something. */
int set_join_all(struct store *s, char ret_error[static STORE_ERROR_BYTES]);

/* These paths, or this one, which are not up, miss something from now on; membership-record.c has
 * it written. In a store that never had several paths nothing is. */
void set_note_missed(struct store *s, uint64_t bits);
void set_path_missed(struct store *s, struct path *p);
/* A purge, or the removal of a namespace, which the paths that are not up miss. The parts of it
 * carry the new sum. */
void set_note_purge(struct store *s);
void set_note_removal(struct store *s);
/* Would a drop that is answered now come back? */
static inline bool set_wants_note(const struct store *s)
{
        return s->sum.missed_at > s->noted_at;
}
/* What the path has written down into the sum, at a start or when it has been resumed. */
void set_learn(struct store *s, const struct volume *v);
/* It is up, and what it has on disk is the sum. */
void set_is_back(struct store *s, struct path *p);
/* Does `set` say that this path has missed something? Any thread. */
bool set_has_missed(const struct volume_set *set, struct volume *v);

/* --- capacity.c --- */

/* Limit and entries of each path, absent ones included; then homes_set_thresholds(). */
void shares_give_out(struct store *s);
/* Tells the path its share of a tenant's limit. */
void shares_limit_tenant(struct path *p, const struct tenant_limit *l);

/* --- placement.c --- */

void homes_set_thresholds(struct store *s);
/* As volume_ops.home and .put_done; userdata is the store. */
unsigned homes_of(const void *userdata, uint32_t namespace_id, const struct key *key);
void homes_put_done(void *userdata, struct store_put *req);

/* --- purge.c --- */

/* One step of dropping what was purged, and what makes the next turn come. */
void store_sweep(struct store *s);

/* --- fan-out.c --- */

/* Nobody waits for this path any more. */
void spread_forget_path(struct store *s, unsigned path);
/* Answers all that are complete; sets `again` if it did. */
void spread_answer_due(struct store *s);
void spread_fini(struct store *s);

/* --- sync-all.c --- */

void pass_init(struct store *s);
void pass_forget_path(struct store *s, unsigned path);
/* Begins what waits, and answers what is complete; sets `again` if there was something. */
void pass_turn(struct store *s);

/* --- membership-record.c --- */

/* For a waiter: 0, what was missed until now is on stable storage on all paths that are up;
 * NOTE_WAITS: not yet, store_nudge() follows; -EIO: it cannot be. `noting` and `failures` are the
 * waiter's, false and 0 at first. */
enum { NOTE_WAITS = 1 };
int note_settle(struct store *s, bool *noting, uint64_t *failures);
void note_forget_path(struct store *s, unsigned path);

/* --- namespaces.c --- */

/* NULL: there is none. */
struct path_namespace *path_namespaces_by_id(const struct store *s, uint32_t id);
struct path_namespace *path_namespaces_ref(struct path_namespace *ns);
void path_namespaces_unref(struct path_namespace *ns);
/* A reference to the one that is asked for, made in memory if it must be. 0, or STORE_MISMATCH, of
 * the existing one; STORE_MISS, -errno, without one. */
int path_namespaces_prepare(struct store *s, const struct store_namespace_open *req,
                            struct path_namespace **ret);
/* An open of it has failed: takes it off the list unless a path has it, or another open waits. */
void path_namespaces_forget(struct store *s, struct path_namespace *ns);
/* Takes it off the list. */
void path_namespaces_remove(struct store *s, struct path_namespace *ns);
/* What a path is to know now, with references. */
int path_namespaces_snapshot(const struct store *s, struct path_snapshot **ret,
                             struct volume_join *ret_join);
/* NULL is fine. */
struct path_snapshot *path_namespaces_release(struct store *s, struct path_snapshot *snapshot);
/* What the path knows into what all know; -EUCLEAN if they contradict each other. */
int path_namespaces_learn(struct store *s, const struct path *p,
                          char ret_error[static STORE_ERROR_BYTES]);
/* Only its counts: it has missed a removal, so its list does not count. */
void path_namespaces_learn_counts(struct store *s, const struct path *p);
void path_namespaces_fini(struct store *s);

/* --- health.c --- */

/* To whoever opened the store, if he wants to know. */
void health_tell(struct path *p, enum store_path_event event, const char *text);
/* The one place that changes `up`. */
void health_set_state(struct path *p, enum store_path_state state, const char *reason);
/* As volume_ops.bypassed, .doubtful and .full; userdata is the store. */
void health_on_bypassed(void *userdata, struct volume *v);
void health_on_doubtful(void *userdata, struct volume *v);
void health_on_full(void *userdata, struct volume *v, bool full);

/* A path of several that fails so is left aside at a start; anything else is a mistake to be told
 * of. */
bool health_may_start_without(const struct store *s, int r);
/* It cannot be used, for what p->error says: the others do without. `r` if they cannot. */
int health_leave_out(struct path *p, int r, char ret_error[static STORE_ERROR_BYTES]);

/* In store_drain(): it was bypassed; it is being suspended. */
void health_tell_news(struct path *p);
void health_rest_when_quiet(struct path *p);
/* The store stops: a suspend that is not over by now is not waited for. */
void health_number_when_marked(struct path *p);
void health_stop(struct path *p);
