# SPDX-License-Identifier: Apache-2.0
"""Tests LMCache's own classes with kvcache's adapter and a real daemon, without a GPU. Run by run.sh in an environment with LMCache.

    KVCACHE_BUILD=... KVCACHE_LIBRARY=... python lmcache_check.py [SCENARIO...]

The adapter is made by LMCache's factory from the JSON of --l2-adapter. Objects, keys, layouts and bitmaps are LMCache's. The last
scenarios are LMCache's own benchmark, which compares what it loads with what it stored, and its storage manager (0.5.6)."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CLIENT = HERE.parents[1] / "client" / "python"
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "daemon"), str(CLIENT)]

import harness  # noqa: E402
import lmcache  # noqa: E402
import lmcache_scenarios  # noqa: E402
import scenarios  # noqa: E402
import traffic_lmcache  # noqa: E402
import torch  # noqa: E402
from lmcache.v1.distributed import api, config as lmcache_config  # noqa: E402
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey  # noqa: E402
from lmcache.v1.distributed.internal_api import L1MemoryDesc  # noqa: E402
from lmcache.v1.distributed.l2_adapters import create_l2_adapter  # noqa: E402
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config  # noqa: E402
from lmcache.v1.distributed.quota_manager import QuotaManager  # noqa: E402
from lmcache.v1.distributed.storage_controllers.eviction_controller import L2AdapterEvictionState, L2EvictionController  # noqa: E402
from lmcache.v1.distributed.storage_manager import StorageManager  # noqa: E402
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj  # noqa: E402

PLACE, PLACES = 16384, 16
LAYOUTS = {"plain": ([2, 2, 32, 32], torch.bfloat16), "other type": ([2, 2, 32, 32], torch.float16),
           "other shape": ([2, 32, 2, 32], torch.bfloat16), "longer": ([2, 2, 64, 32], torch.bfloat16)}


def adapter_json(socket, **options):
    return json.dumps({"type": "plugin", "module_path": "kvcache.lmcache.adapter", "class_name": "KvcacheL2Adapter",
                       "adapter_params": {"socket": socket, "weights": "tests", "adapter": "none", **options}})


def layout_of(name):
    shape, dtype = LAYOUTS[name]
    return MemoryLayoutDesc([torch.Size(shape)], [dtype])


def key(chunk_hash, model_name="tests/model", kv_rank=0x01000100, **fields):
    return ObjectKey(chunk_hash=chunk_hash, model_name=model_name, kv_rank=kv_rank, **fields)


def make_host(socket, private, options):
    if private:
        arena, path = torch.empty(PLACES * PLACE, dtype=torch.uint8), None
    else:
        fd, path = tempfile.mkstemp(prefix="lmcache_l1_pool_kvcache_test_", dir="/dev/shm")
        os.close(fd)
        arena = torch.from_file(path, shared=True, size=PLACES * PLACE, dtype=torch.uint8)

    def new_object(number, name):
        shape, dtype = LAYOUTS[name]
        nbytes = torch.Size(shape).numel() * dtype.itemsize
        metadata = MemoryObjMetadata(shape=torch.Size(shape), dtype=dtype, address=number * PLACE, phy_size=PLACE, ref_count=1,
                                     fmt=MemoryFormat.KV_2LTD)
        return TensorMemoryObj(raw_data=arena[number * PLACE:number * PLACE + nbytes], metadata=metadata, parent_allocator=None)

    config = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[adapter_json(socket, **options)]))
    adapter = create_l2_adapter(config.adapters[0], L1MemoryDesc(arena.data_ptr(), PLACES * PLACE, 4096))
    host = lmcache_scenarios.Host(adapter, key, new_object, layout_of)
    host.layout_bytes, host.path, host.arena = 8192, path, arena
    return host


def lmcache_s_own_benchmark(make, daemon):
    """Runs lmcache bench l2, with its verification."""
    command = [sys.executable, "-c", "import sys; from lmcache.cli.main import main; sys.exit(main())", "bench", "l2", "--l2-adapter",
               adapter_json(daemon.socket), "--num-keys", "16", "--in-flight", "3", "--lookup-max-hit-rate", "1.0", "--no-skip-verify"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(CLIENT)}, capture_output=True, text=True, timeout=120)
    print(done.stdout[-3000:], done.stderr[-1000:] if done.returncode else "")
    assert done.returncode == 0, f"it ended with {done.returncode}"
    assert "All 48 keys data verified OK" in done.stdout and re.search(r"Actual hit rate: +1\.00", done.stdout)


def lmcache_s_storage_manager(make, daemon):
    """LMCache's L1 in /dev/shm, its two controllers and their layouts: one storage manager stores chunks, and the next one prefetches them."""
    layout, keys = layout_of("plain"), [key(bytes([i]) * 32) for i in range(6)]

    def start():
        l2 = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[adapter_json(daemon.socket, ack="written")]))
        l1 = lmcache_config.L1ManagerConfig(lmcache_config.L1MemoryManagerConfig(size_in_bytes=8 << 20, use_lazy=False))
        manager = StorageManager(lmcache_config.StorageManagerConfig(l1, lmcache_config.EvictionConfig("LRU"), l2))
        adapter = next(iter(manager._l2_adapters.values()))
        while hasattr(adapter, "_inner"):
            adapter = adapter._inner
        return manager, adapter

    manager, adapter = start()
    try:
        assert [r.registered for _, _, r in adapter._link._regions] == [True], "its memory is not registered"
        for i, thing in enumerate(manager.reserve_write(keys, layout).values()):
            lmcache_scenarios.fill(thing, bytes([i + 1]) * 8192)
        manager.finish_write(keys)
        lmcache_scenarios.wait_for("all are stored", lambda: adapter.counters["stored_pages"] == len(keys))
    finally:
        manager.close()
    daemon.kill()
    daemon.start()
    manager, adapter = start()
    try:
        handle = manager.submit_prefetch_task(api.PrefetchTaskSpec([api.GroupedObjectKeys(keys, 0, layout)]))
        assert manager.wait_prefetch_status(handle, 20)
        assert manager.query_prefetch_status(handle).l2_hit_count == len(keys)
        with manager.read_prefetched_results(keys) as objects:
            assert [bytes(o.byte_array) for o in objects] == [bytes([i + 1]) * 8192 for i in range(len(keys))]
        assert not adapter.counters["errors"]
    finally:
        manager.close()


def lmcache_s_quotas(make, daemon):
    """LMCache's quotas by salt, and its policy LRU, delete objects of this L2, of which the adapter has notified them."""
    for policy, options in (("IsolatedLRU", {}), ("LRU", {"capacity_bytes": 10 * 8192})):
        host = make(namespace=policy, **options)
        quotas = QuotaManager()
        quotas.set_quota("kept", 1 << 30)
        quotas.set_quota("full", 4 * 8192)
        state = L2AdapterEvictionState(0, host.adapter, lmcache_config.EvictionConfig(policy, trigger_watermark=0.8, eviction_ratio=0.5))
        controller = L2EvictionController([state], quotas)
        kept, full, none = (host.keys(policy, n, cache_salt=salt) for salt, n in (("kept", 4), ("full", 4), ("none", 2)))
        assert host.store(kept) and host.store(full) and host.store(none)
        assert host.find(kept) == [True] * 4
        controller._check_and_evict(state)
        left = {salt: sum(host.find(keys)) for salt, keys in (("kept", kept), ("full", full), ("none", none))}
        assert {s: n * 8192 for s, n in left.items() if n} == lmcache_scenarios.usage_of(host), left
        if policy == "IsolatedLRU":
            assert left == {"kept": 4, "full": 2, "none": 0} and host.find(full) == [True] * 2 + [False] * 2, "ends leave first"
        else:
            assert sum(left.values()) == 5 and left["kept"] == 4, left
        assert not host.counters["errors"]


def the_traffic_benchmark_starts_lmcache_s_server(make, daemon):
    """LMCache's server starts with the options of each arm of the traffic benchmark, and reports what the benchmark reads."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CLIENT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        for arm in ("lmcache", "lmcache-fs", "lmcache-tier"):
            server = traffic_lmcache.Server(dict(arm=arm, cpu_bytes=64 << 20, files=folder, socket=daemon.socket))
            try:
                known = server.figures()
                assert known["l1_objects"] == 0 and len(known["l2"] or []) == (arm != "lmcache"), known
            finally:
                server.process.kill()
                server.process.wait()
                pathlib.Path(f"/dev/shm/lmcache_l1_pool_traffic_{os.getpid()}").unlink(missing_ok=True)


def run(scenario, daemon, end):
    def make(private=False, **options):
        host = make_host(daemon.socket, private, options)
        if host.path is not None:
            end.callback(os.unlink, host.path)
        end.callback(host.close)
        return host

    scenario(make, daemon)


def main():
    all_of_them = [*lmcache_scenarios.SCENARIOS, lmcache_s_quotas, lmcache_s_own_benchmark, the_traffic_benchmark_starts_lmcache_s_server]
    if hasattr(api, "PrefetchTaskSpec"):
        all_of_them.append(lmcache_s_storage_manager)
    else:
        print("LMCache's storage manager is not run: it has other calls in this version", flush=True)
    status = scenarios.run_all("LMCache", getattr(lmcache, "__version__", "?"), all_of_them, sys.argv[1:], harness.Daemon, run)
    os._exit(status)  # without the teardown of what LMCache imports for a GPU


if __name__ == "__main__":
    main()
