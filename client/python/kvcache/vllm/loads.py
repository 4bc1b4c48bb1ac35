# SPDX-License-Identifier: Apache-2.0
"""Loads of leased chunks into blocks of the GPU, in the engine's thread; nothing of vLLM.

A leased chunk neither moves nor changes, so a load is one call of the library that puts copies into a stream: no thread is woken, and the
daemon is not asked. The copies follow the engine's earlier steps. Those of an expedited load come before the engine's next work, whose
stream waits for them; the engine's thread waits for neither.

The scheduler's side has the leases, and says in which pool the chunks lie and where. A load cannot fail while the GPU works. If the library does
not copy, the chunks are copied one by one from this process's own mapping of the pool. A rank that has no mapping of the pool ends with a
sentence, because a load that is left out is wrong KV.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .._gpu import Gpu, Layout
from .cuda import Cuda

log = logging.getLogger("kvcache.vllm")

WAIT_S = 0.05  # timeout of one call of the library in wait()


class Ended(NamedTuple):
    job: int
    success: bool
    nbytes: int
    seconds: float


class LoadPart(NamedTuple):
    """The blocks of one group that a load fills, and the place of each block's part of a chunk in the pool."""

    layout: int
    blocks: list[int]
    offsets: Sequence[int]


class _Job:
    def __init__(self, number: int, nbytes: int, load: int, is_expedited: bool) -> None:
        self.number, self.nbytes, self.load, self.is_expedited = number, nbytes, load, is_expedited
        self.started = time.monotonic()
        self.pending = 0       # number of requests to the library that have not ended
        self.event = 0         # event after the copies that were made without the library; 0: none were
        self.copy_s = 0.0      # by the GPU's clock
        self.success = True


class Loads:
    """`current_stream` gives the engine's stream at the time of a call. `copy` puts copies of a part into a stream, from a pool at this
    address. `unserved` is called where the library does not copy."""

    def __init__(self, gpu: Gpu, layouts: Sequence[Layout], block_bytes: Sequence[int], copy: Callable[[LoadPart, int, int], None],
                 cuda: Cuda, current_stream: Callable[[], int], unserved: Callable[[], None]) -> None:
        self._gpu, self._layouts, self._block_bytes, self._copy, self._cuda = gpu, list(layouts), list(block_bytes), copy, cuda
        self._current_stream, self._unserved = current_stream, unserved
        self._jobs: dict[int, _Job] = {}
        self._ended: deque[Ended] = deque()
        self.samples: deque[tuple[int, float]] = deque()  # bytes, and the seconds of their copies by the GPU's clock
        self._step = 0          # an event; 0: none was recorded
        self._has_begun = False  # the event is before the engine's current step
        self._plain_stream = 0  # chunks that the library does not copy come through this stream
        self._latest = -1       # the number of the latest load, as the scheduler's side counts them
        self.rescued = 0        # blocks that were copied without the library

    def step_begins(self) -> None:
        """Marks the beginning of a step, before the engine launches work: loads of this step wait only for earlier work in its stream. Without
        this call they wait for all work in the stream when they begin."""
        if not self._step:
            self._step = self._cuda.record(self._current_stream())
        elif not self._cuda.record_again(self._step, self._current_stream()):
            self._step = 0
        self._has_begun = self._step != 0

    def begin(self, number: int, parts: Sequence[LoadPart], pool: int, load: int = 0, is_expedited: bool = False) -> None:
        """Begins to copy. `load` is the number that the scheduler's side has given the load; it counts them. RuntimeError: the engine's
        stream is being captured, or this rank does not have the pool."""
        nbytes = sum(len(p.blocks) * self._block_bytes[p.layout] for p in parts)
        job = _Job(number, nbytes, load, is_expedited)
        stream = self._current_stream()
        # An expedited load comes before the step's own work, and is followed by it: the step's event would do, too.
        event = 0 if is_expedited or not self._has_begun else self._step
        self._jobs[number] = job
        self._latest = max(self._latest, load)
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
                raise RuntimeError(f"job {job.number}: blocks cannot be loaded while the engine's stream is being captured") from e
            address, nbytes = self._gpu.pool_memory(pool)
            if not address or any(not 0 <= at <= nbytes - self._block_bytes[part.layout] for at in part.offsets):
                raise RuntimeError(f"job {job.number}: chunks of pool {pool:x} cannot be loaded, and leaving them out would be wrong KV: {e}") from e
            log.warning("leased chunks are copied one by one: %s", e)
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
        """Reports the loads that have ended by now."""
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
        self._ended.append(Ended(job.number, job.success, job.nbytes, time.monotonic() - job.started))

    def finished(self) -> list[Ended]:
        """Returns the loads that have ended since the last call, each once. vLLM calls this at the end of each step."""
        self._has_begun = False
        if self._jobs:
            self._look()
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def wait(self, numbers: set[int]) -> None:
        """Waits until these loads have ended, except expedited ones, for which the engine's stream waits."""
        while any(n in self._jobs and not self._jobs[n].is_expedited for n in numbers):
            self._look(WAIT_S)

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    @property
    def ended_below(self) -> int:
        """Returns a number of the scheduler's side below which all loads have ended, provided that they begin in order."""
        return min((j.load for j in self._jobs.values()), default=self._latest + 1)
