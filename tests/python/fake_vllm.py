# SPDX-License-Identifier: Apache-2.0
"""A substitute for the parts of vLLM that its tier uses, with the signatures of 0.26 and 0.33, and a host that behaves like their tiering
managers and has their assertions. Tests use it where vLLM is not installed; tests/engines runs the same scenarios with the real one."""

import dataclasses
import enum
import importlib
import mmap
import os
import sys
import time
import types
from abc import ABC, abstractmethod
from array import array
from typing import Any

ROWS = 32


def configuration(*, draft=None, layout="NHD", backend="FLASH_ATTN", **of_model):
    """Returns vLLM's configuration, with all that an identity depends on."""
    ns = types.SimpleNamespace
    model = ns(**{"dtype": "torch.bfloat16", "revision": None, "quantization": None, "hf_overrides": {}, **of_model})
    cache = ns(kv_cache_layout=layout, cache_dtype="auto", prefix_caching_hash_algo="sha256_cbor")
    return ns(model_config=model, cache_config=cache, speculative_config=ns(model=draft), attention_config=ns(backend=backend),
              lora_config=None, load_config=ns(load_format="auto", download_dir=None), kv_transfer_config=ns(engine_id="one"))


current: Any = configuration()


class LookupResult(enum.Enum):
    MISS, HIT, HIT_PENDING, RETRY = range(1, 5)


class Locality(enum.Enum):
    LOCAL = "LOCAL"
    REMOTE = "REMOTE"


class Medium(enum.Enum):
    CPU = "CPU"
    STORAGE = "STORAGE"


@dataclasses.dataclass
class RequestOffloadingContext:
    policy: str = "block_level"


@dataclasses.dataclass(frozen=True)
class OffloadingCounterMetadata:
    documentation: str
    labelnames: tuple = ()


@dataclasses.dataclass(frozen=True)
class OffloadingGaugeMetadata(OffloadingCounterMetadata):
    pass


@dataclasses.dataclass
class OffloadingEvent:
    keys: list
    medium: Any
    removed: bool
    locality: Any = None


class OffloadingConnectorStats:
    def __init__(self):
        self.values = {}

    def increase_counter(self, counter_name, counter_increase_value=1, labelvalues=()):
        self.values[counter_name] = self.values.get(counter_name, 0) + counter_increase_value

    def set_gauge(self, gauge_name, gauge_value, labelvalues=()):
        self.values[gauge_name] = gauge_value


@dataclasses.dataclass
class ReqContext26:
    req_id: str
    kv_transfer_params: dict | None = None


@dataclasses.dataclass
class ReqContext33:
    req_id: str
    kv_transfer_params: dict | None = None
    kv_hints: Any = None
    _offload_key_positions: dict = dataclasses.field(default_factory=dict, repr=False, init=False)


@dataclasses.dataclass
class JobMetadata:
    job_id: int
    keys: Any
    block_ids: Any
    is_promotion: bool
    req_context: Any


@dataclasses.dataclass
class TransferJob:
    job_id: int
    keys: Any
    chunk_ids: Any
    is_promotion: bool
    req_context: Any
    submit_time: float = dataclasses.field(default_factory=time.monotonic)


@dataclasses.dataclass
class JobResult26:
    job_id: int
    success: bool


@dataclasses.dataclass
class JobResult33:
    job_id: int
    success: bool
    successful_keys: Any = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


class SecondaryTierManager26(ABC):
    def __init__(self, offloading_spec, primary_kv_view, tier_type):
        self._offloading_spec, self._primary_kv_view, self.tier_type = offloading_spec, primary_kv_view, tier_type

    @abstractmethod
    def lookup(self, key, req_context): ...
    @abstractmethod
    def submit_store(self, job_metadata): ...
    @abstractmethod
    def submit_load(self, job_metadata): ...
    @abstractmethod
    def get_finished_jobs(self): ...
    @abstractmethod
    def on_new_request(self, req_context): ...
    @abstractmethod
    def drain_jobs(self): ...


class SecondaryTierManager33(SecondaryTierManager26):
    medium = None
    tolerates_off_thread_polling = False

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        assert cls.medium is None or isinstance(cls.medium, Medium)

    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None):
        super().__init__(offloading_spec, primary_kv_view, tier_type)
        self.locality = None


class LoadStoreSpec:
    pass


@dataclasses.dataclass
class PrepareStoreOutput:
    keys_to_store: list
    store_spec: Any
    evicted_keys: list


@dataclasses.dataclass
class TransferResult:
    job_id: int
    success: bool
    transfer_size: int | None = None
    transfer_time: float | None = None


class OffloadingManager(ABC):
    @abstractmethod
    def lookup(self, key, req_context): ...
    @abstractmethod
    def prepare_load(self, keys, req_context): ...
    @abstractmethod
    def prepare_store(self, keys, req_context): ...
    @abstractmethod
    def on_new_request(self, req_context): ...


class OffloadingWorker(ABC):
    @abstractmethod
    def submit_store(self, job_id, src_spec, dst_spec): ...
    @abstractmethod
    def submit_load(self, job_id, src_spec, dst_spec): ...
    @abstractmethod
    def get_finished(self): ...
    @abstractmethod
    def wait(self, job_ids): ...


class OffloadingWorker33(OffloadingWorker):
    @abstractmethod
    def submit_load(self, job_id, src_spec, dst_spec, expedited=False): ...


class OffloadingSpec(ABC):
    def __init__(self, config):
        self.config, self.extra_config = config, config.extra_config

    @abstractmethod
    def get_manager(self): ...
    @abstractmethod
    def get_worker(self, kv_caches): ...


class Factory:
    registry: dict = {}

    @classmethod
    def register_tier(cls, tier_type, module_path, class_name):
        if tier_type in cls.registry:
            raise ValueError(f"Tier '{tier_type}' is already registered.")
        cls.registry[tier_type] = (module_path, class_name)


def install(version):
    """Puts vllm.* of this version, (0, 26) or (0, 33), into sys.modules; the tier's module, loaded over it."""
    remove()
    new = version >= (0, 33)
    base = dict(LookupResult=LookupResult, Locality=Locality, RequestOffloadingContext=RequestOffloadingContext,
                OffloadingCounterMetadata=OffloadingCounterMetadata, OffloadingGaugeMetadata=OffloadingGaugeMetadata,
                OffloadingEvent=OffloadingEvent, LoadStoreSpec=LoadStoreSpec, PrepareStoreOutput=PrepareStoreOutput,
                TransferResult=TransferResult, OffloadingManager=OffloadingManager, OffloadingWorker=OffloadingWorker33 if new else OffloadingWorker,
                OffloadingSpec=OffloadingSpec, **({"Medium": Medium} if new else {}))
    tiering = dict(JobResult=JobResult33 if new else JobResult26,
                   SecondaryTierManager=SecondaryTierManager33 if new else SecondaryTierManager26)
    Factory.registry = {}
    for name, content in {"v1.kv_offload.base": base, "v1.kv_offload.tiering.base": tiering,
                          "v1.kv_offload.tiering.factory": dict(SecondaryTierFactory=Factory),
                          "distributed.kv_transfer.kv_connector.v1.offloading.metrics":
                              dict(OffloadingConnectorStats=OffloadingConnectorStats),
                          "platforms": dict(current_platform=types.SimpleNamespace(device_type="cuda",
                                                                                   get_device_capability=lambda: (9, 0))),
                          "config": dict(get_current_vllm_config_or_none=lambda: current)}.items():
        parts = ["vllm", *name.split(".")]
        for n in range(1, len(parts) + 1):
            whole = ".".join(parts[:n])
            if whole not in sys.modules:
                sys.modules[whole] = types.ModuleType(whole)
                if n > 1:
                    setattr(sys.modules[".".join(parts[:n - 1])], parts[n - 1], sys.modules[whole])
        vars(sys.modules["vllm." + name]).update(content)
    sys.modules["vllm"].__version__ = ".".join(map(str, version)) + ".0"
    return importlib.import_module("kvcache.vllm.tier")


def remove():
    ours = [f"kvcache.vllm.{name}" for name in ("tier", "spec", "manager", "chunks")]
    for name in [n for n in sys.modules if n == "vllm" or n.startswith("vllm.") or n in ours]:
        del sys.modules[name]


class Host:
    """The scheduler and the tiering manager of one version."""

    row = 64 << 10

    def __init__(self, version, tier_class, **options):
        self.new = version >= (0, 33)
        fd = os.memfd_create("vllm_offload")
        os.ftruncate(fd, ROWS * self.row)
        self.map = mmap.mmap(fd, ROWS * self.row)
        os.close(fd)
        self.view = memoryview(self.map).cast("b", (ROWS, self.row))
        ns = types.SimpleNamespace
        parallel = ns(rank=0, tp_size=1, pp_size=1, pcp_size=1, dcp_size=1, is_parallelism_agnostic=False)
        config = ns(groups=(ns(tokens_per_block=16, layer_names=("0",)),), model=ns(name="tests/model", dtype="bfloat16"),
                    cache=ns(tokens_per_hash=16, blocks_per_chunk=1), parallel=parallel)
        spec = ns(config=config, kv_events_config=ns(enable_kv_cache_events=True))
        options = {"weights": "tests", "load_policy": "always", "enable_kv_events": True, **options}
        self.tier = tier_class(offloading_spec=spec, primary_kv_view=self.view, tier_type="kvcache", **options)
        self.free, self.held = list(range(ROWS)), {}    # held: key -> [row, ready, pins]
        self.jobs, self.number, self.pending = {}, 0, {}
        self.polled, self.slowest_s, self.taken, self.events = False, 0.0, {}, []

    def _timed(self, call, *arguments):
        started = time.monotonic()
        try:
            return call(*arguments)
        finally:
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)

    def begin(self, name, params=None):
        context = (ReqContext33 if self.new else ReqContext26)(name, params)
        assert isinstance(self._timed(self.tier.on_new_request, context), RequestOffloadingContext)
        return context

    def _poll(self):
        for result in self._timed(self.tier.get_finished_jobs):
            assert result.job_id in self.jobs, f"job {result.job_id} is unknown, or was reported before"
            job = self.jobs.pop(result.job_id)
            good = set(job.keys) if result.success else set(getattr(result, "successful_keys", None) or ())
            assert good <= set(job.keys)
            for key in job.keys:
                held = self.held[key]
                held[2] -= 1
                if job.is_promotion and key in good:
                    held[1] = True
                elif job.is_promotion:
                    self.free.append(self.held.pop(key)[0])

    def _make(self, keys, is_promotion, context):
        self.number += 1
        rows = array("q", [self.held[k][0] for k in keys])
        job = (TransferJob if self.new else JobMetadata)(self.number, keys, rows, is_promotion, context)
        self.jobs[self.number] = job
        return job

    def lookup(self, keys, context):
        if self.new:
            context._offload_key_positions.update((k, 16 * (i + 1)) for i, k in enumerate(keys))
        return [self._lookup(k, context) for k in keys]

    def _lookup(self, key, context):
        if not self.polled:
            self.polled = True
            self._poll()
        if key in self.held:
            return "HIT" if self.held[key][1] else "RETRY"
        result = self._timed(self.tier.lookup, key, context)
        assert isinstance(result, LookupResult)
        if result is not LookupResult.HIT or not self.free:
            return "MISS" if result is not LookupResult.RETRY else "RETRY"
        self.held[key] = [self.free.pop(), False, 1]
        self.pending.setdefault(context.req_id, (context, []))[1].append(key)
        return "RETRY"

    def step(self):
        if not self.polled:
            self._poll()
        self.polled = False
        for context, keys in self.pending.values():
            self._timed(self.tier.submit_load, self._make(keys, True, context))
        self.pending = {}

    def settle(self):
        self.step()
        deadline = time.monotonic() + 60
        while self.jobs or self.tier.has_pending_work():
            assert time.monotonic() < deadline, f"these jobs are never reported: {list(self.jobs)}"
            self.step()
            time.sleep(0.001)  # a loop without a pause would take the processor from the threads for which it waits

    def store(self, values, context):
        new = [k for k in values if k not in self.held]
        for key in new:
            if not self.free:
                idle = next(k for k, h in self.held.items() if h[1] and not h[2])
                self.free.append(self.held.pop(idle)[0])
            row = self.free.pop()
            self.map[row * self.row:(row + 1) * self.row] = values[key]
            self.held[key] = [row, True, 1]
        if new:
            self._timed(self.tier.submit_store, self._make(new, False, context))

    def load(self, keys, context):
        return {k: self.map[self.held[k][0] * self.row:(self.held[k][0] + 1) * self.row] for k in keys}

    def reset(self):
        self.tier.drain_jobs()
        self._poll()
        assert not self.jobs, "a job outlived drain_jobs()"
        self.pending, self.polled = {}, False
        self.free, self.held = list(range(ROWS)), {}
        self.map[:] = b"U" * len(self.map)  # a block that was not loaded fails the comparison

    def finish(self, context):
        self._timed(self.tier.on_request_finished, context)

    def counts(self):
        for name, value in self.tier.get_stats().values.items():
            self.taken[name] = value if name.endswith("_up") else self.taken.get(name, 0) + value
        self.events += self.tier.take_events()
        return self.taken

    def close(self):
        self.tier.shutdown()
        self.view.release()  # the primary tier does so too, and fails if an export is left
