# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the parts of LMCache that the adapter uses, with the signatures of 0.5.0 and 0.5.6: L2AdapterInterface, its results,
objects and keys. Tests use it where LMCache is not installed; tests/engines runs the same scenarios over the real one.

install(version) makes `lmcache` importable, remove() removes it."""

import ctypes
import dataclasses
import importlib
import mmap
import os
import sys
import tempfile
import threading
import types
from abc import ABC, abstractmethod

_PACKAGES = ("lmcache", "lmcache.v1", "lmcache.v1.distributed", "lmcache.v1.distributed.l2_adapters")
_MODULES = (*_PACKAGES, "lmcache.v1.distributed.api", "lmcache.v1.distributed.internal_api", "lmcache.v1.distributed.l2_adapters.base", "lmcache.lmcache_native",
            "lmcache.native_storage_ops")


@dataclasses.dataclass(frozen=True)
class ObjectKey:
    chunk_hash: bytes
    model_name: str = "tests/model"
    kv_rank: int = 0x01000100
    object_group_id: int = 0
    cache_salt: str = ""


    def to_encoded_object_key(self):
        return EncodedObjectKey(self.chunk_hash.hex(), self.model_name, self.kv_rank, self.object_group_id, self.cache_salt)


@dataclasses.dataclass(frozen=True)
class EncodedObjectKey:
    chunk_hash_hex: str
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


@dataclasses.dataclass(frozen=True)
class KeyEntry:
    key: EncodedObjectKey
    size_bytes: int


@dataclasses.dataclass(frozen=True)
class KeyListPage:
    entries: tuple
    next_page_token: str | None


@dataclasses.dataclass(frozen=True)
class AdapterUsage:
    total_bytes_used: int
    total_capacity_bytes: int
    bytes_by_cache_salt: dict

    @property
    def usage_fraction(self):
        return self.total_bytes_used / self.total_capacity_bytes if self.total_capacity_bytes > 0 else -1.0


@dataclasses.dataclass(frozen=True)
class Dtype:
    name: str
    itemsize: int

    def __str__(self):
        return f"torch.{self.name}"


BF16, FP16 = Dtype("bfloat16", 2), Dtype("float16", 2)
LAYOUTS = {"plain": ([2, 2, 32, 32], BF16), "other type": ([2, 2, 32, 32], FP16), "other shape": ([2, 32, 2, 32], BF16),
           "longer": ([2, 2, 64, 32], BF16), "huge": ([2, 2, 32768, 32], BF16)}


@dataclasses.dataclass
class MemoryLayoutDesc:
    shapes: list
    dtypes: list


@dataclasses.dataclass(frozen=True)
class L1MemoryDesc:
    ptr: int
    size: int
    align_bytes: int = 4096
    stable_registration_size: int | None = None


class Bitmap:
    def __init__(self, size):
        self._bits = [False] * size

    def set(self, index):
        self._bits[index] = True

    def test(self, index):
        return self._bits[index]

    def popcount(self):
        return sum(self._bits)


class L2StoreResult(int):
    def __new__(cls, success, nbytes):
        return super().__new__(cls, nbytes if success else -1)

    def is_successful(self):
        return int(self) >= 0

    def bytes_transferred(self):
        return max(int(self), 0)


class L2AdapterInterface(ABC):
    """Keeps LMCache's accounts, which follow from notifications. LMCache corrects an amount below zero; here it is an error."""

    def __init__(self, max_capacity_bytes=0):
        self._listeners, self._max_capacity_bytes = [], max_capacity_bytes
        self._total_bytes_used, self._bytes_by_cache_salt, self._usage_lock = 0, {}, threading.Lock()

    @property
    def supports_global_eviction(self):
        return self._max_capacity_bytes > 0

    def register_listener(self, listener):
        self._listeners.append(listener)

    def _account(self, keys, sizes):
        with self._usage_lock:
            for key, size in zip(keys, sizes, strict=True):
                self._total_bytes_used += size
                self._bytes_by_cache_salt[key.cache_salt] = self._bytes_by_cache_salt.get(key.cache_salt, 0) + size
            assert self._total_bytes_used >= 0 and all(n >= 0 for n in self._bytes_by_cache_salt.values())

    def _notify_keys_stored(self, keys, sizes):
        self._account(keys, sizes)
        for listener in self._listeners:
            listener.on_l2_keys_stored(keys, sizes)

    def _notify_keys_accessed(self, keys):
        for listener in self._listeners:
            listener.on_l2_keys_accessed(keys)

    def _notify_keys_deleted(self, keys, sizes):
        self._account(keys, [-size for size in sizes])
        for listener in self._listeners:
            listener.on_l2_keys_deleted(keys)

    def get_usage(self):
        with self._usage_lock:
            return AdapterUsage(self._total_bytes_used, self._max_capacity_bytes, {s: n for s, n in self._bytes_by_cache_salt.items() if n})

    get_store_event_fd = get_lookup_and_lock_event_fd = get_load_event_fd = abstractmethod(lambda self: None)
    submit_store_task = submit_load_task = abstractmethod(lambda self, keys, objects: None)
    submit_lookup_and_lock_task = abstractmethod(lambda self, keys, group_layout_descs: None)
    query_lookup_and_lock_result = query_load_result = abstractmethod(lambda self, task_id: None)
    pop_completed_store_tasks = close = abstractmethod(lambda self: None)
    submit_unlock = abstractmethod(lambda self, keys: None)


class MemoryObj:
    """An object at an offset of the arena."""

    def __init__(self, memory, offset, layout):
        shape, dtype = LAYOUTS[layout]
        nbytes = dtype.itemsize
        for n in shape:
            nbytes *= n
        self.byte_array = memoryview((ctypes.c_ubyte * nbytes).from_buffer(memory, offset))
        self.meta = types.SimpleNamespace(shape=shape, dtype=dtype, shapes=[shape], dtypes=[dtype])


def layout_of(name):
    shape, dtype = LAYOUTS[name]
    return MemoryLayoutDesc([shape], [dtype])


def arena_of(nbytes, private=False):
    """Makes LMCache's arena: with --shm-name it is a file in /dev/shm, whose descriptor LMCache closes; otherwise it is private memory."""
    if private:
        return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), None
    fd, path = tempfile.mkstemp(prefix="lmcache_l1_pool_kvcache_test_", dir="/dev/shm")
    try:
        os.ftruncate(fd, nbytes)
        return mmap.mmap(fd, nbytes), path
    finally:
        os.close(fd)


def install(version="0.5.6"):
    """Returns the adapter's module, imported over these classes."""
    remove()
    modules = {name: types.ModuleType(name) for name in _MODULES}
    for name in _PACKAGES:
        modules[name].__path__ = []
    sys.modules.update(modules)
    modules["lmcache"].__version__ = version
    modules["lmcache.v1.distributed.api"].KeyEntry, modules["lmcache.v1.distributed.api"].KeyListPage = KeyEntry, KeyListPage
    modules["lmcache.v1.distributed.internal_api"].L2StoreResult = L2StoreResult
    modules["lmcache.v1.distributed.l2_adapters.base"].L2AdapterInterface = L2AdapterInterface
    native = "lmcache.native_storage_ops" if version == "0.5.0" else "lmcache.lmcache_native"
    modules[native].Bitmap = Bitmap
    return importlib.import_module("kvcache.lmcache.adapter")


def remove():
    for name in (*_MODULES, "kvcache.lmcache.adapter"):
        sys.modules.pop(name, None)
