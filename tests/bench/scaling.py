# SPDX-License-Identifier: Apache-2.0
"""Measures how rates depend on the number of clients, workers and entries, on the size of chunks, and on the depth.

The result is tables. Each row is measured separately: medians of a few short slices, which alternate with fio's where fio applies.
"""

import shutil
import statistics

import figures
from disk import SIZES
from entries import Store, named, together
from machine import Daemon, Trouble, note_mode
from slices import Tally, in_pairs, our_slice
from volumes import measure_volumes

KIB, MIB, GIB = 2**10, 2**20, 2**30
ON_DISK = ("clients", "workers", "chunk", "entries", "iops")
TABLES = (*ON_DISK, "volumes")
ROUNDS, SLICE_S = 5, 0.4
CHAIN = 32  # keys that were put one after the other


def median(values, digits=0):
    return round(statistics.median(values), digits or None)


def megabytes(rates):
    return median([rate / 1e6 for rate in rates])


def powers(last):
    """Returns 1, 2, 4, ..., last."""
    n, numbers = 1, []
    while n < last:
        numbers.append(n)
        n *= 2
    return numbers + [last]


def fill(daemon, size, bytes_, batch=16, outstanding=64, region=0):
    """Puts chunks from number 0 on. Returns their number, and bytes per second."""
    arguments = ("--region", region) if region else ()
    with daemon.load("put", "--steps", "--size", size, "--batch", batch, "--outstanding", outstanding, *arguments) as put:
        answer = put.run(count=bytes_)
    daemon.settle()
    return answer["next"], answer["bytes"] / answer["seconds"]


def hit_rate(daemon, n_clients, arguments):
    """Returns the hits per second of this number of concurrent clients."""
    loads = []
    try:
        for seed in range(n_clients):
            loads.append(daemon.load("get", "--steps", "--tier", "memory", "--seed", seed, *arguments))
        together(loads, 0.1)
        return median([together(loads, SLICE_S)[0] for _ in range(ROUNDS)])
    finally:
        for load in loads:
            load.close()


def warm(daemon, arguments):
    with daemon.load("get", "--steps", "--tier", "any", *arguments) as get:
        get.ask("warm")


def scale_clients(bench, rows, report):
    size, limit = 64 * KIB, min(2 * GIB, shutil.disk_usage(bench.work).free // 4 // MIB * MIB)
    settings = {"store.limit": limit, "memory.pool": GIB}
    with Daemon(bench, settings) as daemon:
        note_mode(report, daemon)
        count, _ = fill(daemon, size, limit * 8 // 10)
        hits = ("--size", size, "--count", 1024, "--batch", 32, "--outstanding", 64)
        cold = ("--size", size, "--first", 1024, "--count", count - 1024, "--batch", 8, "--outstanding", 64)
        for n in powers(64):
            bench.say(f"{n} clients")
            warm(daemon, hits)
            rate = hit_rate(daemon, n, hits)
            loads = []
            try:
                for seed in range(n):
                    loads.append(daemon.load("get", "--steps", "--seed", seed, *cold))
                rates = []
                for _ in range(ROUNDS):
                    for load in loads:
                        load.tell(f"run {SLICE_S} 0")
                    answers = [load.answer() for load in loads]
                    rates.append(sum(a["bytes"] / a["seconds"] for a in answers))
            finally:
                for load in loads:
                    load.close()
            rows.append({"clients": n, "hits/s": rate, "cold MB/s": megabytes(rates)})


def scale_workers(bench, rows, report):
    size, limit = SIZES["2MiB"], min(2 * GIB, shutil.disk_usage(bench.work).free // 4 // MIB * MIB)
    pool = 512 * MIB
    for n in powers(max(2, 2 * report["machine"]["cores"])):
        bench.say(f"{n} workers")
        settings = {"store.limit": limit, "memory.pool": pool, "io.workers": n, "io.depth": 16, "limits.leased_bytes": pool}
        with Daemon(bench, settings) as daemon:
            note_mode(report, daemon)
            count, _ = fill(daemon, size, limit * 8 // 10, 4, 32)
            tally = Tally()
            with daemon.load("get", "--steps", "--size", size, "--count", count, "--batch", 8, "--outstanding", 32) as get:
                get.ask("evict")
                our_slice(daemon, get, Tally(), 0.1)
                cold = [our_slice(daemon, get, tally, SLICE_S) for _ in range(ROUNDS)]
            tally = Tally("memory_bytes")
            some = ("--size", size, "--count", 96, "--batch", 1, "--outstanding", 8)
            warm(daemon, some)
            with daemon.load("get", "--steps", "--tier", "memory", *some, "--region", 256 * MIB) as get:
                into = [our_slice(daemon, get, tally, SLICE_S) for _ in range(ROUNDS)]
            with daemon.load("put", "--steps", "--size", size, "--batch", 4, "--outstanding", 32, "--first", 1 << 40) as put:
                put.run(count=limit // 4)
                written = [our_slice(daemon, put, Tally(), SLICE_S) for _ in range(ROUNDS)]
        rows.append({"workers": n, "cold MB/s": megabytes(cold), "pool to region MB/s": megabytes(into),
                     "put, full store MB/s": megabytes(written)})


def scale_chunk(bench, rows, report):
    limit = min(2 * GIB, shutil.disk_usage(bench.work).free // 4 // MIB * MIB)
    pool = 512 * MIB
    fio = bench.fio(limit)
    for size in (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB):
        bench.say(f"chunks of {size // KIB} KiB")
        depth = max(2, min(32, 256 * MIB // size))
        batch = max(1, min(8, depth // 2))
        outstanding = max(4, min(256, 256 * MIB // size))
        # A 64th of the limit is the largest data file, and so the largest chunk.
        settings = {"store.limit": max(limit + limit // 4, 65 * size), "store.segment": 256 * MIB,
                    "store.entries": "auto" if size >= 256 * KIB else max(1 << 20, limit // size * 2), "memory.pool": pool,
                    "io.workers": 1, "io.depth": depth, "limits.leased_bytes": pool}
        with Daemon(bench, settings) as daemon:
            note_mode(report, daemon)
            count, put_rate = fill(daemon, size, min(limit * 9 // 10, (1 << 18) * size), batch, outstanding, 256 * MIB)
            with daemon.load("get", "--steps", "--size", size, "--count", count, "--batch", batch, "--outstanding",
                             outstanding) as get:
                get.ask("evict")
                our_slice(daemon, get, Tally(), 0.1)
                pairs = in_pairs(ROUNDS, lambda: our_slice(daemon, get, Tally(), SLICE_S),
                                 lambda: fio.slice("randread", size, SLICE_S, depth=depth)[0])
            with daemon.load("get", "--steps", "--size", size, "--count", count, "--chain", CHAIN, "--batch", batch,
                             "--outstanding", outstanding) as get:
                get.ask("evict")
                our_slice(daemon, get, Tally(), 0.1)
                chains = [our_slice(daemon, get, Tally(), SLICE_S) for _ in range(ROUNDS)]
            some = min(count, 128 * MIB // size, 16384)
            hits = ("--size", size, "--count", some, "--batch", min(batch, some), "--outstanding", min(outstanding, some))
            warm(daemon, hits)
            rate = hit_rate(daemon, 1, hits)
        ratio = figures.ratio(pairs, "B/s", "cold get", "fio")
        rows.append({"chunk KiB": size // KIB, "put, fresh MB/s": round(put_rate / 1e6),
                     "cold MB/s": megabytes([a for a, _ in pairs]), "fio MB/s": megabytes([b for _, b in pairs]),
                     "cold / fio": ratio["value"], "chains, cold MB/s": megabytes(chains), "hits/s": rate, "depth": depth})


def scale_entries(bench, rows, report):
    """Measures hits over a fixed number of chunks in memory, and gets over a fixed number on disk, in stores of different size."""
    chunk, clients = 4 * KIB, 4
    for entries in (10_000, 100_000, 1_000_000, 5_000_000):
        bench.say(f"{entries} entries")
        with Store(bench, entries, "--slot", chunk) as store, \
                Daemon(bench, {**store.settings, "memory.pool": 16 * MIB, "io.workers": 1}, store.path) as daemon:
            note_mode(report, daemon)
            daemon.settle()
            hits = named(entries, chunk, "--sample", 2500, "--batch", 32, "--outstanding", 64)
            warm(daemon, hits)
            rate = hit_rate(daemon, clients, hits)
            tally, rates = Tally(), []
            cold = named(entries, chunk, "--sample", 10000, "--batch", 32, "--outstanding", 128)
            with daemon.load("get", "--steps", *cold) as get:
                get.ask("evict")
                our_slice(daemon, get, Tally(), 0.1)
                for _ in range(ROUNDS):
                    rates.append(our_slice(daemon, get, tally, SLICE_S))
        many = None
        if entries >= 1_000_000:
            with Store(bench, entries, "--slot", chunk) as store, \
                    Daemon(bench, {**store.settings, "memory.pool": GIB, "io.workers": 1}, store.path) as daemon:
                daemon.settle()
                hits = named(entries, chunk, "--sample", 131072, "--batch", 32, "--outstanding", 64)
                warm(daemon, hits)
                many = hit_rate(daemon, clients, hits)
        rows.append({"entries": entries, "hits/s, 2500 chunks": rate, "hits/s, 131072 chunks": many,
                     "disk gets/s": median([r / chunk for r in rates])})


def kept(rows, column, bound):
    """Returns the ratio of the last row to the first."""
    whole = len(rows) == 4 and rows[0][column]
    value = round(rows[-1][column] / rows[0][column], 4) if whole else None
    return {"value": value, "goal": f">= {bound}", "reached": figures.reached(value, ">=", bound)}


def scale_iops(bench, rows, report):
    """Compares small random gets of one client with fio at the same depth."""
    limit = min(GIB, shutil.disk_usage(bench.work).free // 4 // MIB * MIB)
    fio = bench.fio(limit)
    for size in (4 * KIB, 64 * KIB):
        settings = {"store.limit": limit + limit // 4, "store.entries": max(1 << 20, limit // size * 2), "memory.pool": 64 * MIB,
                    "io.workers": 1, "io.depth": 256, "limits.leased_bytes": 64 * MIB}
        with Daemon(bench, settings) as daemon:
            note_mode(report, daemon)
            count, _ = fill(daemon, size, limit * 8 // 10)
            for depth in (1, 4, 16, 64, 256):
                bench.say(f"random gets of {size // KIB} KiB, {depth} on their way")
                with daemon.load("get", "--steps", "--size", size, "--count", count, "--batch", max(1, min(8, depth // 2)),
                                 "--outstanding", depth) as get:
                    get.ask("evict")
                    our_slice(daemon, get, Tally(), 0.1)
                    pairs = in_pairs(ROUNDS, lambda: our_slice(daemon, get, Tally(), SLICE_S),
                                     lambda: fio.slice("randread", size, SLICE_S, depth=depth)[0])
                rows.append({"chunk KiB": size // KIB, "depth": depth, "gets/s": median([a / size for a, _ in pairs]),
                             "fio reads/s": median([b / size for _, b in pairs]),
                             "gets / reads": figures.ratio(pairs, "B/s", "get", "fio")["value"]})


WHAT = {
    "clients": "hits of 64 KiB in batches of 32, and cold gets of 64 KiB in batches of 8, of 1 to 64 clients",
    "workers": "2 MiB chunks: cold gets, pool to registered memory, and puts that evict",
    "chunk": "one client, one worker: puts from registered memory into a fresh store; cold gets and fio at one size and depth; hits",
    "entries": "4 clients' hits in batches of 32, one client's disk gets in batches of 32: chunks of 4 KiB of a sparse store",
    "iops": "random gets that come from the disk, one client, one worker, against fio at the same depth",
}


def measure_scaling(bench, report, tables):
    report["scaling"] = {}
    for name in tables:
        if name == "volumes":
            measure_volumes(bench, report)
            continue
        rows, table = [], {"what": WHAT[name], "rows": []}
        report["scaling"][name] = table
        table["rows"] = rows
        try:
            globals()[f"scale_{name}"](bench, rows, report)
        except Trouble as e:
            bench.say(str(e))
            table["reason"] = str(e)
        if name == "entries" and rows:
            table["kept"] = {"hits, 2500 chunks": kept(rows, "hits/s, 2500 chunks", 0.7),
                             "disk gets": kept(rows, "disk gets/s", 0.9)}
