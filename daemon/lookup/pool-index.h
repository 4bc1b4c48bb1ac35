/* SPDX-License-Identifier: Apache-2.0 */
/* The pool index of one tenant, and the pages in which its clients record their holds;
 * proto/pool-index.h specifies both. The index is created when the first client joins, and is
 * filled over several iterations; clients ask the daemon for chunks that it does not have yet.
 *
 * This module also decides how much a client may hold: its allowance is an eighth of the bytes that
 * all clients may hold and that no other client's allowance covers, but at most 1 GiB. The
 * allowances of one user together are at most three quarters of these bytes. The library never
 * holds more than its allowance, so a client that holds more than twice as much misbehaves. If
 * clients of one user are repeatedly found to do so, while a request needs the room, the user's
 * clients may not join for a minute; those that hold too much at that time are revoked, and the
 * caller ends their sessions. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "cache/pool.h"
#include "io/io.h"
#include "proto/pool-index.h"

struct pool_index;

/* The counters of one namespace in a client's page that the daemon has already taken over. */
struct pool_index_seen {
        struct pool_page_count last;    /* the counters as last read */
        struct pool_page_count counted; /* the part of `last` that was accepted */
};

/* The state of a session's client in the pool index; all zero until pool_index_join() succeeds. */
struct pool_client {
        struct list_node node;
        struct pool_index *index; /* the index; NULL if the client has not joined */
        const struct pool *pool;
        struct pool_page *page;
        uid_t uid;
        uint64_t allowance;
        uint64_t taken;   /* words taken so far from the ring in the client's page */
        uint32_t untaken; /* keys that remain of the list that is being taken in parts; 0 if there
                             is none */
        struct pool_index_seen *seen;  /* counters taken over so far, by namespace */
        uint64_t joined_ns, keys_seen; /* time of joining, and keys counted since, which bound the
                                        * counts that are believed */
        bool has_holds;                /* the last scan found a hold */
        bool is_over;                  /* the last scan found that the client holds more than twice
                                        * its allowance */
        bool revoked;                  /* the daemon ignores the client's holds from now on */
};

/* Creates the index of a pool, and makes it the pool's guard (struct pool_guard). `io` populates
 * the memory in blocking calls; if it is NULL, page faults populate it. Returns 0 or -ENOMEM. */
int pool_index_new(struct pool_index **ret, struct pool *pool, struct kio *io);
/* Frees the index. No call may be in flight. */
struct pool_index *pool_index_free(struct pool_index *pi);

/* Lets a client join. `most`: bytes that all clients of the tenant together may hold. Stores the
 * descriptor of the index, borrowed and read-only, and of the client's page, which the caller
 * passes on and closes. Returns 0, -EDQUOT if less than 64 KiB would be left for the client's
 * allowance, -EACCES while the user is barred (pool-judge.h), or -errno. */
int pool_index_join(struct pool_index *pi, struct pool_client *client, uid_t uid, uint64_t most,
                    int *ret_fd, uint64_t *ret_bytes, int *ret_page_fd);
/* Ends a client's membership and all its holds. pool_release_held() frees the dropped chunks that
 * waited for them. */
void pool_index_leave(struct pool_client *client);
/* Permits the client to read chunks of the store's namespace `id`, which it knows by `number`. With
 * id 0, revokes the permission for that number. */
void pool_index_allow(struct pool_client *client, unsigned number, uint32_t id);

/* Ends all permissions of the client. Present holds stay valid. */
void pool_index_close(struct pool_client *client);

/* Return the number of chunks that the client holds, and call each() for them. If the client holds
 * more than twice its allowance, each() is not called. */
uint32_t pool_index_holds(const struct pool_client *client);
void pool_index_each_hold(const struct pool_client *client,
                          void (*each)(void *userdata, uint32_t chunk), void *userdata);

/* Takes the client's counts since the last call, for the namespace that it knows by `number`.
 * `now_ns` limits the possible counts. `untold` counts gets that did not fit into the ring of the
 * client's page. Returns false if some counts are impossible: then only `keys` is filled in, with
 * the possible part. */
struct pool_index_count {
        uint64_t keys, mapped_bytes, copied_bytes, untold;
};
bool pool_index_count(struct pool_client *client, unsigned number, uint64_t now_ns,
                      struct pool_index_count *ret);

/* Takes the next list of chunks that the client used, for their recency, and returns the number of
 * those still present, or -1 if there is no list or an invalid one, after which the words written
 * so far are skipped. Takes the last `most` chunks of a longer list, and the next call those before
 * them. *ret_words gets the number of words read from the ring. */
struct pool_index_touch {
        uint32_t chunk, generation;
};
int pool_index_take_touches(struct pool_client *client, uint32_t most,
                            struct pool_index_touch ret[static POOL_MAX_TOUCHES],
                            uint32_t *ret_words);
/* Iterates over the clients: NULL stands for the beginning and the end. */
struct pool_client *pool_index_next_client(const struct pool_index *pi, struct pool_client *before);
/* Returns the client whose hits are read next and moves it to the end of the order, or NULL if
 * there is none. */
struct pool_client *pool_index_turn(struct pool_index *pi);

/* Suspends or resumes the index; while suspended, every client asks the daemon. Calls nest. */
void pool_index_suspend(struct pool_index *pi, bool suspend);
/* Adds the chunks of the next records to the index, after its creation. Returns whether there is
 * more to do immediately. */
bool pool_index_iterate(struct pool_index *pi);

struct pool_index_stats {
        uint64_t clients; /* present clients */
        uint64_t bytes;   /* size of the index; 0: no client has asked for it */
        uint64_t entries,
                unplaced; /* chunks in the index; chunks that found no place since startup */
        uint64_t allowed; /* sum of the allowances of the present clients, in bytes */
        uint64_t revoked; /* clients revoked */
};
void pool_index_get_stats(const struct pool_index *pi, struct pool_index_stats *ret);
