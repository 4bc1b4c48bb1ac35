/* SPDX-License-Identifier: Apache-2.0 */
/* Fakes the calls of <kvcache-admin.h> that only kvcachectl makes: namespaces, volumes, verify, the
 * shared tier, reload and record. They return values that a test has set here, and record their
 * arguments; fake.scripts makes them fail, like any other call. */
#pragma once

#include "fake-kvcache.h"

struct fake_admin {
        /* set by the test */
        const char *fingerprint;         /* every namespace of fake.namespaces has it */
        const char *const *fingerprints; /* not NULL: the fingerprint of each namespace, in order */
        uint64_t dropped;                /* chunks, by a removal or a purge of the shared tier */
        uint32_t other_hosts_seconds;
        const struct kvcache_verify *found; /* out members of the calls of kvcache_verify() */
        size_t n_found;                     /* later calls end the volume and find nothing */
        struct kvcache_sweep swept;         /* out members */
        const char *reloaded;               /* kvcache_reload(); NULL: "{}" */
        bool reload_refused;
        int record_fd; /* kvcache_record() passes it to the caller */
        /* Results of successive calls of kvcache_events_next(), and of kvcache_events_snapshot(),
         * each of which is one chunk: -errno, or the number of events. Later calls return 0, or
         * -EPIPE if they would wait. */
        const int *event_results, *snapshot_results;
        size_t n_event_results, n_snapshot_results;
        int snapshot_signal; /* raised in each call of kvcache_events_snapshot(); 0: none */
        const struct kvcache_event *events; /* the next events, of both calls together */

        /* Arguments of the last call of each kind: */
        char name[256]; /* name of the namespace */
        uint32_t remove_flags;
        uint32_t lifetime_s;
        bool suspended; /* true: suspended; false: resumed */
        uint32_t volume;
        struct kvcache_verify verify;
        struct kvcache_sweep sweep;
        bool purged_all, purged_remote;
        uint32_t record_s;
};
extern struct fake_admin fake_admin;

/* Resets this structure, and calls fake_reset(). */
void fake_admin_reset(void);
