# SPDX-License-Identifier: Apache-2.0
"""Measures a store of five million entries: hits, lookups, memory, and recovery after kill -9.

many-entries makes the store without its bytes: tables as puts leave them, and sparse data files. There are two forms. One has 2 MiB chunks
and a ring filled by years of puts, for memory and recovery. The other has 4 KiB chunks for hits, so that very many of them, from all over the
index, fit into the pool.
"""

import shutil
import statistics
import subprocess
import time

import figures
import recorded
from machine import Daemon, Trouble, memory_available, note_mode
from memory import rtt_figure, rtt_pairs
from slices import in_pairs

MIB, GIB = 2**20, 2**30
ENTRIES = 5_000_000
CHUNK = 4096
HITS, FEW_HITS = 131072, 2048  # chunks in memory that are hit; their index entries fit into no cache, or all into one
GROUPS = {
    "entries": ("hit_batch128_vs_echo", "asked_batch128_vs_echo", "hit_spread_vs_near", "hits_per_second", "asked_per_second",
                "match_ns_per_key", "match32_us"),
    "start": ("ready_seconds_5M",),
    "entry": ("bytes_per_entry",),
}


class Store:
    """A store that many-entries makes, and that is removed at the end."""

    def __init__(self, bench, entries, *arguments):
        self.path = bench.work / "entries"
        shutil.rmtree(self.path, ignore_errors=True)
        # The ring has three entries of 128 bytes per slot; all other files are sparse.
        if shutil.disk_usage(bench.work).free < entries * 3 * 140 + GIB:
            raise Trouble("too little of the disk is free")
        self.path.mkdir(mode=0o700)
        made = subprocess.run([bench.build / "tests/campaigns/many-entries", self.path, str(entries), *map(str, arguments)],
                              capture_output=True, text=True)
        if made.returncode != 0:
            words = made.stderr.strip().splitlines()
            self.__exit__()
            raise Trouble(f"many-entries: {words[-1] if words else 'no reason given'}")
        self.settings = {"store.limit": int(made.stdout), "store.entries": max(1 << 20, entries + entries // 5),
                         "store.prewrite": "off"}

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        shutil.rmtree(self.path, ignore_errors=True)


def named(entries, chunk, *more):
    return ("--namespace", "many", "--keys", "plain", "--size", chunk, "--count", entries, *more)


def together(loads, seconds):
    """Runs one slice of all loads at once. Returns keys per second from memory, and the number of keys that came from elsewhere or were missing."""
    for load in loads:
        load.tell(f"run {seconds} 0")
    answers = [load.answer() for load in loads]
    strays = sum(a["keys"] + a["misses"] + a["busy"] + a["failed"] for a in answers)
    return sum(a["from_memory"] / a["seconds"] for a in answers), strays


def hit_arguments(n, batch):
    return named(ENTRIES, CHUNK, "--sample", n, "--batch", batch, "--outstanding", 2 * batch)


def hit_slices(daemon, n, clients, batch, slices, *ways):
    """Measures hits. Returns the hits per second of each slice, the number of keys that were not hits, and how busy the daemon was."""
    arguments, loads = (*hit_arguments(n, batch), *ways), []
    with daemon.load("get", "--steps", "--tier", "any", *arguments) as get:
        get.ask("warm")
    try:
        for seed in range(clients):
            loads.append(daemon.load("get", "--steps", "--tier", "memory", "--seed", seed, *arguments))
        together(loads, 0.2)
        cpu, begin = daemon.cpu_seconds(), time.monotonic()
        answers = [together(loads, 1.0) for _ in range(slices)]
        cpu, passed = daemon.cpu_seconds() - cpu, time.monotonic() - begin
    finally:
        for load in loads:
            load.close()
    return [rate for rate, _ in answers], sum(strays for _, strays in answers), round(cpu / passed, 2)


def measure_hits(bench, report, daemon):
    clients, batch = 4, 32
    bench.say(f"hits: {clients} clients, batches of {batch}, {ENTRIES} entries")
    few, _, _ = hit_slices(daemon, FEW_HITS, clients, batch, 3)
    many, strays, cpu = hit_slices(daemon, HITS, clients, batch, 3 if bench.quick else 11)
    report["hits_per_second"] = figures.measured(
        many, "hits/s", f"mapped, {clients} clients, batches of {batch}, two of each on their way",
        [f"{strays} keys were no hits and do not count"] if strays else (), digits=0, daemon_cpu=cpu,
        by_way={f"{HITS} chunks": round(statistics.median(many)), f"{FEW_HITS} chunks": round(statistics.median(few))})
    asked, strays, cpu = hit_slices(daemon, HITS, clients, batch, 3 if bench.quick else 11, "--no-lookup")
    report["asked_per_second"] = figures.measured(
        asked, "hits/s", "the same, by messages",
        [f"{strays} keys were no hits and do not count"] if strays else (), digits=0, daemon_cpu=cpu)


def measure_batch(bench, report, daemon):
    batch, what = 128, "echo on libevent: p50"
    answers = {}
    for n in (FEW_HITS, HITS):
        bench.say(f"one batch of {batch} hits, of {n} chunks, against an echo")
        answer = rtt_pairs(bench, daemon, "hit_batch128_vs_echo", [], *named(ENTRIES, CHUNK, "--sample", n, "--batch", batch))
        answers[n] = rtt_figure(answer, f"get of {batch} chunks in memory, mapped, {ENTRIES} entries: p50", what)
    bench.say(f"one batch of {batch} hits by a message, against an echo")
    answer = rtt_pairs(bench, daemon, "asked_batch128_vs_echo", [], "--no-lookup",
                       *named(ENTRIES, CHUNK, "--sample", HITS, "--batch", batch))
    report["asked_batch128_vs_echo"] = rtt_figure(answer, f"get of {batch} chunks in memory by a message, mapped, {ENTRIES} entries: p50", what)
    report["hit_batch128_vs_echo"] = figure = answers[HITS]
    figure["by_way"] = {f"{n} chunks": figure["value"] for n, figure in answers.items()}


def measure_spread(bench, report, daemon):
    """Compares hits whose index entries, records and recency do not fit into the processor's cache with hits for which they do. The difference
    is the cost of waiting for memory."""
    batch = 128
    bench.say(f"batches of {batch} hits, of {HITS} chunks against {FEW_HITS}")
    loads = {}
    try:
        for n in (FEW_HITS, HITS):
            with daemon.load("get", "--steps", "--tier", "any", *hit_arguments(n, batch)) as get:
                get.ask("warm")
            loads[n] = daemon.load("get", "--steps", "--tier", "memory", "--no-lookup", "--seed", n, *hit_arguments(n, batch))

        def cpu_ns(n):
            before = daemon.cpu_seconds()
            rate, _ = together([loads[n]], bench.slice_s)
            return (daemon.cpu_seconds() - before) * 1e9 / max(1, rate * bench.slice_s)

        for n in loads:
            cpu_ns(n)
        pairs = in_pairs(bench.pairs, lambda: cpu_ns(HITS), lambda: cpu_ns(FEW_HITS))
    finally:
        for load in loads.values():
            load.close()
    report["hit_spread_vs_near"] = figures.ratio(
        pairs, "ns", f"processor time of the daemon for a hit by a message, mapped, batches of {batch}, of {HITS} chunks among {ENTRIES}",
        f"of {FEW_HITS} chunks")


def matches_asked(daemon):
    return daemon.stats()["kvcache_requests_total"]["MATCH"]


def wait_for_index(daemon, match, limit_s=20):
    """Waits until a client's matches no longer reach the daemon. Returns the seconds, or None if they always do."""
    begin = time.monotonic()
    while time.monotonic() - begin < limit_s:
        before = matches_asked(daemon)
        match.run(0.1)
        if matches_asked(daemon) == before:
            return round(time.monotonic() - begin, 1)
    return None


def measure_match(bench, report, daemon):
    rounds, seconds = (5, 0.2) if bench.quick else (15, 0.4)
    for name, keys, unit, scale, digits in (("match_ns_per_key", 8192, "ns/key", 8192, 1), ("match32_us", 32, "µs", 1000, 2)):
        bench.say(f"match of {keys} keys")
        with daemon.load("match", "--steps", *named(ENTRIES, CHUNK, "--batch", keys)) as load:
            waited = wait_for_index(daemon, load)
            before = matches_asked(daemon)
            answers = [load.run(seconds) for _ in range(rounds)]
            asked = matches_asked(daemon) - before
        messages = sum(a["calls"] for a in answers) * -(-keys // 1024)
        way = "socket" if asked >= messages else "shared index" if asked == 0 else \
            f"{asked / messages:.1%} socket, else shared index"
        report[name] = figures.measured([a["p50_ns"] / scale for a in answers], unit,
                                        f"library's match of {keys} keys that are there, {ENTRIES} entries: p50", digits=digits,
                                        by_way={way: None}, way=way, index_after_seconds=waited,
                                        p99=round(statistics.median(a["p99_ns"] for a in answers) / scale, digits))


def measure_entries(bench, report):
    try:
        if memory_available() < 3 * GIB:
            raise Trouble("too little memory is available")
        bench.say(f"making a store of {ENTRIES} chunks of {CHUNK // 1024} KiB")
        with Store(bench, ENTRIES, "--slot", CHUNK) as store, \
                Daemon(bench, {**store.settings, "memory.pool": GIB, "io.workers": 1}, store.path) as daemon:
            note_mode(report, daemon)
            daemon.settle()
            measure_match(bench, report, daemon)
            measure_hits(bench, report, daemon)
            measure_batch(bench, report, daemon)
            measure_spread(bench, report, daemon)
    except Trouble as e:
        bench.say(str(e))
        for name in GROUPS["entries"]:
            report.setdefault(name, figures.missing(str(e)))


def memory_in_use(daemon):
    """Returns the daemon's memory while a client has the lookup index, which the daemon makes for the first lookup."""
    with daemon.load("match", "--steps", *named(ENTRIES, 2 * MIB, "--batch", 1024)) as match:
        wait_for_index(daemon, match)
        daemon.settle()
        return daemon.memory_bytes()


def starts(bench, report, superseded, rounds):
    """Measures startups with `superseded` superseded entries for each valid one. Returns the seconds and CPU seconds of each startup, and the
    number of chunks."""
    bench.say(f"making a store of {ENTRIES} chunks of 2 MiB, with {superseded * ENTRIES} superseded entries")
    with Store(bench, ENTRIES, "--history", superseded) as store:
        settings = {**store.settings, "store.entries": "auto", "memory.pool": 64 * MIB}
        with Daemon(bench, settings, store.path) as daemon:
            note_mode(report, daemon)
            daemon.settle()
            there = daemon.status()["store"]["chunks"]
            seconds, cpu = [], []
            for _ in range(rounds):
                bench.say("kill -9")
                with daemon.load("get", "--steps", *named(ENTRIES, 2 * MIB, "--sample", 4096, "--batch", 4)) as load:
                    load.run(0.1)
                    load.tell("run 5 0")
                    time.sleep(0.1)
                    seconds.append(daemon.kill_and_start())
                    load.process.kill()
                cpu.append(daemon.cpu_seconds())
                daemon.settle()
    return seconds, cpu, there


def measure_start(bench, report):
    try:
        if memory_available() < 3 * GIB:
            raise Trouble("too little memory is available")
        rounds = 3 if bench.quick else 7
        old_seconds, _, there = starts(bench, report, 2, rounds)
        seconds, cpu, _ = starts(bench, report, 0, rounds)
        notes = [] if there >= ENTRIES else [f"only {there} chunks are there"]
        report["ready_seconds_5M"] = figures.measured(
            seconds, "s", f"kill -9 amid gets to the first answer, {there} chunks", notes,
            by_way={"processor time": round(statistics.median(cpu), 2),
                    "twice as many superseded entries besides": round(statistics.median(old_seconds), 2)})
    except Trouble as e:
        bench.say(str(e))
        for name in GROUPS["start"]:
            report.setdefault(name, figures.missing(str(e)))


def measure_entry(bench, report):
    """Measures the memory of a daemon, before and after a kill, for each chunk of its store."""
    try:
        if memory_available() < 3 * GIB:
            raise Trouble("too little memory is available")
        bench.say(f"making a store of {ENTRIES} chunks of 2 MiB")
        with Store(bench, ENTRIES) as store, \
                Daemon(bench, {**store.settings, "store.entries": "auto", "memory.pool": 64 * MIB}, store.path) as daemon:
            note_mode(report, daemon)
            daemon.settle()
            there = daemon.status()["store"]["chunks"]
            memory = [memory_in_use(daemon)]
            daemon.kill_and_start()
            daemon.settle()
            memory.append(memory_in_use(daemon))
        notes = [] if there >= ENTRIES else [f"only {there} chunks are there"]
        policy = bench.settings.get("eviction.policy", recorded.configured(recorded.ROOT)["eviction.policy"])
        report["bytes_per_entry"] = figures.measured([n / there for n in memory], "B",
                                                     f"daemon's memory without the pool, over {there} chunks, with "
                                                     f"eviction.policy {policy}", notes, digits=1)
    except Trouble as e:
        bench.say(str(e))
        for name in GROUPS["entry"]:
            report.setdefault(name, figures.missing(str(e)))
