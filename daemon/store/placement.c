/* SPDX-License-Identifier: Apache-2.0 */
/* Decides which volume a put goes to, and where a chunk is looked up.
 *
 * A chunk's placement is drawn from its key, in proportion to the limits of the volumes, and stays
 * the same across restarts. A chunk is on another volume if its placement was offline, or failed,
 * when the chunk was put. Each volume counts its chunks with another placement. A lookup that fails
 * at the placement asks another volume only while that count is not 0. In a store of one volume,
 * all chunks are on that volume.
 *
 * Loop thread; placement_of() runs on any thread, because nothing that it reads changes after the
 * store is prepared. Owns each member's threshold, and its count of puts in flight with another
 * placement.
 *
 * Failures: a put that fails on one volume because of the device is tried on each other volume that
 * is up, unless a purge has begun since or the store stops; it fails when no volume is left. A
 * chunk on an offline volume is a miss. If such a volume may have a dropped chunk, the drop is
 * recorded as missed by it. */
#include <errno.h>
#include <string.h>

#include "store/internal.h"

static uint64_t placement_hash(const struct store *s, uint32_t namespace_id, const struct key *key)
{
        return key_hash(&s->placement, namespace_id, key);
}

static unsigned placement_of_hash(const struct store *s, uint64_t hash)
{
        for (unsigned i = 0; i + 1 < s->n_volumes; i++)
                if (hash >> 32 < s->volumes[i].threshold)
                        return i;
        return s->n_volumes - 1;
}

unsigned placement_of(const void *userdata, uint32_t namespace_id, const struct key *key)
{
        const struct store *s = userdata;

        return placement_of_hash(s, placement_hash(s, namespace_id, key));
}

/* Draws another volume from `candidates`, in proportion to the limits, for a key whose placement is
 * not among them. Returns UINT32_MAX if there are no candidates. */
static unsigned second_placement(const struct store *s, uint64_t hash, uint32_t candidates)
{
        uint64_t total = 0, drawn;
        unsigned last = UINT32_MAX;

        for (unsigned i = 0; i < s->n_volumes; i++)
                if (candidates & 1u << i)
                        total += s->volumes[i].limit;
        drawn = (uint64_t)((unsigned __int128)total * (uint32_t)hash >> 32);
        for (unsigned i = 0; i < s->n_volumes; i++) {
                if (!(candidates & 1u << i))
                        continue;
                last = i;
                if (drawn < s->volumes[i].limit)
                        return i;
                drawn -= s->volumes[i].limit;
        }
        return last;
}

void placement_set_thresholds(struct store *s)
{
        uint64_t total = 0, below = 0;

        for (unsigned i = 0; i < s->n_volumes; i++)
                total += s->volumes[i].limit;
        for (unsigned i = 0; i < s->n_volumes; i++) {
                below += s->volumes[i].limit;
                s->volumes[i].threshold =
                        total ? (uint64_t)(((unsigned __int128)below << 32) / total) : 0;
        }
        memcpy(&s->placement, s->set, sizeof(s->placement));
}

uint64_t store_hash(const struct store *s, uint32_t namespace_id, const struct key *key)
{
        return key_hash(&s->params.secret, namespace_id, key);
}

/* Returns the volume on which the chunk is found, or UINT32_MAX. */
static unsigned find_volume(const struct store *s, uint32_t namespace_id, const struct key *key,
                            uint64_t hash, struct store_ref *ret_ref, struct store_chunk *ret_chunk)
{
        unsigned placement = s->n_volumes == 1 ? 0 : placement_of(s, namespace_id, key);

        if (member_is_up(s, placement) && volume_find(s->volumes[placement].volume, namespace_id,
                                                      key, hash, ret_ref, ret_chunk) == 0)
                return placement;
        for (unsigned i = 0; s->n_volumes > 1 && i < s->n_volumes; i++)
                if (i != placement && member_is_up(s, i) &&
                    volume_displaced(s->volumes[i].volume) > 0 &&
                    volume_find(s->volumes[i].volume, namespace_id, key, hash, ret_ref,
                                ret_chunk) == 0)
                        return i;
        return UINT32_MAX;
}

int store_find(const struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
               struct store_ref *ret_ref, struct store_chunk *ret_chunk)
{
        return find_volume(s, namespace_id, key, hash, ret_ref, ret_chunk) == UINT32_MAX
                       ? STORE_MISS
                       : 0;
}

void store_warm(const struct store *s, uint64_t hash, unsigned step)
{
        if (s->n_volumes == 1 &&
            member_is_up(s, 0)) /* with several volumes, the hash does not determine the volume */
                volume_warm(s->volumes[0].volume, hash, step);
}

void store_warm_touch(const struct store *s, struct store_ref ref, unsigned step)
{
        unsigned volume = ref.generation >> VOLUME_GENERATION_BITS;

        if (ref.index != UINT32_MAX && volume < s->n_volumes && member_is_up(s, volume))
                volume_warm_touch(s->volumes[volume].volume, ref, step);
}

/* Returns the volume that a ref names, or NULL if the ref is STORE_REF_NONE or the volume is
 * offline. */
static struct volume *volume_of_ref(const struct store *s, struct store_ref ref)
{
        unsigned volume = ref.generation >> VOLUME_GENERATION_BITS;

        return ref.index != UINT32_MAX && volume < s->n_volumes && member_is_up(s, volume)
                       ? s->volumes[volume].volume
                       : NULL;
}

void store_touch(struct store *s, struct store_ref ref, uint32_t use)
{
        struct volume *v = volume_of_ref(s, ref);

        if (v)
                volume_touch(v, ref, use);
}

uint8_t store_chain_gap(const struct store *s, struct store_ref ref, uint32_t use,
                        struct evict_return *ret)
{
        const struct volume *v = volume_of_ref(s, ref);

        return v ? volume_chain_gap(v, ref, use, ret) : EVICT_NO_GAP;
}

uint8_t store_gap(const struct store *s, struct store_ref ref)
{
        const struct volume *v = volume_of_ref(s, ref);

        return v ? volume_gap(v, ref) : EVICT_NO_GAP;
}

void store_set_gap(struct store *s, struct store_ref ref, uint8_t gap)
{
        struct volume *v = volume_of_ref(s, ref);

        if (v)
                volume_set_gap(v, ref, gap);
}

int store_turn(const struct store *s, struct store_ref ref, uint32_t use)
{
        const struct volume *v = volume_of_ref(s, ref);

        return v ? volume_turn(v, ref, use) : -1;
}

void store_chain(struct store *s, struct store_ref ref, struct store_ref parent, uint32_t use,
                 unsigned turn, bool is_end)
{
        struct volume *v = volume_of_ref(s, ref);

        if (v)
                volume_chain(v, ref, volume_of_ref(s, parent) == v ? &parent : NULL, use, turn,
                             is_end);
}

bool store_explain(const struct store *s, struct store_ref ref, struct evict_standing *ret)
{
        const struct volume *v = volume_of_ref(s, ref);

        *ret = (struct evict_standing){ 0 };
        return v && volume_explain(v, ref, ret);
}

unsigned store_cost(const struct store *s, struct store_ref ref)
{
        struct volume *v = volume_of_ref(s, ref);

        return v ? volume_cost(v, ref) : EVICT_COST_UNKNOWN;
}

bool store_hint(struct store *s, struct store_ref ref, enum evict_hint hint)
{
        struct volume *v = volume_of_ref(s, ref);

        return v ? volume_hint(v, ref, hint) : true;
}

bool store_demote(struct store *s, struct store_ref ref)
{
        struct volume *v = volume_of_ref(s, ref);

        return v && volume_demote(v, ref);
}

bool store_promote(struct store *s, struct store_ref ref)
{
        struct volume *v = volume_of_ref(s, ref);

        return v && volume_promote(v, ref);
}

uint64_t store_demoted(const struct store *s)
{
        uint64_t n = 0;

        for (unsigned i = 0; i < s->n_volumes; i++)
                n += member_has_volume(s, i) ? volume_demoted(s->volumes[i].volume) : 0;
        return n;
}

int store_retain(struct store *s, struct store_ref ref, bool retained, uint64_t limit)
{
        struct volume *v = volume_of_ref(s, ref);
        struct store_tenant_usage usage;
        uint16_t tenant;
        uint32_t bytes;

        if (!v)
                return STORE_MISS;
        if (retained && !volume_is_retained(v, ref, &tenant, &bytes)) {
                store_get_tenant(s, tenant, &usage);
                if (usage.retained + bytes > limit)
                        return STORE_FULL;
        }
        return volume_retain(v, ref, retained);
}

static int put_to(struct store *s, struct store_put *req, unsigned volume, unsigned placement)
{
        int r = volume_put(s->volumes[volume].volume, req);

        req->tried |= 1u << volume;
        if (r == 0 && volume != placement)
                s->volumes[volume].puts_away++;
        return r;
}

/* Puts a chunk on its placement, or on another volume if the placement is offline, was tried
 * already, or refuses the put. STORE_FULL and STORE_EXISTS are returned without trying another
 * volume. */
static int put_somewhere(struct store *s, struct store_put *req, uint64_t hash)
{
        unsigned placement = placement_of_hash(s, hash), volume = placement;
        int r = STORE_BYPASSED;

        for (;;) {
                uint32_t candidates = s->up & ~req->tried;

                if (candidates == 0)
                        return r;
                if (!(candidates & 1u << volume))
                        volume = second_placement(s, hash, candidates);
                r = put_to(s, req, volume, placement);
                if (r == 0 || r == STORE_FULL || r == STORE_EXISTS)
                        return r;
        }
}

int store_put(struct store *s, struct store_put *req)
{
        uint64_t hash;
        unsigned placement;

        req->tried = 0;
        req->purges = s->purges;
        if (s->n_volumes == 1) {
                req->tried = 1;
                return member_is_up(s, 0) ? volume_put(s->volumes[0].volume, req) : STORE_BYPASSED;
        }
        hash = placement_hash(s, req->namespace_id, &req->key);
        placement = placement_of_hash(s, hash);
        for (unsigned i = 0; i < s->n_volumes; i++)
                if (i != placement && member_is_up(s, i) &&
                    (volume_displaced(s->volumes[i].volume) > 0 || s->volumes[i].puts_away > 0) &&
                    volume_has(s->volumes[i].volume, req->namespace_id, &req->key, req->hash))
                        return STORE_EXISTS;
        return put_somewhere(s, req, hash);
}

void store_put_checksum(struct store_put *req, int r, uint32_t crc)
{
        volume_put_checksum(req, r, crc);
}

/* Handles a put that has ended on a volume. If the put failed because of the device, tries it on
 * another volume, which is possible because the caller keeps the payload until complete(). A put
 * that a purge may cover is not tried again. */
void placement_put_done(void *userdata, struct store_put *req)
{
        struct store *s = userdata;

        if (s->n_volumes > 1 && req->tried != 0) {
                unsigned last = req->ref.generation >> VOLUME_GENERATION_BITS;
                uint64_t hash = placement_hash(s, req->namespace_id, &req->key);
                int result = req->result;

                if (last < s->n_volumes && last != placement_of_hash(s, hash))
                        s->volumes[last].puts_away--;
                bool is_buffer_lost =
                        result == -EFAULT && req->foreign; /* a client truncated the file */

                if ((result == STORE_BYPASSED ||
                     (result < 0 && result != -ECANCELED && !is_buffer_lost)) &&
                    req->sum_result >= 0 && req->purges == s->purges && !s->stopping) {
                        if (put_somewhere(s, req, hash) == 0) {
                                s->again = true;
                                return;
                        }
                        req->result = result;
                }
        }
        req->complete(req);
}

unsigned store_volume_of(struct store_ref ref)
{
        return ref.generation >> VOLUME_GENERATION_BITS;
}

bool store_volume_is_up(const struct store *s, unsigned volume)
{
        return volume < s->n_volumes && member_is_up(s, volume);
}

int store_get(struct store *s, struct store_get *req)
{
        unsigned volume = store_volume_of(req->ref);

        if (!store_volume_is_up(s, volume) ||
            !volume_is_at(s->volumes[volume].volume, req->ref, req->namespace_id, &req->key))
                volume = find_volume(s, req->namespace_id, &req->key, req->hash, &req->ref, NULL);
        return volume == UINT32_MAX ? STORE_MISS : volume_get(s->volumes[volume].volume, req);
}

bool store_is_unverified(const struct store *s, struct store_ref ref)
{
        const struct volume *v = volume_of_ref(s, ref);

        return v && volume_is_unverified(v, ref);
}

bool store_is_reading(const struct store *s, struct store_ref ref)
{
        unsigned volume = ref.generation >> VOLUME_GENERATION_BITS;

        return ref.index != UINT32_MAX && volume < s->n_volumes && member_is_up(s, volume) &&
               volume_is_reading(s->volumes[volume].volume, ref);
}

/* Records a claim on each offline volume that may have the chunk, because it misses the drop. */
static void drop_on_absent(struct store *s, uint32_t namespace_id, const struct key *key,
                           uint64_t hash)
{
        uint64_t outsiders = membership_bits_all(s);

        for (unsigned i = 0; i < s->n_volumes; i++) {
                struct member *p = &s->volumes[i];

                outsiders &= ~membership_bits_of(s, p);
                /* a volume on which a drop was lost may find the chunk again when it is resumed */
                if (!member_is_up(s, i) && (!p->volume || p->unsure ||
                                            volume_may_have(p->volume, namespace_id, key, hash)))
                        membership_volume_missed(s, p);
        }
        membership_record_missed(s, outsiders); /* volumes of the set that are not in the
                                                   configuration may have the chunk, too */
}

/* Returns whether an offline volume has the chunk, or may find it again because a tombstone or a
 * purge was lost, and is not yet recorded to be emptied when it returns. */
static bool is_on_absent(const struct store *s, uint32_t namespace_id, const struct key *key,
                         uint64_t hash)
{
        bool can_note = s->in_set && s->up != 0;

        for (unsigned i = 0; i < s->n_volumes; i++) {
                const struct member *p = &s->volumes[i];

                if (!member_is_up(s, i) && p->volume && volume_is_open(p->volume) &&
                    (volume_has(p->volume, namespace_id, key, hash) ||
                     volume_has_lost_removals(p->volume)) &&
                    (!p->missed || !can_note || membership_wants_record(s)))
                        return true;
        }
        return false;
}

static int drop(struct store *s, uint32_t namespace_id, const struct key *key, uint64_t hash,
                bool even_if_missing)
{
        bool found = is_on_absent(s, namespace_id, key, hash);
        int r = STORE_MISS;

        if (s->n_volumes > 1 && !found)
                found = store_find(s, namespace_id, key, hash, NULL, NULL) == 0;
        /* an evicted chunk may still be on the disk of any volume, and must not return after the
         * drop is answered */
        for (unsigned i = 0; i < s->n_volumes; i++) {
                int one = !member_is_up(s, i) ? STORE_MISS
                                              : volume_drop(s->volumes[i].volume, namespace_id, key,
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
        uint64_t volume = *cursor >> CURSOR_BITS,
                 inner = *cursor & ((UINT64_C(1) << CURSOR_BITS) - 1);
        unsigned n = 0;

        while (volume < s->n_volumes && !member_is_up(s, (unsigned)volume)) {
                volume++;
                inner = 0;
        }
        if (volume >= s->n_volumes) {
                *cursor = 0;
                return 0;
        }
        n = volume_list(s->volumes[volume].volume, namespace_id, &inner, ret, max);
        if (inner == 0)
                volume++;
        *cursor = volume >= s->n_volumes ? 0 : volume << CURSOR_BITS | inner;
        return n;
}
