/* SPDX-License-Identifier: Apache-2.0 */
/* The copy engine. Owns the kernel's module and the lists that the kernel reads.
 *
 * A list of the kernel's is written to registered memory and copied to the device in front of the
 * launch, in the same stream: warps that read it over the bus would wait for each entry. */
#include "gpu/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "checked.h"
#include "copy-ptx.h"

enum {
        ENGINE_THREADS = 1024, /* of a block, which takes a multiprocessor for itself */
        ENGINE_WARPS = ENGINE_THREADS / 32,
        /* Measured: below, the batch call is bound by its cost of each copy. */
        ENGINE_KERNEL_BELOW = 64 * 1024,
        ENGINE_MIN_COPIES = 4, /* fewer are not worth a launch */
};

static size_t engine_list_bytes(const struct engine *e)
{
        return (size_t)e->n_slots * ENGINE_KERNEL_COPIES * sizeof(struct copy);
}

/* The lists and the kernel, or neither. */
static void engine_load(struct engine *e)
{
        const struct driver *d = e->d;

        if (!d->module_load || !d->module_get_function || !d->launch)
                return;
        if (d->module_load(&e->module, copy_ptx) != CU_OK) {
                e->module = NULL;
                return;
        }
        e->host = mmap(NULL, engine_list_bytes(e), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (e->host == MAP_FAILED) {
                e->host = NULL;
                return;
        }
        (void)madvise(e->host, engine_list_bytes(e), MADV_DONTFORK);
        e->registered =
                d->host_register(e->host, engine_list_bytes(e), CU_HOST_REGISTER_PORTABLE) == CU_OK;
        if (!e->registered || d->mem_alloc(&e->device, engine_list_bytes(e)) != CU_OK) {
                e->device = 0;
                return;
        }
        if (d->module_get_function(&e->kernel, e->module, "kvcache_copy") != CU_OK)
                e->kernel = NULL;
}

int engine_init(struct engine *ret, const struct driver *d, enum kvcache_gpu_engine forced,
                uint32_t max_sms, unsigned n_slots)
{
        struct engine e = { .d = d, .forced = forced, .max_sms = max_sms, .n_slots = n_slots };

        e.to = calloc(ENGINE_MAX_COPIES, sizeof(*e.to));
        e.from = calloc(ENGINE_MAX_COPIES, sizeof(*e.from));
        e.bytes = calloc(ENGINE_MAX_COPIES, sizeof(*e.bytes));
        if (!e.to || !e.from || !e.bytes) {
                engine_fini(&e);
                return -ENOMEM;
        }
        engine_load(&e);
        *ret = e;
        return 0;
}

void engine_fini(struct engine *e)
{
        if (e->device)
                (void)e->d->mem_free(e->device);
        if (e->registered)
                (void)e->d->host_unregister(e->host);
        if (e->host)
                munmap(e->host, engine_list_bytes(e));
        if (e->module && e->d->module_unload)
                (void)e->d->module_unload(e->module);
        free(e->to);
        free(e->from);
        free(e->bytes);
        *e = (struct engine){ 0 };
}

static size_t engine_coalesce(struct copy *list, size_t n)
{
        size_t kept = 0;

        for (size_t i = 1; i < n; i++) {
                struct copy *last = &list[kept];

                if (last->to + last->bytes == list[i].to &&
                    last->from + last->bytes == list[i].from)
                        last->bytes += list[i].bytes;
                else
                        list[++kept] = list[i];
        }
        return n > 0 ? kept + 1 : 0;
}

static cu_result engine_plain(struct engine *e, cu_stream stream, const struct copy *list, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                cu_result c = e->d->copy(list[i].to, list[i].from, list[i].bytes, stream);

                if (c != CU_OK)
                        return c;
                e->counts.plain_copies++;
        }
        return CU_OK;
}

static cu_result engine_batch(struct engine *e, cu_stream stream, const struct copy *list, size_t n)
{
        struct cu_copy_attributes a = { .source_access = CU_ACCESS_IN_STREAM_ORDER,
                                        .flags = CU_COPY_PREFER_OVERLAP };
        size_t first = 0, failed = 0;
        cu_result c;

        for (size_t i = 0; i < n; i++) {
                e->to[i] = list[i].to;
                e->from[i] = list[i].from;
                e->bytes[i] = list[i].bytes;
        }
        if (e->d->copy_batch_13)
                c = e->d->copy_batch_13(e->to, e->from, e->bytes, n, &a, &first, 1, stream);
        else
                c = e->d->copy_batch_12(e->to, e->from, e->bytes, n, &a, &first, 1, &failed,
                                        stream);
        if (c == CU_OK) {
                e->counts.batch_calls++;
                e->counts.batch_copies += n;
        }
        return c;
}

/* How many of the list fit, cut for warps. */
static uint32_t engine_cut(struct copy *ret, const struct copy *list, size_t n, size_t *ret_taken)
{
        uint32_t k = 0;
        size_t i;

        for (i = 0; i < n; i++) {
                uint64_t cuts = (list[i].bytes + ENGINE_SPLIT - 1) / ENGINE_SPLIT;

                if (cuts > ENGINE_KERNEL_COPIES - k)
                        break;
                for (uint64_t at = 0; at < list[i].bytes; at += ENGINE_SPLIT)
                        ret[k++] = (struct copy){ list[i].to + at, list[i].from + at,
                                                  MIN(list[i].bytes - at, (uint64_t)ENGINE_SPLIT) };
        }
        *ret_taken = i;
        return k;
}

static cu_result engine_kernel(struct engine *e, unsigned slot, cu_stream stream,
                               const struct copy *list, size_t n)
{
        struct copy *host = e->host + (size_t)slot * ENGINE_KERNEL_COPIES;
        cu_address device = e->device + (uint64_t)slot * ENGINE_KERNEL_COPIES * sizeof(struct copy);
        void *arguments[2];
        uint32_t k, blocks;
        size_t taken;
        cu_result c;

        k = engine_cut(host, list, n, &taken);
        if (k > 0) {
                blocks = MIN((k + ENGINE_WARPS - 1) / ENGINE_WARPS, e->max_sms);
                arguments[0] = &device;
                arguments[1] = &k;
                c = e->d->copy(device, (cu_address)(uintptr_t)host, k * sizeof(*host), stream);
                if (c == CU_OK)
                        c = e->d->launch(e->kernel, blocks, 1, 1, ENGINE_THREADS, 1, 1, 0, stream,
                                         arguments, NULL);
                if (c != CU_OK)
                        return c;
                e->counts.kernel_launches++;
                e->counts.kernel_copies += taken;
        }
        return taken < n ? engine_plain(e, stream, list + taken, n - taken) : CU_OK;
}

bool engine_has_kernel(const struct engine *e)
{
        return e->kernel && e->forced <= KVCACHE_GPU_ENGINE_KERNEL;
}

static bool engine_has_batch(const struct engine *e)
{
        return e->d->copy_batch_13 || e->d->copy_batch_12;
}

static enum kvcache_gpu_engine engine_choose(const struct engine *e, uint64_t bytes, size_t n)
{
        if (e->forced != KVCACHE_GPU_ENGINE_AUTO)
                return e->forced;
        if (e->kernel && n >= ENGINE_MIN_COPIES && bytes / n < ENGINE_KERNEL_BELOW)
                return KVCACHE_GPU_ENGINE_KERNEL;
        return engine_has_batch(e) && n > 1 ? KVCACHE_GPU_ENGINE_BATCH : KVCACHE_GPU_ENGINE_PLAIN;
}

cu_result engine_copy(struct engine *e, unsigned slot, cu_stream stream, struct copy *list,
                      size_t n, bool is_mapped)
{
        enum kvcache_gpu_engine way;
        uint64_t bytes = 0;
        cu_result c;

        e->counts.pieces += n;
        n = engine_coalesce(list, n);
        for (size_t i = 0; i < n; i++)
                bytes += list[i].bytes;
        if (n == 0)
                return CU_OK;
        way = is_mapped ? engine_choose(e, bytes, n) : KVCACHE_GPU_ENGINE_PLAIN;
        e->counts.bytes += bytes;
        if (way == KVCACHE_GPU_ENGINE_KERNEL) {
                c = e->kernel ? engine_kernel(e, slot, stream, list, n) : CU_ERROR_NOT_SUPPORTED;
                if (c == CU_OK)
                        return c;
                e->counts.kernel_failures++;
        }
        if (way != KVCACHE_GPU_ENGINE_PLAIN && engine_has_batch(e)) {
                c = engine_batch(e, stream, list, n);
                if (c == CU_OK)
                        return c;
                e->counts.batch_failures++;
        }
        return engine_plain(e, stream, list, n);
}
