/* SPDX-License-Identifier: Apache-2.0 */
/* Implements recorder.h. Entries go through the buffer into the socket at once, so that the reader
 * has them before the client has its reply. Data that the socket does not take waits for the next
 * entry, or at most a second.
 *
 * Failures: a batch without room is lost as a whole. A closed socket ends the recording. */
#include "request/recorder.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "cleanup.h"
#include "request/hits.h"
#include "request/internal.h"

#define NS_PER_S UINT64_C(1000000000)
#define ID_MASK  ((UINT64_C(1) << 53) - 1) /* 53 bits, which a JSON number holds exactly */

struct recorder {
        struct client *client;
        int fd;
        struct key_secret secret;
        uint64_t begun_ns, end_ns;
        uint64_t second;      /* number of the current second of the recording */
        uint32_t second_keys; /* keys recorded in the second `second` */
        uint64_t lost;        /* keys not recorded so far */
        bool is_over;         /* the final entry is in the buffer */
        size_t n;
        uint8_t buffer[RECORDER_BUFFER];
};

static void recorder_free(struct recorder *r)
{
        struct client *client = r->client;

        client->tenant->service->recorder = NULL;
        hits_suspend(client->tenant->service, false);
        quota_uncharge(&client->holds, QUOTA_REQUEST_BYTES, sizeof(*r));
        close(r->fd);
        explicit_bzero(&r->secret, sizeof(r->secret));
        free(r);
}

/* Sends as much of the buffer as the socket takes. Returns false if sending fails, mostly because
 * the reader has closed the socket; the recorder is freed then. */
static bool flush(struct recorder *r)
{
        size_t done = 0;

        while (done < r->n) {
                ssize_t n = send(r->fd, r->buffer + done, r->n - done, MSG_DONTWAIT | MSG_NOSIGNAL);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM))
                        break;
                if (n < 0) {
                        recorder_free(r);
                        return false;
                }
                done += (size_t)n;
        }
        r->n -= done;
        memmove(r->buffer, r->buffer + done, r->n);
        return true;
}

/* Returns whether the socket has a reader. Needed if there is no traffic, because only send() would
 * report a closed socket. */
static bool has_reader(const struct recorder *r)
{
        struct pollfd p = { .fd = r->fd };

        return poll(&p, 1, 0) < 1 || !(p.revents & (POLLHUP | POLLERR));
}

static uint64_t id_of(const struct recorder *r, uint32_t namespace_id, const struct key *key)
{
        uint64_t id = key_hash(&r->secret, namespace_id, key) & ID_MASK;

        return id ? id : 1; /* 0 stands for no key */
}

static uint64_t now_ms(const struct recorder *r)
{
        return (clock_mono_ns() - r->begun_ns) / (NS_PER_S / 1000);
}

/* Returns whether `keys` more keys are within the rate of the current second, and counts them if
 * so. */
static bool pace(struct recorder *r, uint64_t ms, uint32_t keys)
{
        if (r->second != ms / 1000) {
                r->second = ms / 1000;
                r->second_keys = 0;
        }
        if (keys > RECORDER_KEYS_PER_SECOND - r->second_keys)
                return false;
        r->second_keys += keys;
        return true;
}

static void record(struct recorder *r, const struct batch *b, uint16_t kind, uint32_t n)
{
        struct recorded *counts = &b->request.client->tenant->service->recorded;
        size_t bytes = sizeof(struct wire_record_entry) + n * sizeof(uint64_t);
        struct wire_record_entry entry = {
                .kind = kind,
                .count = (uint16_t)n,
                .session = b->request.client->id,
                .time_ms = now_ms(r),
        };
        uint8_t *at;

        if (r->is_over || n == 0)
                return;
        if (bytes > sizeof(r->buffer) - r->n && !flush(r))
                return;
        /* Leave room in the buffer for the final entry. */
        if (bytes > sizeof(r->buffer) - sizeof(entry) - r->n || !pace(r, entry.time_ms, n)) {
                r->lost += n;
                counts->lost += n;
                return;
        }
        entry.lost = r->lost;
        if (!key_is_root(&b->head.parent))
                entry.parent = id_of(r, b->head.namespace_id, &b->head.parent);
        at = mempcpy(r->buffer + r->n, &entry, sizeof(entry));
        for (uint32_t i = 0; i < n; i++) {
                uint64_t id = id_of(r, b->head.namespace_id, batch_entry(b, i));

                at = mempcpy(at, &id, sizeof(id));
        }
        r->n += bytes;
        counts->keys += n;
        (void)flush(r);
}

void recorder_put(struct recorder *r, const struct batch *b)
{
        record(r, b, WIRE_RECORD_PUT, b->head.count);
}

void recorder_got(struct recorder *r, const struct batch *b)
{
        uint32_t n = 0;

        while (n < b->head.count &&
               ((const struct wire_get_result *)batch_result(b, n))->status == WIRE_OK)
                n++;
        record(r, b, WIRE_RECORD_GET, n);
}

void recorder_tick(struct service *service, uint64_t now_ns)
{
        struct recorder *r = service->recorder;

        if (!r)
                return;
        if (!has_reader(r)) {
                recorder_free(r);
                return;
        }
        if (!r->is_over && (now_ns >= r->end_ns || service->stopping)) {
                struct wire_record_entry end = { .kind = WIRE_RECORD_END,
                                                 .time_ms = now_ms(r),
                                                 .lost = r->lost };

                memcpy(r->buffer + r->n, &end, sizeof(end)); /* record() has left room for this
                                                              * entry */
                r->n += sizeof(end);
                r->is_over = true;
        }
        if (!flush(r))
                return;
        if (r->is_over && (r->n == 0 || now_ns >= r->end_ns + RECORDER_LINGER_S * NS_PER_S))
                recorder_free(r);
}

void recorder_stop(struct client *client)
{
        struct recorder *r = client->tenant->service->recorder;

        if (r && r->client == client)
                recorder_free(r);
}

/* Creates a recorder, and stores the reader's end of the socket pair. Returns 0, or -errno without
 * memory or descriptors. */
static int recorder_new(struct client *client, uint32_t duration_s, int *ret_fd)
{
        struct recorder *r = calloc(1, sizeof(*r));
        int fds[2];

        if (!r)
                return -ENOMEM;
        if (getrandom(&r->secret, sizeof(r->secret), GRND_NONBLOCK) != sizeof(r->secret) ||
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0) {
                int error = errno;

                free(r);
                return -error;
        }
        /* Accept nothing from the other end, in particular no descriptors, which would have to be
         * closed here. */
        (void)shutdown(fds[0], SHUT_RD);
        r->client = client;
        r->fd = fds[0];
        r->begun_ns = clock_mono_ns();
        r->end_ns = r->begun_ns + duration_s * NS_PER_S;
        client->tenant->service->recorder = r;
        hits_suspend(client->tenant->service, true);
        client->tenant->service->recorded.recordings++;
        *ret_fd = fds[1];
        return 0;
}

void recorder_start(struct request req, const struct wire_record *msg)
{
        struct client *client = req.client;
        _cleanup_(closep) int fd = -1;
        enum wire_status status;
        int r;

        if (!client->admin) {
                request_fail(req, WIRE_DENIED, "recording the traffic of all users needs an admin");
                return;
        }
        if (client->tenant->service->recorder) {
                request_fail(req, WIRE_EXISTS_ALREADY, "a recording is already running");
                return;
        }
        if (!client->takes_fds(client, 1)) {
                request_fail(req, WIRE_BUSY, CLIENT_UNREAD);
                return;
        }
        status = client_charge(client, QUOTA_REQUEST_BYTES, sizeof(struct recorder));
        if (status != WIRE_OK) {
                request_fail(req, status, client_refusal(status));
                return;
        }
        r = recorder_new(client, msg->duration_s, &fd);
        if (r < 0) {
                quota_uncharge(&client->holds, QUOTA_REQUEST_BYTES, sizeof(struct recorder));
                request_fail(req, WIRE_BUSY,
                             "the daemon has no memory or descriptors for the recording");
                return;
        }
        request_reply_fds(req, 0, 0, &fd, 1);
}
