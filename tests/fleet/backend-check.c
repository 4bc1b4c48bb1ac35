/* SPDX-License-Identifier: Apache-2.0 */
/* A back end of the shared tier without the daemon, on a real engine:
 *
 *     backend-check contract BACKEND KEY=VALUE...      what backend.h asks for
 *     backend-check rates BACKEND KEY=VALUE...         MB/s of writes and reads of `bytes`, `depth`
 * at a time backend-check put|get BACKEND KEY=VALUE... name=NAME   one operation, and its result
 * and time
 *
 * Keys: prefix, path, pool, conf, user, endpoint, bucket, region, credentials, ca, depth, bytes,
 * seconds, timeout_ms. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend-contract.h"
#include "base/clock.h"
#include "checked.h"

struct options {
        struct backend_params p;
        const char *name;
        uint64_t bytes, seconds;
};

static bool parse(struct options *o, char *argument)
{
        struct backend_params *p = &o->p;
        char *value = strchr(argument, '=');
        struct {
                const char *key, **text;
        } texts[] = { { "prefix", &p->prefix },
                      { "path", &p->path },
                      { "pool", &p->pool },
                      { "conf", &p->ceph_conf },
                      { "user", &p->ceph_user },
                      { "endpoint", &p->endpoint },
                      { "bucket", &p->bucket },
                      { "region", &p->region },
                      { "credentials", &p->credentials },
                      { "ca", &p->ca },
                      { "name", &o->name } };

        if (!value)
                return false;
        *value++ = 0;
        for (unsigned i = 0; i < ARRAY_SIZE(texts); i++)
                if (strcmp(argument, texts[i].key) == 0) {
                        *texts[i].text = value;
                        return true;
                }
        if (strcmp(argument, "depth") == 0)
                p->depth = (unsigned)strtoul(value, NULL, 10);
        else if (strcmp(argument, "bytes") == 0)
                o->bytes = strtoull(value, NULL, 10);
        else if (strcmp(argument, "seconds") == 0)
                o->seconds = strtoull(value, NULL, 10);
        else if (strcmp(argument, "timeout_ms") == 0)
                p->timeout_ns = strtoull(value, NULL, 10) * 1000000;
        else
                return false;
        return true;
}

static void name_it(const struct options *o, uint64_t i, char ret[static REMOTE_NAME_MAX])
{
        snprintf(ret, REMOTE_NAME_MAX, "%s/1/rates/%02x/%llu", o->p.prefix, (unsigned)(i % 256),
                 (unsigned long long)i);
}

/* Keeps `depth` under way for so long, or until `most` have been begun. How many were. */
static uint64_t run(const struct backend_ops *ops, struct backend *b, const struct options *o,
                    enum backend_op_kind kind, uint64_t most, double *ret_seconds,
                    unsigned *ret_bad)
{
        struct operation **at = calloc(o->p.depth, sizeof(struct operation *));
        uint64_t begun = 0, ended = 0, started, until;

        for (unsigned i = 0; i < o->p.depth; i++) {
                at[i] = operation_new(kind, "", o->bytes, false);
                operation_fill(at[i], 1);
        }
        started = clock_mono_ns();
        until = kind == BACKEND_DELETE ? UINT64_MAX : started + o->seconds * SECOND_NS;
        *ret_bad = 0;
        for (;;) {
                bool more = begun < most && clock_mono_ns() < until;
                unsigned i = begun < o->p.depth ? (unsigned)begun : 0;

                if (begun >= o->p.depth || !more) {
                        if (ended == begun)
                                break;
                        i = operation_wait_any(at, o->p.depth);
                        *ret_bad += at[i]->op.result < 0;
                        *at[i]->op.name = 0;
                        ended++;
                }
                if (more) {
                        at[i]->ended = false;
                        at[i]->op.deadline_ns = clock_mono_ns() + o->p.timeout_ns;
                        name_it(o, begun++, at[i]->op.name);
                        ops->submit(b, &at[i]->op);
                }
        }
        *ret_seconds = (double)(clock_mono_ns() - started) / 1e9;
        for (unsigned i = 0; i < o->p.depth; i++)
                operation_free(at[i]);
        free(at);
        return begun;
}

static int rates(const struct backend_ops *ops, const struct options *o)
{
        struct backend *b = NULL;
        char error[256] = "";
        double write_s, read_s, delete_s;
        unsigned bad_write, bad_read, bad_delete;
        uint64_t written, read;

        if (ops->open(&b, &o->p, error) < 0) {
                fprintf(stderr, "%s\n", error);
                return 1;
        }
        written = run(ops, b, o, BACKEND_REPLACE, UINT64_MAX, &write_s, &bad_write);
        read = run(ops, b, o, BACKEND_READ, written, &read_s, &bad_read);
        run(ops, b, o, BACKEND_DELETE, written, &delete_s, &bad_delete);
        printf("%s write %.0f MB/s (%llu, %u failed) read %.0f MB/s (%llu, %u failed)\n", ops->name,
               (double)(written * o->bytes) / write_s / 1e6, (unsigned long long)written, bad_write,
               (double)(read * o->bytes) / read_s / 1e6, (unsigned long long)read, bad_read);
        ops->stop(b);
        ops->close(b);
        return bad_write + bad_read > 0;
}

static int one(const struct backend_ops *ops, const struct options *o, enum backend_op_kind kind)
{
        struct operation *p = operation_new(kind, o->name, o->bytes, false);
        struct backend *b = NULL;
        char error[256] = "";
        uint64_t began;

        if (ops->open(&b, &o->p, error) < 0) {
                fprintf(stderr, "%s\n", error);
                return 1;
        }
        operation_fill(p, 1);
        began = clock_mono_ns();
        p->op.deadline_ns = began + o->p.timeout_ns;
        ops->submit(b, &p->op);
        operation_wait(p);
        printf("%s after %.3f s: %s\n", p->op.result < 0 ? strerror(-p->op.result) : "done",
               (double)(clock_mono_ns() - began) / 1e9, p->op.error);
        fflush(stdout);
        ops->stop(b);
        ops->close(b);
        printf("closed after %.3f s\n", (double)(clock_mono_ns() - began) / 1e9);
        return p->op.result < 0;
}

int main(int argc, char **argv)
{
        static const struct backend_ops *const all[] = { &backend_directory, &backend_rados,
                                                         &backend_s3 };
        struct options o = { .p = { .prefix = "check", .depth = 16, .timeout_ns = 30 * SECOND_NS },
                             .name = "check/one",
                             .bytes = 2 << 20,
                             .seconds = 5 };
        const struct backend_ops *ops = NULL;
        unsigned failed, checks;

        for (unsigned i = 0; argc > 2 && i < ARRAY_SIZE(all); i++)
                if (strcmp(argv[2], all[i]->name) == 0)
                        ops = all[i];
        for (int i = 3; i < argc; i++)
                if (!parse(&o, argv[i]))
                        ops = NULL;
        if (!ops) {
                fprintf(stderr, "usage: backend-check contract|rates|put|get directory|rados|s3 "
                                "KEY=VALUE...\n");
                return 2;
        }
        if (strcmp(argv[1], "rates") == 0)
                return rates(ops, &o);
        if (strcmp(argv[1], "put") == 0)
                return one(ops, &o, BACKEND_REPLACE);
        if (strcmp(argv[1], "get") == 0)
                return one(ops, &o, BACKEND_READ);
        failed = backend_contract(ops, &o.p, &checks);
        printf("%s: %u checks, %u failed\n", ops->name, checks, failed);
        return failed > 0;
}
