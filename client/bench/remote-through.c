/* SPDX-License-Identifier: Apache-2.0 */
/* Measures objects through daemons; see remote-through.h. The first daemon has an empty store
 * with room for all chunks. Its status has the number of chunks that it has written to the back
 * end, so the figure is the time from the first put until all of them are written; there is no
 * figure for a single object. The second daemon has room for all chunks, too, and each chunk is
 * got once. Both have temporary stores in embedded_parent(). */
#include "remote-through.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "checked.h"
#include "common.h"
#include "kvbench/embedded.h"
#include "kvbench/rest.h"
#include "kvcache-admin.h"
#include "progress.h"

#define NAMESPACE   "kvcache-bench-remote"
#define FINGERPRINT "format=kvcache-bench-remote\n"

enum {
        MOST_SETTINGS = 20,
        SETTING_BYTES = 600,
        REAP_MOST = 64,
        REAP_MS = 100,
        LOOK_MS = 10,
        STUCK_MS = 60000, /* time without progress after which the command gives up, ms */
        MOST_POOL = 1 << 30,
};

DEFINE_CLEANUP(struct kvcache *, kvcache_close);

struct settings {
        char text[MOST_SETTINGS][SETTING_BYTES];
        const char *list[MOST_SETTINGS + 1];
        unsigned n;
};

/* A request in flight for one chunk. */
struct flight {
        void *place; /* puts: place in staging */
        uint64_t object, begun_ns;
        struct kvcache_result result;
};

struct through {
        const struct remote_job *job;
        struct embedded daemon;
        struct kvcache *kv;
        uint32_t namespace_handle;
        struct flight *flights;
        unsigned n_idle, *idle;
        bool put;
        struct remote_figures *figures;
};

/* --- the daemons --- */

__attribute__((format(printf, 2, 3))) static void set(struct settings *s, const char *format, ...)
{
        va_list arguments;

        va_start(arguments, format);
        vsnprintf(s->text[s->n], SETTING_BYTES, format, arguments);
        va_end(arguments);
        s->list[s->n] = s->text[s->n];
        s->n++;
}

static void set_text(struct settings *s, const char *key, const char *value)
{
        if (value)
                set(s, "remote.%s=%s", key, value);
}

static uint64_t chunk_room(const struct remote_job *job)
{
        return round_up(job->object_bytes + 2 * REMOTE_HEADER_BYTES, 4096);
}

static void set_remote(struct settings *s, const struct remote_job *job, bool writes)
{
        const struct backend_params *p = &job->params;
        uint64_t window = MAX(job->depth * chunk_room(job), UINT64_C(1) << 20);

        set_text(s, "backend", job->engine->name);
        set_text(s, "path", p->path);
        set_text(s, "sync", p->path ? (p->sync ? "on" : "off") : NULL);
        set_text(s, "pool", p->pool);
        set_text(s, "ceph_conf", p->ceph_conf);
        set_text(s, "ceph_user", p->ceph_user);
        set_text(s, "endpoint", p->endpoint);
        set_text(s, "bucket", p->bucket);
        set_text(s, "region", p->region);
        set_text(s, "credentials", p->credentials);
        set_text(s, "ca", p->ca);
        set_text(s, "prefix", job->prefix);
        set_text(s, "write", writes ? "all" : "never");
        set(s, "remote.write_rate=0");
        set(s, "remote.write_queue=%" PRIu64,
            MAX(job->objects * chunk_room(job), UINT64_C(1) << 20));
        set(s, "remote.write_inflight=%" PRIu64, window);
        set(s, "remote.read_inflight=%" PRIu64, window);
        set(s, "remote.timeout=%" PRIu64 "s", p->timeout_ns / 1000000000u);
}

static int start(struct through *t, bool writes)
{
        const struct remote_job *job = t->job;
        uint64_t all = job->objects * chunk_room(job);
        struct settings settings = { .n = 0 };
        struct embedded_options options = {
                .limit_bytes = 2 * all + (UINT64_C(1) << 30),
                .pool_bytes = MIN(2 * all, (uint64_t)MOST_POOL) + 4 * job->depth * chunk_room(job) +
                              (UINT64_C(64) << 20),
                .entries = 2 * job->objects + 10000,
                .io_backend = "auto",
                .interrupted = job->interrupted,
                .settings = settings.list,
        };
        struct kvcache_namespace_options namespace = { .size = sizeof(namespace),
                                                       .name = NAMESPACE,
                                                       .fingerprint = FINGERPRINT };
        struct kvcache_options connection = {
                .size = sizeof(connection),
                .client_name = "kvcache-bench",
        };
        char error[256] = "";
        int status;

        set_remote(&settings, job, writes);
        status = embedded_start(&t->daemon, &options);
        if (status != EXIT_OK)
                return status;
        connection.socket_path = t->daemon.socket;
        if (kvcache_connect(&t->kv, &connection, error, sizeof(error)) < 0)
                return complain(EXIT_UNREACHABLE, "cannot connect to the embedded daemon: %s",
                                error);
        if (kvcache_namespace_open(t->kv, &namespace, &t->namespace_handle) < 0)
                return complain(EXIT_REFUSED, "cannot open a namespace: %s", kvcache_error(t->kv));
        return EXIT_OK;
}

/* Returns a number of the status's section `remote`, or -1 after reporting why it is not
 * available. */
static double remote_number(struct through *t, const char *name)
{
        _cleanup_(freep) char *text = NULL;
        _cleanup_(cJSON_Deletep) cJSON *status = NULL;
        const cJSON *number;

        if (kvcache_report(t->kv, KVCACHE_REPORT_STATUS, &text) < 0) {
                complain(EXIT_REFUSED, "cannot get the daemon's status: %s", kvcache_error(t->kv));
                return -1;
        }
        status = cJSON_Parse(text);
        number = cJSON_GetObjectItemCaseSensitive(
                cJSON_GetObjectItemCaseSensitive(status, "remote"), name);
        if (cJSON_IsNumber(number))
                return number->valuedouble;
        complain(EXIT_REFUSED, "the daemon's status has no \"%s\" of the shared tier", name);
        return -1;
}

/* Waits until the number `name` of the daemon's status is `wanted`. Returns EXIT_OK;
 * EXIT_INTERRUPTED; EXIT_REFUSED after reporting that the number is not available, that the daemon
 * ended, or that the number did not change for STUCK_MS. */
static int wait_for_number(struct through *t, const char *name, double wanted, const char *what)
{
        uint64_t last_ns = latency_now_ns();
        double before = -1;

        for (;;) {
                double now = remote_number(t, name);

                if (now < 0)
                        return EXIT_REFUSED;
                if (now == wanted)
                        return EXIT_OK;
                if (*t->job->interrupted)
                        return EXIT_INTERRUPTED;
                if (embedded_died(&t->daemon, 0))
                        return EXIT_REFUSED;
                if (now != before)
                        last_ns = latency_now_ns();
                before = now;
                if (latency_now_ns() - last_ns > STUCK_MS * UINT64_C(1000000))
                        return complain(EXIT_REFUSED,
                                        "the daemon's number of %s is %.0f, has not changed for %d "
                                        "s, and should become %.0f: check the back end",
                                        what, now, STUCK_MS / 1000, wanted);
                clock_nanosleep(CLOCK_MONOTONIC, 0,
                                &(struct timespec){ .tv_nsec = LOOK_MS * 1000000 }, NULL);
        }
}

/* Waits at most STUCK_MS until the daemon is at rest. A production daemon has prepared its memory
 * and its first data files long before, and its processors are free for requests. Returns EXIT_OK;
 * EXIT_INTERRUPTED; EXIT_REFUSED after reporting that the statistics are not available. */
static int wait_for_rest(struct through *t)
{
        struct rest rest = { 0 };
        uint64_t begun = latency_now_ns();

        for (;;) {
                int r = rest_look(&rest, t->kv);

                if (r < 0)
                        return complain(EXIT_REFUSED, "cannot get the daemon's statistics: %s",
                                        kvcache_error(t->kv));
                if (r > 0 || latency_now_ns() - begun > STUCK_MS * UINT64_C(1000000))
                        return EXIT_OK; /* after the maximum wait, measure the daemon although it is
                                           not at rest */
                if (*t->job->interrupted)
                        return EXIT_INTERRUPTED;
                clock_nanosleep(CLOCK_MONOTONIC, 0,
                                &(struct timespec){ .tv_nsec = REST_LOOK_MS * 1000000 }, NULL);
        }
}

static int wait_until_ready(struct through *t)
{
        int status = wait_for_number(t, "unknown_namespaces", 0,
                                     "namespaces that do not use the shared tier yet");

        return status == EXIT_OK ? wait_for_rest(t) : status;
}

/* --- the client --- */

static int begin(struct through *t, uint64_t object)
{
        unsigned number = t->idle[t->n_idle - 1];
        struct flight *f = &t->flights[number];
        struct kvcache_request request;
        struct kvcache_entry entry = { .data = f->place, .length = t->job->object_bytes };
        struct kvcache_key key;

        f->object = object;
        f->begun_ns = latency_now_ns();
        remote_key_of(object, key.bytes);
        if (t->put) {
                remote_stamp(object, f->place, t->job->object_bytes);
                entry.key = key;
                kvcache_prep_put(&request, t->namespace_handle, &entry, 1, KVCACHE_ACCEPTED,
                                 &f->result);
        } else
                kvcache_prep_get(&request, t->namespace_handle, &key, 1, &f->result);
        request.user_data = number;
        request.timeout_ms = STUCK_MS;
        if (kvcache_submit(t->kv, &request) < 0)
                return complain(EXIT_UNREACHABLE, "a request cannot be sent: %s",
                                kvcache_error(t->kv));
        t->n_idle--;
        return EXIT_OK;
}

static int end(struct through *t, const struct kvcache_completion *done)
{
        struct flight *f = &t->flights[done->user_data];
        bool right = true;

        t->idle[t->n_idle++] = (unsigned)done->user_data;
        if (f->result.status == KVCACHE_LOST)
                return complain(EXIT_UNREACHABLE, "the daemon went away before a chunk was %s",
                                t->put ? "put" : "got");
        if (done->error < 0 || f->result.status != KVCACHE_OK)
                return complain(EXIT_REFUSED, "a chunk cannot be %s; its status is: %s",
                                t->put ? "put" : "got", kvcache_status_name(f->result.status));
        if (!t->put) {
                right = f->result.data && f->result.length == t->job->object_bytes &&
                        remote_is_stamped(f->object, f->result.data, f->result.length);
                (void)kvcache_release(t->kv, &f->result.lease, 1);
        }
        if (!right)
                return complain(EXIT_NOT_FOUND,
                                "WRONG BYTES: the daemon returned chunk %" PRIu64
                                " with other bytes than were put",
                                f->object);
        t->figures->objects++;
        t->figures->bytes += t->job->object_bytes;
        if (!t->put)
                latency_add(&t->figures->times, latency_now_ns() - f->begun_ns);
        return EXIT_OK;
}

static int reap(struct through *t, uint64_t *ret_done)
{
        struct kvcache_completion done[REAP_MOST];
        int n = kvcache_reap(t->kv, done, REAP_MOST, REAP_MS), status = EXIT_OK;

        if (n < 0)
                return complain(EXIT_REFUSED, "completions cannot be taken: %s",
                                kvcache_error(t->kv));
        for (int i = 0; i < n && status == EXIT_OK; i++)
                status = end(t, &done[i]);
        *ret_done += (uint64_t)n;
        return *t->job->interrupted && status == EXIT_OK ? EXIT_INTERRUPTED : status;
}

static int make_flights(struct through *t)
{
        t->flights = calloc(t->job->depth, sizeof(*t->flights));
        t->idle = calloc(t->job->depth, sizeof(*t->idle));
        if (!t->flights || !t->idle)
                return complain_memory();
        for (t->n_idle = 0; t->n_idle < t->job->depth; t->n_idle++) {
                struct flight *f = &t->flights[t->n_idle];

                t->idle[t->n_idle] = t->n_idle;
                if (t->put && kvcache_staging_acquire(t->kv, t->job->object_bytes, &f->place) < 0)
                        break;
                if (t->put)
                        remote_fill(f->place, t->job->object_bytes);
        }
        if (t->n_idle == 0)
                return complain(EXIT_REFUSED, "cannot get staging memory for a chunk: %s",
                                kvcache_error(t->kv));
        return EXIT_OK;
}

static int move(struct through *t)
{
        struct progress progress;
        uint64_t next = 0, done = 0;
        int status = make_flights(t);

        progress_init(&progress);
        while (status == EXIT_OK && done < t->job->objects) {
                progress_note(&progress, (double)done / (double)t->job->objects,
                              t->put ? "put" : "got", done, "object");
                while (status == EXIT_OK && next < t->job->objects && t->n_idle > 0)
                        status = begin(t, next++);
                if (status == EXIT_OK)
                        status = reap(t, &done);
        }
        progress_end(&progress);
        return status;
}

/* --- measuring writes or reads --- */

static void finish(struct through *t)
{
        if (t->kv)
                kvcache_close(t->kv); /* ends requests in flight, which write to the results */
        embedded_stop(&t->daemon);
        free(t->flights);
        free(t->idle);
}

static int write_side(const struct remote_job *job, struct remote_figures *ret)
{
        struct through t = { .job = job, .put = true, .figures = ret };
        int status = start(&t, true);
        uint64_t begun;

        if (status == EXIT_OK)
                status = wait_until_ready(&t);
        begun = latency_now_ns();
        if (status == EXIT_OK)
                status = move(&t);
        if (status == EXIT_OK)
                status = wait_for_number(&t, "puts", (double)job->objects,
                                         "chunks that the daemon has written to the back end");
        ret->ns = latency_now_ns() - begun;
        ret->measured = status == EXIT_OK;
        finish(&t);
        return status;
}

static int read_side(const struct remote_job *job, struct remote_figures *ret)
{
        struct through t = { .job = job, .figures = ret };
        int status = start(&t, false);
        uint64_t begun;

        if (status == EXIT_OK)
                status = wait_until_ready(&t);
        begun = latency_now_ns();
        if (status == EXIT_OK)
                status = move(&t);
        ret->ns = latency_now_ns() - begun;
        ret->measured = status == EXIT_OK;
        finish(&t);
        return status;
}

int remote_through(const struct remote_job *job, struct remote_bare *bare,
                   struct remote_figures *ret_write, struct remote_figures *ret_read)
{
        struct remote_identity identity;
        int status, deleted;

        if (remote_identify(NULL, 0, NAMESPACE, FINGERPRINT, &identity) < 0)
                return complain(EXIT_LOCAL,
                                "libcrypto.so.3, which computes the names of objects on the shared "
                                "tier, cannot be loaded: install OpenSSL (package libssl3)");
        status = write_side(job, ret_write);
        if (status == EXIT_OK)
                status = read_side(job, ret_read);
        deleted = remote_bare_delete_of(bare, &identity, 0);
        return status == EXIT_OK ? deleted : status;
}
