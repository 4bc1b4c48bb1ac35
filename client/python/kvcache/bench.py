# SPDX-License-Identifier: Apache-2.0
"""The command `python -m kvcache.bench` measures the cost of a call from Python and that of the same call from C, in the same process.

Both sides use one handle and one daemon, and alternate in short passes. Each figure is that of the side's fastest pass, which excludes time
taken by other work on the machine. The quotient is the overhead of Python. $CC or cc compiles the loop in C; without a compiler only Python's
figures are printed.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import pathlib
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

from . import Batch, Client, Error, Keys, Namespace, __version__
from . import _library as c
from ._results import LOST_RESULT

LOOK_UP_KEYS, GET_KEYS, CHUNK_BYTES = 128, 32, 64 << 10


def compile_loop(folder: str) -> ctypes.CDLL | None:
    library = os.path.join(folder, "bench_loop.so")
    source = str(pathlib.Path(__file__).with_name("bench_loop.c"))
    command = [*shlex.split(os.environ.get("CC", "cc")), "-O2", "-fPIC", "-shared", "-o", library, source]
    try:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as e:
        why = f"{command[0]}: {e.strerror}" if isinstance(e, OSError) else f"{command[0]} ended with status {e.returncode}"
        print(f"C is not measured, because its loop cannot be compiled ({why}): install gcc and libc6-dev, or set CC to a compiler", file=sys.stderr)
        return None
    return ctypes.CDLL(library)


class Case:
    """One operation to be measured. `python`: performs the operation once. `request`: the packed request with which C performs it. `rounds`: how
    often one pass performs it."""

    def __init__(self, name: str, python: Callable[[], object], namespace: Namespace, op: int, count: int, entries: int,
                 keys: int, rounds: int) -> None:
        self.name, self.python, self.rounds, self.count = name, python, rounds, count
        assert namespace._client._handle is not None
        self.kv = namespace._client._handle.kv
        self.results = LOST_RESULT * count if op != c.OP_MATCH else None
        self.request = namespace._client._request(namespace, op, count, entries, keys, self.results, 0, 0, 0, 0, 0)
        self.release = ctypes.cast(c.release, ctypes.c_void_p) if op == c.OP_GET else None

    def python_us(self) -> float:
        call = self.python
        started = time.perf_counter()
        for _ in range(self.rounds):
            call()
        return (time.perf_counter() - started) / self.rounds * 1e6

    def c_us(self, loop: ctypes.CDLL) -> float:
        results = ctypes.c_void_p(self.results.buffer_info()[0] if self.results else None)
        started = time.perf_counter()
        wrong = loop.bench_loop(ctypes.cast(c.submit_and_wait, ctypes.c_void_p), self.release, ctypes.c_void_p(self.kv),
                                self.request, results, ctypes.c_size_t(self.count), ctypes.c_uint(self.rounds))
        took = time.perf_counter() - started
        if wrong:
            raise Error(5, f"{self.name}: libkvcache gave {wrong} wrong answers to the loop in C")
        return took / self.rounds * 1e6


def cases(client: Client, namespace: Namespace, rounds: int) -> list[Case]:
    names = [hashlib.sha256(b"kvcache.bench %d" % i).digest() for i in range(LOOK_UP_KEYS)]
    many, few = Keys(names), Keys(names[:GET_KEYS])
    value = bytes(range(256)) * (CHUNK_BYTES // 256)
    for done in (namespace.put(few, [value] * GET_KEYS, "accepted"),
                 namespace.put(names[GET_KEYS:], [b"x"] * (LOOK_UP_KEYS - GET_KEYS), "accepted")):
        if not done.ok:
            raise Error(done.error or 5, f"the chunks could not be stored: {done}")
    private = [bytearray(CHUNK_BYTES) for _ in range(GET_KEYS)]
    region = client.allocate(GET_KEYS * CHUNK_BYTES)
    places = region.places(range(0, GET_KEYS * CHUNK_BYTES, CHUNK_BYTES), CHUNK_BYTES)
    copied, direct = Batch(few, private), Batch(few, places)
    if not (namespace.get(copied).ok and namespace.get(direct).ok and namespace.match(many) == LOOK_UP_KEYS):
        raise Error(5, "stored chunks are not found: if other clients fill the daemon's memory, end them, or raise memory.pool and restart the daemon")
    if bytes(region.memory) != value * GET_KEYS or any(p != value for p in private):
        raise Error(5, "a get returned other bytes than were put: run kvcachectl verify, and report this")
    key_list, looks = names[:], 20 * rounds

    def case(name: str, python: Callable[[], object], op: int, packed: Keys | Batch, n: int) -> Case:
        entries, keys = (packed.address(), 0) if isinstance(packed, Batch) else (0, packed.address())
        return Case(name, python, namespace, op, packed.count, entries, keys, n)

    def leased() -> None:
        namespace.get_map(few).release()

    return [
        case("match 128 keys, packed", lambda: namespace.match(many), c.OP_MATCH, many, looks),
        case("match 128 keys, a list", lambda: namespace.match(key_list), c.OP_MATCH, many, looks),
        case("exists 128 keys, packed", lambda: namespace.exists(many), c.OP_EXISTS, many, looks),
        case("get 32 x 64 KiB, a batch", lambda: namespace.get(copied), c.OP_GET_INTO, copied, rounds),
        case("  into registered memory", lambda: namespace.get(direct), c.OP_GET_INTO, direct, rounds),
        case("  a new batch each time", lambda: namespace.get(few, private), c.OP_GET_INTO, copied, rounds),
        case("  in place, and release", leased, c.OP_GET, few, rounds),
    ]


class Figure(NamedTuple):
    """Microseconds of a call from Python and from C, and their quotient. `native` and `quotient` are None without a C compiler."""

    python: float
    native: float | None
    quotient: float | None


def measure(client: Client, passes: int, rounds: int) -> dict[str, Figure]:
    namespace = client.namespace("kvcache-python-bench", {"chunk": CHUNK_BYTES})
    measured: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as folder:
        loop = compile_loop(folder)
        for case in cases(client, namespace, rounds):
            pairs = [(case.python_us(), case.c_us(loop) if loop is not None else 0.0) for _ in range(passes)]
            python, native = (min(side) for side in zip(*pairs))
            measured[case.name] = Figure(python, native or None, python / native if native else None)
    namespace.evict([hashlib.sha256(b"kvcache.bench %d" % i).digest() for i in range(LOOK_UP_KEYS)])
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kvcache.bench", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--socket", help="the daemon's; default: $KVCACHE_SOCKET, else the usual places")
    parser.add_argument("--passes", type=int, default=200, help="of each side (default: 200)")
    parser.add_argument("--rounds", type=int, default=5, help="gets a pass; 20 times as many lookups (default: 5)")
    arguments = parser.parse_args()
    try:
        with Client(arguments.socket, name="kvcache.bench", required=True) as client:
            print(f"kvcache {__version__}, Python {platform.python_version()}, {os.cpu_count()} CPUs; microseconds a call")
            print(f"{'':26}{'Python':>10}{'C':>10}{'quotient':>10}")
            for name, f in measure(client, arguments.passes, arguments.rounds).items():
                print(f"{name:26}{f.python:10.1f}" + (f"{f.native:10.1f}{f.quotient:10.2f}" if f.native and f.quotient else ""))
    except Error as e:
        print(f"kvcache.bench: {e.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
