# SPDX-License-Identifier: Apache-2.0
"""The client for asyncio."""

import asyncio
import inspect
import os
import time

import deadlines
import harness
import kvcache
import pytest
from harness import key_of, value_of

LENGTH = 8192
KEYS = [key_of("aio", i) for i in range(32)]
VALUES = [value_of(k, LENGTH) for k in KEYS]


def rooms(count=32):
    return [bytearray(LENGTH) for _ in range(count)]


def test_arguments_are_those_of_the_namespace():
    def arguments(of, name):
        return list(inspect.signature(getattr(of, name)).parameters)

    names = [n for n in vars(kvcache.AsyncNamespace) if not n.startswith("_") and callable(getattr(kvcache.Namespace, n, None))]
    assert "put" in names and "get" in names
    assert {n: arguments(kvcache.AsyncNamespace, n) for n in names} == {n: arguments(kvcache.Namespace, n) for n in names}


def test_requests_are_awaited(daemon):
    async def main():
        async with await kvcache.AsyncClient.open(daemon.socket) as client:
            assert repr(client) == f"<AsyncClient of {client.client!r}>" and "connected" in repr(client)
            blocks = client.namespace("test", {"model": "m"})
            assert await blocks.match(KEYS) == 0
            assert (await blocks.put(KEYS, VALUES)).ok
            room = rooms()
            assert (await blocks.get(KEYS, room)).ok and room == VALUES
            assert await blocks.match(KEYS) == 32 and set(await blocks.exists(KEYS)) == {kvcache.OK}
            with await blocks.get_map(KEYS) as leased:
                assert [bytes(v) for v in leased] == VALUES
            assert set(await blocks.touch(KEYS)) == {kvcache.OK}
            assert set(await blocks.evict(KEYS, memory_only=True)) == {kvcache.OK}
            assert set(await blocks.prefetch(KEYS)) == {kvcache.OK}
            assert set(await blocks.hint(KEYS)) == set(await blocks.hint(KEYS, 60)) == {kvcache.OK}
            assert set(await blocks.advise(KEYS, "return", 60)) == set(await blocks.advise(KEYS, "turn_end")) == {kvcache.OK}
            assert (await blocks.put(KEYS, VALUES, return_s=60)).ok
            region = client.allocate(32 * LENGTH)
            done = await blocks.get(KEYS, (region, range(0, 32 * LENGTH, LENGTH), LENGTH))
            assert done.ok and bytes(region.memory) == b"".join(VALUES)
            assert set(await blocks.evict(KEYS)) == {kvcache.OK} and await blocks.match(KEYS) == 0
            with pytest.raises(kvcache.ArgumentError):
                await blocks.get([b"short"], rooms(1))
    asyncio.run(main())


def test_many_at_once(daemon):
    async def main():
        async with kvcache.AsyncClient(daemon.socket) as client:
            blocks = client.namespace("test", {"model": "m"})
            await asyncio.gather(*[blocks.put([k], [v]) for k, v in zip(KEYS, VALUES)])

            async def one(i):
                room = rooms(1)
                assert (await blocks.get([KEYS[i]], room)).ok
                return bytes(room[0])
            assert await asyncio.gather(*[one(i) for i in range(32)] * 10) == VALUES * 10
    asyncio.run(main())


def test_the_loop_goes_on_while_the_daemon_hangs(daemon):
    async def main():
        async with kvcache.AsyncClient(daemon.socket, lookup=False) as client:
            blocks = client.namespace("test", {"model": "m"})
            await blocks.put(KEYS, VALUES)
            daemon.pause()
            try:
                task = asyncio.ensure_future(blocks.get(KEYS, rooms(), timeout=0.3))
                ticks = 0
                while not task.done():
                    await asyncio.sleep(0.01)
                    ticks += 1
                assert ticks > 0 and task.result().found == 0 and await blocks.match(KEYS, timeout=0.05) == 0
            finally:
                daemon.resume()
            room = rooms()
            assert (await blocks.get(KEYS, room)).ok and room == VALUES
    asyncio.run(main())


def test_a_cancelled_task_ends_when_its_memory_is_free(daemon):
    async def main():
        async with kvcache.AsyncClient(daemon.socket) as client:
            blocks = client.namespace("test", {"model": "m"})
            await blocks.put(KEYS, VALUES)
            daemon.pause()
            tasks = [asyncio.ensure_future(blocks.get(KEYS, rooms())) for _ in range(3)]
            tasks.append(asyncio.ensure_future(blocks.get_map(KEYS)))
            try:
                await asyncio.sleep(0.05)
                for task in tasks:
                    task.cancel()
                await asyncio.sleep(0.05)
                assert not any(t.done() for t in tasks)
            finally:
                daemon.resume()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(r, asyncio.CancelledError) for r in results) and client.client.inflight == 0
            room = rooms()
            assert (await blocks.get(KEYS, room)).ok and room == VALUES
            client.client.flush()
    asyncio.run(main())
    harness.wait_until(lambda: daemon.status()["sessions"]["leases"] == 0, "no lease is left")


def test_a_daemon_that_dies_and_comes_again(make_daemon):
    daemon = make_daemon()

    async def main():
        async with await kvcache.AsyncClient.open(daemon.socket) as client:
            blocks = client.namespace("test", {"model": "m"})
            assert (await blocks.put(KEYS, VALUES)).found == 0 and await blocks.match(KEYS) == 0
            assert list(await blocks.get_map(KEYS)) == [None] * 32
            daemon.start()

            async def until_hits():
                deadline = time.monotonic() + 20 * harness.slow()
                while not (await blocks.put(KEYS, VALUES)).ok:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.01)
            await until_hits()
            daemon.pause()
            tasks = [asyncio.ensure_future(blocks.get(KEYS, rooms())) for _ in range(4)]
            await asyncio.sleep(0.02)
            daemon.kill()
            assert [set(d.status) for d in await asyncio.gather(*tasks)] == [{kvcache.LOST}] * 4
            daemon.start()
            await until_hits()
    asyncio.run(main())


def test_closing_ends_what_is_awaited(daemon):
    async def main():
        client = kvcache.AsyncClient(daemon.socket)
        blocks = client.namespace("test", {"model": "m"})
        daemon.pause()
        try:
            task = asyncio.ensure_future(blocks.get(KEYS, rooms()))
            await asyncio.sleep(0.02)
            client.close()
            client.close()
            with pytest.raises(kvcache.ClosedError):
                await task
            with pytest.raises(kvcache.ClosedError):
                await blocks.match(KEYS)
        finally:
            daemon.resume()
    asyncio.run(main())


def test_closing_ends_what_is_awaited_after_the_inner_client_was_closed(daemon):
    async def main():
        client = kvcache.AsyncClient(daemon.socket)
        blocks = client.namespace("test", {"model": "m"})
        daemon.pause()
        try:
            task = asyncio.ensure_future(blocks.get(KEYS, rooms()))
            await asyncio.sleep(0.02)
            client.client.close()
            client.close()
            client.close()
            with pytest.raises(kvcache.ClosedError):
                await task
        finally:
            daemon.resume()
        reader, writer = os.pipe()  # has the number of a descriptor that the client closed
        readable = asyncio.Event()
        asyncio.get_running_loop().add_reader(reader, readable.set)
        os.write(writer, b"x")
        await asyncio.wait_for(readable.wait(), deadlines.PATIENT_S)
        asyncio.get_running_loop().remove_reader(reader)
        os.close(reader)
        os.close(writer)
    asyncio.run(main())


def test_one_loop_after_another(daemon):
    client = kvcache.AsyncClient(daemon.socket)

    async def main():
        blocks = client.namespace("test", {"model": "m"})
        assert (await blocks.put(KEYS, VALUES, "accepted")).ok
    asyncio.run(main())
    asyncio.run(main())
    client.close()
