# SPDX-License-Identifier: Apache-2.0
"""The interface of SGLang's Engine that tests/engines/traffic_sglang.py uses, over its stub of an engine."""

import asyncio
import itertools
import json
import pathlib
import types

import traffic_stub


def job_of(how):
    """Returns the stub's job for these arguments of Engine()."""
    options = json.loads(how.get("hicache_storage_backend_extra_config", "{}"))
    arms = {None: "cpu" if how.get("enable_hierarchical_cache") else "none", "file": "fs", "dynamic": "tier"}
    shape = json.loads((pathlib.Path(how["model_path"]) / "config.json").read_text())
    return dict(dtype=how["dtype"], arm=arms[how.get("hicache_storage_backend")], shape=repr(shape),
                gpu_tokens=how["max_total_tokens"], cpu_bytes=how.get("hicache_size", 0) * 10**9, socket=options.get("socket"), number=0)


class Engine:
    """Reports the tokens of a request cumulatively, as SGLang does."""

    def __init__(self, **how):
        assert how["load_format"] == "dummy" and how["skip_tokenizer_init"]
        assert ("cuda_graph_bs_decode" in how) != ("disable_decode_cuda_graph" in how)
        self.loop, self.stub = asyncio.new_event_loop(), traffic_stub.Engine(job_of(how))
        self.names, self.arriving, self.stepping, self.refused_flushes = itertools.count(), {}, None, 2

    async def async_generate(self, *, input_ids, sampling_params, stream):
        assert stream and sampling_params["temperature"] == 0 and sampling_params["ignore_eos"]
        name = str(next(self.names))
        self.arriving[name] = asyncio.Queue()
        self.stub.add(name, input_ids, sampling_params["max_new_tokens"])
        if self.stepping is None or self.stepping.done():
            self.stepping = self.loop.create_task(self._step())
        return self._chunks(self.arriving[name])

    async def _step(self):
        while self.arriving:
            for progress in self.stub.step():
                self.arriving[progress.name].put_nowait(progress)
                if progress.finished:
                    del self.arriving[progress.name]
            await asyncio.sleep(0)

    @staticmethod
    async def _chunks(arriving):
        said, ended = [], False
        while not ended:
            progress = await arriving.get()
            said, ended = said + progress.tokens, progress.finished
            known = dict(cached_tokens=progress.cached, finish_reason=dict(type="abort" if progress.reason else "length") if ended else None)
            if progress.cached:
                known["cached_tokens_details"] = dict(device=0, host=progress.cached, storage_backend="HiCacheFile")
            yield dict(output_ids=said, meta_info=known)

    def flush_cache(self):
        self.refused_flushes -= 1
        if self.refused_flushes < 0:
            self.stub.forget()
        return types.SimpleNamespace(success=self.refused_flushes < 0)
