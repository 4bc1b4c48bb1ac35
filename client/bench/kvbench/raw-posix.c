/* SPDX-License-Identifier: Apache-2.0 */
/* RAW with POSIX calls: each thread takes the next block, reads or writes it, and repeats. The
 * threads live for one window. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "raw.h"

enum { MOST_THREADS = 32 };

struct crowd {
        struct raw_client *client;
        const struct profile_work *work;
        pthread_mutex_t lock;
        size_t piece; /* index of the piece of the next block; protected by `lock` */
        uint32_t within;
};

struct hand {
        struct crowd *crowd;
        pthread_t thread;
        uint64_t slot; /* slot of the thread's block, for writes */
        struct profile_tally tally;
};

/* Takes the next block, and its slot in the window. Returns false if all blocks have been taken. */
static bool crowd_next(struct crowd *crowd, uint64_t *ret_block, uint64_t *ret_slot)
{
        bool any = false;

        pthread_mutex_lock(&crowd->lock);
        if (crowd->piece < crowd->work->n_pieces) {
                const struct profile_piece *piece = &crowd->work->pieces[crowd->piece];

                *ret_block = piece->first + crowd->within;
                *ret_slot = piece->at + crowd->within;
                if (++crowd->within == piece->count) {
                        crowd->within = 0;
                        crowd->piece++;
                }
                any = true;
        }
        pthread_mutex_unlock(&crowd->lock);
        return any;
}

static void *hand_run(void *userdata)
{
        struct hand *h = userdata;
        struct raw_client *c = h->crowd->client;
        const struct profile_work *work = h->crowd->work;
        struct raw *raw = c->raw;
        uint64_t block, slot, at[4];

        while (!profile_should_stop(c->profile) && crowd_next(h->crowd, &block, &slot)) {
                off_t offset = (off_t)raw_offset(raw, block, c->profile->job->n_blocks);
                uint8_t *data;
                ssize_t n;

                at[0] = profile_now_ns();
                data = c->slots + (work->write ? h->slot : slot) * raw->stride;
                if (work->write)
                        content_stamp(&c->profile->content, data, block, work->generation);
                at[1] = at[2] = profile_now_ns();
                do
                        n = work->write ? pwrite(raw->fd, data, raw->stride, offset)
                                        : pread(raw->fd, data, raw->stride, offset);
                while (n < 0 && errno == EINTR && !profile_should_stop(c->profile));
                at[3] = profile_now_ns();
                if (raw_check_io(c, block, work->write, n < 0 ? -errno : n) < 0)
                        break;
                profile_count(&h->tally, 1, c->profile->job->io_size, at);
                atomic_fetch_add_explicit(&c->profile->done_blocks, 1, memory_order_relaxed);
        }
        return NULL;
}

int raw_posix_move(struct raw_client *c, const struct profile_work *work)
{
        struct crowd crowd = { .client = c, .work = work, .lock = PTHREAD_MUTEX_INITIALIZER };
        struct hand hands[MOST_THREADS] = { 0 };
        unsigned n = (unsigned)MIN(c->depth, (uint64_t)MOST_THREADS), started;
        int r = 0;

        for (started = 0; started < n; started++) {
                struct hand *h = &hands[started];

                h->crowd = &crowd;
                h->slot = started;
                r = pthread_create(&h->thread, NULL, hand_run, h);
                if (r != 0)
                        break;
        }
        if (started == 0)
                profile_fail(c->profile, "cannot start a thread: %s", strerror(r));
        for (unsigned i = 0; i < started; i++) {
                pthread_join(hands[i].thread, NULL);
                profile_tally_merge(work->tally, &hands[i].tally);
                profile_tally_fini(&hands[i].tally);
        }
        pthread_mutex_destroy(&crowd.lock);
        return profile_should_stop(c->profile) ? -ECANCELED : 0;
}
