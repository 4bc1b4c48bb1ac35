/* SPDX-License-Identifier: Apache-2.0 */
/* measure: the load side of the benchmark, one mode a process. bench.py starts it, signals
 * when to run (--steps: a line of standard input is one slice) and compares; alone it measures one
 * slice and prints it.
 *
 *   measure put --socket S --size 2097152 --batch 16 --ack written --seconds 1
 *   measure get --socket S --size 2097152 --batch 8 --count 512 --seconds 1
 *
 * Every answer is one line of JSON on standard output. Failures are one line on standard error and
 * exit status 1. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "bench.h"
#include "checked.h"

static const struct {
        const char *name;
        int (*run)(const struct bench_options *o);
        const char *help;
} modes[] = {
        { "put", mode_put, "put new chunks, `--first` and up, and count what is acknowledged" },
        { "get", mode_get,
          "get chunks, mapped or --region, in a random order that repeats, and count by tier" },
        { "match", mode_match, "match chains of `--batch` keys that are all there" },
        { "touch", mode_touch, "connect, get chunks, and read each for the first time" },
        { "idle", mode_idle, "hold `--connections` and do nothing" },
        { "report", mode_report,
          "steps `status` and `stats`: the daemon's own, a line of JSON each" },
        { "rtt", mode_rtt, "round trips of a hit and of an echo, in slices that alternate" },
        { "memcpy", mode_memcpy, "copy pieces of memory over a working set" },
        { "crc", mode_crc, "compute the checksum of pieces of memory over a working set" },
        { "bare-get", mode_bare_get, "read batches from --file by io_uring, without a daemon" },
        { "bare-put", mode_bare_put, "write batches to --file by io_uring, without a daemon" },
        { "cached", mode_cached,
          "read batches of --file's first --count pieces from the page cache" },
        { "spin", mode_spin, "keep every core from sleeping, in SCHED_IDLE, until killed" },
};

uint64_t bench_now_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

uint64_t bench_cpu_ns(void)
{
        struct timespec t;

        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

int bench_fail(const char *format, ...)
{
        va_list arguments;

        fputs("measure: ", stderr);
        va_start(arguments, format);
        vfprintf(stderr, format, arguments);
        va_end(arguments);
        fputc('\n', stderr);
        return 1;
}

bool bench_next(const struct bench_options *o, struct bench_step *ret)
{
        static bool ran;
        char line[128];

        *ret = (struct bench_step){ .word = "run", .seconds = o->seconds, .bytes = o->bytes };
        if (!o->steps) {
                if (ran)
                        return false;
                ran = true;
                return true;
        }
        if (!fgets(line, sizeof(line), stdin))
                return false;
        ret->seconds = 0;
        ret->bytes = 0;
        return sscanf(line, "%15s %lf %" SCNu64, ret->word, &ret->seconds, &ret->bytes) >= 1;
}

void bench_answer(void)
{
        fputc('\n', stdout);
        fflush(stdout);
}

int bench_open(const struct bench_options *o, bool attach, struct kvcache **ret,
               uint32_t *ret_namespace)
{
        struct kvcache_options options = {
                .size = sizeof(options),
                .socket_path = o->socket_path,
                .flags = (o->populate ? KVCACHE_POPULATE : 0u) |
                         (o->no_lookup ? KVCACHE_NO_LOOKUP : 0u),
                .client_name = "kvcache-bench",
                .staging_bytes = 64 << 20,
        };
        struct kvcache_namespace_options namespace = {
                .size = sizeof(namespace),
                .flags = attach ? KVCACHE_ATTACH : 0,
                .name = o->namespace_name,
                .fingerprint = attach ? NULL : "model=bench\n",
                .chunk_bytes = o->size,
        };
        char error[256] = "";
        struct kvcache *kv = NULL;
        int r;

        r = kvcache_connect(&kv, &options, error, sizeof(error));
        if (r < 0)
                return bench_fail("cannot connect: %s", *error ? error : strerror(-r));
        if (ret_namespace) {
                r = kvcache_namespace_open(kv, &namespace, ret_namespace);
                if (r < 0) {
                        bench_fail("cannot open the namespace %s: %s", o->namespace_name,
                                   kvcache_error(kv));
                        kvcache_close(kv);
                        return 1;
                }
        }
        *ret = kv;
        return 0;
}

int mode_report(const struct bench_options *o)
{
        struct kvcache *kv;
        struct bench_step step;
        int r;

        r = bench_open(o, true, &kv, NULL);
        if (r != 0)
                return r;
        while (bench_next(o, &step)) {
                bool status = strcmp(step.word, "status") == 0;
                char *text = NULL;

                r = kvcache_report(kv, status ? KVCACHE_REPORT_STATUS : KVCACHE_REPORT_STATS,
                                   &text);
                if (r < 0) {
                        bench_fail("no report: %s", kvcache_error(kv));
                        break;
                }
                for (char *p = text; *p; p++)
                        if (*p == '\n')
                                *p = ' ';
                fputs(text, stdout);
                free(text);
                bench_answer();
        }
        kvcache_close(kv);
        return r < 0;
}

enum {
        OPTION_SOCKET = 1,
        OPTION_ECHO,
        OPTION_NAMESPACE,
        OPTION_FILE,
        OPTION_HUGE_PAGES,
        OPTION_STREAM,
        OPTION_POSIX,
        OPTION_SIZE,
        OPTION_BATCH,
        OPTION_OUTSTANDING,
        OPTION_FIRST,
        OPTION_COUNT,
        OPTION_SAMPLE,
        OPTION_CHAIN,
        OPTION_SEED,
        OPTION_TIER,
        OPTION_KEYS,
        OPTION_REGION,
        OPTION_WORKING_SET,
        OPTION_SOURCE,
        OPTION_CONNECTIONS,
        OPTION_DAEMON_PID,
        OPTION_ECHO_PID,
        OPTION_POPULATE,
        OPTION_NO_LOOKUP,
        OPTION_PAIRS,
        OPTION_SLICE_MS,
        OPTION_SECONDS,
        OPTION_BYTES,
        OPTION_ACK,
        OPTION_STEPS,
        OPTION_HELP,
};

static const struct option long_options[] = {
        { "socket", required_argument, NULL, OPTION_SOCKET },
        { "echo", required_argument, NULL, OPTION_ECHO },
        { "namespace", required_argument, NULL, OPTION_NAMESPACE },
        { "file", required_argument, NULL, OPTION_FILE },
        { "size", required_argument, NULL, OPTION_SIZE },
        { "batch", required_argument, NULL, OPTION_BATCH },
        { "outstanding", required_argument, NULL, OPTION_OUTSTANDING },
        { "first", required_argument, NULL, OPTION_FIRST },
        { "count", required_argument, NULL, OPTION_COUNT },
        { "sample", required_argument, NULL, OPTION_SAMPLE },
        { "chain", required_argument, NULL, OPTION_CHAIN },
        { "seed", required_argument, NULL, OPTION_SEED },
        { "tier", required_argument, NULL, OPTION_TIER },
        { "keys", required_argument, NULL, OPTION_KEYS },
        { "region", required_argument, NULL, OPTION_REGION },
        { "working-set", required_argument, NULL, OPTION_WORKING_SET },
        { "source", required_argument, NULL, OPTION_SOURCE },
        { "connections", required_argument, NULL, OPTION_CONNECTIONS },
        { "daemon-pid", required_argument, NULL, OPTION_DAEMON_PID },
        { "echo-pid", required_argument, NULL, OPTION_ECHO_PID },
        { "huge-pages", no_argument, NULL, OPTION_HUGE_PAGES },
        { "stream", no_argument, NULL, OPTION_STREAM },
        { "posix", no_argument, NULL, OPTION_POSIX },
        { "populate", no_argument, NULL, OPTION_POPULATE },
        { "no-lookup", no_argument, NULL, OPTION_NO_LOOKUP },
        { "pairs", required_argument, NULL, OPTION_PAIRS },
        { "slice-ms", required_argument, NULL, OPTION_SLICE_MS },
        { "seconds", required_argument, NULL, OPTION_SECONDS },
        { "bytes", required_argument, NULL, OPTION_BYTES },
        { "ack", required_argument, NULL, OPTION_ACK },
        { "steps", no_argument, NULL, OPTION_STEPS },
        { "help", no_argument, NULL, OPTION_HELP },
        { 0 },
};

static int usage(FILE *out, int status)
{
        fputs("usage: measure MODE [OPTIONS]\n\nModes:\n", out);
        for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
                fprintf(out, "  %-8s %s\n", modes[i].name, modes[i].help);
        fputs("\nOptions (sizes in bytes):\n", out);
        for (const struct option *p = long_options; p->name; p++)
                fprintf(out, "  --%s%s\n", p->name, p->has_arg ? " VALUE" : "");
        return status;
}

static bool parse_number(const char *text, uint64_t *ret)
{
        char *end;

        errno = 0;
        *ret = strtoull(text, &end, 0);
        return errno == 0 && end != text && *end == '\0' && *text != '-';
}

static bool parse_ack(const char *text, enum kvcache_ack *ret)
{
        static const char *const names[] = { "accepted", "written", "durable" };

        for (unsigned i = 0; i < ARRAY_SIZE(names); i++)
                if (strcmp(text, names[i]) == 0) {
                        *ret = (enum kvcache_ack)i;
                        return true;
                }
        return false;
}

static bool parse_tier(const char *text, enum kvcache_tier *ret)
{
        static const struct {
                const char *name;
                enum kvcache_tier tier;
        } tiers[] = { { "memory", KVCACHE_TIER_MEMORY },
                      { "disk", KVCACHE_TIER_DISK },
                      { "any", KVCACHE_TIER_ALL } };

        for (unsigned i = 0; i < ARRAY_SIZE(tiers); i++)
                if (strcmp(text, tiers[i].name) == 0) {
                        *ret = tiers[i].tier;
                        return true;
                }
        return false;
}

static bool parse_option(int id, const char *argument, struct bench_options *o)
{
        char *end;

        switch (id) {
        case OPTION_SOCKET:
                o->socket_path = argument;
                return true;
        case OPTION_ECHO:
                o->echo_path = argument;
                return true;
        case OPTION_NAMESPACE:
                o->namespace_name = argument;
                return true;
        case OPTION_FILE:
                if (o->n_files == BENCH_FILES_MAX)
                        return false;
                o->files[o->n_files++] = argument;
                return true;
        case OPTION_SIZE:
                return parse_number(argument, &o->size) && o->size >= CONTENT_MIN;
        case OPTION_BATCH:
                return parse_number(argument, &o->batch) && o->batch > 0 && o->batch <= 8192;
        case OPTION_OUTSTANDING:
                return parse_number(argument, &o->outstanding) && o->outstanding > 0 &&
                       o->outstanding <= UINT16_MAX;
        case OPTION_FIRST:
                return parse_number(argument, &o->first);
        case OPTION_COUNT:
                return parse_number(argument, &o->count);
        case OPTION_SAMPLE:
                return parse_number(argument, &o->sample);
        case OPTION_CHAIN:
                return parse_number(argument, &o->chain) && o->chain > 0;
        case OPTION_SEED:
                return parse_number(argument, &o->seed);
        case OPTION_TIER:
                return parse_tier(argument, &o->tier);
        case OPTION_KEYS:
                o->plain_keys = strcmp(argument, "plain") == 0;
                return o->plain_keys || strcmp(argument, "mixed") == 0;
        case OPTION_REGION:
                return parse_number(argument, &o->region) && o->region <= UINT64_C(1) << 40;
        case OPTION_WORKING_SET:
                return parse_number(argument, &o->working_set);
        case OPTION_SOURCE:
                return parse_number(argument, &o->source) && o->source > 0;
        case OPTION_CONNECTIONS:
                return parse_number(argument, &o->connections) && o->connections <= 4096;
        case OPTION_DAEMON_PID:
                return parse_number(argument, &o->daemon_pid) && o->daemon_pid <= INT32_MAX;
        case OPTION_ECHO_PID:
                return parse_number(argument, &o->echo_pid) && o->echo_pid <= INT32_MAX;
        case OPTION_HUGE_PAGES:
                o->huge_pages = true;
                return true;
        case OPTION_STREAM:
                o->stream = true;
                return true;
        case OPTION_POSIX:
                o->posix = true;
                return true;
        case OPTION_NO_LOOKUP:
                o->no_lookup = true;
                return true;
        case OPTION_POPULATE:
                o->populate = true;
                return true;
        case OPTION_PAIRS:
                return parse_number(argument, &o->pairs) && o->pairs > 0 && o->pairs <= 1000;
        case OPTION_SLICE_MS:
                return parse_number(argument, &o->slice_ms) && o->slice_ms > 0;
        case OPTION_SECONDS:
                o->seconds = strtod(argument, &end);
                return end != argument && *end == '\0' && o->seconds > 0;
        case OPTION_BYTES:
                return parse_number(argument, &o->bytes);
        case OPTION_ACK:
                return parse_ack(argument, &o->ack);
        case OPTION_STEPS:
                o->steps = true;
                return true;
        default:
                return false;
        }
}

int main(int argc, char *argv[])
{
        struct bench_options o = {
                .namespace_name = "bench",
                .size = 2 << 20,
                .batch = 1,
                .outstanding = 16,
                .chain = 1,
                .tier = KVCACHE_TIER_DISK,
                .working_set = 1 << 30,
                .source = 64 << 20,
                .connections = 64,
                .pairs = 10,
                .slice_ms = 50,
                .seconds = 1,
                .ack = KVCACHE_WRITTEN,
        };
        int id;

        prctl(PR_SET_PDEATHSIG, SIGTERM); /* nothing stays behind when bench.py is killed */
        if (argc < 2)
                return usage(stderr, 2);
        while ((id = getopt_long(argc - 1, argv + 1, "", long_options, NULL)) != -1) {
                if (id == OPTION_HELP)
                        return usage(stdout, 0);
                if (id == '?' || !parse_option(id, optarg, &o)) {
                        if (id != '?')
                                bench_fail("bad value: %s", optarg);
                        return 2;
                }
        }
        o.outstanding = MAX(o.batch, o.outstanding);
        for (size_t i = 0; i < ARRAY_SIZE(modes); i++)
                if (strcmp(argv[1], modes[i].name) == 0)
                        return modes[i].run(&o);
        return strcmp(argv[1], "--help") == 0 ? usage(stdout, 0) : usage(stderr, 2);
}
