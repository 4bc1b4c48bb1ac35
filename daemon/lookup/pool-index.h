/* SPDX-License-Identifier: Apache-2.0 */
/* The pool index of one tenant, and the pages by which its clients hold chunks: proto/pool-index.h
 * has their content. The index is made when the first client joins, and filled over some
 * iterations: what it does not have yet, clients ask the daemon for.
 *
 * Here it is decided how much a client may hold: its allowance, a part of what is left of what all
 * may hold. A client that is seen to hold more than twice as much is not one of the library's. A
 * user of which that is seen time and again, when something else needs the room, of whichever of
 * its clients, joins no more for a while; each of its clients that holds too much then is revoked,
 * and the session is to be ended. Loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/list.h"
#include "cache/pool.h"
#include "io/io.h"
#include "proto/pool-index.h"

struct pool_index;

/* Of a namespace: what was counted of it so far. */
struct pool_index_seen {
        struct pool_page_count last;    /* as it stood */
        struct pool_page_count counted; /* of that */
};

/* One for each session that has joined; zeroed before. */
struct pool_client {
        struct list_node node;
        struct pool_index *index; /* NULL: it has not joined */
        const struct pool *pool;
        struct pool_page *page;
        uid_t uid;
        uint64_t allowance;
        uint64_t taken;                /* words of its ring */
        struct pool_index_seen *seen;  /* of its counts, by namespace */
        uint64_t joined_ns, keys_seen; /* for what is possible */
        bool is_over;                  /* the last look has seen it hold too much */
        bool revoked;                  /* it holds nothing any more, whatever it believes */
};

/* Over the pool, whose guard it is. Blocking calls of `io` make its memory; NULL: it is made at
 * once. 0, -ENOMEM. */
int pool_index_new(struct pool_index **ret, struct pool *pool, struct kio *io);
/* Nothing of it is under way. */
struct pool_index *pool_index_free(struct pool_index *pi);

/* `most`: bytes that all clients of the tenant together may hold. The descriptors are the index,
 * borrowed and read-only, and the client's page, to be handed over and closed. 0; -EDQUOT: the
 * others have it all; -EACCES: a client of this user was revoked within a minute; -errno. */
int pool_index_join(struct pool_index *pi, struct pool_client *client, uid_t uid, uint64_t most,
                    int *ret_fd, uint64_t *ret_bytes, int *ret_page_fd);
/* Whatever it holds it holds no more; what waited for that is freed by pool_release_held(). */
void pool_index_leave(struct pool_client *client);
/* The client may get chunks of the store's namespace `id` by itself, which it knows by `number`;
 * 0: of none by that number any more. */
void pool_index_allow(struct pool_client *client, unsigned number, uint32_t id);

/* It gets nothing by itself any more. What it holds by then, it holds. */
void pool_index_close(struct pool_client *client);

/* How many chunks it holds, and each of them; of more than it may hold at a time, none. */
uint32_t pool_index_holds(const struct pool_client *client);
void pool_index_each_hold(const struct pool_client *client,
                          void (*each)(void *userdata, uint32_t chunk), void *userdata);

/* What a client got by itself since the last time, of a namespace that it knows by this number;
 * `now_ns` limits what can be true. False: some of it cannot, and is left out. */
struct pool_index_count {
        uint64_t keys, mapped_bytes, copied_bytes, untold;
};
bool pool_index_count(struct pool_client *client, unsigned number, uint64_t now_ns,
                      struct pool_index_count *ret);

/* What it used, for recency: the chunks of its next request that the daemon has not seen, those
 * that are still there; how many. -1: there is none. *ret_words: what was read for it. */
struct pool_index_touch {
        uint32_t chunk, generation;
};
int pool_index_take_touches(struct pool_client *client,
                            struct pool_index_touch ret[static POOL_MAX_TOUCHES],
                            uint32_t *ret_words);
/* The clients one after the other; NULL: the first, and behind the last. */
struct pool_client *pool_index_next_client(const struct pool_index *pi, struct pool_client *before);
/* The client whose turn it is; it is the last one's next. NULL: there is none. */
struct pool_client *pool_index_turn(struct pool_index *pi);

/* While it is suspended every client asks the daemon. As often ended as begun. */
void pool_index_suspend(struct pool_index *pi, bool suspend);
/* Fills it for a moment. True: there is more to do at once. */
bool pool_index_iterate(struct pool_index *pi);

struct pool_index_stats {
        uint64_t clients;           /* that have joined */
        uint64_t bytes;             /* of the index; 0: no client has asked for it */
        uint64_t entries, unplaced; /* chunks that are in it; that found no place, ever */
        uint64_t allowed;           /* bytes that the clients may hold */
        uint64_t revoked;           /* clients */
};
void pool_index_get_stats(const struct pool_index *pi, struct pool_index_stats *ret);
