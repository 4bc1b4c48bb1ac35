# SPDX-License-Identifier: Apache-2.0
"""The process of one engine, and a process that forks such processes so that vLLM is imported only once.

    traffic_child.py run JOB        runs the engine of a job, a file of JSON, to the end of its load
    traffic_child.py serve ENGINE   reads names of jobs from standard input, forks a process for each, and prints "PID JOB" and "end PID STATUS"

Events go to the file that the job names, one line of JSON each, so that they survive kill -9. SIGUSR1 prints the stacks of all threads.
"""

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import pathlib
import select
import signal
import sys
import time
import traceback

PR_SET_PDEATHSIG = 1


def die_with_parent(parent):
    """Makes the kernel kill this process when its parent ends for any reason."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def run(path):
    """Runs a job. Ends the process without Python's clean end, in which an engine's threads might hang."""
    job = json.loads(pathlib.Path(path).read_text())
    events = open(job["events"], "a", buffering=1)
    lines = open(job["log"], "a", buffering=1)
    os.dup2(lines.fileno(), 1)
    os.dup2(lines.fileno(), 2)
    faulthandler.enable(lines, all_threads=True)
    faulthandler.register(signal.SIGUSR1, lines, all_threads=True, chain=False)

    def report(event, **fields):
        events.write(json.dumps(dict(event=event, **fields)) + "\n")

    status = 0
    try:
        if job.get("cgroup"):
            pathlib.Path(job["cgroup"]).write_text(str(os.getpid()))
        run_job(job, report)
    except BaseException as problem:  # noqa: BLE001 whatever ends an engine is a result
        traceback.print_exc()
        report("failed", reason=f"{type(problem).__name__}: {problem}"[:400])
        status = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def run_job(job, report):
    from traffic_load import Runner

    began = time.monotonic()
    module = importlib.import_module(f"traffic_{job['engine']}")
    engine = module.Engine(job)
    report("started", at=time.monotonic(), seconds=time.monotonic() - began, engine=engine.name)
    if "orders" not in job:
        Runner(engine, job["load"], report).run()
        return
    with open(job["orders"]) as orders:
        for line in iter(orders.readline, ""):
            Runner(engine, json.loads(line), report).run()


def forked(job, driver):
    """Runs a job in the forked process, in a group of its own."""
    os.setsid()
    die_with_parent(driver)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    run(job)


def serve(engine):
    reason = importlib.import_module(f"traffic_{engine}").prepare()
    print(f"cannot fork: {reason}" if reason else "ready", flush=True)
    mine, rest = os.getpid(), b""
    while True:
        readable, _, _ = select.select([0], [], [], 0.05)
        if readable:
            some = os.read(0, 65536)
            if not some:
                return
            *names, rest = (rest + some).split(b"\n")
            for name in map(bytes.decode, names):
                pid = os.fork()
                if pid == 0:
                    forked(name, mine)
                print(f"{pid} {name}", flush=True)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                print(f"end {ended[0]} {os.waitstatus_to_exitcode(ended[1])}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        run(sys.argv[2])
