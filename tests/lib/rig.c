/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

unsigned rig_count_fds(void)
{
        DIR *dir = opendir("/proc/self/fd");
        unsigned n = 0;

        assert_non_null(dir);
        while (readdir(dir))
                n++;
        closedir(dir);
        return n;
}

int rig_setup(void **state)
{
        struct rig *r = calloc(1, sizeof(*r));

        assert_non_null(r);
        strcpy(r->dir, "/tmp/test-client-XXXXXX");
        assert_non_null(mkdtemp(r->dir));
        snprintf(r->path, sizeof(r->path), "%s/sock", r->dir);
        r->fds = rig_count_fds();
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
        fds = rig_count_fds();
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
