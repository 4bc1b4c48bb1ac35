# SPDX-License-Identifier: Apache-2.0
"""Putting, getting and asking through the Python package: forms of keys and places, leases, submitted requests."""

import array
import asyncio
import ctypes
import gc
import mmap
import select

import harness
import kvcache
import pytest
from harness import key_of, value_of, wait_until

LENGTH = 8192


def pairs(prefix, count, length=LENGTH):
    keys = [key_of(prefix, i) for i in range(count)]
    return keys, [value_of(k, length) for k in keys]


def rooms(count, length=LENGTH):
    return [bytearray(length) for _ in range(count)]


def test_what_is_put_is_got(blocks):
    keys, values = pairs("a", 100)
    done = blocks.put(keys, values)
    assert done.ok and done.error == 0 and done.found == 100 and list(done.lengths) == [LENGTH] * 100
    room = rooms(100)
    done = blocks.get(keys, room)
    assert done.ok and room == values and set(done.status) == {kvcache.OK}
    assert set(blocks.put(keys, values).status) == {kvcache.EXISTS}


@pytest.mark.parametrize("ack", ["accepted", "written", "durable"])
def test_acks(blocks, ack):
    keys, values = pairs(ack, 3)
    assert blocks.put(keys, values, ack).ok


def test_lookups(blocks):
    keys, values = pairs("b", 10)
    assert blocks.match(keys) == 0
    assert blocks.put(keys[:7], values[:7]).ok and blocks.put(keys[8:], values[8:]).ok
    assert blocks.match(keys) == 7
    assert blocks.exists(keys) == bytes([kvcache.OK] * 7 + [kvcache.MISS] + [kvcache.OK] * 2)
    assert blocks.tiers(keys)[0] & kvcache.TIER_DISK and blocks.tiers(keys)[7] == 0
    assert set(blocks.evict(keys[:2], memory_only=True)) == {kvcache.OK}
    assert set(blocks.tiers(keys[:2])) == {kvcache.TIER_DISK}
    assert set(blocks.prefetch(keys[:2])) == {kvcache.OK}
    assert set(blocks.hint(keys[:2])) == set(blocks.hint(keys[:2], 60)) == {kvcache.OK}
    for wrong in (-1, 1.5, 1 << 32):
        with pytest.raises(kvcache.ArgumentError, match="return_s"):
            blocks.hint(keys[:2], wrong)
    wait_until(lambda: set(blocks.tiers(keys[:2])) == {kvcache.TIER_ALL}, "the chunks are in memory")
    for advice in ("final", "tool_call", "turn_end", "pin", "unpin", "prefetch", "share"):
        assert set(blocks.advise(keys[:2], advice)) == {kvcache.OK}, advice
    assert blocks.advise(keys[6:8], "return", 60) == bytes([kvcache.OK, kvcache.MISS])
    assert set(blocks.advise(keys[:1], "demote")) == {kvcache.OK} and set(blocks.tiers(keys[:1])) == {kvcache.TIER_DISK}
    for wrong in (("return", 0), ("return", 1 << 32), ("return", 10**400), ("return", -1), ("return", float("nan")), ("final", 1), ("stay", 0),
                  ("", 0), (None, 0), ([], 0)):
        with pytest.raises(kvcache.ArgumentError):
            blocks.advise(keys[:2], *wrong)
    for wrong in (-1, 1 << 32, float("nan"), float("inf"), "60"):
        with pytest.raises(kvcache.ArgumentError, match="return_s"):
            blocks.put(keys[7:8], values[7:8], return_s=wrong)
    assert blocks.put(keys[7:8], values[7:8], return_s=600).ok and blocks.put(keys[7:8], values[7:8], return_s=0).ok
    assert set(blocks.evict(keys[7:8])) == {kvcache.OK}
    assert set(blocks.touch(keys[:2])) == {kvcache.OK} and blocks.touch(keys[7:8]) == bytes([kvcache.MISS])
    assert set(blocks.evict(keys)) == {kvcache.OK, kvcache.MISS}
    assert blocks.match(keys) == 0


def test_a_namespace_that_is_made_with_a_lifetime_forgets(client, daemon):
    keys, values = pairs("brief", 3)
    brief = client.namespace("brief", {"a": 1}, lifetime_s=1)
    with daemon.client() as c:
        assert c.namespace_stat("brief").lifetime_s == 1
    assert brief.put(keys, values).ok
    wait_until(lambda: set(brief.exists(keys)) == {kvcache.MISS}, "they have expired")
    assert brief.put(keys, values).ok, "they are put anew"
    for wrong in (-1, 1.5, 1 << 32):
        with pytest.raises(kvcache.ArgumentError, match="lifetime_s"):
            client.namespace("brief", {"a": 1}, lifetime_s=wrong)


def test_lookups_are_answered_without_the_daemon(client, blocks, daemon):
    keys, values = pairs("c", 128)
    blocks.put(keys, values)
    blocks.match(keys)  # asks for the lookup index
    wait_until(lambda: blocks.match(keys) == 128 and client.info().lookups_local, "the index is mapped")
    before = client.info().lookups_local
    assert blocks.match(kvcache.Keys(keys)) == 128 and set(blocks.exists(keys)) == {kvcache.OK}
    assert client.info().lookups_local == before + 256
    with kvcache.Client(daemon.socket, lookup=False) as other:
        assert other.namespace("test", {"model": "m", "dtype": "bf16"}).match(keys) == 128
        assert other.info().lookups_local == 0 and other.info().instance == client.info().instance


def test_gets_of_what_is_in_memory_are_answered_without_the_daemon(client, blocks):
    keys, values = pairs("local", 16)
    assert blocks.put(keys, values).ok
    room = rooms(16)

    def is_local():
        before = client.info().gets_local
        assert blocks.get(keys, room).ok and room == values
        return client.info().gets_local == before + 16

    wait_until(is_local, "the pool index is mapped")
    info = client.info()
    assert 4096 < info.pool_index_bytes < info.pool_bytes and info.pool_index_bytes % 4096 == 0
    with blocks.get_map(keys) as leased:
        assert [bytes(v) for v in leased] == values
    assert client.info().gets_local == info.gets_local + 16
    info = client.info()
    assert blocks.get(keys + [key_of("nowhere")], rooms(17)).found == 16
    assert client.info().gets_local == info.gets_local, "a request is answered as a whole or not at all"


def test_forms_of_keys(blocks):
    keys, values = pairs("d", 4)
    assert blocks.put(keys, values).ok
    joined = b"".join(keys)
    for form in (keys, tuple(keys), iter(keys), joined, bytearray(joined), memoryview(joined), array.array("B", joined),
                 [bytearray(k) for k in keys], [memoryview(k) for k in keys], kvcache.Keys(keys),
                 kvcache.Keys(kvcache.Keys(keys)),
                 (ctypes.c_ubyte * 128).from_buffer_copy(joined)):
        assert blocks.match(form) == 4
    assert blocks.match([]) == 0 and blocks.exists(b"") == b"" and blocks.put([], []).ok and len(kvcache.Keys(keys)) == 4


@pytest.mark.parametrize("keys, error", [
    ([b"short"], kvcache.ArgumentError), ([bytes(31)], kvcache.ArgumentError), ([bytes(33)], kvcache.ArgumentError),
    ([bytes(16), bytes(48)], kvcache.ArgumentError), (bytes(31), kvcache.ArgumentError), (bytes(40), kvcache.ArgumentError),
    ([memoryview(array.array("I", [0] * 32))], kvcache.ArgumentError), (memoryview(bytes(128))[::2], kvcache.ArgumentError),
    (["x" * 32], TypeError), ("x" * 32, TypeError), ([1], TypeError), (5, TypeError), (None, TypeError),
])
def test_wrong_keys(blocks, keys, error):
    for call in (blocks.match, blocks.exists, blocks.touch, blocks.prefetch, blocks.evict, blocks.get_map,
                 blocks.submit_prefetch, lambda k: blocks.put(k, [b"x"]), lambda k: blocks.get(k, [bytearray(1)])):
        with pytest.raises(error):
            call(keys)


def test_each_public_class_prints_more_than_its_address():
    classes = [value for value in map(kvcache.__dict__.get, kvcache.__all__) if isinstance(value, type)]
    assert len(classes) > 10
    assert [c.__name__ for c in classes if c.__repr__ is object.__repr__] == []


def test_what_objects_print_as(client, blocks, daemon):
    """An object prints what it is and its state in one line, without a message to the daemon."""
    keys, values = pairs("repr", 3)
    region = client.allocate(3 * LENGTH)
    assert repr(client) == f"<Client '{daemon.socket}': connected, 1 registered>"
    assert repr(blocks) == f"<Namespace 'test' of {client!r}>"
    assert repr(region).startswith(f"<Region of {len(region)} bytes, registered")
    assert repr(kvcache.Keys(keys)) == f"<Keys 3: {keys[0].hex()[:16]}...>" and repr(kvcache.Keys(b"")) == "<Keys 0>"
    assert repr(kvcache.Places(values)) == f"<Places 3: {3 * LENGTH} bytes, read-only>"
    assert repr(region.places([0, 64], 64, 2)) == "<Places 1: 128 bytes, 2 pieces each>"
    assert repr(kvcache.Batch(keys, rooms(3))) == f"<Batch 3: {3 * LENGTH} bytes>"
    done = blocks.put(keys, values)
    assert repr(done) == "<Done tag=None 3 of 3>"
    with blocks.get_map([*keys, key_of("repr", 9)]) as leased:
        assert repr(leased) == f"<Leased 3 of 4: {3 * LENGTH} bytes>"
    assert repr(leased) == "<Leased 3 of 4: released>"
    region.unregister()
    assert "copied: " in repr(region)
    client.close()
    assert repr(client) == f"<Client '{daemon.socket}': closed>" and "closed" in repr(blocks)
    for half in (kvcache.Namespace, kvcache.Region, kvcache.Keys, kvcache.Places, kvcache.Batch, kvcache.Leased):
        assert repr(half.__new__(half)).startswith(f"<{half.__name__}")  # a traceback prints it where the constructor fails


def test_an_unreachable_daemon_is_named():
    with kvcache.Client("/nonexistent/kvcache.sock") as lost:
        assert repr(lost).startswith("<Client '/nonexistent/kvcache.sock': ") and "connected" not in repr(lost).split(": ", 1)[1][:9]


def test_the_key_of_zeros_is_invalid(blocks):
    assert blocks.exists([bytes(32)]) == bytes([kvcache.INVALID])
    assert blocks.put([bytes(32)], [b"x"]).status == bytes([kvcache.INVALID])


def test_forms_of_places(client, blocks):
    keys, values = pairs("e", 6)
    anonymous = mmap.mmap(-1, LENGTH)
    anonymous[:] = values[3]
    kinds = [values[0], bytearray(values[1]), memoryview(values[2]), anonymous, array.array("Q", values[4]),
             (ctypes.c_char * LENGTH).from_buffer_copy(values[5])]
    assert blocks.put(keys, kinds).ok
    room = [bytearray(LENGTH), memoryview(bytearray(LENGTH)), mmap.mmap(-1, LENGTH), array.array("Q", bytes(LENGTH)),
            (ctypes.c_char * LENGTH)(), memoryview(bytearray(2 * LENGTH))[LENGTH:]]
    assert blocks.get(keys, room).ok
    assert [bytes(memoryview(r).cast("B")) if not isinstance(r, ctypes.Array) else r.raw for r in room] == values


class ArrayLike:
    """Stands for an array of a library without the buffer protocol."""

    def __init__(self, memory, strides=None):
        self.memory = memory
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.__array_interface__ = {"data": (address, False), "shape": (len(memory) // 4, 4), "typestr": "|u1",
                                    "strides": strides, "version": 3}


def test_array_interface(blocks):
    keys, values = pairs("f", 1)
    assert blocks.put(keys, [ArrayLike(bytearray(values[0]))]).ok
    room = ArrayLike(bytearray(LENGTH))
    assert blocks.get(keys, [room]).ok and room.memory == values[0]
    with pytest.raises(kvcache.ArgumentError):
        blocks.put(keys, [ArrayLike(bytearray(values[0]), (8, 1))])


def test_numpy_arrays(client, blocks):
    np = pytest.importorskip("numpy")
    keys, values = pairs("np", 4)
    packed = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(4, 32)
    assert blocks.put(packed, [np.frombuffer(v, dtype=np.float16).reshape(-1, 4) for v in values]).ok
    region = client.allocate(4 * LENGTH)
    assert blocks.get(packed, (region, np.arange(4) * LENGTH, LENGTH)).ok and bytes(region.memory) == b"".join(values)
    assert blocks.match(packed) == 4
    with pytest.raises(kvcache.ArgumentError):
        blocks.get(keys[:1], [np.zeros((64, 256), dtype=np.uint8)[:, ::2]])
    with blocks.get_map(keys) as leased:
        first = np.frombuffer(leased[0], dtype=np.uint8)
        assert not first.flags.writeable
    assert bytes(first) == values[0]


def test_chunks_are_pinned_and_say_what_they_cost(client, blocks):
    keys, values = pairs("cost", 2)
    assert blocks.put(kvcache.Batch(keys, values, [10, 2**32 - 1])).status == bytes([kvcache.OK] * 2)
    assert blocks.pin(keys + [key_of("none")]) == bytes([kvcache.OK] * 2 + [kvcache.MISS])
    assert blocks.unpin(keys) == bytes([kvcache.OK] * 2)


def test_wrong_places(client, blocks):
    keys, values = pairs("g", 2)
    region = client.allocate(4 * LENGTH)
    for places in ([values[0]], values * 2, (region, [0], LENGTH), (region, [0, 4 * LENGTH], LENGTH), (region, [0, -1], LENGTH),
                   (region, [0, 1], 4 * LENGTH), (region, [0, 0], 0), (region, [0, 0], -1), (region, [0, 2**70], 1),
                   (region, [0.5, 1], 1), (region, ["a", "b"], 1), [memoryview(bytearray(8))[::2]] * 2):
        with pytest.raises(kvcache.ArgumentError):
            blocks.put(keys, places)
    for places in (b"x" * 2, "xx", [1, 2], 5, None):
        with pytest.raises((TypeError, kvcache.ArgumentError)):
            blocks.put(keys, places)
    with pytest.raises(kvcache.ArgumentError):
        blocks.get(keys, values)  # bytes are read-only
    with pytest.raises(kvcache.ArgumentError):
        blocks.put(kvcache.Batch(keys, values), values)
    for costs in ([1], [1, -1], [1, 2**32]):
        with pytest.raises(kvcache.ArgumentError):
            kvcache.Batch(keys, values, costs)
    with pytest.raises(kvcache.ArgumentError):
        blocks.put(keys, values, ack="soon")
    with pytest.raises(kvcache.ArgumentError):
        blocks.put(keys, values, parent=b"short")
    for timeout in (0, -1, float("nan"), "1"):
        with pytest.raises(kvcache.ArgumentError):
            blocks.get(keys, rooms(2), timeout=timeout)
    assert blocks.match(keys) == 0


def test_a_place_that_is_too_short_is_a_status(blocks):
    keys, values = pairs("h", 2)
    blocks.put(keys, values)
    room = [bytearray(LENGTH - 1), bytearray(2 * LENGTH)]
    done = blocks.get(keys, room, timeout=1e9)
    assert done.status == bytes([kvcache.TOO_LARGE, kvcache.OK]) and not done.ok and done.found == 1
    assert room[1] == values[1] + bytes(LENGTH) and done.lengths[1] == LENGTH


def test_a_chunk_that_is_too_long_is_a_status(client, blocks):
    chunk = bytes(client.info().max_chunk_bytes + 1)
    done = blocks.put([key_of("long")], [chunk])
    assert done.status == bytes([kvcache.TOO_LARGE])


def test_a_batch_serves_any_number_of_requests(client, blocks):
    keys, values = pairs("i", 8)
    region = client.allocate(8 * LENGTH)
    batch = kvcache.Batch(keys, region.places(range(0, 8 * LENGTH, LENGTH), LENGTH))
    region.memory[:] = b"".join(values)
    assert len(batch) == 8 and blocks.put(batch, parent=key_of("root")).ok
    for _ in range(3):
        region.memory[:] = bytes(8 * LENGTH)
        assert blocks.get(batch).ok and bytes(region.memory) == b"".join(values)


def test_keys_in_pieces(client, blocks):
    """Puts and gets the bytes of a key in two places, like an engine that keeps K and V apart."""
    keys, values = pairs("j", 4)
    region, half = client.allocate(4 * LENGTH), LENGTH // 2
    offsets = [o for i in range(4) for o in (i * half, 4 * half + i * half)]
    for i, value in enumerate(values):
        region.memory[i * half:(i + 1) * half] = value[:half]
        region.memory[(4 + i) * half:(5 + i) * half] = value[half:]
    places = region.places(offsets, half, pieces=2)
    assert len(places) == 4 and blocks.put(keys, places).ok
    room = rooms(4)
    assert blocks.get(keys, room).ok and room == values
    before = bytes(region.memory)
    region.memory[:] = bytes(4 * LENGTH)
    assert blocks.get(keys, places).ok and bytes(region.memory) == before
    with pytest.raises(kvcache.ArgumentError):
        region.places(offsets[:3], half, pieces=2)


def test_accepted_puts_need_not_wait_for_a_disk_that_is_stuck(make_daemon, directory):
    switch = directory / "stuck"
    switch.touch()
    daemon = make_daemon(settings={"io.backend": "posix", "io.hang": "1h", "memory.pool": 16 << 20, "store.prewrite": "off"},
                         env={"LD_PRELOAD": harness.preload("tests/daemon/hang.so"), "HANG_SWITCH": str(switch)}).start()

    async def put_awaited(keys, values):
        async with await kvcache.AsyncClient.open(daemon.socket) as client:
            return await client.namespace("n", {"model": "m"}).put(keys, values, "accepted", wait=False)

    with kvcache.Client(daemon.socket) as client:
        blocks, length = client.namespace("n", {"model": "m"}), 1 << 16
        keys = [key_of("stuck", i) for i in range(144)]
        values = [value_of(k, length) for k in keys]
        for at in range(0, 96, 32):
            assert blocks.put(keys[at:at + 32], values[at:at + 32], "accepted", wait=False).ok
        blocks.submit_put(keys[96:128], values[96:128], "accepted", wait=False)
        assert [done.ok for done in client.reap(10 * harness.slow())] == [True]
        assert asyncio.run(put_awaited(keys[128:], values[128:])).ok
        assert blocks.match(keys) == 144 and daemon.metric("kvcache_room_waits_total") == 0
        assert daemon.metric("kvcache_put_postponed_total") > 0
        switch.unlink()


def test_a_huge_request_goes_through(client, blocks):
    keys = [key_of("huge", i) for i in range(20000)]
    one = bytes(range(64))
    assert blocks.put(keys, [one] * len(keys), "accepted").ok
    assert blocks.match(keys) == len(keys) and set(blocks.exists(keys)) == {kvcache.OK}
    done = blocks.get(keys, [bytearray(64)] * len(keys))  # through leases, which are fewer than the keys
    assert done.found > 0 and set(done.status) <= {kvcache.OK, kvcache.BUSY, kvcache.QUOTA}
    region = client.allocate(64 * len(keys))
    assert blocks.get(keys, (region, range(0, 64 * len(keys), 64), 64)).ok
    assert bytes(region.memory[:64 * len(keys)]) == one * len(keys)
    assert blocks.match([key_of("nothing")] * 500000) == 0


def test_a_buffer_in_use_cannot_be_resized(blocks):
    room = bytearray(LENGTH)
    batch = kvcache.Batch([key_of("pin")], [room])
    with pytest.raises(BufferError):
        room.extend(b"x")
    del batch
    room.extend(b"x")


# --- leases ---

def leases(daemon):
    return daemon.status()["sessions"]["leases"]


def test_leased_views(client, blocks, daemon):
    keys, values = pairs("k", 4)
    blocks.put(keys[:3], values[:3])
    with blocks.get_map(keys) as leased:
        assert len(leased) == 4 and leased.status == bytes([kvcache.OK] * 3 + [kvcache.MISS])
        assert [None if v is None else bytes(v) for v in leased] == values[:3] + [None]
        assert leased[0].readonly and leased[0] is leased[0] and bytes(leased[-2]) == values[2]
        assert list(leased.lengths[:3]) == [LENGTH] * 3
        with pytest.raises(TypeError):
            leased[0][0] = 1
        with pytest.raises(IndexError):
            leased[4]
        view = leased[1]
        assert leases(daemon) == 3
    with pytest.raises(ValueError):
        view[0]
    with pytest.raises(kvcache.ClosedError):
        leased[0]
    leased.release()
    client.flush()
    wait_until(lambda: leases(daemon) == 0, "the leases are released")


def test_what_was_derived_from_a_view_keeps_the_lease(client, blocks, daemon):
    keys, values = pairs("l", 2)
    blocks.put(keys, values)
    with blocks.get_map(keys) as leased:
        part, whole = leased[0][100:200], memoryview(leased[1])
        exported = ctypes.py_object, memoryview(leased[1]).cast("Q")
    client.flush()
    assert bytes(part) == values[0][100:200] and bytes(whole) == values[1] and leases(daemon) == 2
    del part, whole, exported
    client.flush()
    wait_until(lambda: leases(daemon) == 0, "the leases are released")


def test_a_lease_that_is_forgotten_is_released(client, blocks, daemon):
    keys, values = pairs("m", 2)
    blocks.put(keys, values)
    leased = blocks.get_map(keys)
    assert leases(daemon) == 2
    del leased
    gc.collect()
    client.flush()
    wait_until(lambda: leases(daemon) == 0, "the leases are released")


def test_a_released_lease_is_owed_until_a_message_was_sent(client, blocks, daemon):
    keys, values = pairs("owed", 2)
    blocks.put(keys, values)
    wait_until(lambda: all(blocks.tiers(keys)) and client.info().lookup_bytes, "the lookup index answers")
    leased = blocks.get_map(keys)
    del leased
    assert client.owes
    assert all(blocks.tiers(keys))  # answered without a message
    assert client.owes and leases(daemon) == 2
    client.flush()
    assert not client.owes
    wait_until(lambda: leases(daemon) == 0, "the leases are released")


def test_leased_bytes_outlive_the_client(daemon):
    client = kvcache.Client(daemon.socket)
    blocks = client.namespace("test", {})
    keys, values = pairs("n", 2)
    blocks.put(keys, values)
    leased = blocks.get_map(keys)
    view, part = leased[0], leased[1][:16]
    connections = daemon.status()["sessions"]["connections"]
    client.close()
    with pytest.raises(ValueError):
        view[0]
    assert bytes(part) == values[1][:16] and leases(daemon) == 2
    del part, leased, view
    wait_until(lambda: daemon.status()["sessions"]["connections"] == connections - 1, "the connection is closed")


def test_leased_bytes_outlive_the_daemon(client, blocks, daemon):
    keys, values = pairs("o", 2)
    blocks.put(keys, values)
    leased = blocks.get_map(keys)
    daemon.kill()
    assert bytes(leased[0]) == values[0]
    daemon.start()
    room = rooms(2)
    wait_until(lambda: blocks.get(keys, room).ok, "the daemon serves again")
    assert bytes(leased[1]) == values[1] and room == values
    leased.release()


# --- submitted requests ---

def reap_all(client, timeout=20):
    done = []
    while client.inflight:
        some = client.reap(timeout * harness.slow())
        assert some, "nothing came"
        done += some
    return done


def test_submitted_requests_come_back_with_their_tags(client, blocks):
    keys, values = pairs("p", 64)
    for i in range(16):
        blocks.submit_put(keys[4 * i:4 * i + 4], values[4 * i:4 * i + 4], "accepted", tag=("put", i))
    assert client.inflight == 16
    done = reap_all(client)
    assert {d.tag for d in done} == {("put", i) for i in range(16)} and all(d.ok for d in done)
    room = rooms(64)
    for i in range(16):
        blocks.submit_get(keys[4 * i:4 * i + 4], room[4 * i:4 * i + 4], tag=i)
    blocks.submit_get_map(keys[:2], tag="map")
    blocks.submit_hint(keys, 5, tag="hint")
    blocks.submit_prefetch(keys, tag="prefetch")
    blocks.submit_touch(keys, tag="touch")
    done = {d.tag: d for d in reap_all(client)}
    assert all(d.ok for d in done.values()) and room == values and len(done) == 20
    with done["map"].leased as leased:
        assert bytes(leased[1]) == values[1]
    assert client.reap(5) == [] and client.inflight == 0


def test_the_descriptor_says_when_to_reap(client, blocks):
    keys, values = pairs("q", 4)
    poll = select.poll()
    poll.register(client.fileno(), select.POLLIN)
    assert not poll.poll(0)
    blocks.submit_put(keys, values, tag=1)
    assert poll.poll(20000 * harness.slow())
    assert [d.tag for d in reap_all(client)] == [1]
    assert not poll.poll(0)


def test_a_batch_that_is_dropped_lives_until_it_is_reaped(client, blocks):
    keys, values = pairs("r", 32)
    blocks.submit_put(kvcache.Batch(keys, [bytearray(v) for v in values]), tag=1)
    gc.collect()
    assert all(d.ok for d in reap_all(client))
    room = rooms(32)
    assert blocks.get(keys, room).ok and room == values


def test_cancelled_requests_are_reaped(client, blocks, daemon):
    keys, values = pairs("s", 4)
    blocks.put(keys, values)
    daemon.pause()
    try:
        for i in range(200):  # more than a session has in flight: the last are still queued
            blocks.submit_get(keys, rooms(4), tag=i)
        assert client.cancel("none") == 0
        assert sum(client.cancel(i) for i in range(200)) == 200
    finally:
        daemon.resume()
    done = reap_all(client)
    assert len(done) == 200 and {s for d in done for s in d.status} <= {kvcache.OK, kvcache.CANCELLED}
    assert any(set(d.status) == {kvcache.CANCELLED} for d in done)


def test_parents_and_info(client, blocks):
    keys, values = pairs("t", 2)
    assert blocks.put(keys[:1], values[:1]).ok and blocks.put(keys[1:], values[1:], parent=keys[0]).ok
    info = client.info()
    assert info.pool_bytes >= 32 << 20 and info.max_chunk_bytes >= 1 << 20
    assert info.protocol_version >= 1 and len(info.instance) == 16


def test_statuses_have_names():
    assert kvcache.status_name(kvcache.MISS) == "miss" and kvcache.status_name(kvcache.LOST) == "lost"
    assert kvcache.status_ok(kvcache.EXISTS) and not kvcache.status_ok(kvcache.PENDING)
