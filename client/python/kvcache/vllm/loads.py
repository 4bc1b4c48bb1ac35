# SPDX-License-Identifier: Apache-2.0
"""Loads of leased chunks into blocks of the GPU, in the engine's thread; nothing of vLLM.

A leased chunk neither moves nor changes, so a load is one call of the library that puts copies into a stream: no thread is woken, and the
daemon is not asked. The copies follow the engine's earlier steps. Those of an expedited load come before the engine's next work, whose
stream waits for them; the engine's thread waits for neither.

A load cannot fail while the GPU works. What the library does not copy, since the pool of the leases is not registered with the device, is
copied from the addresses that the leases keep mapped.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .._gpu import Gpu, Layout
from .cuda import Cuda

if TYPE_CHECKING:
    from .promises import Held

log = logging.getLogger("kvcache.vllm")

WAIT_S = 0.05  # that wait() spends in one call of the library


class Ended(NamedTuple):
    job: int
    success: bool
    nbytes: int
    seconds: float


class LoadPart(NamedTuple):
    """The blocks of one group that a load fills, and the lease of each block's chunk."""

    layout: int
    blocks: list[int]
    held: Sequence[Held]


class _Job:
    def __init__(self, number: int, nbytes: int, keep: Any, is_expedited: bool) -> None:
        self.number, self.nbytes, self.keep, self.is_expedited = number, nbytes, keep, is_expedited
        self.started = time.monotonic()
        self.pending = 0       # requests of the library's that have not ended
        self.event = 0         # behind what was copied without the library; 0: nothing was
        self.copy_s = 0.0      # by the GPU's clock
        self.success = True


class Loads:
    """`current_stream` gives the engine's stream at the time of a call. `copy` puts copies of a part into a stream, from the addresses of
    its chunks. `unserved` is called where the library does not copy."""

    def __init__(self, gpu: Gpu, layouts: Sequence[Layout], chunk_bytes: Sequence[int], copy: Callable[[LoadPart, int], None],
                 cuda: Cuda, current_stream: Callable[[], int], unserved: Callable[[], None]) -> None:
        self._gpu, self._layouts, self._chunk_bytes, self._copy, self._cuda = gpu, list(layouts), list(chunk_bytes), copy, cuda
        self._current_stream, self._unserved = current_stream, unserved
        self._jobs: dict[int, _Job] = {}
        self._ended: deque[Ended] = deque()
        self.samples: deque[tuple[int, float]] = deque()  # bytes, and the seconds of their copies by the GPU's clock
        self._step = 0          # an event before the engine's current step; 0: none was recorded
        self._plain_stream = 0  # chunks that the library does not copy come through this stream
        self.loading_bytes = 0
        self.rescued = 0        # chunks that were copied without the library

    def step_begins(self) -> None:
        """The engine has launched nothing of its step yet: loads of this step follow what its stream holds now. Without such calls they
        follow what it holds when they begin."""
        if not self._step:
            self._step = self._cuda.record(self._current_stream())
        elif not self._cuda.record_again(self._step, self._current_stream()):
            self._step = 0

    def begin(self, number: int, parts: Sequence[LoadPart], keep: Any = None, is_expedited: bool = False) -> None:
        """Begins to copy. The load keeps `keep`, the leases, until it has ended. RuntimeError: the engine's stream is being captured."""
        nbytes = sum(len(p.blocks) * self._chunk_bytes[p.layout] for p in parts)
        job = _Job(number, nbytes, keep, is_expedited)
        stream = self._current_stream()
        # An expedited load comes before the step's own work, and is followed by it: the step's event would do, too.
        event = 0 if is_expedited else self._step
        self._jobs[number] = job
        self.loading_bytes += nbytes
        try:
            for part in parts:
                for pool, listed in _by_pool(part):
                    self._begin_part(job, listed, pool, event, stream)
        except Exception:
            if not job.pending:
                del self._jobs[number]
                self.loading_bytes -= nbytes
            raise

    def _begin_part(self, job: _Job, part: LoadPart, pool: int, event: int, stream: int) -> None:
        try:
            self._gpu.copy_leased(self._layouts[part.layout], part.blocks, pool, [h.offset for h in part.held], job.number, event=event,
                                  before=0 if event else stream, after=stream if job.is_expedited else 0)
            job.pending += 1
        except OSError as e:
            if e.errno == errno.EBUSY:
                raise RuntimeError(f"job {job.number}: blocks cannot be loaded while the engine's stream is being captured") from e
            if e.errno not in (errno.ESTALE, errno.ENODEV):
                log.warning("leased chunks are copied one by one: %s", e)
            self._unserved()
            self._copy_plainly(job, part, event, stream)

    def _copy_plainly(self, job: _Job, part: LoadPart, event: int, stream: int) -> None:
        before = event or self._cuda.record(stream)
        with self._cuda.entered():
            self._plain_stream = self._plain_stream or self._cuda.stream()
            self._cuda.wait_for(self._plain_stream, before)
            self._copy(part, self._plain_stream)
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
        self.loading_bytes -= job.nbytes
        if job.copy_s > 0 and not job.event and job.success:
            self.samples.append((job.nbytes, job.copy_s))
        self._ended.append(Ended(job.number, job.success, job.nbytes, time.monotonic() - job.started))

    def finished(self) -> list[Ended]:
        """Returns what has ended since the last time, each load once."""
        if self._jobs:
            self._look()
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def wait(self, numbers: set[int]) -> None:
        """Until these have ended. Expedited ones are not waited for: the engine's stream does that."""
        while any(n in self._jobs and not self._jobs[n].is_expedited for n in numbers):
            self._look(WAIT_S)

    @property
    def busy(self) -> bool:
        return bool(self._jobs)

    def has_ended(self, number: int) -> bool:
        return number not in self._jobs


def _by_pool(part: LoadPart) -> list[tuple[int, LoadPart]]:
    """Leases of a request are in one pool, unless the daemon was started again between them."""
    pools = {h.pool for h in part.held}
    if len(pools) == 1:
        return [(pools.pop(), part)]
    return [(pool, LoadPart(part.layout, [b for b, h in zip(part.blocks, part.held) if h.pool == pool],
                            [h for h in part.held if h.pool == pool])) for pool in sorted(pools)]
