# SPDX-License-Identifier: Apache-2.0
"""Tests SGLang's own classes with kvcache's storage backend and a real daemon; no GPU. Run by run.sh in an environment with SGLang.

    KVCACHE_BUILD=... KVCACHE_LIBRARY=... python sglang_check.py [SCENARIO...]

SGLang's StorageBackendFactory makes the backend, as for --hicache-storage-backend dynamic, over its host pools with its shared memory
allocator. The last scenario runs the threads of its HiCacheController, with the token hashes that it computes, but without moving pages to
and from a GPU."""

import inspect
import os
import pathlib
import sys
import threading
import time
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "daemon"), str(HERE.parents[1] / "client" / "python"),
                str(HERE.parents[0] / "python")]

import fake_sglang  # noqa: E402
import harness  # noqa: E402
import scenarios  # noqa: E402
import sglang  # noqa: E402
import sglang_arguments  # noqa: E402
import sglang_scenarios  # noqa: E402
import torch  # noqa: E402
from sglang.srt.managers import cache_controller  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolHitPolicy, PoolName, PoolTransfer  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool  # noqa: E402
from sglang.srt.mem_cache.pool_host import base as pool_base  # noqa: E402
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402

from kvcache.sglang import facts  # noqa: E402

facts.bag = fake_sglang.configuration().__getitem__  # SGLang publishes its configuration where it starts a scheduler
PAGE, PAGES, LAYERS = 64, 64, 2
pool_base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # the pools of a test are small
NAMES = {"backend_name": "kvcache", "module_path": "kvcache.sglang.storage", "class_name": "KvcacheStorage", "interface_v1": 1,
         "allocator": "shm"}


def host_pool(kind="mha", layout="page_first", allocator="shm"):
    """Returns SGLang's host pool, with one page more than PAGES where SGLang adds one."""
    common = dict(size=PAGES * PAGE // 2, page_size=PAGE, dtype=torch.bfloat16, layer_num=LAYERS, device="cpu", enable_memory_saver=False)
    if kind == "mha":
        device, host = MHATokenToKVPool(head_num=2, head_dim=16, **common), MHATokenToKVPoolHost
    else:
        device, host = MLATokenToKVPool(kv_lora_rank=48, qk_rope_head_dim=16, **common), MLATokenToKVPoolHost
    how = dict(host_to_device_ratio=2.0, host_size=0, page_size=PAGE, layout=layout, pin_memory=False, device="cpu",
               allocator_type=allocator)
    accepted = inspect.signature(host.__init__).parameters
    if "buffer_info" in accepted:
        info = device._mha_buffer_info() if kind == "mha" else device._mla_buffer_info()
        how.update(device_capacity_tokens=device.size, start_layer=0, end_layer=LAYERS)
        if "target_layer_num" in accepted:
            how["target_layer_num"] = LAYERS
        return host(info, **how)
    return host(device, **how)


def indices(pages):
    return torch.tensor([p * PAGE + t for p in pages for t in range(PAGE)], dtype=torch.int64)


def config(extra, **changed):
    fields = dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False,
                  enable_storage_metrics=True, is_page_first_layout=True, model_name="tests/model")
    return HiCacheStorageConfig(**{**fields, **changed}, extra_config=extra)


def make_host(socket, config_changes, pool, pages, options):
    host = host_pool(**(pool or {}))
    storage = StorageBackendFactory.create_backend("dynamic", config({**NAMES, "socket": socket, "weights": "tests", **options},
                                                                     **(config_changes or {})), host)
    storage.register_mem_pool_host(host)
    if hasattr(storage, "on_host_pools_registered"):
        storage.on_host_pools_registered()
    return sglang_scenarios.Host(storage, host, indices, *pages)


class Controller(cache_controller.HiCacheController):
    """SGLang's controller without the device: its threads, queues and hashes."""

    def __init__(self, socket, pool, **options):
        self.mem_pool_host = self.storage_host_pool = pool
        self.page_size, self.enable_storage, self.storage_backend, self.host_memory_mode = PAGE, False, None, "cache"
        self.has_draft, self.enable_storage_metrics, self.pp_group = False, True, None
        self.tp_group = self.attn_cp_group = self.attn_tp_group = None
        self.prefetch_sync_groups = self.prefetch_hits_sync_groups = self.prefetch_completion_sync_groups = []
        self.storage_stop_event = cache_controller.threading.Event()
        self.ack_prefetch_queue = cache_controller.Queue()
        self._extra = {**NAMES, "socket": socket, "weights": "tests", **options}
        self.attach_storage_backend("dynamic", prefetch_threshold=PAGE, model_name="tests/model", storage_backend_extra_config=self._extra)

    def _generate_storage_config(self, model_name=None, storage_backend_extra_config=None):
        return config(storage_backend_extra_config, model_name=model_name)

    def _create_sync_groups(self):
        return []

    def hashes(self, tokens):
        get = getattr(cache_controller, "get_storage_hash_str", None) or self.get_hash_str
        return get(tokens, None, page_size=PAGE)


def the_controller_s_loads_into_its_pool(daemon):
    the_controller_s_threads(daemon, into=True)


def the_controller_s_threads(daemon, into=False):
    """`into`: the daemon writes to the host pool, so that a load that it holds up keeps its pages. Prompts are backed up and prefetched by SGLang's threads, over kill -9 and SIGSTOP of the daemon."""
    if hasattr(cache_controller, "get_parallel"):
        cache_controller.get_parallel = lambda: types.SimpleNamespace(attn_dcp_size=1)
    pool = host_pool()
    controller = Controller(daemon.socket, pool, ack="written", timeout_s=1.0, load_into=into)
    host = sglang_scenarios.Host(controller.storage_backend, pool, indices)
    loaded = 0

    def backup(tokens, hashes):
        taken = pool.alloc(len(tokens))
        for i, name in enumerate(hashes):
            host.write(int(taken[i * PAGE]) // PAGE, sglang_scenarios.value_of(name, host.page_bytes))
        controller.write_storage(taken, tokens, hash_value=hashes)
        done = controller.ack_backup_queue.get(timeout=30)
        for i in range(len(hashes)):
            host.write(int(taken[i * PAGE]) // PAGE, b"\xee" * host.page_bytes)
        pool.free(taken)
        return done.completed_tokens

    def prefetch(tokens, hashes):
        """Prefetches the tokens. Returns the number of correctly loaded ones, or None if too few were found to be worth loading."""
        operation = controller.prefetch("a request", tokens)
        deadline = time.monotonic() + 30
        revoked = getattr(controller, "prefetch_revoke_queue", None)
        while controller.prefetch_hit_queue.empty() and (revoked is None or revoked.empty()):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        if revoked is not None and not revoked.empty():
            revoked.get()
            return None
        assert controller.prefetch_hit_queue.get() is operation
        if operation.storage_hit_count == 0:
            return None
        operation.host_indices = pool.alloc(operation.storage_hit_count)
        controller.prefetch_buffer.put(operation)
        if controller.prefetch_sync_queue_is_used:
            done = 0
            while True:
                ack = controller.ack_prefetch_queue.get(timeout=30)
                done = max(done, ack.completed_tokens or 0)
                if ack.completed_req:
                    break
        else:
            sglang_scenarios.wait_for("the transfer ends", lambda: operation.completed_tokens == operation.storage_hit_count
                                      or operation.is_terminated(), 30)
            done = operation.completed_tokens
        for i in range(done // PAGE):
            page = int(operation.host_indices[i * PAGE]) // PAGE
            assert host.read(page) == sglang_scenarios.value_of(hashes[i], host.page_bytes), f"wrong bytes under {hashes[i]}"
            host.write(page, b"\xcc" * host.page_bytes)
        if controller.prefetch_sync_queue_is_used:
            pool.free(operation.host_indices)
        else:  # the I/O thread returns the pages that it did not load
            pool.free(operation.host_indices[:done])
            rest = (operation.storage_hit_count - done) // PAGE * PAGE
            while rest > 0:
                page = controller.host_mem_release_queue.get(timeout=30)
                pool.free(page)
                rest -= len(page)
        return done

    controller.prefetch_sync_queue_is_used = hasattr(controller, "prefetch_sync_thread")
    prompts = [[n * 1000 + i for i in range(12 * PAGE)] for n in range(4)]
    prompts = [(tokens, controller.hashes(tokens)) for tokens in prompts]
    try:
        for tokens, hashes in prompts:
            assert len(hashes) == 12 and len(hashes[0]) == 64
            assert prefetch(tokens, hashes) is None
            assert backup(tokens, hashes) == len(tokens)
            assert prefetch(tokens, hashes) == len(tokens)
            loaded += len(tokens)
        for n, (tokens, hashes) in enumerate(prompts * 2):
            if n % 2:
                daemon.kill()
                prefetch(tokens, hashes)
                assert backup(*prompts[0]) == 0
                daemon.start()
            else:
                daemon.pause()
                started, said = time.monotonic(), []
                loading = threading.Thread(target=lambda: said.append(prefetch(tokens, hashes)))
                loading.start()
                sglang_scenarios.wait_for("it is seen to hang", lambda: not host.link.well)
                if into:
                    assert backup(*prompts[0]) == 0
                    assert loading.is_alive() and pool.available_size() == pool.size - len(tokens), "pages may be used again"
                    daemon.resume()
                loading.join(30)
                assert said in ([0], [None]), said
                if not into:
                    assert prefetch(tokens, hashes) is None and backup(*prompts[0]) == 0
                    assert time.monotonic() - started < 10
                    daemon.resume()
            host.wait_well()
            assert prefetch(tokens, hashes) == len(tokens)
        stats = controller.storage_backend.get_stats()
        assert sum(stats.prefetch_pgs) and sum(stats.backup_pgs) and not host.counters["errors"], host.counters
        assert pool.available_size() == pool.size
    finally:
        controller.detach_storage_backend()
    assert controller.storage_backend is None


def pools_of_a_draft_model(make, daemon):
    """SGLang's transfers of a second host pool, which its ranks divide: one backend stores pages, and the next one finds and loads them."""
    name, keys = PoolName("draft" if "draft" in list(PoolName) else "swa"), sglang_scenarios.keys_of("draft", 6)

    def start():
        host, side = make(), host_pool(layout="page_first")
        host.storage.register_mem_host_pool_v2(host.pool, PoolName.KV)
        host.storage.register_mem_host_pool_v2(side, name)
        return host, sglang_scenarios.Host(None, side, indices)

    def transfer(keys, policy=PoolHitPolicy.ALL_PAGES):
        return PoolTransfer(name=name, host_indices=indices(range(len(keys))), keys=keys, hit_policy=policy)

    host, side = start()
    assert all(host.store(keys)) and len(host.link._regions) == 2
    for page, key in enumerate(keys[:4]):
        side.write(page, sglang_scenarios.value_of(f"draft {key}", side.page_bytes))
    assert host.storage.batch_set_v2([transfer(keys[:4])]) == {name: [True] * 4}
    host.close()
    host, side = start()
    assert host.storage.batch_exists_v2(keys, [transfer(keys)]).kv_hit_pages == 4
    assert host.storage.batch_exists_v2(keys, [transfer(keys[4:], PoolHitPolicy.TRAILING_PAGES)]).kv_hit_pages == 4
    assert host.storage.batch_get_v2([transfer(keys)]) == {name: [True] * 4 + [False] * 2}
    assert all(side.read(page) == sglang_scenarios.value_of(f"draft {key}", side.page_bytes) for page, key in enumerate(keys[:4]))
    sglang_scenarios.check_load(host, keys)
    assert not host.counters["errors"] and not host.counters["copied_loads"]


def run(scenario, daemon, end):
    def make(config=None, pool=None, pages=(0, 32), **options):
        host = make_host(daemon.socket, config, pool, pages, options)
        end.callback(host.close)
        return host

    if scenario in (the_controller_s_threads, the_controller_s_loads_into_its_pool):
        scenario(daemon)
    else:
        scenario(make, daemon)


def main():
    all_of_them = [*sglang_scenarios.SCENARIOS, pools_of_a_draft_model, the_controller_s_threads, the_controller_s_loads_into_its_pool,
                     sglang_arguments.the_traffic_benchmark_uses_sglang_as_it_is]
    status = scenarios.run_all("SGLang", getattr(sglang, "__version__", "?"), all_of_them, sys.argv[1:], harness.Daemon, run)
    os._exit(status)  # without the teardown of what SGLang imports for a GPU


if __name__ == "__main__":
    main()
