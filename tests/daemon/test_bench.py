# SPDX-License-Identifier: Apache-2.0
"""The benchmark's own programs do what their figures are named for; and how a figure is judged."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

import harness
from harness import KIB, MIB

sys.path.insert(0, str(harness.SOURCE / "tests/bench"))
import backing  # noqa: E402
import figures  # noqa: E402
import recorded  # noqa: E402

BENCH = harness.BUILD / "tests/bench/measure"
ENTRIES = 20000


def bench(daemon, mode, *arguments, steps="", check=0):
    """Returns the program's lines of JSON: one for each step."""
    done = subprocess.run([BENCH, mode, "--socket", str(daemon.socket), "--steps", *map(str, arguments)], input=steps,
                          capture_output=True, text=True, timeout=120 * harness.slow())
    assert (done.returncode == 0) == (check == 0), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_help_builds_nothing(tmp_path):
    for tool in "meson", "ninja":
        (tmp_path / tool).write_text("#!/bin/sh\nexit 9\n")
        (tmp_path / tool).chmod(0o755)
    done = subprocess.run(["sh", harness.SOURCE / "tests/bench/run.sh", "--help"], capture_output=True, text=True,
                          env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.returncode == 0 and done.stdout.startswith("usage: tests/bench/run.sh") and "ninja" not in done.stderr, done.stderr


def test_measure_calls_itself_by_its_name():
    help = subprocess.run([BENCH, "--help"], capture_output=True, text=True)
    assert help.returncode == 0 and help.stdout.startswith("usage: measure "), help.stdout
    lonely = subprocess.run([BENCH, "get", "--socket", "/nowhere"], capture_output=True, text=True)
    assert lonely.returncode != 0 and lonely.stderr.startswith("measure: "), lonely.stderr


def test_an_entry_is_to_stay_as_small_as_the_recorded_figure():
    for more, reached in (-0.1, True), (8, False):
        report = {"bytes_per_entry": figures.measured([figures.ENTRY_BYTES + more] * 2, "B", "")}
        figures.add_goals(report)
        assert report["bytes_per_entry"]["reached"] is reached


def test_a_run_enters_its_values_and_facts(tmp_path):
    """The values that it measured, rounded, and for its part only: date, machine, commit, settings, and the other defaults."""
    file = tmp_path / "figures.json"
    file.write_bytes((harness.SOURCE / "tests/bench/figures.json").read_bytes())
    before = json.loads(file.read_text())
    machine = {"cores": 3, "cpu": "a processor", "memory_bytes": 2 << 30, "kernel": "6.0", "file_system": "ext4", "device": "/dev/x", "load_before": 0.5}
    ready = figures.measured([1.23], "s", "", by_way={"twice as many superseded entries besides": 4.56})
    report = {"machine": machine, "bytes_per_entry": figures.measured([150.96], "B", "", digits=2), "ready_seconds_5M": ready,
              "match32_us": figures.missing("no reason"), "into_vs_memcpy": {"ours": {"median": 1}}}
    used = {"start": {"io.depth": "16", "io.spin": "auto"}, "entry": {}, "memory": {}}  # some figures of `memory` are missing
    entered = recorded.update(file, report, used, "0123abc", "run.sh", harness.SOURCE)
    after = json.loads(file.read_text())
    assert entered == ["entry_bytes", "ready_5m", "ready_5m_superseded"]
    assert [after["figures"][name]["value"] for name in entered] == [151, 1.2, 4.6]
    assert after["figures"]["into"] == before["figures"]["into"]
    run = after["runs"].pop("start")
    before["runs"].pop("start")
    assert after["runs"].pop("entry")["commit"] == "0123abc" != before["runs"].pop("entry")["commit"]
    assert after["runs"] == before["runs"], "other runs, the incomplete one included, are unchanged"
    assert (run["commit"], run["command"], run["settings"]) == ("0123abc", "run.sh", {"io.depth": "16"})
    assert "3 cores of a processor" in run["machine"] and "io.depth" not in run["defaults"]
    assert run["defaults"].items() >= {"io.spin": "auto", "eviction.policy": "cq", "store.segment": "1GiB"}.items()


@pytest.mark.parametrize("arguments, message", [(["--quick"], "not with --quick"), (["--scaling"], "not with --quick or --scaling"),
                                                (["--set", "io.depth"], "KEY=VALUE")])
def test_the_benchmark_refuses_to_record_what_is_no_figure(arguments, message):
    done = subprocess.run([sys.executable, harness.SOURCE / "tests/bench/bench.py", "--figures", "/nonexistent", *arguments],
                          capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr


@pytest.mark.parametrize("region", [(), ("--region", 8 * MIB)])
def test_gets_return_what_was_put_and_distinguish_tiers(daemon, region):
    size, n = 64 * KIB, 64
    put, = bench(daemon, "put", "--size", size, "--batch", 4, "--outstanding", 16, *region, steps=f"run 0 {n * size}\n")
    assert (put["keys"], put["bytes"], put["next"]) == (n, n * size, n)
    evicted, cold, again, verified = bench(daemon, "get", "--size", size, "--batch", 4, "--outstanding", 16, "--count", n,
                                           steps=f"evict\nrun 0 {n * size}\nrun 0 {n * size}\nverify 0 {n}\n")
    assert evicted["keys"] == n
    assert (cold["bytes"], cold["from_memory"]) == (n * size, 0), "from the disk"
    assert (again["bytes"], again["memory_bytes"], again["from_memory"]) == (0, n * size, n), "from memory, not as bytes"
    assert (verified["checked"], verified["wrong"]) == (n, 0)


def test_chunks_in_memory_come_into_a_region(daemon):
    size, n = 64 * KIB, 32
    bench(daemon, "put", "--size", size, "--batch", 4, "--outstanding", 16, steps=f"run 0 {n * size}\n")
    into, = bench(daemon, "get", "--size", size, "--count", n, "--tier", "memory", "--outstanding", 4, "--region", MIB,
                  steps=f"run 0 {4 * n * size}\n")
    assert (into["memory_bytes"], into["misses"], into["failed"]) == (4 * n * size, 0, 0)


def test_first_reads_and_idle_connections(daemon):
    size, n = 64 * KIB, 8
    bench(daemon, "put", "--size", size, "--outstanding", 4, steps=f"run 0 {n * size}\n")
    for populate in ((), ("--populate",)):
        first, second = bench(daemon, "touch", "--size", size, "--count", n, *populate, steps="run\nrun\n")
        assert first["chunks"] == second["chunks"] == n
        assert first["connect_ns"] > 0 and first["first_ns"] > 0
    idle, = bench(daemon, "idle", "--connections", 5, steps="run\n")
    assert idle["connections"] == 5


@pytest.fixture(scope="module")
def entries(base_directory):
    store = base_directory / "bench-entries"
    store.mkdir(mode=0o700)
    made = subprocess.run([harness.BUILD / "tests/campaigns/many-entries", store, str(ENTRIES), "--slot", "4096"],
                          capture_output=True, text=True, check=True)
    return store, int(made.stdout)


def plain(*more):
    return ("--namespace", "many", "--keys", "plain", "--size", 4096, "--count", ENTRIES, *more)


def test_sampled_hits_and_matches_in_a_store_of_many_entries(make_daemon, entries):
    store, limit = entries
    daemon = make_daemon(settings={"store.limit": limit, "store.prewrite": "off", "memory.pool": 64 * MIB}, store=store).start()
    warm, hits = bench(daemon, "get", *plain("--sample", 500, "--batch", 10, "--outstanding", 20, "--tier", "any"),
                       steps=f"warm\nrun 0 {500 * 4096}\n")
    assert (warm["keys"], hits["from_memory"], hits["keys"]) == (500, 500, 0)
    match, = bench(daemon, "match", *plain("--batch", 3000), steps="run 0.05\n")
    assert match["calls"] > 0 and match["p50_ns"] > 0
    assert bench(daemon, "match", "--namespace", "many", "--keys", "plain", "--size", 4096, "--count", 100 * ENTRIES, "--batch",
                 3000, steps="run 0.05\n", check=1) == [], "a chain that is not there is a failure, not a figure"


def test_batches_of_hits_and_an_echo_of_the_same_lengths(make_daemon, entries, directory):
    store, limit = entries
    daemon = make_daemon(settings={"store.limit": limit, "store.prewrite": "off", "memory.pool": 64 * MIB}, store=store).start()
    path = directory / "echo"
    echo = harness.spawn([harness.BUILD / "tests/bench/measure-echo", path])
    try:
        harness.wait_until(path.exists, "the echo listens")
        answer, = bench(daemon, "rtt", *plain("--sample", 600, "--batch", 128), "--echo", path, "--pairs", 2, "--slice-ms", 20,
                        "--daemon-pid", daemon.pid, "--echo-pid", echo.pid, steps="run\n")
    finally:
        echo.kill()
        echo.wait()
    assert len(answer) == 2
    for pair in answer:
        assert all(pair[f"{side}_{what}_ns"] > 0 for side in ("hit", "echo") for what in ("p50", "p99", "cpu"))


def test_memory_is_copied_and_checked_in_pieces(daemon):
    for mode, more in (("memcpy", ("--source", MIB)), ("crc", ())):
        answer, = bench(daemon, mode, "--size", 64 * KIB, "--working-set", 4 * MIB, *more, steps=f"run 0 {8 * MIB}\n")
        assert answer["bytes"] == 8 * MIB and answer["cpu_seconds"] > 0
    assert bench(daemon, "memcpy", "--size", 64 * KIB, "--working-set", MIB, "--source", MIB, steps="run 0 1\n", check=1) == []


def bare(mode, *arguments, steps=""):
    return subprocess.run([BENCH, mode, "--steps", *map(str, arguments)], input=steps, capture_output=True, text=True,
                          timeout=60 * harness.slow())


def test_batches_without_a_daemon_are_read_and_written_whole(base_directory):
    file, size, n = base_directory / "bare", 64 * KIB, 40
    file.write_bytes(bytes(n * size))
    arguments = ("--file", file, "--size", size, "--batch", 24, "--region", 2 * MIB)  # more than the ring has room for
    read = bare("bare-get", *arguments, steps=f"run 0 {100 * size}\n")
    if any(words in read.stderr for words in ("built without io_uring", "no io_uring", "Invalid argument")):  # or no O_DIRECT
        pytest.skip(read.stderr.strip())
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout)["bytes"] == 120 * size, "batches are not cut short"
    assert file.read_bytes() == bytes(n * size), "reading writes nothing"
    assert bare("bare-put", *arguments, steps=f"run 0 {1000 * size}\n").returncode == 0
    written = file.read_bytes()
    assert len(written) == n * size and set(written) == {0x5a}, "each place was written, none beyond the end"
    huge = bare("bare-put", *arguments, "--huge-pages", steps="run 0 1\n")
    assert huge.returncode == 0 or "no huge pages" in huge.stderr, huge.stderr
    again = bare("cached", *arguments, "--count", 8, steps="run 0 1\n")
    assert json.loads(again.stdout)["bytes"] == 24 * size


@pytest.mark.parametrize("way", [("--stream", "--outstanding", 8), ("--posix",)])
def test_streams_without_a_daemon_use_all_files(base_directory, way):
    files, size, n = [base_directory / f"stream{i}" for i in range(3)], 64 * KIB, 4
    for file in files:
        file.write_bytes(bytes(n * size))
    names = [word for file in files for word in ("--file", file)]
    arguments = (*names, "--size", size, "--batch", 4, "--region", MIB, *way)
    read = bare("bare-get", *arguments, steps=f"run 0 {100 * size}\nrun 0 {size}\n")
    if any(words in read.stderr for words in ("built without io_uring", "no io_uring", "Invalid argument")):
        pytest.skip(read.stderr.strip())
    first, second = [json.loads(line) for line in read.stdout.splitlines()]
    assert first["bytes"] >= 100 * size and second["bytes"] % size == 0, "what is at the device counts when it is complete"
    assert bare("bare-put", *arguments, steps=f"run 0 {500 * size}\n").returncode == 0
    assert all(set(file.read_bytes()) == {0x5a} and file.stat().st_size == n * size for file in files), "each place of each file is written"
    files[2].write_bytes(b"")
    for more in names, ("--file", files[0]) * 17:
        done = bare("bare-get", *more, *arguments[len(names):], steps="run 0 1\n")
        assert done.returncode != 0 and done.stdout == "", "a file without a piece, and too many files, are failures and no figure"


def volumes_table(*arguments):
    """Runs the smallest form of the table of volumes. Returns its report."""
    done = subprocess.run([sys.executable, harness.SOURCE / "tests/bench/bench.py", "--build", harness.BUILD, "--json", "--scaling", "volumes",
                           "--quick", "--volumes", "2", "--sizes", "576KiB", "--store-mib", "256", "--clients", "2", *map(str, arguments)],
                          capture_output=True, text=True, timeout=300 * harness.slow())
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_volumes_in_memory_are_compared_with_a_yardstick(base_directory):
    place = base_directory / "volumes"
    place.mkdir()
    before = set(pathlib.Path("/dev/shm").glob("kvcache-volume*"))
    report = volumes_table("--yardstick", "bare", "--dir", place)
    if "no O_DIRECT" in report["scaling"]["volumes, get"].get("reason", ""):
        report = volumes_table("--yardstick", "bare", "--dir", place, "--backing", "directory")
    for way in "get", "put":
        table = report["scaling"][f"volumes, {way}"]
        assert "reason" not in table and ("bare io_uring" in table["what"] or "blocking calls" in table["what"]), table
        row, = table["rows"]
        assert (row["volumes"], row["chunk KiB"]) == (2, 576)
        assert row[f"{way} GB/s"] > 0 and row["beside"] > 0 and row["low"] <= row["ratio"] <= row["high"]
        assert row["CPU"] > 0 and row["CPU beside"] > 0
        assert row["loop busy"] > 0 and row["workers busy"] > 0
        assert "WRONG BYTES" not in row["notes"]
    assert list(place.iterdir()) == [] and set(pathlib.Path("/dev/shm").glob("kvcache-volume*")) == before, "nothing stays behind"
    assert str(place) not in pathlib.Path("/proc/self/mounts").read_text()


def test_volumes_without_a_file_system_say_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(backing, "command", lambda *words: (_ for _ in ()).throw(backing.NoBacking(f"{words[0]}: planted")))
    monkeypatch.setattr(backing, "own_mounts", lambda: None)
    monkeypatch.setattr(backing, "SHARED", tmp_path / "none")
    with pytest.raises(backing.Trouble) as raised:
        backing.choose(tmp_path, "auto")
    assert "tmpfs: mount: planted" in str(raised.value) and "loop: mount: planted" in str(raised.value)
    assert "--backing directory" in str(raised.value) and not list(tmp_path.iterdir())
    with pytest.raises(backing.NoBacking, match="too little room"):
        backing.Backing(tmp_path, "directory", 2, 1 << 50)


@pytest.mark.parametrize("arguments, message", [(["--volumes", "0"], "1 to 16"), (["--volumes", "2,x"], "1 to 16"), (["--clients", "0"], "--clients"),
                                                (["--store-mib", "1"], "--store-mib"), (["--backing", "nfs"], "--backing"),
                                                (["--sizes", "3MiB"], "no size 3MiB")])
def test_table_of_volumes_refuses_bad_values(arguments, message):
    done = subprocess.run([sys.executable, harness.SOURCE / "tests/bench/bench.py", "--scaling", "volumes", *arguments], capture_output=True, text=True)
    assert done.returncode == 2 and message in done.stderr


@pytest.mark.parametrize("mode", ["bare-get", "bare-put", "cached"])
def test_batch_without_a_daemon_reports_the_missing_daemon(base_directory, mode):
    file = base_directory / "short"
    file.write_bytes(bytes(4096))
    for arguments in ((), ("--file", base_directory / "none"), ("--file", file, "--size", 64 * KIB, "--region", 2 * MIB),
                      ("--file", file, "--size", 4096, "--batch", 64, "--region", 32 * 4096)):
        done = bare(mode, *arguments, steps="run 0 1\n")
        assert (done.returncode, done.stdout) == (1, "") and len(done.stderr.splitlines()) == 1


def test_a_goal_is_compared_with_its_part():
    report = {
        "disk_read_vs_fio": {"2MiB": {"value": 0.9, "low": 0.8, "high": 0.96}},
        "disk_write_vs_fio": {"full": {"64KiB": {"value": 0.8, "low": 0.7, "high": 0.86},
                                       "2MiB": {"value": 0.8, "low": 0.7, "high": 0.94}}},
        "hit_rtt_vs_echo": {"value": 1.3, "low": 1.2, "high": 1.4},
        "idle_cpu": {"value": 0.1},
        "batch_get_vs_bare": {"64KiB": {"value": 0.89}, "2MiB": {"value": 0.99}},
        "match32_us": figures.missing("no reason"),
        "hit_rtt_vs_blocking_echo": {"value": 1.0},
    }
    figures.add_goals(report)
    assert report["disk_read_vs_fio"]["2MiB"]["reached"] is True, "its upper bound"
    assert report["disk_write_vs_fio"]["full"]["64KiB"]["reached"] is True, "a goal of its own"
    assert report["disk_write_vs_fio"]["full"]["2MiB"]["reached"] is False
    assert report["hit_rtt_vs_echo"]["reached"] is False, "its value, not its lower bound"
    assert report["idle_cpu"]["reached"] is False, "less than, not as much as"
    assert report["match32_us"]["reached"] is None and report["match32_us"]["goal"] == "<= 5"
    assert report["hit_rtt_vs_blocking_echo"]["goal"] is None
    assert report["batch_get_vs_bare"]["64KiB"]["reached"] is False
    assert report["batch_get_vs_bare"]["2MiB"]["goal"] is None, "small chunks alone have one"


def test_bounds_of_a_median_are_order_statistics():
    assert figures.median_bounds(list(range(1, 6))) == (1, 5)
    assert figures.median_bounds(list(range(1, 27))) == (8, 19)
    measured = figures.measured([3.0, 1.0, 2.0], "s", "what")
    assert (measured["value"], measured["low"], measured["high"]) == (2.0, 1.0, 3.0)
    assert figures.measured([], "s", "what")["value"] is None
