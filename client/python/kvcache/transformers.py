# SPDX-License-Identifier: Apache-2.0
"""PrefixStore, which stores the KV caches of Hugging Face transformers in the daemon, in blocks of tokens, and loads the longest known prefix.

    from kvcache.transformers import PrefixStore

    store = PrefixStore(kvcache.Client(), model, "meta-llama/Llama-3.1-8B@main")
    cache, known = store.load(ids, model.device)        # the longest stored prefix, and the number of its tokens
    output = model(ids[:, known:], past_key_values=cache, use_cache=True)
    store.save(output.past_key_values, ids)

A block is the keys and values of `block_tokens` tokens in all layers. Its key is a hash of all tokens up to the block's end, so that any prompt
with the same beginning finds the block. For a cache on a GPU, libkvcache copies blocks between the GPU and the daemon. Without a GPU, or if the GPU
cannot be attached, blocks are copied through memory that the daemon maps. If no daemon answers, no block is found or stored, and the model
computes.

This module imports torch, and imports transformers only when it makes a cache. It is tested with transformers 5.17, and works with any release
whose caches have `layers` with `keys` and `values` of [batch, heads, tokens, head size]. It supports full attention only: a cache with sliding
windows, or without keys and values of each token, raises ArgumentError.
"""

from __future__ import annotations

import hashlib
import json
import logging
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch  # type: ignore[import-not-found,unused-ignore]

from . import _library as c
from ._errors import ArgumentError
from ._gpu import OUTER_FIRST, Gpu, Layout
from ._memory import Places
from .engine import private
from .engine.identity import Unknown, compose, digest_of, new_start, warn

if TYPE_CHECKING:
    from ._client import Client
    from ._region import Region

log = logging.getLogger("kvcache.transformers")

AT_ONCE_BYTES = 256 << 20  # most bytes of the blocks that are copied at a time, but at least one block
# Fields of a model's configuration that do not affect the cache.
_VOLATILE = ("_name_or_path", "transformers_version", "architectures", "use_cache", "output_attentions",
             "output_hidden_states", "return_dict", "_attn_implementation_autoset", "dtype", "torch_dtype")


def block_keys(tokens: Sequence[int], block_tokens: int) -> list[bytes]:
    """Returns the keys of all whole blocks of a prompt. Each key is a hash of the block's tokens and of the key of the block before it, or
    of 32 zero bytes for the first block."""
    keys, key = [], bytes(32)
    for at in range(0, len(tokens) - block_tokens + 1, block_tokens):
        key = hashlib.sha256(key + array("q", tokens[at:at + block_tokens]).tobytes()).digest()
        keys.append(key)
    return keys


def config_digest(config: Any) -> str:
    """Returns a digest of the fields of a model's configuration that affect its computation."""
    said = {k: v for k, v in config.to_dict().items() if k not in _VOLATILE}
    return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _adapter_of(model: Any) -> str:
    """Returns "none" if the model reports that it has no adapters (LoRA), else an Unknown. A configuration alone does not report adapters."""
    if hasattr(model, "peft_config") or getattr(model, "_hf_peft_config_loaded", None) is True:
        return Unknown("the model has adapters, whose content is not identified", "adapter")
    if getattr(model, "_hf_peft_config_loaded", None) is False:
        return "none"
    return Unknown("the model does not report whether it has adapters", "adapter")


class PrefixStore:
    """The stored prefixes of one model.

    model         the model, or its configuration together with `dtype`
    identity      identifies the weights: name and revision, or a hash. Two models with the same identity read each other's blocks
    adapter       names the adapters (LoRA) that the model has, or "none". Default: "none" if the model reports that it has none; otherwise the
                  store is private. Create the store after the adapters are loaded
    block_tokens  tokens of a block; prefixes are stored in whole blocks

    Attributes:
    way           how the last blocks were copied: "gpu", "host" or ""
    reason        why the GPU did not copy the last blocks, or why they were not moved at all; may be empty"""

    def __init__(self, client: Client, model: Any, identity: str, *, block_tokens: int = 16, dtype: Any = None, adapter: str | None = None,
                 name: str = "transformers", ack: str = "written") -> None:
        config = getattr(model, "config", model)
        text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
        dtype = dtype if dtype is not None else getattr(model, "dtype", None)
        if not identity:
            raise ArgumentError("identity is empty: it must name the weights, for example 'meta-llama/Llama-3.1-8B@main'")
        if not isinstance(block_tokens, int) or not 1 <= block_tokens <= 4096:
            raise ArgumentError(f"a block must have 1 to 4096 tokens, not {block_tokens!r}")
        if not isinstance(dtype, torch.dtype):
            raise ArgumentError("with a configuration instead of a model, dtype must name the cache's element type")
        self._config = config
        self.layers = int(text.num_hidden_layers)
        self.heads = int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)
        self.head_dim = int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
        self.dtype, self.block_tokens, self.ack = dtype, block_tokens, ack
        self._itemsize = torch.empty(0, dtype=dtype).element_size()
        self.region_bytes = block_tokens * self.heads * self.head_dim * self._itemsize
        self.block_bytes = 2 * self.layers * self.region_bytes
        facts = {"model": identity, "adapter": adapter or _adapter_of(model), "config": config_digest(config), "dtype": str(dtype).removeprefix("torch."),
                 "layout": "layers,kv,tokens,heads,dim", "layers": self.layers, "kv_heads": self.heads,
                 "head_dim": self.head_dim, "block_tokens": block_tokens, "keys": "sha256-chain-int64"}
        fingerprint = compose("transformers", facts, new_start())
        warn(log, fingerprint)
        self.fingerprint: Mapping[str, object] = fingerprint.fields
        digest = digest_of(fingerprint.fields)[:16]
        self._client = client
        self.namespace = client.namespace(f"{name}/{digest}", self.fingerprint, chunk_bytes=self.block_bytes)
        self._gpus: dict[int, Gpu] = {}
        self._region: Region | None = None
        self.way, self.reason = "", ""

    def __repr__(self) -> str:
        namespace = getattr(self, "namespace", None)
        if namespace is None:
            return "<PrefixStore of nothing>"
        last = f", last by {self.way}" if self.way else f", {self.reason}" if self.reason else ""
        return f"<PrefixStore {namespace.name!r}: blocks of {self.block_tokens} tokens, {self.block_bytes} bytes{last}>"

    def close(self) -> None:
        """Detaches the GPU, releases the shared memory, and removes the namespace if it is private. Must be called before the client is closed."""
        for gpu in self._gpus.values():
            gpu.detach()
        self._gpus.clear()
        region, self._region = self._region, None
        if region is not None:
            region.unregister()
        private.remove([self.namespace], self.fingerprint)

    # --- the interface ---

    def match(self, token_ids: Any) -> int:
        """Returns how many leading tokens are stored, a multiple of `block_tokens`. Usually takes microseconds, like Namespace.match()."""
        return self.namespace.match(block_keys(_tokens(token_ids), self.block_tokens)) * self.block_tokens

    def save(self, cache: Any, token_ids: Any) -> int:
        """Stores the blocks of these tokens that the cache contains completely; the cache may have more or fewer tokens. Returns how many
        leading tokens are stored now, a multiple of `block_tokens`. Raises ArgumentError if the cache is empty or does not have the model's
        shape."""
        tokens = _tokens(token_ids)
        pairs = self._pairs(cache)
        held = min([len(tokens)] + [keys.shape[2] for keys, _ in pairs])
        keys = block_keys(tokens[:held], self.block_tokens)
        first = self.namespace.match(keys)
        step = max(1, AT_ONCE_BYTES // self.block_bytes)
        for at in range(first, len(keys), step):
            n = min(step, len(keys) - at)
            parent = keys[at - 1] if at else None
            statuses = self._put(pairs, at, keys[at:at + n], parent)
            good = _leading(statuses)
            if good < n:
                return (at + good) * self.block_tokens
        return len(keys) * self.block_tokens

    def load(self, token_ids: Any, device: Any = None) -> tuple[Any, int]:
        """Returns a new cache with the longest stored prefix, and the number of its tokens. The prefix consists of whole blocks, and has fewer than
        all tokens, because a model needs at least one token to continue. If the number is 0, the cache is empty."""
        tokens = _tokens(token_ids)
        device = torch.device(device if device is not None else getattr(token_ids, "device", "cpu"))
        keys = block_keys(tokens[:max(0, len(tokens) - 1)], self.block_tokens)
        keys = keys[:self.namespace.match(keys)]
        parts, loaded = [], 0
        step = max(1, AT_ONCE_BYTES // self.block_bytes)
        for at in range(0, len(keys), step):
            n = min(step, len(keys) - at)
            pages, statuses = self._get(device, keys[at:at + n], keys[at - 1] if at else None)
            good = _leading(statuses)
            if good:
                parts.append((pages, good))
            loaded += good
            if good < n:
                break
        cache = self._new_cache()
        for layer in range(self.layers if parts else 0):
            both = [[pages[layer][outer][:good] for pages, good in parts] for outer in (0, 1)]
            cache.update(self._as_states(both[0]), self._as_states(both[1]), layer)
        return cache, loaded * self.block_tokens

    # --- caches ---

    def _new_cache(self) -> Any:
        import transformers  # type: ignore[import-not-found,unused-ignore]
        cache = transformers.DynamicCache(config=self._config)
        for layer in getattr(cache, "layers", ()):
            if type(layer).__name__ != "DynamicLayer":
                raise ArgumentError(f"this model is not supported, because its cache has a {type(layer).__name__}, which does not have the keys "
                                    "and values of each token")
        return cache

    def _pairs(self, cache: Any) -> list[tuple[Any, Any]]:
        layers = getattr(cache, "layers", None)
        if layers is None or len(layers) != self.layers:
            raise ArgumentError(f"the cache must have {self.layers} layers, as a transformers.DynamicCache of this model has")
        pairs = []
        for i, layer in enumerate(layers):
            if type(layer).__name__ not in ("DynamicLayer", "StaticLayer"):
                raise ArgumentError(f"layer {i} of the cache is a {type(layer).__name__}, which does not have the keys and values of each token: "
                                    "use a DynamicCache or a StaticCache")
            keys, values = layer.keys, layer.values
            if keys is None or keys.shape[-2] == 0:
                raise ArgumentError(f"layer {i} of the cache is empty")
            for states in (keys, values):
                if tuple(states.shape[:2]) != (1, self.heads) or states.shape[3] != self.head_dim or states.dtype != self.dtype:
                    raise ArgumentError(f"layer {i} of the cache has the shape {tuple(states.shape)} of {states.dtype}, not (1, {self.heads}, "
                                        f"tokens, {self.head_dim}) of {self.dtype}")
            if type(layer).__name__ == "StaticLayer":
                used = int(layer.get_seq_length())
                keys, values = keys[:, :, :used], values[:, :, :used]
            pairs.append((keys, values))
        return pairs

    def _as_pages(self, states: Any, first: int, n: int) -> Any:
        """Returns `n` blocks of a layer's states, [1, heads, tokens, dim], as a view [blocks, tokens, heads, dim]."""
        part = states[0, :, first * self.block_tokens:(first + n) * self.block_tokens]
        return part.unflatten(1, (n, self.block_tokens)).permute(1, 2, 0, 3)

    def _as_states(self, pages: list[Any]) -> Any:
        """Joins tensors of blocks, [blocks, tokens, heads, dim], to a layer's states, [1, heads, tokens, dim]."""
        whole = pages[0] if len(pages) == 1 else torch.cat(pages)
        return whole.flatten(0, 1).transpose(0, 1).unsqueeze(0)

    # --- moving ---

    def _gpu(self, device: Any) -> Gpu | None:
        if device.type != "cuda":
            return None
        number = device.index if device.index is not None else torch.cuda.current_device()
        if number not in self._gpus:
            self._gpus[number] = Gpu(self._client, number, 0 if self.block_bytes <= 15 << 20 else 9 * _pages(self.block_bytes))
        return self._gpus[number]

    def _pages_on(self, device: Any, n: int) -> tuple[list[Any], Layout]:
        """Allocates memory for n blocks on the device, arranged as in an engine: for each layer a buffer [keys and values, blocks, tokens, heads,
        dim]. Returns the buffers and their layout."""
        shape = (2, n, self.block_tokens, self.heads, self.head_dim)
        pages = [torch.empty(shape, dtype=self.dtype, device=device) for _ in range(self.layers)]
        layout = Layout(OUTER_FIRST, layers=self.layers, outer=2, page_tokens=self.block_tokens, dtype_bytes=self._itemsize,
                        inner=self.heads * self.head_dim, blocks=n, bases=[p.data_ptr() for p in pages],
                        base_bytes=2 * n * self.region_bytes)
        return pages, layout

    def _went(self, gpu: Gpu | None, statuses: bytes) -> bool:
        """Returns whether the GPU was used, even if it failed for some blocks, and sets `reason`, and `way` if it was used. If not, the
        caller copies the blocks through host memory."""
        if gpu is None or (gpu.reason and not gpu.attached):
            self.reason = gpu.reason if gpu else "the cache is not on a GPU"
            return False
        self.way, self.reason = "gpu", gpu.reason
        return True

    def _put(self, pairs: list[tuple[Any, Any]], first: int, keys: list[bytes], parent: bytes | None) -> bytes:
        n, device = len(keys), pairs[0][0].device
        gpu = self._gpu(device)
        if gpu is not None:
            pages, layout = self._pages_on(device, n)
            for page, pair in zip(pages, pairs):
                for outer in (0, 1):
                    page[outer].copy_(self._as_pages(pair[outer], first, n))
            statuses = gpu.put(self.namespace, layout, range(n), keys, self.ack, parent,
                               torch.cuda.current_stream(device).cuda_stream)
            if self._went(gpu, statuses):
                return statuses
        host, places = self._host(n)
        for layer, pair in enumerate(pairs):
            for outer in (0, 1):
                host[:, layer, outer].copy_(self._as_pages(pair[outer], first, n))
        done = self.namespace.put(keys, places, self.ack, parent)
        self.way, self.reason = "host", done.reason or self.reason
        return done.status

    def _get(self, device: Any, keys: list[bytes], parent: bytes | None) -> tuple[list[Any], bytes]:
        n, gpu = len(keys), self._gpu(device)
        if gpu is not None:
            pages, layout = self._pages_on(device, n)
            statuses = gpu.get(self.namespace, layout, range(n), keys, parent, torch.cuda.current_stream(device).cuda_stream)
            if self._went(gpu, statuses):
                return pages, statuses
        host, places = self._host(n)
        done = self.namespace.get(keys, places, parent)
        self.way, self.reason = "host", done.reason or self.reason
        status = done.status
        if any(length != self.block_bytes for length, s in zip(done.lengths, status) if s == c.OK):
            status = bytes(c.MISMATCH if s == c.OK and length != self.block_bytes else s
                           for length, s in zip(done.lengths, status))
        # clone(), because the host memory is reused.
        return [host[:, layer].transpose(0, 1).clone().to(device) for layer in range(self.layers)], status

    def _host(self, n: int) -> tuple[Any, Places]:
        """Returns host memory for n blocks that the daemon maps, as a tensor [blocks, layers, keys and values, tokens, heads, dim], and the places
        of the blocks in it. Each block begins at a page of memory. The memory is reused for later calls."""
        stride = _pages(self.block_bytes)
        if self._region is None or len(self._region) < n * stride or not self._region.settled():
            old, self._region = self._region, None
            if old is not None and old.settled():
                old.unregister()
            self._region = self._client.allocate(n * stride)
        region = self._region
        whole: Any = torch.frombuffer(region.memory, dtype=torch.uint8)[:n * stride].view(n, stride)
        shape = (self.layers, 2, self.block_tokens, self.heads, self.head_dim)
        return (whole[:, :self.block_bytes].view(self.dtype).unflatten(1, shape),
                region.places(range(0, n * stride, stride), self.block_bytes))


def _pages(nbytes: int) -> int:
    return -(-nbytes // 4096) * 4096


def _leading(statuses: bytes) -> int:
    """Returns how many keys have a status for which status_ok() is True, counted from the first up to the first other status."""
    return next((i for i, s in enumerate(statuses) if not c.status_ok(s)), len(statuses))


def _tokens(token_ids: Any) -> list[int]:
    listed = token_ids.tolist() if hasattr(token_ids, "tolist") else list(token_ids)
    if listed and isinstance(listed[0], list):
        if len(listed) != 1:
            raise ArgumentError(f"token_ids must be one sequence, not {len(listed)}")
        listed = listed[0]
    try:
        struct.pack(f"={len(listed)}q", *listed)
    except struct.error:
        raise ArgumentError("token_ids must be whole numbers that fit in 64 bits") from None
    return listed
