# SPDX-License-Identifier: Apache-2.0
"""Jobs between blocks of GPU memory and the daemon's memory; nothing of vLLM.

A thread of its own has the client and the GPU's attachment. The engine's thread records an event, queues a job and asks what has
ended; it waits only where it says so (wait()), and for HANDOVER_S at most until a load is under way. Loads go before stores, whose
jobs are cut into slices, and which begin once what they are to read was computed.

Of a load the engine's thread sees by itself that all blocks are there, from the statuses that libkvcache writes. A thread that is
to say so would first need Python's lock, which an engine that steps without a pause gives up every 5 ms only.

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
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import EXISTS, LOST, OK, Client, Error, Namespace, status_ok
from .._gpu import BLOCK_FIRST, Gpu, Layout
from ..engine import private
from .canary import Canary, State
from .identity import group_of, parts_of

log = logging.getLogger("kvcache.vllm")

OPEN_S = 1.0        # of what is asked once: namespaces, staging memory
SLICE_BLOCKS = 32   # of a store, between which loads may begin
PAUSE_S = 1.0       # without the daemon, after it failed; twice as long each time
LONGEST_PAUSE_S = 4.0
STORE_S = 0.4       # that a slice may take, so that an engine that waits for stores goes on in FLUSH_S + STORE_S
LOAD_S = 2.0        # that a load waits for the daemon, before it is copied from the leased memory
HANDOVER_S = 0.002  # that the engine's thread waits until a load is under way
COMPUTED_S = 0.001  # between two looks at whether what a store reads was computed
FLUSH_S = 0.1       # of an engine that waits for stores, before the rest of them is dropped
ATTACH_S = 10.0     # that the start of an engine waits for the attachment: vLLM captures its CUDA graphs next

NOT_READY = 600         # CUDA_ERROR_NOT_READY
CAPTURE_IMPLICIT = 906  # CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: the legacy default stream, while another stream is being captured
RELAXED = 2             # CU_STREAM_CAPTURE_MODE_RELAXED: no call of this thread invalidates a capture of another one


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
    """Of a job, what lies in one group. `addresses`: of a load, where each chunk is leased; of a store, none.
    `is_check`: the canary compares the block, and it is not stored."""

    layout: int
    keys: list[bytes]
    blocks: list[int]
    addresses: list[int]
    is_check: bool = False


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
        mode = self._relax()
        try:
            self._call("cuInit", 0)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        finally:
            self._restore(mode)

    def _relax(self) -> int:
        """Makes this thread's calls harmless to captures of other threads. Returns the mode for _restore()."""
        mode = ctypes.c_int(RELAXED)
        exchange = getattr(self._cuda, "cuThreadExchangeStreamCaptureMode", None)  # since CUDA 10.1
        return RELAXED if exchange is None or exchange(ctypes.byref(mode)) else mode.value

    def _restore(self, mode: int) -> None:
        if mode != RELAXED:
            self._cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(mode)))

    def _call(self, name: str, *arguments: Any) -> None:
        r = getattr(self._cuda, name)(*arguments)
        if r:
            raise OSError(f"{name}() of the GPU's driver: error {r}")

    def use(self) -> None:
        """In this thread, which is the library's own, from now on."""
        self._relax()
        self._call("cuCtxPushCurrent_v2", self._context)

    def leave(self) -> None:
        self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def stream(self) -> int:
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), 1)  # not with the legacy default stream
        return stream.value or 0

    def record(self, stream: int) -> int:
        """An event behind what this stream of the engine's holds now; 0: the stream is being captured, and is left alone."""
        event, state, mode = ctypes.c_void_p(), ctypes.c_int(), self._relax()
        try:
            self._call("cuCtxPushCurrent_v2", self._context)
            try:
                asked = self._cuda.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(state))
                if asked == CAPTURE_IMPLICIT or (asked == 0 and state.value):
                    return 0
                self._call("cuEventCreate", ctypes.byref(event), 2)  # without timing
                self._call("cuEventRecord", event, ctypes.c_void_p(stream))
            finally:
                self.leave()
        finally:
            self._restore(mode)
        return event.value or 0

    def wait_for(self, stream: int, event: int) -> None:
        self._call("cuStreamWaitEvent", ctypes.c_void_p(stream), ctypes.c_void_p(event), 0)

    def is_over(self, event: int) -> bool:
        """Is all done that was in the stream before it? A driver that fails says so where it is used next."""
        return bool(self._cuda.cuEventQuery(ctypes.c_void_p(event)) != NOT_READY)

    def drop(self, event: int) -> None:
        self._call("cuEventDestroy_v2", ctypes.c_void_p(event))

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._call("cuMemcpyAsync", ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(nbytes), ctypes.c_void_p(stream))

    def synchronize(self, stream: int) -> None:
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))


class _Job:
    def __init__(self, number: int, parts: list[Part], keep: Any, event: int, is_load: bool, nbytes: int, tokens: int,
                 scheduled: float) -> None:
        self.number, self.parts, self.keep, self.event, self.is_load = number, parts, keep, event, is_load
        self.nbytes = nbytes  # of a load, all; of a store, what was stored
        self.tokens, self.scheduled = tokens, scheduled
        self.started = time.monotonic()
        self.computed = False  # what its event is behind
        self.waited = False    # our stream waits for the event
        self.begun = False     # a load's first copies are under way
        self.hurried = False   # a store that has been waited for long enough
        self.statuses = [array("i", [LOST]) * len(p.keys) for p in parts] if is_load else []

    @property
    def is_there(self) -> bool:
        """Of a load: is each block? Right in any thread: a status is written once its block's copy is done."""
        return all(s.count(OK) == len(s) for s in self.statuses)


class Mover:
    """`canary`: has the namespace of each group, as a key names it, in the order of `blocks`. `current_stream` gives the engine's stream at
    the time of a call."""

    def __init__(self, blocks: Sequence[Blocks], canary: Canary, fields: Mapping[str, str], *, socket: str | None,
                 device: int, ack: str, timeout_s: float, current_stream: Callable[[], int]) -> None:
        self.blocks, self._ack, self._timeout_s, self._current_stream = list(blocks), ack, timeout_s, current_stream
        self._layouts = [b.layout() for b in blocks]
        self._cuda = Cuda(device)
        self._client = Client(socket, "vllm-worker", timeout=min(timeout_s, OPEN_S), connect_timeout=0.2)
        chunk = max(b.chunk_bytes for b in blocks)
        self._fields = fields
        self._canary = canary
        self._canary.enter(self._state_of)
        self._open()
        self._gpu = Gpu(self._client, device, max(128 << 20, 8 * (chunk + 4096)))
        self._changed = threading.Condition()
        self._loads: deque[_Job] = deque()
        self._stores: deque[_Job] = deque()
        self._under_way: dict[int, _Job] = {}  # not reported yet
        self._ended: deque[Ended] = deque()
        self._computed: deque[tuple[int, float]] = deque()
        self._loaded: deque[tuple[int, float]] = deque()
        self._attached = threading.Event()
        self._closing = False
        self._rest_until, self._pause_s = 0.0, PAUSE_S
        self.loading_bytes = 0  # of loads that have not ended
        self.stored_bytes = self.failed_stores = self.rescued_loads = 0
        self._complaint = ""
        self._thread = threading.Thread(target=self._run, name="kvcache-mover", daemon=True)
        began = time.monotonic()
        self._thread.start()
        # Registering the daemon's memory takes the driver's locks for seconds, and cuFile has threads whose capture mode cannot be
        # set: all that is over before the engine goes on to capture its graphs.
        if not self._attached.wait(ATTACH_S):
            log.warning("the GPU is not attached after %.0f s; the engine starts, and blocks are stored when it is", ATTACH_S)
        elif self._gpu.attached:
            log.info("the GPU is attached after %.1f s", time.monotonic() - began)

    # --- the engine's thread ---

    def submit(self, number: int, is_load: bool, parts: list[Part], keep: Any = None, tokens: int = 0,
               scheduled: float = 0.0) -> None:
        """What `keep` refers to lives until the job has ended: the leases of a load. `tokens` that are computed from `scheduled`
        on until the event that a store waits for."""
        nbytes = 0
        for part in parts:
            blocks = self.blocks[part.layout]
            if len(part.blocks) != len(part.keys) or any(not 0 <= b < blocks.blocks for b in part.blocks) or (
                    is_load and (len(part.addresses) != len(part.keys) or not all(part.addresses))):
                raise ValueError(f"job {number}: {len(part.keys)} keys, {len(part.addresses)} leased, blocks {part.blocks[:4]}... "
                                 f"of {blocks.blocks}")
            nbytes += len(part.keys) * blocks.chunk_bytes if is_load else 0
        event = self._cuda.record(self._current_stream())
        if not event and is_load:
            raise RuntimeError(f"job {number}: blocks cannot be loaded while the engine's stream is being captured")
        job = _Job(number, parts, keep, event, is_load, nbytes, tokens, scheduled)
        with self._changed:
            if not event:
                self.failed_stores += sum(len(p.keys) for p in parts)
                self._ended.append(Ended(number, True, 0, 0.0))
                return
            self._under_way[number] = job
            (self._loads if is_load else self._stores).append(job)
            self.loading_bytes += nbytes
            self._changed.notify_all()
            if is_load:
                self._changed.wait_for(lambda: job.begun, HANDOVER_S)

    def finished(self) -> list[Ended]:
        """What has ended since the last time, each job once."""
        if self._loads:
            with self._changed:
                for job in self._loads:
                    if job.begun and job.is_there:
                        self._end(job, True)
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def computed(self) -> list[tuple[int, float]]:
        """Tokens, and the seconds in which they were computed, of stores since the last time."""
        samples = []
        while self._computed:
            samples.append(self._computed.popleft())
        return samples

    def loaded(self) -> list[tuple[int, float]]:
        """Bytes, and the seconds in which they were copied by the GPU's clock, of loads since the last time."""
        samples = []
        while self._loaded:
            samples.append(self._loaded.popleft())
        return samples

    @property
    def busy(self) -> bool:
        """Are there loads that have something to give back yet?"""
        return bool(self._loads)

    def wait(self, numbers: set[int]) -> None:
        """Until these jobs have ended. A store that takes longer than FLUSH_S is dropped behind the slice that is under way, which
        takes STORE_S at most: the engine stands still."""
        with self._changed:
            if self._changed.wait_for(lambda: not numbers & self._under_way.keys(), FLUSH_S):
                return
            for number in numbers & self._under_way.keys():
                self._under_way[number].hurried = True
            self._changed.wait_for(lambda: not numbers & self._under_way.keys())

    def close(self) -> None:
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
        except Exception as e:
            self._complain(str(e))
        finally:
            self._attached.set()
        while True:
            with self._changed:
                job = self._next()
            if job is None:
                break
            self._step(job)
        self._gpu.detach(self._timeout_s)
        private.remove(self._namespaces.values(), self._fields)
        self._client.close()

    def _next(self) -> _Job | None:
        """In the lock. None: it is closed."""
        while not self._closing:
            if self._loads:
                return self._loads[0]
            store = next((j for j in self._stores if j.hurried), self._stores[0] if self._stores else None)
            if store is not None and self._was_computed(store):
                return store
            self._changed.wait(COMPUTED_S if self._stores else None)
        return None

    def _was_computed(self, job: _Job) -> bool:
        """A put would wait for that, and a load that comes meanwhile with it."""
        if not job.computed and (job.hurried or self._cuda.is_over(job.event)):
            job.computed = True
            if job.tokens:
                self._computed.append((job.tokens, time.monotonic() - job.scheduled))
        return job.computed

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
                for part, statuses in zip(job.parts, job.statuses):
                    self._load(job, part, statuses)
            else:
                over = self._store_slice(job)
        except Exception as e:  # the GPU's driver failed: what the engine does next will, too
            log.exception("job %d failed: %s", job.number, e)
            success = not job.is_load
        if not over:
            return
        job.keep = None
        with self._changed:
            (self._loads if job.is_load else self._stores).remove(job)
            self._end(job, success)
        try:
            self._cuda.drop(job.event)
            if job.is_load:
                self._client.flush()  # the library's own leases would wait for the next request
        except (OSError, Error) as e:
            log.warning("after job %d: %s", job.number, e)

    def _end(self, job: _Job, success: bool) -> None:
        """Reports it, once. In the lock."""
        if self._under_way.get(job.number) is job:
            del self._under_way[job.number]
            if job.is_load:
                self.loading_bytes -= job.nbytes
            self._ended.append(Ended(job.number, success, job.nbytes, time.monotonic() - job.started))
            self._changed.notify_all()

    def _began(self, job: _Job) -> None:
        with self._changed:
            job.begun = True
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
        except Exception as e:
            self._rest(str(e) or repr(e))
            return b""
        if not any(map(status_ok, status)) and not self._client.connected or self._gpu.reason:
            self._rest(self._gpu.reason or self._client.error)
        else:
            self._complain("")
            self._pause_s = PAUSE_S
        return status

    def _rest(self, why: str) -> None:
        self._complain(why)
        self._rest_until = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _load(self, job: _Job, part: Part, statuses: array[int]) -> None:
        status = self._move(self._gpu.get, part, timeout=LOAD_S, statuses=statuses, begun=lambda: self._began(job))
        if status and all(map(status_ok, status)) and self._gpu.copy_s > 0:
            self._loaded.append((len(status) * self.blocks[part.layout].chunk_bytes, self._gpu.copy_s))
        bad = [i for i in range(len(part.keys)) if i >= len(status) or not status_ok(status[i])]
        blocks = self.blocks[part.layout]
        for i in bad:
            for layer, base in enumerate(blocks.bases):
                self._cuda.copy(base + part.blocks[i] * blocks.page_bytes, part.addresses[i] + layer * blocks.page_bytes,
                                blocks.page_bytes, self._stream)
        if bad:
            self._cuda.synchronize(self._stream)
            self.rescued_loads += len(bad)

    def _state_of(self, name: str) -> State | None:
        found = self._client.namespace_state(name)
        return None if found is None else State(not found.chunks and not found.sessions, found.fingerprint)

    def _open(self) -> None:
        self._namespaces: dict[int, Namespace] = {g: self._client.namespace(n, self._fields, b.chunk_bytes)
                                                  for (g, n), b in zip(self._canary.names.items(), self.blocks)}

    def _check(self, part: Part) -> None:
        """Gives the canary a block that the engine has computed, and the chunk that is stored under its key."""
        namespace, blocks = self._namespace(part), self.blocks[part.layout]
        if namespace is None or time.monotonic() < self._rest_until:
            return
        computed = ctypes.create_string_buffer(blocks.chunk_bytes)
        for layer, base in enumerate(blocks.bases):
            self._cuda.copy(ctypes.addressof(computed) + layer * blocks.page_bytes, base + part.blocks[0] * blocks.page_bytes,
                            blocks.page_bytes, self._stream)
        self._cuda.synchronize(self._stream)
        with namespace.get_map([parts_of(part.keys[0], 1)[0]], timeout=min(self._timeout_s, LOAD_S)) as leased:
            self._canary.compare(part.keys[0], computed.raw, leased[0])
        self._client.flush()  # the lease would wait for the next request

    def _follow(self) -> None:
        """Goes on with the next variant of the namespaces where the canary has to."""
        if self._canary.moves(self._state_of):
            self._namespaces = {}
            self._open()

    def _store_slice(self, job: _Job) -> bool:
        """True: it was the last."""
        if not job.parts:
            return True
        part = job.parts[0]
        if job.hurried:
            self.failed_stores += sum(len(p.keys) for p in job.parts)
            return True
        if part.is_check:
            job.parts = job.parts[1:]
            self._check(part)
            self._follow()
            return not job.parts
        self._follow()
        now = Part(part.layout, part.keys[:SLICE_BLOCKS], part.blocks[:SLICE_BLOCKS], [])
        if now.keys and self._canary.may_store(group_of(now.keys[0]), len(now.keys)):
            # The engine writes the blocks again when the job has ended: put() returns when they were read.
            status = self._move(self._gpu.put, now, ack=self._ack, timeout=min(self._timeout_s, STORE_S))
            good = sum(map(status_ok, status))
            self._canary.stored([k for k, s in zip(now.keys, status) if status_ok(s) and s != EXISTS])
            nbytes = good * self.blocks[part.layout].chunk_bytes
            job.nbytes += nbytes
            self.stored_bytes += nbytes
            self.failed_stores += len(now.keys) - good
        rest = Part(part.layout, part.keys[SLICE_BLOCKS:], part.blocks[SLICE_BLOCKS:], [])
        job.parts = ([rest] if rest.keys else []) + job.parts[1:]
        return not job.parts
