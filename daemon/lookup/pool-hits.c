/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the counts that clients write into their pages about the chunks they got themselves; see
 * pool-index.h. The pages are not trusted: a client can falsify only its own counts and the recency
 * of chunks that it may read. */
#include "lookup/pool-index.h"

#include "checked.h"

/* Least ns per key that are believed: no client gets keys faster, because hashing one takes
 * longer. */
enum { NS_PER_KEY = 4 };

/* Returns by how much a counter has grown up to `now`, or 0 if it decreased. */
static uint64_t grown(uint64_t now, uint64_t *last)
{
        uint64_t more = now > *last ? now - *last : 0;

        *last = now;
        return more;
}

/* Returns whether `counted` plus `more` is possible for this number of keys, each of which
 * contributes at most `most`. */
static bool is_of_keys(uint64_t counted, uint64_t more, uint64_t keys, uint64_t most)
{
        return more <= UINT64_MAX - counted && (counted + more) / most <= keys;
}

/* Clients increment `keys` first, and this function reads it last. For an honest client, the other
 * counters therefore never include a key that `keys` does not. */
bool pool_index_count(struct pool_client *client, unsigned number, uint64_t now_ns,
                      struct pool_index_count *ret)
{
        const struct pool_page_count *page;
        struct pool_page_count now, *last, *counted;
        uint64_t room, most, keys;
        bool is_possible;

        *ret = (struct pool_index_count){ 0 };
        if (!client->index || number == 0 || number > POOL_PAGE_NAMESPACES)
                return true;
        page = &client->page->counts[number - 1];
        last = &client->seen[number - 1].last;
        counted = &client->seen[number - 1].counted;
        now.untold = __atomic_load_n(&page->untold, __ATOMIC_ACQUIRE);
        now.mapped_bytes = __atomic_load_n(&page->mapped_bytes, __ATOMIC_ACQUIRE);
        now.copied_bytes = __atomic_load_n(&page->copied_bytes, __ATOMIC_ACQUIRE);
        now.keys = __atomic_load_n(&page->keys, __ATOMIC_RELAXED);
        room = (now_ns - MIN(client->joined_ns, now_ns)) / NS_PER_KEY;
        room -= MIN(client->keys_seen, room);
        most = pool_slab_bytes(client->pool);
        is_possible = now.keys >= last->keys && now.keys - last->keys <= room;
        keys = grown(now.keys, &last->keys);
        ret->keys = MIN(keys, room);
        client->keys_seen += ret->keys;
        counted->keys += ret->keys;
        ret->mapped_bytes = grown(now.mapped_bytes, &last->mapped_bytes);
        ret->copied_bytes = grown(now.copied_bytes, &last->copied_bytes);
        ret->untold = grown(now.untold, &last->untold);
        is_possible = is_possible &&
                      is_of_keys(counted->mapped_bytes, ret->mapped_bytes, counted->keys, most) &&
                      is_of_keys(counted->copied_bytes, ret->copied_bytes, counted->keys, most) &&
                      is_of_keys(counted->untold, ret->untold, counted->keys, 1);
        if (!is_possible)
                *ret = (struct pool_index_count){ .keys = ret->keys };
        counted->mapped_bytes += ret->mapped_bytes;
        counted->copied_bytes += ret->copied_bytes;
        counted->untold += ret->untold;
        return is_possible;
}

static uint64_t ring_at(const struct pool_client *client, uint64_t at)
{
        return __atomic_load_n(&client->page->ring[at % POOL_PAGE_RING], __ATOMIC_RELAXED);
}

/* Advances the position in the ring past these words. */
static void pass_by(struct pool_client *client, uint64_t words)
{
        client->taken += words;
        __atomic_store_n(&client->page->taken, client->taken, __ATOMIC_RELEASE);
}

int pool_index_take_touches(struct pool_client *client, uint32_t most,
                            struct pool_index_touch ret[static POOL_MAX_TOUCHES],
                            uint32_t *ret_words)
{
        const struct pool *pool;
        uint64_t words, head;
        uint32_t n = 0, keys, end, begin;

        *ret_words = 0;
        if (!client->index)
                return -1;
        pool = client->pool;
        words = __atomic_load_n(&client->page->written, __ATOMIC_ACQUIRE) - client->taken;
        if (words == 0)
                return -1;
        head = ring_at(client, client->taken);
        keys = (uint32_t)head;
        /* Skip everything written so far if the head is invalid, which spoils only the client's own
         * recency. */
        if (words > POOL_PAGE_RING || keys > POOL_MAX_TOUCHES || head != pool_page_touches(keys) ||
            keys >= words) {
                client->untaken = 0;
                pass_by(client, words);
                return -1;
        }
        /* The client may have overwritten the head, with another number of keys, since the last
         * part was taken. */
        end = client->untaken > 0 ? MIN(client->untaken, keys) : keys;
        begin = end - MIN(end, most);
        for (uint32_t i = begin; i < end; i++) {
                uint64_t word = ring_at(client, client->taken + 1 + i);
                struct pool_index_touch touch = { (uint32_t)(word >> 32), (uint32_t)word };

                if (pool_is_resident(pool, touch.chunk) &&
                    pool_chunk(pool, touch.chunk)->generation == touch.generation)
                        ret[n++] = touch;
        }
        client->untaken = begin;
        if (begin == 0)
                pass_by(client, 1 + keys);
        *ret_words = end - begin + (begin == 0);
        return (int)n;
}
