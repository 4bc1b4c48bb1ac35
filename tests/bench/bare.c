/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the machine without a daemon: batches of --batch pieces of --size bytes, one after the
 * other, without index, checksum or requests.
 *
 * bare-get and bare-put: one thread, one io_uring of depth 16, O_DIRECT, file and memory
 * registered, at random places of --file. A batch is submitted at once as far as the ring has room,
 * and the next one begins when all of it is complete, which is the cost of a single batch to its
 * caller. cached: pread() of the file's first --count pieces, which are in the page cache, in
 * random order.
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
        int fd;
        uint64_t n_pieces; /* pieces in the file */
        uint8_t *memory;
        uint64_t n_places, next_place;
        uint64_t random;
        bool is_put;
#if HAVE_LIBURING
        struct io_uring ring;
#endif
};

typedef int (*batch_fn)(struct bare *b);

static uint64_t random_offset(struct bare *b)
{
        b->random ^= b->random << 13;
        b->random ^= b->random >> 7;
        b->random ^= b->random << 17;
        return b->random % b->n_pieces * b->o->size;
}

static uint8_t *take_place(struct bare *b)
{
        uint8_t *place = b->memory + b->next_place * b->o->size;

        b->next_place = b->next_place + 1 < b->n_places ? b->next_place + 1 : 0;
        return place;
}

static int bare_open(struct bare *b, const struct bench_options *o, int flags)
{
        struct stat st;

        *b = (struct bare){ .o = o, .fd = -1, .random = 88172645463325252 + o->seed };
        if (!o->file)
                return bench_fail("--file says what is read or written");
        b->fd = open(o->file, flags | O_CLOEXEC);
        if (b->fd < 0 || fstat(b->fd, &st) < 0)
                return bench_fail("cannot open %s: %s", o->file, strerror(errno));
        b->n_pieces = (uint64_t)st.st_size / o->size;
        if (o->count > 0)
                b->n_pieces = MIN(b->n_pieces, o->count);
        b->n_places = o->region / o->size;
        if (b->n_pieces == 0 || b->n_places < MAX(o->batch, (uint64_t)DEPTH))
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
        if (b->fd >= 0)
                close(b->fd);
}

static int bare_slice(struct bare *b, const struct bench_step *step, batch_fn batch)
{
        uint64_t begin = bench_now_ns(), cpu = bench_cpu_ns(),
                 end = step->seconds > 0 ? begin + (uint64_t)(step->seconds * 1e9) : UINT64_MAX;
        uint64_t bytes = 0;

        do {
                int r = batch(b);

                if (r != 0)
                        return r;
                bytes += b->o->batch * b->o->size;
        } while ((step->bytes == 0 || bytes < step->bytes) && bench_now_ns() < end);
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
                        bench_fail("%s: %s", b->o->file,
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

        if (b->is_put)
                io_uring_prep_write_fixed(sqe, 0, place, (unsigned)b->o->size, random_offset(b), 0);
        else
                io_uring_prep_read_fixed(sqe, 0, place, (unsigned)b->o->size, random_offset(b), 0);
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
}

static int ring_batch(struct bare *b)
{
        uint64_t begun = 0, done = 0;

        while (done < b->o->batch) {
                int n;

                for (; begun < b->o->batch && begun - done < DEPTH; begun++)
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
        return 0;
}

static int ring_open(struct bare *b)
{
        struct iovec all = { b->memory, b->n_places * b->o->size };
        int r = io_uring_queue_init(DEPTH, &b->ring, 0);

        if (r < 0)
                return bench_fail("no io_uring: %s", strerror(-r));
        r = io_uring_register_buffers(&b->ring, &all, 1);
        if (r == 0)
                r = io_uring_register_files(&b->ring, &b->fd, 1);
        if (r == 0)
                return 0;
        io_uring_queue_exit(&b->ring);
        return bench_fail("cannot register memory and file: %s", strerror(-r));
}

static int mode_bare(const struct bench_options *o, bool is_put)
{
        struct bench_step step;
        struct bare b;
        int r = bare_open(&b, o, O_RDWR | O_DIRECT);

        b.is_put = is_put;
        if (r == 0)
                r = ring_open(&b);
        if (r == 0) {
                while (r == 0 && bench_next(o, &step))
                        r = bare_slice(&b, &step, ring_batch);
                io_uring_queue_exit(&b.ring);
        }
        bare_close(&b);
        return r;
}
#else
static int mode_bare(const struct bench_options *o, bool is_put)
{
        (void)o;
        (void)is_put;
        return bench_fail("built without io_uring");
}
#endif

int mode_bare_get(const struct bench_options *o)
{
        return mode_bare(o, false);
}

int mode_bare_put(const struct bench_options *o)
{
        return mode_bare(o, true);
}

/* --- the page cache --- */

static int read_piece(struct bare *b, uint64_t offset)
{
        ssize_t n = pread(b->fd, take_place(b), b->o->size, (off_t)offset);

        if (n == (ssize_t)b->o->size)
                return 0;
        return bench_fail("%s: %s", b->o->file, n < 0 ? strerror(errno) : "short");
}

static int cached_batch(struct bare *b)
{
        for (uint64_t i = 0; i < b->o->batch; i++)
                if (read_piece(b, random_offset(b)) != 0)
                        return 1;
        return 0;
}

int mode_cached(const struct bench_options *o)
{
        struct bench_step step;
        struct bare b;
        int r = bare_open(&b, o, O_RDONLY);

        for (uint64_t i = 0; r == 0 && i < b.n_pieces; i++)
                r = read_piece(&b, i * o->size);
        while (r == 0 && bench_next(o, &step))
                r = bare_slice(&b, &step, cached_batch);
        bare_close(&b);
        return r;
}
