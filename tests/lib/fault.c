/* SPDX-License-Identifier: Apache-2.0 */
/* A layer between a worker and its queue. push() asks the plan: a failed operation goes to a list
 * of results, a short one to the device as a shadow request of its own length, and a held one waits
 * here. reap() returns all of them. The worker's thread runs everything except wake(); a lock
 * protects the plan. */
#include "fault.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "checked.h"

struct entry {
        struct list_node node;
        struct kio_request *req;
        struct kio_request shadow; /* for a short operation */
        int32_t result;            /* for a failed operation; 0: the operation's own */
        uint64_t due_ns;           /* for a held operation; 0: never */
        uint64_t epoch;
};

enum { EVERY_WORKER = INT_MAX };

struct fault_queue {
        struct kio_queue base;
        struct kio_queue *inner;
        struct list_node registered; /* in the list of all queues */
        struct entry *entries;
        struct list_node unused, failed, shadowed, held;
        unsigned in_flight, in_flight_of[KIO_CLASS_END];
        unsigned pushed; /* since the last submission */
        bool at_gate;
        unsigned worker;
};

static struct {
        pthread_mutex_t lock;
        pthread_cond_t gate; /* the gate opens, or a thread arrives at it */
        bool gate_closed;
        struct kio_backend wrapper;
        const struct kio_backend *inner;
        struct list_node queues;
        struct fault_plan plan;
        bool has_plan;
        uint64_t matched, hits, random, epoch;
        unsigned most_in_flight, most_in_flight_of[KIO_CLASS_END];
        unsigned first_submission;
        _Atomic int broken;
        _Atomic unsigned broken_worker; /* EVERY_WORKER: all */
} fault = { .lock = PTHREAD_MUTEX_INITIALIZER,
            .gate = PTHREAD_COND_INITIALIZER,
            .queues = LIST_INIT(fault.queues) };

static struct fault_queue *fault_of(struct kio_queue *q)
{
        return container_of(q, struct fault_queue, base);
}

/* Returns the next number of splitmix64. */
static uint64_t fault_draw(void)
{
        uint64_t z = fault.random += 0x9e3779b97f4a7c15u;

        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
}

/* Returns whether the plan selects this operation, and copies the plan out if so. */
static bool fault_decide(const struct kio_request *req, struct fault_plan *ret, uint64_t *ret_epoch)
{
        const struct fault_plan *p = &fault.plan;
        bool hit = false, (*choose)(const struct kio_request *, struct fault_plan *);

        pthread_mutex_lock(&fault.lock);
        *ret_epoch = fault.epoch;
        choose = fault.has_plan ? p->choose : NULL;
        if (choose) {
                pthread_mutex_unlock(&fault.lock);
                *ret = (struct fault_plan){ .choose = choose };
                return choose(req, ret);
        }
        if (fault.has_plan && (p->ops == 0 || (p->ops & 1u << req->op)) &&
            (!p->one_fd || p->fd == req->fd) && (!p->volume || p->volume == req->volume)) {
                fault.matched++;
                if (p->first > 0)
                        hit = fault.matched >= p->first &&
                              fault.matched - p->first < MAX(p->count, (uint64_t)1);
                else
                        hit = p->one_in > 0 && fault_draw() % p->one_in == 0;
                fault.hits += hit;
                *ret = *p;
        }
        pthread_mutex_unlock(&fault.lock);
        return hit;
}

static struct kio_queue *fault_close(struct kio_queue *base)
{
        struct fault_queue *q;

        if (!base)
                return NULL;
        q = fault_of(base);
        pthread_mutex_lock(&fault.lock);
        list_unlink(&q->registered);
        pthread_mutex_unlock(&fault.lock);
        if (q->inner)
                q->inner->ops->close(q->inner);
        free(q->entries);
        free(q);
        return NULL;
}

static int fault_open(struct kio_queue **ret, const struct kio_queue_params *params)
{
        struct fault_queue *q = calloc(1, sizeof(*q));
        int r;

        if (!q)
                return -ENOMEM;
        q->base.ops = &fault.wrapper;
        q->worker = params->worker;
        list_init(&q->registered);
        list_init(&q->unused);
        list_init(&q->failed);
        list_init(&q->shadowed);
        list_init(&q->held);
        q->entries = calloc(params->depth, sizeof(*q->entries));
        r = q->entries ? fault.inner->open(&q->inner, params) : -ENOMEM;
        if (r < 0) {
                fault_close(&q->base);
                return r;
        }
        for (unsigned i = 0; i < params->depth; i++)
                list_append(&q->unused, &q->entries[i].node);
        pthread_mutex_lock(&fault.lock);
        list_append(&fault.queues, &q->registered);
        pthread_mutex_unlock(&fault.lock);
        *ret = &q->base;
        return 0;
}

static const char *fault_describe(const struct kio_queue *base)
{
        const struct fault_queue *q = fault_of((struct kio_queue *)(uintptr_t)base);

        return q->inner->ops->describe(q->inner);
}

static int fault_register_piece(struct kio_queue *base, unsigned piece)
{
        struct fault_queue *q = fault_of(base);

        return q->inner->ops->register_piece(q->inner, piece);
}

static int fault_set_buffer(struct kio_queue *base, unsigned number, void *memory, uint64_t bytes)
{
        struct fault_queue *q = fault_of(base);

        return q->inner->ops->set_buffer
                       ? q->inner->ops->set_buffer(q->inner, number, memory, bytes)
                       : -EOPNOTSUPP;
}

static int fault_push(struct kio_queue *base, struct kio_request *req)
{
        struct fault_queue *q = fault_of(base);
        struct fault_plan plan;
        uint64_t epoch;
        struct entry *e = NULL;
        int r = 0;

        if (fault_decide(req, &plan, &epoch)) {
                struct list_node *n = list_pop(&q->unused);

                assert(n); /* at most the queue's depth are outstanding */
                e = container_of(n, struct entry, node);
                e->req = req;
                e->epoch = epoch;
                switch (plan.kind) {
                case FAULT_ERROR:
                        e->result = -plan.error;
                        list_append(&q->failed, &e->node);
                        break;
                case FAULT_LIES:
                        e->shadow = *req;
                        e->result = -plan.error;
                        list_append(&q->shadowed, &e->node);
                        r = q->inner->ops->push(q->inner, &e->shadow);
                        req->registered = e->shadow.registered;
                        break;
                case FAULT_TORN:
                case FAULT_SHORT: {
                        uint64_t rest = req->length - req->progress;

                        e->shadow = *req;
                        e->shadow.length =
                                req->progress +
                                (plan.short_bytes ? MIN(plan.short_bytes, rest) : rest / 2);
                        e->result = plan.kind == FAULT_TORN ? -plan.error : 0;
                        list_append(&q->shadowed, &e->node);
                        r = q->inner->ops->push(q->inner, &e->shadow);
                        req->registered = e->shadow.registered;
                        break;
                }
                case FAULT_LATE:
                case FAULT_NEVER:
                        e->due_ns = plan.kind == FAULT_LATE ? clock_mono_ns() + plan.late_ns : 0;
                        e->result = plan.kind == FAULT_NEVER ? -plan.error : 0;
                        list_append(&q->held, &e->node);
                        break;
                }
        } else
                r = q->inner->ops->push(q->inner, req);
        if (r < 0) {
                if (e) {
                        list_unlink(&e->node);
                        list_append(&q->unused, &e->node);
                }
                return r;
        }
        q->in_flight++;
        q->in_flight_of[req->class]++;
        q->pushed++;
        pthread_mutex_lock(&fault.lock);
        fault.most_in_flight = MAX(fault.most_in_flight, q->in_flight);
        fault.most_in_flight_of[req->class] =
                MAX(fault.most_in_flight_of[req->class], q->in_flight_of[req->class]);
        pthread_mutex_unlock(&fault.lock);
        return 0;
}

/* Passes on operations held long enough. Returns when the next one is due, or 0 if none is. */
static uint64_t fault_hand_over(struct fault_queue *q)
{
        uint64_t now = clock_mono_ns(), next = 0, epoch;

        pthread_mutex_lock(&fault.lock);
        epoch = fault.epoch;
        pthread_mutex_unlock(&fault.lock);
        list_for_each_safe (&q->held, n) {
                struct entry *e = container_of(n, struct entry, node);

                if (e->epoch != epoch || (e->due_ns > 0 && e->due_ns <= now)) {
                        if (e->result < 0) {
                                list_unlink(&e->node);
                                list_append(&q->failed, &e->node);
                                continue;
                        }
                        if (q->inner->ops->push(q->inner, e->req) < 0)
                                continue;
                        list_unlink(&e->node);
                        list_append(&q->unused, &e->node);
                } else if (e->due_ns > 0 && (next == 0 || e->due_ns < next))
                        next = e->due_ns;
        }
        return next;
}

static void fault_pass_gate(struct fault_queue *q)
{
        pthread_mutex_lock(&fault.lock);
        q->at_gate = true;
        if (fault.gate_closed)
                pthread_cond_broadcast(&fault.gate);
        while (fault.gate_closed)
                pthread_cond_wait(&fault.gate, &fault.lock);
        q->at_gate = false;
        if (fault.first_submission == 0)
                fault.first_submission = q->pushed;
        q->pushed = 0;
        pthread_mutex_unlock(&fault.lock);
}

/* Returns the error with which the queue cannot be entered, or 0. */
static int fault_broken(const struct fault_queue *q)
{
        unsigned worker = atomic_load(&fault.broken_worker);

        return worker == EVERY_WORKER || worker == q->worker ? atomic_load(&fault.broken) : 0;
}

static int fault_submit(struct kio_queue *base, bool wait, uint64_t timeout_ns)
{
        struct fault_queue *q = fault_of(base);
        int broken = fault_broken(q);
        uint64_t next, now;

        fault_pass_gate(q);
        if (broken)
                return -broken;
        next = fault_hand_over(q);
        if (wait && list_empty(&q->failed) && next > 0) {
                now = clock_mono_ns();
                next = next > now ? next - now : 1;
                timeout_ns = timeout_ns > 0 ? MIN(timeout_ns, next) : next;
        }
        return q->inner->ops->submit(q->inner, wait && list_empty(&q->failed), timeout_ns);
}

static unsigned fault_reap(struct kio_queue *base, struct kio_done *ret, unsigned max)
{
        struct fault_queue *q = fault_of(base);
        unsigned n_ret = 0;

        if (fault_broken(q))
                return 0;
        while (n_ret < max && !list_empty(&q->failed)) {
                struct entry *e = container_of(list_pop(&q->failed), struct entry, node);

                ret[n_ret++] = (struct kio_done){ .req = e->req, .result = e->result };
                list_append(&q->unused, &e->node);
        }
        if (n_ret < max) {
                unsigned n = q->inner->ops->reap(q->inner, ret + n_ret, max - n_ret);

                for (unsigned i = n_ret; i < n_ret + n; i++)
                        list_for_each_safe (&q->shadowed, node) {
                                struct entry *e = container_of(node, struct entry, node);

                                if (ret[i].req != &e->shadow)
                                        continue;
                                ret[i].req = e->req;
                                if (e->result < 0)
                                        ret[i].result = e->result;
                                list_unlink(&e->node);
                                list_append(&q->unused, &e->node);
                        }
                n_ret += n;
        }
        for (unsigned i = 0; i < n_ret; i++)
                q->in_flight_of[ret[i].req->class]--;
        q->in_flight -= n_ret;
        return n_ret;
}

static void fault_wake(struct kio_queue *base)
{
        struct fault_queue *q = fault_of(base);

        q->inner->ops->wake(q->inner);
}

static void fault_relieve(struct kio_queue *base, unsigned stuck)
{
        struct fault_queue *q = fault_of(base);

        if (q->inner->ops->relieve)
                q->inner->ops->relieve(q->inner, stuck);
}

const struct kio_backend *fault_wrap(const struct kio_backend *inner)
{
        fault.inner = inner;
        fault.wrapper = (struct kio_backend){
                .name = inner->name,
                .rungs = inner->rungs,
                .open = fault_open,
                .close = fault_close,
                .describe = fault_describe,
                .register_piece = fault_register_piece,
                .set_buffer = fault_set_buffer,
                .push = fault_push,
                .submit = fault_submit,
                .reap = fault_reap,
                .wake = fault_wake,
                .relieve = fault_relieve,
        };
        fault_set(NULL);
        return &fault.wrapper;
}

void fault_set(const struct fault_plan *plan)
{
        pthread_mutex_lock(&fault.lock);
        fault.has_plan = plan;
        if (plan) {
                fault.plan = *plan;
                fault.random = plan->seed;
        }
        fault.matched = fault.hits = 0;
        fault.most_in_flight = 0;
        fault.first_submission = 0;
        for (unsigned c = 0; c < KIO_CLASS_END; c++)
                fault.most_in_flight_of[c] = 0;
        pthread_mutex_unlock(&fault.lock);
}

void fault_release(void)
{
        pthread_mutex_lock(&fault.lock);
        fault.epoch++;
        list_for_each (&fault.queues, n)
                fault_wake(&container_of(n, struct fault_queue, registered)->base);
        pthread_mutex_unlock(&fault.lock);
}

static bool fault_all_at_gate(void)
{
        list_for_each (&fault.queues, n)
                if (!container_of(n, struct fault_queue, registered)->at_gate)
                        return false;
        return true;
}

void fault_gate_close(void)
{
        pthread_mutex_lock(&fault.lock);
        fault.gate_closed = true;
        list_for_each (&fault.queues, n)
                fault_wake(&container_of(n, struct fault_queue, registered)->base);
        while (!fault_all_at_gate())
                pthread_cond_wait(&fault.gate, &fault.lock);
        pthread_mutex_unlock(&fault.lock);
}

void fault_gate_open(void)
{
        pthread_mutex_lock(&fault.lock);
        fault.gate_closed = false;
        pthread_cond_broadcast(&fault.gate);
        pthread_mutex_unlock(&fault.lock);
}

void fault_break_submit_of(unsigned worker, int error)
{
        atomic_store(&fault.broken_worker, worker);
        atomic_store(&fault.broken, error);
}

void fault_break_submit(int error)
{
        fault_break_submit_of(EVERY_WORKER, error);
}

static uint64_t locked_count(const uint64_t *count)
{
        uint64_t n;

        pthread_mutex_lock(&fault.lock);
        n = *count;
        pthread_mutex_unlock(&fault.lock);
        return n;
}

static unsigned locked_number(const unsigned *number)
{
        unsigned n;

        pthread_mutex_lock(&fault.lock);
        n = *number;
        pthread_mutex_unlock(&fault.lock);
        return n;
}

uint64_t fault_matched(void)
{
        return locked_count(&fault.matched);
}

uint64_t fault_hits(void)
{
        return locked_count(&fault.hits);
}

unsigned fault_first_submission(void)
{
        return locked_number(&fault.first_submission);
}

unsigned fault_most_in_flight(void)
{
        return locked_number(&fault.most_in_flight);
}

unsigned fault_most_in_flight_of(enum kio_class class)
{
        return locked_number(&fault.most_in_flight_of[class]);
}
