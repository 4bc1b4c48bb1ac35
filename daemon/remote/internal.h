/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the shared tier among themselves. Private to remote/; loop thread.
 *
 * Everything that goes to the engine is an operation (operation.c). What it is for has it until
 * done(), which is called once: when the operation ended, or at its deadline. Then what hangs is
 * left with nothing that waits for it but its own memory. */
#pragma once

#include "remote/breaker.h"
#include "remote/buffers.h"
#include "remote/completions.h"
#include "remote/deadlines.h"
#include "remote/fair.h"
#include "remote/generations.h"
#include "remote/job.h"
#include "remote/presence.h"
#include "remote/queue.h"
#include "remote/rate.h"
#include "remote/remote.h"

enum {
        PRESENCE_KEYS = 1 << 20,
        GETS_WAITING_MAX = 65536, /* of a tenant */
        SMALL_MAX = 256,  /* operations without a buffer of the bounded ones, hung included */
        DELETES_MAX = 32, /* of these */
        WRITES_MAX = 128, /* of generations, besides SMALL_MAX */
        SEARCHES_MAX = 64,
        REAP_MOST = 256,
        LATELY = 64,          /* chunks after which what is longer than they were counts half */
        FIRST_READ = 1 << 20, /* bytes that a first read of a namespace has room for */
};

enum operation_kind {
        OPERATION_GET,
        OPERATION_PROBE,
        OPERATION_PUT,
        OPERATION_DELETE,
        OPERATION_READ_GENERATION,
        OPERATION_WRITE_GENERATION,
        OPERATION_TRIAL, /* of the breaker */
        OPERATION_SWEEP, /* a generation that the sweeper wants to know */
};

struct operation {
        struct backend_op op;
        struct remote *remote;
        enum operation_kind kind;
        struct list_node node; /* of all that there are */
        struct deadline expiry;
        struct buffers *buffers; /* NULL: a page of its own, or none */
        struct buffer buffer;
        bool under_way; /* the engine has it */
        bool expired;   /* done() was called, and the engine still has it */
        void (*done)(struct operation *o, int result);
        void (*kept)(struct operation *o); /* NULL: the operation is freed when it has ended */
        void *owner;                       /* NULL: it came too late */

        /* Of gets and probes: the object that is to be there. */
        struct remote_object want;
        uint64_t hash;   /* with the namespace's salt */
        uint16_t tenant; /* of a get */
};

struct namespace
{
        struct remote *remote;
        uint32_t id;
        struct remote_identity identity;
        uint64_t born;
        uint64_t epoch, salt; /* change with the generation, so that what is older is not found */
        uint64_t generation;
        uint64_t last; /* that this host's chunks are of */
        bool has_last;
        bool known;           /* `generation` was read, or written */
        bool failed;          /* the last time it was to be read */
        unsigned awaiting;    /* changes, for each of which remote_purged() is still to come */
        unsigned writing;     /* generations: under way */
        uint64_t read_ns;     /* when it was read or written last */
        struct deadline next; /* when it is to be read */
        struct operation *reading;
        uint32_t longest;          /* longest recent payload, for which a read allocates room */
        uint32_t lately, n_lately; /* longest payload of the latest n_lately */
};

struct search_under_way; /* matches.c */
struct sweeper;          /* sweep.c */

struct remote {
        struct remote_params params;
        char *prefix, *state_path;
        struct backend *backend;
        bool stopping;

        struct completions completions;
        struct deadlines deadlines;
        struct list_node operations;
        unsigned small, deleting, inflight;

        struct breaker breaker;
        char reason[160];

        struct namespace **namespaces; /* ascending by id */
        unsigned n_namespaces, namespaces_room;
        uint64_t epochs;
        struct list_node purges; /* ended at once, to be completed */

        struct generations generations;
        struct job recorder; /* writes the state file */
        void *record;        /* its bytes, with the thread while that runs */
        size_t record_bytes;
        int record_result;
        bool record_due; /* the list has changed since */
        uint64_t record_after_ns;

        struct presence_table presence;
        uint64_t surprised_until_ns; /* a key was not there that should have been */
        struct list_node searches;
        unsigned n_searches;
        struct rate probe_rate;

        struct buffers read_buffers, write_buffers;
        struct fair waiting;       /* struct reading */
        uint64_t held[FAIR_FLOWS]; /* bytes of read_buffers, of each tenant */
        uint64_t asking;           /* a bit for each tenant that has asked for anything */

        struct queue queue;
        struct rate write_rate;
        unsigned writing, loading;
        bool full;
        uint64_t paused_until_ns, pause_ns; /* writes; 0: they are not */

        struct sweeper *sweeper; /* NULL: none is under way */

        /* For break-even. */
        unsigned reading; /* gets that the engine has, hung ones excluded */
        uint64_t busy_since_ns;
        double busy_ns, read_bytes; /* decayed */
        double latency_ns;

        struct remote_stats stats;
        struct list_node abandoned; /* of the process */
};

/* --- operation.c --- */

/* `bytes` of buffer. 0, -EAGAIN: the bound, -ENOMEM. */
int operation_new(struct remote *r, enum operation_kind kind, struct buffers *buffers, size_t bytes,
                  struct operation **ret);
struct operation *operation_free(struct operation *o);
/* done() follows, not from within. */
void operation_submit(struct operation *o, enum backend_op_kind kind);
/* In done() of one that has ended: it is not freed, but `kept` has it, which may free it. */
void operation_keep(struct operation *o, void (*kept)(struct operation *o));
/* Of all under way: done() with -ECANCELED. */
void operations_cancel(struct remote *r);
void remote_delete(struct remote *r, const char *name);
/* Of an object that was read: counted, and deleted unless it is of a later version. */
void remote_reject(struct remote *r, enum remote_rejection why, const char *name);
void remote_trial(struct remote *r, uint64_t now_ns);
void remote_count_busy(struct remote *r, int add, uint64_t bytes, uint64_t now_ns);

/* --- namespaces.c --- */

struct namespace *remote_namespace_find(const struct remote *r, uint32_t id);
/* May anything be read or written? */
bool remote_namespace_is_usable(const struct namespace *ns, uint64_t now_ns);
/* Its generation is read for the first time: what is offered can wait for that. */
bool remote_namespace_is_new(const struct namespace *ns);
/* It has a chunk of this length. */
void remote_namespace_saw(struct namespace *ns, uint32_t length);
static inline uint64_t remote_namespace_hash(const struct namespace *ns, uint64_t hash)
{
        return hash ^ ns->salt;
}
/* The generations are to be read now, as the engine is there again. */
void remote_namespaces_read_soon(struct remote *r, uint64_t now_ns);
void remote_namespaces_iterate(struct remote *r, uint64_t now_ns);
uint64_t remote_namespaces_next(const struct remote *r);
void remote_namespaces_stop(struct remote *r);
void remote_namespaces_fini(struct remote *r);

/* --- gets.c --- */

void gets_iterate(struct remote *r, uint64_t now_ns);
/* Those that wait are misses: the breaker is open, or the tier stops. */
void gets_fail_waiting(struct remote *r);

/* --- matches.c --- */

void matches_iterate(struct remote *r, uint64_t now_ns);
uint64_t matches_next(const struct remote *r);
/* Of a namespace, or all (NULL): they end without an answer. */
void matches_cancel(struct remote *r, const struct namespace *ns);

/* --- puts.c --- */

void puts_iterate(struct remote *r, uint64_t now_ns);
uint64_t puts_next(const struct remote *r);

/* --- sweep.c --- */

void sweep_stop(struct remote *r);
/* False: its thread still runs. */
bool sweep_fini(struct remote *r);
