# SPDX-License-Identifier: Apache-2.0
"""Measures how slow this machine is at the moment: the factor for all limits of the tests, and the time that other programs took.

A process that has a processor to itself takes one second of wall time for one second of processor time. One process per
processor burns a second here, and the slowest ratio of the two is the factor, between 1 and 10. Tests read it from
KVCACHE_TEST_SLOW and multiply their limits by it."""

import multiprocessing
import os
import signal
import time

LEAST, MOST = 1.0, 10.0
CPU_S = 1.0
ENVIRONMENT = "KVCACHE_TEST_SLOW"


def clamp(factor):
    return min(max(factor, LEAST), MOST)


def from_environment():
    """Returns the factor that the caller has set; 1 if it is absent or not a number."""
    try:
        return clamp(float(os.environ[ENVIRONMENT]))
    except (KeyError, ValueError):
        return LEAST


def _burn(cpu_s):
    """Returns the wall time that this process needs for cpu_s seconds of processor time."""
    wall, cpu = time.monotonic(), time.process_time()
    while time.process_time() - cpu < cpu_s:
        sum(range(10000))
    return time.monotonic() - wall


def measure(cpu_s=CPU_S, processes=None):
    """Returns wall time over processor time of a fixed job in one process per processor, clamped."""
    processes = processes or len(os.sched_getaffinity(0))
    handler = signal.signal(signal.SIGTERM, signal.SIG_DFL)    # the pool ends its processes by SIGTERM; they inherit the handler
    try:
        with multiprocessing.Pool(processes) as pool:
            slowest = max(pool.map(_burn, [cpu_s] * processes, chunksize=1))
    finally:
        signal.signal(signal.SIGTERM, handler)
    return round(clamp(slowest / cpu_s), 2)


def busy_s():
    """Returns the processor seconds that this process's processors have computed since boot, stolen time included; None if unknown."""
    wanted = {f"cpu{n}" for n in os.sched_getaffinity(0)}
    try:
        with open("/proc/stat", encoding="ascii") as stat:
            rows = [line.split() for line in stat]
        ticks = sum(int(row[i]) for row in rows if row and row[0] in wanted for i in (1, 2, 3, 6, 7, 8))
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def own_seconds(seconds, cpu_s, busy_before, busy_after, cpus):
    """Returns the wall time that a leg would have taken without the processor time of other programs. It took `seconds` of wall time, of which
    its processes computed `cpu_s` on `cpus` processors; the others are results of busy_s()."""
    if busy_before is None or busy_after is None:
        return seconds
    others_s = max(busy_after - busy_before - cpu_s, 0)
    return min(max(seconds - others_s / cpus, cpu_s / cpus), seconds)
