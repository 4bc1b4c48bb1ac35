# SPDX-License-Identifier: Apache-2.0
"""Client, a connection of a program to the daemon of its host.

A Client owns one libkvcache handle, which it creates when a daemon first answers; from then on libkvcache reconnects automatically. The client
has one lock: calls of several threads run one after the other, and a blocking call has the lock until it is answered. Only reap() waits
without the lock.

While the daemon is unreachable, each call answers as if nothing were stored (statuses LOST, a match of 0). The client retries after a
pause, so that most calls return without an attempt to connect. The pause grows to one second, or to four times as long as the last attempt
took.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import json
import logging
import mmap
import os
import select
import threading
import time
from array import array
from collections import deque
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from . import _leases
from . import _library as c
from ._arguments import MOST_MS, milliseconds, parent_words, text, transfer_kind, whole_numbers
from ._errors import ArgumentError, ClosedError, Error, ForkedError, MismatchError, RegionError
from ._leases import Handle, Leased
from ._namespace import Namespace
from ._region import Region
from ._results import LOST_RESULT, Done, Flight, Info, NamespaceState, refuse

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

log = logging.getLogger("kvcache")

REAP_AT_ONCE = 64  # most completions that one call of libkvcache returns
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0  # pauses after attempts to connect, each twice as long as the one before; see Client._lose()


class _Entered:
    """A context manager that has the client's lock within `with`, and gives the handle, or None if no daemon has answered yet. Raises ClosedError
    if the client is closed, and ForkedError in a child of the process that made the client."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __enter__(self) -> Handle | None:
        client = self._client
        client._check_fork()
        client._lock.acquire()
        if client._closed:
            client._lock.release()
            raise ClosedError()
        return client._handle

    def __exit__(self, *exc: object) -> None:
        self._client._lock.release()


class Client:
    """A connection to the daemon of this host. While no daemon answers, lookups find nothing and puts store nothing.

    socket           path of the daemon's socket; None: $KVCACHE_SOCKET, else the usual places
    name             the client's name in the daemon's log, at most 31 bytes; None: the program's name
    staging_bytes    size of the memory through which unregistered memory is put; 0: as much as the daemon allows
    timeout          default timeout of a request in seconds; afterwards the keys without an answer are PENDING or BUSY
    connect_timeout  seconds that a call may additionally take while a daemon exists and does not answer
    populate         fault the daemon's memory in at connect rather than at the first touch
    lookup           answer match() and exists() from the lookup index, and gets of chunks in memory by the pool index; False: ask the daemon
    spin             poll for at most 50 us (2 ms with io.spin: long) before sleeping, while answers arrive within that time; needs four processors
    required         raise Error if no daemon answers now

    Any thread may call the client. Calls run one after the other, and a blocking call makes other threads wait until it is answered; reap() does
    not. After fork(), every call except close() and fileno() raises ForkedError in the child."""

    def __init__(self, socket: str | os.PathLike[str] | None = None, name: str | None = None, staging_bytes: int = 0,
                 *, timeout: float = 30.0, connect_timeout: float = 1.0, populate: bool = False, lookup: bool = True,
                 required: bool = False, spin: bool = True) -> None:
        self._closed = True
        self._handle: Handle | None = None
        self._epoll: select.epoll | None = None
        if not isinstance(staging_bytes, int) or not 0 <= staging_bytes < 2**64:
            raise ArgumentError(f"staging_bytes must be a number of bytes, 0 or more, not {staging_bytes!r}")
        texts = (text("the socket's path", socket, 4096) if socket is not None else b"",
                 text("the client's name", name, 4096)[:31] + b"\0" if name is not None else b"")
        self._texts = texts  # C strings whose addresses are in `_options`; empty for None
        flags = (c.POPULATE if populate else 0) | (0 if lookup else c.NO_LOOKUP) | (0 if spin else c.NO_SPIN)
        self._options = c.OPTIONS.pack(c.OPTIONS.size, flags, *(c.address_of(t) if t else 0 for t in texts),
                                       milliseconds(connect_timeout), milliseconds(timeout), staging_bytes)
        self._lock = threading.RLock()
        self._fork = _leases.forks
        self._regions: set[Region] = set()
        self._flights: dict[int, Flight] = {}
        self._flight_numbers = itertools.count(1)
        self._answered: deque[Done] = deque()  # results of requests that could not be sent, which reap() returns
        self._unreachable = ""  # why no daemon answers; empty if a daemon answers
        self._retry_at, self._pause_s = 0.0, FIRST_PAUSE_S  # time.monotonic() of the next attempt to connect, and the pause after it
        self._waiting = 0  # number of threads that wait in reap()
        self._epoll = select.epoll()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._event, select.EPOLLIN)
        self._closed = False
        error = self._connect()
        if error and required:
            self.close()
            raise Error(-error, self._unreachable)

    def __repr__(self) -> str:
        """Describes the connection without a message to the daemon: the socket, and whether the daemon answered the last call."""
        path = getattr(self, "_texts", (b"",))[0].rstrip(b"\0").decode(errors="replace")
        if getattr(self, "_closed", True):
            state = "closed"
        elif self._fork != _leases.forks:
            state = "of the parent process"
        else:
            state = self._unreachable or "connected"
        counts = "".join(f", {n} {what}" for n, what in ((len(getattr(self, "_regions", ())), "registered"),
                                                          (len(getattr(self, "_flights", ())), "in flight")) if n)
        return f"<Client {repr(path) if path else 'of the usual socket'}: {state}{counts}>"

    # --- end and state of the connection ---

    def close(self) -> None:
        """Closes the connection. Requests in flight end without a Done, and regions are unregistered without waiting. Leased memory that is still in
        use keeps the connection open until the last use ends. A second call does nothing."""
        if self._closed:
            return
        mine = self._fork == _leases.forks
        if not self._lock.acquire(blocking=mine):  # another thread of the parent was in a call during the fork
            return
        try:
            if self._closed:
                return
            self._closed = True
            for leased in [x for x in _leases.in_use if x._client is self]:
                leased._invalidate()
            handle, self._handle = self._handle, None
            self._flights.clear()
            for region in self._regions:
                region._forget("the client is closed")
            self._regions.clear()
            os.eventfd_write(self._event, 1)  # wakes the threads that wait in reap(); the last of them closes the descriptors
            self._close_descriptors()
            if handle is not None:
                handle.closing = True
                handle.close_if_unused()
        finally:
            self._lock.release()

    def _close_descriptors(self) -> None:
        """Closes the descriptors of a closed client, unless a thread still waits for them in poll(): another file could get the number of a
        closed descriptor. The last such thread calls this method again."""
        if self._closed and not self._waiting and self._epoll is not None:
            self._epoll.close()
            self._epoll = None
            os.close(self._event)

    def __del__(self) -> None:
        if not self._closed:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def connected(self) -> bool:
        """Returns whether the daemon answered the last call. If not, `error` gives the reason."""
        return not self._unreachable

    @property
    def error(self) -> str:
        """Returns why the daemon is unreachable, or an empty string if it is reachable."""
        return self._unreachable

    @property
    def inflight(self) -> int:
        """Returns the number of requests that were submitted and not yet reaped."""
        return len(self._flights) + len(self._answered)

    @property
    def owes(self) -> bool:
        """Returns whether releases of leased memory may still have to be sent to the daemon. The next request sends them, too, but only
        flush() makes the value False."""
        handle = self._handle
        return handle is not None and (bool(handle.returned) or handle.is_unsent)

    def info(self) -> Info | None:
        """Returns what the daemon reported at connect and this client's counters, or None if no daemon answers."""
        room = ctypes.create_string_buffer(c.INFO.pack(c.INFO.size, 0, 0, 0, 0, 0, b"", 0, 0, 0, 0), c.INFO.size)
        with self._entered():
            r = self._usable(None)
            if r == 0 and self._handle is not None:
                r = self._note(c.get_info(self._handle.kv, room))[0]
        return Info(*c.INFO.unpack(room.raw)[1:]) if r == 0 else None

    def status(self) -> dict[str, Any] | None:
        """Returns the daemon's status, with the fields that `kvcachectl status --json` prints, or None if the request fails, for example
        because no daemon answers. Sends a message, and waits for the answer for at most the client's timeout."""
        text = ctypes.c_void_p()
        with self._entered():
            r = self._usable(None)
            if r == 0 and self._handle is not None:
                r = self._note(c.report(self._handle.kv, c.REPORT_STATUS, ctypes.byref(text)))[0]
            if r or not text.value:
                return None
        try:
            status: dict[str, Any] = json.loads(ctypes.string_at(text.value))
        finally:
            c.free(text)
        return status

    # --- namespaces, memory ---

    def namespace(self, name: str, fingerprint: Mapping[str, object], chunk_bytes: int = 0,
                  lifetime_s: int = 0) -> Namespace:
        """Opens a namespace, and creates it if it does not exist.

        name         1 to 255 characters of printable ASCII
        fingerprint  all facts on which the bytes of chunks depend: model, revision, dtype, layout, tokens of a block, ranks
        chunk_bytes  size of most chunks, which are then stored without rounding loss; 0: not declared
        lifetime_s   seconds for which a chunk is found after its put, if this call creates the namespace; 0: no limit

        Raises ArgumentError for a wrong argument, and MismatchError if the namespace exists with another fingerprint. While the daemon is
        unreachable, the fingerprints are not compared; if they turn out to differ later, all statuses are MISMATCH."""
        namespace = Namespace(self, name, fingerprint, chunk_bytes, lifetime_s)
        with self._entered():
            r = self._usable(namespace)
            if r == -errno.EEXIST:
                raise MismatchError(-r, self._words())
            if r == -errno.EINVAL:
                raise ArgumentError(self._words())
        return namespace

    def namespace_state(self, name: str) -> NamespaceState | None:
        """Returns the state of the namespace of this name without opening it; no chunks, no sessions and an empty fingerprint if it does
        not exist. Returns None if the request fails: the daemon does not answer, or is too old for the request."""
        info, text = ctypes.create_string_buffer(c.NAMESPACE_INFO.size), ctypes.c_void_p()
        with self._entered():
            r = self._usable(None)
            if r == 0 and self._handle is not None:
                r = self._note(c.namespace_stat(self._handle.kv, name.encode(), None, info, len(info), ctypes.byref(text)), quiet=True)[0]
        if r == -errno.ENOENT:
            return NamespaceState(0, 0, "")
        if r:
            return None
        fingerprint = ctypes.string_at(text).decode(errors="replace") if text.value else ""
        c.free(text)
        _, _, _, sessions, chunks, *_ = c.NAMESPACE_INFO.unpack(info.raw)
        return NamespaceState(chunks, sessions, fingerprint)

    def _remove(self, namespace: Namespace) -> int:
        with self._entered():
            r = self._usable(None)
            if r == 0 and self._handle is not None:
                r = self._note(c.namespace_remove(self._handle.kv, namespace._name, None, c.PURGE, None), quiet=True)[0]
        return -r

    def register(self, memory: Buffer, fd: int | None = None, *, copy: bool = False) -> Region:
        """Registers memory with the daemon, which then reads and writes it directly.

        The memory must be a buffer over a shared mapping of a memfd, or of a file in /dev/shm or on hugetlbfs. The client searches for the
        mapping's file; pass its descriptor as `fd` if the search fails. Only the whole pages of the buffer are registered.

        Raises RegionError for other memory, for memory that overlaps a registered region, and if the client has registered 64 regions; with
        `copy`, libkvcache copies the bytes instead. If the daemon is unreachable or has no room, the region is not `registered`, its
        `reason` has the cause, and libkvcache copies the bytes, too. Raises ArgumentError for memory that is read-only or empty."""
        region = Region(self, memory, fd, copy)
        with self._entered():
            r = self._usable(None)
            if r == 0 and self._handle is not None:
                r = region._register(self._handle.kv)
            if r == -errno.EINVAL and not copy:
                raise RegionError(-r, region.reason)
            if r and not region.reason:
                region.reason = self._unreachable
            self._regions.add(region)
        return region

    def allocate(self, nbytes: int) -> Region:
        """Returns a region of `nbytes` zero bytes of new memory, rounded up to whole pages, which is registered as by register()."""
        if not isinstance(nbytes, int) or nbytes <= 0:
            raise ArgumentError(f"nbytes must be a number of bytes, 1 or more, not {nbytes!r}")
        nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        fd = os.memfd_create("kvcache-python", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, nbytes)
            return self.register(mmap.mmap(fd, nbytes), fd)
        finally:
            os.close(fd)

    # --- submitted requests ---

    def fileno(self) -> int:
        """Returns a descriptor that is readable when reap() has work. The client owns the descriptor, and keeps the same one until it is closed."""
        if self._closed or self._epoll is None:
            raise ClosedError()
        return self._epoll.fileno()

    def reap(self, timeout: float = 0.0) -> list[Done]:
        """Returns the results of completed requests, each once. Waits at most `timeout` seconds for the first one, and not at all if no request
        is in flight. Other threads may call the client meanwhile."""
        deadline = time.monotonic() + timeout
        while True:
            with self._entered() as handle:
                done = self._reap(handle)
                left = deadline - time.monotonic()
                if done or not self.inflight or left <= 0:
                    return done
                poll = select.poll()
                poll.register(self.fileno(), select.POLLIN)
                self._waiting += 1
            try:
                poll.poll(min(left * 1000 + 1, MOST_MS))
            finally:
                with self._lock:
                    self._waiting -= 1
                    self._close_descriptors()

    def cancel(self, tag: Hashable) -> int:
        """Cancels the unfinished requests with this tag, and returns their number. The keys that are not processed yet become CANCELLED.
        Each request still has a Done, and uses its memory until reap() has returned it."""
        found = 0
        with self._entered() as handle:
            for number in [n for n, flight in self._flights.items() if flight.tag == tag]:
                if handle is not None:
                    found += max(c.cancel(handle.kv, number), 0)
        return found

    def flush(self) -> None:
        """Sends releases of leased memory to the daemon now, rather than with the next request."""
        with self._entered() as handle:
            if handle is not None:
                self._give_back(handle)
                c.flush(handle.kv)
                handle.is_unsent = False

    # --- for the other modules of this package ---

    def pool_of(self, leased: Leased) -> tuple[int, int]:
        """Returns the id of the pool in which the leased chunks lie, and the address of the pool's first byte in this process. Returns (0,
        0) if no chunk was found, or the client no longer maps the pool."""
        pool, offset = ctypes.c_uint64(), ctypes.c_uint64()
        with self._entered() as handle:
            if handle is None or not leased._first or c.pool_of(handle.kv, leased._first, ctypes.byref(pool), ctypes.byref(offset)):
                return 0, 0
        return pool.value, leased._first - offset.value

    def count_transfer(self, path: str, layout: str, technology: str, *, transfers: int, nbytes: int, seconds: float,
                       blocks: int = 0, regions: int = 0, device_bytes: int = 0, result: str = "ok") -> bool:
        """Reports a transfer that the program made itself and that has just ended, for the metrics kvcache_transfer_* and the sessions of
        kvcache-bench.

        Names are those of the metrics ("host_to_device", "layer_separate_block_first", "cuda_copy"). `transfers` counts copies, and the byte
        counts are totals. Returns False if the transfer could not be counted."""
        packed = c.TRANSFER.pack(c.TRANSFER.size, *transfer_kind(path, layout, technology, result), 0,
                                 *whole_numbers(transfers=transfers, blocks=blocks, regions=regions, nbytes=nbytes,
                                                device_bytes=device_bytes, nanoseconds=round(seconds * 1e9)))
        self._check_fork()
        with self._lock:
            if self._closed:
                raise ClosedError("the client is closed")
            return self._handle is not None and c.count_transfer(self._handle.kv, packed) == 0

    def _entered(self) -> _Entered:
        return _Entered(self)

    def _check_fork(self) -> None:
        if self._fork != _leases.forks:
            raise ForkedError()

    def _words(self) -> str:
        """Returns why the last call of libkvcache failed; an empty string without a handle."""
        text: bytes = c.error(self._handle.kv) if self._handle else b""
        return text.decode(errors="replace")

    def _raised(self, r: int) -> Error:
        if r == -errno.ECHILD:
            return ForkedError()
        return ArgumentError(self._words()) if r == -errno.EINVAL else Error(-r, self._words())

    def _connect(self) -> int:
        """Connects. Returns 0 or a negative errno. The caller holds the lock."""
        kv, why = ctypes.c_void_p(), ctypes.create_string_buffer(1024)
        started = time.monotonic()
        r: int = c.connect(ctypes.byref(kv), self._options, why, len(why))
        if r < 0:
            self._lose(why.value.decode(errors="replace"), time.monotonic() - started)
            return r
        assert kv.value is not None and self._epoll is not None
        self._handle = Handle(kv.value)
        self._epoll.register(c.descriptor(kv), select.EPOLLIN)
        self._regain()
        return 0

    def _lose(self, why: str, took_s: float) -> None:
        """Records that no daemon answers. The pause before the next attempt to connect is twice as long as the last one, up to
        LONGEST_PAUSE_S, but at least four times the duration `took_s` of the failed attempt."""
        if not self._unreachable:
            log.warning("kvcache-daemon is unreachable, so nothing is found or stored until it answers: %s", why)
        self._unreachable = why or "no daemon"
        self._retry_at = time.monotonic() + max(self._pause_s, 4 * took_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _regain(self) -> None:
        if self._unreachable:
            log.warning("kvcache-daemon answers, so chunks are found and stored again")
        self._unreachable, self._retry_at, self._pause_s = "", 0.0, FIRST_PAUSE_S
        assert self._handle is not None
        for region in self._regions:
            region._register(self._handle.kv)

    def _usable(self, namespace: Namespace | None) -> int:
        """Ensures that the client has a handle and that the namespace, if it is not None, is open. Returns 0 or a negative errno. Raises
        ClosedError if the client is closed, and ArgumentError for a namespace of another client. The caller holds the lock."""
        if self._closed:
            raise ClosedError()
        handle = self._handle
        if self._retry_at and time.monotonic() < self._retry_at:
            return -errno.ENOTCONN
        if handle is None:
            if self._connect():
                return -errno.ENOTCONN
            handle = self._handle
            assert handle is not None
        if handle.returned:
            self._give_back(handle)
        if namespace is not None and not namespace._id:
            if namespace._client is not self:
                raise ArgumentError("the namespace was opened by another client: open it with this one")
            return self._note(namespace._open(handle.kv), quiet=True)[0]
        return 0

    def _note(self, r: int, quiet: bool = False) -> tuple[int, str]:
        """Evaluates the return value of a function of libkvcache, and returns it with the reason of a failure. Records whether the daemon answered.
        Raises ForkedError after a fork, and ArgumentError for EINVAL unless `quiet`: the caller then handles it. The caller holds the lock."""
        if r >= 0:
            if self._unreachable:
                self._regain()
            return r, ""
        why = self._words()
        if r == -errno.ENOTCONN:
            self._lose(why, 0.0)
        elif r == -errno.ECHILD or (r == -errno.EINVAL and not quiet):
            raise self._raised(r)
        return r, why

    def _request(self, namespace: Namespace, op: int, count: int, entries: int, keys: int, words: array[int] | None,
                 user_data: int, ack: int, tiers: int, parent: int, ms: int, wait: bool = True) -> bytes:
        """Packs a struct kvcache_request. `tiers` depends on `op`: the tiers of an evict, the return_s of a hint, advice_number() of an advise or a
        put, and for a match or an exists TIER_REMOTE or 0."""
        advice, return_s = divmod(tiers, 1 << c.ADVICE_SHIFT) if op in (c.OP_HINT, c.OP_ADVISE, c.OP_PUT) else (0, 0)
        tiers = 0 if op in (c.OP_HINT, c.OP_ADVISE, c.OP_PUT) else tiers
        flags, tiers = (c.REMOTE, 0) if tiers == c.TIER_REMOTE else (0, tiers)
        flags |= 0 if wait else c.NOWAIT
        return c.REQUEST.pack(c.REQUEST.size, 8 * c.ENTRY_WORDS, 8 * c.RESULT_WORDS, op, namespace._id, flags, ack, tiers, entries,
                              keys if count else 0, count, parent, words.buffer_info()[0] if words else 0, user_data, ms,
                              return_s, advice, 0)

    def _call(self, namespace: Namespace, op: int, count: int, entries: int, keys: int, words: array[int] | None, *,
              value: Any = None, ack: int = 0, tiers: int = 0, parent: Buffer | None = None,
              timeout: float | None = None, wait: bool = True) -> tuple[int, str]:
        """Performs a blocking request. Returns 0 or a negative errno, and the reason. `words`: the array of results, or None; each key gets
        a status there even if the request cannot be sent. `value`: a pointer to the number that a match returns, or None."""
        if self._fork != _leases.forks:
            raise ForkedError()
        ms = milliseconds(timeout) if timeout is not None else 0
        above = parent_words(parent) if parent is not None else None
        with self._lock:
            r = self._usable(namespace)
            if r:
                refuse(words, r)
                return r, self._unreachable or self._words()
            assert self._handle is not None
            request = self._request(namespace, op, count, entries, keys, words, 0, ack, tiers,
                                    above.buffer_info()[0] if above else 0, ms, wait)
            r = c.submit_and_wait(self._handle.kv, request, value)
            if r or self._unreachable:
                return self._note(r)
        return 0, ""

    def _count_declined(self, namespace: Namespace, count: int) -> bool:
        if not isinstance(count, int) or not 0 <= count < 1 << 64:
            raise ValueError(f"count must be a number of keys, not {count!r}")
        if self._fork != _leases.forks:
            raise ForkedError()
        with self._lock:
            return (self._handle is not None and namespace._id != 0
                    and c.count_declined(self._handle.kv, namespace._id, count) == 0)

    def _submit(self, namespace: Namespace, op: int, count: int, entries: int, keys: int, keep: Any, tag: Any, ack: int,
                parent: Buffer | None, timeout: float | None, tiers: int = 0, wait: bool = True) -> int:
        """Submits a request. Returns the request's number. reap() returns a Done for the request even if the request could not be sent."""
        if self._fork != _leases.forks:
            raise ForkedError()
        ms = milliseconds(timeout)
        above = parent_words(parent) if parent is not None else None
        words = LOST_RESULT * count
        number = next(self._flight_numbers)
        with self._lock:
            r = self._usable(namespace)
            why = self._unreachable or (self._words() if r else "")
            if r == 0:
                assert self._handle is not None
                request = self._request(namespace, op, count, entries, keys, words, number, ack, tiers,
                                        above.buffer_info()[0] if above else 0, ms, wait)
                self._flights[number] = Flight(tag, op, words, keep)
                r = c.submit(self._handle.kv, request)
                if r == 0 and not self._unreachable:
                    return number
                if r < 0:
                    del self._flights[number]
                r, why = self._note(r)
            if r:
                refuse(words, r)
                self._answered.append(self._done(Flight(tag, op, words, None), -r, why, 0))
                os.eventfd_write(self._event, 1)
        return number

    def _done(self, flight: Flight, error: int, why: str, value: int) -> Done:
        done = Done(flight.tag, error, why, flight.words, value)
        if flight.op == c.OP_GET:
            done.leased = Leased(self, flight.words)
        return done

    def _reap(self, handle: Handle | None) -> list[Done]:
        done: list[Done] = []
        if self._answered:
            os.eventfd_read(self._event)
            while self._answered:
                done.append(self._answered.popleft())
        n = REAP_AT_ONCE
        while handle is not None and self._flights and n == REAP_AT_ONCE:
            room = ctypes.create_string_buffer(n * c.COMPLETION.size)
            n = c.reap(handle.kv, room, c.COMPLETION.size, n, 0)
            if n < 0:
                raise self._raised(n)
            for number, value, error, _, _ in itertools.islice(c.COMPLETION.iter_unpack(room.raw), n):
                flight = self._flights.pop(number)
                done.append(self._done(flight, -error, c.reason_of(-error) if error else "", value))
        return done

    def _give_back(self, handle: Handle) -> None:
        leases = b""
        while handle.returned:
            leases += handle.returned.popleft()
        if leases:
            c.release(handle.kv, leases, len(leases) // 8)
            handle.is_unsent = True

    def _give_back_if_free(self) -> None:
        """Passes the releases of leased memory to libkvcache, which sends them with its next message. Does nothing if another thread is in
        a call; the client's next request then passes them."""
        if self._fork == _leases.forks and self._lock.acquire(blocking=False):
            try:
                if self._handle is not None and self._handle.returned:
                    self._give_back(self._handle)
            finally:
                self._lock.release()
