/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the machine without a daemon: batches of --batch pieces of --size bytes, one after the
 * other, without index, checksum or requests.
 *
 * bare-get and bare-put: one thread, one io_uring of depth 16, O_DIRECT, files and memory
 * registered, at random places of a random --file. A batch is submitted at once as far as the ring
 * has room, and the next one begins when all of it is complete, which is the cost of a single batch
 * to its caller. With --stream, the ring has the depth --outstanding and is kept full, which is the
 * rate of the device. With --posix, pread() or pwrite() moves one piece after the other, for
 * kernels without io_uring. cached: pread() of the file's first --count pieces, which are in the
 * page cache, in random order.
 *
 * The memory of --region bytes is used piece by piece in turn, as in the other modes. With
 * --huge-pages it consists of huge pages, as a daemon's pool does if there are any. One thread; any
 * failure ends the program. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench.h"
#include "build-config.h"
#include "checked.h"

#if HAVE_LIBURING
#include <liburing.h>
#endif

enum { DEPTH = 16, HUGE_PAGE = 2 << 20 };

struct bare {
        const struct bench_options *o;
        int fds[BENCH_FILES_MAX];
        unsigned n_fds;
        uint64_t n_pieces; /* pieces in each file */
        uint8_t *memory;
        uint64_t n_places, next_place;
        uint64_t random;
        bool is_put;
        bool registered;   /* the ring knows the memory */
        unsigned depth;    /* operations that the ring has room for */
        uint64_t inflight; /* operations of a stream at the device */
#if HAVE_LIBURING
        struct io_uring ring;
#endif
};

/* Moves pieces, and adds those that are complete to `*done`. */
typedef int (*batch_fn)(struct bare *b, uint64_t *done);

struct target {
        unsigned file;
        uint64_t offset;
};

static struct target random_target(struct bare *b)
{
        b->random ^= b->random << 13;
        b->random ^= b->random >> 7;
        b->random ^= b->random << 17;
        return (struct target){ .file = (unsigned)(b->random / b->n_pieces % b->n_fds),
                                .offset = b->random % b->n_pieces * b->o->size };
}

static uint8_t *take_place(struct bare *b)
{
        uint8_t *place = b->memory + b->next_place * b->o->size;

        b->next_place = b->next_place + 1 < b->n_places ? b->next_place + 1 : 0;
        return place;
}

static int open_files(struct bare *b, int flags)
{
        struct stat st;

        if (b->o->n_files == 0)
                return bench_fail("--file says what is read or written");
        b->n_pieces = b->o->count > 0 ? b->o->count : UINT64_MAX;
        for (; b->n_fds < b->o->n_files; b->n_fds++) {
                const char *file = b->o->files[b->n_fds];
                int fd = open(file, flags | O_CLOEXEC);

                if (fd < 0)
                        return bench_fail("cannot open %s: %s", file, strerror(errno));
                b->fds[b->n_fds] = fd;
                if (fstat(fd, &st) < 0)
                        return bench_fail("cannot look at %s: %s", file, strerror(errno));
                b->n_pieces = MIN(b->n_pieces, (uint64_t)st.st_size / b->o->size);
        }
        return 0;
}

static int bare_open(struct bare *b, const struct bench_options *o, int flags)
{
        int r;

        *b = (struct bare){ .o = o,
                            .random = 88172645463325252 + o->seed,
                            .depth = o->stream ? (unsigned)o->outstanding : DEPTH };
        r = open_files(b, flags);
        if (r != 0)
                return r;
        b->n_places = o->region / o->size;
        if (b->n_pieces == 0 || b->n_places < MAX(o->batch, (uint64_t)b->depth))
                return bench_fail("the file is to have a piece, and the region room for a batch");
        if (posix_memalign((void **)&b->memory, HUGE_PAGE, b->n_places * o->size) != 0) {
                b->memory = NULL;
                return bench_fail("no memory");
        }
        if (o->huge_pages && madvise(b->memory, b->n_places * o->size, MADV_HUGEPAGE) < 0)
                return bench_fail("no huge pages: %s", strerror(errno));
        memset(b->memory, 0x5a, b->n_places * o->size);
        return 0;
}

static void bare_close(struct bare *b)
{
        free(b->memory);
        for (unsigned i = 0; i < b->n_fds; i++)
                close(b->fds[i]);
}

static int bare_slice(struct bare *b, const struct bench_step *step, batch_fn batch, batch_fn drain)
{
        uint64_t begin = bench_now_ns(), cpu = bench_cpu_ns(),
                 end = step->seconds > 0 ? begin + (uint64_t)(step->seconds * 1e9) : UINT64_MAX;
        uint64_t done = 0, bytes;
        int r;

        do {
                r = batch(b, &done);
                bytes = done * b->o->size;
        } while (r == 0 && (step->bytes == 0 || bytes < step->bytes) && bench_now_ns() < end);
        if (r == 0 && drain)
                r = drain(b, &done);
        if (r != 0)
                return r;
        bytes = done * b->o->size;
        printf("{\"seconds\": %.6f, \"cpu_seconds\": %.6f, \"bytes\": %" PRIu64 "}",
               (double)(bench_now_ns() - begin) / 1e9, (double)(bench_cpu_ns() - cpu) / 1e9, bytes);
        bench_answer();
        return 0;
}

/* --- a ring --- */

#if HAVE_LIBURING
/* Takes what is complete; how many, or -1 after a complaint. */
static int ring_reap(struct bare *b)
{
        struct io_uring_cqe *cqe;
        unsigned head;
        int n = 0;

        io_uring_for_each_cqe(&b->ring, head, cqe)
        {
                if (cqe->res < 0 || (uint64_t)cqe->res != b->o->size) {
                        bench_fail("%s: %s", b->o->files[0],
                                   cqe->res < 0 ? strerror(-cqe->res) : "short");
                        return -1;
                }
                n++;
        }
        io_uring_cq_advance(&b->ring, (unsigned)n);
        return n;
}

static void ring_prepare(struct bare *b)
{
        struct io_uring_sqe *sqe = io_uring_get_sqe(&b->ring);
        uint8_t *place = take_place(b);
        struct target to = random_target(b);
        unsigned size = (unsigned)b->o->size;

        if (b->is_put && b->registered)
                io_uring_prep_write_fixed(sqe, (int)to.file, place, size, to.offset, 0);
        else if (b->is_put)
                io_uring_prep_write(sqe, (int)to.file, place, size, to.offset);
        else if (b->registered)
                io_uring_prep_read_fixed(sqe, (int)to.file, place, size, to.offset, 0);
        else
                io_uring_prep_read(sqe, (int)to.file, place, size, to.offset);
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
}

static int ring_batch(struct bare *b, uint64_t *ret_done)
{
        uint64_t begun = 0, done = 0;

        while (done < b->o->batch) {
                int n;

                for (; begun < b->o->batch && begun - done < b->depth; begun++)
                        ring_prepare(b);
                /* Waits for the last ones together, which costs one wake-up. */
                n = io_uring_submit_and_wait(&b->ring,
                                             begun < b->o->batch ? 1 : (unsigned)(begun - done));
                if (n < 0 && n != -EINTR)
                        return bench_fail("cannot submit: %s", strerror(-n));
                n = ring_reap(b);
                if (n < 0)
                        return 1;
                done += (uint64_t)n;
        }
        *ret_done += done;
        return 0;
}

/* Submits, waits for at least `wait` operations, and takes all complete ones. */
static int ring_advance(struct bare *b, unsigned wait, uint64_t *done)
{
        int n = io_uring_submit_and_wait(&b->ring, wait);

        if (n < 0 && n != -EINTR)
                return bench_fail("cannot submit: %s", strerror(-n));
        n = ring_reap(b);
        if (n < 0)
                return 1;
        b->inflight -= (uint64_t)n;
        *done += (uint64_t)n;
        return 0;
}

static int ring_stream(struct bare *b, uint64_t *done)
{
        for (; b->inflight < b->depth; b->inflight++)
                ring_prepare(b);
        return ring_advance(b, 1, done);
}

static int ring_drain(struct bare *b, uint64_t *done)
{
        while (b->inflight > 0)
                if (ring_advance(b, (unsigned)b->inflight, done) != 0)
                        return 1;
        return 0;
}

static int ring_open(struct bare *b)
{
        struct iovec all = { b->memory, b->n_places * b->o->size };
        int r = io_uring_queue_init(b->depth, &b->ring, 0);

        if (r < 0)
                return bench_fail("no io_uring: %s", strerror(-r));
        r = io_uring_register_buffers(&b->ring, &all, 1);
        b->registered = r == 0;
        /* A batch is compared with the daemon's at its best. A stream shows the device, for which
         * unregistered memory does, too, where RLIMIT_MEMLOCK is small. */
        if (r == 0 || b->o->stream)
                r = io_uring_register_files(&b->ring, b->fds, b->n_fds);
        if (r == 0)
                return 0;
        io_uring_queue_exit(&b->ring);
        return bench_fail("cannot register memory and file: %s", strerror(-r));
}

static int run_ring(struct bare *b)
{
        struct bench_step step;
        int r = ring_open(b);

        if (r != 0)
                return r;
        while (r == 0 && bench_next(b->o, &step))
                r = bare_slice(b, &step, b->o->stream ? ring_stream : ring_batch,
                               b->o->stream ? ring_drain : NULL);
        io_uring_queue_exit(&b->ring);
        return r;
}
#else
static int run_ring(struct bare *b)
{
        (void)b;
        return bench_fail("built without io_uring");
}
#endif

/* --- one blocking call after the other --- */

static int call_batch(struct bare *b, uint64_t *done)
{
        for (uint64_t i = 0; i < b->o->batch; i++) {
                struct target to = random_target(b);
                uint8_t *place = take_place(b);
                ssize_t n = b->is_put ? pwrite(b->fds[to.file], place, b->o->size, (off_t)to.offset)
                                      : pread(b->fds[to.file], place, b->o->size, (off_t)to.offset);

                if (n != (ssize_t)b->o->size)
                        return bench_fail("%s: %s", b->o->files[to.file],
                                          n < 0 ? strerror(errno) : "short");
        }
        *done += b->o->batch;
        return 0;
}

static int run_calls(struct bare *b)
{
        struct bench_step step;
        int r = 0;

        while (r == 0 && bench_next(b->o, &step))
                r = bare_slice(b, &step, call_batch, NULL);
        return r;
}

static int mode_bare(const struct bench_options *o, bool is_put)
{
        struct bare b;
        int r = bare_open(&b, o, O_RDWR | O_DIRECT);

        b.is_put = is_put;
        if (r == 0)
                r = o->posix ? run_calls(&b) : run_ring(&b);
        bare_close(&b);
        return r;
}

int mode_bare_get(const struct bench_options *o)
{
        return mode_bare(o, false);
}

int mode_bare_put(const struct bench_options *o)
{
        return mode_bare(o, true);
}

/* --- the page cache --- */

int mode_cached(const struct bench_options *o)
{
        struct bench_step step;
        struct bare b;
        int r = bare_open(&b, o, O_RDONLY);

        for (uint64_t i = 0; r == 0 && i < b.n_pieces; i++)
                if (pread(b.fds[0], take_place(&b), o->size, (off_t)(i * o->size)) !=
                    (ssize_t)o->size)
                        r = bench_fail("%s: cannot read it whole", o->files[0]);
        while (r == 0 && bench_next(o, &step))
                r = bare_slice(&b, &step, call_batch, NULL);
        bare_close(&b);
        return r;
}
