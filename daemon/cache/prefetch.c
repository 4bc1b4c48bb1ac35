/* SPDX-License-Identifier: Apache-2.0 */
/* Implements prefetch.h: a heap of chains for each user, by the time at which their reads begin,
 * and fair queueing (fair/sfq.h) among the users that have a due chain. */
#include "cache/prefetch.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/heap.h"
#include "base/list.h"
#include "checked.h"
#include "fair/sfq.h"

#define MS     UINT64_C(1000000)
#define SECOND UINT64_C(1000000000)

enum {
        QUANTUM = 8,       /* most keys of a chain that are handled before another user's turn */
        STEP_BYTES = 1024, /* bytes that a step costs in the fair queueing even if it reads less */
        /* The lead of a chain includes MARGIN times the mean part of the announced time by which
         * the user's chains are used too early, but at most MARGIN_MOST percent of the announced
         * time. */
        MARGIN = 3,
        MARGIN_MOST = 25,
        LEAD_LEAST_MS = 20, /* least lead, but at most half of the announced time */
        /* A chain's reads may evict others as long as the chunks read, times the part of the
         * announced time by which they are read early, are at most this percentage of the chain's
         * chunks. */
        HELD_MOST = 5,
        LEAD_MOST_MS = 30000,
        /* The lead includes DELAYS times the mean delay after which a chain's reads begin. The mean
         * is a moving average over DELAY_CHAINS chains. */
        DELAYS = 2,
        DELAY_CHAINS = 16,
        /* A chain may still be read after its announced time, for a LATE_PARTS-th of the announced
         * delay or for its lead, whichever is longer. */
        LATE_PARTS = 8,
        RETRY_MS = 2, /* ms after which refused reads are tried again */
        /* Most reads that an iteration may postpone, because each may have searched the pool for
         * room. After these, the iteration tries one key of each remaining user. */
        BLOCKED_MOST = 4,
        BURST_PARTS = 4,     /* unused budget accrues for at most a BURST_PARTS-th of a second */
        MEAN_CHUNKS = 16,    /* chunks over which the moving average of the length is taken */
        SCAN_MS = 100,       /* least time between two scans for chains that have ended */
        RECENT = 1 << 10,    /* latest announcements whose chains a further part may extend */
        MEASURED = 16 << 20, /* bytes of reads without a pause after which the rate is measured */
};
#define FIRST_RATE  (UINT64_C(256) << 20) /* bytes per second, until a measurement */
#define FIRST_CHUNK (UINT64_C(1) << 20)

static_assert((int)PREFETCH_USERS == SFQ_FLOWS, "each user has a flow");

/* The keys of one message. */
struct part {
        struct part *after; /* the next part of the chain; NULL: this is the last */
        uint32_t n, next;   /* number of keys, and of keys already handled */
        struct key keys[];  /* the root first */
};

/* A chain. `id`, `number` and the times are those of its last part, which was announced first. */
struct chain {
        struct heap_node turn; /* key: the time at which its reads begin, or continue */
        uint64_t id, number, due_ns;
        uint64_t begin_ns; /* when its reads should begin; 0: they have begun */
        uint64_t late_ns;  /* the chain is not read after this time */
        uint32_t namespace_id;
        uint32_t seconds;    /* announced time until the return */
        uint32_t n, n_parts; /* number of keys of all parts, and of parts, also handled ones */
        uint32_t n_read;     /* number of chunks that were read */
        uint32_t most;       /* number of chunks that may be read by evicting others */
        struct part *parts;  /* the parts with keys that were not handled, the root first */
};

struct user {
        uint32_t uid;
        uint32_t n_keys, n_parts; /* keys and parts of the user's chains */
        struct heap chains;       /* empty: the record is free */
        struct list_node due;     /* in prefetch.due while a chain is due */
};

struct prefetch {
        struct prefetch_params params;
        struct user users[PREFETCH_USERS];
        struct sfq due;   /* the users with a due chain, by their index, as of the last iteration */
        int64_t budget;   /* bytes that may be read now; the last read may exceed it */
        uint64_t time_ns; /* time up to which the budget has accrued */
        uint64_t next_ns; /* earliest time at which prefetch_iterate() has work; 0 if unknown */
        uint64_t scan_ns; /* when chains that have ended may be searched for again */
        struct chain *recent[RECENT]; /* by the number of the announcement; NULL: none, or it has
                                       * ended */
        uint32_t n_parts;             /* parts of the chains of all users */
        bool is_stopped;
        unsigned n_blocked;           /* reads that this iteration postponed */
        uint64_t delay_ns;            /* moving average of the time by which a chain's reads begin
                                       * late, because the loop or clients' requests were busy */
        uint64_t mean_bytes;          /* moving average of the length of a chunk */
        uint64_t busy_ns, busy_bytes; /* time since which reads have been in flight without a pause,
                                       * and the bytes read since */
        struct prefetch_stats stats;
};

int prefetch_new(struct prefetch **ret, const struct prefetch_params *params)
{
        struct prefetch *p = calloc(1, sizeof(*p));

        if (!p)
                return -ENOMEM;
        p->params = *params;
        p->mean_bytes = FIRST_CHUNK;
        sfq_init(&p->due);
        for (unsigned i = 0; i < PREFETCH_USERS; i++)
                list_init(&p->users[i].due);
        *ret = p;
        return 0;
}

struct prefetch *prefetch_free(struct prefetch *p)
{
        if (!p)
                return NULL;
        prefetch_stop(p);
        for (unsigned i = 0; i < PREFETCH_USERS; i++)
                heap_fini(&p->users[i].chains);
        free(p);
        return NULL;
}

/* --- scheduled chains --- */

static struct chain *chain_of(struct heap_node *node)
{
        return container_of(node, struct chain, turn);
}

static struct chain *first_of(const struct user *u)
{
        struct heap_node *node = heap_first(&u->chains);

        return node ? chain_of(node) : NULL;
}

static struct chain **recent_at(struct prefetch *p, uint64_t number)
{
        return &p->recent[number % RECENT];
}

/* Ends a chain that has left its heap. */
static void chain_end(struct prefetch *p, struct user *u, struct chain *ch,
                      enum prefetch_outcome outcome)
{
        u->n_keys -= ch->n;
        u->n_parts -= ch->n_parts;
        p->n_parts -= ch->n_parts;
        p->stats.keys -= ch->n;
        p->stats.chains--;
        p->stats.outcomes[outcome]++;
        if (*recent_at(p, ch->number) == ch)
                *recent_at(p, ch->number) = NULL;
        while (ch->parts) {
                struct part *part = ch->parts;

                ch->parts = part->after;
                free(part);
        }
        free(ch);
}

static void chain_remove(struct prefetch *p, struct user *u, struct chain *ch,
                         enum prefetch_outcome outcome)
{
        heap_remove(&u->chains, &ch->turn);
        chain_end(p, u, ch, outcome);
}

/* Returns whether the announcement still stands: the chain was neither used nor announced again. */
static bool is_announced(const struct prefetch *p, const struct user *u, const struct chain *ch,
                         uint64_t now_ns)
{
        int64_t left_ns;

        return announced_find(p->params.announced, u->uid, ch->id, now_ns, &left_ns) &&
               now_ns + (uint64_t)left_ns == ch->due_ns;
}

struct removal {
        bool all;
        uint32_t namespace_id; /* 0: the chains whose announcement has ended */
        uint64_t now_ns;
};

static bool is_removed(const struct prefetch *p, const struct user *u, const struct chain *ch,
                       const struct removal *what)
{
        if (what->all || what->namespace_id != 0)
                return what->all || ch->namespace_id == what->namespace_id;
        return !is_announced(p, u, ch, what->now_ns);
}

/* Removes chains of a user, and makes a heap of the remaining chains again. */
static void remove_chains(struct prefetch *p, struct user *u, const struct removal *what,
                          enum prefetch_outcome outcome)
{
        unsigned n = u->chains.n;

        u->chains.n = 0;
        for (unsigned i = 1; i <= n; i++) {
                struct heap_node *node = u->chains.nodes[i];

                node->place = 0;
                if (is_removed(p, u, chain_of(node), what))
                        chain_end(p, u, chain_of(node), outcome);
                else
                        heap_add(&u->chains, node, node->key);
        }
}

void prefetch_forget(struct prefetch *p, bool all, uint32_t namespace_id)
{
        const struct removal what = { .all = all, .namespace_id = namespace_id };

        for (unsigned i = 0; i < PREFETCH_USERS && p->stats.chains > 0; i++)
                remove_chains(p, &p->users[i], &what, PREFETCH_DROPPED);
        p->next_ns = 0;
}

void prefetch_stop(struct prefetch *p)
{
        p->is_stopped = true;
        prefetch_forget(p, true, 0);
}

void prefetch_set_rate(struct prefetch *p, uint64_t bytes_per_second)
{
        p->params.bytes_per_second = bytes_per_second;
        p->budget = 0;
        p->next_ns = 0;
        if (bytes_per_second == 0)
                prefetch_forget(p, true, 0);
}

/* --- announcements --- */

/* Returns the record of a user with scheduled chains; otherwise a free record, which becomes the
 * user's, or NULL if none is free. */
static struct user *user_of(struct prefetch *p, uint32_t uid)
{
        struct user *unused = NULL;

        for (unsigned i = 0; i < PREFETCH_USERS; i++) {
                struct user *u = &p->users[i];

                if (u->chains.n == 0)
                        unused = unused ? unused : u;
                else if (u->uid == uid)
                        return u;
        }
        if (unused)
                unused->uid = uid;
        return unused;
}

static bool has_room(const struct prefetch *p, const struct user *u, uint32_t n)
{
        return p->n_parts < PREFETCH_CHAINS && u->n_parts < PREFETCH_CHAINS / 2 &&
               p->stats.keys + n <= PREFETCH_KEYS && u->n_keys + n <= PREFETCH_KEYS / 2;
}

/* Returns the part of the announced time by which a chain is read earlier than its reads need,
 * because the user's chains return early. */
static float margin_of(const struct prefetch *p, uint32_t user)
{
        float early = announced_early(p->params.announced, user);

        return MIN(MARGIN * early, MARGIN_MOST / 100.0F);
}

/* Returns how many of `n` chunks may be read by evicting others. While a chunk waits for its use,
 * its slot serves no other chunk, which is then read again. */
static uint32_t most_of(float margin, uint32_t n)
{
        const float held = HELD_MOST / 100.0F;

        return margin <= held ? n : (uint32_t)ceilf((float)n * held / margin);
}

/* Returns the lead of a chain: the time before its announced use at which its reads begin. */
static uint64_t lead_ns(const struct prefetch *p, const struct chain *ch, float margin)
{
        uint64_t rate = MIN(p->stats.rate ? p->stats.rate : FIRST_RATE, p->params.bytes_per_second);
        uint64_t read_ms = 2 * ch->n * p->mean_bytes / MAX(rate / 1000, UINT64_C(1));
        uint64_t lead_ms = (uint64_t)((float)ch->seconds * 1000 * margin) + read_ms +
                           DELAYS * p->delay_ns / MS;

        lead_ms = MAX(MIN(lead_ms, (uint64_t)LEAD_MOST_MS), (uint64_t)LEAD_LEAST_MS);
        return MIN(lead_ms, ch->seconds * UINT64_C(1000) / 2) * MS;
}

/* Returns a chain without keys, which is not in the heap of its user yet, or NULL. */
static struct chain *chain_new(struct prefetch *p, const struct prefetch_return *r, struct user *u,
                               uint64_t due_ns)
{
        struct chain *ch = malloc(sizeof(*ch));

        if (!ch || heap_reserve(&u->chains, u->chains.n + 1) < 0) {
                free(ch);
                return NULL;
        }
        *ch = (struct chain){ .id = r->id,
                              .number = r->number,
                              .due_ns = due_ns,
                              .namespace_id = r->namespace_id,
                              .seconds = r->seconds };
        p->stats.chains++;
        *recent_at(p, r->number) = ch;
        return ch;
}

/* Puts a part before those of a chain. */
static void chain_prepend(struct prefetch *p, struct user *u, struct chain *ch, struct part *part,
                          const struct prefetch_return *r)
{
        *part = (struct part){ .after = ch->parts, .n = r->n };
        ch->parts = part;
        ch->n += r->n;
        ch->n_parts++;
        u->n_parts++;
        p->n_parts++;
        u->n_keys += r->n;
        p->stats.keys += r->n;
}

/* Removes the chains of all users whose announcement has ended, at most once in SCAN_MS. Ended
 * chains of some users would otherwise leave the others without room until they are due. */
static void remove_ended(struct prefetch *p, uint64_t now_ns)
{
        const struct removal ended = { .now_ns = now_ns };

        if (now_ns < p->scan_ns)
                return;
        p->scan_ns = now_ns + SCAN_MS * MS;
        for (unsigned i = 0; i < PREFETCH_USERS && p->stats.chains > 0; i++)
                remove_chains(p, &p->users[i], &ended, PREFETCH_ENDED);
}

/* Returns the chain of an announcement, to be extended by a further part, or NULL if it is not
 * scheduled or its reads have begun. */
static struct chain *extended_by(struct prefetch *p, const struct prefetch_return *r)
{
        struct chain *ch = *recent_at(p, r->number);

        return ch && ch->number == r->number && ch->begin_ns != 0 ? ch : NULL;
}

/* Schedules the reads of a chain by its number of keys. */
static void schedule(struct prefetch *p, struct user *u, struct chain *ch)
{
        float margin = margin_of(p, u->uid);
        uint64_t lead = lead_ns(p, ch, margin);

        ch->most = most_of(margin, ch->n);
        ch->late_ns = ch->due_ns + MAX(lead, ch->seconds * SECOND / LATE_PARTS);
        ch->begin_ns = ch->due_ns - lead;
        heap_add(&u->chains, &ch->turn, ch->begin_ns);
        p->next_ns = MIN(p->next_ns, ch->begin_ns);
}

struct key *prefetch_announce(struct prefetch *p, const struct prefetch_return *r, uint64_t now_ns)
{
        struct user *u = user_of(p, r->user);
        struct part *part;
        struct chain *ch;
        int64_t left_ns;

        if (p->is_stopped || p->params.bytes_per_second == 0 || r->n == 0)
                return NULL;
        if (!u || !has_room(p, u, r->n)) {
                remove_ended(p, now_ns);
                u = user_of(p, r->user);
        }
        ch = extended_by(p, r);
        if (!ch && !announced_find(p->params.announced, r->user, r->id, now_ns, &left_ns))
                return NULL;
        part = u && has_room(p, u, r->n) ? malloc(sizeof(*part) + r->n * sizeof(part->keys[0]))
                                         : NULL;
        if (!part && ch) { /* a chain is useless without its beginning */
                chain_remove(p, u, ch, PREFETCH_REFUSED);
                return NULL;
        }
        if (part && !ch)
                ch = chain_new(p, r, u, now_ns + (uint64_t)left_ns);
        if (!ch) {
                p->stats.outcomes[PREFETCH_REFUSED]++;
                free(part);
                return NULL;
        }
        chain_prepend(p, u, ch, part, r);
        schedule(p, u, ch);
        return part->keys;
}

/* --- reads --- */

static void budget_accrue(struct prefetch *p, uint64_t now_ns)
{
        uint64_t rate = p->params.bytes_per_second, most = rate / BURST_PARTS + 1;
        uint64_t passed_ns = MIN(now_ns - MIN(p->time_ns, now_ns), SECOND);
        int64_t budget = p->budget + (int64_t)((double)rate * (double)passed_ns / 1e9);

        p->budget = MIN(budget, (int64_t)most);
        p->time_ns = now_ns;
}

static bool may_read(const struct prefetch *p)
{
        return p->budget > 0 && p->stats.inflight_bytes < PREFETCH_INFLIGHT_BYTES;
}

static enum prefetch_answer read_next(struct prefetch *p, const struct user *u, struct chain *ch,
                                      uint64_t now_ns)
{
        uint64_t left_ns = ch->due_ns > now_ns ? ch->due_ns - now_ns : 0;
        uint32_t left_s = (uint32_t)MAX((left_ns + SECOND - 1) / SECOND, UINT64_C(1));
        const struct prefetch_chunk chunk = {
                .user = u->uid,
                .namespace_id = ch->namespace_id,
                .key = &ch->parts->keys[ch->parts->next],
                .promise = { .number = ch->number,
                             .is_from_root = true,
                             .seconds = announced_seconds(p->params.announced, u->uid, left_s),
                             .belief = announced_belief(p->params.announced, u->uid) },
                .free_only = ch->n_read >= ch->most,
        };
        uint32_t bytes = 0;
        enum prefetch_answer answer = p->params.read(p->params.userdata, &chunk, &bytes);

        if (answer != PREFETCH_STARTED)
                return answer;
        if (p->stats.inflight_bytes == 0) {
                p->busy_ns = now_ns;
                p->busy_bytes = 0;
        }
        ch->n_read++;
        p->stats.inflight_bytes += bytes;
        p->stats.chunks++;
        p->stats.bytes += bytes;
        p->budget -= bytes;
        p->mean_bytes += bytes / MEAN_CHUNKS - p->mean_bytes / MEAN_CHUNKS;
        return answer;
}

/* Postpones a chain whose next chunk cannot be read now, so that the user's other due chains come
 * first. Returns whether this iteration may handle further keys of the user. */
static bool chain_postpone(struct prefetch *p, struct user *u, struct chain *ch, uint64_t now_ns)
{
        heap_add(&u->chains, &ch->turn, now_ns + RETRY_MS * MS);
        return ++p->n_blocked < BLOCKED_MOST;
}

/* Measures by how much the reads of a chain begin late. */
static void note_delay(struct prefetch *p, struct chain *ch, uint64_t now_ns)
{
        uint64_t delay_ns = MIN(now_ns - MIN(ch->begin_ns, now_ns), SECOND);

        if (ch->begin_ns == 0)
                return;
        ch->begin_ns = 0;
        p->delay_ns = (p->delay_ns * (DELAY_CHAINS - 1) + delay_ns) / DELAY_CHAINS;
}

/* Proceeds to the next key of a chain. */
static void chain_advance(struct chain *ch)
{
        struct part *part = ch->parts;

        if (++part->next < part->n)
                return;
        ch->parts = part->after;
        free(part);
}

/* Advances a due chain by up to QUANTUM keys. Removes it after its last key, or once its remaining
 * chunks need not be read; postpones it if its next chunk cannot be read now. Returns whether
 * further keys of the user may be handled in this iteration. */
static bool chain_step(struct prefetch *p, struct user *u, struct chain *ch, unsigned *steps,
                       uint64_t now_ns)
{
        enum prefetch_answer answer = PREFETCH_PRESENT;

        --*steps;
        note_delay(p, ch, now_ns);
        if (!is_announced(p, u, ch, now_ns)) {
                chain_remove(p, u, ch, PREFETCH_ENDED);
                return true;
        }
        if (announced_belief(p->params.announced, u->uid) < PREFETCH_LEAST_BELIEF) {
                chain_remove(p, u, ch, PREFETCH_DISBELIEVED);
                return true;
        }
        if (now_ns > ch->late_ns) {
                chain_remove(p, u, ch, PREFETCH_LATE);
                return true;
        }
        for (unsigned i = 0; i<QUANTUM && * steps> 0 && ch->parts; i++) {
                answer = may_read(p) ? read_next(p, u, ch, now_ns) : PREFETCH_BUSY;
                if (answer == PREFETCH_BUSY)
                        return false;
                if (answer == PREFETCH_NO_ROOM || answer == PREFETCH_BLOCKED)
                        break;
                --*steps;
                chain_advance(ch);
        }
        if (answer == PREFETCH_BLOCKED)
                return chain_postpone(p, u, ch, now_ns);
        if (answer == PREFETCH_NO_ROOM && ch->n_read < ch->most)
                chain_remove(p, u, ch, PREFETCH_WORTH_LESS);
        else if (answer == PREFETCH_NO_ROOM || !ch->parts)
                chain_remove(p, u, ch, ch->n_read > 0 ? PREFETCH_READ : PREFETCH_IN_MEMORY);
        return true;
}

/* Queues the user if one of its chains is due, and otherwise removes it from the queue. */
static void note_due(struct prefetch *p, struct user *u, uint64_t now_ns)
{
        const struct chain *ch = first_of(u);
        bool is_due = ch && ch->turn.key <= now_ns;

        if (is_due == !list_empty(&u->due))
                return;
        if (is_due)
                sfq_append(&p->due, (uint16_t)(u - p->users), &u->due, 0);
        else
                sfq_remove(&p->due, (uint16_t)(u - p->users), &u->due, 0);
}

/* Returns the earliest time at which the reads of a scheduled chain begin or continue, or
 * UINT64_MAX if no chain is scheduled. */
static uint64_t first_begin(const struct prefetch *p)
{
        uint64_t begin_ns = UINT64_MAX;

        for (unsigned i = 0; i < PREFETCH_USERS; i++) {
                const struct chain *ch = first_of(&p->users[i]);

                begin_ns = ch ? MIN(begin_ns, ch->turn.key) : begin_ns;
        }
        return begin_ns;
}

uint64_t prefetch_iterate(struct prefetch *p, uint64_t now_ns)
{
        unsigned steps = PREFETCH_STEPS;
        uint64_t refused = 0;
        struct list_node *n;

        if (p->stats.chains == 0)
                return 0;
        if (now_ns < p->next_ns)
                return p->next_ns;
        budget_accrue(p, now_ns);
        p->n_blocked = 0;
        for (unsigned i = 0; i < PREFETCH_USERS; i++)
                note_due(p, &p->users[i], now_ns);
        while (steps > 0 && may_read(p) && (n = sfq_first(&p->due, refused))) {
                struct user *u = container_of(n, struct user, due);
                uint64_t bytes = p->stats.bytes;
                unsigned before = steps;

                if (!chain_step(p, u, first_of(u), &steps, now_ns))
                        refused |= UINT64_C(1) << (u - p->users);
                sfq_charge(&p->due, (uint16_t)(u - p->users),
                           p->stats.bytes - bytes + (uint64_t)(before - steps) * STEP_BYTES);
                note_due(p, u, now_ns);
        }
        p->next_ns = refused || !may_read(p) ? now_ns + RETRY_MS * MS : MAX(first_begin(p), now_ns);
        return p->stats.chains > 0 ? p->next_ns : 0;
}

void prefetch_read_done(struct prefetch *p, uint32_t bytes, uint64_t now_ns)
{
        uint64_t passed_ns = now_ns - MIN(p->busy_ns, now_ns), rate;

        assert(p->stats.inflight_bytes >= bytes);
        p->stats.inflight_bytes -= bytes;
        p->busy_bytes += bytes;
        p->next_ns = 0;
        if ((p->stats.inflight_bytes > 0 && p->busy_bytes < MEASURED) || passed_ns == 0)
                return;
        rate = (uint64_t)((double)p->busy_bytes * 1e9 / (double)passed_ns);
        p->stats.rate = p->stats.rate ? p->stats.rate / 4 * 3 + rate / 4 : rate;
        p->busy_ns = now_ns;
        p->busy_bytes = 0;
}

void prefetch_get_stats(const struct prefetch *p, struct prefetch_stats *ret)
{
        *ret = p->stats;
}
