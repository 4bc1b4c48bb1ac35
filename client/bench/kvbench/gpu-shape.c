/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu-shape.h"

#include <errno.h>
#include <string.h>

#include "checked.h"
#include "family.h"

enum { MOST_LAYERS = 4096 };

static const char *const names[] = {
        [KVCACHE_LAYOUT_CONTIGUOUS] = "contiguous",
        [KVCACHE_LAYOUT_BLOCK_FIRST] = "block-first",
        [KVCACHE_LAYOUT_OUTER_FIRST] = "outer-first",
};

const char *gpu_shape_kind_name(enum kvcache_layout_kind kind)
{
        return names[kind];
}

int gpu_shape_kind_parse(const char *text, enum kvcache_layout_kind *ret)
{
        for (unsigned i = KVCACHE_LAYOUT_CONTIGUOUS; i < ARRAY_SIZE(names); i++)
                if (strcmp(text, names[i]) == 0) {
                        *ret = (enum kvcache_layout_kind)i;
                        return 0;
                }
        return -EINVAL;
}

/* Returns the number of layers in one I/O: 1 unless the access is by block, otherwise the layers of
 * one pipeline stage. A fraction of a layer is rounded up for KVBENCH_ROUND_LATE; other families
 * then get 0. */
static uint64_t layers_of(const struct kvbench_model *m, const struct kvbench_deployment *d)
{
        uint64_t stages = d->strategy.pp_size;

        if (strcmp(d->system.access_pattern, "block") != 0)
                return 1;
        if (m->family->rounding == KVBENCH_ROUND_LATE)
                return m->num_layers / stages + (m->num_layers % stages != 0);
        return m->num_layers % stages == 0 ? m->num_layers / stages : 0;
}

void gpu_shape_of(struct gpu_shape *ret, enum kvcache_layout_kind kind,
                  const struct kvbench_model *m, const struct kvbench_deployment *d,
                  uint64_t io_size)
{
        uint64_t layers = layers_of(m, d), outer = m->family->outer, tokens = d->system.page_size,
                 regions, parts;

        *ret = (struct gpu_shape){
                .kind = kind,
                .layers = 1,
                .outer = 1,
                .page_tokens = 1,
                .inner = io_size,
                .region_bytes = io_size,
                .whole = true,
        };
        if (layers == 0 || layers > MOST_LAYERS || tokens > UINT32_MAX)
                return;
        regions = layers * outer;
        if (!checked_mul(regions, tokens, &parts) || io_size % parts != 0)
                return;
        *ret = (struct gpu_shape){
                .kind = kind,
                .layers = (uint32_t)layers,
                .outer = (uint32_t)outer,
                .page_tokens = (uint32_t)tokens,
                .inner = io_size / parts,
                .region_bytes = io_size / regions,
        };
}
