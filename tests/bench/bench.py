#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmark: see README.md beside it. run.sh builds what it needs and starts it.

It prints numbers and never passes or fails: exit status 0 as long as it could print its report, in which a figure that
could not be had says why. Progress goes to standard error.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

import figures
from machine import Daemon, Fio, Process, Trouble, cpu_seconds, facts, memory_available

MIB, GIB = 2**20, 2**30
SIZES = {"2MiB": 2 * MIB, "576KiB": 576 * 1024, "64KiB": 64 * 1024}
DEPTH = 16
PUT_BATCH, GET_BATCH = 16, 8
OUTSTANDING = {"2MiB": 32, "576KiB": 48, "64KiB": 64}
GROUPS = {
    "disk": ("disk_read_vs_fio", "disk_write_vs_fio", "disk_read_vs_huge_fio", "disk_write_vs_huge_fio", "ios_per_put",
             "bytes_written_per_byte_put", "ios_per_cold_get", "inflight_vs_depth"),
    "put": ("put_vs_memcpy",),
    "hit": ("hit_rtt_vs_echo", "hit_rtt_vs_blocking_echo"),
}


class Bench:
    def __init__(self, options):
        self.options = options
        self.build = pathlib.Path(options.build).resolve()
        parent = pathlib.Path(options.dir or self.build)
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="kvb-"))  # a socket's path is short
        self.running = []
        self.quick = options.quick
        self.fresh_rounds, self.fresh_pairs = (1, 3) if self.quick else (3, 3)
        self.pairs, self.slice_s = (5, 0.25) if self.quick else (26, 0.25)
        self.begin = time.monotonic()

    def say(self, text):
        print(f"[{time.monotonic() - self.begin:5.1f} s] {text}", file=sys.stderr, flush=True)

    def clean_up(self):
        for daemon in list(self.running):
            daemon.stop()
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.rmtree(self.sockets, ignore_errors=True)


# --- slices ---

class Tally:
    """What our side's slices of one figure came to, beyond what was wanted."""

    WORDS = {"from_memory": "came from memory and do not count", "misses": "were missed", "exists": "were there already",
             "busy": "were answered BUSY", "failed": "failed"}

    def __init__(self):
        self.sums, self.cpu, self.bytes, self.keys = dict.fromkeys(self.WORDS, 0), 0.0, 0, 0

    def add(self, answer, cpu):
        for word in self.WORDS:
            self.sums[word] += answer[word]
        self.cpu, self.bytes, self.keys = self.cpu + cpu, self.bytes + answer["bytes"], self.keys + answer["keys"]

    def notes(self):
        total = self.keys + sum(self.sums.values())
        return [f"{n} of {total} chunks {self.WORDS[word]}" for word, n in self.sums.items() if n]

    def cpu_per_gib(self):
        return round(self.cpu / self.bytes * GIB, 4) if self.bytes else None


def our_slice(daemon, load, tally, seconds=0.0, count=0):
    """Bytes per second of one slice; the daemon is at rest before and after."""
    before = daemon.cpu_seconds() + cpu_seconds(load.process.pid)
    answer = load.run(seconds, count)
    tally.add(answer, daemon.cpu_seconds() + cpu_seconds(load.process.pid) - before)
    daemon.settle()
    return answer["bytes"] / answer["seconds"]


def in_pairs(n, ours, theirs):
    """n times both, the first of a pair in turn."""
    pairs = []
    for i in range(n):
        if i % 2 == 0:
            a = ours()
            b = theirs()
        else:
            b = theirs()
            a = ours()
        pairs.append((a, b))
    return pairs


def difference(after, before):
    """Of two stats, where they are numbers."""
    if isinstance(after, dict):
        return {k: difference(v, before.get(k)) for k, v in after.items()}
    return after - before if isinstance(after, (int, float)) and isinstance(before, (int, float)) else after


def put_details(counted):
    """What puts cost the device, from counters of the daemon."""
    return {
        "puts": counted["kvcache_puts_total"],
        "put_bytes": counted["kvcache_put_bytes_total"],
        "evictions": counted["kvcache_evictions_total"],
        "writes": counted["kvcache_store_writes_total"],
        "written_bytes": counted["kvcache_store_written_bytes_total"],
        "mean_inflight": quotient(counted["kvcache_io_inflight_seconds_total"], counted["kvcache_io_busy_seconds_total"], 2),
    }


def quotient(a, b, digits=4):
    return round(a / b, digits) if b else None


class FioSide:
    """fio's slices of one figure, and their CPU."""

    def __init__(self, fio, rw, size):
        self.fio, self.rw, self.size, self.cpu = fio, rw, size, []

    def slice(self, seconds=0.0, count=0):
        rate, cpu = self.fio.slice(self.rw, self.size, seconds, count)
        self.cpu.append(cpu)
        return rate

    def huge_slice(self, seconds):
        return self.fio.slice(self.rw, self.size, seconds, huge=True)[0]

    def cpu_per_gib(self):
        return round(sum(self.cpu) / len(self.cpu) * GIB, 4) if self.cpu else None


# --- disk: cold gets and written puts against fio ---

def disk_figure(pairs, tally, side, what, notes=()):
    return figures.ratio(pairs, "B/s", what, "fio " + side.rw, [*tally.notes(), *notes],
                         cpu_seconds_per_gib={"ours": tally.cpu_per_gib(), "fio": side.cpu_per_gib()})


def disk_pairs(bench, daemon, load, side, tally):
    """Pairs with fio, and every second time one with fio's buffers in huge pages: (pairs, pairs or why there are none)."""
    why, huge = side.fio.huge_pages(), []

    def ours():
        rate = our_slice(daemon, load, tally, bench.slice_s)
        if not why and len(huge) < (bench.pairs + 1) // 2:
            huge.append((rate, side.huge_slice(bench.slice_s)))
        return rate

    pairs = in_pairs(bench.pairs, ours, lambda: side.slice(bench.slice_s))
    return pairs, why or huge


def huge_figure(huge, what, side):
    if isinstance(huge, str):
        return figures.missing(huge)
    return figures.ratio(huge, "B/s", what, f"fio {side.rw}, huge")


def disk_fresh(bench, daemon, put, side, size, limit, tally):
    """Three pairs that together nearly fill the store."""
    request = PUT_BATCH * size
    count = int(limit * 0.85 / bench.fresh_pairs) // request * request
    return in_pairs(bench.fresh_pairs, lambda: our_slice(daemon, put, tally, count=count), lambda: side.slice(count=count))


def disk_fill(daemon, put, limit):
    """Until every put evicts, and a little further."""
    for _ in range(100):
        put.run(count=limit // 10)
        daemon.settle()
        if daemon.stats()["kvcache_evictions_total"] > 0:
            break
    else:
        raise Trouble("the store does not become full")
    put.run(count=limit // 10)
    daemon.settle()


def disk_full(bench, daemon, put, side, name, limit, report):
    tally, before = Tally(), daemon.stats()
    pairs, huge = disk_pairs(bench, daemon, put, side, tally)
    counted = difference(daemon.stats(), before)
    report["disk_write_vs_huge_fio"]["full"][name] = huge_figure(huge, "put, written; evicting", side)
    puts = counted["kvcache_puts_total"]
    report["disk_write_vs_fio"]["full"][name] = disk_figure(pairs, tally, side, "put, written; evicting")
    report["ios_per_put"][name] = quotient(counted["kvcache_io_operations_total"]["write"], puts)
    report["bytes_written_per_byte_put"][name] = quotient(counted["kvcache_io_bytes_total"]["write"], counted["kvcache_put_bytes_total"])
    report["puts"].setdefault(name, {})["full"] = put_details(counted)


def disk_read(bench, daemon, side, name, first, count, report):
    size, tally = SIZES[name], Tally()
    with daemon.load("get", "--steps", "--size", size, "--batch", GET_BATCH, "--outstanding", OUTSTANDING[name],
                     "--first", first, "--count", count) as get:
        chunks = get.ask("evict")["keys"]
        notes = []
        pool = daemon.status()["pool"]["bytes"]
        if chunks * size < 2 * pool:
            notes.append(f"the chunks are only {chunks * size / pool:.1f} times the pool")
        our_slice(daemon, get, Tally(), 0.1)
        before = daemon.stats()
        pairs, huge = disk_pairs(bench, daemon, get, side, tally)
        counted = difference(daemon.stats(), before)
        verified = get.ask("verify 0 64")
    if verified["wrong"] or verified["checked"] < 32:
        notes.append(f"WRONG BYTES: {verified['wrong']} of {verified['checked']} chunks that were looked at")
    report["disk_read_vs_fio"][name] = disk_figure(pairs, tally, side, "cold get, verified", notes)
    report["disk_read_vs_huge_fio"][name] = huge_figure(huge, "cold get, verified", side)
    disk_hits = counted["kvcache_hits_total"]["disk"]
    report["ios_per_cold_get"][name] = quotient(counted["kvcache_io_operations_total"]["read"], disk_hits)
    depth = quotient(counted["kvcache_io_inflight_seconds_total"], counted["kvcache_io_busy_seconds_total"])
    report["inflight_vs_depth"][name] = quotient(depth, DEPTH) if depth else None


def disk_size(bench, fio, name, limit, report):
    size, fresh, tally = SIZES[name], [], Tally()
    pool = min(512 * MIB, limit // 4)
    settings = {"store.limit": limit, "memory.pool": pool, "io.workers": 1, "io.depth": DEPTH, "limits.leased_bytes": pool}
    write_side = FioSide(fio, "randwrite", size)
    for left in reversed(range(bench.fresh_rounds)):
        with Daemon(bench, settings) as daemon:
            note_mode(report, daemon)
            with daemon.load("put", "--steps", "--size", size, "--batch", PUT_BATCH, "--outstanding", OUTSTANDING[name]) as put:
                daemon.settle()
                bench.say(f"{name}: put on a fresh store")
                before = daemon.stats()
                fresh += disk_fresh(bench, daemon, put, write_side, size, limit, tally)
                if left:
                    continue
                report["disk_write_vs_fio"]["fresh"][name] = disk_figure(fresh, tally, write_side, "put, written; growing")
                report["puts"].setdefault(name, {})["fresh"] = put_details(difference(daemon.stats(), before))
                bench.say(f"{name}: put on a full store")
                disk_fill(daemon, put, limit)
                disk_full(bench, daemon, put, FioSide(fio, "randwrite", size), name, limit, report)
                next_number = put.run(count=PUT_BATCH * size)["next"]
            bench.say(f"{name}: cold get")
            daemon.settle()
            chunks = daemon.status()["store"]["chunks"]
            disk_read(bench, daemon, FioSide(fio, "randread", size), name, next_number - chunks, chunks, report)


def measure_disk(bench, report):
    free = shutil.disk_usage(bench.work).free
    limit = min(GIB + GIB // 4 if bench.quick else 2 * GIB, int((free - GIB) / 2.2) // MIB * MIB)
    nested = {name: {} for name in GROUPS["disk"]}
    nested["disk_write_vs_fio"] = {"fresh": {}, "full": {}}
    nested["disk_write_vs_huge_fio"] = {"full": {}}
    nested["puts"] = {}
    nested["daemon"] = report.get("daemon")
    fio, why = None, None
    if limit < 512 * MIB:
        why = f"only {free / GIB:.1f} GiB are free in {bench.work.parent}"
    else:
        try:
            bench.say("fio: writing its file")
            fio = Fio(bench, limit, DEPTH)
            report["yardsticks"]["fio"] = fio.describe()
        except Trouble as e:
            why = str(e)
    for name in SIZES:
        trouble = why
        if fio:
            try:
                disk_size(bench, fio, name, limit, nested)
            except Trouble as e:
                trouble = str(e)
                bench.say(f"{name}: {trouble}")
        if trouble:
            for place in (nested["disk_read_vs_fio"], nested["disk_write_vs_fio"]["fresh"], nested["disk_write_vs_fio"]["full"],
                          nested["disk_read_vs_huge_fio"], nested["disk_write_vs_huge_fio"]["full"]):
                place.setdefault(name, figures.missing(trouble))
    if fio:
        fio.file.unlink(missing_ok=True)
    report["daemon"] = nested["daemon"]
    for name in GROUPS["disk"][:4]:
        report[name] = nested[name]
    report["ios_per_put"] = figures.count(nested["ios_per_put"], max,
                                          f"writes of all kinds per put, batches of {PUT_BATCH}, full store")
    report["bytes_written_per_byte_put"] = figures.count(nested["bytes_written_per_byte_put"], max, "full store, tables and all")
    report["ios_per_cold_get"] = figures.count(nested["ios_per_cold_get"], max, "reads per chunk that came from disk")
    report["inflight_vs_depth"] = figures.count(nested["inflight_vs_depth"], min, f"mean reads at the device over io.depth ({DEPTH})")
    report["details"]["puts"] = nested["puts"]
    report["details"]["store_limit_bytes"] = limit


# --- memory: accepted puts against memcpy; hits against an echo ---

def note_mode(report, daemon):
    status = daemon.status()
    report["daemon"] = dict(status["io"], huge_pages=status["pool"].get("huge_pages"), version=status["version"])


def measure_put(bench, report, daemon, pool):
    piece, tally = SIZES["2MiB"], Tally()
    count = pool // 5 // piece * piece
    working_set = 64 * MIB + pool
    with daemon.load("put", "--steps", "--namespace", "accepted", "--size", piece, "--batch", 1, "--outstanding", 8,
                     "--ack", "accepted", "--first", 1 << 40) as put:
        bench.say("accepted put against memcpy")
        with Process([bench.build / "tests/bench/kvcache-bench", "memcpy", "--steps", "--size", piece, "--working-set", working_set],
                     bench.work / "load.log") as copy:

            def memcpy():
                answer = copy.run(count=count)
                return answer["bytes"] / answer["seconds"]

            for _ in range(8):  # every page of the pool was in use, every segment exists
                put.run(count=count)
                daemon.settle()
            memcpy()
            pairs = in_pairs(bench.pairs + 4, lambda: our_slice(daemon, put, tally, count=count), memcpy)
    l3 = report["machine"]["l3_bytes"]
    notes = tally.notes()
    if l3 and working_set < 4 * l3:
        notes.append(f"the working set of {working_set // MIB} MiB is less than 4 times the L3 cache")
    report["put_vs_memcpy"] = figures.ratio(
        pairs, "B/s", "put of 2 MiB, accepted, 8 on their way, 1 worker", "one core's memcpy", notes,
        working_set_bytes=working_set, burst_bytes=count, unwritten_limit_bytes=pool // 4,
        cpu_seconds_per_gib={"ours": tally.cpu_per_gib()})


def measure_hit(bench, report, daemon):
    n, slice_ms = (8, 50) if bench.quick else (20, 100)
    for name, arguments in (("hit_rtt_vs_echo", []), ("hit_rtt_vs_blocking_echo", ["--blocking"])):
        bench.say("hit against an echo" + (" that blocks" if arguments else ""))
        path = bench.sockets / (name + ".sock")
        echo = Process([bench.build / "tests/bench/kvcache-bench-echo", path, *arguments], bench.work / "load.log")
        spin = Process([bench.build / "tests/bench/kvcache-bench", "spin"], bench.work / "load.log")
        try:
            spin.answer()
            while not path.exists():
                if echo.process.poll() is not None:
                    raise Trouble("the echo server does not start")
                time.sleep(0.005)
            with daemon.load("rtt", "--steps", "--namespace", "hits", "--size", 64 * 1024, "--echo", path, "--pairs", n,
                             "--slice-ms", slice_ms) as rtt:
                answer = rtt.run()
        finally:
            spin.end()
            echo.end()
        pairs = [(slice["hit_p50_ns"], slice["echo_p50_ns"]) for slice in answer]
        report[name] = figures.ratio(pairs, "ns", "get of one chunk in memory, mapped: p50",
                                     "echo, blocking: p50" if arguments else "echo on libevent: p50",
                                     p99_ns={"hit": sorted(s["hit_p99_ns"] for s in answer)[n // 2],
                                             "echo": sorted(s["echo_p99_ns"] for s in answer)[n // 2]})


def measure_memory(bench, report, groups):
    wanted = [name for group in ("put", "hit") if group in groups for name in GROUPS[group]]
    pool = min(GIB, memory_available() // 5) // (64 * MIB) * (64 * MIB)
    try:
        if pool < 128 * MIB:
            raise Trouble("too little memory is available")
        if shutil.disk_usage(bench.work).free < pool * 2:
            raise Trouble("too little of the disk is free")
        with Daemon(bench, {"store.limit": pool + pool // 4, "memory.pool": pool, "io.workers": 1, "io.depth": DEPTH}) as daemon:
            note_mode(report, daemon)
            daemon.settle()
            if "put" in groups:
                measure_put(bench, report, daemon, pool)
            if "hit" in groups:
                measure_hit(bench, report, daemon)
    except Trouble as e:
        bench.say(str(e))
        for name in wanted:
            report.setdefault(name, figures.missing(str(e)))


# --- main ---

def parse_arguments():
    parser = argparse.ArgumentParser(prog="tests/bench/run.sh", description="Measures the daemon against what the machine can do.")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter slices: a first look, in about a minute")
    parser.add_argument("--only", metavar="GROUP[,GROUP]", help="of " + ", ".join(GROUPS))
    parser.add_argument("--dir", help="where stores and fio's file are made: the disk that is measured (default: the build folder)")
    parser.add_argument("--build", default="build-bench", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.groups = options.only.split(",") if options.only else list(GROUPS)
    for group in options.groups:
        if group not in GROUPS:
            parser.error(f"there is no group {group}")
    return options


def on_signal(number, frame):
    raise KeyboardInterrupt


def main():
    options = parse_arguments()
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGHUP, on_signal)
    bench = Bench(options)
    report = {"schema": "kvcache.bench.figures.v1", "quick": options.quick, "machine": facts(bench.work), "daemon": None,
              "yardsticks": {}, "details": {}, "notes": []}
    try:
        if "disk" in options.groups:
            measure_disk(bench, report)
        if "put" in options.groups or "hit" in options.groups:
            measure_memory(bench, report, options.groups)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    finally:
        bench.clean_up()
    for group, names in GROUPS.items():
        for name in names if group not in options.groups else ():
            report[name] = figures.missing("left out: --only")
    if report["machine"]["load_before"] > 0.5 * report["machine"]["cores"]:
        report["notes"].append(f"the machine was busy before this began: load {report['machine']['load_before']:.1f}")
    if report["daemon"] and not report["daemon"]["direct"]:
        report["notes"].append(f"the daemon does not use O_DIRECT: {report['daemon']['direct_reason']}")
    report["seconds"] = round(time.monotonic() - bench.begin, 1)
    if options.json:
        json.dump(report, sys.stdout, indent=1)
        print()
    else:
        figures.print_report(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
