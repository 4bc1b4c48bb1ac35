/* SPDX-License-Identifier: Apache-2.0 */
#include "waiting.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

static void *draw(void *userdata)
{
        struct waiting *w = userdata;
        struct timespec due;
        unsigned seconds = 0;

        clock_gettime(CLOCK_MONOTONIC, &due);
        pthread_mutex_lock(&w->lock);
        while (!w->is_over) {
                due.tv_sec++;
                while (!w->is_over && pthread_cond_timedwait(&w->ended, &w->lock, &due) == 0)
                        ;
                if (!w->is_over) {
                        char line[80];

                        snprintf(line, sizeof(line), " %.40s: %u s", w->doing, ++seconds);
                        progress_show_text(&w->progress, line);
                }
        }
        pthread_mutex_unlock(&w->lock);
        return NULL;
}

void waiting_begin(struct waiting *w, const char *doing)
{
        pthread_condattr_t monotonic;
        sigset_t all, before;

        *w = (struct waiting){ .doing = doing };
        progress_init(&w->progress);
        if (!w->progress.shown)
                return;
        pthread_mutex_init(&w->lock, NULL);
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_cond_init(&w->ended, &monotonic);
        pthread_condattr_destroy(&monotonic);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        w->runs = pthread_create(&w->thread, NULL, draw, w) == 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void waiting_end(struct waiting *w)
{
        if (w->runs) {
                pthread_mutex_lock(&w->lock);
                w->is_over = true;
                pthread_cond_signal(&w->ended);
                pthread_mutex_unlock(&w->lock);
                pthread_join(w->thread, NULL);
                w->runs = false;
        }
        progress_end(&w->progress);
}
