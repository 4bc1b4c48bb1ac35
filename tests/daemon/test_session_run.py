# SPDX-License-Identifier: Apache-2.0
"""kvcache-bench session run and test --io: blocks in every layout through a daemon, and failures."""

import json
import os
import re
import signal
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

import harness
from harness import BENCH, bench, ctl, wait_until

SMALL = ["--regions", "4KiB", "--layers", "4", "--bytes", "1MiB", "--iterations", "1"]
LAYOUTS = {"contiguous": 1, "block-first": 4, "outer-first": 8}  # pieces of a block


def run(daemon, *arguments, check=0):
    return bench("session", "run", "--json", *arguments, daemon=daemon, check=check, timeout=300)


def test_every_byte_is_right_in_every_layout(daemon):
    said = json.loads(run(daemon, *SMALL, "--verify", "--ops", "put,get,mixed", "--depths", "1,4", "--clients", "1,3").stdout)
    points = said["points"]
    assert len(points) == 3 * 3 * 2 * 2 and said["schema"] == "kvcache.bench.run.v1"
    for point in points:
        assert point["block_bytes"] == 4096 * 4 * 2
        assert point["pieces_per_block"] == LAYOUTS[point["layout"]]
        assert point["verified_bytes"] == point["blocks"] * point["clients"] * point["block_bytes"]
        assert point["rate_bps"] > 0 and point["p99_us"] >= point["p50_us"] > 0
        assert point["of_contiguous"] > 0 and point["from_disk"] == 0
        assert point["layout"] != "contiguous" or point["of_contiguous"] == 1


def test_cold_gets_come_from_disk(daemon):
    points = json.loads(run(daemon, *SMALL, "--cold", "--verify", "--ops", "get").stdout)["points"]
    assert [p["layout"] for p in points] == list(LAYOUTS)
    assert all(p["from_disk"] == 1 and p["verified_bytes"] >= 1 << 20 for p in points)


def test_nothing_is_left_behind(daemon):
    run(daemon, *SMALL)  # the first run makes the daemon create the pool index, which stays
    before = daemon.holdings_at_rest()
    run(daemon, *SMALL, "--verify", "--regions", "4KiB,8KiB")
    assert "bench-session" not in ctl("namespace", "ls", daemon=daemon, check=0).stdout
    assert daemon.holdings_at_rest() == before


def test_one_layout_has_nothing_to_be_compared_with(daemon):
    points = json.loads(run(daemon, *SMALL, "--layouts", "outer-first", "--ops", "put", "--outer", "1").stdout)["points"]
    assert [(p["layout"], p["op"], p["of_contiguous"], p["pieces_per_block"]) for p in points] == [("outer-first", "put", 0, 4)]


def test_forms(daemon, tmp_path):
    for form in ("text", "csv", "svg", "html"):
        bench("session", "run", *SMALL, "--format", form, "-o", tmp_path / form, daemon=daemon, check=0)
    assert sorted(os.listdir(tmp_path)) == ["csv", "html", "svg", "text"]
    ElementTree.parse(tmp_path / "svg")
    assert len((tmp_path / "csv").read_text().splitlines()) == 1 + 3 * 2
    assert "x " in (tmp_path / "text").read_text() and "prefers-color-scheme:dark" in (tmp_path / "html").read_text()


@pytest.mark.parametrize("arguments", [
    ["--regions", "33"], ["--regions", "0"], ["--regions", "4KiB,,"], ["--regions", "1TiB"], ["--layouts", "spiral"],
    ["--layouts", ""], ["--ops", "put,take"], ["--clients", "0"], ["--clients", "1000"], ["--depths", "many"],
    ["--depths", ",".join(["1"] * 17)], ["--layers", "0"], ["--outer", "3"], ["--iterations", "0"], ["--ack", "soon"],
    ["--bytes", "-1"], ["--count", "5"], ["operand"]])
def test_wrong_usage(arguments):
    result = bench("session", "run", *arguments, check=2)
    assert not result.stdout and arguments[0] in result.stderr


def test_blocks_that_are_too_large_are_refused(daemon):
    result = run(daemon, "--regions", "1MiB", "--layers", "4000", "--bytes", "1MiB", "--layouts", "contiguous", check=1)
    assert not result.stdout and "the daemon stores at most" in result.stderr


def started(daemon, env=None):
    process = harness.spawn([str(BENCH), *(["--socket", daemon.socket] if daemon else []), "session", "run", "--regions", "4KiB",
                             "--bytes", "1MiB", "--iterations", "10000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, env=env)
    return process


def test_a_daemon_that_dies_ends_the_run(daemon):
    process = started(daemon)
    wait_until(lambda: "bench-session" in ctl("namespace", "ls", daemon=daemon).stdout, "the run has begun")
    daemon.kill()
    out, err = process.communicate(timeout=60 * harness.slow())
    assert process.returncode == 1 and not out, (out, err)
    assert err.startswith("kvcache-bench: ") and err.count("\n") == 1


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(daemon, with_signal):
    process = started(daemon)
    wait_until(lambda: "bench-session" in ctl("namespace", "ls", daemon=daemon).stdout, "the run has begun")
    process.send_signal(with_signal)
    out, err = process.communicate(timeout=60 * harness.slow())
    assert process.returncode == 130 and not out and "interrupted" in err
    assert "bench-session" not in ctl("namespace", "ls", daemon=daemon, check=0).stdout


def test_without_a_daemon_one_is_started_and_removed(tmp_path):
    env = {"TMPDIR": str(tmp_path), "KVCACHE_SOCKET": str(tmp_path / "none")}
    result = bench("session", "test", "--io", check=0, env=env, timeout=300)
    assert "a daemon is started" in result.stderr
    assert result.stdout.splitlines()[1].endswith("in 3 layouts, written and read back: right")
    wait_until(lambda: not os.listdir(tmp_path), "the store is removed")


def test_io_against_a_running_daemon(daemon):
    result = bench("session", "test", "--io", daemon=daemon, check=0, timeout=300)
    assert not result.stderr and "12582912 bytes" in result.stdout


def session(*arguments, check=0):
    return bench("session", *arguments, check=check).stdout


def test_workflow_of_two_layouts(daemon, tmp_path):
    """Session A with contiguous blocks, B with a buffer a layer; report both, diff -u, compare by layout."""
    for name, layout in ("A", "contiguous"), ("B", "outer-first"):
        run(daemon, *SMALL, "--iterations", "3", "--layouts", layout, "--session", name, "--snapshot", tmp_path / f"{name}.json")
        (tmp_path / f"{name}.txt").write_text(session("report", tmp_path / f"{name}.json", "--no-clock"))
        assert session("report", tmp_path / f"{name}.json", "--no-clock") == (tmp_path / f"{name}.txt").read_text()
    blocks = (1 << 20) // (4096 * 8) * 3 * 2  # three iterations of put and get
    metrics = [json.loads((tmp_path / f"{name}.json").read_text())["metrics"] for name in "AB"]
    for (metric,), transfers, layout in zip(metrics, (blocks, blocks * 8), ("fully_contiguous", "layer_separate_outer_first")):
        assert (metric["path"], metric["layout"], metric["technology"]) == ("host_to_host", layout, "memcpy")
        assert metric["transfer_count"] == transfers == sum(n for _, n in metric["size_histogram"])
        assert metric["total_blocks"] == blocks and metric["region_count"] == blocks * 8
        assert metric["total_bytes"] == metric["device_bytes"] == blocks * 4096 * 8
        assert 0 < metric["busy_secs"] and metric["latency_secs"] > 0
    diff = subprocess.run(["diff", "-u", "A.txt", "B.txt"], cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert "-host_to_host, fully_contiguous, memcpy" in diff and "+host_to_host, layer_separate_outer_first, memcpy" in diff
    assert "-  transfers/block                   1.000" in diff and "+  transfers/block                   8.000" in diff
    assert "   blocks " in diff and "   bytes " in diff  # lines up: these are the same
    pairs = json.loads(session("compare", tmp_path / "A.json", tmp_path / "B.json", "--by", "layout", "--json"))["pairs"]
    other, = (p["other"] for p in pairs if p["base"] != p["other"])
    assert other["transfers_per_block"] == 8 and other["regions_per_transfer"] == 1


def test_snapshot_of_several_clients_adds_up(daemon, tmp_path):
    run(daemon, *SMALL, "--clients", "3", "--ops", "put,get,mixed", "--snapshot", tmp_path / "S.json")
    snapshot = json.loads((tmp_path / "S.json").read_text())
    assert [m["layout"] for m in snapshot["metrics"]] == [
        "fully_contiguous", "layer_separate_block_first", "layer_separate_outer_first"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", snapshot["created"])
    assert snapshot["created"] < snapshot["updated"], "to the millisecond"
    assert snapshot["host"]["hostname"] == os.uname().nodename and snapshot["host"]["kernel"] == os.uname().release
    per_pass = (1 << 20) // 3 // (4096 * 8) * 3
    for metric, pieces in zip(snapshot["metrics"], (1, 4, 8)):
        assert metric["total_blocks"] == 2 * per_pass + per_pass // 3 // 2 * 2 * 3
        assert metric["transfer_count"] == metric["total_blocks"] * pieces
        assert metric["busy_secs"] <= snapshot["enabled_secs"] + 0.001
    bench("session", "run", *SMALL, "--session", "../x", daemon=daemon, check=2)
    bench("session", "run", *SMALL, "--snapshot", tmp_path / "no" / "S.json", daemon=daemon, check=1)
