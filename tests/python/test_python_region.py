# SPDX-License-Identifier: Apache-2.0
"""Registered memory: valid and invalid memory, the search for its file, and its state when the daemon changes."""

import ctypes
import gc
import mmap
import os
import tempfile
from multiprocessing import shared_memory

import kvcache
import pytest
from harness import key_of, value_of, wait_until

PAGE = mmap.PAGESIZE
KEYS = [key_of("region", i) for i in range(4)]
VALUES = [value_of(k, PAGE) for k in KEYS]
JOINED = b"".join(VALUES)


def memfd(nbytes):
    """Makes a memfd that cannot be sealed, as SGLang does."""
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    return fd


def registered_buffers(daemon):
    return daemon.status()["sessions"]["registered_buffers"]


def check(blocks, region):
    """Puts from the region and gets into it, in whole pages."""
    blocks.evict(KEYS)
    places = region.places(range(0, 4 * PAGE, PAGE), PAGE)
    region.memory[:4 * PAGE] = JOINED
    assert blocks.put(KEYS, places).ok
    region.memory[:4 * PAGE] = bytes(4 * PAGE)
    blocks.evict(KEYS, memory_only=True)  # from disk into the region
    assert blocks.get(KEYS, places).ok and bytes(region.memory[:4 * PAGE]) == JOINED and region.settled()


def test_memory_that_the_package_makes(client, blocks, daemon):
    region = client.allocate(4 * PAGE - 5)
    assert region.registered and len(region) == 4 * PAGE and region.reason == "" and registered_buffers(daemon) == 1
    check(blocks, region)
    region.unregister()
    region.unregister()
    assert not region.registered and registered_buffers(daemon) == 0
    region.memory[:] = JOINED  # still memory, and copied
    assert blocks.get(KEYS, (region, range(0, 4 * PAGE, PAGE), PAGE)).ok


def test_bytes_move_without_a_copy(client, blocks, daemon):
    region = client.allocate(4 * PAGE)
    before = {n: v for n, v in daemon.metrics().items() if "direct" in n or "registered" in n}
    check(blocks, region)
    after = daemon.metrics()
    assert any(after[n] > v for n, v in before.items()), before
    assert client.info().staging_bytes == 0  # every byte moved without staging memory


def test_the_file_of_a_mapping_is_found(client, blocks, daemon):
    fd = memfd(4 * PAGE)
    mapped = mmap.mmap(fd, 4 * PAGE)
    os.close(fd)  # mmap keeps a descriptor of its own
    region = client.register(mapped)
    assert region.registered
    check(blocks, region)
    with pytest.raises(BufferError):
        mapped.close()


def test_the_file_is_found_by_its_name(client, blocks):
    """LMCache has such memory: a mapping of /dev/shm whose descriptor is closed, accessed through ctypes."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        file.write(bytes(4 * PAGE))
        file.flush()
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        fd = os.open(file.name, os.O_RDWR)
        address = libc.mmap(None, 4 * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        os.close(fd)
        file.file.close()
        region = client.register((ctypes.c_char * (4 * PAGE)).from_address(address))
        assert region.registered
        check(blocks, region)


def test_shared_memory_of_multiprocessing(client, blocks):
    shared = shared_memory.SharedMemory(create=True, size=4 * PAGE)
    try:
        region = client.register(shared.buf)
        assert region.registered
        check(blocks, region)
        region.unregister()
        del region
    finally:
        shared.unlink()


def test_a_part_of_a_mapping(client, blocks, daemon):
    """The whole pages inside the memory are registered, and the partial pages at its ends are copied."""
    mapped = mmap.mmap(memfd(8 * PAGE), 8 * PAGE)
    mapped[:] = bytes(8 * PAGE)
    region = client.register(memoryview(mapped)[100:6 * PAGE])
    assert region.registered and daemon.status()["sessions"]["registered_bytes"] == 5 * PAGE
    check(blocks, region)
    other = client.register(memoryview(mapped)[6 * PAGE:])
    assert other.registered and registered_buffers(daemon) == 2


def test_a_descriptor_of_the_caller(client):
    fd, other = memfd(4 * PAGE), memfd(4 * PAGE)
    mapped = mmap.mmap(fd, 4 * PAGE)
    with pytest.raises(kvcache.RegionError) as e:
        client.register(mapped, other)
    assert "another file" in e.value.strerror
    assert client.register(mapped, fd).registered


@pytest.mark.parametrize("make, says", [
    (lambda: bytearray(16 * PAGE), "private"),
    (lambda: mmap.mmap(-1, 4 * PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), "private"),
    (lambda: memoryview(mmap.mmap(memfd(4 * PAGE), 4 * PAGE))[1:PAGE], "whole page"),
])
def test_memory_that_cannot_be_registered(client, blocks, make, says):
    with pytest.raises(kvcache.RegionError) as e:
        client.register(make())
    assert says in e.value.strerror
    memory = make()
    region = client.register(memory, copy=True)
    assert not region.registered and says in region.reason
    if len(region) >= 4 * PAGE:
        check(blocks, region)


@pytest.mark.parametrize("memory", [bytes(PAGE), bytearray(0), memoryview(bytes(PAGE))])
def test_memory_that_is_no_room(client, memory):
    with pytest.raises(kvcache.ArgumentError):
        client.register(memory)


def test_what_is_no_memory(client):
    for wrong in (5, "text", None, [bytearray(8)]):
        with pytest.raises(TypeError):
            client.register(wrong)
    for wrong in (0, -1, 1.5, "1"):
        with pytest.raises(kvcache.ArgumentError):
            client.allocate(wrong)


def test_memory_that_is_registered_already(client):
    mapped = mmap.mmap(memfd(4 * PAGE), 4 * PAGE)
    first = client.register(mapped)
    with pytest.raises(kvcache.RegionError) as e:
        client.register(mapped)
    assert "overlaps registered buffer" in e.value.strerror
    first.unregister()
    assert client.register(mapped).registered


def test_settled_is_of_the_region(client):
    region = client.allocate(PAGE)
    for offset, length in ((-1, 1), (0, PAGE + 1), (PAGE, 1), (0, 0), (0, -1), ("a", 1), (0, 1.5)):
        with pytest.raises(kvcache.ArgumentError):
            region.settled(offset, length)
    assert region.settled(1, 5)


def test_memory_beyond_the_limit_is_copied(make_daemon):
    daemon = make_daemon(settings={"limits.registered": "4MiB"}).start()
    with kvcache.Client(daemon.socket) as client:
        blocks = client.namespace("test", {})
        region = client.allocate(8 << 20)
        assert not region.registered and region.reason
        check(blocks, region)


def test_memory_is_registered_again_after_a_restart(client, blocks, daemon):
    region = client.allocate(4 * PAGE)
    check(blocks, region)
    daemon.restart(kill=True)
    wait_until(lambda: blocks.match(KEYS) == 4, "hits again")
    check(blocks, region)
    assert region.registered and registered_buffers(daemon) == 1


def test_descriptors_are_closed(daemon):
    gc.collect()  # closes the descriptors that earlier tests left in reference cycles
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with kvcache.Client(daemon.socket) as client:
            region = client.allocate(PAGE)
            client.register(mmap.mmap(-1, PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), copy=True)
            client.namespace("test", {}).put(KEYS, VALUES)
            del region
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before
