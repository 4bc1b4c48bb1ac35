# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the parts of SGLang that the backend uses, with the signatures of 0.5.17 and 0.5.23: HiCacheStorage, its
configuration, and host pools that say where a page's pieces lie. Tests use it where SGLang is not installed; tests/engines runs the
same scenarios over the real one.

install() makes `sglang.srt.mem_cache.hicache_storage` importable, remove() removes it."""

import ctypes
import dataclasses
import enum
import importlib
import mmap
import os
import sys
import types
from abc import ABC, abstractmethod
from typing import Any

_MODULES = ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.hicache_storage", "sglang.srt.observability",
            "sglang.srt.observability.metrics_collector", "sglang.srt.runtime_context", "sglang.srt.mem_cache.utils")


def configuration():
    """Returns the namespaces of SGLang's runtime context on which an identity depends."""
    ns = types.SimpleNamespace
    return {
        "model": ns(model_path="tests/model", revision=None, quantization=None, dtype="auto", kv_cache_dtype="auto", load_format="auto",
                    quantization_param_path=None, json_model_override_args="{}"),
        "exec": ns(kernel=ns(attention_backend="fa3", prefill_attention_backend=None, decode_attention_backend=None)),
        "spec": ns(speculative_algorithm=None, speculative_draft_model_path=None, speculative_draft_model_revision=None),
        "lora": ns(enable_lora=None, lora_paths=None), "device": ns(random_seed=42),
    }


current = configuration()


@dataclasses.dataclass
class Config17:
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = True
    is_page_first_layout: bool = False
    model_name: str | None = "tests/model"
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    extra_config: dict | None = None


@dataclasses.dataclass
class Config23(Config17):
    dp_rank: int = 0
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int | None = None


@dataclasses.dataclass
class ExtraInfo:
    prefix_keys: list | None = None
    extra_info: dict | None = None


class PoolName(str, enum.Enum):
    KV = "kv"
    MAMBA = "mamba"
    INDEXER = "indexer"


class PoolHitPolicy(str, enum.Enum):
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


@dataclasses.dataclass
class PoolTransfer:
    name: str
    host_indices: Any = None
    keys: list | None = None
    hit_policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES


@dataclasses.dataclass
class PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict
    restorable_prefix_pages: list | None = None

    @classmethod
    def empty(cls):
        return cls(0, {})


@dataclasses.dataclass
class StorageMetrics:
    prefetch_pgs: list = dataclasses.field(default_factory=list)
    backup_pgs: list = dataclasses.field(default_factory=list)
    prefetch_bandwidth: list = dataclasses.field(default_factory=list)
    backup_bandwidth: list = dataclasses.field(default_factory=list)


class HiCacheStorage(ABC):
    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        self.__dict__.setdefault("registered_pools", {})[host_pool_name] = host_pool

    def on_host_pools_registered(self):
        pass

    @abstractmethod
    def get(self, key, target_location=None, target_sizes=None):
        ...

    @abstractmethod
    def batch_get(self, keys, target_locations=None, target_sizes=None):
        ...

    @abstractmethod
    def set(self, key, value=None, target_location=None, target_sizes=None):
        ...

    @abstractmethod
    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        ...

    @abstractmethod
    def exists(self, key):
        ...

    def clear(self):
        pass

    def get_stats(self):
        return None


class Indices(list):
    def tolist(self):
        return list(self)


class Tensor:
    """A tensor of CPU memory, contiguous, at an offset of a buffer."""

    device = types.SimpleNamespace(type="cpu")

    def __init__(self, memory, offset=0, nbytes=None):
        self.memory = memory
        self._first = (ctypes.c_ubyte * 0).from_buffer(memory, offset)
        self._nbytes = memoryview(memory).nbytes - offset if nbytes is None else nbytes

    def data_ptr(self):
        return ctypes.addressof(self._first)

    def numel(self):
        return self._nbytes // 2

    def element_size(self):
        return 2

    def is_contiguous(self):
        return True

    def bytes(self):
        return ctypes.string_at(self.data_ptr(), self._nbytes)


def memory_of(nbytes, allocator):
    """Allocates as SGLang does: "shm" is a memfd that is not sealed, and every other allocator returns private memory."""
    if allocator != "shm":
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), None
    fd = os.memfd_create("sglang_host_pool_test", os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    return mmap.mmap(fd, nbytes), fd


class HostPool:
    """Pages of K and V (kind "mha"), or of one latent (kind "mla"), with the layout of SGLang's host pools."""

    layer_num, head_num, head_dim, page_size = 2, 2, 16, 64
    start_layer, end_layer, dtype = 0, 2, "torch.bfloat16"

    def __init__(self, kind="mha", layout="page_first", pages=64, allocator="shm", page_size=None):
        self.kind, self.layout, self.page_num = kind, layout, pages
        self.page_size = page_size or self.page_size
        self.size = pages * self.page_size
        self._token = self.head_num * self.head_dim * 2
        self._halves = 2 if kind == "mha" else 1
        nbytes = -(-self._halves * self.layer_num * self.size * self._token // mmap.PAGESIZE) * mmap.PAGESIZE
        memory, fd = memory_of(nbytes, allocator)
        self.kv_buffer = Tensor(memory)
        self.allocator = types.SimpleNamespace(fds=[fd])

    def get_page_buffer_meta(self, indices):
        assert len(indices) % self.page_size == 0
        base, half = self.kv_buffer.data_ptr(), self.layer_num * self.size * self._token
        indices, addresses = indices.tolist(), []
        for index in indices[::self.page_size]:
            if self.layout == "layer_first":
                places = [index * self._token + layer * self.size * self._token for layer in range(self.layer_num)]
                length = self.page_size * self._token
            else:
                places, length = [index * self.layer_num * self._token], self.page_size * self.layer_num * self._token
            addresses += [base + p + v * half for p in places for v in range(self._halves)]
        return addresses, [length] * len(addresses)

    def indices(self, pages):
        return Indices(p * self.page_size + t for p in pages for t in range(self.page_size))

    def close(self):
        for fd in self.allocator.fds:
            if fd is not None:
                os.close(fd)


def install():
    """Returns the backend's module, imported over these classes."""
    remove()
    modules = {name: types.ModuleType(name) for name in _MODULES}
    sys.modules.update(modules)
    storage = modules["sglang.srt.mem_cache.hicache_storage"]
    storage.HiCacheStorage, storage.PoolTransferResult, storage.PoolName = HiCacheStorage, PoolTransferResult, PoolName
    modules["sglang.srt.observability.metrics_collector"].StorageMetrics = StorageMetrics
    modules["sglang"].__version__ = "0.5.23"
    modules["sglang.srt.runtime_context"]._CONTEXT = types.SimpleNamespace(config_bag=lambda name: current[name])
    modules["sglang.srt.mem_cache.utils"].storage_namespace_seed = lambda extra_key, cache_salt: None
    return importlib.import_module("kvcache.sglang.storage")


def remove():
    for name in (*_MODULES, "kvcache.sglang.storage"):
        sys.modules.pop(name, None)
