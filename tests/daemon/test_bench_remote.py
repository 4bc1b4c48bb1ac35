# SPDX-License-Identifier: Apache-2.0
"""kvcache-bench remote: its figures are right, its objects are removed, and failures are reported."""

import json
import os
import signal
import subprocess

import pytest

import harness
import kvwire
from harness import BENCH, KIB, SOURCE, bench, preload, slow, spawn, wait_until
from test_profile import processes_of


def remote(*arguments, check=0, env=None):
    return bench("remote", *map(str, arguments), check=check, env=env)


def figures(*arguments):
    return json.loads(remote(*arguments, "--json").stdout)


def left(shared):
    """Returns the files and folders below `shared`, also while they change."""
    return [os.path.relpath(os.path.join(folder, name), shared) for folder, folders, files in os.walk(shared) for name in folders + files]


@pytest.fixture
def shared(directory):
    path = directory / "shared"
    path.mkdir()
    return path


def check_figures(f, objects, block_bytes, timed):
    assert f["objects"] == objects
    assert f["bytes_per_second"] * f["seconds"] == pytest.approx(objects * block_bytes)
    assert ("p50_ns" in f) == timed
    if timed:
        assert 0 < f["p50_ns"] <= f["p99_ns"] <= f["seconds"] * 1e9


@pytest.mark.parametrize("block_bytes", [1, 5000, 64 * KIB])
def test_the_engine_alone(shared, block_bytes):
    report = figures("directory", "--path", shared, "--bare", "-n", 50, "-b", block_bytes, "-d", 4)
    assert (report["backend"], report["objects"], report["object_bytes"], report["depth"]) == ("directory", 50, block_bytes, 4)
    for way in ("write", "read"):
        assert set(report[way]) == {"bare"}
        check_figures(report[way]["bare"], 50, block_bytes, True)
    assert left(shared) == []


def test_through_the_daemon(shared, monkeypatch, directory):
    monkeypatch.setenv("TMPDIR", str(directory))
    (shared / "others").write_text("of others")
    report = figures("directory", "--path", shared, "--sync", "-n", 60, "-b", 100 * KIB, "-d", 8, "--prefix", "some/name")
    for way in ("write", "read"):
        check_figures(report[way]["bare"], 60, 100 * KIB, True)
        check_figures(report[way]["daemon"], 60, 100 * KIB, way == "read")
        assert report[way]["ratio"] == pytest.approx(report[way]["daemon"]["bytes_per_second"] / report[way]["bare"]["bytes_per_second"])
    assert left(shared) in (["others"], ["others", "some"], ["some", "others"])
    assert [p.name for p in directory.iterdir()] == ["shared"]  # and no store


def test_the_table_has_a_line_for_each_figure(shared):
    lines = remote("directory", "--path", shared, "--bare", "-n", 20, "-b", "64KiB").stdout.splitlines()
    assert lines[0] == "directory: 20 objects of 64 KiB, 16 at a time"
    assert [line.split()[0] for line in lines[3:]] == ["write", "read"]


def test_wrong_bytes_are_noticed(shared):
    done = remote("directory", "--path", shared, "--bare", "-n", 20, "-b", "256KiB", check=1,
                  env={"LD_PRELOAD": preload("tests/daemon/hang.so"), "SHARED_SPOILED": "1"})
    assert "wrong bytes were read" in done.stderr
    assert left(shared) == []


@pytest.mark.parametrize("arguments, status, said", [
    ([], 2, "exactly one BACKEND"), (["directory", "rados"], 2, "exactly one BACKEND"), (["tape"], 2, "use one of: directory, rados, s3"),
    (["directory", "-b", "0"], 2, "--block-bytes"), (["directory", "-b", "65MiB"], 2, "--block-bytes"), (["directory", "-d", "0"], 2, "--depth"),
    (["directory", "--prefix", "a//b"], 2, "--prefix"), (["directory", "--prefix", "../b"], 2, "--prefix"),
    (["directory", "--prefix", "a/"], 2, "--prefix"), (["directory", "--prefix", ""], 2, "--prefix"),
    (["directory"], 4, "remote.path"), (["directory", "--path", "relative"], 4, "remote.path"),
    (["directory", "--path", "/nowhere", "--bare"], 4, "is it mounted?"),
])
def test_wrong_arguments_and_engines_are_refused(arguments, status, said):
    done = remote(*arguments, check=status)
    assert said in done.stderr
    assert not done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_an_engine_that_is_full(shared):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", shared], check=True)
    try:
        done = remote("directory", "--path", shared, "--bare", "-n", 100, "-b", "64KiB", check=4)
        assert "No space left on device" in done.stderr
        assert left(shared) == []
    finally:
        subprocess.run(["umount", shared], check=True)


@pytest.mark.parametrize("bare", [["--bare"], []], ids=["bare", "daemon"])
def test_an_interrupted_run_removes_its_files(shared, bare, directory):
    run = spawn([BENCH, "remote", "directory", "--path", shared, "-n", "20000", "-b", "16KiB", "-d", "2", *bare],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(directory)})
    wait_until(lambda: len(left(shared)) > 10, "it has begun")
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60 * slow())
    assert (run.returncode, out) == (130, "")
    assert "interrupted" in err
    assert left(shared) == []
    assert [p.name for p in directory.iterdir()] == ["shared"]


def test_a_daemon_that_is_killed_during_the_run(shared, directory):
    run = spawn([BENCH, "remote", "directory", "--path", shared, "-n", "5000", "-b", "16KiB", "-d", "2"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(directory)})

    def puts():
        assert run.poll() is None, run.communicate()
        try:
            with kvwire.Client(str(next(directory.glob("*/socket"))), timeout=30) as c:
                return harness.parse_metrics(c.report(kvwire.Report.METRICS))["kvcache_puts_total"] > 0
        except (StopIteration, OSError):
            return False

    wait_until(puts, "its daemon is at work", 120)
    os.kill(processes_of(directory)[0], signal.SIGKILL)
    out, err = run.communicate(timeout=60 * slow())
    # with a request in flight, or between two of them
    assert ("went away before a chunk was put" in err or "cannot be sent" in err) and not out.strip()
    assert run.returncode == 3


def test_s3(tmp_path):
    server = spawn(["python3", SOURCE / "tests" / "lib" / "s3-server.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = int(server.stdout.readline())
        keys = tmp_path / "keys"
        keys.write_text("[default]\naws_access_key_id = AKIATEST\naws_secret_access_key = test-secret/with+signs\n")
        keys.chmod(0o600)
        where = ["s3", "--endpoint", f"http://127.0.0.1:{port}", "--bucket", "bucket", "--region", "test-region-1", "--credentials", keys]
        done = remote(*where, "--bare", "-n", 20, "-b", "64KiB", "--json", check=None)
        if done.returncode == 4 and ".so" in done.stderr:
            pytest.skip(f"libraries of s3: {done.stderr}")
        report = json.loads(done.stdout)
        for way in ("write", "read"):
            check_figures(report[way]["bare"], 20, 64 * KIB, True)
    finally:
        server.stdin.close()
        server.wait(60 * slow())
