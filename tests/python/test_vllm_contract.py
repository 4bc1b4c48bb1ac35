# SPDX-License-Identifier: Apache-2.0
"""vLLM's tier under the recorded contracts of vLLM 0.26 and 0.33, against a real daemon; vLLM is not needed. The scenarios are
those that tests/engines/vllm_check.py runs over the real managers."""

import collections
import functools
import json
import math
import pathlib
import re
import sys
import types

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "engines"))

import fake_vllm  # noqa: E402
import harness  # noqa: E402
import kvcache  # noqa: E402
import vllm_scenarios  # noqa: E402
from kvcache import vllm as adapter  # noqa: E402
from kvcache.engine import private  # noqa: E402
from kvcache.vllm import identity  # noqa: E402
from test_vllm_hints import envelope  # noqa: E402

# The library has no sanitizer here (conftest.py), and what reaches the daemon, test_python_client.py sends, too.
pytestmark = pytest.mark.repeated


@pytest.fixture(params=[(0, 26), (0, 33)], ids=["0.26", "0.33"])
def version(request):
    yield request.param
    fake_vllm.remove()


@pytest.fixture
def make(version, daemon):
    module, hosts = fake_vllm.install(version), []

    def make(**options):
        hosts.append(fake_vllm.Host(version, module.KvcacheTier, **{"socket": daemon.socket, **options}))
        return hosts[-1]

    yield make
    for host in hosts:
        host.tier.shutdown()


@pytest.mark.parametrize("scenario", [pytest.param(f, marks=pytest.mark.deadlines) if f in vllm_scenarios.OF_DEADLINES else f for f in vllm_scenarios.SCENARIOS],
                         ids=lambda f: f.__name__)
def test_scenario(scenario, make, daemon):
    scenario(make, daemon)


@pytest.mark.parametrize("weights, left", [("unknown", 0), ("tests", 1)])
def test_shutdown_removes_a_private_namespace(make, daemon, monkeypatch, weights, left):
    monkeypatch.setattr(private, "BUSY_S", 60.0)  # on a busy machine
    host = make(weights=weights)
    vllm_scenarios.store(host, "a", vllm_scenarios.keys_of("end", 4))
    host.close()
    with daemon.client() as c:
        assert len(list(c.namespaces())) == left


def test_a_tier_prints_its_state(make):
    tier = make().tier
    assert re.fullmatch(r"<KvcacheTier 'vllm/[^']+': connected, 0 loads in flight(, with the shared tier)?>", repr(tier))
    assert repr(type(tier).__new__(type(tier))) == "<KvcacheTier of nothing>"


def test_only_the_scheduler_s_thread_polls_the_tier(make, version):
    """vLLM 0.33 starts a thread for tiers that allow it, which takes the manager's lock and the interpreter's a thousand times a second. It
    is meant for tiers that answer other hosts."""
    assert getattr(make().tier, "tolerates_off_thread_polling", False) is False


def test_events_of_what_was_stored(make, version):
    host = make()
    keys = vllm_scenarios.keys_of("events", 5)
    vllm_scenarios.store(host, "a", keys)
    host.counts()
    (event,) = host.events
    assert event.keys == keys and not event.removed
    assert event.medium == (fake_vllm.Medium.STORAGE if version >= (0, 33) else "STORAGE")


def namespace_of(host, client):
    return client.namespace(host.tier._transfers._namespaces[0].name, host.tier._transfers._fields)


@pytest.mark.parametrize("less", [1, 4096, -1])
def test_a_chunk_of_another_length_is_not_loaded(make, daemon, less):
    """A shorter chunk would leave bytes of another one in its row."""
    host = make()
    keys = vllm_scenarios.keys_of(f"length {less}", 4)
    vllm_scenarios.store(host, "a", keys)
    host.reset()
    with kvcache.Client(daemon.socket) as client:
        name = identity.parts_of(keys[1], 1)
        namespace_of(host, client).evict(name)
        assert namespace_of(host, client).put(name, [bytes(host.row - less)], ack="accepted").status == bytes([kvcache.OK])
    context = host.begin("b")
    assert host.lookup(keys, context) == ["RETRY"] * 4
    host.settle()
    assert host.counts()["vllm:kv_offload_kvcache_failed_loads"] == 1
    answers = host.lookup(keys, context)
    assert answers[1] == "MISS" and answers[0] in ("HIT", "RETRY"), answers
    host.settle()
    host.finish(context)


def test_a_row_is_found_if_all_its_parts_are_there(make, daemon):
    host = make(part_bytes=24 << 10, ack="written")
    transfers, keys = host.tier._transfers, vllm_scenarios.keys_of("parts", 5)
    assert transfers.parts == 3
    vllm_scenarios.store(host, "a", keys)
    host.reset()
    with kvcache.Client(daemon.socket) as client:
        parts = [identity.parts_of(k, 3) for k in keys]
        namespace_of(host, client).get_map([p for k in parts for p in k]).release()  # brings the chunks to memory
        namespace_of(host, client).evict([parts[3][2], parts[4][0]])
        namespace_of(host, client).evict([parts[1][1]], memory_only=True)
    assert [bool(t) for t in transfers.where(keys)] == [True, True, True, False, False]
    assert transfers.where(keys)[1] == kvcache.TIER_DISK and transfers.where(keys)[0] & kvcache.TIER_MEMORY, "a row on disk in part is in memory"
    vllm_scenarios.check_load(host, "b", keys, found=3)
    assert transfers.queued_bytes == 0 and not host.tier._loads, "loads that have ended are waited for"


def test_events_name_no_chunk_that_was_not_stored(make, monkeypatch):
    host = make()
    keys, refused = vllm_scenarios.keys_of("events", 4), {1: [0, 3], 2: []}
    poll = host.tier._transfers.poll
    monkeypatch.setattr(host.tier._transfers, "poll",
                        lambda: [r._replace(good=[r.keys[i] for i in refused[r.job]]) if not r.is_load else r for r in poll()])
    vllm_scenarios.store(host, "a", keys)
    vllm_scenarios.store(host, "b", vllm_scenarios.keys_of("none", 2))
    counts = host.counts()
    assert [e.keys for e in host.events] == [[keys[0], keys[3]]]
    assert (counts["vllm:kv_offload_kvcache_stored_bytes"], counts["vllm:kv_offload_kvcache_failed_stores"]) == (2 * host.row, 4)


def test_one_lookup_for_a_chain_where_vllm_names_it(make, version):
    host = make()
    keys = vllm_scenarios.keys_of("chain", 20)
    vllm_scenarios.store(host, "a", keys)
    host.reset()
    asked = []
    where = host.tier._transfers.where
    host.tier._transfers.where = lambda k: asked.append(len(k)) or where(k)
    context = host.begin("b")
    assert host.lookup(keys, context) == ["RETRY"] * 20
    assert asked == ([20] if version >= (0, 33) else [1] * 20)


def test_what_is_slower_than_computing_is_declined(make, version, daemon):
    host = make(load_policy="auto", prefill_tokens_per_s=1e9, memory_bytes_per_s=1e6, disk_bytes_per_s=1e6)
    keys = vllm_scenarios.keys_of("declined", 8)
    vllm_scenarios.store(host, "a", keys)
    host.reset()
    for name in "b", "b again":
        vllm_scenarios.check_load(host, name, keys, found=0)
    counts = host.counts()
    assert counts["vllm:kv_offload_kvcache_declined"] >= 2 and "vllm:kv_offload_kvcache_hits" not in counts
    assert daemon.status()["totals"]["loads_declined"] == counts["vllm:kv_offload_kvcache_declined"]
    quick = make(load_policy="auto", prefill_tokens_per_s=1.0, memory_bytes_per_s=1e9, disk_bytes_per_s=1e9)
    vllm_scenarios.check_load(quick, "c", keys)


def test_after_a_reset_chunks_of_before_are_found_unless_the_tier_is_to_forget(make):
    """vLLM resets its cache also for new weights, and does not say so. Its own tiers keep their chunks."""
    keys, more = vllm_scenarios.keys_of("after-reset", 8), vllm_scenarios.keys_of("after-reset-more", 4)
    keeps, forgets = make(), make(after_reset="forget")
    vllm_scenarios.store(keeps, "a", keys)
    keeps.reset()
    context = forgets.begin("b")
    assert forgets.lookup(keys, context) == ["RETRY"] * 8
    forgets.reset()
    assert forgets.lookup(keys, context) == ["MISS"] * 8, "the request goes on with what was found before"
    forgets.finish(context)
    vllm_scenarios.store(forgets, "c", more)
    forgets.reset()
    for at, host in enumerate((forgets, keeps)):
        vllm_scenarios.check_load(host, f"more-{at}", more, found=0)
    vllm_scenarios.check_load(keeps, "d", keys)
    with pytest.raises(ValueError, match="after_reset must be 'keep' or 'forget', not True"):
        make(after_reset=True)


def hinted(daemon, kind):
    return daemon.metric(f'kvcache_hints_total{{hint="{kind}"}}')


@pytest.mark.parametrize("settled", [True, False], ids=["stored", "storing"])
@pytest.mark.parametrize("return_s, kind", [(0, "final"), (90, "return"), (0.5, "return")])
def test_what_a_request_says_of_its_return_reaches_the_daemon(make, daemon, return_s, kind, settled):
    """The hint covers the whole chain, including the chunks stored earlier, and is sent when all of them are stored."""
    host = make()
    keys = vllm_scenarios.keys_of(f"hint-{return_s}-{settled}", 12)
    vllm_scenarios.store(host, "a", keys[:4])
    host.reset()
    before = hinted(daemon, kind)
    context = host.begin("b", {"kvcache_return_s": return_s})
    host.lookup(keys, context)
    host.store({k: vllm_scenarios.value_of(k, host.row) for k in keys}, context)
    if settled:
        host.settle()
        assert hinted(daemon, kind) == before, "the request goes on"
    host.finish(context)
    host.reset()
    harness.wait_until(lambda: hinted(daemon, kind) == before + len(keys), "the daemon has the hint")
    vllm_scenarios.check_load(host, "c", keys)
    assert not host.tier._hints._stores and not host.tier._hints.has_work


@pytest.mark.parametrize("params", [None, {}, {"kvcache_return_s": None}, {"kvcache_return_s": "soon"}, {"kvcache_return_s": -1},
                                    {"kvcache_return_s": float("nan")}, {"kvcache_return_s": 2**40}, {"kvcache_return_s": True},
                                    ["kvcache_return_s"]])
def test_what_is_no_time_is_no_hint(make, daemon, params):
    host = make()
    keys = vllm_scenarios.keys_of(f"no-hint-{params}", 4)
    before = hinted(daemon, "final"), hinted(daemon, "return")
    context = host.begin("a", params)
    host.lookup(keys, context)
    host.store({k: vllm_scenarios.value_of(k, host.row) for k in keys}, context)
    host.finish(context)
    host.reset()
    vllm_scenarios.check_load(host, "b", keys)
    assert (hinted(daemon, "final"), hinted(daemon, "return")) == before


@pytest.mark.parametrize("actions, kinds", [
    ([("kv.return", {"return_s": 60})], {"return"}), ([("kv_hint.deref.v1", {})], {"final"}),
    ([("kv.retain", {"directives": [{"start": 0, "end": 16, "priority": 80, "duration": 60.0}]})], {"tool_call"}),
    ([("kv.retain", {"directives": [{"priority": 80, "duration": 600}]}), ("kv.pin", {})], {"return", "pinned"})])
def test_kv_hints_reach_the_daemon(make, daemon, actions, kinds):
    host = make()
    if not host.new:
        pytest.skip("this vLLM has no kv_hints")
    keys = vllm_scenarios.keys_of(f"kv-hints-{actions}", 6)
    vllm_scenarios.store(host, "a", keys)
    host.reset()
    before = {k: hinted(daemon, k) + hinted(daemon, "pin_early") * (k == "pinned") for k in kinds}
    context = fake_vllm.ReqContext33("b", None, envelope(*actions))
    host.tier.on_new_request(context)
    host.lookup(keys, context)
    host.finish(context)
    host.reset()
    for kind, n in before.items():
        harness.wait_until(lambda k=kind, n=n: hinted(daemon, k) + hinted(daemon, "pin_early") * (k == "pinned") == n + len(keys),
                           f"the daemon has {kind}")


def test_a_store_says_what_the_chunks_cost(make, daemon):
    """A put has the cost of computing its tokens at the known rate of prefill; the daemon's policy keeps it with a precision of half a power of
    two."""
    host = make(prefill_tokens_per_s=1000.0)
    keys = vllm_scenarios.keys_of("cost", 2)
    vllm_scenarios.store(host, "a", keys)
    expected = 1e9 * host.tier._tokens[0] / 1000.0 / host.row
    name = host.tier._transfers._namespaces[0].name
    said = json.loads(harness.ctl("stat", "--json", "-n", name, *(identity.parts_of(k, 1)[0].hex() for k in keys), daemon=daemon).stdout)
    for key in said["keys"]:
        assert min(expected, 6.4) / 1.5 < key["eviction"]["memory"]["cost_ns_per_byte"] < 1.5 * min(expected, 6.4), key


def test_rates_are_learned(make):
    host = make(load_policy="auto")
    keys = vllm_scenarios.keys_of("rates", 20)
    vllm_scenarios.store(host, "a", keys)
    host.reset()
    vllm_scenarios.check_load(host, "b", keys)
    counts = host.counts()
    assert counts["vllm:kv_offload_kvcache_prefill_tokens_per_second"] > 0


def test_only_the_first_store_after_a_lookup_teaches_the_rate_of_prefill(make, monkeypatch):
    """Two stores may follow each other in one step, with nothing computed between them."""
    host, samples = make(load_policy="auto"), []
    monkeypatch.setattr(host.tier._policies[0], "saw_prefill", lambda tokens, seconds: samples.append(tokens))
    first, more, context = vllm_scenarios.keys_of("first", 16), vllm_scenarios.keys_of("more", 16), host.begin("a")
    host.lookup(first + more, context)
    for keys in first, more:
        host.store({k: vllm_scenarios.value_of(k, host.row) for k in keys}, context)
    assert samples == [16 * 16]
    host.settle()
    host.finish(context)


def test_nothing_is_promised_while_the_daemon_does_not_work(make, monkeypatch):
    host, keys = make(), vllm_scenarios.keys_of("promised", 2)
    vllm_scenarios.store(host, "a", keys)
    host.reset()
    context = host.begin("b")
    hit, miss = fake_vllm.LookupResult.HIT, fake_vllm.LookupResult.MISS
    host.lookup(keys, context)
    assert host.tier.lookup(keys[0], context) is hit
    monkeypatch.setattr(host.tier._transfers, "_well", False)
    assert host.tier.lookup(keys[0], context) is miss
    monkeypatch.undo()
    assert host.tier.lookup(keys[0], context) is hit
    host.settle()
    host.finish(context)


def test_after_a_reset_that_forgets_no_other_host_is_asked(make):
    """Other hosts have stored chunks of earlier weights, under keys without the salt."""
    host = make(after_reset="forget")
    host.tier._shared.on, request = True, host.tier._request(host.begin("a"))
    assert host.tier._may_seek(0, request)
    host.reset()
    assert not host.tier._may_seek(0, request)


def test_the_time_of_a_load_is_known_as_well_as_it_was_looked_for():
    """The engine asks once per step, so a load has ended between the previous question and this one."""
    from kvcache.vllm.transfers import Transfers, _Job
    transfers = object.__new__(Transfers)
    transfers.row_bytes, transfers.queued_bytes, transfers._load_ended, transfers._reports = 4096, 8192, 5.0, collections.deque()
    for number, (started, before, now, most_s, least_s) in enumerate([(10.0, 9.0, 12.0, 2.0, 0.0), (11.0, 13.0, 14.0, 2.0, 1.0),
                                                                      (20.0, 29.0, 30.0, 10.0, 9.0)]):
        job = _Job(number, True, [b"k"], [0], 0)
        job.started, job.memory_bytes = started, 4096
        transfers._ended(job, now, before)
        report = transfers._reports.pop()
        assert (report.seconds, report.least_s) == (most_s, least_s), number


def test_a_daemon_without_room_for_the_rows_is_said(make_daemon, version, caplog):
    small = make_daemon(settings={"limits.registered": "64KiB"}).start()
    module = fake_vllm.install(version)
    host = fake_vllm.Host(version, module.KvcacheTier, socket=small.socket)
    try:
        assert not host.tier._transfers.well and "limits.registered" in caplog.text
        keys = vllm_scenarios.keys_of("room", 4)
        vllm_scenarios.store(host, "a", keys)
        host.reset()
        vllm_scenarios.check_load(host, "b", keys, found=0)
    finally:
        host.tier.shutdown()


def test_options_of_the_fs_tier_are_accepted_and_named(make, caplog):
    host = make(root_dir="/mnt/kv", n_read_threads=16)
    keys = vllm_scenarios.keys_of("former", 2)
    vllm_scenarios.store(host, "a", keys)
    said = [r.getMessage() for r in caplog.records if "vLLM's fs tier" in r.getMessage()]
    assert [text.split()[0] for text in said] == ["n_read_threads", "root_dir"] and "store.path" in said[1] and "/mnt/kv" not in caplog.text
    with pytest.raises(TypeError, match="root_dirs"):
        make(root_dirs="/mnt/kv")


def test_variables_of_lmcache_are_named(make, caplog, monkeypatch):
    monkeypatch.setenv("LMCACHE_GDS_PATH", "/mnt/kv")
    monkeypatch.setenv("LMCACHE_LOG_LEVEL", "DEBUG")
    make()
    said = [r.getMessage() for r in caplog.records if "an option of LMCache and" in r.getMessage()]
    assert [text.split()[0] for text in said] == ["LMCACHE_GDS_PATH", "LMCACHE_LOG_LEVEL"]
    assert "store.path" in said[0] and "log.level" in said[1] and "/mnt/kv" not in caplog.text


@pytest.mark.parametrize("options", [{"load_policy": "never"}, {"ack": "soon"}, {"part_bytes": 100}, {"part_bytes": 8192.0}, {"locality": "near"},
                                     {"socket": 5}, {"socket": ""}, {"namespace": "n\u00e4her"},
                                     *({name: wrong} for name in ("prefill_tokens_per_s", "memory_bytes_per_s", "disk_bytes_per_s", "remote_bytes_per_s")
                                       for wrong in ("1GiB", None, -1, math.nan, 10**400)),
                                     *({"timeout_s": wrong} for wrong in (0, -1.0, "5s", None, [], math.nan))])
def test_wrong_options_are_named(make, options):
    [(name, value)] = options.items()
    with pytest.raises(ValueError, match=f"^{name} must be .*, not {re.escape(repr(value))}$"):
        make(**options)


@pytest.mark.parametrize("options", [{"timeout_s": 1}, {"timeout_s": math.inf}, {"timeout_s": 1e12}, {"timeout_s": "7.5"}, {"namespace": 5},
                                     {"prefill_tokens_per_s": 5000}, {"memory_bytes_per_s": "1e9"}, {"disk_bytes_per_s": math.inf},
                                     {"remote_bytes_per_s": True}, {"part_bytes": 1 << 70}])
def test_right_options_are_accepted(make, daemon, options):
    vllm_scenarios.what_is_stored_is_loaded(functools.partial(make, **options), daemon)


def test_a_job_of_nonsense_fails_and_is_reported(make):
    host = make()
    keys = vllm_scenarios.keys_of("nonsense", 2)
    context = host.begin("a")
    for rows in ([0, fake_vllm.ROWS], [0], [-1, 2]):
        host.tier._transfers.submit(100 + len(rows), True, keys, rows)
    reports = []
    harness.wait_until(lambda: reports.extend(host.tier._transfers.poll()) or len(reports) == 3, "three reports")
    assert all(not r.good for r in reports)
    harness.wait_until(lambda: host.tier._transfers.well, "the daemon is found well")
    unknown = [k[:-4] + (7).to_bytes(4, "big") for k in keys]
    host.tier._transfers.submit(110, False, unknown, [0, 1])
    host.tier._transfers.submit(111, False, [keys[0], unknown[1]], [0, 1])
    reports = []
    harness.wait_until(lambda: reports.extend(host.tier._transfers.poll()) or len(reports) == 2, "two reports")
    assert {r.job: r.good for r in reports} == {110: [], 111: keys[:1]}, "chunks of a group without a namespace are reported as stored"
    host.finish(context)


@pytest.mark.parametrize("error", [kvcache.ClosedError("closed"), MemoryError("no memory")], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("submits, is_load", [("submit_get", True), ("submit_put", False)])
def test_a_job_that_fails_after_some_requests_is_reported_and_queues_nothing(submits, is_load, error, make, monkeypatch):
    host = make(part_bytes=24 << 10)
    transfers, keys = host.tier._transfers, vllm_scenarios.keys_of("midway", 4)
    assert transfers.parts > 1 and transfers.well
    for sent in range(transfers.parts):
        submit, left = getattr(kvcache.Namespace, submits), [sent]

        def failing(*arguments, **options):
            if not left[0]:
                raise error
            left[0] -= 1
            submit(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(kvcache.Namespace, submits, failing)
            transfers.submit(200 + sent, is_load, keys, range(4))
        assert transfers.queued_bytes == (4 * transfers.row_bytes if sent and is_load else 0)
        reports = []
        harness.wait_until(lambda: reports.extend(transfers.poll()) or reports, "a report")
        assert [(r.job, r.good) for r in reports] == [(200 + sent, [])] and transfers.queued_bytes == 0 and not transfers.pending
        harness.wait_until(lambda: transfers.well, "the daemon is found well")


def test_the_entry_point_registers_once_and_never_raises(version):
    fake_vllm.install(version)
    adapter.register()
    adapter.register()
    assert fake_vllm.Factory.registry == {"kvcache": ("kvcache.vllm.tier", "KvcacheTier")}
    fake_vllm.remove()
    adapter.register()


def test_a_factory_of_another_interface_is_reported_with_a_remedy(version, monkeypatch, caplog):
    fake_vllm.install(version)
    monkeypatch.delattr(fake_vllm.Factory, "register_tier")
    adapter.register()
    assert "the tier 'kvcache' cannot be registered" in caplog.text and "no attribute 'register_tier'" in caplog.text
    assert "use a version of vLLM that the adapter's README.md lists" in caplog.text


def test_every_metric_that_is_reported_is_declared(make):
    host = make()
    keys = vllm_scenarios.keys_of("metrics", 3)
    vllm_scenarios.store(host, "a", keys)
    assert set(host.counts()) <= set(type(host.tier).build_metric_definitions({}))


def config(**changed):
    ns = types.SimpleNamespace
    parallel = dict(rank=0, tp_size=2, pp_size=1, pcp_size=1, dcp_size=1, is_parallelism_agnostic=False)
    parallel.update((k, changed.pop(k)) for k in list(changed) if k in parallel)
    return ns(groups=(ns(tokens_per_block=16, layer_names=("0", "1")),), model=ns(name=changed.pop("model", "org/m"), dtype="bf16"),
              cache=ns(tokens_per_hash=16, blocks_per_chunk=changed.pop("blocks", 1)), parallel=ns(**parallel), **changed)


def test_every_difference_in_bytes_is_another_namespace():
    def name(row=4096, part=65536, weights="w", **changed):
        return identity.namespace_name("vllm", identity.fields_of(config(**changed), row, part, weights), 0)

    same = name()
    others = [name(row=8192), name(part=4096), name(weights="x"), name(model="org/n"), name(blocks=2), name(tp_size=4),
              name(rank=1), name(replicated_layout=True), name(canonical_layout=True, kv_cache_layout="NHD")]
    assert same == name() and len({same, *others}) == 1 + len(others)
    assert name(is_parallelism_agnostic=True, tp_size=4) != name(is_parallelism_agnostic=True, tp_size=2)
    canonical = dict(canonical_layout=True, kv_cache_layout="NHD")
    assert name(**canonical, tp_size=4) == name(**canonical, tp_size=2, rank=1)
    assert all(len(n) < 256 and n.isascii() for n in others) and same.startswith("vllm/m-")


def test_keys_of_both_lengths():
    for length in (32, 16):
        one, two = (identity.parts_of(bytes([n]) * length + b"\0\0\0\1", 3) for n in (1, 2))
        assert all(len(k) == 32 for k in one + two) and len({*one, *two}) == 6
    assert identity.group_of(b"x" * 32 + b"\0\0\1\2") == 258


def test_memory_that_was_refused_is_registered_with_the_next_daemon(version, make_daemon):
    """The client reconnects by itself, so that nothing says that the daemon is another one."""
    daemon = make_daemon(settings={"limits.registered": "4KiB"}).start()
    host = fake_vllm.Host(version, fake_vllm.install(version).KvcacheTier, socket=daemon.socket)
    try:
        assert not host.tier._transfers.well
        with host.tier._transfers._lock:  # the mender does not see it dead
            daemon.kill()
            daemon.settings["limits.registered"] = "1GiB"
            daemon.start()
        harness.wait_until(lambda: host.tier._transfers.well, "it is registered")
    finally:
        host.close()
