/* SPDX-License-Identifier: Apache-2.0 */
/* The struct server, for the files that start, connect and run its parts. Private to these
 * files. */
#pragma once

#include <event2/event.h>

#include "base/log.h"
#include "base/rest.h"
#include "config/config.h"
#include "key.h"
#include "request/request.h"
#include "request/memory.h"
#include "report/history-collect.h"
#include "report/history.h"
#include "report/namespace-history.h"
#include "report/namespace-view.h"
#include "report/http.h"
#include "session/listener.h"
#include "io/liveness.h"
#include "cache/populate.h"
#include "tenant/namespace-counts.h"
#include "tenant/removal.h"
#include "notify.h"
#include "server.h"
#include "session/session.h"
#include "spin.h"
#include "report/status.h"
#include "report/collect.h"
#include "report/health.h"
#include "keep/keep.h"

/* A tenant's secret for the shared tier. */
struct server_secret {
        size_t length;
        char bytes[4096 + 2]; /* the secret, a newline, and one byte that reveals a longer text */
};

struct server {
        const struct server_params *params;
        struct config *config;
        struct event_base *base;

        struct liveness liveness;
        struct service service; /* the server owns its parts */
        struct tenant tenants[CONFIG_MAX_TENANTS];
        size_t floor_prefix[CONFIG_MAX_FLOORS]; /* lengths of the prefixes in memory.floors */
        const struct config_tenant *tenant_config[CONFIG_MAX_TENANTS]; /* [0] may be NULL */
        struct spin spin;       /* adjusts for how long the loop polls before it sleeps */
        uint64_t wait_began_ns; /* time at which the loop began to wait */
        bool has_polled;        /* the loop has polled since wait_began_ns without an event */
        uint64_t wake_ns;       /* time of the next deadline; 0 if none */
        struct rest rest;       /* between stretches of work for which no client waits */
        unsigned sweep_turn;    /* modulo the number of tenants: the tenant whose pool is swept
                                 * next, to drop purged chunks */
        struct sessions *sessions;
        struct listener *listener;
        struct http *http;
        struct populate *populate;
        struct learned *learned;
        struct learned_head *learned_file; /* state read from the file, until it is restored */
        struct {
                struct keep *keep;
                struct keep_file *file; /* map of the earlier daemon, until it is taken over */
                char files[CONFIG_MAX_TENANTS][KEEP_NAME_BYTES];
                int kept[CONFIG_MAX_TENANTS]; /* position of the tenant's pool in the map; -1 if
                                               * its memory was not taken over */
                unsigned forbidden;           /* pools not taken over, because clients that had
                                               * mapped them have lost their rights */
                bool ready;                   /* the pools will be handed to the next daemon */
                bool reported;                /* the end of the verification was logged */
                char why_not[KEEP_ERROR_BYTES];
                uint8_t number[KEEP_NUMBER_BYTES];
        } keep;

        struct {
                struct event *done;
                struct server_secret
                        *secrets[CONFIG_MAX_TENANTS]; /* NULL if the tenant has no secret */
                bool stopped;
        } remote;

        struct event *done, *wait, *term, *interrupt, *hangup, *watchdog, *status_line, *drain,
                *tick, *expiry;
        unsigned expiry_at; /* next step of the expiry walk: 0 is the store, otherwise 1 plus the
                             * number of a tenant */
        struct {
                struct removal removal;
                bool removing;
                unsigned n;           /* removals begun in this tick */
                uint64_t searched_ns; /* time of the last search for unused namespaces; 0: search
                                         now */
        } unused;
        struct status_sources sources;
        struct history history;
        struct namespace_history namespace_history;
        uint8_t instance[WIRE_INSTANCE_BYTES];
        struct notify_sockets inherited;
        uint64_t staging_bytes_auto; /* result of config_auto_staging() at startup */
        uint64_t workers_alive_ns;   /* time at which all workers were last seen to advance */
        struct {
                uint64_t since_ns; /* time at which a client was last connected */
                uint64_t accepted; /* connections accepted until then */
        } idle;
        bool draining, drain_late;
        bool closed; /* a clean stop has closed everything, and nothing is in flight */
        struct log_ratelimit exhausted, findings, full;
};

/* --- server.c --- */

/* Does the work that was deferred to the end of an iteration of the loop. Returns true if the next
 * iteration must not wait. */
bool server_iterate(struct server *s);

/* --- server-stop.c --- */

uint64_t server_caches_pending(const struct server *s); /* operations of all tenants' caches */
/* Begins a clean stop; no effect if it has begun. */
void server_begin_drain(struct server *s);
/* Closes every session, and waits until every operation has completed. If a device has not answered
 * for io.hang, the process exits instead. */
void server_close_all(struct server *s);
/* Frees all parts, also after a failed startup. */
void server_fini(struct server *s);

/* --- server-start.c --- */

/* Logs why startup failed. Returns the exit status. */
int server_fail(int r, const char *what, const char *error);
void server_raise_limits(void);
/* Returns the bytes of memory that the daemon may still take. The pools and the lookup index call
 * it. */
uint64_t server_available_memory(void *userdata);
const char *server_tenant_name(const struct server *s, unsigned i);
int server_start_tenants(
        struct server *s); /* before the pools, because the tenants decide who may map them */
int server_start_pools(struct server *s);
int server_start_store(struct server *s);
int server_start_service(struct server *s);
int server_start_http(struct server *s);
/* Checks the path of the socket before anything is created. Returns 0, or the exit status. */
int server_check_listener(const struct server *s);
int server_start_listener(struct server *s);

/* --- server-reload.c --- */

/* Reads the configuration again, applies the keys that may change while running, and logs them. An
 * invalid configuration changes nothing. `ret_json`, which may be NULL, receives the logged changes
 * and errors as a JSON object that the caller frees. Returns 0; 1 if the configuration was refused;
 * -ENOMEM, with NULL in *ret_json, if there is no memory for the object of a reload that has
 * happened; or -ESHUTDOWN, without effect, once the daemon is stopping. */
int server_reload(struct server *s, char **ret_json);
/* Keeps for the status the names of the files of the configuration `read`, and the time `unix_ms`
 * just before they were read. */
void server_note_files(struct server *s, const struct config *read, uint64_t unix_ms);
/* Reloads for the request RELOAD, and prints the JSON object. Returns like server_reload(). */
int server_print_reload(void *userdata, FILE *out);

/* --- server-learned.c --- */

/* Reads the learned state, before the store is opened, and stores its secret for hashing keys in
 * *ret; without a valid file, a new random secret. Returns 0, or -EIO if the kernel gives no random
 * numbers. */
int server_read_learned(struct server *s, struct key_secret *ret);
/* Restores the learned state after the store is open. Returns 0, or the exit status. */
int server_start_learned(struct server *s, const struct key_secret *secret);

/* --- server-expiry.c --- */

int server_add_expiry(struct server *s); /* returns 0 or -ENOMEM */
/* Starts the walk if namespaces have lifetimes. Called often. */
void server_start_expiry(struct server *s);

/* --- server-namespaces.c --- */

/* Removes namespaces that have been unused for namespaces.expire. Called often. */
void server_expire_namespaces(struct server *s, uint64_t now_ns);

/* --- server-remote.c --- */

/* Starts the shared tier, if it is configured, after the store is open and before the caches.
 * Returns 0, or the exit status. */
int server_start_remote(struct server *s);
/* Applies a reload to the shared tier. */
void server_apply_remote(struct server *s);
/* Ends all waits for the back end. */
void server_stop_remote(struct server *s);
/* Frees the shared tier without waiting. */
void server_free_remote(struct server *s);

/* --- server-keep.c --- */

/* Reads the map that the service manager kept, before the pools are created. */
void server_read_map(struct server *s);
/* Opens a tenant's pool in kept memory, in memory that can be kept, or in a memfd. If `automatic`
 * is set and memory was kept, the pool gets the size of the kept memory, which reduces the
 * available memory from which a size would be computed. Returns 0 or -errno. */
int server_open_pool(struct server *s, unsigned tenant, const char *name, uint64_t bytes,
                     bool automatic);
/* Takes over the kept chunks, after the store is open and the learned state is restored. Returns 0,
 * or the exit status. */
int server_start_keep(struct server *s);
/* Verifies kept chunks. Called once per iteration; returns true if there is more to do at once. */
bool server_iterate_keep(struct server *s);
/* Callback of sessions_stop(): keeps the leases of a client, and a duplicate of its socket, for the
 * next daemon. Returns whether the socket was duplicated. */
bool server_hold_leases(void *userdata, struct client *client, int fd);
/* Store the map's number before the store is closed, and hand on map and memory afterwards. */
void server_number_memory(struct server *s);
void server_hand_on_memory(struct server *s);

/* --- server-rights.c --- */

/* Returns a digest of all rights to connect, and of the tenants that they lead to. */
uint64_t server_rights(const struct server *s);
/* Returns whether all clients that had mapped this pool of the map may still connect as the tenant,
 * and records them as its readers; otherwise fills in the reason. */
bool server_may_reuse_pool(struct server *s, unsigned tenant, int kept,
                           char ret_error[static KEEP_ERROR_BYTES]);
/* Fills in rights and readers; the caller frees *ret_readers. Returns 0 or -ENOMEM. */
int server_list_readers(const struct server *s, struct keep_handover *ret,
                        struct keep_reader **ret_readers);

/* --- server-limits.c --- */

struct quota_limits server_tenant_limits(const struct server *s, unsigned tenant);
struct quota_limits server_all_limits(const struct server *s);
struct quota_limits server_user_limits(const struct server *s);
struct lease_limits server_lease_limits(const struct server *s, unsigned tenant);
struct store_scrub server_scrub(const struct server *s);
/* Applies io.gds and io.gds_puts: whether data files are lent to clients, and puts taken from their
 * files. */
void server_apply_gds(struct server *s);
void server_apply_stages(struct server *s);
/* Applies eviction.policy to pools and store after a reload. If memory is short for one of them, it
 * logs that and keeps its policy. */
void server_apply_policy(struct server *s);
/* Creates admission at startup, with a record of seen keys that fits the store. Returns 0, or the
 * exit status. */
int server_start_admission(struct server *s);
/* Applies store.write_budget after a reload. If memory is short, keeps the old budget and logs
 * that. */
void server_apply_budget(struct server *s);
/* Reports to admission how many bytes the store has written so far, which count against
 * store.write_budget. */
void server_count_writes(struct server *s);
/* Applies the configured limits, at startup and after a reload. */
void server_apply_limits(struct server *s);
