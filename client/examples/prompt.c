/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the leading blocks of a prompt that are stored, and stores the others once they are
 * computed. The tutorial (client/TUTORIAL.md) builds it.
 *
 *     cc prompt.c $(pkg-config --cflags --libs kvcache) -o prompt
 */
#include <kvcache.h>
#include <stdio.h>
#include <string.h>

enum { BLOCKS = 8, BLOCK_BYTES = 64 * 1024 };

/* A request owns the memory that it names until its completion is reaped. */
static struct kvcache_key keys[BLOCKS];
static struct kvcache_entry entries[BLOCKS];
static struct kvcache_result results[BLOCKS];
static unsigned char blocks[BLOCKS][BLOCK_BYTES];

/* Returns the number of leading blocks of the prompt that were loaded, or a negative errno. */
static int load(struct kvcache *kv, uint32_t ns)
{
        struct kvcache_request request;
        uint64_t found;
        int r, n = 0;

        kvcache_prep_match(&request, ns, keys, BLOCKS);
        r = kvcache_submit_and_wait(kv, &request, &found);
        if (r < 0 || found == 0)
                return r;
        kvcache_prep_get(&request, ns, keys, found, results);
        r = kvcache_submit_and_wait(kv, &request, NULL);
        if (r < 0)
                return r;
        for (size_t i = 0; i < found; i++) {
                if (!kvcache_status_ok(results[i].status))
                        continue; /* evicted since the match: there is no lease */
                if (n == (int)i) {
                        memcpy(blocks[i], results[i].data, BLOCK_BYTES); /* or to the GPU */
                        n++;
                }
                kvcache_release(kv, &results[i].lease, 1);
        }
        return n;
}

/* Returns the number of other blocks that were stored within a second, or a negative errno. */
static int store(struct kvcache *kv, uint32_t ns, size_t from)
{
        struct kvcache_request request;
        struct kvcache_completion done;
        int r, n = 0;

        for (size_t i = from; i < BLOCKS; i++) {
                memset(blocks[i], (int)i, BLOCK_BYTES); /* in place of the computation */
                entries[i] = (struct kvcache_entry){ .key = keys[i],
                                                     .data = blocks[i],
                                                     .length = BLOCK_BYTES };
        }
        kvcache_prep_put(&request, ns, entries + from, BLOCKS - from, KVCACHE_WRITTEN,
                         results + from);
        request.parent = from > 0 ? &keys[from - 1]
                                  : NULL; /* the blocks continue the chain of the loaded ones */
        request.user_data = 1;
        r = kvcache_submit(kv, &request);
        if (r < 0)
                return r;

        /* ... decode ... */

        r = kvcache_reap(kv, &done, 1, 1000);
        if (r == 0) { /* not complete in time: cancel the keys that still wait */
                r = kvcache_cancel(kv, request.user_data);
                if (r >= 0)
                        r = kvcache_reap(kv, &done, 1, -1); /* the completion comes in any case */
        }
        for (size_t i = from; r >= 0 && i < BLOCKS; i++)
                n += kvcache_status_ok(results[i].status); /* else KVCACHE_CANCELLED, ... */
        return r < 0 ? r : n;
}

int main(void)
{
        struct kvcache_options options = { .size = sizeof(options) };
        struct kvcache_namespace_options ns_options = {
                .size = sizeof(ns_options),
                .name = "tutorial",
                .fingerprint = "model=demo\n",
        };
        struct kvcache *kv;
        char why[256];
        uint32_t ns;
        int r, loaded = 0, stored = 0;

        for (int i = 0; i < BLOCKS; i++) /* an engine takes a hash over the whole prefix */
                snprintf((char *)keys[i].bytes, sizeof(keys[i].bytes), "prompt, block %d", i);
        if (kvcache_connect(&kv, &options, why, sizeof(why)) < 0) {
                fprintf(stderr, "cannot connect: %s\n", why);
                return 1;
        }
        r = kvcache_namespace_open(kv, &ns_options, &ns);
        if (r == 0)
                r = loaded = load(kv, ns);
        if (r >= 0 && loaded < BLOCKS)
                r = stored = store(kv, ns, (size_t)loaded);
        if (r < 0)
                fprintf(stderr, "opening the namespace, loading or storing failed: %s\n",
                        kvcache_error(kv));
        else
                printf("%d blocks loaded, %d stored\n", loaded, stored);
        kvcache_close(kv);
        return r < 0;
}
