/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a back end of the shared tier on a real engine, without the daemon:
 *
 *     backend-check contract BACKEND KEY=VALUE...      checks the requirements of backend.h
 *     backend-check put|get BACKEND KEY=VALUE...       performs one operation on `name`, prints its
 *                                                      result
 *
 * Keys: prefix, path, pool, conf, user, endpoint, bucket, region, credentials, ca, depth, name,
 * bytes, timeout_ms. kvcache-bench remote measures the speed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend-contract.h"
#include "base/clock.h"
#include "checked.h"

struct options {
        struct backend_params p;
        const char *name;
        uint64_t bytes;
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
        else if (strcmp(argument, "timeout_ms") == 0)
                p->timeout_ns = strtoull(value, NULL, 10) * 1000000;
        else
                return false;
        return true;
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
                             .bytes = 2 << 20 };
        const struct backend_ops *ops = NULL;
        unsigned failed, checks;

        for (unsigned i = 0; argc > 2 && i < ARRAY_SIZE(all); i++)
                if (strcmp(argv[2], all[i]->name) == 0)
                        ops = all[i];
        for (int i = 3; i < argc; i++)
                if (!parse(&o, argv[i]))
                        ops = NULL;
        if (!ops) {
                fprintf(stderr, "usage: backend-check contract|put|get directory|rados|s3 "
                                "KEY=VALUE...\n");
                return 2;
        }
        if (strcmp(argv[1], "put") == 0)
                return one(ops, &o, BACKEND_REPLACE);
        if (strcmp(argv[1], "get") == 0)
                return one(ops, &o, BACKEND_READ);
        failed = backend_contract(ops, &o.p, &checks);
        printf("%s: %u checks, %u failed\n", ops->name, checks, failed);
        return failed > 0;
}
