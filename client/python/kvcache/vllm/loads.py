# SPDX-License-Identifier: Apache-2.0
"""Loads of leased chunks into blocks of the GPU, for the mover (mover.py). Runs on the engine's thread, and imports nothing of vLLM.

A leased chunk neither moves nor changes. A load is therefore one call of libkvcache that queues copies in a CUDA stream: no thread is woken, and
no message is sent to the daemon. The copies run after the engine's earlier steps. The copies of an expedited load have streams of their own, so
that they do not queue behind other loads, and the engine's stream waits for them before its next work. The engine's thread waits for copies only
in wait().

The manager (manager.py) has the leases, and provides the pool in which the chunks lie and their offsets. A load cannot fail while the GPU
works. If libkvcache cannot copy, the chunks are copied one by one from this process's own mapping of the pool. If this rank has no mapping of
the pool, begin() raises RuntimeError, which ends the engine: without the load it would compute with wrong KV.
"""

from __future__ import annotations

import errno
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .._gpu import Gpu, Layout
from .cuda import Cuda

log = logging.getLogger("kvcache.vllm")

RATE_BYTES = 16 << 20  # least bytes of a load that shows the rate of copies, unless no load has shown one
MOST_AWAITED = 256     # number of the latest expedited loads that awaited_s() knows
WAIT_S = 0.05  # timeout of one call of libkvcache in wait(), which calls until the loads have ended


class Ended(NamedTuple):
    """A job of vLLM that has ended, with the bytes that were moved, and the seconds from its beginning to its end. `success` is True for every
    store, whether or not its chunks were stored."""

    job: int
    success: bool
    nbytes: int
    seconds: float


class LoadPart(NamedTuple):
    """The blocks of one group that a load fills. `layout`: the group's position in the `layouts` of Loads. `offsets`: where in the pool the bytes of
    each block lie."""

    layout: int
    blocks: list[int]
    offsets: Sequence[int]


class _Job:
    def __init__(self, number: int, nbytes: int, load: int, is_expedited: bool) -> None:
        self.number, self.nbytes, self.load, self.is_expedited = number, nbytes, load, is_expedited
        self.started = time.monotonic()
        self.pending = 0       # number of requests to libkvcache for copies that have not ended
        self.event = 0         # CUDA event after the copies that were made without libkvcache; 0: no such copies
        self.copy_s = 0.0      # seconds of the copies by the GPU's clock
        self.success = True


class Loads:
    """The loads of one GPU. `current_stream`: returns the engine's stream at the time of the call. `copy`: queues the copies of a part in a
    stream, from a pool that is mapped at the given address. `unserved`: called if libkvcache cannot copy from a pool."""

    def __init__(self, gpu: Gpu, layouts: Sequence[Layout], block_bytes: Sequence[int], copy: Callable[[LoadPart, int, int], None],
                 cuda: Cuda, current_stream: Callable[[], int], unserved: Callable[[], None]) -> None:
        self._gpu, self._layouts, self._block_bytes, self._copy, self._cuda = gpu, list(layouts), list(block_bytes), copy, cuda
        self._current_stream, self._unserved = current_stream, unserved
        self._jobs: dict[int, _Job] = {}
        self._ended: deque[Ended] = deque()
        self.samples: deque[tuple[int, float]] = deque()  # bytes of a load, and the seconds of its copies by the GPU's clock
        self._step = 0          # CUDA event that was recorded at the beginning of a step; 0: none
        self._has_begun = False  # whether `_step` was recorded in the current step
        self._plain_stream = 0  # stream for copies without libkvcache; 0: not created yet
        self._latest = -1       # number of the latest load, as the manager counts loads; -1: none
        self.rescued = 0        # blocks that were copied without libkvcache
        self._awaited: deque[tuple[float, int]] = deque(maxlen=MOST_AWAITED)  # time.monotonic() and bytes of the latest expedited loads
        self.bytes_per_s = 0.0  # rate of the copies of the latest load of at least RATE_BYTES, or of the first load before one; 0: unknown

    def step_begins(self) -> None:
        """Marks the beginning of a step, before the engine launches the step's work, so that loads of this step wait for earlier work only.
        Without this call, a load waits for all work that is in the engine's stream when the load begins."""
        if not self._step:
            self._step = self._cuda.record(self._current_stream())
        elif not self._cuda.record_again(self._step, self._current_stream()):
            self._step = 0
        self._has_begun = self._step != 0

    def begin(self, number: int, parts: Sequence[LoadPart], pool: int, load: int = 0, is_expedited: bool = False) -> None:
        """Begins the copies of a load. `number`: vLLM's number of the job. `load`: the manager's number of the load. Raises RuntimeError if
        the engine's stream is being captured. Also raises it if libkvcache cannot copy, and this rank has no mapping of the pool or an
        offset is not within the pool."""
        nbytes = sum(len(p.blocks) * self._block_bytes[p.layout] for p in parts)
        job = _Job(number, nbytes, load, is_expedited)
        stream = self._current_stream()
        # An expedited load waits for all work in the stream, which is work of earlier steps: the step's own work is queued after the load.
        event = 0 if is_expedited or not self._has_begun else self._step
        self._jobs[number] = job
        self._latest = max(self._latest, load)
        if is_expedited:
            self._awaited.append((job.started, nbytes))
        try:
            for part in parts:
                self._begin_part(job, part, pool, event, stream)
        except Exception:
            if not job.pending:
                del self._jobs[number]
            raise

    def _begin_part(self, job: _Job, part: LoadPart, pool: int, event: int, stream: int) -> None:
        try:
            self._gpu.copy_leased(self._layouts[part.layout], part.blocks, pool, part.offsets, job.number, event=event,
                                  before=0 if event else stream, after=stream if job.is_expedited else 0)
            job.pending += 1
        except OSError as e:
            if e.errno == errno.EBUSY:
                raise RuntimeError(f"job {job.number}: blocks cannot be loaded while vLLM captures a CUDA graph in the engine's stream") from e
            address, nbytes = self._gpu.pool_memory(pool)
            if not address or any(not 0 <= at <= nbytes - self._block_bytes[part.layout] for at in part.offsets):
                raise RuntimeError(f"job {job.number}: chunks of pool {pool:x} cannot be loaded; without them the engine would compute with wrong "
                                   f"KV, so it ends: {e}") from e
            log.warning("chunks are loaded one by one, which is slower, until the daemon's memory is registered with the GPU again: %s", e)
            self._unserved()
            self._copy_plainly(job, part, address, event, stream)

    def _copy_plainly(self, job: _Job, part: LoadPart, address: int, event: int, stream: int) -> None:
        before = event or self._cuda.record(stream)
        with self._cuda.entered():
            self._plain_stream = self._plain_stream or self._cuda.stream()
            self._cuda.wait_for(self._plain_stream, before)
            self._copy(part, address, self._plain_stream)
            if before != event:
                self._cuda.drop(before)
        if job.event:
            self._cuda.record_again(job.event, self._plain_stream)
        else:
            job.event = self._cuda.record(self._plain_stream)
        if job.is_expedited:
            with self._cuda.entered():
                self._cuda.wait_for(stream, job.event)
        self.rescued += len(part.blocks)

    def _look(self, timeout: float = 0.0) -> None:
        """Finds the loads that have ended, and notes them for finished(). `timeout`: seconds to wait for copies to complete."""
        for number, error, copy_s in self._gpu.reap_leased(timeout):
            job = self._jobs.get(number)
            if job is not None:
                job.pending -= 1
                job.copy_s += copy_s
                job.success = job.success and not error
        for job in [j for j in self._jobs.values() if not j.pending and self._is_over(j)]:
            self._end(job)

    def _is_over(self, job: _Job) -> bool:
        if not job.event:
            return True
        with self._cuda.entered():
            if not self._cuda.is_over(job.event):
                return False
            self._cuda.drop(job.event)
        return True

    def _end(self, job: _Job) -> None:
        del self._jobs[job.number]
        if job.copy_s > 0 and not job.event and job.success:
            self.samples.append((job.nbytes, job.copy_s))
            if job.nbytes >= RATE_BYTES or not self.bytes_per_s:
                self.bytes_per_s = job.nbytes / job.copy_s
        self._ended.append(Ended(job.number, job.success, job.nbytes, time.monotonic() - job.started))

    def awaited_s(self, since: float) -> float | None:
        """Returns how many seconds the engine's stream waits for the expedited loads that began after `since`, a time.monotonic(), at the rate of
        the latest load; None if such loads began and the rate is unknown."""
        nbytes = sum(n for _, n in itertools.takewhile(lambda load: load[0] > since, reversed(self._awaited)))
        if nbytes and not self.bytes_per_s:
            return None
        return nbytes / self.bytes_per_s if nbytes else 0.0

    def finished(self) -> list[Ended]:
        """Returns the loads that have ended since the last call. vLLM calls this method at the end of each step."""
        self._has_begun = False
        if self._jobs:
            self._look()
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def wait(self, numbers: set[int]) -> None:
        """Waits until these loads have ended. Does not wait for expedited loads, for which the engine's stream waits."""
        while any(n in self._jobs and not self._jobs[n].is_expedited for n in numbers):
            self._look(WAIT_S)

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    @property
    def ended_below(self) -> int:
        """Returns a number below which all loads have ended, as the manager counts loads. Loads must begin in the order of their numbers."""
        return min((j.load for j in self._jobs.values()), default=self._latest + 1)
