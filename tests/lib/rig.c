/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "open-fds.h"
#include "timeout.h"

int rig_setup(void **state)
{
        struct rig *r = calloc(1, sizeof(*r));

        assert_non_null(r);
        strcpy(r->dir, "/tmp/test-client-XXXXXX");
        assert_non_null(mkdtemp(r->dir));
        snprintf(r->path, sizeof(r->path), "%s/sock", r->dir);
        r->fds = open_fds();
        *state = r;
        return 0;
}

int rig_teardown(void **state)
{
        struct rig *r = *state;
        unsigned bad = 0, fds;

        kvcache_close(r->kv);
        if (r->d) {
                fake_daemon_lock(r->d);
                bad = r->d->bad_requests;
                fake_daemon_unlock(r->d);
        }
        fake_daemon_free(r->d);
        unlink(r->path);
        rmdir(r->dir);
        fds = open_fds();
        if (bad > 0 || fds != r->fds) {
                fprintf(stderr, "%u bad requests, %u descriptors before and %u after\n", bad,
                        r->fds, fds);
                return -1;
        }
        free(r);
        return 0;
}

struct kvcache_key rig_key(uint64_t n)
{
        struct kvcache_key k = { { 0 } };

        n++;
        memcpy(k.bytes, &n, sizeof(n));
        memset(k.bytes + 16, 0x5a, 16);
        return k;
}

void rig_fill(uint8_t *p, size_t bytes, uint64_t n)
{
        for (size_t i = 0; i < bytes; i++)
                p[i] = (uint8_t)(n * 31 + i * 7 + (i >> 8));
}

bool rig_filled(const uint8_t *p, size_t bytes, uint64_t n)
{
        for (size_t i = 0; i < bytes; i++)
                if (p[i] != (uint8_t)(n * 31 + i * 7 + (i >> 8)))
                        return false;
        return true;
}

struct kvcache_request rig_request(struct rig *r, enum kvcache_op op,
                                   const struct kvcache_key *keys, size_t n,
                                   struct kvcache_result *results)
{
        return (struct kvcache_request){
                .size = sizeof(struct kvcache_request),
                .entry_size = sizeof(struct kvcache_entry),
                .result_size = sizeof(struct kvcache_result),
                .op = op,
                .namespace_handle = r->ns,
                .keys = keys,
                .count = n,
                .results = results,
        };
}

void rig_put(struct rig *r, uint64_t n, size_t bytes)
{
        struct kvcache_key k = rig_key(n);
        uint8_t *data = malloc(bytes);

        assert_non_null(data);
        rig_fill(data, bytes, n);
        assert_int_equal(kvcache_put(r->kv, r->ns, &k, data, bytes, KVCACHE_WRITTEN), KVCACHE_OK);
        free(data);
}

struct kvcache_completion rig_reap(struct rig *r)
{
        struct kvcache_completion c = { 0 };

        assert_int_equal(kvcache_reap(r->kv, &c, 1, test_timeout_ms(60000)), 1);
        return c;
}

unsigned rig_peek(struct rig *r, const unsigned *value)
{
        unsigned n;

        fake_daemon_lock(r->d);
        n = *value;
        fake_daemon_unlock(r->d);
        return n;
}

struct fake_logged rig_logged(struct rig *r, unsigned i)
{
        struct fake_logged l = { 0 };

        fake_daemon_lock(r->d);
        if (i < r->d->n_log)
                l = r->d->log[i];
        fake_daemon_unlock(r->d);
        return l;
}
