#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the daemon, which README.md beside this file explains. run.sh builds the programs that it needs and starts it.

The benchmark prints figures, and neither passes nor fails: its exit status is 0 if it could print its report. A figure that could not be
measured has the reason instead of a value. Progress is printed to standard error.
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

import backing
import batch
import disk
import entries
import figures
import memory
import recorded
import scaling
from machine import Fio, Process, facts, own_environment

GROUPS = {"disk": disk.FIGURES, "cpu": ("cpu_per_gib_vs_fio",), "batch": batch.FIGURES, **memory.GROUPS, **entries.GROUPS}


class Bench:
    def __init__(self, options):
        self.options = options
        self.build = pathlib.Path(options.build).resolve()
        parent = pathlib.Path(options.dir or self.build)
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="kvb-"))  # a socket's path is short
        self.running = []
        self.settings = {"io.spin": options.spin, **options.set}
        self.part, self.used = None, {}  # the part that is measured, and the settings of each part's daemons
        self.quick = options.quick
        self.fresh_rounds, self.fresh_pairs = (1, 3) if self.quick else (3, 3)
        self.pairs, self.slice_s = options.pairs or (5 if self.quick else 26), 0.25
        self.begin = time.monotonic()
        self.one_fio = None

    def say(self, text):
        print(f"[{time.monotonic() - self.begin:5.1f} s] {text}", file=sys.stderr, flush=True)

    def measure(self, mode, *arguments):
        """Starts `measure`, a program that makes the load or a yardstick."""
        return Process([self.build / "tests/bench/measure", mode, *arguments], self.work / "load.log", own_environment(self.build))

    def fio(self, file_bytes):
        """Returns fio with its file, which the first use writes."""
        if not self.one_fio or self.one_fio.file_bytes < file_bytes:
            self.say("fio: writing its file")
            self.one_fio = Fio(self, file_bytes, disk.DEPTH)
        return self.one_fio

    def fio_file_bytes(self):
        return self.one_fio.file_bytes if self.one_fio else 0

    def flush_disk(self):
        """Flushes a volatile cache of the disk, so that the next slice does not wait for it."""
        with open(self.work / "flushed", "wb") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())

    def note_settings(self, settings):
        """Keeps the settings of a daemon for the record of this part; where its daemons differ, all values."""
        for key, value in settings.items():
            known = self.used.setdefault(self.part, {}).setdefault(key, [])
            if str(value) not in known:
                known.append(str(value))

    def settings_of_parts(self):
        return {part: {key: ", ".join(values) for key, values in keys.items()} for part, keys in self.used.items()}

    def clean_up(self):
        for daemon in list(self.running):
            daemon.stop()
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.rmtree(self.sockets, ignore_errors=True)


# --- main ---

def parse_arguments():
    parser = argparse.ArgumentParser(prog="tests/bench/run.sh", description="Measures the daemon against what the machine can do.")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter slices: a first look, in about a minute")
    parser.add_argument("--only", metavar="GROUP[,GROUP]", help="of " + ", ".join(GROUPS) + "; with --scaling of "
                        + ", ".join(scaling.TABLES))
    parser.add_argument("--scaling", nargs="?", const="", metavar="TABLE[,TABLE]", help="instead of the figures, tables of how rates scale: "
                        "all but volumes, or these of " + ", ".join(scaling.TABLES))
    parser.add_argument("--volumes", metavar="N[,N]", help="of the table volumes (default: 1,2,4,8; with --quick 1,2)")
    parser.add_argument("--backing", choices=backing.KINDS, default="auto", help="of the table volumes: their file systems (default: auto)")
    parser.add_argument("--clients", type=int, metavar="N", help="of the table volumes (default: one for four cores, at most 8)")
    parser.add_argument("--store-mib", type=int, metavar="N", help="of the table volumes: how large its stores are (default: what memory allows, "
                        "at most 8 GiB, with --quick 1 GiB)")
    parser.add_argument("--yardstick", choices=("auto", "bare"), default="auto", help="of the table volumes (default: fio where there is fio)")
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs of slices of a figure of the disk (26; 120 take a minute)")
    parser.add_argument("--workers", metavar="N", default="1", help="of the daemon in the group disk, or 'auto': as many as it "
                        "takes by itself, each of the depth that it takes (default: 1, of fio's depth)")
    parser.add_argument("--spin", default="auto", choices=("auto", "on", "off", "long"), help="the daemon's io.spin (default: auto)")
    parser.add_argument("--sizes", metavar="SIZE[,SIZE]", help="of the groups disk and batch: " + ", ".join(disk.SIZES))
    parser.add_argument("--dir", help="where stores and fio's file are made: the disk that is measured (default: the build folder)")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="a setting of every daemon; may be repeated")
    parser.add_argument("--figures", metavar="FILE", help="enter what was measured into this file (tests/bench/figures.json), with date, "
                        "machine and commit")
    parser.add_argument("--build", default="build-bench", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.pairs is not None and not 1 <= options.pairs <= 10000:
        parser.error("--pairs: 1 to 10000")
    if options.workers != "auto" and not (options.workers.isdecimal() and 1 <= int(options.workers) <= 64):
        parser.error("--workers: 1 to 64, or auto")
    if options.figures and (options.quick or options.scaling is not None):
        parser.error("--figures: not with --quick or --scaling")
    if not all("=" in setting for setting in options.set):
        parser.error("--set: KEY=VALUE")
    options.set = dict(setting.split("=", 1) for setting in options.set)
    options.sizes = options.sizes.split(",") if options.sizes else list(disk.SIZES)
    for size in options.sizes:
        if size not in disk.SIZES:
            parser.error(f"there is no size {size}")
    options.volumes = volume_numbers(parser, options)
    for name, least, most in ("clients", 1, 64), ("store_mib", 256, 1 << 20):
        value = getattr(options, name)
        if value is not None and not least <= value <= most:
            parser.error(f"--{name.replace('_', '-')}: {least} to {most}")
    tables, options.scaling = options.scaling, options.scaling is not None
    known = scaling.TABLES if options.scaling else GROUPS
    chosen = tables or options.only
    options.groups = chosen.split(",") if chosen else list(known if not options.scaling else scaling.ON_DISK)
    for group in options.groups:
        if group not in known:
            parser.error(f"there is no group {group}")
    return options


def volume_numbers(parser, options):
    """Returns the numbers of --volumes, or None."""
    if options.volumes is None:
        return None
    numbers = options.volumes.split(",")
    if not all(number.isdecimal() and 1 <= int(number) <= 16 for number in numbers):
        parser.error("--volumes: numbers from 1 to 16")
    return [int(number) for number in numbers]


def command_of(options):
    words = ["tests/bench/run.sh"]
    words += ["--only", options.only] if options.only else []
    words += [word for key, value in options.set.items() for word in ("--set", f"{key}={value}")]
    return " ".join(words)


def on_signal(number, frame):
    raise KeyboardInterrupt


def measure(bench, report, groups):
    bench.part = "disk"
    if "disk" in groups:
        disk.measure_disk(bench, report)
    if "cpu" in groups:
        disk.measure_cpu(bench, report)
    if "batch" in groups:
        batch.measure_batch(bench, report)
    if bench.one_fio:
        bench.one_fio.remove()
        bench.one_fio = None
    bench.part = "memory"
    if any(group in groups for group in memory.GROUPS):
        memory.measure_memory(bench, report, groups)
    bench.part = "entries"
    if "entries" in groups:
        entries.measure_entries(bench, report)
    bench.part = "start"
    if "start" in groups:
        entries.measure_start(bench, report)
    bench.part = "entry"
    if "entry" in groups:
        entries.measure_entry(bench, report)


def main():
    options = parse_arguments()
    commit = recorded.commit_of(recorded.ROOT) if options.figures else None
    if options.figures and not commit:
        print("run.sh: --figures: commit the changes of daemon/, client/ and proto/ first, so that the figures have a commit", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGHUP, on_signal)
    bench = Bench(options)
    report = {"schema": "kvcache.bench.figures.v1", "quick": options.quick, "machine": facts(bench.work), "daemon": None,
              "yardsticks": {}, "details": {}, "notes": []}
    try:
        if options.scaling:
            scaling.measure_scaling(bench, report, options.groups)
        else:
            measure(bench, report, options.groups)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    finally:
        bench.clean_up()
    if not options.scaling:
        for group, names in GROUPS.items():
            for name in names:
                reason = "nothing was measured" if group in options.groups else figures.LEFT_OUT
                report[name] = report.pop(name, figures.missing(reason))  # in the order of the groups
        figures.add_goals(report)
    if report["machine"]["load_before"] > 0.5 * report["machine"]["cores"]:
        report["notes"].append(f"the machine was busy before this began: load {report['machine']['load_before']:.1f}")
    if report["daemon"] and not report["daemon"]["direct"]:
        report["notes"].append(f"the daemon does not use O_DIRECT: {report['daemon']['direct_reason']}")
    report["seconds"] = round(time.monotonic() - bench.begin, 1)
    if options.figures:
        entered = recorded.update(options.figures, report, bench.settings_of_parts(), commit, command_of(options), recorded.ROOT)
        print(f"{options.figures}: {len(entered)} figures entered; tests/check-figures.py names the pages to change", file=sys.stderr)
    if options.json:
        json.dump(report, sys.stdout, indent=1)
        print()
    else:
        figures.print_report(report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
