#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks between a GPU and the disk against fio on the same disk, in turns, in one run.

    disk.py BUILD DIRECTORY [--gib N] [--rounds N] [--size SIZE] [--writes] [--set KEY=VALUE]... [--host]

A daemon at its defaults (but for its paths, its limit and --set) runs on a store in DIRECTORY. For each size of block,
kvcache-bench profile writes them out of GPU memory, answered when they are on disk, and reads them into GPU memory after they
were dropped from the daemon's memory; between the two, fio does the same with a file beside the store, at depth 16 and at the
depth that the daemon may use. --host: blocks in host memory, for comparison, and where there is no GPU.

Prints a line for each, and at the end the medians and their ratios. Exit status 77: there is no GPU, or no fio."""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

SIZES = {"2MiB": 2 << 20, "576KiB": 576 << 10}
WAYS = {"write": "randwrite", "read": "randread"}
ROOT = pathlib.Path(__file__).resolve().parents[2]


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("build", type=pathlib.Path)
    p.add_argument("directory", type=pathlib.Path)
    p.add_argument("--gib", type=float, default=1.0, help="moved at a time (default: %(default)s)")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--size", choices=SIZES, help="of blocks (default: all)")
    p.add_argument("--writes", action="store_true", help="and nothing is read")
    p.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    p.add_argument("--host", action="store_true")
    return p.parse_args()


class Daemon:
    def __init__(self, a, work):
        self.socket, self.log = work / "s", work / "log"
        command = [a.build / "daemon/kvcache-daemon", "--config", "/dev/null"]
        for setting in [f"listen.socket={self.socket}", "listen.http=off", f"store.path={work / 'store'}",
                        f"store.limit={int(a.gib * 3 * (1 << 30))}", *a.set]:
            command += ["--set", setting]
        self.process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=open(self.log, "wb"),
                                        stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 60
        while not self.socket.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the daemon does not start: {self.log.read_text()}")
            time.sleep(0.01)

    def stop(self):
        self.process.terminate()
        self.process.wait()


def profile(a, daemon, size, write):
    count = max(16, int(a.gib * (1 << 30)) // size)
    command = [a.build / "client/bench/kvcache-bench", "--socket", daemon.socket, "profile", "--format", "json", "--no-raw",
               "--model", ROOT / "conf/models/llama_3_1_8b.yaml", "--model_config", ROOT / "conf/deployments/block-tp1-pp1.yaml",
               "--start_block_size", size, "--max_block_size", size, "--start_batch_size", count, "--max_batch_size", count,
               "--num_iter", "1", "--warmup_iter", "0", "--source"]
    here = "memory" if a.host else "gpu"
    command += [here] if write else ["file", "--destination", here, "--cold"]
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode != 0:
        no_gpu = "needs a GPU" in done.stderr
        print(done.stderr.strip(), file=sys.stderr)
        sys.exit(77 if no_gpu else 1)
    (said,) = json.loads(done.stdout)
    if said["wrong_bytes"] or said["bytes_verified"] < size * count:
        sys.exit(f"not verified: {said}")
    return said


def fio(work, size, rw, depth, nbytes):
    done = subprocess.run(["fio", "--name=x", f"--filename={work / 'fio.file'}", f"--size={nbytes}", f"--bs={size}", f"--rw={rw}",
                           "--direct=1", "--ioengine=io_uring", f"--iodepth={depth}", "--fixedbufs=1", "--registerfiles=1",
                           "--fallocate=none", "--allrandrepeat=0", f"--io_size={nbytes}", "--output-format=json"],
                          capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=work)
    try:
        job = json.loads(done.stdout[done.stdout.index("{"):])["jobs"][0]
    except ValueError:
        sys.exit(f"fio fails: {done.stderr.strip() or done.stdout.strip()}")
    side = job["read" if "read" in rw else "write"]
    return side["io_bytes"] / (side["runtime"] / 1000) / 1e9


def main():
    a = arguments()
    if not shutil.which("fio"):
        print("skipped: there is no fio")
        return 77
    work = pathlib.Path(tempfile.mkdtemp(prefix="gpu-disk.", dir=a.directory))
    daemon = None
    try:
        nbytes = int(a.gib * (1 << 30))
        ways = ["write"] if a.writes else list(WAYS)
        fio(work, 1 << 20, "write", 16, nbytes)  # allocates all blocks of the file, so that no later write has to
        for name in [a.size] if a.size else SIZES:
            size = SIZES[name]
            daemon = Daemon(a, work)
            rows = {}
            for i in range(a.rounds + 1):
                for way in ways:
                    said = profile(a, daemon, size, way == "write")
                    round_of = {"ours": said["bandwidth_gb_s"], **{f"fio {d}": fio(work, size, WAYS[way], d, nbytes) for d in (16, 128)}}
                    if i == 0:
                        continue  # the first round also allocates memory and files
                    for k, v in round_of.items():
                        rows.setdefault((way, k), []).append(v)
                    print(f"{name} {way}: " + ", ".join(f"{k} {v:.2f}" for k, v in round_of.items())
                          + (f", {said['gpu']['blocks_from_pool']} blocks from the pool" if way == "read" and "gpu" in said else ""),
                          flush=True)
            for way in ways:
                ours = statistics.median(rows[way, "ours"])
                print(f"{name} {way}, medians of {a.rounds}: {ours:.2f} GB/s; " + "; ".join(
                    f"fio at depth {d} {statistics.median(rows[way, f'fio {d}']):.2f} GB/s, ratio "
                    f"{statistics.median(o / f for o, f in zip(rows[way, 'ours'], rows[way, f'fio {d}'])):.2f}" for d in (16, 128)),
                    flush=True)
            daemon.stop()
            shutil.rmtree(work / "store", ignore_errors=True)
            daemon = None
        return 0
    finally:
        if daemon:
            daemon.stop()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
