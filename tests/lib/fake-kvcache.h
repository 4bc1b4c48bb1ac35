/* SPDX-License-Identifier: Apache-2.0 */
/* libkvcache without a daemon: the calls that kvcachectl makes, answered from this process's memory
 * by one leaf-first LRU of equal slots, and told to misbehave. Several handles share it, from
 * several threads. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "kvcache-admin.h"

/* When every chunk that kvcache_list() lists was put: 2023-11-14 22:13:20 UTC. */
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
        FAKE_PURGE,         /* one namespace or all, here or on the shared tier */
        FAKE_REPORT_STATUS, /* in the order of enum kvcache_report */
        FAKE_REPORT_STATS,
        FAKE_REPORT_METRICS,
        FAKE_REPORT_CONFIG,
        FAKE_NAMESPACE_LIST,
        FAKE_NAMESPACE_STAT, /* from here on: fake-admin.h */
        FAKE_NAMESPACE_LIFETIME,
        FAKE_NAMESPACE_REMOVE,
        FAKE_DEVICE,
        FAKE_VERIFY,
        FAKE_SWEEP,
        FAKE_RELOAD,
        FAKE_RECORD,
        FAKE_CALLS,
};

/* A scripted call returns `result` and does nothing else. */
struct fake_script {
        int result;        /* 0: the call does what it does */
        const char *error; /* kvcache_error() returns it; NULL: "" */
        uint64_t after;    /* number of calls that pass first */
        uint64_t times;    /* number of scripted calls; 0: all later ones */
};

struct fake_kvcache {
        /* set by the test */
        struct fake_script scripts[FAKE_CALLS];
        size_t capacity; /* chunks; 0: no limit */
        uint64_t pool_bytes;
        uint64_t max_chunk_bytes;
        bool lends, takes_files;       /* to this user */
        uint64_t staging_bytes;        /* a handle's */
        size_t lease_quota;            /* a handle's, in chunks; 0: none */
        const char *stats;             /* NULL: made up from the counters below */
        const char *status;            /* STATUS report */
        const char *metrics, *config;  /* METRICS and CONFIG report */
        char *(*stages)(void);         /* makes the STAGES report; NULL: -EACCES */
        const char *fingerprint;       /* the namespace's; another one is a mismatch */
        const char *missing_namespace; /* no namespace has this name until a client makes it */
        const struct kvcache_namespace_info *namespaces; /* kvcache_namespace_list() */
        size_t n_namespaces;
        const struct kvcache_result *answers; /* for the first keys that are not for PUT or GET */
        size_t n_answers;

        /* faults; each is the number of the event that goes wrong, from 1; 0: never */
        uint64_t flip_get; /* this chunk got has one bit flipped */
        size_t flip_offset;
        uint64_t swap_get;                   /* this chunk got is the one got before */
        uint64_t shorten_get;                /* this chunk got is one byte short */
        uint64_t vanish_get;                 /* this chunk got is a miss */
        uint64_t fail_put;                   /* this chunk put fails */
        uint64_t busy_from_put, busy_to_put; /* these chunks put find no room */
        uint64_t die_at_call;                /* from this call on the daemon does not answer */
        uint64_t revive_after;               /* and is back after so many pings, 0: never */

        /* counted */
        uint64_t calls, chunks_got, chunks_put, evictions, pings, reconnects;
        size_t leases, most_leases; /* of all handles */
        size_t most_round_bytes;
        uint64_t releases_stale;
        uint64_t hints;            /* requests that announce an end */
        enum kvcache_op latest_op; /* The latest request: its operation, keys and time. */
        size_t latest_keys;
        struct timespec latest_time;
        uint64_t made[FAKE_CALLS]; /* scripted calls included */
        size_t handles;            /* open now */
        size_t keys_answered;      /* that are not for PUT or GET */
        size_t most_keys;          /* in one request */

        /* arguments of the last call of the kind */
        char socket_path[128], client_name[32]; /* "": NULL */
        int request_timeout_ms;
        char opened_name[256], opened_fingerprint[256];
        uint32_t opened_flags;
        struct kvcache_request request; /* with pointers that have expired */
        struct kvcache_key key;         /* the request's first */
        struct kvcache_entry entry;     /* the request's first; `data` has expired */
        enum kvcache_ack ack;           /* kvcache_put()'s */
        size_t list_max;                /* kvcache_list()'s */
        char tenant[64];                /* a namespace call's; "": NULL */
};

/* Forgets everything and sets plain defaults. Call it before the first connect, with no handle
 * open. */
void fake_reset(void);
extern struct fake_kvcache fake;

/* Counts a call. Returns its scripted result; 0: the call does what it does. */
int fake_begin(struct kvcache *kv, enum fake_call call);
/* Copies a string argument into its record: "" for NULL. */
void fake_record(char *ret, size_t room, const char *argument);
