/* SPDX-License-Identifier: Apache-2.0 */
#include "simulated-cache.h"

#include <errno.h>
#include <stdlib.h>

#include "checked.h"

int simulated_cache_init_growing(struct simulated_cache *c, const char *policy, uint32_t capacity,
                                 uint32_t n_blocks)
{
        uint32_t room = MAX(MIN(capacity, n_blocks), 1U);
        int r;

        *c = (struct simulated_cache){ .capacity = capacity };
        r = evict_new(&c->evict, policy, room, 1);
        if (r < 0)
                return r;
        c->held = calloc(room, sizeof(*c->held));
        return c->held ? 0 : -ENOMEM;
}

int simulated_cache_grow(struct simulated_cache *c, uint32_t n_blocks)
{
        struct simulated_block *blocks;

        if (n_blocks <= c->n_blocks)
                return 0;
        blocks = realloc(c->blocks, (size_t)n_blocks * sizeof(*blocks));
        if (!blocks)
                return -ENOMEM;
        for (uint32_t i = c->n_blocks; i < n_blocks; i++)
                blocks[i] = (struct simulated_block){ .item = EVICT_NONE };
        c->blocks = blocks;
        c->n_blocks = n_blocks;
        return 0;
}

int simulated_cache_init(struct simulated_cache *c, const char *policy, uint32_t capacity,
                         uint32_t n_blocks)
{
        int r = simulated_cache_init_growing(c, policy, capacity, n_blocks);

        return r < 0 ? r : simulated_cache_grow(c, MAX(n_blocks, 1U));
}

void simulated_cache_fini(struct simulated_cache *c)
{
        evict_free(c->evict);
        free(c->blocks);
        free(c->held);
        *c = (struct simulated_cache){ 0 };
}

static bool may_evict(void *userdata, uint32_t item)
{
        const struct simulated_cache *c = userdata;

        return c->blocks[c->held[item]].request != c->request || evict_gives_way(c->evict, item);
}

/* Returns a block's id in the policy's history of evicted blocks, in which 0 is no id. */
static uint64_t ghost_id(uint32_t block)
{
        return (uint64_t)block + 1;
}

/* Returns an item for one more block, evicting a block if the cache is full. Returns EVICT_NONE if
 * the current request uses all blocks, and none of them gives way (evict_gives_way()). */
static uint32_t make_room(struct simulated_cache *c)
{
        uint32_t item;

        if (c->n_items < c->capacity)
                return c->n_items++;
        item = evict_victim(c->evict, 0, may_evict, c, UINT32_MAX);
        if (item == EVICT_NONE)
                return item;
        if (c->observer && c->observer->evicting)
                c->observer->evicting(c->observer->userdata, c, c->held[item]);
        c->blocks[c->held[item]].item = EVICT_NONE;
        evict_remove_victim(c->evict, item, ghost_id(c->held[item]));
        c->evictions++;
        return item;
}

/* Inserts a missing block if there is room. */
static void insert(struct simulated_cache *c, uint32_t block, enum evict_place place, uint8_t gap)
{
        struct simulated_block *b = &c->blocks[block];

        if (b->refused == c->request)
                return;
        b->item = make_room(c);
        if (b->item == EVICT_NONE)
                return;
        c->writes++;
        c->touches++;
        c->held[b->item] = block;
        evict_insert_known(c->evict, b->item, 0, 1, ghost_id(block), c->request, place);
        evict_set_gap(c->evict, b->item, gap);
        if (c->observer && c->observer->inserted)
                c->observer->inserted(c->observer->userdata, c, block);
}

void simulated_cache_use(struct simulated_cache *c, uint32_t block, enum evict_place place)
{
        uint32_t item = c->blocks[block].item;

        if (item != EVICT_NONE) {
                evict_touch(c->evict, item, 0, c->request);
                c->touches++;
        } else {
                insert(c, block, place, EVICT_NO_GAP);
        }
}

/* The turn of the request is that of its last block. A block used for the first time gets the turn
 * after that of the last block of the longest prefix used before, or 1 without such a prefix. */
uint32_t simulated_cache_begin(struct simulated_cache *c, uint32_t request, const uint32_t *blocks,
                               size_t n)
{
        uint32_t turn = 1;
        size_t known = 0;

        c->request = request;
        while (known < n && c->blocks[blocks[known]].turn != 0)
                known++;
        if (known > 0)
                turn = c->blocks[blocks[known - 1]].turn + 1;
        for (size_t i = 0; i < n; i++) {
                struct simulated_block *b = &c->blocks[blocks[i]];

                b->request = request;
                if (b->turn == 0)
                        b->turn = turn;
        }
        return n > 0 ? c->blocks[blocks[n - 1]].turn : turn;
}

/* A hint, converted to the arguments of evict_promise() or evict_hint(). */
struct advice {
        bool is_expected;
        enum evict_hint hint; /* used if the promise has no time */
        struct evict_promise promise;
};

static struct advice advice_of(const struct simulated_hint *hint, float belief, uint32_t request)
{
        struct advice a = { .promise = { .number = request, .belief = belief } };

        switch (hint->kind) {
        case SIMULATED_HINT_FINAL:
                a.is_expected = true;
                a.hint = EVICT_HINT_FINAL;
                break;
        case SIMULATED_HINT_RETURN:
                a.promise.seconds = hint->return_s;
                a.is_expected = true;
                break;
        case SIMULATED_HINT_TOOL_CALL:
                a.hint = EVICT_HINT_SOON;
                break;
        default:
                a.hint = EVICT_HINT_LATER;
                break;
        }
        return a;
}

/* Converts the hint of a request, and records it in c->announced unless it is that the session has
 * ended, which is always believed. Returns whether the hint is believed. */
static bool believe(struct simulated_cache *c, const struct simulated_hint *hint,
                    const uint32_t *blocks, size_t n, uint64_t now_ns, struct advice *ret)
{
        enum announced_kind kind = hint->kind == SIMULATED_HINT_RETURN      ? ANNOUNCED_RETURN
                                   : hint->kind == SIMULATED_HINT_TOOL_CALL ? ANNOUNCED_TOOL_CALL
                                                                            : ANNOUNCED_TURN_END;
        uint64_t end = ghost_id(blocks[n - (n > 1 ? 2 : 1)]);
        float belief = hint->kind == SIMULATED_HINT_FINAL
                               ? 1
                               : announced_make(c->announced, hint->user, end, kind, hint->return_s,
                                                now_ns);

        *ret = advice_of(hint, belief, c->request);
        if (c->announced)
                ret->promise.seconds =
                        announced_seconds(c->announced, hint->user, ret->promise.seconds);
        return belief > 0;
}

/* Applies a hint to the cached blocks of a chain, from its end to its root. The hint that a
 * session has ended stops at the first block from which another session continues. */
static void apply(struct simulated_cache *c, const uint32_t *blocks, size_t n,
                  const struct advice *advice)
{
        while (n-- > 0) {
                uint32_t item = c->blocks[blocks[n]].item;

                if (item == EVICT_NONE)
                        continue;
                if (advice->promise.seconds > 0)
                        evict_promise(c->evict, item, &advice->promise);
                else if (!evict_hint(c->evict, item, advice->hint))
                        return;
        }
}

/* Asks the admission for each missing block, from the root on as a put does, and marks those that
 * it refuses for insert(). */
static void admit(struct simulated_cache *c, const uint32_t *blocks, size_t n, uint64_t now_ns)
{
        for (size_t i = 0; i < n; i++) {
                struct simulated_block *b = &c->blocks[blocks[i]];
                struct admission_write write = {
                        .id = ghost_id(blocks[i]),
                        .use = c->request,
                        .bytes = c->block_bytes,
                };

                if (b->item != EVICT_NONE)
                        continue;
                write.again = evict_remembers(c->evict, write.id);
                if (admission_ask(c->admission, &write, now_ns) != ADMISSION_ADMITTED)
                        b->refused = c->request;
        }
}

/* Returns the mean gap (evict_chain_gap()) of the deepest block in the chain's second half for
 * which the policy knows a gap, cached or evicted; EVICT_NO_GAP if there is none. */
static uint8_t chain_gap(const struct simulated_cache *c, const uint32_t *blocks, size_t n)
{
        uint8_t gap = EVICT_NO_GAP;

        for (size_t i = n; i-- > n / 2 && gap == EVICT_NO_GAP;) {
                uint32_t item = c->blocks[blocks[i]].item;

                gap = item != EVICT_NONE
                              ? evict_chain_gap(c->evict, item, c->request, NULL)
                              : evict_remembered_gap(c->evict, ghost_id(blocks[i]), NULL);
        }
        return gap;
}

/* Touches the cached blocks of a request, the last first, and tells the policy the mean gap of
 * their chain. Returns their number. */
static size_t touch_cached(struct simulated_cache *c, const uint32_t *blocks, size_t n, uint8_t gap)
{
        size_t cached = 0;

        while (n-- > 0) {
                uint32_t item = c->blocks[blocks[n]].item;

                if (item == EVICT_NONE)
                        continue;
                evict_touch(c->evict, item, 0, c->request);
                evict_set_gap(c->evict, item, gap);
                cached++;
        }
        c->touches += cached;
        return cached;
}

static void link_chain(struct simulated_cache *c, const uint32_t *blocks, size_t n)
{
        for (size_t i = 1; i < n; i++) {
                uint32_t item = c->blocks[blocks[i]].item, parent = c->blocks[blocks[i - 1]].item;

                if (item != EVICT_NONE && parent != EVICT_NONE)
                        evict_link(c->evict, item, parent);
        }
}

/* Inserts missing blocks from the root on, so that the blocks that find no room are at the end of
 * the chain. Then the cached blocks are touched again, because each block must be less recently
 * used than the blocks before it. */
void simulated_cache_play(struct simulated_cache *c, uint32_t request, const uint32_t *blocks,
                          size_t n, uint64_t now_ns, const struct simulated_hint *hint)
{
        enum { EARLY_TURNS = 2 };
        size_t most = MIN(n, (size_t)c->capacity);
        bool is_believed = false;
        struct advice advice;
        uint32_t turn;
        uint8_t gap;

        if (n == 0)
                return;
        evict_note_time(c->evict, now_ns);
        if (c->announced) {
                announced_expire(c->announced, now_ns);
                for (size_t i = 0; i < n; i++)
                        announced_use(c->announced, hint ? hint->user : 0, ghost_id(blocks[i]),
                                      now_ns);
        }
        turn = simulated_cache_begin(c, request, blocks, n);
        gap = chain_gap(c, blocks, n);
        if (hint &&
            (c->announced ? hint->kind != SIMULATED_HINT_NONE : hint->kind == SIMULATED_HINT_FINAL))
                is_believed = believe(c, hint, blocks, n, now_ns, &advice);
        evict_expect(c->evict, request, is_believed && advice.is_expected ? &advice.promise : NULL);
        if (c->admission)
                admit(c, blocks, most, now_ns);
        if (touch_cached(c, blocks, most, gap) < most) {
                for (size_t i = 0; i < most; i++) {
                        enum evict_place place = i == n - 1           ? EVICT_PLACE_END
                                                 : turn > EARLY_TURNS ? EVICT_PLACE_CONTINUATION
                                                                      : EVICT_PLACE_UNKNOWN;

                        if (c->blocks[blocks[i]].item == EVICT_NONE)
                                insert(c, blocks[i], place, gap);
                }
                link_chain(c, blocks, n);
                touch_cached(c, blocks, most, gap);
        }
        if (is_believed)
                apply(c, blocks, n, &advice);
}
