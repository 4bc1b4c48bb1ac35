/* SPDX-License-Identifier: Apache-2.0 */
/* Checks layouts that list their regions, and merges the regions that touch.
 *
 * Runs in the calling thread. Each call with such a layout repeats the checks, so the usual list,
 * sorted regions that lie side by side, is checked in time proportional to its length. Owns the
 * copy of the list; all checks are made on the copy. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "checked.h"
#include "lib/layout.h"

/* Checks one region, and adds its bytes to `*bytes`. Returns 0; -EINVAL or -EOVERFLOW, with the
 * reason in `*ret_why`. */
static int region_check(const struct kvcache_layout_region *r, uint64_t blocks, uint64_t *bytes,
                        const char **ret_why)
{
        uint64_t end;

        if (r->base == 0)
                return layout_fail(ret_why, -EINVAL, "`base` of a region is 0");
        if (r->bytes == 0)
                return layout_fail(ret_why, -EINVAL,
                                   "a region must have at least 1 byte of each block");
        if (r->stride < r->bytes)
                return layout_fail(ret_why, -EINVAL,
                                   "a region's stride is less than its bytes: its blocks overlap");
        if (!checked_mul(r->stride, blocks - 1, &end) || !checked_add(end, r->bytes, &end) ||
            !checked_add(end, r->base, &end) || !checked_add(*bytes, r->bytes, bytes))
                return layout_fail(ret_why, -EOVERFLOW, "a region exceeds the address space");
        return 0;
}

/* Merges regions that are adjacent both in memory and in the chunk. Returns the number of
 * regions that remain. */
static uint32_t regions_merge(struct kvcache_layout_region *regions, uint32_t n)
{
        uint32_t last = 0;

        for (uint32_t i = 1; i < n; i++) {
                struct kvcache_layout_region *to = &regions[last], *from = &regions[i];

                if (to->base + to->bytes == from->base && to->stride == from->stride &&
                    from->bytes <= to->stride - to->bytes)
                        to->bytes += from->bytes;
                else
                        regions[++last] = *from;
        }
        return last + 1;
}

/* --- overlaps --- */

static int region_compare(const void *a, const void *b)
{
        const struct kvcache_layout_region *x = a, *y = b;

        return x->base < y->base ? -1 : x->base > y->base;
}

/* Returns the address behind the region's last block. */
static uint64_t region_end(const struct kvcache_layout_region *r, uint64_t blocks)
{
        return r->base + (blocks - 1) * r->stride + r->bytes;
}

/* Returns whether the regions lie side by side within one stride, such as the layers of a block:
 * then no two blocks of them overlap. */
static bool regions_are_a_row(const struct kvcache_layout_region *sorted, uint32_t n)
{
        for (uint32_t i = 1; i < n; i++)
                if (sorted[i].stride != sorted[0].stride ||
                    sorted[i].base - sorted[i - 1].base < sorted[i - 1].bytes)
                        return false;
        return sorted[n - 1].base - sorted[0].base <= sorted[0].stride - sorted[n - 1].bytes;
}

/* Returns the reason why two regions cannot be in one layout, or NULL; `a` does not begin after
 * `b`. Different strides in one range would have to be compared block by block. */
static const char *regions_conflict(const struct kvcache_layout_region *a,
                                    const struct kvcache_layout_region *b, uint64_t blocks)
{
        uint64_t apart;

        if (b->base >= region_end(a, blocks))
                return NULL;
        if (b->base - a->base < a->bytes)
                return "two regions overlap";
        if (a->stride != b->stride)
                return "regions of different strides lie between each other's blocks";
        apart = (b->base - a->base) % a->stride;
        return apart < a->bytes || a->stride - apart < b->bytes ? "two regions overlap" : NULL;
}

static const char *regions_find_conflict(const struct kvcache_layout_region *sorted, uint32_t n,
                                         uint64_t blocks)
{
        for (uint32_t i = 0; i < n; i++)
                for (uint32_t k = i + 1; k < n && sorted[k].base < region_end(&sorted[i], blocks);
                     k++) {
                        const char *why = regions_conflict(&sorted[i], &sorted[k], blocks);

                        if (why)
                                return why;
                }
        return NULL;
}

/* Returns the reason why two of the regions cannot be in one layout, or NULL. Compares regions only
 * within groups whose ranges of memory meet. */
static const char *regions_check_sorted(const struct kvcache_layout_region *sorted, uint32_t n,
                                        uint64_t blocks)
{
        for (uint32_t first = 0, next; first < n; first = next) {
                uint64_t end = region_end(&sorted[first], blocks);
                const char *why = NULL;

                for (next = first + 1; next < n && sorted[next].base < end; next++)
                        end = MAX(end, region_end(&sorted[next], blocks));
                if (!regions_are_a_row(sorted + first, next - first))
                        why = regions_find_conflict(sorted + first, next - first, blocks);
                if (why)
                        return why;
        }
        return NULL;
}

static bool regions_are_sorted(const struct kvcache_layout_region *regions, uint32_t n)
{
        for (uint32_t i = 1; i < n; i++)
                if (regions[i].base < regions[i - 1].base)
                        return false;
        return true;
}

static int regions_check_overlaps(const struct layout *l, const char **ret_why)
{
        struct kvcache_layout_region *sorted = l->regions, *copy = NULL;
        const char *why;

        if (!regions_are_sorted(l->regions, l->n_regions)) {
                copy = calloc(l->n_regions, sizeof(*copy));
                if (!copy)
                        return layout_fail(ret_why, -ENOMEM, "out of memory");
                memcpy(copy, l->regions, l->n_regions * sizeof(*copy));
                qsort(copy, l->n_regions, sizeof(*copy), region_compare);
                sorted = copy;
        }
        why = regions_check_sorted(sorted, l->n_regions, l->blocks);
        free(copy);
        return why ? layout_fail(ret_why, -EINVAL, why) : 0;
}

/* --- the layout --- */

static int regions_check_members(const struct kvcache_layout *from, const char **ret_why)
{
        if (from->layers != 0 || from->outer != 0 || from->page_tokens != 0 ||
            from->dtype_bytes != 0 || from->inner != 0 || from->alignment != 0 || from->bases ||
            from->base_bytes != 0 || from->reserved != 0)
                return layout_fail(ret_why, -EINVAL,
                                   "a layout of regions has no layers, tokens or bases: set the "
                                   "other members to 0");
        if (!from->regions || from->n_regions == 0 || from->n_regions > LAYOUT_MAX_REGIONS)
                return layout_fail(ret_why, -EINVAL, "a layout must list 1 to 1,024 regions");
        if (from->blocks == 0)
                return layout_fail(ret_why, -EINVAL, "blocks must be at least 1");
        return 0;
}

int layout_init_regions(struct layout *l, const struct kvcache_layout *from, const char **ret_why)
{
        uint64_t bytes = 0;
        int r = regions_check_members(from, ret_why);

        if (r < 0)
                return r;
        l->regions = calloc(from->n_regions, sizeof(*l->regions));
        if (!l->regions)
                return layout_fail(ret_why, -ENOMEM, "out of memory");
        memcpy(l->regions, from->regions, from->n_regions * sizeof(*l->regions));
        for (uint32_t i = 0; i < from->n_regions; i++) {
                r = region_check(&l->regions[i], from->blocks, &bytes, ret_why);
                if (r < 0)
                        return r;
        }
        l->n_listed = from->n_regions;
        l->n_regions = regions_merge(l->regions, l->n_listed);
        r = regions_check_overlaps(l, ret_why);
        if (r < 0)
                return r;
        l->layers = l->outer = l->page_tokens = 1;
        l->token_bytes = l->region_bytes = l->block_bytes = bytes;
        return 0;
}
