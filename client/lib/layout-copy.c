/* SPDX-License-Identifier: Apache-2.0 */
/* Gather and scatter: copies blocks of host memory into chunks, and back.
 *
 * Runs in the calling thread and owns nothing beyond the call. All blocks are checked against the
 * layout before the first byte is copied, so that a failed call has changed nothing. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "lib/abi.h"
#include "lib/layout.h"

enum {
        MOVED_MIN = ABI_BYTES_TO(struct kvcache_layout_moved, device_bytes),
        COPY_TEXT = 128,
        COPY_PREFETCH_BYTES = 1024
};

static int copy_check(const struct layout *l, const struct layout_part *layers,
                      const struct kvcache_layout_copy *c, size_t i, char ret_why[static COPY_TEXT])
{
        struct layout_part part = *layers;
        const char *what = NULL;

        part.tokens = c->tokens;
        if (c->reserved != 0)
                what = "has its reserved member set";
        else if (c->block >= l->blocks)
                what = "is none of the layout";
        else if (layout_part_check(l, &part) < 0)
                what = "has fewer tokens";
        else if (!c->chunk)
                what = "has no chunk";
        else if (c->chunk_bytes != layout_chunk_bytes(l, part.tokens))
                what = "has a chunk of another length";
        if (what)
                snprintf(ret_why, COPY_TEXT, "copy %zu: block %llu %s", i,
                         (unsigned long long)c->block, what);
        return what ? -EINVAL : 0;
}

/* Prefetches the first cache lines of the next piece, whose address the processor cannot
 * predict. */
static void copy_prefetch(const struct kvcache_piece *next, bool gather)
{
        const char *at = (const char *)(uintptr_t)next->address;
        uint64_t bytes = MIN(next->bytes, (uint64_t)COPY_PREFETCH_BYTES);

        for (uint64_t i = 0; i < bytes; i += 64) {
                if (gather)
                        __builtin_prefetch(at + i, 0, 0);
                else
                        __builtin_prefetch(at + i, 1, 0);
        }
}

static void copy_one(const struct layout *l, struct layout_part part,
                     const struct kvcache_layout_copy *c, bool gather, struct kvcache_piece *pieces,
                     struct kvcache_layout_moved *moved)
{
        uint64_t bytes = 0;
        uint32_t n;

        part.tokens = c->tokens > 0 ? c->tokens : l->page_tokens;
        n = layout_pieces(l, c->block, &part, pieces);
        for (uint32_t i = 0; i < n; i++) {
                void *memory = (void *)(uintptr_t)pieces[i].address;
                void *chunk = (char *)c->chunk + pieces[i].offset;

                if (i + 1 < n)
                        copy_prefetch(&pieces[i + 1], gather);
                if (gather)
                        memcpy(chunk, memory, pieces[i].bytes);
                else
                        memcpy(memory, chunk, pieces[i].bytes);
                bytes += pieces[i].bytes;
        }
        moved->blocks++;
        moved->regions += layout_count_regions(l, part.n_layers);
        moved->copies += n;
        moved->bytes += bytes;
        moved->device_bytes += layout_device_bytes(l, &part, bytes);
}

static int copy_checked(const struct layout *l, struct layout_part *layers,
                        const struct kvcache_layout_copy *copies, size_t n, bool gather,
                        struct kvcache_layout_moved *moved, char ret_why[static COPY_TEXT])
{
        struct kvcache_piece *pieces;
        int r;

        if (layout_part_check(l, layers) < 0) {
                snprintf(ret_why, COPY_TEXT,
                         "the layout does not have layers first_layer to first_layer + n_layers");
                return -EINVAL;
        }
        for (size_t i = 0; i < n; i++) {
                r = copy_check(l, layers, &copies[i], i, ret_why);
                if (r < 0)
                        return r;
        }
        pieces = calloc(layout_most_pieces(l, layers->n_layers), sizeof(*pieces));
        if (!pieces) {
                snprintf(ret_why, COPY_TEXT, "out of memory");
                return -ENOMEM;
        }
        for (size_t i = 0; i < n; i++)
                copy_one(l, *layers, &copies[i], gather, pieces, moved);
        free(pieces);
        return 0;
}

static int layout_copy(const struct kvcache_layout *layout, struct layout_part layers,
                       const struct kvcache_layout_copy *copies, size_t n, bool gather,
                       struct kvcache_layout_moved *ret, char *ret_error, size_t error_bytes)
{
        struct kvcache_layout_moved moved = { 0 };
        char text[COPY_TEXT] = "the size of the result is not set, or the array of copies is NULL";
        const char *why = text;
        struct layout l;
        int r;

        if ((ret && !abi_size_is_valid(ret->size, MOVED_MIN)) || (n > 0 && !copies))
                return layout_report(-EINVAL, why, ret_error, error_bytes);
        r = layout_init(&l, layout, &why);
        if (r == 0) {
                r = copy_checked(&l, &layers, copies, n, gather, &moved, text);
                why = text;
                layout_fini(&l);
        }
        if (r < 0)
                return layout_report(r, why, ret_error, error_bytes);
        if (ret) {
                moved.size = ret->size;
                abi_copy_out(ret, ret->size, &moved, sizeof(moved));
        }
        return 0;
}

int kvcache_layout_gather(const struct kvcache_layout *layout, uint32_t first_layer,
                          uint32_t n_layers, const struct kvcache_layout_copy *copies, size_t n,
                          struct kvcache_layout_moved *ret, char *ret_error, size_t error_bytes)
{
        return layout_copy(layout,
                           (struct layout_part){ .first_layer = first_layer, .n_layers = n_layers },
                           copies, n, true, ret, ret_error, error_bytes);
}

int kvcache_layout_scatter(const struct kvcache_layout *layout, uint32_t first_layer,
                           uint32_t n_layers, const struct kvcache_layout_copy *copies, size_t n,
                           struct kvcache_layout_moved *ret, char *ret_error, size_t error_bytes)
{
        return layout_copy(layout,
                           (struct layout_part){ .first_layer = first_layer, .n_layers = n_layers },
                           copies, n, false, ret, ret_error, error_bytes);
}
