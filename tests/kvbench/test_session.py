# SPDX-License-Identifier: Apache-2.0
"""kvcache-bench session on files: reports in each format, exports, comparisons, and invalid snapshots.

tests/golden/session has two sessions, A with fully contiguous blocks and B with a buffer for each layer, and the output of the commands for
them. KVCACHE_GOLDEN=write rewrites that output.
"""

import copy
import json
import os
import re
import xml.etree.ElementTree as ElementTree

import pytest

from kvbench import FAILED, OK, ROOT, USAGE, clean, read_csv, run

GOLDEN = ROOT / "tests" / "golden" / "session"
A, B = GOLDEN / "A.json", GOLDEN / "B.json"
UNKNOWN, PAST_THRESHOLD = 4, 5


def ok(*arguments):
    result = clean(run("session", *arguments))
    assert result.returncode == OK, result.stderr
    return result.stdout


def refused(*arguments, status=FAILED):
    result = clean(run("session", *arguments))
    assert result.returncode == status, (result.returncode, result.stdout, result.stderr)
    assert not result.stdout
    assert result.stderr.startswith("kvcache-bench: ") and result.stderr.count("\n") == (2 if status == USAGE else 1)
    return result.stderr


def load(path=A):
    return json.loads(path.read_text())


# --- reports ---

GOLDEN_OUTPUTS = {
    "status.txt": ["status", B], "status.json": ["status", "--session", B, "--json"],
    "A.txt": ["report", A], "B.txt": ["report", B, "--no-clock"], "A.report.json": ["report", A, "--format", "json"],
    "B.csv": ["report", B, "--format", "csv"], "B.svg": ["report", B, "--format", "svg"],
    "B.html": ["report", B, "--format", "html", "--no-clock"],
    "A.export.csv": ["export", A, "-o", "-", "--format", "csv"], "A.jsonl": ["export", A, "-o", "-", "--format", "jsonl"],
    "B.dynamo.json": ["export", B, "-o", "-", "--compat", "dynamo"],
    "B.dynamo.txt": ["report", GOLDEN / "B.dynamo.json"], "compare-dynamo.txt": ["compare", A, GOLDEN / "B.dynamo.json"],
    "compare-key.txt": ["compare", A, B], "compare-layout.txt": ["compare", A, B, "--by", "layout"],
    "compare-layout.json": ["compare", A, B, "--by", "layout", "--format", "json"],
}


@pytest.mark.parametrize("name", GOLDEN_OUTPUTS)
def test_golden_outputs(name):
    """The output equals the golden file byte for byte: the order is stable, and numbers are printed the same everywhere."""
    text = ok(*GOLDEN_OUTPUTS[name])
    if os.environ.get("KVCACHE_GOLDEN") == "write":
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()
    assert text.isascii()


def test_order_of_the_metrics_does_not_matter(tmp_path):
    session = load(B)
    session["metrics"].reverse()
    (tmp_path / "B.json").write_text(json.dumps(session))
    assert ok("report", tmp_path / "B.json", "--no-clock") == (GOLDEN / "B.txt").read_text()


def test_no_clock_leaves_out_what_changes_in_an_idle_session(tmp_path):
    later = load() | {"updated": "2026-11-24T00:00:00Z", "enabled_secs": 99.5}
    (tmp_path / "later.json").write_text(json.dumps(later))
    for form in ("text", "json", "csv", "svg", "html"):
        reports = [ok("report", path, "--no-clock", "--format", form) for path in (A, tmp_path / "later.json")]
        assert reports[0] == reports[1]
    assert ok("report", A) != ok("report", tmp_path / "later.json")


def test_identities_of_the_layouts():
    """Fully contiguous: transfers = blocks. A buffer a layer, not coalesced: transfers = blocks x layers x outer."""
    for path, layers_outer in ((A, 1), (B, 16)):
        report = json.loads(ok("report", path, "--json"))
        metric, = (m for m in report["metrics"] if m["path"] == "host_to_host")
        assert metric["transfer_count"] == metric["total_blocks"] * layers_outer
        assert metric["transfers_per_block"] == layers_outer
        assert metric["regions_per_transfer"] == 16 / layers_outer
        assert metric["transfer_rate_bps"] == pytest.approx(metric["total_bytes"] / metric["busy_secs"])


def test_path_and_layout_select():
    assert [m["path"] for m in json.loads(ok("report", B, "--json", "--path", "host_to_disk"))["metrics"]] == ["host_to_disk"]
    selected = json.loads(ok("report", B, "--json", "--layout", "layer_separate_outer_first"))["metrics"]
    assert [m["path"] for m in selected] == ["host_to_host"]
    assert "no transfers" in ok("report", B, "--path", "device_to_disk")
    refused("report", B, "--path", "host_to_moon", status=USAGE)
    refused("report", B, "--layout", "diagonal", status=USAGE)


def test_charts_need_nothing_from_outside():
    svg, html = ok("report", B, "--format", "svg"), ok("report", B, "--format", "html")
    ElementTree.fromstring(svg)
    for text in (svg, html):
        assert not re.search(r"(href|src|url\(|@import|<script)", text)
        assert set(re.findall(r"https?://[^\"']*", text)) == {"http://www.w3.org/2000/svg"}
        assert "prefers-color-scheme:dark" in text


def test_session_without_transfers(tmp_path):
    empty = load() | {"metrics": [], "layouts": []}
    (tmp_path / "e.json").write_text(json.dumps(empty))
    assert "no transfers" in ok("report", tmp_path / "e.json")
    assert json.loads(ok("status", tmp_path / "e.json", "--json"))["keys"] == 0
    ElementTree.fromstring(ok("report", tmp_path / "e.json", "--format", "svg"))
    assert ok("compare", tmp_path / "e.json", tmp_path / "e.json", "--fail-on-regress", 0)


def test_csv_has_every_figure():
    rows = read_csv(ok("report", B, "--format", "csv"))
    assert [r["path"] for r in rows] == ["disk_to_host", "host_to_disk", "host_to_host"]
    assert rows[0]["errors_short"] == "2" and rows[2]["transfers_per_block"] == "16"


# --- exports ---


def test_export_is_read_again(tmp_path):
    ok("export", "--session", B, "--output", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == load(B)
    assert ok("report", tmp_path / "out.json", "--no-clock") == (GOLDEN / "B.txt").read_text()
    assert ok("export", tmp_path / "out.json", "-o", "-") == (tmp_path / "out.json").read_text()
    assert os.listdir(tmp_path) == ["out.json"]


def test_the_words_of_dynamo_s_tool(tmp_path):
    """export FORMAT FILE, as its help has it, and the short options."""
    ok("export", "csv", tmp_path / "out.csv", "--session", B)
    assert (tmp_path / "out.csv").read_text() == ok("export", B, "-o", "-", "--format", "csv")
    error = refused("export", "xml", tmp_path / "out.xml", status=USAGE)
    assert "'xml' is not one of json, csv, jsonl" in error and not (tmp_path / "out.xml").exists()
    for option in (["--format", "csv"], ["-o", tmp_path / "other"]):
        assert "already give the format and the file" in refused("export", "csv", tmp_path / "out.csv", *option, status=USAGE)
    assert "one operand too many" in refused("export", "csv", tmp_path / "out.csv", "third", status=USAGE)
    assert ok("report", B, "-f", "csv") == ok("report", B, "--format", "csv")
    assert ok("export", B, "-o", "-", "-f", "csv") == ok("export", B, "-o", "-", "--format", "csv")
    assert ok("test", "-c", "10") == ok("test", "--count", "10")


def test_export_replaces_a_file_whole_or_not_at_all(tmp_path):
    (tmp_path / "out.json").write_text("before")
    (tmp_path / "bad.json").write_text("{")
    refused("export", tmp_path / "bad.json", "-o", tmp_path / "out.json")
    assert (tmp_path / "out.json").read_text() == "before"
    refused("export", A, "-o", tmp_path / "no" / "out.json")
    refused("export", A, "-o", tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["bad.json", "out.json"]
    refused("export", A, status=USAGE)
    refused("export", A, "-o", "-", "--compat", "dynamo", "--format", "csv", status=USAGE)


def test_jsonl_and_dynamo():
    lines = [json.loads(line) for line in ok("export", B, "-o", "-", "--format", "jsonl").splitlines()]
    assert len(lines) == 3 and {line["session"] for line in lines} == {"B"}
    dynamo = json.loads(ok("export", A, "-o", "-", "--compat", "dynamo"))
    assert set(dynamo) == {"session_name", "session_duration_secs", "metrics"}
    assert set(dynamo["metrics"]["HostToDisk_FullyContiguous"]) == {
        "transfer_count", "total_bytes", "total_blocks", "min_transfer_size", "max_transfer_size", "avg_transfer_size",
        "transfer_rate_bps", "block_rate_bps"}


def test_a_file_of_dynamos_benchmark_is_read(tmp_path):
    theirs = GOLDEN / "B.dynamo.json"
    report = ok("report", theirs)
    assert "source     Dynamo's layout benchmark" in report and "1016.801 MB/s" in report
    ours, read = (json.loads(ok("report", path, "--json"))["metrics"] for path in (B, theirs))
    for a, b in zip(ours, read, strict=True):
        for name in ("path", "layout", "transfer_count", "total_blocks", "total_bytes", "min_transfer_size", "max_transfer_size"):
            assert a[name] == b[name]
        assert b["transfer_rate_bps"] == pytest.approx(a["transfer_rate_bps"])
    assert ok("export", theirs, "-o", "-", "--compat", "dynamo") == theirs.read_text()
    assert json.loads(ok("status", theirs, "--json"))["bytes"] == sum(m["total_bytes"] for m in load(B)["metrics"])


def test_a_file_of_dynamos_benchmark_is_compared_by_path_and_layout(tmp_path):
    session = load(A)
    metric = next(m for m in session["metrics"] if m["path"] == "host_to_disk")
    session["metrics"].append(metric | {"technology": "gds"})  # the technologies of one path and layout are summed
    (tmp_path / "A.json").write_text(json.dumps(session))
    pairs = json.loads(ok("compare", tmp_path / "A.json", GOLDEN / "B.dynamo.json", "--json"))["pairs"]
    assert all("technology" not in pair for pair in pairs)
    disk, = (p for p in pairs if p["path"] == "host_to_disk")
    assert disk["base"]["transfer_count"] == 2 * metric["transfer_count"]
    assert disk["other"]["transfer_count"] == 64
    text = ok("compare", GOLDEN / "B.dynamo.json", GOLDEN / "B.dynamo.json", "--fail-on-regress", 0)
    assert "nothing" in text


@pytest.mark.parametrize("change, message", [
    (lambda d: d.pop("metrics"), "metrics is missing"),
    (lambda d: d.update(metrics=[]), "metrics is not a JSON object"),
    (lambda d: d["metrics"].update(HostToMoon_FullyContiguous={}), "'HostToMoon_FullyContiguous' names no path and layout"),
    (lambda d: d["metrics"].update({"\033[2J\n": {}}), "'?[2J?' names no path and layout"),
    (lambda d: d["metrics"].update(HostToDisk_FullyContiguous=5), "transfer_rate_bps is not a number of 0 or more"),
    (lambda d: d["metrics"]["HostToDisk_FullyContiguous"].update(total_bytes=-1), "total_bytes"),
    (lambda d: d["metrics"]["HostToDisk_FullyContiguous"].update(transfer_count="1"), "transfer_count"),
    (lambda d: d["metrics"]["HostToDisk_FullyContiguous"].pop("total_blocks"), "total_blocks is missing"),
    (lambda d: d["metrics"]["HostToDisk_FullyContiguous"].update(transfer_rate_bps=-1), "transfer_rate_bps is not a number of 0 or more"),
    (lambda d: d.update(session_name="a/b"), "is not the name of a session"),
    (lambda d: d.pop("session_duration_secs"), "enabled_secs is missing"),
])
def test_a_wrong_file_of_dynamos_benchmark_is_refused(tmp_path, change, message):
    wrong = json.loads((GOLDEN / "B.dynamo.json").read_text())
    change(wrong)
    (tmp_path / "wrong.json").write_text(json.dumps(wrong))
    assert message in refused("report", tmp_path / "wrong.json")


def test_a_key_without_transfers_in_a_file_of_dynamos_benchmark_is_left_out(tmp_path):
    session = json.loads((GOLDEN / "B.dynamo.json").read_text())
    session["metrics"]["HostToDisk_FullyContiguous"].update(transfer_count=0, min_transfer_size=2**64 - 1)
    (tmp_path / "B.json").write_text(json.dumps(session))
    assert "host_to_disk" not in ok("report", tmp_path / "B.json")


# --- status ---


def test_status_is_the_sums_of_the_report():
    status, metrics = json.loads(ok("status", B, "--json")), load(B)["metrics"]
    for name, of in ("transfers", "transfer_count"), ("blocks", "total_blocks"), ("bytes", "total_bytes"):
        assert status[name] == sum(m[of] for m in metrics)
    assert status["paths"] == len({m["path"] for m in metrics}) == 3
    assert status["keys"] == len({(m["path"], m["layout"]) for m in metrics}) == 3 and status["errors"] == 2
    refused("status", B, "--no-clock", status=USAGE)
    refused("status", ROOT / "no-such.json", status=UNKNOWN)


# --- comparisons ---


def compare(*arguments, status=OK):
    result = clean(run("session", "compare", *arguments))
    assert result.returncode == status, result
    return result.stdout


def test_threshold():
    """host_to_disk is 14.7 % slower in B, and errors that A does not have exceed any threshold."""
    compare(A, A, "--fail-on-regress", 0)
    compare(A, B)
    assert "from 0, past the threshold" in compare(A, B, "--fail-on-regress", 90, status=PAST_THRESHOLD)
    assert compare(B, A, "--fail-on-regress", 90)  # some of A is worse, too: transfers/block is not
    for percent in ("-1", "nan", "much"):
        refused("compare", A, B, "--fail-on-regress", percent, status=USAGE)


def test_threshold_of_the_rate(tmp_path):
    slower = load()
    slower["metrics"][0]["busy_secs"] *= 2
    (tmp_path / "slower.json").write_text(json.dumps(slower))
    assert "transfer rate: 50.0 %" in compare(A, tmp_path / "slower.json", "--fail-on-regress", 51)
    compare(A, tmp_path / "slower.json", "--fail-on-regress", 49, status=PAST_THRESHOLD)
    compare(tmp_path / "slower.json", A, "--fail-on-regress", 0)


def test_by_layout_sets_layer_separate_against_contiguous():
    pairs = json.loads(compare(A, B, "--by", "layout", "--json"))["pairs"]
    pair, = (p for p in pairs if p["layout"] == "layer_separate_outer_first")
    assert (pair["path"], pair["base"]["session"], pair["base"]["layout"]) == ("host_to_host", "A", "fully_contiguous")
    assert pair["worse_percent"] == {"transfer rate": pytest.approx(20)}
    reverse = json.loads(compare(B, A, "--by", "layout", "--json"))["pairs"]
    pair, = (p for p in reverse if p["layout"] == "layer_separate_outer_first")
    assert pair["base"]["session"] == "B" and pair["other"]["session"] == "A"


def test_by_key_names_what_only_one_has():
    text = compare(A, B)
    assert text.count("only in A") == 1 and text.count("only in B") == 1


# --- test ---


def test_golden_totals():
    assert ok("test") == "arithmetic: 100 transfers, 644096 bytes, 3 keys: right\n"
    assert ok("test", "--count", 1000)
    assert ok("test", "--json") == '{"right":true}\n'
    assert clean(run("session", "test", "--count", 0)).returncode == USAGE


# --- wrong usage ---


def test_wrong_usage():
    refused(status=USAGE)
    assert 'did you mean "session report"' in refused("reprot", status=USAGE)
    refused("report", A, B, status=USAGE)
    refused("report", A, "--session", B, status=USAGE)
    refused("compare", A, status=USAGE)
    refused("compare", "-", "-", status=USAGE)
    refused("report", A, "--format", "pdf", status=USAGE)
    refused("report", A, "--by", "key", status=USAGE)  # an option of another action
    refused("test", "--format", "json", status=USAGE)
    refused("compare", A, B, "--by", "size", status=USAGE)
    refused("report", ROOT / "no-such.json", status=UNKNOWN)


# --- hostile snapshots ---


def changed(**members):
    return load() | members


def metric(**members):
    session = load()
    session["metrics"][1] |= members
    return session


def without(session, *place):
    session = copy.deepcopy(session)
    inner = session
    for step in place[:-1]:
        inner = inner[step]
    del inner[place[-1]]
    return session


BAD = [
    (changed(schema="kvcache.bench.v2"), "schema: 'kvcache.bench.v2' is not kvcache.bench.v1"),
    (changed(schema=1), "schema: is not a string"),
    (changed(name="../../etc/passwd"), "name: '../../etc/passwd' is not the name of a session: use 1 to 64 of A-Z"),
    (changed(name=".hidden"), "name: "),
    (changed(name="x" * 65), "name: "),
    (changed(name="x" * 5000), "name: is longer than 127 bytes"),
    (changed(active="yes"), "active: is not true or false"),
    (changed(enabled_secs=-1), "enabled_secs: -1 is not a number of seconds from 0 to 1e+12"),
    (changed(metrics={}), "metrics: is not an array"),
    (changed(metrics=[None]), "metrics[0]: is not an object"),
    (changed(metrics=[{}] * 4000), "metrics: has 4000 entries"),
    (changed(metrics=load()["metrics"] * 2), "metrics[3]: has the same path, layout and technology as metrics[0]"),
    (changed(layouts=[{}] * 300), "layouts: has 300"),
    (changed(layouts=[7]), "layouts[0]: is not an object"),
    (changed(layouts=[load()["layouts"][0] | {"layout": "spiral"}]), "layouts[0].layout: 'spiral' is not known"),
    (changed(host=[]), "host: is not an object"),
    (changed(host={"cpus": 1.5}), "host.cpus: 1.5 is not a whole number"),
    (without(load(), "metrics"), "metrics is missing"),
    (without(load(), "metrics", 1, "errors", "short"), "metrics[1].errors: short is missing"),
    (without(load(), "metrics", 2, "busy_secs"), "metrics[2]: busy_secs is missing"),
    (metric(path="host_to_moon"), "metrics[1].path: 'host_to_moon' is not known to this version"),
    (metric(path="x\u001b[2J"), "metrics[1].path: "),
    (metric(transfer_count=-3), "metrics[1].transfer_count: -3 is not a whole number from 0 to 2^53"),
    (metric(transfer_count="60"), "metrics[1].transfer_count: is not a number"),
    (metric(total_bytes=1e300), "metrics[1].total_bytes: 1e+300 is not"),
    (metric(total_bytes=2.5), "metrics[1].total_bytes: 2.5 is not"),
    (metric(busy_secs=[]), "metrics[1].busy_secs: is not a number"),
    (metric(transfer_count=0), "metrics[1]: has bytes, blocks or regions, but no transfer"),
    (metric(min_transfer_size=9999999), "metrics[1]: min_transfer_size is above max_transfer_size"),
    (metric(errors=[]), "metrics[1].errors: is not an object"),
    (metric(size_histogram=[[12, 1], [12, 1]]), "metrics[1].size_histogram[1]: bucket 12 is out of order"),
    (metric(size_histogram=[[48, 1]]), "metrics[1].size_histogram[0]: there is no bucket 48; they are 0 to 47"),
    (metric(size_histogram=[[1, 2, 3]]), "metrics[1].size_histogram[0]: is not a pair"),
    (metric(latency_histogram=[5]), "metrics[1].latency_histogram[0]: is not a pair"),
    (metric(latency_histogram=[["a", 1]]), "metrics[1].latency_histogram[0]: is not a number"),
    ([], "is not an object"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_hostile_snapshot_is_refused_with_its_place(number, tmp_path):
    session, words = BAD[number]
    (tmp_path / "bad.json").write_text(json.dumps(session))
    message = refused("report", tmp_path / "bad.json")
    assert f"{tmp_path}/bad.json: " in message and words in message, message


GOOD_TEXT = A.read_text()
BAD_TEXT = {
    "nan": (GOOD_TEXT.replace('"busy_secs": 0.04', '"busy_secs": NaN'), "line "),
    "inf": (GOOD_TEXT.replace('"busy_secs": 0.04', '"busy_secs": 1e999'), "metrics[1].busy_secs: inf is not"),
    "empty": ("", "ends too early"),
    "blank": (" \n\n", "line 2, column 1: "),
    "truncated": (GOOD_TEXT[:len(GOOD_TEXT) // 2], "not JSON from here on"),
    "trailing": (GOOD_TEXT + "{}", ", column 1: not JSON"),
    "nul": (GOOD_TEXT + "\0", "not JSON"),
    "twice": (GOOD_TEXT.replace('"name": "A"', '"name": "A", "name": "B"'), "name: is given twice"),
    "twice inside": (GOOD_TEXT.replace('"short": 0', '"short": 0, "short": 1', 1), "metrics[0].errors.short: is given twice"),
    "binary": ("\x7fELF\x01\x02", "not JSON"),
    "deep": ("[" * 100000, ""),
    "huge": (" " * (17 << 20), "larger than 16 MiB"),
    "steers a terminal": ('{"schema": "\\u001b[31m"}', "schema: "),
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_hostile_text_is_refused(name, tmp_path):
    text, words = BAD_TEXT[name]
    (tmp_path / "bad.json").write_text(text)
    assert words in refused("report", tmp_path / "bad.json")


def test_every_truncation_is_refused(tmp_path):
    text = json.dumps(load(), separators=(",", ":"))
    for end in range(1, len(text) - 1, len(text) // 40):
        (tmp_path / "t.json").write_text(text[:end])
        refused("export", tmp_path / "t.json", "-o", "-")


def test_unknown_members_are_ignored(tmp_path):
    """Unknown members, which a newer daemon may write, are ignored."""
    session = load() | {"color": "blue"}
    session["metrics"][0]["novel"] = [1, 2]
    (tmp_path / "new.json").write_text(json.dumps(session))
    assert ok("report", tmp_path / "new.json") == (GOLDEN / "A.txt").read_text()


def test_texts_from_outside_do_not_steer_the_terminal(tmp_path):
    session = load()
    session["host"] |= {"hostname": "x\u001b]0;y\u0007<b>&", "kernel": "\u202eevil\u00e9"}
    (tmp_path / "t.json").write_text(json.dumps(session))
    for form in ("text", "svg", "html"):
        text = ok("report", tmp_path / "t.json", "--format", form)
        assert text.isascii() and all(c == "\n" or c >= " " for c in text)
        assert form == "text" or "<b>" not in text
