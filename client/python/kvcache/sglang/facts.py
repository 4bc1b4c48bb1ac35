# SPDX-License-Identifier: Apache-2.0
"""Collects the facts of SGLang's runtime context on which the bytes of a page depend, for the fingerprint (identity.py).

SGLang publishes the context in each scheduler's process before it makes a storage backend. If the context is not visible, the facts are unknown
and the namespace is private. Since 0.5.20, page hashes contain the id of the LoRA adapter. The id of an adapter that is named at startup derives
from its name and path but not its content, so the content is a fact of the fingerprint. The id of an adapter that is loaded later is random.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..engine.identity import Unknown, digest_of
from ..engine.weights import dummy_weights, weights_of

_CONTEXT, _HASHES = "sglang.srt.runtime_context", "sglang.srt.mem_cache.utils"
# For each fact: the name of a configuration in SGLang's runtime context, and the dotted path of the attribute in that configuration.
_ATTRIBUTES = {
    "quantization": ("model", "quantization"), "model_dtype": ("model", "dtype"), "cache_dtype": ("model", "kv_cache_dtype"),
    "scales": ("model", "quantization_param_path"), "overrides": ("model", "json_model_override_args"),
    "backend": ("exec", "kernel.attention_backend"), "prefill_backend": ("exec", "kernel.prefill_attention_backend"),
    "decode_backend": ("exec", "kernel.decode_attention_backend"), "draft_algorithm": ("spec", "speculative_algorithm"),
}
# Load formats of SGLang that read weights only from the model's folder, or, in the case of "dummy", from no file.
_FORMATS = ("auto", "safetensors", "pt", "npcache", "gguf", "mistral", "bitsandbytes", "layered", "fastsafetensors", "dummy")
NAMES = (*_ATTRIBUTES, "version", "load_format", "draft", "adapters")


def bag(name: str) -> Any:
    """Returns one of the configurations in SGLang's context, such as "model". Raises if this version of SGLang has no context, or has not published
    it."""
    return importlib.import_module(_CONTEXT)._CONTEXT.config_bag(name)


def of_engine() -> dict[str, object]:
    """Returns the facts of `NAMES`. If SGLang's context is not visible, returns one Unknown fact instead. Never raises."""
    try:
        bag("model")
    except Exception:
        return {"configuration": Unknown("SGLang's runtime context is not visible, perhaps because this version is not supported")}
    facts: dict[str, object] = {name: _attribute(*where) for name, where in _ATTRIBUTES.items()}
    if facts["scales"] != "none":
        facts["scales"] = _file_of(str(facts["scales"]))
    return {**facts, "version": _version(), "load_format": _load_format(), "draft": _draft(), "adapters": _adapters()}


def model_of(served: object) -> tuple[str, str]:
    """Returns path and revision of the model. If they are not visible, returns the name under which the model is served, and an Unknown."""
    try:
        model = bag("model")
        return str(model.model_path), str(model.revision or "main")
    except Exception:
        return str(served or "unnamed"), Unknown("SGLang does not report the model's revision", "weights")


def refusal() -> str:
    """Returns why this engine must neither store nor load pages, or an empty string: SGLang before 0.5.20 computes the same page hashes with a LoRA
    adapter as without, so that pages of different adapters would have the same key."""
    try:
        if _uses_adapters() and not _hashes_have_adapters():
            return ("LoRA is enabled, but the page hashes of this SGLang do not contain the adapter: use SGLang 0.5.20 or later, or start the "
                    "engine without --enable-lora")
    except Exception:
        pass  # the configuration is not visible: the namespace is private
    return ""


def _attribute(where: str, name: str) -> str:
    value: Any = None
    try:
        value = bag(where)
        for part in name.split("."):
            value = getattr(value, part)
    except Exception:
        return Unknown(f"this SGLang has no {name} in its configuration")
    return "none" if value is None or value == "" else value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _version() -> str:
    said = str(getattr(importlib.import_module("sglang"), "__version__", "") or "")
    return re.sub(r"\.post\d+$", "", said) or Unknown("SGLang has no version")


def _load_format() -> str:
    said = _attribute("model", "load_format")
    if isinstance(said, Unknown) or said in _FORMATS:
        return said
    return Unknown(f"load_format {said} may read weights that are not in the model's folder")


def weights_of_engine(model: str, revision: str | None, check: str) -> str:
    """Returns the identity of the weights that SGLang loads for this model; an Unknown with the reason if it cannot be determined."""
    if _attribute("model", "load_format") == "dummy":
        config = weights_of(f"{model}/config.json", None, "full")
        seed = _attribute("device", "random_seed")
        unknown = next((v for v in (config, seed) if isinstance(v, Unknown)), None)
        return unknown if unknown is not None else dummy_weights(config, seed)
    return weights_of(model, revision, check)


def _draft() -> str:
    path = _attribute("spec", "speculative_draft_model_path")
    if isinstance(path, Unknown) or path == "none":
        return path
    revision = _attribute("spec", "speculative_draft_model_revision")
    return weights_of(path, None if revision == "none" or isinstance(revision, Unknown) else revision)


def _file_of(path: str) -> str:
    return weights_of(path, None, "full")


def _uses_adapters() -> bool:
    lora = bag("lora")
    return bool(lora.enable_lora) or bool(lora.lora_paths)


def _hashes_have_adapters() -> bool:
    return hasattr(importlib.import_module(_HASHES), "storage_namespace_seed")


def _adapters() -> str:
    try:
        if not _uses_adapters():
            return "none"
        named = [_named(one) for one in _listed(bag("lora").lora_paths)]
    except Exception as e:
        return Unknown(f"SGLang does not report its LoRA adapters: {type(e).__name__}")
    contents = []
    for name, path in sorted(named):
        content = weights_of(path)
        if isinstance(content, Unknown):
            return Unknown(f"the content of the LoRA adapter {name} cannot be identified: {content.reason}")
        contents.append([name, content])
    return digest_of(contents)


def _listed(adapters: Any) -> Iterable[Any]:
    return [f"{name}={path}" for name, path in adapters.items()] if isinstance(adapters, Mapping) else adapters or ()


def _named(adapter: Any) -> tuple[str, str]:
    """Returns name and path of a LoRA adapter, from any of the forms in which SGLang accepts it."""
    if isinstance(adapter, str):
        name, separator, path = adapter.partition("=")
        return name, path if separator else name
    if isinstance(adapter, Mapping):
        return str(adapter["lora_name"]), str(adapter["lora_path"])
    return str(adapter.lora_name), str(adapter.lora_path)
