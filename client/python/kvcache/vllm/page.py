# SPDX-License-Identifier: Apache-2.0
"""The page of an engine: shared memory through which its ranks report to its scheduler. Imports nothing of vLLM.

A rank is the offloading worker of one GPU, and vLLM gives an offloading spec (spec.py) no channel from a rank to the scheduler. So the
scheduler's process makes a file in /dev/shm, the page (EnginePage), and each rank maps it and writes to an area of its own (Seat, RankPage).
The file's name contains the id and the start time of the scheduler's process, which is the rank's own process or its parent: a rank therefore
finds only the page of its own engine. The name is removed once all ranks have mapped the page, or after NAME_S. A page that a killed engine
has left is removed by the next engine.

A field is a word of 8 bytes that only one process writes. A text is complete before the word that announces it is written. A reader trusts no
value: it first copies the value, then checks its range, and never uses it as an address. Only processes of the same user can open the page; such
a process could also truncate the file, which would end the engine by SIGBUS.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import hashlib
import json
import logging
import mmap
import multiprocessing
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from . import delivery
from .shards import MOST_CHUNK_BYTES, Share

log = logging.getLogger("kvcache.vllm")

MAGIC = int.from_bytes(b"kvcpage\0", "little")
VERSION = 1
NAME_S = 60.0       # seconds after which the page's name is removed even if a rank has not mapped the page
MOST_RANKS = 1024   # largest number of ranks of an engine
MOST_POOLS = 4      # largest number of the daemon's pools that libkvcache keeps registered with a GPU
MOST_GROUPS = 1024  # KV cache groups of vLLM that a rank may describe; the scheduler's side refuses more
MOST_VARIANT = 8    # highest number of a namespace's variant (kvcache.engine.verification)
LONGEST_NAME = 255  # most characters of a description's base, and of the name and the value of a field
RING = 32           # latest samples of each kind (loads, prefills) that a rank's area has room for
NONE, ATTACHED, REFUSES = range(3)  # states of a rank: not attached yet, takes part, refuses to take part

WORD = 8              # bytes of a word
HEADER_WORDS = 512    # words of the header, after which the areas of the ranks follow
RANK_WORDS = 2048     # words of a rank's area
TEXT_AT = 512         # word of a rank's area at which its text begins
TEXT_BYTES = (RANK_WORDS - TEXT_AT) * WORD
_MOST = (1 << 64) - 1  # largest value of a word

# Words of the header, which the scheduler's process writes. _START: the start time of that process. _DIGEST: digest_of() of its facts.
# _WANTED: id of the pool to which the ranks are to attach. _CLOSED: 1 if the ranks are to leave. _IN_USE: the first of MOST_POOLS ids of
# pools with leases.
_MAGIC, _VERSION, _WORLD, _PID, _START, _DIGEST, _WANTED, _CLOSED, _IN_USE = range(9)
# Words of a rank's area, which the rank writes. _LENGTH: bytes of its text. _ENDED: number below which all loads have ended. _LOADS,
# _PREFILLS: how many samples the rank has written to each ring. _POOLS: the first of MOST_POOLS ids of pools from which the rank can copy.
_RANK_PID, _STATE, _LENGTH, _VARIANT, _ENDED, _STORED, _FAILED, _RESCUED, _STORE_WAIT, _LOADS, _PREFILLS, _POOLS = range(12)
_CALLS, _STORE_CALLS = _POOLS + MOST_POOLS, _POOLS + MOST_POOLS + 1
_LOAD_RING, _PREFILL_RING = 32, 32 + RING
COUNTERS = {"stored_bytes": _STORED, "failed_stores": _FAILED, "rescued_loads": _RESCUED, "store_wait_us": _STORE_WAIT,
            "call_us": _CALLS, "store_call_us": _STORE_CALLS}

_COUNTER_WORDS = tuple(COUNTERS.values())

_PREFIX = "kvcache-engine"
_NAME = re.compile(_PREFIX + r"-(\d{1,10})-(\d{1,20})-[0-9a-f]{32}")
_VALUE_BITS, _TICK_BITS, _TICK_S = 28, 36, 1e-7  # a sample in one word: bits of its size and of its time in ticks; seconds of a tick
_LOAD_UNIT = 4096  # bytes; the size of a load's sample is in this unit


class PageError(Exception):
    """A page, or a value in it, cannot be used. The text is the reason."""


class Description(NamedTuple):
    """The description of a rank in the page. `base`: the first part of its namespaces' names. `fields`: their fingerprint. `groups`: by group, the
    bytes of the rank's shard of a chunk, and the rank's share."""

    base: str
    fields: dict[str, str]
    groups: dict[int, tuple[int, Share]]

    def encoded(self) -> bytes:
        groups = [[number, nbytes, *share] for number, (nbytes, share) in self.groups.items()]
        return json.dumps({"base": self.base, "fields": self.fields, "groups": groups}, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, text: bytes, world_size: int) -> Description:
        """Reads a description from a text. Raises PageError if encoded() cannot have made the text."""
        try:
            content = json.loads(text)
            base, fields, listed = content["base"], content["fields"], content["groups"]
            groups = {number: (nbytes, Share(*share)) for number, nbytes, *share in listed}
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise PageError(f"the description in the engine's page in /dev/shm cannot be read: {type(e).__name__}") from e
        if not _is_text(base, LONGEST_NAME) or not isinstance(fields, dict) or not all(
                _is_text(n, LONGEST_NAME) and _is_text(v, LONGEST_NAME) for n, v in fields.items()):
            raise PageError("the description in the engine's page has a name or a fingerprint that is not printable text")
        if not 0 < len(groups) <= MOST_GROUPS or len(groups) != len(listed):
            raise PageError(f"the description in the engine's page lists {len(listed)} groups, {len(groups)} of them different; it must list 1 to {MOST_GROUPS}, each once")
        for number, (nbytes, share) in groups.items():
            if not _is_number(number, 0, (1 << 32) - 1) or not _is_number(nbytes, 1, MOST_CHUNK_BYTES) or not share.is_valid(world_size):
                raise PageError(f"the description in the engine's page has values of group {number!r} that are out of range")
        return cls(base, fields, groups)


def _is_text(value: Any, longest: int) -> bool:
    return isinstance(value, str) and len(value) <= longest and value.isascii() and value.isprintable()


def _is_number(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def digest_of(facts: Mapping[str, object]) -> int:
    """Returns a digest of facts such as the model and the parallel sizes, as a word of the page. A rank whose digest differs from the
    scheduler's refuses to take part."""
    text = json.dumps({n: str(v) for n, v in facts.items()}, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:WORD], "little")


def bytes_of(world_size: int) -> int:
    return (HEADER_WORDS + world_size * RANK_WORDS) * WORD


def path_of(pid: int, engine_id: object) -> str:
    """Returns the path of the page that the scheduler's process `pid` makes for the engine of this id. Raises OSError if no such process
    exists."""
    digest = hashlib.sha256(f"{os.geteuid()}\n{engine_id}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return f"{delivery.FOLDER}/{_PREFIX}-{pid}-{delivery.started(pid)}-{digest}"


def _sweep() -> None:
    """Removes this user's pages of processes that have ended."""
    for name in os.listdir(delivery.FOLDER):
        found = _NAME.fullmatch(name.removesuffix(".new"))
        if not found:
            continue
        try:
            ended = delivery.started(int(found[1])) != int(found[2])
        except (OSError, ValueError, IndexError):
            ended = True
        path = f"{delivery.FOLDER}/{name}"
        with contextlib.suppress(OSError):
            if ended and os.lstat(path).st_uid == os.geteuid():
                os.unlink(path)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


class _Words:
    """A mapping of the page, as words and as bytes."""

    def __init__(self, fd: int, nbytes: int) -> None:
        self._map = mmap.mmap(fd, nbytes)
        self.bytes = memoryview(self._map)
        self.words = self.bytes.cast("Q")

    def text(self, rank: int) -> bytes:
        """Returns a copy of a rank's text. Raises PageError if the length of the text is out of range."""
        first = HEADER_WORDS + rank * RANK_WORDS
        length = self.words[first + _LENGTH]
        if length > TEXT_BYTES:
            raise PageError(f"rank {rank} announces a text of {length} bytes, but the page has room for {TEXT_BYTES}")
        at = (first + TEXT_AT) * WORD
        return bytes(self.bytes[at:at + length])


class EnginePage:
    """The scheduler's view of the page, which it creates. The constructor raises OSError or PageError if the page cannot be made."""

    def __init__(self, engine_id: object, world_size: int, digest: int) -> None:
        if not 0 < world_size <= MOST_RANKS:
            raise PageError(f"an engine of {world_size} GPUs is not supported; the largest has {MOST_RANKS}")
        _sweep()
        self.world_size, self.path = world_size, path_of(os.getpid(), engine_id)
        self._memory = self._make(digest)
        self._made, self._has_name = time.monotonic(), True
        self._seen = [[0, 0] for _ in range(world_size)]  # by rank, the numbers of load samples and of prefill samples that were read
        self._at_exit = functools.partial(_remove, self.path)
        atexit.register(self._at_exit)

    def _make(self, digest: int) -> _Words:
        """Creates the page. The file gets its name when the header is complete, so that no rank sees half a header."""
        unfinished = self.path + ".new"
        _remove(unfinished)
        fd = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, bytes_of(self.world_size))  # a hole in a full /dev/shm would end the engine by SIGBUS
            memory = _Words(fd, bytes_of(self.world_size))
            values = {_VERSION: VERSION, _WORLD: self.world_size, _PID: os.getpid(), _START: delivery.started(os.getpid()), _DIGEST: digest,
                      _MAGIC: MAGIC}
            for at, value in values.items():
                memory.words[at] = value
            os.link(unfinished, self.path)  # fails if a page of this name exists
        except FileExistsError as e:
            raise PageError(f"two engines of this process have the same engine_id, because {self.path} exists already: give each engine its own "
                            "engine_id") from e
        finally:
            os.close(fd)
            _remove(unfinished)
        return memory

    def _word(self, rank: int, at: int) -> int:
        return self._memory.words[HEADER_WORDS + rank * RANK_WORDS + at]

    def tick(self) -> None:
        """Removes the page's name once all ranks have mapped the page, or after NAME_S."""
        if self._has_name and (time.monotonic() >= self._made + NAME_S or all(self._word(r, _RANK_PID) for r in range(self.world_size))):
            self._drop_name()

    def _drop_name(self) -> None:
        self._has_name = False
        _remove(self.path)
        atexit.unregister(self._at_exit)

    @property
    def age_s(self) -> float:
        return time.monotonic() - self._made

    def states(self) -> list[int]:
        """Returns the state of each rank. A value out of range counts as NONE."""
        states = [self._word(r, _STATE) for r in range(self.world_size)]
        return [s if s in (ATTACHED, REFUSES) else NONE for s in states]

    def is_here(self, rank: int) -> bool:
        """Returns whether the rank is in the scheduler's process."""
        return self._word(rank, _RANK_PID) == os.getpid()

    def reason(self, rank: int) -> str:
        """Returns the reason of a rank that REFUSES as printable text, or why this reason cannot be read."""
        try:
            text = self._memory.text(rank).decode("utf-8", "replace")
        except PageError as e:
            return str(e)
        return "".join(c if c.isprintable() else " " for c in text)

    def description(self, rank: int) -> Description:
        """Returns the description of a rank that is ATTACHED. Raises PageError if the description is malformed."""
        try:
            return Description.decoded(self._memory.text(rank), self.world_size)
        except PageError as e:
            raise PageError(f"rank {rank}: {e}") from e

    def serves(self, pool: int) -> bool:
        """Returns whether all ranks have the pool of this id mapped and registered; False for 0."""
        return pool != 0 and all(any(self._word(r, _POOLS + i) == pool for i in range(MOST_POOLS)) for r in range(self.world_size))

    def use(self, pools: Iterable[int]) -> bool:
        """Makes the ranks keep these pools registered, by listing them in the header. Returns False, and changes nothing, if there are more than
        MOST_POOLS."""
        listed = sorted(set(pools))
        if len(listed) > MOST_POOLS:
            return False
        # A pool that stays listed keeps its word, because a rank may read the list at any time.
        words, free = self._memory.words, []
        for i in range(MOST_POOLS):
            if words[_IN_USE + i] in listed:
                listed.remove(words[_IN_USE + i])
            else:
                free.append(i)
        for i in free:
            words[_IN_USE + i] = listed.pop() if listed else 0
        return True

    def want(self, pool: int) -> None:
        """Asks the ranks that do not have this pool to attach to it."""
        self._memory.words[_WANTED] = pool

    def variant(self) -> int:
        """Returns the number of the namespaces' variant that rank 0 uses (kvcache.engine.verification)."""
        number = self._word(0, _VARIANT)
        return number if 1 <= number <= MOST_VARIANT else 1

    def all_counted(self) -> list[list[int]]:
        """Returns the counters of each rank, in the order of COUNTERS."""
        words = self._memory.words
        return [[words[first + at] for at in _COUNTER_WORDS]
                for first in range(HEADER_WORDS, HEADER_WORDS + self.world_size * RANK_WORDS, RANK_WORDS)]

    def ended_below(self, most: int) -> int:
        """Returns a number below which all loads have ended in all ranks. `most`: the number of the next load; a greater number in the page
        counts as 0."""
        numbers = [self._word(r, _ENDED) for r in range(self.world_size)]
        return min(n if n <= most else 0 for n in numbers)

    def loads(self, rank: int) -> list[tuple[int, float]]:
        """Returns the samples of a rank's loads since the last call: bytes, and the seconds of their copies."""
        return [(n * _LOAD_UNIT, s) for n, s in self._taken(rank, 0, _LOADS, _LOAD_RING)]

    def prefills(self, rank: int) -> list[tuple[int, float]]:
        """Returns the samples of a rank's prefills since the last call: tokens, and the seconds in which they were computed."""
        return self._taken(rank, 1, _PREFILLS, _PREFILL_RING)

    def _taken(self, rank: int, kind: int, head: int, ring: int) -> list[tuple[int, float]]:
        end, seen = self._word(rank, head), self._seen[rank][kind]
        self._seen[rank][kind] = end
        first = max(seen, end - RING) if seen <= end else end
        words = [self._word(rank, ring + i % RING) for i in range(first, end)]
        samples = [(w >> _TICK_BITS, (w & ((1 << _TICK_BITS) - 1)) * _TICK_S) for w in words]
        return [(n, s) for n, s in samples if n and s]

    def close(self, longest_s: float) -> None:
        """Tells the ranks to leave the page, waits for at most `longest_s` seconds until all have left, and removes the page's name."""
        self._memory.words[_CLOSED] = 1
        until = time.monotonic() + longest_s
        while any(self._word(r, _RANK_PID) for r in range(self.world_size)) and time.monotonic() < until:
            time.sleep(0.005)
        if self._has_name:
            self._drop_name()


class RankPage:
    """A rank's view of a page that open_page() has checked. After leave() its methods write nothing."""

    def __init__(self, memory: _Words, rank: int) -> None:
        self._memory, self._first = memory, HEADER_WORDS + rank * RANK_WORDS
        self._has_left = False

    def _set(self, at: int, value: int) -> None:
        if not self._has_left:
            self._memory.words[self._first + at] = min(max(value, 0), _MOST)

    def _say(self, text: bytes, state: int) -> None:
        self._set(_STATE, NONE)
        if self._has_left:
            return
        at = (self._first + TEXT_AT) * WORD
        self._memory.bytes[at:at + len(text)] = text
        self._set(_LENGTH, len(text))
        self._set(_STATE, state)

    def describe(self, description: Description) -> None:
        text = description.encoded()
        if len(text) > TEXT_BYTES:
            self.refuse(f"its description has {len(text)} bytes, but the engine's page has room for {TEXT_BYTES}: shorten kvcache_namespace")
        else:
            self._say(text, ATTACHED)

    def refuse(self, why: str) -> None:
        self._say(why.encode("utf-8", "replace")[:TEXT_BYTES], REFUSES)

    def set_pools(self, pools: list[int]) -> None:
        """Publishes the ids of the pools that this rank can copy from: the latest first, as Gpu.pools() returns them. The words are written in an
        order in which the scheduler, which may read them at any time, always sees each pool that was published before and still is."""
        words = self._memory.words[self._first + _POOLS:self._first + _POOLS + MOST_POOLS]
        places = range(MOST_POOLS) if len(pools) < sum(map(bool, words)) else reversed(range(MOST_POOLS))
        for i in places:
            self._set(_POOLS + i, pools[i] if i < len(pools) else 0)

    def in_use(self) -> set[int]:
        """Returns the ids of the pools in which the scheduler has leases."""
        return {self._memory.words[_IN_USE + i] for i in range(MOST_POOLS)} - {0}

    @property
    def wanted(self) -> int:
        return self._memory.words[_WANTED]

    @property
    def is_closed(self) -> bool:
        return self._memory.words[_CLOSED] != 0

    @property
    def is_here(self) -> bool:
        """Returns whether the scheduler is in this process."""
        return self._memory.words[_PID] == os.getpid()

    def set_variant(self, number: int) -> None:
        self._set(_VARIANT, number)

    def set_ended_below(self, number: int) -> None:
        self._set(_ENDED, number)

    def set_counters(self, **counters: int) -> None:
        for name, value in counters.items():
            self._set(COUNTERS[name], value)

    def add_load(self, nbytes: int, seconds: float) -> None:
        self._add(_LOADS, _LOAD_RING, -(-nbytes // _LOAD_UNIT), seconds)

    def add_prefill(self, tokens: int, seconds: float) -> None:
        self._add(_PREFILLS, _PREFILL_RING, tokens, seconds)

    def _add(self, head: int, ring: int, value: int, seconds: float) -> None:
        """Writes a sample to a ring, and then the number of samples, which makes the sample visible to the scheduler."""
        ticks = min(round(seconds / _TICK_S), (1 << _TICK_BITS) - 1)
        n = self._memory.words[self._first + head]
        self._set(ring + n % RING, min(value, (1 << _VALUE_BITS) - 1) << _TICK_BITS | ticks)
        self._set(head, n + 1)

    def leave(self) -> None:
        self.set_pools([])
        self._set(_STATE, NONE)
        self._set(_RANK_PID, 0)
        self._has_left = True


def open_page(engine_id: object, rank: int, world_size: int, digest: int) -> RankPage | None:
    """Opens the page of the engine of which this process is a rank. Returns None if there is no page yet. Raises PageError if there is a page that
    cannot be used. If the page can be used but the rank's facts differ from the scheduler's, the refusal is written to the page first."""
    parent = multiprocessing.parent_process()
    for pid in dict.fromkeys((os.getpid(), *((parent.pid,) if parent is not None else ()), os.getppid())):
        try:
            path = path_of(pid or 0, engine_id)
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            continue
        except (OSError, ValueError, IndexError) as e:
            if isinstance(e, OSError) and e.errno in (errno.ENOENT, errno.ESRCH):
                continue
            raise PageError(f"the engine's page for process {pid} cannot be opened: {e}") from e
        try:
            return _joined(_checked(fd, path, pid or 0, world_size), rank, digest)
        finally:
            os.close(fd)
    return None


def _checked(fd: int, path: str, pid: int, world_size: int) -> _Words:
    st = os.fstat(fd)
    if not stat.S_ISREG(st.st_mode):
        raise PageError(f"{path} is not a regular file, so it is no engine's page: remove it")
    if st.st_uid != os.geteuid() or st.st_mode & 0o077:
        raise PageError(f"{path} belongs to user {st.st_uid} with mode {st.st_mode & 0o777:o}, but must belong to user {os.geteuid()} with mode "
                        "600: run scheduler and ranks as one user, or remove the file if no engine uses it")
    if st.st_size != bytes_of(world_size):
        raise PageError(f"{path} has {st.st_size} bytes, but the page of an engine of {world_size} GPUs has {bytes_of(world_size)}: scheduler and "
                        "ranks must have the same parallel sizes and the same version of kvcache")
    memory = _Words(fd, st.st_size)
    said = list(memory.words[:_IN_USE])
    if said[_MAGIC] != MAGIC or said[_VERSION] != VERSION:
        raise PageError(f"{path} is not a page of this version of kvcache: install the same version for scheduler and ranks")
    if said[_WORLD] != world_size:
        raise PageError(f"{path} is the page of an engine of {said[_WORLD]} GPUs, but this rank's engine has {world_size}: scheduler and "
                        "ranks must have the same parallel sizes")
    if said[_PID] != pid or said[_START] != delivery.started(pid):
        raise PageError(f"{path} is not the page of the running process {pid}: remove it if no engine uses it")
    return memory


def _joined(memory: _Words, rank: int, digest: int) -> RankPage:
    """Claims the rank's area of the page. Raises PageError if another living process has the area, or if the rank's facts differ from the
    scheduler's."""
    owner = memory.words[HEADER_WORDS + rank * RANK_WORDS + _RANK_PID]
    if owner not in (0, os.getpid()) and _is_alive(owner):
        raise PageError(f"process {owner} is rank {rank} of this engine already: give each engine its own engine_id")
    page = RankPage(memory, rank)
    page._set(_RANK_PID, os.getpid())
    if memory.words[_DIGEST] != digest:
        why = "model, dtype, blocks_per_chunk, parallel sizes or kvcache_namespace differ between its process and the scheduler's"
        page.refuse(why)
        raise PageError(f"rank {rank} does not take part: {why}")
    return page


def _is_alive(pid: int) -> bool:
    try:
        delivery.started(pid)
    except (OSError, ValueError, IndexError):
        return False
    return True


class Seat:
    """A rank's access to its engine's page, which may not exist yet. `opened` is called with the page whenever the rank begins to take
    part: when the page is found, and after a refusal has ended."""

    def __init__(self, engine_id: object, rank: int, world_size: int, digest: int, opened: Callable[[RankPage], None]) -> None:
        self._open: Callable[[], RankPage | None] = lambda: open_page(engine_id, rank, world_size, digest)
        self._opened = opened
        self.page: RankPage | None = None
        self.has_failed = False
        self._refusal = ""

    def refuse(self, why: str) -> None:
        """Publishes in the page why the rank does not take part, as soon as the page is found. An empty text means that the rank takes part."""
        if why != self._refusal:
            self._refusal = why
            if self.page is not None:
                self._publish(self.page)

    def _publish(self, page: RankPage) -> None:
        if self._refusal:
            page.refuse(self._refusal)
        else:
            self._opened(page)

    def poll(self, pools: Callable[[], list[int]] | None = None) -> RankPage | None:
        """Returns the page, or None if it is not found yet or cannot be used. `pools`: returns the pools that this rank can copy from. The pools
        are published before the rank takes part, because the scheduler may answer hits from then on."""
        if self.page is None and not self.has_failed:
            try:
                page = self._open()
            except (PageError, OSError, ValueError) as e:
                self.has_failed = True
                log.error("this rank cannot use the engine's page in /dev/shm, so the engine runs without a cache: %s", e)
                return None
            if page is not None:
                page.set_pools(pools() if pools else [])
                self._publish(page)
                self.page = page
        return self.page
