# SPDX-License-Identifier: Apache-2.0
"""Link, the connections of an adapter to the daemon, with their health and their counters. Used by the adapters of SGLang and LMCache.

The engine calls from several threads, which look up, load and store pages. Each kind of call has a connection of its own, so that no thread
waits for another thread's request; searches of the shared tier have a connection, too. Link records whether the daemon is `well`: the first
call that finds the daemon hung or disconnected marks the daemon unwell, and from then on no call is sent. A background thread, the mender,
connects and probes until the daemon answers again.

The memory of SGLang's host pool is registered with the connection that stores, so that the daemon reads pages in place. With `into`, loads into
registered memory use this connection, too, and the daemon writes the pages. If such a load exceeds its deadline, it returns only when the daemon
can no longer write to the pages. A store returns only when the daemon no longer reads its pages. close() waits for these loads and for stores.
For all other loads the calling thread copies the pages out of the daemon's memory, and the call returns at its deadline.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import LOST, PENDING, Batch, Client, Done, Error, Keys, Namespace, Region
from ..engine import private

SHARE_ADVICE = 'the option "allocator": "shm" makes a host pool that can be mapped'

LOOKUP_S = 0.25     # timeout of a lookup that the lookup index does not answer
SEARCH_S = 0.1      # time limit of a search of the shared tier
POLL_S = 0.002      # interval between requests for the result of a search
PROBE_S = 1.0       # timeout of each request of the mender
REAP_S = 1.0        # longest wait in one call of Client.reap() by the thread that reaps for all (Exchange)
MEND_S = 0.25       # interval between probes of the mender
RETRY_S = 10.0      # interval between attempts to register memory that the daemon has refused
LATE_S = 60.0       # time after a request's timeout within which its reply may arrive; systemd ends a daemon that hangs after 30 s
SETTLE_S = 0.02     # interval between checks whether the daemon can still reach a page
CLOSE_S = 60.0      # longest wait of close() for pages that the daemon may write to or read
COMPLAIN_S = 60.0   # interval after which the same warning is logged again
MOST_ROUND_BYTES = 64 << 20  # most bytes of a round, but at least one page; a sixteenth of the daemon's pool if this is less
INTO_ROUND_BYTES = 256 << 20  # most bytes of a round whose pages the daemon writes without its pool, but at least one page

COUNTERS = ("lookups", "hits", "unavailable", "remote_hits", "loaded_pages", "loaded_bytes", "loaded_remote_bytes", "failed_loads",
            "copied_loads", "wrong_lengths", "stored_pages", "stored_bytes", "copied_stores", "failed_stores", "timeouts", "errors")


class Spaces:
    """A namespace, opened over each connection: `lookups`, `searches`, `stores`, and `loaders`, one for each connection that loads. `loads` is the
    first of the loaders."""

    def __init__(self, lookups: Namespace, searches: Namespace, loaders: Sequence[Namespace], stores: Namespace) -> None:
        self.lookups, self.searches, self.loaders, self.loads, self.stores = lookups, searches, loaders, loaders[0], stores


class Exchange:
    """Shares one client among several threads. Their requests are in flight at the same time, and one of the waiting threads reaps for all."""

    def __init__(self, client: Client) -> None:
        self._client, self._numbers = client, itertools.count(1)
        self._changed = threading.Condition()
        self._done: dict[int, Done] = {}
        self._is_reaping = False

    def call(self, submit: Callable[[int], None]) -> Done:
        """Calls `submit` with a new tag to submit a request, and waits. Returns the request's Done. Raises Error if no Done can arrive for it."""
        tag = next(self._numbers)
        submit(tag)
        with self._changed:
            while tag not in self._done:
                if self._is_reaping:
                    self._changed.wait()
                else:
                    self._reap(tag)
            return self._done.pop(tag)

    def _reap(self, tag: int) -> None:
        """Reaps results for all threads, and wakes the threads. Releases the condition's lock, which the caller holds, while it waits."""
        self._is_reaping = True
        self._changed.release()
        done: list[Done] = []
        try:
            done = self._client.reap(REAP_S)
            idle = not done and not self._client.inflight
        finally:
            self._changed.acquire()
            self._is_reaping = False
            self._done.update((d.tag, d) for d in done)
            self._changed.notify_all()
        if idle and tag not in self._done:
            raise Error(errno.ENOTCONN, "the request ended without a result, because the connection was closed")


class Link:
    """The connections of one adapter to the daemon.

    `engine`: part of the names of the connections and of the logger. `share_advice`: hint for the log how the engine's memory can be registered.
    `remote`: use the shared tier. `threads`: number of threads that load, each over its own connection, and of threads that store over one
    connection. `into`: the daemon writes loaded pages directly to registered memory, over the connection that stores."""

    def __init__(self, socket: str | None, timeout_s: float, engine: str = "sglang", share_advice: str = SHARE_ADVICE,
                 remote: bool = True, threads: int = 1, into: bool = False) -> None:
        self.timeout_s, self.into = timeout_s, into
        self._moving = 0  # number of calls whose pages the daemon may write to or read
        self._moved = threading.Condition()
        self._log, self._share_advice = logging.getLogger(f"kvcache.{engine}"), share_advice
        self.round_bytes, self.into_bytes = MOST_ROUND_BYTES, INTO_ROUND_BYTES
        self.largest_part = 0  # bytes of the longest chunk in which SGLang's adapter stores a page; 0: unknown
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._counting = threading.Lock()
        self.lookups, self.searches, self.stores, *self.loaders = (
            Client(socket, f"{engine} {what}", timeout=timeout_s, connect_timeout=0.2)
            for what in ("lookup", "search", "store", *["load"] * threads))
        self.loads = self.loaders[0]
        self._exchange = Exchange(self.stores) if threads > 1 or into else None
        self._remote = remote
        self.has_remote = False  # the daemon has a shared tier, which this adapter uses
        self._searched = -math.inf  # time.monotonic() at which the last call of reach_now() ended
        self._regions: list[tuple[int, int, Region]] = []  # first address, end and region of memory that was passed to share()
        self._probed: Spaces | None = None
        self._opened: list[tuple[Namespace, dict[str, str]]] = []
        self._well = False
        self._late: dict[Client, float] = {}  # by connection, time.monotonic() until which replies may arrive for requests that timed out
        self._closing, self._kick = threading.Event(), threading.Event()
        self._complaints: dict[str, float] = {}
        self._copied = ""  # the reason for copying that was logged last
        self._mending = threading.Lock()
        self._mender = threading.Thread(target=self._mend, name="kvcache-mender", daemon=True)
        self._mender.start()

    # --- counters and complaints ---

    def count(self, name: str, n: int = 1) -> None:
        with self._counting:
            self.counters[name] += n

    def complain(self, why: str) -> None:
        """Logs a warning, at most once a minute for each reason; sooner only after more than 64 other reasons."""
        now = time.monotonic()
        if now >= self._complaints.get(why, 0.0):
            if len(self._complaints) > 64:
                self._complaints.clear()
            self._complaints[why] = now + COMPLAIN_S
            self._log.warning("%s", why)

    # --- searches of the shared tier ---

    def reach(self, spaces: Spaces, names: Sequence[bytes], until: float) -> int:
        """Searches the shared tier. Returns how many leading keys of `names` this host and the shared tier have together, as far as the daemon knows
        at the time `until`; 0 while the daemon does not work. Asks a working daemon at least once. The daemon continues the search afterwards,
        and a later lookup gets its result."""
        keys, found = Keys(names), 0
        while self._well:
            asked = time.monotonic()
            try:
                _, found, final = spaces.searches.reach(keys, timeout=LOOKUP_S)
            except Error as e:  # another thread closes the link
                self.ail(str(e))
                return 0
            now = time.monotonic()
            if not self.searches.connected:
                self.ail(self.searches.error)
            elif not final and now - asked >= LOOKUP_S:
                self.ail("the daemon does not answer a search of the shared tier")
            if final or now >= until:
                break
            self._closing.wait(POLL_S)
        return found

    def reach_now(self, spaces: Spaces, names: Sequence[bytes]) -> int:
        """Calls reach() with a limit of SEARCH_S, or of the time since the last search ended if this is shorter. SGLang queues its lookups.
        If lookups arrive faster than searches end, waiting for each search would delay all later lookups. Only a daemon that hangs makes
        the call exceed the limit, by at most LOOKUP_S."""
        now = time.monotonic()
        found = self.reach(spaces, names, now + min(SEARCH_S, now - self._searched))
        self._searched = time.monotonic()
        return found

    # --- namespaces, memory ---

    def namespace(self, name: str, fields: dict[str, str], chunk_bytes: int) -> Spaces:
        """Opens a namespace over all connections. The connection that searches is first, because no thread of the engine waits for it. If the daemon
        does not answer on this connection, the other connections open the namespace with their first request, because waiting for the daemon on
        each of them would take a multiple of the timeout."""
        first = self.searches.namespace(name, fields, chunk_bytes)
        if not first.is_open:
            self.ail(self.searches.error or f"the daemon has not opened the namespace {name}")
        lookups, stores, *loaders = (
            c.namespace(name, fields, chunk_bytes) if first.is_open else Namespace(c, name, fields, chunk_bytes)
            for c in (self.lookups, self.stores, *self.loaders))
        spaces = Spaces(lookups, first, loaders, stores)
        self._probed = self._probed or spaces
        self._opened.append((spaces.stores, fields))
        return spaces

    def share(self, memory: Any, address: int, nbytes: int) -> None:
        """Registers the engine's memory with the daemon. If the memory cannot be registered, pages are copied, and the reason is logged once the
        daemon is well."""
        self._regions.append((address, address + nbytes, self.stores.register(memory, copy=True)))

    def begin(self) -> None:
        """Probes the daemon once, so that the first call can use it, and wakes the mender."""
        self._mend_once()
        self._kick.set()

    # --- requests that move pages, and the memory that they use ---

    def put(self, spaces: Spaces, batch: Batch, ack: str, parent: bytes | None) -> Done:
        """Stores a batch, and waits for the answer. With the acknowledgement "accepted", the daemon waits neither for room in its pool,
        without which it answers BUSY, nor for a disk that is behind."""
        wait = ack != "accepted"
        if self._exchange is None:
            return spaces.stores.put(batch, ack=ack, parent=parent, timeout=self.timeout_s, wait=wait)
        return self._exchange.call(lambda tag: spaces.stores.submit_put(batch, ack=ack, parent=parent, tag=tag, timeout=self.timeout_s,
                                                                        wait=wait))

    def get_into(self, spaces: Spaces, batch: Batch, parent: bytes | None, timeout: float) -> Done:
        """Makes the daemon write the chunks of a batch to registered memory, and waits for the answer."""
        assert self._exchange is not None
        return self._exchange.call(lambda tag: spaces.stores.submit_get(batch, parent=parent, tag=tag, timeout=timeout))

    @staticmethod
    def release(client: Client) -> None:
        """Sends the release of the leases of a load that has been copied. Otherwise the release would wait for the next request of the connection,
        and the daemon could not evict the chunks until then."""
        with contextlib.suppress(Error):  # raised if the client is closed, which ends the leases, too
            client.flush()

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """Returns a context manager for calls during which the daemon may write to the pages of a load, or read those of a store. close() waits
        until all such contexts have ended before it closes the connection that stores."""
        with self._moved:
            self._moving += 1
        try:
            yield
        finally:
            with self._moved:
                self._moving -= 1
                self._moved.notify_all()

    def is_shared(self, address: int, nbytes: int) -> bool:
        """Returns whether these bytes are registered with the daemon, so that it accesses them in place."""
        return any(start <= address and address + nbytes <= end and region.registered for start, end, region in self._regions)

    def is_settled(self, address: int, nbytes: int) -> bool:
        """Returns whether the daemon can no longer access these bytes."""
        for start, end, region in self._regions:
            if start <= address and address + nbytes <= end:
                return region.settled(address - start, nbytes)
        return True

    def settle(self, places: list[tuple[int, int]], is_load: bool = False) -> None:
        """Waits until the daemon can no longer access these ranges of memory (address, bytes), because the engine reuses them next. Without
        this, a daemon that hung could later store the new bytes under the old key, or overwrite them with an old load. close() waits for this,
        too, for at most CLOSE_S. An Error of the client ends the wait."""
        complain_at = time.monotonic() + 5.0
        while places:
            try:
                places = [p for p in places if not self.is_settled(*p)]
            except Error as e:
                self.ail(str(e))
                return
            if places:
                if time.monotonic() > complain_at:
                    complain_at += COMPLAIN_S
                    self._log.warning("the daemon hangs and may still %s %d pieces of pages, so the %s waits until the daemon continues or ends: "
                                      "see kvcachectl doctor, or restart the daemon", "write to" if is_load else "read", len(places),
                                      "load" if is_load else "store")
                time.sleep(SETTLE_S)

    # --- the health of the daemon ---

    @property
    def well(self) -> bool:
        return self._well

    def ail(self, why: str) -> None:
        if self._well:
            self._well = False
            self._log.warning("nothing is loaded or stored until the daemon works again: %s (see kvcachectl doctor)", why)
        self._kick.set()

    def heard(self, client: Client, done: Done) -> None:
        """Evaluates the result of a request over a connection, and marks the daemon unwell if the request was lost or timed out."""
        if PENDING in done.status or done.error == errno.ETIMEDOUT:
            self.count("timeouts")
            with self._counting:
                self._late[client] = time.monotonic() + LATE_S
            self.ail(f"the daemon has not answered within {self.timeout_s:g} s")
        elif LOST in done.status or not client.connected:
            self.ail(client.error or "the daemon closed the connection")
        elif done.error:
            self.complain(f"a request failed, so its pages are not found or not stored: {done.reason}")

    def _probe(self) -> str:
        """Returns why the daemon does not work, or an empty string if the daemon works. Gets a random key over the connection for lookups,
        the one for stores and the first one for loads, and into each region, which registers the engine's memory with a restarted daemon
        before a page needs it. Sets `round_bytes` and `has_remote` from the daemon's answers."""
        spaces = self._probed
        if spaces is None:
            return "the engine has not registered its memory yet"
        self._share_again()
        probes: list[tuple[Client, Namespace, Any]] = [(c, n, [bytearray(64)]) for c, n in (
            (self.lookups, spaces.lookups), (self.loads, spaces.loads), (self.stores, spaces.stores))]
        # These gets miss, so they do not change the memory.
        probes += [(self.stores, spaces.stores, (region, [0], 1)) for _, _, region in self._regions if region.registered]
        for client, space, place in probes:
            done = space.get([os.urandom(32)], place, timeout=PROBE_S)
            if not client.connected or done.status[0] in (PENDING, LOST):
                return client.error or done.reason or "the daemon does not answer"
            if done.error:
                return done.reason
        info = self.lookups.info()
        for _ in range(20):  # until the lookup index exists, which answers without a message
            if info is None or info.lookup_bytes:
                break
            spaces.lookups.exists([os.urandom(32)], timeout=LOOKUP_S)
            self._closing.wait(0.005)
            info = self.lookups.info()
        if info is None:
            return self.lookups.error or "no daemon"
        if info.max_chunk_bytes < self.largest_part:
            return (f"a page is stored in chunks of {self.largest_part} bytes, but the daemon accepts at most {info.max_chunk_bytes}: "
                    "set part_bytes to that number")
        self.round_bytes = max(4096, min(MOST_ROUND_BYTES, info.pool_bytes // 16))
        if self._remote:
            status = self.lookups.status()
            self.has_remote = (status or {}).get("remote", {}).get("backend", "off") != "off"
            if self.has_remote:  # opens the connection for searches now, for which the first search would otherwise wait
                spaces.searches.match([os.urandom(32)], timeout=LOOKUP_S)
        return ""

    def _refused(self) -> list[Region]:
        return [region for _, _, region in self._regions if region.refused]

    def _share_again(self) -> None:
        """Tries again to register memory that the daemon has refused, because its limits may have been raised."""
        with contextlib.suppress(Error):
            for region in self._refused():
                region.retry()

    def _release_late(self) -> None:
        """Receives replies to requests that timed out, and releases the leases that replies to loads bring. Otherwise the next request of
        the connection would do so, and a connection may be idle for hours."""
        with self._counting:
            late = list(self._late.items())
        for client, until in late:
            self.release(client)  # receives the replies
            self.release(client)  # sends the releases of their leases
            with self._counting:
                if time.monotonic() > until and self._late.get(client) == until:
                    del self._late[client]

    def _mend(self) -> None:
        while not self._closing.is_set():
            is_idle = (self._well or self._probed is None) and not self._late
            self._kick.wait(MEND_S if not is_idle else RETRY_S if self._refused() else None)
            self._kick.clear()
            if not self._closing.is_set() and self._well:
                self._share_again()
            if not self._closing.is_set() and self._late:
                self._release_late()
            if not self._closing.is_set() and not self._well and self._probed is not None:
                self._mend_once()

    def _mend_once(self) -> None:
        try:
            with self._mending:
                why = "" if self._well else self._probe()
        except Exception as e:  # the mender must survive unknown failures
            self._log.debug("the probe of the daemon failed", exc_info=True)
            why = str(e)
        if why:
            self.complain(f"nothing is loaded or stored until the daemon works again: {why} (see kvcachectl doctor)")
        elif not self._well and not self._closing.is_set():
            if self._complaints:
                self._log.warning("the daemon answers, so pages are loaded and stored again")
            self._complaints.clear()
            self._say_what_is_copied()
            self._well = True

    def _say_what_is_copied(self) -> None:
        for start, end, region in self._regions:
            if not region.registered and region.reason != self._copied:
                self._copied = region.reason
                self._log.warning("pages are copied to the daemon, which is slower, because it cannot map %d bytes of the engine's memory (%s): %s; "
                                  "limits.registered and limits.uid_registered must exceed its size", end - start, region.reason,
                                  self._share_advice)

    def close(self) -> None:
        was_well, self._well = self._well, False
        self._closing.set()
        self._kick.set()
        self._mender.join(2 * PROBE_S + 1.0)
        for client in (self.lookups, self.searches, *self.loaders):
            client.close()
        with self._moved:
            if not self._moved.wait_for(lambda: self._moving == 0, CLOSE_S):
                self._log.error("the daemon hangs, and may still access the engine's memory for %d loads and stores: end this process before the "
                                "memory is reused", self._moving)
        for namespace, fields in self._opened if was_well else ():
            private.remove([namespace], fields)
        self.stores.close()
        self._regions.clear()
