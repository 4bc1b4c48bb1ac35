/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a job on its sides.
 *
 * profile_run() is the coordinator. Each side has a crew: a thread for every client, which creates
 * its client, waits for a task, performs it, and frees the client at the end; resources of one
 * thread (a ring, a connection) stay with it. The coordinator cuts a pass into windows of pieces,
 * lets the crew move a window, and later check it. The time of a window is from handing out its
 * task until the last client has moved its share.
 *
 * Failures: a thread that fails calls profile_fail() and sets `stop`; all others return from
 * their waits within a fraction of a second. All threads of the crew finish every task, so that
 * nothing is freed while in use. */
#include "profile.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"

enum { LOOK_NS = 100000000, BLOCK_ALIGN = 4096 };

enum crew_task { CREW_MAKE, CREW_PREPARE, CREW_MOVE, CREW_CHECK, CREW_END };

struct crew;

struct member {
        struct crew *crew;
        pthread_t thread;
        void *client;
        struct profile_tally tally, unmeasured;

        struct profile_piece *pieces; /* pieces of the pass, in order */
        size_t n_pieces, room;
        size_t next; /* index of the first piece of the next window */
        struct profile_work work;
};

struct crew {
        struct profile *profile;
        struct profile_side *side;
        struct member *members;
        unsigned n, started;
        double seconds;

        pthread_mutex_t lock;
        pthread_cond_t begin, end;
        enum crew_task task; /* protected by `lock`, like the members below */
        uint64_t round;
        unsigned running;
        uint64_t ended_ns;
};

static inline uint64_t mix(uint64_t x)
{
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
}

/* --- shared state --- */

int profile_init(struct profile *p, const struct profile_job *job, const atomic_int *interrupted)
{
        uint64_t seed = 0;

        *p = (struct profile){ .job = job, .interrupted = interrupted, .told = ATOMIC_FLAG_INIT };
        if (content_init(&p->content, job->io_size, job->name) < 0)
                return -ENOMEM;
        p->keys = reallocarray(NULL, job->n_blocks, sizeof(*p->keys));
        if (!p->keys) {
                content_fini(&p->content);
                return -ENOMEM;
        }
        for (const char *c = job->name; *c; c++)
                seed = mix(seed + (unsigned char)*c);
        for (uint64_t i = 0; i < job->n_blocks; i++)
                for (unsigned word = 0; word < KVCACHE_KEY_BYTES / 8; word++) {
                        uint64_t x = mix(mix(seed + word) + i);

                        memcpy(p->keys[i].bytes + 8 * (size_t)word, &x, 8);
                }
        return 0;
}

void profile_fini(struct profile *p)
{
        content_fini(&p->content);
        free(p->keys);
        p->keys = NULL;
}

int profile_fail(struct profile *p, const char *format, ...)
{
        va_list arguments;

        if (!atomic_flag_test_and_set(&p->told)) {
                va_start(arguments, format);
                vsnprintf(p->error, sizeof(p->error), format, arguments);
                va_end(arguments);
        }
        atomic_store(&p->stop, true);
        return -ECANCELED;
}

bool profile_should_stop(struct profile *p)
{
        return atomic_load(&p->stop) || (p->interrupted && *p->interrupted);
}

void profile_count(struct profile_tally *t, uint64_t blocks, uint64_t io_size, const uint64_t at[4])
{
        latency_add(&t->prepare, at[1] - at[0]);
        latency_add(&t->post, at[2] - at[1]);
        latency_add(&t->transfer, at[3] - at[2]);
        latency_add(&t->latency, at[3] - at[0]);
        t->prepare_sum += (double)(at[1] - at[0]);
        t->post_sum += (double)(at[2] - at[1]);
        t->transfer_sum += (double)(at[3] - at[2]);
        t->latency_sum += (double)(at[3] - at[0]);
        t->operations++;
        t->blocks += blocks;
        t->bytes += blocks * io_size;
}

void profile_tally_fini(struct profile_tally *t)
{
        latency_fini(&t->latency);
        latency_fini(&t->prepare);
        latency_fini(&t->post);
        latency_fini(&t->transfer);
        *t = (struct profile_tally){ 0 };
}

void profile_tally_merge(struct profile_tally *to, const struct profile_tally *from)
{
        latency_merge(&to->latency, &from->latency);
        latency_merge(&to->prepare, &from->prepare);
        latency_merge(&to->post, &from->post);
        latency_merge(&to->transfer, &from->transfer);
        to->latency_sum += from->latency_sum;
        to->prepare_sum += from->prepare_sum;
        to->post_sum += from->post_sum;
        to->transfer_sum += from->transfer_sum;
        to->operations += from->operations;
        to->blocks += from->blocks;
        to->bytes += from->bytes;
        to->bytes_memory += from->bytes_memory;
        to->bytes_disk += from->bytes_disk;
        to->bytes_verified += from->bytes_verified;
}

void profile_result_fini(struct profile_result *r)
{
        profile_tally_fini(&r->tally);
}

/* --- the crew --- */

static void member_do(struct member *m, enum crew_task task)
{
        struct crew *crew = m->crew;
        struct profile *p = crew->profile;
        struct profile_side *side = crew->side;

        if (task == CREW_MAKE) {
                (void)side->client_new(side->self, p, &m->client);
        } else if (task == CREW_END) {
                if (m->client)
                        side->client_free(m->client);
                m->client = NULL;
        } else if (m->client && m->work.n_blocks > 0 && !profile_should_stop(p)) {
                if (task == CREW_PREPARE)
                        (void)side->prepare(m->client, &m->work);
                else if (task == CREW_MOVE)
                        (void)side->move(m->client, &m->work);
                else
                        (void)side->check(m->client, &m->work);
        }
}

static void *member_run(void *userdata)
{
        struct member *m = userdata;
        struct crew *crew = m->crew;
        uint64_t seen = 0;
        enum crew_task task;

        do {
                pthread_mutex_lock(&crew->lock);
                while (crew->round == seen)
                        pthread_cond_wait(&crew->begin, &crew->lock);
                seen = crew->round;
                task = crew->task;
                pthread_mutex_unlock(&crew->lock);

                member_do(m, task);

                pthread_mutex_lock(&crew->lock);
                if (--crew->running == 0) {
                        crew->ended_ns = profile_now_ns();
                        pthread_cond_signal(&crew->end);
                }
                pthread_mutex_unlock(&crew->lock);
        } while (task != CREW_END);
        return NULL;
}

/* Shows the progress, at most ten times a second. */
static void show_progress(struct profile *p)
{
        uint64_t now = profile_now_ns();

        if (!p->on_progress || now - p->shown_ns < LOOK_NS)
                return;
        p->shown_ns = now;
        p->on_progress(p->userdata, atomic_load(&p->done_blocks), p->all_blocks);
}

/* Gives a task to all members, and waits until all have performed it. Returns the time until the
 * last one had, in ns. */
static uint64_t crew_do(struct crew *crew, enum crew_task task)
{
        uint64_t begin, end;

        pthread_mutex_lock(&crew->lock);
        crew->task = task;
        crew->running = crew->started;
        crew->round++;
        begin = profile_now_ns();
        crew->ended_ns = begin;
        pthread_cond_broadcast(&crew->begin);
        while (crew->running > 0) {
                uint64_t next = profile_now_ns() + LOOK_NS;
                struct timespec t = { .tv_sec = (time_t)(next / 1000000000),
                                      .tv_nsec = (long)(next % 1000000000) };

                if (pthread_cond_timedwait(&crew->end, &crew->lock, &t) == ETIMEDOUT)
                        show_progress(crew->profile);
        }
        end = crew->ended_ns;
        pthread_mutex_unlock(&crew->lock);
        show_progress(crew->profile);
        return end - begin;
}

static void crew_end(struct crew *crew)
{
        if (crew->started > 0)
                crew_do(crew, CREW_END);
        for (unsigned i = 0; i < crew->started; i++)
                pthread_join(crew->members[i].thread, NULL);
        for (unsigned i = 0; crew->members && i < crew->n; i++) {
                profile_tally_fini(&crew->members[i].tally);
                profile_tally_fini(&crew->members[i].unmeasured);
                free(crew->members[i].pieces);
        }
        free(crew->members);
        pthread_mutex_destroy(&crew->lock);
        pthread_cond_destroy(&crew->begin);
        pthread_cond_destroy(&crew->end);
}

/* Starts the crew's threads, each of which creates its client. Returns 0 or -ECANCELED; crew_end()
 * must follow in both cases. */
static int crew_start(struct crew *crew, struct profile *p, struct profile_side *side)
{
        pthread_condattr_t monotonic;
        int r;

        *crew = (struct crew){ .profile = p, .side = side, .n = p->job->clients };
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_mutex_init(&crew->lock, NULL);
        pthread_cond_init(&crew->begin, NULL);
        pthread_cond_init(&crew->end, &monotonic);
        pthread_condattr_destroy(&monotonic);

        crew->members = calloc(crew->n, sizeof(*crew->members));
        if (!crew->members)
                return profile_fail(p, "out of memory");
        for (; crew->started < crew->n; crew->started++) {
                struct member *m = &crew->members[crew->started];

                m->crew = crew;
                r = pthread_create(&m->thread, NULL, member_run, m);
                if (r != 0)
                        return profile_fail(p, "cannot start a thread: %s", strerror(r));
        }
        crew_do(crew, CREW_MAKE);
        return profile_should_stop(p) ? -ECANCELED : 0;
}

/* --- a pass --- */

/* Chooses p->piece_blocks, and returns the window of a client in blocks. */
static uint64_t cut(struct profile *p, struct profile_side *const *sides, unsigned n_sides)
{
        const struct profile_job *job = p->job;
        uint64_t stride = round_up(job->io_size, BLOCK_ALIGN), depth = UINT64_MAX,
                 window = UINT64_MAX, bytes = PROFILE_PIECE_BYTES, window_blocks, piece,
                 most = PROFILE_PIECE_BLOCKS;
        const struct profile_side *decides = NULL;

        for (unsigned i = 0; i < n_sides; i++) {
                depth = MIN(depth, sides[i]->depth);
                window = MIN(window, sides[i]->window_bytes);
                if (sides[i]->piece_bytes > 0)
                        bytes = MIN(bytes, sides[i]->piece_bytes);
                if (sides[i]->piece_blocks > 0)
                        decides = sides[i];
        }
        if (decides) {
                depth = decides->depth;
                bytes = decides->piece_bytes;
                most = decides->piece_blocks;
        }
        window_blocks = MAX(window / stride, (uint64_t)1);
        /* Choose pieces so small that at least four are in flight, and that every client has
         * some. */
        piece = MIN(MIN(depth, window_blocks), job->n_blocks / job->clients) / 4;
        piece = MIN(MIN(piece, bytes / stride), most);
        p->piece_blocks = MAX(piece, (uint64_t)1);
        return window_blocks;
}

static int member_add(struct member *m, const struct profile_piece *piece)
{
        if (m->n_pieces == m->room) {
                size_t room = MAX(m->room * 2, (size_t)256);
                void *pieces = reallocarray(m->pieces, room, sizeof(*m->pieces));

                if (!pieces)
                        return profile_fail(m->crew->profile, "out of memory");
                m->pieces = pieces;
                m->room = room;
        }
        m->pieces[m->n_pieces++] = *piece;
        return 0;
}

/* Divides all blocks among the clients as pieces: the first piece of each user, then the second of
 * each, and so on. All pieces of a user go to one client, unless there are fewer users than
 * clients. Returns 0 or a negative errno. */
static int pass_deal(struct crew *crew)
{
        const struct profile_job *job = crew->profile->job;
        uint64_t piece_blocks = crew->profile->piece_blocks;
        uint64_t users = MIN(job->users, job->n_blocks), dealt = 0;
        uint64_t longest = (job->n_blocks + users - 1) / users;

        for (unsigned i = 0; i < crew->n; i++) {
                crew->members[i].n_pieces = 0;
                crew->members[i].next = 0;
        }
        for (uint64_t at = 0; at < longest; at += piece_blocks)
                for (uint64_t user = 0; user < users; user++) {
                        /* The first `rest` users have one block more than the others. */
                        uint64_t each = job->n_blocks / users, rest = job->n_blocks % users;
                        uint64_t first = each * user + MIN(user, rest);
                        uint64_t length = each + (user < rest);
                        struct profile_piece piece;
                        uint64_t to;
                        int r;

                        if (at >= length)
                                continue;
                        piece = (struct profile_piece){
                                .first = first + at,
                                .count = (uint32_t)MIN(piece_blocks, length - at),
                                .root = at == 0,
                        };
                        to = users >= crew->n ? user : dealt;
                        dealt++;
                        r = member_add(&crew->members[to % crew->n], &piece);
                        if (r < 0)
                                return r;
                }
        return 0;
}

/* Shuffles the pieces: differently in each pass, but equally on every side. */
static void pass_shuffle(struct crew *crew, uint64_t seed)
{
        for (unsigned i = 0; i < crew->n; i++) {
                struct member *m = &crew->members[i];

                for (size_t n = m->n_pieces; n > 1; n--) {
                        size_t other =
                                mix(seed * 0x9e3779b97f4a7c15u + n + ((uint64_t)i << 40)) % n;
                        struct profile_piece piece = m->pieces[n - 1];

                        m->pieces[n - 1] = m->pieces[other];
                        m->pieces[other] = piece;
                }
        }
}

/* Advances each client to its next window. Returns false after the last window. */
static bool pass_window(struct crew *crew, uint64_t window_blocks)
{
        bool any = false;

        for (unsigned i = 0; i < crew->n; i++) {
                struct member *m = &crew->members[i];
                struct profile_work *w = &m->work;

                w->pieces = m->pieces + m->next;
                w->n_pieces = w->n_blocks = 0;
                while (m->next < m->n_pieces &&
                       (w->n_pieces == 0 ||
                        w->n_blocks + m->pieces[m->next].count <= window_blocks)) {
                        m->pieces[m->next].at = (uint32_t)w->n_blocks;
                        w->n_blocks += m->pieces[m->next].count;
                        w->n_pieces++;
                        m->next++;
                }
                any = any || w->n_pieces > 0;
        }
        return any;
}

/* Runs a pass. `counts`: the pass counts in the results. `generation` is that of the contents to
 * write, or to expect. */
static int pass_run(struct crew *crew, uint64_t window_blocks, enum profile_pass pass,
                    uint64_t generation, uint64_t seed, bool counts)
{
        struct profile *p = crew->profile;
        bool write = pass == PROFILE_WRITE, prepare = crew->side->prepare != NULL;
        int r;

        if (profile_should_stop(p))
                return -ECANCELED;
        r = pass_deal(crew);
        if (r < 0)
                return r;
        if (!write)
                pass_shuffle(crew, seed);
        for (unsigned i = 0; i < crew->n; i++) {
                struct member *m = &crew->members[i];

                m->work = (struct profile_work){
                        .write = write,
                        .generation = generation,
                        .tally = counts ? &m->tally : &m->unmeasured,
                };
        }
        r = crew->side->before ? crew->side->before(crew->side->self, p, pass) : 0;
        if (r < 0)
                return r;
        while (pass_window(crew, write && !prepare ? UINT64_MAX : window_blocks)) {
                uint64_t ns;

                if (prepare)
                        crew_do(crew, CREW_PREPARE);
                if (profile_should_stop(p))
                        return -ECANCELED;
                ns = crew_do(crew, CREW_MOVE);
                if (profile_should_stop(p))
                        return -ECANCELED;
                if (counts)
                        crew->seconds += (double)ns / 1e9;
                if (write)
                        continue;
                crew_do(crew, CREW_CHECK);
                if (profile_should_stop(p))
                        return -ECANCELED;
        }
        return 0;
}

/* Returns whether the blocks are read back after write pass number `pass`, counted from 0 with the
 * warm-up passes. */
static bool reads_back(const struct profile_job *job, uint64_t pass)
{
        return job->write && (pass + 1 == job->warmup + job->iterations ||
                              (job->check_all && pass >= job->warmup));
}

static int run_all(struct profile *p, struct crew *crews, unsigned n, uint64_t window_blocks)
{
        const struct profile_job *job = p->job;
        uint64_t passes = job->warmup + job->iterations;
        int r;

        for (uint64_t i = 0; i < passes; i++)
                for (unsigned turn = 0; turn < n; turn++) {
                        struct crew *crew = &crews[(i + turn) % n];
                        enum profile_pass pass = job->write  ? PROFILE_WRITE
                                                 : job->cold ? PROFILE_READ_COLD
                                                             : PROFILE_READ;
                        uint64_t generation = job->write ? passes - 1 - i : 0;

                        /* The first warm-up pass reads from disk. */
                        if (pass == PROFILE_READ && i == 0 && job->warmup > 0)
                                pass = PROFILE_READ_COLD;
                        r = pass_run(crew, window_blocks, pass, generation, i, i >= job->warmup);
                        if (r == 0 && reads_back(job, i))
                                r = pass_run(crew, window_blocks, PROFILE_READ_COLD, generation, i,
                                             false);
                        if (r < 0)
                                return r;
                }
        return 0;
}

int profile_run(struct profile *p, struct profile_side *const *sides, unsigned n_sides,
                struct profile_result *ret)
{
        const struct profile_job *job = p->job;
        struct crew *crews = calloc(n_sides, sizeof(*crews));
        unsigned started = 0;
        uint64_t passes = 0, window_blocks;
        int r = 0;

        if (!crews)
                return profile_fail(p, "out of memory");
        window_blocks = cut(p, sides, n_sides);
        for (uint64_t i = 0; i < job->warmup + job->iterations; i++)
                passes += 1 + reads_back(job, i);
        atomic_store(&p->done_blocks, 0);
        if (!checked_mul(passes, n_sides * job->n_blocks, &p->all_blocks))
                p->all_blocks = UINT64_MAX;

        for (; r == 0 && started < n_sides; started++)
                r = crew_start(&crews[started], p, sides[started]);
        if (r == 0)
                r = run_all(p, crews, n_sides, window_blocks);
        for (unsigned i = 0; i < n_sides; i++) {
                ret[i] = (struct profile_result){ .name = sides[i]->name,
                                                  .seconds = crews[i].seconds };
                for (unsigned k = 0; i < started && crews[i].members && k < crews[i].n; k++) {
                        profile_tally_merge(&ret[i].tally, &crews[i].members[k].tally);
                        if (job->write)
                                ret[i].tally.bytes_verified +=
                                        crews[i].members[k].unmeasured.bytes_verified;
                }
                if (i < started)
                        crew_end(&crews[i]);
        }
        free(crews);
        return r;
}

int profile_write_once(struct profile *p, struct profile_side *side)
{
        uint64_t window_blocks = cut(p, &side, 1);
        struct crew crew;
        int r;

        atomic_store(&p->done_blocks, 0);
        p->all_blocks = p->job->n_blocks;
        r = crew_start(&crew, p, side);
        if (r == 0)
                r = pass_run(&crew, window_blocks, PROFILE_WRITE, 0, 0, false);
        crew_end(&crew);
        return r;
}
