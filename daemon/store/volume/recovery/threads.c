/* SPDX-License-Identifier: Apache-2.0 */
/* Recovery: the helper threads for a large ring. Two threads read the blocks that are scanned next,
 * one checks them, and one populates the memory of index and eviction order ahead of the scan.
 *
 * The blocks are in a circular queue of PREFETCHED_BLOCKS, in order of their turn in the plan. The
 * scan has taken all blocks with turns below `taken`, and all blocks with turns below `read` have
 * been read. */
#include "store/volume/recovery/internal.h"

#include <stdlib.h>

#include "checked.h"

enum { POPULATE_RECORDS = 32 * 1024 }; /* records that are populated in one step */

static struct block *block_at(struct recovery *rec, uint32_t turn)
{
        return &rec->prefetched[turn % PREFETCHED_BLOCKS];
}

static void *reader_run(void *userdata)
{
        struct recovery *rec = userdata;

        pthread_mutex_lock(&rec->lock);
        while (!rec->ending) {
                struct block *b = block_at(rec, rec->reading);

                if (rec->reading == rec->plan.n_turns ||
                    rec->reading - rec->taken == PREFETCHED_BLOCKS) {
                        pthread_cond_wait(&rec->cond, &rec->lock);
                        continue;
                }
                b->first = rec->plan.turns[rec->reading++];
                b->busy = true;
                pthread_mutex_unlock(&rec->lock);
                recovery_block_fill(rec, b, b->first);
                pthread_mutex_lock(&rec->lock);
                b->busy = false;
                while (rec->read != rec->reading && !block_at(rec, rec->read)->busy)
                        rec->read++;
                pthread_cond_broadcast(&rec->cond);
        }
        pthread_mutex_unlock(&rec->lock);
        return NULL;
}

/* Checks the first block whose check has not begun. Releases the lock during the check. Returns
 * false if there is no such block. */
static bool check_next(struct recovery *rec)
{
        struct block *b;

        rec->checking =
                MAX(rec->checking,
                    rec->taken); /* skips blocks that the scan took before they were checked */
        if (rec->checking == rec->read)
                return false;
        b = block_at(rec, rec->checking++);
        b->busy = true;
        pthread_mutex_unlock(&rec->lock);
        recovery_block_check(rec, b);
        pthread_mutex_lock(&rec->lock);
        b->busy = false;
        pthread_cond_broadcast(&rec->cond);
        return true;
}

static void *checker_run(void *userdata)
{
        struct recovery *rec = userdata;

        pthread_mutex_lock(&rec->lock);
        while (!rec->ending)
                if (!check_next(rec))
                        pthread_cond_wait(&rec->cond, &rec->lock);
        pthread_mutex_unlock(&rec->lock);
        return NULL;
}

void recovery_threads_start(struct recovery *rec)
{
        bool blocks = true;

        if (rec->room == rec->pages)
                return;
        rec->ending = false;
        rec->reading = rec->read = rec->checking = rec->taken = 0;
        for (unsigned i = 0; i < PREFETCHED_BLOCKS && blocks; i++)
                blocks = recovery_block_init(&rec->prefetched[i], rec->room) == 0;
        while (blocks && rec->n_readers < READERS &&
               pthread_create(&rec->readers[rec->n_readers], NULL, reader_run, rec) == 0)
                rec->n_readers++;
        rec->has_checker =
                rec->n_readers > 0 && pthread_create(&rec->checker, NULL, checker_run, rec) == 0;
}

void recovery_threads_stop(struct recovery *rec)
{
        pthread_mutex_lock(&rec->lock);
        rec->ending = true;
        pthread_cond_broadcast(&rec->cond);
        pthread_mutex_unlock(&rec->lock);
        for (unsigned i = 0; i < rec->n_readers; i++)
                pthread_join(rec->readers[i], NULL);
        if (rec->has_checker)
                pthread_join(rec->checker, NULL);
        rec->n_readers = 0;
        rec->has_checker = false;
        for (unsigned i = 0; i < PREFETCHED_BLOCKS; i++)
                recovery_block_fini(&rec->prefetched[i]);
}

bool recovery_threads_take(struct recovery *rec)
{
        struct block *b, taken;

        if (rec->n_readers == 0)
                return false;
        pthread_mutex_lock(&rec->lock);
        b = block_at(rec, rec->taken);
        while (rec->read == rec->taken || b->busy)
                if (!check_next(rec))
                        pthread_cond_wait(&rec->cond, &rec->lock);
        taken = *b;
        *b = rec->block;
        rec->block = taken;
        rec->taken++;
        pthread_cond_broadcast(&rec->cond);
        pthread_mutex_unlock(&rec->lock);
        return true;
}

/* --- populating memory --- */

/* Returns the number of records whose memory should be populated while `records` are in use: a
 * quarter of the likely number more, but no more than that number. */
static uint32_t worth_populating(const struct recovery *rec, uint32_t records)
{
        return MIN(records + rec->likely / 4, rec->likely);
}

/* Runs the populating thread. It moves a third of recovery's time off the scan, which the kernel
 * takes to clear the pages of index and eviction order. */
static void *populator_run(void *userdata)
{
        struct recovery *rec = userdata;
        uint32_t done = 0;

        pthread_mutex_lock(&rec->lock);
        while (!rec->populated) {
                uint32_t wanted = MIN(rec->expected, done + POPULATE_RECORDS);

                if (wanted <= done) {
                        pthread_cond_wait(&rec->cond, &rec->lock);
                        continue;
                }
                pthread_mutex_unlock(&rec->lock);
                index_populate(rec->v->index, done, wanted);
                evict_populate(rec->v->evict, done, wanted);
                done = wanted;
                pthread_mutex_lock(&rec->lock);
        }
        pthread_mutex_unlock(&rec->lock);
        return NULL;
}

void recovery_populate_start(struct recovery *rec)
{
        if (rec->room == rec->pages)
                return;
        rec->expected = worth_populating(rec, 0);
        rec->has_populator = pthread_create(&rec->populator, NULL, populator_run, rec) == 0;
}

void recovery_populate_stop(struct recovery *rec)
{
        uint32_t high = index_high(rec->v->index);

        if (!rec->has_populator)
                return;
        pthread_mutex_lock(&rec->lock);
        rec->populated = true;
        pthread_cond_broadcast(&rec->cond);
        pthread_mutex_unlock(&rec->lock);
        pthread_join(rec->populator, NULL);
        rec->has_populator = false;
        if (rec->expected > high) {
                index_unpopulate(rec->v->index);
                evict_unpopulate(rec->v->evict, high);
        }
}

void recovery_expect(struct recovery *rec, uint32_t records)
{
        uint32_t worth = worth_populating(rec, records);

        if (!rec->has_populator || worth <= rec->expected ||
            (worth < rec->expected + POPULATE_RECORDS && worth < rec->likely))
                return;
        pthread_mutex_lock(&rec->lock);
        rec->expected = worth;
        pthread_cond_broadcast(&rec->cond);
        pthread_mutex_unlock(&rec->lock);
}
