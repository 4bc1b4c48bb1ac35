#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where written puts lose against fio: both in turns, with what the kernel and the daemon count meanwhile.

    written.py BUILD DIRECTORY [--also BUILD]... [--setting NAME]... [--size BYTES] [--gib N] [--rounds N]

BUILD is a build folder, or what pack.sh has made of one; --also names others, to compare them. fio comes first, at
several depths; then each round has a slice of the daemon (of each build), of fio in four ways and of a loop that asks the disk
itself in three, for each setting of the daemon (or those that are named) and of its clients. Beside the rate stand the device's
own figures, from /proc/diskstats: writes and their mean size, how many were under way while it was busy, the share of the time
that it was, the mean time of one, and flushes and theirs.
Prints the medians, and at the end the daemon's counters of the slices of each setting. Exit status 77: there is no fio."""

import argparse
import contextlib
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "bench"))

from machine import Daemon, Fio, Process, Trouble, cpu_seconds  # noqa: E402
from slices import difference  # noqa: E402

MIB, GIB = 2**20, 2**30
DEPTHS = (4, 8, 16, 32)
# Clients: their number, the chunks in flight of each, the chunks of a request, and whether the chunks are in registered memory. The disk is
# written from registered memory directly; chunks in a staging area are copied into the pool first.
CLIENTS = ((1, 32, 16, False), (1, 32, 1, False), (3, 32, 8, False), (1, 64, 16, True))
# The fio runs that alternate with the daemon's, at depth 16: the pattern, whether the buffers are in huge pages like the pool, and further
# options. Writing in order corresponds to a full store, which overwrites its slots nearly in order. A run in bursts starts 16 writes once 15
# have ended, like a client that waits for its request.
FIOS = {
    "fio, anywhere": ("randwrite", False, ()),
    "fio, anywhere, huge pages": ("randwrite", True, ()),
    "fio, in order, huge pages": ("write", True, ()),
    "fio, in bursts, huge pages": ("randwrite", True, ("--iodepth_batch=16", "--iodepth_low=1")),
}
# The loop of tests/bench/bare.c, at depth 16: the pieces of a batch, whose end it waits for, and the pieces of memory. Like fio, one variant has
# 16 pieces, which a processor's cache may hold; a pool does not fit.
LOOPS = {"loop, one by one, much memory": (256, 256), "loop, in bursts, much memory": (16, 256), "loop, in bursts, little memory": (16, 16)}
SETTINGS = {"defaults": {}, "one worker": {"io.workers": 1}, "eight workers": {"io.workers": 8},
            "pool in 4 KiB pages": {"memory.huge_pages": "off"}}
COUNTED = ("kvcache_io_operations_total", "kvcache_io_bytes_total", "kvcache_io_inflight_seconds_total", "kvcache_io_busy_seconds_total",
           "kvcache_store_writes_total", "kvcache_store_written_bytes_total", "kvcache_evictions_total", "kvcache_puts_total")


class Place:
    """Implements the interface that machine.py requires of a benchmark."""

    def __init__(self, build, directory):
        self.build = build.resolve()  # the daemon's and the clients'
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="written.", dir=directory))
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="kvb-"))
        self.running, self.settings = [], {}

    def clean_up(self):
        for daemon in list(self.running):
            daemon.stop()
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.rmtree(self.sockets, ignore_errors=True)


class Disk:
    """The device of a folder, with the kernel's counters."""

    def __init__(self, folder):
        device = os.stat(folder).st_dev
        self.number = (os.major(device), os.minor(device))

    def read(self):
        for line in open("/proc/diskstats"):
            fields = line.split()
            if (int(fields[0]), int(fields[1])) == self.number:
                n = [int(field) for field in fields[3:]] + [0] * 4
                return {"at": time.monotonic(), "writes": n[4], "bytes": n[6] * 512, "write_ms": n[7], "busy_ms": n[9],
                        "flushes": n[15], "flush_ms": n[16]}
        return None

    def since(self, before):
        after = self.read()
        if not before or not after:
            return {}
        d = {k: after[k] - before[k] for k in after}
        ms = d["at"] * 1000
        return {"kib": d["bytes"] / 1024 / max(1, d["writes"]), "depth": d["write_ms"] / max(1, d["busy_ms"]), "busy": d["busy_ms"] / ms,
                "ms": d["write_ms"] / max(1, d["writes"]), "device": d["bytes"] / d["at"] / 1e9, "flushes": d["flushes"], "flush_ms": d["flush_ms"] / max(1, d["flushes"])}


def fio_slice(disk, fio, a, rw, depth, huge=False, options=()):
    before = disk.read()
    begin = time.monotonic()
    rate, _ = fio.slice(rw, a.size, 0, int(a.gib * GIB), huge=huge, depth=depth, options=options)
    elapsed = time.monotonic() - begin
    row = disk.since(before)
    scale = elapsed * rate / (a.gib * GIB) if row else 1  # fio's start is no part of the slice
    for name in ("busy", "device"):
        if name in row:
            row[name] *= scale
    return {"rate": rate / 1e9, **row}


def bare_put(place, fio, a, batch, pieces):
    return Process([place.build / "tests/bench/measure", "bare-put", "--steps", "--huge-pages", "--file", fio.file, "--size", a.size,
                    "--batch", batch, "--region", pieces * a.size], place.work / "loop.log")


def loop_slice(disk, loop, a):
    before = disk.read()
    answer = loop.run(count=int(a.gib * GIB))
    return {"rate": answer["bytes"] / answer["seconds"] / 1e9, **disk.since(before)}


def our_slice(disk, daemon, loads, a):
    """Runs all clients at once, with `gib` GiB divided among them."""
    count = int(a.gib * GIB) // len(loads) // (16 * a.size) * 16 * a.size
    cpu = daemon.cpu_seconds()
    clients_cpu = sum(cpu_seconds(load.process.pid) for load in loads)
    stats, before, begin = daemon.stats(), disk.read(), time.monotonic()
    answers = [None] * len(loads)

    def one(i):
        answers[i] = loads[i].run(count=count)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(loads))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - begin
    row = disk.since(before)
    counted = difference(daemon.stats(), stats)
    nbytes = sum(answer["bytes"] for answer in answers)
    row |= {"rate": nbytes / elapsed / 1e9, "daemon_cpu": (daemon.cpu_seconds() - cpu) / elapsed,
            "client_cpu": (sum(cpu_seconds(load.process.pid) for load in loads) - clients_cpu) / elapsed}
    daemon.settle()
    return row, {name: counted.get(name) for name in COUNTED}


def show(title, rows):
    def middle(name, digits):
        values = [row[name] for row in rows if name in row]
        return f"{statistics.median(values):.{digits}f}" if values else "-"

    print(f"{title:44} GB/s {middle('rate', 2)} ({min(r['rate'] for r in rows):.2f}-{max(r['rate'] for r in rows):.2f}); device:"
          f" {middle('device', 2)} GB/s, {middle('kib', 0)} KiB a write, {middle('depth', 1)} under way, {middle('ms', 2)} ms each,"
          f" busy {middle('busy', 2)}, flushes {middle('flushes', 0)} of {middle('flush_ms', 1)} ms; cores: daemon {middle('daemon_cpu', 2)},"
          f" clients {middle('client_cpu', 2)}", flush=True)


def of_setting(places, disk, fio, a, name, settings, clients):
    """Starts a daemon of each build, and alternates their slices with fio's."""
    limit = int(a.gib * GIB * 2)
    pool = min(512 * MIB, limit // 4)
    with contextlib.ExitStack() as stack:
        daemons = []
        for place in places:
            daemons.append(stack.enter_context(Daemon(place, {"store.limit": limit, "memory.pool": pool, **settings})))
            daemons[-1].settle()
        first = 0
        for n, outstanding, batch, registered in clients:
            rows, counted = [[] for _ in places], [None for _ in places]
            beside = {title: [] for title in (*FIOS, *LOOPS)}
            with contextlib.ExitStack() as running:
                loops = {title: running.enter_context(bare_put(places[0], fio, a, *how)) for title, how in LOOPS.items()}
                loads = []
                for daemon in daemons:
                    loads.append([daemon.load("put", "--steps", "--size", a.size, "--batch", batch, "--outstanding", outstanding, "--first",
                                              first + i * 10**6, *(["--region", 2 * outstanding * a.size] if registered else []))
                                  for i in range(n)])
                    for load in loads[-1]:
                        running.callback(load.close)
                    our_slice(disk, daemon, loads[-1], a)
                for _ in range(a.rounds):
                    for i, daemon in enumerate(daemons):
                        row, counted[i] = our_slice(disk, daemon, loads[i], a)
                        rows[i].append(row)
                    for title, (rw, huge, options) in FIOS.items():
                        beside[title].append(fio_slice(disk, fio, a, rw, 16, huge=huge, options=options))
                    for title, loop in loops.items():
                        beside[title].append(loop_slice(disk, loop, a))
            first += n * 10**6
            for place, its in zip(places, rows):
                show(f"{name}: {n} clients, {outstanding} in requests of {batch}{', registered' * registered}, {place.build.name}", its)
            for title, its in beside.items():
                show(f"  {title}", its)
            for place, its, counts in zip(places, rows, counted):
                ratios = [f"{statistics.median(o['rate'] / f['rate'] for o, f in zip(its, side)):.2f}" for side in beside.values()]
                print(f"  {place.build.name} to these: {', '.join(ratios)}; {counts}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("build", type=pathlib.Path)
    p.add_argument("directory", type=pathlib.Path)
    p.add_argument("--also", type=pathlib.Path, action="append", default=[])
    p.add_argument("--setting", choices=SETTINGS, action="append")
    p.add_argument("--size", type=int, default=2 * MIB)
    p.add_argument("--gib", type=float, default=1.0, help="of a slice (default: %(default)s)")
    p.add_argument("--rounds", type=int, default=3)
    a = p.parse_args()
    places = [Place(build, a.directory) for build in (a.build, *a.also)]
    try:
        disk = Disk(places[0].work)
        try:
            fio = Fio(places[0], int(a.gib * GIB * 2), 16)
        except Trouble as e:
            print(f"skipped: {e}")
            return 77
        for depth in DEPTHS:
            show(f"fio randwrite, depth {depth}", [fio_slice(disk, fio, a, "randwrite", depth) for _ in range(a.rounds)])
        show("fio write, depth 16", [fio_slice(disk, fio, a, "write", 16) for _ in range(a.rounds)])
        for name in a.setting or SETTINGS:
            of_setting(places, disk, fio, a, name, SETTINGS[name], CLIENTS if name == "defaults" else CLIENTS[2:])
        return 0
    finally:
        for place in places:
            place.clean_up()


if __name__ == "__main__":
    sys.exit(main())
