#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how much a model's work slows down while blocks are loaded from the pool.

    interference.py BUILD SOCKET [SIZE [PIECE]]

A loop of matrix products of SIZE rows and columns (default: 8192), in this process and on its GPU, is timed alone and together with gets in a
loop, by default of whole blocks, or of pieces of PIECE bytes. Needs PyTorch."""

import ctypes
import pathlib
import statistics
import sys
import threading
import time

import torch

SIZE = int(sys.argv[3]) if len(sys.argv) > 3 else 8192
URGENT = 4
ENGINES = ("auto", "kernel", "batch", "plain", "bounce")
RUNS = ((4096, 2, 0, "auto"), (4096, 2, 0, "kernel"), (4096, 1, 0, "auto"), (4096, 4, 0, "auto"), (4096, 16, 0, "auto"),
        (4096, 2, URGENT, "auto"), (4096, 2, URGENT, "kernel"), (16384, 2, 0, "auto"), (16384, 2, 0, "kernel"),
        (65536, 2, 0, "auto"), (65536, 2, 0, "bounce"), (2 << 20, 2, 0, "auto"))
LOOPS, ROUNDS = max(1, round(20 * (8192 / SIZE) ** 3)), 25  # a round takes as long with each size


def products(a, b, c):
    """Returns the median seconds of a round."""
    times = []
    for _ in range(ROUNDS):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        for _ in range(LOOPS):
            torch.matmul(a, b, out=c)
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / 1000)
    return statistics.median(times)


def main():
    build, socket = sys.argv[1:3]
    library = ctypes.CDLL(str(pathlib.Path(build) / "tests/gpu/libgpu-check.so"))
    library.gpu_check_loop.restype = ctypes.c_double
    library.gpu_check_loop.argtypes = [ctypes.c_char_p, ctypes.c_uint64] + 3 * [ctypes.c_uint] + 2 * [ctypes.POINTER(ctypes.c_int)]
    torch.manual_seed(1)
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    c = torch.empty_like(a)
    products(a, b, c)
    print(f"{'matrix products beside gets':<34}{'GEMM alone':>12}{'beside':>12}{'slower':>9}{'GB/s':>8}")
    for piece, sms, flags, engine in RUNS:
        if len(sys.argv) > 4 and piece != int(sys.argv[4]):
            continue
        alone, ready, stop, rate = products(a, b, c), ctypes.c_int(0), ctypes.c_int(0), []
        thread = threading.Thread(
            target=lambda: rate.append(library.gpu_check_loop(socket.encode(), piece, sms, flags, ENGINES.index(engine), ctypes.byref(ready),
                                                              ctypes.byref(stop))))
        thread.start()
        while not ready.value and thread.is_alive():  # the thread attaches and puts its blocks first
            time.sleep(0.01)
        beside = products(a, b, c)
        stop.value = 1
        thread.join()
        print(f"{f'{piece >> 10} KiB, {engine}, {sms} SMs' + (', urgent' if flags & URGENT else ''):<34}{alone * 1000:>9.2f} ms{beside * 1000:>9.2f} ms"
              f"{(beside / alone - 1) * 100:>7.1f} %{rate[0]:>8.1f}", flush=True)


main()
