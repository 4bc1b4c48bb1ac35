/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu-rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "checked.h"

struct stub_cuda stub;
struct driver cuda;
static cu_context context;

void lay_out(struct fixture *f, enum kvcache_layout_kind kind)
{
        f->layout = (struct kvcache_layout){
                .size = sizeof(f->layout),
                .kind = kind,
                .layers = LAYERS,
                .outer = 2,
                .page_tokens = 16,
                .dtype_bytes = 2,
                .inner = 64,
                .blocks = BLOCKS,
                .bases = f->bases,
        };
        for (unsigned i = 0; i < LAYERS; i++)
                f->bases[i] = f->device + i * BUFFER;
}

void list_as_regions(struct fixture *f, struct kvcache_layout_region regions[2 * LAYERS])
{
        for (unsigned i = 0; i < 2 * LAYERS; i++)
                regions[i] = (struct kvcache_layout_region){
                        .base = f->bases[i / 2] + i % 2 * BLOCKS * REGION,
                        .stride = REGION,
                        .bytes = REGION,
                };
        f->layout = (struct kvcache_layout){
                .size = sizeof(f->layout),
                .kind = KVCACHE_LAYOUT_REGIONS,
                .blocks = BLOCKS,
                .regions = regions,
                .n_regions = 2 * LAYERS,
        };
}

void start_daemon(struct fixture *f, const struct fake_options *o)
{
        f->rig->d = fake_daemon_start(f->rig->path, o);
        assert_non_null(f->rig->d);
}

int setup(void **state)
{
        static struct fixture f;
        void *rig;
        int r = rig_setup(&rig);

        f = (struct fixture){ .rig = rig };
        stub.reset();
        assert_int_equal(cuda.ctx_push(context), CU_OK);
        assert_int_equal(cuda.mem_alloc(&f.device, MEMORY), CU_OK);
        assert_int_equal(cuda.stream_create(&f.stream, CU_STREAM_IS_NON_BLOCKING), CU_OK);
        lay_out(&f, KVCACHE_LAYOUT_OUTER_FIRST);
        *state = &f;
        return r;
}

int teardown(void **state)
{
        struct fixture *f = *state;
        struct stub_live live;
        void *rig = f->rig;
        cu_context popped;

        stub.reset();
        if (f->gpu)
                assert_int_equal(kvcache_gpu_detach(f->gpu, test_timeout_ms(60000)), 0);
        assert_int_equal(cuda.mem_free(f->device), CU_OK);
        assert_int_equal(cuda.stream_destroy(f->stream), CU_OK);
        assert_int_equal(cuda.ctx_pop(&popped), CU_OK);
        stub.live(&live);
        assert_int_equal(live.contexts, 1);
        assert_int_equal(live.streams + live.events + live.allocations, 0);
        assert_int_equal(live.registrations + live.modules + live.pushed, 0);
        assert_int_equal(live.capture_mode, CU_CAPTURE_MODE_GLOBAL);
        return rig_teardown(&rig);
}

void connect_to(struct fixture *f, const struct fake_options *o)
{
        struct kvcache_options options = { .size = sizeof(options),
                                           .socket_path = f->rig->path,
                                           .request_timeout_ms = test_timeout_ms(60000),
                                           .staging_bytes = 1024 * 1024 };
        struct kvcache_namespace_options ns = { .size = sizeof(ns),
                                                .name = "n",
                                                .fingerprint = "" };
        char why[512] = "";

        start_daemon(f, o);
        if (kvcache_connect(&f->rig->kv, &options, why, sizeof(why)) < 0)
                fail_msg("%s", why);
        f->kv = f->rig->kv;
        assert_int_equal(kvcache_namespace_open(f->kv, &ns, &f->rig->ns), 0);
}

struct kvcache_gpu_options options_of(enum kvcache_gpu_engine engine)
{
        return (struct kvcache_gpu_options){ .size = sizeof(struct kvcache_gpu_options),
                                             .engine = engine,
                                             .staging_bytes = STAGING };
}

void attach(struct fixture *f, enum kvcache_gpu_engine engine)
{
        struct kvcache_gpu_options o = options_of(engine);
        char why[512] = "";

        if (kvcache_gpu_attach(&f->gpu, f->kv, &o, why, sizeof(why)) < 0)
                fail_msg("%s", why);
}

void begin(struct fixture *f)
{
        connect_to(f, &(struct fake_options){ .pool_bytes = 16 << 20 });
        attach(f, KVCACHE_GPU_ENGINE_AUTO);
}

struct kvcache_gpu_info info_of(struct fixture *f)
{
        struct kvcache_gpu_info info = { .size = sizeof(info) };

        assert_int_equal(kvcache_gpu_get_info(f->gpu, &info), 0);
        return info;
}

/* --- data --- */

__attribute__((no_sanitize("thread"))) uint8_t byte_of(uint64_t seed, uint64_t offset)
{
        uint64_t x = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + offset / 8;

        x ^= x >> 29;
        x *= UINT64_C(0xbf58476d1ce4e5b9);
        return (uint8_t)((x ^ (x >> 32)) >> (offset % 8 * 8));
}

enum { PIECE = 512 }; /* bytes of a block that are made at a time */

/* Writes the bytes of a block from `offset` on. TSan leaves it out, because only one thread sees
 * `ret`. What is copied to and compared with the device's memory is checked. */
__attribute__((no_sanitize("thread"))) static void bytes_of(uint64_t seed, uint64_t offset,
                                                            uint8_t *ret, uint64_t n)
{
        for (uint64_t i = 0; i < n; i++)
                ret[i] = byte_of(seed, offset + i);
}

/* Writes the chunk `seed` to a block of device memory, without a call of the driver. */
void set_block(struct fixture *f, uint64_t block, uint64_t seed)
{
        struct kvcache_piece p[2 * LAYERS];
        int n = kvcache_layout_pieces(&f->layout, block, NULL, p, ARRAY_SIZE(p));
        uint8_t bytes[PIECE];

        for (int i = 0; i < n; i++) {
                uint8_t *at = stub.memory(p[i].address);

                for (uint64_t b = 0, some; b < p[i].bytes; b += some) {
                        some = MIN(p[i].bytes - b, (uint64_t)PIECE);
                        bytes_of(seed, p[i].offset + b, bytes, some);
                        memcpy(at + b, bytes, some);
                }
        }
}

bool block_is(struct fixture *f, uint64_t block, uint64_t seed)
{
        struct kvcache_piece p[2 * LAYERS];
        int n = kvcache_layout_pieces(&f->layout, block, NULL, p, ARRAY_SIZE(p));
        uint8_t bytes[PIECE];

        for (int i = 0; i < n; i++) {
                const uint8_t *at = stub.memory(p[i].address);

                for (uint64_t b = 0, some; b < p[i].bytes; b += some) {
                        some = MIN(p[i].bytes - b, (uint64_t)PIECE);
                        bytes_of(seed, p[i].offset + b, bytes, some);
                        if (memcmp(at + b, bytes, some) != 0)
                                return false;
                }
        }
        return n > 0;
}

void clear(struct fixture *f)
{
        memset(stub.memory(f->device), 0xee, MEMORY);
}

/* Keys first_key..., in blocks first_block... */
struct job *job_of(struct fixture *f, size_t n, uint64_t first_key, uint64_t first_block)
{
        static struct job jobs[4];
        static unsigned next;
        struct job *j = &jobs[next++ % ARRAY_SIZE(jobs)];

        memset(j, 0, sizeof(*j));
        for (size_t i = 0; i < n; i++) {
                j->blocks[i].key = rig_key(first_key + i);
                j->blocks[i].block = (first_block + i) % BLOCKS;
        }
        j->q = (struct kvcache_gpu_request){
                .size = sizeof(j->q),
                .block_size = sizeof(j->blocks[0]),
                .namespace_handle = f->rig->ns,
                .layout = &f->layout,
                .blocks = j->blocks,
                .count = n,
                .statuses = j->statuses,
        };
        return j;
}

/* Waits for a request. Returns the error of its completion. */
int finish(struct fixture *f)
{
        struct kvcache_gpu_completion c;
        int r = kvcache_gpu_reap(f->gpu, &c, 1, test_timeout_ms(60000));

        if (r != 1)
                fail_msg("reaped %d: %s", r, kvcache_gpu_error(f->gpu));
        assert_int_equal(c.kind, KVCACHE_GPU_DONE);
        return c.error;
}

int put(struct fixture *f, struct job *j)
{
        int r = kvcache_gpu_put_blocks(f->gpu, &j->q);

        return r < 0 ? r : finish(f);
}

int get(struct fixture *f, struct job *j)
{
        int r = kvcache_gpu_get_blocks(f->gpu, &j->q);

        return r < 0 ? r : finish(f);
}

void assert_statuses(const struct job *j, int status)
{
        for (size_t i = 0; i < j->q.count; i++)
                if (j->statuses[i] != status)
                        fail_msg("block %zu is %s, not %s", i, kvcache_status_name(j->statuses[i]),
                                 kvcache_status_name(status));
}

void put_keys(struct fixture *f, size_t n, uint64_t first_key)
{
        for (size_t i = 0; i < n; i++)
                set_block(f, i % BLOCKS, first_key + i);
        struct job *j = job_of(f, n, first_key, 0);

        assert_int_equal(put(f, j), 0);
        assert_statuses(j, KVCACHE_OK);
}

bool gpu_rig_open(void)
{
        char why[DRIVER_TEXT];
        cu_device device;

        return stub_cuda_load(&stub) && driver_open(&cuda, why) == 0 &&
               cuda.device_get(&device, 0) == CU_OK &&
               cuda.primary_retain(&context, device) == CU_OK;
}
