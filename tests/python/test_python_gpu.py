# SPDX-License-Identifier: Apache-2.0
"""kvcache._gpu against a real daemon, over the driver without a GPU: its device memory cannot be touched but by copies, and
these are late and in any order. Each test is a process of its own, because a driver stays loaded."""

import os
import re
import subprocess
import sys
import textwrap

import harness
import pytest

PRELUDE = """
import ctypes, faulthandler, hashlib, os, sys
faulthandler.enable()
import kvcache
from kvcache._gpu import CONTIGUOUS, OUTER_FIRST, Gpu, Layout
N, LAYERS, TOKENS, INNER = 24, 3, 4, 96
REGION = TOKENS * INNER * 2
cuda = ctypes.CDLL("libcuda.so.1")
context, stream = ctypes.c_void_p(), ctypes.c_void_p()
assert not cuda.cuInit(0) and not cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not cuda.cuCtxPushCurrent_v2(context) and not cuda.cuStreamCreate(ctypes.byref(stream), 1)

class Memory:
    def __init__(self, blocks, fill=None):
        self.bytes, address = 2 * blocks * REGION, ctypes.c_uint64()
        self.bases = []
        for layer in range(LAYERS):
            assert not cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(self.bytes))
            self.bases.append(address.value)
        self.layout = Layout(OUTER_FIRST, layers=LAYERS, outer=2, page_tokens=TOKENS, dtype_bytes=2, inner=INNER, blocks=blocks,
                             bases=self.bases, base_bytes=self.bytes)
        if fill:
            for base, data in zip(self.bases, fill):
                room = ctypes.create_string_buffer(data, self.bytes)
                self.copy(base, ctypes.addressof(room), True)
    def copy(self, to, source, wait):
        assert not cuda.cuMemcpyAsync(ctypes.c_uint64(to), ctypes.c_uint64(source), ctypes.c_size_t(self.bytes), stream)
        assert not wait or not cuda.cuStreamSynchronize(stream)
    def read(self):
        out = []
        for base in self.bases:
            room = ctypes.create_string_buffer(self.bytes)
            self.copy(ctypes.addressof(room), base, True)
            out.append(room.raw)
        return out

data = [hashlib.shake_256(b"layer %d" % i).digest(2 * N * REGION) for i in range(LAYERS)]
keys = [hashlib.sha256(b"%d" % i).digest() for i in range(N)]
client = kvcache.Client(sys.argv[1], timeout=60, connect_timeout=20)
ns = client.namespace("gpu", {"model": "m"})
gpu = Gpu(client)
"""


def environment(source, driver):
    env = {**os.environ, "PYTHONPATH": str(source / "client/python")}
    if driver:
        folder = harness.BUILD / "tests/gpu" / driver
        if re.search(rb"__asan_init|__tsan_init", (folder / "libcuda.so.1").read_bytes()):
            pytest.skip("the driver without a GPU is built with a sanitizer, and Python is not")
        env["LD_LIBRARY_PATH"] = str(folder)
    return env


def run(socket, text, source, driver="cuda"):
    env = environment(source, driver)
    done = subprocess.run([sys.executable, "-c", (PRELUDE if driver else "") + textwrap.dedent(text), str(socket)],
                          capture_output=True, text=True, env=env, timeout=120 * harness.slow())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_blocks_go_out_and_come_back_elsewhere(daemon, source):
    said = run(daemon.socket, """
        there = Memory(N, data)
        assert gpu.put(ns, there.layout, range(N), keys, stream=stream.value) == bytes(N), gpu.reason
        assert gpu.put(ns, there.layout, range(N), keys, stream=stream.value) == bytes([kvcache.EXISTS]) * N
        ns.evict(keys, memory_only=True)
        here = Memory(N)
        order = list(reversed(range(N)))
        assert gpu.get(ns, here.layout, order, keys, stream=stream.value) == bytes(N), gpu.reason
        for mine, theirs in zip(here.read(), data):
            for outer in (0, 1):
                for i, at in enumerate(order):
                    a, b = (outer * N + at) * REGION, (outer * N + i) * REGION
                    assert mine[a:a + REGION] == theirs[b:b + REGION]
        # the chunk on the host: layers, keys and values, tokens
        room = bytearray(LAYERS * 2 * REGION)
        assert ns.get(keys[5:6], [room]).ok
        assert bytes(room) == b"".join(d[(o * N + 5) * REGION:(o * N + 6) * REGION] for d in data for o in (0, 1))
        assert gpu.attached and gpu.detach() and gpu.detach() and not gpu.attached
        client.close()
        print("right")
        """, source)
    assert said == "right\n"
    assert daemon.status()["sessions"]["leases"] == 0


@pytest.mark.parametrize("engine, technology", [("kernel", "cuda_kernel"), ("batch", "cuda_batch"), ("plain", "cuda_copy")])
def test_the_way_of_copying_can_be_chosen(daemon, source, engine, technology):
    with daemon.client() as admin:
        admin.bench(1, "gpu")
        run(daemon.socket, f"""
            gpu = Gpu(client, engine={engine!r})
            memory, here = Memory(N, data), Memory(N)
            assert gpu.put(ns, memory.layout, range(N), keys, stream=stream.value) == bytes(N), gpu.reason
            assert gpu.get(ns, here.layout, range(N), keys, stream=stream.value) == bytes(N), gpu.reason
            assert here.read() == data
            gpu.detach()
            try:
                Gpu(client, engine="fast")
            except kvcache.ArgumentError as e:
                assert "one of auto, kernel, batch, plain, bounce, not 'fast'" in str(e), e
            else:
                raise AssertionError("an unknown way is taken")
            """, source)
        moved = {m["technology"] for m in admin.bench(2)["metrics"] if "device" in m["path"]}
    assert moved == {technology}


def test_what_was_moved_is_in_a_session(daemon, source):
    """Two puts and a get of 24 blocks, of 6 regions of 768 bytes each, use one launch of the kernel each."""
    with daemon.client() as admin:
        admin.bench(1, "gpu")
        run(daemon.socket, """
            memory, here = Memory(N, data), Memory(N)
            for _ in range(2):
                gpu.put(ns, memory.layout, range(N), keys, stream=stream.value)
            assert gpu.get(ns, here.layout, range(N), keys, stream=stream.value) == bytes(N), gpu.reason
            gpu.detach()
            """, source)
        moved = {m["path"]: m for m in admin.bench(2)["metrics"] if "device" in m["path"]}
    assert sorted(moved) == ["device_to_host", "host_to_device"]
    for path, times in ("device_to_host", 2), ("host_to_device", 1):
        m = moved[path]
        assert (m["layout"], m["technology"]) == ("layer_separate_outer_first", "cuda_kernel")
        assert (m["transfer_count"], m["total_blocks"], m["region_count"]) == (times, times * 24, times * 144)
        assert m["total_bytes"] == m["device_bytes"] == times * 144 * 768 and m["min_transfer_size"] == m["max_transfer_size"] == 144 * 768
        assert 0 < m["latency_secs"] < 10 and 0 < m["busy_secs"] < 10 and not any(m["errors"].values())


def test_the_default_stream_is_a_stream(daemon, source):
    run(daemon.socket, """
        stream = None  # of what the tests copy by themselves, too
        memory, here = Memory(N, data), Memory(N)
        assert gpu.put(ns, memory.layout, range(N), keys) == bytes(N), gpu.reason
        assert gpu.get(ns, here.layout, range(N), keys) == bytes(N), gpu.reason
        assert here.read() == data
        gpu.detach()
        """, source)


def test_more_than_may_be_leased_comes_in_parts(make_daemon, source):
    """Loads 18 MiB from memory and from disk, of which 2 MiB may be leased at a time."""
    daemon = make_daemon(settings={"limits.leased_bytes": "2MiB", "memory.pool": "128MiB"}).start()
    run(daemon.socket, """
        TOKENS, INNER = 64, 1024
        REGION = TOKENS * INNER * 2
        data = [hashlib.shake_256(b"layer %d" % i).digest(2 * N * REGION) for i in range(LAYERS)]
        memory, here = Memory(N, data), Memory(N)
        assert gpu.put(ns, memory.layout, range(N), keys, ack="written", stream=stream.value) == bytes(N), gpu.reason
        for _ in range(2):
            assert gpu.get(ns, here.layout, range(N), keys, stream=stream.value) == bytes(N), gpu.reason
            assert here.read() == data
            ns.evict(keys, memory_only=True)
        gpu.detach()
        """, source)
    assert daemon.status()["sessions"]["leases"] == 0


def test_what_is_missing_or_of_another_length_has_a_status(daemon, source):
    run(daemon.socket, """
        memory = Memory(N, data)
        ns.put(keys[1:2], [b"short"])
        assert gpu.put(ns, memory.layout, [0], keys[:1], stream=stream.value) == bytes([kvcache.OK])
        assert gpu.get(ns, memory.layout, range(3), keys[:3], stream=stream.value) == bytes([kvcache.OK, kvcache.MISMATCH, kvcache.MISS])
        for blocks, keys_, said in (([N], keys[:1], "no block"), ([0, 1], keys[:1], "2 blocks do not fit 1 keys: each key needs 1 blocks")):
            try:
                gpu.get(ns, memory.layout, blocks, keys_, stream=stream.value)
            except kvcache.ArgumentError as e:
                assert said in str(e), e
            else:
                raise SystemExit("taken")
        assert gpu.get(ns, memory.layout, [], []) == b""
        assert repr(gpu) == "<Gpu 0: attached>", gpu
        assert repr(memory.layout).startswith(f"<Layout outer-first: {LAYERS} layers x 2 x {TOKENS} tokens x {INNER} x 2 bytes, "), memory.layout
        assert repr(Layout.of_regions([(4096, 128, 64)], blocks=9)) == "<Layout of 1 regions, 9 blocks>"
        try:
            Layout(CONTIGUOUS, layers=2, outer=2, page_tokens=1, dtype_bytes=2, inner=1, blocks=1, bases=[1, 2])
        except kvcache.ArgumentError:
            pass
        gpu.detach()
        """, source)


REGIONS = """
from kvcache._gpu import NO_BLOCK
FULL, STRIDE, TAIL = 1000, 1024, 300
PADDED, BLOCK = N * 2 * STRIDE, 2 * FULL + TAIL

class Listed(Memory):  # two padded pages a block in one tensor, and a page of another size behind it
    def __init__(self, fill):
        self.bytes, address = PADDED + N * TAIL, ctypes.c_uint64()
        assert not cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(self.bytes))
        base, = self.bases = [address.value]
        self.layout = Layout.of_regions([(base, 2 * STRIDE, FULL), (base + PADDED, TAIL, TAIL), (base + STRIDE, 2 * STRIDE, FULL)],
                                        blocks=N)
        room = ctypes.create_string_buffer(fill, self.bytes)
        self.copy(base, ctypes.addressof(room), True)

def block_of(data, i):
    at = i * 2 * STRIDE
    return data[at:at + FULL] + data[PADDED + i * TAIL:][:TAIL] + data[at + STRIDE:][:FULL]

def with_block(data, i, block):
    data, at = bytearray(data), i * 2 * STRIDE
    data[at:at + FULL], data[at + STRIDE:at + STRIDE + FULL] = block[:FULL], block[FULL + TAIL:]
    data[PADDED + i * TAIL:PADDED + (i + 1) * TAIL] = block[FULL:FULL + TAIL]
    return bytes(data)

source = hashlib.shake_256(b"listed").digest(PADDED + N * TAIL)
old = hashlib.shake_256(b"old").digest(PADDED + N * TAIL)
"""


def test_listed_regions_and_chunks_of_three_blocks(daemon, source):
    said = run(daemon.socket, REGIONS + textwrap.dedent("""
        there, here = Listed(source), Listed(old)
        assert there.layout.block_bytes == BLOCK
        assert gpu.put(ns, there.layout, range(N), keys, stream=stream.value) == bytes(N), gpu.reason
        assert gpu.get(ns, here.layout, [7, 3], keys[4:6], stream=stream.value) == bytes(2), gpu.reason
        expected = with_block(with_block(old, 7, block_of(source, 4)), 3, block_of(source, 5))
        assert here.read() == [expected]
        room = bytearray(BLOCK)
        assert ns.get(keys[9:10], [room]).ok and bytes(room) == block_of(source, 9)

        chunks = client.namespace("chunks", {"model": "m"})
        blocks = [NO_BLOCK, 11, 2, 20, 21, 22]
        assert gpu.put(chunks, there.layout, blocks, keys[:2], stream=stream.value, chunk_blocks=3) == bytes(2), gpu.reason
        room = bytearray(3 * BLOCK)
        assert chunks.get(keys[:1], [room]).ok
        assert bytes(room) == bytes(BLOCK) + block_of(source, 11) + block_of(source, 2)
        here = Listed(old)
        assert gpu.get(chunks, here.layout, [NO_BLOCK, NO_BLOCK, 5, 0, NO_BLOCK, 1], keys[:2], stream=stream.value,
                       chunk_blocks=3) == bytes(2), gpu.reason
        expected = old
        for to, block in (5, 2), (0, 20), (1, 22):
            expected = with_block(expected, to, block_of(source, block))
        assert here.read() == [expected]
        assert gpu.get(chunks, here.layout, [0, 1], keys[:1], stream=stream.value, chunk_blocks=2) == bytes([kvcache.MISMATCH])
        for blocks, chunk_blocks, said in (([0, 1], 3, "2 blocks do not fit 1 keys: each key needs 3 blocks"), ([], 0, "needs 0 blocks"),
                                           ([N, 0], 2, "no block 24"), ([NO_BLOCK], 1, "for all of its blocks")):
            try:
                gpu.get(chunks, here.layout, blocks, keys[:1], stream=stream.value, chunk_blocks=chunk_blocks)
            except kvcache.ArgumentError as e:
                assert said in str(e), e
            else:
                raise SystemExit(f"{blocks} were taken")
        assert here.read() == [expected] and gpu.detach()
        print("right")
        """), source)
    assert said == "right\n"


def test_host_memory_is_gathered_and_scattered(daemon, source):
    said = run(daemon.socket, REGIONS + textwrap.dedent("""
        def listed(memory):
            base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            return Layout.of_regions([(base, 2 * STRIDE, FULL), (base + PADDED, TAIL, TAIL), (base + STRIDE, 2 * STRIDE, FULL)], blocks=N)
        there, here = bytearray(source), bytearray(old)
        chunk = bytearray(b"x" * 3 * BLOCK)
        listed(there).gather([4, NO_BLOCK, 0], chunk)
        assert bytes(chunk) == block_of(source, 4) + bytes(BLOCK) + block_of(source, 0)
        listed(here).scatter([NO_BLOCK, NO_BLOCK, 9], bytes(chunk))
        assert bytes(here) == with_block(old, 9, block_of(source, 0))
        before = bytes(chunk)
        for blocks, room, said in (([N], chunk[:BLOCK], "none of the layout"), ([0], chunk, "1 blocks of"), ([0], bytes(BLOCK), "read-only"),
                                   ([N, NO_BLOCK, 0], chunk, "none of the layout")):
            try:
                listed(there).gather(blocks, room)
            except kvcache.ArgumentError as e:
                assert said in str(e), e
            else:
                raise SystemExit(f"{blocks} were taken")
        assert bytes(chunk) == before
        for regions, said in (([(4096, 64, 65)], "stride"), ([(4096, 64, 40), (4120, 64, 8)], "overlap"), ([], "1,024"),
                              ([(4096 + i * 64, 64 * 2000, 8) for i in range(1025)], "1,024"), ([(2**64 - 64, 64, 64)], "address space")):
            try:
                Layout.of_regions(regions, blocks=2).block_bytes
            except kvcache.ArgumentError as e:
                assert said in str(e), e
            else:
                raise SystemExit(f"{regions[:2]} were taken")
        print("right")
        """), source)
    assert said == "right\n"


def test_a_daemon_that_goes_and_comes(make_daemon, source):
    daemon = make_daemon().start()
    process = harness.spawn(
        [sys.executable, "-c", PRELUDE + textwrap.dedent("""
            memory = Memory(N, data)
            assert gpu.put(ns, memory.layout, range(N), keys, stream=stream.value) == bytes(N)
            print("put", flush=True); sys.stdin.readline()
            lost = gpu.get(ns, memory.layout, range(N), keys, stream=stream.value)
            assert not any(map(kvcache.status_ok, lost)), lost
            print("lost", flush=True); sys.stdin.readline()
            here = Memory(N)
            for _ in range(100000):
                if gpu.get(ns, here.layout, range(N), keys, stream=stream.value) == bytes(N):
                    break
            assert here.read() == data
            gpu.detach()
            print("back", flush=True)
            """), str(daemon.socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(source, "cuda"))
    assert process.stdout.readline() == "put\n", process.stderr.read()
    daemon.kill()
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "lost\n", process.stderr.read()
    daemon.start()
    out, err = process.communicate("\n", timeout=120 * harness.slow())
    assert process.returncode == 0 and out == "back\n", err


@pytest.mark.parametrize("driver", [None, "cuda-poor"])
def test_without_a_usable_driver_nothing_is_served_and_it_says_why(daemon, source, driver):
    said = run(daemon.socket, """
        import sys, kvcache
        from kvcache._gpu import CONTIGUOUS, Gpu, Layout
        client = kvcache.Client(sys.argv[1])
        ns = client.namespace("gpu", {})
        g = Gpu(client)
        layout = Layout(CONTIGUOUS, layers=1, outer=1, page_tokens=1, dtype_bytes=2, inner=64, blocks=1, bases=[4096])
        assert g.get(ns, layout, [0], [bytes(32)]) == bytes([kvcache.LOST]) and not g.attached
        assert g.put(ns, layout, [0], [bytes(32)]) == bytes([kvcache.LOST])
        assert g.detach()
        print(g.reason)
        """ if driver is None else """
        memory = Memory(N, data)
        assert gpu.get(ns, memory.layout, [0], keys[:1]) == bytes([kvcache.LOST]) and not gpu.attached
        print(gpu.reason)
        """, source, driver)
    if driver is None and "the CUDA driver cannot be loaded" not in said:
        pytest.skip("there is a CUDA driver")
    assert driver is None or "lacks cuMemHostRegister()" in said


def test_copies_of_leased_chunks_are_measured(make_daemon, source):
    """The program's figures mean nothing without a GPU; it compares bytes of each way and each size."""
    daemon = make_daemon(settings={"memory.pool": "64MiB", "limits.leased_bytes": "32MiB"}).start()
    command = [sys.executable, str(source / "tests/gpu/leased.py"), daemon.socket, "--chunks", "6", "--rounds", "1"]
    done = subprocess.run(command, env=environment(source, "cuda"), capture_output=True, text=True, timeout=120 * harness.slow())
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"pieces of \d+ KiB( +\d+\.\d\d ms, \d+\.\d GB/s){4}", done.stdout)) == 5, done.stdout
