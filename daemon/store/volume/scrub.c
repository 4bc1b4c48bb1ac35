/* SPDX-License-Identifier: Apache-2.0 */
/* Reads chunks of one volume back, so that lost data is found before a client asks for it.
 *
 * There are two users: the background pass, which periodically reads all chunks at a bounded rate,
 * and VERIFY, a request to read a range. Both share one reader, which serves requests first. It
 * runs on the loop thread; workers read, and the volume's blocking-call thread computes checksums,
 * both in the background class. It owns one buffer and one request.
 *
 * Chunks are read by segment and slot, hence by offset. A *window* consists of as many adjacent
 * chunks as fit into the buffer: they are pinned, read with one read, checked by one call, and
 * unpinned. A pass meets every chunk that exists during all of it, because a chunk never changes
 * its slot. A chunk whose checksum does not match is read once more, alone and in pieces with a
 * running checksum. A chunk that is longer than the buffer is always read in pieces. A chunk that
 * does not match twice, or cannot be read twice, is dropped with a tombstone, counted and logged. A
 * chunk that was dropped, evicted or purged during the read proves nothing about the disk and is
 * not counted.
 *
 * The pass keeps to its rate between any two reads, and waits while puts wait for a slot or
 * requests wait for a ring. It still does one read a second, so that the chunks of a host that is
 * never idle are read back, too.
 *
 * Failures: after an error unrelated to the data, such as lack of memory, the chunk is kept. If
 * MAX_UNREADABLE chunks in a row cannot be read, the device is at fault, and the pass or request
 * ends. If the volume stops or is bypassed, the pass and all requests end with the results so
 * far. */
#include "store/volume/scrub.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "checked.h"
#include "cleanup.h"
#include "store/volume/internal.h"

enum {
        BUFFER_BYTES =
                1024 * 1024, /* size of the buffer, and most bytes of one read for a request */
        GENTLE_BYTES = 256 * 1024, /* most bytes of one read of the pass */
        GAP_BYTES = 64 * 1024, /* chunks with a gap of at most this many bytes between them are read
                                  with one read */
        MAX_ITEMS = 256,       /* most chunks in a window */
        MAX_VISITED = 64 * 1024, /* most slots that are visited to collect one window */
        MAX_VERIFIES = 64,       /* most requests that wait */
        MAX_VERIFY_BYTES =
                64 * 1024 * 1024, /* most bytes of one request, not counting its last chunk */
        MAX_UNREADABLE = 16, /* number of unreadable chunks in a row after which the device counts
                                as failed */
};

#define SECOND_NS UINT64_C(1000000000)
static const uint64_t first_pass_ns =
        3600 * SECOND_NS;                  /* longest time between startup and the first pass */
static const uint64_t rest_ns = SECOND_NS; /* shortest pause between two passes */
static const uint64_t hold_ns =
        SECOND_NS / 100; /* pause after which a pass checks again whether others wait */
static const uint64_t longest_hold_ns =
        SECOND_NS; /* after waiting this long, the pass does one read */

struct item {
        uint32_t chunk;
        uint32_t offset; /* position of the chunk in the window, in bytes */
        uint32_t length, crc;
        uint32_t found;  /* checksum of the bytes that were read */
        unsigned failed; /* number of failed reads and mismatches */
};

struct scrub {
        struct volume *v;
        void *buf;
        struct kio_request io;
        bool busy; /* an operation is in flight, and another thread uses `io`, `buf` and `items` */
        struct store_scrub settings;

        struct store_verify
                *job; /* the request that the window belongs to; NULL if it belongs to the pass */
        uint32_t segment;
        uint64_t offset, bytes; /* position and length of the window in the data file */
        struct item items[MAX_ITEMS];
        unsigned n_items;

        /* State of the reading of items[0] alone, in pieces. */
        bool alone;    /* items[0] is read alone */
        uint64_t done; /* number of its bytes that were read */
        uint32_t crc;

        /* struct store_verify: requests that are not read yet; those that are read, whose
         * complete() is called next */
        struct list_node waiting, verified;
        unsigned n_waiting;
        uint64_t taken_chunks, taken_bytes; /* chunks and bytes that were collected for `job` */

        bool passing;                 /* a pass is in progress */
        uint32_t at_segment, at_slot; /* position of the pass */
        uint64_t opened_ns, began_ns,
                ended_ns; /* CLOCK_MONOTONIC times: creation of the reader; beginning of the latest
                             pass, which may be in progress; end of the latest pass that has ended.
                             0: there was none */
        uint64_t due_ns, held_since_ns,
                held_ns;  /* CLOCK_MONOTONIC times: of the next read that the rate permits; at which
                             a pause for other work began; until which this pause lasts at least */
        bool interrupted; /* the search for chunks ended after MAX_VISITED slots, and continues in
                             the next iteration */
        unsigned unreadable; /* number of consecutive chunks that could not be read */

        uint64_t read_bytes, chunks, failures, passes, last_pass_ms;
};

DEFINE_CLEANUP(struct scrub *, scrub_free);

int scrub_new(struct scrub **ret, struct volume *v, uint64_t now_ns)
{
        _cleanup_(scrub_freep) struct scrub *s = calloc(1, sizeof(*s));

        if (!s)
                return -ENOMEM;
        s->v = v;
        s->opened_ns = now_ns;
        list_init(&s->waiting);
        list_init(&s->verified);
        s->buf = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                      0);
        if (s->buf == MAP_FAILED) {
                s->buf = NULL;
                return -ENOMEM;
        }
        madvise(s->buf, BUFFER_BYTES, MADV_DONTDUMP);
        *ret = TAKE_PTR(s);
        return 0;
}

struct scrub *scrub_free(struct scrub *s)
{
        if (!s)
                return NULL;
        assert(!s->busy);
        if (s->buf)
                munmap(s->buf, BUFFER_BYTES);
        free(s);
        return NULL;
}

void scrub_set(struct scrub *s, const struct store_scrub *settings)
{
        s->settings = *settings;
        s->due_ns = 0; /* the delay that followed from the old rate no longer applies */
}

/* --- collecting windows --- */

/* Collects the next window from *segment and *slot on, pins its chunks, and advances *segment and
 * *slot. A window has up to `max` chunks of one segment within `room` bytes. A first chunk that is
 * longer than `room` is a window of its own, and sets s->alone, so that it is read in pieces.
 * Returns false if no chunk was found: up to `end_segment` or, with *interrupted set, in
 * MAX_VISITED slots. */
static bool collect(struct scrub *s, uint32_t *segment, uint32_t *slot, uint32_t end_segment,
                    uint64_t room, unsigned max, bool *interrupted)
{
        struct volume *v = s->v;
        unsigned visited = 0;

        *interrupted = false;
        s->n_items = 0;
        s->alone = false;
        for (; *segment < end_segment; (*segment)++, *slot = 0) {
                uint32_t slots =
                        v->segments[*segment]->fd < 0 ? 0 : slabs_slab_slots(v->slabs, *segment);

                for (; *slot < slots; (*slot)++) {
                        uint32_t i = slabs_owner(
                                v->slabs, (struct slab_slot){ .slab = *segment, .slot = *slot });
                        const struct chunk *c;
                        uint64_t offset, bytes;

                        if (++visited > MAX_VISITED) {
                                *interrupted = true;
                                return s->n_items > 0;
                        }
                        if (i == SLAB_NOBODY)
                                continue;
                        c = volume_chunk_at(v, i);
                        if ((c->flags & (CHUNK_LINKED | CHUNK_PENDING)) != CHUNK_LINKED ||
                            c->pins == CHUNK_PINS_MAX || sweep_is_dead(v, i))
                                continue;
                        offset = chunk_offset(v, c);
                        bytes = round_up(c->length, DISK_PAGE);
                        if (s->n_items == 0)
                                s->offset = offset;
                        else if (s->n_items == max || offset + bytes - s->offset > room ||
                                 offset - s->offset > s->bytes + GAP_BYTES)
                                return true;
                        s->segment = *segment;
                        s->bytes = offset + bytes - s->offset;
                        s->items[s->n_items++] = (struct item){
                                .chunk = i,
                                .offset = (uint32_t)(offset - s->offset),
                                .length = c->length,
                                .crc = c->crc,
                        };
                        chunk_pin(v, i);
                        s->alone = s->bytes > room;
                        if (s->alone) {
                                (*slot)++;
                                return true;
                        }
                }
                if (s->n_items > 0)
                        return true;
        }
        return false;
}

/* --- results of a window, and the ends of requests and of the pass --- */

/* Returns the counters of the request that the window belongs to, or NULL if it belongs to the
 * pass. */
static struct store_verified *found(struct scrub *s)
{
        return s->job ? &s->job->found : NULL;
}

/* Ends an item: unpins it and removes it from the window. `error` is 0, -EBADMSG for a wrong
 * checksum, or the device's error. */
static void settle(struct scrub *s, unsigned n, int error)
{
        struct volume *v = s->v;
        const struct item item = s->items[n];
        bool loss = error == -EBADMSG || volume_is_loss(error);

        s->items[n] = s->items[--s->n_items];
        if (error != 0 && !loss) {
                if (found(s))
                        found(s)->skipped++;
        } else if (sweep_is_kept(v, item.chunk)) {
                s->chunks++;
                if (found(s)) {
                        found(s)->chunks++;
                        found(s)->bytes += item.length;
                        found(s)->mismatched += error == -EBADMSG;
                        found(s)->unreadable += error != 0 && error != -EBADMSG;
                }
                if (error != 0) {
                        /* An error that a request has found does not count against the error
                         * budget. Otherwise the volume would be bypassed before all damage is
                         * found. */
                        bool counts = error == -EBADMSG && !s->job &&
                                      volume_was_whole(volume_chunk_at(v, item.chunk));

                        s->failures++;
                        chunk_condemn(v, item.chunk, error == -EBADMSG ? 0 : error);
                        if (counts)
                                volume_note_mismatch(v, "reading a chunk back");
                } else {
                        volume_chunk_at(v, item.chunk)->verified = true;
                }
        }
        chunk_unpin(v, item.chunk);
}

/* Unpins the items of the window without a result. */
static void unpin_items(struct scrub *s)
{
        while (s->n_items > 0)
                chunk_unpin(s->v, s->items[--s->n_items].chunk);
        s->alone = false;
}

static void end_job(struct scrub *s, int result)
{
        struct store_verify *job = TAKE_PTR(s->job);

        job->result = result;
        list_append(&s->verified, &job->node);
}

static void end_pass(struct scrub *s, uint64_t now_ns)
{
        s->passing = false;
        s->ended_ns = now_ns;
}

/* Ends the pass and all requests, because the volume stops or is bypassed. A read may still be in
 * flight at a hung device; its buffer stays allocated. */
static void give_up(struct scrub *s)
{
        if (!s->busy)
                unpin_items(s);
        if (s->job)
                end_job(s, s->v->stopping ? -ECANCELED : STORE_BYPASSED);
        for (struct list_node *n; (n = list_pop(&s->waiting));) {
                s->n_waiting--;
                s->job = container_of(n, struct store_verify, node);
                end_job(s, s->v->stopping ? -ECANCELED : STORE_BYPASSED);
        }
        s->passing = false;
}

/* --- reading --- */

static void advance(struct scrub *s, uint64_t now_ns);

static void submit(struct scrub *s, enum kio_op op, void (*complete)(struct kio_request *req))
{
        s->io.op = op;
        s->io.class = KIO_CLASS_BACKGROUND;
        s->io.complete = complete;
        list_init(&s->io.node);
        s->busy = true;
        s->v->operations++;
        kio_submit(s->v->io, &s->io, s->segment);
}

static void submit_read(struct scrub *s, uint64_t offset, uint64_t bytes, uint64_t now_ns,
                        void (*complete)(struct kio_request *req))
{
        s->io = (struct kio_request){
                .volume = s->v->kio_volume,
                .fd = s->v->segments[s->segment]->fd,
                .offset = offset,
                .buf = s->buf,
                .length = bytes,
        };
        s->read_bytes += bytes;
        s->held_since_ns = 0;
        if (!s->job && s->settings.rate)
                s->due_ns = MAX(s->due_ns, now_ns) + bytes * SECOND_NS / s->settings.rate;
        submit(s, KIO_READ, complete);
}

/* Has the volume's blocking-call thread run `call`, which checks the bytes that were read. */
static void submit_call(struct scrub *s, int (*call)(struct kio_request *req),
                        void (*complete)(struct kio_request *req))
{
        s->io = (struct kio_request){
                .volume = s->io.volume,
                .fd = s->io.fd,
                .offset = s->io.offset,
                .length = s->io.length,
                .call = call,
        };
        submit(s, KIO_CALL, complete);
}

/* Notes that an operation has completed. Returns true if the volume stops or is bypassed; the pass
 * and all requests have then been ended. */
static bool completed(struct scrub *s)
{
        s->busy = false;
        s->v->operations--;
        if (!s->v->stopping && !s->v->bypassed)
                return false;
        give_up(s);
        volume_progress(s->v);
        return true;
}

/* Drops the bytes that were read from the page cache: no client needs them, and a second read must
 * reach the device. */
static void forget_pages(const struct scrub *s)
{
        if (!s->v->dir->direct)
                posix_fadvise(s->io.fd, (off_t)s->io.offset, (off_t)s->io.length,
                              POSIX_FADV_DONTNEED);
}

/* Extends the chunk's checksum by a piece, and drops the piece from the page cache. Runs on the
 * blocking-call thread. */
static int check_piece(struct kio_request *req)
{
        struct scrub *s = container_of(req, struct scrub, io);

        s->crc = kio_crc32c_extend(s->crc, s->buf, MIN(req->length, s->items[0].length - s->done));
        forget_pages(s);
        return 0;
}

static void piece_done(struct kio_request *req)
{
        struct scrub *s = container_of(req, struct scrub, io);
        struct item *item = &s->items[0];
        int r = (int)req->result;

        if (completed(s))
                return;
        if (req->op == KIO_READ && r == 0) {
                s->unreadable = 0;
                submit_call(s, check_piece, piece_done);
                return;
        }
        if (r < 0) {
                /* also if the call with the checksum could not run */
                s->v->stats.read_errors += req->op == KIO_READ;
                s->done = 0;
                if (!volume_is_loss(r) || ++item->failed > 1) {
                        s->unreadable += volume_is_loss(r);
                        settle(s, 0, r);
                        volume_note_error(s->v, "reading a chunk back", r);
                }
        } else {
                s->done += req->length;
                if (s->done >= item->length) {
                        s->done = 0;
                        if (s->crc == item->crc)
                                settle(s, 0, 0);
                        else if (++item->failed > 1)
                                settle(s, 0, -EBADMSG);
                        else
                                s->v->stats.crc_rereads++;
                }
        }
        advance(s, clock_mono_ns());
        volume_progress(s->v);
}

static void read_piece(struct scrub *s, uint64_t now_ns)
{
        const struct item *item = &s->items[0];
        uint64_t left = round_up(item->length, DISK_PAGE) - s->done;
        uint64_t most = s->job ? BUFFER_BYTES : GENTLE_BYTES;

        if (s->done == 0)
                s->crc = 0;
        submit_read(s, s->offset + item->offset + s->done, MIN(left, most), now_ns, piece_done);
}

/* Computes the checksums of the window's chunks, and drops the window from the page cache. Runs on
 * the blocking-call thread. */
static int check_window(struct kio_request *req)
{
        struct scrub *s = container_of(req, struct scrub, io);

        for (unsigned i = 0; i < s->n_items; i++)
                s->items[i].found =
                        kio_crc32c((char *)s->buf + s->items[i].offset, s->items[i].length);
        forget_pages(s);
        return 0;
}

static void window_done(struct kio_request *req)
{
        struct scrub *s = container_of(req, struct scrub, io);
        int r = (int)req->result;

        if (completed(s))
                return;
        if (req->op == KIO_READ && r == 0) {
                s->unreadable = 0;
                submit_call(s, check_window, window_done);
                return;
        }
        s->v->stats.read_errors += req->op == KIO_READ;
        if (r < 0 && !volume_is_loss(r)) {
                while (s->n_items > 0)
                        settle(s, s->n_items - 1, r);
                volume_note_error(s->v, "reading chunks back", r);
        } else if (r == 0) {
                for (unsigned i = s->n_items; i-- > 0;)
                        if (s->items[i].found == s->items[i].crc)
                                settle(s, i, 0);
                for (unsigned i = 0; i < s->n_items; i++)
                        s->items[i].failed = 1;
                s->v->stats.crc_rereads += s->n_items;
        }
        s->alone = s->n_items > 0;
        s->done = 0;
        advance(s, clock_mono_ns());
        volume_progress(s->v);
}

static void read_window(struct scrub *s, uint64_t now_ns)
{
        s->done = 0;
        if (s->alone)
                read_piece(s, now_ns);
        else
                submit_read(s, s->offset, s->bytes, now_ns, window_done);
}

/* --- choosing the next read --- */

/* Starts the request's next window. Returns false if the request has ended. */
static bool advance_job(struct scrub *s, uint64_t now_ns)
{
        struct store_verify *job = s->job;
        struct volume *v = s->v;
        uint64_t room = MIN(job->max_bytes, (uint64_t)MAX_VERIFY_BYTES);
        uint32_t segment = job->segment, end;
        unsigned max;
        bool interrupted;

        job->segments = v->n_segments;
        if (segment >= v->n_segments) {
                job->next_segment = v->n_segments;
                job->next_slot = 0;
                end_job(s, 0);
                return false;
        }
        end = segment + 1;
        if (s->taken_chunks >= job->max_chunks || s->taken_bytes >= room) {
                end_job(s, 0);
                return false;
        }
        max = (unsigned)MIN((uint64_t)job->max_chunks - s->taken_chunks, (uint64_t)MAX_ITEMS);
        room = MIN(room - s->taken_bytes, (uint64_t)BUFFER_BYTES);
        segment = job->next_segment;
        if (!collect(s, &segment, &job->next_slot, end, room, max, &interrupted)) {
                job->next_segment = segment;
                end_job(s, 0);
                return false;
        }
        job->next_segment = segment;
        s->taken_chunks += s->n_items;
        s->taken_bytes += s->bytes;
        read_window(s, now_ns);
        return true;
}

/* Returns whether the pass must wait, because puts wait for a slot or requests wait for a ring.
 * Returns false after longest_hold_ns, so that the pass continues. */
static bool others_first(struct scrub *s, uint64_t now_ns)
{
        struct kio_stats io;

        kio_get_stats(s->v->io, &io);
        if (turns_is_empty(&s->v->slot_waiting) && io.queued == 0)
                return false;
        if (s->held_since_ns == 0)
                s->held_since_ns = now_ns;
        if (now_ns - s->held_since_ns >= longest_hold_ns)
                return false;
        s->held_ns = now_ns + hold_ns;
        return true;
}

static uint64_t next_pass_ns(const struct scrub *s)
{
        uint64_t interval = s->settings.interval_ms * (SECOND_NS / 1000);

        if (s->began_ns == 0)
                return s->opened_ns + MIN(interval, first_pass_ns);
        return MAX(s->began_ns + interval, s->ended_ns + rest_ns);
}

/* Returns whether the pass may read now. */
static bool pass_is_due(struct scrub *s, uint64_t now_ns)
{
        if (s->settings.rate == 0)
                return false;
        if (!s->passing && now_ns < next_pass_ns(s))
                return false;
        return now_ns >= s->due_ns && now_ns >= s->held_ns && !others_first(s, now_ns);
}

static void advance_pass(struct scrub *s, uint64_t now_ns)
{
        if (!s->passing) {
                s->passing = true;
                s->began_ns = now_ns;
                s->at_segment = s->at_slot = 0;
                s->unreadable = 0;
        }
        if (collect(s, &s->at_segment, &s->at_slot, s->v->n_segments, GENTLE_BYTES, MAX_ITEMS,
                    &s->interrupted)) {
                read_window(s, now_ns);
        } else if (!s->interrupted) {
                end_pass(s, now_ns);
                s->passes++;
                s->last_pass_ms = clock_unix_ms();
        }
}

/* Continues with the window or starts the next one. No operation may be in flight. */
static void advance(struct scrub *s, uint64_t now_ns)
{
        s->interrupted = false;
        if (s->unreadable >= MAX_UNREADABLE) {
                s->unreadable = 0;
                unpin_items(s);
                if (s->job)
                        end_job(s, -EIO);
                else
                        end_pass(s, now_ns);
        }
        if (s->n_items > 0) {
                /* if requests wait, the pass finishes its pinned chunks without waiting for its
                 * rate */
                if (s->job || !list_empty(&s->waiting) || pass_is_due(s, now_ns)) {
                        read_piece(s, now_ns);
                        return;
                }
                if (s->settings.rate > 0)
                        return;
                unpin_items(s);
        }
        while (s->job || !list_empty(&s->waiting)) {
                if (!s->job) {
                        s->job = container_of(list_pop(&s->waiting), struct store_verify, node);
                        s->n_waiting--;
                        s->taken_chunks = s->taken_bytes = 0;
                        s->unreadable = 0;
                }
                if (advance_job(s, now_ns))
                        return;
        }
        if (s->settings.rate == 0)
                s->passing = false;
        else if (pass_is_due(s, now_ns))
                advance_pass(s, now_ns);
}

void scrub_iterate(struct scrub *s, uint64_t now_ns)
{
        if (s->v->stopping || s->v->bypassed)
                give_up(s);
        else if (!s->busy)
                advance(s, now_ns);
}

uint64_t scrub_deadline_ns(const struct scrub *s)
{
        if (s->busy || s->v->stopping || s->v->bypassed || s->settings.rate == 0)
                return 0;
        if (s->interrupted)
                return 1;
        if (s->passing || s->n_items > 0)
                return MAX(MAX(s->due_ns, s->held_ns), UINT64_C(1));
        return MAX(next_pass_ns(s), s->held_ns);
}

/* --- verification on request, and statistics --- */

int scrub_verify(struct scrub *s, struct store_verify *req)
{
        if (s->v->stopping || s->v->bypassed)
                return STORE_BYPASSED;
        if (s->n_waiting >= MAX_VERIFIES)
                return STORE_FULL;
        req->found = (struct store_verified){ 0 };
        req->segments = s->v->n_segments;
        req->next_segment = req->segment;
        req->next_slot = req->slot;
        s->v->requests++;
        s->n_waiting++;
        list_append(&s->waiting, &req->node);
        return 0;
}

bool scrub_reap(struct scrub *s)
{
        struct list_node verified = LIST_INIT(verified), *n;
        bool any = false;

        list_splice(&verified, &s->verified);
        while ((n = list_pop(&verified))) {
                struct store_verify *req = container_of(n, struct store_verify, node);

                any = true;
                s->v->requests--;
                req->complete(req);
        }
        return any;
}

void scrub_get_stats(const struct scrub *s, struct store_stats *ret)
{
        ret->scrub_bytes += s->read_bytes;
        ret->scrub_chunks += s->chunks;
        ret->scrub_failures += s->failures;
        ret->scrub_passes += s->passes;
        ret->scrub_last_pass_ms = MAX(ret->scrub_last_pass_ms, s->last_pass_ms);
        ret->scrub_segments_done = s->passing ? s->at_segment : 0;
        ret->scrub_segments = s->passing ? s->v->n_segments : 0;
        ret->scrub_pinned = s->n_items;
}
