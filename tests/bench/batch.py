# SPDX-License-Identifier: Apache-2.0
"""Measures one batch at a time: how long a caller waits for 16 chunks, beside a loop that reads the disk, or the page cache, directly."""

import contextlib
import statistics

import figures
from disk import SIZES, disk_fill, disk_limit
from machine import Daemon, Process, Trouble, memory_available, note_mode
from slices import Tally, in_pairs, our_slice

MIB, GIB = 2**20, 2**30
BATCH, DEPTH, CLIENTS = 16, 16, 4
REGION, HOT_REGION, HOT_SET = 256 * MIB, 64 * MIB, 128 * MIB
FIGURES = ("batch_get_vs_bare", "batch_put_vs_bare", "batch_hot_vs_files")


def bare(bench, fio, mode, size, *more):
    return Process([bench.build / "tests/bench/measure", mode, "--steps", "--file", fio.file, "--size", size, "--batch", BATCH,
                    *more], bench.work / "load.log")


def one_batch(size, *more):
    return ("--steps", "--size", size, "--batch", BATCH, "--outstanding", BATCH, *more)


def bare_slice(process, seconds):
    answer = process.run(seconds)
    return answer["bytes"] / answer["seconds"]


def batch_pairs(bench, daemon, load, process, what, yardstick, size):
    tally = Tally()
    our_slice(daemon, load, Tally(), 0.1)
    bare_slice(process, 0.1)
    pairs = in_pairs(bench.pairs, lambda: our_slice(daemon, load, tally, bench.slice_s),
                     lambda: bare_slice(process, bench.slice_s), bench.flush_disk)
    return figures.ratio(pairs, "B/s", what, yardstick, tally.notes(), batch_us=batch_us(pairs, size))


def batch_us(pairs, size):
    """Returns the time of a batch on both sides, from their median rates."""
    return {side: round(BATCH * size / statistics.median(rates) * 1e6, 1)
            for side, rates in zip(("ours", "yardstick"), zip(*pairs)) if statistics.median(rates) > 0}


def batch_size(bench, fio, name, limit, report):
    size, region = SIZES[name], ("--region", REGION)
    pool = min(256 * MIB, limit // 4)
    with Daemon(bench, {"store.limit": limit, "memory.pool": pool, "limits.leased_bytes": pool}) as daemon:
        note_mode(report, daemon)
        bench.say(f"{name}: one batch of {BATCH} at a time, put")
        with daemon.load("put", *one_batch(size, *region)) as put, bare(bench, fio, "bare-put", size, *region) as process:
            daemon.settle()
            disk_fill(daemon, put, limit)
            report["batch_put_vs_bare"][name] = batch_pairs(
                bench, daemon, put, process, f"put of {BATCH}, written, from registered memory; evicting", "bare io_uring", size)
            next_number = put.run(count=BATCH * size)["next"]
        daemon.settle()
        chunks = daemon.status()["store"]["chunks"]
        bench.say(f"{name}: one batch of {BATCH} at a time, cold get")
        with daemon.load("get", *one_batch(size, *region, "--first", next_number - chunks, "--count", chunks)) as get, \
                bare(bench, fio, "bare-get", size, *region) as process:
            get.ask("evict")
            figure = batch_pairs(bench, daemon, get, process, f"cold get of {BATCH} into registered memory, verified",
                                 "bare io_uring", size)
            verified = get.ask("verify 0 64")
    if verified["wrong"] or verified["checked"] < 32:
        figure["notes"].append(f"WRONG BYTES: {verified['wrong']} of {verified['checked']} chunks that were looked at")
    report["batch_get_vs_bare"][name] = figure


def all_at_once(loads, wanted):
    """Runs one slice of all loads at once. Returns their bytes per second."""
    for load in loads:
        load.tell("run 0.25 0")
    return sum(answer[wanted] / answer["seconds"] for answer in [load.answer() for load in loads])


def batch_hot(bench, fio, report):
    """Compares clients that get chunks in memory into registered memory with as many that read them from the page cache."""
    name = "64KiB"
    size, pool = SIZES[name], 4 * HOT_SET
    count, region = HOT_SET // size, ("--region", HOT_REGION)
    bench.say(f"{name}: {CLIENTS} clients, one batch of {BATCH} hits each at a time")
    with Daemon(bench, {"store.limit": 2 * pool, "memory.pool": pool}) as daemon, contextlib.ExitStack() as stack:
        note_mode(report, daemon)
        daemon.settle()
        with daemon.load("put", *one_batch(size)) as put:
            put.run(count=HOT_SET)
        daemon.settle()
        gets = [stack.enter_context(daemon.load("get", *one_batch(size, *region, "--count", count, "--tier", "memory",
                                                                  "--seed", seed))) for seed in range(CLIENTS)]
        reads = [stack.enter_context(bare(bench, fio, "cached", size, *region, "--count", count, "--seed", seed))
                 for seed in range(CLIENTS)]
        all_at_once(gets, "memory_bytes")
        all_at_once(reads, "bytes")
        pairs = in_pairs(bench.pairs, lambda: all_at_once(gets, "memory_bytes"), lambda: all_at_once(reads, "bytes"))
        verified = gets[0].ask("verify 0 64")
    figure = figures.ratio(pairs, "B/s", f"get of {BATCH} in memory into registered memory, {CLIENTS} clients", "page cache")
    if verified["wrong"] or verified["checked"] < 32:
        figure["notes"].append(f"WRONG BYTES: {verified['wrong']} of {verified['checked']} chunks that were looked at")
    report["batch_hot_vs_files"][name] = figure


def measure_batch(bench, report):
    for name in FIGURES:
        report[name] = {}
    try:
        limit = min(disk_limit(bench), GIB)
        if limit < 512 * MIB:
            raise Trouble(f"too little of the disk is free in {bench.work.parent}")
        if memory_available() < 2 * GIB:
            raise Trouble("too little memory is available")
        fio = bench.fio(limit)
        for name in bench.options.sizes:
            batch_size(bench, fio, name, limit, report)
        batch_hot(bench, fio, report)
    except Trouble as e:
        bench.say(str(e))
        for name in FIGURES:
            for size in bench.options.sizes if name != "batch_hot_vs_files" else ("64KiB",):
                report[name].setdefault(size, figures.missing(str(e)))
