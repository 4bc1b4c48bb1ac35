#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes an archive of SGLang, sglang-VERSION-sm90.tar.xz, for the traffic benchmark (traffic.py --site) on an H100 or H200 without a network.

    make_sglang.py FOLDER [--toolkit FOLDER [--python PYTHON]]

Needs pip, tar, xz and 2 GB of disk; takes about three minutes. The pack has SGLang's Python code, its kernels for Hopper and the packages that it
imports for a model with `--load-format dummy --skip-tokenizer-init`, the Triton attention backend, PyTorch's sampling and HiCache. Other models
are left out, and so is what only they need; xgrammar and FlashInfer are stand-ins. Set SGLANG_IS_FLASHINFER_AVAILABLE=0.

SGLang compiles a few small kernels when it first needs them, for which the GPU machine needs nvcc and ninja. --toolkit names a CUDA 13.0
toolkit and compiles them now, for which --python must be a Python 3.12 with PyTorch 2.11 and numpy. They are in the pack's folder "jit"
(TVM_FFI_CACHE_DIR).
"""

import argparse
import os
import pathlib
import shutil
import subprocess

import site_pack

VERSION = "0.5.17"
WHEELS = [f"sglang=={VERSION}", "sglang-kernel==0.4.5", "transformers==5.12.1"]
NEEDS = """annotated-types==0.8.0 apache-tvm-ffi==0.1.11 compressed-tensors==0.20.1 decorator==5.3.1 dill==0.4.1 distro==1.9.0 fastapi==0.136.3
gguf==0.19.0 interegular==0.3.3 ipython==9.18.1 jiter==0.19.0 loguru==0.7.3 msgspec==0.22.0 openai==2.6.1 orjson==3.13.0
partial-json-parser==0.2.1.1.post7 pybase64==1.5.1 pydantic==2.14.3 pydantic_core==2.50.4 python-multipart==0.0.34 pyzmq==27.3.0
setproctitle==1.3.8 sniffio==1.3.1 starlette==1.10.0 traitlets==5.16.1 typing-inspection==0.4.5 uvicorn==0.54.0 watchfiles==1.3.0""".split()
LEFT_OUT = ("tools/", "sglang/benchmark/", "sglang/cli/", "sglang/eval/", "sglang/multimodal_gen/", "sglang/test/", "sglang/kernels/jit/benchmark/")
MODELS = ("__init__.py", "llama.py", "registry.py", "utils.py")
KERNEL_LIBRARIES = ("sgl_kernel/sm90/common_ops.abi3.so", "sgl_kernel/spatial_ops.abi3.so")
GRAMMAR = '''"""A stand-in for xgrammar: its names can be imported. Structured output is not in this pack."""

import pydantic

__version__ = "0"


class StructuralTag(pydantic.BaseModel):
    pass


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})
'''
# The kernels that a Llama with heads of 128 elements, 8 heads of keys and values and bfloat16 needs, and HiCache's copies of its pages.
COMPILE = '''
import torch
for name, value in (("is_available", True), ("device_count", 1), ("get_device_capability", (9, 0)), ("current_device", 0)):
    setattr(torch.cuda, name, lambda *_, _value=value, **__: _value)
from sglang.kernels.ops.activation import activation
from sglang.kernels.ops.attention import clamp_position, rope
from sglang.kernels.ops.kvcache import hicache, kvcache
row, bf16 = 8 * 128 * 2, torch.bfloat16
activation.activation_module(bf16)
rope._jit_fused_rope_module(True, 128, bf16, bf16)
kvcache._jit_kvcache_module(row, row)
clamp_position._jit_clamp_position_module(torch.int64)
hicache._jit_hicache_module(element_size=row, unroll=hicache._default_unroll(row), block_quota=hicache.DEFAULT_BLOCK_QUOTA)
hicache._jit_hicache_staged_module(element_size=row, unroll=hicache._default_unroll(row), block_quota=hicache.DEFAULT_BLOCK_QUOTA)
'''


def keeps(name):
    """Returns whether a file of a wheel is needed."""
    if name.startswith(LEFT_OUT) or name.endswith((".pyi", ".cpp.o", ".a")):
        return False
    if name.startswith("sglang/srt/models/"):
        return name.removeprefix("sglang/srt/models/") in MODELS
    if name.startswith(("sglang/srt/", "sgl_kernel/")) and name.endswith(".so"):
        return name in KERNEL_LIBRARIES
    return not name.startswith(("triton_kernels/", "sgl_kernel/sm100/"))


def change(name, data):
    if name in KERNEL_LIBRARIES:
        return site_pack.keep_architecture(data)
    if name == "transformers/dependency_versions_table.py":  # 0.23.2 runs, and the GPU machine has it
        return data.replace(b"tokenizers>=0.22.0,<=0.23.0", b"tokenizers>=0.22.0")
    return data


def compile_kernels(site, toolkit, python, work):
    """Compiles the kernels that SGLang would compile at its start, and keeps the libraries."""
    cache = work / "jit"
    shutil.rmtree(cache, ignore_errors=True)
    environment = dict(os.environ, PYTHONPATH=str(site), CUDA_HOME=str(toolkit), TVM_FFI_CACHE_DIR=str(cache), SGLANG_IS_FLASHINFER_AVAILABLE="0")
    subprocess.run([python, "-c", COMPILE], env=environment, cwd=work, check=True)
    for library in cache.glob("*/*.so"):
        kept = site / "jit" / library.parent.name
        kept.mkdir(parents=True)
        shutil.copy(library, kept)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path, help="folder of the archive, and of what is downloaded")
    p.add_argument("--toolkit", type=pathlib.Path, help="folder of a CUDA 13.0 toolkit, to compile small kernels now")
    p.add_argument("--python", default="python3", help="Python 3.12 with PyTorch 2.11 that compiles them (python3)")
    options = p.parse_args()
    folder = options.folder.resolve()
    site = folder / "site"
    shutil.rmtree(site, ignore_errors=True)
    for wheel in site_pack.download(folder / "wheels", WHEELS + NEEDS):
        site_pack.unpack(wheel, site, keeps, change)
    site_pack.stub(site, "xgrammar", "xgrammar.structural_tag", text=GRAMMAR)
    site_pack.stub(site, "flashinfer", "flashinfer.sampling")
    if options.toolkit:
        compile_kernels(site, options.toolkit.resolve(), options.python, folder)
    archive = folder / f"sglang-{VERSION}-sm90.tar.xz"
    print(archive, site_pack.pack(site, archive))


if __name__ == "__main__":
    main()
