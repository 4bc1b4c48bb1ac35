# SPDX-License-Identifier: Apache-2.0
"""AsyncClient and AsyncNamespace, a client for asyncio. Requests are submitted, and the event loop watches the client's descriptor for results.

Only the event loop's thread may use the client. AsyncClient.open() uses another thread for the first attempt to connect, which may take the
connect timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from . import _library as c
from ._arguments import ack_number, advice_number, batch_of, expected_number, return_seconds
from ._client import Client
from ._leases import Leased
from ._namespace import Namespace, reach_of
from ._region import Region
from ._results import Done
from ._errors import ClosedError
from ._memory import Batch, Keys

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

    from ._memory import KeysLike, PlacesLike


class AsyncClient:
    """A client whose requests are awaited in one event loop. `client` is the Client that it uses.

    The constructor takes the arguments of Client and may block the event loop; `await AsyncClient.open(...)` connects without blocking it.
    Cancelling a task cancels its request. The cancelled task ends when the daemon has answered or the timeout has passed; until then the request
    uses its memory."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.client = Client(*args, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._fd = -1  # the client's descriptor, which `_loop` watches; the client closes it
        self._waiting: set[asyncio.Future[Done]] = set()

    def __repr__(self) -> str:
        return f"<AsyncClient of {getattr(self, 'client', None)!r}>"

    @classmethod
    async def open(cls, *args: Any, **options: Any) -> Self:
        self = cls.__new__(cls)
        self.client = await asyncio.to_thread(Client, *args, **options)
        self._loop, self._fd, self._waiting = None, -1, set()
        return self

    def namespace(self, name: str, fingerprint: Mapping[str, object], chunk_bytes: int = 0,
                  lifetime_s: int = 0) -> AsyncNamespace:
        """Opens a namespace like Client.namespace(). Blocks the event loop for one round trip to the daemon."""
        return AsyncNamespace(self, self.client.namespace(name, fingerprint, chunk_bytes, lifetime_s))

    def register(self, memory: Buffer, fd: int | None = None, *, copy: bool = False) -> Region:
        """Registers memory like Client.register(). Blocks the event loop until the daemon has mapped the memory."""
        return self.client.register(memory, fd, copy=copy)

    def allocate(self, nbytes: int) -> Region:
        """Allocates memory like Client.allocate(). Blocks the event loop until the daemon has mapped the memory."""
        return self.client.allocate(nbytes)

    def close(self) -> None:
        """Closes the client like Client.close(). Requests that are being awaited raise ClosedError, also if `client` was closed before."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._loop = None
        self.client.close()
        for future in self._waiting:
            if not future.done():
                future.set_exception(ClosedError())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def _watch(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            fd = self.client.fileno()
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(fd)
            loop.add_reader(fd, self._readable)
            self._loop, self._fd = loop, fd
        return loop

    def _readable(self) -> None:
        for done in self.client.reap():
            future = done.tag
            if not future.done():
                future.set_result(done)

    async def _await(self, namespace: Namespace, op: int, batch: Batch | Keys, ack: int = 0,
                     parent: Buffer | None = None, timeout: float | None = None, tiers: int = 0, wait: bool = True) -> Done:
        future: asyncio.Future[Done] = self._watch().create_future()
        entries, keys = (batch.address(), 0) if isinstance(batch, Batch) else (0, batch.address())
        self.client._submit(namespace, op, batch.count, entries, keys, batch, future, ack, parent, timeout, tiers, wait)
        self._readable()  # the lookup index may have answered the request already
        self._waiting.add(future)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.done():
                self.client.cancel(future)
                await asyncio.wait([future])
            if not future.exception() and (leased := future.result().leased):
                leased.release()
            raise
        finally:
            self._waiting.discard(future)


class AsyncNamespace:
    """A Namespace whose calls are awaited. Arguments, results and errors are those of Namespace."""

    def __init__(self, client: AsyncClient, namespace: Namespace) -> None:
        self._client, self.namespace, self.name = client, namespace, namespace.name

    def __repr__(self) -> str:
        return f"<AsyncNamespace of {self.namespace!r}>"

    async def put(self, keys: Batch | KeysLike, places: PlacesLike | None = None, ack: str = "written",
                  parent: Buffer | None = None, timeout: float | None = None, return_s: int | None = None, wait: bool = True) -> Done:
        batch, expected = batch_of(keys, places, False), expected_number(return_s)
        return await self._client._await(self.namespace, c.OP_PUT, batch, ack_number(ack), parent, timeout, expected, wait)

    async def get(self, keys: Batch | KeysLike, places: PlacesLike | None = None, parent: Buffer | None = None,
                  timeout: float | None = None) -> Done:
        return await self._client._await(self.namespace, c.OP_GET_INTO, batch_of(keys, places, True), 0, parent, timeout)

    async def get_map(self, keys: KeysLike, timeout: float | None = None) -> Leased:
        leased = (await self._client._await(self.namespace, c.OP_GET, Keys(keys), timeout=timeout)).leased
        assert leased is not None
        return leased

    async def match(self, keys: KeysLike, timeout: float | None = None) -> int:
        return (await self._client._await(self.namespace, c.OP_MATCH, Keys(keys), timeout=timeout)).value

    async def reach(self, keys: KeysLike, timeout: float | None = None) -> tuple[int, int, bool]:
        done = await self._client._await(self.namespace, c.OP_MATCH, Keys(keys), timeout=timeout, tiers=c.TIER_REMOTE)
        return reach_of(done.status, done.tiers)

    async def exists(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        return (await self._client._await(self.namespace, c.OP_EXISTS, Keys(keys), timeout=timeout)).status

    async def touch(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        return (await self._client._await(self.namespace, c.OP_TOUCH, Keys(keys), timeout=timeout)).status

    async def prefetch(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        return (await self._client._await(self.namespace, c.OP_PREFETCH, Keys(keys), timeout=timeout)).status

    async def hint(self, keys: KeysLike, return_s: int = 0, timeout: float | None = None) -> bytes:
        seconds = return_seconds(return_s)
        return (await self._client._await(self.namespace, c.OP_HINT, Keys(keys), timeout=timeout, tiers=seconds)).status

    async def advise(self, keys: KeysLike, advice: str, return_s: int = 0, timeout: float | None = None, parent: Buffer | None = None) -> bytes:
        number = advice_number(advice, return_s)
        return (await self._client._await(self.namespace, c.OP_ADVISE, Keys(keys), parent=parent, timeout=timeout, tiers=number)).status

    async def pin(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        return (await self._client._await(self.namespace, c.OP_PIN, Keys(keys), timeout=timeout)).status

    async def unpin(self, keys: KeysLike, timeout: float | None = None) -> bytes:
        return (await self._client._await(self.namespace, c.OP_UNPIN, Keys(keys), timeout=timeout)).status

    async def evict(self, keys: KeysLike, memory_only: bool = False, timeout: float | None = None) -> bytes:
        tiers = c.TIER_MEMORY if memory_only else c.TIER_ALL
        return (await self._client._await(self.namespace, c.OP_EVICT, Keys(keys), timeout=timeout, tiers=tiers)).status
