# SPDX-License-Identifier: Apache-2.0
"""The traffic benchmark (tests/engines/traffic.py) rehearsed without a GPU: every mode, over real daemons, with an engine that is a stub.

The stub's answers depend on the bytes of its blocks. A planted fault of the stub must be reported by the driver, so that a run on a GPU
machine cannot pass because it measured nothing.
"""

import argparse
import importlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import uuid
import zipfile

import harness
import pytest

FAKE_SITE = pathlib.Path(__file__).resolve().parent / "fake_site"
ENGINES = pathlib.Path(__file__).resolve().parents[1] / "engines"
sys.path.insert(0, str(ENGINES))

import traffic  # noqa: E402
import traffic_fleet  # noqa: E402
import traffic_lmcache  # noqa: E402
import traffic_load  # noqa: E402
import traffic_report  # noqa: E402
import traffic_run  # noqa: E402
import traffic_sglang  # noqa: E402
import traffic_vllm  # noqa: E402

SMALL = ("--pack", str(harness.BUILD), "--engine", "stub", "--memory", "64MiB", "--store", "512MiB", "--sessions", "6", "--concurrency", "4",
         "--turns", "3", "--first", "256", "--add", "64", "--answer", "4", "--think", "0.01", "--gpu-tokens", "512", "--beside", "64MiB",
         "--longest-wait", "60")
SLOWLY = ("--sessions", "4", "--think", "1")  # something is left to do when the driver looks, however busy the machine is


class Drive:
    """A completed run of the driver."""

    def __init__(self, directory, *words, fault=""):
        self.out, self.scratch = pathlib.Path(directory) / "out", pathlib.Path(directory) / "scratch"
        self.scratch.mkdir(exist_ok=True)
        self.mark = uuid.uuid4().hex
        env = dict(os.environ, KVCACHE_STUB_FAULT=fault, KVCACHE_TRAFFIC_MARK=self.mark, TMPDIR=str(self.scratch),
                   KVCACHE_STUB_TIMEOUT_S=str(2 * harness.slow()))  # a busy machine must not cost hits
        each = () if "--each" in words else ("--each", str(40 * harness.slow()))
        command = [sys.executable, ENGINES / "traffic.py", *SMALL, "--budget", str(50 * harness.slow()), *each, "--out", self.out,
                   "--scratch", self.scratch, *words]
        self.process = harness.spawn(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self):
        self.said = self.process.communicate()[0]
        self.code = self.process.returncode
        assert "Traceback" not in self.said, self.said
        if self.code != 2:
            figures = json.loads((self.out / "figures.json").read_text())
            self.rows, self.remarks = figures["rows"], figures["remarks"]
            assert not list(self.scratch.glob("kvcache-traffic-*")), self.said
        self.wait_for_end()
        return self

    def living(self):
        """Returns the command lines of this run's processes, which inherit its mark."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if self.mark in (process / "environ").read_text(errors="replace") and process.name != str(self.process.pid):
                    found.append((process / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def wait_for_end(self):
        harness.wait_until(lambda: not self.living(), lambda: f"{self.living()} are alive")


def drive(directory, *words, fault=""):
    return Drive(directory, *words, fault=fault).end()


def test_arms_alternate_and_the_table_compares_them(directory):
    run = drive(directory, "--arms", "none,cpu,fs,spec,tier", "--rounds", "2")
    assert run.code == 0, run.said
    assert [row["arm"] for row in run.rows] == ["none", "cpu", "fs", "spec", "tier", "cpu", "fs", "spec", "tier", "none"]
    assert all(row["outcome"] == "ok" and row["requests"] == 18 and row["failed"] == row["unanswered"] == 0 for row in run.rows), run.rows
    cached = {row["arm"]: row["cached_tokens"] for row in run.rows}
    assert cached["none"] < cached["spec"] and cached["cpu"] == cached["spec"] == cached["tier"]
    text = (run.out / "table.md").read_text()
    for part in ("| spec | 2 |", "× cpu", "- spec round 2: hits", "The daemon's status at the end of tier, round 2", "later turns p50"):
        assert part in text and (part in run.said or "status" in part), part
    assert (run.out / "logs.txt").stat().st_size > 0


def test_engines_that_stay_take_turns_and_start_once(directory):
    run = drive(directory, "--arms", "none,cpu,spec", "--rounds", "2", "--standing", "--daemon-fault", "kill", "--fault-at", "0", "--fault-seconds", "0.1")
    assert run.code == 0, run.said
    assert [row["arm"] for row in run.rows] == ["none", "cpu", "spec", "cpu", "spec", "none", "spec"] and run.rows[-1]["variant"] == "kill"
    assert all(row["outcome"] == "ok" and row["requests"] == 18 and row["failed"] == row["unanswered"] == 0 for row in run.rows), run.rows
    starts = {row["arm"]: row["starts_s"] for row in run.rows}
    assert all(row["starts_s"] == starts[row["arm"]] for row in run.rows), "an arm started twice"
    again = [row["cached_tokens"] for row in run.rows if row["arm"] == "cpu"]
    assert again[0] == again[1], "a round found the prompts of an earlier one"
    assert (run.out / "logs.txt").read_text().count("spec-standing.log,") == 1  # the report leaves empty logs out


def test_engines_that_start_again_find_what_the_daemon_has(directory):
    run = drive(directory, "--arms", "none,cpu,spec", "--rounds", "2", "--standing", "--again", "--reference", "spec")
    assert [(row["arm"], row["round"], row["variant"]) for row in run.rows][6:] == [
        ("none", 1, "again"), ("cpu", 1, "again"), ("spec", 1, "again"), ("cpu", 2, "again"), ("spec", 2, "again"), ("none", 2, "again")]
    cached = {(row["arm"], row["round"], row["variant"]): row["cached_tokens"] for row in run.rows}
    assert run.code == 0 and all(row["outcome"] == "ok" for row in run.rows), run.said
    # An engine alone finds the earlier turns of a session; with a daemon it finds the first turns, too.
    for number in (1, 2):
        assert cached[("spec", number, "again")] > cached[("spec", number, "")]
        assert cached[("none", number, "again")] == cached[("none", number, "")]
    assert sum("18 of 18 answers are equal" in remark for remark in run.remarks) == 10, run.remarks


def test_answers_from_wrong_bytes_are_counted(directory):
    run = drive(directory, "--arms", "cpu,spec", "--standing", "--again", fault="bytes")
    assert any(remark.startswith("spec-again-1: ") and "18 of 18" not in remark for remark in run.remarks), run.remarks


def test_an_engine_that_stays_and_dies_costs_its_arm_alone(directory):
    run = drive(directory, "--arms", "spec,cpu", "--rounds", "2", "--standing", fault="die")
    assert run.code == 1 and run.rows[0]["outcome"] == "not finished: the engine ended with 7", run.said
    assert sum("is not there any more" in remark for remark in run.remarks) == 2
    run = drive(directory, "--arms", "spec,cpu", "--standing", "--store", "1KiB")
    assert run.code == 1 and [row["arm"] for row in run.rows] == ["cpu"] and any(r.startswith("spec: not run: ") for r in run.remarks), run.said


def test_rounds_have_seeds_of_their_own_and_arms_equal_prompts():
    options = traffic.options_of([*SMALL])
    first, second = options.load(0), options.load(1)
    assert traffic_load.prompt_of(first, 3, 2) == traffic_load.prompt_of(options.load(0), 3, 2)
    assert traffic_load.prompt_of(first, 3, 2) != traffic_load.prompt_of(second, 3, 2)
    earlier, later = traffic_load.prompt_of(first, 3, 1), traffic_load.prompt_of(first, 3, 2)
    assert later[:len(earlier)] == earlier and len(later) == 256 + 2 * (64 + 4)


def test_a_killed_engine_is_started_again_and_its_sessions_go_on(directory):
    run = drive(directory, *SLOWLY, "--kill-at", "0.2", "--arms", "cpu,spec")
    assert run.code == 0, run.said
    assert [(row["arm"], row["variant"]) for row in run.rows] == [("cpu", ""), ("cpu", "killed"), ("spec", ""), ("spec", "killed")]
    rows = {(row["arm"], row["variant"]): row for row in run.rows}
    for row in run.rows:
        assert row["requests"] == 12 and len(row["starts_s"]) == (2 if row["variant"] else 1) and (row["down_s"] is not None) == bool(row["variant"])
    assert rows["spec", "killed"]["cached_tokens"] == rows["spec", ""]["cached_tokens"] > rows["cpu", "killed"]["cached_tokens"]
    assert sum("without that time" in remark for remark in run.remarks) == 2


def test_a_kill_after_the_end_is_not_called_measured(directory):
    run = drive(directory, "--kill-at", "600", "--arms", "cpu")
    assert run.code == 1 and run.rows[1]["outcome"] == "not measured: the traffic ended before the engine was killed"


@pytest.mark.parametrize("words", [(), ("--at-once", "3"), ("--no-fork",)])
def test_starts_are_counted_beside_a_process_that_stores(directory, words):
    run = drive(directory, "--starts", "6", *words)
    assert run.code == 0 and "6 of 6 starts serve" in run.remarks[-1], run.said
    assert any(r.startswith("stored beside: stored ") and "stored 0 " not in r for r in run.remarks), run.remarks


def test_starts_without_a_process_that_stores_are_not_called_measured(directory):
    run = drive(directory, "--starts", "2", "--beside", "0")  # a rate that cannot be kept: the process ends
    assert run.code == 1 and "2 of 2 starts serve" in run.remarks[-1], run.said


def test_a_start_that_fails_is_counted(directory):
    run = drive(directory, "--starts", "6", fault="start")
    assert run.code == 1 and "4 of 6 starts serve" in run.remarks[-1]
    assert [row["round"] for row in run.rows if "previous error during capture" in row["outcome"]] == [3, 6]


def test_requests_one_after_the_other(directory):
    run = drive(directory, "--sequential", "14", "--arms", "none,cpu,spec")
    assert run.code == 0, run.said
    assert [row["requests"] for row in run.rows] == [14] * 3
    assert run.rows[0]["cached_tokens"] == 0 < run.rows[1]["cached_tokens"] == run.rows[2]["cached_tokens"]


def test_requests_of_a_trace(directory):
    trace = pathlib.Path(directory) / "trace.jsonl"
    sessions = [[100 * s + n for n in range(2 + t)] for t in range(4) for s in range(1, 4)] + [[900, 901]]  # the last has one turn
    trace.write_text("".join(json.dumps(dict(hash_ids=ids)) + "\n" for ids in sessions))
    assert [len(p) for p in traffic_load.trace_prompts(trace, 99)] == [64 * (2 + t) for t in range(4) for _ in range(3)]
    run = drive(directory, "--sequential", "10", "--trace", trace, "--arms", "spec")
    assert run.code == 0 and run.rows[0]["requests"] == 10 and run.rows[0]["cached_tokens"] > 0, run.said


@pytest.mark.parametrize("kind", ["kill", "hang", "full"])
def test_waits_are_measured_while_the_daemon_fails(directory, kind):
    early = ("--fault-at", "0") if kind == "full" else ()  # filling a daemon takes a while
    run = drive(directory, *SLOWLY, "--daemon-fault", f"none,{kind}", "--arms", "spec", "--fault-seconds", "1.5", *early)
    assert run.code == 0, run.said
    calm, row = run.rows
    assert calm["variant"] == "none" and row["variant"] == kind and "fault_s" not in calm
    assert row["requests"] == 12 and row["failed"] == row["unanswered"] == 0 and row["fault_s"] > 0 and row["fault_requests"] > 0
    assert any(f"daemon {kind}: 0 of 12 requests failed, 0 unanswered, 0 waited over 60 s" in remark for remark in run.remarks)
    if kind == "full":
        pool = row["full_status"]
        assert pool["leased_bytes"] >= pool["bytes"] // 4 and "leased" in row["full"], row
    if kind == "hang":
        assert row["fault_longest_ms"] > 250, "the stub waits 0.3 s for a daemon that hangs"


def test_a_request_that_falls_silent_before_a_fault_and_ends_in_it_is_counted_there():
    request = traffic_load.Request(0, 0, [1])
    request.saw(traffic_load.Progress("0-0", [5], 0, False))
    fault = traffic_run.Fault("hang", argparse.Namespace(daemon=None), None)
    fault.began_at = time.monotonic()
    answer = request.record(traffic_load.Progress("0-0", [], 0, True, "error"))
    fault.ended_at = time.monotonic()
    figures = fault.figures(argparse.Namespace(seen=argparse.Namespace(answers=[answer])))
    assert figures["fault_requests"] == 1 and figures["fault_longest_ms"] == answer["longest_ms"]


def test_a_daemon_that_is_full_is_found_so_in_each_round(directory):
    run = drive(directory, *SLOWLY, "--daemon-fault", "full", "--arms", "spec", "--fault-seconds", "0.1", "--fault-at", "0", "--rounds", "2")
    assert run.code == 0 and all(row["full_status"]["leased_bytes"] >= 16 << 20 for row in run.rows), run.said
    logs = (run.out / "logs.txt").read_text()
    assert logs.count("##### spec-full-1-daemon.log") == logs.count("##### spec-full-2-filler.log") == 1


def test_a_request_that_waits_too_long_is_reported(directory):
    run = drive(directory, *SLOWLY, "--daemon-fault", "kill", "--arms", "spec", "--fault-seconds", "0.1", "--longest-wait", "0.5", fault="wait")
    assert run.code == 1 and run.rows[0]["over_limit"] > 0 and run.rows[0]["longest_ms"] >= 1000, run.said


def test_a_request_that_fails_is_reported(directory):
    run = drive(directory, "--arms", "cpu", fault="fail")
    assert run.code == 1 and run.rows[0]["failed"] == 1
    assert [a["reason"] for a in run.rows[0]["answers"] if not a["ok"]] == ["error"]


@pytest.mark.parametrize("what", ["runner", "layout", "dtype"])
def test_two_engines_on_one_daemon_answer_as_without_a_cache(directory, what):
    run = drive(directory, "--identity", what)
    assert run.code == 0, run.said
    assert [row["arm"] for row in run.rows] == ["none", "none", "spec", "spec", "spec"]
    assert sum("12 of 12 answers are those without a cache" in remark for remark in run.remarks) == 3
    assert len({a for row in run.rows for a in [row["variant"]]}) == 2


def test_engines_that_share_wrong_bytes_are_found(directory):
    run = drive(directory, "--identity", "dtype", fault="share")
    assert run.code == 1 and any("0 of 12 answers are those without a cache" in remark for remark in run.remarks), run.said


def test_tokens_are_compared_in_each_state_of_the_cache(directory):
    run = drive(directory, "--states")
    assert run.code == 0 and [row["arm"] for row in run.rows] == ["none", "spec", "spec"], run.said
    compared = [remark for remark in run.remarks if "as computed" in remark]
    assert len(compared) == 7 and all("6 answers, 6 as computed, 0 neither" in remark for remark in compared), run.remarks
    assert all(" 0 of 1,536 tokens" not in remark for remark in compared if ", memory:" in remark or ", disk:" in remark), compared
    assert any("chunks, " in remark and "bytes" in remark for remark in run.remarks)


def test_wrong_tokens_of_a_state_are_found(directory):
    run = drive(directory, "--states", fault="bytes")
    assert run.code == 1 and any(", memory: 6 answers, 0 as computed, 6 neither" in remark for remark in run.remarks), run.said


def test_a_fleet_with_a_daemon_finds_what_any_of_its_engines_stored(directory):
    run = drive(directory, "--fleet", "3", "--rounds", "2")
    assert run.code == 0 and [row["arm"] for row in run.rows] == ["cpu", "spec", "spec", "cpu"], run.said
    assert all(row["outcome"] == "ok" and row["requests"] == 18 and row["failed"] == row["unanswered"] == row["asked_again"] == 0 for row in run.rows)
    cpu, spec = (sum(row["cached_tokens"] for row in run.rows if row["arm"] == arm) for arm in ("cpu", "spec"))
    assert spec > cpu and run.rows[1]["cached_tokens"] == run.rows[2]["cached_tokens"]


def test_an_engine_of_a_fleet_that_is_killed_comes_back_and_the_others_go_on(directory):
    run = drive(directory, "--fleet", "3", "--arms", "spec", "--kill-at", "0.2", "--sessions", "12", "--think", "0.5")
    [row] = run.rows
    assert run.code == 0 and row["outcome"] == "ok" and row["requests"] == 36 and row["others_failed"] == row["unanswered"] == 0, run.said
    assert row["down_s"] > 0 and any("one engine was killed, and back after" in remark for remark in run.remarks)
    run = drive(directory, "--fleet", "2", "--arms", "spec", "--kill-at", "3600")
    assert run.code == 1 and run.rows[0]["outcome"] == "not measured: the traffic ended before the engine was killed", run.said


def test_a_fleet_sends_nothing_while_none_of_its_engines_is_there():
    fleet = traffic_fleet.Fleet(None, traffic.options_of([*SMALL, "--fleet", "1"]), "spec", 1, 60)
    fleet.members, fleet.waiting, fleet.turns = [argparse.Namespace(has_started=lambda: False)], [(0.0, 3)], {3: 0}
    fleet._send()
    assert fleet.waiting == [(0.0, 3)]


@pytest.mark.parametrize("fault, message", [("die", "the engine ended with 7"), ("hang", "time limit"), ("fail", "")])
def test_an_engine_of_a_fleet_that_fails_is_reported(directory, fault, message):
    run = drive(directory, "--fleet", "2", "--arms", "spec", "--each", str(4 * harness.slow()), fault=fault)
    assert run.code == 1 and message in run.rows[0]["outcome"] and (message or run.rows[0]["failed"] > 0), run.said


def test_a_hang_prints_stacks_and_the_next_arm_runs(directory):
    run = drive(directory, "--arms", "cpu,spec", "--each", "3", "--silence", "1", fault="hang")
    assert run.code == 1 and [row["outcome"].partition(",")[0] for row in run.rows] == ["not finished: time limit"] * 2, run.said
    logs = (run.out / "logs.txt").read_text()
    assert logs.count("most recent call first") >= 2 and "_plant" in logs


@pytest.mark.parametrize("words", [(), ("--no-fork",)])
def test_the_worker_of_an_engine_that_died_is_killed(directory, words):
    run = drive(directory, "--arms", "cpu", *words, fault="orphan")  # also waits until no process of the run exists
    assert run.code == 1 and run.rows[0]["outcome"] == "not finished: the engine ended with 7"


def test_an_engine_that_dies_is_reported_with_its_status(directory):
    run = drive(directory, "--arms", "cpu", fault="die")
    assert run.code == 1 and run.rows[0]["outcome"] == "not finished: the engine ended with 7" and run.rows[0]["unanswered"] > 0


def test_an_arm_that_does_not_start_twice_is_skipped(directory):
    run = drive(directory, "--arms", "spec", "--rounds", "3", "--store", "1KiB")  # the daemon refuses such a store
    assert run.code == 1 and run.rows[0]["outcome"].startswith("not run: the daemon did not become ready"), run.said


def test_what_does_not_fit_the_budget_is_skipped_and_the_table_printed(directory):
    run = drive(directory, "--arms", "cpu,none", "--rounds", "2", "--budget", "40", "--estimate", "36")
    assert run.code in (0, 3)  # the first run decides what the others are expected to take
    run = drive(directory, "--arms", "cpu,none", "--budget", "10", "--estimate", "30")
    assert run.code == 3 and run.rows == [] and sum("skipped" in remark for remark in run.remarks) == 2
    assert "# stub, 8b" in run.said and "No run." in run.said


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_no_process_outlives_the_driver(directory, number, code):
    run = Drive(directory, "--arms", "spec", "--silence", "600", fault="hang")
    harness.wait_until(lambda: any("kvcache-daemon" in line for line in run.living()) and len(run.living()) >= 3, lambda: f"{run.living()} only")
    run.process.send_signal(number)
    said = run.process.communicate()[0]
    assert run.process.returncode == code, said
    run.wait_for_end()
    assert ("# stub, 8b" in said) == (number == signal.SIGTERM)


def test_memory_is_limited_where_the_host_permits_it(directory):
    run = drive(directory, "--cgroup", "256MiB", "--arms", "spec")
    assert run.code == 0, run.said
    memory = run.rows[0]["memory"]
    if "unlimited" in memory:
        assert memory["unlimited"].startswith("no memory cgroup: ")
        assert f"1 of 1 runs had no limit of memory (--cgroup): {memory['unlimited']}" in (run.out / "table.md").read_text()
        pytest.skip(memory["unlimited"])
    assert 0 < memory["highest_bytes"] <= 256 << 20


@pytest.mark.parametrize("words, message", [
    (("--arms", "cpu,gpu"), "gpu is not known to the engine stub; use none, cpu, fs, spec, tier"),
    (("--engine", "sglang", "--arms", "spec"), "spec is not known to the engine sglang; use none, cpu, fs, tier"),
    (("--engine", "sglang", "--identity", "runner"), "runner is not known to the engine sglang; use layout, dtype, same"),
    (("--engine", "vllm", "--starts", "2", "--arms", "lmcache"), "lmcache has no daemon; use --arms spec or tier or lmcache-tier"),
    (("--memory", "3X"), "3X is not a size; use a number and KiB, MiB or GiB"),
    (("--tier-memory", "3GiB"), "3GiB is not CPU+POOL"),
    (("--tier-memory", "3GiB+x"), "x is not a size"),
    (("--shape", "9b"), "9b is not known"),
    (("--set", "memory.pool"), "memory.pool is not KEY=VALUE"),
    (("--arms", "own=spec+set=memory.prefetch"), "set=memory.prefetch is not set=KEY=VALUE"),
    (("--engine", "sglang", "--announce"), "SGLang passes no announcement to its back end"),
    (("--starts", "2", "--kill-at", "3"), "--kill-at and --starts cannot be combined"),
    (("--starts", "2", "--sequential", "3"), "cannot be combined with --sequential"),
    (("--starts", "2", "--arms", "cpu"), "cpu has no daemon"),
    (("--standing", "--kill-at", "3"), "--standing and --kill-at cannot be combined"),
    (("--again",), "--again is of --standing alone"),
    (("--standing", "--tp", "2"), "--standing and --tp cannot be combined"),
    (("--daemon-fault", "slow"), "slow is not known; use none, kill, hang, full"),
])
def test_a_wrong_option_is_refused(capsys, words, message):
    with pytest.raises(SystemExit) as refused:
        traffic.options_of([*SMALL, *words])
    assert refused.value.code == 2 and message in capsys.readouterr().err


def test_folders_that_do_not_exist_are_created(directory):
    run = Drive(directory, "--arms", "none", "--out", f"{directory}/a/out", "--scratch", f"{directory}/b/scratch")
    run.out, run.scratch = pathlib.Path(directory) / "a/out", pathlib.Path(directory) / "b/scratch"
    assert run.end().code == 0 and (run.out / "table.md").exists() and run.scratch.is_dir(), run.said


@pytest.mark.parametrize("words, message", [
    (("--scratch", "{}/file"), "--scratch: {}/file cannot be used: File exists; use a folder"),
    (("--scratch", "{}/file/below"), "--scratch: {}/file/below cannot be used: Not a directory; use a folder"),
    (("--scratch", "/proc/none"), "--scratch: /proc/none cannot be used: No such file or directory; use a folder"),
    (("--out", "{}/file"), "--out: {}/file cannot be used: File exists; use a folder"),
    (("--out", "/proc/self"), "--out: /proc/self cannot be used: "),
    (("--sequential", "2", "--trace", "{}/none"), "--trace: {}/none cannot be read: No such file or directory"),
    (("--sequential", "2", "--trace", "{}"), "--trace: {} cannot be read: Is a directory"),
])
def test_a_place_that_cannot_be_used_is_refused(directory, words, message):
    (pathlib.Path(directory) / "file").touch()
    run = drive(directory, "--arms", "none", *(word.format(directory) for word in words))
    assert run.code == 2 and message.format(directory) in run.said, run.said


def test_a_pack_without_a_daemon_is_refused(directory):
    run = subprocess.run([sys.executable, ENGINES / "traffic.py", "--pack", directory], capture_output=True, text=True)
    assert run.returncode == 1 and "kvcache-daemon does not exist" in run.stderr


def test_pack_and_site_may_be_archives(directory):
    folder = pathlib.Path(directory)
    wheel = zipfile.ZipFile(folder / "kvcache-0-py3-none-any.whl", "w")
    for path in (harness.SOURCE / "client/python/kvcache").rglob("*.py"):
        wheel.write(path, path.relative_to(harness.SOURCE / "client/python"))
    wheel.close()
    for name in ("daemon/kvcache-daemon", "client/ctl/kvcachectl", "client/lib/libkvcache.so.1"):
        (folder / "pack" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy((harness.BUILD / name).resolve(), folder / "pack" / name)
    shutil.copy(wheel.filename, folder / "pack")
    with tarfile.open(folder / "pack.tar", "w") as pack:
        pack.add(folder / "pack", "pack")
    with tarfile.open(folder / "site.tar.xz", "w:xz") as site:
        for path in FAKE_SITE.iterdir():
            site.add(path, path.name)
    run = drive(directory, "--pack", folder / "pack.tar", "--engine", "vllm", "--site", folder / "site.tar.xz", "--arms", "spec")
    assert run.code == 0 and run.rows[0]["cached_tokens"] > 0 and not any("wheel" in remark for remark in run.remarks), run.said
    (folder / "site.tar.xz").rename(folder / "pack" / "site.tar.xz")
    run = drive(directory, "--pack", folder / "pack", "--engine", "vllm", "--arms", "spec")
    assert run.code == 0 and run.rows[0]["version"] == "vLLM fake", run.said


def options_for(arm, models, *words):
    options = traffic.options_of(["--pack", "/pack", *words])
    return options.job(arm, 1, argparse.Namespace(daemon=argparse.Namespace(socket="/s"), files="/files", cgroup="",
                                                          host=argparse.Namespace(scratch=models)))


def test_vllm_gets_the_connector_of_each_arm(tmp_path):
    offloading = {arm: traffic_vllm.offloading_of(options_for(arm, tmp_path, "--extra", "sync_load_budget_bytes=1024"))
                  for arm in ("none", "cpu", "fs", "tier", "spec")}
    assert offloading["none"] is None
    assert offloading["cpu"] == dict(spec_name="CPUOffloadingSpec", cpu_bytes_to_use=40 << 30, sync_load_budget_bytes=1024)
    assert offloading["fs"]["secondary_tiers"] == [dict(type="fs", root_dir="/files")]
    assert offloading["tier"]["secondary_tiers"] == [dict(type="kvcache", socket="/s", load_policy="auto")]
    assert offloading["spec"]["spec_module_path"] == "kvcache.vllm.spec" and offloading["spec"]["kvcache_socket"] == "/s"
    arguments = traffic_vllm.arguments_of(options_for("spec", tmp_path, "--shape", "tiny"))
    assert arguments["num_gpu_blocks_override"] == 4096 and arguments["compilation_config"]["cudagraph_mode"] == "FULL_DECODE_ONLY"
    assert arguments["max_model_len"] == 4096 + 4 * (1024 + 64) + 64
    assert json.loads((pathlib.Path(arguments["model"]) / "config.json").read_text())["num_hidden_layers"] == 8
    assert "distributed_executor_backend" not in arguments
    two = traffic_vllm.arguments_of(options_for("spec", tmp_path, "--tp", "2"))
    assert two["tensor_parallel_size"] == 2 and two["distributed_executor_backend"] == "mp"
    assert traffic.options_of(["--pack", "x", "--tp", "2"]).kv_bytes() * 2 == traffic.options_of(["--pack", "x"]).kv_bytes()
    assert "enforce_eager" in traffic_vllm.arguments_of(options_for("spec", tmp_path, "--eager"))


@pytest.mark.parametrize("words", [("--arms", "none,cpu,spec,tier"), (*SLOWLY, "--arms", "spec", "--kill-at", "0.2", "--eager"),
                                   ("--starts", "3", "--at-once", "3"), ("--identity", "runner"), ("--identity", "layout"), ("--identity", "dtype"),
                                   ("--identity", "same", "--tp", "2")])
def test_vllm_s_interface_is_used_in_every_mode(directory, words):
    run = drive(directory, "--engine", "vllm", "--site", str(FAKE_SITE), "--shape", "tiny", *words)
    assert run.code == 0 and all(row["version"] == "vLLM fake" and row["failed"] == 0 for row in run.rows), run.said
    assert "imported vllm in" in run.said and any("the pack has no wheel of the package" in remark for remark in run.remarks)
    assert {answer["answer"] for row in run.rows for answer in row["answers"]} == {4}
    learned = [row["learned"] for row in run.rows]
    assert all(known["kvcache_hits"] == 3 and known["kvcache_call_seconds"] == 0.75 and "load_size" not in known
               and known["policy"]["memory_samples"] == 0 for known in learned), learned
    if "none,cpu,spec,tier" in words:
        cached = [row["cached_tokens"] for row in run.rows]
        assert cached[0] < cached[1] == cached[2] == cached[3]


@pytest.mark.parametrize("words", [("--arms", "none,cpu,fs,tier"), (*SLOWLY, "--arms", "tier", "--kill-at", "0.2", "--eager"), ("--standing",),
                                   ("--starts", "2"), ("--identity", "layout"), ("--identity", "same")])
def test_sglang_s_interface_is_used_in_every_mode(directory, words):
    run = drive(directory, "--engine", "sglang", "--site", str(FAKE_SITE), "--shape", "tiny", *words)
    assert run.code == 0 and all(row["version"] == "SGLang fake" and row["failed"] == 0 for row in run.rows), run.said
    assert "imported sglang in" in run.said
    assert {answer["answer"] for row in run.rows for answer in row["answers"]} == {4}
    for row in run.rows:
        assert row["learned"] == ({"device": 0, "host": row["cached_tokens"]} if row["cached_tokens"] else {}) or row["variant"] == "killed", row
    if "none,cpu,fs,tier" in words:
        cached = [row["cached_tokens"] for row in run.rows]
        assert cached[0] < cached[1] == cached[2] == cached[3]


def test_a_request_that_sglang_aborts_is_reported(directory):
    run = drive(directory, "--engine", "sglang", "--site", str(FAKE_SITE), "--arms", "cpu", fault="fail")
    assert run.code == 1 and [a["reason"] for a in run.rows[0]["answers"] if not a["ok"]] == ["abort"], run.said


def test_sglang_gets_the_hierarchy_of_each_arm(tmp_path):
    jobs = {arm: options_for(arm, tmp_path, "--engine", "sglang", "--extra", "timeout_s=2") for arm in traffic_sglang.ARMS}
    how = {arm: traffic_sglang.arguments_of(job) for arm, job in jobs.items()}
    assert not any(name.startswith(("hicache", "enable_hier")) for name in how["none"])
    assert how["cpu"]["hicache_size"] == 42 and "hicache_storage_backend" not in how["cpu"]
    assert how["fs"]["hicache_storage_backend"] == "file" and how["tier"]["hicache_storage_backend"] == "dynamic"
    options = json.loads(how["tier"]["hicache_storage_backend_extra_config"])
    assert options["socket"] == "/s" and options["timeout_s"] == 2 and options["interface_v1"] == 1 and options["allocator"] == "shm"
    assert how["tier"]["max_total_tokens"] == 65536 and how["tier"]["context_length"] == 4096 + 4 * (1024 + 64) + 64
    direct = traffic_sglang.arguments_of(dict(jobs["tier"], layout="page_first_direct"))
    assert direct["hicache_io_backend"] == "direct"
    eager = traffic_sglang.arguments_of(dict(jobs["tier"], eager=True))
    assert eager["disable_decode_cuda_graph"] and "cuda_graph_bs_decode" not in eager


def test_vllm_with_a_server_of_lmcache(directory):
    run = drive(directory, "--engine", "vllm", "--site", str(FAKE_SITE), "--shape", "tiny", "--arms", "none,lmcache,lmcache-gds,lmcache-fs,lmcache-tier")
    assert run.code == 0, run.said
    cached = [row["cached_tokens"] for row in run.rows]
    assert cached[0] < cached[1] == cached[2] == cached[3] == cached[4]
    assert [row["learned"].get("lmcache") for row in run.rows] == [None] + [dict(l1_objects=5, l1_bytes=40960, l2=[])] * 4


def test_a_server_of_lmcache_dies_and_starts_with_its_engine(directory):
    run = drive(directory, *SLOWLY, "--engine", "vllm", "--site", str(FAKE_SITE), "--arms", "lmcache,lmcache-tier", "--kill-at", "0.2")
    assert run.code == 0, run.said
    rows = {(row["arm"], row["variant"]): row["cached_tokens"] for row in run.rows}
    assert rows["lmcache-tier", "killed"] == rows["lmcache-tier", ""] > rows["lmcache", "killed"]


def test_a_server_of_lmcache_that_ends_is_reported(directory):
    run = drive(directory, "--engine", "vllm", "--site", str(FAKE_SITE), "--arms", "lmcache", "--memory", "-1")
    assert run.code == 1 and "LMCache's server did not start" in run.rows[0]["outcome"], run.said


def test_lmcache_s_server_gets_the_second_level_of_each_arm(tmp_path):
    adapters = {arm: traffic_lmcache.adapter_of(options_for(arm, tmp_path, "--extra", "threads=8")) for arm in traffic_vllm.ARMS
                if arm.startswith("lmcache")}
    assert adapters["lmcache"] is None and adapters["lmcache-gds"] is None and adapters["lmcache-fs"] == dict(type="fs", base_path="/files", threads=8)
    assert adapters["lmcache-tier"]["adapter_params"] == dict(adapter="none", socket="/s", weights="random", threads=8)
    command = traffic_lmcache.command_of(options_for("lmcache-tier", tmp_path, "--memory", "3GiB"), 1, 2)
    assert command[command.index("--l1-size-gb") + 1] == "3" and json.loads(command[-1]) == traffic_lmcache.adapter_of(
        options_for("lmcache-tier", tmp_path))


def test_an_arm_may_have_options_of_its_own(directory, tmp_path):
    words = ("--arms", "spec,bounce=spec+copies=bounce+timeout_s=2", "--extra", "timeout_s=3")
    run = drive(directory, *words, "--standing", "--reference", "spec")
    assert run.code == 0 and [row["arm"] for row in run.rows] == ["spec", "bounce"] and all(row["cached_tokens"] > 0 for row in run.rows), run.said
    first, second = (traffic_vllm.offloading_of(options_for(arm, tmp_path, *words)) for arm in ("spec", "bounce"))
    assert second == dict(first, copies="bounce", timeout_s=2) and first["timeout_s"] == 3
    assert "spek is not known" in drive(directory, "--arms", "bounce=spek+copies=bounce").said
    assert "copies is not KEY=VALUE" in drive(directory, "--arms", "bounce=spec+copies").said


@pytest.mark.parametrize("engine", [("stub",), ("vllm", "--site", str(FAKE_SITE), "--shape", "tiny")], ids=["stub", "vllm"])
def test_returns_are_announced_and_each_arm_has_settings_of_its_own(directory, engine):
    words = ("--arms", "with=spec,without=spec+set=memory.prefetch=0", "--reference", "without", "--announce", "--think", "1", "--turns", "2")
    run = drive(directory, "--engine", *engine, *words)
    assert run.code == 0 and [row["arm"] for row in run.rows] == ["with", "without"], run.said
    announced, prefetched = ([row["status_json"]["eviction"][what] for row in run.rows] for what in ("announced_returns", "prefetched_returns"))
    assert all(sum(known.values()) > known["least_belief"] for known in announced), announced
    assert sum(prefetched[0].values()) > 0 == sum(prefetched[1].values()), prefetched


def test_a_request_announces_its_return_and_the_last_one_that_there_is_none():
    given = []
    engine = argparse.Namespace(add=lambda name, tokens, answer, return_s: given.append((name, return_s)))
    for words in ((), ("--announce",)):
        load = traffic.options_of([*SMALL, "--turns", "2", "--think", "3", *words]).load(1)
        for turn in range(2):
            traffic_load.Runner(engine, load, lambda *_, **__: None).ask(0, turn)
    assert given == [("0-0", None), ("0-1", None), ("0-0", 3), ("0-1", 0)]


def test_pauses_vary_by_their_spread_and_are_equal_in_all_arms():
    load = traffic.options_of([*SMALL, "--think", "8", "--think-spread", "0.5"]).load(1)
    pauses = [traffic_load.pause_of(load, session, turn) for session in range(40) for turn in range(3)]
    assert set(pauses) == {4, 6, 8, 10, 12} and pauses == [traffic_load.pause_of(load, s, t) for s in range(40) for t in range(3)]
    assert {traffic_load.pause_of(traffic.options_of(SMALL).load(1), s, 0) for s in range(9)} == {0.01}


def test_packages_that_cannot_be_imported_end_the_run(directory):
    site = directory / "site/torch"
    site.mkdir(parents=True)
    (site / "__init__.py").write_text("import a_package_that_is_missing\n")
    drive = Drive(directory, "--engine", "vllm", "--site", str(site.parent), "--shape", "tiny", "--arms", "spec").end()
    assert drive.code == 2 and "the packages of vllm cannot be imported: " in drive.said and "a_package_that_is_missing" in drive.said, drive.said
    assert not list(drive.scratch.glob("kvcache-traffic-*"))


def test_a_disk_that_is_too_small_for_the_stores_is_named(directory):
    run = drive(directory, "--arms", "spec", "--store", "65536GiB", "--sessions", "1", "--turns", "1")
    assert run.code == 0 and any("MiB free, and the stores may take 67108864 MiB at once" in remark for remark in run.remarks), run.said


def test_engines_are_not_forked_where_cuda_is_initialized_or_needs_an_exec(directory, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_INITIALIZED", "1")
    run = drive(directory, "--engine", "vllm", "--site", str(FAKE_SITE), "--arms", "spec")
    assert run.code == 0 and "each engine is a new process: cannot fork: CUDA is initialized" in run.said
    monkeypatch.delenv("FAKE_CUDA_INITIALIZED")
    monkeypatch.setenv("FAKE_CUDA_NEEDS_EXEC", "driver")
    run = drive(directory, "--engine", "vllm", "--site", str(FAKE_SITE), "--arms", "spec")
    assert run.code == 0 and "spec-1 again, in a new process" in run.said, run.said


def test_a_run_is_expected_to_take_as_long_as_its_arm_took_except_at_first():
    driver = traffic.Driver(traffic.options_of([*SMALL, "--estimate", "33"]))
    assert driver.expected_s("spec") == 33
    for arm, seconds, expected in (("cpu", 90, 33), ("tier", 60, 60), ("spec", 20, 20), ("spec", 25, 25), ("cpu", 50, 25)):
        driver.took.append((arm, seconds))
        assert driver.expected_s("spec") == expected
    assert driver.expected_s("cpu") == 50 and driver.expected_s("none") == 60


def test_memory_of_the_tier_may_be_split():
    options = traffic.options_of(["--pack", "/pack", "--tier-memory", "8GiB+4GiB"])
    assert (options.cpu_of("tier"), options.pool_of("tier"), options.pool_of("spec")) == (8 << 30, 4 << 30, 40 << 30)


def test_engines_offer_the_same_interface():
    stub = importlib.import_module("traffic_stub")
    public = {name for name in vars(stub.Engine) if not name.startswith("_")}
    for engine in (traffic_vllm, traffic_sglang):
        assert public - set(vars(engine.Engine)) == set() and engine.OTHERS.keys() <= stub.OTHERS.keys() and callable(engine.prepare)


def test_percentiles_and_ratios():
    assert traffic_report.percentile([], 0.5) is None and traffic_report.percentile([3, 1, 2], 0.5) == 2
    assert traffic_report.percentile(range(100), 0.99) == 99
    rows = [dict(arm=arm, round=n, outcome="ok", seconds=s, later_p50_ms=1.0, engine="stub") for arm, times in
            (("cpu", (10, 12, 11)), ("spec", (22, 20, 24))) for n, s in enumerate(times)]
    rows.append(dict(arm="spec", round=9, outcome="did not start: x | y", seconds=None, engine="stub"))
    assert "| spec | 3 | 18.2% | 22.00 | 2.182 |" in traffic_report.medians_table(rows, "cpu")  # of 22 : 10, 20 : 12 and 24 : 11
    later = [{**row, "round": row["round"] + 20} for row in rows if row["arm"] == "cpu"]
    assert traffic_report.ratio_of(rows[3:6], later, "seconds") == 2 and traffic_report.ratio_of(rows[3:6], later, "missing") is None
    assert "did not start: x / y" in traffic_report.runs_table(rows)
