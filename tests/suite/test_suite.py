# SPDX-License-Identifier: Apache-2.0
"""Tests of the suite itself: which results are failures, which failures are retried, and the effects of a hang, a crash or a broken build."""

import argparse
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import builds
import children
import slowness
import programs
import pytests
import results
import retry
import suite as suite_module
import tiers

SUITE = pathlib.Path(__file__).resolve().parent
CMOCKA = """[==========] Running 3 test(s).
[ RUN      ] a
[       OK ] a
[  SKIPPED ] b
[==========] 3 test(s) run.
[  PASSED  ] 2 test(s).
[  SKIPPED ] 1 test(s), listed below:
[  SKIPPED ] b
"""


# --- results ---

@pytest.mark.parametrize("status, text, outcome, counts, final", [
    (0, "", "passed", (1, 0, 0), False),
    (0, CMOCKA, "passed", (2, 0, 1), False),
    (77, "no GPU\n", "skipped", (0, 0, 1), False),
    (1, "[==========] 3 test(s) run.\n[  PASSED  ] 1 test(s).\n[  FAILED  ] 2 test(s)", "failed", (1, 2, 0), False),
    (1, "[  PASSED  ] 7 test(s).\n", "failed", (0, 1, 0), False),         # ended before it could print its sums
    (255, "", "failed", (0, 1, 0), False),
    (-11, "", "failed", (0, 1, 0), True),
    (None, "no end after 60 s", "failed", (0, 1, 0), False),
])
def test_a_program_counts_as_its_functions(status, text, outcome, counts, final):
    result = results.of_program("p", status, text)
    assert (result.outcome, (result.passed, result.failed, result.skipped), result.final) == (outcome, counts, final)


@pytest.mark.parametrize("text, final", [
    ("==1==ERROR: AddressSanitizer: heap-use-after-free", True),
    ("../daemon/x.c:3:4: runtime error: signed integer overflow", True),
    ("WARNING: ThreadSanitizer: data race", True),
    ("kvcache-daemon: ../x.c:9: f: Assertion `a == b' failed.", True),
    ("the daemon ended with -11 while starting:", True),
    ("the daemon ended during the test, with -6", True),
    ("E   AssertionError: assert b'\\x00' == b'\\x01'", True),
    ("E     At index 0 diff: b'\\x00' != b'\\x01'", True),
    ("campaign kill: 16 runs, 1 wrong, 0 lost, 0 hung", True),
    ("campaign kill: 16 runs, 0 wrong, 0 lost, 1 hung", False),
    ("E   AssertionError: waited 10 s in vain: the daemon answers", False),
    ("E   assert 3 == 4", False),
    ("no end after 60 s", False),
    ("subprocess.TimeoutExpired: timed out after 120 seconds", False),
])
def test_chance_excuses_no_memory_error_and_no_wrong_byte(text, final):
    assert results.Result("t", "failed", text).final is final


def test_the_first_line_says_why():
    assert results.first_line("x.py:3: in f\n    g()\nE   AssertionError: waited\nE   more") == "AssertionError: waited"
    assert results.first_line("[ RUN      ] a\n[  ERROR   ] --- 0 != 1\n") == "0 != 1"
    assert results.first_line("a\n\nno end after 60 s\n") == "no end after 60 s"
    assert results.first_line("") == "no output"


# --- second tries ---

def failed(name, text="E   waited in vain", second="passed", final=False):
    def again(factor):
        assert factor == retry.FACTOR
        assert not final, "a final failure is not tried again"
        return results.Result(name, second, "" if second == "passed" else "E   waited again")

    return results.Result(name, "failed", text, again=again, final=final)


def summed(*many):
    sums = results.Sum()
    for result in many:
        sums.add(result)
    return sums


def test_a_failure_that_passes_alone_is_flaky_and_said_to_be():
    said, sums = [], summed(results.Result("a", "passed"), failed("b"), failed("c", second="failed"))
    retry.again(sums, said.append)
    assert said == ["flaky: b (waited in vain)"]
    assert sums.line() == "2 passed, 1 failed, 0 skipped"
    assert [result.name for result in sums.failures] == ["c"] and not sums.good


def test_a_final_failure_is_not_tried_again():
    sums = summed(failed("a", "ERROR: AddressSanitizer", final=True), failed("b", "1 wrong, 0 lost", final=True))
    retry.again(sums, lambda line: pytest.fail(line))
    assert sums.line() == "0 passed, 2 failed, 0 skipped"


def test_a_run_with_many_failures_is_not_tried_again():
    said, sums = [], summed(*(failed(f"t{i}") for i in range(retry.MOST + 1)))
    retry.again(sums, said.append)
    assert sums.failed == retry.MOST + 1 and len(said) == 1


@pytest.mark.parametrize("count, status", [(results.MOST_FLAKY, 0), (results.MOST_FLAKY + 1, 1)])
def test_more_than_five_flaky_tests_fail_the_run(capsys, count, status):
    run = suite_module.Suite(argparse.Namespace(budgets=False))
    run.sum = summed(results.Result("a", "passed"), *(failed(f"t{i}") for i in range(count)))
    assert run.finish() == status
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert lines[-2] == f"{count} flaky"
    assert lines[-1] == f"{count + 1} passed, {status} failed, 0 skipped"


def test_the_list_of_flaky_tests_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(retry, "LIST", tmp_path / "flaky.txt")
    retry.LIST.write_text("# comment\n2026-11-28 b issue 30\n")
    said = []
    retry.again(summed(failed("b")), said.append)
    assert said == ["flaky: b (waited in vain, listed since 2026-11-28)"]


# --- the factor ---

def test_the_factor_is_measured_and_bounded(monkeypatch):
    assert 1 <= slowness.measure(0.05, 1) <= 10
    for value, factor in (("3.5", 3.5), ("0", 1), ("99", 10), ("slow", 1), ("", 1)):
        monkeypatch.setenv(slowness.ENVIRONMENT, value)
        assert slowness.from_environment() == factor


def has_default_handler(cpu_s):
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    return cpu_s


def test_measuring_processes_do_not_inherit_the_handler_of_SIGTERM(monkeypatch):
    monkeypatch.setattr(slowness, "_burn", has_default_handler)
    before = signal.signal(signal.SIGTERM, suite_module.interrupt)
    try:
        assert slowness.measure() == 1
        assert signal.getsignal(signal.SIGTERM) is suite_module.interrupt
    finally:
        signal.signal(signal.SIGTERM, before)


def test_more_processes_than_processors_are_slower():
    count = 4 * len(os.sched_getaffinity(0))
    assert slowness.measure(0.2, count) >= 2


# --- programs ---

def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def program(path, text, limit_s=60, **more):
    return programs.Program(path.name, [script(path, text)], {}, more.pop("suites", ["unit"]), limit_s, **more)


def test_programs_pass_fail_and_skip(tmp_path):
    made = [program(tmp_path / "good", "exit 0\n"), program(tmp_path / "bad", "echo why; exit 3\n"), program(tmp_path / "none", "echo no GPU; exit 77\n"),
            program(tmp_path / "dead", "kill -SEGV $$\n")]
    found = {}
    programs.run_all(made, 2, 1.0, lambda result: found.update({result.name: result}))
    assert {name: result.outcome for name, result in found.items()} == {"good": "passed", "bad": "failed", "none": "skipped", "dead": "failed"}
    assert "why" in found["bad"].text and found["none"].text == "no GPU"
    assert found["dead"].final and not found["bad"].final


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    number = tmp_path / "number"
    hung = program(tmp_path / "hung", f"sleep 1000 & echo $! >{number}; wait\n", limit_s=1).run(1.0)
    assert hung.outcome == "failed" and "no end after 1 s" in hung.text and not hung.final
    left = pathlib.Path("/proc") / number.read_text().strip() / "stat"
    deadline = time.monotonic() + 60
    while left.exists() and " Z " not in left.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left.exists() or " Z " in left.read_text()


def test_a_check_of_the_tree_is_never_tried_again(tmp_path):
    assert program(tmp_path / "check", "exit 1\n", suites=["tree"]).run(1.0).final


def test_a_program_knows_the_factor_of_its_try(tmp_path):
    said = program(tmp_path / "says", 'echo "$KVCACHE_TEST_SLOW"; exit 1\n').run(2.0, times=5.0)
    assert said.text.strip() == "10.0"


def test_a_second_try_that_hangs_has_a_bounded_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "MOST_AGAIN_S", 2)
    began = time.monotonic()
    hung = program(tmp_path / "hung", "sleep 1000\n", limit_s=1).run(1.0, times=1000.0)
    assert "no end after 2 s" in hung.text and time.monotonic() - began < 200


def test_long_programs_start_first(tmp_path):
    order = []
    made = [program(tmp_path / "b", "", priority=0), program(tmp_path / "a", "", priority=1)]
    programs.run_all(made, 1, 1.0, lambda result: order.append(result.name))
    assert order == ["a", "b"]


def test_a_share_of_the_seeds_is_at_least_one():
    command = ["p", "powerloss", "--count", "100"]
    for share, count in ((0.25, "25"), (0.001, "1")):
        changed = programs.with_share_of_seeds(programs.Program("p", command, {}, [], 1), share)
        assert changed.command == ["p", "powerloss", "--count", count] and command[-1] == "100"


# --- pytest ---

CONFTEST = f"""
import sys
sys.path.insert(0, {str(SUITE)!r})
import plugin
def pytest_configure(config):
    for name in ("serial", "nightly", "smoke", "repeated", "figures", "limit"):
        config.addinivalue_line("markers", name)
    config.pluginmanager.register(plugin.Plugin(config), "suite")
"""


def run_tests(tmp_path, text, tier="all", at_once=1, limit_s=60):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name, body in ({"test_it": text} if isinstance(text, str) else text).items():
        (tmp_path / f"{name}.py").write_text("import pytest\n" + textwrap.dedent(body))
    run = pytests.Run(tmp_path, [tmp_path], tier, 1.0, at_once=at_once, root=tmp_path)
    run.limit_s = limit_s
    found = []
    run.run(found.append)
    return {result.name.rpartition("::")[2]: result for result in found}


def test_each_test_has_a_record(tmp_path):
    found = run_tests(tmp_path, """
        def test_good(): pass
        def test_bad(): assert 1 == 2
        def test_none(): pytest.skip("no GPU")
        @pytest.fixture
        def broken(): yield; raise OSError("late")
        def test_late(broken): pass
        """)
    assert {name: result.outcome for name, result in found.items()} == {
        "test_good": "passed", "test_bad": "failed", "test_none": "skipped", "test_late": "failed"}
    assert "assert 1 == 2" in found["test_bad"].text and found["test_none"].text == "no GPU" and "late" in found["test_late"].text


def test_python_keeps_compiled_code(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    found = run_tests(tmp_path, """
        import os, subprocess, sys
        def test_it():
            subprocess.run([sys.executable, "-c", "import sys; assert not sys.dont_write_bytecode and sys.pycache_prefix"], check=True)
        def test_the_tree_stays_as_it_is(): assert not os.path.exists(os.path.dirname(__file__) + "/__pycache__")
        """)
    assert [result.outcome for result in found.values()] == ["passed", "passed"], found


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_hang_costs_one_test(tmp_path, at_once):
    found = run_tests(tmp_path, """
        import time
        def test_hangs(): time.sleep(1000)
        def test_after(): pass
        """, at_once=at_once, limit_s=1)
    assert found["test_after"].outcome == "passed"
    assert found["test_hangs"].outcome == "failed" and "no end after 1 s" in found["test_hangs"].text


def test_a_process_that_dies_costs_one_test(tmp_path):
    found = run_tests(tmp_path, """
        import os
        def test_dies(): os._exit(1)
        def test_after(): pass
        """, at_once=2)
    assert found["test_after"].outcome == "passed" and found["test_dies"].outcome == "failed"


def test_a_file_that_cannot_be_imported_fails(tmp_path):
    found = run_tests(tmp_path, {"test_a": "import no_such_module\n", "test_b": "def test_good(): pass\n"})
    assert any(result.outcome == "failed" and "no_such_module" in result.text for result in found.values())


def test_a_run_that_leaves_no_record_fails(tmp_path):
    found = run_tests(tmp_path, {"conftest_breaks": ""} | {"test_a": "import os\nos._exit(0)\n"})
    assert [result.outcome for result in found.values()] == ["failed"]


TIERS = {
    "test_a": """
        def test_first(): pass
        @pytest.mark.repeated
        def test_again(): pass
        @pytest.mark.serial
        def test_measures(): pass
        @pytest.mark.nightly
        def test_long(): pass
        """,
    "test_b": """
        def test_other(): pass
        @pytest.mark.smoke
        def test_smoke(): pass
        """,
}


@pytest.mark.parametrize("tier, names", [
    ("all", "first again measures long other smoke"),
    ("submission", "first other smoke"),
    ("nightly", "first again long other smoke"),
    ("serial", "measures"),
    ("smoke", "first smoke"),
])
def test_a_tier_selects_by_markers(tmp_path, tier, names):
    found = run_tests(tmp_path, TIERS, tier=tier)
    assert sorted(found) == sorted(f"test_{name}" for name in names.split())


def test_a_failed_test_runs_again_alone(tmp_path):
    found = run_tests(tmp_path, """
        import pathlib
        def test_second_time():
            mark = pathlib.Path(__file__).with_name("mark")
            if not mark.exists():
                mark.touch()
                assert False, "the first time"
        def test_other(): assert False
        """)
    assert found["test_second_time"].outcome == "failed"
    assert found["test_second_time"].again(5.0).outcome == "passed"
    assert found["test_other"].again(5.0).outcome == "failed"


# --- the rotation, builds, budgets, the end ---

def test_three_turns_run_every_file_once():
    files = [f"test_{i}.py" for i in range(10)]
    parts = [tiers.part_of(files, turn) for turn in range(7, 10)]
    assert sorted(file for part in parts for file in part) == sorted(files)
    assert all(parts)


def make_builder(tmp_path, ninja):
    tools = tmp_path / "tools"
    tools.mkdir()
    script(tools / "meson", f'mkdir -p "$2" && touch {tmp_path}/build/build.ninja\n')
    script(tools / "ninja", ninja)
    return tools


@pytest.mark.parametrize("ninja, error", [("exit 0\n", None), ("echo '[1/2] cc'; echo 'x.c:1: error: no'; exit 1\n", "x.c:1: error: no")])
def test_a_build_fails_with_its_errors(tmp_path, monkeypatch, ninja, error):
    monkeypatch.setenv("PATH", f"{make_builder(tmp_path, ninja)}:{os.environ['PATH']}")
    build = builds.Build("b", tmp_path / "build", "cc", "")
    builder = builds.Builder(tmp_path, [build])
    if error:
        with pytest.raises(builds.Failed, match=re.escape(error)):
            builder.wait(build)
    else:
        assert builder.wait(build) is build


def test_targets_of_an_existing_folder_are_listed_after_it_follows_its_files(tmp_path, monkeypatch):
    """Builds are updated first, because a test that is new since the last build would otherwise run without being built."""
    monkeypatch.setenv("PATH", f"{make_builder(tmp_path, f'echo $3 >>{tmp_path}/made')}:{os.environ['PATH']}")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "build.ninja").touch()
    build = builds.Build("b", tmp_path / "build", "cc", "", targets=lambda: [f"after-{(tmp_path / 'made').read_text().strip()}"])
    builds.Builder(tmp_path, [build]).wait(build)
    assert (tmp_path / "made").read_text().split() == ["build.ninja", "after-build.ninja"]


def test_a_broken_build_is_one_failure(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", f"{make_builder(tmp_path, 'echo no; exit 1')}:{os.environ['PATH']}")
    run = suite_module.Suite(argparse.Namespace(budgets=False))
    build = builds.Build("b", tmp_path / "build", "cc", "")
    run.builder = builds.Builder(tmp_path, [build])
    assert not run.built(build) and not run.built(build)
    assert run.finish() == 1
    assert capsys.readouterr().out.rstrip().splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


@pytest.mark.parametrize("seconds, status", [(50, 0), (150, 0), (250, 1)])
def test_twice_the_budget_fails(capsys, seconds, status):
    run = suite_module.Suite(argparse.Namespace(budgets=True))
    run.sum.add(results.Result("a", "passed"))
    run.account("leg", "1 passed", 1, seconds, 100)
    assert run.finish() == status
    assert ("warning: leg is over its budget" in capsys.readouterr().out) is (seconds == 150)


@pytest.mark.parametrize("cpu_s, busy_s, own_s", [
    (100, 100, 250),    # the leg waited, while no other program computed
    (100, 500, 50),     # other programs took all the rest
    (100, 300, 150),
    (100, 90, 250),     # the ticks of the kernel are coarse
    (100, None, 250)])
def test_a_leg_is_charged_only_for_what_others_did_not_take(capsys, cpu_s, busy_s, own_s):
    assert slowness.own_seconds(250, cpu_s, 1000, busy_s and 1000 + busy_s, 2) == own_s
    run = suite_module.Suite(argparse.Namespace(budgets=True))
    run.sum.add(results.Result("a", "passed"))
    run.account("leg", "1 passed", cpu_s, 250, 100, own_s)
    assert run.finish() == (1 if own_s > 200 else 0)
    assert f"{own_s} without other programs" in capsys.readouterr().out or own_s == 250


def test_busy_time_grows_with_work():
    before = slowness.busy_s()
    slowness._burn(0.5)
    assert slowness.busy_s() - before >= 0.4


def test_tests_that_wait_are_named_beside_those_that_compute(capsys):
    found = [results.Result("computes", "passed", seconds=9.1, cpu_s=9.0), results.Result("waits", "passed", seconds=12.2, cpu_s=0.2)]
    results.print_slowest(found, count=1)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == ["most CPU seconds: computes 9.0", "longest waits in seconds: waits 12.0"]


def test_programs_of_a_background_job_can_be_interrupted():
    """A shell starts background jobs with SIGINT ignored, which the programs under test must not inherit."""
    main = f"""
import signal, subprocess, sys
sys.path.insert(0, {str(SUITE)!r})
import suite, tiers
def run(suite, root):
    show = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)"
    subprocess.run([sys.executable, "-c", show], check=True)
    signal.raise_signal(signal.SIGINT)  # is still ignored here
    print("goes on", flush=True)
tiers.run = run
signal.signal(signal.SIGINT, signal.SIG_IGN)
suite.main()
"""
    ended = subprocess.run([sys.executable, "-c", main, "--tier", "default"], capture_output=True, text=True)
    assert ended.stdout.startswith("True\ngoes on\n"), ended.stdout + ended.stderr


def test_an_empty_run_fails(capsys):
    assert suite_module.Suite(argparse.Namespace(budgets=False)).finish() == 1
    assert capsys.readouterr().out.endswith("0 passed, 0 failed, 0 skipped\n")


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_an_interrupt_prints_the_failures_so_far(tmp_path, number):
    main = f"""
import os, signal, sys, time
sys.path.insert(0, {str(SUITE)!r})
import results, suite, tiers
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job inherits SIG_IGN
def run(suite, root):
    def work(factor, done, progress):
        done(results.Result("test_a", "failed", "E   why"))
        os.kill(os.getpid(), signal.{number})
        time.sleep(100)
    suite.leg("leg", work)
tiers.run = run
sys.exit(suite.main())
"""
    ended = subprocess.run([sys.executable, "-c", main, "--tier", "default"], capture_output=True, text=True)
    assert ended.returncode == 130
    assert "--- FAILED: test_a" in ended.stdout.partition("Interrupted")[2]
    assert ended.stdout.endswith("0 passed, 1 failed, 0 skipped\n")


def test_children_do_not_outlive_the_suite(tmp_path):
    child = children.Child(["sleep", "1000"], tmp_path / "log")
    children.end_all()
    assert child.status == -15


# --- tests of changed messages ---

def test_a_changed_message_selects_the_tests_that_expect_its_words(tmp_path):
    spec = importlib.util.spec_from_file_location("changed_messages", SUITE.parent / "changed-messages.py")
    selector = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(selector)
    source, tests = tmp_path / "daemon/log.c", tmp_path / "tests/python"
    source.parent.mkdir()
    tests.mkdir(parents=True)
    source.write_text('say("volume %s is bypassed "\n    "until it is resumed", x);\nsay("no such key");\n')
    (tests / "host.py").write_text('def scenario():\n    assert "bypassed until it is resumed" in log\n')
    (tests / "test_a.py").write_text('SCENARIOS = ["scenario"]\ndef test_old(): assert "is bypassed" in log\ndef test_other(): assert "no such key" in log\n')
    git = ["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"]):
        subprocess.run([*git, *words], check=True)
    assert selector.select("HEAD", tmp_path) == ([], [])
    source.write_text('say("volume %s is suspended "\n    "until it is resumed", x);\nsay("there is no such key");\n')
    assert selector.select("HEAD", tmp_path) == (["tests/python/test_a.py"], ["scenario", "test_old"])
