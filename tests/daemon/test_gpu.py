# SPDX-License-Identifier: Apache-2.0
"""Blocks of a GPU through a real daemon, with a driver without a GPU; on a host with a GPU, with the real driver.

gpu-check compares every byte. It runs with the drivers that a host may have: none, one that is too old, one of CUDA 11, a current one."""

import os
import pathlib
import subprocess

import pytest

from harness import BUILD
from left_out import first_of
from test_bench_sessions import INIT, STATUS
from test_gds_puts import needs_disk

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = pathlib.Path(BUILD) / "tests/gpu"


def run(*command, driver=None, cufile=None, **more):
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"} | more
    if driver:
        env["LD_LIBRARY_PATH"] = ":".join(str(GPU / folder) for folder in (driver, cufile) if folder)
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, env=env, timeout=300)


def has_real_driver():
    return run(GPU / "gpu-check", "none", "probe").returncode == 0


@pytest.mark.parametrize("driver,batch", first_of([("cuda-old", 0), ("cuda", 1)]))
def test_every_layout_by_every_engine(daemon, driver, batch):
    done = run(GPU / "gpu-check", daemon.socket, "check", driver=driver)
    assert done.returncode == 0 and done.stdout.endswith("all bytes right\n"), done
    lines = done.stdout.splitlines()[:-1]
    assert len(lines) == 7 and all(f"kernel 1 batch {batch} " in line and line.endswith(" 0 failures") for line in lines), lines
    assert [" 0 through staging" in line for line in lines] == [True] * 5 + [False, True]


def moved(daemon):
    """Returns {(path, technology): {layout: the session's row}} of the transfers that had a device at one end."""
    with daemon.client() as c:
        rows = [m for m in c.bench(STATUS)["metrics"] if "device" in m["path"]]
    return {kind: {m["layout"]: m for m in rows if (m["path"], m["technology"]) == kind} for kind in {(m["path"], m["technology"]) for m in rows}}


def test_each_layout_and_engine_has_its_row(daemon):
    with daemon.client() as c:
        c.bench(INIT, "check")
    run(GPU / "gpu-check", daemon.socket, "check", driver="cuda")
    rows = moved(daemon)
    assert {technology for _, technology in rows} >= {"cuda_kernel", "cuda_batch", "cuda_copy"}
    for path in "host_to_device", "device_to_host":
        for technology in "cuda_kernel", "cuda_batch":
            assert set(rows[path, technology]) == {"fully_contiguous", "layer_separate_block_first", "layer_separate_outer_first"}
    assert sum(map(len, rows.values())) == 16, "of 18, for which the connection has no room"
    for of in rows.values():
        for m in of.values():
            assert 0 < m["total_bytes"] <= m["device_bytes"] and 0 < m["total_blocks"] <= m["region_count"]
            assert m["technology"] != "cuda_copy" or m["transfer_count"] <= m["region_count"], "adjacent regions are one copy"
            assert not any(m["errors"].values())


def test_listed_regions_by_every_engine(daemon):
    with daemon.client() as c:
        c.bench(INIT, "regions")
    done = run(GPU / "gpu-check", daemon.socket, "regions", driver="cuda")
    assert done.returncode == 0 and done.stdout.endswith("all bytes right\n"), done
    lines = done.stdout.splitlines()[:-1]
    assert len(lines) == 7 and all(" 1 layouts right " in line and line.endswith(" 0 failures") for line in lines), lines
    rows = moved(daemon)
    assert {technology for _, technology in rows} == {"cuda_kernel", "cuda_batch", "cuda_copy"}
    for of in rows.values():
        m, = of.values()
        assert m["layout"] == "regions" and m["total_bytes"] == m["device_bytes"] == m["total_blocks"] * (2 * 7680 + 2 * 4096 + 777)
        assert m["region_count"] == 5 * m["total_blocks"] and not any(m["errors"].values())


@pytest.mark.skipif(has_real_driver(), reason="there is a CUDA driver")
def test_without_a_driver_the_rest_works(daemon):
    done = run(pathlib.Path(BUILD) / "client/example-gpu-blocks", daemon.socket)
    assert done.returncode == 1 and "the CUDA driver cannot be loaded" in done.stderr, done
    assert run(GPU / "gpu-check", daemon.socket, "check").returncode == 77


def test_a_driver_that_lacks_a_function_is_named_with_it(daemon):
    done = run(pathlib.Path(BUILD) / "client/example-gpu-blocks", daemon.socket, driver="cuda-poor")
    assert done.returncode == 1 and "lacks cuMemHostRegister()" in done.stderr, done


def test_the_example(daemon):
    for _ in range(2):  # the second time everything is stored already
        done = run(pathlib.Path(BUILD) / "client/example-gpu-blocks", daemon.socket, driver="cuda")
        assert done.returncode == 0, done
        assert done.stdout.splitlines() == ["4 of 4 blocks were kept", "4 of 4 blocks came back"]


@pytest.mark.figures
def test_a_table_of_rates(make_daemon):
    daemon = make_daemon(settings={"memory.pool": "256MiB", "store.limit": "2GiB"}).start()
    done = run(GPU / "gpu-check", daemon.socket, "bench", "256", driver="cuda")
    assert done.returncode == 0, done
    rows = [line for line in done.stdout.splitlines() if line.startswith(("get, ", "put accepted, "))]
    assert len(rows) == 21, done.stdout
    assert sum(line.startswith(("outer first, ", "listed regions, ")) for line in done.stdout.splitlines()) == 4, done.stdout


@pytest.fixture
def lender(make_daemon):
    daemon = make_daemon(settings={"memory.pool": "256MiB", "store.limit": "1GiB", "io.gds": "on"}).start()
    return daemon


def gds(daemon, reason=None, cufile="cufile", **more):
    done = run(GPU / "gpu-check", daemon.socket, "gds", *([reason] if reason else []), driver="cuda", cufile=cufile, **more)
    assert done.returncode == 0 and "all bytes right" in done.stdout, done
    return done.stdout


def test_blocks_on_disk_come_by_cufile(lender):
    """All blocks come by cuFile, except in the first round, in which the daemon has not verified them yet."""
    assert "1024 blocks by cuFile" in gds(lender)


def test_reads_by_cufile_appear_in_a_session(lender):
    with lender.client() as c:
        c.bench(INIT, "gds")
    said = gds(lender)
    rows = moved(lender)
    read = rows["disk_to_device", "gds"]["fully_contiguous"]
    assert read["total_blocks"] == 1024 and f"in {read['transfer_count']} reads" in said
    assert read["total_bytes"] == 1024 * 16 * 2 * 16384 == sum(
        m["total_bytes"] for (path, _), of in rows.items() if path == "device_to_device" for m in of.values())


def test_a_block_that_cufile_did_not_read_is_an_error(lender):
    with lender.client() as c:
        c.bench(INIT, "gds")
    gds(lender, "the read or the write failed", STUB_CUFILE="cuFileRead 0 9999 100 -5010")
    read = moved(lender)["disk_to_device", "gds"]["fully_contiguous"]
    assert read["errors"]["io"] > 0 == read["errors"]["short"]


@pytest.mark.parametrize("reason,cufile,fault", first_of([
    ("no libcufile.so.0", None, ""),
    ("libcufile lacks a function", "cufile-poor", ""),
    ("cuFile's driver does not open", "cufile", "cuFileDriverOpen 0 9 1 5001"),
    ("no registered device memory", "cufile", "cuFileBufRegister 0 99 1 5036"),
    ("cuFile does not register the file", "cufile", "cuFileHandleRegister 0 9999 1 5027"),
    ("the read or the write failed", "cufile", "cuFileRead 0 9999 100 -5010"),
    ("the read or the write ended early", "cufile", "cuFileRead 0 9999 50 4096"),
]))
def test_blocks_that_cufile_cannot_read_are_read_otherwise(lender, reason, cufile, fault):
    said = gds(lender, reason, cufile, STUB_CUFILE=fault)
    assert f"not: {reason}" in said and ("by cuFile in 0 reads" in said) == ("read" not in reason.split()[:2]), said


def test_a_daemon_that_does_not_lend(make_daemon):
    daemon = make_daemon(settings={"memory.pool": "256MiB", "store.limit": "1GiB", "io.gds": "off"}).start()
    assert "0 blocks by cuFile" in gds(daemon, "the daemon does not lend")


@pytest.fixture
def taker(make_daemon, directory):
    needs_disk(directory)
    return make_daemon(settings={"memory.pool": "256MiB", "store.limit": "1GiB", "io.gds": "on", "io.gds_puts": "on"}).start()


def test_blocks_are_put_by_cufile(taker, directory):
    said = gds(taker, KVCACHE_GDS_PUTS=str(directory))
    assert "1024 blocks by cuFile" in said and "put by cuFile in" in said and "put otherwise" not in said, said
    assert taker.metric('kvcache_transfer_blocks_total{path="device_to_disk",layout="fully_contiguous",technology="gds",result="ok"}') >= 128
    assert taker.metric("kvcache_file_puts_total") >= 128 and taker.metric("kvcache_file_put_failures_total") == 0


@pytest.mark.parametrize("reason,cufile,fault", [
    ("the read or the write failed", "cufile", "cuFileWrite 0 9999 2 -5010"),
    ("the read or the write ended early", "cufile", "cuFileWrite 0 9999 2 4096"),
])
def test_blocks_that_cufile_cannot_put_are_put_otherwise(taker, directory, reason, cufile, fault):
    said = gds(taker, cufile=cufile, STUB_CUFILE=fault, KVCACHE_GDS_PUTS=str(directory))
    assert f"put otherwise: {reason}" in said, said


def test_a_daemon_that_takes_no_files(lender, directory):
    needs_disk(directory)
    said = gds(lender, KVCACHE_GDS_PUTS=str(directory))
    assert "put otherwise: the daemon does not lend" in said and lender.metric("kvcache_file_puts_total") == 0, said


def test_after_a_crash_nothing_is_lent_unread(make_daemon):
    """gpu-check counts the first round's blocks as not verified, and no other."""
    daemon = make_daemon(settings={"memory.pool": "256MiB", "store.limit": "1GiB", "io.gds": "on"}).start()
    for _ in range(2):
        gds(daemon)
        daemon.kill()
        daemon.start()


@pytest.mark.documents
def test_the_script_for_a_host_with_a_gpu(tmp_path):
    packed = run("sh", ROOT / "tests/gpu/pack.sh", BUILD, tmp_path / "pack")
    assert packed.returncode == 0, packed
    done = run("sh", tmp_path / "pack/tests/gpu/on-gpu.sh", tmp_path / "pack", "check", driver="cuda")
    assert done.returncode == 0 and "all bytes right" in done.stdout, done
    done = run("sh", ROOT / "tests/gpu/on-gpu.sh", BUILD, "check", driver="cuda-poor")
    assert done.returncode == 77 and "skipped: the CUDA driver lacks cuMemHostRegister()" in done.stdout, done


@pytest.mark.skipif(not has_real_driver(), reason="no GPU here")
def test_on_the_real_driver():
    done = run("sh", ROOT / "tests/gpu/on-gpu.sh", BUILD, "check")
    assert done.returncode == 0 and "all bytes right" in done.stdout, done
