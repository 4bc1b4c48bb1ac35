# SPDX-License-Identifier: Apache-2.0
"""kvcache-bench profile: the bytes that it moves, its report, and failures, none of which may look like a figure."""

import csv
import ctypes
import io
import json
import os
import pathlib
import pty
import re
import select
import shlex
import signal
import subprocess
import time

import pytest

import harness
import kvwire
from harness import KIB, MIB, SOURCE, bench, ctl, wait_until
from left_out import first_of

MODELS, DEPLOYMENTS = SOURCE / "conf/models", SOURCE / "conf/deployments"
DEEPSEEK, LLAMA = MODELS / "deepseek_r1.yaml", MODELS / "llama_3_1_8b.yaml"
BLOCK, LAYER = DEPLOYMENTS / "block-tp1-pp16.yaml", DEPLOYMENTS / "layer-tp1-pp16.yaml"


def has_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


HAS_DRIVER = has_driver()


def arguments(model=LLAMA, deployment=BLOCK, *more, source):
    """Returns the arguments of a small workload: 2 users of 100 tokens."""
    return ["profile", "--model", model, "--model_config", deployment, "--source", source, "--isl", "100",
            "--num_requests", "2", *more]


def profile(*how, daemon=None, check=0, env=None, **named):
    """Runs profile. Returns the one object that it prints."""
    result = bench(*arguments(*how, **named), "--format", "json", daemon=daemon, check=check, env=env, timeout=300)
    assert "\r" not in result.stderr, "a progress bar where there is no terminal"
    found = json.loads(result.stdout)
    assert len(found) == 1
    return found[0]


def check_measured(said, *, iterations=3, verified):
    moved = said["batch_size"] * said["block_size"] * iterations
    assert said["bytes_moved"] == moved and said["blocks"] == said["batch_size"] * iterations
    assert said["bytes_verified"] == verified and said["wrong_bytes"] == 0
    assert said["seconds"] > 0 and 0 < said["operations"] <= said["blocks"]
    assert said["bandwidth_gb_s"] == pytest.approx(moved / said["seconds"] / 1e9, rel=1e-3, abs=1e-6)
    for times in ("latency_us", "prepare_us", "post_us", "transfer_us"):
        t = said[times]
        assert 0 <= t["p50"] <= t["p90"] <= t["p99"] and t["avg"] >= 0
    assert said["latency_us"]["avg"] == pytest.approx(
        sum(said[t]["avg"] for t in ("prepare_us", "post_us", "transfer_us")), abs=0.1)
    assert said["latency_us"]["p50"] > 0


def without_daemon(directory):
    """Returns an environment in which no daemon answers, and temporary stores go to a folder that the test examines."""
    tmp = directory / "tmp"
    tmp.mkdir()
    return {"KVCACHE_SOCKET": str(directory / "nobody"), "TMPDIR": str(tmp)}


def processes_of(tmp):
    """Returns the daemons that run on a store in that folder."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"kvcache-daemon" in command and str(tmp).encode() in command:
                found.append(int(pid))
        except OSError:
            pass
    return found


def start(daemon, *command, env=None):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("KVCACHE_")}
    socket = ["--socket", daemon.socket] if daemon else []
    return harness.spawn([str(harness.BENCH), *socket, *map(str, command)], stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**clean, **(env or {})})


def finish(process, check, timeout=90):
    try:
        out, err = process.communicate(timeout=timeout * harness.slow())
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == check, f"exit status {process.returncode}: {err}"
    assert not harness.SANITIZER_REPORT.search(err), err
    return out, err


# --- figures ---

@pytest.mark.parametrize("model", first_of([LLAMA, DEEPSEEK]), ids=["llama", "deepseek"])
@pytest.mark.parametrize("deployment", [BLOCK, LAYER], ids=["block", "layer"])
def test_a_read_uses_the_blocks_that_a_write_left(daemon, directory, model, deployment):
    planned = json.loads(bench("kvcache", *arguments(model, deployment, source="file")[1:], "--format", "json").stdout)
    wrote = profile(model, deployment, source="memory", daemon=daemon)
    assert wrote["daemon"] == "running" and wrote["backend"] == "KVCACHE" and wrote["op_type"] == "WRITE"
    total = wrote["batch_size"] * wrote["block_size"]
    assert str(wrote["batch_size"]) in json.dumps(planned)
    check_measured(wrote, verified=total)
    assert wrote["users"] == 2 and wrote["num_threads"] == 1
    check_measured(wrote["raw"] | {k: wrote[k] for k in ("batch_size", "block_size")}, verified=total)
    assert wrote["of_raw"] == pytest.approx(wrote["bandwidth_gb_s"] / wrote["raw"]["bandwidth_gb_s"], rel=1e-2)

    for cold in (False, True):
        read = profile(model, deployment, *(["--cold"] if cold else []), source="file", daemon=daemon)
        check_measured(read, verified=3 * total)
        assert read["op_type"] == "READ" and read["cold"] == cold
        assert read["bytes_from_memory"] + read["bytes_from_disk"] == 3 * total
        assert read["bytes_from_disk"] == 3 * total if cold else read["bytes_from_memory"] > 0
    assert daemon.metric("kvcache_store_crc_failures_total") == 0
    assert daemon.status()["sessions"]["leases"] == 0


def test_all_ways_to_run_the_daemon(leg_daemon):
    wrote = profile(LLAMA, LAYER, source="memory", daemon=leg_daemon)
    read = profile(LLAMA, LAYER, "--cold", source="file", daemon=leg_daemon)
    total = wrote["batch_size"] * wrote["block_size"]
    check_measured(wrote, verified=total)
    check_measured(read, verified=3 * total)
    io_now = leg_daemon.status()["io"]
    assert io_now["backend"] in wrote["io"] and ("O_DIRECT" in wrote["io"]) == io_now["direct"]


@pytest.mark.parametrize("how", first_of([["--page_size", "3"], ["--tp", "8", "--page_size", "7"], ["--tp", "8", "--page_size", "1"]]),
                         ids=["1728", "504", "72"])
def test_sizes_that_are_no_multiple_of_512(daemon, how):
    wrote = profile(DEEPSEEK, LAYER, *how, "--isl", "10", source="memory", daemon=daemon)
    assert wrote["block_size"] in (72, 504, 1728)
    total = wrote["batch_size"] * wrote["block_size"]
    check_measured(wrote, verified=total)
    read = profile(DEEPSEEK, LAYER, *how, "--isl", "10", "--cold", source="file", daemon=daemon)
    check_measured(read, verified=3 * total)


@pytest.mark.parametrize("users,clients", first_of([(5, 2), (1, 3), (7, 7), (40, 1)]))
def test_users_and_clients(daemon, users, clients):
    more = ["--num_requests", str(users), "--num_threads", str(clients), "--num_iter", "2", "--isl", "40"]
    wrote = profile(LLAMA, LAYER, *more, source="memory", daemon=daemon)
    assert (wrote["users"], wrote["num_threads"]) == (users, clients)
    total = wrote["batch_size"] * wrote["block_size"]
    check_measured(wrote, iterations=2, verified=total)
    read = profile(LLAMA, LAYER, *more, "--cold", source="file", daemon=daemon)
    check_measured(read, iterations=2, verified=2 * total)


def test_iterations_and_consistency(daemon):
    said = profile(LLAMA, BLOCK, "--num_iter", "4", "--warmup_iter", "0", "--check_consistency", source="memory",
                   daemon=daemon)
    check_measured(said, iterations=4, verified=4 * said["batch_size"] * said["block_size"])
    assert said["warmup_iter"] == 0
    # Each iteration's chunks are evicted before the next one, so the store has them once.
    assert daemon.status()["store"]["chunks"] == said["batch_size"]


def test_block_and_batch_sizes_double_from_start_to_max(daemon):
    result = bench(*arguments(source="memory"), "--start_block_size", "5000", "--max_block_size", "20000",
                 "--start_batch_size", "3", "--max_batch_size", "7", "--format", "csv", daemon=daemon, check=0)
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(int(r["block_size"]), int(r["batch_size"]), r["backend"]) for r in rows] == [
        (block, batch, backend) for block in (5000, 10000, 20000) for batch in (3, 6) for backend in ("KVCACHE", "RAW")]
    assert all(r["wrong_bytes"] == "0" and int(r["bytes_moved"]) == 3 * int(r["bytes_verified"]) for r in rows)


def test_several_configurations_and_a_bad_one(daemon, directory):
    good, bad = directory / "a.yaml", directory / "b.yaml"
    good.write_text("runtime: {isl: 64, num_requests: 2}\nsystem: {page_size: 16, access_pattern: layer}\n")
    bad.write_text("runtime: {isl: [}\n")
    result = bench("profile", "--model", LLAMA, "--model_configs", str(directory / "*.yaml"), "--source", "memory",
                 "--json", daemon=daemon, check=1)
    assert "b.yaml" in result.stderr
    said = json.loads(result.stdout)["configurations"]
    assert [s["config_file"] for s in said] == [str(good)] and said[0]["bytes_moved"] > 0


def test_text_has_a_row_for_each_side(daemon):
    text = bench(*arguments(source="memory"), daemon=daemon, check=0).stdout
    rows = [line.split() for line in text.splitlines() if line.startswith(("KVCACHE  ", "RAW  "))]
    assert [r[0] for r in rows] == ["KVCACHE", "RAW"] and all(len(r) == 14 for r in rows)
    for title in ("Block Size (B)", "Batch Size", "B/W (GB/s)", "Avg Lat. (us)", "P99 (us)", "Avg Prep (us)",
                  "Avg Post (us)", "Avg Tx (us)"):
        assert title in text
    assert f"Model Config: {BLOCK}" in text and "0 wrong bytes" in text and "of RAW's bandwidth" in text


def test_without_raw(daemon):
    said = profile(LLAMA, BLOCK, "--no-raw", source="memory", daemon=daemon)
    assert said["raw"] is None and said["of_raw"] is None and said["bytes_moved"] > 0


@pytest.mark.parametrize("backend", ["RAW", "POSIX"])
@pytest.mark.parametrize("how", ["uring", "posix"])
def test_raw_alone_needs_no_daemon(directory, backend, how):
    if how == "uring" and not harness.has_io_uring():
        pytest.skip("this host refuses io_uring")
    env = without_daemon(directory)
    kept = directory / "files"
    kept.mkdir()
    for source, times in (("memory", 1), ("file", 3)):
        said = profile(DEEPSEEK, LAYER, "--backend", backend, "--io", how, "--filepath", str(kept), source=source, env=env)
        assert said["daemon"] is None and said["backend"] == "RAW" and how in said["io"]
        check_measured(said, verified=times * said["batch_size"] * said["block_size"])
    assert not os.listdir(env["TMPDIR"])


# --- a daemon of its own ---

@pytest.mark.parametrize("source", ["memory", "file"])
def test_a_daemon_is_started_when_none_answers(directory, source):
    env = without_daemon(directory)
    result = bench(*arguments(source=source), "--json", env=env, check=0, timeout=120)
    said = json.loads(result.stdout)["configurations"][0]
    assert said["daemon"] == "embedded" and said["raw"] is not None
    assert f"no daemon answers at {env['KVCACHE_SOCKET']}" in result.stderr
    check_measured(said, verified=(1 if source == "memory" else 3) * said["batch_size"] * said["block_size"])
    assert not os.listdir(env["TMPDIR"]) and not processes_of(env["TMPDIR"])


def test_a_store_that_is_kept(directory):
    env = without_daemon(directory)
    kept = ["--filepath", str(directory / "kept")]
    (directory / "kept").mkdir()
    result = bench(*arguments(source="file"), *kept, env=env, check=1)
    assert "nothing to read" in result.stderr and "--source memory" in result.stderr
    profile(LLAMA, BLOCK, *kept, source="memory", env=env)
    profile(DEEPSEEK, BLOCK, *kept, source="memory", env=env)
    assert profile(LLAMA, BLOCK, *kept, "--cold", source="file", env=env)["bytes_from_memory"] == 0
    assert profile(DEEPSEEK, BLOCK, *kept, "--cold", source="file", env=env)["bytes_from_memory"] == 0
    assert not os.listdir(env["TMPDIR"])


@pytest.mark.parametrize("how", ["uring", "posix"])
def test_the_embedded_daemon_uses_the_requested_io_backend(directory, how):
    if how == "uring" and not harness.has_io_uring():
        pytest.skip("this host refuses io_uring")
    said = profile(LLAMA, BLOCK, "--io", how, source="memory", env=without_daemon(directory))
    assert how in said["io"] and how in said["raw"]["io"]


def embedded_run(directory, source="memory"):
    """Starts a run that does not end on its own, and waits until it is busy."""
    env = without_daemon(directory)
    process = start(None, *arguments(source=source), "--num_iter", "1000000", "--no-raw", env=env)

    def at_work():
        assert process.poll() is None, process.communicate()
        sockets = list(pathlib.Path(env["TMPDIR"]).glob("*/socket"))
        try:
            with kvwire.Client(str(sockets[0]), timeout=30) as c:
                counted = harness.parse_metrics(c.report(kvwire.Report.METRICS))
        except (IndexError, OSError):
            return None
        return processes_of(env["TMPDIR"]) if counted['kvcache_requests_total{op="GET"}' if source == "file"
                                                      else "kvcache_puts_total"] > 0 else None

    return process, env, wait_until(at_work, "its daemon is at work", 60)[0]


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_profile_leaves_nothing_behind(directory, which):
    process, env, pid = embedded_run(directory)
    process.send_signal(which)
    out, err = finish(process, 130)
    assert "interrupted" in err
    assert not os.listdir(env["TMPDIR"]) and not processes_of(env["TMPDIR"])


@pytest.mark.parametrize("which", [signal.SIGKILL, signal.SIGABRT])
def test_a_killed_profile_leaves_neither_daemon_nor_folder(directory, which):
    process, env, pid = embedded_run(directory)
    process.send_signal(which)
    process.communicate(timeout=60 * harness.slow())  # no process that is left holds its output open
    wait_until(lambda: not processes_of(env["TMPDIR"]) and not os.listdir(env["TMPDIR"]), "all ends with it", 40)


def caretakers_of(pid):
    """Processes forked from `pid` that run its program."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(c) for c in children if os.readlink(f"/proc/{c}/exe") == os.readlink(f"/proc/{pid}/exe")]


@pytest.mark.skipif(not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"),
                    reason="this kernel does not list children")
def test_the_next_run_removes_leftovers_of_a_crash(directory):
    process, env, pid = embedded_run(directory)
    (caretaker,) = caretakers_of(process.pid)
    os.kill(caretaker, signal.SIGKILL)
    process.kill()
    process.communicate(timeout=60 * harness.slow())
    wait_until(lambda: not processes_of(env["TMPDIR"]), "the daemon ends with it", 40)
    assert os.listdir(env["TMPDIR"])
    profile(source="memory", env=env)
    assert not os.listdir(env["TMPDIR"])


def test_a_run_leaves_directories_that_another_run_uses(directory):
    process, env, pid = embedded_run(directory)
    profile(source="memory", env=env)
    assert process.poll() is None and len(os.listdir(env["TMPDIR"])) == 1
    process.send_signal(signal.SIGINT)
    finish(process, 130)
    assert not os.listdir(env["TMPDIR"])


def is_lost(err):
    """Returns whether the message is that of a daemon that ended with a request in flight, between two of them or two connections, or before
    the statistics."""
    return any(words in err for words in ("the daemon went away while", "cannot be sent", "the connection to the daemon was lost",
                                          "cannot get the daemon's properties"))


@pytest.mark.parametrize("source", ["memory", "file"])
def test_an_embedded_daemon_that_is_killed(directory, source):
    process, env, pid = embedded_run(directory, source)
    os.kill(pid, signal.SIGKILL)
    out, err = finish(process, 1)
    assert is_lost(err) and "signal 9" in err
    assert not os.listdir(env["TMPDIR"])


# --- failures ---

def test_nothing_to_read(daemon):
    result = bench(*arguments(source="file"), "--json", daemon=daemon, check=1)
    assert "nothing to read" in result.stderr and "--source memory" in result.stderr
    assert "nothing to read" in json.loads(result.stdout)["configurations"][0]["error"]


def test_read_fails_if_only_a_part_was_written(daemon):
    profile(LLAMA, BLOCK, "--start_batch_size", "5", "--max_batch_size", "5", "--no-raw", source="memory", daemon=daemon)
    result = bench(*arguments(source="file"), daemon=daemon, check=1)
    assert re.search(r"only 5 of \d+ blocks are stored", result.stderr)


def segments_with_data(daemon):
    return [f for f in daemon.store.iterdir() if f.name.startswith("segment")]


@pytest.mark.parametrize("cold", [True, False])
def test_a_truncated_store_file(daemon, cold):
    profile(LLAMA, BLOCK, "--no-raw", source="memory", daemon=daemon)
    for f in segments_with_data(daemon):
        os.truncate(f, 4096)
    result = bench(*arguments(source="file"), *(["--cold"] if cold else []), daemon=daemon, check=1)
    assert re.search(r"block \d+ of \d+ is missing", result.stderr) and "KVCACHE  " not in result.stdout


def test_a_store_file_that_is_truncated_during_the_run(daemon):
    profile(LLAMA, BLOCK, "--no-raw", source="memory", daemon=daemon)
    process = start(daemon, *arguments(source="file"), "--cold", "--num_iter", "1000000", "--no-raw")
    wait_until(lambda: daemon.metric('kvcache_hits_total{tier="disk"}') > 200, "it reads", 30)
    for f in segments_with_data(daemon):
        os.truncate(f, 4096)
    out, err = finish(process, 1)
    assert re.search(r"block \d+ of \d+ is missing", err) and not out.strip()


@pytest.mark.parametrize("source", ["memory", "file"])
def test_a_daemon_that_is_killed_during_the_run(make_daemon, source):
    daemon = make_daemon().start()
    profile(LLAMA, BLOCK, "--no-raw", source="memory", daemon=daemon)
    before = daemon.metric('kvcache_requests_total{op="GET"}' if source == "file" else "kvcache_puts_total")
    process = start(daemon, *arguments(source=source), "--num_iter", "1000000")
    wait_until(lambda: daemon.metric('kvcache_requests_total{op="GET"}' if source == "file" else "kvcache_puts_total")
               > before + 20, "it is at work", 30)
    daemon.kill()
    out, err = finish(process, 1)
    assert is_lost(err) and not out.strip()


def test_a_daemon_that_is_restarted_during_the_run(make_daemon):
    daemon = make_daemon().start()
    process = start(daemon, *arguments(source="memory"), "--num_iter", "1000000", "--no-raw")
    wait_until(lambda: daemon.metric("kvcache_puts_total") > 20, "it is at work", 30)
    daemon.restart(kill=True)
    out, err = finish(process, 1)
    assert (is_lost(err) or "restarted" in err) and not out.strip()


def test_wrong_bytes_are_found(daemon):
    said = profile(LLAMA, LAYER, "--no-raw", source="memory", daemon=daemon)
    listed = json.loads(ctl("status", "--json", daemon=daemon).stdout)
    name = next(n["name"] for n in listed["namespaces"] if n["name"].startswith("kvbench/"))
    with daemon.client() as c:
        ns = c.namespace(name, attach=True)
        key = bytes(list(c.list(ns))[3].key)
        value = bytearray(harness.get_all(c, ns, [key])[key])
        value[-1] ^= 1
        c.evict(ns, [key])
        c.put(ns, [(key, bytes(value))])
    result = bench(*arguments(LLAMA, LAYER, source="file"), daemon=daemon, check=1)
    assert re.search(rf"block \d+ is wrong: 1 of {said['block_size']} bytes differ, the first at offset "
                     rf"{said['block_size'] - 1}", result.stderr)


def raw_file(kept):
    (found,) = [f for f in kept.iterdir() if f.suffix == ".raw"]
    return found


@pytest.mark.parametrize("how", ["uring", "posix"])
def test_a_truncated_file_of_raw(directory, how):
    if how == "uring" and not harness.has_io_uring():
        pytest.skip("this host refuses io_uring")
    kept = directory / "files"
    kept.mkdir()
    more = ["--backend", "RAW", "--io", how, "--filepath", str(kept)]
    profile(LLAMA, BLOCK, *more, source="memory")
    size = raw_file(kept).stat().st_size
    os.truncate(raw_file(kept), size // 2 + 4096)
    result = bench(*arguments(source="file"), *more, check=1)
    assert "ended after" in result.stderr and str(raw_file(kept)) in result.stderr and "RAW  " not in result.stdout

    os.truncate(raw_file(kept), size)  # holes: of the right length, and wrong
    result = bench(*arguments(source="file"), *more, check=1)
    assert "is wrong" in result.stderr


def test_a_file_of_raw_that_is_truncated_during_the_run(directory):
    kept = directory / "files"
    kept.mkdir()
    more = ["--backend", "RAW", "--filepath", str(kept)]
    profile(LLAMA, BLOCK, *more, source="memory")
    process = start(None, *arguments(source="file"), *more, "--num_iter", "1000000")

    def reading():
        assert process.poll() is None, process.communicate()
        text = pathlib.Path(f"/proc/{process.pid}/io").read_text()
        return int(re.search(r"read_bytes: (\d+)", text)[1]) > 16 * MIB

    wait_until(reading, "it reads", 30)
    os.truncate(raw_file(kept), 4096)
    out, err = finish(process, 1)
    assert "ended after" in err and not out.strip()


def test_raw_has_nothing_to_read(directory):
    result = bench(*arguments(source="file"), "--backend", "RAW", "--filepath", directory, check=1)
    assert "nothing to read" in result.stderr and "--source memory" in result.stderr


def test_a_workload_that_the_store_cannot_hold(daemon):
    result = bench(*arguments(source="memory"), "--isl", "100000", daemon=daemon, check=1)
    assert "store.limit" in result.stderr and daemon.metric("kvcache_puts_total") == 0


def test_a_block_that_the_daemon_cannot_hold(daemon):
    result = bench(*arguments(source="memory"), "--start_block_size", "50000000", "--max_block_size", "50000000",
                 "--start_batch_size", "1", "--max_batch_size", "1", daemon=daemon, check=1)
    assert "50000000 bytes" in result.stderr and "at most" in result.stderr


def test_a_disk_without_room(directory):
    result = bench(*arguments(source="memory"), "--isl", "1000000000", env=without_daemon(directory), check=1)
    assert "--filepath" in result.stderr and "TiB" in result.stderr
    result = bench(*arguments(source="memory"), "--isl", "1000000000", "--backend", "RAW", "--filepath", directory, check=1)
    assert "--filepath" in result.stderr and "TiB" in result.stderr


def test_a_directory_that_is_not_there(directory):
    for more in (["--backend", "RAW"], []):
        result = bench(*arguments(source="memory"), *more, "--filepath", directory / "none" / "at all", check=1,
                     env={"KVCACHE_SOCKET": str(directory / "nobody")})
        assert str(directory / "none" / "at all") in result.stderr


# --- options ---

def test_parameters_of_other_machines_are_named_as_unused(daemon):
    result = bench(*arguments(source="memory"), "--etcd-endpoints", "http://localhost:2379", "--device_list", "mlx5_0",
                 "--no-raw", daemon=daemon, check=0)
    lines = [line for line in result.stderr.splitlines() if "profile does not use these options: " in line]
    assert len(lines) == 1 and "etcd_endpoints" in lines[0] and "device_list" in lines[0]
    for direct, named in (("false", True), ("true", False)):
        result = bench(*arguments(source="memory"), "--storage_enable_direct", direct, "--no-raw", daemon=daemon, check=0)
        assert ("profile does not use these options: --storage_enable_direct" in result.stderr) == named


@pytest.mark.parametrize("more", [["--scheme", "tp"], ["--mode", "MG"], ["--num_initiator_dev", "2"],
                                  ["--num_target_dev", "4"], ["--backend", "UCX"], ["--num_threads", "1000000"],
                                  ["--num_iter", "0"], ["--destination", "memory"],
                                  ["--start_block_size", "9", "--max_block_size", "8"],
                                  ["--start_batch_size", "9", "--max_batch_size", "8"]],
                         ids=lambda more: " ".join(more))
def test_unsupported_parameters_are_refused(daemon, more):
    result = bench(*arguments(source="memory"), *more, daemon=daemon)
    assert result.returncode in (1, 2) and more[0].lstrip("-").split("_")[-1] in result.stderr and result.stdout == ""
    assert daemon.metric("kvcache_puts_total") == 0


def test_io_must_be_the_daemons(make_daemon):
    daemon = make_daemon(settings={"io.backend": "posix"}).start()
    result = bench(*arguments(source="memory"), "--io", "uring", daemon=daemon, check=1)
    assert "--io uring" in result.stderr and "posix" in result.stderr
    assert "posix" in profile(LLAMA, BLOCK, "--io", "posix", source="memory", daemon=daemon)["io"]


def test_a_bar_on_a_terminal(daemon):
    master, slave = pty.openpty()
    process = harness.spawn([str(harness.BENCH), "--socket", daemon.socket, *map(str, arguments(source="memory")),
                             "--num_iter", "1000000", "--no-raw"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=slave)
    os.close(slave)
    seen, deadline = b"", time.monotonic() + 60 * harness.slow()
    while b"%" not in seen and time.monotonic() < deadline and process.poll() is None:
        if select.select([master], [], [], 0.1)[0]:
            seen += os.read(master, 4096)
    process.send_signal(signal.SIGINT)
    process.communicate()
    os.close(master)
    assert re.search(rb"\r\[[#.]+\] +\d+ %", seen) and process.returncode == 130


# --- KVBench's own documentation ---

DOCUMENTED = [  # commands, and whether they take a GPU
    ("--backend GDS --source gpu --num_requests 10 --etcd-endpoints http://localhost:2379", True),
    ("--backend GDS --source file --page_size 256 --isl 1000 --etcd-endpoints http://localhost:2379", True),
    ("--source gpu --etcd_endpoints http://localhost:2379", True),
    ("--backend POSIX --source memory --isl 100 --num_requests 2 --etcd-endpoints http://localhost:2379", False),
    ("--backend POSIX --source file --isl 100 --num_requests 2 --etcd-endpoint=http://localhost:2379", False),
    ("--source memory --isl 100 --num-requests 2 --page-size 256 --runtime_type ETCD --worker_type nixl", False),
    ("--isl 100 --num_requests 2 --op_type READ --initiator_seg_type DRAM --target_seg_type DRAM --mode SG", False),
    ("--source memory --isl 100 --num_requests 2 --scheme pairwise --num_initiator_dev 1 --num_target_dev 1", False),
]


@pytest.mark.documents
@pytest.mark.parametrize("words,takes_gpu", DOCUMENTED, ids=[words for words, _ in DOCUMENTED])
def test_commands_of_the_documentation(directory, words, takes_gpu):
    if takes_gpu and HAS_DRIVER:
        pytest.skip("this host has an NVIDIA driver")
    result = bench("profile", "--model", DEEPSEEK, "--model_config", BLOCK, *shlex.split(words), "--num_iter", "1",
                 env=without_daemon(directory), check=1 if takes_gpu else 0, timeout=120)
    if takes_gpu:
        assert "libcuda.so.1" in result.stderr and result.stdout == ""
    else:
        assert "0 wrong bytes" in result.stdout and ("READ, file" if "file" in words or "READ" in words else "WRITE, memory") in result.stdout
    assert ("profile does not use these options: --etcd_endpoints" in result.stderr) == ("etcd" in words)
