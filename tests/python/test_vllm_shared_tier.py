# SPDX-License-Identifier: Apache-2.0
"""vLLM's tier on two hosts whose daemons share a directory, under the recorded contracts of vLLM 0.26 and 0.33. One host loads what the other
has stored if that is worthwhile; otherwise, or if it does not arrive, it computes."""

import pathlib
import shutil
import sys
import threading
import time
import types

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "engines"))

import fake_vllm  # noqa: E402
import kvcache  # noqa: E402
import vllm_scenarios  # noqa: E402
from harness import wait_until  # noqa: E402
from kvcache.vllm import policy, shared  # noqa: E402

# The library has no sanitizer here (conftest.py), and what reaches the daemon, test_python_client.py sends, too.
pytestmark = pytest.mark.repeated


@pytest.fixture
def daemons(make_daemon, directory):
    (directory / "shared").mkdir()
    return [make_daemon(settings={"remote.backend": "directory", "remote.path": directory / "shared", "remote.write": "all",
                                  "remote.absence_lifetime": "100ms"}).start() for _ in range(2)]


@pytest.fixture(params=[(0, 26), (0, 33)], ids=["0.26", "0.33"])
def make(request, daemons):
    module, hosts = fake_vllm.install(request.param), []

    def make(n, **options):
        hosts.append(fake_vllm.Host(request.param, module.KvcacheTier, **{"socket": daemons[n].socket, "timeout_s": 60.0, **options}))
        host = hosts[-1]
        if host.tier._shared is not None:
            wait_until(lambda: host.tier._shared.on, "it knows of the shared tier")
        return host

    yield make
    for host in hosts:
        host.tier.shutdown()
    fake_vllm.remove()


def store(make, daemon, name, count):
    """Stores keys on the first host, and waits until they are on the shared tier."""
    host, keys = make(0), vllm_scenarios.keys_of(name, count)
    vllm_scenarios.store(host, "a", keys)
    wait_until(lambda: daemon.status()["remote"]["puts"] >= count, "they are there")
    return host, keys


def request(host, keys):
    """Runs a request until no key waits and returns the number of leading keys loaded. The values of these are compared."""
    context, deadline = host.begin(f"r{time.monotonic()}"), time.monotonic() + 60
    while True:
        said = host.lookup(keys, context)
        host.step()
        run = said.index("MISS") if "MISS" in said else len(said)
        if "RETRY" not in said[:run]:
            for key, got in host.load(keys[:run], context).items():
                assert got == vllm_scenarios.value_of(key, host.row), f"wrong bytes under {key.hex()}"
            host.finish(context)
            return run
        assert time.monotonic() < deadline, said


def answered(host, keys, context):
    """Returns the lookup results of the first step in which no key ahead of the first miss waits."""
    deadline = time.monotonic() + 60
    while True:
        said = host.lookup(keys, context)
        host.step()
        if "RETRY" not in said[:said.index("MISS") if "MISS" in said else None]:
            return said
        assert time.monotonic() < deadline, f"never answered: {said}"


def counts(host):
    return {n.removeprefix("vllm:kv_offload_kvcache_"): v for n, v in host.counts().items()}


def test_what_another_host_has_stored_is_loaded(make, daemons):
    _, keys = store(make, daemons[0], "other", 12)
    here = make(1)
    vllm_scenarios.store(here, "a", keys[:4])
    here.reset()
    assert request(here, keys + vllm_scenarios.keys_of("never", 3)) == 12
    said = counts(here)
    assert said["loaded_remote_bytes"] == 8 * here.row and said["loaded_memory_bytes"] + said.get("loaded_disk_bytes", 0) == 4 * here.row
    assert said["remote_bytes_per_second"] > 0 and "failed_fetches" not in said and said["hits"] == 12
    here.reset()
    assert request(here, keys) == 12
    assert counts(here)["loaded_remote_bytes"] == 8 * here.row, "they are here now"


@pytest.mark.parametrize("options", [{}, dict(load_policy="auto", prefill_tokens_per_s=1.0, memory_bytes_per_s=1e9,
                                              remote_bytes_per_s=1e9)], ids=["always", "auto"])
def test_a_single_chunk_of_another_host_is_loaded(make, daemons, options):
    _, keys = store(make, daemons[0], "single", 1)
    assert request(make(1, **options), keys) == 1


def test_the_engine_does_not_wait_for_it(make, daemons):
    _, keys = store(make, daemons[0], "wait", 6)
    here = make(1)
    with vllm_scenarios.threads_that_call(kvcache.Namespace, "reach") as asking:
        assert request(here, keys) == 6
    assert asking and threading.get_ident() not in asking, "the engine's thread asks the shared tier"


def test_what_is_not_there_any_more_is_computed(make, daemons, directory):
    _, keys = store(make, daemons[0], "removed", 6)
    here = make(1)
    with kvcache.Client(daemons[1].socket) as client:
        blocks = client.namespace(here.tier._transfers._namespaces[0].name, here.tier._shared._fields)
        names = [k[:32] for k in keys]
        wait_until(lambda: blocks.reach(names) == (0, 6, True), "it is known to be there")
        for file in (directory / "shared").rglob("*"):
            if file.is_file() and file.name in {n.hex() for n in names[3:]}:
                file.unlink()
        assert blocks.reach(names) == (0, 6, True)
    assert request(here, keys) == 3
    said = counts(here)
    assert said["failed_fetches"] == 3 and said["loaded_remote_bytes"] == 3 * here.row and "failed_loads" not in said


def test_what_is_slower_than_computing_is_declined_or_not_even_looked_for(make, daemons):
    _, keys = store(make, daemons[0], "slow", 12)
    rates = dict(load_policy="auto", memory_bytes_per_s=1e9, disk_bytes_per_s=1e9)
    slow = make(1, **rates, prefill_tokens_per_s=1000.0, remote_bytes_per_s=1e5)
    assert request(slow, keys) == 0
    assert slow.tier._shared.fetched == shared.deque() and "loaded_remote_bytes" not in counts(slow)
    assert daemons[1].status()["remote"]["hits"] == 0
    quick = make(1, **rates, prefill_tokens_per_s=1.0, remote_bytes_per_s=1e9)
    assert request(quick, keys) == 12, counts(quick)
    assert counts(quick)["loaded_remote_bytes"] == 12 * quick.row


def window_of(host, keys, size, context):
    """Returns the result of vLLM's lookup for a sliding window: the end of the last run of `size` chunks, or None while a chunk waits."""
    if host.new:
        context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
    run, waits = 0, False
    for at in reversed(range(len(keys))):
        said = host._lookup(keys[at], context)
        run, waits = run + 1 if said == "HIT" else 0, waits or said == "RETRY"
        if run == size:
            return None if waits else at + size
    return None if waits else run


@pytest.mark.parametrize("missing", [0, 2])
def test_a_sliding_window_of_another_host_is_loaded(make, daemons, missing, monkeypatch):
    """Chunks of a sliding window are found although vLLM asks for the last chunk first, and no host has the chunks after the window."""
    _, keys = store(make, daemons[0], "window", 8)
    here, begun = make(1), []
    begin = here.tier._shared.begin
    monkeypatch.setattr(here.tier._shared, "begin", lambda group, keys, *a: begun.append(len(keys)) or begin(group, keys, *a))
    context, end, deadline = here.begin("a"), None, time.monotonic() + 60
    while end is None:
        end = window_of(here, keys + vllm_scenarios.keys_of("never", missing), 3, context)
        here.step()
        assert time.monotonic() < deadline, "never answered"
    assert end == 8 and begun[0] == 8 + missing, "they are looked for together"
    assert here.load(keys[5:8], context) == {k: vllm_scenarios.value_of(k, here.row) for k in keys[5:8]}
    here.finish(context)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_first_chunks_come_from_elsewhere_meanwhile(make, daemons, steps):
    """Chunks that another request computes meanwhile are not loaded, because vLLM no longer asks for them: before or after the search has begun."""
    _, keys = store(make, daemons[0], "meanwhile", 6)
    here = make(1)
    context = here.begin("a")
    for _ in range(steps):
        assert here.lookup(keys, context) == ["RETRY"] * 6
        here.step()
    vllm_scenarios.store(here, "b", keys[:2])
    assert answered(here, keys, context) == ["HIT"] * 6
    assert not here.tier._requests["a"].sought


def test_a_request_that_comes_back_late_has_what_is_here(make, daemons):
    _, keys = store(make, daemons[0], "late", 6)
    here = make(1)
    context = here.begin("a")
    for _ in range(2):
        assert here.lookup(keys, context) == ["RETRY"] * 6
        here.step()
    [sought] = here.tier._requests["a"].sought.values()
    wait_until(lambda: here.tier._shared.state(sought._search) == shared.FOUND, "they are found")
    here.tier._requests["a"].search_untils[0] = sought.until = 0.0
    assert here.lookup(keys, context)[0] == "MISS" and sought._search.state == shared.ENDED
    assert here.lookup(keys, context)[0] == "MISS", "it waits no longer"


def test_it_can_be_switched_off(make, daemons):
    _, keys = store(make, daemons[0], "off", 4)
    here = make(1, remote=False)
    vllm_scenarios.check_load(here, "a", keys, found=0)
    with pytest.raises(ValueError, match="remote"):
        make(1, remote="no")


def test_a_request_that_ends_while_it_waits_leaves_nothing(make, daemons):
    _, keys = store(make, daemons[0], "ends", 6)
    here = make(1)
    context = here.begin("a")
    assert here.lookup(keys, context) == ["RETRY"] * 6
    here.finish(context)
    assert all(s.state == shared.ENDED for s in here.tier._shared._searches)


def test_a_request_of_the_same_name_leaves_nothing_of_the_one_before(make, monkeypatch):
    monkeypatch.setattr(kvcache.Namespace, "reach", lambda *a, **k: (0, 0, False))
    here, begun, keys = make(1), [], vllm_scenarios.keys_of("again", 6)
    for _ in range(3):
        context = here.begin("a")
        for _ in range(2):  # vLLM 0.26 has said all that it asks for at the second step
            assert here.lookup(keys, context) == ["RETRY"] * 6
            here.step()
        begun += [s._search for s in here.tier._requests["a"].sought.values()]
        assert len(begun) == len({id(s) for s in begun}) and all(s.state == shared.ENDED for s in begun[:-1])
    assert len(begun) == 3
    here.finish(context)
    wait_until(lambda: not here.tier._shared._searches, "nothing is left")


def test_a_daemon_that_hangs_costs_a_request_no_more_than_its_deadline(make, daemons, monkeypatch):
    """The request is answered while the daemon hangs, and no call of the engine's asks the shared tier."""
    monkeypatch.setattr(policy, "LONGEST_SEARCH_S", 0.2)
    _, keys = store(make, daemons[0], "hangs", 4)
    here = make(1)
    context = here.begin("a")
    daemons[1].pause()
    try:
        with vllm_scenarios.threads_that_call(kvcache.Namespace, "reach") as asking:
            wait_until(lambda: "RETRY" not in here.lookup(keys, context) or here.step(), "the request is answered", 60)
        assert threading.get_ident() not in asking
    finally:
        daemons[1].resume()
    here.finish(context)


@pytest.fixture
def idle(monkeypatch):
    """Makes a SharedTier whose thread does not run and whose clock is `now`."""
    monkeypatch.setattr(shared.threading.Thread, "start", lambda self: None)
    tier = shared.SharedTier({0: "n"}, {"m": "1"}, {0: 100}, socket="/nonexistent", timeout_s=1.0)
    tier.now = time.monotonic()
    monkeypatch.setattr(shared, "time", types.SimpleNamespace(monotonic=lambda: tier.now))
    yield tier
    tier._client.close()


def fetch_of(tier, count):
    """Begins a fetch of `count` chunks, all of which the shared tier has."""
    search = tier.begin(0, vllm_scenarios.keys_of("fetch", count), 0, 60.0)
    search.reach, search.state = count, shared.FOUND
    tier.fetch(search, count, 1.0)
    return search


def answer(tier, search, tiers, missed=0):
    """Answers a round, with the tier of each chunk and the number of missing chunks after them."""
    status = bytes([kvcache.OK] * len(tiers) + [kvcache.MISS] * missed)
    tier._answered(types.SimpleNamespace(tag=shared._Round(search, len(status)), status=status, leased=None,
                                         lengths=[100] * len(tiers) + [0] * missed, tiers=bytes(tiers) + bytes(missed)))


@pytest.mark.parametrize("others", [0, 3, 15])
def test_what_comes_late_is_learned_to_be_slow_however_many_wait(idle, others):
    """The measured rate does not depend on the number of concurrent searches, because each alone would have had the same rate at best."""
    searches = [fetch_of(idle, 10) for _ in range(1 + others)]
    idle.now += 1.0
    for search in searches:
        answer(idle, search, [kvcache.TIER_REMOTE], 9)
    assert [f.nbytes / f.seconds for f in idle.fetched] == pytest.approx([100.0] * (1 + others))
    idle.fetched.clear()
    nothing, much = fetch_of(idle, 10), fetch_of(idle, 10)
    idle.now += 1.0
    answer(idle, nothing, [], 10)
    answer(idle, much, [kvcache.TIER_REMOTE] * 9, 1)
    assert [f.nbytes / f.seconds for f in idle.fetched] == pytest.approx([100.0, 500.0])


def test_all_rounds_count_in_what_is_learned(idle):
    """Later rounds of a search count as well, although the daemon has brought their chunks to its memory before they are requested."""
    search = fetch_of(idle, 8)
    for tier in (kvcache.TIER_REMOTE, kvcache.TIER_MEMORY, kvcache.TIER_MEMORY, kvcache.TIER_MEMORY):
        idle.now += 0.1
        answer(idle, search, [tier] * 2)
    assert search.state == shared.ENDED and search.got == 8
    [fetched] = idle.fetched
    assert (fetched.nbytes, fetched.seconds) == (800, pytest.approx(0.4))
    idle.fetched.clear()
    answer(idle, fetch_of(idle, 2), [kvcache.TIER_MEMORY] * 2)
    assert not idle.fetched, "it came to this host meanwhile"


def test_a_chunk_of_several_parts_is_fetched_if_all_are(idle):
    idle._parts = 2
    search = fetch_of(idle, 3)
    status = [kvcache.OK] * 3 + [kvcache.MISS] + [kvcache.OK] * 2
    idle._answered(types.SimpleNamespace(tag=shared._Round(search, 3), status=bytes(status), leased=None, lengths=[50] * 6,
                                         tiers=bytes([kvcache.TIER_REMOTE] * 6)))
    assert search.got == 1 and search.state == shared.ENDED
    search = idle.begin(0, vllm_scenarios.keys_of("parts", 3), 0, 60.0)
    idle._namespace = lambda group: types.SimpleNamespace(reach=lambda keys, timeout: (0, 5, True))
    idle._look(search)
    assert search.reach == 2 and search.state == shared.FOUND, "a chunk counts of which a part is missing"


def test_past_its_deadline_what_is_known_counts(idle):
    tier, keys = idle, vllm_scenarios.keys_of("silent", 10)
    search = tier.begin(0, keys, 2, 60.0)
    assert tier.state(search) == shared.LOOKING
    search.until = 0.0
    assert tier.state(search) == shared.ENDED, "nothing is known"
    search = tier.begin(0, keys, 2, 60.0)
    search.reach, search.until = 7, 0.0
    assert tier.state(search) == shared.FOUND
    tier.fetch(search, 5, float("inf"))
    assert tier.state(search) == shared.FETCHING and tier.queued_bytes == 500
    assert search.until <= time.monotonic() + 1.0
    search.got, search.until = 3, 0.0
    assert tier.state(search) == shared.ENDED and tier.queued_bytes == 0
    tier.drop(search)


def test_how_far_a_chain_goes_is_asked_less_and_less_often(idle):
    idle._status_at, idle.pauses, idle.asked = idle.now + 10.0, [], []

    def wait(seconds):
        idle.pauses.append(seconds)
        idle.now += seconds + 1e-9

    def reach(keys, timeout):
        idle.asked.append(keys.count)
        return 0, 0, False

    idle._kick.wait, idle._namespace = wait, lambda group: types.SimpleNamespace(reach=reach)
    idle._client = types.SimpleNamespace(inflight=0, connected=True, close=idle._client.close)
    idle.begin(0, vllm_scenarios.keys_of("slow", 4), 0, 60.0)
    for _ in range(6):
        idle._turn()
    assert idle.pauses == pytest.approx([0.002, 0.004, 0.008, 0.016, 0.016, 0.016], rel=1e-3) and len(idle.asked) == 6
    idle.begin(0, vllm_scenarios.keys_of("other", 5), 0, 60.0)
    idle.now -= 0.016
    idle._turn()
    assert idle.asked[6:] == [5] and idle.pauses[-1] == pytest.approx(0.002, rel=1e-3), "each has pauses of its own"


def test_a_search_that_no_request_asks_for_any_more_ends(idle):
    idle._status_at, idle._kick.wait = float("inf"), lambda seconds: None
    idle._client = types.SimpleNamespace(inflight=0, close=idle._client.close)
    search = idle.begin(0, vllm_scenarios.keys_of("forgotten", 4), 0, 1.0)
    search.state, search.reach = shared.FOUND, 4
    idle.now += 1.0 + shared.ABANDONED_S / 2
    idle._turn()
    assert idle.state(search) == shared.FOUND, "a step of the engine may last"
    idle.now += shared.ABANDONED_S
    idle._turn()
    assert idle.state(search) == shared.ENDED and not idle._searches
    idle.fetch(search, 4, 1.0)  # by one that had seen it before
    assert idle._searches == [search]
