# SPDX-License-Identifier: Apache-2.0
"""Random histories of SGLang's storage backend: whatever happens to the daemon, a page that is loaded has the bytes that were stored, no call
raises or hangs, and nothing is held at the end.

A rank here calls the backend from three threads as SGLang's controller does, and reuses pages as soon as a call returns. Ranks of one
identity and of others share the daemon and the names of pages."""

import gc
import itertools
import pathlib
import random
import sys
import threading
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "engines"))

import fake_sglang  # noqa: E402
import harness  # noqa: E402
import sglang_scenarios  # noqa: E402
from engine_history import SLACK_S, Fate, Faulty, daemon_of, descriptors, held, histories, is_connected, value_of  # noqa: E402
from kvcache.sglang import identity, link, pages  # noqa: E402

pytestmark = [pytest.mark.repeated, pytest.mark.deadlines]

STEPS, FAULT_EVERY, BUSIEST, FEW_KEYS = 100, 10, 12, 4
LOOKUP_S, TIMEOUT_S, REAP_S = 0.5, 1.0, 0.05
NAMES = fake_sglang.PoolName

FORMS = {  # configuration, host pool and options of each rank
    "page_first": [(dict(tp_size=2, tp_rank=n % 2), dict(layout="page_first"), {}) for n in range(3)],
    "layer_first": [({}, dict(layout="layer_first"), {}), ({}, dict(layout="page_first"), {}), ({}, dict(layout="layer_first"), {})],
    "mla": [(dict(is_mla_model=True, tp_size=2, tp_rank=n % 2), dict(kind="mla"), {}) for n in range(3)],
    "parts": [({}, dict(layout="layer_first"), dict(part_bytes=4096)), ({}, {}, dict(part_bytes=8192)),
              ({}, dict(layout="layer_first"), dict(part_bytes=4096))],
    "copied": [({}, {}, dict(load_into=False)), ({}, dict(allocator="default"), {}), ({}, {}, dict(share=False))],
    "flat": [({}, {}, dict(interface_v1=0)), ({}, {}, {}), ({}, {}, dict(interface_v1=0))],
    "hybrid": [({}, {}, {}) for _ in range(2)],
    "canary": [({}, {}, dict(canary="first")) for _ in range(3)],
}


class Memory:
    """A host pool as SGLang uses it: pages that no call has are free, and are checked when they are used again."""

    def __init__(self, pool, owner):
        self.pool, self.owner = pool, owner
        self.host = sglang_scenarios.Host(None, pool, pool.indices)
        self.free, self.lock, self.junk = list(range(pool.page_num)), threading.Lock(), itertools.count()
        self.left = {}
        self.page_bytes = self.host.page_bytes

    def take(self, rng, count):
        with self.lock:
            rng.shuffle(self.free)
            taken = [self.free.pop() for _ in range(count)]
        for page in taken:
            self.check_untouched(page)
        return taken

    def check_untouched(self, page):
        if page in self.left:
            assert self.host.read(page) == self.left[page], f"page {page} was written to after its call had ended"

    def put_back(self, taken):
        """The engine reuses the pages at once."""
        for page in taken:
            self.left[page] = next(self.junk).to_bytes(8, "little") * (self.page_bytes // 8)
            self.host.write(page, self.left[page])
        with self.lock:
            self.free += taken

    def fill(self, taken, keys):
        for page, key in zip(taken, keys):
            self.host.write(page, value_of(self.owner, key, self.page_bytes))

    def check(self, page, key):
        assert self.host.read(page) == value_of(self.owner, key, self.page_bytes), f"wrong bytes of {self.owner} under {key}"


class Rank:
    def __init__(self, history, number, config, pool, options):
        self.history, self.number = history, number
        self.config, self.options = config, options
        self.is_flat, self.backup_skip = options.get("interface_v1") == 0, bool(config.get("is_mla_model") and config["tp_rank"])
        kind = (pool.get("kind"), pool.get("layout"), "flat" if self.is_flat else options.get("part_bytes"),
                0 if config.get("is_mla_model") else config.get("tp_rank"))
        self.owner = f"{kind}"
        self.pool = fake_sglang.HostPool(pages=48, **pool)
        self.memory = Memory(self.pool, self.owner)
        self.sides = {}
        if history.form == "hybrid":
            self.sides = {NAMES.INDEXER: Memory(fake_sglang.HostPool("mla", pages=48), "indexer"),
                          NAMES.MAMBA: Memory(fake_sglang.HostPool("mla", page_size=1, pages=48), "mamba")}
        self.busy, self.lock = [], threading.Lock()
        self.attach()

    # --- the backend ---

    def attach(self):
        options = {"socket": self.history.daemon.socket, "weights": "tests", "interface_v1": 1, "timeout_s": TIMEOUT_S,
                   "ack": self.history.ack, **self.options}
        config = fake_sglang.Config23(**self.config, extra_config=options)
        started = time.monotonic()
        self.storage = self.history.module.KvcacheStorage(config, {})
        self.storage.register_mem_pool_host(self.pool)
        for name, side in self.sides.items():
            self.storage.register_mem_host_pool_v2(side.pool, name)
        assert time.monotonic() - started < 2.0 + SLACK_S, "SGLang waited to start"
        self.threads = {what: ThreadPoolExecutor(1, f"rank{self.number}-{what}") for what in ("lookup", "load", "store")}
        self.said = dict.fromkeys(("stored", "loaded", "unstored", "unloaded"), 0)

    def detach(self, waits):
        if waits:
            self.drain()
        started, is_hung = time.monotonic(), self.history.fate.state != "up"
        if is_hung:
            closing = threading.Thread(target=self.storage.close)
            closing.start()
            harness.wait_until(lambda: self.link._closing.is_set() or not closing.is_alive(), "it closes", 30)
            self.history.fate.heal()
            closing.join()
        self.storage.close()
        assert time.monotonic() - started < (link.CLOSE_S if is_hung else 0) + 4 * TIMEOUT_S + 4 + SLACK_S
        self.drain()
        for thread in self.threads.values():
            thread.shutdown()
        self.check_counters()
        keys = self.history.keys(random.Random(1), 3)
        assert self.storage.batch_exists(keys) == 0 and self.storage.batch_get_v1(keys, self.pool.indices(range(3))) == [False] * 3

    @property
    def link(self):
        return self.storage._link

    def opened(self):
        """Returns name and fingerprint of the namespaces that this rank has."""
        return [(space.name, fields) for space, fields in self.link._opened]

    def check_counters(self):
        counts, said = self.storage.counters, self.said
        compared = counts["loaded_pages"] - said["loaded"]
        assert counts["stored_pages"] == said["stored"] and 0 <= compared <= counts["canary_checks"], (counts, said)
        assert counts["wrong_lengths"] == 0 and counts["loaded_bytes"] >= 0

    def drain(self):
        """Waits for all calls, and for those that they have had other threads make."""
        while self.busy:
            with self.lock:
                busy, self.busy = self.busy, []
            for future in busy:
                future.result(120 * harness.slow())

    def run(self, thread, call, *arguments):
        with self.lock:  # a lookup has a load made while its own future is being noted
            self.busy.append(self.threads[thread].submit(call, *arguments))

    def note_ended(self):
        with self.lock:
            ended = [f for f in self.busy if f.done()]
            self.busy = [f for f in self.busy if not f.done()]
        for future in ended:
            future.result()

    def has_room(self, waits):
        """Returns whether few calls are queued, and with `waits` waits until that is so."""
        self.note_ended()
        while len(pending := list(self.busy)) >= 4 and waits:
            wait(pending, 60 * harness.slow(), FIRST_COMPLETED)
            self.note_ended()
        return len(pending) < 4

    # --- SGLang's threads ---

    def timed(self, call, *arguments, bound=None):
        started = time.monotonic()
        said = call(*arguments)
        took = time.monotonic() - started
        assert bound is None or took < bound + SLACK_S, f"{call.__name__} took {took:.2f} s"
        return said

    def store(self, keys, prefix, seed):
        rng = random.Random(seed)
        if self.backup_skip:
            return
        epoch, history = self.history.fate.epoch, self.history
        history.stores(self.owner, keys)
        info = fake_sglang.ExtraInfo(prefix_keys=prefix if history.passes_prefix else None)
        if self.is_flat:
            good = [self.timed(self.storage.batch_set, [k], [self.tensor(value_of(self.owner, k, self.memory.page_bytes))]) for k in keys]
        else:
            taken = self.memory.take(rng, len(keys))
            self.memory.fill(taken, keys)
            good = self.timed(self.storage.batch_set_v1, keys, self.pool.indices(taken), info)
            self.memory.put_back(taken)
        assert isinstance(good, list) and len(good) == len(keys) and all(ok is True or ok is False for ok in good)
        self.said["stored"] += sum(good)
        self.said["unstored"] += len(good) - sum(good)
        history.stored(self.owner, [k for k, ok in zip(keys, good) if ok], epoch)
        if history.is_strict(epoch) and not self.options.get("canary"):
            assert all(good), (self, good, self.storage.counters)
        for name, side in self.sides.items():
            some = keys if name == NAMES.INDEXER else keys[-1:]
            taken = side.take(rng, len(some))
            side.fill(taken, some)
            history.stores(side.owner, some)
            said = self.storage.batch_set_v2([fake_sglang.PoolTransfer(name, side.pool.indices(taken), some)], info)
            side.put_back(taken)
            assert set(said) == {name} and len(said[name]) == len(some)
            self.said["stored"] += sum(said[name])
            history.stored(side.owner, [k for k, ok in zip(some, said[name]) if ok], epoch)

    @staticmethod
    def tensor(data):
        return fake_sglang.Tensor(bytearray(data))

    def lookup(self, keys, wants_load, seed):
        """Looks up, and has the other thread load what was found, as SGLang prefetches."""
        history, rng = self.history, random.Random(seed)
        epoch = history.fate.epoch
        least = history.run_of(self.owner, keys) if history.is_strict(epoch) else 0
        if self.sides:
            transfers = [fake_sglang.PoolTransfer(NAMES.INDEXER, None, keys),
                         fake_sglang.PoolTransfer(NAMES.MAMBA, None, keys[-1:], fake_sglang.PoolHitPolicy.TRAILING_PAGES)]
            said = self.timed(self.storage.batch_exists_v2, keys, transfers, bound=4 * LOOKUP_S)
            found = said.kv_hit_pages
            assert all(n <= found and keys[n - 1] in history.ever["mamba"] for n in said.restorable_prefix_pages)
            assert found == max(said.restorable_prefix_pages, default=0)
        else:
            found = self.timed(self.storage.batch_exists, keys, fake_sglang.ExtraInfo(), bound=2 * LOOKUP_S)
            if history.is_strict(epoch) and not self.options.get("canary"):
                assert found >= least, f"{found} of {len(keys)} pages are found, and {least} are stored ({self.storage.counters})"
        assert isinstance(found, int) and 0 <= found <= len(keys)
        assert history.fate.may_assume or all(k in history.ever[self.owner] for k in keys[:found]), "a page is found that was never stored"
        if found and wants_load:
            self.run("load", self.load, keys[:found], epoch, rng.random())

    def load(self, keys, epoch, seed):
        rng, history = random.Random(seed), self.history
        into = self.link.into and self.memory.pool.allocator.fds[0] is not None and self.options.get("share", True)
        bound = None if into else TIMEOUT_S
        if self.is_flat:
            rooms = [self.tensor(bytes(self.memory.page_bytes)) for _ in keys]
            said = self.timed(self.storage.batch_get, keys, rooms)
            good = [room is not None for room in said]
            for room, key in zip(said, keys):
                assert room is None or room.bytes() == value_of(self.owner, key, self.memory.page_bytes), "wrong bytes in a tensor"
        else:
            taken = self.memory.take(rng, len(keys))
            good = self.timed(self.storage.batch_get_v1, keys, self.pool.indices(taken), fake_sglang.ExtraInfo(), bound=bound)
            assert isinstance(good, list) and len(good) == len(keys) and all(ok is True or ok is False for ok in good)
            for page, key, ok in zip(taken, keys, good):
                if ok:
                    self.memory.check(page, key)
            self.memory.put_back(taken)
        self.said["loaded"] += sum(good)
        self.said["unloaded"] += len(good) - sum(good)
        history.loads += sum(good)
        if history.is_strict(epoch) and not history.fate.may_assume:
            assert all(good), f"pages were found and not loaded: {good} {[k[:8] for k in keys]} ({self.storage.counters})"
        for name, side in self.sides.items():
            some = keys if name == NAMES.INDEXER else keys[-1:]
            taken = side.take(rng, len(some))
            said = self.storage.batch_get_v2([fake_sglang.PoolTransfer(name, side.pool.indices(taken), some)])
            assert set(said) == {name} and len(said[name]) == len(some)
            for page, key, ok in zip(taken, some, said[name]):
                if ok:
                    side.check(page, key)
            self.said["loaded"] += sum(said[name])
            side.put_back(taken)
            if history.is_strict(epoch) and all(good):
                assert all(said[name]), f"pages of {name} were found and not loaded"

    def act(self, rng):
        history = self.history
        what = rng.random()
        if what < 0.45:
            keys = history.prompt(rng)
            first = rng.randrange(len(keys))
            self.run("store", self.store, keys[first:], keys[:first], rng.random())
        elif what < 0.92:
            self.run("lookup", self.lookup, history.known_prompt(rng), rng.random() < 0.8, rng.random())
        elif what < 0.96:
            assert self.storage.exists(history.prompt(rng)[0]) in (True, False)
        elif what < 0.98:
            self.storage.clear()
        else:
            stats = self.storage.get_stats()
            assert stats is not None and all(n > 0 for n in stats.prefetch_pgs + stats.backup_pgs)


class History(Faulty):
    key_of = staticmethod(identity.key_of)

    def __init__(self, module, daemon, form, seed, switches):
        self.rng = rng = random.Random(f"{form} {seed}")
        self.module, self.daemon, self.form = module, daemon, form
        self.ack, self.passes_prefix = rng.choice(["accepted", "written", "written", "durable"]), rng.random() < 0.5
        self.fate = Fate(daemon, rng, switches)
        self.ever, self.kept, self.lock = {}, {}, threading.Lock()
        for owner in ("mamba", "indexer"):
            self.ever[owner], self.kept[owner] = set(), set()
        self.prompts, self.loads, self.numbers = [], 0, itertools.count()
        self.ranks = []
        for number, (config, pool, options) in enumerate(FORMS[form]):
            self.ranks.append(Rank(self, number, config, pool, options))

    # --- the model ---

    def keys(self, rng, count):
        return [rng.randbytes(32).hex() for _ in range(count)]

    def prompt(self, rng):
        """Returns the pages of a prompt, which often continues an earlier one."""
        keys = []
        if self.prompts and rng.random() < 0.85:
            keys = rng.choice(self.prompts[-8:])
            keys = keys[:rng.randint(1, len(keys))]
        if not keys or rng.random() < 0.4:
            keys = [*keys, *self.keys(rng, rng.randint(1, 5))][:BUSIEST]
        self.prompts.append(keys)
        return keys

    def known_prompt(self, rng):
        return rng.choice(self.prompts[-12:]) if self.prompts and rng.random() < 0.8 else self.prompt(rng)

    def stores(self, owner, keys):
        with self.lock:
            self.ever.setdefault(owner, set()).update(keys)

    def stored(self, owner, keys, epoch):
        with self.lock:
            if self.fate.is_still(epoch):
                self.kept.setdefault(owner, set()).update(keys)

    def run_of(self, owner, keys):
        with self.lock:
            kept = self.kept.get(owner, set())
            return next((i for i, k in enumerate(keys) if k not in kept), len(keys))

    def forget(self, keeps=lambda owner, key: False):
        with self.lock:
            for owner, kept in self.kept.items():
                self.kept[owner] = {k for k in kept if keeps(owner, k)}

    def members(self):
        return self.ranks

    def opened(self, rank):
        return rank.opened()

    # --- what happens ---

    def everyone(self, steps):
        for _ in range(steps):
            for rank in self.ranks:
                if self.rng.random() < 0.8 and rank.has_room(self.fate.state in ("up", "small")):
                    rank.act(self.rng)

    def drain(self):
        for rank in self.ranks:
            rank.drain()

    def each_stores_and_loads(self):
        """Has each rank store and find again, whatever has happened before."""
        for rank in self.ranks:
            if not rank.backup_skip and not rank.options.get("canary"):
                keys, loads = self.keys(self.rng, 6), self.loads
                rank.run("store", rank.store, keys, [], 0)
                rank.drain()
                rank.run("lookup", rank.lookup, keys, True, 0)
                rank.drain()
                assert self.loads == loads + 6, rank.storage.counters

    def comes_to_rest(self):
        self.drain()
        for rank in self.ranks:
            harness.wait_until(lambda: is_connected(rank.link), lambda: f"a rank finds the daemon well: {rank.storage.counters}", 30)
        harness.wait_until(lambda: self.fate.rests([r.link for r in self.ranks]), lambda: f"the daemon rests: {self.fate.unrest()} after {self.fate.counts}", 30)
        self.fate.settled()

    def replace(self):
        """Ends a rank, often while calls are in flight, and starts it again over the same memory."""
        at = self.rng.randrange(len(self.ranks))
        rank = self.ranks[at]
        rank.detach(self.fate.state not in ("stopped", "slow") and self.rng.random() < 0.5)
        rank.attach()


@pytest.fixture
def module():
    yield fake_sglang.install()
    fake_sglang.remove()


@pytest.fixture
def impatient(monkeypatch):
    for part in (link, pages):
        monkeypatch.setattr(part, "LOOKUP_S", LOOKUP_S)
    monkeypatch.setattr(link, "REAP_S", REAP_S)


def run(module, daemon, form, seed, switches=None):
    history = History(module, daemon, form, seed, switches)
    rng = history.rng
    history.comes_to_rest()
    try:
        for step in range(STEPS):
            history.everyone(1)
            if step % FAULT_EVERY == FAULT_EVERY - 1:
                history.fault()
        history.comes_to_rest()
        history.each_stores_and_loads()
        for rank in history.ranks:
            rank.check_counters()
            assert not rank.storage.counters["errors"], rank.storage.counters
            for memory in (rank.memory, *rank.sides.values()):
                assert len(memory.free) == memory.pool.page_num
                for page in range(memory.pool.page_num):
                    memory.check_untouched(page)
        assert history.loads or form == "canary", f"the history loads nothing: {[r.storage.counters for r in history.ranks]}"
        harness.wait_until(lambda: history.fate.rests([r.link for r in history.ranks]), lambda: f"the daemon rests: {history.fate.unrest()}")
        if form in ("page_first", "layer_first", "mla", "parts", "hybrid") and history.fate.counts.get("small", 0) == 0:
            for rank in history.ranks:
                counts = rank.storage.counters
                assert counts["copied_stores"] == 0 and counts["copied_loads"] == 0, counts
    finally:
        if history.fate.state != "up":
            history.fate.heal()
        for rank in history.ranks:
            rank.storage.close()
            for thread in rank.threads.values():
                thread.shutdown(wait=False)
    harness.wait_until(lambda: history.fate.rests([]), lambda: f"the sessions end: {history.fate.unrest()}")
    for rank in history.ranks:
        rank.pool.close()
        for side in rank.sides.values():
            side.pool.close()
    print(f"{history.loads} pages loaded, {history.fate.counts}", file=sys.stderr)


def ends_cleanly(play):
    """Calls play(), after which neither a thread nor a descriptor is left."""
    before = threading.active_count(), descriptors()
    play()
    gc.collect()
    harness.wait_until(lambda: threading.active_count() <= before[0] and len(descriptors()) <= len(before[1]),
                       lambda: f"threads and descriptors {before}, and now {threading.enumerate(), descriptors()}")


@pytest.mark.parametrize("form, world, seed", histories(FORMS))
def test_pages_have_the_bytes_that_were_stored(form, world, seed, module, make_daemon, directory, impatient, monkeypatch):
    if seed % 2:  # requests of more keys have several messages and rounds
        monkeypatch.setattr(pages, "MOST_KEYS", FEW_KEYS)
    daemon, switches = daemon_of(make_daemon, directory, world)
    ends_cleanly(lambda: run(module, daemon, form, seed, switches))


@pytest.mark.parametrize("form", ["page_first", "copied"])
def test_twenty_restarts_leave_nothing(form, module, make_daemon, impatient):
    daemon = make_daemon().start()

    def play():
        history = History(module, daemon, form, 1, None)
        counts = []
        for _ in range(20):
            history.everyone(2)
            history.fate.befall("restart")
            history.forget()  # a kill may lose what is only accepted
            history.comes_to_rest()
            history.each_stores_and_loads()
            counts.append(held())
        few, more = counts[9], counts[-1]  # a connection that ended may keep a descriptor for a while
        assert more[0] <= few[0] and more[1] <= few[1] + 6, f"threads and descriptors {counts}"
        for rank in history.ranks:
            rank.detach(True)
            rank.pool.close()

    ends_cleanly(play)
