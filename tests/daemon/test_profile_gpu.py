# SPDX-License-Identifier: Apache-2.0
"""kvcache-bench profile with blocks in GPU memory, with a driver without a GPU: the CPU cannot reach its device memory, and it performs copies
late and in any order."""

import csv
import io
import json
import re

import pytest

import harness
import test_profile
from harness import BUILD, bench, ctl
from left_out import first_of
from test_gpu import has_real_driver
from test_profile import BLOCK, DEEPSEEK, DEPLOYMENTS, LAYER, LLAMA, MODELS, arguments, check_measured, without_daemon

LAYOUTS = ["contiguous", "block-first", "outer-first"]


def stub(*names):
    return {"LD_LIBRARY_PATH": ":".join(str(BUILD / "tests/gpu" / name) for name in names or ["cuda"])}


def profile(*how, driver="cuda", env=None, **named):
    return test_profile.profile(*how, env={**(env or {}), **stub(*driver.split())}, **named)


def total(said):
    return said["batch_size"] * said["block_size"]


@pytest.mark.parametrize("model", first_of([LLAMA, DEEPSEEK]), ids=["llama", "deepseek"])
@pytest.mark.parametrize("deployment", [BLOCK, LAYER], ids=["block", "layer"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_out_of_a_gpu_and_back(daemon, model, deployment, layout):
    wrote = profile(model, deployment, "--layout", layout, source="gpu", daemon=daemon)
    check_measured(wrote, verified=total(wrote))
    assert (wrote["op_type"], wrote["source"], wrote["destination"]) == ("WRITE", "gpu", "file")
    assert wrote["raw"]["bytes_moved"] == wrote["bytes_moved"] and wrote["of_raw"] > 0
    outer = 1 if model == DEEPSEEK else 2
    layers = 1 if deployment == LAYER else 4 if model == DEEPSEEK else 2
    gpu = wrote["gpu"]
    assert (gpu["layout"], gpu["layers"], gpu["outer"]) == (layout, layers, outer)
    assert gpu["region_bytes"] * layers * outer == wrote["block_size"]
    assert gpu["pieces_per_block"] == {"contiguous": 1, "block-first": layers, "outer-first": layers * outer}[layout]
    # three writes, a warm-up, and one that is read back
    assert gpu["bytes_copied"] == 5 * total(wrote)

    for cold in (False, True):
        read = profile(model, deployment, "--layout", layout, "--destination", "gpu", *(["--cold"] if cold else []),
                       source="file", daemon=daemon)
        check_measured(read, verified=3 * total(wrote))
        assert (read["op_type"], read["source"], read["destination"]) == ("READ", "file", "gpu")
        assert read["gpu"]["blocks_from_pool"] + read["gpu"]["blocks_through_staging"] == 4 * read["batch_size"]
        if cold:
            assert daemon.metric('kvcache_hits_total{tier="disk"}') >= 4 * read["batch_size"]
    assert daemon.metric("kvcache_store_crc_failures_total") == 0
    assert daemon.status()["sessions"]["leases"] == 0


def test_every_layout_and_memory_reads_blocks_of_any_other(daemon):
    """The stored bytes do not depend on the layout or memory they came from."""
    profile(LLAMA, BLOCK, "--no-raw", source="memory", daemon=daemon)
    for layout in LAYOUTS:
        read = profile(LLAMA, BLOCK, "--layout", layout, "--destination", "gpu", "--no-raw", source="file", daemon=daemon)
        assert read["bytes_verified"] == 3 * total(read)
        profile(LLAMA, BLOCK, "--layout", layout, "--no-raw", source="gpu", daemon=daemon)
        check_measured(profile(LLAMA, BLOCK, "--no-raw", source="file", daemon=daemon), verified=3 * total(read))


@pytest.mark.parametrize("how", first_of([["--page_size", "3"], ["--tp", "8", "--page_size", "7"], ["--tp", "8", "--page_size", "1"]]),
                         ids=["1728", "504", "72"])
def test_sizes_that_are_no_multiple_of_512(daemon, how):
    wrote = profile(DEEPSEEK, LAYER, *how, "--isl", "10", source="gpu", daemon=daemon)
    check_measured(wrote, verified=total(wrote))
    read = profile(DEEPSEEK, LAYER, *how, "--isl", "10", "--cold", "--destination", "gpu", source="file", daemon=daemon)
    check_measured(read, verified=3 * total(wrote))


def test_a_block_of_part_of_a_layer_is_one_piece(daemon):
    said = profile(MODELS / "qwen3_8b.yaml", DEPLOYMENTS / "block-tp1-pp8.yaml", source="gpu", daemon=daemon)
    check_measured(said, verified=total(said))
    assert said["gpu"]["pieces_per_block"] == 1 and "not a whole number of layers" in said["note"]


@pytest.mark.parametrize("users,clients", first_of([(5, 2), (1, 3), (7, 7)]))
def test_users_and_clients(daemon, users, clients):
    more = ["--num_requests", str(users), "--num_threads", str(clients), "--num_iter", "2", "--isl", "40"]
    wrote = profile(LLAMA, LAYER, *more, "--check_consistency", source="gpu", daemon=daemon)
    check_measured(wrote, iterations=2, verified=2 * total(wrote))
    read = profile(LLAMA, LAYER, *more, "--cold", "--destination", "gpu", source="file", daemon=daemon)
    check_measured(read, iterations=2, verified=2 * total(wrote))


def test_more_than_one_window(make_daemon):
    """Each window has 512 MiB, and the GPU's memory holds only one."""
    daemon = make_daemon(settings={"memory.pool": "256MiB", "store.limit": "2GiB"}).start()
    more = ["--start_block_size", "2097152", "--max_block_size", "2097152", "--start_batch_size", "300", "--max_batch_size",
            "300", "--num_iter", "1", "--warmup_iter", "0", "--no-raw"]
    wrote = profile(LLAMA, BLOCK, *more, source="gpu", daemon=daemon)
    check_measured(wrote, iterations=1, verified=total(wrote))
    read = profile(LLAMA, BLOCK, *more, "--destination", "gpu", source="file", daemon=daemon)
    check_measured(read, iterations=1, verified=total(wrote))


def test_an_old_driver_and_an_embedded_daemon(directory):
    said = profile(LLAMA, BLOCK, "--destination", "gpu", driver="cuda-old", source="file", env=without_daemon(directory))
    check_measured(said, verified=3 * total(said))
    assert said["daemon"] == "embedded" and said["gpu"]["batch_copies"] == 0


@pytest.mark.parametrize("source", ["gpu", "file"])
def test_gds_reports_its_fallback(daemon, source):
    profile(LLAMA, BLOCK, "--no-raw", source="gpu", daemon=daemon)
    said = profile(LLAMA, BLOCK, "--backend", "GDS", source=source, daemon=daemon)
    check_measured(said, verified=(1 if source == "gpu" else 3) * total(said))
    assert said["backend"] == "GDS" and said["gpu"]["gds_blocks"] == 0
    assert said["gpu"]["gds_unused"] == "no libcufile.so.0" and said["gpu"]["gds_fallbacks"]["no libcufile.so.0"] > 0
    assert said["cold"] and "gpu" in (said["source"], said["destination"])


def test_gds_counts_blocks_it_moved(daemon):
    wrote = profile(LLAMA, BLOCK, "--no-raw", source="gpu", daemon=daemon)
    said = profile(LLAMA, BLOCK, "--backend", "GDS", driver="cuda cufile", source="file", daemon=daemon)
    check_measured(said, verified=3 * total(wrote))
    gpu = said["gpu"]
    assert gpu["gds_unused"] is None and gpu["gds_blocks"] > 0
    # The first command has read all chunks back, so they are verified and can be lent.
    assert gpu["gds_fallbacks"] == {} and gpu["blocks_from_pool"] + gpu["blocks_through_staging"] == 0
    assert gpu["gds_blocks"] == 4 * said["batch_size"], "a warm-up and three passes"
    text = bench(*arguments(LLAMA, BLOCK, "--backend", "GDS", "--no-raw", source="file"), daemon=daemon, env=stub("cuda", "cufile"), check=0)
    assert re.search(r"^GPU 0: [1-9]\d* blocks were read by GPUDirect Storage; blocks are written", text.stdout, re.M)


def test_text_and_csv(daemon):
    text = bench(*arguments(source="gpu"), daemon=daemon, env=stub(), check=0).stdout
    assert "WRITE, gpu to file" in text and re.search(r"^GPU 0: .*; outer-first, blocks of 4 pieces of 16 KiB; in all", text, re.M)
    rows = list(csv.DictReader(io.StringIO(
        bench(*arguments(source="gpu"), "--format", "csv", daemon=daemon, env=stub(), check=0).stdout)))
    assert [(r["backend"], r["layout"], r["pieces_per_block"]) for r in rows] == [("KVCACHE", "outer-first", "4"), ("RAW", "", "")]


def test_wrong_bytes_in_gpu_memory_are_found(daemon):
    said = profile(LLAMA, LAYER, "--no-raw", source="gpu", daemon=daemon)
    listed = json.loads(ctl("status", "--json", daemon=daemon).stdout)
    name = next(n["name"] for n in listed["namespaces"] if n["name"].startswith("kvbench/"))
    with daemon.client() as c:
        ns = c.namespace(name, attach=True)
        key = bytes(list(c.list(ns))[3].key)
        value = bytearray(harness.get_all(c, ns, [key])[key])
        value[-1] ^= 1
        c.evict(ns, [key])
        c.put(ns, [(key, bytes(value))])
    result = bench(*arguments(LLAMA, LAYER, source="file"), "--destination", "gpu", daemon=daemon, env=stub(), check=1)
    assert re.search(rf"block \d+ is wrong: 1 of {said['block_size']} bytes differ, the first at offset "
                     rf"{said['block_size'] - 1} \(in GPU memory\)", result.stderr)
    assert "KVCACHE  " not in result.stdout


def test_nothing_to_read(daemon):
    result = bench(*arguments(source="file"), "--destination", "gpu", daemon=daemon, env=stub(), check=1)
    assert "nothing to read" in result.stderr and "--source gpu" in result.stderr


# --- refusals ---

@pytest.mark.skipif(has_real_driver(), reason="there is a CUDA driver")
@pytest.mark.parametrize("how", [("gpu",), ("file", "--destination", "gpu"), ("gpu", "--backend", "GDS"),
                                 ("file", "--backend", "GDS")], ids=" ".join)
def test_without_a_driver(daemon, how):
    result = bench(*arguments(source=how[0]), *how[1:], daemon=daemon, check=1)
    assert "needs a GPU: the CUDA driver cannot be loaded: libcuda.so.1" in result.stderr and result.stdout == ""


def test_a_driver_that_lacks_a_function(daemon):
    result = bench(*arguments(source="gpu"), daemon=daemon, env=stub("cuda-poor"), check=1)
    assert "lacks cuMemHostRegister()" in result.stderr and result.stdout == ""


def test_options_that_do_not_fit(daemon):
    for more, status, said in [(["--gpu", "7"], 1, "no device 7"), (["--gpu", "5000000000"], 1, "no such GPU"),
                               (["--layout", "sideways"], 2, "contiguous, block-first, outer-first"),
                               (["--backend", "RAW"], 1, "RAW"), (["--destination", "memory"], 1, "writes into its store")]:
        result = bench(*arguments(source="gpu"), *more, daemon=daemon, env=stub(), check=status)
        assert said in result.stderr and result.stdout == "", more
    result = bench(*arguments(source="memory"), "--target_seg_type", "VRAM", daemon=daemon, env=stub(), check=1)
    assert "--target_seg_type VRAM: this workload has no GPU memory; use --source gpu" in result.stderr
    result = bench(*arguments(source="memory"), "--layout", "contiguous", "--num_iter", "1", daemon=daemon, check=0)
    assert "--layout and --gpu are not used" in result.stderr
