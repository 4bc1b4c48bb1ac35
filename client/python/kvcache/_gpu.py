# SPDX-License-Identifier: Apache-2.0
"""Gpu, which stores blocks of GPU memory in the daemon and loads them, through <kvcache-gpu.h>. The bytes do not pass through Python.

A Gpu attaches a client to one device, at the first call that finds a daemon. put() and get() take the client's lock and block until the
request has ended. They return statuses, which are LOST if no daemon answers or the GPU cannot be used. The module imports nothing of CUDA:
libkvcache loads the driver, and addresses and streams are numbers. Used by transformers.py and by the vLLM adapter (vllm/mover.py,
vllm/loads.py).
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import struct
import time
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import _library as c
from ._arguments import ack_number, milliseconds, parent_words
from ._errors import ArgumentError
from ._memory import Keys, pin

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._client import Client
    from ._memory import KeysLike
    from ._namespace import Namespace

CONTIGUOUS, BLOCK_FIRST, OUTER_FIRST, REGIONS = 1, 2, 3, 4
_KINDS = {CONTIGUOUS: "contiguous", BLOCK_FIRST: "block-first", OUTER_FIRST: "outer-first"}
NO_BLOCK = 2**64 - 1  # number in place of a block that is left out of a chunk

# struct kvcache_layout, kvcache_layout_info, kvcache_gpu_options, kvcache_gpu_request, kvcache_gpu_leased_request, kvcache_gpu_completion
_LAYOUT = struct.Struct("<IIIIIIQQQQQQII")
_INFO = struct.Struct("<IIQQQQQQQ")
_OPTIONS = struct.Struct("<IIiIIIQ")
_REQUEST = struct.Struct("<IIIIiIIiQQQQQQQQQQIIQ")
_LEASED_REQUEST = struct.Struct("<IIQQQQQQQQQ")
_COMPLETION = struct.Struct("<QiiQQ")
_GPU_INFO = struct.Struct("<II128x")  # struct kvcache_gpu_info up to its counts; only size and flags are used here
_HAS_POOL = 1 << 2  # flag KVCACHE_GPU_HAS_POOL
_BLOCK_WORDS = 6  # words of 8 bytes of struct kvcache_gpu_block: key (4), block, tokens | cost_us
_DONE = 2  # kind of a completion: the request has ended
ENGINES = ("auto", "kernel", "batch", "plain", "bounce")  # names for the values of enum kvcache_gpu_engine, in their order
_LEASED, _EXPLICIT, _GENTLE = 1 << 4, 1 << 5, 1 << 6  # flags KVCACHE_GPU_LEASED, KVCACHE_GPU_EXPLICIT, KVCACHE_GPU_GENTLE
SLICE_BYTES = 16 << 20  # bytes; a pool is registered with the GPU's driver in slices, so a copy must not cross a multiple of this size
_RETRY_S = 1.0  # pause after a failed attempt to attach
_MOST_POOLS = 8  # most pools that pools() can return
_REAP_AT_ONCE = 32  # most completions that one call of libkvcache returns

_attach = c._function("kvcache_gpu_attach", c._i, c._p, c._p, c._s, c._p, c._z)
_detach = c._function("kvcache_gpu_detach", c._i, c._p, c._i)
_error = c._function("kvcache_gpu_error", c._s, c._p)
_get_info = c._function("kvcache_gpu_get_info", c._i, c._p, c._p)
_put_blocks = c._function("kvcache_gpu_put_blocks", c._i, c._p, c._s)
_get_blocks = c._function("kvcache_gpu_get_blocks", c._i, c._p, c._s)
_measure = c._function("kvcache_layout_measure", c._i, c._s, c._p, c._p, c._z)
_gather = c._function("kvcache_layout_gather", c._i, c._s, ctypes.c_uint32, ctypes.c_uint32, c._p, c._z, c._p, c._p, c._z)
_scatter = c._function("kvcache_layout_scatter", c._i, c._s, ctypes.c_uint32, ctypes.c_uint32, c._p, c._z, c._p, c._p, c._z)
_reap = c._function("kvcache_gpu_reap_sized", c._i, c._p, c._p, c._z, c._z, c._i)
_release_pool = c._function("kvcache_gpu_release_pool", c._i, c._p, ctypes.c_uint64)
_renew = c._function("kvcache_gpu_renew", c._i, c._p)
_wait_leased = c._function("kvcache_gpu_reap_leased_sized", c._i, c._p, c._p, c._z, c._z, c._i)
# The functions below take microseconds and keep Python's global lock, because a thread that releases the lock may wait milliseconds for it.
_copy_leased = c._function("kvcache_gpu_copy_leased", c._i, c._p, c._s, library=c.held)
_reap_leased = c._function("kvcache_gpu_reap_leased_sized", c._i, c._p, c._p, c._z, c._z, c._i, library=c.held)
_leased_error = c._function("kvcache_gpu_leased_error", c._s, c._p, library=c.held)
_pool_memory = c._function("kvcache_gpu_pool_memory", ctypes.c_void_p, c._p, ctypes.c_uint64, c._p, library=c.held)
_pools = c._function("kvcache_gpu_pools", c._i, c._p, c._p, c._z, library=c.held)


class Layout:
    """Describes where blocks lie in memory of the device or the host: struct kvcache_layout of <kvcache-layout.h>, which explains the parameters.

    `bases`: addresses of buffers, one for each layer, or a single one for CONTIGUOUS. `base_bytes`: size of each buffer, for checks of
    bounds; 0: unchecked. The caller must keep the memory. of_regions() describes memory of any other form."""

    def __init__(self, kind: int, *, layers: int, outer: int, page_tokens: int, dtype_bytes: int, inner: int, blocks: int,
                 bases: Sequence[int], base_bytes: int = 0) -> None:
        needed = 1 if kind == CONTIGUOUS else layers
        if len(bases) != needed:
            raise ArgumentError(f"this layout needs {needed} addresses in bases, not {len(bases)}")
        self._bases = array("Q", bases)
        self._packed = _LAYOUT.pack(_LAYOUT.size, kind, layers, outer, page_tokens, dtype_bytes, inner, 0, blocks,
                                    self._bases.buffer_info()[0], base_bytes, 0, 0, 0)

    @classmethod
    def of_regions(cls, regions: Sequence[tuple[int, int, int]], *, blocks: int) -> Layout:
        """Describes blocks that consist of one piece of each region. A region is a tuple (base, stride, bytes): the piece of block b is the
        `bytes` bytes at base + b * stride. A chunk has the pieces in the order of `regions`, without the padding that strides may
        include."""
        self = cls.__new__(cls)
        self._bases = array("Q", (word for base, stride, nbytes in regions for word in (base, stride, nbytes)))
        self._packed = _LAYOUT.pack(_LAYOUT.size, REGIONS, 0, 0, 0, 0, 0, 0, blocks, 0, 0, self._bases.buffer_info()[0],
                                    len(regions), 0)
        return self

    def __repr__(self) -> str:
        if not hasattr(self, "_packed"):
            return "<Layout of nothing>"
        kind, layers, outer, page_tokens, dtype_bytes, inner, _, blocks, _, _, _, regions, _ = _LAYOUT.unpack(self._packed)[1:]
        if kind == REGIONS:
            return f"<Layout of {regions} regions, {blocks} blocks>"
        name = _KINDS.get(kind, f"kind {kind}")
        return f"<Layout {name}: {layers} layers x {outer} x {page_tokens} tokens x {inner} x {dtype_bytes} bytes, {blocks} blocks>"

    @property
    def block_bytes(self) -> int:
        """Returns the bytes of a block in a chunk. Raises ArgumentError if the layout is invalid."""
        info, why = ctypes.create_string_buffer(_INFO.pack(_INFO.size, *[0] * 8), _INFO.size), ctypes.create_string_buffer(256)
        if _measure(self._packed, info, why, len(why)) < 0:
            raise ArgumentError(why.value.decode(errors="replace"))
        nbytes: int = _INFO.unpack(info.raw)[3]
        return nbytes

    def gather(self, blocks: Sequence[int], chunk: Any) -> None:
        """Copies blocks of this process's memory into `chunk`, a writable buffer of their total length. NO_BLOCK stands for a block of zeros."""
        address, nbytes, holder = self._chunk(blocks, chunk, True)
        self._copy(_gather, blocks, address, nbytes)
        for i, block in enumerate(blocks):
            if block == NO_BLOCK:
                ctypes.memset(address + i * nbytes, 0, nbytes)
        del holder

    def scatter(self, blocks: Sequence[int], chunk: Any) -> None:
        """Copies `chunk` into consecutive blocks of this process's memory. NO_BLOCK skips the bytes of a block."""
        address, nbytes, holder = self._chunk(blocks, chunk, False)
        self._copy(_scatter, blocks, address, nbytes)
        del holder

    def _chunk(self, blocks: Sequence[int], chunk: Any, is_written: bool) -> tuple[int, int, Any]:
        """Returns the address of the chunk, the bytes of a block, and an object that keeps the chunk at its address."""
        nbytes = self.block_bytes
        address, length, readonly, holder = pin(chunk)
        if length != nbytes * len(blocks):
            raise ArgumentError(f"{len(blocks)} blocks of {nbytes} bytes need a chunk of {len(blocks) * nbytes} bytes, not {length}")
        if is_written and readonly:
            raise ArgumentError("gather() cannot write to a read-only chunk")
        return address, nbytes, holder

    def _copy(self, call: ctypes._NamedFuncPointer, blocks: Sequence[int], address: int, nbytes: int) -> None:
        copies = array("Q", (word for i, block in enumerate(blocks) if block != NO_BLOCK
                             for word in (block, address + i * nbytes, nbytes, 0)))
        why = ctypes.create_string_buffer(256)
        if call(self._packed, 0, 0, copies.buffer_info()[0], len(copies) // 4, None, why, len(why)) < 0:
            raise ArgumentError(why.value.decode(errors="replace"))


class Gpu:
    """One GPU of this process, by its device number, in the device's primary CUDA context, which PyTorch uses, too.

    staging_bytes  size of the staging memory for puts, an eighth of which must hold a chunk; 0: 128 MiB
    leased         copy_leased(), instead of get(), uses the device memory through which small pieces are copied; for programs that mostly
                   load with copy_leased()
    explicit       only renew() attaches the GPU and registers a daemon's memory, and other calls fail until then; for a process whose other
                   threads compute on the GPU
    engine         how pieces are copied, one of ENGINES (see kvcache-gpu.h); values other than "auto" are for measurements

    Attributes:
    reason         why put(), get() or renew() failed last, or some blocks did; empty after a success, and before the first failure
    refusal        why the driver did not register the memory of the session at the last renew(); empty if it did
    copy_s         seconds that the copies of the last put() or get() took, by the GPU's clock; 0 if unknown
    gentle         whether attaching pauses at intervals, so that other threads can use the GPU meanwhile; False at first"""

    def __init__(self, client: Client, device: int = 0, staging_bytes: int = 0, *, leased: bool = False, explicit: bool = False,
                 engine: str = "auto") -> None:
        if not 0 <= device < 2**31:
            raise ArgumentError(f"device must be the number of a GPU, 0 or more, not {device!r}")
        if engine not in ENGINES:
            raise ArgumentError(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}")
        self._client = client
        self._flags, self._staging_bytes = (_LEASED if leased else 0) | (_EXPLICIT if explicit else 0), staging_bytes
        self.gentle = False
        self._gpu: int | None = None
        self._retry_at = 0.0
        self.reason = self.refusal = ""
        self.copy_s = 0.0
        self._device, self._engine = device, ENGINES.index(engine)

    def __repr__(self) -> str:
        state = "attached" if getattr(self, "_gpu", None) is not None else "not attached"
        return f"<Gpu {getattr(self, '_device', '?')}: {state}{': ' + self.reason if getattr(self, 'reason', '') else ''}>"

    @property
    def attached(self) -> bool:
        return self._gpu is not None

    def detach(self, timeout: float = 10.0) -> bool:
        """Detaches the client from the GPU; must be called before the client is closed. Returns False if operations are still in flight after
        `timeout` seconds, and True if the GPU is detached."""
        with self._client._lock:
            if self._gpu is not None:
                if _detach(self._gpu, milliseconds(timeout)) < 0:
                    return False
                self._gpu = None
            return True

    def put(self, namespace: Namespace, layout: Layout, blocks: Sequence[int], keys: KeysLike, ack: str = "written",
            parent: Buffer | None = None, stream: int = 0, timeout: float | None = None, chunk_blocks: int = 1, wait: bool = True) -> bytes:
        """Stores these blocks of the layout, and returns one status for each key.

        The GPU reads the blocks after the work that is in `stream` now (a CUstream; 0 for the default stream). The blocks may be overwritten
        when the call returns. Each key's chunk consists of `chunk_blocks` consecutive elements of `blocks`, and NO_BLOCK stands for a block of
        zeros. `ack`, `parent` and `wait`: as in Namespace.put()."""
        return self._move(_put_blocks, namespace, layout, blocks, keys, ack_number(ack), parent, stream, timeout,
                          chunk_blocks=chunk_blocks, flags=0 if wait else c.NOWAIT)

    def get(self, namespace: Namespace, layout: Layout, blocks: Sequence[int], keys: KeysLike, parent: Buffer | None = None,
            stream: int = 0, timeout: float | None = None, chunk_blocks: int = 1) -> bytes:
        """Loads these blocks, and returns one status for each key.

        The GPU writes the blocks after the work that is in `stream` now. The blocks are complete when the call returns. A block whose status is
        not OK may contain anything. `chunk_blocks`: as for put(), except that NO_BLOCK skips the bytes of a block."""
        return self._move(_get_blocks, namespace, layout, blocks, keys, 0, parent, stream, timeout, chunk_blocks)

    # --- leased chunks: any thread may call the next three methods, also during other calls; none of them sends a message to the daemon ---

    def copy_leased(self, layout: Layout, blocks: Sequence[int], pool: int, offsets: Sequence[int], tag: int, event: int = 0,
                    before: int = 0, after: int = 0) -> None:
        """Starts to copy leased chunks from these offsets in `pool`, an id that Client.pool_of() returned, to blocks of the layout.

        The copies begin after the CUDA event `event` and after the work that is in the stream `before` now; the stream `after` waits for
        the copies; 0 for any of the three means none. The caller must keep the leases until reap_leased() returns `tag`. Calls with `after`
        are one kind, and calls without it the other: calls of one kind are copied one after another, and beside those of the other kind.
        The first call of a kind creates streams and takes up to 72 MiB of device memory; a call without blocks does only that.

        Raises OSError with ESTALE if the pool is not registered with the GPU, EINVAL if a chunk is not within the pool, EBUSY if a stream
        is being captured, ENODEV if no GPU is attached, ENOMEM, and EIO if the driver fails. No copy is then in flight."""
        if self._gpu is None:
            raise OSError(errno.ENODEV, "no GPU is attached: call renew() first")
        if len(blocks) != len(offsets):
            raise ArgumentError(f"{len(offsets)} chunks need as many blocks, not {len(blocks)}")
        packed, at = array("Q", blocks), array("Q", offsets)
        r = _copy_leased(self._gpu, _LEASED_REQUEST.pack(_LEASED_REQUEST.size, 0, c.address_of(layout._packed), packed.buffer_info()[0],
                                                         at.buffer_info()[0], len(packed), pool, before, event, after, tag))
        if r < 0:
            why: bytes = _leased_error(self._gpu)
            raise OSError(-r, why.decode(errors="replace"))

    def reap_leased(self, timeout: float = 0.0) -> list[tuple[int, int, float]]:
        """Returns the calls of copy_leased() that have ended: for each its tag, 0 or an errno, and the seconds that its copies took by the GPU's
        clock. Waits at most `timeout` seconds for the first one."""
        if self._gpu is None:
            return []
        room, n = ctypes.create_string_buffer(_REAP_AT_ONCE * _COMPLETION.size), _REAP_AT_ONCE
        ended: list[tuple[int, int, float]] = []
        call, ms = (_wait_leased, milliseconds(timeout)) if timeout else (_reap_leased, 0)
        while n == _REAP_AT_ONCE:
            n = call(self._gpu, room, _COMPLETION.size, _REAP_AT_ONCE, 0 if ended else ms)
            ended += [(tag, -error, copy_ns / 1e9)
                      for tag, _, error, _, copy_ns in itertools.islice(_COMPLETION.iter_unpack(room.raw), max(n, 0))]
        return ended

    def pools(self) -> list[int]:
        """Returns the ids of the pools from which copy_leased() can copy, the latest first."""
        ids = array("Q", bytes(8 * _MOST_POOLS))
        n = _pools(self._gpu, ids.buffer_info()[0], _MOST_POOLS) if self._gpu is not None else 0
        return ids[:max(n, 0)].tolist()

    # --- the pools that are registered with the GPU ---

    def renew(self, namespace: Namespace) -> bool:
        """Attaches the GPU if necessary, and registers the pool of the client's present session with it. Returns False, with the cause in
        `reason`, if this failed. Returns True, with `refusal` set, if the driver refuses the pool, whose chunks then pass through the
        staging memory; the next call tries to register it again. The call takes seconds, in which other threads can use the driver only
        between its steps."""
        self._client._check_fork()
        with self._client._lock:
            r = self._enter(namespace, may_attach=True)
            if r == 0:
                r, why = _renew(self._gpu), self._words()
                info = ctypes.create_string_buffer(_GPU_INFO.pack(_GPU_INFO.size, 0), _GPU_INFO.size)
                if r == 0 and (r := _get_info(self._gpu, info)) == 0:
                    self.refusal = "" if _GPU_INFO.unpack(info.raw)[1] & _HAS_POOL else why
                else:
                    self.reason = self._words()
            return r == 0

    def release_pool(self, pool: int) -> None:
        """Releases a pool in which the caller has no leases. The pool of the present session is kept."""
        if self._gpu is not None:
            _release_pool(self._gpu, pool)

    def pool_memory(self, pool: int) -> tuple[int, int]:
        """Returns the address of the pool's first byte in this process, and the pool's length in bytes; (0, 0) if this process has not mapped it."""
        nbytes = ctypes.c_uint64()
        address = _pool_memory(self._gpu, pool, ctypes.byref(nbytes)) if self._gpu is not None else None
        return (address, nbytes.value) if address else (0, 0)

    # --- internal ---

    def _enter(self, namespace: Namespace, may_attach: bool = False) -> int:
        """Attaches the GPU and opens the namespace if necessary. Returns 0 if both are done, else a negative errno. The caller holds the client's
        lock."""
        r: int = self._client._usable(namespace)
        if r:
            self.reason = self._client._unreachable or self._client._words()
            return r
        if self._gpu is None:
            if time.monotonic() < self._retry_at or (self._flags & _EXPLICIT and not may_attach):
                self.reason = self.reason or "no GPU is attached: call renew() first"
                return -errno.ENODEV
            gpu, why = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
            assert self._client._handle is not None
            options = _OPTIONS.pack(_OPTIONS.size, self._flags | (_GENTLE if self.gentle else 0), self._device, self._engine, 0, 0,
                                    self._staging_bytes)
            r = _attach(ctypes.byref(gpu), self._client._handle.kv, options, why, len(why))
            if r < 0:
                self.reason, self._retry_at = why.value.decode(errors="replace"), time.monotonic() + _RETRY_S
                return r
            self._gpu = gpu.value
        self.reason = ""
        return 0

    def _move(self, call: ctypes._NamedFuncPointer, namespace: Namespace, layout: Layout, blocks: Sequence[int],
              keys: KeysLike, ack: int, parent: Buffer | None, stream: int, timeout: float | None, chunk_blocks: int = 1,
              flags: int = 0) -> bytes:
        packed = keys if type(keys) is Keys else Keys(keys)
        n = packed.count
        if not 0 < chunk_blocks < 2**32 or len(blocks) != n * chunk_blocks:
            raise ArgumentError(f"{len(blocks)} blocks do not fit {n} keys: each key needs {chunk_blocks} blocks (chunk_blocks, 1 or more)")
        words = array("Q", bytes(8 * _BLOCK_WORDS * n))
        for i in range(4):
            words[i::_BLOCK_WORDS] = packed.words[i::4]
        indices = array("Q", blocks)
        is_list = chunk_blocks != 1 or NO_BLOCK in blocks
        if not is_list:
            words[4::_BLOCK_WORDS] = indices
        above = parent_words(parent) if parent is not None else None
        statuses = array("i", [c.LOST]) * n
        order = stream or 1  # CU_STREAM_LEGACY
        ms = milliseconds(timeout) if timeout is not None else 0
        self._client._check_fork()
        with self._client._lock:
            if n == 0 or self._enter(namespace) < 0:
                return bytes(statuses.tolist())
            request = _REQUEST.pack(_REQUEST.size, 8 * _BLOCK_WORDS, namespace._id, flags, ack, 0, 0, ms,
                                    c.address_of(layout._packed), words.buffer_info()[0], n,
                                    above.buffer_info()[0] if above else 0, statuses.buffer_info()[0], order, order, 0, 0, 1,
                                    chunk_blocks, 0, indices.buffer_info()[0] if is_list else 0)
            r = call(self._gpu, request)
            if r == -errno.EINVAL:
                raise ArgumentError(self._words())
            if r == 0:
                self._wait()
            else:
                self.reason = self._words()
        return bytes(statuses.tolist())

    def _wait(self) -> None:
        """Waits until the only request in flight has ended. The request's timeout limits its waits for the daemon, but not those for the
        GPU."""
        room = ctypes.create_string_buffer(_COMPLETION.size)
        while True:
            r = _reap(self._gpu, room, _COMPLETION.size, 1, -1)
            if r < 0:
                self.reason = self._words()
                raise self._client._raised(r)
            if r == 0:
                continue
            _, kind, error, _, copy_ns = _COMPLETION.unpack(room.raw)
            if kind == _DONE:
                self.copy_s = copy_ns / 1e9
                if error:
                    self.reason = self._words()
                return

    def _words(self) -> str:
        text: bytes = _error(self._gpu) if self._gpu else b""
        return text.decode(errors="replace")
