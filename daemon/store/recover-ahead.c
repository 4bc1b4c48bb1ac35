/* SPDX-License-Identifier: Apache-2.0 */
/* A start, the threads beside it where the ring is large: two read the blocks that will be looked
 * at next, one checks them and in the second look does all but the index's part with them, and one
 * puts memory under the index while the device is what all wait for.
 *
 * Blocks go round in a queue of READ_AHEAD, counted from the first: `taken` of them by whoever
 * looks, `read` of those that were `asked` for. The one that asks alone knows which come next. */
#include "store/recover-internal.h"

#include <stdlib.h>

#include "checked.h"

enum { POPULATE_RECORDS = 128 * 1024 };

static struct block *block_at(struct recovery *rec, uint32_t number)
{
        return &rec->ahead[number % READ_AHEAD];
}

static void *reader_run(void *userdata)
{
        struct recovery *rec = userdata;

        pthread_mutex_lock(&rec->lock);
        while (!rec->ending) {
                struct block *b = block_at(rec, rec->reading);

                if (rec->reading == rec->asked) {
                        pthread_cond_wait(&rec->cond, &rec->lock);
                        continue;
                }
                rec->reading++;
                b->busy = true;
                pthread_mutex_unlock(&rec->lock);
                recover_block_fill(rec, b, b->first);
                pthread_mutex_lock(&rec->lock);
                b->busy = false;
                while (rec->read != rec->reading && !block_at(rec, rec->read)->busy)
                        rec->read++;
                pthread_cond_broadcast(&rec->cond);
        }
        pthread_mutex_unlock(&rec->lock);
        return NULL;
}

/* Checks or judges the first block that nobody has begun with. False: there is none. Gives the lock
 * up meanwhile. */
static bool judge_next(struct recovery *rec)
{
        struct block *b;

        if ((int32_t)(rec->judging - rec->taken) < 0)
                rec->judging = rec->taken; /* they were wanted before their turn came */
        if (rec->judging == rec->read)
                return false;
        b = block_at(rec, rec->judging++);
        b->busy = true;
        pthread_mutex_unlock(&rec->lock);
        if (b->again)
                recover_block_judge(rec, b);
        else
                recover_block_check(rec, b, false);
        pthread_mutex_lock(&rec->lock);
        b->busy = false;
        pthread_cond_broadcast(&rec->cond);
        return true;
}

static void *judge_run(void *userdata)
{
        struct recovery *rec = userdata;

        pthread_mutex_lock(&rec->lock);
        while (!rec->ending)
                if (!judge_next(rec))
                        pthread_cond_wait(&rec->cond, &rec->lock);
        pthread_mutex_unlock(&rec->lock);
        return NULL;
}

/* The kernel takes a third of a start to clear what the index is about to fill. While the table is
 * first read, the device is what all wait for; what the eviction order needs comes after that. */
static void *populator_run(void *userdata)
{
        struct recovery *rec = userdata;
        uint32_t done = 0;
        bool ordered = false;

        pthread_mutex_lock(&rec->lock);
        while (!rec->ending) {
                uint32_t wanted = rec->expected;
                bool order = rec->all_expected && !ordered;

                if (wanted <= done && !order) {
                        pthread_cond_wait(&rec->cond, &rec->lock);
                        continue;
                }
                pthread_mutex_unlock(&rec->lock);
                if (wanted > done)
                        index_populate(rec->v->index, done, wanted);
                else
                        evict_populate(rec->v->evict, wanted);
                ordered = wanted <= done;
                done = MAX(done, wanted);
                pthread_mutex_lock(&rec->lock);
        }
        pthread_mutex_unlock(&rec->lock);
        return NULL;
}

void recover_ahead_start(struct recovery *rec)
{
        bool blocks = true;

        for (unsigned i = 0; i < READ_AHEAD && blocks; i++)
                blocks = recover_block_init(&rec->ahead[i], rec->room) == 0;
        while (blocks && rec->n_readers < READERS &&
               pthread_create(&rec->readers[rec->n_readers], NULL, reader_run, rec) == 0)
                rec->n_readers++;
        rec->has_judge = rec->n_readers > 0 && pthread_create(&rec->judge, NULL, judge_run, rec) == 0;
        rec->has_populator = pthread_create(&rec->populator, NULL, populator_run, rec) == 0;
}

void recover_ahead_stop(struct recovery *rec)
{
        pthread_mutex_lock(&rec->lock);
        rec->ending = true;
        pthread_cond_broadcast(&rec->cond);
        pthread_mutex_unlock(&rec->lock);
        for (unsigned i = 0; i < rec->n_readers; i++)
                pthread_join(rec->readers[i], NULL);
        if (rec->has_judge)
                pthread_join(rec->judge, NULL);
        if (rec->has_populator)
                pthread_join(rec->populator, NULL);
        rec->n_readers = 0;
        rec->has_judge = rec->has_populator = false;
        for (unsigned i = 0; i < READ_AHEAD; i++)
                recover_block_fini(&rec->ahead[i]);
}

bool recover_ahead_take(struct recovery *rec, uint32_t first)
{
        bool found = false;

        if (rec->n_readers == 0)
                return false;
        pthread_mutex_lock(&rec->lock);
        while (!found && rec->taken != rec->asked) {
                struct block *b = block_at(rec, rec->taken);

                if (rec->read == rec->taken || b->busy) {
                        if (!judge_next(rec))
                                pthread_cond_wait(&rec->cond, &rec->lock);
                        continue;
                }
                found = b->first == first;
                if (found) {
                        struct block taken = *b;

                        *b = rec->block;
                        rec->block = taken;
                }
                rec->taken++; /* without use, if another one is wanted */
        }
        pthread_mutex_unlock(&rec->lock);
        return found;
}

/* The block that will be needed after this one; from the end it goes on at the begin. */
static uint32_t wanted_after(const struct recovery *rec, uint32_t block)
{
        for (uint32_t first = block + rec->room; first < rec->pages; first += rec->room) {
                uint32_t end = MIN(rec->pages, first + rec->room);

                if (!rec->looked)
                        return first;
                for (uint32_t i = first; i < end; i++)
                        if (rec->sequences[i] != 0 && rec->sequences[i] != TABLE_STALE)
                                return first;
        }
        return 0;
}

void recover_ahead_ask(struct recovery *rec, uint32_t first)
{
        uint32_t next;

        if (rec->n_readers == 0)
                return;
        pthread_mutex_lock(&rec->lock);
        if (rec->taken == rec->asked)
                rec->last_asked = first;
        while (rec->asked - rec->taken < READ_AHEAD &&
               (next = wanted_after(rec, rec->last_asked)) != first) {
                struct block *b = block_at(rec, rec->asked++);

                rec->last_asked = b->first = next;
                b->again = rec->in_force;
        }
        pthread_cond_broadcast(&rec->cond);
        pthread_mutex_unlock(&rec->lock);
}

void recover_expect(struct recovery *rec, uint32_t records, bool all)
{
        if (!rec->has_populator || (records < rec->expected + POPULATE_RECORDS && !all))
                return;
        pthread_mutex_lock(&rec->lock);
        rec->expected = MAX(rec->expected, records);
        rec->all_expected = all;
        pthread_cond_broadcast(&rec->cond);
        pthread_mutex_unlock(&rec->lock);
}
