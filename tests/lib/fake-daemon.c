/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon in a thread, for tests of the client library. See fake-daemon.h.
 *
 * One thread polls the listener, the sessions and an eventfd. Everything happens under one lock,
 * and every change is announced by one condition variable, so tests wait for what they want to see
 * instead of sleeping. */
#include "fake-daemon.h"
#include "timeout.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "checked.h"
#include "fdpass.h"
#include "fingerprint.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define CHECK(x)                                                                                   \
        do {                                                                                       \
                if (!(x)) {                                                                        \
                        fprintf(stderr, "fake daemon: %s: %m\n", #x);                              \
                        abort();                                                                   \
                }                                                                                  \
        } while (0)

/* Opens the same file again: read-only, and with its own lock. */
static int reopen(int fd, int flags)
{
        char path[64];
        int r;

        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        r = open(path, flags | O_CLOEXEC);
        CHECK(r >= 0);
        return r;
}

void fake_daemon_lock(struct fake_daemon *d)
{
        pthread_mutex_lock(&d->lock);
}

void fake_daemon_unlock(struct fake_daemon *d)
{
        pthread_mutex_unlock(&d->lock);
}

/* --- replies --- */

static void send_reply(struct fake_daemon *d, unsigned session, const struct wire_hdr *request,
                       void *reply, size_t bytes, const int *fds, unsigned n_fds)
{
        struct wire_reply *r = reply;

        r->hdr.len = (uint32_t)bytes;
        r->hdr.op = request->op | WIRE_REPLY;
        r->hdr.tag = request->tag;
        if (d->o.no_fd && request->op != WIRE_HELLO)
                n_fds = 0;
        if (d->o.stray_fd && n_fds == 0) {
                fds = &d->live_fd;
                n_fds = 1;
        }
        if (d->o.reply)
                bytes = d->o.reply(d, request, r, bytes);
        if (bytes > 0)
                (void)fdpass_send(d->sessions[session].sock, reply, bytes, fds, n_fds);
}

static void refuse(struct fake_daemon *d, unsigned session, const struct wire_hdr *request,
                   unsigned status, const char *text)
{
        _Alignas(8) char buf[2048] = { 0 };
        struct wire_reply *r = (struct wire_reply *)buf;

        r->status = (uint16_t)status;
        memcpy(buf + sizeof(*r), text, strlen(text));
        send_reply(d, session, request, buf, sizeof(*r) + strlen(text), NULL, 0);
}

/* --- chunks --- */

static int chunk_find(const struct fake_daemon *d, uint32_t ns, const struct key *key)
{
        for (unsigned i = 0; i < d->n_chunks; i++)
                if (d->chunks[i].namespace_id == ns && key_equal(&d->chunks[i].key, key))
                        return (int)i;
        return -1;
}

static void chunk_drop(struct fake_daemon *d, int i)
{
        d->chunks[i] = d->chunks[--d->n_chunks];
}

static struct wire_lease lease_new(struct fake_daemon *d, unsigned session)
{
        for (unsigned i = 0; i < FAKE_LEASES; i++) {
                if (d->leases[i].used)
                        continue;
                d->leases[i].used = true;
                d->leases[i].bytes = 0;
                d->leases[i].session = session;
                d->leases[i].generation++;
                d->leases_held++;
                return (struct wire_lease){ i, d->leases[i].generation };
        }
        abort();
}

static uint64_t leased_bytes(const struct fake_daemon *d, unsigned session)
{
        uint64_t bytes = 0;

        for (unsigned i = 0; i < FAKE_LEASES; i++)
                if (d->leases[i].used && d->leases[i].session == session)
                        bytes += d->leases[i].bytes;
        return bytes;
}

static unsigned leases_end(struct fake_daemon *d, unsigned session, const struct wire_lease *leases,
                           unsigned n)
{
        unsigned stale = 0;

        for (unsigned i = 0; i < n; i++) {
                uint32_t id = leases[i].id;

                if (id >= FAKE_LEASES || !d->leases[id].used || d->leases[id].session != session ||
                    d->leases[id].generation != leases[i].generation) {
                        stale++;
                        continue;
                }
                d->leases[id].used = false;
                d->leases_held--;
        }
        d->releases += n;
        d->stale_releases += stale;
        return stale;
}

/* Returns the address of [offset, offset + length) in the staging area or a region, or NULL if
 * there is no such place. */
static uint8_t *place_of(struct fake_session *s, uint32_t region, uint64_t offset, uint64_t length)
{
        if (length == 0)
                return NULL;
        if (region == WIRE_REGION_STAGING)
                return s->staging && range_within(offset, length, s->staging_bytes)
                               ? s->staging + offset
                               : NULL;
        for (unsigned i = 0; i < FAKE_REGIONS; i++)
                if (s->regions[i].id == region)
                        return range_within(offset, length, s->regions[i].bytes)
                                       ? s->regions[i].base + offset
                                       : NULL;
        return NULL;
}

/* Copies at most `length` bytes between the pool and the places of an entry. Returns false if a
 * place is invalid. */
static bool copy_bytes(struct fake_session *s, const struct wire_batch *b, uint32_t region,
                       uint64_t offset, uint32_t named, uint8_t *pool, uint64_t length,
                       bool to_pool)
{
        struct wire_piece whole = { offset, named, region };
        const struct wire_piece *p = &whole;
        unsigned n = 1;

        if (b->hdr.flags & WIRE_F_PIECES) {
                p = wire_batch_pieces(b) + offset;
                n = region;
        }
        for (unsigned i = 0; i < n; i++)
                if (!place_of(s, p[i].region, p[i].offset, p[i].length))
                        return false;
        for (unsigned i = 0; i < n && length > 0; i++) {
                uint8_t *place = place_of(s, p[i].region, p[i].offset, p[i].length);
                uint64_t part = MIN((uint64_t)p[i].length, length);

                memcpy(to_pool ? pool : place, to_pool ? place : pool, part);
                pool += part;
                length -= part;
        }
        return true;
}

static bool is_file(const struct fake_session *s, uint32_t region)
{
        for (unsigned i = 0; i < FAKE_REGIONS; i++)
                if (region != 0 && s->regions[i].id == region)
                        return s->regions[i].is_file;
        return false;
}

static void put_one(struct fake_daemon *d, unsigned session, const struct wire_batch *b,
                    const struct wire_put *p, struct wire_put_result *r)
{
        struct fake_session *s = &d->sessions[session];
        int i = chunk_find(d, b->namespace_id, &p->key);

        if (key_is_root(&p->key) ||
            !copy_bytes(s, b, p->region, p->offset, p->length, NULL, 0, true)) {
                r->status = WIRE_INVALID;
                return;
        }
        if (!(b->hdr.flags & WIRE_F_PIECES) && is_file(s, p->region)) {
                CHECK(p->offset % 4096 == 0);
                d->file_puts++;
                r->status = d->file_put_status;
                if (r->status != WIRE_OK)
                        return;
        }
        if (i < 0) {
                if (d->pool_used + p->length > d->o.pool_bytes || d->n_chunks == FAKE_CHUNKS) {
                        r->status = WIRE_BUSY;
                        return;
                }
                i = (int)d->n_chunks++;
                d->chunks[i].namespace_id = b->namespace_id;
                d->chunks[i].key = p->key;
                d->chunks[i].offset = d->pool_used;
                d->chunks[i].length = p->length;
                (void)copy_bytes(s, b, p->region, p->offset, p->length, d->pool + d->pool_used,
                                 p->length, true);
                d->pool_used += p->length;
        } else {
                r->status = WIRE_EXISTS_ALREADY;
        }
        r->length = d->chunks[i].length;
        if (b->hdr.flags & WIRE_F_LEASE) {
                r->flags = WIRE_RESULT_LEASED;
                r->lease = lease_new(d, session);
                r->offset = d->chunks[i].offset;
        }
}

/* The files keep their names, by which cuFile opens them again. */
static void data_file_path(const struct fake_daemon *d, unsigned number, char ret[static 160])
{
        snprintf(ret, 160, "%s.data%u", d->path, number);
}

/* Writes the chunk into a file and lends it from there. */
static void lend_one(struct fake_daemon *d, int chunk, struct wire_get_result *r)
{
        uint32_t length = d->chunks[chunk].length;
        uint64_t slot = round_up((uint64_t)length, (uint64_t)4096);

        if (d->n_files == 0 || d->file_free < slot ||
            (d->o.lend_per_file > 0 && d->lent_of_file == d->o.lend_per_file)) {
                char path[160];

                CHECK(d->n_files < FAKE_FILES);
                data_file_path(d, d->n_files, path);
                unlink(path);
                d->files[d->n_files] = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
                CHECK(d->files[d->n_files] >= 0 &&
                      ftruncate(d->files[d->n_files], FAKE_FILE_BYTES) == 0);
                d->n_files++;
                d->file_free = FAKE_FILE_BYTES;
                d->lent_of_file = 0;
        }
        d->file_free -= slot;
        d->lent_of_file++;
        d->loans_held++;
        CHECK(pwrite(d->files[d->n_files - 1], d->pool + d->chunks[chunk].offset, length,
                     (off_t)d->file_free) == (ssize_t)length);
        r->tier = WIRE_TIER_DISK;
        r->flags = WIRE_RESULT_LENT;
        r->length = r->chunk_length = length;
        r->lease = (struct wire_lease){ ++d->loans_ever, 1 };
        r->offset = d->file_free;
        r->file = d->n_files;
}

static void do_lent_file(struct fake_daemon *d, unsigned session, const struct wire_lent_file *m)
{
        struct wire_reply reply = { .value64 = FAKE_FILE_BYTES };
        int fd;

        if (d->file_is_gone || m->file == 0 || m->file > d->n_files) {
                refuse(d, session, &m->hdr, WIRE_STALE, "it is in use no more");
                return;
        }
        fd = reopen(d->files[m->file - 1], O_RDONLY | (d->o.lend_indirect ? 0 : O_DIRECT));
        CHECK(fd >= 0);
        send_reply(d, session, &m->hdr, &reply, sizeof(reply), &fd, 1);
        close(fd);
}

static void get_one(struct fake_daemon *d, unsigned session, const struct wire_batch *b,
                    const struct wire_get *g, struct wire_get_result *r)
{
        struct fake_session *s = &d->sessions[session];
        int i = chunk_find(d, b->namespace_id, &g->key);
        uint32_t length;

        if (i < 0) {
                r->status = WIRE_MISS;
                return;
        }
        length = g->range_length ? g->range_length
                                 : d->chunks[i].length - MIN(g->range_offset, d->chunks[i].length);
        r->chunk_length = d->chunks[i].length;
        if (length == 0 || !range_within(g->range_offset, length, d->chunks[i].length)) {
                r->status = WIRE_INVALID;
                return;
        }
        r->tier = WIRE_TIER_MEMORY;
        r->length = length;
        if ((b->hdr.flags & WIRE_F_LEND) && d->not_lent == WIRE_LEND_NONE &&
            (unsigned)i >= d->o.in_memory) {
                lend_one(d, i, r);
                return;
        }
        if (d->o.lends)
                r->tier = WIRE_TIER_DISK;
        if (b->hdr.flags & WIRE_F_LEND)
                r->file = d->not_lent;
        if (!(b->hdr.flags & WIRE_F_INTO) ||
            ((b->hdr.flags & WIRE_F_LEASE) && length <= g->into_length &&
             (unsigned)i < d->o.in_memory)) {
                if (d->o.lease_bytes > 0 && leased_bytes(d, session) + length > d->o.lease_bytes) {
                        *r = (struct wire_get_result){ .status = WIRE_QUOTA };
                        return;
                }
                r->flags = WIRE_RESULT_LEASED;
                r->lease = lease_new(d, session);
                d->leases[r->lease.id].bytes = length;
                d->most_leased = MAX(d->most_leased, leased_bytes(d, session));
                r->offset = d->chunks[i].offset + g->range_offset + d->o.lease_lie;
                return;
        }
        if (length > g->into_length)
                r->status = WIRE_TOO_LARGE;
        else if (!copy_bytes(s, b, g->into_region, g->into_offset, g->into_length,
                             d->pool + d->chunks[i].offset + g->range_offset, length, false))
                r->status = WIRE_INVALID;
}

static void do_batch(struct fake_daemon *d, unsigned session, const struct wire_batch *b)
{
        static _Alignas(8) uint8_t buf[WIRE_MAX_MESSAGE];
        size_t entry = wire_entry_bytes(b->hdr.op), result = wire_result_bytes(b->hdr.op);
        struct wire_reply *reply = (struct wire_reply *)buf;
        uint8_t *results = buf + sizeof(*reply);
        bool run = true;

        memset(buf, 0, sizeof(*reply) + result * b->count);
        reply->value = leases_end(d, session, wire_batch_releases(b), b->releases);
        if (b->hdr.op != WIRE_RELEASE && b->hdr.op != WIRE_GIVE_BACK &&
            (b->namespace_id == 0 || b->namespace_id > d->n_namespaces)) {
                refuse(d, session, &b->hdr, WIRE_NO_NAMESPACE, "no such namespace");
                return;
        }
        if (b->hdr.flags & WIRE_F_NO_REPLY)
                return;
        reply->count = result > 0 ? b->count : 0;
        if (b->hdr.op == WIRE_MATCH)
                reply->value = 0;
        for (unsigned i = 0; i < b->count; i++) {
                const void *e = (const uint8_t *)(b + 1) + i * entry;
                uint8_t *r = results + i * result;
                int chunk = wire_op_has_keys(b->hdr.op) ? chunk_find(d, b->namespace_id, e) : -1;
                struct wire_stat_result *stat = (struct wire_stat_result *)r;

                switch (b->hdr.op) {
                case WIRE_PUT:
                        put_one(d, session, b, e, (struct wire_put_result *)r);
                        break;
                case WIRE_GET:
                        get_one(d, session, b, e, (struct wire_get_result *)r);
                        break;
                case WIRE_EXISTS:
                        *r = chunk >= 0 ? WIRE_TIER_MEMORY : 0;
                        break;
                case WIRE_MATCH:
                        run = run && chunk >= 0;
                        reply->value += run;
                        break;
                case WIRE_TOUCH:
                case WIRE_HINT:
                        if (i == 0) {
                                d->hinted = *(const struct key *)e;
                                d->hint = b->hint;
                                if (b->hdr.op == WIRE_HINT)
                                        d->hint_parents[d->n_hints++ % FAKE_HINTS] = b->parent;
                        }
                        *(uint16_t *)r = chunk >= 0 ? WIRE_OK : WIRE_MISS;
                        break;
                case WIRE_PREFETCH:
                case WIRE_EVICT:
                        *(uint16_t *)r = chunk >= 0 ? WIRE_OK : WIRE_MISS;
                        if (b->hdr.op == WIRE_EVICT && chunk >= 0)
                                chunk_drop(d, chunk);
                        break;
                case WIRE_GIVE_BACK:
                        *(uint16_t *)r = d->lent_is_stale ? WIRE_STALE : WIRE_OK;
                        d->loans_held--;
                        break;
                case WIRE_STAT:
                        stat->status = chunk >= 0 ? WIRE_OK : WIRE_MISS;
                        if (chunk >= 0) {
                                stat->tiers = WIRE_TIER_MEMORY;
                                stat->length = d->chunks[chunk].length;
                                stat->crc32c = 0x12345678;
                                stat->leases = 3;
                                stat->created_ms = 1700000000000;
                                stat->memory = (struct wire_standing){ 7, -256, WIRE_CLASS_FINAL,
                                                                       WIRE_STANDING_NEXT };
                        }
                        break;
                }
        }
        send_reply(d, session, &b->hdr, buf, sizeof(*reply) + result * b->count, NULL, 0);
}

static void set_lifetime(struct fake_daemon *d, unsigned session, const struct wire_namespace *n,
                         const char *name)
{
        struct wire_reply reply = { .value = n->lifetime_s };

        for (unsigned i = 0; i < d->n_namespaces; i++)
                if (strcmp(d->namespaces[i].name, name) == 0) {
                        d->namespaces[i].lifetime_s = n->lifetime_s;
                        send_reply(d, session, &n->hdr, &reply, sizeof(reply), NULL, 0);
                        return;
                }
        refuse(d, session, &n->hdr, WIRE_NO_NAMESPACE, "there is no such namespace");
}

static void do_namespace(struct fake_daemon *d, unsigned session, const struct wire_namespace *n)
{
        struct wire_reply reply = { 0 };
        char name[256] = "", fingerprint[4097] = "", text[512];
        unsigned i;

        memcpy(name, n + 1, n->name_length);
        if (n->hdr.flags & WIRE_F_SET) {
                set_lifetime(d, session, n, name);
                return;
        }
        memcpy(fingerprint, (const char *)(n + 1) + n->name_length, n->fingerprint_length);
        for (i = 0; i < d->n_namespaces && strcmp(d->namespaces[i].name, name) != 0; i++)
                ;
        if (i == d->n_namespaces) {
                if (n->hdr.flags & WIRE_F_ATTACH) {
                        refuse(d, session, &n->hdr, WIRE_NO_NAMESPACE,
                               "there is no such namespace");
                        return;
                }
                CHECK(i < ARRAY_SIZE(d->namespaces));
                strcpy(d->namespaces[i].name, name);
                strcpy(d->namespaces[i].fingerprint, fingerprint);
                d->namespaces[i].lifetime_s = n->lifetime_s;
                d->n_namespaces++;
        } else if (!((n->hdr.flags & WIRE_F_ATTACH) && n->fingerprint_length == 0) &&
                   wire_fingerprint_diff(d->namespaces[i].fingerprint,
                                         strlen(d->namespaces[i].fingerprint), fingerprint,
                                         strlen(fingerprint), text, sizeof(text))) {
                refuse(d, session, &n->hdr, WIRE_MISMATCH, text);
                return;
        }
        reply.value = i + 1;
        send_reply(d, session, &n->hdr, &reply, sizeof(reply), NULL, 0);
}

static void do_hello(struct fake_daemon *d, unsigned session, const struct wire_hdr *request)
{
        struct {
                struct wire_reply reply;
                struct wire_hello_result result;
        } m = { 0 };
        int n = d->o.hello_fds == 0 ? 2 : MAX(d->o.hello_fds, 0), fds[8];

        if (d->o.silent)
                return;
        if (d->o.hello_status) {
                refuse(d, session, request, d->o.hello_status, "not \x1b[31myou");
                return;
        }
        m.reply.count = 1;
        m.result.version = d->o.version ? d->o.version : 1;
        m.result.max_keys = (uint16_t)d->o.max_keys;
        m.result.max_inflight = d->o.max_inflight;
        m.result.max_message = WIRE_MAX_MESSAGE;
        m.result.spin_us = d->o.spin_us;
        m.result.pool_bytes = d->o.pool_bytes + d->o.pool_lie;
        m.result.max_chunk = d->o.max_chunk;
        m.result.staging_max = d->o.staging_max;
        m.result.features =
                (d->o.lookup ? WIRE_FEATURE_LOOKUP : 0) | (d->o.tally ? WIRE_FEATURE_TALLY : 0) |
                (d->o.cancel ? WIRE_FEATURE_CANCEL : 0) |
                (d->o.lends ? WIRE_FEATURE_LEND | WIRE_FEATURE_LENDS : 0) |
                (d->o.takes_files ? WIRE_FEATURE_FILES : 0) |
                (d->o.lease_into ? WIRE_FEATURE_LEASE_INTO : 0) |
                (d->o.no_reply ? WIRE_FEATURE_NO_REPLY : 0) |
                (d->o.hint_parent ? WIRE_FEATURE_HINT_PARENT : 0) |
                (d->o.is_old ? 0
                             : WIRE_FEATURE_PREFETCH | WIRE_FEATURE_NAMESPACES | WIRE_FEATURE_HINT |
                                       WIRE_FEATURE_PIN | WIRE_FEATURE_COST | WIRE_FEATURE_BENCH |
                                       WIRE_FEATURE_RECORD | WIRE_FEATURE_RELOAD |
                                       WIRE_FEATURE_LIFETIME | WIRE_FEATURE_REMOTE);
        memcpy(m.result.instance, d->instance, sizeof(d->instance));
        d->sessions[session].hello = true;

        for (int i = 0; i < n; i++)
                fds[i] = i == 0 ? reopen(d->pool_fd, O_RDONLY) : reopen(d->live_fd, O_RDONLY);
        if (n <= WIRE_MAX_FDS) {
                send_reply(d, session, request, &m, sizeof(m) - d->o.hello_cut, fds, (unsigned)n);
        } else {
                /* Send more descriptors than fdpass_send() would. */
                struct iovec iov = { .iov_base = &m, .iov_len = sizeof(m) };
                union {
                        struct cmsghdr align;
                        char bytes[CMSG_SPACE(sizeof(fds))];
                } control = { 0 };
                struct msghdr h = {
                        .msg_iov = &iov,
                        .msg_iovlen = 1,
                        .msg_control = &control,
                        .msg_controllen = CMSG_SPACE(n * sizeof(int)),
                };
                struct cmsghdr *c = CMSG_FIRSTHDR(&h);

                m.reply.hdr =
                        (struct wire_hdr){ sizeof(m), WIRE_HELLO | WIRE_REPLY, 0, request->tag };
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(n * sizeof(int));
                memcpy(CMSG_DATA(c), fds, n * sizeof(int));
                CHECK(sendmsg(d->sessions[session].sock, &h, MSG_NOSIGNAL) > 0);
        }
        for (int i = 0; i < n; i++)
                close(fds[i]);
}

static void do_staging(struct fake_daemon *d, unsigned session, const struct wire_staging *l)
{
        struct fake_session *s = &d->sessions[session];
        uint64_t bytes = l->bytes ? round_up(l->bytes, 4096) : d->o.staging_max;
        struct wire_reply reply = { .value64 = bytes };
        int fd;

        if (s->staging) {
                refuse(d, session, &l->hdr, WIRE_INVALID, "there is a staging area already");
                return;
        }
        if (bytes > d->o.staging_max) {
                refuse(d, session, &l->hdr, WIRE_TOO_LARGE, "too long a staging area");
                return;
        }
        fd = memfd_create("fake-staging area", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
        s->staging = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(s->staging != MAP_FAILED);
        s->staging_bytes = bytes;
        if (d->o.staging_short)
                CHECK(ftruncate(fd, 4096) == 0);
        if (!d->o.staging_unsealed)
                CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
        send_reply(d, session, &l->hdr, &reply, sizeof(reply), &fd, 1);
        close(fd);
}

static void region_end(struct fake_daemon *d, struct fake_session *s, unsigned i)
{
        munmap(s->regions[i].base, s->regions[i].bytes);
        s->regions[i].id = 0;
        d->regions--;
}

static void do_register(struct fake_daemon *d, unsigned session, const struct wire_register *msg,
                        int fd)
{
        struct fake_session *s = &d->sessions[session];
        struct {
                struct wire_reply reply;
                uint64_t more;
        } out = { .reply = { .value64 = msg->bytes } };
        unsigned i = 0;

        if (d->o.refuse_register) {
                refuse(d, session, &msg->hdr, WIRE_INVALID, d->o.refuse_register);
                return;
        }
        while (i < FAKE_REGIONS && s->regions[i].id != 0)
                i++;
        CHECK(i < FAKE_REGIONS);
        s->regions[i].base =
                mmap(NULL, msg->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)msg->offset);
        CHECK(d->o.takes_files || !(msg->hdr.flags & WIRE_F_FILE));
        CHECK(s->regions[i].base != MAP_FAILED);
        s->regions[i].bytes = msg->bytes;
        s->regions[i].is_file = msg->hdr.flags & WIRE_F_FILE;
        d->files_registered += s->regions[i].is_file;
        s->regions[i].id = 100 + ++d->last_region;
        d->regions++;
        out.reply.value = d->o.region_lie ? d->o.region_lie - 1 : s->regions[i].id;
        send_reply(d, session, &msg->hdr, &out,
                   d->o.register_long ? sizeof(out) : sizeof(out.reply), NULL, 0);
}

static void do_unregister(struct fake_daemon *d, unsigned session,
                          const struct wire_unregister *msg)
{
        struct fake_session *s = &d->sessions[session];
        struct wire_reply reply = { 0 };

        for (unsigned i = 0; i < FAKE_REGIONS; i++)
                if (msg->region != 0 && s->regions[i].id == msg->region) {
                        region_end(d, s, i);
                        send_reply(d, session, &msg->hdr, &reply, sizeof(reply), NULL, 0);
                        return;
                }
        refuse(d, session, &msg->hdr, WIRE_INVALID, "no such region");
}

static void do_list(struct fake_daemon *d, unsigned session, const struct wire_list *l)
{
        static _Alignas(8) uint8_t buf[WIRE_MAX_MESSAGE];
        struct wire_reply *reply = (struct wire_reply *)buf;
        struct wire_list_result *r = (struct wire_list_result *)(reply + 1);
        uint64_t i;

        memset(reply, 0, sizeof(*reply));
        for (i = l->cursor; i < d->n_chunks && reply->count < l->max; i++)
                if (d->chunks[i].namespace_id == l->namespace_id)
                        r[reply->count++] = (struct wire_list_result){
                                .key = d->chunks[i].key,
                                .length = d->chunks[i].length,
                                .tiers = WIRE_TIER_DISK,
                        };
        reply->value64 = i < d->n_chunks ? i : 0;
        send_reply(d, session, &l->hdr, buf, sizeof(*reply) + reply->count * sizeof(*r), NULL, 0);
}

/* Answers as for one volume of three segments with two chunks of 10 bytes each, the second of which
 * is bad. */
static void do_verify(struct fake_daemon *d, unsigned session, const struct wire_verify *msg)
{
        struct {
                struct wire_reply reply;
                struct wire_verify_result result;
        } out = {
                .reply = { .count = 1 },
                .result = {
                        .volumes = 1,
                        .segments = 3,
                        .next_segment = msg->segment + 1,
                        .chunks = msg->segment < 3 ? 2 : 0,
                        .bytes = msg->segment < 3 ? 20 : 0,
                        .mismatched = msg->segment < 3,
                },
        };

        if (msg->volume > 0) {
                struct wire_reply refusal = { .status = WIRE_INVALID };

                send_reply(d, session, &msg->hdr, &refusal, sizeof(refusal), NULL, 0);
                return;
        }
        send_reply(d, session, &msg->hdr, &out, d->o.short_verify ? sizeof(out) - 8 : sizeof(out),
                   NULL, 0);
}

/* Writes one result, with the fingerprint if it was requested by name. */
static size_t print_namespace(const struct fake_daemon *d, unsigned i, bool named, uint8_t *to)
{
        size_t name = strlen(d->namespaces[i].name),
               fingerprint = named ? strlen(d->namespaces[i].fingerprint) : 0,
               bytes = (sizeof(struct wire_namespace_info) + name + 4 + fingerprint + 7) & ~7ul;
        struct wire_namespace_info *info = (struct wire_namespace_info *)to;

        memset(to, 0, bytes);
        *info = (struct wire_namespace_info){ .bytes = (uint16_t)bytes,
                                              .name_length = (uint8_t)name,
                                              .tenant_length = 4,
                                              .fingerprint_length = (uint16_t)fingerprint,
                                              .flags = WIRE_NAMESPACE_MAY_REMOVE,
                                              .owner = 1000 + i,
                                              .sessions = i,
                                              .chunks = d->n_chunks,
                                              .lifetime_s = d->namespaces[i].lifetime_s };
        memcpy(info + 1, d->namespaces[i].name, name);
        memcpy((char *)(info + 1) + name, "fake", 4);
        memcpy((char *)(info + 1) + name + 4, d->namespaces[i].fingerprint, fingerprint);
        return bytes;
}

static void do_namespaces(struct fake_daemon *d, unsigned session, const struct wire_namespaces *n)
{
        static _Alignas(8) uint8_t buf[WIRE_MAX_MESSAGE];
        struct wire_reply *reply = (struct wire_reply *)buf;
        size_t bytes = sizeof(*reply);
        unsigned i;

        memset(reply, 0, sizeof(*reply));
        for (i = (unsigned)n->cursor; i < d->n_namespaces && reply->count < n->max; i++) {
                const char *name = d->namespaces[i].name;

                if (!*name || (n->name_length > 0 && (strlen(name) != n->name_length ||
                                                      memcmp(name, n + 1, n->name_length) != 0)))
                        continue;
                bytes += print_namespace(d, i, n->name_length > 0, buf + bytes);
                reply->count++;
        }
        if (n->name_length > 0 && reply->count == 0) {
                refuse(d, session, &n->hdr, WIRE_NO_NAMESPACE, "there is no such namespace");
                return;
        }
        reply->value64 = n->name_length == 0 && i < d->n_namespaces ? i : 0;
        send_reply(d, session, &n->hdr, buf, bytes, NULL, 0);
}

static void do_remove(struct fake_daemon *d, unsigned session,
                      const struct wire_namespace_remove *n)
{
        struct wire_reply reply = { 0 };

        for (unsigned i = 0; i < d->n_namespaces; i++) {
                char *name = d->namespaces[i].name;

                if (strlen(name) != n->name_length || memcmp(name, n + 1, n->name_length) != 0)
                        continue;
                if (d->n_chunks > 0 && !(n->hdr.flags & WIRE_F_PURGE)) {
                        refuse(d, session, &n->hdr, WIRE_NOT_EMPTY, "it has chunks");
                        return;
                }
                *name = '\0';
                reply.value64 = d->n_chunks;
                d->n_chunks = 0;
                send_reply(d, session, &n->hdr, &reply, sizeof(reply), NULL, 0);
                return;
        }
        refuse(d, session, &n->hdr, WIRE_NO_NAMESPACE, "there is no such namespace");
}

static void held_free(struct fake_held *h)
{
        free(h->request);
        if (h->fd >= 0)
                close(h->fd);
}

/* Every key of a held PUT or GET ends with CANCELLED. */
static void do_cancel(struct fake_daemon *d, unsigned session, const struct wire_cancel *c)
{
        static _Alignas(8) uint8_t buf[WIRE_MAX_MESSAGE];
        struct wire_reply *all = (struct wire_reply *)buf, reply = { 0 };

        for (unsigned h = 0; h < d->n_held; h++) {
                const struct wire_batch *b = d->held[h].request;
                size_t result = wire_result_bytes(b->hdr.op);

                if (d->held[h].session != session || b->hdr.tag != c->tag ||
                    (b->hdr.op != WIRE_PUT && b->hdr.op != WIRE_GET))
                        continue;
                memset(buf, 0, sizeof(*all) + result * b->count);
                all->count = b->count;
                for (unsigned i = 0; i < b->count; i++)
                        *(uint16_t *)(buf + sizeof(*all) + i * result) = WIRE_CANCELLED;
                reply.value = b->count;
                send_reply(d, session, &b->hdr, buf, sizeof(*all) + result * b->count, NULL, 0);
                held_free(&d->held[h]);
                d->held[h] = d->held[--d->n_held];
                break;
        }
        send_reply(d, session, &c->hdr, &reply, sizeof(reply), NULL, 0);
}

static void do_report(struct fake_daemon *d, unsigned session, const struct wire_hdr *request)
{
        static const char text[] = "{\"state\": \"fake\"}";
        struct wire_reply reply = { .value64 = sizeof(text) - 1 };
        int fd = memfd_create("fake-report", MFD_CLOEXEC);

        CHECK(fd >= 0 && write(fd, text, sizeof(text) - 1) > 0);
        send_reply(d, session, request, &reply, sizeof(reply), &fd, 1);
        close(fd);
}

/* Processes a request; the caller keeps `fd`, which came with it. */
static void do_request(struct fake_daemon *d, unsigned session, const void *msg, size_t bytes,
                       int fd)
{
        static _Alignas(8) uint8_t buf[WIRE_MAX_PING + sizeof(struct wire_reply)];
        const struct wire_hdr *hdr = msg;
        struct wire_reply reply = { 0 };

        switch (hdr->op) {
        case WIRE_HELLO:
                do_hello(d, session, hdr);
                break;
        case WIRE_PING:
                memset(buf, 0, sizeof(reply));
                memcpy(buf + sizeof(reply), hdr + 1, bytes - sizeof(*hdr));
                send_reply(d, session, hdr, buf, sizeof(reply) + bytes - sizeof(*hdr), NULL, 0);
                break;
        case WIRE_NAMESPACE:
                do_namespace(d, session, msg);
                break;
        case WIRE_STAGING:
                do_staging(d, session, msg);
                break;
        case WIRE_LIST:
                do_list(d, session, msg);
                break;
        case WIRE_PURGE:
                reply.value64 = d->n_chunks;
                d->n_chunks = 0;
                send_reply(d, session, hdr, &reply, sizeof(reply), NULL, 0);
                break;
        case WIRE_REPORT:
        case WIRE_BENCH:
        case WIRE_RECORD:
        case WIRE_RELOAD:
                do_report(d, session, hdr);
                break;
        case WIRE_VERIFY:
                do_verify(d, session, msg);
                break;
        case WIRE_NAMESPACES:
                do_namespaces(d, session, msg);
                break;
        case WIRE_NAMESPACE_REMOVE:
                do_remove(d, session, msg);
                break;
        case WIRE_LOOKUP:
                reply.value64 = d->lookup_bytes;
                d->tallies_asked += hdr->flags & WIRE_F_TALLY ? 1 : 0;
                if (d->lookup_fd < 0)
                        refuse(d, session, hdr, WIRE_BUSY, "no index now");
                else
                        send_reply(d, session, hdr, &reply, sizeof(reply),
                                   (int[]){ d->lookup_fd, d->tally_fd },
                                   (hdr->flags & WIRE_F_TALLY) && d->tally_fd >= 0 ? 2 : 1);
                break;
        case WIRE_CANCEL:
                do_cancel(d, session, msg);
                break;
        case WIRE_LENT_FILE:
                do_lent_file(d, session, msg);
                break;
        case WIRE_REGISTER:
                do_register(d, session, msg, fd);
                break;
        case WIRE_UNREGISTER:
                do_unregister(d, session, msg);
                break;
        default:
                do_batch(d, session, msg);
                break;
        }
}

/* --- sessions --- */

static void session_end(struct fake_daemon *d, unsigned i)
{
        struct fake_session *s = &d->sessions[i];
        unsigned kept = 0;

        for (unsigned l = 0; l < FAKE_LEASES; l++)
                if (d->leases[l].used && d->leases[l].session == i) {
                        d->leases[l].used = false;
                        d->leases_held--;
                }
        for (unsigned h = 0; h < d->n_held; h++) {
                if (d->held[h].session == i)
                        held_free(&d->held[h]);
                else
                        d->held[kept++] = d->held[h];
        }
        d->n_held = kept;
        if (s->staging)
                munmap(s->staging, s->staging_bytes);
        for (unsigned r = 0; r < FAKE_REGIONS; r++)
                if (s->regions[r].id != 0)
                        region_end(d, s, r);
        close(s->sock);
        *s = (struct fake_session){ .sock = -1 };
}

static void log_request(struct fake_daemon *d, const struct wire_hdr *hdr)
{
        const struct wire_batch *b = (const struct wire_batch *)hdr;
        struct fake_logged *l;

        d->requests[hdr->op]++;
        if (hdr->op < WIRE_PUT || hdr->op > WIRE_STAT || d->n_log == FAKE_LOG)
                return;
        l = &d->log[d->n_log++];
        *l = (struct fake_logged){
                .op = hdr->op,
                .flags = hdr->flags,
                .count = b->count,
                .ack = b->ack,
                .tiers = b->tiers,
                .timeout_ms = b->timeout_ms,
                .pieces = b->pieces,
                .parent = b->parent,
        };
        if (hdr->op == WIRE_PUT) {
                l->region = ((const struct wire_put *)(b + 1))->region;
                l->cost_us = ((const struct wire_put *)(b + 1))->cost_us;
        } else if (hdr->op == WIRE_GET) {
                l->region = ((const struct wire_get *)(b + 1))->into_region;
        }
        if (b->count > 0)
                memcpy(&l->first, b + 1, sizeof(l->first));
}

static void session_read(struct fake_daemon *d, unsigned i)
{
        static _Alignas(8) uint8_t buf[WIRE_MAX_MESSAGE];
        int fds[WIRE_MAX_FDS];
        unsigned n_fds = 0;
        ssize_t n = fdpass_recv(d->sessions[i].sock, buf, sizeof(buf), fds, &n_fds);
        const struct wire_hdr *hdr = (const struct wire_hdr *)buf;

        if (n == -EAGAIN)
                return;
        if (n <= 0) {
                session_end(d, i);
                return;
        }
        if (wire_check_request(buf, (size_t)n) || n_fds != wire_request_fds(hdr->op)) {
                for (unsigned f = 0; f < n_fds; f++)
                        close(fds[f]);
                d->bad_requests++;
                session_end(d, i);
                return;
        }
        log_request(d, hdr);
        if (hdr->op == WIRE_HELLO && d->o.hang_up) {
                session_end(d, i);
        } else if (d->hold_ops & (1u << hdr->op)) {
                CHECK(d->n_held < FAKE_HELD);
                d->held[d->n_held] = (struct fake_held){ i, (size_t)n, malloc((size_t)n),
                                                         n_fds > 0 ? fds[0] : -1 };
                memcpy(d->held[d->n_held++].request, buf, (size_t)n);
        } else {
                do_request(d, i, buf, (size_t)n, n_fds > 0 ? fds[0] : -1);
                if (n_fds > 0)
                        close(fds[0]);
        }
}

static void *run(void *arg)
{
        struct fake_daemon *d = arg;

        fake_daemon_lock(d);
        while (!d->stop) {
                struct pollfd p[FAKE_SESSIONS + 2] = { { d->listener, POLLIN, 0 },
                                                       { d->wake, POLLIN, 0 } };
                uint64_t woken;

                for (unsigned i = 0; i < FAKE_SESSIONS; i++)
                        p[i + 2] = (struct pollfd){ d->sessions[i].sock, POLLIN, 0 };
                pthread_cond_broadcast(&d->changed);
                fake_daemon_unlock(d);
                (void)poll(p, FAKE_SESSIONS + 2, -1);
                fake_daemon_lock(d);
                if (p[1].revents)
                        (void)!read(d->wake, &woken, sizeof(woken));
                for (unsigned i = 0; i < FAKE_SESSIONS && !d->stop; i++)
                        if (p[i + 2].revents && d->sessions[i].sock == p[i + 2].fd)
                                session_read(d, i);
                if (p[0].revents && !d->stop) {
                        int sock = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                        unsigned i = 0;

                        while (i < FAKE_SESSIONS && d->sessions[i].sock >= 0)
                                i++;
                        CHECK(i < FAKE_SESSIONS);
                        if (sock >= 0) {
                                d->sessions[i] = (struct fake_session){ .sock = sock };
                                d->connects++;
                        }
                }
        }
        for (unsigned i = 0; i < FAKE_SESSIONS; i++)
                if (d->sessions[i].sock >= 0)
                        session_end(d, i);
        fake_daemon_unlock(d);
        return NULL;
}

static void wake(struct fake_daemon *d)
{
        uint64_t one = 1;

        CHECK(write(d->wake, &one, sizeof(one)) == sizeof(one));
}

/* --- calls of the tests --- */

void fake_daemon_hang_up(struct fake_daemon *d)
{
        fake_daemon_lock(d);
        for (unsigned i = 0; i < FAKE_SESSIONS; i++)
                if (d->sessions[i].sock >= 0)
                        shutdown(d->sessions[i].sock, SHUT_WR);
        fake_daemon_unlock(d);
}

void fake_daemon_say(struct fake_daemon *d, const void *bytes, size_t n)
{
        fake_daemon_lock(d);
        for (unsigned i = 0; i < FAKE_SESSIONS; i++)
                if (d->sessions[i].sock >= 0)
                        (void)fdpass_send(d->sessions[i].sock, bytes, n, NULL, 0);
        fake_daemon_unlock(d);
}

void fake_daemon_hold(struct fake_daemon *d, uint32_t ops)
{
        struct fake_held held[FAKE_HELD];
        unsigned n;

        fake_daemon_lock(d);
        d->hold_ops = ops;
        n = d->n_held;
        memcpy(held, d->held, sizeof(held));
        d->n_held = 0;
        for (unsigned i = 0; i < n; i++) {
                if (ops & (1u << ((const struct wire_hdr *)held[i].request)->op)) {
                        d->held[d->n_held++] = held[i];
                        continue;
                }
                do_request(d, held[i].session, held[i].request, held[i].bytes, held[i].fd);
                held_free(&held[i]);
        }
        pthread_cond_broadcast(&d->changed);
        fake_daemon_unlock(d);
}

static bool wait_until(struct fake_daemon *d, const unsigned *value, unsigned least, unsigned most)
{
        struct timespec until;
        bool ok;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += test_timeout_ms(60000) / 1000;
        fake_daemon_lock(d);
        while (!(ok = *value >= least && *value <= most))
                if (pthread_cond_timedwait(&d->changed, &d->lock, &until) != 0)
                        break;
        fake_daemon_unlock(d);
        return ok;
}

bool fake_daemon_wait(struct fake_daemon *d, const unsigned *value, unsigned least)
{
        return wait_until(d, value, least, UINT32_MAX);
}

bool fake_daemon_wait_leases(struct fake_daemon *d, unsigned exactly)
{
        return wait_until(d, &d->leases_held, exactly, exactly);
}

struct fake_daemon *fake_daemon_start(const char *path, const struct fake_options *o)
{
        struct fake_daemon *d = calloc(1, sizeof(*d));
        struct sockaddr_un sa = { .sun_family = AF_UNIX };

        CHECK(d);
        if (o)
                d->o = *o;
        d->o.pool_bytes = d->o.pool_bytes ? d->o.pool_bytes : 4 << 20;
        d->o.staging_max = d->o.staging_max ? d->o.staging_max : 1 << 20;
        d->o.max_chunk = d->o.max_chunk ? d->o.max_chunk : 1 << 20;
        d->o.max_inflight = d->o.max_inflight ? d->o.max_inflight : WIRE_MAX_INFLIGHT;
        d->o.max_keys = d->o.max_keys ? d->o.max_keys : WIRE_MAX_KEYS;
        d->lookup_fd = d->tally_fd = -1;
        pthread_mutex_init(&d->lock, NULL);
        pthread_cond_init(&d->changed, NULL);
        CHECK(getrandom(d->instance, sizeof(d->instance), 0) == sizeof(d->instance));
        for (unsigned i = 0; i < FAKE_SESSIONS; i++)
                d->sessions[i].sock = -1;

        d->pool_fd = memfd_create("fake-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        CHECK(d->pool_fd >= 0 && ftruncate(d->pool_fd, (off_t)d->o.pool_bytes) == 0);
        d->pool = mmap(NULL, d->o.pool_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, d->pool_fd, 0);
        CHECK(d->pool != MAP_FAILED);
        CHECK(fcntl(d->pool_fd, F_ADD_SEALS,
                    F_SEAL_SHRINK | F_SEAL_GROW | (d->o.unsealed ? 0 : F_SEAL_FUTURE_WRITE) |
                            F_SEAL_SEAL) == 0);
        d->live_fd = memfd_create("fake-live", MFD_CLOEXEC);
        CHECK(d->live_fd >= 0 && flock(d->live_fd, LOCK_EX | LOCK_NB) == 0);

        CHECK(strlen(path) < sizeof(sa.sun_path));
        strcpy(sa.sun_path, path);
        strcpy(d->path, path);
        unlink(path);
        d->wake = eventfd(0, EFD_CLOEXEC);
        d->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        CHECK(d->wake >= 0 && d->listener >= 0);
        CHECK(bind(d->listener, (struct sockaddr *)&sa, sizeof(sa)) == 0 &&
              listen(d->listener, 8) == 0);
        CHECK(pthread_create(&d->thread, NULL, run, d) == 0);
        return d;
}

void fake_daemon_kill(struct fake_daemon *d, bool io_goes_on)
{
        fake_daemon_lock(d);
        d->stop = true;
        fake_daemon_unlock(d);
        wake(d);
        pthread_join(d->thread, NULL);
        close(d->listener);
        close(d->wake);
        d->listener = -1;
        munmap(d->pool, d->o.pool_bytes);
        close(d->pool_fd);
        if (!io_goes_on)
                fake_daemon_io_done(d);
}

void fake_daemon_io_done(struct fake_daemon *d)
{
        if (d->live_fd >= 0)
                close(d->live_fd);
        d->live_fd = -1;
}

struct fake_daemon *fake_daemon_free(struct fake_daemon *d)
{
        if (!d)
                return NULL;
        if (d->listener >= 0)
                fake_daemon_kill(d, false);
        fake_daemon_io_done(d);
        for (unsigned i = 0; i < d->n_held; i++)
                held_free(&d->held[i]);
        for (unsigned i = 0; i < d->n_files; i++) {
                char path[160];

                data_file_path(d, i, path);
                unlink(path);
                close(d->files[i]);
        }
        pthread_cond_destroy(&d->changed);
        pthread_mutex_destroy(&d->lock);
        free(d);
        return NULL;
}
