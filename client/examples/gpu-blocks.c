/* SPDX-License-Identifier: Apache-2.0 */
/* Puts blocks of GPU memory, and gets them back.
 *
 * cc gpu-blocks.c $(pkg-config --cflags --libs kvcache) && ./a.out [SOCKET]
 *
 * An engine uses the CUDA toolkit and has its own memory, streams and events. This example needs
 * no toolkit: it declares the few functions of the driver that it calls. */
#include <kvcache-gpu.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum {
        LAYERS = 4,
        BLOCKS = 8, /* blocks of the cache; the first half is put and got into the second */
        REGION = 16 * 8 * 128 * 2,
        BUFFER = 2 * BLOCKS * REGION,
        MEMORY = LAYERS * BUFFER,
};

typedef struct CUstream_st *stream_handle;
static struct {
        int (*init)(unsigned);
        int (*retain)(void **, int);
        int (*push)(void *);
        int (*alloc)(uint64_t *, size_t);
        int (*stream_create)(stream_handle *, unsigned);
        int (*copy)(uint64_t, uint64_t, size_t, stream_handle);
        int (*wait)(stream_handle);
} cuda;

static int load_cuda(void)
{
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        void *context;

        if (!library)
                return -1;
        *(void **)&cuda.init = dlsym(library, "cuInit");
        *(void **)&cuda.retain = dlsym(library, "cuDevicePrimaryCtxRetain");
        *(void **)&cuda.push = dlsym(library, "cuCtxPushCurrent_v2");
        *(void **)&cuda.alloc = dlsym(library, "cuMemAlloc_v2");
        *(void **)&cuda.stream_create = dlsym(library, "cuStreamCreate");
        *(void **)&cuda.copy = dlsym(library, "cuMemcpyAsync");
        *(void **)&cuda.wait = dlsym(library, "cuStreamSynchronize");
        return cuda.init(0) || cuda.retain(&context, 0) || cuda.push(context) ? -1 : 0;
}

/* Puts or gets the blocks of `q`, and waits. Returns the number of blocks with a status of success,
 * or a negative errno. */
static int transfer(struct kvcache_gpu *gpu, struct kvcache_gpu_request *q, int is_put)
{
        struct kvcache_gpu_completion c;
        int r, good = 0;

        r = is_put ? kvcache_gpu_put_blocks(gpu, q) : kvcache_gpu_get_blocks(gpu, q);
        if (r == 0)
                r = kvcache_gpu_reap(gpu, &c, 1, -1);
        if (r < 0)
                return r;
        for (size_t i = 0; i < q->count; i++)
                good += kvcache_status_ok(q->statuses[i]);
        return good;
}

static int use(struct kvcache_gpu *gpu, uint32_t ns)
{
        static unsigned char host[MEMORY];
        struct kvcache_gpu_block blocks[BLOCKS / 2];
        int statuses[BLOCKS / 2], r;
        uint64_t memory, bases[LAYERS];
        stream_handle stream;
        struct kvcache_layout layout = {
                .size = sizeof(layout),
                .kind = KVCACHE_LAYOUT_OUTER_FIRST, /* per layer: all keys, then all values */
                .layers = LAYERS,
                .outer = 2,
                .page_tokens = 16,
                .dtype_bytes = 2,
                .inner = 8 * 128,
                .blocks = BLOCKS,
                .bases = bases,
        };
        struct kvcache_gpu_request q = {
                .size = sizeof(q),
                .block_size = sizeof(blocks[0]),
                .namespace_handle = ns,
                .layout = &layout,
                .blocks = blocks,
                .count = BLOCKS / 2,
                .statuses = statuses,
        };

        if (cuda.alloc(&memory, MEMORY) || cuda.stream_create(&stream, 1))
                return -1;
        for (int i = 0; i < LAYERS; i++)
                bases[i] = memory + (uint64_t)i * BUFFER;
        for (int i = 0; i < MEMORY; i++)
                host[i] = (unsigned char)(i / REGION * 7 + i % 251);
        memset(blocks, 0, sizeof(blocks));
        for (unsigned i = 0; i < BLOCKS / 2; i++) {
                memcpy(blocks[i].key.bytes, "gpu-blocks", 10);
                blocks[i].key.bytes[31] = (unsigned char)(i + 1);
                blocks[i].block = i;
        }

        /* The copies into the blocks may still be in progress when the put is called. The put
         * waits for the stream, q.before_stream. */
        if (cuda.copy(memory, (uintptr_t)host, MEMORY, stream))
                return -1;
        q.before_stream = stream;
        r = transfer(gpu, &q, 1);
        if (r < 0)
                return r;
        printf("%d of %d blocks were kept\n", r, BLOCKS / 2);

        for (unsigned i = 0; i < BLOCKS / 2; i++)
                blocks[i].block = BLOCKS / 2 + i;
        q.after_stream = stream; /* later work of this stream runs after the blocks arrived */
        r = transfer(gpu, &q, 0);
        if (r < 0)
                return r;
        printf("%d of %d blocks came back\n", r, BLOCKS / 2);

        if (cuda.copy((uintptr_t)host, memory, MEMORY, stream) || cuda.wait(stream))
                return -1;
        for (int part = 0; part < LAYERS * 2; part++) {
                const unsigned char *half = host + (size_t)part * BLOCKS * REGION;

                if (memcmp(half, half + BLOCKS / 2 * REGION, BLOCKS / 2 * REGION) != 0) {
                        fprintf(stderr, "part %d of the blocks came back with other bytes\n", part);
                        return -1;
                }
        }
        return 0;
}

int main(int argc, char **argv)
{
        struct kvcache_options options = { .size = sizeof(options),
                                           .socket_path = argc > 1 ? argv[1] : NULL };
        struct kvcache_namespace_options ns_options = {
                .size = sizeof(ns_options),
                .name = "example-gpu",
                .fingerprint = "dtype=bf16\nmodel=demo\n",
        };
        struct kvcache_gpu *gpu;
        struct kvcache *kv;
        char why[512] = "";
        uint32_t ns;
        int r;

        if (kvcache_connect(&kv, &options, why, sizeof(why)) < 0) {
                fprintf(stderr, "cannot connect: %s\n", why);
                return 1;
        }
        if (kvcache_gpu_attach(&gpu, kv, NULL, why, sizeof(why)) < 0 || load_cuda() < 0) {
                fprintf(stderr, "the GPU or its driver cannot be used: %s\n",
                        *why ? why : "CUDA cannot be initialized");
                kvcache_close(kv);
                return 1;
        }
        r = kvcache_namespace_open(kv, &ns_options, &ns);
        if (r == 0)
                r = use(gpu, ns);
        if (r < 0)
                fprintf(stderr, "opening the namespace, storing or loading failed: %s: %s %s\n",
                        strerror(-r), kvcache_error(kv), kvcache_gpu_error(gpu));
        kvcache_gpu_detach(gpu, -1);
        kvcache_close(kv);
        return r < 0;
}
