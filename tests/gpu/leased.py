#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures copies of leased chunks to the GPU, by the size of their pieces: the time that a call takes its thread, and the rate of the copies.

    leased.py SOCKET [--chunks N] [--rounds N]

Chunks of 2 MiB are stored in a daemon's memory, whose limits.leased_bytes must hold them, and copied to scattered blocks of as many regions as
a chunk has pieces. Each way to copy (see enum kvcache_gpu_engine) takes its turn with each size. The bytes of a block are compared after each
way. Needs the package kvcache and a CUDA driver, and nothing else."""

import argparse
import ctypes
import hashlib
import os
import statistics
import time

import kvcache
from kvcache._gpu import Gpu, Layout

CHUNK = 2 << 20
PIECES = (16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10)
WAYS = ("auto", "bounce", "kernel", "batch")


class Device:
    """Memory of the first device, by the driver's own calls."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.context = ctypes.c_void_p()
        for result in (self.cuda.cuInit(0), self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(self.context), 0),
                       self.cuda.cuCtxPushCurrent_v2(self.context)):
            assert result == 0, f"the driver refuses: {result}"

    def allocate(self, nbytes):
        address = ctypes.c_uint64()
        assert self.cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)) == 0, "no device memory"
        return address.value

    def read(self, address, nbytes):
        room, stream = ctypes.create_string_buffer(nbytes), ctypes.c_void_p()
        assert self.cuda.cuStreamCreate(ctypes.byref(stream), 1) == 0
        assert self.cuda.cuMemcpyAsync(ctypes.c_uint64(ctypes.addressof(room)), ctypes.c_uint64(address), ctypes.c_size_t(nbytes), stream) == 0
        assert self.cuda.cuStreamSynchronize(stream) == 0
        assert self.cuda.cuStreamDestroy_v2(stream) == 0
        return room.raw


def chunk_of(number):
    return hashlib.shake_128(number.to_bytes(4, "big")).digest(1 << 10) * (CHUNK >> 10)


def measure(client, namespace, device, base, leased, chunks, way, piece, rounds):
    """Returns the milliseconds of a call, and the bytes per second of its copies; medians."""
    regions, blocks = CHUNK // piece, 2 * chunks
    layout = Layout.of_regions([(base + r * blocks * piece, piece, piece) for r in range(regions)], blocks=blocks)
    targets = [(7 * i) % blocks for i in range(chunks)] if blocks % 7 else list(range(chunks))
    pool, first = client.pool_of(leased)
    offsets = [address - first for address in leased._addresses]
    gpu = Gpu(client, 0, leased=True, explicit=True, engine=way)
    try:
        assert gpu.renew(namespace), gpu.reason
        calls, copies = [], []
        for number in range(rounds + 1):
            began = time.perf_counter()
            gpu.copy_leased(layout, targets, pool, offsets, number)
            called = time.perf_counter()
            ended = []
            while not ended:
                ended = gpu.reap_leased(10.0)
            assert [(tag, error) for tag, error, _ in ended] == [(number, 0)], ended
            if number:  # the first call makes streams and buffers
                calls.append((called - began) * 1e3)
                copies.append(ended[0][2])
        for r in range(regions):
            at = base + (r * blocks + targets[-1]) * piece
            assert device.read(at, piece) == chunk_of(chunks - 1)[r * piece:(r + 1) * piece], f"{way}, {piece}: wrong bytes in region {r}"
    finally:
        assert gpu.detach()
    seconds = statistics.median(copies)
    return statistics.median(calls), chunks * CHUNK / seconds if seconds > 0 else 0.0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("socket")
    p.add_argument("--chunks", type=int, default=330)
    p.add_argument("--rounds", type=int, default=15)
    a = p.parse_args()
    device, client = Device(), kvcache.Client(a.socket, "leased", required=True)
    namespace = client.namespace(f"leased-{os.getpid()}", {"program": "leased.py"}, CHUNK)
    keys = [b"%032d" % i for i in range(a.chunks)]
    for i, key in enumerate(keys):
        assert namespace.put([key], [chunk_of(i)], ack="accepted").status == bytes([kvcache.OK]), "a chunk was not stored"
    base = device.allocate(2 * a.chunks * CHUNK)
    with namespace.get_map(keys) as leased:
        assert all(kvcache.status_ok(s) for s in leased.status), "not all chunks could be leased: raise limits.leased_bytes"
        print(f"{a.chunks} chunks of 2 MiB     " + "".join(f"{way:>20}" for way in WAYS))
        for piece in PIECES:
            found = [measure(client, namespace, device, base, leased, a.chunks, way, piece, a.rounds) for way in WAYS]
            print(f"{f'pieces of {piece >> 10} KiB':<24}" + "".join(f"{f'{ms:.2f} ms, {rate / 1e9:.1f} GB/s':>20}" for ms, rate in found), flush=True)
    namespace.evict(keys)


main()
