/* SPDX-License-Identifier: Apache-2.0 */
/* Checks layouts, computes their strides, and splits a block into pieces. Stored chunks are
 * [layers, outer, tokens, inner] without padding, whatever the layout of the memory; with a list of
 * regions, the block's bytes of each region in the order of the list. */
#include "lib/layout.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "lib/abi.h"

enum {
        LAYOUT_MIN = ABI_BYTES_TO(struct kvcache_layout, base_bytes),
        LAYOUT_INFO_MIN = ABI_BYTES_TO(struct kvcache_layout_info, buffer_bytes),
};

static bool align_up(uint64_t n, uint64_t to, uint64_t *ret)
{
        if (!checked_add(n, to - 1, ret))
                return false;
        *ret = round_down(*ret, to);
        return true;
}

static int layout_check(const struct kvcache_layout *from, const char **ret_why)
{
        if (from->kind < KVCACHE_LAYOUT_CONTIGUOUS || from->kind > KVCACHE_LAYOUT_OUTER_FIRST)
                return layout_fail(ret_why, -EINVAL, "the layout's kind is unknown");
        if (from->regions || from->n_regions != 0 || from->reserved != 0)
                return layout_fail(ret_why, -EINVAL,
                                   "a layout of this kind lists no regions: set regions, n_regions "
                                   "and reserved to 0");
        if (from->layers == 0 || from->layers > LAYOUT_MAX_LAYERS)
                return layout_fail(ret_why, -EINVAL, "a layout must have 1 to 4,096 layers");
        if (from->outer != 1 && from->outer != 2)
                return layout_fail(ret_why, -EINVAL, "`outer` of the layout must be 1 or 2");
        if (from->dtype_bytes != 1 && from->dtype_bytes != 2 && from->dtype_bytes != 4 &&
            from->dtype_bytes != 8)
                return layout_fail(ret_why, -EINVAL,
                                   "`dtype_bytes` of the layout must be 1, 2, 4 or 8");
        if (from->page_tokens == 0 || from->inner == 0 || from->blocks == 0)
                return layout_fail(ret_why, -EINVAL,
                                   "page_tokens, inner and blocks must be at least 1");
        if (from->alignment & (from->alignment - 1))
                return layout_fail(ret_why, -EINVAL, "the alignment must be 0 or a power of two");
        if (!from->bases)
                return layout_fail(ret_why, -EINVAL, "`bases` of the layout is NULL");
        return 0;
}

/* Computes all products that are used later. Returns false if one overflows. */
static bool layout_measure(struct layout *l, const struct kvcache_layout *from)
{
        uint64_t alignment = MAX(from->alignment, UINT64_C(1)), pair, unit;

        if (!checked_mul(from->inner, from->dtype_bytes, &l->token_bytes) ||
            !checked_mul(l->token_bytes, from->page_tokens, &l->region_bytes) ||
            !checked_mul(l->region_bytes, from->outer, &pair) ||
            !checked_mul(pair, from->layers, &l->block_bytes))
                return false;
        unit = l->kind == KVCACHE_LAYOUT_CONTIGUOUS    ? l->block_bytes
               : l->kind == KVCACHE_LAYOUT_BLOCK_FIRST ? pair
                                                       : l->region_bytes;
        if (!align_up(unit, alignment, &l->block_stride) ||
            !checked_mul(l->block_stride, from->blocks, &l->buffer_bytes))
                return false;
        l->layer_stride = l->kind == KVCACHE_LAYOUT_CONTIGUOUS ? pair : 0;
        l->outer_stride = l->region_bytes;
        if (l->kind == KVCACHE_LAYOUT_OUTER_FIRST) {
                l->outer_stride = l->buffer_bytes;
                if (!checked_mul(l->buffer_bytes, from->outer, &l->buffer_bytes))
                        return false;
        }
        return true;
}

static int layout_set_bases(struct layout *l, const struct kvcache_layout *from,
                            const char **ret_why)
{
        uint32_t n = l->kind == KVCACHE_LAYOUT_CONTIGUOUS ? 1 : l->layers;

        l->bases = calloc(n, sizeof(*l->bases));
        if (!l->bases)
                return layout_fail(ret_why, -ENOMEM, "out of memory");
        for (uint32_t i = 0; i < n; i++) {
                uint64_t end, needed;

                if (from->bases[i] == 0)
                        return layout_fail(ret_why, -EINVAL, "an address in `bases` is 0");
                if (!align_up(from->bases[i], MAX(from->alignment, UINT64_C(1)), &l->bases[i]) ||
                    !checked_add(l->bases[i], l->buffer_bytes, &end))
                        return layout_fail(ret_why, -EOVERFLOW,
                                           "a buffer exceeds the address space");
                needed = end - from->bases[i];
                if (from->base_bytes != 0 && needed > from->base_bytes)
                        return layout_fail(
                                ret_why, -E2BIG,
                                "the blocks do not fit in a buffer of `base_bytes` bytes");
        }
        return 0;
}

static int layout_init_bases(struct layout *l, const struct kvcache_layout *from,
                             const char **ret_why)
{
        int r = layout_check(from, ret_why);

        if (r < 0)
                return r;
        if (!layout_measure(l, from))
                return layout_fail(ret_why, -EOVERFLOW, "the layout exceeds the address space");
        return layout_set_bases(l, from, ret_why);
}

int layout_init(struct layout *ret, const struct kvcache_layout *user, const char **ret_why)
{
        struct kvcache_layout copy, *from = &copy;
        struct layout l;
        int r;

        if (!user || !abi_size_is_valid(user->size, LAYOUT_MIN))
                return layout_fail(ret_why, -EINVAL, "the layout is NULL, or its size is not set");
        if (abi_copy_in(&copy, sizeof(copy), user, user->size) < 0)
                return layout_fail(ret_why, -E2BIG,
                                   "the layout sets members that this library does not know: use a "
                                   "newer libkvcache");
        l = (struct layout){
                .kind = (enum kvcache_layout_kind)from->kind,
                .layers = from->layers,
                .outer = from->outer,
                .page_tokens = from->page_tokens,
                .blocks = from->blocks,
        };
        r = from->kind == KVCACHE_LAYOUT_REGIONS ? layout_init_regions(&l, from, ret_why)
                                                 : layout_init_bases(&l, from, ret_why);
        if (r < 0) {
                layout_fini(&l);
                return r;
        }
        *ret = l;
        return 0;
}

void layout_fini(struct layout *l)
{
        free(l->bases);
        free(l->regions);
        l->bases = NULL;
        l->regions = NULL;
}

int layout_part_check(const struct layout *l, struct layout_part *part)
{
        if (part->tokens > l->page_tokens ||
            !range_within(part->first_layer, part->n_layers, l->layers) ||
            (part->n_layers == 0 && part->first_layer > 0))
                return -EINVAL;
        if (part->tokens == 0)
                part->tokens = l->page_tokens;
        if (part->n_layers == 0)
                part->n_layers = l->layers;
        return 0;
}

/* Appends a piece to the `n` before it, or extends the last one. Returns the number of pieces. */
static uint32_t piece_add(struct kvcache_piece *ret, uint32_t n, uint64_t at, uint64_t offset,
                          uint64_t bytes)
{
        if (n > 0 && ret[n - 1].address + ret[n - 1].bytes == at) {
                ret[n - 1].bytes += bytes;
                return n;
        }
        ret[n] = (struct kvcache_piece){ at, offset, bytes };
        return n + 1;
}

static uint32_t layout_region_pieces(const struct layout *l, uint64_t block,
                                     struct kvcache_piece *ret)
{
        uint64_t offset = 0;
        uint32_t n = 0;

        for (uint32_t i = 0; i < l->n_regions; i++) {
                const struct kvcache_layout_region *r = &l->regions[i];

                n = piece_add(ret, n, r->base + block * r->stride, offset, r->bytes);
                offset += r->bytes;
        }
        return n;
}

uint32_t layout_pieces(const struct layout *l, uint64_t block, const struct layout_part *part,
                       struct kvcache_piece *ret)
{
        uint64_t bytes = l->token_bytes * part->tokens;
        uint64_t offset = bytes * l->outer * part->first_layer;
        uint32_t n = 0;

        if (l->regions)
                return layout_region_pieces(l, block, ret);
        for (uint32_t i = 0; i < part->n_layers; i++) {
                uint32_t layer = part->first_layer + i;
                uint64_t base = l->bases[l->kind == KVCACHE_LAYOUT_CONTIGUOUS ? 0 : layer];

                for (uint32_t outer = 0; outer < l->outer; outer++, offset += bytes) {
                        uint64_t at = base + block * l->block_stride + layer * l->layer_stride +
                                      outer * l->outer_stride;

                        n = piece_add(ret, n, at, offset, bytes);
                }
        }
        return n;
}

int layout_report(int error, const char *why, char *ret_error, size_t error_bytes)
{
        if (ret_error && error_bytes > 0)
                snprintf(ret_error, error_bytes, "%s", why);
        return error;
}

int kvcache_layout_measure(const struct kvcache_layout *layout, struct kvcache_layout_info *ret,
                           char *ret_error, size_t error_bytes)
{
        const char *why = "the pointer to the result is NULL, or its size is not set";
        struct kvcache_layout_info info;
        struct layout l;
        int r = -EINVAL;

        if (ret && abi_size_is_valid(ret->size, LAYOUT_INFO_MIN))
                r = layout_init(&l, layout, &why);
        if (r < 0)
                return layout_report(r, why, ret_error, error_bytes);
        info = (struct kvcache_layout_info){
                .size = ret->size,
                .region_bytes = l.regions ? 0 : l.region_bytes,
                .block_bytes = l.block_bytes,
                .block_stride = l.block_stride,
                .layer_stride = l.layer_stride,
                .outer_stride = l.outer_stride,
                .buffer_bytes = l.buffer_bytes,
                .max_pieces = layout_most_pieces(&l, l.layers),
        };
        abi_copy_out(ret, ret->size, &info, sizeof(info));
        layout_fini(&l);
        return 0;
}

int kvcache_layout_pieces(const struct kvcache_layout *layout, uint64_t block,
                          const struct kvcache_layout_part *part, struct kvcache_piece *ret,
                          size_t max)
{
        struct layout_part p = { 0 };
        const char *why;
        struct layout l;
        int r;

        if (!ret || (part && part->reserved != 0))
                return -EINVAL;
        if (part)
                p = (struct layout_part){ part->tokens, part->first_layer, part->n_layers };
        r = layout_init(&l, layout, &why);
        if (r < 0)
                return r;
        r = block < l.blocks ? layout_part_check(&l, &p) : -EINVAL;
        if (r == 0) {
                struct kvcache_piece *all =
                        calloc(layout_most_pieces(&l, p.n_layers), sizeof(*all));
                uint32_t n = all ? layout_pieces(&l, block, &p, all) : 0;

                r = !all ? -ENOMEM : n > max ? -ENOBUFS : (int)n;
                if (r > 0)
                        memcpy(ret, all, n * sizeof(*all));
                free(all);
        }
        layout_fini(&l);
        return r;
}

uint64_t layout_device_bytes(const struct layout *l, const struct layout_part *part, uint64_t bytes)
{
        if (l->regions || part->n_layers < l->layers || part->tokens < l->page_tokens)
                return bytes;
        if (l->kind == KVCACHE_LAYOUT_CONTIGUOUS)
                return l->block_stride;
        return l->block_stride * l->layers * (l->kind == KVCACHE_LAYOUT_OUTER_FIRST ? l->outer : 1);
}
