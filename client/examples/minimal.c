/* SPDX-License-Identifier: Apache-2.0 */
/* Puts a block and gets it back: kvcache-example [SOCKET] */
#include <kvcache.h>

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
        struct kvcache_options options = { .size = sizeof(options),
                                           .socket_path = argc > 1 ? argv[1] : NULL };
        struct kvcache_namespace_options ns = {
                .size = sizeof(ns),
                .name = "example",
                .fingerprint = "dtype=bf16\nmodel=demo\n",
        };
        struct kvcache_key key = { "the 32 bytes that name the block" };
        static char block[64 * 1024], back[sizeof(block)];
        char why[256];
        struct kvcache *kv;
        uint32_t handle;
        size_t length;
        int r;

        if (kvcache_connect(&kv, &options, why, sizeof(why)) < 0) {
                fprintf(stderr, "no daemon: %s\n", why);
                return 1;
        }
        r = kvcache_namespace_open(kv, &ns, &handle);
        if (r == 0) {
                memset(block, 0x42, sizeof(block));
                r = kvcache_put(kv, handle, &key, block, sizeof(block), KVCACHE_WRITTEN);
        }
        if (r == KVCACHE_OK || r == KVCACHE_EXISTS)
                r = kvcache_get(kv, handle, &key, back, sizeof(back), &length);
        if (r == KVCACHE_OK && length == sizeof(block) && memcmp(block, back, length) == 0)
                printf("put and got %zu bytes\n", length);
        else
                fprintf(stderr, "%s %s\n", r < 0 ? "failed:" : kvcache_status_name(r),
                        kvcache_error(kv));
        kvcache_close(kv);
        return r == KVCACHE_OK ? 0 : 1;
}
