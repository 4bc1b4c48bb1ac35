# SPDX-License-Identifier: Apache-2.0
"""SGLang's storage backend under the recorded contract of SGLang 0.5.17 and 0.5.23, against a real daemon; SGLang is not needed. The
scenarios are those that tests/engines/sglang_check.py runs over the real package."""

import os
import pathlib
import re
import subprocess
import sys
import threading
import types

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "engines"))

import fake_sglang  # noqa: E402
import harness  # noqa: E402
import kvcache  # noqa: E402
import sglang_scenarios  # noqa: E402
from kvcache.sglang import chain, identity, pages  # noqa: E402

# The library has no sanitizer here (conftest.py), and what reaches the daemon, test_python_client.py sends, too.
pytestmark = pytest.mark.repeated


@pytest.fixture
def module():
    yield fake_sglang.install()
    fake_sglang.remove()


@pytest.fixture
def make(module, daemon):
    hosts = []

    def make(config=None, pool=None, pages=(0, 32), kind=fake_sglang.Config23, **options):
        config = kind(**(config or {}), extra_config={"socket": daemon.socket, "weights": "tests", "interface_v1": 1, "timeout_s": 60.0,
                                             **options})
        host_pool = fake_sglang.HostPool(**(pool or {}))
        storage = module.KvcacheStorage(config, {})
        storage.register_mem_pool_host(host_pool)
        hosts.append(sglang_scenarios.Host(storage, host_pool, host_pool.indices, *pages))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()
        host.pool.close()


@pytest.mark.parametrize("scenario", [pytest.param(f, marks=pytest.mark.deadlines) if f in sglang_scenarios.OF_DEADLINES else f for f in sglang_scenarios.SCENARIOS],
                         ids=lambda f: f.__name__)
def test_scenario(scenario, make, daemon):
    scenario(make, daemon)


def test_a_storage_prints_its_state(make, module, daemon):
    assert repr(make().storage) == "<KvcacheStorage 'sglang': connected, 1 pool(s)>"
    assert repr(module.KvcacheStorage.__new__(module.KvcacheStorage)) == "<KvcacheStorage of nothing>"


def test_memory_that_is_not_shared_is_said_once(make, caplog):
    host = make(pool={"allocator": "default"})
    assert not any(r.registered for _, _, r in host.link._regions)
    keys = sglang_scenarios.keys_of("said", 4)
    for _ in range(3):
        host.store(keys)
    said = [r.getMessage() for r in caplog.records if "copied to the daemon" in r.getMessage()]
    assert len(said) == 1 and '"allocator": "shm"' in said[0]


def test_a_pool_that_was_refused_is_registered_with_the_next_daemon(make_daemon, make, monkeypatch):
    """The client reconnects by itself, so that nothing says that the daemon is another one."""
    monkeypatch.setattr(sglang_scenarios.link, "RETRY_S", 0.05)
    small = make_daemon(settings={"limits.registered": "64KiB"}).start()
    host, keys = make(socket=small.socket), sglang_scenarios.keys_of("next", 4)
    assert all(host.store(keys)) and host.counters["copied_stores"] == 4
    with host.link.stores._lock:  # the mender does not see it dead
        small.kill()
        small.settings["limits.registered"] = "1GiB"
        small.start()
    sglang_scenarios.wait_for("it is registered", lambda: small.status()["sessions"]["registered_buffers"] == 1)
    host.wait_well()
    assert all(host.store(sglang_scenarios.keys_of("more", 4))) and host.counters["copied_stores"] == 4


def test_a_daemon_without_room_for_the_pool_copies(make_daemon, module, caplog):
    small = make_daemon(settings={"limits.registered": "64KiB"}).start()
    config = fake_sglang.Config23(extra_config={"socket": small.socket, "weights": "tests", "interface_v1": 1})
    pool = fake_sglang.HostPool()
    storage = module.KvcacheStorage(config)
    try:
        storage.register_mem_pool_host(pool)
        assert "limits.registered" in caplog.text
        host = sglang_scenarios.Host(storage, pool, pool.indices)
        keys = sglang_scenarios.keys_of("small", 4)
        assert all(host.store(keys))
        sglang_scenarios.check_load(host, keys)
    finally:
        storage.close()
        pool.close()


@pytest.mark.parametrize("options", [{"load_into": False}, {"share": False}, {"interface_v1": 0}])
def test_a_copied_load_leaves_nothing_leased(make, daemon, options):
    """The daemon cannot evict leased chunks, and SGLang may load nothing else for hours."""
    host, keys = make(**options), sglang_scenarios.keys_of("leased", 4)
    values = [fake_sglang.Tensor(bytearray(8192)) for _ in keys]
    if options.get("interface_v1", 1):
        assert all(host.store(keys)) and host.load(keys) == (4, [True] * 4)
    else:
        assert host.storage.batch_set(keys, values) and host.storage.batch_get(keys, values) == values
    harness.wait_until(lambda: daemon.status()["sessions"]["leases"] == 0, "no leases")


@pytest.mark.deadlines
def test_pages_of_a_store_are_not_reused_because_the_backend_closes(make, daemon):
    """A daemon that hangs has the request, and would store the bytes that it finds in the pages afterwards."""
    host, other = make(timeout_s=0.5), make(pages=(32, 32))
    keys, said = sglang_scenarios.keys_of("closing", 4), []
    daemon.pause()
    try:
        storing = threading.Thread(target=lambda: said.append(host.store(keys)))
        storing.start()
        sglang_scenarios.wait_for("the store has seen it", lambda: not host.link.well)
        closing = threading.Thread(target=host.close)
        closing.start()
        sglang_scenarios.wait_for("it closes", host.link._closing.is_set)
        storing.join(2.0)
        assert storing.is_alive() and not said, "SGLang may use pages again that the daemon may read"
    finally:
        daemon.resume()
    closing.join(60)
    storing.join(60)
    assert not closing.is_alive() and not storing.is_alive() and said == [[False] * 4]
    other.wait_well()
    other.load(keys)  # right, or not there


def test_both_versions_find_each_other_s_pages(make):
    keys = sglang_scenarios.keys_of("versions", 3)
    assert all(make(kind=fake_sglang.Config17).store(keys))
    sglang_scenarios.check_load(make(), keys)


def computed(host, keys, of):
    """SGLang computes pages, whose bytes depend on `of`, and stores them."""
    pages = host.pages[:len(keys)]
    for page, key in zip(pages, keys):
        host.write(page, sglang_scenarios.value_of(of + key, host.page_bytes))
    return host.storage.batch_set_v1(keys, host.pool.indices(pages))


def test_the_canary_compares_a_page_before_any_is_loaded(make):
    keys, more = sglang_scenarios.keys_of("canary", 9), sglang_scenarios.keys_of("more", 2)
    assert all(computed(make(), keys, ""))
    host = make(canary="first", pages=(32, 32))
    assert host.load(keys) == (0, []) and host.counters["canary_withheld"] == 0  # counted with the next store
    assert computed(host, more, "") == [False] * 2, "it stores among pages that it has not verified"
    assert host.load(keys) == (0, []) and all(computed(host, keys, ""))
    counts = host.counters
    assert (counts["canary_checks"], counts["canary_mismatches"], counts["canary_withheld"], counts["canary_unstored"]) == (1, 0, 18, 2)
    sglang_scenarios.check_load(host, keys, found=9)
    assert all(computed(host, more, ""))


def test_pages_that_differ_are_left_and_the_engine_has_its_own(make, caplog):
    keys, first = sglang_scenarios.keys_of("differs", 9), make()
    assert all(computed(first, keys, ""))
    host = make(canary="first", pages=(32, 32))
    assert host.load(keys) == (0, []) and all(computed(host, keys, "of a patched kernel "))
    assert host.counters["canary_mismatches"] == 1 and "differ from what this engine computes" in caplog.text
    assert host.storage.batch_exists(keys) == 9, "it does not find what it has stored itself"
    assert host.storage.batch_get_v1(keys, host.pool.indices(host.pages[:9])) == [True] * 9
    assert host.read(host.pages[4]) == sglang_scenarios.value_of("of a patched kernel " + keys[4], host.page_bytes)
    sglang_scenarios.check_load(first, keys, found=9)
    again = make(canary="first", pages=(32, 32))
    assert again.load(keys) == (0, []) and all(computed(again, keys, "")) and again.counters["canary_mismatches"] == 0
    sglang_scenarios.check_load(again, keys, found=9)


def test_the_canary_withholds_pages_that_are_loaded_without_a_lookup(make):
    """SGLang 0.5.23 loads the pages before a found one without a lookup, because they were stored earlier than that one."""
    keys, own = sglang_scenarios.keys_of("unasked", 4), sglang_scenarios.keys_of("own", 4)
    host, other = make(canary="first", pages=(32, 32)), make()
    assert all(computed(host, own, "")) and all(computed(other, keys, "of a patched kernel "))
    pages = host.pages[:8]
    assert host.storage.batch_get_v1(own + keys, host.pool.indices(pages)) == [True] * 4 + [False] * 4
    assert host.storage.batch_get_v1(keys + own, host.pool.indices(pages)) == [False] * 8


def test_a_page_that_another_engine_stored_first_is_not_the_engine_s_own(make):
    """Both engines have found the namespace new."""
    keys, host, other = sglang_scenarios.keys_of("first", 4), make(canary="first", pages=(32, 32)), make()
    assert all(computed(other, keys, "of a patched kernel ")) and all(computed(host, keys, ""))
    assert host.load(keys) == (0, [])


def test_a_page_that_another_engine_stores_meanwhile_is_not_the_engine_s_own(make, monkeypatch):
    """The other engine stores the page after this one has asked for it, and before this one stores it."""
    keys, host, other = sglang_scenarios.keys_of("meanwhile", 4), make(canary="first", pages=(32, 32)), make()
    may_store = host.storage._canary.may_store
    monkeypatch.setattr(host.storage._canary, "may_store", lambda count: all(computed(other, keys[:2], "of a patched kernel ")) and may_store(count))
    assert all(computed(host, keys, ""))
    assert host.load(keys) == (0, []) and host.load(keys[2:]) == (2, [True] * 2)


def test_a_difference_in_any_piece_is_noticed(make):
    """The bytes of K agree, and those of V do not."""
    keys, first = sglang_scenarios.keys_of("piece", 9), make()
    assert all(computed(first, keys, ""))
    host = make(canary="first", pages=(32, 32))
    assert host.load(keys) == (0, [])
    pages, half = host.pages[:9], host.page_bytes // 2
    for page, key in zip(pages, keys):
        host.write(page, sglang_scenarios.value_of(key, host.page_bytes)[:half] + sglang_scenarios.value_of("V of " + key, half))
    assert all(host.storage.batch_set_v1(keys, host.pool.indices(pages))) and host.counters["canary_mismatches"] == 1


def test_a_variant_is_of_the_weights_that_the_engine_has_read(make, monkeypatch, tmp_path):
    """Another model may replace the files of the weights while the engine runs."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"earlier")
    monkeypatch.setattr(fake_sglang.current["model"], "model_path", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys = sglang_scenarios.keys_of("replaced", 9)
    assert all(computed(make(weights=None), keys, ""))
    host = make(weights=None, canary="first", pages=(32, 32))
    before = {space.name for space, _ in host.link._opened}
    (tmp_path / "model.safetensors").write_bytes(b"a later one")
    assert host.load(keys) == (0, []) and all(computed(host, keys, "of a patched kernel "))
    after = {space.name for space, _ in host.link._opened} - before
    assert {name.removesuffix("/v2") for name in after} < before and len(after) == 1


def test_the_canary_is_off_where_one_rank_stores_for_all(make, caplog):
    keys = sglang_scenarios.keys_of("replicated", 3)
    assert all(computed(make(config={"is_mla_model": True, "tp_size": 2}, pool={"kind": "mla"}), keys, ""))
    other = make(config={"is_mla_model": True, "tp_size": 2, "tp_rank": 1}, pool={"kind": "mla"}, canary="first", pages=(32, 32))
    assert "the canary is off" in caplog.text and other.load(keys)[0] == 3


def test_in_a_new_namespace_the_canary_costs_nothing(make):
    keys, host = sglang_scenarios.keys_of("alone", 9), make(canary="first")
    assert all(computed(host, keys, "")) and host.load(keys)[0] == 9 and host.counters["canary_withheld"] == 0


def test_options_of_the_file_backend_are_accepted_and_named(make, monkeypatch, caplog):
    monkeypatch.setenv("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", "/mnt/kv")
    host = make(max_size="200G", eviction_ratio=0.9)
    keys = sglang_scenarios.keys_of("former", 2)
    assert all(host.store(keys))
    said = [r.getMessage() for r in caplog.records if "SGLang's file backend" in r.getMessage()]
    assert [text.split()[0] for text in said] == ["eviction_ratio", "max_size", "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"]
    assert "needs no such setting" in said[0] and "store.limit" in said[1] and "store.path" in said[2] and "/mnt/kv" not in caplog.text


@pytest.mark.parametrize("options", [{"ack": "soon"}, {"part_bytes": 100}, {"part_bytes": "x"}, {"timeout_s": 0}, {"share": 1},
                                     {"remote": 1}, {"load_into": "yes"}, {"namespace": ""}, {"weights": 7}, {"canary": "always"}, {"canary": 1},
                                     {"canary_bound": 2}, {"canary_bound": True}, {"canary_bound": "0.1"}, {"timeout_s": "5"}, {"timeout_s": True},
                                     {"timeout_s": 3601}, {"timeout_s": None}, {"part_bytes": True}, {"part_bytes": 8192.0}])
def test_wrong_options_are_named(make, options):
    [(name, value)] = options.items()
    with pytest.raises(ValueError, match=f"^{name} must be .*, not {re.escape(repr(value))}$"):
        make(**options)


def test_what_another_host_has_stored_is_loaded(make, make_daemon, directory):
    (directory / "shared").mkdir()
    one, other = (make_daemon(settings={"remote.backend": "directory", "remote.path": directory / "shared", "remote.write": "all",
                                        "remote.absence_lifetime": "100ms"}).start() for _ in range(2))
    keys = sglang_scenarios.keys_of("shared", 12)
    assert all(make(socket=one.socket).store(keys))
    harness.wait_until(lambda: one.status()["remote"]["puts"] >= 12, "they are there")
    here, off = make(socket=other.socket), make(socket=other.socket, remote=False)
    assert all(off.store(keys[:4]))
    assert off.storage.batch_exists(keys) == 4 and not off.storage.counters["remote_hits"]
    assert here.storage.batch_exists(keys + sglang_scenarios.keys_of("never", 2)) == 12
    assert here.storage.counters["remote_hits"] == 8 and here.storage.counters["hits"] == 12
    sglang_scenarios.check_load(here, keys)
    page = here.storage.counters["loaded_bytes"] // 12
    assert here.storage.counters["loaded_remote_bytes"] == 8 * page


@pytest.fixture
def clock(monkeypatch):
    """Returns clock(host, known, asked), which replaces the clock of the host's link by a list of one number. The number grows only while
    the link asks the shared tier or pauses. The tier answers that it has `known` keys; `asked` gets the time of each question."""
    def clock(host, known, asked):
        now = [1000.0]

        def reach(self, keys, timeout=None):
            asked.append(now[0])
            now[0] += 0.001
            return 0, known, False

        def pause(seconds):
            now[0] += seconds

        monkeypatch.setattr(kvcache.Namespace, "reach", reach)
        monkeypatch.setattr(host.link._closing, "wait", pause)
        monkeypatch.setattr(sglang_scenarios.link, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
        monkeypatch.setattr(sglang_scenarios.link, "SEARCH_S", 0.3)
        host.link.has_remote = True
        return now

    return clock


def test_a_shared_tier_that_does_not_answer_holds_up_a_lookup_for_so_long(make, clock):
    """Chunks on this host are not looked up in the shared tier."""
    host = make()
    keys, asked = sglang_scenarios.keys_of("searched", 6), []
    assert all(host.store(keys[:4]))
    now = clock(host, 5, asked)
    assert host.storage.batch_exists(keys) == 5
    assert len(asked) > 50 and now[0] == pytest.approx(1000.3, abs=0.01)
    asked.clear()
    assert host.storage.batch_exists(keys[:4]) == 4 and not asked


def test_a_page_of_the_shared_tier_is_found_with_all_its_parts(make, clock):
    host = make(part_bytes=4096, pool={"page_size": 48})
    clock(host, 5, [])
    assert len(pages.parts_of([host.page_bytes], 4096)) == 3 and host.storage.batch_exists(sglang_scenarios.keys_of("tier", 4)) == 1


@pytest.mark.deadlines
def test_a_search_that_hangs_makes_the_daemon_unwell(make, daemon, monkeypatch):
    host = make()
    assert host.storage.batch_exists(sglang_scenarios.keys_of("known", 1)) == 0
    host.link.has_remote = True
    monkeypatch.setattr(sglang_scenarios.link, "LOOKUP_S", 0.25)
    daemon.pause()
    try:
        assert host.storage.batch_exists(sglang_scenarios.keys_of("hangs", 4)) == 0 and not host.link.well
    finally:
        daemon.resume()
    host.wait_well()


def test_searches_that_last_do_not_hold_up_what_is_queued(make, clock):
    """A search directly after another one asks the daemon only once, because its time limit is the time since the previous search."""
    host, asked = make(), []
    now, counts = clock(host, 1, asked), []
    for n in range(20):
        assert host.storage.batch_exists(sglang_scenarios.keys_of(f"queued {n}", 4)) == 1
        counts.append(len(asked))
        asked.clear()
    assert counts[0] > 50 and counts[1:] == [1] * 19 and now[0] < 1000.5


def test_the_older_calls(make):
    host = make(interface_v1=0)
    keys = sglang_scenarios.keys_of("flat", 5)

    def tensors(data):
        return [fake_sglang.Tensor(bytearray(d)) for d in data]

    values = [sglang_scenarios.value_of(k, 8192) for k in keys]
    assert host.storage.batch_exists(keys) == 0
    assert host.storage.batch_set(keys[:4], tensors(values[:4])) is True
    assert host.storage.set(keys[4], fake_sglang.Tensor(bytearray(values[4]))) is True
    assert host.storage.batch_exists(keys) == 5
    rooms = tensors([bytes(8192)] * 5)
    assert host.storage.batch_get(keys, rooms) == rooms and [t.bytes() for t in rooms] == values
    room = fake_sglang.Tensor(bytearray(8192))
    assert host.storage.get(keys[2], room) is room and room.bytes() == values[2]
    wrong = tensors([bytes(4096), bytes(8192), bytes(16384)])
    assert host.storage.batch_get(keys[:3], wrong) == [None, wrong[1], None]
    assert host.storage.batch_get(sglang_scenarios.keys_of("never", 1), tensors([bytes(8192)])) == [None]
    assert host.storage.batch_set(keys, tensors(values[:4])) is False
    rooms[1].is_contiguous = lambda: False
    assert host.storage.batch_get(keys, rooms) == [None] * 5 and host.storage.batch_set(keys, rooms) is False
    rooms[1].is_contiguous = lambda: True
    draft = [f"{k}.draft" for k in keys]
    assert host.storage.batch_set(draft, tensors([b"d" * 64] * 5)) is True
    assert host.storage.batch_get(keys, rooms) == rooms and [t.bytes() for t in rooms] == values
    assert host.storage.batch_get_v1(keys, host._indices(range(5))) == [False] * 5


@pytest.fixture
def hybrid(make):
    """Returns hybrid(**options), a host with the pools of a hybrid model: K and V, states (pages of one slot) and an indexer."""
    pools = []

    def hybrid(**options):
        host = make(**options)
        names = fake_sglang.PoolName
        host.sides = {names.MAMBA: fake_sglang.HostPool("mla", page_size=1, pages=64), names.INDEXER: fake_sglang.HostPool("mla", pages=64)}
        pools.extend(host.sides.values())
        host.storage.register_mem_host_pool_v2(host.pool, names.KV)
        for name, pool in host.sides.items():
            host.storage.register_mem_host_pool_v2(pool, name)
            host.side_hosts = {**getattr(host, "side_hosts", {}), name: sglang_scenarios.Host(None, pool, pool.indices)}
        return host

    yield hybrid
    for pool in pools:
        pool.close()


def transfer_of(host, name, keys, first=0, policy=fake_sglang.PoolHitPolicy.ALL_PAGES):
    return fake_sglang.PoolTransfer(name, host.sides[name].indices(range(first, first + len(keys))), list(keys), policy)


def set_side(host, name, keys, first=0):
    side = host.side_hosts[name]
    for n, key in enumerate(keys):
        side.write(first + n, sglang_scenarios.value_of(f"{name.value} {key}", side.page_bytes))
    good = host.storage.batch_set_v2([transfer_of(host, name, keys, first)])
    for n in range(len(keys)):
        side.write(first + n, b"\xee" * side.page_bytes)
    return good[name]


def get_side(host, name, keys, first=32):
    """Returns which pages were loaded, after comparing their bytes."""
    side = host.side_hosts[name]
    good = host.storage.batch_get_v2([transfer_of(host, name, keys, first)])[name]
    for n, (key, ok) in enumerate(zip(keys, good)):
        assert not ok or side.read(first + n) == sglang_scenarios.value_of(f"{name.value} {key}", side.page_bytes)
    return good


def test_models_with_several_host_pools_are_stored(hybrid):
    host, (mamba, indexer) = hybrid(), (fake_sglang.PoolName.MAMBA, fake_sglang.PoolName.INDEXER)
    keys = sglang_scenarios.keys_of("hybrid", 8)
    assert all(r.registered for _, _, r in host.link._regions) and len(host.link._regions) == 3
    assert all(host.store(keys)) and set_side(host, indexer, keys[:6]) == [True] * 6
    assert set_side(host, mamba, [keys[1], keys[4], keys[7]]) == [True] * 3
    trailing = fake_sglang.PoolHitPolicy.TRAILING_PAGES
    wanted = [transfer_of(host, indexer, keys), transfer_of(host, mamba, keys[7:], 0, trailing)]
    said = host.storage.batch_exists_v2(keys, wanted)
    assert (said.kv_hit_pages, said.restorable_prefix_pages) == (5, [2, 5])
    assert said.extra_pool_hit_pages == {"kv": 8, "indexer": 6, "mamba": 8}
    assert host.storage.batch_exists_v2(keys).kv_hit_pages == 8
    assert set_side(host, mamba, keys[:3]) == [True] * 3
    window = [transfer_of(host, mamba, keys[6:], 0, trailing)]  # the last two pages of a prefix, or all pages of a shorter one
    assert host.storage.batch_exists_v2(keys, window).restorable_prefix_pages == [1, 2, 3]
    never = sglang_scenarios.keys_of("never", 2)
    assert set_side(host, mamba, never) == [True] * 2  # pages of K and V limit the pages of further pools
    assert host.storage.batch_exists_v2(keys[:3] + never, window).extra_pool_hit_pages == {"kv": 3, "mamba": 3}
    assert get_side(host, indexer, keys) == [True] * 6 + [False] * 2 and get_side(host, mamba, [keys[4], keys[5]]) == [True, False]
    sglang_scenarios.check_load(host, keys)
    other = hybrid()
    assert get_side(other, mamba, [keys[1], keys[4]]) == [True] * 2 and get_side(other, indexer, keys[:3]) == [True] * 3
    assert not host.counters["errors"] and not host.counters["copied_stores"] and not host.counters["copied_loads"]


def test_every_pool_is_registered_with_a_daemon_that_restarts(hybrid, daemon):
    """The mender registers them, so that no load pays for it out of its time."""
    host = hybrid()
    keys = sglang_scenarios.keys_of("registered", 2)
    daemon.kill()
    assert not any(host.store(keys)) and not host.link.well
    daemon.start()
    host.wait_well()
    harness.wait_until(lambda: daemon.status()["sessions"]["registered_buffers"] == 3, lambda: daemon.status()["sessions"])


def test_transfers_of_nonsense_fail_alone(hybrid, caplog):
    host, names = hybrid(), fake_sglang.PoolName
    keys = sglang_scenarios.keys_of("odd", 3)
    good, short = transfer_of(host, names.INDEXER, keys), fake_sglang.PoolTransfer(names.MAMBA, host.sides[names.MAMBA].indices([0]), keys)
    assert host.storage.batch_set_v2([short, good]) == {"mamba": [False] * 3, "indexer": [True] * 3}
    for odd in (fake_sglang.PoolTransfer(names.MAMBA, None, keys), fake_sglang.PoolTransfer("swa", good.host_indices, keys),
                fake_sglang.PoolTransfer(names.INDEXER, good.host_indices, [None] * 3)):
        assert host.storage.batch_get_v2([odd]) == host.storage.batch_set_v2([odd]) == {odd.name: [False] * 3}
    assert host.storage.batch_get_v2([fake_sglang.PoolTransfer(names.MAMBA)]) == {"mamba": []}
    assert all(host.store(keys))
    groups = transfer_of(host, names.INDEXER, keys, 0, fake_sglang.PoolHitPolicy.BLOCK_GROUPS)
    assert host.storage.batch_exists_v2(keys, [groups]).kv_hit_pages == 0
    assert "not 'block_groups': use a version of SGLang that the adapter's README.md lists" in caplog.text
    assert host.storage.batch_exists_v2(keys, [fake_sglang.PoolTransfer("swa", None, keys)]).kv_hit_pages == 0
    assert host.storage.batch_exists_v2([]).kv_hit_pages == 0 and host.storage.batch_exists_v2(keys, [good]).kv_hit_pages == 3


def test_an_answer_after_an_error_has_every_page_of_every_pool(hybrid, monkeypatch):
    """SGLang 0.5.23 counts a pool that is absent from the answer as loaded."""
    host, (mamba, indexer) = hybrid(), (fake_sglang.PoolName.MAMBA, fake_sglang.PoolName.INDEXER)
    keys = sglang_scenarios.keys_of("failed", 3)
    transfers = [transfer_of(host, indexer, keys), transfer_of(host, mamba, keys[2:])]

    def fail(*_):
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(type(host.storage), "_move_side", fail)
    for call in (host.storage.batch_get_v2, host.storage.batch_set_v2):
        assert call(transfers) == {"indexer": [False] * 3, "mamba": [False]}
    assert host.counters["errors"] == 2


def test_a_host_pool_that_cannot_be_stored_is_named(make, caplog):
    """A host pool with an unexpected layout disables the backend for the whole model, because pages of K and V are useless without the rest."""
    class Odd(fake_sglang.HostPool):
        def get_page_buffer_meta(self, indices):  # first all K, then all V
            addresses, lengths = super().get_page_buffer_meta(indices)
            return addresses[::2] + addresses[1::2], lengths

    class Silent(fake_sglang.HostPool):
        def get_page_buffer_meta(self, indices):
            raise NotImplementedError("no zero-copy")

    for kind in (Odd, Silent):
        host, pool = make(), kind()
        keys = sglang_scenarios.keys_of(f"refused {kind.__name__}", 3)
        try:
            assert all(host.store(keys))
            host.storage.register_mem_host_pool_v2(pool, fake_sglang.PoolName.MAMBA)
            assert "its host pool 'mamba' cannot be" in caplog.text
            caplog.clear()
            assert host.store(sglang_scenarios.keys_of("refused too", 3)) == [False] * 3
            transfer = fake_sglang.PoolTransfer(fake_sglang.PoolName.MAMBA, pool.indices([0]), keys[:1])
            assert host.storage.batch_exists_v2(keys, [transfer]).kv_hit_pages == 0
            assert host.storage.batch_get_v2([transfer]) == host.storage.batch_set_v2([transfer]) == {"mamba": [False]}
        finally:
            host.close()
            pool.close()


def test_ranks_share_only_the_pools_that_they_hold_alike():
    class MLAPool(fake_sglang.HostPool):
        pass

    def same(side, pool, mla):
        names = [identity.namespace_name("sglang", identity.fields_of(
            fake_sglang.Config23(tp_size=4, tp_rank=rank, is_mla_model=mla), pool, (8,), model="m", revision="r", weights="w", part_bytes=4096,
            side=side)) for rank in (0, 3)]
        return names[0] == names[1]

    plain, latent = fake_sglang.HostPool(pages=2), MLAPool(pages=2)
    assert same("", plain, True) and same("indexer", plain, True) and same("deepseek_v4_c4", plain, True) and same("draft", latent, True)
    assert not same("mamba", plain, True) and not same("draft", plain, True) and not same("swa", plain, True)
    assert not any(same(side, pool, False) for side in ("", "indexer", "mamba", "draft") for pool in (plain, latent))


def test_stats_are_those_of_sglang(make):
    host = make()
    keys = sglang_scenarios.keys_of("stats", 4)
    host.store(keys)
    host.load(keys)
    stats = host.storage.get_stats()
    assert stats.prefetch_pgs == stats.backup_pgs == [4] and stats.prefetch_bandwidth[0] > 0 and stats.backup_bandwidth[0] > 0
    assert host.storage.get_stats().prefetch_pgs == []


def test_pages_after_a_prefix_continue_its_chain(make):
    host = make()
    keys = sglang_scenarios.keys_of("chain", 6)
    parents, put = [], host.link.put
    host.link.put = lambda spaces, batch, ack, parent: parents.append(parent) or put(spaces, batch, ack, parent)
    host.storage.batch_set_v1(keys[2:], host._indices(range(4)), fake_sglang.ExtraInfo(prefix_keys=keys[:2]))
    assert parents == [bytes.fromhex(keys[1])]
    assert host.counters["learned_parents"] == 0
    other = sglang_scenarios.keys_of("another chain", 6)
    host.storage.batch_set_v1(other[2:], host._indices(range(4)), fake_sglang.ExtraInfo())
    assert parents[1] is None


def test_pages_continue_the_chain_that_a_lookup_named(make):
    """Stores know the page before the first one from lookups, because SGLang does not pass prefixes by default, nor for later calls of a
    prompt's first node."""
    host, parents = make(), []
    put = host.link.put
    host.link.put = lambda spaces, batch, ack, parent: parents.append(parent) or put(spaces, batch, ack, parent)
    keys = sglang_scenarios.keys_of("looked up", 9)
    host.storage.batch_exists(keys[:6], fake_sglang.ExtraInfo(prefix_keys=[]))
    for first, info in ((0, None), (2, fake_sglang.ExtraInfo()), (4, fake_sglang.ExtraInfo(prefix_keys=[]))):
        host.storage.batch_set_v1(keys[first:first + 2], host._indices(range(2)), info)
    assert parents == [None, bytes.fromhex(keys[1]), bytes.fromhex(keys[3])]
    host.storage.batch_set_v1(keys[6:], host._indices(range(3)), fake_sglang.ExtraInfo(prefix_keys=keys[:6]))
    host.storage.batch_set_v1(keys[6:], host._indices(range(3)))
    assert parents[3:] == [bytes.fromhex(keys[5])] * 2 and host.counters["learned_parents"] == 3


def test_a_chain_remembers_so_many_pages():
    remembered, names = chain.Chain(most=4), [bytes([n]) * 32 for n in range(10)]
    remembered.learn(names)
    assert len(remembered) == 4 and remembered.before(names[9]) == names[8] and remembered.before(names[5]) is None
    remembered.learn(names, b"\xff" * 32)
    assert len(remembered) == 4 and remembered.before(names[6]) == names[5] and remembered.before(names[0]) is None
    for n in range(5):
        remembered.learn([names[n]], names[n + 1])
    assert len(remembered) == 4 and remembered.before(names[0]) is None and remembered.before(names[4]) == names[5]
    remembered.learn([])
    assert remembered.before(b"") is None


def test_a_closed_backend_answers(make, daemon):
    host = make()
    keys = sglang_scenarios.keys_of("closed", 2)
    host.close()
    assert host.load(keys) == (0, []) and host.store(keys) == [False] * 2


def test_a_call_meets_the_end_of_the_connections(make):
    """SGLang closes the backend while other threads call it. Such a call has seen the link well before its connections are closed."""
    host = make()
    keys, link = sglang_scenarios.keys_of("closing", 2), host.link
    assert host.store(keys) == [True] * 2
    link._closing.set()  # the mender makes no new connections
    for client in (link.lookups, link.searches, link.stores, *link.loaders):
        client.close()
    for call in (lambda: host.load(keys) == (0, []), lambda: host.store(keys) == [False] * 2):
        link._well = True
        assert call()
    assert not link.counters["errors"]


@pytest.mark.parametrize("lengths, part, expected", [
    ([10, 10], 100, [[(0, 0, 10), (1, 0, 10)]]),
    ([10, 10], 10, [[(0, 0, 10)], [(1, 0, 10)]]),
    ([10, 10], 15, [[(0, 0, 10), (1, 0, 5)], [(1, 5, 5)]]),
    ([25], 10, [[(0, 0, 10)], [(0, 10, 10)], [(0, 20, 5)]]),
])
def test_parts(lengths, part, expected):
    assert [[tuple(s) for s in p] for p in pages.parts_of(lengths, part)] == expected


def test_many_pieces_are_several_parts():
    parts = pages.parts_of([1] * 2500, 1 << 20)
    assert [len(p) for p in parts] == [1024, 1024, 452]


def test_keys_never_meet():
    names = ["0" * 64, "1" * 64, "x", "", "1" * 63, "1" * 65, "11" * 31 + "1x"]
    keys = [identity.key_of(n) for n in names] + [identity.key_of(n, "mamba") for n in names]
    assert len(set(keys)) == len(keys) and all(len(k) == 32 and any(k) for k in keys)
    assert identity.key_of("1" * 64) == b"\x11" * 32


def test_every_difference_in_bytes_is_another_namespace():
    def name(lengths=(8, 8), part=65536, weights="w", model="org/m", revision="main", pool=None, **changed):
        fields = identity.fields_of(fake_sglang.Config23(**changed), pool or fake_sglang.HostPool(pages=2), lengths, model=model,
                                    revision=revision, weights=weights, part_bytes=part)
        return identity.namespace_name("sglang", fields)

    same = name()
    others = [name(lengths=(16,)), name(lengths=()), name(part=4096), name(weights="x"), name(model="org/n"), name(revision="v2"),
              name(tp_size=2), name(tp_size=2, tp_rank=1), name(pp_size=2), name(pp_size=2, pp_rank=1), name(attn_cp_size=2),
              name(pool=fake_sglang.HostPool(layout="layer_first", pages=2)), name(pool=fake_sglang.HostPool(page_size=128, pages=2)),
              name(is_mla_model=True), name(is_mla_model=True, tp_size=2, dcp_size=2, dcp_rank=1, tp_rank=1)]
    assert same == name() and len({same, *others}) == 1 + len(others)
    assert name(is_mla_model=True, tp_size=4, tp_rank=2) == name(is_mla_model=True)
    shard = dict(is_mla_model=True, tp_size=4, dcp_size=2, dcp_rank=1)
    assert name(**shard, tp_rank=1) == name(**shard, tp_rank=3) != name(**{**shard, "dcp_rank": 0}, tp_rank=2)
    assert all(len(n) < 256 and n.isascii() for n in others) and same.startswith("sglang/m-")


def test_nothing_of_the_package_imports_sglang(module):
    code = "import kvcache.sglang, kvcache.sglang.pages, sys; assert not any(m == 'sglang' for m in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ,
                                                                 "PYTHONPATH": str(harness.SOURCE / "client" / "python")})


def test_pages_longer_than_the_daemon_takes_are_named(make, caplog):
    long = {"page_size": 32768, "pages": 2}
    host = make(pool=long, pages=(0, 2))
    keys = sglang_scenarios.keys_of("long", 2)
    assert host.page_bytes == 8 << 20 and not host.link.well and "set part_bytes" in caplog.text
    assert host.store(keys) == [False] * 2 and host.load(keys) == (0, [])
    parted = make(pool=long, pages=(0, 2), part_bytes=1 << 20)
    assert all(parted.store(keys))
    sglang_scenarios.check_load(parted, keys)


@pytest.mark.parametrize("into", [False, True])
def test_a_load_goes_in_rounds_and_ends_with_the_first_that_fails(make, daemon, into):
    host = make()
    keys = sglang_scenarios.keys_of("rounds", 12)
    assert all(host.store(keys))
    host.link.round_bytes = host.link.into_bytes = 2 * host.page_bytes
    host.link.into, loads, asked, prefetched = into, host.link._probed.loads, [], []
    get, get_into, prefetch = loads.get, host.link.get_into, loads.prefetch
    loads.get = lambda batch, **how: asked.append(len(batch)) or get(batch, **how)
    host.link.get_into = lambda spaces, batch, *how: asked.append(len(batch)) or get_into(spaces, batch, *how)
    loads.prefetch = lambda keys, **how: prefetched.append(list(keys)) or prefetch(keys, **how)
    sglang_scenarios.check_load(host, keys)
    names = [identity.key_of(key) for key in keys]
    assert asked == [2] * 6 and prefetched == [names[n:n + 2] for n in range(2, 12, 2)]
    asked.clear()
    sglang_scenarios.evict(host, daemon, [identity.key_of(keys[5])])
    assert host.storage.batch_get_v1(keys, host._indices(range(12))) == [True] * 5 + [False] * 7
    assert asked == [2] * 3


def test_the_rounds_of_a_request_fit_into_the_daemon_s_pool(make, make_daemon):
    small, asked = make_daemon(settings={"memory.pool": "8MiB"}).start(), []
    host = make(socket=small.socket, load_into=False, pages=(0, 64))
    put, keys = host.link.put, sglang_scenarios.keys_of("pool", 64)
    host.link.put = lambda spaces, batch, *how: asked.append(len(batch)) or put(spaces, batch, *how)
    assert all(host.store(keys)) and len(asked) > 1 and max(asked) * host.page_bytes <= (8 << 20) // 16
    sglang_scenarios.check_load(host, keys)


def test_the_rounds_of_a_store_continue_one_chain(make):
    host, parents = make(), []
    keys, put = sglang_scenarios.keys_of("rounds of a store", 6), host.link.put
    host.link.put = lambda spaces, batch, ack, parent: parents.append(parent) or put(spaces, batch, ack, parent)
    host.link.round_bytes = 2 * host.page_bytes
    assert all(host.storage.batch_set_v1(keys, host.pool.indices(host.pages[:6])))
    assert parents == [None, bytes.fromhex(keys[1]), bytes.fromhex(keys[3])]


def test_the_rounds_of_a_load_share_its_time(make):
    host, left = make(load_into=False), []
    keys = sglang_scenarios.keys_of("time", 6)
    assert all(host.store(keys))
    host.link.round_bytes, loads = 2 * host.page_bytes, host.link._probed.loads
    get = loads.get
    loads.get = lambda batch, parent, timeout: left.append(timeout) or get(batch, parent=parent, timeout=timeout)
    sglang_scenarios.check_load(host, keys)
    assert left == sorted(left, reverse=True) and len(set(left)) == 3 and left[0] <= host.link.timeout_s


@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("part", range(3))
def test_a_page_that_lacks_a_part_is_not_loaded(make, daemon, part, into):
    """The lookup is left out, because a part may be evicted after it. The other pages are loaded."""
    host = make(part_bytes=4096, pool={"page_size": 48}, load_into=into)
    keys = sglang_scenarios.keys_of("lacking", 5)
    assert all(host.store(keys)) and len(pages.parts_of([host.page_bytes], 4096)) == 3
    names = identity.parts_of(identity.key_of(keys[2]), 3)
    sglang_scenarios.evict(host, daemon, names[part:part + 1])
    places = host.pool.indices(host.pages[:5])
    assert host.storage.batch_get_v1(keys, places) == [True, True, False, True, True]
    assert host.link._probed.stores.put(names[part:part + 1], [b"\xaa" * 4095], "written").ok
    assert host.storage.batch_get_v1(keys, places) == [True, True, False, True, True] and host.counters["wrong_lengths"] == 1


@pytest.mark.parametrize("is_load", [False, True])
def test_pages_are_not_moved_if_the_daemon_fails_between_their_parts(make, monkeypatch, is_load):
    host = make(part_bytes=4096, pool={"page_size": 48})
    keys = sglang_scenarios.keys_of("between", 3)
    assert all(host.store(keys))
    heard = host.link.heard
    monkeypatch.setattr(host.link, "heard", lambda client, done: heard(client, done) or host.link.ail("a failure"))
    call = host.storage.batch_get_v1 if is_load else host.storage.batch_set_v1
    assert call(keys, host.pool.indices(host.pages[:3])) == [False] * 3
    assert host.counters["loaded_pages"] == 0 and host.counters["stored_pages"] == 3


@pytest.mark.parametrize("failure", ["lost", "raised"])
@pytest.mark.parametrize("is_load", [False, True])
def test_each_piece_of_a_lost_page_is_settled(make, daemon, monkeypatch, is_load, failure):
    """The daemon may still access any byte of a page whose request was lost."""
    host, settled = make(pool={"layout": "layer_first"}), []
    keys, taken = sglang_scenarios.keys_of("settled", 3), host.pages[:3]
    assert all(host.store(keys))
    monkeypatch.setattr(host.link, "is_settled", lambda address, nbytes: settled.append((address, nbytes)) or True)

    def fail(*_):
        raise kvcache.Error(107, "the request may have been sent")

    if failure == "raised":
        monkeypatch.setattr(host.link, "get_into" if is_load else "put", fail)
    else:
        daemon.kill()
    call = host.storage.batch_get_v1 if is_load else host.storage.batch_set_v1
    assert call(keys, host.pool.indices(taken)) == [False] * 3 and not host.link.well
    assert settled == [piece for pieces in host._pieces(taken) for piece in pieces]


def test_a_place_is_settled_if_all_its_bytes_are(make, monkeypatch):
    host, asked = make(), []
    [(start, end, region)] = host.link._regions
    monkeypatch.setattr(type(region), "settled", lambda self, offset, length: asked.append((offset, length)) or len(asked) > 4)
    host.link.settle([(start + 64, 4096), (start + 8192, 8192)])
    assert asked == [(64, 4096), (8192, 8192)] * 2 + [(64, 4096), (8192, 8192)]
    assert not host.link.is_shared(end - 4096, 8192) and host.link.is_shared(end - 4096, 4096)


def test_a_pool_whose_pages_change_their_pieces_is_refused(make, monkeypatch):
    host = make()
    keys, meta = sglang_scenarios.keys_of("pieces", 3), host.pool.get_page_buffer_meta
    assert all(host.store(keys))
    places = host.pool.indices(host.pages[:3])
    for change in (lambda a, n: (a, [n[0] + 64, n[1] - 64] * 3), lambda a, n: (a, n[:-1]), lambda a, n: (a[:-1], n), lambda a, n: (a[:4], n[:4])):
        monkeypatch.setattr(host.pool, "get_page_buffer_meta", lambda indices: change(*meta(indices)))
        assert host.storage.batch_get_v1(keys, places) == host.storage.batch_set_v1(keys, places) == [False] * 3
    assert host.counters["errors"] == 8


def test_each_buffer_of_a_host_pool_is_registered(make, monkeypatch):
    """Some pools have a tensor for each layer, or one for K and one for V."""
    def buffers(self):
        half = self.kv_buffer.memory
        nbytes = len(half) // 2
        return [fake_sglang.Tensor(half, 0, nbytes), fake_sglang.Tensor(half, nbytes, nbytes)]

    class Divided(fake_sglang.HostPool):
        def __init__(self, **how):
            super().__init__(**how)
            self.whole, self.kv_buffer = self.kv_buffer, buffers(self)

        def get_page_buffer_meta(self, indices):
            divided, self.kv_buffer = self.kv_buffer, self.whole
            try:
                return super().get_page_buffer_meta(indices)
            finally:
                self.kv_buffer = divided

    monkeypatch.setattr(fake_sglang, "HostPool", Divided)
    host = make()
    keys = sglang_scenarios.keys_of("divided", 8)
    assert [r.registered for _, _, r in host.link._regions] == [True] * 2 and all(host.store(keys))
    sglang_scenarios.check_load(host, keys)
    assert host.counters["copied_stores"] == host.counters["copied_loads"] == 0


def test_further_pools_follow_the_canary(hybrid):
    """Pages of a further pool are stored in the variant of K and V, and not before it is verified."""
    indexer = fake_sglang.PoolName.INDEXER
    first, keys = hybrid(), sglang_scenarios.keys_of("sides", 9)
    assert all(computed(first, keys, "")) and set_side(first, indexer, keys) == [True] * 9
    host = hybrid(canary="first", pages=(32, 32))
    assert set_side(host, indexer, sglang_scenarios.keys_of("unverified", 2)) == [False] * 2
    assert host.load(keys) == (0, []) and all(computed(host, keys, "of a patched kernel "))
    side = host.side_hosts[indexer]
    assert host.storage.batch_get_v2([transfer_of(host, indexer, keys)])["indexer"] == [False] * 9, "pages of the variant before are loaded"
    for n, key in enumerate(keys):
        side.write(n, sglang_scenarios.value_of("of a patched kernel " + key, side.page_bytes))
    assert host.storage.batch_set_v2([transfer_of(host, indexer, keys)])["indexer"] == [True] * 9
    assert host.storage.batch_get_v2([transfer_of(host, indexer, keys, 32)])["indexer"] == [True] * 9
    assert side.read(36) == sglang_scenarios.value_of("of a patched kernel " + keys[4], side.page_bytes)
    assert get_side(first, indexer, keys) == [True] * 9


@pytest.mark.parametrize("refused", [0, 2])
def test_a_next_variant_that_cannot_be_opened_is_named_and_opened_later(hybrid, daemon, caplog, monkeypatch, refused):
    """The next variant of the first pool or of the last one has another fingerprint. Nothing is stored or loaded until it is removed."""
    indexer, storage = fake_sglang.PoolName.INDEXER, sys.modules["kvcache.sglang.storage"]
    monkeypatch.setattr(storage, "OPEN_S", 0.0)
    first, keys, mine = hybrid(), sglang_scenarios.keys_of("sides", 9), sglang_scenarios.keys_of("mine", 4)
    assert all(computed(first, keys, "")) and set_side(first, indexer, keys) == [True] * 9
    host = hybrid(canary="first", pages=(32, 32))
    pools = [host.storage._pool, *host.storage._sides.values()]
    names = [p.pages._spaces.stores.name for p in pools]
    assert host.load(keys) == (0, [])
    with kvcache.Client(daemon.socket) as client:
        other = client.namespace(names[refused] + "/v2", {"engine": "another"})
        for i in range(3):
            assert computed(host, keys if i == 0 else mine, "of a patched kernel ") == [False] * (9 if i == 0 else 4)
            assert set_side(host, indexer, mine) == [False] * 4 and get_side(host, indexer, keys) == [False] * 9
            assert host.load(keys) == host.load(mine) == (0, [])
        assert host.counters["canary_mismatches"] == 1 and "StopIteration" not in caplog.text
        said = {r.getMessage() for r in caplog.records if names[refused] + "/v2" in r.getMessage() and "until the canary's next namespaces can be opened" in r.getMessage()}
        assert len(said) == 1 and "another fingerprint" in said.pop()
        assert first.storage.batch_exists(mine) == 0, "the engine stores in the namespace that the canary has rejected"
        assert other.remove() == 0
    assert all(computed(host, mine, "of a patched kernel ")) and set_side(host, indexer, mine) == [True] * 4
    assert [p.pages._spaces.stores.name for p in pools] == [name + "/v2" for name in names]
    assert host.storage.batch_exists(mine) == 4 and first.storage.batch_exists(mine) == 0


def test_a_further_pool_with_the_shape_of_k_and_v_has_pages_of_its_own(make):
    host, pool = make(), fake_sglang.HostPool()
    try:
        host.storage.register_mem_host_pool_v2(pool, "draft")
        side, keys = sglang_scenarios.Host(None, pool, pool.indices), sglang_scenarios.keys_of("shape", 3)
        assert all(host.store(keys))
        transfer = fake_sglang.PoolTransfer("draft", pool.indices(range(3)), keys)
        assert host.storage.batch_get_v2([transfer]) == {"draft": [False] * 3}
        for page in range(3):
            side.write(page, bytes([page + 1]) * side.page_bytes)
        assert host.storage.batch_set_v2([transfer]) == {"draft": [True] * 3}
        sglang_scenarios.check_load(host, keys)
    finally:
        host.close()
        pool.close()


@pytest.mark.deadlines
def test_a_store_outlasts_one_wait_of_the_thread_that_reaps(make, daemon, monkeypatch):
    """A store that returned earlier would let SGLang reuse pages that the daemon reads."""
    monkeypatch.setattr(sglang_scenarios.link, "REAP_S", 0.05)
    host, keys, said = make(timeout_s=60.0), sglang_scenarios.keys_of("outlasts", 4), []
    daemon.pause()
    try:
        storing = threading.Thread(target=lambda: said.append(host.store(keys)))
        storing.start()
        storing.join(0.5)
        assert storing.is_alive() and host.link.well
    finally:
        daemon.resume()
    storing.join(60)
    assert said == [[True] * 4]
