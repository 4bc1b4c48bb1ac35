/* SPDX-License-Identifier: Apache-2.0 */
#include "history-model.h"

struct model model;

static void never(struct model_version *v)
{
        v->now = v->after_crash = false;
}

/* Rules out the versions whose puts had ended when a request began that then found, or stored,
 * another one. `on_disk`: the disk has the newer entry, so recovery does not find theirs. */
static void replace(struct model_key *k, uint64_t began, unsigned by, bool on_disk)
{
        for (unsigned i = 1; i <= k->n && !model.may_hide; i++) {
                struct model_version *v = &k->versions[i];

                if (i == by || v->is_flying || v->ended >= began)
                        continue;
                if (v->now)
                        v->replaced_at = model.now;
                v->now = false;
                v->after_crash = v->after_crash && !on_disk;
        }
}

unsigned model_put_begins(uint32_t n)
{
        struct model_key *k = &model.keys[n];

        if (k->n == MODEL_VERSIONS)
                return 0;
        for (unsigned i = 1; i <= k->n; i++)
                k->versions[i].was_alone = k->versions[i].was_alone && !k->versions[i].is_flying;
        k->versions[++k->n] = (struct model_version){
                .is_flying = true,
                .was_alone = k->n_flying++ == 0,
                .now = true,
                .after_crash = true,
                .began = model.now,
        };
        return k->n;
}

void model_put_was_killed(uint32_t n, unsigned version)
{
        model.keys[n].versions[version].is_flying = false;
        model.keys[n].versions[version].ended = model.now;
        model.keys[n].n_flying--;
}

void model_put_ended(uint32_t n, unsigned version, const struct cache_request *req, unsigned found)
{
        struct model_key *k = &model.keys[n];
        struct model_version *v = &k->versions[version];
        bool was_dropped = k->dropped_at >= v->began;
        bool is_stored = true;

        model_put_was_killed(n, version);
        switch (req->status) {
        case CACHE_OK:
                if (found != 0 && found != version)
                        fail_msg("the put of version %u of key %u has version %u", version, n,
                                 found);
                if (!v->is_dropped)
                        replace(k, v->began, version, req->ack != CACHE_ACCEPTED && !was_dropped);
                break;
        case CACHE_EXISTS:
                never(v);
                /* the version may have left the disk, and been replaced, during the put's sync */
                if (found != 0 && !was_dropped && !k->versions[found].now &&
                    k->versions[found].replaced_at < v->began)
                        fail_msg("version %u of key %u exists as version %u", version, n, found);
                break;
        case CACHE_NOT_DURABLE: /* this version, or one that existed */
                break;
        default:
                is_stored = false;
                if (v->was_alone) /* otherwise the others may have been answered with its bytes */
                        never(v);
        }
        if (is_stored && req->ack != CACHE_ACCEPTED && !was_dropped && k->lost_at < v->began)
                k->is_on_disk = true;
}

void model_get_begins(uint32_t n, struct model_get *get)
{
        get->began = model.now;
        get->must_find = model.keys[n].is_on_disk;
        for (unsigned i = 1; i <= MODEL_VERSIONS; i++)
                get->may_return[i] = i <= model.keys[n].n && model.keys[n].versions[i].now;
}

void model_get_missed(uint32_t n, const struct model_get *get)
{
        const struct model_key *k = &model.keys[n];

        if (get->must_find && !model.may_hide && k->dropped_at < get->began &&
            k->lost_at < get->began)
                fail_msg("key %u is a miss; the get began in step %llu", n,
                         (unsigned long long)get->began);
}

void model_get_ended(uint32_t n, const struct model_get *get, unsigned found)
{
        const struct model_version *v = &model.keys[n].versions[found];

        if (!get->may_return[found] && v->began <= get->began)
                fail_msg("key %u has version %u of %u, put in steps %llu to %llu; the get began in "
                         "step %llu, the last drop was in step %llu",
                         n, found, model.keys[n].n, (unsigned long long)v->began,
                         (unsigned long long)v->ended, (unsigned long long)get->began,
                         (unsigned long long)model.keys[n].dropped_at);
        replace(&model.keys[n], get->began, found, false);
}

void model_drop(uint32_t n, unsigned flying, struct model_drop *ret)
{
        struct model_key *k = &model.keys[n];

        *ret = (struct model_drop){ .key = n };
        k->is_on_disk = false;
        k->dropped_at = model.now;
        for (unsigned i = 1; i <= k->n; i++) {
                struct model_version *v = &k->versions[i];

                if (v->is_flying && i != flying)
                        continue;
                v->is_dropped = v->is_dropped || v->is_flying;
                v->now = false;
                ret->versions[ret->n++] = i;
        }
}

void model_drop_is_kept(const struct model_drop *drop)
{
        for (unsigned i = 0; i < drop->n; i++)
                model.keys[drop->key].versions[drop->versions[i]].after_crash = false;
}

void model_chunk_is_lost(uint32_t n)
{
        model.keys[n].lost_at = model.now;
        model.keys[n].is_on_disk = false;
}

void model_disk_loses(void)
{
        for (uint32_t n = 0; n < MODEL_KEYS; n++)
                model_chunk_is_lost(n);
}

void model_crashed(void)
{
        for (unsigned n = 0; n < MODEL_KEYS; n++)
                for (unsigned i = 1; i <= model.keys[n].n; i++)
                        model.keys[n].versions[i].now = model.keys[n].versions[i].after_crash;
}

void model_volume_is_back(void)
{
        for (unsigned n = 0; n < MODEL_KEYS; n++)
                for (unsigned i = 1; i <= model.keys[n].n; i++)
                        if (model.keys[n].versions[i].after_crash)
                                model.keys[n].versions[i].now = true;
}
