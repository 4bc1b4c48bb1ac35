# SPDX-License-Identifier: Apache-2.0
"""Measures stores of 1 to 8 volumes that are in memory, where the daemon and not a disk is the limit.

The yardstick has as many rings as the daemon has workers, at least one for each volume, each of the daemon's depth, on files of the same
file systems. It is fio where there is fio, and else `measure bare-get` and `bare-put`, one process for each ring.
"""

import contextlib
import json
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import backing
import figures
from disk import SIZES, disk_fill
from machine import Daemon, Trouble, cpu_seconds, memory_available, note_mode, read
from slices import Tally, in_pairs

MIB, GIB = 2**20, 2**30
COUNTS, FILES = (1, 2, 4, 8), 8
ROUNDS, SLICE_S, BUDGET_S = 5, 0.5, 540
QUICK_COUNTS, QUICK_ROUNDS, QUICK_SLICE_S = (1, 2), 2, 0.2
BATCH = 16
OUTSTANDING = {"2MiB": 32, "576KiB": 64, "64KiB": 256}
WAYS = {"get": "cold gets, mapped and verified", "put": "written puts, each of which evicts"}


def store_bytes(bench):
    """Returns the bytes of a store. The yardstick's files take as many, and what remains is for pool and clients."""
    if bench.options.store_mib:
        return bench.options.store_mib * MIB
    most = GIB if bench.quick else 8 * GIB
    limit = min(most, memory_available() // 4) // (64 * MIB) * 64 * MIB
    if limit < GIB:
        raise Trouble("too little memory is available: a store of 1 GiB takes 4 GiB; --store-mib says how large it is to be")
    return limit


# --- the yardstick ---

def write_file(path, size):
    block = os.urandom(1 << 20) * 4
    with open(path, "wb", buffering=0) as file:
        for at in range(0, size, len(block)):
            file.write(block[:size - at])
        os.fsync(file.fileno())  # on a loop device, nothing of it is to be written later


class Files:
    """The yardstick's files, some in each volume's file system, all written through."""

    def __init__(self, directories, total):
        self.size = total // (len(directories) * FILES) // MIB * MIB
        self.of_volume = [[directory / f"yardstick{i}" for i in range(FILES)] for directory in directories]
        with ThreadPoolExecutor(2 * len(directories)) as pool:
            list(pool.map(lambda path: write_file(path, self.size), [path for paths in self.of_volume for path in paths]))

    def of_ring(self, i):
        return self.of_volume[i % len(self.of_volume)]


def children_seconds():
    """Returns the processor time of all programs that this one has waited for. fio's own figures leave out the kernel's threads for it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class FioRings:
    """Runs fio with one job for each ring."""

    def __init__(self, bench, files, rings, depth):
        self.bench, self.files, self.rings, self.depth = bench, files, rings, depth
        self.name = subprocess.run(["fio", "--version"], capture_output=True, text=True).stdout.strip()

    @contextlib.contextmanager
    def of(self, way, size):
        rw = {"get": "randread", "put": "randwrite"}[way]
        _, _, start = self._run(rw, size, 0.001)

        def run(seconds):
            rate, moved, cpu = self._run(rw, size, seconds)
            return rate, max(cpu - start, 0) / moved

        yield run

    def _run(self, rw, size, seconds):
        """Returns bytes per second, bytes, and the processor time of fio, its start and the kernel's threads for it included."""
        command = ["fio", f"--bs={size}", f"--rw={rw}", "--direct=1", "--ioengine=io_uring", f"--iodepth={self.depth}", "--fixedbufs=1",
                   "--registerfiles=1", "--norandommap=1", "--allrandrepeat=0", "--file_service_type=random", "--fallocate=none",
                   f"--filesize={self.files.size}", "--time_based", f"--runtime={int(seconds * 1000)}ms", "--output-format=json"]
        for i in range(self.rings):
            command += [f"--name=ring{i}", "--filename=" + ":".join(str(path).replace(":", "\\:") for path in self.files.of_ring(i))]
        before = children_seconds()
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=self.bench.work)
        cpu = children_seconds() - before
        try:
            jobs = json.loads(done.stdout[done.stdout.index("{"):])["jobs"]
        except (ValueError, KeyError):
            jobs = []
        if done.returncode != 0 or len(jobs) != self.rings or any(job.get("error") for job in jobs):
            words = (done.stderr.strip() or done.stdout.strip()).splitlines()
            raise Trouble(f"fio fails: {words[0] if words else 'no reason given'}")
        sides = [job["read" if rw == "randread" else "write"] for job in jobs]
        moved = sum(side["io_bytes"] for side in sides)
        if not moved:
            raise Trouble("fio moved nothing")
        return sum(side["io_bytes"] / (side["runtime"] / 1000) for side in sides if side["runtime"]), moved, cpu


class BareRings:
    """Runs `measure bare-get` or `bare-put`, one process for each ring, or for each blocking call where there is no io_uring."""

    def __init__(self, bench, files, rings, depth, ring=True):
        self.bench, self.files, self.depth = bench, files, depth
        self.more = ("--stream", "--outstanding", depth) if ring else ("--posix",)
        self.rings = rings if ring else min(rings * depth, 2 * len(os.sched_getaffinity(0)))
        self.name = "bare io_uring (measure --stream)" if ring else "blocking calls (measure --posix)"

    @contextlib.contextmanager
    def of(self, way, size):
        with contextlib.ExitStack() as stack:
            processes = []
            for i in range(self.rings):
                names = [word for path in self.files.of_ring(i) for word in ("--file", path)]
                processes.append(stack.enter_context(self.bench.measure(
                    f"bare-{way}", "--steps", "--size", size, "--batch", BATCH, "--seed", i, "--region",
                    max(2 * self.depth, BATCH) * size, *self.more, *names)))

            def run(seconds):
                for process in processes:
                    process.tell(f"run {seconds} 0")
                answers = [process.answer() for process in processes]
                moved = sum(a["bytes"] for a in answers)
                return sum(a["bytes"] / a["seconds"] for a in answers), sum(a["cpu_seconds"] for a in answers) / moved

            run(0.05)
            yield run


def make_yardstick(bench, files, rings, status):
    if status["backend"] != "io_uring":
        return BareRings(bench, files, rings, status["depth"], ring=False)
    rings_of = FioRings if shutil.which("fio") and bench.options.yardstick != "bare" else BareRings
    return rings_of(bench, files, rings, status["depth"])


# --- the daemon ---

def clients_of(bench):
    return bench.options.clients or max(1, min(8, len(os.sched_getaffinity(0)) // 4))


def busy_of(pid):
    """Returns the processor seconds of a process's loop, workers, and threads of the kernel that work for it."""
    sums = {"loop": 0.0, "workers": 0.0, "kernel": 0.0}
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        used = read(task / "schedstat").split()
        if not used:
            continue
        kernel = read(task / "comm").startswith("iou-")
        sums["kernel" if kernel else "loop" if task.name == str(pid) else "workers"] += int(used[0]) / 1e9
    return sums


class Clients:
    """Some clients at once, each with chunks of its own."""

    def __init__(self, daemon, loads):
        self.daemon, self.loads, self.tally = daemon, loads, Tally()
        self.busy = {"loop": [], "workers": [], "kernel": []}
        self.next = []
        try:
            self.knows_cpu = self._cpu() > 0
        except Trouble:
            self.knows_cpu = False

    def run(self, seconds=0.0, count=0):
        before = self._cpu() if self.knows_cpu else 0.0
        busy, begin = busy_of(self.daemon.process.pid), time.monotonic()
        for load in self.loads:
            load.tell(f"run {seconds} {count // len(self.loads)}")
        answers = [load.answer() for load in self.loads]
        passed = time.monotonic() - begin
        for part, used in busy_of(self.daemon.process.pid).items():
            self.busy[part].append((used - busy[part]) / passed)
        cpu = self._cpu() - before if self.knows_cpu else 0.0
        for i, answer in enumerate(answers):
            self.tally.add(answer, cpu if i == 0 else 0.0)
        self.next = [answer["next"] for answer in answers]
        self.daemon.settle()
        return sum(answer["bytes"] / answer["seconds"] for answer in answers)

    def forget(self):
        self.tally = Tally()
        self.busy = {part: [] for part in self.busy}

    def _cpu(self):
        return self.daemon.cpu_seconds() + sum(cpu_seconds(load.process.pid) for load in self.loads)


def loads_of(stack, daemon, n, mode, arguments_of):
    return Clients(daemon, [stack.enter_context(daemon.load(mode, "--steps", *arguments_of(i))) for i in range(n)])


def measure_way(bench, clients, slice_of, row, way):
    rounds, seconds = (QUICK_ROUNDS, QUICK_SLICE_S) if bench.quick else (ROUNDS, SLICE_S)
    theirs_cpu = []

    def theirs():
        rate, cpu = slice_of(seconds)
        theirs_cpu.append(cpu)
        return rate

    clients.run(0.1)
    clients.forget()
    pairs = in_pairs(rounds, lambda: clients.run(seconds), theirs)
    ratio = figures.ratio(pairs, "B/s", way, "yardstick")
    row |= {f"{way} GB/s": round(statistics.median(a for a, _ in pairs) / 1e9, 2),
            "beside": round(statistics.median(b for _, b in pairs) / 1e9, 2),
            "ratio": ratio["value"], "low": ratio.get("low"), "high": ratio.get("high"),
            "CPU": clients.tally.cpu_per_gib() if clients.knows_cpu else None, "CPU beside": round(statistics.mean(theirs_cpu) * GIB, 4),
            **{f"{part} busy": round(statistics.median(values), 2) for part, values in clients.busy.items()},
            "notes": "; ".join(clients.tally.notes())}


def measure_cell(bench, report, volumes, files, name, limit, rows):
    """Adds the rows of one number of volumes and one size of chunk."""
    size, n = SIZES[name], clients_of(bench)
    pool = min(GIB, limit // 4)
    stores = [directory / "store" for directory in volumes.directories]
    settings = {"store.path": "[" + ", ".join(str(store) for store in stores) + "]", "store.limit": limit, "memory.pool": pool,
                "limits.leased_bytes": pool}
    outstanding = max(BATCH, min(OUTSTANDING[name], pool // 2 // n // size // BATCH * BATCH))
    common = ("--size", size, "--batch", BATCH, "--outstanding", outstanding)
    with contextlib.ExitStack() as stack:
        for store in stores:
            stack.callback(shutil.rmtree, store, ignore_errors=True)
        daemon = stack.enter_context(Daemon(bench, settings))
        note_mode(report, daemon)
        io = daemon.status()["io"]
        yardstick = make_yardstick(bench, files, max(io["workers"], len(stores)), io)
        report["yardsticks"]["volumes"] = f"{yardstick.name}, {yardstick.rings} at a depth of {yardstick.depth}"
        base = {"volumes": len(stores), "chunk KiB": size // 1024, "workers": io["workers"]}
        puts = loads_of(stack, daemon, n, "put", lambda i: (*common, "--first", i << 40))
        disk_fill(daemon, puts, limit)
        with yardstick.of("put", size) as slice_of:
            measure_way(bench, puts, slice_of, base, "put")
        rows["put"].append(base)
        kept = daemon.status()["store"]["chunks"] // n
        base = {"volumes": len(stores), "chunk KiB": size // 1024, "workers": io["workers"]}
        gets = loads_of(stack, daemon, n, "get", lambda i: (*common, "--first", max(i << 40, puts.next[i] - kept), "--count",
                                                            min(kept, puts.next[i] - (i << 40)), "--seed", i))
        for load in gets.loads:
            load.ask("evict")
        with yardstick.of("get", size) as slice_of:
            measure_way(bench, gets, slice_of, base, "get")
        rows["get"].append(base)
        verified = gets.loads[0].ask("verify 0 64")
    if verified["wrong"] or verified["checked"] < 32:
        base["notes"] += f" WRONG BYTES: {verified['wrong']} of {verified['checked']} chunks that were looked at"


def memcpy_rate(bench):
    """Returns the bytes per second that copies on all cores move together."""
    with contextlib.ExitStack() as stack:
        copies = [stack.enter_context(bench.measure("memcpy", "--steps", "--size", 2 * MIB, "--working-set", 128 * MIB, "--source",
                                                    64 * MIB)) for _ in os.sched_getaffinity(0)]
        rates = []
        for _ in range(3):
            for copy in copies:
                copy.tell("run 0.2 0")
            rates.append(sum(a["bytes"] / a["seconds"] for a in [copy.answer() for copy in copies]))
        return statistics.median(rates)


def measure_volumes(bench, report):
    tables = {way: [] for way in ("get", "put")}
    for way, rows in tables.items():
        report["scaling"][f"volumes, {way}"] = {"what": WAYS[way], "rows": rows}
    try:
        limit = store_bytes(bench)
        kind = backing.choose(bench.work, bench.options.backing)
        rate = memcpy_rate(bench)
        report["notes"].append(f"volumes: {kind}; a store of {limit / GIB:.1f} GiB, {clients_of(bench)} clients; memcpy() on all cores moves "
                               f"{rate / 1e9:.1f} GB/s")
        report["details"]["memcpy_bytes_per_second"] = rate
        for n in bench.options.volumes or (QUICK_COUNTS if bench.quick else COUNTS):
            bench.say(f"volumes: {n}, {kind}")
            with backing.Backing(bench.work, kind, n, 2 * limit // n) as volumes:
                files = Files(volumes.directories, limit)
                for name in bench.options.sizes:
                    if time.monotonic() - bench.begin > BUDGET_S:
                        raise Trouble(f"{n} volumes, {name} and what follows were left out: {BUDGET_S} s had passed")
                    bench.say(f"volumes: {n}, {name}")
                    measure_cell(bench, report, volumes, files, name, limit, tables)
    except Trouble as e:
        bench.say(str(e))
        for way in tables:
            report["scaling"][f"volumes, {way}"]["reason"] = str(e)
    for way in tables:
        report["scaling"][f"volumes, {way}"]["what"] += f", beside {report['yardsticks'].get('volumes', 'no yardstick')}"
