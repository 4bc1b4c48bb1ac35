/* SPDX-License-Identifier: Apache-2.0 */
/* Which path a chunk is on: where a put goes, and where it is looked for.
 *
 * A chunk's home is drawn from its key, in proportion to what each path may hold, and stays the
 * same from start to start. It lies elsewhere when its home was left aside as it was put; each
 * volume counts such chunks, so a look-up that fails at home asks the others only while they have
 * some. With one path nothing is drawn.
 *
 * Loop thread; homes_of() on any, as nothing it reads changes once the store is prepared. Owns the
 * thresholds, and the count of puts in flight to a path that is not their home.
 *
 * Failures: a put that fails on one path, for whatever reason of the device, is tried on each other
 * that is up, while its bytes are still pinned; only when none is left does it fail. A chunk on a
 * path that is aside is a miss, and a drop of what may lie there is noted as missed. */
#include <errno.h>
#include <string.h>

#include "checked.h"
#include "store/internal.h"

static uint64_t home_hash(const struct store *s, uint32_t namespace_id, const struct key *key)
{
        return key_hash(&s->home, namespace_id, key);
}

static unsigned home_of_hash(const struct store *s, uint64_t hash)
{
        for (unsigned i = 0; i + 1 < s->n_paths; i++)
                if (hash >> 32 < s->paths[i].threshold)
                        return i;
        return s->n_paths - 1;
}

unsigned homes_of(const void *userdata, uint32_t namespace_id, const struct key *key)
{
        const struct store *s = userdata;

        return home_of_hash(s, home_hash(s, namespace_id, key));
}

/* Where it goes while its home is not among `candidates`: drawn again, in proportion. UINT_MAX:
 * there is none. */
static unsigned second_home(const struct store *s, uint64_t hash, uint32_t candidates)
{
        uint64_t total = 0, drawn;
        unsigned last = UINT32_MAX;

        for (unsigned i = 0; i < s->n_paths; i++)
                if (candidates & 1u << i)
                        total += s->paths[i].limit;
        drawn = (uint64_t)((unsigned __int128)total * (uint32_t)hash >> 32);
        for (unsigned i = 0; i < s->n_paths; i++) {
                if (!(candidates & 1u << i))
                        continue;
                last = i;
                if (drawn < s->paths[i].limit)
                        return i;
                drawn -= s->paths[i].limit;
        }
        return last;
}

void homes_set_thresholds(struct store *s)
{
        uint64_t total = 0, below = 0;

        for (unsigned i = 0; i < s->n_paths; i++)
                total += s->paths[i].limit;
        for (unsigned i = 0; i < s->n_paths; i++) {
                below += s->paths[i].limit;
                s->paths[i].threshold =
                        total ? (uint64_t)(((unsigned __int128)below << 32) / total) : 0;
        }
        memcpy(&s->home, s->set, sizeof(s->home));
}

uint64_t store_hash(const struct store *s, uint32_t namespace_id, const struct key *key)
{
        return key_hash(&s->params.secret, namespace_id, key);
}

/* The path that the chunk can be found on, or UINT32_MAX. */
static unsigned find_path(const struct store *s, uint32_t namespace_id, const struct key *key,
                          uint64_t hash, struct store_ref *ret_ref, struct store_chunk *ret_chunk)
{
        unsigned home = s->n_paths == 1 ? 0 : homes_of(s, namespace_id, key);

        if (path_is_up(s, home) &&
            volume_find(s->paths[home].volume, namespace_id, key, hash, ret_ref, ret_chunk) == 0)
                return home;
        for (unsigned i = 0; s->n_paths > 1 && i < s->n_paths; i++)
                if (i != home && path_is_up(s, i) && volume_displaced(s->paths[i].volume) > 0 &&
                    volume_find(s->paths[i].volume, namespace_id, key, hash, ret_ref, ret_chunk) ==
                            0)
                        return i;
        return UINT32_MAX;
}

int store_find(const struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
               struct store_ref *ret_ref, struct store_chunk *ret_chunk)
{
        return find_path(s, namespace_id, key, hash, ret_ref, ret_chunk) == UINT32_MAX ? STORE_MISS
                                                                                       : 0;
}

void store_prefetch(const struct store *s, uint64_t hash, unsigned step)
{
        if (s->n_paths == 1 && path_is_up(s, 0)) /* of several, the hash does not say which */
                volume_prefetch(s->paths[0].volume, hash, step);
}

void store_prefetch_touch(const struct store *s, struct store_ref ref, unsigned step)
{
        unsigned path = ref.generation >> VOLUME_GENERATION_BITS;

        if (ref.index != UINT32_MAX && path < s->n_paths && path_is_up(s, path))
                volume_prefetch_touch(s->paths[path].volume, ref, step);
}

void store_touch(struct store *s, struct store_ref ref)
{
        unsigned path = ref.generation >> VOLUME_GENERATION_BITS;

        if (ref.index != UINT32_MAX && path < s->n_paths && path_is_up(s, path))
                volume_touch(s->paths[path].volume, ref);
}

static int put_to(struct store *s, struct store_put *req, unsigned path, unsigned home)
{
        int r = volume_put(s->paths[path].volume, req);

        req->tried |= 1u << path;
        if (r == 0 && path != home)
                s->paths[path].puts_away++;
        return r;
}

/* To its home, or elsewhere if that is aside, was tried, or cannot take it. */
static int put_somewhere(struct store *s, struct store_put *req, uint64_t hash)
{
        unsigned home = home_of_hash(s, hash), path = home;
        int r = STORE_BYPASSED;

        for (;;) {
                uint32_t candidates = s->up & ~req->tried;

                if (candidates == 0)
                        return r;
                if (!(candidates & 1u << path))
                        path = second_home(s, hash, candidates);
                r = put_to(s, req, path, home);
                if (r == 0 || r == STORE_FULL || r == STORE_EXISTS)
                        return r;
        }
}

int store_put(struct store *s, struct store_put *req)
{
        uint64_t hash;
        unsigned home;

        req->tried = 0;
        req->purges = s->purges;
        if (s->n_paths == 1) {
                req->tried = 1;
                return path_is_up(s, 0) ? volume_put(s->paths[0].volume, req) : STORE_BYPASSED;
        }
        hash = home_hash(s, req->namespace_id, &req->key);
        home = home_of_hash(s, hash);
        for (unsigned i = 0; i < s->n_paths; i++)
                if (i != home && path_is_up(s, i) &&
                    (volume_displaced(s->paths[i].volume) > 0 || s->paths[i].puts_away > 0) &&
                    volume_has(s->paths[i].volume, req->namespace_id, &req->key, req->hash))
                        return STORE_EXISTS;
        return put_somewhere(s, req, hash);
}

/* A volume is through with a put. What failed there, for whatever reason of the device, may do
 * elsewhere: its bytes are still pinned. */
void homes_put_done(void *userdata, struct store_put *req)
{
        struct store *s = userdata;

        if (s->n_paths > 1 && req->tried != 0) {
                unsigned last = req->ref.generation >> VOLUME_GENERATION_BITS;
                uint64_t hash = home_hash(s, req->namespace_id, &req->key);
                int result = req->result;

                if (last < s->n_paths && last != home_of_hash(s, hash))
                        s->paths[last].puts_away--;
                bool gone = result == -EFAULT && req->foreign; /* what was to be written is */

                if ((result == STORE_BYPASSED || (result < 0 && result != -ECANCELED && !gone)) &&
                    req->purges == s->purges && !s->stopping) {
                        if (put_somewhere(s, req, hash) == 0) {
                                s->again = true;
                                return;
                        }
                        req->result = result;
                }
        }
        req->complete(req);
}

int store_get(struct store *s, struct store_get *req)
{
        unsigned path = find_path(s, req->namespace_id, &req->key, req->hash, NULL, NULL);

        return path == UINT32_MAX ? STORE_MISS : volume_get(s->paths[path].volume, req);
}

unsigned store_path_of(struct store_ref ref)
{
        return ref.generation >> VOLUME_GENERATION_BITS;
}

bool store_path_is_up(const struct store *s, unsigned path)
{
        return path < s->n_paths && path_is_up(s, path);
}

bool store_is_reading(const struct store *s, struct store_ref ref)
{
        unsigned path = ref.generation >> VOLUME_GENERATION_BITS;

        return ref.index != UINT32_MAX && path < s->n_paths && path_is_up(s, path) &&
               volume_is_reading(s->paths[path].volume, ref);
}

/* May a path that is aside bring it back? Then that path misses the drop. */
static void drop_on_absent(struct store *s, uint32_t namespace_id, const struct key *key,
                           uint64_t hash)
{
        uint64_t outsiders = set_bits_all(s);

        for (unsigned i = 0; i < s->n_paths; i++) {
                struct path *p = &s->paths[i];

                outsiders &= ~set_bits_of(s, p);
                if (!path_is_up(s, i) &&
                    (!p->volume || volume_may_have(p->volume, namespace_id, key, hash)))
                        set_path_missed(s, p);
        }
        set_note_missed(s, outsiders); /* paths that are not configured now may have it */
}

/* Is it on a path that is aside, and not lost with all that lies there? */
static bool is_on_absent(const struct store *s, uint32_t namespace_id, const struct key *key,
                         uint64_t hash)
{
        bool can_note = s->in_set && s->up != 0;

        for (unsigned i = 0; i < s->n_paths; i++) {
                const struct path *p = &s->paths[i];

                if (!path_is_up(s, i) && p->volume && volume_is_open(p->volume) &&
                    volume_has(p->volume, namespace_id, key, hash) &&
                    (!p->missed || !can_note || set_wants_note(s)))
                        return true;
        }
        return false;
}

static int drop(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
                bool even_if_missing)
{
        bool found = is_on_absent(s, namespace_id, key, hash);
        int r = STORE_MISS;

        if (s->n_paths > 1 && !found)
                found = store_find(s, namespace_id, key, hash, NULL, NULL) == 0;
        /* What was evicted for want of room may still be on the disk, of any path: a caller that is
         * told that the key is dropped does not get an old one back. */
        for (unsigned i = 0; i < s->n_paths; i++) {
                int one = !path_is_up(s, i) ? STORE_MISS
                                            : volume_drop(s->paths[i].volume, namespace_id, key,
                                                          hash, found || even_if_missing);

                if (one < 0)
                        return one;
                found = found || one == 0;
        }
        if (found)
                r = 0;
        if (found || even_if_missing)
                drop_on_absent(s, namespace_id, key, hash);
        return r;
}

int store_drop(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash)
{
        return drop(s, namespace_id, key, hash, false);
}

int store_forget(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash)
{
        return drop(s, namespace_id, key, hash, true);
}

enum { CURSOR_BITS = 48 };

unsigned store_list(const struct store *s, uint32_t namespace_id, uint64_t *cursor,
                    struct store_chunk *ret, unsigned max)
{
        uint64_t path = *cursor >> CURSOR_BITS,
                 inner = *cursor & ((UINT64_C(1) << CURSOR_BITS) - 1);
        unsigned n = 0;

        while (path < s->n_paths && !path_is_up(s, (unsigned)path)) {
                path++;
                inner = 0;
        }
        if (path >= s->n_paths) {
                *cursor = 0;
                return 0;
        }
        n = volume_list(s->paths[path].volume, namespace_id, &inner, ret, max);
        if (inner == 0)
                path++;
        *cursor = path >= s->n_paths ? 0 : path << CURSOR_BITS | inner;
        return n;
}
