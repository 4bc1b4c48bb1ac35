# SPDX-License-Identifier: Apache-2.0
"""The mover moves blocks of one GPU to the daemon's memory and back, for a worker of the offloading spec (spec.py). Imports nothing of vLLM.

The engine's thread begins loads itself (loads.py). Stores run on the mover's thread, which owns the connection to the daemon and attaches
the GPU: it registers the daemon's memory with the GPU's driver. For a store, the engine's thread only records a CUDA event, queues a job, and
asks later which jobs have ended. The mover's thread waits for the event, after which the blocks are computed, and puts them in slices. A
chunk whose store fails is not found later; the engine continues.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .. import EXISTS, Client, Namespace, status_ok
from .._gpu import NO_BLOCK, SLICE_BYTES, Gpu
from ..engine import private
from . import breakeven
from .arrays import Blocks
from .canary import Canary, State
from .cuda import Cuda
from .identity import group_of, names_of
from .loads import Ended, LoadPart, Loads
from .page import MOST_POOLS, RankPage, Seat
from .watchdog import Spent

log = logging.getLogger("kvcache.vllm")

OPEN_S = 1.0        # timeout of a call that opens a namespace or makes staging memory
SLICE_BLOCKS = 32   # most blocks in a slice of a store, but at least one chunk; stores for which the engine waits go before other slices
PAUSE_S = 1.0       # pause of requests after a failed request; each further pause is twice as long, up to LONGEST_PAUSE_S
LONGEST_PAUSE_S = 4.0
GATHER_S = 0.05     # time for which a store of few blocks waits for other stores, to share a request with them
STORE_S = 0.4       # timeout of a put: an engine that waits for stores continues after FLUSH_S and the put that is under way
CHECK_S = 2.0       # timeout of the canary's get of a stored chunk
LOOK_S = 0.1        # interval between reads of the engine's page
NO_PAGE_S = 0.05    # interval between attempts to find the engine's page
FLUSH_S = 0.1       # time for which an engine waits for stores before the remaining ones are dropped
STAGING_BYTES = 128 << 20  # bytes of the staging memory for copies, which has room for 8 chunks at least
NO_JOB = (1 << 64) - 1  # job number of copies that belong to no job
NOTICE_S = 0.25     # timeout of the get in _attach(), for which the engine's start waits
ATTACH_S = 10.0     # time for which the engine's start waits for the GPU's attachment, because vLLM captures its CUDA graphs next


class Part(NamedTuple):
    """The blocks of a store that belong to one group, `per_chunk` blocks for each key. `layout`: the group's position in Mover.blocks.
    `is_check`: the canary compares the chunk, which is not stored. `salt`: the salt of the keys (identity.Resets); the canary does not
    judge chunks with a salt, because no other engine finds them."""

    layout: int
    keys: list[bytes]
    blocks: list[int]
    is_check: bool = False
    salt: bytes = b""


class _Job:
    """A store. `event`: the CUDA event after which its blocks are computed. `tokens`: number of tokens that the engine computes for the
    store, beginning at `scheduled`, a time.monotonic(); 0 if unknown."""

    def __init__(self, number: int, parts: list[Part], event: int, tokens: int, scheduled: float) -> None:
        self.number, self.parts, self.event = number, parts, event
        self.nbytes = 0  # bytes that were stored so far
        self.tokens, self.scheduled = tokens, scheduled
        self.awaited_s: float | None = 0.0  # seconds for which the computation of `tokens` waited for expedited loads; None if unknown
        self.started = time.monotonic()
        self.count = sum(len(p.blocks) for p in parts)
        # The store of a prefill does not wait for other stores, because the rate of prefill is learned from the time of its event.
        self.is_small = not tokens and self.count < SLICE_BLOCKS and not any(p.is_check for p in parts)
        self.computed = False  # the event is complete
        self.wanted = False    # the engine waits for this store
        self.hurried = False   # the engine has waited for this store for FLUSH_S, so its remaining slices are dropped


class Mover:
    """Moves the blocks of one GPU. `blocks`: the blocks of each group. `canary`: names the groups' namespaces, in the order of `blocks`.
    `fields`: their fingerprint. `seat`: this rank's access to the engine's page. `copies`: how the GPU copies, one of ENGINES.
    `has_awaited_loads`: the engine's stream waits for some loads. `current_stream`: returns the engine's CUDA stream at the time of the call."""

    def __init__(self, blocks: Sequence[Blocks], canary: Canary, fields: Mapping[str, str], *, seat: Seat, socket: str | None,
                 device: int, ack: str, timeout_s: float, copies: str, has_awaited_loads: bool, current_stream: Callable[[], int]) -> None:
        self._seat, self._has_awaited_loads = seat, has_awaited_loads
        self._tried_pool, self._try_again_at = 0, 0.0  # pool that the manager last asked for; time.monotonic() of the next attempt to attach to it
        self.blocks, self._ack, self._timeout_s, self._current_stream = list(blocks), ack, timeout_s, current_stream
        self._layouts = [b.layout() for b in blocks]
        self._cuda = Cuda(device)
        self._client = Client(socket, "vllm-worker", timeout=min(timeout_s, OPEN_S), connect_timeout=0.2)
        chunk = -(-max(b.chunk_bytes for b in blocks) // mmap.PAGESIZE) * mmap.PAGESIZE
        self._fields = fields
        self._canary = canary
        self._canary.enter(self._state_of)
        self._namespaces: dict[int, Namespace] = {}  # by group, the open namespaces
        self._opened: dict[int, Namespace] = {}      # namespaces that are open, while others of the same variant cannot be opened
        self._open()
        self._gpu = Gpu(self._client, device, max(STAGING_BYTES, 8 * (chunk + mmap.PAGESIZE)), leased=True, explicit=True, engine=copies)
        self.loads = Loads(self._gpu, self._layouts, [b.block_bytes for b in blocks], self._copy_leased, self._cuda, current_stream,
                           self.attach_soon)
        self._changed = threading.Condition()
        self._stores: deque[_Job] = deque()
        self._present: list[_Job] = []         # stores on which the mover's thread works
        self._dropped_events: deque[int] = deque()  # events of stores that the engine's thread has dropped, to be destroyed
        self._under_way: dict[int, _Job] = {}  # by job number, stores whose end is not reported yet
        self._ended: deque[Ended] = deque()
        self._attached = threading.Event()
        self._closing = self._must_attach = False
        self._rest_until, self._pause_s = 0.0, PAUSE_S
        self.stored_bytes = self.failed_stores = 0  # bytes that were stored, and chunks that were not; counted by the mover's thread
        self.left_out = 0  # chunks that the engine's thread did not queue, or dropped: see KvcacheWorker._placed(), submit() and _drop()
        self.store_wait_s = 0.0  # seconds for which the engine has waited for stores
        self.spent = Spent()     # seconds of the engine's thread in this adapter, which the worker counts
        self._complaint = self._refusal = ""
        self._thread = threading.Thread(target=self._run, name="kvcache-mover", daemon=True)
        began = time.monotonic()
        self._thread.start()
        # Wait before the engine captures its CUDA graphs, but at most ATTACH_S: registering the daemon's memory takes the driver's locks for
        # seconds, and cuFile has threads whose capture mode cannot be set.
        if not self._attached.wait(ATTACH_S):
            log.warning("the daemon's memory is not registered with the GPU after %.0f s; the engine starts, and nothing is loaded or stored until "
                        "it is", ATTACH_S)
        elif self._gpu.attached and not self._gpu.refusal:
            log.info("the daemon's memory was registered with the GPU in %.1f s", time.monotonic() - began)

    # --- the engine's thread ---

    def submit(self, number: int, parts: list[Part], tokens: int = 0, scheduled: float = 0.0) -> None:
        """Queues a store. The store begins when all work that is in the engine's stream now is complete. `tokens`: how many tokens that work
        computes since the time `scheduled`. A store without parts, in a captured stream or after close() ends at once, and stores nothing."""
        for part in parts:
            self._check_blocks(number, part.layout, [b for b in part.blocks if b != NO_BLOCK] if NO_BLOCK in part.blocks else part.blocks)
            if len(part.blocks) != len(part.keys) * self.blocks[part.layout].per_chunk:
                raise ValueError(f"job {number} has {len(part.blocks)} blocks for {len(part.keys)} chunks, but a chunk has "
                                 f"{self.blocks[part.layout].per_chunk}")
        if not parts:  # other ranks write these chunks, or they are already stored
            self._ended.append(Ended(number, True, 0, 0.0))
            return
        event = self._cuda.record(self._current_stream())
        with self._changed:
            if not event or self._closing:
                self.left_out += sum(len(p.keys) for p in parts)
                self._ended.append(Ended(number, True, 0, 0.0))
                return
            self._under_way[number] = job = _Job(number, parts, event, tokens, scheduled)
            if tokens:  # vLLM submits the store before it begins the loads of its next step
                job.awaited_s = self.loads.awaited_s(scheduled)
            self._stores.append(job)
            self._changed.notify_all()

    def load(self, number: int, parts: list[LoadPart], pool: int, load: int, is_expedited: bool = False) -> None:
        """Checks the blocks of a load, and begins the load (Loads.begin())."""
        for part in parts:
            self._check_blocks(number, part.layout, part.blocks)
            if len(part.blocks) != len(part.offsets):
                raise ValueError(f"job {number} has {len(part.blocks)} blocks, but {len(part.offsets)} offsets in the pool")
        self.loads.begin(number, parts, pool, load, is_expedited)

    def _check_blocks(self, number: int, layout: int, blocks: list[int]) -> None:
        if blocks and (min(blocks) < 0 or max(blocks) >= self.blocks[layout].blocks):
            raise ValueError(f"job {number} has blocks {blocks[:4]}... outside the KV cache, which has {self.blocks[layout].blocks} blocks")

    def finished(self) -> list[Ended]:
        """Returns the jobs that have ended since the last call, and writes the counters and samples to the engine's page."""
        ended = self.loads.finished()
        while self._ended:
            ended.append(self._ended.popleft())
        page = self._seat.page
        if page is not None:
            page.set_ended_below(self.loads.ended_below)
            page.set_counters(stored_bytes=self.stored_bytes, failed_stores=self.failed_stores + self.left_out, rescued_loads=self.loads.rescued,
                              store_wait_us=round(self.store_wait_s * 1e6), call_us=round(self.spent.calls_s * 1e6),
                              store_call_us=round(self.spent.store_s * 1e6))
            while self.loads.samples:
                page.add_load(*self.loads.samples.popleft())
        return ended

    def _look_at_page(self) -> None:
        """Publishes the pools from which this rank can copy, or why the GPU is not attached. Requests a new attachment if the manager wants
        a pool that is not among them, and closes the mover if the page is closed. Called on the mover's thread."""
        if (page := self._seat.page) is not None:
            page.set_pools(self._kept_pools(page))
        self._seat.refuse(self._gpu.reason if not self._gpu.attached and self._client.connected else "")
        page = self._seat.poll(self._gpu.pools)
        if page is None:
            return
        self._closing = self._closing or page.is_closed
        wanted, now = page.wanted, time.monotonic()
        if wanted and wanted not in self._gpu.pools() and (wanted != self._tried_pool or now >= self._try_again_at):
            self._tried_pool, self._try_again_at = wanted, now + PAUSE_S
            self._must_attach = True

    def _kept_pools(self, page: RankPage) -> list[int]:
        """Releases the pools of earlier daemons in which no chunk is leased. Returns the remaining pools."""
        pools = self._gpu.pools()
        unused = set(pools[1:]) - page.in_use() if not self.loads.busy else set()
        if unused:
            # The manager answers no hit from a pool that this rank does not publish, so a pool without leases gets none later.
            page.set_pools([p for p in pools if p not in unused])
            for pool in unused - page.in_use():
                self._gpu.release_pool(pool)
                self._must_attach = True  # attaching again unregisters the released pool
            pools = self._gpu.pools()
        return pools

    def attach_soon(self) -> None:
        """Requests a new attachment, because the memory of a restarted daemon is not registered with the GPU yet."""
        with self._changed:
            self._must_attach = True
            self._changed.notify_all()

    def wait(self, numbers: set[int]) -> None:
        """Waits until these jobs have ended; their stores overtake others. The engine waits meanwhile, so stores that have not ended after
        FLUSH_S are dropped: at once if the mover's thread is not working on them, otherwise after its present put (STORE_S) or comparison
        (CHECK_S). Small stores that the thread puts together end after one put for each group and salt among them."""
        self.loads.wait(numbers)
        began = breakeven.clock()
        with self._changed:
            for number in numbers & self._under_way.keys():
                self._under_way[number].wanted = True
            if not self._changed.wait_for(lambda: not numbers & self._under_way.keys(), FLUSH_S):
                for number in numbers & self._under_way.keys():
                    self._under_way[number].hurried = True
                self._drop([self._under_way[number] for number in numbers & self._under_way.keys()])
                self._changed.wait_for(lambda: not numbers & self._under_way.keys())
        waited_s = breakeven.clock() - began
        self.store_wait_s += waited_s
        self.spent.store_s += waited_s
        if self._seat.page is not None:
            self._seat.page.set_counters(store_wait_us=round(self.store_wait_s * 1e6))

    def _drop(self, jobs: list[_Job]) -> None:
        """Ends stores on which the mover's thread is not working; that thread may be attaching to a new daemon for many seconds. The caller holds the
        lock."""
        for job in jobs:
            if job not in self._present:
                self.left_out += sum(len(p.keys) for p in job.parts)
                self._end([job])
                self._dropped_events.append(job.event)

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(self._timeout_s + 5.0)

    # --- the mover's thread ---

    def _run(self) -> None:
        try:
            self._cuda.use()
            self._stream = self._cuda.stream()
            self._attach_again()
        except Exception as e:
            self._complain(str(e))
        finally:
            self._attached.set()
        while True:
            with self._changed:
                self._present = []
                try:
                    jobs = self._present = self._next()
                except Exception as e:  # the thread must survive unknown failures, because the engine waits for the stores
                    self._complain(f"{type(e).__name__}: {e}")
                    self._changed.wait(LOOK_S)
                    jobs = []
                if self._closing:
                    break
            if jobs:
                self._step(jobs)
            else:
                self._attach_again()
            self._drop_events()
        self._drop_events()
        self._abandon()
        if self._seat.page is not None:
            self._seat.page.leave()
        self._gpu.detach(self._timeout_s)
        private.remove(self._namespaces.values(), self._fields)
        self._client.close()

    def _drop_events(self) -> None:
        """Destroys the events of stores that the engine's thread has dropped."""
        while self._dropped_events:
            try:
                self._cuda.drop(self._dropped_events.popleft())
            except OSError as e:
                log.warning("the CUDA event of a dropped store could not be destroyed and is leaked: %s", e)

    def _abandon(self) -> None:
        """Reports the stores that are left as ended, because the engine may continue after the scheduler's process has closed the page."""
        with self._changed:
            self.failed_stores += sum(len(p.keys) for job in self._stores for p in job.parts)
            self._end([*self._stores])

    def _end(self, jobs: list[_Job]) -> None:
        """Reports stores as ended. The caller holds the lock."""
        for job in jobs:
            self._stores.remove(job)
            del self._under_way[job.number]
            self._ended.append(Ended(job.number, True, job.nbytes, time.monotonic() - job.started))
        self._changed.notify_all()

    def _next(self) -> list[_Job]:
        """Waits for stores, and returns the next ones: one store of many blocks, or several of few blocks. Returns an empty list if the GPU is
        to be attached again, or the mover is closed. The caller holds the lock."""
        while not self._closing:
            self._look_at_page()
            if self._closing:
                break
            if self._must_attach and time.monotonic() >= self._rest_until:
                return []
            jobs, pause = self._due()
            if jobs:
                return jobs
            if self._must_attach:
                pause = min(pause, self._rest_until - time.monotonic())
            longest = LOOK_S if self._seat.page is not None or self._seat.has_failed else NO_PAGE_S
            self._changed.wait(max(0.0, min(longest, pause)))
        return []

    def _due(self) -> tuple[list[_Job], float]:
        """Returns the stores to work on now. If there are none, also returns in how many seconds some may be due; infinity if nothing is queued."""
        few: list[_Job] = []
        blocks = 0
        for job in self._stores:
            if job.wanted or not job.is_small:
                return [next((j for j in self._stores if j.wanted), job)], 0.0
            if blocks < SLICE_BLOCKS:
                few.append(job)
                blocks += job.count
        if not few:
            return [], math.inf
        pause = few[0].started + GATHER_S - time.monotonic()
        return (few, 0.0) if blocks >= SLICE_BLOCKS or pause <= 0 else ([], pause)

    def _wait_until_computed(self, job: _Job) -> None:
        """Waits until the store's blocks are computed. Otherwise the put itself would wait, and keep staging memory meanwhile."""
        if not job.computed:
            self._cuda.wait_until(job.event)
            job.computed = True
            if job.tokens and job.awaited_s is not None and self._seat.page is not None:
                computed_s = time.monotonic() - job.scheduled - job.awaited_s
                if computed_s > 0:
                    self._seat.page.add_prefill(job.tokens, computed_s)

    def _attach(self) -> None:
        """Registers the daemon's memory with the GPU's driver. The get of a random key discovers whether the daemon has been restarted,
        even if no answer comes. The empty copies of leased chunks create streams, for whose creation the first load would have to wait."""
        self._gpu.gentle = self._attached.is_set()  # the engine has started, and may be computing
        if not self._gpu.renew(next(iter(self._namespaces.values()))):
            self._complain(self._gpu.reason)
            return
        if self._gpu.refusal and self._gpu.refusal != self._refusal:
            log.warning("the GPU's driver refuses to register the daemon's memory, so nothing is loaded; lookups retry the registration: %s (see the "
                        "driver's messages in dmesg, or lower memory.pool and restart the daemon)", self._gpu.refusal)
        elif self._refusal and not self._gpu.refusal:
            log.info("the daemon's memory is registered with the GPU now, and loads begin")
        self._refusal = self._gpu.refusal
        self._gpu.get(next(iter(self._namespaces.values())), self._layouts[0], [0], [os.urandom(32)], stream=self._stream,
                      timeout=NOTICE_S)
        if self._gpu.reason:
            self._complain(self._gpu.reason)
        else:
            for after in (0, self._stream) if self._has_awaited_loads else (0,):
                self._gpu.copy_leased(self._layouts[0], [], 0, [], NO_JOB, after=after)

    def _attach_again(self) -> None:
        """Attaches the GPU, unless MOST_POOLS pools are registered or no namespace can be opened. After a failure, requests a new attempt and
        pauses."""
        self._must_attach = False
        if not self._namespaces:
            if not self._open_variant():
                return
            log.warning("the canary's next namespace is open, so blocks are stored again")
        if len(self._gpu.pools()) >= MOST_POOLS:
            # To attach the pool of a new daemon, the library would drop the oldest pool, from which loads may still be due. When the leases
            # in a pool have ended, _kept_pools() requests the attachment again.
            return
        try:
            self._attach()
        except Exception as e:
            self._complain(str(e))
        if self._gpu.reason or not self._client.connected:
            self._rest(self._gpu.reason or self._client.error)
            self._must_attach = True

    def _complain(self, why: str) -> None:
        if why and why != self._complaint:
            log.warning("blocks of the GPU cannot be stored now, and stores are retried every few seconds: %s (see kvcachectl doctor)", why)
        self._complaint = why

    def _step(self, jobs: list[_Job]) -> None:
        """Puts the next slice of one store, or several small stores together."""
        over = True
        try:
            if len(jobs) == 1:
                over = self._store_slice(jobs[0])
            else:
                self._store_together(jobs)
        except Exception as e:  # the GPU's driver failed, and the engine's next call will fail, too
            log.exception("the stores of the jobs %s failed, so their chunks are not stored: %s", [job.number for job in jobs], e)
            self.failed_stores += sum(len(p.keys) for job in jobs for p in job.parts if not p.is_check)
        if not over:
            return
        if self._seat.page is not None:
            self._seat.page.set_counters(stored_bytes=self.stored_bytes, failed_stores=self.failed_stores + self.left_out)
        with self._changed:
            self._end(jobs)
        try:
            for job in jobs:
                self._cuda.drop(job.event)
        except OSError as e:
            log.warning("a CUDA event could not be destroyed after the store of job %d and is leaked: %s", jobs[0].number, e)

    def _namespace(self, part: Part) -> Namespace | None:
        return self._namespaces.get(group_of(part.keys[0]))

    def _move(self, call: Callable[..., bytes], part: Part, **options: Any) -> bytes:
        """Calls a put of the GPU. Returns one status for each key, or no bytes if the put failed, requests pause, or the group has no open
        namespace."""
        namespace = self._namespace(part)
        if namespace is None or time.monotonic() < self._rest_until:
            return b""
        try:
            status = call(namespace, self._layouts[part.layout], part.blocks, names_of(part.keys, part.salt),
                          stream=self._stream, **options)
        except Exception as e:
            self._rest(str(e) or repr(e))
            return b""
        if not any(map(status_ok, status)) and not self._client.connected or self._gpu.reason:
            self._rest(self._gpu.reason or self._client.error)
            self._must_attach = True
        else:
            self._complain("")
            self._pause_s = PAUSE_S
        return status

    def _rest(self, why: str) -> None:
        self._complain(why)
        self._rest_until = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _copy_leased(self, part: LoadPart, address: int, stream: int) -> None:
        blocks = self.blocks[part.layout]
        for block, offset in zip(part.blocks, part.offsets):
            for to, at, nbytes in blocks.pieces(block):
                source = address + offset + at
                while nbytes:
                    n = min(nbytes, SLICE_BYTES - source % SLICE_BYTES)
                    self._cuda.copy(to, source, n, stream)
                    to, source, nbytes = to + n, source + n, nbytes - n

    def _state_of(self, name: str) -> State | None:
        found = self._client.namespace_state(name)
        return None if found is None else State(not found.chunks and not found.sessions, found.fingerprint)

    def _open(self) -> None:
        """Opens the namespaces in use that earlier attempts have not opened. If one cannot be opened, none is used."""
        for (group, name), blocks in zip(self._canary.names.items(), self.blocks):
            if group not in self._opened:
                self._opened[group] = self._client.namespace(name, self._fields, blocks.chunk_bytes)
        self._namespaces, self._opened = self._opened, {}

    def _check(self, part: Part) -> None:
        """Gives the canary a chunk that the engine has computed, and the chunk that is stored under the same key. Does nothing while requests
        pause (_rest()), or if the group has no open namespace."""
        namespace, blocks = self._namespace(part), self.blocks[part.layout]
        if namespace is None or time.monotonic() < self._rest_until:
            return
        computed = ctypes.create_string_buffer(blocks.chunk_bytes)
        for place, block in enumerate(part.blocks):
            for address, at, nbytes in blocks.pieces(block):
                self._cuda.copy(ctypes.addressof(computed) + place * blocks.block_bytes + at, address, nbytes, self._stream)
        self._cuda.synchronize(self._stream)
        with namespace.get_map(names_of(part.keys[:1], part.salt), timeout=min(self._timeout_s, CHECK_S)) as leased:
            self._canary.compare(part.keys[0], computed.raw, leased[0])
        self._client.flush()  # without this, the release of the lease would wait for the next request

    def _follow(self) -> None:
        """Continues with the next variant of the namespaces if the canary has rejected the present variant."""
        if self._canary.moves(self._state_of):
            self._namespaces, self._opened = {}, {}
            self._open_variant()

    def _open_variant(self) -> bool:
        """Opens the namespaces of the canary's present variant, and publishes its number. Returns whether they are open. After a failure, the
        manager keeps the variant before, of which the canary permits no load. Requests pause, and _attach_again() makes the next attempt."""
        names = self._canary.names
        try:
            self._canary.enter(self._state_of, self._opened)
            self._open()
        except OSError as e:
            self._rest(f"the canary's next namespace cannot be opened ({', '.join(names.values())}): {e}")
            self._must_attach = True
            return False
        if self._seat.page is not None:
            self._seat.page.set_variant(self._canary.number)
        return True

    def _store_slice(self, job: _Job) -> bool:
        """Stores the next slice of a job. Returns whether no slice is left."""
        if job.hurried:
            self.failed_stores += sum(len(p.keys) for p in job.parts)
            return True
        self._wait_until_computed(job)
        part = job.parts[0]
        if part.is_check:
            job.parts = job.parts[1:]
            self._check(part)
            self._follow()
            return not job.parts
        self._follow()
        per_chunk = self.blocks[part.layout].per_chunk
        chunks = max(1, SLICE_BLOCKS // per_chunk)
        now = Part(part.layout, part.keys[:chunks], part.blocks[:chunks * per_chunk], salt=part.salt)
        job.nbytes += sum(self._put(now)) * self.blocks[part.layout].chunk_bytes
        rest = Part(part.layout, part.keys[chunks:], part.blocks[chunks * per_chunk:], salt=part.salt)
        job.parts = ([rest] if rest.keys else []) + job.parts[1:]
        return not job.parts

    def _store_together(self, jobs: list[_Job]) -> None:
        """Puts several small stores with one request for each group and salt, because a small request keeps Python's lock from the engine's
        thread for as long as a large request."""
        self._wait_until_computed(jobs[-1])  # events of the engine's stream complete in the order of the jobs
        self._follow()
        groups: dict[tuple[int, bytes], list[tuple[_Job, Part]]] = {}
        for job in jobs:
            for part in job.parts:
                groups.setdefault((part.layout, part.salt), []).append((job, part))
        for (layout, salt), listed in groups.items():
            stored = self._put(Part(layout, [k for _, p in listed for k in p.keys], [b for _, p in listed for b in p.blocks], salt=salt))
            at = 0
            for job, part in listed:
                job.nbytes += sum(stored[at:at + len(part.keys)]) * self.blocks[layout].chunk_bytes
                at += len(part.keys)
                job.parts = [p for p in job.parts if p is not part]

    def _put(self, part: Part) -> list[bool]:
        """Puts chunks. Returns for each chunk whether it is stored. The blocks have been read at the return, so the engine may overwrite them when
        the job has ended."""
        if not part.keys or not part.salt and not self._canary.may_store(group_of(part.keys[0]), len(part.keys)):
            return [False] * len(part.keys)
        status = self._move(self._gpu.put, part, ack=self._ack, timeout=min(self._timeout_s, STORE_S),
                            chunk_blocks=self.blocks[part.layout].per_chunk, wait=self._ack != "accepted")
        stored = [*map(status_ok, status)] or [False] * len(part.keys)
        if not part.salt:
            self._canary.stored([k for k, s in zip(part.keys, status) if status_ok(s) and s != EXISTS])
        self.stored_bytes += sum(stored) * self.blocks[part.layout].chunk_bytes
        self.failed_stores += len(stored) - sum(stored)
        return stored
