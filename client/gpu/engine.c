/* SPDX-License-Identifier: Apache-2.0 */
/* Makes lists of copies; see engine.h. Owns the kernel's module, the lists that the kernel reads,
 * and the bounce memory.
 *
 * A list for the kernel is written to registered memory and copied to the device before the launch,
 * in the same stream, because warps that read it over the bus would wait for each entry.
 *
 * Only one stream uses a part of the bounce memory, so the stream's order makes a copy into the
 * part wait for the launch that last read the part. */
#include "gpu/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "checked.h"
#include "copy-ptx.h"
#include "gpu/slices.h"
#include "kvcache-transfer.h"

enum {
        ENGINE_THREADS = 1024, /* threads of a CUDA block, which occupies a whole multiprocessor */
        ENGINE_WARPS = ENGINE_THREADS / 32,
        ENGINE_MIN_COPIES = 4, /* with fewer copies a launch costs more than it saves */
        /* Bytes of a contiguous run, from which on a copy engine is near its full rate. */
        ENGINE_BOUNCE_FROM = 64 * 1024,
        /* Least number of copies, of ENGINE_KERNEL_BELOW bytes or more each, that one copy of a run
         * into bounce memory must replace. */
        ENGINE_BOUNCE_FEWER = 3,
        ENGINE_BOUNCE_ALIGN = 256, /* in bounce memory, a run has the same offset modulo this number
                                      as in host memory */
        ENGINE_LEAST_PART = 1024 * 1024,
};

static size_t engine_list_bytes(const struct engine *e)
{
        return (size_t)e->n_slots * ENGINE_KERNEL_COPIES * sizeof(struct copy);
}

/* Loads the kernel and allocates its lists. If a step fails, `kernel` stays NULL and engine_fini()
 * frees the rest. */
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

/* Allocates bounce memory: half as much after each refusal, down to ENGINE_LEAST_PART. */
static void engine_get_bounce(struct engine *e, uint64_t bytes)
{
        uint64_t part = round_down(bytes / ENGINE_BOUNCE_PARTS, ENGINE_BOUNCE_ALIGN);

        for (; e->kernel && part >= ENGINE_LEAST_PART;
             part = round_down(part / 2, ENGINE_BOUNCE_ALIGN))
                if (e->d->mem_alloc(&e->bounce, part * ENGINE_BOUNCE_PARTS) == CU_OK) {
                        e->bounce_part_bytes = part;
                        return;
                }
        e->bounce = 0;
}

int engine_init(struct engine *ret, const struct driver *d, enum kvcache_gpu_engine forced,
                uint32_t max_sms, unsigned n_slots, uint64_t bounce_bytes)
{
        struct engine e = {
                .d = d,
                .forced = forced,
                .max_sms = max_sms,
                .n_slots = n_slots,
                .source_access = CU_ACCESS_IN_STREAM_ORDER,
        };

        e.to = calloc(ENGINE_ROOM, sizeof(*e.to));
        e.from = calloc(ENGINE_ROOM, sizeof(*e.from));
        e.bytes = calloc(ENGINE_ROOM, sizeof(*e.bytes));
        e.runs = calloc(ENGINE_ROOM, sizeof(*e.runs));
        e.rest = calloc(ENGINE_ROOM, sizeof(*e.rest));
        if (!e.to || !e.from || !e.bytes || !e.runs || !e.rest) {
                engine_fini(&e);
                return -ENOMEM;
        }
        engine_load(&e);
        engine_get_bounce(&e, bounce_bytes);
        *ret = e;
        return 0;
}

void engine_fini(struct engine *e)
{
        if (e->bounce)
                (void)e->d->mem_free(e->bounce);
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
        free(e->runs);
        free(e->rest);
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

/* Returns how many bytes of a copy lie within one slice at either end. */
static uint64_t engine_within(const struct copy *c)
{
        uint64_t n = slice_rest(c->from, c->bytes, SLICE_LEAST_BYTES);

        return slice_rest(c->to, n, SLICE_LEAST_BYTES);
}

/* Removes and returns the first piece of a copy that lies within one slice at either end. */
static struct copy engine_take_piece(struct copy *c)
{
        uint64_t n = engine_within(c);
        struct copy piece = { c->to, c->from, n };

        *c = (struct copy){ c->to + n, c->from + n, c->bytes - n };
        return piece;
}

static size_t engine_count_pieces(struct copy c)
{
        size_t n = 0;

        do {
                (void)engine_take_piece(&c);
                n++;
        } while (c.bytes > 0);
        return n;
}

/* Cuts copies at the ends of slices, in place. Returns their number, or 0 if the list has no room
 * for that many. */
static size_t engine_cut_edges(struct copy *list, size_t n)
{
        size_t total = 0, at = 0;

        for (size_t i = 0; i < n; i++)
                total += engine_count_pieces(list[i]);
        if (total == n || total > ENGINE_ROOM)
                return total == n ? n : 0;
        /* The copies are moved to the end of the list, so that writing the cut ones at its
         * beginning does not overwrite copies that are still to be read. */
        memmove(list + (total - n), list, n * sizeof(*list));
        for (size_t i = total - n; i < total; i++) {
                struct copy c = list[i];

                do
                        list[at++] = engine_take_piece(&c);
                while (c.bytes > 0);
        }
        return total;
}

static cu_result engine_plain(struct engine *e, cu_stream stream, const struct copy *list, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                struct copy rest = list[i];

                do {
                        struct copy piece = engine_take_piece(&rest);
                        cu_result c = e->d->copy(piece.to, piece.from, piece.bytes, stream);

                        if (c != CU_OK)
                                return c;
                        e->counts.plain_copies++;
                } while (rest.bytes > 0);
        }
        return CU_OK;
}

static bool engine_has_batch(const struct engine *e)
{
        return e->d->copy_batch_13 || e->d->copy_batch_12;
}

static cu_result engine_batch(struct engine *e, cu_stream stream, const struct copy *list, size_t n)
{
        struct cu_copy_attributes a = { .source_access = e->source_access,
                                        .flags = CU_COPY_PREFER_OVERLAP };
        size_t first = 0, failed = 0;

        for (size_t i = 0; i < n; i++) {
                e->to[i] = list[i].to;
                e->from[i] = list[i].from;
                e->bytes[i] = list[i].bytes;
        }
        if (e->d->copy_batch_13)
                return e->d->copy_batch_13(e->to, e->from, e->bytes, n, &a, &first, 1, stream);
        return e->d->copy_batch_12(e->to, e->from, e->bytes, n, &a, &first, 1, &failed, stream);
}

/* Cuts copies for the warps. Returns the number of pieces, and in *ret_taken the number of copies
 * that fit. */
static uint32_t engine_cut(struct copy *ret, uint32_t room, const struct copy *list, size_t n,
                           size_t *ret_taken)
{
        uint32_t k = 0;
        size_t i;

        for (i = 0; i < n; i++) {
                uint64_t cuts = (list[i].bytes + ENGINE_SPLIT - 1) / ENGINE_SPLIT;

                if (cuts > room - k)
                        break;
                for (uint64_t at = 0; at < list[i].bytes; at += ENGINE_SPLIT)
                        ret[k++] = (struct copy){ list[i].to + at, list[i].from + at,
                                                  MIN(list[i].bytes - at, (uint64_t)ENGINE_SPLIT) };
        }
        *ret_taken = i;
        return k;
}

/* Launches the kernel with copies that follow the `*used` ones in the slot's list, and makes the
 * copies for which the list has no room one by one. Copies that were sent to the device count as
 * used, even if the launch failed. */
static cu_result engine_kernel(struct engine *e, unsigned slot, uint32_t *used, cu_stream stream,
                               const struct copy *list, size_t n)
{
        size_t at = (size_t)slot * ENGINE_KERNEL_COPIES + *used;
        cu_address device = e->device + at * sizeof(*list);
        struct copy *host = e->host + at;
        void *arguments[2];
        uint32_t k, blocks;
        size_t taken;
        cu_result c;

        k = engine_cut(host, ENGINE_KERNEL_COPIES - *used, list, n, &taken);
        if (k > 0) {
                blocks = MIN((k + ENGINE_WARPS - 1) / ENGINE_WARPS, e->max_sms);
                arguments[0] = &device;
                arguments[1] = &k;
                c = e->d->copy(device, (cu_address)(uintptr_t)host, k * sizeof(*host), stream);
                if (c != CU_OK)
                        return c;
                *used += k;
                c = e->d->launch(e->kernel, blocks, 1, 1, ENGINE_THREADS, 1, 1, 0, stream,
                                 arguments, NULL);
                if (c != CU_OK)
                        return c;
                e->counts.kernel_launches++;
                e->counts.kernel_copies += taken;
        }
        return taken < n ? engine_plain(e, stream, list + taken, n - taken) : CU_OK;
}

/* --- copies through bounce memory --- */

/* Returns whether copy `i` does not continue the one before it in the same slice of host memory. */
static bool is_apart(const struct copy *list, size_t i)
{
        return i == 0 || list[i - 1].from + list[i - 1].bytes != list[i].from ||
               list[i].from % SLICE_LEAST_BYTES == 0;
}

/* Returns the number of contiguous runs of host memory in the list. */
static size_t engine_runs(const struct copy *list, size_t n)
{
        size_t runs = 0;

        for (size_t i = 0; i < n; i++)
                runs += is_apart(list, i);
        return runs;
}

/* Plans copies into a part of the bounce memory and out of it, as many as the part holds.
 * Returns the number of copies taken. */
static size_t engine_plan(struct engine *e, unsigned part, const struct copy *list, size_t n,
                          size_t *ret_runs)
{
        cu_address base = e->bounce + part * e->bounce_part_bytes;
        uint64_t end = 0;
        size_t runs = 0, i;

        for (i = 0; i < n; i++) {
                bool apart = is_apart(list, i);
                uint64_t at = !apart ? end
                                     : round_up(end, ENGINE_BOUNCE_ALIGN) +
                                               list[i].from % ENGINE_BOUNCE_ALIGN;

                if (at > e->bounce_part_bytes || list[i].bytes > e->bounce_part_bytes - at)
                        break;
                if (apart)
                        e->runs[runs++] = (struct copy){ base + at, list[i].from, list[i].bytes };
                else
                        e->runs[runs - 1].bytes += list[i].bytes;
                e->rest[i] = (struct copy){ list[i].to, base + at, list[i].bytes };
                end = at + list[i].bytes;
        }
        *ret_runs = runs;
        return i;
}

static cu_result engine_into_bounce(struct engine *e, cu_stream stream, size_t runs)
{
        cu_result c = CU_OK;

        e->bounces += runs;
        if (runs > 1 && engine_has_batch(e) && engine_batch(e, stream, e->runs, runs) == CU_OK)
                return CU_OK;
        for (size_t i = 0; i < runs && c == CU_OK; i++)
                c = e->d->copy(e->runs[i].to, e->runs[i].from, e->runs[i].bytes, stream);
        return c;
}

static cu_result engine_bounce(struct engine *e, unsigned slot, uint32_t *used, unsigned part,
                               cu_stream stream, const struct copy *list, size_t n)
{
        while (n > 0) {
                size_t runs, taken = engine_plan(e, part, list, n, &runs);
                cu_result c;

                if (taken == 0) /* the copy is longer than a part */
                        return CU_ERROR_NOT_SUPPORTED;
                c = engine_into_bounce(e, stream, runs);
                if (c == CU_OK)
                        c = engine_kernel(e, slot, used, stream, e->rest, taken);
                if (c != CU_OK)
                        return c;
                list += taken;
                n -= taken;
        }
        return CU_OK;
}

/* --- choice of the method --- */

bool engine_has_kernel(const struct engine *e)
{
        return e->kernel &&
               (e->forced <= KVCACHE_GPU_ENGINE_KERNEL || e->forced == KVCACHE_GPU_ENGINE_BOUNCE);
}

/* Returns whether `per_run` copies from each contiguous run of `run_bytes` in host memory are
 * faster through bounce memory. Copies of ENGINE_KERNEL_BELOW bytes or more are faster only if a
 * run replaces at least ENGINE_BOUNCE_FEWER of them. */
static bool engine_should_bounce(uint64_t run_bytes, uint64_t per_run)
{
        uint64_t bytes = run_bytes / per_run;

        if (run_bytes < ENGINE_BOUNCE_FROM || bytes >= ENGINE_BOUNCE_BELOW)
                return false;
        return bytes < ENGINE_KERNEL_BELOW || per_run >= ENGINE_BOUNCE_FEWER;
}

bool engine_prefers_kernel(const struct engine *e, uint64_t run_bytes, uint64_t per_run)
{
        if (!engine_has_kernel(e))
                return false;
        return e->forced != KVCACHE_GPU_ENGINE_AUTO || run_bytes / per_run < ENGINE_KERNEL_BELOW ||
               (e->bounce && engine_should_bounce(run_bytes, per_run));
}

static enum kvcache_gpu_engine engine_choose(const struct engine *e, unsigned slot, uint64_t bytes,
                                             const struct copy *list, size_t n, int part)
{
        bool bounces = part >= 0 && e->bounce;

        if (slot == ENGINE_NO_SLOT)
                return engine_has_batch(e) && n > 1 ? KVCACHE_GPU_ENGINE_BATCH
                                                    : KVCACHE_GPU_ENGINE_PLAIN;
        if (e->forced == KVCACHE_GPU_ENGINE_BOUNCE)
                return bounces ? KVCACHE_GPU_ENGINE_BOUNCE : KVCACHE_GPU_ENGINE_KERNEL;
        if (e->forced != KVCACHE_GPU_ENGINE_AUTO)
                return e->forced;
        if (e->kernel && n >= ENGINE_MIN_COPIES) {
                size_t runs = engine_runs(list, n);

                if (bounces && engine_should_bounce(bytes / runs, n / runs))
                        return KVCACHE_GPU_ENGINE_BOUNCE;
                if (bytes / n < ENGINE_KERNEL_BELOW)
                        return KVCACHE_GPU_ENGINE_KERNEL;
        }
        return engine_has_batch(e) && n > 1 ? KVCACHE_GPU_ENGINE_BATCH : KVCACHE_GPU_ENGINE_PLAIN;
}

cu_result engine_copy(struct engine *e, unsigned slot, cu_stream stream, struct copy *list,
                      size_t n, bool is_mapped, int part)
{
        enum kvcache_gpu_engine way;
        uint64_t bytes = 0;
        uint32_t used = 0;
        size_t cut;
        cu_result c;

        e->counts.pieces += n;
        n = engine_coalesce(list, n);
        for (size_t i = 0; i < n; i++)
                bytes += list[i].bytes;
        if (n == 0)
                return CU_OK;
        cut = engine_cut_edges(list, n);
        is_mapped = is_mapped && cut > 0;
        n = cut > 0 ? cut : n;
        way = is_mapped ? engine_choose(e, slot, bytes, list, n, part) : KVCACHE_GPU_ENGINE_PLAIN;
        e->counts.bytes += bytes;
        if (way == KVCACHE_GPU_ENGINE_BOUNCE) {
                c = engine_bounce(e, slot, &used, (unsigned)part, stream, list, n);
                if (c == CU_OK)
                        return c;
                e->counts.kernel_failures++;
                way = KVCACHE_GPU_ENGINE_KERNEL;
        }
        if (way == KVCACHE_GPU_ENGINE_KERNEL) {
                c = e->kernel ? engine_kernel(e, slot, &used, stream, list, n)
                              : CU_ERROR_NOT_SUPPORTED;
                if (c == CU_OK)
                        return c;
                e->counts.kernel_failures++;
        }
        if (way != KVCACHE_GPU_ENGINE_PLAIN && engine_has_batch(e)) {
                c = engine_batch(e, stream, list, n);
                if (c == CU_OK) {
                        e->counts.batch_calls++;
                        e->counts.batch_copies += n;
                        return c;
                }
                e->counts.batch_failures++;
        }
        return engine_plain(e, stream, list, n);
}

uint32_t engine_technology(const struct engine *e, const struct kvcache_gpu_counts *before,
                           uint64_t *ret_operations)
{
        uint64_t launches = e->counts.kernel_launches - before->kernel_launches,
                 batched = e->counts.batch_copies - before->batch_copies,
                 plain = e->counts.plain_copies - before->plain_copies;

        *ret_operations = MAX(launches + batched + plain, UINT64_C(1));
        if ((launches > 0) + (batched > 0) + (plain > 0) > 1)
                return KVCACHE_COMPOSED;
        return launches > 0  ? KVCACHE_CUDA_KERNEL
               : batched > 0 ? KVCACHE_CUDA_BATCH
                             : KVCACHE_CUDA_COPY;
}
