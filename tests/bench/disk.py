# SPDX-License-Identifier: Apache-2.0
"""Measures cold gets and written puts against fio, and their CPU time."""

import shutil

import figures
from machine import Daemon, Process, Trouble, note_mode
from slices import FioSide, Tally, difference, in_pairs, our_slice, put_details, quotient

MIB, GIB = 2**20, 2**30
SIZES = {"2MiB": 2 * MIB, "576KiB": 576 * 1024, "64KiB": 64 * 1024}
DEPTH = 16
PUT_BATCH, GET_BATCH = 16, 8
OUTSTANDING = {"2MiB": 32, "576KiB": 48, "64KiB": 64}
FIGURES = ("disk_read_vs_fio", "disk_write_vs_fio", "disk_read_vs_huge_fio", "disk_write_vs_huge_fio", "ios_per_put",
           "bytes_written_per_byte_put", "ios_per_cold_get", "inflight_vs_depth")


def disk_figure(pairs, tally, side, what, notes=()):
    return figures.ratio(pairs, "B/s", what, "fio " + side.rw, [*tally.notes(), *notes],
                         cpu_seconds_per_gib={"ours": tally.cpu_per_gib(), "fio": side.cpu_per_gib()})


def disk_pairs(bench, daemon, load, side, tally):
    """Returns pairs with fio, and as many pairs with fio's buffers in huge pages, or the reason why there are none."""
    why, huge = side.fio.huge_pages(), []

    def ours():
        rate = our_slice(daemon, load, tally, bench.slice_s)
        if not why and len(huge) < (bench.pairs + 1) // 2:
            bench.flush_disk()
            huge.append((rate, side.huge_slice(bench.slice_s)))
        return rate

    pairs = in_pairs(bench.pairs, ours, lambda: side.slice(bench.slice_s), bench.flush_disk)
    return pairs, why or huge


def huge_figure(huge, what, side):
    if isinstance(huge, str):
        return figures.missing(huge)
    return figures.ratio(huge, "B/s", what, f"fio {side.rw}, huge")


def disk_fresh(bench, daemon, put, side, size, limit, tally):
    """Returns the few pairs that together nearly fill the store."""
    request = PUT_BATCH * size
    count = int(limit * 0.85 / bench.fresh_pairs) // request * request
    return in_pairs(bench.fresh_pairs, lambda: our_slice(daemon, put, tally, count=count), lambda: side.slice(count=count),
                    bench.flush_disk)


def disk_fill(daemon, put, limit):
    """Puts until every put evicts, and a little longer."""
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
    report["inflight_vs_depth"][name] = quotient(depth, DEPTH) if depth and bench.options.workers == "1" else None


def disk_size(bench, fio, name, limit, report):
    size, fresh, tally = SIZES[name], [], Tally()
    pool = min(512 * MIB, limit // 4)
    settings = {"store.limit": limit, "memory.pool": pool, "limits.leased_bytes": pool}
    if bench.options.workers != "auto":
        settings |= {"io.workers": bench.options.workers, "io.depth": DEPTH}
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


def disk_limit(bench):
    """Returns the bytes that the store may take beside fio's file."""
    taken = bench.fio_file_bytes()
    free = shutil.disk_usage(bench.work).free + taken
    return min(GIB + GIB // 4 if bench.quick else 2 * GIB, int((free - GIB) / 2.2) // MIB * MIB)


def measure_disk(bench, report):
    free = shutil.disk_usage(bench.work).free
    limit = disk_limit(bench)
    nested = {name: {} for name in FIGURES}
    nested["disk_write_vs_fio"] = {"fresh": {}, "full": {}}
    nested["disk_write_vs_huge_fio"] = {"full": {}}
    nested["puts"] = {}
    nested["daemon"] = report.get("daemon")
    fio, why = None, None
    if limit < 512 * MIB:
        why = f"only {free / GIB:.1f} GiB are free in {bench.work.parent}"
    else:
        try:
            fio = bench.fio(limit)
            report["yardsticks"]["fio"] = fio.describe()
        except Trouble as e:
            why = str(e)
    for name in bench.options.sizes:
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
    report["daemon"] = nested["daemon"]
    for name in FIGURES[:4]:
        report[name] = nested[name]
    report["ios_per_put"] = figures.count(nested["ios_per_put"], max,
                                          f"writes of all kinds per put, batches of {PUT_BATCH}, full store")
    report["bytes_written_per_byte_put"] = figures.count(nested["bytes_written_per_byte_put"], max, "full store, tables and all")
    report["ios_per_cold_get"] = figures.count(nested["ios_per_cold_get"], max, "reads per chunk that came from disk")
    report["inflight_vs_depth"] = figures.count(nested["inflight_vs_depth"], min, f"mean reads at the device over io.depth ({DEPTH})")
    report["details"]["puts"] = nested["puts"]
    report["details"]["store_limit_bytes"] = limit



# --- the processor time of cold gets ---

def measure_cpu(bench, report):
    """Compares the CPU time of a GiB of cold gets, in daemon and client, with that of fio's GiB and one checksum pass over a GiB."""
    name, size, limit = "2MiB", SIZES["2MiB"], disk_limit(bench)
    try:
        if limit < 512 * MIB:
            raise Trouble(f"too little of the disk is free in {bench.work.parent}")
        fio = bench.fio(limit)
        report["yardsticks"]["fio"] = fio.describe()
        pool = min(512 * MIB, limit // 4)
        side, tally, crc_cpu = FioSide(fio, "randread", size), Tally(), []
        with Daemon(bench, {"store.limit": limit, "memory.pool": pool, "io.workers": 1, "io.depth": DEPTH,
                            "limits.leased_bytes": pool}) as daemon:
            note_mode(report, daemon)
            bench.say("processor time of cold gets")
            with daemon.load("put", "--steps", "--size", size, "--batch", PUT_BATCH, "--outstanding", OUTSTANDING[name]) as put:
                count = put.run(count=limit * 8 // 10)["next"]
            daemon.settle()
            with daemon.load("get", "--steps", "--size", size, "--batch", GET_BATCH, "--outstanding", OUTSTANDING[name],
                             "--count", count) as get, \
                    Process([bench.build / "tests/bench/measure", "crc", "--steps", "--size", size, "--working-set",
                             256 * MIB], bench.work / "load.log") as crc:
                get.ask("evict")
                our_slice(daemon, get, Tally(), 0.1)
                crc.run(0.1)

                def ours():
                    our_slice(daemon, get, tally, bench.slice_s)
                    if tally.last_cpu_per_gib is None:
                        raise Trouble("no chunk came from the disk")
                    return tally.last_cpu_per_gib

                def theirs():
                    side.slice(bench.slice_s)
                    answer = crc.run(count=256 * MIB)
                    crc_cpu.append(answer["cpu_seconds"] / answer["bytes"] * GIB)
                    return side.cpu[-1] * GIB + crc_cpu[-1]

                pairs = in_pairs(bench.pairs // 2, ours, theirs)
        report["cpu_per_gib_vs_fio"] = figures.ratio(
            pairs, "s/GiB", "cold get of 2 MiB, mapped, in batches of 8: daemon and client", "fio + one CRC pass", tally.notes(),
            parts={"fio": side.cpu_per_gib(), "crc": round(sum(crc_cpu) / len(crc_cpu), 4)})
    except Trouble as e:
        bench.say(str(e))
        report["cpu_per_gib_vs_fio"] = figures.missing(str(e))
