# SPDX-License-Identifier: Apache-2.0
"""Measures memory: copies against memcpy, hits against an echo, and the costs of an idle or new client."""

import shutil
import statistics
import subprocess
import time

import figures
from disk import DEPTH, SIZES
from machine import Daemon, Process, Trouble, listens, memory_available, note_mode
from slices import Tally, in_pairs, our_slice

MIB, GIB = 2**20, 2**30
REGION = 256 * MIB
GROUPS = {
    "put": ("put_vs_memcpy", "put_registered_vs_memcpy", "into_vs_memcpy"),
    "record": ("recording_2MiB", "recording_4KiB"),
    "hit": ("hit_rtt_vs_echo", "hit_rtt_vs_blocking_echo", "hit_cpu_vs_echo", "asked_rtt_vs_echo", "asked_cpu_vs_echo"),
    "idle": ("idle_cpu", "first_touch_us_per_2MiB"),
}


# --- copies ---

class Memcpy(Process):
    """Measures one core's memcpy() over a working set."""

    def __init__(self, bench, piece, source, working_set):
        super().__init__([bench.build / "tests/bench/measure", "memcpy", "--steps", "--size", piece, "--source", source,
                          "--working-set", working_set], bench.work / "load.log")

    def rate(self, count):
        answer = self.run(count=count)
        return answer["bytes"] / answer["seconds"]


def copy_figure(bench, report, pairs, tally, what, working_set, **more):
    l3, notes = report["machine"]["l3_bytes"], tally.notes()
    if l3 and working_set < 4 * l3:
        notes.append(f"the working set of {working_set // MIB} MiB is less than 4 times the L3 cache")
    return figures.ratio(pairs, "B/s", what, "one core's memcpy", notes, working_set_bytes=working_set,
                         cpu_seconds_per_gib={"ours": tally.cpu_per_gib()}, **more)


def measure_put(bench, report, daemon, pool):
    """Measures accepted puts from the staging area, and from registered memory."""
    piece = SIZES["2MiB"]
    count = pool // 5 // piece * piece
    for name, where, source, arguments in (("put_vs_memcpy", "the staging area", 64 * MIB, ()),
                                           ("put_registered_vs_memcpy", "registered memory", REGION, ("--region", REGION))):
        tally, working_set = Tally(), source + pool
        bench.say(f"accepted put from {where} against memcpy")
        with daemon.load("put", "--steps", "--namespace", "accepted", "--size", piece, "--batch", 1, "--outstanding", 8,
                         "--ack", "accepted", "--first", (1 if arguments else 2) << 40, *arguments) as put, \
                Memcpy(bench, piece, source, working_set) as copy:
            for _ in range(8):  # every page of the pool was in use, every segment exists
                put.run(count=count)
                daemon.settle()
            copy.rate(count)
            pairs = in_pairs(bench.pairs + 4, lambda: our_slice(daemon, put, tally, count=count), lambda: copy.rate(count))
        report[name] = copy_figure(bench, report, pairs, tally, f"put of 2 MiB from {where}, accepted, 8 on their way, 1 worker",
                                   working_set, burst_bytes=count, unwritten_limit_bytes=pool // 4)


def measure_into(bench, report, daemon, pool):
    """Measures gets of chunks in memory into registered memory."""
    piece, tally = SIZES["2MiB"], Tally("memory_bytes")
    source = pool // 2 // piece * piece
    bench.say("get into registered memory against memcpy")
    with daemon.load("put", "--steps", "--namespace", "into", "--size", piece, "--batch", 4, "--outstanding", 16) as put:
        put.run(count=source)
    daemon.settle()
    with daemon.load("get", "--steps", "--namespace", "into", "--size", piece, "--batch", 1, "--outstanding", 8, "--count",
                     source // piece, "--tier", "memory", "--region", REGION) as get, \
            Memcpy(bench, piece, source, source + REGION) as copy:
        get.ask("warm")
        copy.rate(source)
        pairs = in_pairs(bench.pairs + 4, lambda: our_slice(daemon, get, tally, count=source), lambda: copy.rate(source))
        verified = get.ask("verify 0 16")
    report["into_vs_memcpy"] = copy_figure(bench, report, pairs, tally, "pool to registered memory, 2 MiB, 8 on their way, 1 worker",
                                           source + REGION)
    if verified["wrong"] or verified["checked"] < 8:
        report["into_vs_memcpy"]["notes"].append(f"WRONG BYTES: {verified['wrong']} of {verified['checked']} chunks")


def measure_recording(bench, report, daemon, pool):
    """Measures gets of chunks in memory into registered memory, with and without a benchmark session that counts the copies."""
    session = [bench.build / "client/bench/kvcache-bench", "--socket", daemon.socket, "session"]

    def say(*words):
        subprocess.run([str(word) for word in (*session, *words)], check=True, stdout=subprocess.DEVNULL)

    say("init", "recording", "--force")
    for name, piece, batch in (("2MiB", SIZES["2MiB"], 1), ("4KiB", 4096, 128)):
        bench.say(f"gets of {name} with a session that counts against one that does not")
        tally, source = Tally("memory_bytes"), min(pool // 4, 64 * MIB)
        count = source * 16 if piece > 4096 else source * 2
        with daemon.load("put", "--steps", "--namespace", f"record-{name}", "--size", piece, "--batch", 4, "--outstanding", 16) as put:
            put.run(count=source)
        daemon.settle()
        with daemon.load("get", "--steps", "--namespace", f"record-{name}", "--size", piece, "--batch", batch, "--outstanding", 8,
                         "--count", source // piece, "--tier", "memory", "--region", REGION) as get:
            get.ask("warm")

            def rate(word):
                say(word)
                return our_slice(daemon, get, tally, count=count)

            rate("enable")
            pairs = in_pairs(2 * bench.pairs, lambda: rate("enable"), lambda: rate("disable"))
        report[f"recording_{name}"] = figures.ratio(pairs, "B/s", f"gets of {name} into registered memory, counted by a session",
                                                    "the same, not counted", tally.notes())
    say("delete", "recording")


# --- hits ---

def echo_company(bench, name, arguments, measure):
    """Calls measure(socket, pid) while an echo server and one spinner per core run."""
    path = bench.sockets / (name + ".sock")
    echo = Process([bench.build / "tests/bench/measure-echo", path, *arguments], bench.work / "load.log")
    spin = Process([bench.build / "tests/bench/measure", "spin"], bench.work / "load.log")
    try:
        spin.answer()
        while not listens(path):
            if echo.process.poll() is not None:
                raise Trouble("the echo server does not start")
            time.sleep(0.005)
        return measure(path, echo.process.pid)
    finally:
        spin.end()
        echo.end()
        path.unlink(missing_ok=True)


def rtt_pairs(bench, daemon, name, arguments, *more):
    """Measures round trips in slices that alternate between our hits and the echo."""
    n, slice_ms = (8, 50) if bench.quick else (20, 100)

    def measure(path, pid):
        with daemon.load("rtt", "--steps", "--echo", path, "--pairs", n, "--slice-ms", slice_ms, "--daemon-pid", daemon.process.pid,
                         "--echo-pid", pid, *more) as rtt:
            return rtt.run()

    return echo_company(bench, name, arguments, measure)


def rtt_figure(answer, ours, yardstick):
    middle = len(answer) // 2
    return figures.ratio([(s["hit_p50_ns"], s["echo_p50_ns"]) for s in answer], "ns", ours, yardstick,
                         p99_ns={"hit": sorted(s["hit_p99_ns"] for s in answer)[middle],
                                 "echo": sorted(s["echo_p99_ns"] for s in answer)[middle]})


def rtt_cpu_figure(answer, ours, yardstick):
    if any(s["hit_cpu_ns"] is None or s["echo_cpu_ns"] is None for s in answer):
        return figures.missing("the system does not tell the processor time of another process")
    return figures.ratio([(s["hit_cpu_ns"], s["echo_cpu_ns"]) for s in answer], "ns", ours, yardstick)


def measure_hit(bench, report, daemon):
    for name, arguments, ways in (("hit", [], []), ("hit", ["--blocking"], []), ("asked", [], ["--no-lookup"])):
        how = ", by a message" if ways else ""
        bench.say("hit against an echo" + (" that blocks" if arguments else "") + how)
        figure = f"{name}_rtt_vs_blocking_echo" if arguments else f"{name}_rtt_vs_echo"
        answer = rtt_pairs(bench, daemon, figure, arguments, "--namespace", "hits", "--size", 64 * 1024, *ways)
        report[figure] = rtt_figure(answer, f"get of one chunk in memory, mapped{how}: p50",
                                    "echo, blocking: p50" if arguments else "echo on libevent: p50")
        if not arguments:
            report[f"{name}_cpu_vs_echo"] = rtt_cpu_figure(answer, f"processor time of a hit{how}: client and daemon",
                                                           "echo on libevent: CPU")


# --- clients that begin, or do nothing ---

def measure_touch(bench, report, daemon):
    """Measures a client's first reads of hits, for which no page of the pool is mapped yet."""
    piece, n = SIZES["2MiB"], 64
    bench.say("first reads of hits")
    with daemon.load("put", "--steps", "--namespace", "touch", "--size", piece, "--batch", 1, "--outstanding", 4) as put:
        put.run(count=n * piece)
    daemon.settle()
    kinds = {"plain": (), "populate": ("--populate",)}
    loads = {kind: daemon.load("touch", "--steps", "--namespace", "touch", "--size", piece, "--count", n, *arguments)
             for kind, arguments in kinds.items()}
    answers = {kind: [] for kind in kinds}
    try:
        for _ in range(3 if bench.quick else 9):
            for kind, load in loads.items():
                answers[kind].append(load.run())
    finally:
        for load in loads.values():
            load.close()

    def median_us(kind, word):
        return round(statistics.median(a[word] for a in answers[kind]) / 1000, 1)

    report["first_touch_us_per_2MiB"] = figures.measured(
        [a["first_ns"] / 1000 for a in answers["plain"]], "µs", "first read of 2 MiB of a hit after mapping", digits=1,
        by_way={"plain": median_us("plain", "first_ns"), "populate": median_us("populate", "first_ns"),
                "second read": median_us("plain", "again_ns")},
        connect_us={kind: median_us(kind, "connect_ns") for kind in kinds})


def measure_idle(bench, report, daemon):
    seconds, connections = 10, 64
    bench.say(f"{connections} idle connections")
    with daemon.load("idle", "--steps", "--namespace", "idle", "--connections", connections) as idle:
        there = idle.run()["connections"]
        daemon.settle()
        before, begin = daemon.cpu_seconds(), time.monotonic()
        time.sleep(seconds)
        spent, passed = daemon.cpu_seconds() - before, time.monotonic() - begin
    report["idle_cpu"] = figures.measured([spent / passed * 100], "%", f"of one core, {there} connections, {passed:.0f} s",
                                          digits=4)


def measure_memory(bench, report, groups):
    wanted = [name for group in GROUPS if group in groups for name in GROUPS[group]]
    pool = min(GIB, memory_available() // 5) // (64 * MIB) * (64 * MIB)
    try:
        if pool < 256 * MIB:
            raise Trouble("too little memory is available")
        if shutil.disk_usage(bench.work).free < pool * 2:
            raise Trouble("too little of the disk is free")
        with Daemon(bench, {"store.limit": pool + pool // 4, "memory.pool": pool, "io.workers": 1, "io.depth": DEPTH}) as daemon:
            note_mode(report, daemon)
            daemon.settle()
            for group, measure in (("idle", measure_idle), ("hit", measure_hit), ("idle", measure_touch)):
                if group in groups:
                    measure(bench, report, daemon)
            if "record" in groups:
                measure_recording(bench, report, daemon, pool)
            if "put" in groups:
                measure_into(bench, report, daemon, pool)
                measure_put(bench, report, daemon, pool)
    except Trouble as e:
        bench.say(str(e))
        for name in wanted:
            report.setdefault(name, figures.missing(str(e)))
