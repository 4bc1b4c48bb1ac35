/* SPDX-License-Identifier: Apache-2.0 */
/* Implements pages-ahead.h. One thread populates the arrays of the whole process; it starts with
 * the first step and never ends. A lock protects the queue of steps.
 *
 * Failures: if the thread cannot start, the queue is full, or memory is short, the array's pages
 * are populated on first touch. */
#include "base/pages-ahead.h"

#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "base/thread.h"
#include "checked.h"

enum {
        STEP_BYTES = 2 * 1024 * 1024, /* bytes populated by one step: a huge page */
        AHEAD_BYTES = STEP_BYTES / 2, /* bytes left of the populated part when the next step is
                                       * queued */
        QUEUE_STEPS = 64,
};

struct step {
        char *begin, *end;
};

static struct {
        pthread_mutex_t lock;
        pthread_cond_t has_steps, is_done;
        struct step queue[QUEUE_STEPS], current;
        unsigned n;
        bool is_started;
        uint64_t steps;
} populator = {
        .lock = PTHREAD_MUTEX_INITIALIZER,
        .has_steps = PTHREAD_COND_INITIALIZER,
        .is_done = PTHREAD_COND_INITIALIZER,
};

static char *boundary_after(const char *p)
{
        return (char *)(uintptr_t)round_up((uintptr_t)p, STEP_BYTES);
}

static void remove_step(unsigned i)
{
        populator.n--;
        for (; i < populator.n; i++)
                populator.queue[i] = populator.queue[i + 1];
}

static void *run(void *unused)
{
        (void)unused;
        pthread_mutex_lock(&populator.lock);
        for (;;) {
                while (populator.n == 0)
                        pthread_cond_wait(&populator.has_steps, &populator.lock);
                populator.current = populator.queue[0];
                remove_step(0);
                pthread_mutex_unlock(&populator.lock);
                pages_populate(populator.current.begin,
                               (uint64_t)(populator.current.end - populator.current.begin));
                pthread_mutex_lock(&populator.lock);
                populator.current = (struct step){ 0 };
                populator.steps++;
                pthread_cond_broadcast(&populator.is_done);
        }
        return NULL;
}

static void populate(struct step step)
{
        pthread_t thread;

        pthread_mutex_lock(&populator.lock);
        if (!populator.is_started && thread_start(&thread, "kv-pages", run, NULL) == 0) {
                pthread_detach(thread);
                populator.is_started = true;
        }
        if (populator.is_started && populator.n < QUEUE_STEPS)
                populator.queue[populator.n++] = step;
        pthread_cond_signal(&populator.has_steps);
        pthread_mutex_unlock(&populator.lock);
}

void pages_ahead_init(struct pages_ahead *a, void *base, uint64_t bytes)
{
        uint64_t first;

        *a = (struct pages_ahead){ .next = UINT64_MAX };
        if (bytes < 2 * STEP_BYTES)
                return;
        a->base = base;
        a->bytes = bytes;
        a->reached = boundary_after(a->base + 1);
        first = (uint64_t)(a->reached - a->base);
        (void)madvise(base, first, MADV_NOHUGEPAGE);
        a->next = first > AHEAD_BYTES ? first - AHEAD_BYTES : 0;
}

void pages_ahead_more(struct pages_ahead *a, uint64_t used)
{
        char *end = boundary_after(a->base + used + AHEAD_BYTES);
        struct step step = { .begin = a->reached };

        /* An array that something else populated, such as recovery, continues after its used
         * part. */
        if (step.begin < a->base + used)
                step.begin = boundary_after(a->base + used);
        step.end = MIN(end, a->base + a->bytes);
        if (step.begin < step.end)
                populate(step);
        a->reached = MAX(end, a->reached);
        a->next = a->reached >= a->base + a->bytes ? UINT64_MAX
                                                   : (uint64_t)(a->reached - a->base) - AHEAD_BYTES;
}

void pages_ahead_pause(struct pages_ahead *a)
{
        a->next = UINT64_MAX;
}

void pages_ahead_restart(struct pages_ahead *a, uint64_t used)
{
        if (!a->base)
                return;
        a->reached = boundary_after(a->base + MAX(used, UINT64_C(1)));
        a->next = (uint64_t)(a->reached - a->base);
        a->next -= MIN(a->next, (uint64_t)AHEAD_BYTES);
}

void pages_ahead_fini(struct pages_ahead *a)
{
        const char *end;

        if (!a->base)
                return;
        end = a->base + a->bytes;
        pthread_mutex_lock(&populator.lock);
        for (unsigned i = populator.n; i-- > 0;)
                if (populator.queue[i].begin >= a->base && populator.queue[i].begin < end)
                        remove_step(i);
        while (populator.current.begin >= a->base && populator.current.begin < end)
                pthread_cond_wait(&populator.is_done, &populator.lock);
        pthread_mutex_unlock(&populator.lock);
        *a = (struct pages_ahead){ .next = UINT64_MAX };
}

uint64_t pages_ahead_steps(void)
{
        uint64_t steps;

        pthread_mutex_lock(&populator.lock);
        steps = populator.steps;
        pthread_mutex_unlock(&populator.lock);
        return steps;
}
