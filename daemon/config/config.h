/* SPDX-License-Identifier: Apache-2.0 */
/* The configuration: YAML, KVCACHE_* variables and --set are read into one struct, by one table.
 *
 * config.def has a row for each key: dotted name, member, type, default, range, unit, whether it
 * can be reloaded, and help. The parser, --help, --print-config, the commented conf/kvcache.yaml
 * and the list in the man page are made from it, and tests compare them. Order of precedence:
 * default < file < drop-ins < environment < --set.
 *
 * A struct config owns all its text; config_fini() frees it. */
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
        CONFIG_MAX_DROP_INS = 64,
};

enum config_choice_backend { CONFIG_BACKEND_AUTO, CONFIG_BACKEND_IO_URING, CONFIG_BACKEND_POSIX };

struct config_strings {
        char **items;
        unsigned n;
};

/* The place where a value was given, for errors that are found only after everything has been read,
 * and for config_print(). */
struct config_place {
        enum {
                CONFIG_FROM_NOWHERE, /* the key has its default */
                CONFIG_FROM_FILE,
                CONFIG_FROM_ENVIRONMENT,
                CONFIG_FROM_SET,
        } from;
        uint32_t line, column; /* line and column in a file, counted from 1; 0 otherwise */
        uint16_t file;         /* the index of its name in struct config.files */
        bool broken;           /* the given value was refused; the key has its default */
};

/* An entry of `tenants`. A number of 0 means "auto": the tenant has no limit of its own, unless the
 * key's help in tenant.def gives another meaning. */
struct config_tenant {
        char *name;
        struct config_strings users, groups;
        uint64_t pool;
        uint64_t connections, leases, leased_bytes, staging_bytes, registered, keys, namespaces,
                stored_bytes, pinned_bytes;
        bool remote;                     /* tenants.remote */
        char *remote_secret;             /* tenants.remote_secret: a path, or "off" */
        uint64_t given[2], automatic[2]; /* one bit per row of tenant.def, as in struct config */
        struct config_place place[CONFIG_MAX_TENANT_ROWS];
        uint16_t file; /* index in struct config.files of the last file with an entry of this
                        * name */
};

struct config {
        struct {
                char *socket;     /* listen.socket: path; "": config_resolve() chooses it */
                char *http;       /* listen.http: "127.0.0.1:9750", "unix:/path", "off" */
                uint32_t mode;    /* listen.mode: octal permissions of the socket */
                uint64_t idle_ms; /* listen.idle: ms without clients after which the daemon stops;
                                   * 0: never */
        } listen;
        struct {
                bool allow_remote; /* http.allow_remote: listen.http need not be loopback */
                char *token_file;  /* http.token_file: a path, or "off" */
                struct config_strings hosts; /* http.hosts: further names of this host */
        } http;
        struct {
                struct config_strings path; /* store.path: one directory or several; empty:
                                             * config_resolve() chooses one */
                uint64_t limit;   /* store.limit: bytes; 0 (auto): min(1/2 of free space, 64 GiB) */
                uint64_t segment; /* store.segment: preferred bytes of a data file */
                uint64_t entries; /* store.entries: number of chunks; 0: auto */
                bool prewrite;    /* store.prewrite: write zeros to new data files */
                uint64_t error_budget;      /* store.error_budget: errors of a volume in a minute */
                uint64_t reserve;           /* store.reserve: bytes of the file system that stay
                                             * free; 0: auto */
                uint64_t scrub_rate;        /* store.scrub_rate: bytes a second; 0: none */
                uint64_t scrub_interval_ms; /* store.scrub_interval: ms */
                uint64_t write_budget;      /* store.write_budget: bytes a day; 0: none */
                uint64_t rated_endurance;   /* store.rated_endurance: bytes; 0: not known */
        } store;
        struct {
                uint64_t pool; /* memory.pool: bytes; 0 (auto): min(1/4 of available memory, 4 GiB),
                                * at least 16 MiB */
                struct config_strings floors;    /* memory.floors: PREFIX=SIZE, see
                                                  * config_split_floor() */
                char *huge_pages;                /* memory.huge_pages: auto | off | all */
                char *keep;                      /* memory.keep: auto | on | off */
                struct config_strings directory; /* memory.directory: one directory, or none */
                uint64_t staging; /* memory.staging: largest staging area of a session; <= 64 MiB */
                bool lookup_index; /* memory.lookup_index */
                bool pool_index;   /* memory.pool_index */
                uint64_t prefetch; /* memory.prefetch: bytes a second; 0: none */
        } memory;
        struct {
                uint64_t ring; /* events.ring: bytes for each tenant; 0: none */
        } events;
        struct {
                char *backend;     /* io.backend: auto | io_uring | posix */
                uint64_t workers;  /* io.workers: number of workers; 0: auto */
                uint64_t depth;    /* io.depth: operations in flight for each worker */
                bool direct;       /* io.direct: auto (try) | off */
                bool registration; /* io.registration: auto (try) | off */
                char *gds;         /* io.gds: auto | on | off */
                char *gds_puts;    /* io.gds_puts: off | auto | on */
                bool stages;       /* io.stages */
                uint64_t hang_ms;  /* io.hang: ms */
                char *spin;        /* io.spin: auto | on | off | long */
        } io;
        struct {
                char *backend; /* remote.backend: off | directory | ... */
                char *path;    /* remote.path; "off" in this and the next keys means none */
                bool sync;     /* remote.sync */
                char *pool, *ceph_conf, *ceph_user;     /* remote.pool, ... */
                char *endpoint, *bucket, *region;       /* remote.endpoint, ... */
                char *credentials, *ca;                 /* remote.credentials, remote.ca: files */
                char *prefix;                           /* remote.prefix */
                struct config_strings local_namespaces; /* remote.local_namespaces */
                char *write;                            /* remote.write: never | reused | all */
                uint64_t write_rate; /* remote.write_rate: bytes a second; 0: no limit */
                uint64_t write_queue, read_inflight, write_inflight; /* remote.*: bytes */
                uint64_t timeout_ms, presence_lifetime_ms, absence_lifetime_ms,
                        generation_interval_ms; /* remote.timeout and others */
                uint64_t probe_rate;            /* remote.probe_rate: probes a second */
        } remote;
        struct {
                char *policy;              /* eviction.policy: cq or lru */
                uint64_t save_interval_ms; /* eviction.save_interval: ms */
        } eviction;
        struct {
                struct config_strings admin_users,
                        admin_groups; /* access.admin_users, access.admin_groups: names or numbers;
                                       * root and the daemon's own uid are always admins */
                struct config_strings users, groups; /* access.users, access.groups: users that may
                                                      * connect; if both are empty, every user that
                                                      * the socket's mode admits */
        } access;
        struct {
                uint64_t expire_ms; /* namespaces.expire: ms for which a namespace is unused before
                                     * it is removed; 0: off */
        } namespaces;
        struct {
                uint64_t connections;   /* limits.connections: of all clients */
                uint64_t staging_bytes; /* limits.staging_bytes: of all clients; 0 (auto): see
                                         * config_auto_staging() */
                uint64_t registered;    /* limits.registered: bytes of all clients; 0 (auto): 3/4 of
                                         * the machine's memory */
                uint64_t keys;     /* limits.keys: keys of requests in flight, of all clients */
                uint64_t requests; /* limits.requests: requests in flight, of all clients */
                uint64_t request_memory; /* limits.request_memory: bytes of all clients; 0 (auto):
                                          * computed from `keys` */
                uint64_t unread_fds;     /* limits.unread_fds: of all clients; 0 (auto): 1/2 of
                                          * RLIMIT_NOFILE */
                /* limits.uid_*: of one user; 0 (auto): as the help of each key in config.def says,
                 * see config_uid_limits() for connections and keys */
                uint64_t uid_connections, uid_leases, uid_leased_bytes, uid_staging_bytes,
                        uid_registered, uid_keys, uid_requests, uid_request_memory, uid_unread_fds,
                        uid_namespaces;
                uint64_t leases;       /* limits.leases: number for each connection */
                uint64_t leased_bytes; /* limits.leased_bytes: for each connection; 0 (auto):
                                        * three eighths of the pool */
                uint64_t handshake_ms; /* limits.handshake: ms from accept to HELLO */
                uint64_t wait_ms;  /* limits.wait: ms for which a request without a timeout may wait
                                    * for room */
                uint64_t drain_ms; /* limits.drain: ms after SIGTERM for writing chunks that are not
                                    * on disk yet */
                uint64_t http_connections; /* limits.http_connections: of the HTTP server */
                uint64_t http_ms;   /* limits.http: ms from accept after which an HTTP connection is
                                     * closed */
                uint64_t http_rate; /* limits.http_rate: pages a second for each address; 0: no
                                     * limit */
        } limits;
        struct {
                char *level;  /* log.level */
                char *format; /* log.format */
        } log;

        struct config_tenant *tenants; /* in the order in which the files first name them */
        unsigned n_tenants;

        /* One bit per row of the table: keys that were given instead of defaulted, and keys whose
         * "auto" config_resolve() replaced by a value. */
        uint64_t given[2], automatic[2];
        struct config_place place[CONFIG_MAX_ROWS];
        struct config_strings files; /* names of the files that were read, in order, for errors */
        /* Not a key: bytes of the pools that an earlier daemon left. They are not available memory,
         * but the new pools use them. */
        uint64_t kept_bytes;
};

/* An error, with its place and a hint where that helps: `unknown key "store.limt"; did you mean
 * "store.limit"?` */
struct config_error {
        char text[640]; /* "kvcache.yaml:12:3: ..." , "--set store.limit=x: ...",
                           "KVCACHE_STORE_LIMIT: ..." */
        /* NULL: the first error ends the function, which returns it. Otherwise each() receives
         * every error once, and reading continues where it can; `n` counts the errors, and `broken`
         * means that the text after an error could not be read at all. */
        void (*each)(void *userdata, const char *text);
        void *userdata;
        unsigned n;
        bool broken;
        uint64_t noted[32]; /* hashes of the first errors, so that none is reported twice */
};

void config_init(struct config *c); /* sets the defaults; aborts if memory is short */
void config_fini(struct config *c);

/* Each of the functions from config_load_text() to config_load_all() returns 0, or -EINVAL or
 * -errno with *ret_error set; `c` may be partly changed then.
 *
 * A file is at most CONFIG_MAX_FILE bytes of UTF-8. Keys may be nested or dotted: `store:` above
 * `limit: 64GiB`, or `store.limit: 64GiB`. Each may occur once. `tenants:` is a list of mappings,
 * one per tenant; or the mapping `default` of `users` and `groups`, another way to write
 * access.users and access.groups. `text` need not end with a NUL; errors use `name` for it.
 *
 * Several files may be loaded into one configuration, one after the other. The last value of a key
 * wins, and a list replaces the earlier one. Only `tenants` is merged: an entry with the name of an
 * earlier file's entry changes the keys that it gives, and another name adds a tenant.
 *
 * In the environment and with --set a list is written with commas, and the last of several values
 * wins. An empty variable counts as unset. */
enum { CONFIG_MAX_FILE = 1024 * 1024 };
int config_load_text(struct config *c, const char *name, const char *text, size_t length,
                     struct config_error *ret_error);
int config_load_file(struct config *c, const char *path, struct config_error *ret_error);
/* Loads the drop-ins of the file `path`: the regular files in the directory `path`.d whose names
 * end with ".yaml" and do not begin with a dot, in the order of their names' bytes. A missing
 * directory has none. Together they are at most CONFIG_MAX_FILE bytes. The directory and the files
 * must belong to root, to this process's user or, for root, to the owner of `path`, and others must
 * not be able to write to them, unless the mount is read-only. Calls `warn` for a name that seems
 * to be meant as a drop-in and is not. */
int config_load_drop_ins(struct config *c, const char *path, void (*warn)(const char *text),
                         struct config_error *ret_error);
int config_load_environment(struct config *c, char *const *environ, void (*warn)(const char *text),
                            struct config_error *ret_error);
int config_set(struct config *c, const char *assignment, const char *origin,
               struct config_error *ret_error);
/* Checks conditions between several keys, such as ranges that depend on each other. Returns 0 or
 * -EINVAL, as config_note() does. */
int config_check(const struct config *c, struct config_error *ret_error);
/* Loads the file and its drop-ins, the environment and the options `sets`, in order, into a `c`
 * initialized by config_init(), and calls config_check(). `path` is NULL to load no files. Unless
 * `path_must_exist` is set, a missing file counts as empty. Does not resolve "auto". `warn` is as
 * for config_load_environment(). */
int config_load_all(struct config *c, const char *path, bool path_must_exist, char *const *environ,
                    char *const *sets, unsigned n_sets, void (*warn)(const char *text),
                    struct config_error *ret_error);

/* Splits an entry of memory.floors, PREFIX=SIZE. Returns false if it is not of that form, the
 * prefix is empty, too long or has characters that no label of a metric may have, or the size is
 * 0. */
enum { CONFIG_MAX_FLOORS = 15, CONFIG_FLOOR_PREFIX = 255 };
bool config_split_floor(const char *floor, size_t *ret_prefix, uint64_t *ret_bytes);

/* Checks that this host has the named users and groups and memory for the pools, and that files
 * with secrets pass config_check_secret(). `c` must be resolved. Returns 0, -EINVAL, or the -errno
 * of a file. */
int config_check_host(const struct config *c, struct config_error *ret_error);
/* Checks, without changing anything, whether the store and the sockets can be created. Returns 0,
 * -EINVAL or -errno. While at least one volume is usable, only calls `warn` for the others: the
 * daemon starts without them. */
int config_check_places(const struct config *c, void (*warn)(const char *text),
                        struct config_error *ret_error);

/* Checks a file with a secret: it must be a regular file owned by root or this process's user (if
 * that is root, by any user), which others can neither read nor write and its group cannot write.
 * `key` is the configuration key for the error text. Returns 0, -EINVAL or -errno. */
int config_check_secret(const char *key, const char *path, char ret_error[static 256]);

/* Fills in the keys that are "auto" for this machine: the socket ($RUNTIME_DIRECTORY/kvcache.sock,
 * which is /run/kvcache/kvcache.sock in the unit and for root, else
 * $XDG_RUNTIME_DIR/kvcache/kvcache.sock, else /tmp/kvcache-UID/kvcache.sock), the store's directory
 * ($STATE_DIRECTORY, or /var/lib/kvcache for root, else $XDG_STATE_HOME/kvcache or
 * ~/.local/state/kvcache), limit, entries, all pools, workers and leased bytes. Then calls
 * config_check(). Reports each choice to `say`, in one sentence, and problems that need an admin,
 * such as a pool that cannot fill, to `warn`. Returns 0; -ENOSPC if the file system has no room for
 * the smallest store; -EINVAL if there is no directory for the store, or config_check() fails; or
 * the -errno of a directory that cannot be examined. A second call changes nothing. */
int config_resolve(struct config *c, void (*say)(const char *text), void (*warn)(const char *text),
                   struct config_error *ret_error);

/* Computes the values of limits.uid_connections and limits.uid_keys, also if they are "auto". */
void config_uid_limits(const struct config *c, uint64_t *ret_connections, uint64_t *ret_keys);

/* Returns what limits.leased_bytes is by default, for a pool of this size: as much as a user who
 * leases alone may lease (LEASE_SHARE in cache/lease.h). */
static inline uint64_t config_auto_leased_bytes(uint64_t pool_bytes)
{
        return pool_bytes / 8 * 3;
}

/* For callers that collect errors with `each` over several functions: passes an error to `each` and
 * returns 0. Returns `r` unchanged if it is no error or -ENOMEM, if `each` is NULL, or if reading
 * could not continue after an earlier error. */
int config_note(struct config_error *ret_error, int r);

/* Returns whether a key was given by file, environment or --set. `name` is dotted. */
bool config_given(const struct config *c, const char *name);
/* Returns whether config_resolve() chose the size of a tenant's pool. NULL means `default`. */
bool config_pool_is_automatic(const struct config *c, const struct config_tenant *t);

/* Prints YAML from which config_load_file() reads the same configuration. Comments mark defaults
 * and chosen values, and name the drop-in that gave a value. */
void config_print(const struct config *c, FILE *out);
/* Prints every key with its help and range, at its default and commented out: the text of
 * conf/kvcache.yaml. */
void config_print_template(FILE *out);
/* Prints the keys for --help, one per line with type, default and help. */
void config_print_keys(FILE *out);

/* The outcome of a reload for a key whose value has changed. */
enum config_change {
        CONFIG_APPLIED,
        CONFIG_NEEDS_RESTART,
        CONFIG_KEPT, /* the value could not be taken over, mostly because memory was short; the text
                      * says why */
};
struct config_report {
        void (*say)(void *userdata, enum config_change change, const char *text);
        void *userdata;
};

/* Checks whether the daemon that runs with `c` (resolved) can take over `next` (loaded, not
 * resolved). Call it before config_reload(). Returns 0 or -EINVAL. */
int config_reload_check(const struct config *c, const struct config *next,
                        struct config_error *ret_error);
/* Copies the reloadable values of `next` into `c`, and reports each key that differs. Returns the
 * number of keys that took effect. */
unsigned config_reload(struct config *c, const struct config *next,
                       const struct config_report *report);

/* Returns the memory that this process may still use: the least of MemAvailable and the limits of
 * its control groups (v1 and v2, with all their ancestors). `root` is "" or, in tests, a folder
 * with proc/ and sys/. Sets *ret_limited if a control group decides. Never fails. */
uint64_t config_available_memory(const char *root, bool *ret_limited);
/* Returns the bytes of all tenants' pools; UINT64_MAX if the sum overflows. */
uint64_t config_pools_bytes(const struct config *c);
/* Returns the value that "auto" stands for in limits.staging_bytes: half of the available memory,
 * or the memory that the pools leave if that is less, but at least an eighth of the available
 * memory. Call it before the pools are created. */
uint64_t config_auto_staging(const struct config *c, const char *root);
/* Returns the least memory limit of this process's control groups and of those above them;
 * UINT64_MAX if no group has one. */
uint64_t config_memory_limit(const char *root);
