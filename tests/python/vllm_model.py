# SPDX-License-Identifier: Apache-2.0
"""A model of vLLM's KV caches, 0.24 to 0.33: the tensors that its workers register and hand over, and the bytes of a chunk.

The order of a page's bytes is recorded from each version's FlashAttention backend and model runners:

- 0.24 and 0.25 have pages of (2, tokens, heads, dim), later versions pages of (heads, tokens, 2 dim); NHD and HND order them in memory.
- Up to 0.28 the runner V1 has one tensor for all layers whose blocks are outermost, the runner V2 one for each layer.
- From 0.29 on all layers lie in one allocation, and a layout names the order of layers, blocks, heads and tokens.

`chunk_of()` numbers each element of the KV cache, writes the numbers through the layers' tensors as kernels do, and reads a chunk through
the views that vLLM hands over. It knows nothing of fingerprints.
"""

import dataclasses
import itertools
import types
from typing import Any, NamedTuple

ns = types.SimpleNamespace
LAYERS, HEADS, TOKENS, DIM = 2, 4, 4, 2
NAMES = tuple(f"model.layers.{i}.attn" for i in range(LAYERS))
SIZES = {"bfloat16": 2, "float16": 2, "fp8": 1}


class Engine(NamedTuple):
    version: tuple[int, int] = (0, 33)
    runner: str = "v1"
    layout: str = "NHD"
    tp: int = 1
    dtype: str = "bfloat16"
    revision: str = "a"
    quantization: str | None = None
    overrides: tuple = ()
    backend: str = "FlashAttentionBackend"
    blocks_per_chunk: int = 1
    blocks: int = 64  # memory
    capability: tuple[int, int] = (9, 0)  # kind of GPU


@dataclasses.dataclass(frozen=True)
class FullAttentionSpec:
    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: str


class Storage:
    def __init__(self, address):
        self.address, self.bytes = address, {}


class Tensor:
    """A strided view. Strides and the offset are in elements, as in PyTorch."""

    def __init__(self, storage, dtype, shape, strides, offset=0, size=2):
        self.storage, self.dtype, self.shape, self.size = storage, f"torch.{dtype}", tuple(shape), size
        self.strides, self.offset = tuple(strides), offset

    def stride(self, at=None):
        return self.strides if at is None else self.strides[at]

    def storage_offset(self):
        return self.offset

    def element_size(self):
        return self.size

    def data_ptr(self):
        return self.storage.address + self.offset * self.size

    def write(self, index, label):
        at = (self.offset + sum(i * s for i, s in zip(index, self.strides))) * self.size
        for byte in range(self.size):
            self.storage.bytes[at + byte] = (*label, byte)


def strides_of(shape, order):
    """Returns strides of a tensor whose dimensions follow each other in memory in this order, outermost first."""
    strides, room = [0] * len(shape), 1
    for at in reversed(order):
        strides[at], room = room, room * shape[at]
    return strides


class Caches(NamedTuple):
    config: Any  # KVCacheConfig
    tensors: dict[str, Tensor]  # the registered ones
    cross_layers: Tensor | None  # the registered one for all layers
    handed_over: Any  # CanonicalKVCaches
    layers: dict[str, Tensor]  # tensors without a dimension for layers


ORDERS = {  # dimensions: layers, blocks, heads, tokens, content
    "LBNHC": (0, 1, 3, 2, 4), "LBHNC": (0, 1, 2, 3, 4), "BLNHC": (1, 0, 3, 2, 4), "BLHNC": (1, 0, 2, 3, 4), "BHLNC": (1, 2, 0, 3, 4),
}
LAYOUTS_29 = {"NHD": "LBNHC", "HND": "LBHNC"}
CROSS_25 = {"NHD": (1, 0, 2, 3, 4, 5), "HND": (1, 4, 0, 2, 3, 5)}  # dimensions: layers, blocks, keys and values, tokens, heads, dim
EACH_25 = {"NHD": (0, 1, 2, 3, 4), "HND": (0, 1, 3, 2, 4)}
CROSS_28 = {"NHD": (1, 0, 3, 2, 4), "HND": (1, 2, 0, 3, 4)}  # dimensions: layers, blocks, heads, tokens, content
EACH_28 = {"NHD": (0, 2, 1, 3), "HND": (0, 1, 2, 3)}


def layouts_of(version):
    return ("NHD", "HND") if version < (0, 29) else ("NHD", "HND", "BLNHC", "BLHNC", "BHLNC")


def caches_of(engine):
    """Makes the KV caches of one rank."""
    heads, size, blocks = HEADS // engine.tp, SIZES[engine.dtype], engine.blocks
    shape = (blocks, 2, TOKENS, heads, DIM) if engine.version < (0, 26) else (blocks, heads, TOKENS, 2 * DIM)
    page = 2 * heads * TOKENS * DIM * size
    cross, layers, packed = None, {}, False
    if engine.version >= (0, 29):
        storage, order = Storage(1 << 20), ORDERS[LAYOUTS_29.get(engine.layout, engine.layout)]
        strides = strides_of((LAYERS, *shape), order)
        layers = {n: Tensor(storage, engine.dtype, shape, strides[1:], i * strides[0], size) for i, n in enumerate(NAMES)}
        packed = order[0] == 1
    elif engine.runner == "v1":
        order = (CROSS_25 if engine.version < (0, 26) else CROSS_28)[engine.layout]
        strides = strides_of((LAYERS, *shape), order)
        whole = tuple((LAYERS, *shape)[at] for at in order)  # vLLM registers it in the order of its memory
        cross = Tensor(Storage(1 << 20), engine.dtype, whole, strides_of(whole, range(len(whole))), 0, size)
        layers = {n: Tensor(cross.storage, engine.dtype, shape, strides[1:], i * strides[0], size) for i, n in enumerate(NAMES)}
    else:
        strides = strides_of(shape, (EACH_25 if engine.version < (0, 26) else EACH_28)[engine.layout])
        layers = {n: Tensor(Storage((i + 1) << 20), engine.dtype, shape, strides, 0, size) for i, n in enumerate(NAMES)}
    if packed or cross is not None:
        whole = next(iter(layers.values())).storage
        views = [Tensor(whole, "int8", (blocks, page * LAYERS), (page * LAYERS, 1), 0, 1)]
    else:
        views = [Tensor(t.storage, "int8", (blocks, page), (page, 1), t.offset * size, 1) for t in layers.values()]
    handed_over = ns(tensors=[ns(tensor=v, page_size_bytes=v.shape[1]) for v in views],
                     group_data_refs=[[ns(tensor_idx=i, page_size_bytes=v.shape[1]) for i, v in enumerate(views)]])
    spec = FullAttentionSpec(TOKENS, heads, DIM, f"torch.{engine.dtype}")
    config = ns(num_blocks=blocks, kv_cache_groups=[ns(layer_names=list(NAMES), kv_cache_spec=spec)])
    return Caches(config, {} if cross is not None else dict(layers), cross, handed_over, layers)


def chunk_of(engine):
    """Returns the bytes of a numbered chunk of all ranks, as a tier stores it."""
    values = (engine.dtype, engine.revision, engine.quantization, engine.overrides)
    chunk = []
    for rank in range(engine.tp):
        caches = caches_of(engine)
        heads = HEADS // engine.tp
        for layer, tensor in enumerate(caches.layers.values()):
            for block, kv, head, token, dim in itertools.product(range(engine.blocks_per_chunk), range(2), range(heads), range(TOKENS),
                                                                 range(DIM)):
                label = (layer, kv, rank * heads + head, block * TOKENS + token, dim)
                index = (block, kv, token, head, dim) if engine.version < (0, 26) else (block, head, token, kv * DIM + dim)
                tensor.write(index, (values, label))
        for block, view in itertools.product(range(engine.blocks_per_chunk), caches.handed_over.tensors):
            start = view.tensor.offset + block * view.tensor.stride(0)
            chunk += [view.tensor.storage.bytes[start + i] for i in range(view.page_size_bytes)]
    return tuple(chunk)


# --- vLLM's objects around them ---


def offloading_of(engine, engine_id, rank=0):
    """Returns the OffloadingConfig."""
    parallel = ns(rank=rank, world_size=engine.tp, tp_size=engine.tp, pp_size=1, pcp_size=1, dcp_size=1,
                  is_parallelism_agnostic=engine.runner == "v1")
    return ns(groups=(ns(tokens_per_block=TOKENS, layer_names=NAMES),), model=ns(name="org/m", dtype="auto"), engine_id=engine_id,
              cache=ns(tokens_per_hash=TOKENS, blocks_per_chunk=engine.blocks_per_chunk), parallel=parallel,
              extra_config={"secondary_tiers": [{"type": "kvcache"}]})


def layers_of(engine):
    """Returns the model's layers by name, as the static forward context has them."""
    backend = type(engine.backend, (), {"__module__": "vllm.v1.attention.backends"})
    return {name: ns(get_attn_backend=lambda: backend) for name in NAMES}


class OffloadingConnectorWorker:
    """A worker of the class name whose KV caches are registered in the same way from vLLM 0.26 on."""

    def __init__(self, spec, kv_cache_config, handed_over):
        self.spec, self.kv_cache_config, self.handed_over, self.worker = spec, kv_cache_config, handed_over, None

    def _init_worker(self, kv_caches):
        self.worker = self.spec.get_worker(kv_caches)

    def register_kv_caches(self, kv_caches):
        self._init_worker(self.handed_over)

    def register_cross_layers_kv_cache(self, kv_cache, attn_backend):
        self._init_worker(self.handed_over)
