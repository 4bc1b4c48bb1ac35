/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's thread: takes requests from its inbox, keeps the device busy with them, copies and
 * computes checksums in between, and publishes finished requests.
 *
 * One iteration: take the inbox; push as many requests to the queue as its depth and the classes
 * allow; publish finished requests to the loop; enter the queue, waiting there only if there is
 * nothing to compute; reap; if that made room, push and enter once more; compute for at most 256
 * KiB. It sleeps only in that wait. A request is in exactly one list at any time: inbox, ready,
 * in_flight, compute, done, or the parts of a merged request.
 *
 * Wake-ups: `sleeping` is set under the lock and only while the inbox is empty; a thread that
 * fills the inbox clears it and wakes the queue. The queue remembers a wake-up that comes before
 * the wait (an eventfd's count, a flag).
 *
 * Adjacent requests that wait together are merged (merge.h) into one operation of the device;
 * before and after it each is a request of its own.
 *
 * A hung device keeps the places of its operations. The worker recognizes its volume by the age
 * of the oldest operation, and gives additional places to the other volumes.
 *
 * Failures: settle.h decides what becomes of a request that failed or was cut short. A queue that
 * cannot submit keeps its operations in flight and is retried with growing pauses; until it
 * recovers, all other requests to the device fail at once. */
#include "io/worker.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "checked.h"
#include "io/classes.h"
#include "io/counter.h"
#include "io/settle.h"
#include "io/slice.h"

enum {
        WORKER_SLICE_BYTES = 256 * 1024,
        WORKER_CHARGE_MIN = 4096,
        WORKER_AHEAD = 4, /* most operations that an idle device gets before the rest of a
                           * submission */
        WORKER_PAUSE_MS_MAX = 100,
        WORKER_HANGING_VOLUMES = 4, /* volumes for whose operations the queue has room; all except
                                     * one may hang */
};

/* Returns the most operations in flight of all classes together, which is an eighth more than
 * `depth`. Gets may have `depth` of these places, and so may all other classes together, so neither
 * kind can take all. A single place cannot be divided. */
static unsigned worker_places(unsigned depth)
{
        return depth > 1 ? depth + MAX(depth / 8, 1u) : 1;
}

/* Returns a bit mask of the classes that may not have more in flight. There are more places than
 * `depth`, so that gets and other requests cannot block each other and each may have `depth`.
 * Background work is limited to an eighth of `depth`. */
static unsigned worker_barred(const struct worker *w)
{
        unsigned gets = w->n_in_flight_of[KIO_CLASS_GET], others = w->n_in_flight - gets;
        unsigned barred = 0;

        if (gets >= w->depth)
                barred |= 1u << KIO_CLASS_GET;
        if (others >= w->depth)
                barred |= 1u << KIO_CLASS_PUT | 1u << KIO_CLASS_BACKGROUND;
        if (w->n_in_flight_of[KIO_CLASS_BACKGROUND] >= w->background_max)
                barred |= 1u << KIO_CLASS_BACKGROUND;
        return barred;
}

/* Moves the requests of the inbox to the thread's own lists. Returns whether the worker is asked
 * to end. */
static bool worker_take_inbox(struct worker *w)
{
        struct list_node taken = LIST_INIT(taken);
        bool stopping;

        pthread_mutex_lock(&w->lock);
        w->sleeping = false;
        w->taken = atomic_load_explicit(&w->posted, memory_order_relaxed);
        stopping = w->stopping;
        for (unsigned c = 0; c < KIO_CLASS_END; c++)
                list_splice(&taken, &w->inbox[c]);
        pthread_mutex_unlock(&w->lock);

        for (struct list_node *n; (n = list_pop(&taken));) {
                struct kio_request *req = kio_request_of(n);

                if (req->class != KIO_CLASS_BACKGROUND)
                        w->client_ns = MAX(w->client_ns, req->submitted_ns);
                if (req->op == KIO_COPY || req->op == KIO_CALL ||
                    (kio_request_is_transfer(req) && req->length == 0))
                        list_append(&w->compute[req->class], n);
                else
                        list_append(&w->ready[req->class], n);
        }
        return stopping;
}

/* Returns whether the worker may sleep. After true, a thread that fills the inbox wakes it. */
static bool worker_fall_asleep(struct worker *w)
{
        bool r;

        pthread_mutex_lock(&w->lock);
        r = classes_are_empty(w->inbox) &&
            !(w->stopping && classes_are_empty(w->ready) && w->n_in_flight + w->n_stuck == 0);
        w->sleeping = r;
        pthread_mutex_unlock(&w->lock);
        return r;
}

/* Finds volumes whose oldest operation takes too long, and takes their operations out of the count
 * in flight. Other volumes may use the places, and new requests for a hanging volume fail until its
 * device has answered all its operations. Returns the time at which the next volume may begin to
 * hang, or 0 if none can. */
static uint64_t worker_find_hanging(struct worker *w, uint64_t now)
{
        uint64_t next = 0;

        if (w->hang_ns == 0)
                return 0;
        for (uint32_t left = w->busy & ~w->hanging; left; left &= left - 1) {
                unsigned volume = (unsigned)__builtin_ctz(left);
                uint64_t due = kio_request_of(w->in_flight[volume].next)->device_ns + w->hang_ns;

                if (due > now) {
                        next = next ? MIN(next, due) : due;
                        continue;
                }
                w->hanging |= 1u << volume;
                list_for_each (&w->in_flight[volume], n) {
                        struct kio_request *req = kio_request_of(n);

                        req->stuck = true;
                        w->n_in_flight--;
                        w->n_in_flight_of[req->class]--;
                        w->n_stuck++;
                }
                if (w->queue->ops->relieve)
                        w->queue->ops->relieve(w->queue, w->n_stuck);
        }
        return next;
}

/* Enters the queue, and waits there if `wait`. A failure belongs to no request: the thread
 * pauses, and new requests fail if the error is permanent. */
static void worker_enter(struct worker *w, bool wait)
{
        struct timespec pause;
        uint64_t timeout = 0;
        int r;

        if (wait && !classes_are_empty(w->ready)) {
                uint64_t now = clock_mono_ns(), look;
                uint32_t before = w->hanging;

                /* Ready requests wait for places, so wake up when a volume may begin to hang. */
                look = worker_find_hanging(w, now);
                if (look > 0)
                        timeout = look - now;
                wait = w->hanging == before;
        }
        counter_set(&w->in_device, 1);
        r = w->queue->ops->submit(w->queue, wait, timeout);
        if (r < 0 && r != -EINTR) {
                bool passing = r == -EAGAIN || r == -EBUSY || r == -ENOMEM;

                w->broken = passing ? 0 : r;
                counter_set(&w->failing, 1);
                w->backoff_ms = MIN(w->backoff_ms > 0 ? w->backoff_ms * 2 : 1,
                                    (unsigned)WORKER_PAUSE_MS_MAX);
                pause = (struct timespec){ .tv_nsec = (long)w->backoff_ms * 1000000 };
                nanosleep(&pause, NULL);
        } else {
                w->broken = 0;
                w->backoff_ms = 0;
                counter_set(&w->failing, 0);
        }
        counter_set(&w->in_device, 0);
}

static void worker_count_begun(struct worker *w, const struct kio_request *req)
{
        if (req->parts)
                list_for_each (req->parts, n)
                        counter_add(&w->begun, 1); /* every part counts as begun now, because a
                                                      request that was begun before is not merged */
        else if (req->progress == 0 && req->attempts == 0)
                counter_add(&w->begun, 1);
}

/* Pushes ready requests to the queue, as far as places and classes allow. The kernel builds all
 * operations of a submission before the device gets the first one. So a device that is idle gets a
 * few operations ahead of the others. */
static void worker_fill(struct worker *w)
{
        unsigned ahead = w->n_in_flight + w->n_stuck == 0 ? WORKER_AHEAD : 0;
        uint64_t now;

        if (classes_are_empty(w->ready))
                return;
        now = clock_mono_ns();
        worker_find_hanging(w, now);
        while (w->n_in_flight < w->places) {
                int c = classes_pick(w->ready, worker_barred(w), w->ready_turn);
                struct list_node parts = LIST_INIT(parts), *n;
                struct kio_request *req;
                int r;

                if (c < 0)
                        break;
                req = merge_take(&w->merge, &w->ready[c]);
                if (w->hanging & 1u << req->volume)
                        r = -ETIMEDOUT;
                else
                        r = w->broken < 0 ? w->broken : w->queue->ops->push(w->queue, req);
                if (r == -EAGAIN) {
                        settle_take_apart(w, req, &parts);
                        settle_put_back(w, &parts);
                        break;
                }
                w->ready_turn++;
                worker_count_begun(w, req);
                if (r < 0) {
                        settle_take_apart(w, req, &parts);
                        while ((n = list_pop(&parts)))
                                settle_request(w, kio_request_of(n), r, now);
                        continue;
                }
                req->device_ns = now;
                req->stuck = false;
                list_append(&w->in_flight[req->volume], &req->node);
                settle_note_volume(w, req->volume);
                w->n_in_flight++;
                w->n_in_flight_of[c]++;
                if (kio_request_is_transfer(req)) {
                        settle_account(w, now);
                        w->n_transfers++;
                        counter_set(&w->transfers, w->n_transfers);
                        counter_add(&w->registered_ops, req->registered);
                }
                if (w->n_in_flight == ahead && !classes_are_empty(w->ready)) {
                        worker_enter(w, false);
                        if (w->backoff_ms > 0)
                                break; /* the worker has paused, and enters the queue again in its
                                        * loop */
                        now = clock_mono_ns();
                }
        }
}

/* Computes slices of about WORKER_SLICE_BYTES in all, or fewer until it has run one call. */
static void worker_compute(struct worker *w)
{
        uint64_t budget = WORKER_SLICE_BYTES;

        while (budget > 0) {
                int c = classes_pick(w->compute, 0, w->compute_turn);
                struct kio_request *req;
                uint64_t bytes = 0;
                int r;

                if (c < 0)
                        return;
                w->compute_turn++;
                req = kio_request_of(w->compute[c].next);
                if (req->progress == 0 && !req->wiping && (req->op != KIO_READ || req->length == 0))
                        counter_add(&w->begun, 1);
                if (req->op == KIO_CALL) {
                        uint64_t now = clock_mono_ns();

                        list_unlink(&req->node);
                        counter_set(&w->call_ns, now);
                        counter_set(&w->in_device, 1);
                        r = req->call(req);
                        counter_set(&w->in_device, 0);
                        counter_set(&w->call_ns, 0);
                        if (r == WORKER_AGAIN) {
                                req->progress++;
                                list_append(&w->compute[c], &req->node);
                        } else
                                settle_request(w, req, r, clock_mono_ns());
                        return;
                }
                if (req->wiping) {
                        r = slice_wipe(req, budget, &bytes);
                        if (r > 0) {
                                list_unlink(&req->node);
                                settle_request(w, req, req->failure, clock_mono_ns());
                        }
                        budget -= MIN(budget, MAX(bytes, (uint64_t)WORKER_CHARGE_MIN));
                        continue;
                }
                if (req->op == KIO_COPY && req->progress == 0)
                        req->device_ns = clock_mono_ns();
                if (req->op == KIO_WRITE)
                        r = 1; /* a write of no bytes needs no device */
                else
                        r = slice_run(req, budget, &bytes);
                if (r != 0) {
                        list_unlink(&req->node);
                        settle_request(w, req, MIN(r, 0), clock_mono_ns());
                }
                /* Charge a minimum, so that many small requests end the iteration, too. */
                budget -= MIN(budget, MAX(bytes, (uint64_t)WORKER_CHARGE_MIN));
        }
}

/* Submits, then polls for a short time before the thread would sleep. Returns whether a request or
 * a completion has arrived. Does nothing and returns false if polling is not worthwhile, or the
 * back end cannot be polled. */
static bool worker_spin(struct worker *w)
{
        uint64_t budget, began, now;
        bool has_come;

        w->wait_ns = w->spin.limit_ns ? clock_mono_ns() : 0;
        budget = spin_budget_of_daemon(&w->spin, w->client_ns, w->wait_ns);
        if (budget == 0 || !w->queue->ops->is_ready)
                return false;
        worker_enter(w, false);
        w->wait_ns = began = now = clock_mono_ns();
        for (;;) {
                has_come = atomic_load_explicit(&w->posted, memory_order_acquire) != w->taken ||
                           w->queue->ops->is_ready(w->queue);
                if (has_come || now - began >= budget)
                        break;
                spin_pause();
                now = clock_mono_ns();
        }
        counter_add(&w->spun_ns, now - began);
        if (has_come)
                spin_learn(&w->spin, now - began);
        return has_come;
}

/* Sleeps in the queue. Adjusts the spinning by the length of the whole wait, including the time
 * that was spent polling. */
static void worker_sleep(struct worker *w)
{
        worker_enter(w, true);
        if (w->wait_ns > 0)
                spin_learn(&w->spin, clock_mono_ns() - w->wait_ns);
}

static void worker_run(struct worker *w)
{
        merge_init(&w->merge, w->params.depth);
        w->accounted_ns = clock_mono_ns();
        for (;;) {
                bool stopping;

                counter_add(&w->turns, 1);
                stopping = worker_take_inbox(w);
                worker_fill(w);
                completion_queue_publish(w->completion_queue, &w->done);
                if (stopping && w->n_in_flight + w->n_stuck == 0 && classes_are_empty(w->ready) &&
                    classes_are_empty(w->compute))
                        break;
                if (classes_are_empty(w->compute) && !worker_spin(w) && worker_fall_asleep(w))
                        worker_sleep(w);
                else
                        worker_enter(w, false);
                if (settle_reap(w) > 0 && !classes_are_empty(w->compute)) {
                        /* Keep the device busy during the computation. Publishing the requests
                         * that are finished now waits until after the computation, so that the
                         * loop is notified once for these and for those that it finishes. */
                        worker_fill(w);
                        worker_enter(w, false);
                }
                worker_compute(w);
        }
        merge_fini(&w->merge);
}

static void *worker_thread(void *userdata)
{
        struct worker *w = userdata;

        pthread_mutex_lock(&w->lock);
        for (;;) {
                enum worker_order order;
                int answer = 0;

                while (w->order == WORKER_WAIT)
                        pthread_cond_wait(&w->cond, &w->lock);
                order = w->order;
                pthread_mutex_unlock(&w->lock);

                switch (order) {
                case WORKER_OPEN:
                        answer = w->backend->open(&w->queue, &w->params);
                        break;
                case WORKER_RUN:
                        worker_run(w);
                        break;
                default:
                        break;
                }
                if (order != WORKER_OPEN && w->queue)
                        w->queue = w->queue->ops->close(w->queue);

                pthread_mutex_lock(&w->lock);
                w->order = WORKER_WAIT;
                w->answer = answer;
                pthread_cond_broadcast(&w->cond);
                if (order == WORKER_RUN || order == WORKER_QUIT)
                        break;
        }
        pthread_mutex_unlock(&w->lock);
        return NULL;
}

unsigned worker_queue_depth(unsigned depth)
{
        return WORKER_HANGING_VOLUMES * worker_places(depth);
}

int worker_init(struct worker *w, unsigned index, struct completion_queue *completion_queue)
{
        char name[16];
        int r;

        *w = (struct worker){ .index = index,
                              .completion_queue = completion_queue,
                              .flush_bytes = KIO_JOINED_MAX };
        classes_init(w->inbox);
        classes_init(w->ready);
        classes_init(w->compute);
        for (unsigned i = 0; i < KIO_VOLUMES_MAX; i++)
                list_init(&w->in_flight[i]);
        list_init(&w->done);
        pthread_mutex_init(&w->lock, NULL);
        pthread_cond_init(&w->cond, NULL);

        snprintf(name, sizeof(name), "kio-%u", index);
        r = thread_start(&w->thread, name, worker_thread, w);
        if (r < 0) {
                pthread_cond_destroy(&w->cond);
                pthread_mutex_destroy(&w->lock);
                return r;
        }
        w->has_thread = true;
        return 0;
}

void worker_fini(struct worker *w)
{
        if (!w->has_thread)
                return;
        pthread_mutex_lock(&w->lock);
        w->stopping = true;
        if (w->order == WORKER_RUN) {
                /* Wake under the lock: the worker cannot see `stopping`, end and close its queue
                 * before this call has returned. */
                w->sleeping = false;
                w->queue->ops->wake(w->queue);
        } else
                w->order = WORKER_QUIT;
        pthread_cond_broadcast(&w->cond);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
        pthread_cond_destroy(&w->cond);
        pthread_mutex_destroy(&w->lock);
        w->has_thread = false;
}

void worker_give_order(struct worker *w, enum worker_order order)
{
        if (order == WORKER_RUN) {
                w->depth = w->wanted_depth;
                w->places = worker_places(w->depth);
                w->background_max = MAX(w->depth / 8, 1u);
        }
        pthread_mutex_lock(&w->lock);
        w->order = order;
        pthread_cond_broadcast(&w->cond);
        pthread_mutex_unlock(&w->lock);
}

int worker_wait_answer(struct worker *w)
{
        int r;

        pthread_mutex_lock(&w->lock);
        while (w->order != WORKER_WAIT)
                pthread_cond_wait(&w->cond, &w->lock);
        r = w->answer;
        pthread_mutex_unlock(&w->lock);
        return r;
}

static void worker_wake(struct worker *w)
{
        bool wake;

        w->dirty = false;
        w->unflushed_bytes = 0;
        pthread_mutex_lock(&w->lock);
        wake = w->sleeping && !classes_are_empty(w->inbox);
        if (wake)
                w->sleeping = false;
        pthread_mutex_unlock(&w->lock);
        if (wake) {
                w->wakeups++;
                w->queue->ops->wake(w->queue);
        }
}

/* Queues a request. The worker is woken before the flush once there is enough for the largest
 * merged operation, then for twice as much each time, because each wake-up costs. This lets the
 * device begin while the loop still prepares requests. If reads are spread, kio_submit() flushes
 * each worker's share. */
void worker_submit(struct worker *w, struct kio_request *req)
{
        pthread_mutex_lock(&w->lock);
        list_append(&w->inbox[req->class], &req->node);
        atomic_fetch_add_explicit(&w->posted, 1, memory_order_release);
        pthread_mutex_unlock(&w->lock);
        w->submitted++;
        w->dirty = true;
        if (!kio_request_is_transfer(req))
                return;
        w->unflushed_bytes += req->length;
        if (w->unflushed_bytes < w->flush_bytes)
                return;
        worker_wake(w);
        w->flush_bytes *= 2;
}

void worker_flush(struct worker *w)
{
        w->flush_bytes = KIO_JOINED_MAX;
        if (w->dirty)
                worker_wake(w);
}

int worker_register_piece(struct kio_request *req)
{
        struct worker *w = container_of(req, struct worker, registration);

        return *w->registration_error < 0 ? *w->registration_error
                                          : w->queue->ops->register_piece(w->queue, w->piece);
}

bool worker_is_alive(struct worker *w)
{
        uint64_t turns = counter_get(&w->turns);
        bool advanced = turns != w->seen_turns;

        w->seen_turns = turns;
        return advanced || counter_get(&w->in_device) != 0 ||
               counter_get(&w->finished) == w->submitted;
}
