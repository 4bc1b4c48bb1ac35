/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration: YAML, KVCACHE_* variables and --set into one struct, from one table.
 *
 * config.def has a row a key: dotted name, member, type, default, range, unit, reloadable, help.
 * The parser, --help, --print-config, the commented conf/kvcache.yaml and the man page's list are
 * made from it, and tests compare them. Order of precedence: default < file <
 * environment < --set.
 *
 * All text in a struct config is its own; config_fini() frees it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
        CONFIG_MAX_VOLUMES = 16,
        CONFIG_MAX_NAMES = 64,
        CONFIG_MAX_TENANTS = 16, /* "default" included, whether it has an entry or not */
        CONFIG_TENANT_NAME = 63, /* bytes */
        CONFIG_PREFIX = 128,     /* bytes of remote.prefix, with a NUL */
        CONFIG_MAX_ROWS = 128,
        CONFIG_MAX_TENANT_ROWS = 16,
};

enum config_choice_backend { CONFIG_BACKEND_AUTO, CONFIG_BACKEND_IO_URING, CONFIG_BACKEND_POSIX };

struct config_strings {
        char **items;
        unsigned n;
};

/* Where a value was given, for errors that show only when all is read. */
struct config_place {
        enum {
                CONFIG_FROM_NOWHERE, /* the default */
                CONFIG_FROM_FILE,
                CONFIG_FROM_ENVIRONMENT,
                CONFIG_FROM_SET,
        } from;
        uint32_t line, column; /* of a file; from 1 */
        bool broken;           /* what was given is refused, and it has its default */
};

/* An entry of `tenants`. 0 of a number: "auto", that is, no limit of its own. */
struct config_tenant {
        char *name;
        struct config_strings users, groups;
        uint64_t pool;
        uint64_t connections, leases, leased_bytes, staging_bytes, registered, keys, namespaces,
                stored_bytes, pinned_bytes;
        bool remote;                     /* tenants.remote */
        char *remote_secret;             /* tenants.remote_secret: a path, or "off" */
        uint64_t given[2], automatic[2]; /* as in struct config, a bit a row of tenant.def */
        struct config_place place[CONFIG_MAX_TENANT_ROWS];
};

struct config {
        struct {
                char *socket;     /* listen.socket: volume; "" decides by who runs it (see
                                   * config_resolve)
                                   */
                char *http;       /* listen.http: "127.0.0.1:9750", "unix:/path", "off" */
                uint32_t mode;    /* listen.mode: octal permissions of the socket */
                uint64_t idle_ms; /* listen.idle: without clients, the daemon stops after it */
        } listen;
        struct {
                bool allow_remote; /* http.allow_remote: listen.http need not be loopback */
                char *token_file;  /* http.token_file: a path, or "off" */
                struct config_strings hosts; /* http.hosts: further names of this host */
        } http;
        struct {
                struct config_strings path; /* store.path: one or a list; empty: decided */
                uint64_t limit;   /* store.limit: bytes; 0 (auto): min(1/2 of free space, 64 GiB) */
                uint64_t segment; /* store.segment: bytes of a data file, wished */
                uint64_t entries; /* store.entries; 0 (auto) */
                bool prewrite;    /* store.prewrite */
                uint64_t error_budget;      /* store.error_budget: of a volume in a minute */
                uint64_t reserve;           /* store.reserve: bytes; 0 (auto) */
                uint64_t scrub_rate;        /* store.scrub_rate: bytes a second; 0: none */
                uint64_t scrub_interval_ms; /* store.scrub_interval */
                uint64_t write_budget;      /* store.write_budget: bytes a day; 0: none */
                uint64_t rated_endurance;   /* store.rated_endurance: bytes; 0: not known */
        } store;
        struct {
                uint64_t pool; /* memory.pool: bytes; 0 (auto): min(1/4 of available memory, 4 GiB)
                                */
                char *huge_pages;                /* memory.huge_pages: auto | off */
                char *keep;                      /* memory.keep: auto | on | off */
                struct config_strings directory; /* memory.directory: one */
                uint64_t staging; /* memory.staging: largest staging area of a session; <= 64 MiB */
                bool lookup_index; /* memory.lookup_index */
                bool pool_index;   /* memory.pool_index */
        } memory;
        struct {
                char *backend;    /* io.backend: auto | io_uring | posix */
                uint64_t workers; /* io.workers; 0 (auto) */
                uint64_t depth;   /* io.depth: operations in flight a worker */
                bool direct;      /* io.direct: auto (try) | off */
                char *gds;        /* io.gds: auto | on | off */
                char *gds_puts;   /* io.gds_puts: off | auto | on */
                bool stages;      /* io.stages */
                uint64_t hang_ms; /* io.hang */
                char *spin;       /* io.spin: auto | on | off | long */
        } io;
        struct {
                char *backend;                      /* remote.backend: off | directory | ... */
                char *path;                         /* remote.path; "off" of all of these: none */
                bool sync;                          /* remote.sync */
                char *pool, *ceph_conf, *ceph_user; /* remote.pool, ... */
                char *endpoint, *bucket, *region;   /* remote.endpoint, ... */
                char *credentials, *ca;             /* remote.credentials, remote.ca: files */
                char *prefix;                       /* remote.prefix */
                struct config_strings local_namespaces; /* remote.local_namespaces */
                char *write;                            /* remote.write: never | reused | all */
                uint64_t write_rate; /* remote.write_rate: bytes a second; 0: any */
                uint64_t write_queue, read_inflight, write_inflight; /* remote.*: bytes */
                uint64_t timeout_ms, presence_lifetime_ms, absence_lifetime_ms,
                        generation_interval_ms; /* remote.timeout, ... */
                uint64_t probe_rate;            /* remote.probe_rate: a second */
        } remote;
        struct {
                char *policy;              /* eviction.policy: cq or lru */
                uint64_t save_interval_ms; /* eviction.save_interval */
        } eviction;
        struct {
                struct config_strings admin_users,
                        admin_groups; /* access.admin_users, ...: names or numbers; root and the
                                         daemon's own uid always are */
                struct config_strings users, groups; /* access.users, ...: who may connect; empty:
                                                        anyone the socket's mode lets in */
        } access;
        struct {
                uint64_t expire_ms; /* namespaces.expire: of one that is not used; 0: off */
        } namespaces;
        struct {
                uint64_t connections;   /* limits.connections */
                uint64_t staging_bytes; /* limits.staging_bytes: of all; 0 (auto): see
                                           config_auto_staging() */
                uint64_t registered; /* limits.registered: of all; 0 (auto): 3/4 of the machine */
                uint64_t keys;       /* limits.keys: of requests in flight, of all */
                uint64_t requests;   /* limits.requests: in flight, of all */
                uint64_t request_memory; /* limits.request_memory: of all; 0 (auto): by `keys` */
                uint64_t unread_fds; /* limits.unread_fds: of all; 0 (auto): 1/2 of RLIMIT_NOFILE */
                /* limits.uid_*: of one user; 0 (auto): see config_uid_limits() */
                uint64_t uid_connections, uid_leases, uid_leased_bytes, uid_staging_bytes,
                        uid_registered, uid_keys, uid_requests, uid_request_memory, uid_unread_fds,
                        uid_namespaces;
                uint64_t leases;       /* limits.leases: of a connection, count */
                uint64_t leased_bytes; /* limits.leased_bytes: of a connection; 0 (auto): pool/4 */
                uint64_t handshake_ms; /* limits.handshake: from accept to HELLO */
                uint64_t wait_ms; /* limits.wait: how long a request may wait for room when it names
                                     no timeout */
                uint64_t drain_ms; /* limits.drain: at SIGTERM, for what is not on disk yet */
                uint64_t http_connections; /* limits.http_connections */
                uint64_t http_ms;   /* limits.http: absolute deadline of an HTTP connection */
                uint64_t http_rate; /* limits.http_rate: pages a second of an address; 0: any */
        } limits;
        struct {
                char *level;  /* log.level */
                char *format; /* log.format */
        } log;

        struct config_tenant *tenants; /* in file order */
        unsigned n_tenants;

        /* One bit a row of the table: keys that were given, rather than defaulted; and keys whose
         * "auto" config_resolve() replaced by what it chose. */
        uint64_t given[2], automatic[2];
        struct config_place place[CONFIG_MAX_ROWS];
        char file[256]; /* its name, as errors say it */
        /* No key: the pools of the daemon before, whose memory is not available, and theirs. */
        uint64_t kept_bytes;
};

/* Where an error is, and what; a sentence with a hint where one helps: `unknown key "store.limt";
 * did you mean "store.limit"?` */
struct config_error {
        char text[640]; /* "kvcache.yaml:12:3: ..." , "--set store.limit=x: ...",
                           "KVCACHE_STORE_LIMIT: ..." */
        /* Not NULL: gets every error, and reading goes on behind one where it can. Then `n` counts
         * them, `broken` says that what follows an error could not be read at all, and what is
         * returned is that of the first. */
        void (*each)(void *userdata, const char *text);
        void *userdata;
        unsigned n;
        bool broken;
        uint64_t noted[32]; /* what was said is not said again: of the first ones, a hash */
};

void config_init(struct config *c); /* the defaults; -ENOMEM is fatal at start: aborts */
void config_fini(struct config *c);

/* Each 0, or -EINVAL / -errno with *ret_error set; `c` may be partly changed then.
 *
 * A file is at most CONFIG_MAX_FILE bytes of UTF-8. Keys may be nested or dotted: `store:` above
 * `limit: 64GiB`, or `store.limit: 64GiB`. Each may come once. `tenants:` is a list of mappings, a
 * tenant each; or the mapping `default` of `users` and `groups`, another way to write access.users
 * and access.groups. `text` need not end in a NUL; `name` is what errors call it.
 *
 * In the environment and with --set a list is written with commas; there the last one of several
 * wins. An empty variable counts as unset. */
enum { CONFIG_MAX_FILE = 1024 * 1024 };
int config_load_text(struct config *c, const char *name, const char *text, size_t length,
                     struct config_error *ret_error);
int config_load_file(struct config *c, const char *path, struct config_error *ret_error);
int config_load_environment(struct config *c, char *const *environ, void (*warn)(const char *text),
                            struct config_error *ret_error);
int config_set(struct config *c, const char *assignment, const char *origin,
               struct config_error *ret_error);
/* What rows cannot say alone (ranges that depend on each other). */
int config_check(const struct config *c, struct config_error *ret_error);
/* All of the above, in order, into a config_init()ed `c`. `path` may be NULL: no file. Without
 * `path_must_exist` a file that is not there counts as empty. Resolves nothing. `warn` as for
 * config_load_environment(). */
int config_load_all(struct config *c, const char *path, bool path_must_exist, char *const *environ,
                    char *const *sets, unsigned n_sets, void (*warn)(const char *text),
                    struct config_error *ret_error);

/* What this host must have: users and groups that are named, memory for the pools. Of a
 * configuration that is resolved. 0, -EINVAL. */
int config_check_host(const struct config *c, struct config_error *ret_error);
/* Can the store and the sockets be made where they are to be? Changes nothing. 0, -EINVAL, -errno.
 * One unusable volume among several is a `warn`: the daemon starts without it. */
int config_check_places(const struct config *c, void (*warn)(const char *text),
                        struct config_error *ret_error);

/* A file with a secret: is it a regular file of root's or the daemon's user, which others can
 * neither read nor write, and its group cannot write? `key`: of the configuration, for the
 * sentence. 0, -EINVAL, -errno. */
int config_check_secret(const char *key, const char *path, char ret_error[static 256]);

/* Fills in what "auto" means on this machine: socket volume ($RUNTIME_DIRECTORY/kvcache.sock, which
 * is /run/kvcache/kvcache.sock in the unit and for root, else
 * $XDG_RUNTIME_DIR/kvcache/kvcache.sock, else /tmp/kvcache-UID/kvcache.sock), store volume
 * ($STATE_DIRECTORY, or /var/lib/kvcache for root, else $XDG_STATE_HOME/kvcache or
 * ~/.local/state/kvcache), limit, entries, pool, workers, leased bytes. Tells `say` each choice, a
 * sentence each. -ENOSPC: the file system has no room for the smallest store; -EINVAL: nowhere to
 * put it. Once done, does nothing when called again. What an admin should look at, a pool that
 * cannot fill, goes to `warn`. */
int config_resolve(struct config *c, void (*say)(const char *text), void (*warn)(const char *text),
                   struct config_error *ret_error);

/* What limits.uid_connections and limits.uid_keys are where they are "auto". */
void config_uid_limits(const struct config *c, uint64_t *ret_connections, uint64_t *ret_keys);

/* For who collects errors with `each` over several of these: what one of them returned, noted, is
 * 0. -ENOMEM, and what makes going on senseless, stay. */
int config_note(struct config_error *ret_error, int r);

/* Was the key given by file, environment or --set? `name` is dotted. */
bool config_given(const struct config *c, const char *name);
/* Was the size of this tenant's pool chosen by config_resolve()? NULL: of `default`. */
bool config_pool_is_automatic(const struct config *c, const struct config_tenant *t);

/* YAML that config_load_file() reads back to the same; comments tell what is a default, and what
 * was chosen. */
void config_print(const struct config *c, FILE *out);
/* Every key with its help and range, at its default and commented out: the text of
 * conf/kvcache.yaml. */
void config_print_template(FILE *out);
/* The keys, one a line with type, default and help, for --help. */
void config_print_keys(FILE *out);

/* What became of a key that has another value in the configuration that was read anew. */
enum config_change {
        CONFIG_APPLIED,
        CONFIG_NEEDS_RESTART,
        CONFIG_KEPT, /* for want of memory */
};
struct config_report {
        void (*say)(void *userdata, enum config_change change, const char *text);
        void *userdata;
};

/* Can `next` (loaded, not resolved) be taken while `c` (resolved) runs? To be asked before
 * config_reload(). 0, -EINVAL. */
int config_reload_check(const struct config *c, const struct config *next,
                        struct config_error *ret_error);
/* Takes from `next` what may change while running, into `c`. Reports each key that differs. Returns
 * how many took effect. */
unsigned config_reload(struct config *c, const struct config *next,
                       const struct config_report *report);

/* How much memory this process may still come to use: MemAvailable, and the limits of its control
 * groups (v1 and v2, with all that are above them). `root` is "" or, in tests, a folder that holds
 * proc/ and sys/. *ret_limited: a control group says so. Always an answer. */
uint64_t config_available_memory(const char *root, bool *ret_limited);
/* Returns the bytes of all tenants' pools; UINT64_MAX if the sum overflows. */
uint64_t config_pools_bytes(const struct config *c);
/* Returns the value of limits.staging_bytes: auto before the pools have taken their memory: half of
 * the available memory, or the rest beside the pools if that is less, but at least an eighth. */
uint64_t config_auto_staging(const struct config *c, const char *root);
/* Returns the least memory limit of this process's control groups and of those above them;
 * UINT64_MAX if no group has one. */
uint64_t config_memory_limit(const char *root);
