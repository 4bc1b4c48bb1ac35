/* SPDX-License-Identifier: Apache-2.0 */
/* One session with one daemon process: connects, exchanges HELLO, checks the received descriptors,
 * and maps the pool.
 *
 * Runs in the handle's thread. Owns the socket, the pool's mapping, the staging area and the
 * liveness descriptor.
 *
 * Normal path: connect to the requested socket, or to the first default one on which a daemon
 * listens, send HELLO, receive the descriptors of the pool and the liveness file, verify that only
 * the daemon can change the pool, map it. Failures: each has its own errno and error text, and
 * frees everything. The daemon's values are checked before use: sizes against the files, limits
 * against this library's maxima. */
#include "lib/connection.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "checked.h"
#include "cleanup.h"
#include "fdpass.h"
#include "lib/holds.h"
#include "lib/lookup.h"
#include "lib/message.h"
#include "mapping.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

enum {
        POOL_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE,
        /* A reply with a text, and a request with one entry, must fit into the daemon's largest
         * message. */
        MIN_MESSAGE = 4096,
        PLACES = 3, /* maximum number of default sockets */
};

void conn_close_pool(struct conn *c)
{
        holds_fini(&c->hits);
        if (c->pool)
                munmap((void *)c->pool, c->pool_bytes);
        c->pool = NULL;
        if (c->sock >= 0) {
                /* A child may hold a copy of the descriptor, so that close() alone would not inform
                 * the daemon. */
                shutdown(c->sock, SHUT_RDWR);
                close(c->sock);
        }
        c->sock = -1;
}

struct conn *conn_free(struct conn *c, bool forked)
{
        struct message *m;

        if (!c)
                return NULL;
        if (forked) {
                if (c->sock >= 0)
                        close(c->sock);
                free(c->hits.scratch);
                free(c->hits.refs);
        } else {
                conn_close_pool(c);
                lookup_fini(&c->lookup);
                tally_fini(&c->tally);
        }
        transfers_fini(&c->transfers, forked);
        while ((m = TAILQ_FIRST(&c->ghosts))) {
                TAILQ_REMOVE(&c->ghosts, m, link);
                message_free(m);
        }
        staging_fini(&c->staging, !forked);
        closep(&c->live_fd);
        free(c);
        return NULL;
}

static struct conn *conn_free_unforked(struct conn *c)
{
        return conn_free(c, false);
}
DEFINE_CLEANUP(struct conn *, conn_free_unforked);

/* Connects a socket whose receives wait at most CONN_WAIT_MS. With `own`, the process that listens
 * must run as this user or root, otherwise returns -EACCES: any user may have bound a name in /tmp
 * first, and a program that another user started may have inherited that user's $XDG_RUNTIME_DIR.
 * Returns 0 or -errno, without setting the error text. */
static int conn_socket(const char *path, bool own, int64_t deadline, int *ret)
{
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        _cleanup_(closep) int fd = -1;
        int r;

        if (strlen(path) >= sizeof(sa.sun_path))
                return -ENAMETOOLONG;
        memcpy(sa.sun_path, path, strlen(path) + 1);

        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;
        do {
                /* The send timeout bounds the wait for room in the listener's backlog. */
                int ms = MAX(handle_poll_ms(deadline), 1);
                struct timeval tv = { .tv_sec = ms / 1000, .tv_usec = (ms % 1000) * 1000 };

                if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) < 0)
                        return -errno;
                r = connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 ? -errno : 0;
        } while (r == -EINTR && handle_now_ns() < deadline);
        if (r == -EAGAIN || r == -EINTR)
                return -ETIMEDOUT;
        if (r < 0)
                return r;

        if (own) {
                struct ucred peer;
                socklen_t bytes = sizeof(peer);

                if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) < 0)
                        return -errno;
                if (peer.uid != 0 && peer.uid != geteuid())
                        return -EACCES;
        }
        if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO,
                       &(struct timeval){ .tv_usec = CONN_WAIT_MS * 1000 },
                       sizeof(struct timeval)) < 0)
                return -errno;
        *ret = TAKE_FD(fd);
        return 0;
}

static bool is_socket(const char *path)
{
        struct stat st;

        return stat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

/* Connects to the requested socket or, if none was requested, to the first default path on which a
 * process listens. */
static int conn_find(struct kvcache *kv, int64_t deadline, int *ret)
{
        const char *asked = kv->socket_path, *runtime = secure_getenv("XDG_RUNTIME_DIR");
        char paths[PLACES][sizeof(((struct sockaddr_un *)0)->sun_path) + 1],
                tried[sizeof(kv->error)] = "";
        char reason[128];
        int r, first = 0;
        size_t used = 0;

        if (!asked) {
                asked = secure_getenv("KVCACHE_SOCKET");
                if (asked && asked[0] == '\0')
                        asked = NULL;
        }
        if (asked) {
                r = conn_socket(asked, false, deadline, ret);
                if (r < 0)
                        return handle_fail(kv, r, "cannot connect to %.255s: %s%s", asked,
                                           handle_strerror(r, reason, sizeof(reason)),
                                           r == -ECONNREFUSED && !is_socket(asked)
                                                   ? " (that is not a socket)"
                                           : r == -ENOENT || r == -ECONNREFUSED
                                                   ? " (is kvcache-daemon running?)"
                                                   : "");
                return 0;
        }

        /* A path that is truncated here is too long for a socket, which conn_socket() reports. */
        snprintf(paths[0], sizeof(paths[0]), "/run/kvcache/kvcache.sock");
        if (runtime && runtime[0] == '/')
                snprintf(paths[1], sizeof(paths[1]), "%s/kvcache/kvcache.sock", runtime);
        else
                snprintf(paths[1], sizeof(paths[1]), "/run/user/%u/kvcache/kvcache.sock",
                         (unsigned)geteuid());
        snprintf(paths[2], sizeof(paths[2]), "/tmp/kvcache-%u/kvcache.sock", (unsigned)geteuid());
        for (size_t i = 0; i < ARRAY_SIZE(paths); i++) {
                r = conn_socket(paths[i], i > 0, deadline, ret);
                if (r >= 0)
                        return 0;
                used += (size_t)snprintf(tried + used, sizeof(tried) - used, "%s%s (%s)",
                                         used ? ", " : "", paths[i],
                                         handle_strerror(r, reason, sizeof(reason)));
                used = MIN(used, sizeof(tried) - 1);
                /* The error of a socket that exists is more helpful than that of a missing one. */
                if (first == 0 || first == -ENOENT)
                        first = r;
        }
        return handle_fail(kv, first,
                           "cannot connect to kvcache-daemon: tried %.1400s; KVCACHE_SOCKET names "
                           "another socket",
                           tried);
}

/* Waits for one message. Returns its size in bytes, or -errno. */
static ssize_t conn_wait(int sock, void *buf, size_t room, int fds[static WIRE_MAX_FDS],
                         unsigned *n_fds, int64_t deadline)
{
        for (;;) {
                struct pollfd p = { .fd = sock, .events = POLLIN };
                ssize_t n = fdpass_recv(sock, buf, room, fds, n_fds);

                if (n == 0)
                        return -ECONNRESET;
                if (n != -EAGAIN && n != -EINTR)
                        return n;
                if (poll(&p, 1, handle_poll_ms(deadline)) == 0 || handle_now_ns() >= deadline)
                        return -ETIMEDOUT;
        }
}

/* Returns whether a file lies on a tmpfs that is mounted read-only here and has no name by which it
 * could be opened elsewhere. Only descriptors that the daemon or its service manager opened can
 * then write to it. */
static bool is_kept(int fd)
{
        struct statvfs mount;
        struct statfs fs;
        struct stat st;

        return fstatfs(fd, &fs) == 0 && (unsigned long)fs.f_type == TMPFS_MAGIC &&
               fstatvfs(fd, &mount) == 0 && (mount.f_flag & ST_RDONLY) && fstat(fd, &st) == 0 &&
               st.st_nlink == 0;
}

/* Returns the id of the pool that a descriptor refers to, made of the file's device and inode. A
 * mapping keeps the inode in use, so two pools that are mapped have different ids, and a pool
 * has the same id in each process. */
static uint64_t pool_id_of(const struct stat *st)
{
        uint64_t x =
                (uint64_t)st->st_ino + ((uint64_t)st->st_dev << 32 | (uint64_t)st->st_dev >> 32);

        return x ? x : 1;
}

/* Checks and maps the pool; the caller keeps the descriptor. On failure conn_free() unmaps it. */
static int conn_map_pool(struct kvcache *kv, struct conn *c, int pool_fd, uint64_t bytes)
{
        char reason[128];
        struct stat st;
        int seals;
        void *p;

        seals = fcntl(pool_fd, F_GET_SEALS);
        if ((seals < 0 || (seals & POOL_SEALS) != POOL_SEALS) && !is_kept(pool_fd))
                return handle_fail(kv, -EPERM,
                                   "the daemon's pool is not sealed against shrinking, growing, "
                                   "new seals and writers "
                                   "(seals 0x%x), nor on a tmpfs that is mounted read-only: "
                                   "refused",
                                   seals < 0 ? 0u : (unsigned)seals);
        if (fstat(pool_fd, &st) < 0)
                return handle_fail_errno(kv, -errno, "cannot get the size of the daemon's pool");
        if (bytes == 0 || bytes > SIZE_MAX / 2 || st.st_size < 0 || (uint64_t)st.st_size < bytes)
                return handle_fail(kv, -EBADMSG,
                                   "the daemon states a pool of %llu bytes, but its file has %lld",
                                   (unsigned long long)bytes, (long long)st.st_size);

        p = mapping_shared(pool_fd, bytes, PROT_READ);
        if (p == MAP_FAILED)
                return handle_fail(kv, -errno, "cannot map the daemon's pool (%llu bytes): %s%s",
                                   (unsigned long long)bytes,
                                   handle_strerror(errno, reason, sizeof(reason)),
                                   errno == ENOMEM ? "; raise this process's limit of address "
                                                     "space (ulimit -v)"
                                                   : "");
        c->pool = p;
        c->pool_bytes = bytes;
        c->pool_id = pool_id_of(&st);
        if (madvise(p, bytes, MADV_DONTFORK) < 0)
                return handle_fail_errno(kv, -errno,
                                         "cannot exclude the daemon's pool from child processes");
        (void)madvise(p, bytes, MADV_DONTDUMP);
        if (kv->flags & KVCACHE_POPULATE)
                (void)madvise(p, bytes, MADV_POPULATE_READ); /* if this fails, each page is mapped
                                                                at its first access */
        return 0;
}

static int conn_hello(struct kvcache *kv, struct conn *c, int fds[static WIRE_MAX_FDS],
                      unsigned *n_fds, int64_t deadline)
{
        struct wire_hello hello = {
                .hdr = { .len = sizeof(hello), .op = WIRE_HELLO, .tag = WIRE_REFUSAL_TAG },
                .magic = WIRE_MAGIC,
                .version_min = WIRE_VERSION_MIN,
                .version_max = WIRE_VERSION_MAX,
        };
        struct wire_hello_result result;
        struct wire_reply reply;
        char reason[128];
        ssize_t n;
        int r;

        memcpy(hello.client, kv->client_name, sizeof(hello.client));
        r = fdpass_send(c->sock, &hello, sizeof(hello), NULL, 0);
        if (r < 0 && r != -EPIPE) /* after -EPIPE, conn_wait() gets the daemon's refusal or the end
                                     of the connection */
                return handle_fail(kv, r, "cannot send the greeting to the daemon: %s",
                                   handle_strerror(r, reason, sizeof(reason)));
        n = conn_wait(c->sock, kv->in, sizeof(kv->in), fds, n_fds, deadline);
        /* A daemon that refuses the client sends its reason before it closes. The kernel reports
         * the close first if the greeting was not read. */
        if (n == -ECONNRESET)
                n = fdpass_recv(c->sock, kv->in, sizeof(kv->in), fds, n_fds);
        if (n <= 0 && n != -ETIMEDOUT && n != -EBADMSG && n != -EMSGSIZE)
                return handle_fail(kv, -ECONNRESET,
                                   "the daemon closed the connection without an answer: it could "
                                   "not start, or has just stopped; its log says why");
        if (n < 0)
                return handle_fail(kv, (int)n, "the daemon did not answer the greeting: %s",
                                   handle_strerror((int)n, reason, sizeof(reason)));

        if ((size_t)n < sizeof(reply))
                return handle_fail(kv, -EBADMSG,
                                   "the daemon's answer to the greeting is too short");
        memcpy(&reply, kv->in, sizeof(reply));
        if (reply.hdr.len != (size_t)n || reply.hdr.op != (WIRE_HELLO | WIRE_REPLY) ||
            reply.hdr.flags != 0 || reply.hdr.tag != hello.hdr.tag)
                return handle_fail(kv, -EBADMSG,
                                   "the daemon's answer to the greeting is malformed");
        if (reply.status != WIRE_OK)
                return handle_fail_text(
                        kv, message_errno(reply.status), "the daemon refuses this client",
                        (const char *)kv->in + sizeof(reply), (size_t)n - sizeof(reply));
        if ((size_t)n < sizeof(reply) + sizeof(result) || *n_fds != 2)
                return handle_fail(
                        kv, -EBADMSG,
                        "the daemon's answer to the greeting lacks its limits or a descriptor");
        memcpy(&result, (const char *)kv->in + sizeof(reply), sizeof(result));
        if (result.version < WIRE_VERSION_MIN || result.version > WIRE_VERSION_MAX)
                return handle_fail(kv, -EPROTONOSUPPORT,
                                   "the daemon chose protocol version %u, but this library speaks "
                                   "%d to %d: use the same version of both",
                                   result.version, WIRE_VERSION_MIN, WIRE_VERSION_MAX);
        if (result.max_keys == 0 || result.max_inflight == 0 || result.max_message < MIN_MESSAGE ||
            result.max_chunk == 0)
                return handle_fail(kv, -EBADMSG, "the daemon's limits are malformed");

        c->version = result.version;
        c->max_keys = MIN(result.max_keys, (uint32_t)WIRE_MAX_KEYS);
        c->max_inflight = MIN(result.max_inflight, (uint32_t)WIRE_MAX_INFLIGHT);
        c->max_message = MIN(result.max_message, (uint32_t)WIRE_MAX_MESSAGE);
        c->max_chunk = MIN(result.max_chunk, (uint64_t)UINT32_MAX);
        c->staging_max = result.staging_max;
        c->features = result.features;
        memcpy(c->instance, result.instance, sizeof(c->instance));
        if (kv->spin.limit_ns > 0)
                kv->spin = (struct spin){ .limit_ns = spin_limit_of_client(result.spin_us) };
        return conn_map_pool(kv, c, fds[0], result.pool_bytes);
}

int conn_open(struct kvcache *kv)
{
        _cleanup_(conn_free_unforkedp) struct conn *c = malloc(sizeof(*c));
        int64_t deadline = handle_deadline(0, kv->connect_timeout_ms);
        struct epoll_event e = { .events = EPOLLIN };
        int fds[WIRE_MAX_FDS], r;
        unsigned n_fds = 0;

        if (!c)
                return handle_no_memory(kv);
        *c = (struct conn){ .sock = -1, .live_fd = -1 };
        TAILQ_INIT(&c->ghosts);

        r = conn_find(kv, deadline, &c->sock);
        if (r < 0)
                return r;
        r = conn_hello(kv, c, fds, &n_fds, deadline);
        if (r == 0)
                c->live_fd = TAKE_FD(fds[1]);
        for (unsigned i = 0; i < n_fds; i++)
                closep(&fds[i]);
        if (r < 0)
                return r;
        if (epoll_ctl(kv->epoll_fd, EPOLL_CTL_ADD, c->sock, &e) < 0)
                return handle_fail_errno(kv, -errno, "cannot watch the socket of the daemon");
        kv->conn = TAKE_PTR(c);
        kv->sessions++;
        kv->epoll_out = false;
        return 0;
}

int conn_ready(struct kvcache *kv)
{
        return kv->conn || conn_open(kv) == 0 ? 0 : -ENOTCONN;
}
