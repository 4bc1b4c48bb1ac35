/* SPDX-License-Identifier: Apache-2.0 */
/* The S3 back end: an object store that speaks S3 (AWS, Ceph's RGW, MinIO and others), by libcurl.
 * Objects are addressed in path style: ENDPOINT/BUCKET/NAME.
 *
 * One thread drives all requests by libcurl's multi interface, over at most `depth` persistent
 * connections of HTTP/1.1. libcurl signs the requests (AWS SigV4). Writes are sent as
 * UNSIGNED-PAYLOAD, with TLS or without, because their SHA-256 would cost more than the transfer.
 * Over plain HTTP, a host on the network path could therefore change chunks; TLS prevents that.
 *
 * Header and payload are received into the caller's memory, up to the requested size; the first
 * kilobyte of an error's body is kept. libcurl accesses an operation's memory on this thread only,
 * so an operation past its deadline ends at once.
 *
 * A create has If-None-Match: *, so that the first writer wins. If a server refuses the header
 * (501, 400), the request is repeated without it and this is remembered; the last writer wins
 * there. Redirects are not followed, as a signature is valid for one host. The bucket's lifecycle
 * rules expire objects.
 *
 * Locking: `lock` protects the queue and the flags. backend_op_end() is called under it, so that no
 * operation ends after close(). */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "checked.h"
#include "remote/backend.h"
#include "remote/libcurl.h"
#include "remote/s3-answer.h"
#include "remote/s3-credentials.h"

enum {
        ANSWER_MAX = 1024,           /* bytes of an error's body that are kept */
        ANSWER_READ_MAX = 64 * 1024, /* bytes of an error's body after which the connection is
                                      * closed */
        BUFFER_BYTES = 512 * 1024,   /* libcurl's buffer per connection in use */
        EXPECT_MS = 20,              /* wait for "100 Continue" before a large body is sent */
        CLOSE_WAIT_MS = 500,
        POLL_MS_MAX = 1000,
};

#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

struct s3 {
        struct libcurl api;
        char *endpoint, *bucket, *ca; /* the endpoint has no trailing slash */
        char signature[80];           /* value of CURLOPT_AWS_SIGV4 */
        unsigned depth;

        /* used by the thread only, from here to `no_conditions` */
        CURLM *multi;
        struct s3_credentials credentials;
        struct list_node active, idle; /* struct transfer */
        unsigned n_active;
        bool no_conditions; /* the server has refused If-None-Match, so the header is omitted from
                             * now on */

        pthread_mutex_t lock;
        pthread_cond_t change; /* signals close() */
        bool stopping, closed, ended;
        unsigned refs;          /* held by the owner and the thread */
        struct list_node queue; /* struct backend_op */
};

/* A request in flight, or an idle one for reuse. */
struct transfer {
        struct list_node node;
        struct s3 *s3;
        CURL *easy;
        struct backend_op *op;
        struct curl_slist *headers;
        bool conditional;      /* the request has If-None-Match */
        bool too_long;         /* the server has sent more bytes than were requested */
        bool filled;           /* the pieces are full, and the rest is refused */
        uint64_t room, sent;   /* bytes of the pieces; bytes of the request's body that libcurl has
                                * taken */
        uint64_t got, dropped; /* bytes of the body that were stored in the pieces; bytes of an
                                * error's body that were discarded */
        uint64_t size;         /* object size by the headers; UINT64_MAX: unknown */
        char answer[ANSWER_MAX + 1];
        size_t answer_n;
        char error[CURL_ERROR_SIZE];
};

static struct s3 *s3_of(struct backend *b)
{
        return (struct s3 *)b;
}

/* --- bodies of requests and answers --- */

/* Returns the address of byte `offset` of the pieces, and lowers `*n` to the bytes that are
 * contiguous there. Beyond the pieces, returns NULL and sets `*n` to 0. */
static char *part_at(const struct backend_op *op, uint64_t offset, size_t *n)
{
        for (unsigned i = 0; i < 2; i++) {
                const struct iovec *p = &op->pieces[i];

                if (offset < p->iov_len) {
                        *n = MIN(*n, p->iov_len - offset);
                        return (char *)p->iov_base + offset;
                }
                offset -= p->iov_len;
        }
        *n = 0;
        return NULL;
}

static size_t on_read(char *to, size_t size, size_t count, void *userdata)
{
        struct transfer *t = userdata;
        size_t n = size * count;
        const char *from = part_at(t->op, t->sent, &n);

        if (from)
                memcpy(to, from, n);
        t->sent += n;
        return n;
}

/* Rewinds the request's body. libcurl then sends it again, after a persistent connection turned out
 * to be closed. */
static int on_seek(void *userdata, int64_t offset, int origin)
{
        struct transfer *t = userdata;

        if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > t->room)
                return 1;
        t->sent = (uint64_t)offset;
        return 0;
}

static long status_of(struct transfer *t)
{
        long status = 0;

        t->s3->api.easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
        return status;
}

static size_t keep_answer(struct transfer *t, const char *from, size_t n)
{
        size_t kept = MIN(n, ANSWER_MAX - t->answer_n);

        memcpy(t->answer + t->answer_n, from, kept);
        t->answer_n += kept;
        t->answer[t->answer_n] = 0;
        t->dropped += n - kept;
        return t->dropped <= ANSWER_READ_MAX ? n : 0;
}

static size_t on_body(char *from, size_t size, size_t count, void *userdata)
{
        struct transfer *t = userdata;
        size_t left = size * count;
        long status = status_of(t);

        if (t->op->kind != BACKEND_READ || (status != 200 && status != 206))
                return keep_answer(t, from, left);
        while (left > 0) {
                size_t n = left;
                char *to = part_at(t->op, t->got, &n);

                if (!to) {
                        /* Status 200 means that the server ignores the range and sends the whole
                         * object. */
                        t->filled = status == 200 || t->room == 0;
                        t->too_long = !t->filled;
                        return 0;
                }
                memcpy(to, from, n);
                t->got += n;
                from += n;
                left -= n;
        }
        return size * count;
}

static bool parse_number(const char *p, const char *end, uint64_t *ret)
{
        uint64_t v = 0;
        bool any = false;

        while (p < end && *p == ' ')
                p++;
        for (; p < end && *p >= '0' && *p <= '9'; p++) {
                if (!checked_mul(v, (uint64_t)10, &v) || !checked_add(v, (uint64_t)(*p - '0'), &v))
                        return false;
                any = true;
        }
        *ret = v;
        return any && (p == end || *p == '\r' || *p == '\n');
}

/* Takes the object's size from "Content-Range: bytes 0-4095/10000", or else from Content-Length. */
static size_t on_header(char *line, size_t size, size_t count, void *userdata)
{
        struct transfer *t = userdata;
        const char *end = line + size * count, *slash;

        if (size * count > 5 && strncasecmp(line, "HTTP/", 5) == 0) {
                t->size = UINT64_MAX; /* belongs to an earlier answer (100 Continue) */
        } else if (size * count > 14 && strncasecmp(line, "Content-Range:", 14) == 0) {
                slash = memchr(line, '/', size * count);
                if (!slash || !parse_number(slash + 1, end, &t->size))
                        t->size = UINT64_MAX;
        } else if (size * count > 15 && strncasecmp(line, "Content-Length:", 15) == 0 &&
                   status_of(t) == 200) {
                if (!parse_number(line + 15, end, &t->size))
                        t->size = UINT64_MAX;
        }
        return size * count;
}

/* --- transfers --- */

static void transfer_free(struct transfer *t)
{
        if (t->easy)
                t->s3->api.easy_cleanup(t->easy);
        t->s3->api.slist_free_all(t->headers);
        free(t);
}

static struct transfer *transfer_new(struct s3 *s)
{
        struct list_node *n = list_pop(&s->idle);
        struct transfer *t;

        if (n)
                return container_of(n, struct transfer, node);
        t = calloc(1, sizeof(*t));
        if (!t)
                return NULL;
        list_init(&t->node);
        t->s3 = s;
        t->easy = s->api.easy_init();
        if (!t->easy) {
                free(t);
                return NULL;
        }
        return t;
}

/* Makes a transfer idle, after libcurl has released it. */
static void transfer_recycle(struct transfer *t)
{
        struct s3 *s = t->s3;

        s->api.easy_reset(t->easy);
        s->api.slist_free_all(t->headers);
        t->headers = NULL;
        t->op = NULL;
        list_unlink(&t->node);
        list_append(&s->idle, &t->node);
}

static void end_op(struct s3 *s, struct backend_op *op, int result)
{
        pthread_mutex_lock(&s->lock);
        if (!s->closed)
                backend_op_end(op, result);
        pthread_mutex_unlock(&s->lock);
}

static bool add_header(struct transfer *t, const char *text)
{
        struct curl_slist *longer = t->s3->api.slist_append(t->headers, text);

        if (longer)
                t->headers = longer;
        return longer;
}

/* Appends text with the characters escaped that are special in a URL; slashes stay. */
static void append_escaped(char *to, size_t size, const char *from)
{
        static const char hex[] = "0123456789ABCDEF";
        size_t n = strlen(to);

        for (; *from && n + 4 < size; from++) {
                unsigned char c = (unsigned char)*from;

                if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    strchr("-._~/", c)) {
                        to[n++] = (char)c;
                        continue;
                }
                to[n++] = '%';
                to[n++] = hex[c >> 4];
                to[n++] = hex[c & 15];
        }
        to[n] = 0;
}

static bool set_headers(struct transfer *t)
{
        struct s3 *s = t->s3;
        char token[sizeof(s->credentials.token) + 32];
        bool writes = t->op->kind == BACKEND_CREATE || t->op->kind == BACKEND_REPLACE, set;

        if (!add_header(t, writes ? "x-amz-content-sha256: UNSIGNED-PAYLOAD"
                                  : "x-amz-content-sha256: " EMPTY_SHA256) ||
            (t->conditional && !add_header(t, "If-None-Match: *")))
                return false;
        if (*s->credentials.token) {
                snprintf(token, sizeof(token), "x-amz-security-token: %s", s->credentials.token);
                set = add_header(t, token);
                explicit_bzero(token, sizeof(token));
                if (!set)
                        return false;
        }
        return true;
}

/* Sends a request. Returns 0 if libcurl has taken the transfer, or -ENOMEM. */
static int transfer_start(struct transfer *t, uint64_t now)
{
        struct s3 *s = t->s3;
        struct backend_op *op = t->op;
        const struct libcurl *api = &s->api;
        char url[512 + 3 * REMOTE_NAME_MAX], range[64];
        /* Add one for the division, and one for libcurl, which may count up to a millisecond too
         * much when a second ends in between. */
        long left_ms = (long)((op->deadline_ns - now) / 1000000 + 2);
        int bad = 0;

        snprintf(url, sizeof(url), "%s/", s->endpoint);
        append_escaped(url, sizeof(url), s->bucket);
        append_escaped(url, sizeof(url), "/");
        append_escaped(url, sizeof(url), op->name);
        if (!set_headers(t))
                return -ENOMEM;
#define SET(option, value)                                                                         \
        bad |= api->easy_setopt(t->easy, (option), (value)) == CURLE_OUT_OF_MEMORY
        SET(CURLOPT_URL, url);
        SET(CURLOPT_PRIVATE, t);
        SET(CURLOPT_ERRORBUFFER, t->error);
        SET(CURLOPT_NOSIGNAL, 1L);
        SET(CURLOPT_QUICK_EXIT, 1L);
        SET(CURLOPT_PROTOCOLS, (long)(CURL_PROTOCOL_HTTP | CURL_PROTOCOL_HTTPS));
        SET(CURLOPT_FOLLOWLOCATION, 0L);
        SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
        SET(CURLOPT_TCP_KEEPALIVE, 1L);
        SET(CURLOPT_USERAGENT, "kvcache-daemon");
        SET(CURLOPT_TIMEOUT_MS, left_ms);
        SET(CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
        SET(CURLOPT_UPLOAD_BUFFERSIZE, (long)BUFFER_BYTES);
        /* Let libcurl send "Expect:". Disabling it by an empty header fails, because libcurl 7.88
         * would still sign that header. */
        SET(CURLOPT_EXPECT_100_TIMEOUT_MS, (long)EXPECT_MS);
        SET(CURLOPT_AWS_SIGV4, s->signature);
        SET(CURLOPT_USERNAME, s->credentials.key);
        SET(CURLOPT_PASSWORD, s->credentials.secret);
        SET(CURLOPT_HTTPHEADER, t->headers);
        SET(CURLOPT_HEADERFUNCTION, on_header);
        SET(CURLOPT_HEADERDATA, t);
        SET(CURLOPT_WRITEFUNCTION, on_body);
        SET(CURLOPT_WRITEDATA, t);
        if (s->ca)
                SET(CURLOPT_CAINFO, s->ca);
        switch (op->kind) {
        case BACKEND_READ:
                snprintf(range, sizeof(range), "0-%llu",
                         (unsigned long long)(t->room ? t->room - 1 : 0));
                SET(CURLOPT_RANGE, range);
                SET(CURLOPT_HTTPGET, 1L);
                break;
        case BACKEND_DELETE:
                SET(CURLOPT_CUSTOMREQUEST, "DELETE");
                break;
        default:
                SET(CURLOPT_UPLOAD, 1L);
                SET(CURLOPT_INFILESIZE_LARGE, (int64_t)t->room);
                SET(CURLOPT_READFUNCTION, on_read);
                SET(CURLOPT_READDATA, t);
                SET(CURLOPT_SEEKFUNCTION, on_seek);
                SET(CURLOPT_SEEKDATA, t);
        }
#undef SET
        if (bad || api->multi_add_handle(s->multi, t->easy) != 0)
                return -ENOMEM;
        list_append(&s->active, &t->node);
        s->n_active++;
        return 0;
}

static void op_start(struct s3 *s, struct backend_op *op, bool conditional, uint64_t now)
{
        struct transfer *t = transfer_new(s);
        int r = -ENOMEM;

        if (t) {
                t->op = op;
                t->conditional = conditional;
                t->too_long = t->filled = false;
                t->room = op->pieces[0].iov_len + op->pieces[1].iov_len;
                t->sent = t->got = t->dropped = 0;
                t->size = UINT64_MAX;
                t->answer_n = 0;
                t->answer[0] = t->error[0] = 0;
                r = transfer_start(t, now);
                if (r < 0)
                        transfer_recycle(t);
        }
        if (r < 0)
                end_op(s, op, r);
}

static int failed_transfer(struct transfer *t, int code)
{
        struct backend_op *op = t->op;

        if (t->too_long) {
                snprintf(op->error, sizeof(op->error),
                         "the server sent more bytes than were requested");
                return -EIO;
        }
        snprintf(op->error, sizeof(op->error), "%.110s",
                 *t->error ? t->error : t->s3->api.easy_strerror(code));
        switch (code) {
        case CURLE_OPERATION_TIMEDOUT:
                return -ETIMEDOUT;
        case CURLE_COULDNT_CONNECT:
                return -ECONNREFUSED;
        case CURLE_COULDNT_RESOLVE_HOST:
                return -EHOSTUNREACH;
        case CURLE_OUT_OF_MEMORY:
                return -ENOMEM;
        default:
                return -EIO;
        }
}

static int read_result(struct transfer *t, long status)
{
        struct backend_op *op = t->op;
        char beginning[8] = { 0 };
        size_t n = MIN(t->got, sizeof(beginning) - 1);
        char *p = part_at(op, 0, &n);

        if (status == 416) { /* only an empty object lacks a first byte; RGW omits its size */
                op->size = 0;
                return 0;
        }
        if (p)
                memcpy(beginning, p, n);
        if (status == 200 && s3_answer_is_error(beginning, n)) {
                snprintf(op->error, sizeof(op->error),
                         "the server answered 200 with an error in the body");
                return -EIO;
        }
        if (t->size == UINT64_MAX || t->got != MIN(t->size, t->room)) {
                snprintf(op->error, sizeof(op->error),
                         "the server's answer is shorter or longer than its Content-Length");
                return -EIO;
        }
        op->size = t->size;
        op->transferred = t->got;
        return 0;
}

/* Ends a transfer that libcurl has released, or repeats it without the condition. */
static void transfer_end(struct transfer *t, int code)
{
        struct s3 *s = t->s3;
        struct backend_op *op = t->op;
        long status = status_of(t);
        bool again = false, refused = false;
        int r;

        if (code != CURLE_OK && !(code == CURLE_WRITE_ERROR && (t->filled || t->dropped > 0))) {
                r = failed_transfer(t, code);
        } else if (op->kind == BACKEND_READ && (status == 200 || status == 206 || status == 416)) {
                r = read_result(t, status);
        } else {
                r = s3_answer(op->kind, status, t->answer, s->bucket, op->error);
                again = t->conditional && s3_answer_refuses_condition(status, t->answer);
                refused = !t->conditional && op->kind == BACKEND_CREATE && r == 0;
        }
        transfer_recycle(t);
        if (again && clock_mono_ns() < op->deadline_ns) {
                op->error[0] = 0;
                op_start(s, op, false, clock_mono_ns());
                return;
        }
        if (refused)
                s->no_conditions = true;
        end_op(s, op, r);
}

/* --- the thread --- */

/* Starts queued operations while there are connections, ends those past their deadline, and returns
 * the earliest deadline of the others; UINT64_MAX if there are none. */
static uint64_t start_queued(struct s3 *s, uint64_t now)
{
        uint64_t next = UINT64_MAX;

        pthread_mutex_lock(&s->lock);
        list_for_each_safe (&s->queue, n) {
                struct backend_op *op = container_of(n, struct backend_op, node);

                if (op->deadline_ns <= now) {
                        list_unlink(n);
                        snprintf(op->error, sizeof(op->error),
                                 "%u requests of earlier operations are still in progress",
                                 s->n_active);
                        if (!s->closed)
                                backend_op_end(op, -ETIMEDOUT);
                } else {
                        next = MIN(next, op->deadline_ns);
                }
        }
        while (!s->stopping && s->n_active < s->depth) {
                struct list_node *n = list_pop(&s->queue);
                struct backend_op *op;

                if (!n)
                        break;
                op = container_of(n, struct backend_op, node);
                pthread_mutex_unlock(&s->lock);
                op_start(s, op, op->kind == BACKEND_CREATE && !s->no_conditions, now);
                pthread_mutex_lock(&s->lock);
        }
        pthread_mutex_unlock(&s->lock);
        return next;
}

static void cancel_active(struct s3 *s)
{
        while (!list_empty(&s->active)) {
                struct transfer *t = container_of(s->active.next, struct transfer, node);
                struct backend_op *op = t->op;

                s->api.multi_remove_handle(s->multi, t->easy);
                s->n_active--;
                transfer_recycle(t);
                end_op(s, op, -ECANCELED);
        }
}

static void take_ended(struct s3 *s)
{
        struct curl_message *m;
        int left;

        while ((m = s->api.multi_info_read(s->multi, &left))) {
                void *private_data = NULL;
                CURL *easy = m->easy;
                int code = m->data.result;

                if (m->what != CURLMSG_DONE)
                        continue;
                s->api.easy_getinfo(easy, CURLINFO_PRIVATE, &private_data);
                s->api.multi_remove_handle(s->multi, easy);
                s->n_active--;
                transfer_end(private_data, code);
        }
}

/* Unlocks, and frees `s` if this was the last reference. The lock is held on entry. */
static void unlock_and_unref(struct s3 *s)
{
        bool last = --s->refs == 0;

        pthread_mutex_unlock(&s->lock);
        if (!last)
                return;
        for (struct list_node *n; (n = list_pop(&s->idle));)
                transfer_free(container_of(n, struct transfer, node));
        if (s->multi)
                s->api.multi_cleanup(s->multi);
        s3_credentials_fini(&s->credentials);
        pthread_cond_destroy(&s->change);
        pthread_mutex_destroy(&s->lock);
        free(s->endpoint);
        free(s->bucket);
        free(s->ca);
        free(s);
}

static bool is_stopping(struct s3 *s)
{
        bool stopping;

        pthread_mutex_lock(&s->lock);
        stopping = s->stopping;
        pthread_mutex_unlock(&s->lock);
        return stopping;
}

static void *s3_run(void *userdata)
{
        struct s3 *s = userdata;

        while (!is_stopping(s)) {
                uint64_t now = clock_mono_ns(), next, wait_ms;
                int running;

                s3_credentials_refresh(&s->credentials, now);
                next = start_queued(s, now);
                s->api.multi_perform(s->multi, &running);
                take_ended(s);
                now = clock_mono_ns();
                wait_ms = next > now ? MIN((next - now) / 1000000 + 1, (uint64_t)POLL_MS_MAX) : 0;
                pthread_mutex_lock(&s->lock);
                if (!list_empty(&s->queue) && s->n_active < s->depth)
                        wait_ms = 0;
                pthread_mutex_unlock(&s->lock);
                s->api.multi_poll(s->multi, NULL, 0, (int)wait_ms, NULL);
        }
        cancel_active(s);
        pthread_mutex_lock(&s->lock);
        s->ended = true;
        pthread_cond_broadcast(&s->change);
        unlock_and_unref(s);
        return NULL;
}

/* --- the interface of backend.h --- */

static int refuse(char ret_error[static 256], const char *key, const char *what)
{
        snprintf(ret_error, 256, "%s %s", key, what);
        return -EINVAL;
}

static int check_params(const struct backend_params *p, char ret_error[static 256])
{
        const char *host = p->endpoint ? strstr(p->endpoint, "://") : NULL;

        if (!host ||
            (strncmp(p->endpoint, "http://", 7) != 0 && strncmp(p->endpoint, "https://", 8) != 0))
                return refuse(ret_error, "remote.endpoint",
                              "must be http://HOST[:PORT] or https://HOST[:PORT]");
        if (strlen(p->endpoint) > 400 || strpbrk(host, "?#@ \\") || strchr(host + 3, '/') ||
            !host[3])
                return refuse(ret_error, "remote.endpoint",
                              "must be a host and a port of at most 400 characters, without a user "
                              "or a path");
        if (!p->bucket || !*p->bucket || strlen(p->bucket) > 63 || strchr(p->bucket, '/'))
                return refuse(ret_error, "remote.bucket",
                              "must be the name of a bucket, 1 to 63 characters without \"/\"");
        if (p->region && (strlen(p->region) > 40 || strpbrk(p->region, ": /")))
                return refuse(ret_error, "remote.region",
                              "must be the name of a region, such as us-east-1: at most 40 "
                              "characters, none of them "
                              "a space, \":\" or \"/\"");
        if (p->ca && access(p->ca, R_OK) < 0) {
                int r = -errno;

                snprintf(ret_error, 256, "remote.ca: %.150s cannot be read: %s", p->ca,
                         strerror(-r));
                return r;
        }
        return 0;
}

static int s3_init(struct s3 *s, const struct backend_params *p)
{
        pthread_condattr_t monotonic;

        s->refs = 1;
        s->depth = MAX(p->depth, 1u);
        list_init(&s->queue);
        list_init(&s->active);
        list_init(&s->idle);
        pthread_mutex_init(&s->lock, NULL);
        pthread_condattr_init(&monotonic);
        pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        pthread_cond_init(&s->change, &monotonic);
        pthread_condattr_destroy(&monotonic);
        s->endpoint = strdup(p->endpoint);
        s->bucket = strdup(p->bucket);
        s->ca = p->ca ? strdup(p->ca) : NULL;
        snprintf(s->signature, sizeof(s->signature), "aws:amz:%s:s3",
                 p->region && *p->region ? p->region : "us-east-1");
        s->multi = s->api.multi_init();
        if (!s->endpoint || !s->bucket || (p->ca && !s->ca) || !s->multi)
                return -ENOMEM;
        s->api.multi_setopt(s->multi, CURLMOPT_PIPELINING, 0L);
        s->api.multi_setopt(s->multi, CURLMOPT_MAXCONNECTS, (long)s->depth);
        s->api.multi_setopt(s->multi, CURLMOPT_MAX_HOST_CONNECTIONS, (long)s->depth);
        s->api.multi_setopt(s->multi, CURLMOPT_MAX_TOTAL_CONNECTIONS, (long)s->depth);
        return 0;
}

static int s3_open(struct backend **ret, const struct backend_params *params,
                   char ret_error[static 256])
{
        struct s3 *s;
        pthread_t thread;
        int r = check_params(params, ret_error);

        if (r < 0)
                return r;
        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        r = libcurl_open(&s->api, strncmp(params->endpoint, "https", 5) == 0, ret_error);
        if (r < 0) {
                free(s);
                return r;
        }
        r = s3_init(s, params);
        if (r >= 0)
                r = s3_credentials_init(&s->credentials, params->credentials, ret_error);
        pthread_mutex_lock(&s->lock);
        if (r >= 0)
                r = thread_start(&thread, "kv-s3", s3_run, s);
        if (r < 0) {
                if (!*ret_error)
                        snprintf(ret_error, 256, "cannot initialize S3: %s", strerror(-r));
                unlock_and_unref(s);
                return r;
        }
        pthread_detach(thread);
        s->refs++; /* for the thread */
        pthread_mutex_unlock(&s->lock);
        *ret = (struct backend *)s;
        return 0;
}

static void s3_submit(struct backend *b, struct backend_op *op)
{
        struct s3 *s = s3_of(b);
        bool stopping;

        op->size = op->transferred = 0;
        op->error[0] = 0;
        list_init(&op->node);
        pthread_mutex_lock(&s->lock);
        stopping = s->stopping;
        if (stopping)
                backend_op_end(op, -ECANCELED);
        else
                list_append(&s->queue, &op->node);
        pthread_mutex_unlock(&s->lock);
        if (!stopping)
                s->api.multi_wakeup(s->multi);
}

static void s3_stop(struct backend *b)
{
        struct s3 *s = s3_of(b);

        pthread_mutex_lock(&s->lock);
        s->stopping = true;
        for (struct list_node *n; (n = list_pop(&s->queue));)
                backend_op_end(container_of(n, struct backend_op, node), -ECANCELED);
        pthread_mutex_unlock(&s->lock);
        s->api.multi_wakeup(s->multi);
}

static struct backend *s3_close(struct backend *b)
{
        struct s3 *s = s3_of(b);
        uint64_t until = clock_mono_ns() + CLOSE_WAIT_MS * 1000000ull;
        struct timespec t = { (time_t)(until / 1000000000), (long)(until % 1000000000) };

        if (!s)
                return NULL;
        s3_stop(b);
        pthread_mutex_lock(&s->lock);
        /* The thread ends soon unless it is inside a resolver or a library. */
        while (!s->ended && pthread_cond_timedwait(&s->change, &s->lock, &t) != ETIMEDOUT)
                ;
        s->closed = true;
        unlock_and_unref(s);
        return NULL;
}

const struct backend_ops backend_s3 = {
        .name = "s3",
        .open = s3_open,
        .submit = s3_submit,
        .stop = s3_stop,
        .close = s3_close,
};
