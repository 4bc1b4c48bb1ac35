# SPDX-License-Identifier: Apache-2.0
"""Blocks of a GPU through a real daemon, over a driver without a GPU; on a host with one, over the real driver.

gpu-check compares every byte; here it meets the drivers that a host may have: none, one that is too old, one of CUDA 11,
a current one."""

import os
import pathlib
import subprocess

import pytest

from harness import BUILD

ROOT = pathlib.Path(__file__).resolve().parents[2]
GPU = pathlib.Path(BUILD) / "tests/gpu"


def run(*command, driver=None):
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    if driver:
        env["LD_LIBRARY_PATH"] = str(GPU / driver)
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, env=env, timeout=300)


def has_real_driver():
    return run(GPU / "gpu-check", "none", "probe").returncode == 0


@pytest.mark.parametrize("driver,batch", [("cuda", 1), ("cuda-old", 0)])
def test_every_layout_by_every_engine(daemon, driver, batch):
    done = run(GPU / "gpu-check", daemon.socket, "check", driver=driver)
    assert done.returncode == 0 and done.stdout.endswith("all bytes right\n"), done
    lines = done.stdout.splitlines()[:-1]
    assert len(lines) == 6 and all(f"kernel 1 batch {batch} " in line and line.endswith(" 0 failures") for line in lines), lines
    assert [" 0 through staging" in line for line in lines] == [True] * 4 + [False, True]


@pytest.mark.skipif(has_real_driver(), reason="there is a CUDA driver")
def test_without_a_driver_the_rest_works(daemon):
    done = run(pathlib.Path(BUILD) / "client/example-gpu-blocks", daemon.socket)
    assert done.returncode == 1 and "no CUDA driver here" in done.stderr, done
    assert run(GPU / "gpu-check", daemon.socket, "check").returncode == 77


def test_a_driver_that_lacks_a_function_is_named_with_it(daemon):
    done = run(pathlib.Path(BUILD) / "client/example-gpu-blocks", daemon.socket, driver="cuda-poor")
    assert done.returncode == 1 and "lacks cuMemHostRegister()" in done.stderr, done


def test_the_example(daemon):
    for _ in range(2):  # the second time all of it is there already
        done = run(pathlib.Path(BUILD) / "client/example-gpu-blocks", daemon.socket, driver="cuda")
        assert done.returncode == 0, done
        assert done.stdout.splitlines() == ["4 of 4 blocks were kept", "4 of 4 blocks came back"]


def test_a_table_of_rates(make_daemon):
    daemon = make_daemon(settings={"memory.pool": "256MiB", "store.limit": "2GiB"}).start()
    done = run(GPU / "gpu-check", daemon.socket, "bench", "256", driver="cuda")
    assert done.returncode == 0, done
    rows = [line for line in done.stdout.splitlines() if line.startswith(("get, ", "put accepted, "))]
    assert len(rows) == 14, done.stdout


def test_the_script_for_a_host_with_a_gpu():
    done = run("sh", ROOT / "tests/gpu/on-gpu.sh", BUILD, "check", driver="cuda")
    assert done.returncode == 0 and "all bytes right" in done.stdout, done
    done = run("sh", ROOT / "tests/gpu/on-gpu.sh", BUILD, "check", driver="cuda-poor")
    assert done.returncode == 77 and "skipped: the CUDA driver lacks cuMemHostRegister()" in done.stdout, done


@pytest.mark.skipif(not has_real_driver(), reason="no GPU here")
def test_on_the_real_driver():
    done = run("sh", ROOT / "tests/gpu/on-gpu.sh", BUILD, "check")
    assert done.returncode == 0 and "all bytes right" in done.stdout, done
