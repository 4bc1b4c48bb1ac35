# SPDX-License-Identifier: Apache-2.0
"""kvcache-bench simulate --hosts: a fleet with a shared tier, compared with figures computed by hand, a model, and invariants."""

import collections
import itertools
import json
import random
import xml.etree.ElementTree

import pytest

import harness
from harness import bench
from test_replay import trace_path, write_trace
from test_simulate import SVG, requests_of, simulate

COUNTS = ("blocks_asked", "blocks_hit_local", "blocks_hit", "loads", "blocks_read", "blocks_written", "blocks_stored", "shared_evictions")


def without_speed(figures):
    return [{k: v for k, v in f.items() if k != "touches_per_second"} for f in figures]


def counts_of(figure):
    return {name: figure[name] for name in COUNTS}


def write_requests(path, requests, timestamps=None):
    stamps = timestamps or range(0, 1000 * len(requests), 1000)
    path.write_text("".join(json.dumps({"timestamp": t, "hash_ids": ids}) + "\n" for t, ids in zip(stamps, requests, strict=True)))
    return path


# Sessions A and B have two turns; four others with the same beginning have one. The last block of a request is partial, and its next turn does not
# repeat it. Of two hosts, the first has A, C and E. The comments count the blocks that are computed, and hit in the host's own cache and in the
# other's.
BY_HAND = [
    [0, 1, 2, 3],      # A, first host: 4 computed
    [0, 10, 11],       # B, second: 0 is shared; 2 computed
    [0, 1, 2, 4, 5],   # A again: 0, 1, 2 local; 2 computed
    [0, 10, 12, 13],   # B again: 0, 10 local; 2 computed
    [0, 1, 20],        # C, first: 0, 1 local; 1 computed
    [0, 10, 21],       # D, second: 0, 10 local; 1 computed
    [0, 1, 2, 30],     # E, first: 0, 1, 2 local; 1 computed
    [0, 1, 2, 31],     # F, second: 0 local; 1, 2 shared; 1 computed
]
TIMES = [0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000, 120_000]


@pytest.fixture
def by_hand(tmp_path):
    return write_requests(tmp_path / "trace", BY_HAND, TIMES)


def test_figures_of_a_small_trace_equal_those_computed_by_hand(by_hand):
    figure, = simulate(by_hand, "--hosts", 2, "-c", 100, "--remote-write", "all")
    assert figure["sessions"] == 6
    assert counts_of(figure) == dict(zip(COUNTS, (30, 13, 16, 2, 3, 14, 14, 0)))
    assert figure["hit_ratio"] == figure["hit_ratio_bound"] == pytest.approx(16 / 30)
    assert figure["hit_ratio_local"] == pytest.approx(13 / 30)
    assert figure["hit_ratio_shared"] == pytest.approx(3 / 30)


def test_reused_writes_blocks_hit_in_the_hosts_own_cache(by_hand):
    """The second turn of A writes 0, 1, 2 and that of B writes 10; B's first turn finds nothing, and F finds 1 and 2."""
    figure, = simulate(by_hand, "--hosts", 2, "-c", 100)
    assert figure["remote_write"] == "reused"
    assert counts_of(figure) == dict(zip(COUNTS, (30, 13, 15, 1, 2, 4, 4, 0)))
    assert figure["hit_ratio_bound"] == pytest.approx(16 / 30)


def test_blocks_after_a_gap_are_not_read(tmp_path):
    """The fourth request runs on the second host, and finds 9 in the shared tier and 2 in the host's own cache."""
    figure, = simulate(write_requests(tmp_path / "trace", [[9, 5, 6], [2, 3, 4], [8, 7], [9, 2]]), "--hosts", 2, "-c", 100,
                       "--remote-write", "all")
    assert counts_of(figure) == dict(zip(COUNTS, (10, 0, 2, 1, 1, 8, 8, 0)))


def test_bytes_seconds_and_the_break_even_rate(by_hand):
    """Three blocks in 120 s are loaded, two of them in the busiest minute. 300 tokens take 0.3 s to compute, and two loads have a latency of
    0.02 s, which leaves 0.28 s for 3,000 bytes."""
    figure, = simulate(by_hand, "--hosts", 2, "-c", 100, "--remote-write", "all", "-b", 1000, "--tokens-per-block", 100,
                       "--prefill-rate", 1000, "--remote-latency", 10)
    assert figure["seconds"] == 120
    assert (figure["bytes_read"], figure["bytes_written"], figure["bytes_stored"]) == (3000, 14000, 14000)
    assert figure["bytes_read_per_second"] == pytest.approx(25)
    assert figure["bytes_read_per_second_busiest"] == pytest.approx(2000 / 60)
    assert figure["bytes_written_per_second"] == pytest.approx(14000 / 120)
    assert figure["prefill_seconds_saved"] == pytest.approx(0.3)
    assert figure["break_even_bytes_per_second"] == pytest.approx(3000 / 0.28)


def test_where_loading_never_pays_there_is_no_rate(by_hand):
    arguments = [by_hand, "--hosts", "2", "-c", "100", "--remote-write", "all", "-b", "1000", "--prefill-rate", "1000000"]
    figure, = simulate(*arguments, "--remote-latency", 1.5)  # three blocks are 1.536 ms, two latencies 3
    assert figure["break_even_bytes_per_second"] is None
    assert bench("simulate", *map(str, arguments), "--remote-latency", "1.5").stdout.splitlines()[4].endswith(" never")
    figure, = simulate(*arguments, "--remote-latency", 0)
    assert figure["break_even_bytes_per_second"] == pytest.approx(3000 / 0.001536)
    one, = simulate(by_hand, "--hosts", 1, "-c", 100, "-b", 1000, "--prefill-rate", 1)
    assert one["loads"] == 0 and one["break_even_bytes_per_second"] is None and one["prefill_seconds_saved"] == 0


def test_a_trace_without_time_has_no_rates(tmp_path):
    path = write_requests(tmp_path / "trace", BY_HAND, [7] * len(BY_HAND))
    figure, = simulate(path, "--hosts", 2, "-c", 100, "-b", 1000, "--remote-write", "all")
    assert figure["seconds"] == 0 and figure["bytes_read"] == 3000
    assert figure["bytes_read_per_second"] is figure["bytes_written_per_second"] is figure["bytes_read_per_second_busiest"] is None
    assert bench("simulate", str(path), "--hosts", "2", "-b", "1000").stdout.splitlines()[4].split()[8:11] == ["-", "-", "-"]
    simulate(path, "--hosts", 2, "--svg", tmp_path / "plot.svg")
    assert "read" not in [t.text for t in xml.etree.ElementTree.parse(tmp_path / "plot.svg").getroot().iter(SVG + "text")]


def test_a_trace_without_time_has_no_lag(tmp_path):
    path = write_requests(tmp_path / "trace", BY_HAND, [7] * len(BY_HAND))
    figure, = simulate(path, "--hosts", 2, "-c", 100, "--route", "events", "--shared", 0)
    assert figure["blocks_expected"] == figure["blocks_hit_local"] > 0
    refused = bench("simulate", str(path), "--hosts", "2", "--route", "events", "--lag", "0.1", check=5)
    assert "--lag: all requests have the same timestamp" in refused.stderr and not refused.stdout


def test_time_that_goes_backwards_is_refused(tmp_path):
    path = write_requests(tmp_path / "trace", BY_HAND, range(8000, 0, -1000))
    refused = bench("simulate", str(path), "--hosts", "2", check=5)
    assert f'{path}:2: "timestamp" is less than in a line before: sort the lines by it' in refused.stderr


@pytest.mark.parametrize("requests, sessions", [
    ([[1, 2, 3], [1, 2, 3]], 1),                        # once more
    ([[1, 2, 3], [1, 2, 4, 5], [1, 2, 4, 6, 7]], 1),    # each repeats all but the last block of the one before
    ([[1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5]], 1),    # repeats with full blocks
    ([[1, 2, 3], [1, 4, 5]], 2),                        # shares a beginning
    ([[1, 2, 3], [1, 2, 4, 5], [1, 2, 3]], 2),          # back to where the session was before: a branch
    ([[1, 2], [3, 4], [1, 5], [3, 6]], 2),              # short sessions with different first blocks
    ([[1, 2, 9], [1, 3], [1, 4], [1, 5]], 4),           # short ones that share all but the last
    ([[1, 2, 9], [1, 3], [1, 3, 4], [1, 3, 4, 5]], 2),  # full blocks, the first of which another session used before
    ([[1], [], [1]], 1), ([[], [1], [], [2]], 2),       # a request for nothing is none
])
def test_requests_are_grouped_into_sessions(tmp_path, requests, sessions):
    assert simulate(write_requests(tmp_path / "trace", requests), "--hosts", 1)[0]["sessions"] == sessions


class Lru:
    """Leaf first; the blocks of the request at hand stay."""

    def __init__(self, capacity):
        self.capacity, self.cached, self.written, self.evicted = capacity, {}, 0, 0

    def use(self, ids, only=None):
        for i in reversed(ids[:self.capacity]):
            if i in self.cached:
                del self.cached[i]
            elif only is not None and i not in only:
                continue
            else:
                if len(self.cached) == self.capacity:
                    coldest = next((c for c in self.cached if c not in ids), None)
                    if coldest is None:
                        continue
                    del self.cached[coldest]
                    self.evicted += 1
                self.written += 1
            self.cached[i] = True


def sessions_of(requests):
    """Assigns sessions by the rule of the man page, with a search among all sessions."""
    latest, first, found = [], {}, []
    for ids in requests:
        candidates = []
        for number, before in enumerate(latest):
            own = [i for i in before[-2:] if first[i] == number]
            if own and own[0] in ids:
                candidates.append((ids.index(own[0]), number))
        number = max(candidates)[1] if candidates else len(latest)
        if number == len(latest):
            latest.append(ids)
        for i in ids:
            first.setdefault(i, number)
        if any(first[i] == number for i in ids[-2:]):
            latest[number] = ids
        found.append(number)
    return found


def model(requests, hosts, capacity, shared, write):
    caches, tier, counts = [Lru(capacity) for _ in range(hosts)], Lru(shared), collections.Counter()
    for ids, session in zip(requests, sessions_of(requests), strict=True):
        own = caches[session % hosts].cached
        local = len(list(itertools.takewhile(lambda i: i in own, ids)))
        hit = len(list(itertools.takewhile(lambda i: i in own or i in tier.cached, ids)))
        read = [i for i in ids[:hit] if i not in own]
        wanted = ids[hit:] if write == "all" else [i for i in ids[:hit] if i in own]
        counts.update(blocks_asked=len(ids), blocks_hit_local=local, blocks_hit=hit, loads=bool(read), blocks_read=len(read))
        if read or any(i not in tier.cached for i in wanted):
            tier.use(ids, set(wanted))
        caches[session % hosts].use(ids)
    return dict(counts) | {"blocks_written": tier.written, "blocks_stored": len(tier.cached), "shared_evictions": tier.evicted}


@pytest.mark.parametrize("write", ["all", "reused"])
@pytest.mark.parametrize("seed", range(3))
def test_every_count_is_that_of_a_model(tmp_path, write, seed):
    trace = write_trace(tmp_path / "trace", 300, seed)
    requests = requests_of(trace)
    hosts = [1, 2, 3, 7, 300]
    for capacity, shared in [(70, 10000), (70, 100), (70, 400), (25, 40), (10000, 5)]:
        figures = simulate(trace, "--hosts", ",".join(map(str, hosts)), "-p", "lru", "-c", capacity, "--shared", shared,
                           "--remote-write", write)
        for n, figure in zip(hosts, figures, strict=True):
            assert (figure["hosts"], figure["shared_blocks"]) == (n, shared)
            assert counts_of(figure) == model(requests, n, capacity, shared, write), (n, capacity, shared)


def routed(requests, times, hosts, capacity, lag):
    """A model of --route events without a shared tier. Returns the hits, the blocks that the router counted on, and those that were evicted."""
    caches, known, events = [Lru(capacity) for _ in range(hosts)], [set() for _ in range(hosts)], []
    sent, counts, hit, expected, stale = [], [0] * hosts, 0, 0, 0
    for now, ids in zip(times, requests, strict=True):
        while events and events[0][0] <= now - lag:
            _, host, came, left = events.pop(0)
            known[host] = known[host] - left | came
        prefix = [len(list(itertools.takewhile(lambda i, k=k: i in k, ids))) for k in known]
        load = [sum(n for t, h, n in sent if h == host and now - t < 60_000) for host in range(hosts)]
        host = min(range(hosts), key=lambda h: (16 * (len(ids) - prefix[h]) + load[h], counts[h], h))
        local = len(list(itertools.takewhile(lambda i: i in caches[host].cached, ids)))
        hit, expected, stale = hit + local, expected + prefix[host], stale + max(prefix[host] - local, 0)
        sent.append((now, host, len(ids) - prefix[host]))
        counts[host] += 1
        before = set(caches[host].cached)
        caches[host].use(ids)
        after = set(caches[host].cached)
        events.append((now, host, after - before, before - after))
    return hit, expected, stale


@pytest.mark.parametrize("lag", [0, 0.5, 3, 40, 2000, 1_000_000_000])
def test_the_router_is_that_of_a_model(tmp_path, lag):
    requests = requests_of(write_trace(tmp_path / "made", 160, 7))
    times = [700 * i for i in range(len(requests))]
    trace = write_requests(tmp_path / "trace", requests, times)
    hosts = [1, 2, 5, 70]
    for capacity in (25, 70, 10000):
        figures = simulate(trace, "--hosts", ",".join(map(str, hosts)), "-p", "lru", "-c", capacity, "--shared", 0, "--route", "events",
                           "--lag", lag)
        for n, f in zip(hosts, figures, strict=True):
            assert (f["blocks_hit_local"], f["blocks_expected"], f["blocks_stale"]) == routed(requests, times, n, capacity, lag * 1000), (n, capacity)
            assert f["route"] == "events" and f["lag"] == lag and 1 <= f["skew"] <= n
            if lag == 0:
                assert f["blocks_stale"] == 0
            if lag > 210:
                assert f["blocks_expected"] == 0


def test_a_router_by_events_beats_a_random_one(tmp_path):
    chat = ["--synthetic", "chat", "-r", 2000, "--hosts", 8, "--shared", 0]
    random_one, = simulate(*chat, "--route", "random")
    events, = simulate(*chat, "--route", "events")
    late, = simulate(*chat, "--route", "events", "--lag", "1d")
    assert events["hit_ratio"] > random_one["hit_ratio"] + 0.05 and events["hit_ratio"] > late["hit_ratio"] + 0.05
    assert late["blocks_expected"] == 0 and events["blocks_expected"] == events["blocks_hit_local"]
    out = bench("simulate", *map(str, chat), "--route", "events", "--lag", "5m").stdout
    assert "Route: events." in out and "which hears of changes after 5 min" in out
    assert out.splitlines()[3].split()[5:7] == ["EXPECTED", "STALE"]


@pytest.fixture(params=["chat", "trace"])
def workload(request):
    return ["--synthetic", "chat", "-r", 3000] if request.param == "chat" else [trace_path(), "-r", 4000]


HOSTS = "1,2,4,8,16,32,64"


@pytest.mark.figures
def test_a_tier_of_everything_is_as_good_as_one_cache_for_everything(workload):
    for route in ("session", "random"):
        figures = simulate(*workload, "--hosts", HOSTS, "--remote-write", "all", "--route", route)
        most, = simulate(*workload, "-p", "lru", "-c", "100%")
        for f in figures:
            assert f["hit_ratio"] == f["hit_ratio_bound"] == most["hit_ratio"]
            assert f["blocks_written"] == f["blocks_stored"] == most["capacity_blocks"] and f["shared_evictions"] == 0


@pytest.mark.figures
@pytest.mark.parametrize("policy", ["lru", "cq"])
def test_one_host_has_the_hits_of_a_cache_of_that_size(workload, policy):
    alone, = simulate(*workload, "-p", policy, "-c", "3%", "--announce-ends", "40%")
    figure, = simulate(*workload, "-p", policy, "-c", "3%", "--announce-ends", "40%", "--hosts", 1)
    assert figure["blocks_hit_local"] == alone["blocks_hit"] and figure["capacity_blocks"] == alone["capacity_blocks"]
    assert 0 < figure["hit_ratio_local"] < figure["hit_ratio"] < figure["hit_ratio_bound"]


@pytest.mark.figures
@pytest.mark.parametrize("route", ["session", "random"])
@pytest.mark.parametrize("write", ["all", "reused"])
def test_a_shared_tier_only_adds_hits(workload, write, route):
    arguments = [*workload, "--hosts", "1,5,64", "-c", "2%", "--route", route, "--remote-write", write]
    none = simulate(*arguments, "--shared", 0)
    before = [0] * len(none)
    for size in ("1%", "20%", "100%"):
        figures = simulate(*arguments, "--shared", size)
        for f, n in zip(figures, none, strict=True):
            assert f["blocks_hit_local"] == n["blocks_hit_local"] <= f["blocks_hit"] <= f["hit_ratio_bound"] * f["blocks_asked"] + 0.5
            assert f["blocks_read"] <= f["blocks_hit"] - f["blocks_hit_local"]
            assert f["blocks_stored"] == f["blocks_written"] - f["shared_evictions"] <= f["shared_blocks"]
        hits = [f["blocks_hit"] for f in figures]
        assert all(h >= 0.99 * b for h, b in zip(hits, before, strict=True))  # a larger LRU may lose a little
        before = hits
    unlimited = simulate(*arguments)
    assert [counts_of(f) for f in unlimited] == [counts_of(f) for f in figures]
    assert [f["shared_blocks"] for f in unlimited] == [None] * len(none)


def test_no_capacity_and_no_writes_are_no_shared_tier(workload):
    zero = simulate(*workload, "--hosts", "1,4", "--remote-write", "all", "--shared", 0)
    never = simulate(*workload, "--hosts", "1,4", "--remote-write", "never")
    assert [counts_of(f) for f in zero] == [counts_of(f) for f in never]
    for f in zero + never:
        assert f["hit_ratio"] == f["hit_ratio_local"] > 0 and f["hit_ratio_shared"] == 0
        assert f["loads"] == f["blocks_read"] == f["blocks_written"] == f["blocks_stored"] == 0


def test_the_same_arguments_give_the_same_figures(workload):
    for route in ("session", "random", "events"):
        arguments = [*workload, "--hosts", "64,3", "--route", route, "-b", "64MiB", "--prefill-rate", 30000]
        first = simulate(*arguments)
        assert without_speed(first) == without_speed(simulate(*arguments)) and [f["hosts"] for f in first] == [64, 3]
    assert simulate(*workload, "--hosts", 3, "--route", "random")[0]["blocks_hit_local"] \
        < simulate(*workload, "--hosts", 3)[0]["blocks_hit_local"]


@pytest.mark.figures
def test_the_figures_of_the_guide():
    """The figures are those of conf/sizing.md."""
    def percent(name, *arguments):
        return [round(100 * f[name], 1) for f in simulate(trace_path(), "--hosts", "1,4,16,64", *arguments)]

    assert percent("hit_ratio_local") == pytest.approx([22.6, 32.8, 33.9, 33.7], abs=0.1)
    assert percent("hit_ratio") == pytest.approx([25.0, 34.2, 35.1, 35.0], abs=0.1)
    assert percent("hit_ratio", "--remote-write", "all") == [36.6] * 4
    assert percent("hit_ratio_local", "--route", "random") == pytest.approx([22.6, 15.2, 8.9, 5.6], abs=0.1)
    assert percent("hit_ratio", "--route", "random") == pytest.approx([25.0, 20.5, 13.4, 8.2], abs=0.1)


@pytest.mark.figures
@pytest.mark.parametrize("route", ["session", "random"])
def test_the_guides_plots_equal_the_commands_output(tmp_path, route):
    figures = simulate(trace_path(), "--hosts", HOSTS, "-b", "64MiB", "--prefill-rate", 30000, "--remote-write", "all", "--route", route, "--svg",
                       tmp_path / "plot.svg")
    assert (tmp_path / "plot.svg").read_text() == (harness.SOURCE / f"conf/fleet-{route}.svg").read_text()
    assert {round(f["break_even_bytes_per_second"] / 1e9, 1) for f in figures} == {4.0}


def test_sizes_of_the_tier_and_of_the_caches_in_bytes():
    def sizes(shared, *arguments):
        figure, = simulate("--synthetic", "chat", "-r", 200, "--hosts", 2, "-b", "2MiB", "--shared", shared, *arguments)
        return figure["shared_blocks"], figure["capacity_blocks"], figure.get("capacity_bytes")

    distinct, = simulate("--synthetic", "chat", "-r", 200, "-p", "lru", "-c", "100%")
    assert sizes("1GiB", "--disk", "256MiB") == (512, 128, 1 << 28)
    assert sizes("50%", "-c", "10") == (distinct["capacity_blocks"] // 2, 10, None)
    assert sizes("0%")[0] == sizes("0MiB")[0] == sizes("0")[0] == 0 and sizes("7")[0] == 7


def test_the_table_has_a_row_for_each_number_of_hosts(by_hand):
    arguments = ["simulate", str(by_hand), "--hosts", "1,2", "-c", "100"]
    out = bench(*arguments, "--remote-write", "all", "-b", "1MB", "--prefill-rate", "1000").stdout.splitlines()
    assert out[0] == "8 requests for 30 blocks, 14 of them distinct, in 6 sessions."
    assert out[2].endswith("one cache for everything would hit 53.33 %:")
    assert out[3].split() == ["HOSTS", "LOCAL", "SHARED", "TOTAL", "SKEW", "READ", "BUSIEST", "WRITTEN", "STORED", "BREAK-EVEN"]
    assert out[4].split()[:8] == ["1", "53.33", "%", "0.00", "%", "53.33", "%", "1.00"] and out[4].endswith(" -")
    assert out[5].split()[:8] == ["2", "43.33", "%", "10.00", "%", "53.33", "%", "1.14"] and out[5].endswith(" MB/s")
    out = bench(*arguments).stdout.splitlines()
    assert out[3].split()[-1] == "STORED" and "blocks/s" in out[5] and not any("BREAK" in line for line in out)


def lines_of(root):
    """Returns {colour: points} of the plot's lines, without those of the legend."""
    lines = collections.defaultdict(list)
    for line in root.iter(SVG + "polyline"):
        points = [tuple(map(float, p.split(","))) for p in line.get("points").split()]
        if any(y != 74 for _, y in points):
            lines[line.get("style").split("var(--")[1][:2]] += points
    return lines


def test_the_plot_has_hits_and_transfers(tmp_path):
    arguments = ["--synthetic", "chat", "-r", 2000, "--hosts", "64,1,8", "-c", "2%", "-b", "1MB"]
    figures = sorted(simulate(*arguments, "--svg", tmp_path / "plot.svg"), key=lambda f: f["hosts"])
    root = xml.etree.ElementTree.parse(tmp_path / "plot.svg").getroot()
    texts = [t.text for t in root.iter(SVG + "text")]
    assert {"without a shared tier", "with a shared tier", "one cache for everything", "read", "written", "hosts, logarithmic"} <= set(texts)
    assert texts.count("64") == 2 and "MB/s" in "".join(texts)
    lines = lines_of(root)
    assert set(lines) == {"s0", "s1", "s2", "s3", "s4"} and {len(points) for points in lines.values()} == {3}
    titles = [t.text for t in root.iter(SVG + "title")]
    for f in figures:
        assert f"with a shared tier, {f['hosts']}: {100 * f['hit_ratio']:.2f} %" in titles
        assert f"read, {f['hosts']}: {f['bytes_read_per_second'] / 1e6:.2f} MB/s" in titles
    ys = [[y for _, y in lines[s]] for s in ("s0", "s1", "s3")]
    for local, total, bound in zip(*ys, strict=True):
        assert local > total >= bound  # downwards
    out = bench("simulate", "--synthetic", "chat", "-r", "50", "--hosts", "1", "--svg", "-").stdout
    assert xml.etree.ElementTree.fromstring(out).tag == SVG + "svg"


CHAT = ["--synthetic", "chat", "-r", "50"]


@pytest.mark.parametrize("arguments, says, status", [
    (["--hosts", "0"], "--hosts", 2), (["--hosts", "1025"], "--hosts", 2), (["--hosts", "-1"], "--hosts", 2),
    (["--hosts", "1,"], "not a list with commas", 2), (["--hosts", ""], "not a list with commas", 2), (["--hosts", "1,...,64"], "'...'", 2),
    (["--hosts", "1" * 30], "not a list with commas", 2), (["--hosts", ",".join(["1"] * 33)], "more than 32", 2),
    (["--hosts", "2", "-p", "lru,cq"], "one policy: lru or cq", 2), (["--hosts", "2", "-p", "opt"], "one policy: lru or cq", 2),
    (["--hosts", "2", "-c", "1%,2%"], "one size", 2), (["--hosts", "2", "-c", "0"], "'0' is neither", 2),
    (["--hosts", "2", "--write-budget", "1TB", "-b", "1MB"], "--write-budget cannot be combined with --hosts", 2),
    (["--hosts", "2", "--shared", "much"], "--shared: 'much'", 2), (["--hosts", "2", "--shared", ""], "--shared", 2),
    (["--hosts", "2", "--shared", "101%"], "'101%' is not a share", 2), (["--hosts", "2", "--shared", "%"], "'%' is not a share", 2),
    (["--hosts", "2", "--shared", "-1"], "--shared", 2), (["--hosts", "2", "--shared", "99999999999"], "--shared", 2),
    (["--hosts", "2", "--shared", "1" * 30], "too long", 2), (["--hosts", "2", "--shared", "nan%"], "not a share", 2),
    (["--hosts", "2", "--shared", "1TB"], "--shared in bytes needs --bytes-per-block", 2),
    (["--hosts", "2", "--shared", "1MB", "-b", "2MB"], "a shared tier of 1MB has no room for even one", 2),
    (["--hosts", "2", "--disk", "1MB", "-b", "2MB"], "a cache of 1MB has no room for even one", 2),
    (["--hosts", "2", "--remote-write", "some"], "never, reused, all", 2), (["--hosts", "2", "--route", "prefix"], "session, random, events", 2),
    (["--hosts", "2", "--lag", "1"], "--lag needs --route events", 2), (["--lag", "1"], "--lag needs --hosts", 2),
    *((["--hosts", "2", "--route", "events", "--lag", lag], f"--lag: '{lag}' is not a time up to", 2)
      for lag in ("", "-1", "nan", "inf", "1e300", "soon", "1x", "s", "1 s s", "99999999999", "1e12d")),
    (["--hosts", "2", "--prefill-rate", "1000"], "--prefill-rate needs --bytes-per-block", 2),
    (["--hosts", "2", "-b", "1MB", "--prefill-rate", "0"], "--prefill-rate", 2),
    (["--hosts", "2", "-b", "1MB", "--prefill-rate", "fast"], "--prefill-rate", 2),
    (["--hosts", "2", "--remote-latency", "nan"], "not a number of milliseconds", 2),
    (["--hosts", "2", "--remote-latency", "-1"], "not a number of milliseconds", 2),
    (["--hosts", "2", "--remote-latency", "1e300"], "not a number of milliseconds", 2),
    (["--hosts", "2", "--tokens-per-block", "0"], "--tokens-per-block", 2),
    (["--hosts", "2", "--json", "--svg", "-"], "both print to standard output", 2),
    (["--shared", "5%"], "--shared needs --hosts", 2), (["--route", "random"], "--route needs --hosts", 2),
    (["--remote-write", "all"], "--remote-write needs --hosts", 2), (["--prefill-rate", "1"], "--prefill-rate needs --hosts", 2),
    (["--remote-latency", "1"], "--remote-latency needs --hosts", 2),
    (["--hosts", "2", "--svg", "/nowhere/plot.svg"], "No such file", 6),
])
def test_wrong_usage_of_a_fleet_is_explained(arguments, says, status):
    done = bench("simulate", *CHAT, *arguments, check=status)
    assert says in done.stderr and not done.stdout


def test_traces_that_are_not_made_well(tmp_path):
    """Requests that repeat an id, exceed every cache, or have no blocks are handled."""
    rng = random.Random(1)
    requests = [[1, 1, 1, 2], [], list(range(5000)), [7] * 300, *[[rng.randrange(50) for _ in range(rng.randrange(40))] for _ in range(200)]]
    path = write_requests(tmp_path / "trace", requests)
    for write, route, shared in itertools.product(("all", "reused"), ("session", "random", "events"), (0, 1, 3, 10000)):
        for f in simulate(path, "--hosts", "1,2,1024", "-c", 7, "--shared", shared, "--remote-write", write, "--route", route):
            assert 0 <= f["blocks_hit_local"] <= f["blocks_hit"] <= f["blocks_asked"] == sum(map(len, requests))
            assert f["blocks_stored"] <= shared
