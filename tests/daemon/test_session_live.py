# SPDX-License-Identifier: Apache-2.0
"""kvcache-bench session with a daemon: init to delete, reports of the active session, the ways to name a session, and exit statuses."""

import json
import os
import subprocess

import pytest

import harness
from harness import KIB, bench, ctl, items, put_all, wait_until
from kvwire import Ack, Tier
from test_session_run import LAYOUTS, SMALL, run

OK, FAILED, USAGE, NONE_ACTIVE, UNKNOWN = range(5)
OF_A_DAEMON = ["status", "report", "export", "reset", "enable", "disable"]


def session(daemon, *words, status=OK, env=None):
    result = bench("session", *words, daemon=daemon, check=status, env=env)
    assert bool(result.stderr) == (status != OK), result.stderr
    return result.stdout if status == OK else result.stderr


def answer(daemon, *words, **how):
    text = session(daemon, *words, "--json", **how)
    assert text.count("\n") == 1
    return json.loads(text)


def words_of(action):
    return [action, "-o", "-"] if action == "export" else [action]


def move(daemon, name, n=10):
    """Puts and gets `n` chunks of 8 KiB, to disk and back."""
    pairs = items(name, n, 8 * KIB)
    with daemon.client() as c:
        ns = c.namespace("n")
        put_all(c, ns, pairs, ack=Ack.WRITTEN)
        c.evict(ns, [k for k, _ in pairs], Tier.MEMORY)
        for key, _ in pairs:
            result, = c.get(ns, [key])
            c.release([result.lease])


def blocks(daemon, *words, path="host_to_disk", **how):
    return sum(m["total_blocks"] for m in answer(daemon, "report", *words, **how)["metrics"] if m["path"] == path)


# --- a session from its beginning to its end ---


def test_init_prints_the_sessions_file_and_name(daemon):
    lines = session(daemon, "init", "A").splitlines()
    assert lines[0] == "session A is active and counts" and lines[2] == 'export KVCACHE_BENCH_SESSION="A"'
    path = daemon.store / "bench" / "bench_A.json"
    assert lines[1] == f"file: {path}"
    move(daemon, "one")
    assert blocks(daemon) == 10
    wait_until(path.exists, "the daemon has written it")
    assert bench("session", "status", path, check=OK).stdout.startswith("session    A\n")
    said = answer(daemon, "init", "B")
    assert said == {"name": "B", "file": str(path.with_name("bench_B.json")), "active": True, "enabled": True, "resumed": False,
                    "created": said["created"]}


def test_a_name_that_exists(daemon):
    session(daemon, "init", "A")
    move(daemon, "one")
    assert "--resume" in session(daemon, "init", "A", status=FAILED)
    assert blocks(daemon) == 10, "it is as it was"
    session(daemon, "init", "B")
    assert answer(daemon, "init", "A", "--resume")["resumed"] and blocks(daemon) == 10
    move(daemon, "two")
    assert blocks(daemon) == 20
    session(daemon, "init", "A", "--force")
    assert blocks(daemon) == 0
    assert session(daemon, "init", "new", "--resume"), "one that does not exist begins"


def test_counting_stops_and_resumes(daemon):
    session(daemon, "init", "A")
    move(daemon, "one")
    assert session(daemon, "disable") == "session A is disabled\n"
    off = answer(daemon, "status")
    move(daemon, "two")
    assert answer(daemon, "status") == off and not off["enabled"] and off["active"]
    assert "disabled: " in session(daemon, "init", "A", "--resume") or answer(daemon, "status")["enabled"]
    assert session(daemon, "enable", "A") == "session A is enabled\n"
    move(daemon, "three")
    assert blocks(daemon) == 20
    assert session(daemon, "reset") == "session A is reset\n"
    assert answer(daemon, "status")["transfers"] == 0
    assert answer(daemon, "reset", "--session", "A")["name"] == "A"


def test_list_and_delete(daemon):
    assert session(daemon, "list") == "no sessions\n" and answer(daemon, "list") == {"sessions": []}
    for name in "BCA":
        session(daemon, "init", name)
    session(daemon, "disable", "B")
    rows = [line.split() for line in session(daemon, "list").splitlines()]
    assert rows[0] == ["SESSION", "STATE", "CREATED"] and [r[:2] for r in rows[1:]] == [["A", "active"], ["B", "disabled"], ["C", "-"]]
    assert [(s["name"], s["active"]) for s in answer(daemon, "list")["sessions"]] == [("A", True), ("B", False), ("C", False)]
    assert session(daemon, "delete", "B") == "session B is deleted\n"
    assert answer(daemon, "delete", "A")["name"] == "A"
    assert [s["name"] for s in answer(daemon, "list")["sessions"]] == ["C"]
    wait_until(lambda: os.listdir(daemon.store / "bench") == ["bench_C.json"], "the files of the others are deleted")
    session(daemon, "status", status=NONE_ACTIVE)


# --- which session ---


@pytest.mark.parametrize("action", OF_A_DAEMON)
def test_without_an_active_session(daemon, action):
    message = session(daemon, *words_of(action), status=NONE_ACTIVE)
    assert message.startswith("kvcache-bench: no session is active") and message.count("\n") == 1
    message = session(daemon, *words_of(action), "none", status=UNKNOWN)
    assert "no session none" in message and message.count("\n") == 1
    session(daemon, *words_of(action), "--session", "none", status=UNKNOWN)
    error, = json.loads(session(daemon, *words_of(action), "--json", status=NONE_ACTIVE)).items()
    assert error[0] == "error"


def test_unknown_in_other_actions(daemon):
    session(daemon, "init", "A")
    session(daemon, "delete", "none", status=UNKNOWN)
    session(daemon, "compare", "A", "none", status=UNKNOWN)
    session(daemon, "compare", "none", "A", status=UNKNOWN)


def test_names_and_files_are_distinguished(daemon, tmp_path):
    session(daemon, "init", "A")
    move(daemon, "one")
    session(daemon, "init", "B")
    session(daemon, "export", "A", "-o", tmp_path / "A.json")
    assert blocks(daemon) == 0 and blocks(daemon, "A") == blocks(daemon, "--session", "A") == blocks(daemon, tmp_path / "A.json") == 10
    both = session(daemon, "compare", "A", tmp_path / "A.json", "--fail-on-regress", "0")
    assert both == session(daemon, "compare", "A", "A", "--fail-on-regress", "0")
    session(daemon, "status", "./A", status=UNKNOWN)
    for name in "x.json", "-":
        assert "for a file" in session(daemon, "init", "--", name, status=USAGE)


@pytest.mark.parametrize("name", ["", ".hidden", "a b", "é", "x" * 65, "\x1b[2J", "A;rm"])
def test_a_name_that_is_none_is_refused_before_the_daemon_is_asked(name):
    for action in ("init", *OF_A_DAEMON, "delete"):
        result = bench("--socket", "/nowhere", "session", *words_of(action), name, check=USAGE)
        assert "is not the name of a session" in result.stderr and "\x1b" not in result.stderr and not result.stdout
    result = bench("--socket", "/nowhere", "session", "report", check=USAGE if name else FAILED, env={"KVCACHE_BENCH_SESSION": name})
    assert "KVCACHE_BENCH_SESSION: " in result.stderr or not name


def test_the_environment_names_it(daemon):
    for name in "AB":
        session(daemon, "init", name)
        move(daemon, name, n=10 if name == "A" else 5)
    for variable in "KVCACHE_BENCH_SESSION", "DYNAMO_BENCHMARK_SESSION":
        assert blocks(daemon, env={variable: "A"}) == 10 and answer(daemon, "status", env={variable: "A"})["name"] == "A"
        assert blocks(daemon, "B", env={variable: "A"}) == 5
        session(daemon, "report", env={variable: "gone"}, status=UNKNOWN)
    assert blocks(daemon, env={"KVCACHE_BENCH_SESSION": "A", "DYNAMO_BENCHMARK_SESSION": "B"}) == 10
    assert blocks(daemon, env={"KVCACHE_BENCH_SESSION": "", "DYNAMO_BENCHMARK_SESSION": "A"}) == 10
    assert blocks(daemon, env={"KVCACHE_BENCH_SESSION": ""}) == 5, "the active one"
    assert session(daemon, "reset", env={"KVCACHE_BENCH_SESSION": "A"}) == "session A is reset\n"
    assert blocks(daemon) == 5


@pytest.mark.parametrize("words", [["init"], ["delete"], ["init", "A", "B"], ["list", "A"], ["reset", "A", "--session", "B"],
                                   ["init", "A", "--resume", "--force"], ["status", "--resume"], ["delete", "--force", "A"],
                                   ["delete", "--session", "A"], ["compare", "A"], ["list", "--format", "json"]])
def test_wrong_usage(words):
    result = bench("--socket", "/nowhere", "session", *words, check=USAGE)
    assert not result.stdout and result.stderr.count("\n") == 2, result.stderr


# --- reports ---


def test_reports_of_an_idle_session_are_the_same(daemon):
    session(daemon, "init", "A")
    move(daemon, "one")
    forms = ["text", "json", "csv", "svg", "html"]
    first = [session(daemon, "report", "--no-clock", "--format", form) for form in forms]
    wait_until(lambda: json.loads(session(daemon, "export", "-o", "-"))["idle"], "the session is idle")
    assert [session(daemon, "report", "--no-clock", "--format", form) for form in forms] == first
    assert all(text.isascii() for text in first)
    text = session(daemon, "report", "--no-clock")
    assert "session    A\nstate      active, enabled\n" in text and "host_to_disk, fully_contiguous, " in text


def test_export_is_the_session(daemon, tmp_path):
    session(daemon, "init", "A")
    move(daemon, "one")
    session(daemon, "disable")
    session(daemon, "export", "-o", tmp_path / "A.json")
    assert session(daemon, "report") == bench("session", "report", tmp_path / "A.json", check=OK).stdout
    dynamo = json.loads(session(daemon, "export", "-o", "-", "--compat", "dynamo"))
    assert dynamo["session_name"] == "A" and dynamo["metrics"]["HostToDisk_FullyContiguous"]["total_blocks"] == 10


# --- a daemon that does not do it ---


def test_no_daemon(tmp_path):
    for action in ("init", *OF_A_DAEMON, "delete"):
        result = bench("--socket", tmp_path / "none", "session", *words_of(action), "A", check=FAILED)
        assert "none" in result.stderr and not result.stdout
    bench("--socket", tmp_path / "none", "session", "list", check=FAILED)


def test_others_may_look_and_not_touch(daemon):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    os.chmod(daemon.directory, 0o755)
    os.chmod(daemon.socket, 0o666)
    session(daemon, "init", "A")

    def stranger(*words):
        return subprocess.run([harness.BENCH, "--socket", daemon.socket, "session", *words], capture_output=True, text=True,
                              check=False, preexec_fn=harness.become_stranger, timeout=60 * harness.slow())
    for words in ["status"], ["report"], ["list"]:
        assert stranger(*words).returncode == OK, words
    for words in ["init", "B"], ["reset"], ["enable"], ["disable"], ["delete", "A"]:
        result = stranger(*words)
        assert result.returncode == FAILED and "only admins may" in result.stderr and not result.stdout, words
    assert answer(daemon, "status")["enabled"]


# --- run ---


def test_a_run_is_counted_by_the_session_that_is_active(daemon):
    said = json.loads(run(daemon, *SMALL).stdout)
    assert "session" not in said["daemon"]
    session(daemon, "init", "A")
    said = json.loads(run(daemon, *SMALL, "--session", "A", "--ack", "written", "--cold", "--layouts", "contiguous").stdout)
    assert said["daemon"].endswith(", in its session A")
    metrics = {m["path"]: m for m in answer(daemon, "report")["metrics"]}
    for path in "host_to_disk", "disk_to_host":
        assert metrics[path]["total_bytes"] >= 1 << 20 and metrics[path]["total_blocks"] >= 32
    assert "in its session A" in bench("session", "run", *SMALL, daemon=daemon, check=OK, timeout=300).stdout


def test_a_run_into_a_session_that_is_not_active_is_refused(daemon, tmp_path):
    words = ["run", *SMALL, "--session", "A"]
    assert "no session is active" in session(daemon, *words, status=NONE_ACTIVE)
    session(daemon, "init", "A")
    session(daemon, "init", "B")
    assert "init --resume A" in session(daemon, *words, status=NONE_ACTIVE)
    assert answer(daemon, "report")["metrics"] == [], "nothing was moved"
    bench("--socket", tmp_path / "none", "session", *words, check=FAILED)


def test_workflow_of_two_sessions(daemon, tmp_path):
    """Follows the guide: init A, run contiguous, report; init B, run layer-separate, report; diff -u, compare --by layout."""
    for name, layout in ("A", "contiguous"), ("B", "outer-first"):
        session(daemon, "init", name)
        run(daemon, *SMALL, "--layouts", layout, "--ack", "written", "--cold")
        session(daemon, "disable")
        (tmp_path / f"{name}.txt").write_text(session(daemon, "report", "--no-clock"))
    text = subprocess.run(["diff", "-u", "A.txt", "B.txt"], cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert "-session    A\n" in text and "+session    B\n" in text
    assert "+host_to_host, layer_separate_outer_first, memcpy\n" in text and "+  transfers/block                   8.000\n" in text
    # The layout on disk is contiguous in both sessions: each chunk is written and read at once.
    a, b = ({m["path"]: m for m in answer(daemon, "report", name)["metrics"] if m["layout"] == "fully_contiguous"} for name in "AB")
    for path in "host_to_disk", "disk_to_host":
        assert [a[path][k] for k in ("total_blocks", "total_bytes")] == [b[path][k] for k in ("total_blocks", "total_bytes")]
    pairs = json.loads(session(daemon, "compare", "A", "B", "--by", "key", "--json"))["pairs"]
    assert {p["path"] for p in pairs} >= {"host_to_disk", "disk_to_host"}
    # The sessions differ only on the client's side.
    pairs = json.loads(session(daemon, "compare", "A", "B", "--by", "layout", "--json"))["pairs"]
    pair, = (p for p in pairs if p["layout"] == "layer_separate_outer_first")
    assert pair["base"]["transfers_per_block"] == 1 and pair["other"]["transfers_per_block"] == LAYOUTS["outer-first"]
    gathered, = (m for m in answer(daemon, "report", "B")["metrics"] if m["layout"] == "layer_separate_outer_first")
    assert gathered["transfer_count"] == gathered["region_count"] == 8 * gathered["total_blocks"] > 0


def test_a_session_continues_after_a_restart(daemon):
    session(daemon, "init", "A")
    move(daemon, "one")
    daemon.restart()
    assert blocks(daemon) == 10
    move(daemon, "two")
    assert blocks(daemon) == 20
    assert ctl("bench", "list", daemon=daemon, check=OK, env={"PATH": f"{harness.BENCH.parent}:/bin:/usr/bin"}).stdout.count("\n") == 2
