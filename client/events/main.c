/* SPDX-License-Identifier: Apache-2.0 */
/* kvcache-events: publishes the events of a kvcache-daemon for routers, in the form of vLLM's KV
 * events. An ordinary client of the daemon, in one thread.
 *
 * The program follows the daemon's events and publishes them. After a gap it publishes
 * AllBlocksCleared and all chunks. A subscriber that asks for batches which are no longer kept gets
 * all chunks in one batch. While the daemon cannot be reached the program tries again. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#include <kvcache-admin.h>

#include "build-config.h"
#include "checked.h"
#include "events/encode.h"
#include "events/publisher.h"

enum {
        EVENTS = 1024,
        WAIT_MS = 50, /* longest wait for events in follow(), ms; a subscriber's request for earlier
                         batches is read only after that wait */
        RETRY_MS = 200, /* interval between attempts to reach the daemon, ms */
        HEARTBEAT_MS = 1000,
        KEPT_BATCHES = 10000,
        KEPT_BYTES = 64 << 20,
        EXIT_USAGE = 2,
        EXIT_REFUSED = 4,
        EXIT_LOCAL = 6,
};

struct relay {
        const char *socket;
        uint32_t block_size;
        struct kvcache *kv;
        struct kvcache_events_position at;
        struct publisher *publisher;
        struct batch batch;
        struct kvcache_event events[EVENTS];
        bool is_incomplete;   /* subscribers lack changes before `at`, and need a snapshot */
        int64_t published_ms; /* monotonic time at which the last batch was sent */
        int said;             /* the error that was reported last; 0: none since the last success */
};

static volatile sig_atomic_t stopped;

static void on_signal(int signal)
{
        stopped = 1;
}

static double now(void)
{
        struct timespec t;

        clock_gettime(CLOCK_REALTIME, &t);
        return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int64_t mono_ms(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
}

/* Reports an error unless it is the one that was reported last. */
static void say(struct relay *r, int error, const char *text)
{
        if (r->said != error)
                fprintf(stderr, "kvcache-events: %s\n", text);
        r->said = error;
}

static int publish(struct relay *r, bool kept)
{
        int result = batch_end(&r->batch);

        if (result == 0)
                result = publisher_send(r->publisher, r->batch.data, r->batch.bytes, kept);
        r->published_ms = mono_ms();
        return result;
}

/* Publishes all chunks, after a gap. Returns 0, or -errno; -ESTALE if the daemon has restarted.
 * After an error subscribers have a part of the chunks, and `is_incomplete` stays set. */
static int publish_snapshot(struct relay *r)
{
        uint64_t cursor = 0;
        int n, result;

        r->is_incomplete = true;
        batch_begin(&r->batch, now());
        batch_add_cleared(&r->batch);
        result = publish(r, true);
        while (result == 0) {
                n = kvcache_events_snapshot(r->kv, &r->at, &cursor, r->events, EVENTS);
                if (n < 0)
                        return n;
                batch_begin(&r->batch, now());
                batch_add(&r->batch, r->events, (size_t)n, r->block_size);
                if (n > 0)
                        result = publish(r, true);
                if (cursor == 0)
                        break;
        }
        r->is_incomplete = result != 0;
        return result;
}

static bool has_removal(const struct kvcache_event *events, int n)
{
        for (int i = 0; i < n; i++)
                if (events[i].kind == KVCACHE_EVENT_NAMESPACE_REMOVED)
                        return true;
        return false;
}

/* Publishes the events since the last call, a snapshot if some were lost, the last snapshot was not
 * completed or a namespace was removed, or an empty batch if nothing was published for
 * HEARTBEAT_MS. If there are no events, first waits at most WAIT_MS for some. Returns 0 or -errno.
 */
static int follow(struct relay *r)
{
        int n = r->is_incomplete && r->at.epoch != 0
                        ? -ESTALE
                        : kvcache_events_next(r->kv, &r->at, r->events, EVENTS, WAIT_MS);
        int result = n;

        /* vLLM has no event for the removal of a namespace, so publish a snapshot, which lacks
         * the namespace's chunks. */
        if (n == -ESTALE || (n > 0 && has_removal(r->events, n)))
                result = publish_snapshot(r);
        if (result == -ESTALE) {
                r->at = (struct kvcache_events_position){ 0 };
                return 0;
        }
        if (result < 0 || result != n)
                return MIN(result, 0);
        if (n == 0 && mono_ms() - r->published_ms < HEARTBEAT_MS)
                return 0;
        batch_begin(&r->batch, n > 0 ? (double)r->events[n - 1].time_ms / 1e3 : now());
        batch_add(&r->batch, r->events, (size_t)n, r->block_size);
        result = publish(r, n > 0);
        r->is_incomplete = result != 0;
        return result;
}

/* Answers a request for earlier batches, with a snapshot if these are no longer kept. The snapshot
 * may include changes that are published after it; subscribers then apply such a change twice, with
 * the same result. Returns 0, or -errno without answering. */
static int answer(struct relay *r, uint64_t from)
{
        uint64_t cursor = 0, last = publisher_last(r->publisher);

        if (publisher_has(r->publisher, from)) {
                publisher_answer(r->publisher, from, NULL, 0, 0);
                return 0;
        }
        batch_begin(&r->batch, now());
        batch_add_cleared(&r->batch);
        do {
                int n = kvcache_events_snapshot(r->kv, &r->at, &cursor, r->events, EVENTS);

                if (n < 0)
                        return n; /* no answer is sent; the subscriber asks again */
                batch_add(&r->batch, r->events, (size_t)n, r->block_size);
        } while (cursor != 0 && !stopped);
        if (batch_end(&r->batch) < 0)
                return -ENOMEM;
        publisher_answer(r->publisher, last + 1, r->batch.data, r->batch.bytes, last);
        return 0;
}

static void pause_ms(long ms)
{
        nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000 }, NULL);
}

static int connect_daemon(struct relay *r)
{
        struct kvcache_options options = { .size = sizeof(options),
                                           .socket_path = r->socket,
                                           .client_name = "kvcache-events" };
        char error[512];
        int result = kvcache_connect(&r->kv, &options, error, sizeof(error));

        if (result < 0)
                say(r, result, error);
        return result;
}

static int run(struct relay *r)
{
        while (!stopped) {
                uint64_t from;
                int result = r->kv ? follow(r) : connect_daemon(r);

                if (result == -EOPNOTSUPP && r->kv && r->at.epoch == 0) {
                        say(r, result, kvcache_error(r->kv));
                        return EXIT_REFUSED;
                }
                if (result < 0 && r->kv) /* the library does not know an error of publishing */
                        say(r, result, result == -ENOMEM ? "out of memory" : kvcache_error(r->kv));
                if (result < 0)
                        pause_ms(RETRY_MS);
                else
                        r->said = 0;
                if (r->kv && r->at.epoch != 0 && publisher_take_request(r->publisher, &from) &&
                    answer(r, from) < 0)
                        pause_ms(RETRY_MS);
        }
        return EXIT_SUCCESS;
}

static const char usage_text[] =
        "usage: kvcache-events [OPTIONS]\n"
        "Publishes which chunks a kvcache-daemon has, in the form of vLLM's KV events.\n"
        "\n"
        "  -s, --socket PATH        the daemon's socket; else $KVCACHE_SOCKET, else the default\n"
        "  -e, --endpoint ENDPOINT  where to publish (default: tcp://127.0.0.1:5557)\n"
        "  -r, --replay ENDPOINT    where subscribers ask for earlier batches, or \"off\"\n"
        "                           (default: tcp://127.0.0.1:5558)\n"
        "  -t, --topic TEXT         the topic of all batches (default: empty)\n"
        "  -b, --buffer N           batches kept for replay (default: 10000)\n"
        "  -k, --block-size N       the block_size of BlockStored, in tokens (default: 0)\n"
        "  -h, --help\n"
        "  -V, --version\n"
        "\n"
        "The daemon needs events.ring. Other hosts can reach an endpoint such as tcp://*:5557;\n"
        "nothing is encrypted.\n";

static bool parse_number(const char *text, unsigned long least, unsigned long most,
                         unsigned long *ret)
{
        char *end;

        errno = 0;
        *ret = strtoul(text, &end, 10);
        return errno == 0 && *text >= '0' && *text <= '9' && *end == '\0' && *ret >= least &&
               *ret <= most;
}

static int refuse(const char *option, const char *text, unsigned long least, unsigned long most)
{
        fprintf(stderr, "kvcache-events: %s: '%s' is not a whole number from %lu to %lu\n", option,
                text, least, most);
        return EXIT_USAGE;
}

/* Reads the options. Returns -1 to continue, or an exit status. */
static int parse(int argc, char **argv, struct relay *r, struct publisher_params *params)
{
        static const struct option options[] = {
                { "socket", required_argument, NULL, 's' },
                { "endpoint", required_argument, NULL, 'e' },
                { "replay", required_argument, NULL, 'r' },
                { "topic", required_argument, NULL, 't' },
                { "buffer", required_argument, NULL, 'b' },
                { "block-size", required_argument, NULL, 'k' },
                { "help", no_argument, NULL, 'h' },
                { "version", no_argument, NULL, 'V' },
                { 0 },
        };
        unsigned long number;
        int option;

        while ((option = getopt_long(argc, argv, "s:e:r:t:b:k:hV", options, NULL)) >= 0) {
                switch (option) {
                case 's':
                        r->socket = optarg;
                        break;
                case 'e':
                        params->endpoint = optarg;
                        break;
                case 'r':
                        params->replay_endpoint = strcmp(optarg, "off") == 0 ? NULL : optarg;
                        break;
                case 't':
                        params->topic = optarg;
                        break;
                case 'b':
                        if (!parse_number(optarg, 1, 1000000, &number))
                                return refuse("--buffer", optarg, 1, 1000000);
                        params->batches = number;
                        break;
                case 'k':
                        if (!parse_number(optarg, 0, UINT32_MAX, &number))
                                return refuse("--block-size", optarg, 0, UINT32_MAX);
                        r->block_size = (uint32_t)number;
                        break;
                case 'h':
                        fputs(usage_text, stdout);
                        return EXIT_SUCCESS;
                case 'V':
                        puts("kvcache-events " KVCACHE_BUILD_VERSION);
                        return EXIT_SUCCESS;
                default:
                        fputs("See: kvcache-events --help\n", stderr);
                        return EXIT_USAGE;
                }
        }
        if (optind < argc) {
                fprintf(stderr, "kvcache-events: the command takes no operand, but '%s' is one\n",
                        argv[optind]);
                return EXIT_USAGE;
        }
        return -1;
}

int main(int argc, char **argv)
{
        static struct relay r;
        struct publisher_params params = {
                .endpoint = "tcp://127.0.0.1:5557",
                .replay_endpoint = "tcp://127.0.0.1:5558",
                .topic = "",
                .batches = KEPT_BATCHES,
                .bytes = KEPT_BYTES,
        };
        struct sigaction action = { .sa_handler = on_signal };
        const char *what;
        int status = parse(argc, argv, &r, &params), result;

        if (status >= 0)
                return status;
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
        result = publisher_new(&r.publisher, &params, &what);
        if (result < 0) {
                fprintf(stderr, "kvcache-events: %s: %s%s\n", what, zmq_strerror(-result),
                        result == -EADDRINUSE ? "; --endpoint and --replay name other endpoints"
                        : result == -EINVAL || result == -EPROTONOSUPPORT
                                ? "; an endpoint is such as tcp://127.0.0.1:5557"
                                : "");
                return EXIT_LOCAL;
        }
        status = run(&r);
        kvcache_close(r.kv);
        publisher_free(r.publisher);
        batch_fini(&r.batch);
        return status;
}
