# SPDX-License-Identifier: Apache-2.0
"""Tests vLLM's own tiering managers with kvcache's tier and a real daemon, without a GPU. Run by run.sh in an environment with vLLM.

    KVCACHE_BUILD=... KVCACHE_LIBRARY=... python vllm_check.py [SCENARIO...]
"""

import inspect
import os
import pathlib
import sys
import time
import types

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[0] / "daemon"), str(HERE.parents[1] / "client" / "python"), str(HERE.parents[0] / "python")]
os.environ["PYTHONHASHSEED"] = "0"  # without this variable, block hashes of vLLM before 0.29 are random, which makes a namespace private

import fake_vllm  # noqa: E402
import harness  # noqa: E402
import numpy  # noqa: E402
import scenarios  # noqa: E402
import vllm_arguments  # noqa: E402
import vllm_identity  # noqa: E402
import vllm_layouts  # noqa: E402
import vllm_scenarios  # noqa: E402
from vllm.v1.kv_offload.base import ReqContext, ScheduleEndContext  # noqa: E402
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion  # noqa: E402
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: E402
from vllm.v1.kv_offload.tiering.manager import CPUPrimaryTierOffloadingManager, TieringOffloadingManager  # noqa: E402

import kvcache.vllm  # noqa: E402
from kvcache.vllm import hooks  # noqa: E402

ROWS = 32
kvcache.vllm.register()
NEW = "num_chunks" in inspect.signature(CPUPrimaryTierOffloadingManager.__init__).parameters
engines = 0


class Host:
    row = 64 << 10

    def __init__(self, **options):
        global engines
        engines += 1
        engine = f"kvcache-check-{os.getpid()}-{engines}"
        unit = "chunk" if NEW else "block"
        region = SharedOffloadRegion(engine_id=engine, rank=None, cpu_page_size=self.row,
                                     **{f"num_{unit}s": ROWS, f"kv_bytes_per_{unit}": self.row})
        primary = CPUPrimaryTierOffloadingManager(mmap_region=region, **{f"num_{unit}s": ROWS})
        self.view = primary.get_kv_memoryview()
        ns = types.SimpleNamespace
        parallel = ns(rank=0, world_size=1, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, is_parallelism_agnostic=False)
        config = ns(groups=(ns(tokens_per_block=16, layer_names=("0",)),), model=ns(name="tests/model", dtype="bfloat16"),
                    cache=ns(tokens_per_hash=16, blocks_per_chunk=1), parallel=parallel, engine_id=engine)
        spec = ns(config=config, _scheduler_mmap=region, kv_events_config=ns(enable_kv_cache_events=True))
        configuration = fake_vllm.configuration()
        configuration.kv_transfer_config.engine_id = engine
        hooks._keeping(lambda vllm_config, kv_cache_config: None)(configuration, None)  # the scheduler's process calls it so
        options = {"type": "kvcache", "weights": "tests", "load_policy": "always", "enable_kv_events": True, **options}
        self.tier = SecondaryTierFactory.create_secondary_tier(options, self.view, spec)
        self.manager = TieringOffloadingManager(primary, [self.tier])
        self.lock = getattr(self.manager, "lock", None)
        self.slowest_s = 0.0
        self.taken = {}

    def _do(self, call, *arguments):
        started = time.monotonic()
        try:
            if self.lock is None:
                return call(*arguments)
            with self.lock:
                return call(*arguments)
        finally:
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)

    def begin(self, name):
        context = ReqContext(name)
        self._do(self.manager.on_new_request, context)
        return context

    def lookup(self, keys, context):
        if hasattr(context, "set_offload_key_position"):
            for i, key in enumerate(keys):
                context.set_offload_key_position(key, 16 * (i + 1))
        said = [self._do(self.manager.lookup, k, context).name for k in keys]
        return ["RETRY" if s == "HIT_PENDING" else s for s in said]

    def step(self):
        self._do(self.manager.on_schedule_end, ScheduleEndContext((), ()))

    def settle(self):
        self.step()
        deadline = time.monotonic() + 60
        while self._do(self.manager.has_pending_work):
            assert time.monotonic() < deadline, "the manager still waits for a job"
            self.step()
            time.sleep(0.0005)

    def _rows(self, spec):
        return spec.chunk_ids if hasattr(spec, "chunk_ids") else spec.block_ids

    def store(self, values, context):
        out = self._do(self.manager.prepare_store, list(values), context)
        if out is None or not out.keys_to_store:
            return
        for key, row in zip(out.keys_to_store, self._rows(out.store_spec)):
            numpy.asarray(self.view)[row] = numpy.frombuffer(values[key], dtype=numpy.int8)
        self._do(self.manager.complete_store, out.keys_to_store, context)

    def load(self, keys, context):
        if not keys:
            return {}
        spec = self._do(self.manager.prepare_load, keys, context)
        got = {k: numpy.asarray(self.view)[row].tobytes() for k, row in zip(keys, self._rows(spec))}
        self._do(self.manager.complete_load, keys, context)
        return got

    def reset(self):
        self._do(self.manager.reset_cache)
        if hasattr(self.manager, "on_reset_flushed"):
            self._do(self.manager.on_reset_flushed)

    def finish(self, context):
        self._do(self.manager.on_request_finished, context)

    def counts(self):
        stats = self._do(self.manager.get_stats)
        for name, value in stats.reduce().items() if stats else ():
            self.taken[name] = value if name.endswith("_up") else self.taken.get(name, 0) + value
        events = list(self._do(self.manager.take_events))
        assert all(not e.removed and e.keys for e in events)
        return self.taken

    def close(self):
        self.view = None
        self.manager.shutdown()


def run(scenario, daemon, _end):
    scenario(lambda **options: Host(socket=daemon.socket, **options), daemon)


def main():
    import vllm

    all_of_them = [*vllm_scenarios.SCENARIOS, vllm_identity.registered_tensors_are_those_of_the_model,
                   vllm_arguments.the_traffic_benchmark_uses_vllm_as_it_is, *vllm_layouts.SCENARIOS]
    return scenarios.run_all("vLLM", getattr(vllm, "__version__", "?"), all_of_them, sys.argv[1:],
                             lambda folder: harness.Daemon(folder, settings={"memory.pool": "64MiB"}), run)


if __name__ == "__main__":
    sys.exit(main())
