# SPDX-License-Identifier: Apache-2.0
"""Random histories of LMCache's adapter: whatever happens to the daemon, an object that is loaded has the bytes that were stored, no call
raises or waits, LMCache's accounts agree with the daemon, and nothing is held at the end.

A server here submits tasks as LMCache's controllers do, takes their results when a descriptor wakes it, and reuses memory at once. Servers of
one layout and of others share the daemon and the keys."""

import collections
import ctypes
import gc
import itertools
import os
import pathlib
import random
import select
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "engines"))

import fake_lmcache  # noqa: E402
import harness  # noqa: E402
import kvcache  # noqa: E402
from engine_history import SLACK_S, Fate, Faulty, daemon_of, descriptors, held, histories, is_connected, value_of  # noqa: E402
from kvcache.lmcache import identity  # noqa: E402
from kvcache.sglang import link, pages  # noqa: E402
from lmcache_scenarios import fill, name_of  # noqa: E402

pytestmark = [pytest.mark.repeated, pytest.mark.deadlines]

STEPS, FAULT_EVERY, BUSIEST, FEW_KEYS = 240, 20, 8, 4
LOOKUP_S, TIMEOUT_S, REAP_S = 0.5, 1.0, 0.05
PLACES, PLACE = 64, 16384
MODEL = "tests/model"

# the servers of a history: version, layouts by group of layers, options, whether the memory is private
FORMS = {
    "plain": [("0.5.6", ["plain"], {}, False)] * 2 + [("0.5.6", ["other type"], {}, False)],
    "groups": [("0.5.6", ["plain", "longer"], {}, False)] * 2,
    "old": [("0.5.0", ["plain"], {}, False), ("0.5.6", ["plain"], {}, False)],
    "parts": [("0.5.6", ["plain", "longer"], dict(part_bytes=4096, threads=1), False)] * 2,
    "private": [("0.5.6", ["plain"], {}, True), ("0.5.6", ["plain"], dict(share=False), False)],
    "unnamed": [("0.5.6", ["plain"], dict(adapter=None), False)] * 2,
}


class Listener:
    """LMCache's accounts by notification."""

    def __init__(self):
        self.sizes, self.lock, self.accessed = collections.Counter(), threading.Lock(), 0

    def on_l2_keys_stored(self, keys, sizes):
        with self.lock:
            for key in keys:
                assert not self.sizes[key], f"{key} was stored twice"
                self.sizes[key] += 1

    def on_l2_keys_accessed(self, keys):
        assert keys
        with self.lock:
            self.accessed += len(keys)

    def on_l2_keys_deleted(self, keys):
        with self.lock:
            for key in keys:
                assert self.sizes[key] == 1, f"{key} was deleted and not stored"
                del self.sizes[key]

    def keys(self):
        with self.lock:
            return set(self.sizes)


class Server:
    def __init__(self, history, number, version, layouts, options, private):
        self.history, self.number, self.version, self.layouts = history, number, version, layouts
        self.options, self.private, self.rng = options, private, random.Random(history.rng.random())
        self.memory, self.path = fake_lmcache.arena_of(PLACES * PLACE, private)
        self.free, self.left, self.junk = list(range(PLACES)), {}, itertools.count()
        self.start()

    def start(self):
        desc = fake_lmcache.L1MemoryDesc(ctypes.addressof(ctypes.c_char.from_buffer(self.memory)), PLACES * PLACE)
        options = {"socket": self.history.daemon.socket, "weights": "tests", "adapter": "none", "timeout_s": TIMEOUT_S, "ack": self.history.ack,
                   **self.options}
        started = time.monotonic()
        module = self.history.modules(self.version)
        self.adapter = module.KvcacheL2Adapter(options, l1_memory_desc=desc)
        assert time.monotonic() - started < 4.0 + SLACK_S
        self.listener = Listener()
        self.adapter.register_listener(self.listener)
        self.tasks = {"store": {}, "lookup": {}, "load": {}}
        self.due = {}  # when the results of lookups and loads are there, whatever the daemon does
        self.fds = {self.adapter.get_store_event_fd(): self.take_stores, self.adapter.get_lookup_and_lock_event_fd(): self.take_lookups,
                    self.adapter.get_load_event_fd(): self.take_loads}
        assert len(self.fds) == 3
        self.poll = select.poll()
        for fd in self.fds:
            self.poll.register(fd, select.POLLIN)
        self.evicting, self.evictions = ThreadPoolExecutor(1, f"evict{self.number}"), []
        self.said = dict.fromkeys(("stored", "loaded", "lookups", "hits"), 0)

    @property
    def link(self):
        return self.adapter._link

    def opened(self):
        return [(space.name, fields) for space, fields in self.link._opened if not space.name.endswith("/probe")]

    def layout(self, key):
        return self.layouts[key.object_group_id % len(self.layouts)]

    def owner(self, key):
        """Returns whose bytes these are: private namespaces are of one start of one server."""
        return f"{self.layout(key)} {self.options.get('part_bytes')}" + (f" {id(self.adapter)}" if "adapter" in self.options else "")

    def call(self, call, *arguments, bound=0.0):
        started = time.monotonic()
        said = call(*arguments)
        took = time.monotonic() - started
        assert took < bound + SLACK_S, f"{call.__name__} took {took:.2f} s of a controller of LMCache"
        return said

    # --- memory ---

    def object(self, key, place):
        return fake_lmcache.MemoryObj(self.memory, place * PLACE, self.layout(key))

    def untouched(self, place):
        if place in self.left:
            assert self.memory[place * PLACE:(place + 1) * PLACE] == self.left[place], f"place {place} was written to after its task had ended"

    def take(self, count):
        taken = [self.free.pop(self.rng.randrange(len(self.free))) for _ in range(count)]
        for place in taken:
            self.untouched(place)
        return taken

    def put_back(self, places):
        for place in places:
            self.left[place] = next(self.junk).to_bytes(8, "little") * (PLACE // 8)
            self.memory[place * PLACE:(place + 1) * PLACE] = self.left[place]
        self.free += places

    # --- the controllers ---

    @property
    def pending(self):
        return sum(map(len, self.tasks.values()))

    def store(self, keys):
        if len(keys) > len(self.free):
            return
        places, epoch = self.take(len(keys)), self.history.fate.epoch
        objects = [self.object(k, p) for k, p in zip(keys, places)]
        for key, thing in zip(keys, objects):
            fill(thing, value_of(self.owner(key), name_of(key), len(thing.byte_array)))
        self.history.stores(self, keys)
        task = self.call(self.adapter.submit_store_task, keys, objects)
        self.tasks["store"][task] = keys, objects, places, epoch

    def take_stores(self):
        for task, result in self.adapter.pop_completed_store_tasks().items():
            keys, objects, places, epoch = self.tasks["store"].pop(task)
            whole = sum(len(o.byte_array) for o in objects)
            if result.is_successful():
                assert result.bytes_transferred() == whole
                self.history.stored(self, keys, epoch)
            if self.history.is_strict(epoch):
                assert result.is_successful(), f"a store failed: {self.adapter.counters}"
            self.put_back(places)

    def lookup(self, keys, then_load):
        layouts = {g: fake_lmcache.layout_of(name) for g, name in enumerate(self.layouts)}
        if self.version == "0.5.0":
            layouts = layouts[0]
        epoch = self.history.fate.epoch
        least = [self.history.is_kept(self, k) for k in keys] if self.history.is_strict(epoch) else [False] * len(keys)
        task = self.call(self.adapter.submit_lookup_and_lock_task, keys, layouts, bound=LOOKUP_S)
        self.tasks["lookup"][task] = keys, epoch, least, then_load
        self.due["lookup", task] = time.monotonic() + 2 * TIMEOUT_S + SLACK_S  # a layout's first one opens its namespace

    def take_lookups(self):
        for task in list(self.tasks["lookup"]):
            bits = self.adapter.query_lookup_and_lock_result(task)
            if bits is None:
                continue
            keys, epoch, least, then_load = self.tasks["lookup"].pop(task)
            assert self.due.pop(("lookup", task)) > time.monotonic(), "a lookup took too long"
            found = [bits.test(i) for i in range(len(keys))]
            self.said["lookups"] += len(keys)
            self.said["hits"] += sum(found)
            assert self.history.fate.may_assume or all(self.history.was_stored(self, k) for k, ok in zip(keys, found) if ok), "an object is found that was never stored"
            if self.history.is_strict(epoch):
                assert all(ok for ok, kept in zip(found, least) if kept), f"objects are stored and not found: {found} {least} {self.adapter.counters}"
            hits = [k for k, ok in zip(keys, found) if ok]
            if then_load and hits and len(hits) <= len(self.free):
                places = self.take(len(hits))
                objects = [self.object(k, p) for k, p in zip(hits, places)]
                number = self.call(self.adapter.submit_load_task, hits, objects)
                self.tasks["load"][number] = hits, objects, places, epoch
                self.due["load", number] = time.monotonic() + 3 * TIMEOUT_S + SLACK_S  # behind others
            elif hits:
                self.adapter.submit_unlock(hits)

    def take_loads(self):
        for task in list(self.tasks["load"]):
            bits = self.adapter.query_load_result(task)
            if bits is None:
                continue
            keys, objects, places, epoch = self.tasks["load"].pop(task)
            assert self.due.pop(("load", task)) > time.monotonic(), "a load took too long"
            good = [bits.test(i) for i in range(len(keys))]
            for key, thing, ok in zip(keys, objects, good):
                if ok:
                    assert bytes(thing.byte_array) == value_of(self.owner(key), name_of(key), len(thing.byte_array)), f"wrong bytes under {key}"
            self.said["loaded"] += sum(good)
            self.history.loads += sum(good)
            if self.history.is_strict(epoch) and not self.history.fate.may_assume:
                assert all(good), f"objects were found and not loaded: {good} kept {[self.history.is_kept(self, k) for k in keys]} {self.adapter.counters}"
            self.adapter.submit_unlock(keys)
            self.put_back(places)

    def controllers(self, wait_s=0.0):
        """Takes results as events say that there are some."""
        now = time.monotonic()
        assert all(due > now for due in self.due.values()), f"tasks have no result in time: {self.tasks} {self.adapter.counters}"
        for fd, _ in self.poll.poll(wait_s * 1000):
            os.eventfd_read(fd)
            self.fds[fd]()

    def drain(self):
        deadline = time.monotonic() + 60 * harness.slow()
        while self.pending:
            self.controllers(1.0)
            assert time.monotonic() < deadline, f"tasks have no result: {self.tasks} {self.adapter.counters}"
        evictions, self.evictions = self.evictions, []
        for one in evictions:
            one.result(60 * harness.slow())

    def act(self):
        rng, history = self.rng, self.history
        what = rng.random()
        if what < 0.4:
            self.store(history.prompt(rng, self))
        elif what < 0.88:
            self.lookup(history.known_prompt(rng, self), rng.random() < 0.8)
        elif what < 0.93 and history.deletes:
            keys = history.known_prompt(rng, self)
            history.forget(lambda owner, key: key not in keys)
            history.fate.changes()
            self.evictions.append(self.evicting.submit(self.delete, keys))
        elif what < 0.96:
            self.evictions.append(self.evicting.submit(self.listing))
        else:
            usage, status = self.call(self.adapter.get_usage), self.call(self.adapter.report_status)
            assert usage.total_bytes_used >= 0 and status["held_bytes"] >= 0

    def delete(self, keys):
        self.call(self.adapter.delete, keys, bound=TIMEOUT_S * len(self.layouts) + LOOKUP_S)

    def listing(self):
        listed, cursor = [], None
        while True:
            page = self.call(self.adapter.list_l2_keys, MODEL, 7, cursor, bound=LOOKUP_S)
            assert len({e.key for e in page.entries}) == len(page.entries) <= 7 * len(self.layouts)
            listed += page.entries  # an object that was dropped and stored meanwhile is listed twice
            cursor = page.next_page_token
            if cursor is None:
                break
        assert all(e.size_bytes > 0 for e in listed)

    # --- its end ---

    def close(self, waits):
        """Ends the adapter. The caller lets a daemon go on that hangs."""
        if waits:
            self.drain()
        started, is_hung = time.monotonic(), self.history.fate.state != "up"
        if is_hung:
            closing = threading.Thread(target=self.adapter.close)
            closing.start()
            harness.wait_until(lambda: self.link._closing.is_set() or not closing.is_alive(), "it closes", 30)
            self.history.fate.heal()
            closing.join()
        self.adapter.close()
        took = time.monotonic() - started
        assert took < (link.CLOSE_S if is_hung else 0) + 8 * TIMEOUT_S + 5 + SLACK_S, f"close() took {took:.2f} s"
        for one in self.evictions:
            one.result(60 * harness.slow())
        self.evicting.shutdown()
        for kind in ("store", "load"):  # LMCache frees its memory now
            for _, _, places, _ in self.tasks[kind].values():
                self.put_back(places)
        if waits:
            counts = self.adapter.counters
            assert counts["lookups"] == self.said["lookups"] and counts["hits"] == self.said["hits"], (counts, self.said)
            assert counts["loaded_pages"] == self.said["loaded"] and not counts["errors"], (counts, self.said)
            assert self.listener.accessed == counts["hits"], f"{self.listener.accessed} accesses are notified of {counts['hits']} hits"
        task = self.adapter.submit_lookup_and_lock_task([self.history.keys(1, self.rng, 1)[0]], {0: fake_lmcache.layout_of("plain")})
        assert self.adapter.query_lookup_and_lock_result(task).popcount() == 0

    def free_memory(self):
        for place in range(PLACES):
            self.untouched(place)
        if self.path:
            os.unlink(self.path)


class History(Faulty):
    MOST_STEPS, MOST_EVICTED = 10, 6
    key_of = staticmethod(identity.key_of)

    def __init__(self, daemon, form, seed, switches):
        self.rng = rng = random.Random(f"{form} {seed}")
        self.daemon, self.form, self.deletes = daemon, form, rng.random() < 0.5
        self.ack = rng.choice(["accepted", "written", "written", "durable"])
        self.fate = Fate(daemon, rng, switches)
        self.ever, self.kept, self.lock = set(), set(), threading.Lock()
        self.prompts, self.loads, self.models = [], 0, [MODEL]
        self.installed = {}
        self.servers = [Server(self, number, *how) for number, how in enumerate(FORMS[form])]

    def modules(self, version):
        if version not in self.installed:
            self.installed[version] = fake_lmcache.install(version)
        return self.installed[version]

    # --- the model ---

    def keys(self, groups, rng, count):
        if rng.random() < 0.03 or self.fate.state == "stopped" and rng.random() < 0.3:  # an engine with another model starts
            self.models.append(f"{MODEL} {len(self.models)}")
        return [fake_lmcache.ObjectKey(rng.randbytes(32), rng.choice(self.models[-3:]), rng.choice([0x01000100, 0x02000200, 0x02010201]),
                                       rng.randrange(groups), rng.choice(["", "", "a", "b"])) for _ in range(count)]

    def prompt(self, rng, server):
        keys = []
        if self.prompts and rng.random() < 0.8:
            keys = rng.choice(self.prompts[-12:])
            keys = keys[rng.choice([0, 0, rng.randrange(len(keys))]):rng.randint(1, len(keys))]
        if not keys or rng.random() < 0.4:
            keys = [*keys, *self.keys(len(server.layouts), rng, rng.randint(1, 4))][:BUSIEST]
        self.prompts.append(keys)
        return keys

    def known_prompt(self, rng, server):
        return rng.choice(self.prompts[-12:]) if self.prompts and rng.random() < 0.8 else self.prompt(rng, server)

    def stores(self, server, keys):
        with self.lock:
            self.ever.update((server.owner(k), k) for k in keys)

    def was_stored(self, server, key):
        with self.lock:
            return (server.owner(key), key) in self.ever or any(k == key for _, k in self.ever)

    def stored(self, server, keys, epoch):
        with self.lock:
            if self.fate.is_still(epoch):
                self.kept.update((server.owner(k), k) for k in keys)

    def is_kept(self, server, key):
        with self.lock:
            return (server.owner(key), key) in self.kept

    def forget(self, keeps=lambda owner, key: False):
        with self.lock:
            self.kept = {(owner, k) for owner, k in self.kept if keeps(owner, k)}

    def members(self):
        return self.servers

    def opened(self, server):
        return server.opened()

    # --- what happens ---

    def everyone(self, steps):
        for _ in range(steps):
            for server in self.servers:
                if self.rng.random() < 0.8:
                    while server.pending >= 6 and self.fate.state in ("up", "small"):
                        server.controllers(1.0)
                    if server.pending < 6:
                        server.act()
                server.controllers()

    def each_stores_and_loads(self):
        """Has each server store and find again, whatever has happened before."""
        for server in self.servers:
            keys, loads = self.keys(len(server.layouts), self.rng, 6), server.said["loaded"]
            self.prompts.append(keys)
            server.store(keys)
            server.drain()
            server.lookup(keys, True)
            server.drain()
            assert server.said["loaded"] == loads + 6, server.adapter.counters

    def comes_to_rest(self):
        for server in self.servers:
            server.drain()
            harness.wait_until(lambda: is_connected(server.link), lambda: f"the adapter finds the daemon well: {server.adapter.counters}", 30)
        harness.wait_until(lambda: self.fate.rests([s.link for s in self.servers]), lambda: f"the daemon rests: {self.fate.unrest()} after {self.fate.counts}", 30)
        self.fate.settled()

    def replace(self):
        """Ends a server, often while tasks are in flight, and starts it again over the same memory."""
        server = self.rng.choice(self.servers)
        server.close(self.fate.state not in ("stopped", "slow") and self.rng.random() < 0.5)
        server.start()

    def check_accounts(self):
        """Compares LMCache's accounts with the daemon."""
        everything = list({k for p in self.prompts for k in p})
        for server in self.servers:
            for first in range(0, len(everything), BUSIEST):
                some = everything[first:first + BUSIEST]
                server.lookup([k for k in some if k.object_group_id < len(server.layouts)] or some, False)
                server.drain()
            with kvcache.Client(self.daemon.socket, required=True) as client:
                spaces = [client.namespace(*opened) for opened in server.opened()]
                parts = server.adapter._part_bytes

                def held():
                    found = set()
                    for space in server.adapter._spaces.values():
                        names = [identity.key_of(k) for k in everything]
                        count = -(-space.layout.nbytes // parts)
                        one = next(s for s in spaces if s.name == space.pages._spaces.stores.name)
                        for key, name in zip(everything, names):
                            if key.model_name == space.model and all(s == kvcache.OK for s in one.stat(pages.identity.parts_of(name, count))):
                                found.add(key)
                    return found

                harness.wait_until(lambda: server.listener.keys() == held(), lambda: f"LMCache's accounts have {len(server.listener.keys())} objects, "
                                   f"and the daemon {len(held())}: {server.adapter.counters}", 20)
            usage = server.adapter.get_usage()
            assert usage.total_bytes_used == sum(h.nbytes for h in server.adapter._ledger._held.values())


@pytest.fixture
def impatient(monkeypatch):
    for part in (link, pages):
        monkeypatch.setattr(part, "LOOKUP_S", LOOKUP_S)
    monkeypatch.setattr(link, "REAP_S", REAP_S)
    yield
    fake_lmcache.remove()


def run(monkeypatch, daemon, form, seed, switches=None):
    history = History(daemon, form, seed, switches)
    for module in history.installed.values():
        monkeypatch.setattr(module, "AUDIT_S", 0.05)
        monkeypatch.setattr(module, "ROTATION", 1)
    if seed % 2:  # requests of more keys have several messages and rounds
        monkeypatch.setattr(pages, "MOST_KEYS", FEW_KEYS)
    history.comes_to_rest()
    try:
        for step in range(STEPS):
            history.everyone(1)
            if step % FAULT_EVERY == FAULT_EVERY - 1:
                history.fault()
        history.comes_to_rest()
        history.each_stores_and_loads()
        history.check_accounts()
        harness.wait_until(lambda: history.fate.rests([s.link for s in history.servers]), lambda: f"the daemon rests: {history.fate.unrest()}")
        assert history.loads > 6 * len(history.servers), "the history loads nothing"
    finally:
        if history.fate.state != "up":
            history.fate.heal()
        if sys.exc_info()[0]:
            for server in history.servers:
                server.adapter.close()
    for server in history.servers:
        server.close(True)
        server.free_memory()
    print(f"{history.loads} objects loaded, {history.fate.counts}", file=sys.stderr)


@pytest.mark.parametrize("form, world, seed", histories(FORMS))
def test_objects_have_the_bytes_that_were_stored(form, world, seed, make_daemon, directory, impatient, monkeypatch):
    daemon, switches = daemon_of(make_daemon, directory, world)
    before = threading.active_count(), descriptors()
    run(monkeypatch, daemon, form, seed, switches)
    gc.collect()
    harness.wait_until(lambda: threading.active_count() <= before[0] and len(descriptors()) <= len(before[1]),
                       lambda: f"threads and descriptors {before}, and now {threading.enumerate(), descriptors()}")


def test_twenty_restarts_leave_nothing(make_daemon, impatient):
    daemon = make_daemon().start()
    before = threading.active_count(), descriptors()
    history = History(daemon, "plain", 1, None)
    counts = []
    for _ in range(20):
        history.everyone(3)
        history.fate.befall("restart")
        history.forget()  # a kill may lose what is only accepted
        history.comes_to_rest()
        history.each_stores_and_loads()
        counts.append(held())
    few, more = counts[9], counts[-1]  # a connection that ended may keep a descriptor for a while
    assert more[0] <= few[0] and more[1] <= few[1] + 6, f"threads and descriptors {counts}"
    for server in history.servers:
        server.close(True)
        server.free_memory()
    del history, server
    gc.collect()
    harness.wait_until(lambda: threading.active_count() <= before[0] and len(descriptors()) <= len(before[1]),
                       lambda: f"threads and descriptors {before}, and now {threading.enumerate(), descriptors()}")
