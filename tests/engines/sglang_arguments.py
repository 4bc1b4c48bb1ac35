# SPDX-License-Identifier: Apache-2.0
"""Checks, without a GPU, that the arguments and attributes of SGLang that traffic_sglang.py uses exist in the sources of an installed SGLang."""

import ast
import importlib.util
import pathlib
import tempfile
import types

import traffic
import traffic_sglang

ns = types.SimpleNamespace


def jobs(folder):
    """Returns a job of each arm, as the driver makes it, and one of each kind that has other arguments."""
    options = traffic.options_of(["--pack", folder, "--engine", "sglang", "--shape", "tiny"])
    place = ns(daemon=ns(socket=f"{folder}/s"), files=f"{folder}/files", cgroup="", host=ns(scratch=pathlib.Path(folder)))
    of_arms = [options.job(arm, 1, place) for arm in traffic_sglang.ARMS]
    return [*of_arms, dict(of_arms[-1], eager=True), dict(of_arms[-1], layout="page_first_direct"), dict(of_arms[-1], tp=2)]


def source_of(module):
    """Returns the syntax tree of a module, which is not imported: without a GPU and SGLang's kernels that would fail."""
    return ast.parse(pathlib.Path(importlib.util.find_spec("sglang").origin).parent.joinpath(module).read_text())


def class_of(tree, name):
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def fields_of_server_args():
    """Returns the names of SGLang's arguments, which later versions have in several modules."""
    package = pathlib.Path(importlib.util.find_spec("sglang").origin).parent / "srt"
    modules = [package / "server_args.py", *package.glob("arg_groups/fields/*.py")]
    return {node.target.id for module in modules for node in ast.walk(ast.parse(module.read_text()))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}


def the_traffic_benchmark_uses_sglang_as_it_is(make, daemon):
    fields = fields_of_server_args()
    with tempfile.TemporaryDirectory() as folder:
        for job in jobs(folder):
            assert traffic_sglang.arguments_of(job).keys() <= fields, sorted(traffic_sglang.arguments_of(job).keys() - fields)
    methods = {node.name: node for node in class_of(source_of("srt/entrypoints/engine.py"), "Engine").body
               if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    assert isinstance(methods["async_generate"], ast.AsyncFunctionDef) and "flush_cache" in methods
    assert {"input_ids", "sampling_params", "stream"} <= {argument.arg for argument in methods["async_generate"].args.args}
    texts = {node.value for path in ("srt/managers/tokenizer_manager.py", "srt/managers/io_struct.py", "srt/environ.py")
             for node in ast.walk(source_of(path)) if isinstance(node, ast.Constant)}
    assert {"output_ids", "meta_info", "finish_reason", "cached_tokens"} <= texts
    names = {node.id for node in ast.walk(source_of("srt/environ.py")) if isinstance(node, ast.Name)}
    assert {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", "SGLANG_IS_FLASHINFER_AVAILABLE"} <= names
