# SPDX-License-Identifier: Apache-2.0
"""SGLang as an engine of the traffic benchmark: random weights, CUDA graphs, the Triton attention backend; the scheduler is a process of its own.

One name of an arm is one way to offload: none; cpu, HiCache with its host pool; fs, HiCache with its file backend; tier, HiCache with our
storage backend. make_sglang.py makes a pack that suffices for this.
"""

import asyncio
import collections
import json
import os
import pathlib
import sys

import traffic_shapes
from traffic_load import Progress, numbers_of

GRAPH_SIZES = [1, 2, 4, 8, 16, 24, 32]
PAGE = 64
ARMS = ("none", "cpu", "fs", "tier")
OTHERS = {"layout": [("layout", "page_first"), ("layout", "page_first_direct")],
          "dtype": [("dtype", "bfloat16"), ("dtype", "float16")],
          "same": [("dtype", "bfloat16"), ("dtype", "bfloat16")]}
STORAGE = dict(backend_name="kvcache", module_path="kvcache.sglang.storage", class_name="KvcacheStorage", interface_v1=1, allocator="shm",
               hicache_storage_pass_prefix_keys=True)


def prepare():
    """Imports SGLang. Returns why a process that did so cannot be forked; an empty string if it can."""
    os.environ.update(HF_HUB_OFFLINE="1", SGLANG_IS_FLASHINFER_AVAILABLE="0")
    compiled = next((pathlib.Path(folder, "jit") for folder in sys.path if pathlib.Path(folder, "sglang").is_dir()), None)
    if compiled and compiled.is_dir():
        os.environ.setdefault("TVM_FFI_CACHE_DIR", str(compiled))
    import torch
    from sglang.srt.entrypoints.engine import Engine  # noqa: F401

    return "CUDA is initialized by the import of SGLang" if torch.cuda.is_initialized() else ""


def hierarchy_of(job):
    """Returns the arguments of HiCache of an arm."""
    arm = job["arm"]
    if arm == "none":
        return {}
    how = dict(enable_hierarchical_cache=True, hicache_size=max(1, job["cpu_bytes"] // 10**9), hicache_mem_layout=job.get("layout", "page_first"))
    if how["hicache_mem_layout"] == "page_first_direct":
        how["hicache_io_backend"] = "direct"
    options = dict(job.get("extra", {}))
    if arm == "fs":
        how.update(hicache_storage_backend="file")
    if arm == "tier":
        how.update(hicache_storage_backend="dynamic")
        options = dict(STORAGE, socket=job["socket"], **options)
    if options and arm != "cpu":
        how["hicache_storage_backend_extra_config"] = json.dumps(options)
    return how


def arguments_of(job):
    """Returns the arguments of Engine(). SGLang takes no more memory than max_total_tokens need, so engines may share a GPU."""
    how = dict(model_path=traffic_shapes.folder_of(job["shape"], job["models"]), load_format="dummy", skip_tokenizer_init=True,
               dtype=job.get("dtype", "bfloat16"), context_length=traffic_shapes.longest_of(job["load"]), page_size=PAGE,
               max_total_tokens=job["gpu_tokens"], mem_fraction_static=0.85, max_running_requests=32, chunked_prefill_size=8192,
               attention_backend="triton", sampling_backend="pytorch", grammar_backend="none", random_seed=1, tp_size=job["tp"],
               disable_custom_all_reduce=job["tp"] > 1, disable_prefill_cuda_graph=True, log_level="info")
    how.update(dict(disable_decode_cuda_graph=True) if job["eager"] else dict(cuda_graph_bs_decode=GRAPH_SIZES))
    return dict(how, **hierarchy_of(job))


class Engine:
    def __init__(self, job):
        prepare()
        os.environ.update(job.get("env", {}), SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=job["files"])
        import sglang
        from sglang.srt.entrypoints.engine import Engine as SglangEngine

        self.engine = SglangEngine(**arguments_of(job))
        self.name = f"SGLang {sglang.__version__}"
        self.loop, self.arrived, self.chunks = self.engine.loop, asyncio.Event(), collections.deque()
        self.seen, self.tasks, self.sources = {}, set(), collections.Counter()
        self.warm_up(job["load"]["first"])

    def warm_up(self, longest):
        for count in (300, longest):
            self._generate(numbers_of(10**9 + count, count), 4)
        self.sources.clear()

    def _generate(self, tokens, count):
        """Runs one request to its end."""
        self.add("one", tokens, count)
        while not any(progress.finished for progress in self.step()):
            pass

    def add(self, name, tokens, answer, return_s=None):
        assert return_s is None, "SGLang passes no announcement to its back end"
        self.seen[name] = 0
        task = self.loop.create_task(self._follow(name, tokens, answer))
        self.tasks.add(task)  # the loop itself keeps no reference
        task.add_done_callback(self.tasks.discard)

    async def _follow(self, name, tokens, answer):
        """Passes the chunks of a request on to step(). The last one has a reason to finish, unless SGLang fails."""
        try:
            sampling = dict(temperature=0, max_new_tokens=answer, ignore_eos=True)
            async for chunk in await self.engine.async_generate(input_ids=tokens, sampling_params=sampling, stream=True):
                self._pass_on(name, chunk)
        except Exception as problem:  # noqa: BLE001 it ends this request alone
            self._pass_on(name, dict(output_ids=[], meta_info=dict(finish_reason=dict(type=f"{type(problem).__name__}: {problem}"[:200]))))

    def _pass_on(self, name, chunk):
        self.chunks.append((name, chunk))
        self.arrived.set()

    async def _wait(self, seconds):
        try:
            await asyncio.wait_for(self.arrived.wait(), seconds)
        except TimeoutError:
            pass
        self.arrived.clear()

    def step(self):
        """Returns what has arrived from the scheduler, after waiting for it for a moment."""
        self.loop.run_until_complete(self._wait(0.05))
        steps = []
        while self.chunks:
            name, chunk = self.chunks.popleft()
            if name in self.seen:
                steps.append(self._progress(name, chunk))
        return steps

    def _progress(self, name, chunk):
        """Returns the new tokens of a chunk, which has all tokens of the answer."""
        known, reason = chunk["meta_info"], chunk["meta_info"].get("finish_reason")
        tokens = list(chunk["output_ids"])[self.seen[name]:]
        self.seen[name] += len(tokens)
        failed = reason is not None and reason["type"] not in ("length", "stop")
        if reason is not None:
            del self.seen[name]
            self.sources.update({source: count for source, count in (known.get("cached_tokens_details") or {}).items() if isinstance(count, int)})
        return Progress(name, tokens, known.get("cached_tokens") or 0, reason is not None, str(reason["type"]) if failed else "")

    def forget(self):
        """Empties the GPU's prefix cache and the host pool. Stores in flight end first."""
        for _ in range(100):
            if getattr(self.engine.flush_cache(), "success", True):
                return
            self.loop.run_until_complete(asyncio.sleep(0.1))
        raise RuntimeError("SGLang does not flush its cache")

    def learned(self):
        """Returns how many of the cached tokens were on the GPU, in the host pool and in the storage backend."""
        return dict(self.sources)
