/* SPDX-License-Identifier: Apache-2.0 */
/* Creates the file of RAW and the memory of its clients, and chooses the I/O method. Every short
 * read is an error: reads beyond the end of a file that was truncated during the measurement
 * would take almost no time. */
#include "raw.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "checked.h"
#include "human.h"
#include "units.h"

enum { ALIGN = 4096 };

int raw_check_io(struct raw_client *c, uint64_t block, bool write, int64_t got)
{
        struct raw *raw = c->raw;

        if (got == (int64_t)raw->stride)
                return 0;
        if (got < 0)
                return profile_fail(c->profile, "%s: %s block %" PRIu64 ": %s", raw->path,
                                    write ? "writing" : "reading", block, strerror((int)-got));
        return profile_fail(c->profile,
                            "%s: %s block %" PRIu64 " ended after %" PRId64 " of %" PRIu64
                            " bytes at offset %" PRIu64 "%s",
                            raw->path, write ? "writing" : "reading", block, got, raw->stride,
                            raw_offset(raw, block, c->profile->job->n_blocks),
                            write ? "" : "; was the file truncated?");
}

static void client_free(void *userdata)
{
        struct raw_client *c = userdata;

        if (c->ring)
                raw_uring_free(c);
        if (c->slots)
                munmap(c->slots, c->n_slots * c->raw->stride);
        free(c);
}

static int client_new(void *self, struct profile *p, void **ret)
{
        struct raw *raw = self;
        struct raw_client *c = calloc(1, sizeof(*c));
        void *memory;

        if (!c)
                return profile_fail(p, "out of memory");
        *ret = c;
        c->raw = raw;
        c->profile = p;
        c->depth = raw->side.depth;
        c->n_slots = MAX(MAX(raw->side.window_bytes / raw->stride, (uint64_t)1), c->depth);
        memory = mmap(NULL, c->n_slots * raw->stride, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
                return profile_fail(p, "out of memory");
        c->slots = memory;
        (void)madvise(memory, c->n_slots * raw->stride, MADV_NOHUGEPAGE);
        for (uint64_t i = 0; i < c->n_slots; i++) {
                uint8_t *slot = c->slots + i * raw->stride;

                content_fill(&p->content, slot);
                memset(slot + p->job->io_size, 0, raw->stride - p->job->io_size);
        }
        return raw->uring ? raw_uring_new(c) : 0;
}

static int client_move(void *userdata, const struct profile_work *work)
{
        struct raw_client *c = userdata;

        return c->raw->uring ? raw_uring_move(c, work) : raw_posix_move(c, work);
}

static int client_check(void *userdata, const struct profile_work *work)
{
        struct raw_client *c = userdata;
        struct profile *p = c->profile;
        uint64_t io_size = p->job->io_size;

        for (size_t i = 0; i < work->n_pieces; i++) {
                const struct profile_piece *piece = &work->pieces[i];

                for (uint32_t k = 0; k < piece->count; k++) {
                        uint8_t *slot = c->slots + (piece->at + k) * c->raw->stride;
                        size_t first = 0;
                        uint64_t wrong = content_check(&p->content, slot, piece->first + k,
                                                       work->generation, &first);

                        if (wrong > 0)
                                return profile_fail(
                                        p,
                                        "%s: block %" PRIu64 " is wrong: %" PRIu64 " of %" PRIu64
                                        " bytes differ, the first at offset %zu",
                                        c->raw->path, piece->first + k, wrong, io_size, first);
                        work->tally->bytes_verified += io_size;
                        /* Stamp an invalid generation, so that a valid one after the read proves
                         * that the block was read. */
                        content_stamp(&p->content, slot, piece->first + k, UINT64_MAX);
                }
                if (profile_should_stop(p))
                        return -ECANCELED;
        }
        return 0;
}

/* Checks that the disk has room for the file, so that a full disk is reported before the
 * measurement. */
static int check_room(struct raw *raw, struct profile *p, uint64_t bytes)
{
        struct statvfs fs;
        struct stat st;
        uint64_t have;
        char need_text[HUMAN_BYTES], have_text[HUMAN_BYTES];

        if (fstatvfs(raw->fd, &fs) < 0 || fstat(raw->fd, &st) < 0)
                return profile_fail(p, "%s: %s", raw->path, strerror(errno));
        have = (uint64_t)fs.f_bavail * fs.f_frsize + (uint64_t)st.st_blocks * 512;
        if (have >= bytes)
                return 0;
        units_bytes(bytes, need_text);
        units_bytes(have, have_text);
        return profile_fail(
                p, "%s: RAW needs %s, and %s are free: name another directory with --filepath",
                raw->path, need_text, have_text);
}

static int open_file(struct raw *raw, struct profile *p)
{
        const struct raw_options *o = &raw->options;
        int flags = O_RDWR | O_CLOEXEC, modes[] = { O_DIRECT, 0 };
        struct stat st;

        for (unsigned i = 0; raw->fd < 0 && i < ARRAY_SIZE(modes); i++) {
                if (o->file) {
                        snprintf(raw->path, sizeof(raw->path), "%s/%s", o->directory, o->file);
                        raw->fd = open(raw->path, flags | modes[i] | O_CREAT | O_NOFOLLOW, 0600);
                } else {
                        snprintf(raw->path, sizeof(raw->path), "%s/(file without a name)",
                                 o->directory);
                        raw->fd = open(o->directory, flags | modes[i] | O_TMPFILE, 0600);
                        if (raw->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
                                char name[600];

                                snprintf(name, sizeof(name), "%s/kvcache-bench-raw-XXXXXX",
                                         o->directory);
                                raw->fd = mkostemp(name, O_CLOEXEC | modes[i]);
                                if (raw->fd >= 0)
                                        unlink(name);
                        }
                }
                raw->direct = modes[i] != 0;
                if (raw->fd < 0 && errno != EINVAL)
                        break;
        }
        if (raw->fd < 0)
                return profile_fail(p, "%s: %s", raw->path, strerror(errno));
        if (fstat(raw->fd, &st) < 0 || !S_ISREG(st.st_mode))
                return profile_fail(p,
                                    "%s is not a regular file: remove it, or name another "
                                    "directory with --filepath",
                                    raw->path);
        if (!raw->direct)
                snprintf(raw->note, sizeof(raw->note),
                         "no O_DIRECT on %s: RAW goes through the page cache", o->directory);
        return 0;
}

/* Chooses a step near the golden section of n without a common factor with n: such steps, modulo
 * n, visit every block once, and consecutive positions are far apart. */
static uint64_t choose_spread(uint64_t n)
{
        uint64_t spread = MAX((uint64_t)((double)n * 0.6180339887), (uint64_t)1);

        for (;; spread++) {
                uint64_t a = n, b = spread;

                while (b != 0) {
                        uint64_t rest = a % b;

                        a = b;
                        b = rest;
                }
                if (a == 1)
                        return spread;
        }
}

int raw_open(struct raw *raw, struct profile *p, const struct raw_options *options)
{
        const struct profile_job *job = p->job;
        struct stat st;
        uint64_t bytes;
        char why[128];
        int r;

        *raw = (struct raw){ .options = *options, .fd = -1 };
        raw->stride = round_up(job->io_size, ALIGN);
        raw->spread = choose_spread(job->n_blocks);
        if (!checked_mul(raw->stride, job->n_blocks, &bytes) || bytes > INT64_MAX)
                return profile_fail(
                        p,
                        "the workload is too large for RAW's file; reduce --isl or --num_requests");
        r = open_file(raw, p);
        if (r == 0)
                r = check_room(raw, p, bytes);
        if (r < 0)
                return r;
        if (fstat(raw->fd, &st) < 0)
                return profile_fail(p, "%s: %s", raw->path, strerror(errno));
        raw->fresh = st.st_size == 0;
        if (raw->fresh || job->write) {
                r = posix_fallocate(raw->fd, 0, (off_t)bytes);
                if (r != 0)
                        return profile_fail(p, "%s: space cannot be allocated: %s", raw->path,
                                            strerror(r));
        }

        raw->uring = options->io != RAW_POSIX;
        if (raw->uring && (r = raw_uring_probe(why, sizeof(why))) < 0) {
                if (options->io == RAW_URING)
                        return profile_fail(p, "--io uring: %s", why);
                raw->uring = false;
                snprintf(raw->note + strlen(raw->note), sizeof(raw->note) - strlen(raw->note),
                         "%sRAW uses POSIX calls: %s", *raw->note ? "; " : "", why);
        }
        raw->side = (struct profile_side){
                .name = "RAW",
                .self = raw,
                .window_bytes = options->window_bytes
                                        ? options->window_bytes
                                        : (uint64_t)PROFILE_WINDOW_BYTES / job->clients,
                .depth = options->depth ? options->depth
                                        : MAX((uint64_t)PROFILE_DEPTH / job->clients, (uint64_t)1),
                .client_new = client_new,
                .client_free = client_free,
                .move = client_move,
                .check = client_check,
        };
        /* Limits the depth, so that large blocks do not need too much memory for slots. */
        raw->side.depth =
                MAX(MIN(raw->side.depth, raw->side.window_bytes / raw->stride), (uint64_t)1);
        return 0;
}

void raw_close(struct raw *raw)
{
        if (raw->fd >= 0)
                close(raw->fd);
        raw->fd = -1;
}
