# SPDX-License-Identifier: Apache-2.0
"""Helpers of the tests of KVBench's commands: running them, writing their files, and a second implementation of the formulas.

The formulas are implemented here from their description, in exact fractions where the tool has doubles, so that a mistake
in either implementation shows.
"""

import csv
import io
import json
import math
import os
import pathlib
import subprocess
from fractions import Fraction

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("KVCACHE_BUILD", ROOT / "build"))
BENCH = BUILD / "client" / "bench" / "kvcache-bench"
MODELS = ROOT / "conf" / "models"
DEPLOYMENTS = ROOT / "conf" / "deployments"

OK, FAILED, USAGE = 0, 1, 2
SLOW = float(os.environ.get("KVCACHE_TEST_SLOW", "1"))


def run(*arguments, cwd=None):
    return subprocess.run([str(BENCH), *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=60 * SLOW,
                          env={k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},  # holds a test's long parameters
                          stdin=subprocess.DEVNULL)


def clean(result):
    """Checks that no sanitizer has reported anything, and that no character steers a terminal."""
    assert result.returncode >= 0, result
    assert "runtime error" not in result.stderr and "AddressSanitizer" not in result.stderr, result.stderr
    assert all(c == "\n" or c >= " " for c in result.stderr), repr(result.stderr)
    return result


def yaml_text(value, indent=0):
    """Formats a mapping of mappings as YAML."""
    lines = []
    for key, item in value.items():
        if isinstance(item, dict):
            lines += [f"{' ' * indent}{key}:", yaml_text(item, indent + 2).rstrip("\n")]
        else:
            lines.append(f"{' ' * indent}{key}: {json.dumps(item) if isinstance(item, str) else item}")
    return "\n".join(lines) + "\n"


def read_csv(text):
    return list(csv.DictReader(io.StringIO(text)))


PRECISION = {"fp8": 1, "int8": 1, "fp16": 2, "bfloat16": 2}


def figures(model, deployment, precision=None):
    """Computes io_size, io_size_1tok, batch_size and total_buffer_size of a model and a deployment."""
    strategy, runtime, system = (deployment.get(s, {}) for s in ("strategy", "runtime", "system"))
    p = precision or PRECISION[strategy.get("kvcache_quant_mode", "fp8")]
    tp, pp, page = strategy.get("tp_size", 1), strategy.get("pp_size", 1), system.get("page_size", 1)
    layers = model["num_layers"]
    block = system.get("access_pattern") == "block"
    latent = "mla_latent_vector_dimension" in model
    if latent:
        layer = (model["rope_mla_dimension"] + model["mla_latent_vector_dimension"]) * p
    else:
        if "num_kv_heads" in model:
            heads = Fraction(model["num_kv_heads"])
        else:
            heads = Fraction(model["num_query_heads_with_mha"], model["gqa_num_queries_in_group"])
        layer = heads * model["query_head_dimension"] * 2 * p
    per_token = math.floor(layer * layers)
    layer = per_token // layers

    def size(tokens):
        if latent:
            return math.floor(Fraction(layer, tp) * (math.ceil(Fraction(layers, pp)) if block else 1) * tokens)
        x = layer // tp
        return (math.floor(x * Fraction(layers, pp)) if block else x) * tokens

    isl = math.floor(float(runtime.get("isl", 1)))
    batch = math.ceil(Fraction(per_token * isl, size(page)) * Fraction(runtime.get("num_requests", 1)))
    return {"kv_per_token": per_token, "io_size_1tok": size(1), "io_size": size(page), "batch_size": batch,
            "total_buffer_size": batch * size(page)}


def size_text(size):
    """Returns a size as KVBench prints it, such as 72.0 KB."""
    power = 0
    while size >= 1024 ** (power + 1) and power < 4:
        power += 1
    return f"{round(size / 1024 ** power, 2)} {['B', 'KB', 'MB', 'GB', 'TB'][power]}"
