/* SPDX-License-Identifier: Apache-2.0 */
/* Implements announced.h. Open announcements are in a table of buckets by the hash of their item; a
 * full bucket refuses new ones, so that no source can remove those of another. */
#include "evict/announced.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>

#include "base/pages.h"
#include "checked.h"
#include "evict/promise.h"

#define SECOND UINT64_C(1000000000)

enum {
        WAYS = 8,
        BUCKETS = 2 * ANNOUNCED_OPEN / WAYS, /* half of the places stay free */
        EXPIRED_AT_ONCE = 64, /* buckets that a call of announced_expire() examines */
        MEMORY = 64,          /* outcomes over which the belief is averaged; older ones fade */
        TOOL_CALL_S = 120,
        TURN_END_S = 20,
        TURN_END_MOST_S = 60, /* seconds after which the outcome of an end of turn is known */
        ASSUMED = 4,          /* outcomes that a source is assumed to have had before its first */
        MOST_STRETCH = 16,
        EXPECTED = 256, /* places for parts of chains that are expected to be announced */
};

struct open {
        uint64_t id; /* 0: free */
        uint64_t from_ns, to_ns, due_ns;
        uint64_t half_ns; /* time at which half of the announced time will have passed; UINT64_MAX
                             if no return was announced */
        uint32_t owner;   /* number of its source, which may share the record with others */
        uint16_t source;  /* index of the source's record */
        bool true_if_unused;
};

struct source {
        uint32_t number;
        bool is_used;
        float came_true, ended;  /* fading counts of announcements that came true, and of all that
                                  * ended */
        float stretch, returned; /* fading: sum of log2(actual / announced time), and their count */
        float early;             /* fading: sum of the parts of the announced time that were left,
                                  * with ASSUMED parts of ANNOUNCED_EARLY before the first */
        uint64_t n_ended;
        uint64_t last_ns; /* time of its last announcement */
        struct announced_stats stats;
};

/* A part of a chain that is expected to be announced, because what follows it was. */
struct expected {
        uint64_t id; /* id of the item with which it ends; 0: free */
        uint64_t due_ns;
        uint32_t source;
        struct evict_promise promise;
};

struct announced {
        struct source sources[ANNOUNCED_SOURCES];
        uint32_t n_open;
        uint32_t next_expired;         /* bucket that announced_expire() examines next */
        struct announced_stats former; /* sums of the sources whose records were reused */
        struct expected expected[EXPECTED];
        struct open open[BUCKETS][WAYS];
};

int announced_new(struct announced **ret)
{
        struct announced *a = pages_map(sizeof(*a)); /* takes no memory while unused */

        if (!a)
                return -ENOMEM;
        *ret = a;
        return 0;
}

struct announced *announced_free(struct announced *a)
{
        if (a)
                pages_unmap(a, sizeof(*a));
        return NULL;
}

/* Spreads ids over a table; its size takes the low bits. */
static uint64_t spread(uint64_t id)
{
        return id * UINT64_C(0x9e3779b97f4a7c15) >> 32;
}

static struct open *bucket_of(const struct announced *a, uint64_t id)
{
        return (struct open *)a->open[spread(id) & (BUCKETS - 1)];
}

/* Returns the announcement of an item by one source, or NULL if there is none. */
static struct open *find(const struct announced *a, uint64_t id, uint32_t owner)
{
        struct open *bucket = bucket_of(a, id);

        for (unsigned i = 0; i < WAYS; i++)
                if (bucket[i].id == id && bucket[i].owner == owner)
                        return &bucket[i];
        return NULL;
}

/* --- sources --- */

static const struct source *known_source(const struct announced *a, uint32_t number)
{
        for (unsigned i = 0; i < ANNOUNCED_SOURCES; i++)
                if (a->sources[i].is_used && a->sources[i].number == number)
                        return &a->sources[i];
        return NULL;
}

static void add_stats(struct announced_stats *sum, const struct announced_stats *one)
{
        sum->made += one->made;
        sum->unmeasured += one->unmeasured;
        sum->disbelieved += one->disbelieved;
        sum->came_true += one->came_true;
        sum->early += one->early;
        sum->late += one->late;
        sum->open += one->open;
}

/* Returns the record of a source. A new one takes a free record, or that of the source without open
 * announcements that was silent for the longest time; otherwise the last record is shared. */
static struct source *source_of(struct announced *a, uint32_t number)
{
        struct source *s = (struct source *)known_source(a, number), *silent = NULL;

        if (s)
                return s;
        for (unsigned i = 0; i < ANNOUNCED_SOURCES; i++) {
                s = &a->sources[i];
                if (s->stats.open == 0 && (!silent || !s->is_used || s->last_ns < silent->last_ns))
                        silent = s;
                if (!s->is_used)
                        break;
        }
        if (!silent)
                return &a->sources[ANNOUNCED_SOURCES - 1];
        add_stats(&a->former, &silent->stats);
        *silent = (struct source){ .number = number,
                                   .is_used = true,
                                   .early = ASSUMED * ANNOUNCED_EARLY };
        return silent;
}

/* Returns the share of announcements that came true. A source without outcomes counts as if half of
 * ASSUMED announcements had come true. */
static float belief_in(const struct source *s)
{
        return (s->came_true + ASSUMED * 0.5F) / (s->ended + ASSUMED);
}

static void note_outcome(struct source *s, bool came_true)
{
        const float kept = 1.0F - 1.0F / MEMORY;

        s->came_true = s->came_true * kept + (came_true ? 1.0F : 0.0F);
        s->ended = s->ended * kept + 1.0F;
        s->n_ended++;
}

/* Records the ratio of the actual to the announced time until the use. */
static void note_delay(struct source *s, const struct open *o, uint64_t now_ns)
{
        const float kept = 1.0F - 1.0F / MEMORY;
        uint64_t announced_ns = 2 * (o->due_ns - o->half_ns);
        uint64_t made_ns = o->due_ns - announced_ns;
        float part = now_ns > made_ns ? (float)(now_ns - made_ns) / (float)announced_ns : 0;

        if (announced_ns == 0)
                return; /* the announced time is zero */
        s->stretch =
                s->stretch * kept + log2f(MIN(MAX(part, 1.0F / MOST_STRETCH), (float)MOST_STRETCH));
        s->returned = s->returned * kept + 1.0F;
        s->early = s->early * kept + (part < 1 ? 1 - part : 0);
}

float announced_early(const struct announced *a, uint32_t source)
{
        const struct source *s = known_source(a, source);

        return s ? s->early / (s->returned + ASSUMED) : ANNOUNCED_EARLY;
}

uint32_t announced_seconds(const struct announced *a, uint32_t source, uint32_t seconds)
{
        const struct source *s = known_source(a, source);
        float stretch = s ? exp2f(s->stretch / (s->returned + ASSUMED)) : 1.0F;

        return stretch <= 1.0F ? seconds
                               : (uint32_t)MIN(seconds * (double)stretch + 0.5, (double)UINT32_MAX);
}

/* --- announcements --- */

static void end(struct announced *a, struct open *o)
{
        a->sources[o->source].stats.open--;
        a->n_open--;
        *o = (struct open){ 0 };
}

/* Ends an announcement whose item was not used. */
static void expire(struct announced *a, struct open *o)
{
        struct source *s = &a->sources[o->source];

        if (o->true_if_unused)
                s->stats.came_true++;
        else
                s->stats.late++;
        note_outcome(s, o->true_if_unused);
        end(a, o);
}

/* Ends an announcement because its source announces the item again, or cancels the announcement.
 * After half of its time the announcement counts as late, because the item may have been prefetched
 * for it. */
static void replace(struct announced *a, struct open *o, uint64_t now_ns)
{
        struct source *s = &a->sources[o->source];

        if (now_ns > o->half_ns) {
                s->stats.late++;
                note_outcome(s, false);
        }
        end(a, o);
}

static struct open open_of(uint64_t id, enum announced_kind kind, uint32_t seconds, uint64_t now)
{
        uint32_t least_s = seconds / 2 - MIN(seconds / 2, PROMISE_TOLERATED_S + 0U);
        /* from_ns is 0 by default, because the use may be reported with an earlier time */
        struct open o = { .id = id, .half_ns = UINT64_MAX };

        switch (kind) {
        case ANNOUNCED_RETURN:
                o.due_ns = now + seconds * SECOND;
                o.half_ns = now + seconds * SECOND / 2;
                o.from_ns = least_s > 0 ? now + least_s * SECOND : 0;
                o.to_ns = now + (2 * (uint64_t)seconds + PROMISE_TOLERATED_S) * SECOND;
                break;
        case ANNOUNCED_TOOL_CALL:
                o.due_ns = o.to_ns = now + TOOL_CALL_S * SECOND;
                break;
        default:
                o.from_ns = now + TURN_END_S * SECOND;
                o.due_ns = o.to_ns = now + TURN_END_MOST_S * SECOND;
                o.true_if_unused = true;
                break;
        }
        return o;
}

/* Returns whether another source that is believed expects the item sooner. */
static bool is_expected_sooner(const struct announced *a, const struct open *o)
{
        const struct open *bucket = bucket_of(a, o->id);

        for (unsigned i = 0; i < WAYS; i++)
                if (bucket[i].id == o->id && !bucket[i].true_if_unused &&
                    bucket[i].due_ns < o->due_ns &&
                    belief_in(&a->sources[bucket[i].source]) >= ANNOUNCED_LEAST_BELIEF)
                        return true;
        return false;
}

float announced_make(struct announced *a, uint32_t source, uint64_t id, enum announced_kind kind,
                     uint32_t seconds, uint64_t now_ns)
{
        struct source *s = source_of(a, source);
        struct open *bucket = bucket_of(a, id), *place = find(a, id, source);
        float belief;

        s->stats.made++;
        s->last_ns = now_ns;
        if (place)
                replace(a, place, now_ns);
        for (unsigned i = 0; i < WAYS; i++) {
                if (bucket[i].id != 0 && bucket[i].to_ns < now_ns)
                        expire(a, &bucket[i]);
                if (bucket[i].id == 0)
                        place = &bucket[i];
        }
        if (!place || a->n_open >= ANNOUNCED_OPEN || s->stats.open >= ANNOUNCED_OF_SOURCE ||
            (s->n_ended < ANNOUNCED_AT_FIRST && s->stats.open >= ANNOUNCED_AT_FIRST)) {
                s->stats.unmeasured++;
                return 0;
        }
        *place = open_of(id, kind, seconds, now_ns);
        place->owner = source;
        place->source = (uint16_t)(s - a->sources);
        s->stats.open++;
        a->n_open++;
        belief = belief_in(s);
        if (belief < ANNOUNCED_LEAST_BELIEF) {
                s->stats.disbelieved++;
                return 0;
        }
        return is_expected_sooner(a, place) ? 0 : belief;
}

static struct expected *expected_at(struct announced *a, uint64_t id)
{
        return &a->expected[spread(id) & (EXPECTED - 1)];
}

void announced_expect_part(struct announced *a, uint32_t source, uint64_t parent, uint64_t due_ns,
                           const struct evict_promise *promise)
{
        *expected_at(a, parent) = (struct expected){
                .id = parent, .due_ns = due_ns, .source = source, .promise = *promise
        };
}

bool announced_take_part(struct announced *a, uint32_t source, uint64_t id, uint64_t due_ns,
                         struct evict_promise *ret)
{
        const uint64_t tolerated_ns = PROMISE_TOLERATED_S * SECOND;
        struct expected *e = expected_at(a, id);

        if (e->id != id || e->source != source || due_ns + tolerated_ns < e->due_ns ||
            due_ns > e->due_ns + tolerated_ns)
                return false;
        *ret = e->promise;
        *e = (struct expected){ 0 };
        return true;
}

void announced_cancel(struct announced *a, uint32_t source, uint64_t id, uint64_t now_ns)
{
        struct open *o = a->n_open > 0 ? find(a, id, source) : NULL;

        if (o && o->half_ns != UINT64_MAX)
                replace(a, o, now_ns);
}

bool announced_is_empty(const struct announced *a)
{
        return a->n_open == 0;
}

/* Ends an announcement of an item that is used. Another source's use counts only if it makes the
 * announcement come true, so that no source can make those of another come false. */
static void note_use(struct announced *a, struct open *o, uint32_t source, uint64_t now_ns)
{
        struct source *s = &a->sources[o->source];
        bool came_true = now_ns >= o->from_ns && now_ns <= o->to_ns;

        if (!came_true && o->owner != source)
                return;
        if (came_true)
                s->stats.came_true++;
        else if (now_ns < o->from_ns)
                s->stats.early++;
        else
                s->stats.late++;
        if (o->half_ns != UINT64_MAX)
                note_delay(s, o, now_ns);
        note_outcome(s, came_true);
        end(a, o);
}

void announced_use(struct announced *a, uint32_t source, uint64_t id, uint64_t now_ns)
{
        struct open *bucket = bucket_of(a, id);

        for (unsigned i = 0; a->n_open > 0 && i < WAYS; i++)
                if (bucket[i].id == id)
                        note_use(a, &bucket[i], source, now_ns);
}

void announced_expire(struct announced *a, uint64_t now_ns)
{
        for (unsigned n = 0; n < EXPIRED_AT_ONCE && a->n_open > 0; n++) {
                struct open *bucket = a->open[a->next_expired++ % BUCKETS];

                for (unsigned i = 0; i < WAYS; i++)
                        if (bucket[i].id != 0 && bucket[i].to_ns < now_ns)
                                expire(a, &bucket[i]);
        }
}

float announced_belief(const struct announced *a, uint32_t source)
{
        const struct source *s = known_source(a, source);

        return belief_in(s ? s : &(const struct source){ 0 });
}

bool announced_find(const struct announced *a, uint32_t source, uint64_t id, uint64_t now_ns,
                    int64_t *ret_left_ns)
{
        const struct open *o = find(a, id, source);

        if (!o)
                return false;
        *ret_left_ns = (int64_t)(o->due_ns - now_ns);
        return true;
}

void announced_get_stats(const struct announced *a, struct announced_stats *ret)
{
        *ret = a->former;
        for (unsigned i = 0; i < ANNOUNCED_SOURCES; i++)
                add_stats(ret, &a->sources[i].stats);
}

void announced_each_source(const struct announced *a,
                           void (*each)(void *userdata, uint32_t source, float belief,
                                        const struct announced_stats *stats),
                           void *userdata)
{
        for (unsigned i = 0; i < ANNOUNCED_SOURCES; i++)
                if (a->sources[i].is_used)
                        each(userdata, a->sources[i].number, belief_in(&a->sources[i]),
                             &a->sources[i].stats);
}
