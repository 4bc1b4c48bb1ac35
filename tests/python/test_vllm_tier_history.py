# SPDX-License-Identifier: Apache-2.0
"""Random histories of vLLM's tier: whatever happens to the daemon, a row that is loaded has the bytes that were stored, the engine's thread
neither waits nor sees an exception, every job is reported once, and nothing is held at the end.

The engine is that of fake_vllm.py. All calls come from one thread, beside the tier's own."""

import gc
import itertools
import pathlib
import random
import sys
import threading
import time

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "engines"))

import fake_vllm  # noqa: E402
import harness  # noqa: E402
from engine_history import SLACK_S, Fate, Faulty, daemon_of, descriptors, histories  # noqa: E402
from kvcache.vllm import identity, transfers  # noqa: E402
from vllm_scenarios import value_of  # noqa: E402

pytestmark = [pytest.mark.repeated, pytest.mark.deadlines]

STEPS, FAULT_EVERY, MOST_PROMPT = 160, 16, 10
STALL_S, TIMEOUT_S = 0.5, 1.0
FORMS = {  # version, options of each engine
    "0.26": [((0, 26), {})] * 2,
    "0.33": [((0, 33), {})] * 2,
    "parts": [((0, 33), dict(part_bytes=4096 * 3))] * 2,
    "auto": [((0, 33), dict(load_policy="auto", prefill_tokens_per_s=1000.0))] * 2,
}


class Engine:
    def __init__(self, history, version, options):
        self.history, self.version, self.options, self.numbers = history, version, options, itertools.count()
        self.start()

    def start(self):
        options = {"socket": self.history.daemon.socket, "timeout_s": TIMEOUT_S, "ack": self.history.ack, **self.options}
        self.host = fake_vllm.Host(self.version, self.history.module(self.version).KvcacheTier, **options)
        self.requests = []  # (context, keys), waiting for their loads
        self.stored = self.loaded = 0

    @property
    def transfers(self):
        return self.host.tier._transfers

    def request(self, keys):
        self.requests.append((self.host.begin(f"r{next(self.numbers)}"), keys))

    def advance(self, context, keys):
        """Looks up the request's chunks. Returns whether it has ended: those that are not loaded were computed, and stored."""
        said = self.host.lookup(keys, context)
        if "RETRY" in said:
            return False
        run = next((i for i, s in enumerate(said) if s != "HIT"), len(said))
        assert self.history.fate.may_assume or all(k in self.history.ever for k in keys[:run]), "a chunk is found that was never stored"
        for key, got in self.host.load(keys[:run], context).items():
            assert got == value_of(key, self.host.row), f"wrong bytes under {key.hex()}"
        self.history.loads += run
        if run < len(keys) and self.has_rows(len(keys)):
            self.history.ever.update(keys)
            self.host.store({k: value_of(k, self.host.row) for k in keys[run:]}, context)
        self.host.finish(context)
        return True

    def has_rows(self, count):
        idle = sum(h[1] and not h[2] for h in self.host.held.values())
        return len(self.host.free) + idle >= count

    def step(self):
        self.requests = [r for r in self.requests if not self.advance(*r)]
        self.host.step()

    def drain(self):
        deadline = time.monotonic() + 60 * harness.slow()
        while self.requests or self.host.jobs or self.host.tier.has_pending_work():
            self.step()
            assert time.monotonic() < deadline, f"requests and jobs never end: {self.requests} {self.host.jobs}"

    def reset(self):
        """Forgets the primary tier's rows. vLLM preempts the requests first."""
        for context, _ in self.requests:
            self.host.finish(context)
        self.requests = []
        self.host.reset()

    def close(self):
        for context, _ in self.requests:
            self.host.finish(context)
        started = time.monotonic()
        self.host.close()
        assert time.monotonic() - started < 2.0 + 5.0 + TIMEOUT_S + SLACK_S
        self.host.map.close()


class History(Faulty):
    MOST_STEPS = 20

    def __init__(self, daemon, form, seed, switches):
        self.rng = rng = random.Random(f"tier {form} {seed}")
        self.daemon, self.form, self.installed = daemon, form, {}
        self.ack = rng.choice(["accepted", "written", "durable"])
        self.fate = Fate(daemon, rng, switches)
        self.ever, self.prompts, self.loads = set(), [], 0
        self.engines = [Engine(self, *how) for how in FORMS[form]]

    def module(self, version):
        if version not in self.installed:
            self.installed[version] = fake_vllm.install(version)
        return self.installed[version]

    def prompt(self):
        rng, keys = self.rng, []
        if self.prompts and rng.random() < 0.9:
            keys = rng.choice(self.prompts[-12:])
            keys = keys[:rng.randint(1, len(keys))]
        if not keys or rng.random() < 0.5:
            keys = [*keys, *(rng.randbytes(32) + bytes(4) for _ in range(rng.randint(1, 4)))][:MOST_PROMPT]
        self.prompts.append(keys)
        return keys

    def everyone(self, steps):
        for _ in range(steps):
            for engine in self.engines:
                if self.rng.random() < 0.6 and len(engine.requests) < 3 and engine.has_rows(3 * MOST_PROMPT):
                    engine.request(self.prompt())
                engine.step()
                if self.rng.random() < 0.2 and self.fate.state in ("up", "small"):
                    engine.reset()

    def comes_to_rest(self):
        for engine in self.engines:
            engine.drain()
            harness.wait_until(lambda: (engine.host.step(), engine.transfers.well)[1], "an engine finds the daemon well", 30)
        harness.wait_until(lambda: self.daemon.status()["sessions"]["leases"] == 0, lambda: f"nothing is leased: {self.fate.unrest()}")

    def each_stores_and_loads(self):
        for engine in self.engines:
            keys = [self.rng.randbytes(32) + bytes(4) for _ in range(4)]

            def has_loaded():
                engine.reset()
                engine.request(keys)
                engine.drain()
                loads = self.loads
                engine.reset()
                engine.request(keys)
                engine.drain()
                return self.loads > loads

            harness.wait_until(has_loaded, "an engine stores and finds again", 30)

    def members(self):
        return self.engines

    def opened(self, engine):
        return [(engine.transfers._namespaces[0].name, engine.transfers._fields)]

    @staticmethod
    def key_of(key):
        return identity.parts_of(key, 1)[0]

    def replace(self):
        engine = self.rng.choice(self.engines)
        engine.close()
        engine.start()


def run(daemon, form, seed, switches):
    history = History(daemon, form, seed, switches)
    try:
        history.comes_to_rest()
        for step in range(STEPS):
            history.everyone(1)
            if step % FAULT_EVERY == FAULT_EVERY - 1:
                history.fault()
        history.comes_to_rest()
        if form != "auto":
            history.each_stores_and_loads()
            assert history.loads, "the history loads nothing"
        for engine in history.engines:
            assert not engine.host.tier._requests and not engine.host.tier._loads and engine.transfers.queued_bytes == 0
            assert engine.host.slowest_s < 0.5 + SLACK_S, f"the engine's thread waited {engine.host.slowest_s:.2f} s"
    finally:
        if history.fate.state != "up":
            history.fate.heal()
        for engine in history.engines:
            engine.close()
    print(f"{history.loads} rows loaded, {history.fate.counts}", file=sys.stderr)


@pytest.mark.parametrize("form, world, seed", histories(FORMS))
def test_rows_have_the_bytes_that_were_stored(form, world, seed, make_daemon, directory, monkeypatch):
    monkeypatch.setattr(transfers, "STALL_S", STALL_S)
    daemon, switches = daemon_of(make_daemon, directory, world)
    before = threading.active_count(), descriptors()
    try:
        run(daemon, form, seed, switches)
    finally:
        fake_vllm.remove()
    gc.collect()
    harness.wait_until(lambda: threading.active_count() <= before[0] and len(descriptors()) <= len(before[1]),
                       lambda: f"threads and descriptors {before}, and now {threading.enumerate(), descriptors()}")
