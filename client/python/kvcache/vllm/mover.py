# SPDX-License-Identifier: Apache-2.0
"""Jobs between blocks of GPU memory and the daemon's memory; nothing of vLLM.

A thread of its own has the client and the GPU's attachment. The engine's thread records an event, queues a job and asks what has
ended; it waits only where it says so (wait()). Loads go before stores, whose jobs are cut into slices for that.

A load cannot fail while the GPU works: its job holds leases, taken in this process, and what libkvcache does not bring (the daemon
went, or hangs) is copied from the leased memory, which stays mapped as long as the leases are held. A store that fails is a chunk
that is not found later.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import Client, Error, Namespace, status_ok
from .._gpu import BLOCK_FIRST, Gpu, Layout
from .identity import group_of, parts_of

log = logging.getLogger("kvcache.vllm")

SLICE_BLOCKS = 32  # of a store, between which loads may begin
PAUSE_S = 1.0      # without the daemon, after it failed
LOAD_S = 2.0       # that a load waits for the daemon, before it is copied from the leased memory


class Blocks(NamedTuple):
    """The blocks of a group of layers: one buffer a layer, blocks of page_bytes one after the other."""

    bases: tuple[int, ...]
    page_bytes: int
    blocks: int

    @property
    def chunk_bytes(self) -> int:
        return len(self.bases) * self.page_bytes

    def layout(self) -> Layout:
        return Layout(BLOCK_FIRST, layers=len(self.bases), outer=1, page_tokens=1, dtype_bytes=1, inner=self.page_bytes,
                      blocks=self.blocks, bases=self.bases, base_bytes=self.page_bytes * self.blocks)


class Part(NamedTuple):
    """Of a job, what lies in one group. `addresses`: of a load, where each chunk is leased; of a store, none."""

    layout: int
    keys: list[bytes]
    blocks: list[int]
    addresses: list[int]


class Ended(NamedTuple):
    job: int
    success: bool
    nbytes: int
    seconds: float


class Cuda:
    """As much of the driver as orders the engine's streams with ours; in the device's primary context."""

    def __init__(self, device: int) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)

    def _call(self, name: str, *arguments: Any) -> None:
        r = getattr(self._cuda, name)(*arguments)
        if r:
            raise OSError(f"{name}() of the GPU's driver: error {r}")

    def use(self) -> None:
        """In this thread, from now on."""
        self._call("cuCtxPushCurrent_v2", self._context)

    def leave(self) -> None:
        self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), 1)  # not with the legacy default stream
        return stream.value or 0

    def record(self, stream: int) -> int:
        """An event behind what this stream holds now."""
        event = ctypes.c_void_p()
        self.use()
        try:
            self._call("cuEventCreate", ctypes.byref(event), 2)  # without timing
            self._call("cuEventRecord", event, ctypes.c_void_p(stream))
        finally:
            self.leave()
        return event.value or 0

    def wait_for(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", ctypes.c_void_p(stream), ctypes.c_void_p(event), 0)

    def drop(self, event: int) -> None:
        self._call("cuEventDestroy_v2", ctypes.c_void_p(event))

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(nbytes), ctypes.c_void_p(stream))

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))


class _Job:
    def __init__(self, number: int, parts: list[Part], keep: Any, event: int, is_load: bool) -> None:
        self.number, self.parts, self.keep, self.event, self.is_load = number, parts, keep, event, is_load
        self.nbytes = 0
        self.started = time.monotonic()
        self.waited = False  # our stream waits for the event


class Mover:
    """`names`: the namespace of each group, as a key names it. `current_stream` gives the engine's stream at the time of a call."""

    def __init__(self, blocks: Sequence[Blocks], names: Mapping[int, str], fields: Mapping[str, str], *, socket: str | None,
                 device: int, ack: str, timeout_s: float, current_stream: Callable[[], int]) -> None:
        self.blocks, self._ack, self._timeout_s, self._current_stream = list(blocks), ack, timeout_s, current_stream
        self._layouts = [b.layout() for b in blocks]
        self._cuda = Cuda(device)
        self._client = Client(socket, "vllm-worker", timeout=timeout_s, connect_timeout=0.2)
        chunk = max(b.chunk_bytes for b in blocks)
        self._namespaces: dict[int, Namespace] = {g: self._client.namespace(n, fields, chunk) for g, n in names.items()}
        self._gpu = Gpu(self._client, device, max(128 << 20, 8 * (chunk + 4096)))
        self._changed = threading.Condition()
        self._loads: deque[_Job] = deque()
        self._stores: deque[_Job] = deque()
        self._under_way: set[int] = set()
        self._ended: deque[Ended] = deque()
        self._closing = False
        self._rest_until = 0.0
        self.stored_bytes = self.failed_stores = self.rescued_loads = 0
        self._complaint = ""
        self._thread = threading.Thread(target=self._run, name="kvcache-mover", daemon=True)
        self._thread.start()

    # --- the engine's thread ---

    def submit(self, number: int, is_load: bool, parts: list[Part], keep: Any = None) -> None:
        """What `keep` refers to lives until the job has ended: the leases of a load."""
        for part in parts:
            blocks = self.blocks[part.layout]
            if len(part.blocks) != len(part.keys) or any(not 0 <= b < blocks.blocks for b in part.blocks) or (
                    is_load and (len(part.addresses) != len(part.keys) or not all(part.addresses))):
                raise ValueError(f"job {number}: {len(part.keys)} keys, {len(part.addresses)} leased, blocks {part.blocks[:4]}... "
                                 f"of {blocks.blocks}")
        job = _Job(number, parts, keep, self._cuda.record(self._current_stream()), is_load)
        with self._changed:
            self._under_way.add(number)
            (self._loads if is_load else self._stores).append(job)
            self._changed.notify_all()

    def finished(self) -> list[Ended]:
        """What has ended since the last time, each job once."""
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def wait(self, numbers: set[int]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not numbers & self._under_way)

    def close(self) -> None:
        """What waits is not begun any more; what is under way ends."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(self._timeout_s + 5.0)

    # --- our thread ---

    def _run(self) -> None:
        try:
            self._cuda.use()
            self._stream = self._cuda.stream()
            self._attach()
        except (OSError, Error) as e:
            self._complain(str(e))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._loads or self._stores)
                if self._closing:
                    break
                job = self._loads[0] if self._loads else self._stores[0]
            self._step(job)
        self._gpu.detach(self._timeout_s)
        self._client.close()

    def _attach(self) -> None:
        """The first request registers the daemon's memory with the driver, which takes its time: not at the first load."""
        self._gpu.get(next(iter(self._namespaces.values())), self._layouts[0], [0], [os.urandom(32)], stream=self._stream,
                      timeout=self._timeout_s)
        if self._gpu.reason:
            self._complain(self._gpu.reason)

    def _complain(self, why: str) -> None:
        if why and why != self._complaint:
            log.warning("blocks of the GPU are not stored now: %s", why)
        self._complaint = why

    def _step(self, job: _Job) -> None:
        """A load, or a slice of a store."""
        success, over = True, True
        try:
            if not job.waited:
                self._cuda.wait_for(self._stream, job.event)
                job.waited = True
            if job.is_load:
                for part in job.parts:
                    self._load(part)
                    job.nbytes += len(part.keys) * self.blocks[part.layout].chunk_bytes
                self._client.flush()  # the library's own leases would wait for the next request
            else:
                over = self._store_slice(job)
        except Exception as e:  # the GPU's driver failed: what the engine does next will, too
            log.exception("job %d failed: %s", job.number, e)
            success = not job.is_load
        if not over:
            return
        try:
            self._cuda.drop(job.event)
        except OSError:
            pass
        job.keep = None
        with self._changed:
            (self._loads if job.is_load else self._stores).remove(job)
            self._under_way.discard(job.number)
            self._ended.append(Ended(job.number, success, job.nbytes, time.monotonic() - job.started))
            self._changed.notify_all()

    def _namespace(self, part: Part) -> Namespace | None:
        return self._namespaces.get(group_of(part.keys[0]))

    def _move(self, call: Callable[..., bytes], part: Part, **options: Any) -> bytes:
        """Statuses; none where the daemon is not asked."""
        namespace = self._namespace(part)
        if namespace is None or time.monotonic() < self._rest_until:
            return b""
        try:
            status = call(namespace, self._layouts[part.layout], part.blocks, [parts_of(k, 1)[0] for k in part.keys],
                          stream=self._stream, **options)
        except Error as e:
            self._complain(str(e))
            self._rest_until = time.monotonic() + PAUSE_S
            return b""
        if not any(map(status_ok, status)) and not self._client.connected or self._gpu.reason:
            self._complain(self._gpu.reason or self._client.error)
            self._rest_until = time.monotonic() + PAUSE_S
        else:
            self._complain("")
        return status

    def _load(self, part: Part) -> None:
        status = self._move(self._gpu.get, part, timeout=LOAD_S)
        bad = [i for i in range(len(part.keys)) if i >= len(status) or not status_ok(status[i])]
        blocks = self.blocks[part.layout]
        for i in bad:
            for layer, base in enumerate(blocks.bases):
                self._cuda.copy(base + part.blocks[i] * blocks.page_bytes, part.addresses[i] + layer * blocks.page_bytes,
                                blocks.page_bytes, self._stream)
        if bad:
            self._cuda.synchronize(self._stream)
            self.rescued_loads += len(bad)

    def _store_slice(self, job: _Job) -> bool:
        """True: it was the last."""
        if not job.parts:
            return True
        part = job.parts[0]
        now = Part(part.layout, part.keys[:SLICE_BLOCKS], part.blocks[:SLICE_BLOCKS], [])
        if now.keys:
            # The engine writes the blocks again when the job has ended: put() returns when they were read.
            status = self._move(self._gpu.put, now, ack=self._ack, timeout=self._timeout_s)
            good = sum(map(status_ok, status))
            nbytes = good * self.blocks[part.layout].chunk_bytes
            job.nbytes += nbytes
            self.stored_bytes += nbytes
            self.failed_stores += len(now.keys) - good
        rest = Part(part.layout, part.keys[SLICE_BLOCKS:], part.blocks[SLICE_BLOCKS:], [])
        job.parts = ([rest] if rest.keys else []) + job.parts[1:]
        return not job.parts
