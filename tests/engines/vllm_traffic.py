# SPDX-License-Identifier: Apache-2.0
"""Measures traffic on a GPU: real vLLM with random weights of the Llama-3.1-8B shape. One process is one engine:

    vllm_traffic.py policy | none | cpu | fs | kvcache | spec | spec-killed

policy: our spec, with prompts of 256 to 16,384 tokens ($LENGTHS) that are stored in the daemon's memory or only on its disk. Computing them,
loading them, and the choice of load_policy "auto" alternate ($ROUNDS); auto learns nothing from loads that it did not choose.

The others have a GPU cache of 36,864 tokens. They measure the time between tokens while 8 requests decode and their blocks are stored
($TURNS), and then 200 requests of the conversation trace ($TRACE), one after the other; with spec-killed, the daemon is killed in the middle
of them. The output has lines "figure NAME ..."; the tokens of the 200 requests go to $OUT/tokens-KIND.json.
"""

import contextlib
import copy
import gc
import json
import os
import pathlib
import random
import signal
import statistics
import sys
import time

from vllm_gpu import engine

LENGTHS = tuple(map(int, os.environ.get("LENGTHS", "256 512 1024 2048 4096 8192 16384").split()))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
TURNS = int(os.environ.get("TURNS", "12"))  # turns of 253 steps: 30 steps of 12 turns are above the p99, but only 2 of a single turn
REQUESTS, BLOCK = 200, 64  # the trace's blocks have 512 tokens, eight of these
GPU_BLOCKS = 2304


def sampling(count):
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)


def prompt_of(seed, count):
    numbers = random.Random(seed)
    return [numbers.randrange(10, 128000) for _ in range(count)]


class Engine:
    def __init__(self, kind, **how):
        self.llm = engine(kind, **how)
        self.fresh = 10**6
        self.ask(self.new_prompt(256))

    def new_prompt(self, count):
        self.fresh += 1
        return prompt_of(self.fresh, count)

    def ask(self, tokens, count=8):
        out = self.llm.generate([dict(prompt_token_ids=tokens)], sampling(count), use_tqdm=False)[0]
        return out.metrics.first_token_latency * 1e3, list(out.outputs[0].token_ids), out.num_cached_tokens

    def settle(self):
        for _ in range(4):
            self.ask(self.new_prompt(32), 3)

    def forget_all(self):
        for _ in range(50):
            if self.llm.reset_prefix_cache(reset_connector=True):
                return
            self.settle()
        raise RuntimeError("vLLM does not reset its prefix cache")


# --- is loading worth it? ---


class Stored:
    """The keys that the spec's manager stores, and their tiers."""

    def __init__(self):
        from kvcache.vllm import identity, spec

        self.keys, self.manager = set(), None
        prepare, stored = spec.KvcacheManager.prepare_store, self

        def watch(manager, keys, context):
            stored.manager = manager
            stored.keys.update(identity.parts_of(k, 1)[0] for k in keys)
            return prepare(manager, keys, context)

        spec.KvcacheManager.prepare_store = watch

    def tiers(self, keys, on_disk_only):
        """Waits until the keys are stored, with `on_disk_only` until none is in memory. Returns their tiers."""
        [[space]] = self.manager._promises._namespaces.values()
        deadline = time.monotonic() + 20
        while True:
            if on_disk_only:
                space.evict(keys, memory_only=True)
            where = space.tiers(keys)
            if not on_disk_only or not any(t & 1 for t in where) or time.monotonic() > deadline:
                return where
            time.sleep(0.02)


def policy():
    stored = Stored()
    it = Engine("spec", most_tokens=17408, policy="auto")
    from kvcache.vllm.policy import LoadPolicy

    @contextlib.contextmanager
    def forced():
        """Makes the policies load everything and learn nothing from it, because auto is measured with what it has learned itself."""
        known = [(o, copy.deepcopy(vars(o))) for o in gc.get_objects() if isinstance(o, LoadPolicy)]
        for one, _ in known:
            one.always = True
        yield
        for one, before in known:
            vars(one).update(before)

    def measure(tokens, keys, on_disk_only):
        it.forget_all()
        where = stored.tiers(keys, on_disk_only)
        ms, _, cached = it.ask(tokens)
        it.settle()
        return ms, cached, sum(t == 2 if on_disk_only else t & 1 for t in where)

    for length in LENGTHS:
        tokens = it.new_prompt(length)
        stored.keys.clear()
        it.ask(tokens)
        it.settle()
        keys = list(stored.keys)[:length // 16 + 8]
        for tier in ("memory", "disk"):
            times = {"prefill": [], "loading": [], "auto": []}
            cached = {"loading": [], "auto": []}
            for turn in range(ROUNDS):
                it.forget_all()
                times["prefill"].append(it.ask(it.new_prompt(length))[0])
                it.settle()
                for name in ("loading", "auto")[::1 if turn % 2 else -1]:
                    with forced() if name == "loading" else contextlib.nullcontext():
                        ms, hit, there = measure(tokens, keys, tier == "disk")
                    times[name].append(ms)
                    cached[name].append(hit)
            middle = {name: statistics.median(of) for name, of in times.items()}
            print(f"figure policy {length} {tier}: prefill {middle['prefill']:.1f} loading {middle['loading']:.1f} (cached {min(cached['loading'])})"
                  f" auto {middle['auto']:.1f} (cached {' '.join(map(str, cached['auto']))}), {middle['auto'] / min(middle['prefill'], middle['loading']):.2f} of the"
                  f" better; {there} of {len(keys)} keys there", flush=True)
    for one in (o for o in gc.get_objects() if isinstance(o, LoadPolicy)):
        print(f"figure learned: prefill {one.prefill:.0f} tokens/s, a step {one.step_s * 1e3:.1f} ms, overhead"
              f" {one.overhead_s * 1e3:.1f} ms, memory {one.rates[0] / 1e9:.2f} GB/s, disk {one.rates[1] / 1e9:.2f} GB/s")


# --- decoding, and the trace ---


def decode(it, kind):
    """Measures the time between the tokens of 8 requests while all of them decode."""
    core = it.llm.llm_engine
    highest, every = [], []
    for turn in range(TURNS + 1):
        names = [f"decode-{turn}-{i}" for i in range(8)]
        for name in names:
            core.add_request(name, dict(prompt_token_ids=it.new_prompt(2048)), sampling(256))
        begun, times, last = set(), [], None
        while core.has_unfinished_requests():
            outputs = [o for o in core.step() if o.request_id in names]
            now = time.perf_counter()
            if last is not None and len(outputs) == 8:
                times.append((now - last) * 1e3)
            begun |= {o.request_id for o in outputs if o.outputs and o.outputs[0].token_ids}
            last = now if len(begun) == 8 else None
        if turn:  # the first turn warms up
            times.sort()
            highest.append(times[len(times) * 99 // 100])
            every += times
        it.settle()
    every.sort()
    print(f"figure decode {kind}: p50 {statistics.median(every):.2f} p99 {every[len(every) * 99 // 100]:.2f} of {len(every)} steps; p99 of"
          f" {TURNS} turns {min(highest):.2f} to {max(highest):.2f}, the middle one {statistics.median(highest):.2f}", flush=True)


def requests():
    """Returns the requests of sessions with at least four turns, in the trace's order."""
    rows = [json.loads(line) for line in open(os.environ["TRACE"])]
    owner, session = {}, []
    for i, row in enumerate(rows):
        ids, n = row["hash_ids"], 0
        while n < len(ids) and ids[n] in owner:
            n += 1
        session.append(owner[ids[n - 1]] if n > 1 else i)
        for one in ids:
            owner.setdefault(one, session[-1])
    turns = {s: session.count(s) for s in set(session)}
    return [[t for one in row["hash_ids"] for t in prompt_of(one, BLOCK)] for s, row in zip(session, rows) if turns[s] >= 4][:REQUESTS]


def killed_daemon():
    pid = pathlib.Path(os.environ["DAEMON_PID"])
    os.kill(int(pid.read_text()), signal.SIGKILL)


def trace(it, kind):
    it.forget_all()
    answers, latencies, cached = [], [], 0
    prompts = requests()
    began = time.monotonic()
    for n, tokens in enumerate(prompts):
        if kind.endswith("-killed") and n == len(prompts) // 2:
            killed_daemon()
        ms, said, hit = it.ask(tokens)
        answers.append(said)
        latencies.append(ms)
        cached += hit
    total = time.monotonic() - began
    latencies.sort()
    print(f"figure trace {kind}: {len(prompts)} requests, {sum(map(len, prompts))} tokens, {cached} cached, {total:.1f} s in all, to the first"
          f" token mean {statistics.mean(latencies):.1f} p50 {statistics.median(latencies):.1f} p90 {latencies[len(prompts) * 9 // 10]:.1f} ms",
          flush=True)
    (pathlib.Path(os.environ.get("OUT", ".")) / f"tokens-{kind}.json").write_text(json.dumps(answers))


def traffic(kind):
    it = Engine(kind.partition("-")[0], most_tokens=16384, cpu_bytes=12 << 30, policy="auto", num_gpu_blocks_override=GPU_BLOCKS)
    if not kind.endswith("-killed"):
        decode(it, kind)
    trace(it, kind)


if __name__ == "__main__":
    policy() if sys.argv[1] == "policy" else traffic(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)
