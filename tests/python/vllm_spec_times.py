# SPDX-License-Identifier: Apache-2.0
"""Where the time of a memory hit goes in the spec of ours, but for the copy: the engine's thread steps as vLLM does in one process,
over the driver without a GPU. Pages are small, so that copying them is the least part of it.

    vllm_spec_times.py BUILD [VERSION [BLOCKS [ROUNDS]]]        medians, in milliseconds; 0.26, 512 blocks (8,192 tokens), 15 rounds

Then the processor time of the engine's thread in each call, in microseconds: of a step beside 16 requests, and of a request of as many blocks.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

BUILD = pathlib.Path(sys.argv[1]).resolve()
VERSION, BLOCKS, ROUNDS = (sys.argv[2:3] or ["0.26"])[0], int((sys.argv[3:4] or [512])[0]), int((sys.argv[4:5] or [15])[0])
SOURCE = pathlib.Path(__file__).resolve().parents[2]
STEP_S = 0.0005  # the time that the engine's own Python takes in a step without computing


def spin(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def once(host, hosts, keys, name):
    LookupResult = hosts.LookupResult
    context, steps = host.begin(name), 0
    began = time.perf_counter()
    first = None
    while True:
        steps += 1
        answers = [host.manager.lookup(k, context) for k in keys]
        assert LookupResult.MISS not in answers, "a block is not found"
        if first is None:
            first = time.perf_counter() - began
        if all(a is LookupResult.HIT for a in answers):
            break
        host.step()
        host.worker.get_finished()
        spin(STEP_S)
    found = time.perf_counter()
    spec = host.manager.prepare_load(keys, context)
    host.step()
    prepared = time.perf_counter()
    host.number += 1
    host.worker.submit_load(host.number, spec, hosts.ns(block_ids=list(range(len(keys))), group_sizes=[len(keys)], block_indices=[0]))
    del spec
    submitted = time.perf_counter()
    while not host.worker.get_finished():
        spin(STEP_S)
        host.step()
    ended = time.perf_counter()
    host.manager.complete_load(keys, context)
    host.end(context)
    return {"first lookup": first, "until found": found - began, "prepare": prepared - found, "submit": submitted - prepared,
            "load": ended - submitted, "all": ended - began, "steps": steps / 1000}


def cost(times, name, call, *arguments):
    began = time.thread_time()
    result = call(*arguments)
    times.setdefault(name, []).append(time.thread_time() - began)
    return result


def ended(host):
    while not host.worker.get_finished():
        host.step()


def costs_of_steps(host, steps, rounds):
    times = {}
    running = [host.begin(f"running {i}") for i in range(16)]
    calls = (("step: on_schedule_end", host.manager.on_schedule_end, None), ("step: get_finished", host.worker.get_finished),
             ("step: has_pending_work", host.manager.has_pending_work), ("step: get_stats", host.manager.get_stats),
             ("step: step_begins, if it loads", steps.step_begins))
    for _ in range(100 * rounds):
        for call in calls:
            cost(times, *call)
    for context in running:
        host.end(context)
    return times


def costs_of_requests(host, hosts, rounds):
    """A request that computes all its blocks, and then one that loads them."""
    times, manager, worker = {}, host.manager, host.worker
    blocks = hosts.ns(block_ids=list(range(1, BLOCKS + 1)), group_sizes=[BLOCKS], block_indices=[0])
    for i in range(rounds):
        keys = hosts.keys_of(f"costs {i}", BLOCKS)
        context = host.begin(f"computes {i}")
        setattr(context, "_kvcache_keys", keys)
        cost(times, "lookup that misses", manager.lookup, keys[0], context)
        output = cost(times, "prepare_store", manager.prepare_store, keys, context)
        cost(times, "submit_store", worker.submit_store, 10 * i, blocks, output.store_spec)
        ended(host)
        cost(times, "complete_store", manager.complete_store, keys, context)
        cost(times, "on_request_finished", manager.on_request_finished, context)
        context = host.begin(f"loads {i}")
        setattr(context, "_kvcache_keys", keys)
        said = cost(times, "lookups that hit", lambda keys=keys, c=context: [manager.lookup(k, c) for k in keys])
        while any(s is hosts.LookupResult.HIT_PENDING for s in said):
            host.step()
            said = [manager.lookup(k, context) for k in keys]
        if said[-1] is hosts.LookupResult.HIT:  # all were stored in time
            spec = cost(times, "prepare_load", manager.prepare_load, keys, context)
            cost(times, "submit_load", worker.submit_load, 10 * i + 1, spec, blocks)
            del spec
            ended(host)
            cost(times, "complete_load", manager.complete_load, keys, context)
        host.end(context)
    return times


def measure(socket):
    sys.argv[1:] = [socket, VERSION, ""]
    sys.path[:0] = [str(SOURCE / "client/python"), str(SOURCE / "tests/python")]
    import vllm_spec_host as hosts
    from kvcache.vllm import worker as steps
    hosts.N, hosts.LAYERS, hosts.PAGE = BLOCKS + 8, 32, 1024
    host, keys = hosts.Host(), hosts.keys_of("timed", BLOCKS)
    if VERSION != "0.26":
        begin = host.begin

        def begin_with_keys(name):
            context = begin(name)
            context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
            return context

        host.begin = begin_with_keys
    assert host.stored("1", keys) == BLOCKS
    times = [once(host, hosts, [bytes(bytearray(k)) for k in keys], f"round {i}") for i in range(ROUNDS)]
    for name in times[0]:
        of_all = sorted(t[name] * 1000 for t in times)
        print(f"{name:>14} {statistics.median(of_all):8.2f}   {of_all[0]:.2f} to {of_all[-1]:.2f}")
    del host.manager.prepare_load, host.manager.prepare_store  # with one GPU vLLM pickles no specifications
    for name, of_call in {**costs_of_steps(host, steps, ROUNDS), **costs_of_requests(host, hosts, ROUNDS)}.items():
        print(f"{name:>30} {statistics.median(of_call) * 1e6:8.1f} us")
    host.close()


def main():
    with tempfile.TemporaryDirectory() as folder:
        daemon = subprocess.Popen([BUILD / "daemon/kvcache-daemon", "--set", f"listen.socket={folder}/s", "--set", "listen.http=off",
                                   "--set", f"store.path={folder}/store", "--set", "store.limit=1GiB", "--set", "memory.pool=512MiB"],
                                  stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(folder + "/s"):
                assert daemon.poll() is None, "the daemon does not start"
                time.sleep(0.02)
            measure(folder + "/s")
        finally:
            daemon.kill()
            daemon.wait()


if __name__ == "__main__":
    if os.environ.get("KVCACHE_TIMES") is None:  # the library and the driver are found when the process begins
        os.environ.update(KVCACHE_TIMES="1", KVCACHE_LIBRARY=str(BUILD / "client/lib/libkvcache.so"),
                          LD_LIBRARY_PATH=str(BUILD / "tests/gpu/cuda"))
        os.execv(sys.executable, [sys.executable, *sys.argv])
    main()
