/* SPDX-License-Identifier: Apache-2.0 */
/* remote: measures the back end of a shared tier, alone and through the daemon. */
#include <ftw.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "checked.h"
#include "commands.h"
#include "common.h"
#include "human.h"
#include "remote-bare.h"
#include "remote-job.h"
#include "remote-through.h"
#include "table.h"
#include "units.h"
#include "interrupt.h"

DEFINE_CLEANUP(struct remote_bare *, remote_bare_free);

enum {
        MOST_DEPTH = 256,
        MOST_OBJECTS = 1000000,
        CELL_BYTES = 64,
        DEFAULT_OBJECTS = 256,
        DEFAULT_DEPTH = 16,
        DEFAULT_TIMEOUT_S = 30,
};

enum {
        OPTION_PATH = OPTION_LONG,
        OPTION_SYNC,
        OPTION_POOL,
        OPTION_CEPH_CONF,
        OPTION_CEPH_USER,
        OPTION_ENDPOINT,
        OPTION_BUCKET,
        OPTION_REGION,
        OPTION_CREDENTIALS,
        OPTION_CA,
        OPTION_PREFIX,
        OPTION_TIMEOUT,
        OPTION_BARE,
};

static const struct backend_ops *const engines[] = { &backend_directory, &backend_rados,
                                                     &backend_s3 };

static const struct option_row remote_options[] = {
        { OPTION_PATH, "path", "DIR", "directory: the directory that hosts share", NULL },
        { OPTION_SYNC, "sync", NULL, "directory: fsync() each object before it has its name",
          NULL },
        { OPTION_POOL, "pool", "POOL", "rados: the pool", NULL },
        { OPTION_CEPH_CONF, "ceph-conf", "FILE", "rados: Ceph's configuration", NULL },
        { OPTION_CEPH_USER, "ceph-user", "NAME", "rados: without \"client.\"", NULL },
        { OPTION_ENDPOINT, "endpoint", "URL", "s3: where the service answers", NULL },
        { OPTION_BUCKET, "bucket", "NAME", "s3: the bucket", NULL },
        { OPTION_REGION, "region", "NAME", "s3: the region", NULL },
        { OPTION_CREDENTIALS, "credentials", "FILE", "s3: the file with the keys", NULL },
        { OPTION_CA, "ca", "FILE", "s3: certificates to verify the service by", NULL },
        { OPTION_PREFIX, "prefix", "NAME",
          "begins the name of every object (default: kvcache-bench- and a random\n"
          "number); all objects are deleted in the end" },
        { 'n', "objects", "N", "number of objects (default: 256)" },
        { 'b', "block-bytes", "SIZE", "bytes of a block, at most 64MiB (default: 2MiB)" },
        { 'd', "depth", "N", "operations at a time (default: 16)" },
        { OPTION_TIMEOUT, "timeout", "SECONDS", "of an operation (default: 30)" },
        { OPTION_BARE, "bare", NULL, "measure the storage alone, without a daemon", NULL },
        { 0 },
};

struct arguments {
        struct remote_job job;
        unsigned long long objects, bytes, depth, timeout_s;
        const char *prefix;
        bool bare;
};

struct figures {
        struct remote_figures bare, daemon;
};

/* --- arguments --- */

static bool remote_option(struct ctl *ctl, int option, const char *argument, struct arguments *a)
{
        struct backend_params *p = &a->job.params;

        switch (option) {
        case OPTION_PATH:
                p->path = argument;
                return true;
        case OPTION_SYNC:
                p->sync = true;
                return true;
        case OPTION_POOL:
                p->pool = argument;
                return true;
        case OPTION_CEPH_CONF:
                p->ceph_conf = argument;
                return true;
        case OPTION_CEPH_USER:
                p->ceph_user = argument;
                return true;
        case OPTION_ENDPOINT:
                p->endpoint = argument;
                return true;
        case OPTION_BUCKET:
                p->bucket = argument;
                return true;
        case OPTION_REGION:
                p->region = argument;
                return true;
        case OPTION_CREDENTIALS:
                p->credentials = argument;
                return true;
        case OPTION_CA:
                p->ca = argument;
                return true;
        case OPTION_PREFIX:
                a->prefix = argument;
                return true;
        case OPTION_BARE:
                a->bare = true;
                return true;
        case OPTION_TIMEOUT:
                return option_count(ctl, "--timeout", argument, 1, 3600, &a->timeout_s);
        case 'n':
                return option_count(ctl, "--objects", argument, 1, MOST_OBJECTS, &a->objects);
        case 'd':
                return option_count(ctl, "--depth", argument, 1, MOST_DEPTH, &a->depth);
        case 'b':
                return option_bytes(ctl, "--block-bytes", argument, &a->bytes);
        }
        return true;
}

/* Returns whether a text is a valid --prefix: parts divided by one "/", each of letters, digits,
 * "-", "_" and ".", and none beginning with "."; fewer than REMOTE_PREFIX_MAX bytes in all. The
 * rules of remote.prefix differ. */
static bool is_prefix(const char *text)
{
        const char *part = text;

        for (; *part; part += strcspn(part, "/"), part += *part == '/') {
                size_t n = strcspn(part, "/");

                if (n == 0 || part[0] == '.' ||
                    strspn(part,
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") < n)
                        return false;
        }
        return *text && text[strlen(text) - 1] != '/' && strlen(text) < REMOTE_PREFIX_MAX;
}

static int check_arguments(const struct command *self, struct arguments *a, const char *engine)
{
        char known[64] = "";

        for (size_t i = 0; i < ARRAY_SIZE(engines); i++) {
                size_t n = strlen(known);

                if (strcmp(engines[i]->name, engine) == 0)
                        a->job.engine = engines[i];
                snprintf(known + n, sizeof(known) - n, "%s%s", i > 0 ? ", " : "", engines[i]->name);
        }
        if (!a->job.engine)
                return usage_error(self, "'%s' is not a back end; use one of: %s", engine, known);
        if (a->bytes == 0 || a->bytes > REMOTE_CHUNK_MAX)
                return usage_error(self, "--block-bytes: a block has 1 byte to 64MiB");
        if (a->prefix && !is_prefix(a->prefix))
                return usage_error(
                        self,
                        "--prefix: '%s' has a part that is empty or begins with a dot, "
                        "or a character other than letters, digits, '-', '_' and '.', or "
                        "it is longer than %d bytes",
                        a->prefix, REMOTE_PREFIX_MAX - 1);
        return EXIT_OK;
}

static void set_job(struct arguments *a)
{
        struct remote_job *job = &a->job;
        uint64_t random = latency_now_ns();

        if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
                random ^= (uint64_t)getpid() << 32;
        if (a->prefix)
                snprintf(job->prefix, sizeof(job->prefix), "%s", a->prefix);
        else
                snprintf(job->prefix, sizeof(job->prefix), "kvcache-bench-%016" PRIx64, random);
        job->objects = a->objects;
        job->object_bytes = a->bytes;
        job->depth = (unsigned)a->depth;
        job->interrupted = &interrupted;
        job->params.prefix = job->prefix;
        job->params.depth = job->depth;
        job->params.timeout_ns = a->timeout_s * 1000000000u;
}

/* Reads the arguments. Returns EXIT_OK, or another status after reporting an error. Sets `*ret_end`
 * to whether the command must end now: after an error, or because --help was given. */
static int read_arguments(struct ctl *ctl, const struct command *self, int argc, char **argv,
                          struct arguments *a, bool *ret_end)
{
        const char *argument;
        int r, first;

        *ret_end = true;
        while ((r = option_next(ctl, self, argc, argv, &argument, &first)) > 0)
                if (!remote_option(ctl, r, argument, a))
                        return ctl->exit_status;
        if (r < 0)
                return ctl->exit_status;
        if (argc - first != 1)
                return usage_error(self, "exactly one BACKEND is needed");
        r = check_arguments(self, a, argv[first]);
        if (r != EXIT_OK)
                return r;
        set_job(a);
        *ret_end = false;
        return EXIT_OK;
}

/* --- the report --- */

static void add_row(struct text_table *table, const char *operation, const char *side,
                    struct remote_figures *f, const struct remote_figures *beside)
{
        char rate[CELL_BYTES], objects[CELL_BYTES];
        char p50[HUMAN_BYTES] = "", p99[HUMAN_BYTES] = "";
        char ratio[CELL_BYTES] = "";

        if (!f->measured)
                return;
        snprintf(rate, sizeof(rate), "%.3g GB/s", remote_rate(f) / 1e9);
        snprintf(objects, sizeof(objects), "%.0f",
                 f->ns > 0 ? (double)f->objects * 1e9 / (double)f->ns : 0);
        if (f->times.n > 0) {
                human_ns(latency_quantile(&f->times, 0.5), p50);
                human_ns(latency_quantile(&f->times, 0.99), p99);
        }
        if (beside && beside->measured && beside->ns > 0)
                snprintf(ratio, sizeof(ratio), "%.2f", remote_rate(f) / remote_rate(beside));
        text_table_row(table, operation, side, rate, objects, p50, p99, ratio);
}

static void print_table(const struct remote_job *job, struct figures *writes, struct figures *reads)
{
        _cleanup_(text_table_freep) struct text_table *table = text_table_new("llrrrrr");
        char count[HUMAN_BYTES], bytes[UNITS_TEXT];

        human_things(job->objects, "object", count);
        printf("%s: %s of %s, %u at a time\n\n", job->engine->name, count,
               units_bytes(job->object_bytes, bytes), job->depth);
        text_table_row(table, "", "", "rate", "objects/s", "p50", "p99", "ratio");
        add_row(table, "write", "storage alone", &writes->bare, NULL);
        add_row(table, "", "daemon", &writes->daemon, &writes->bare);
        add_row(table, "read", "storage alone", &reads->bare, NULL);
        add_row(table, "", "daemon", &reads->daemon, &reads->bare);
        text_table_print(table, "  ", stdout);
}

static void add_figures(cJSON *to, const char *name, struct remote_figures *f)
{
        cJSON *object;

        if (!f->measured)
                return;
        object = cJSON_AddObjectToObject(to, name);
        cJSON_AddNumberToObject(object, "bytes_per_second", remote_rate(f));
        cJSON_AddNumberToObject(object, "objects", (double)f->objects);
        cJSON_AddNumberToObject(object, "seconds", (double)f->ns / 1e9);
        if (f->times.n == 0)
                return;
        cJSON_AddNumberToObject(object, "p50_ns", (double)latency_quantile(&f->times, 0.5));
        cJSON_AddNumberToObject(object, "p99_ns", (double)latency_quantile(&f->times, 0.99));
}

static void add_pair(cJSON *to, const char *name, struct figures *f)
{
        cJSON *object = cJSON_AddObjectToObject(to, name);

        add_figures(object, "bare", &f->bare);
        add_figures(object, "daemon", &f->daemon);
        if (f->bare.measured && f->daemon.measured && f->bare.ns > 0)
                cJSON_AddNumberToObject(object, "ratio",
                                        remote_rate(&f->daemon) / remote_rate(&f->bare));
}

static int print_figures(const struct remote_job *job, struct figures *writes,
                         struct figures *reads)
{
        _cleanup_(cJSON_Deletep) cJSON *object = cJSON_CreateObject();

        cJSON_AddStringToObject(object, "backend", job->engine->name);
        cJSON_AddNumberToObject(object, "objects", (double)job->objects);
        cJSON_AddNumberToObject(object, "object_bytes", (double)job->object_bytes);
        cJSON_AddNumberToObject(object, "depth", job->depth);
        add_pair(object, "write", writes);
        add_pair(object, "read", reads);
        return print_json(object);
}

/* --- measuring, and clean-up --- */

static int remove_if_empty(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
        if (type == FTW_DP)
                (void)rmdir(path);
        return 0;
}

/* Removes the empty directories below the prefix in a shared directory; other back ends have no
 * directories. */
static void remove_directories(const struct remote_job *job)
{
        char path[4096];

        if (job->engine != &backend_directory ||
            snprintf(path, sizeof(path), "%s/%s", job->params.path, job->prefix) >=
                    (int)sizeof(path))
                return;
        (void)nftw(path, remove_if_empty, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static int measure(const struct arguments *a, struct figures *writes, struct figures *reads)
{
        _cleanup_(remote_bare_freep) struct remote_bare *bare = NULL;
        int status = remote_bare_new(&bare, &a->job), deleted;

        if (status != EXIT_OK)
                return status;
        status = remote_bare_write(bare, &writes->bare);
        if (status == EXIT_OK)
                status = remote_bare_read(bare, &reads->bare);
        deleted = remote_bare_delete(bare);
        if (status == EXIT_OK)
                status = deleted;
        if (status == EXIT_OK && !a->bare)
                status = remote_through(&a->job, bare, &writes->daemon, &reads->daemon);
        remove_directories(&a->job);
        return status;
}

static int run_remote(struct ctl *ctl, const struct command *self, int argc, char **argv)
{
        struct arguments a = {
                .objects = DEFAULT_OBJECTS,
                .bytes = 2 << 20,
                .depth = DEFAULT_DEPTH,
                .timeout_s = DEFAULT_TIMEOUT_S,
        };
        struct figures writes = { .bare.objects = 0 }, reads = { .bare.objects = 0 };
        bool end;
        int status = read_arguments(ctl, self, argc, argv, &a, &end);

        if (status != EXIT_OK || end)
                return status;
        interrupt_catch(); /* on a signal the command still deletes its objects */
        status = measure(&a, &writes, &reads);
        if (status == EXIT_INTERRUPTED)
                complain(EXIT_INTERRUPTED, "remote: interrupted; nothing is reported");
        if (status == EXIT_OK && ctl->json)
                status = print_figures(&a.job, &writes, &reads);
        else if (status == EXIT_OK)
                print_table(&a.job, &writes, &reads);
        latency_fini(&writes.bare.times);
        latency_fini(&writes.daemon.times);
        latency_fini(&reads.bare.times);
        latency_fini(&reads.daemon.times);
        return status;
}

static const char *const remote_engines[] = { "directory", "rados", "s3", NULL };

const struct command command_remote = {
        .name = "remote",
        .arguments = "BACKEND",
        .summary = "measure the storage of a shared tier, alone and through the daemon",
        .help = "Writes objects to storage that the shared tier could use (remote.backend), reads\n"
                "them, and deletes them: first by the daemon's own code alone, with --depth\n"
                "operations at a time; then through two daemons that are started for it, one that "
                "writes\n"
                "what a client puts, and one with an empty store that reads it. Prints the rates, "
                "the time\n"
                "of an object, and what share of the storage's rate the daemon has.\n"
                "BACKEND is directory, rados or s3; what each needs is as in the configuration.\n"
                "Needs no daemon.\n",
        .options = remote_options,
        .actions = remote_engines,
        .run = run_remote,
};
