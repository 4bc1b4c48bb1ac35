/* SPDX-License-Identifier: Apache-2.0 */
/* The server's parts, for the files that start, connect and run them. Private to these files. */
#pragma once

#include <event2/event.h>

#include "base/log.h"
#include "config/config.h"
#include "key.h"
#include "request/request.h"
#include "request/memory.h"
#include "report/history-collect.h"
#include "report/history.h"
#include "report/http.h"
#include "session/listener.h"
#include "io/liveness.h"
#include "cache/populate.h"
#include "tenant/census.h"
#include "tenant/removal.h"
#include "notify.h"
#include "server.h"
#include "session/session.h"
#include "spin.h"
#include "report/status.h"
#include "report/collect.h"
#include "report/health.h"
#include "keep/keep.h"

/* A tenant's, for the shared tier. */
struct server_secret {
        size_t length;
        char bytes[4096 + 2]; /* with a newline, and one byte to see that it is too long */
};

struct server {
        const struct server_params *params;
        struct config *config;
        struct event_base *base;

        struct liveness liveness;
        struct service service; /* whose parts are the server's */
        struct tenant tenants[CONFIG_MAX_TENANTS];
        const struct config_tenant *tenant_config[CONFIG_MAX_TENANTS]; /* [0]: may be NULL */
        struct spin spin;                                              /* of the loop */
        uint64_t wait_began_ns;                                        /* the loop's */
        bool has_polled;                                               /* in vain, since then */
        uint64_t wake_ns;    /* of the next deadline; 0: there is none */
        unsigned sweep_turn; /* the tenant whose pool is swept next */
        struct sessions *sessions;
        struct listener *listener;
        struct http *http;
        struct populate *populate;
        struct learned *learned;
        struct learned_head *learned_file; /* until it is restored */
        struct {
                struct keep *keep;
                struct keep_file *file; /* until it is taken over */
                char files[CONFIG_MAX_TENANTS][KEEP_NAME_BYTES];
                int kept[CONFIG_MAX_TENANTS]; /* as of struct keep_tenant */
                unsigned forbidden;           /* pools that clients without rights had mapped */
                bool ready;                   /* the pools will be handed on */
                bool reported;                /* that all is verified */
                char why_not[KEEP_ERROR_BYTES];
                uint8_t number[KEEP_NUMBER_BYTES];
        } keep;

        struct {
                struct event *done;
                struct server_secret *secrets[CONFIG_MAX_TENANTS]; /* NULL: it has none */
                bool stopped;
        } remote;

        struct event *done, *wait, *term, *interrupt, *hangup, *watchdog, *status_line, *drain,
                *tick, *expiry;
        unsigned expiry_at; /* whose step is the next: 0: the store's; else of the tenant before */
        struct {
                struct removal removal;
                bool removing;
                unsigned n;         /* removals of this tick */
                uint64_t looked_ns; /* when unused namespaces were last looked for; 0: look now */
        } unused;
        struct status_sources sources;
        struct history history;
        uint8_t instance[WIRE_INSTANCE_BYTES];
        struct notify_sockets inherited;
        uint64_t staging_bytes_auto; /* config_auto_staging() at startup */
        uint64_t workers_alive_ns;   /* when all workers were last seen to advance */
        struct {
                uint64_t since_ns; /* when a client was last connected */
                uint64_t accepted; /* connections until then */
        } idle;
        bool draining, drain_late;
        bool closed; /* by a clean stop: nothing is under way any more */
        struct log_ratelimit exhausted, findings, full;
};

/* --- server-start.c --- */

/* Says why it does not start; the exit status. */
int server_fail(int r, const char *what, const char *error);
void server_raise_limits(void);
const char *server_tenant_name(const struct server *s, unsigned i);
int server_start_tenants(struct server *s); /* before the pools: it says who may have them */
int server_start_pools(struct server *s);
int server_start_store(struct server *s);
int server_start_service(struct server *s);
int server_start_http(struct server *s);
int server_start_listener(struct server *s);

/* --- server-reload.c --- */

/* Reads the configuration again, takes what may change while running, and logs what that was; of a
 * wrong one it takes nothing. `ret_json` (may be NULL): the same as an object, to be freed by the
 * caller; unset on -ENOMEM. 0; 1: refused, and nothing was changed; -ENOMEM; -ESHUTDOWN. */
int server_reload(struct server *s, char **ret_json);
/* The same for RELOAD: prints the object. */
int server_print_reload(void *userdata, FILE *out);

/* --- server-learned.c --- */

/* Before the store is opened: what it hashes keys with. 0, -EIO. */
int server_read_learned(struct server *s, struct key_secret *ret);
/* When it is open. 0, or the exit status. */
int server_start_learned(struct server *s, const struct key_secret *secret);

/* --- server-expiry.c --- */

int server_add_expiry(struct server *s); /* 0, -ENOMEM */
/* Often: goes on once there are lifetimes. */
void server_start_expiry(struct server *s);

/* --- server-namespaces.c --- */

/* Often: removes namespaces that have been unused for namespaces.expire. */
void server_expire_namespaces(struct server *s, uint64_t now_ns);

/* --- server-remote.c --- */

/* When the store is open, before the caches are: the shared tier, if there is to be one. 0, or the
 * exit status. */
int server_start_remote(struct server *s);
/* After a reload. */
void server_apply_remote(struct server *s);
/* What waits for the engine ends. */
void server_stop_remote(struct server *s);
/* Waits for nothing. */
void server_free_remote(struct server *s);

/* --- server-keep.c --- */

/* What the service manager has kept for this daemon, before the pools are made. */
void server_read_map(struct server *s);
/* The pool of a tenant: in memory that was kept or can be, or in its own. `automatic`: it is as
 * large as what was kept, if anything was: what is available now is less by that. 0, -errno. */
int server_open_pool(struct server *s, unsigned tenant, const char *name, uint64_t bytes,
                     bool automatic);
/* When the store is open and eviction has what it learned. 0, or the exit status. */
int server_start_keep(struct server *s);
/* Once an iteration. True: there is more to do at once. */
bool server_iterate_keep(struct server *s);
/* For sessions_stop(). */
bool server_hold_leases(void *userdata, struct client *client, int fd);
/* Before the store is closed, and after it is. */
void server_number_memory(struct server *s);
void server_hand_on_memory(struct server *s);

/* --- server-rights.c --- */

/* Returns a digest of all rights to connect, and as which tenant. */
uint64_t server_rights(const struct server *s);
/* Returns whether all clients that had mapped this pool of the map may still connect as the tenant,
 * and records them as its readers; else the reason. */
bool server_may_reuse_pool(struct server *s, unsigned tenant, int kept,
                           char ret_error[static KEEP_ERROR_BYTES]);
/* Fills in rights and readers; the caller frees *ret_readers. 0, -ENOMEM. */
int server_list_readers(const struct server *s, struct keep_handover *ret,
                        struct keep_reader **ret_readers);

/* --- server-limits.c --- */

struct quota_limits server_tenant_limits(const struct server *s, unsigned tenant);
struct quota_limits server_all_limits(const struct server *s);
struct quota_limits server_user_limits(const struct server *s);
struct lease_limits server_lease_limits(const struct server *s, unsigned tenant);
struct store_scrub server_scrub(const struct server *s);
/* To whom the data files are lent, and whose files puts may be taken from. */
void server_apply_gds(struct server *s);
void server_apply_stages(struct server *s);
/* After a reload: for pools and store. What is out of memory for it says so and keeps its own. */
void server_apply_policy(struct server *s);
/* At startup: of how many keys admission knows that they were seen. 0, or the exit status. */
int server_start_admission(struct server *s);
/* After a reload. Out of memory, the budget is the one that it was, and the log says so. */
void server_apply_budget(struct server *s);
/* What was written is charged to the budget. */
void server_count_writes(struct server *s);
/* After a reload. */
void server_apply_limits(struct server *s);
