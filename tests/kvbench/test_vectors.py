# SPDX-License-Identifier: Apache-2.0
"""kvcache-bench prints what KVBench printed, for the vectors in ../shared/data/kvbench_vectors.json or KVBENCH_VECTORS.

What differs, differs on purpose, and each way has its name here: see "What differs" in client/bench/kvbench/README.md.
Without the file of vectors, test_commands.py remains.
"""

import json
import os
import pathlib
import re

import pytest

from kvbench import FAILED, OK, ROOT, USAGE, clean, figures, read_csv, run, yaml_text

VECTORS = pathlib.Path(os.environ.get("KVBENCH_VECTORS", ROOT.parent / "shared" / "data" / "kvbench_vectors.json"))
DATA = json.loads(VECTORS.read_text()) if VECTORS.exists() else {"about": {"files": {}}, "vectors": []}
FILES = DATA["about"]["files"]

pytestmark = pytest.mark.skipif(not DATA["vectors"], reason=f"{VECTORS} is not there")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Provides a folder with the vectors' input files."""
    path = tmp_path_factory.mktemp("vectors")
    for name, content in FILES.items():
        file = path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content if isinstance(content, str) else yaml_text(content))
    return path


def option(argv, name):
    for i, word in enumerate(argv):
        if word == f"--{name}":
            return argv[i + 1] if i + 1 < len(argv) else ""
        if word.startswith(f"--{name}="):
            return word.split("=", 1)[1]
    return None


def command(vector):
    """Returns the argument vector, with the words that select the form which that version of KVBench had."""
    argv = list(vector["argv"])
    name = next(word for word in argv if not word.startswith("-"))
    if name == "plan" and vector["tool"] != "head":
        argv += ["--target", "nixlbench-2025.06"]
    if name == "kvcache" and vector["tool"] == "head":
        argv += ["--format", "table"]
    return argv


def precision_differs(vector):
    """KVBench computes from model_quant_mode where we take kvcache_quant_mode."""
    config = FILES.get(option(vector["argv"], "model_config"))
    if not isinstance(config, str) or "deepseek" in option(vector["argv"], "model"):
        return False
    modes = {k: v.strip('"') for k, v in re.findall(r"(\w+)_quant_mode: *(\S+)", config)}
    return modes.get("model", "fp8") != modes.get("kvcache", "fp8") and modes.get("kvcache") != "FP8"


def overridden(vector, name):
    value = option(vector["argv"], name)
    return value is not None and value.strip().lstrip("-").isdigit() and int(value) <= 0


# Why KVBench refused what we do.
WORKS_BY_NOW = ("'NoneType' object has no attribute 'lower'", "Invalid backend: None", "Invalid backend: POSIX",
                "No such option: --etcd-endpoint", "No such option: --gds_filepath", "No such option: --format",
                "No such command 'iosize'")


def lists_several(vector):
    return vector["argv"][0] == "kvcache" and option(vector["argv"], "model_configs") is not None


def usage(vector):
    return vector["exit"] == 2 or "required" in vector["stdout"]


def kind(vector):
    out = vector["stdout"].removeprefix(vector.get("stdout_prefix", ""))
    if vector["argv"][0] == "profile" or "--help" in vector["argv"]:
        return "another program"
    if any(word in out + vector["stderr"] for word in WORKS_BY_NOW) or lists_several(vector):
        return "works by now"
    if vector["exit"] != 0 or re.match(r"(Error|Warning)", out):
        return "failure"
    if any(overridden(vector, name) for name in ("pp", "tp", "isl", "osl", "num_requests", "page_size")):
        return "an override below 1 is refused"
    return "precision" if precision_differs(vector) else "equal"


def by_kind(*names):
    return pytest.mark.parametrize("vector", [pytest.param(v, id=str(v["id"])) for v in DATA["vectors"]
                                              if kind(v) in names])


def corrected(text, model):
    """Returns KVBench's output without two of its mistakes: a segment type that nixlbench refuses, and the name that the version of
    2025-06 leaves out."""
    text = text.replace("--target_seg_type FILE", "--target_seg_type VRAM")
    return re.sub(r"^(Model +: )$", rf"\g<1>{model}", text, flags=re.M)


def model_name(vector):
    model = FILES[option(vector["argv"], "model")]
    return model["model_name"] if isinstance(model, dict) else re.search(r"model(?:_name)?: '?([^'\n]*)", model).group(1)


def compare(vector, got):
    want = vector["stdout"].removeprefix(vector.get("stdout_prefix", ""))
    if want.startswith("["):
        want = json.loads(want)
        for plan in want:
            if plan["target_seg_type"] == "FILE":
                plan["target_seg_type"] = "VRAM"
        got = json.loads(got)
        assert [list(plan) for plan in got] == [list(plan) for plan in want]
        assert got == want
    elif option(vector["argv"], "format") == "csv":
        want = read_csv(want)
        for row in want:
            row["model"] = model_name(vector)
            row["target_seg_type"] = row["target_seg_type"].replace("FILE", "VRAM")
        assert sorted(read_csv(got), key=lambda r: r["config_file"]) == sorted(want, key=lambda r: r["config_file"])
    else:
        assert got == corrected(want, model_name(vector))


@by_kind("equal")
def test_equal(vector, folder):
    result = clean(run(*command(vector), cwd=folder))
    assert result.returncode == OK, result.stderr
    compare(vector, result.stdout)


@by_kind("precision")
def test_equal_but_for_the_precision(vector, folder):
    """With the file's two precisions exchanged, the figures are KVBench's; without, they are what the KV cache really takes."""
    config = option(vector["argv"], "model_config")
    text = FILES[config]
    kvcache = re.search(r"kvcache_quant_mode: *(\S+)", text)
    model = re.search(r"model_quant_mode: *(\S+)", text)
    exchanged = folder / "exchanged" / config
    exchanged.parent.mkdir(parents=True, exist_ok=True)
    exchanged.write_text(text.replace(kvcache.group(0), f"kvcache_quant_mode: {model.group(1)}"))
    argv = [str(exchanged) if word == config else word for word in command(vector)]
    result = clean(run(*argv, cwd=folder))
    got = result.stdout.replace(str(exchanged), config)
    if option(argv, "format") == "csv":
        got = got.replace("model_strategy_kvcache_quant_mode", "ignored")
        for quant in ("fp8", "fp16", "int8", "bfloat16"):
            got = got.replace(f"{model.group(1).strip(chr(34))},{model.group(1).strip(chr(34))}",
                              f"{model.group(1).strip(chr(34))},{kvcache.group(1).strip(chr(34))}")
        got = got.replace("ignored", "model_strategy_kvcache_quant_mode")
    assert result.returncode == OK, result.stderr
    compare(vector, got)

    as_it_stands = clean(run(*command(vector), cwd=folder))
    assert as_it_stands.returncode == OK and as_it_stands.stdout != result.stdout


@by_kind("an override below 1 is refused")
def test_refused(vector, folder):
    result = clean(run(*command(vector), cwd=folder))
    assert result.returncode == USAGE and not result.stdout and "whole number from 1" in result.stderr


@by_kind("works by now")
def test_works_by_now(vector, folder):
    result = clean(run(*vector["argv"], cwd=folder))
    assert result.returncode == OK and result.stdout, result.stderr


@by_kind("failure")
def test_failures(vector, folder):
    """Commands that fail in KVBench fail here, on the right channel and with a matching exit status."""
    result = clean(run(*vector["argv"], cwd=folder))
    assert result.returncode == (USAGE if usage(vector) else FAILED)
    assert result.stderr and "rror" not in result.stdout
    for file in re.findall(r"Error processing config file (\S+):", vector["stdout"]):
        assert file in result.stderr
    if "====" in vector["stdout"]:  # the other configurations are still printed
        assert vector["stdout"].startswith(result.stdout)


def test_enough_of_them():
    """The file of vectors is the expected one, and most vectors are compared unchanged."""
    kinds = [kind(v) for v in DATA["vectors"]]
    assert kinds.count("equal") >= 450 and kinds.count("another program") <= 6


def with_values(vector):
    """Returns whether both files have contents, and not only names."""
    return ("values" in vector and kind(vector) == "equal"
            and all(isinstance(FILES.get(option(vector["argv"], name)), dict) for name in ("model", "model_config")))


@pytest.mark.parametrize("vector", [pytest.param(v, id=str(v["id"])) for v in DATA["vectors"] if with_values(v)])
def test_values(vector):
    """The formulas of kvbench.py, with which the other tests compare, give KVBench's values."""
    model, deployment = (json.loads(json.dumps(FILES[option(vector["argv"], name)])) for name in ("model", "model_config"))
    for name, (section, key) in {"pp": ("strategy", "pp_size"), "tp": ("strategy", "tp_size"),
                                 "isl": ("runtime", "isl"), "num_requests": ("runtime", "num_requests"),
                                 "page_size": ("system", "page_size")}.items():
        if option(vector["argv"], name):
            deployment[section][key] = int(option(vector["argv"], name))
    if option(vector["argv"], "access_pattern"):
        deployment["system"]["access_pattern"] = option(vector["argv"], "access_pattern")
    want = figures(model, deployment)
    assert {k: v for k, v in vector["values"].items() if k in want} == want
