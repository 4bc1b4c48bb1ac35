# SPDX-License-Identifier: Apache-2.0
"""LMCache's adapter under the recorded contract of LMCache 0.5.0 and 0.5.6, against a real daemon; LMCache is not needed. The
scenarios are those that tests/engines/lmcache_check.py runs over the real package."""

import ctypes
import os
import pathlib
import random
import re
import subprocess
import sys
import threading
import time

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "engines"))

import fake_lmcache  # noqa: E402
import harness  # noqa: E402
import kvcache  # noqa: E402
import lmcache_scenarios  # noqa: E402
from kvcache.lmcache import identity, ledger  # noqa: E402
from kvcache.sglang import pages  # noqa: E402

# The library has no sanitizer here (conftest.py), and what reaches the daemon, test_python_client.py sends, too.
pytestmark = pytest.mark.repeated

PLACE = 16384


@pytest.fixture
def module():
    yield fake_lmcache.install()
    fake_lmcache.remove()


@pytest.fixture
def make(module, daemon):
    hosts, paths = [], []

    def make(private=False, places=16, **options):
        memory, path = fake_lmcache.arena_of(places * PLACE, private)
        paths.append(path)
        desc = fake_lmcache.L1MemoryDesc(ctypes.addressof(ctypes.c_char.from_buffer(memory)), places * PLACE)
        options = {"socket": daemon.socket, "weights": "tests", "adapter": "none", "timeout_s": 60.0, **options}
        adapter = module.KvcacheL2Adapter(options, l1_memory_desc=desc)
        host = lmcache_scenarios.Host(adapter, fake_lmcache.ObjectKey, lambda n, layout: fake_lmcache.MemoryObj(memory, n * PLACE, layout),
                                      fake_lmcache.layout_of)
        host.layout_bytes = 8192
        hosts.append(host)
        return host

    yield make
    for host in hosts:
        host.close()
    for path in paths:
        if path is not None:
            os.unlink(path)


@pytest.mark.parametrize("scenario", [pytest.param(f, marks=pytest.mark.deadlines) if f in lmcache_scenarios.OF_DEADLINES else f for f in lmcache_scenarios.SCENARIOS],
                         ids=lambda f: f.__name__)
def test_scenario(scenario, make, daemon):
    scenario(make, daemon)


def test_an_adapter_prints_its_state(make):
    host = make()
    assert re.fullmatch(r"<KvcacheL2Adapter 'lmcache': connected, 0 namespaces>", repr(host.adapter))
    assert host.store(host.keys("printed", 2)) and "connected, 1 namespaces" in repr(host.adapter)
    host.adapter.close()
    assert ": closed, " in repr(host.adapter)
    assert repr(type(host.adapter).__new__(type(host.adapter))) == "<KvcacheL2Adapter of nothing>"


@pytest.mark.parametrize("what", ["list", "delete", "audit", "lookup", "load", "store"])
def test_a_call_meets_the_end_of_the_connections(make, what):
    """LMCache closes the adapter while other threads call it. Such a call has seen the link well before its connections are closed."""
    host = make()
    keys = host.keys("closing", 4)
    assert host.store(keys) and host.get(keys) == [True] * 4
    adapter, held = host.adapter, list(host.adapter._ledger.to_audit(8))
    host.link._closing.set()  # the mender makes no new connections
    for client in (host.link.lookups, host.link.searches, host.link.stores, *host.link.loaders):
        client.close()
    assert host.link.well
    if what == "list":
        assert len(adapter.list_l2_keys().entries) == 4
    elif what == "delete":
        adapter.delete(keys)
    elif what == "audit":
        assert adapter._check_held(held) == held
    elif what == "lookup":
        assert host.find(keys) == [False] * 4
    elif what == "load":
        assert host.get(keys) == [False] * 4
    else:
        assert not host.store(host.keys("more", 2))
    assert not adapter.counters["errors"] and len(adapter._ledger) == 4


def test_memory_that_is_not_shared_is_said(make, caplog):
    make(private=True)
    assert "copied to the daemon" in caplog.text and "--shm-name NAME --no-l1-use-lazy" in caplog.text


def test_a_load_leaves_nothing_leased(make, daemon):
    """The daemon cannot evict leased chunks, and LMCache may load nothing else for hours."""
    host = make()
    keys = host.keys("leased", 4)
    assert host.store(keys) and host.get(keys) == [True] * 4
    harness.wait_until(lambda: daemon.status()["sessions"]["leases"] == 0, "no leases")


@pytest.mark.deadlines
def test_closing_waits_for_a_store(make, daemon):
    """LMCache's memory is free once close() returns, and a daemon that hangs may still read it."""
    host = make(timeout_s=0.5)
    keys, objects = host.keys("closing", 4), host._objects(4, "plain", 0)
    lmcache_scenarios.wait_for("the namespace is open", lambda: host.store(host.keys("first", 1), first=8))
    daemon.pause()
    try:
        host.adapter.submit_store_task(keys, objects)
        lmcache_scenarios.wait_for("the store has seen it", lambda: not host.link.well)
        closing = threading.Thread(target=host.close)
        closing.start()
        lmcache_scenarios.wait_for("it closes", host.link._closing.is_set)
        closing.join(6.0)  # close() waits for the mender at most 3 s
        assert closing.is_alive()
    finally:
        daemon.resume()
    closing.join(60)
    assert not closing.is_alive()
    assert [r.is_successful() for r in host.adapter.pop_completed_store_tasks().values()] == [False]


def test_release_0_5_0_finds_what_0_5_6_stored(daemon, make):
    host = make()
    keys = host.keys("versions", 3)
    assert host.store(keys)
    old = fake_lmcache.install("0.5.0").KvcacheL2Adapter({"socket": daemon.socket, "weights": "tests", "adapter": "none"})
    try:
        task = old.submit_lookup_and_lock_task(keys, fake_lmcache.layout_of("plain"))  # one layout for all groups
        found = []
        lmcache_scenarios.wait_for("it is answered", lambda: found.append(old.query_lookup_and_lock_result(task)) or found[-1])
        assert found[-1].popcount() == 3
    finally:
        old.close()


def test_servers_share_only_if_their_adapters_are_named(make, caplog):
    """LMCache's keys do not contain LoRA adapters, so a missing option does not prove that there are none."""
    silent = [make(adapter=None) for _ in range(2)]
    keys = silent[0].keys("silent", 3)
    assert silent[0].store(keys) and silent[0].find(keys) == [True] * 3
    assert silent[1].find(keys) == [False] * 3 and make(adapter="none").find(keys) == [False] * 3
    assert "set `adapter`" in caplog.text
    named = [make(adapter=name) for name in ("sql", "sql", "none")]
    assert named[0].store(keys) and named[1].find(keys) == [True] * 3 and named[2].find(keys) == [False] * 3


def test_options_of_the_fs_adapter_are_accepted_and_named(make, caplog):
    host = make(base_path="/mnt/kv", use_odirect=True, max_capacity_gb=0.5)
    keys = host.keys("former", 2)
    assert host.store(keys) and host.find(keys) == [True] * 2
    assert host.adapter.get_usage().total_capacity_bytes == 1 << 29
    said = [r.getMessage() for r in caplog.records if "LMCache's fs adapter" in r.getMessage()]
    assert [text.split()[0] for text in said] == ["base_path", "use_odirect"] and "store.path" in said[0] and "io.direct" in said[1]
    assert "it is used as capacity_bytes: 536870912" in caplog.text
    assert make(max_capacity_gb=1, capacity_bytes=4096).adapter.get_usage().total_capacity_bytes == 4096
    for wrong in (-1, True, "1", float("nan"), float("inf"), 1 << 33):
        with pytest.raises(ValueError, match="max_capacity_gb"):
            make(max_capacity_gb=wrong)


def test_options_of_lmcache_s_gds_backend_are_accepted_and_named(make, caplog):
    host = make(gds_path="/mnt/kv", cufile_buffer_size=8192, use_cufile=True)
    keys = host.keys("former", 2)
    assert host.store(keys) and host.find(keys) == [True] * 2
    said = {text.split()[0]: text for r in caplog.records if "an option of LMCache and" in (text := r.getMessage())}
    assert sorted(said) == ["cufile_buffer_size", "gds_path", "use_cufile"] and "/mnt/kv" not in caplog.text
    assert "store.path" in said["gds_path"] and "io.gds" in said["use_cufile"] and "needs no such setting" in said["cufile_buffer_size"]


@pytest.mark.parametrize("options", [{"ack": "soon"}, {"part_bytes": 100}, {"part_bytes": "x"}, {"part_bytes": True}, {"timeout_s": 0},
                                     {"share": 1}, {"remote": "no"}, {"namespace": ""}, {"weights": 7}, {"sokcet": "x"},
                                     {"threads": 0}, {"threads": 65}, {"threads": True}, {"threads": "4"}, {"capacity_bytes": -1},
                                     {"capacity_bytes": 1.5}, {"capacity_bytes": 1 << 63}, {"capacity_bytes": True}, {"max_capacity_gb": "1"},
                                     {"max_capacity_gb": True}, {"timeout_s": "5"}, {"timeout_s": True}, {"timeout_s": 3601}, {"threads": 4.0}])
def test_wrong_options_are_named(make, options):
    [(name, value)] = options.items()
    said = "is not an option" if name == "sokcet" else f"must be .*, not {re.escape(repr(value))}$"
    with pytest.raises(ValueError, match=f"^'?{name}'? {said}"):
        make(**options)


def test_what_another_host_has_stored_is_loaded(make, make_daemon, directory, monkeypatch):
    """LMCache's thread does not wait for the lookup."""
    (directory / "shared").mkdir()
    one, other = (make_daemon(settings={"remote.backend": "directory", "remote.path": directory / "shared", "remote.write": "all",
                                        "remote.absence_lifetime": "100ms"}).start() for _ in range(2))
    host = make(socket=one.socket)
    keys = host.keys("shared", 8)
    assert host.store(keys)
    harness.wait_until(lambda: one.status()["remote"]["puts"] >= 8, "they are there")
    here, off = make(socket=other.socket), make(socket=other.socket, remote=False)
    assert off.store(keys[:3]) and off.find(keys) == [True] * 3 + [False] * 5
    here.find(keys[:3])  # the model is known from here on
    held, free, reach = threading.Event(), threading.Event(), here.link.reach
    monkeypatch.setattr(here.link, "reach", lambda *a: held.set() or free.wait(30) and reach(*a))
    task = here.adapter.submit_lookup_and_lock_task(keys, {0: fake_lmcache.layout_of("plain")})
    assert held.wait(30) and here.adapter.query_lookup_and_lock_result(task) is None
    free.set()
    assert here.find(keys + here.keys("never", 2)) == [True] * 8 + [False] * 2
    assert here.get(keys) == [True] * 8
    assert here.counters["remote_hits"] >= 5 and here.counters["loaded_remote_bytes"] == 5 * here.layout_bytes


RANKS = 0x02000200, 0x02010201


def rows_of(host, name, count):
    """Returns keys as LMCache 0.5.6 lists them: all chunks of one rank before those of the next rank."""
    return [key for rank in RANKS for key in host.keys(name, count, kv_rank=rank)]


def test_the_beginning_of_a_prompt_is_found_on_the_shared_tier_for_each_rank(make, make_daemon, directory):
    """A prompt of several ranks has a new end in most lookups, so the chunks of the first rank are not all stored."""
    (directory / "shared").mkdir()
    one, other = (make_daemon(settings={"remote.backend": "directory", "remote.path": directory / "shared", "remote.write": "all",
                                        "remote.absence_lifetime": "100ms"}).start() for _ in range(2))
    host, here = make(socket=one.socket), make(socket=other.socket)
    keys = rows_of(host, "rows", 6)
    stored = [*keys[:4], *keys[6:10]]
    assert host.store(stored)
    harness.wait_until(lambda: one.status()["remote"]["puts"] >= 8, "they are there")
    assert here.find(keys) == ([True] * 4 + [False] * 2) * 2
    assert here.get(stored) == [True] * 8 and here.counters["remote_hits"] == 8


def test_a_load_that_fails_in_the_middle_has_the_beginning_of_each_rank(make, daemon):
    """LMCache uses the chunks before the first one that a rank lacks."""
    host = make()
    keys = rows_of(host, "middle", 6)
    assert host.store(keys)
    lmcache_scenarios.evict(host, daemon, [identity.key_of(keys[3])])
    host.link.round_bytes = 2 * host.layout_bytes
    good = host.get(keys)
    assert good[:4] == [True] * 3 + [False] and good[6:9] == [True] * 3


def test_a_lookup_counts_as_one_access(make, make_daemon, directory):
    """A search of the shared tier looks up the keys of this host a second time."""
    (directory / "shared").mkdir()
    own = make_daemon(settings={"remote.backend": "directory", "remote.path": directory / "shared"}).start()
    host, listener = make(socket=own.socket), lmcache_scenarios.Listener()
    keys, never = host.keys("accessed", 3), host.keys("never", 2)
    assert host.store(keys)
    host.adapter.register_listener(listener)
    assert host.link.has_remote and host.find(keys + never) == [True] * 3 + [False] * 2
    assert listener.accessed == keys


def test_a_lookup_waits_for_no_search_of_the_shared_tier(make, monkeypatch):
    """The thread that looks up does not wait for the thread that searches the shared tier."""
    host = make()
    known, new = host.keys("known", 2), host.keys("new", 2)
    assert host.store(known) and host.find(known) == [True] * 2
    held, free, answers = threading.Event(), threading.Event(), []

    def reach(namespace, keys, timeout=None):
        with namespace._client._lock:
            held.set()
            free.wait(60)
        return 0, 0, True

    def look_up():
        task = host.adapter.submit_lookup_and_lock_task(known, {0: fake_lmcache.layout_of("plain")})
        answers.append(host.adapter.query_lookup_and_lock_result(task))

    monkeypatch.setattr(kvcache.Namespace, "reach", reach)
    host.link.has_remote = True
    caller = threading.Thread(target=look_up, daemon=True)
    try:
        host.adapter.submit_lookup_and_lock_task(new, {0: fake_lmcache.layout_of("plain")})
        assert held.wait(30)
        caller.start()
        caller.join(30)
        assert [a.popcount() for a in answers] == [2], "it waits"
    finally:
        free.set()


@pytest.mark.deadlines
def test_a_search_that_hangs_makes_the_daemon_unwell(make, daemon, monkeypatch):
    host = make()
    assert host.find(host.keys("known", 1)) == [False]
    host.link.has_remote = True
    monkeypatch.setattr(lmcache_scenarios.link, "LOOKUP_S", 0.25)
    daemon.pause()
    try:
        assert host.find(host.keys("hangs", 2)) == [False] * 2 and not host.link.well
    finally:
        daemon.resume()
    host.wait_well()


def test_searches_that_last_do_not_pile_up(make, monkeypatch):
    """The time of each counts from when LMCache asked."""
    host, asked = make(), []
    assert host.find(host.keys("known", 1)) == [False]
    monkeypatch.setattr(kvcache.Namespace, "reach", lambda *a, **k: asked.append(time.monotonic()) or (0, 1, False))
    monkeypatch.setattr(lmcache_scenarios.link, "SEARCH_S", 0.3)
    host.link.has_remote = True
    tasks = {host.adapter.submit_lookup_and_lock_task(host.keys(f"slow {n}", 2), {0: fake_lmcache.layout_of("plain")}) for n in range(20)}
    deadline, found = time.monotonic() + 0.3, {}

    def are_answered():
        found.update({t: said for t in tasks - set(found) if (said := host.adapter.query_lookup_and_lock_result(t)) is not None})
        return len(found) == 20

    harness.wait_until(are_answered, "all lookups are answered", 60)
    assert len(asked) >= 20 and len([at for at in asked if at >= deadline]) <= 20, "past its deadline a search asks once"
    assert all(said.popcount() == 1 for said in found.values()), "each was asked about"


def test_there_are_so_many_layouts_and_no_more(make, module, caplog):
    host = make()
    keys = [host.new_key(bytes(32), model_name=f"tests/model {n}") for n in range(module.MOST_SPACES + 2)]
    assert host.find(keys) == [False] * len(keys)
    assert len(host.adapter._spaces) == module.MOST_SPACES and "64 other models and layouts already" in caplog.text
    assert not host.counters["errors"]


def test_the_first_lookup_of_a_model_waits_for_no_store(make):
    """The thread that looks up does not wait for the connection that stores."""
    host = make()
    known, new = host.keys("known", 2), [host.new_key(bytes(32), model_name="tests/another model")]
    assert host.store(known)
    layouts, free, held = {0: fake_lmcache.layout_of("plain")}, threading.Event(), threading.Event()

    def store():  # lasts until the test ends it
        with host.adapter._link.stores._lock:
            held.set()
            free.wait(60)

    def look_up():
        tasks.append(host.adapter.submit_lookup_and_lock_task(new, layouts))
        tasks.append(host.adapter.submit_lookup_and_lock_task(known, layouts))

    tasks, storing, caller = [], threading.Thread(target=store), threading.Thread(target=look_up, daemon=True)
    storing.start()
    held.wait()
    try:
        caller.start()
        caller.join(30)
        assert not caller.is_alive(), "it waits"
        assert host.adapter.query_lookup_and_lock_result(tasks[0]) is None
        assert host.adapter.query_lookup_and_lock_result(tasks[1]).popcount() == 2
    finally:
        free.set()
        storing.join()
    found = []
    lmcache_scenarios.wait_for("it is answered", lambda: found.append(host.adapter.query_lookup_and_lock_result(tasks[0])) or found[-1])
    assert found[-1].popcount() == 0


def test_objects_that_are_not_their_layout_s_length_are_refused(make, caplog):
    host = make()
    keys = host.keys("serde", 1)
    thing = host.new_object(0, "plain")
    thing.byte_array = thing.byte_array[:100]
    task = host.adapter.submit_store_task(keys, [thing])
    lmcache_scenarios.wait_for("it fails", lambda: int(host.adapter.pop_completed_store_tasks().get(task, 0)) < 0)
    assert "is neither stored nor loaded" in caplog.text and host.find(keys) == [False]


def test_objects_longer_than_the_daemon_takes_are_named(make, caplog):
    host = make()
    assert host.find(host.keys("huge", 2), "huge") == [False] * 2
    assert "set part_bytes" in caplog.text


def test_objects_that_name_one_shape_are_those_that_list_it(make):
    """The objects of LMCache's own tools have `shape`, those of its L1 `shapes`."""
    host = make()
    keys, thing = host.keys("shape", 1), host.new_object(0, "plain")
    thing.meta.shapes = thing.meta.dtypes = None
    lmcache_scenarios.fill(thing, lmcache_scenarios.value_of(lmcache_scenarios.name_of(keys[0]), 8192))
    task = host.adapter.submit_store_task(keys, [thing])
    lmcache_scenarios.wait_for("it is stored", lambda: task in host.adapter.pop_completed_store_tasks())
    lmcache_scenarios.check(host, keys)


def test_keys_never_meet():
    def key(**fields):
        return identity.key_of(fake_lmcache.ObjectKey(**{"chunk_hash": b"a" * 32, **fields}))

    keys = [key(), key(chunk_hash=b"a" * 31), key(chunk_hash=b""), key(kv_rank=1), key(object_group_id=1), key(cache_salt="a"),
            key(cache_salt="aa"), key(chunk_hash=b"a" * 33), key(cache_salt="\udc80"),
            key(kv_rank=1, object_group_id=2, cache_salt="a" * 8 + "b"),  # the same bytes, divided in another way
            key(chunk_hash=b"a" * 32 + bytes(7) + b"\1", kv_rank=2, object_group_id=int.from_bytes(b"a" * 8, "big"), cache_salt="b")]
    assert len(set(keys)) == len(keys) and all(len(k) == 32 for k in keys)


def test_every_difference_in_bytes_is_another_namespace():
    def name(model="org/m", weights="w", layout="plain", release="0.5", part=65536):
        shape, dtype = fake_lmcache.LAYOUTS[layout]
        return identity.namespace_name("lmcache", identity.fields_of(model, weights, identity.layout_of([shape], [dtype]), release, part))

    others = [name(model="org/n"), name(weights="x"), name(layout="other type"), name(layout="other shape"), name(layout="longer"),
              name(release="0.6"), name(part=4096)]
    assert name() == name() and len({name(), *others}) == 1 + len(others) and name().startswith("lmcache/m-")


@pytest.mark.parametrize("shapes, dtypes", [([], []), ([[2]], []), ([[0]], [fake_lmcache.BF16]), ([[-1]], [fake_lmcache.BF16]),
                                            ([[2]], [None])])
def test_layouts_without_bytes_are_refused(shapes, dtypes):
    with pytest.raises(ValueError, match="element types"):
        identity.layout_of(shapes, dtypes)


def test_nothing_of_the_package_imports_lmcache(module):
    code = "import kvcache.lmcache, kvcache.lmcache.identity, sys; assert 'lmcache' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ,
                                                                 "PYTHONPATH": str(harness.SOURCE / "client" / "python")})


@pytest.mark.deadlines
@pytest.mark.parametrize("call", ["find", "get", "store"])
def test_the_first_task_of_a_layout_ends_in_time_while_the_daemon_hangs(make, daemon, call):
    """The namespace is opened over each connection, and they must not wait one after the other."""
    host = make(timeout_s=1.0)
    keys = host.keys("known", 2)
    lmcache_scenarios.wait_for("the first layout is known", lambda: host.store(keys))
    daemon.pause()
    try:
        started = time.monotonic()
        said = getattr(host, call)(host.keys("new", 2), "other type")
        took = time.monotonic() - started
        assert said in (False, [False] * 2) and took < 2.5, f"{call} took {took:.1f} s"
    finally:
        daemon.resume()
    host.wait_well()


@pytest.mark.deadlines
def test_late_replies_of_loads_leave_nothing_leased(make, daemon):
    """A reply that comes after its load was given up grants leases, and the connection may have no other request."""
    host = make(timeout_s=0.5)
    keys, ended = host.keys("late", 8), []
    lmcache_scenarios.wait_for("it stores", lambda: host.store(keys))
    daemon.pause()
    try:
        objects = host._objects(8, "plain", 0)
        tasks = [host.adapter.submit_load_task(keys[n:n + 2], objects[n:n + 2]) for n in range(0, 8, 2)]
        lmcache_scenarios.wait_for("the loads end", lambda: ended.extend(t for t in tasks if host.adapter.query_load_result(t) is not None) or len(ended) == 4)
    finally:
        daemon.resume()
    host.wait_well()
    harness.wait_until(lambda: daemon.status()["sessions"]["leases"] == 0, "no leases")


def test_long_requests_are_asked_in_several_messages(make, daemon, monkeypatch):
    """A message has at most MOST_KEYS keys, and each answer belongs to its own key."""
    host = make(part_bytes=4096)
    keys = host.keys("several", 14)
    assert host.store(keys)
    monkeypatch.setattr(pages, "MOST_KEYS", 6)  # three objects of two parts
    lost = {2, 3, 10}
    lmcache_scenarios.evict(host, daemon, [identity.key_of(keys[n]) for n in lost])
    assert host.find(keys) == [n not in lost for n in range(14)]
    assert host.get(keys[4:10]) == [True] * 6
    harness.wait_until(lambda: len(host.adapter._ledger) == 11, "the audit")
    assert {entry.key.chunk_hash_hex for entry in host.adapter.list_l2_keys().entries} == {k.chunk_hash.hex() for n, k in enumerate(keys) if n not in lost}
    host.adapter.delete(keys[:9])
    assert host.find(keys) == [n > 8 and n not in lost for n in range(14)] and len(host.adapter._ledger) == 4
    assert host.counters["evicted_pages"] == 3 and host.counters["deleted_pages"] == 7


def test_objects_of_several_layouts_move_in_one_task(make):
    """Each answer belongs to its own object."""
    host = make()
    keys, layouts = host.keys("mixed", 8), ["plain", "longer", "other type", "plain", "longer", "plain", "other type", "longer"]
    objects = [host.new_object(n, layout) for n, layout in enumerate(layouts)]
    for key, thing in zip(keys, objects):
        lmcache_scenarios.fill(thing, lmcache_scenarios.value_of(lmcache_scenarios.name_of(key), len(thing.byte_array)))
    stored = [0, 1, 2, 4, 5, 7]
    task, taken = host.adapter.submit_store_task([keys[n] for n in stored], [objects[n] for n in stored]), {}
    lmcache_scenarios.wait_for("it is stored", lambda: taken.update(host.adapter.pop_completed_store_tasks()) or task in taken)
    assert taken[task].is_successful() and taken[task].bytes_transferred() == sum(len(objects[n].byte_array) for n in stored)
    for thing in objects:
        lmcache_scenarios.fill(thing, b"\xcc" * len(thing.byte_array))
    task, bits = host.adapter.submit_load_task(keys, objects), []
    lmcache_scenarios.wait_for("it is loaded", lambda: bits.append(host.adapter.query_load_result(task)) or bits[-1] is not None)
    assert [bits[-1].test(n) for n in range(8)] == [n in stored for n in range(8)]
    for n in stored:
        assert bytes(objects[n].byte_array) == lmcache_scenarios.value_of(lmcache_scenarios.name_of(keys[n]), len(objects[n].byte_array))


def test_a_layout_belongs_to_its_group(make):
    """A server that has not used a layout yet finds its objects, which another server has stored."""
    host, other = make(), make()
    keys = host.keys("group", 2, object_group_id=1)
    assert host.store(keys, "longer")
    assert other.find(keys, {0: fake_lmcache.layout_of("plain"), 1: fake_lmcache.layout_of("longer")}) == [True] * 2


def test_memory_that_is_read_only_is_not_loaded_into(make, caplog):
    host = make()
    keys, thing = host.keys("read-only", 1), host.new_object(0, "plain")
    assert host.store(keys, first=1)
    lmcache_scenarios.fill(thing, b"\xcc" * 8192)
    thing.byte_array = thing.byte_array.toreadonly()
    task, bits = host.adapter.submit_load_task(keys, [thing]), []
    lmcache_scenarios.wait_for("it ends", lambda: bits.append(host.adapter.query_load_result(task)) or bits[-1] is not None)
    assert bits[-1].popcount() == 0 and bytes(thing.byte_array) == b"\xcc" * 8192 and "read-only" in caplog.text


def test_objects_of_other_models_are_not_deleted(make):
    host = make()
    one, other = host.keys("models", 3), host.keys("models", 3, model_name="tests/other")
    assert host.store(one) and host.store(other)
    host.adapter.delete(one[:2])
    assert host.find(one) == [False, False, True] and host.find(other) == [True] * 3 and host.counters["deleted_pages"] == 2


def test_a_daemon_that_has_no_answer_has_evicted_nothing(make, monkeypatch):
    """A status such as BUSY says nothing of a chunk."""
    host = make()
    keys = host.keys("no answer", 4)
    assert host.store(keys)
    for name, call in (("stat", host.adapter.list_l2_keys), ("evict", lambda: host.adapter.delete(keys))):
        asked = []
        monkeypatch.setattr(kvcache.Namespace, name, lambda self, names, timeout=None: asked.append(names) or bytes([kvcache.BUSY]) * len(names))
        call()
        assert asked and len(host.adapter._ledger) == 4 and lmcache_scenarios.usage_of(host) == {"": 4 * host.layout_bytes}
    assert host.find(keys) == [True] * 4


def test_a_key_that_a_lookup_misses_is_audited_at_once(make, module, daemon, monkeypatch):
    monkeypatch.setattr(module, "AUDIT_S", 600.0)
    host = make()
    keys = host.keys("missed", 3)
    assert host.store(keys)
    lmcache_scenarios.evict(host, daemon, [identity.key_of(keys[1])])
    assert host.find(keys) == [True, False, True]
    harness.wait_until(lambda: len(host.adapter._ledger) == 2, "the audit", 60)


def test_loads_use_several_connections(make):
    """A load that waits for the daemon delays no load of another thread."""
    host, free, held = make(threads=2), threading.Event(), threading.Event()
    keys = host.keys("connections", 6)
    assert host.store(keys)

    def occupy():
        with host.link.loaders[0]._lock:
            held.set()
            free.wait(60)

    occupying, ended = threading.Thread(target=occupy), {}
    occupying.start()
    assert held.wait(30)
    try:
        objects = host._objects(6, "plain", 0)
        tasks = [host.adapter.submit_load_task(keys[n:n + 1], objects[n:n + 1]) for n in range(6)]
        harness.wait_until(lambda: ended.update({t: bits for t in tasks if (bits := host.adapter.query_load_result(t)) is not None}) or len(ended) == 5,
                           lambda: f"one load waits, and five do not: {len(ended)}")
    finally:
        free.set()
        occupying.join()


def test_a_deletion_is_notified_after_the_store(make):
    """LMCache's accounts are wrong if a deletion overtakes the store of the same object."""
    host, storing, free, said = make(), threading.Event(), threading.Event(), []

    class Slow(lmcache_scenarios.Listener):
        def on_l2_keys_stored(self, keys, sizes):
            storing.set()
            assert free.wait(60)
            said.append("stored")

        def on_l2_keys_deleted(self, keys):
            said.append("deleted")

    keys = host.keys("order", 2)
    host.adapter.register_listener(Slow())
    task = host.adapter.submit_store_task(keys, host._objects(2, "plain", 0))
    assert storing.wait(30)
    deleting = threading.Thread(target=lambda: host.adapter.delete(keys))
    deleting.start()
    deleting.join(0.3)
    free.set()
    deleting.join(60)
    lmcache_scenarios.wait_for("it is stored", lambda: task in host.adapter.pop_completed_store_tasks())
    assert said == ["stored", "deleted"]


def test_a_descriptor_stays_open_while_a_thread_may_write_to_it(module):
    """The number of a closed descriptor may already belong to another file."""
    worker, free = module._Worker("test"), threading.Event()
    worker.submit(1, lambda loader: free.wait(60))
    worker.end()
    worker.join(0.0)
    os.fstat(worker.event)
    free.set()
    worker.join(60)
    assert worker.event == -1 and worker.take(1) is True


class Model:
    """A ledger as a list of (serial, key, space), and the step in which each object was confirmed last."""

    def __init__(self):
        self.objects, self.serials, self.confirmed = [], 0, {}

    def confirm(self, space, keys, step):
        for key in keys:
            self.confirmed[key, space] = step
            if all((k, s) != (key, space) for _, k, s in self.objects):
                self.serials += 1
                self.objects.append((self.serials, key, space))

    def remove(self, removed):
        self.objects = [o for o in self.objects if (o[1], o[2]) not in removed]


@pytest.mark.parametrize("seed", range(20))
def test_a_ledger_lists_the_objects_that_it_has(seed):
    rng, real, model = random.Random(seed), ledger.Ledger(), Model()
    spaces, keys = ["one", "two"], [fake_lmcache.ObjectKey(bytes([n]) * 32, f"model {n % 3}") for n in range(40)]
    read, audited = [], set()

    def named(objects):
        return [(h.serial, h.key, h.space) for h in objects]

    for step in range(400):
        act, space, some = rng.random(), rng.choice(spaces), rng.sample(keys, rng.randint(1, 6))
        if act < 0.35:
            new = real.confirm(space, [(k, k.chunk_hash) for k in some], 64)
            assert new == [k for k in some if all((o[1], o[2]) != (k, space) for o in model.objects)]
            model.confirm(space, some, step)
        elif act < 0.5:
            read.append((step, real.of_key(some[0], spaces)))
            assert named(read[-1][1]) == [o for s in spaces for o in model.objects if (o[1], o[2]) == (some[0], s)]
        elif act < 0.65 and read:  # an answer to an earlier question: objects that were confirmed since then stay
            asked, objects = read.pop(rng.randrange(len(read)))
            removed = [h for h in objects if (h.serial, h.key, h.space) in model.objects and model.confirmed[h.key, h.space] < asked]
            assert real.remove(objects + objects[:1]) == removed
            model.remove([(h.key, h.space) for h in removed])
        elif act < 0.8:
            wanted, count, found, after = rng.choice([None, "model 1"]), rng.randint(1, 7), [], 0
            while after is not None:
                page, after = real.after(after, count, wanted)
                assert len(page) <= count and (after is None or len(page) == count)
                found += named(page)
            assert found == [o for o in model.objects if wanted in (None, o[1].model_name)]
        else:
            suspects = [h for h in real.of_key(some[0], spaces) if rng.random() < 0.5]
            real.suspect(suspects)
            listed = real.to_audit(rng.randint(1, 7))
            assert listed[:len(suspects)] == suspects and len(set(named(listed))) == len(listed) and set(named(listed)) <= set(model.objects)
            audited |= {(h.key, h.space) for h in listed}
        assert len(real) == len(model.objects)
    left = {(k, s) for _, k, s in model.objects}
    for _ in range(2 * len(left) + 2):
        left -= {(h.key, h.space) for h in real.to_audit(1)}
    assert not left, "audits leave objects out"
