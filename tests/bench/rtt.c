/* SPDX-License-Identifier: Apache-2.0 */
/* Measures one round trip at a time: a batch of mapped hits through the library (by default one
 * hit), and an exchange of messages of the same length with an echo server.
 *
 * One thread does both, in slices that alternate; the side that begins a pair alternates, too. The
 * echo uses plain blocking send() and recv(): no library, no lease, no lookup. Its messages are as
 * long as those of the hits, with the same number of releases and results. The CPU time of a slice
 * is that of this thread and of the server's process, by their clocks, which are exact.
 *
 * The program puts the chunks. With --count, it instead takes --sample of those stored, and gets
 * each once before it measures. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "checked.h"
#include "wire.h"

enum {
        OWN_KEYS = 64,
        WARM_BATCH = 512,
        SAMPLES_MAX = 1 << 20,
        MESSAGE_MAX = WIRE_MAX_MESSAGE,
};

struct server {
        clockid_t clock;
        bool has_clock;
};

struct rtt {
        const struct bench_options *o;
        struct kvcache *kv;
        uint32_t namespace_handle;
        struct kvcache_key *keys;
        uint64_t n_keys, next;
        struct kvcache_result *results;
        struct kvcache_lease *leases;
        int echo_fd;
        struct server daemon, echo;
        size_t request_bytes, reply_bytes;
        uint32_t *samples;
};

/* Results of one side in a slice. */
struct side {
        uint32_t p50_ns, p99_ns;
        double cpu_ns; /* per round trip; negative: not known */
};

static int compare(const void *a, const void *b)
{
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

        return (x > y) - (x < y);
}

static int echo_connect(const char *path, int *ret)
{
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd;

        if (!path || strlen(path) >= sizeof(address.sun_path))
                return bench_fail("--echo needs a socket's path");
        memcpy(address.sun_path, path, strlen(path));
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return bench_fail("no socket: %s", strerror(errno));
        if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
                bench_fail("cannot connect to the echo: %s", strerror(errno));
                close(fd);
                return 1;
        }
        *ret = fd;
        return 0;
}

static int echo_once(struct rtt *t)
{
        static uint8_t request[MESSAGE_MAX], reply[MESSAGE_MAX];
        uint32_t bytes = (uint32_t)t->reply_bytes;

        memcpy(request, &bytes, sizeof(bytes)); /* the echo answers with so many */
        if (send(t->echo_fd, request, t->request_bytes, 0) != (ssize_t)t->request_bytes ||
            recv(t->echo_fd, reply, sizeof(reply), 0) != (ssize_t)t->reply_bytes)
                return bench_fail("the echo fails: %s", strerror(errno));
        return 0;
}

static int not_a_hit(const struct kvcache_result *result)
{
        if (result->status != KVCACHE_OK)
                return bench_fail("a hit was wanted, the answer is: %s",
                                  kvcache_status_name(result->status));
        if (!(result->tiers & KVCACHE_TIER_MEMORY))
                return bench_fail("a hit in memory was wanted, it came from the disk");
        return 0;
}

static int hit_once(struct rtt *t)
{
        struct kvcache_result *result = &t->results[0];
        int r;

        r = kvcache_get_map(t->kv, t->namespace_handle, &t->keys[t->next], result);
        t->next = t->next + 1 < t->n_keys ? t->next + 1 : 0;
        if (r < 0)
                return bench_fail("cannot get: %s", kvcache_error(t->kv));
        r = not_a_hit(result);
        if (r != 0)
                return r;
        /* The next request carries this release. */
        r = kvcache_release(t->kv, &result->lease, 1);
        return r < 0 ? bench_fail("cannot release: %s", kvcache_error(t->kv)) : 0;
}

static int get_batch(struct rtt *t, const struct kvcache_key *keys, uint64_t n, bool must_hit)
{
        struct kvcache_request request;
        int r;

        kvcache_prep_get(&request, t->namespace_handle, keys, n, t->results);
        r = kvcache_submit_and_wait(t->kv, &request, NULL);
        if (r < 0)
                return bench_fail("cannot get: %s", kvcache_error(t->kv));
        for (uint64_t i = 0; i < n; i++) {
                r = must_hit ? not_a_hit(&t->results[i]) : 0;
                if (r != 0)
                        return r;
                t->leases[i] = t->results[i].lease;
        }
        r = kvcache_release(t->kv, t->leases, n);
        return r < 0 ? bench_fail("cannot release: %s", kvcache_error(t->kv)) : 0;
}

static int hits_once(struct rtt *t)
{
        if (t->next + t->o->batch > t->n_keys)
                t->next = 0;
        t->next += t->o->batch;
        return get_batch(t, &t->keys[t->next - t->o->batch], t->o->batch, true);
}

static uint64_t clock_ns(clockid_t clock)
{
        struct timespec now = { 0 };

        (void)clock_gettime(clock, &now);
        return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t both_cpu_ns(const struct server *server)
{
        return bench_cpu_ns() + (server->has_clock ? clock_ns(server->clock) : 0);
}

static int slice(struct rtt *t, const struct server *server, int (*once)(struct rtt *t),
                 struct side *ret)
{
        uint64_t cpu = both_cpu_ns(server), begin = bench_now_ns(),
                 end = begin + t->o->slice_ms * 1000000, before = begin, now;
        uint64_t n = 0;
        int r;

        do {
                r = once(t);
                if (r != 0)
                        return r;
                now = bench_now_ns();
                t->samples[n++] = (uint32_t)MIN(now - before, (uint64_t)UINT32_MAX);
                before = now;
        } while (now < end && n < SAMPLES_MAX);
        ret->cpu_ns = server->has_clock ? (double)(both_cpu_ns(server) - cpu) / (double)n : -1;
        qsort(t->samples, n, sizeof(*t->samples), compare);
        ret->p50_ns = t->samples[n / 2];
        ret->p99_ns = t->samples[n * 99 / 100];
        return 0;
}

static void print_side(const char *name, const struct side *side)
{
        printf("\"%s_p50_ns\": %" PRIu32 ", \"%s_p99_ns\": %" PRIu32 ", \"%s_cpu_ns\": ", name,
               side->p50_ns, name, side->p99_ns, name);
        if (side->cpu_ns < 0)
                printf("null");
        else
                printf("%.1f", side->cpu_ns);
}

static int pairs(struct rtt *t)
{
        int (*once)(struct rtt * t) = t->o->batch > 1 ? hits_once : hit_once;
        struct side hit, echo, warm;
        int r;

        r = slice(t, &t->daemon, once, &warm);
        if (r == 0)
                r = slice(t, &t->echo, echo_once, &warm);
        for (uint64_t i = 0; r == 0 && i < t->o->pairs; i++) {
                if (i % 2 == 0)
                        r = slice(t, &t->echo, echo_once, &echo);
                if (r == 0)
                        r = slice(t, &t->daemon, once, &hit);
                if (r == 0 && i % 2 == 1)
                        r = slice(t, &t->echo, echo_once, &echo);
                if (r == 0) {
                        printf(i == 0 ? "[{" : ", {");
                        print_side("hit", &hit);
                        printf(", ");
                        print_side("echo", &echo);
                        putchar('}');
                }
        }
        if (r == 0) {
                putchar(']');
                bench_answer();
        }
        return r;
}

/* Chunks to hit: put if they are not there. */
static int prepare_own(struct rtt *t)
{
        uint64_t size = t->o->size;
        uint8_t *data = malloc(size);
        int r = 0;

        if (!data)
                return bench_fail("out of memory");
        content_fill(data, size, 0);
        for (uint64_t i = 0; i < t->n_keys && r == 0; i++) {
                t->keys[i] = content_key(i);
                content_stamp(data, size, i, 0);
                r = kvcache_put(t->kv, t->namespace_handle, &t->keys[i], data, size,
                                KVCACHE_WRITTEN);
                if (r < 0)
                        r = bench_fail("cannot put: %s", kvcache_error(t->kv));
                else if (r != KVCACHE_OK && r != KVCACHE_EXISTS)
                        r = bench_fail("cannot put: %s", kvcache_status_name(r));
                else
                        r = 0;
        }
        free(data);
        return r;
}

/* Chooses stored chunks in a random order, and gets each once. */
static int prepare_sample(struct rtt *t)
{
        int r = 0;

        srandom((unsigned)t->o->seed + 1);
        for (uint64_t i = 0; i < t->n_keys; i++) {
                uint64_t j = (uint64_t)random() % (i + 1);

                t->keys[i] = t->keys[j];
                t->keys[j] = bench_key(t->o, bench_sample(t->o, i, t->n_keys));
        }
        for (uint64_t i = 0; i < t->n_keys && r == 0; i += WARM_BATCH)
                r = get_batch(t, &t->keys[i], MIN((uint64_t)WARM_BATCH, t->n_keys - i), false);
        return r;
}

static int prepare(struct rtt *t)
{
        const struct bench_options *o = t->o;
        uint64_t room = MAX(o->batch, (uint64_t)WARM_BATCH);

        t->n_keys = o->count == 0 ? OWN_KEYS : o->sample > 0 ? MIN(o->sample, o->count) : o->count;
        t->request_bytes = sizeof(struct wire_batch) +
                           o->batch * (sizeof(struct wire_get) + sizeof(struct wire_lease));
        t->reply_bytes = sizeof(struct wire_reply) + o->batch * sizeof(struct wire_get_result);
        if (t->request_bytes > MESSAGE_MAX || o->batch > t->n_keys)
                return bench_fail("a batch of %" PRIu64 " keys is too many", o->batch);
        t->keys = calloc(t->n_keys, sizeof(*t->keys));
        t->results = calloc(room, sizeof(*t->results));
        t->leases = calloc(room, sizeof(*t->leases));
        t->samples = calloc(SAMPLES_MAX, sizeof(*t->samples));
        if (!t->keys || !t->results || !t->leases || !t->samples)
                return bench_fail("out of memory");
        return o->count == 0 ? prepare_own(t) : prepare_sample(t);
}

static void server_init(struct server *s, uint64_t pid)
{
        s->has_clock = pid > 0 && clock_getcpuclockid((pid_t)pid, &s->clock) == 0;
}

int mode_rtt(const struct bench_options *o)
{
        struct rtt t = { .o = o, .echo_fd = -1 };
        struct bench_step step;
        int r;

        server_init(&t.daemon, o->daemon_pid);
        server_init(&t.echo, o->echo_pid);
        r = bench_open(o, o->count > 0, &t.kv, &t.namespace_handle);
        if (r == 0)
                r = echo_connect(o->echo_path, &t.echo_fd);
        if (r == 0)
                r = prepare(&t);
        while (r == 0 && bench_next(o, &step))
                r = pairs(&t);
        if (t.echo_fd >= 0)
                close(t.echo_fd);
        kvcache_close(t.kv);
        free(t.keys);
        free(t.results);
        free(t.leases);
        free(t.samples);
        return r;
}
