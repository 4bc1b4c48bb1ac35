/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache without a daemon: the calls that kvcachectl makes, served from this process's memory
 * by a leaf-first LRU of equal slots, with faults on request. Several handles share it, on several
 * threads. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "kvcache-admin.h"

/* Creation time of every chunk that kvcache_list() lists: 2023-11-14 22:13:20 UTC. */
#define FAKE_CREATED_MS UINT64_C(1700000000000)

/* Calls that are counted and that a test can script. */
enum fake_call {
        FAKE_CONNECT,
        FAKE_GET_INFO,
        FAKE_OPEN,
        FAKE_SUBMIT,
        FAKE_PUT,
        FAKE_PING,
        FAKE_LIST,
        FAKE_PURGE,         /* purges of a namespace or all, here or on the shared tier */
        FAKE_REPORT_STATUS, /* in the order of enum kvcache_report */
        FAKE_REPORT_STATS,
        FAKE_REPORT_METRICS,
        FAKE_REPORT_CONFIG,
        FAKE_REPORT_STAGES,
        FAKE_REPORT_NAMESPACES,
        FAKE_NAMESPACE_LIST,
        FAKE_NAMESPACE_STAT, /* this and the following calls: fake-admin.h */
        FAKE_NAMESPACE_LIFETIME,
        FAKE_NAMESPACE_REMOVE,
        FAKE_DEVICE,
        FAKE_VERIFY,
        FAKE_SWEEP,
        FAKE_RELOAD,
        FAKE_RECORD,
        FAKE_EVENTS,
        FAKE_CALLS,
};

/* A scripted call returns `result` and does nothing else. */
struct fake_script {
        int result;        /* 0: the call succeeds normally */
        const char *error; /* kvcache_error() returns it; NULL: "" */
        uint64_t after;    /* number of calls that pass first */
        uint64_t times;    /* number of scripted calls; 0: all later ones */
};

struct fake_kvcache {
        /* Set by the test: */
        struct fake_script scripts[FAKE_CALLS];
        size_t capacity; /* chunks; 0: no limit */
        uint64_t pool_bytes;
        uint64_t max_chunk_bytes;
        bool lends, takes_files;       /* to this user */
        uint64_t staging_bytes;        /* size for each handle */
        size_t lease_quota;            /* per handle, in chunks; 0: unlimited */
        const char *stats;             /* NULL: generated from the counters below */
        const char *status;            /* the STATUS report */
        const char *metrics, *config;  /* the METRICS and CONFIG reports */
        const char *namespace_report;  /* the NAMESPACES report */
        char *(*stages)(void);         /* generates the STAGES report; NULL: -EACCES */
        const char *fingerprint;       /* fingerprint of the namespace; opening it with another
                                          one is a mismatch */
        const char *missing_namespace; /* name of a namespace that does not exist until a client
                                          creates it */
        const struct kvcache_namespace_info *namespaces; /* result of kvcache_namespace_list() */
        size_t n_namespaces;
        const struct kvcache_result *answers; /* results for the first keys of requests other
                                                 than PUT and GET */
        size_t n_answers;

        /* Faults. Each is the number of the event that fails, from 1; 0: never. */
        uint64_t flip_get; /* this chunk got has one bit flipped */
        size_t flip_offset;
        uint64_t swap_get;                   /* this chunk got is the one got before */
        uint64_t shorten_get;                /* this chunk got is one byte short */
        uint64_t vanish_get;                 /* this chunk got is a miss */
        uint64_t fail_put;                   /* this chunk put fails */
        uint64_t lose_put;                   /* the daemon goes away before it answers this put */
        uint64_t busy_from_put, busy_to_put; /* these chunks put find no room */
        uint64_t die_at_call;                /* first call that the daemon does not answer */
        uint64_t revive_after;               /* number of pings after which it answers again; 0:
                                                never */

        /* Counted: */
        uint64_t calls, chunks_got, chunks_put, evictions, pings, reconnects;
        size_t leases, most_leases; /* leases of all handles */
        size_t most_round_bytes;
        uint64_t releases_stale;
        uint64_t hints;            /* requests that announce the end of a chain */
        enum kvcache_op latest_op; /* the latest request: its operation, keys and time */
        size_t latest_keys;
        struct timespec latest_time;
        uint64_t made[FAKE_CALLS]; /* scripted calls included */
        size_t handles;            /* currently open */
        size_t keys_answered;      /* keys of requests other than PUT and GET */
        size_t most_keys;          /* in one request */

        /* Arguments of the last call of each kind: */
        char socket_path[128], client_name[32]; /* "": NULL */
        int request_timeout_ms;
        char opened_name[256], opened_fingerprint[256];
        uint32_t opened_flags;
        struct kvcache_request request; /* the last request; its pointers have expired */
        struct kvcache_key key;         /* first key of the request */
        struct kvcache_entry entry;     /* first entry of the request; `data` has expired */
        enum kvcache_ack ack;           /* of kvcache_put() */
        size_t list_max;                /* of kvcache_list() */
        char tenant[64];                /* tenant of a namespace call; "": NULL */
};

/* Resets everything to plain defaults. Call before the first connect, with no handle open. */
void fake_reset(void);
extern struct fake_kvcache fake;

/* Counts a call. Returns its scripted result; 0: the call proceeds. */
int fake_begin(struct kvcache *kv, enum fake_call call);
/* Copies a string argument into its record: "" for NULL. */
void fake_record(char *ret, size_t room, const char *argument);
