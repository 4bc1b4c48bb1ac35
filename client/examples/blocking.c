/* SPDX-License-Identifier: Apache-2.0 */
/* Blocking: puts a chain of blocks, finds out how many of them are stored, and gets them back.
 *
 * cc blocking.c $(pkg-config --cflags --libs kvcache) && ./a.out [SOCKET] */
#include <kvcache.h>

#include <stdio.h>
#include <string.h>

enum { BLOCKS = 8, BLOCK_BYTES = 64 * 1024 };

static unsigned char blocks[BLOCKS][BLOCK_BYTES];

/* An engine would hash the tokens of the whole prefix; here a number suffices. */
static struct kvcache_key key_of(unsigned n)
{
        struct kvcache_key key = { "example" };

        key.bytes[31] = (unsigned char)(n + 1);
        return key;
}

static int put(struct kvcache *kv, uint32_t ns)
{
        struct kvcache_entry entries[BLOCKS];
        struct kvcache_result results[BLOCKS];
        struct kvcache_request request;
        int r;

        memset(entries, 0, sizeof(entries));
        for (unsigned i = 0; i < BLOCKS; i++) {
                memset(blocks[i], (int)i + 1, BLOCK_BYTES);
                entries[i].key = key_of(i);
                entries[i].data = blocks[i];
                entries[i].length = BLOCK_BYTES;
        }
        kvcache_prep_put(&request, ns, entries, BLOCKS, KVCACHE_WRITTEN, results);
        r = kvcache_submit_and_wait(kv, &request, NULL);
        if (r < 0)
                return r;
        for (unsigned i = 0; i < BLOCKS; i++)
                if (!kvcache_status_ok(results[i].status))
                        printf("block %u was not kept: %s\n", i,
                               kvcache_status_name(results[i].status));
        return 0;
}

static int get(struct kvcache *kv, uint32_t ns)
{
        struct kvcache_key keys[BLOCKS];
        struct kvcache_result results[BLOCKS];
        struct kvcache_lease leases[BLOCKS];
        struct kvcache_request request;
        unsigned good = 0, n_leases = 0;
        uint64_t run = 0;
        int r;

        for (unsigned i = 0; i < BLOCKS; i++)
                keys[i] = key_of(i);
        kvcache_prep_match(&request, ns, keys, BLOCKS);
        r = kvcache_submit_and_wait(kv, &request, &run);
        if (r < 0)
                return r;

        /* A mapped get: the data is read in place, in the daemon's memory, until it is released. */
        kvcache_prep_get(&request, ns, keys, run, results);
        r = kvcache_submit_and_wait(kv, &request, NULL);
        if (r < 0)
                return r;
        for (unsigned i = 0; i < run; i++) {
                if (!kvcache_status_ok(results[i].status))
                        continue; /* to be recomputed */
                good += results[i].length == BLOCK_BYTES &&
                        memcmp(results[i].data, blocks[i], BLOCK_BYTES) == 0;
                leases[n_leases++] = results[i].lease;
        }
        printf("%u of %d blocks came back\n", good, BLOCKS);
        return kvcache_release(kv, leases, n_leases);
}

int main(int argc, char **argv)
{
        struct kvcache_options options = { .size = sizeof(options),
                                           .socket_path = argc > 1 ? argv[1] : NULL };
        struct kvcache_namespace_options ns_options = {
                .size = sizeof(ns_options),
                .name = "example",
                .fingerprint = "dtype=bf16\nmodel=demo\n",
        };
        struct kvcache *kv;
        char why[256];
        uint32_t ns;
        int r;

        if (kvcache_connect(&kv, &options, why, sizeof(why)) < 0) {
                fprintf(stderr, "cannot connect: %s\n", why);
                return 1;
        }
        r = kvcache_namespace_open(kv, &ns_options, &ns);
        if (r == 0)
                r = put(kv, ns);
        if (r == 0)
                r = get(kv, ns);
        if (r < 0)
                fprintf(stderr, "opening the namespace, storing or loading failed: %s\n",
                        kvcache_error(kv));
        kvcache_close(kv);
        return r < 0;
}
