# SPDX-License-Identifier: Apache-2.0
"""kvcache-bench simulate: hit ratios by policy and size, against models of the tests' own and the published figures."""

import hashlib
import itertools
import json
import random
import struct
import xml.etree.ElementTree

import pytest

import harness
from harness import bench
from test_replay import trace_path, write_trace


def simulate(*arguments, check=0):
    return json.loads(bench("simulate", "--json", *map(str, arguments), check=check).stdout)


def requests_of(path):
    return [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()]


def lru(requests, capacity):
    """Returns the hits of an LRU cache that evicts the end of a chain first and keeps a request's own blocks while it serves the request."""
    cached, hits = {}, 0  # in the order of use
    for ids in requests:
        hits += len(list(itertools.takewhile(lambda i: i in cached, ids)))
        for i in reversed(ids[:capacity]):
            if i in cached:
                del cached[i]
            elif len(cached) == capacity:
                coldest = next((c for c in cached if c not in ids), None)
                if coldest is None:
                    continue
                del cached[coldest]
            cached[i] = True
    return hits


def optimum(requests, capacity):
    """Returns the most hits that are possible, by trying every choice of what to keep after each request: a prefix-closed set of at most
    `capacity`."""
    states = {frozenset(): 0}
    for ids in requests:
        after = {}
        for cached, hits in states.items():
            hits += len(list(itertools.takewhile(lambda i: i in cached, ids)))
            pool = cached | set(ids)
            keeps = [pool] if len(pool) <= capacity else itertools.combinations(sorted(pool), capacity)
            for keep in keeps:
                keep = frozenset(keep)
                after[keep] = max(after.get(keep, 0), hits)
        states = after
    return max(states.values())


def test_leaf_first_lru_equals_a_reference_model(tmp_path):
    trace = write_trace(tmp_path / "trace", 300)
    requests = requests_of(trace)
    longest = max(map(len, requests))
    sizes = [longest, 2 * longest, 200, 500]
    for figure, size in zip(simulate(trace, "--policy", "lru", "--capacity", ",".join(map(str, sizes))), sizes, strict=True):
        assert (figure["policy"], figure["capacity_blocks"]) == ("lru", size)
        assert figure["blocks_hit"] == lru(requests, size)
        assert figure["hit_ratio"] == pytest.approx(figure["blocks_hit"] / sum(map(len, requests)))


@pytest.mark.parametrize("seed", range(6))
def test_nothing_hits_more_than_the_optimum_and_something_does_as_much(tmp_path, seed):
    rng = random.Random(seed)
    chains = [[0, 1, 2], [0, 1, 3], [0, 4], [5, 6], [5, 7, 8], [9]]
    requests = [rng.choice(chains)[:rng.randint(1, 3)] for _ in range(12)]
    trace = tmp_path / "trace"
    trace.write_text("".join(json.dumps({"hash_ids": ids}) + "\n" for ids in requests))
    for capacity in (1, 2, 3, 4):
        by_policy = {f["policy"]: f["blocks_hit"] for f in simulate(trace, "-p", "lru,cq,opt", "-c", capacity)}
        assert by_policy["opt"] == optimum(requests, capacity)
        assert max(by_policy["lru"], by_policy["cq"]) <= by_policy["opt"]


def test_a_cache_for_everything_misses_each_block_once(tmp_path):
    trace = write_trace(tmp_path / "trace", 200)
    requests = requests_of(trace)
    distinct = len(set(itertools.chain(*requests)))
    for figure in simulate(trace, "--capacity", "100%"):
        assert (figure["capacity"], figure["capacity_blocks"]) == (1, distinct)
        assert figure["blocks_asked"] - figure["blocks_hit"] == distinct


@pytest.mark.figures
def test_the_published_figures_of_the_conversation_trace(tmp_path):
    figures = simulate(trace_path(), "--capacity", "1%,5%,10%,20%,50%")
    by_policy = {p: [100 * f["hit_ratio"] for f in figures if f["policy"] == p] for p in ("lru", "cq", "opt")}
    assert by_policy["lru"] == pytest.approx([5.25, 19.58, 27.89, 34.53, 36.31], abs=0.05)
    assert by_policy["opt"] == pytest.approx([24.64, 36.64, 36.64, 36.64, 36.64], abs=0.05)
    for ours, study in zip(by_policy["cq"], [9.20, 21.96, 29.02, 34.60, 36.33], strict=True):
        assert ours >= study - 0.2
    assert [f["capacity"] for f in figures if f["policy"] == "cq"] == [0.01, 0.05, 0.1, 0.2, 0.5]


@pytest.mark.figures
def test_announced_ends_are_worth_more_than_any_policy():
    """The study's figure for LRU with half of the ends announced is 24.78 % at 5 %."""
    def hits(*arguments):
        return [100 * f["hit_ratio"] for f in simulate(trace_path(), "-p", "cq", "-c", "1%,5%,10%,20%,50%", *arguments)]

    plain, none, half = hits(), hits("--announce-ends", "0%"), hits("--announce-ends", "50%")
    assert plain == none
    assert all(h >= p - 0.05 for p, h in zip(plain, half, strict=True))
    assert half[1] >= 24.5 and half[2] >= 31.5
    assert hits("--announce-ends", "50%") == half


def test_announced_ends_of_a_short_trace():
    arguments = ["--synthetic", "chat", "-r", 1500, "-p", "cq", "-c", "10%"]
    plain, none, half = (simulate(*arguments, *more)[0]["blocks_hit"]
                         for more in ([], ["--announce-ends", "0%"], ["--announce-ends", "50%"]))
    assert plain == none < half


def agents(path, seed, scale=1):
    """Writes a trace of sessions that return after their own mean gap of 4 to 200 s and add a block each time; more than fit are active."""
    draw = random.Random(seed)
    requests, blocks = [], itertools.count()
    for _ in range(150):
        now, gap = draw.uniform(0, 3600), 4 * 50 ** draw.random()
        chain = [next(blocks) for _ in range(draw.randrange(20, 60))]
        for _ in range(draw.randrange(10, 50)):
            chain = [*chain, next(blocks)]
            requests.append((now, chain))
            now += gap * draw.uniform(0.7, 1.4)
    path.write_text("".join(json.dumps({"timestamp": int(1000 * now / scale), "hash_ids": ids}) + "\n" for now, ids in sorted(requests)))
    return path


@pytest.mark.parametrize("scale", [1, 10])
def test_sessions_that_return_quickly_are_kept(tmp_path, scale):
    """At a size that holds a part of the active sessions, recency evicts what is about to return."""
    lru, cq, ends, returns = (
        100 * simulate(agents(tmp_path / "trace", 1, scale), "-p", policy, "-c", "3%", *more)[0]["hit_ratio"]
        for policy, more in (("lru", []), ("cq", []), ("cq", ["--announce-ends", "100%"]),
                             ("cq", ["--announce-ends", "100%", "--announce-returns", "50%"])))
    assert cq > lru + 10
    assert ends > cq
    assert returns > cq - 1    # a hint of a return within a minute adds nothing to what these chains show


@pytest.mark.figures
@pytest.mark.parametrize("seed", range(4))
def test_learning_costs_little_where_there_is_nothing_to_learn(seed):
    """In chat sessions whose return does not depend on their past, cq is hardly worse than LRU."""
    figures = simulate("--synthetic", "chat", "--seed", seed, "-r", 10000, "-c", "0.5%,1%,2%,3%,5%,10%", "-p", "lru,cq")
    for low, high in zip(figures[::2], figures[1::2], strict=True):
        assert high["hit_ratio"] >= low["hit_ratio"] - 0.003, (low, high)


DAY_MS = 24 * 3600 * 1000


def trace_ms(path):
    stamps = [json.loads(line)["timestamp"] for line in path.read_text().splitlines()]
    return stamps[-1] - stamps[0]


@pytest.mark.figures
@pytest.mark.parametrize("policy", ["lru", "cq"])
@pytest.mark.parametrize("scale", [1, 60])
def test_a_quarter_of_the_writes_keeps_most_of_the_hits(policy, scale, tmp_path):
    """Criterion: the budget is used within 5 %, and at most 3 points of hits are lost; the same holds 60 times as fast."""
    path = tmp_path / "trace"
    with open(path, "w") as out:
        for line in trace_path().read_text().splitlines():
            request = json.loads(line)
            request["timestamp"] //= scale
            out.write(json.dumps(request) + "\n")
    all_of_it, = simulate(path, "-p", policy, "-c", "5%", "-b", "16KiB")
    may = all_of_it["bytes_written"] / 4
    some, = simulate(path, "-p", policy, "-c", "5%", "-b", "16KiB", "--write-budget", int(may * DAY_MS / trace_ms(path)))
    assert 0.95 <= some["bytes_written"] / may <= 1.05
    assert all_of_it["hit_ratio"] - some["hit_ratio"] <= 0.03
    assert some["bytes_written"] == some["blocks_written"] * 16384
    assert some["refused_first"] > 100000


@pytest.mark.figures
def test_a_budget_that_suffices_changes_little():
    plain, = simulate(trace_path(), "-p", "cq", "-c", "5%", "-b", "16KiB")
    most, = simulate(trace_path(), "-p", "cq", "-c", "5%", "-b", "16KiB", "--write-budget", "10TB")
    assert abs(plain["hit_ratio"] - most["hit_ratio"]) < 0.005
    assert most["blocks_written"] > 0.98 * plain["blocks_written"]
    assert "refused_first" not in plain and "write_budget" not in plain and most["write_budget"] == 10**13


def test_the_optimum_has_no_budget():
    with_one, = simulate("--synthetic", "chat", "-r", 200, "-p", "opt", "-c", "10%", "-b", "16KiB", "--write-budget", "1MB")
    assert with_one["hit_ratio"] == simulate("--synthetic", "chat", "-r", 200, "-p", "opt", "-c", "10%")[0]["hit_ratio"]
    assert "blocks_written" not in with_one


def test_writes_have_their_own_table():
    out = bench("simulate", "--synthetic", "chat", "-r", "2000", "-c", "10%,50%", "-p", "lru,opt", "-b", "1MB", "--write-budget",
                "20TB").stdout.splitlines()
    assert out[4].startswith("Written, of the budget of ")
    assert [line.split()[0] for line in out[6:8]] == ["10%", "50%"] and all(line.endswith(" -") for line in out[6:8])


def test_a_trace_without_time_has_no_budget(tmp_path):
    (tmp_path / "trace").write_text('{"hash_ids": [1, 2]}\n{"hash_ids": [1, 2]}\n')
    done = bench("simulate", str(tmp_path / "trace"), "-b", "1MB", "--write-budget", "1TB", check=5)
    assert "budget allows no byte" in done.stderr


def test_sizes_may_be_those_of_disks():
    first, second = simulate("--synthetic", "chat", "-r", 200, "-p", "lru", "--disk", "1GiB,2GiB", "-b", "2MiB")
    assert (first["capacity_blocks"], second["capacity_blocks"]) == (512, 1024)
    assert (first["capacity_bytes"], second["capacity_bytes"]) == (1 << 30, 2 << 30)


def test_the_table_has_a_row_for_each_size_and_a_column_for_each_policy():
    out = bench("simulate", "--synthetic", "chat", "-r", "200", "-c", "10%,50%", "-p", "opt,lru").stdout.splitlines()
    assert out[1].split() == ["CAPACITY", "opt", "lru"]
    assert [line.split()[0] for line in out[2:4]] == ["10%", "50%"]
    assert out[4].endswith("million touches a second of CPU time")


SVG = "{http://www.w3.org/2000/svg}"


def plot(path):
    """Returns the axes of a plot, measured by its labels, and its lines: (y of a hit ratio, x of a label, {colour: points})."""
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag == SVG + "svg" and not [e for e in root.iter() if {"href", "src"} & set(e.keys())]
    texts = {t.text: t for t in root.iter(SVG + "text")}
    ratios = {float(t[:-2]): float(e.get("y")) - 4.5 for t, e in texts.items() if t.endswith(" %")}
    low, high = min(ratios), max(ratios)
    lines = {}
    for line in root.iter(SVG + "polyline"):
        points = [tuple(map(float, p.split(","))) for p in line.get("points").split()]
        if all(y == 74 for _, y in points):
            continue  # the legend's
        dots = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(SVG + "circle")
                if c.get("style")[-3:-1] == line.get("style").split("var(--")[1][:2]]
        assert dots == points
        name = {"s0": "lru", "s1": "cq", "s3": "opt"}[line.get("style").split("var(--")[1][:2]]
        lines[name] = (points, "dasharray" in line.get("style"))
    return (lambda y: low + (ratios[low] - y) / (ratios[low] - ratios[high]) * (high - low)), texts, lines, root


def test_the_plot_has_each_figure_where_its_axes_say(tmp_path):
    sizes = ["20%", "1%", "50%", "5%", "10%"]
    arguments = ["--synthetic", "chat", "-r", 2000, "-c", ",".join(sizes)]
    figures = simulate(*arguments, "--svg", tmp_path / "plot.svg")
    ratio_at, texts, lines, root = plot(tmp_path / "plot.svg")
    assert {name: dashed for name, (_, dashed) in lines.items()} == {"lru": False, "cq": False, "opt": True}
    assert {"lru", "cq", "opt", "Hit ratio by capacity", "capacity, of the distinct blocks, logarithmic"} <= set(texts)
    for name, (points, _) in lines.items():
        wanted = sorted((f["capacity"], 100 * f["hit_ratio"]) for f in figures if f["policy"] == name)
        assert [ratio_at(y) for _, y in points] == pytest.approx([ratio for _, ratio in wanted], abs=0.05)
        assert [x for x, _ in points] == [float(texts[f"{round(100 * size)}%"].get("x")) for size, _ in wanted]
        x = [p[0] for p in points]  # The axis is logarithmic: equal ratios have equal distances.
        assert x[1] - x[0] == pytest.approx(x[4] - x[2], abs=0.3)
    best = max(figures, key=lambda f: f["hit_ratio"])
    assert any(t.text.endswith(f"{100 * best['hit_ratio']:.2f} %") for t in root.iter(SVG + "title"))
    style = root.find(SVG + "style").text
    assert "prefers-color-scheme:dark" in style and "url(" not in style


def test_a_plot_of_one_size_and_one_of_disks(tmp_path):
    simulate("--synthetic", "chat", "-r", 200, "-c", "10%", "-p", "lru", "--svg", tmp_path / "one.svg")
    assert len(plot(tmp_path / "one.svg")[2]["lru"][0]) == 1
    simulate("--synthetic", "chat", "-r", 200, "-b", "2MiB", "--disk", "1GiB,2GiB", "-p", "cq,lru", "--svg", tmp_path / "two.svg")
    _, texts, lines, _ = plot(tmp_path / "two.svg")
    assert {"1GiB", "2GiB", "capacity in bytes"} <= set(texts) and set(lines) == {"lru", "cq"}
    out = bench("simulate", "--synthetic", "chat", "-r", "50", "-c", "9", "--svg", "-").stdout
    assert xml.etree.ElementTree.fromstring(out).tag == SVG + "svg"


def text_plot(out):
    """Returns the plots in a report: {title: [lines]}."""
    plots, title = {}, None
    for line in out.splitlines():
        if line.startswith("  ") and line[2].isalpha() and not line[2:].startswith("CAPACITY"):
            title = line.strip()
            plots[title] = []
        elif title:
            plots[title].append(line)
    return plots


def test_a_plot_in_characters_has_each_figure_where_its_axes_say():
    sizes = ["1%", "5%", "10%", "20%", "50%"]
    arguments = ["simulate", "--synthetic", "chat", "-r", "2000", "-c", ",".join(sizes)]
    figures = json.loads(bench(*arguments, "--json").stdout)
    out = bench(*arguments, "--plot").stdout
    assert out.startswith(bench(*arguments, "--plot").stdout[:100]) and "\033" not in out
    lines, = text_plot(out).values()
    assert max(map(len, out.splitlines())) <= 100 and max(map(len, lines)) <= 80
    assert lines[0].split()[:6] == ["o", "lru", "x", "cq", "*", "opt"]
    rows = lines[1:16]
    labels = {i: float(row.split("%")[0]) for i, row in enumerate(rows) if "%" in row[:10]}
    top, most = min(labels), max(labels.values())
    assert top == 0 and labels[14] == 0
    for f in figures:
        mark = {"lru": "o", "cq": "x", "opt": "*"}[f["policy"]]
        row = 14 - round(100 * f["hit_ratio"] / most * 14)
        assert mark in rows[row][11:] or "&" in rows[row][11:], (f, rows[row])
    assert lines[17].split() == sizes and lines[18].strip() == "capacity, of the distinct blocks, logarithmic"


def test_plots_in_characters_have_colours_where_wanted():
    out = bench("simulate", "--synthetic", "chat", "-r", "50", "-c", "9,18", "-p", "lru", "--plot", "--color", "always").stdout
    assert "\033[34mo\033[0m" in out
    assert "\033" not in bench("simulate", "--synthetic", "chat", "-r", "50", "-c", "9", "--plot", "--color", "never").stdout


def test_a_plot_with_a_name_is_an_svg(tmp_path):
    arguments = ["simulate", "--synthetic", "chat", "-r", "50", "-c", "9,18"]
    bench(*arguments, "--svg", str(tmp_path / "a.svg"), check=0)
    out = bench(*arguments, f"--plot={tmp_path / 'b.svg'}", check=0).stdout
    assert (tmp_path / "a.svg").read_text() == (tmp_path / "b.svg").read_text() and "&" not in out
    both = bench(*arguments, "--plot", f"--plot={tmp_path / 'c.svg'}", check=0).stdout
    assert (tmp_path / "c.svg").exists() and "Hit ratio:" in both


@pytest.mark.parametrize("arguments, says", [
    (["--plot=plot.png"], "'plot.png' does not end with .svg"), (["--plot="], "does not end with .svg"), (["--plot=.svg"], "does not end with .svg"),
    (["--plot", "--json"], "both print to standard output"), (["--plot", "--svg", "-"], "both print to standard output"),
    (["--explain", "1", "--plot"], "--explain cannot be combined with a plot"),
])
def test_wrong_plots_are_refused(arguments, says):
    done = bench("simulate", "--synthetic", "chat", "-r", "50", *arguments, check=2)
    assert says in done.stderr and not done.stdout


def test_a_plot_that_cannot_be_written_leaves_nothing(tmp_path):
    done = bench("simulate", "--synthetic", "chat", "-r", "50", "--svg", str(tmp_path / "no" / "plot.svg"), check=6)
    assert "No such file" in done.stderr and not list(tmp_path.iterdir())


EXPLAINED = [[10], [11], [10], [12], [13], [14, 10], [15, 10]]
EXPLAINED_TIMES = [0, 1000, 2000, 4000, 7000, 9000, 9500]


@pytest.fixture
def explained(tmp_path):
    (tmp_path / "trace").write_text("".join(json.dumps({"timestamp": t, "hash_ids": ids}) + "\n"
                                            for t, ids in zip(EXPLAINED_TIMES, EXPLAINED, strict=True)))
    return str(tmp_path / "trace")


def test_the_decisions_about_a_block_are_explained(explained):
    """Block 10 is hit at 2 s, kept at 4 s, evicted at 7 s, asked for at 9 s, and at 9.5 s behind a missing block."""
    said, = simulate(explained, "--explain", 10, "-p", "lru", "-c", 2)
    assert (said["block"], said["policy"], said["capacity_blocks"], said["asked"], said["hit"]) == (10, "lru", 2, 4, 1)
    decisions = said["decisions"]
    assert [(d["decision"], d["request"], d["seconds"]) for d in decisions] == \
        [("miss", 1, 0), ("hit", 3, 2), ("evicted", 5, 7), ("miss", 6, 9), ("behind_a_miss", 7, 9.5)]
    gone = decisions[2]
    assert (gone["cause"], gone["kept"], gone["seconds_unused"], gone["seconds_until_next"], gone["next"]) == ("oldest", 1, 5, 2, 12)
    key = hashlib.sha256(b"replay-trace".ljust(16, b"\0") + struct.pack("<QQ", 0, 10)).hexdigest()
    assert simulate(explained, "--explain", key, "-p", "lru", "-c", 2) == [said]
    out = bench("simulate", explained, "--explain", key, "-p", "lru", "-c", "2").stdout
    assert out.startswith("Block 10 in a cache of 2 blocks that evicts by lru: 4 requests, 1 of them hit it.\n")
    assert [line.split()[0] for line in out.splitlines() if "EVICTED" in line] == ["7.0"]
    for text in ("in 1 eviction of blocks not used for longer", "not used for 5.0 s", "the next is block 12", "the next request for it: 2.0 s later",
                 "evicted 2.0 s before", "cached, but a block before it is missing"):
        assert f" {text}\n" in out
    assert max(map(len, out.splitlines())) < 100


def test_a_long_explanation_leaves_out_its_middle(tmp_path):
    requests = [[1], [2], [3]] * 100
    (tmp_path / "trace").write_text("".join(json.dumps({"timestamp": 1000 * i, "hash_ids": ids}) + "\n" for i, ids in enumerate(requests)))
    out = bench("simulate", str(tmp_path / "trace"), "--explain", "1", "-p", "lru", "-c", "2").stdout
    assert sum(" EVICTED " in line for line in out.splitlines()) == 40 and "120 decisions; --json has them" in out
    said, = simulate(tmp_path / "trace", "--explain", 1, "-p", "lru", "-c", 2)
    assert said["asked"] == 100 and said["hit"] == 0 and len(said["decisions"]) == 200


def test_explanations_of_cq_name_classes_and_worth():
    trace = [trace_path(), "-r", 3000, "-c", "5%"]
    figure, = simulate(*trace, "-p", "cq")
    said = [simulate(*trace, "--explain", block)[0] for block in range(1000, 2000, 100)]
    assert {(s["policy"], s["capacity_blocks"]) for s in said} == {("cq", figure["capacity_blocks"])}
    decisions = [d for s in said for d in s["decisions"]]
    evicted = [d for d in decisions if d["decision"] == "evicted"]
    assert len(evicted) > 5 and {d["cause"] for d in evicted} <= {"worth_least", "end_of_chain", "gave_way", "unlearned"}
    assert all(d["class"].startswith("used") for d in evicted) and any(d["next_worth"] for d in evicted)
    assert any(d["kept"] > 50 for d in decisions)
    assert "worth least" in bench("simulate", *map(str, trace), "--explain", "1000").stdout


@pytest.mark.parametrize("arguments, says, status", [
    (["--explain", "99"], "no request asks for block '99'", 1), (["--explain", ""], "no request asks for block", 1),
    (["--explain", "-1"], "no request asks", 1), (["--explain", "10x"], "no request asks", 1), (["--explain", " 10"], "no request asks", 1),
    (["--explain", "9" * 30], "no request asks", 1), (["--explain", "f" * 64], "no request asks", 1), (["--explain", "z" * 64], "no request asks", 1),
    (["--explain", "10", "-p", "opt"], "one policy: lru or cq", 2), (["--explain", "10", "-p", "lru,cq"], "one policy: lru or cq", 2),
    (["--explain", "10", "-c", "1,2"], "exactly one --capacity", 2), (["--explain", "10", "--hosts", "2"], "with --hosts", 2),
    (["--explain", "10", "--svg", "-"], "with a plot", 2),
])
def test_wrong_explanations_are_refused(explained, arguments, says, status):
    done = bench("simulate", explained, *arguments, check=status)
    assert says in done.stderr and not done.stdout


@pytest.mark.parametrize("arguments, says, status", [
    ([], "either a trace file or --synthetic chat is needed", 2),
    (["/nowhere"], "/nowhere: No such file", 5),
    (["--synthetic", "chat", "-p", "lfu"], "'lfu' is unknown", 2),
    (["--synthetic", "chat", "-p", "lru,"], "not a list", 2),
    (["--synthetic", "chat", "-p", ",".join(["lru"] * 9)], "one policy too many", 2),
    (["--synthetic", "chat", "-c", "0"], "'0' is neither", 2),
    (["--synthetic", "chat", "-c", "101%"], "'101%' is neither", 2),
    (["--synthetic", "chat", "-c", "nan"], "'nan' is neither", 2),
    (["--synthetic", "chat", "-c", "%"], "'%' is neither", 2),
    (["--synthetic", "chat", "-c", ",".join(["1"] * 33)], "give at most 32", 2),
    (["--synthetic", "chat", "--announce-ends", "101%"], "'101%' is not a share", 2),
    (["--synthetic", "chat", "--announce-ends", "0.5"], "'0.5' is not a share", 2),
    (["--synthetic", "chat", "--announce-ends", "%"], "'%' is not a share", 2),
    (["--synthetic", "chat", "--announce-ends", "nan%"], "'nan%' is not a share", 2),
    (["--synthetic", "chat", "--announce-ends", "-1%"], "'-1%' is not a share", 2),
    (["--synthetic", "chat", "--announce-returns", "101%"], "--announce-returns: '101%' is not a share", 2),
    (["--synthetic", "chat", "--announce-returns", "x"], "--announce-returns: 'x' is not a share", 2),
    (["--synthetic", "chat", "--hosts", "2", "--announce-returns", "5%"], "--announce-returns cannot be combined with --hosts", 2),
    (["--synthetic", "chat", "--disk", "1MB", "-b", "2MB"], "no room for even one", 2),
    (["--synthetic", "chat", "--disk", "1TB"], "--disk needs --bytes-per-block", 2),
    (["--synthetic", "chat", "--write-budget", "1TB"], "--write-budget needs --bytes-per-block", 2),
    (["--synthetic", "chat", "--write-budget", "much", "-b", "1MB"], "--write-budget: 'much'", 2),
    (["--synthetic", "chat", "--json", "--svg", "-"], "both print to standard output", 2),
    (["--synthetic", "chat", "--disk", "1TB", "-b", "0"], "--disk needs --bytes-per-block", 2),
])
def test_wrong_usage_is_reported(arguments, says, status):
    done = bench("simulate", *arguments, check=status)
    assert says in done.stderr and not done.stdout


def test_a_malformed_trace_is_refused_with_its_line(tmp_path):
    (tmp_path / "trace").write_text('{"hash_ids": [1, 2]}\n{"hash_ids": [1, "x"]}\n')
    assert "trace:2" in bench("simulate", str(tmp_path / "trace"), check=5).stderr
    (tmp_path / "empty").write_text('{"hash_ids": []}\n')
    assert "no request asks for a block" in bench("simulate", str(tmp_path / "empty"), check=5).stderr
