/* SPDX-License-Identifier: Apache-2.0 */
/* Interfaces between the files of the shared tier. Private to remote/; loop thread.
 *
 * Every access to the storage system is an operation (operation.c). Its owner keeps it until
 * done(), which is called once: when the operation ended, or at its deadline. After the deadline,
 * only the memory of a hung operation remains, and nothing waits for it. */
#pragma once

#include "remote/breaker.h"
#include "remote/buffers.h"
#include "remote/completions.h"
#include "base/deadlines.h"
#include "fair/sfq.h"
#include "remote/generations.h"
#include "remote/job.h"
#include "remote/presence.h"
#include "remote/queue.h"
#include "remote/rate.h"
#include "remote/remote.h"

enum {
        PRESENCE_KEYS = 1 << 20,  /* keys whose presence is cached */
        GETS_WAITING_MAX = 65536, /* most gets of a tenant that wait to be sent */
        SMALL_MAX = 256,          /* most operations in flight that have no buffer of a `struct
                                   * buffers`, including hung ones */
        DELETES_MAX = 32,         /* most deletes in flight; they count towards SMALL_MAX, too */
        WRITES_MAX = 128,         /* most writes of generations in flight, beyond SMALL_MAX */
        SEARCHES_MAX = 64,        /* most searches at a time; further chains are searched later */
        REAP_MOST = 256,          /* most ended operations that remote_reap() handles */
        LATELY = 64,          /* chunks of a namespace after which an earlier, longer payload counts
                               * half; see remote_namespace_saw() */
        FIRST_READ = 1 << 20, /* bytes of header and payload for which the first read in a namespace
                               * allocates room */
};

enum operation_kind {
        OPERATION_GET,
        OPERATION_PROBE,
        OPERATION_PUT,
        OPERATION_DELETE,
        OPERATION_READ_GENERATION,
        OPERATION_WRITE_GENERATION,
        OPERATION_TRIAL, /* sent by the circuit breaker */
        OPERATION_SWEEP, /* reads a generation for the sweeper */
};

struct operation {
        struct backend_op op;
        struct remote *remote;
        enum operation_kind kind;
        struct list_node node; /* in remote.operations */
        struct deadline expiry;
        struct buffers *buffers; /* source of `buffer`; NULL if `buffer` is a single page of its
                                  * own, or empty */
        struct buffer buffer;
        bool under_way; /* the storage system has the operation */
        bool expired;   /* done() was called at the deadline, but the storage system still has the
                         * operation */
        void (*done)(struct operation *o, int result);
        void (*kept)(struct operation *o); /* called after done() if that called operation_keep();
                                            * may be NULL */
        void *owner;                       /* used by done(); NULL: the request has ended, and
                                            * ignores the answer */

        /* The object that a get or a probe expects. */
        struct remote_object want;
        uint64_t hash;   /* remote_namespace_hash() of the object's key */
        uint16_t tenant; /* tenant of a get */
};

/* A namespace of the shared tier, as this host knows it. */
struct namespace
{
        struct remote *remote;
        uint32_t id;
        struct remote_identity identity;
        uint64_t born; /* value of `epoch` when the namespace was added, which distinguishes a later
                        * one with its id */
        uint64_t epoch, salt; /* new values for each generation, so that cached presence of an
                               * earlier one is not found */
        uint64_t generation;
        uint64_t last; /* generation of this host's chunks; valid if has_last */
        bool has_last;
        bool known;           /* `generation` is valid: it was read or written */
        bool failed;          /* the last read of the generation failed */
        unsigned awaiting;    /* changes of the generation for which this host has not called
                               * remote_purged() */
        unsigned writing;     /* writes of generations in flight */
        uint64_t read_ns;     /* time at which the generation was last read or written */
        struct deadline next; /* time at which the generation is read again */
        struct operation *reading;
        uint32_t longest;          /* longest payload expected, for which a read allocates room */
        uint32_t lately, n_lately; /* longest payload of the last n_lately chunks; number of these
                                    * chunks */
};

struct search_under_way; /* defined in matches.c */
struct sweeper;          /* defined in sweep.c */

struct remote {
        struct remote_params params;
        char *prefix, *state_path;
        struct backend *backend;
        bool stopping;

        struct completions completions;
        struct deadlines deadlines;
        struct list_node operations;
        unsigned small, deleting, inflight; /* operations without a buffer of a struct buffers;
                                             * deletes among them; operations at the storage system,
                                             * with hung ones */

        struct breaker breaker;
        char reason[160];

        struct namespace **namespaces; /* ascending by id */
        unsigned n_namespaces, namespaces_room;
        uint64_t epochs;
        struct list_node purges; /* purges that failed before they began, and whose complete() is
                                  * still due */

        struct generations generations;
        struct job recorder; /* writes the state file */
        void *record;        /* contents of the state file; belongs to the recorder's thread while
                              * it runs */
        size_t record_bytes;
        int record_result;
        bool record_due; /* the list has changed since `record` was encoded */
        uint64_t record_after_ns;

        struct presence_table presence;
        uint64_t surprised_until_ns; /* time until which cached presence is not trusted, after a key
                                      * was unexpectedly absent */
        struct list_node searches;
        unsigned n_searches;
        struct rate probe_rate;

        struct buffers read_buffers, write_buffers;
        struct sfq waiting;       /* struct reading, by tenant */
        uint64_t held[SFQ_FLOWS]; /* bytes of read_buffers in use, by the flow of the tenant
                                     (sfq_number()) */
        uint64_t asking; /* bit mask of the flows (sfq_number()) of tenants that have ever requested
                            a chunk */

        struct queue queue;
        struct rate write_rate;
        unsigned writing, loading;
        bool full;
        uint64_t paused_until_ns, pause_ns; /* time at which one write may be tried again, after the
                                             * storage system was full or refused writes, and the
                                             * length of that pause; 0: writing is not suspended */

        struct sweeper *sweeper; /* NULL: no sweep is running */

        /* Measurements from which break-even is computed. */
        unsigned reading; /* gets at the storage system, except hung ones */
        uint64_t busy_since_ns;
        double busy_ns, read_bytes; /* exponentially decayed sums: ns during which gets were at the
                                     * storage system, and bytes read in them */
        double latency_ns;

        struct remote_stats stats;
        struct list_node abandoned; /* hung operations at shutdown, which are left to the exit of
                                     * the process */
};

/* --- operation.c --- */

/* Allocates an operation with a buffer of `bytes`. Returns 0, -EAGAIN if the bound is reached, or
 * -ENOMEM. */
int operation_new(struct remote *r, enum operation_kind kind, struct buffers *buffers, size_t bytes,
                  struct operation **ret);
/* Frees an operation that the storage system does not have. Returns NULL. */
struct operation *operation_free(struct operation *o);
/* Sends the operation to the back end. done() is called later, never within this call. */
void operation_submit(struct operation *o, enum backend_op_kind kind);
/* Keeps an ended operation when called within done(). `kept` is called after done() and may free
 * the operation. */
void operation_keep(struct operation *o, void (*kept)(struct operation *o));
/* Calls done() with -ECANCELED for every operation in flight. */
void operations_cancel(struct remote *r);
/* Counts an object that was read and rejected, and deletes it unless its format is of a later
 * version or too many deletes are in flight. */
void remote_reject(struct remote *r, enum remote_rejection why, const char *name);
/* Sends a trial operation if the circuit breaker wants one. */
void remote_trial(struct remote *r, uint64_t now_ns);

/* --- namespaces.c --- */

/* Returns the namespace, or NULL if it does not use the shared tier. */
struct namespace *remote_namespace_find(const struct remote *r, uint32_t id);
/* Returns whether chunks of the namespace may be read and written: its generation was read
 * recently, and no purge is in progress. */
bool remote_namespace_is_usable(const struct namespace *ns, uint64_t now_ns);
/* Returns whether the first read of the namespace's generation has not ended yet, so that an
 * offered chunk may wait for it. */
bool remote_namespace_is_new(const struct namespace *ns);
/* Records the length of a chunk of the namespace, from which later reads choose the size of their
 * buffers. */
void remote_namespace_saw(struct namespace *ns, uint32_t length);
static inline uint64_t remote_namespace_hash(const struct namespace *ns, uint64_t hash)
{
        return hash ^ ns->salt;
}
/* Reads the generations of all namespaces soon, because the storage system is available again or
 * the interval has changed. Those that are being read, written or purged are read afterwards in any
 * case. */
void remote_namespaces_read_soon(struct remote *r, uint64_t now_ns);
/* Run the work that is due, once per remote_iterate(). The ..._next() functions return the
 * CLOCK_MONOTONIC ns at which they must run again; 0: only after an event. */
void remote_namespaces_iterate(struct remote *r, uint64_t now_ns);
uint64_t remote_namespaces_next(const struct remote *r);
void remote_namespaces_stop(struct remote *r);
void remote_namespaces_fini(struct remote *r);

/* --- gets.c --- */

void gets_iterate(struct remote *r, uint64_t now_ns);
/* Completes every waiting get as a miss, because the breaker is open or the tier stops. */
void gets_fail_waiting(struct remote *r);

/* --- matches.c --- */

void matches_iterate(struct remote *r, uint64_t now_ns);
uint64_t matches_next(const struct remote *r);
/* Ends the searches of a namespace, or all if `ns` is NULL, without an answer. */
void matches_cancel(struct remote *r, const struct namespace *ns);

/* --- puts.c --- */

void puts_iterate(struct remote *r, uint64_t now_ns);
uint64_t puts_next(const struct remote *r);

/* --- sweep.c --- */

void sweep_stop(struct remote *r);
/* Returns false if the sweeper's thread still runs. */
bool sweep_fini(struct remote *r);
