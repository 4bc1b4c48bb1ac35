#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes an LMCache that runs beside a vLLM on one H100 or H200 with PyTorch 2.11 and no network: lmcache-VERSION-sm90.tar.xz.

    make_lmcache.py FOLDER [--version 0.5.6]

Needs pip, tar, xz and 200 MB of disk. The archive unpacks beside vLLM, or traffic.py gets both: --site VLLM --site LMCACHE. vLLM's pack has
the rest of what LMCache imports (fastapi, msgspec, opentelemetry, pyzmq and their like), and the GPU machine has aiofiles, httpx and numba.

The kernels of LMCache 0.5.4 to 0.5.6 are built for a later PyTorch, from which they need one function that PyTorch 2.11 lacks: the constructor of
c10::NotImplementedError, which they throw on wrong arguments. Their reference is renamed to the constructor of its base class, which has the same
arguments. 0.5.3 and earlier need no such change.
"""

import argparse
import pathlib
import shutil

import site_pack

VERSION = "0.5.6"
NEEDS = """cffi==2.1.1 cryptography==46.0.5 cufile-python==0.2.0 opentelemetry-exporter-prometheus==0.66b2
opentelemetry-semantic-conventions==0.66b2 redis==8.1.0 sortedcontainers==2.4.0 uvicorn==0.54.0""".split()
LEFT_OUT = ("tests/", "lmcache/lmcache_frontend/", "lmcache/lmcache_redis.", "redis/commands/search/", "lmcache/integration/sglang/")
KERNELS = ("lmcache/cuda_ops.", "lmcache/c_ops.")
CONSTRUCTOR = "_ZN3c10{}C1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
DERIVED, BASE = (CONSTRUCTOR.format(name).encode() for name in ("19NotImplementedError", "5Error"))


def rename_constructor(data):
    """Returns a library whose dynamic symbols name the constructor of the base class in place of the missing one."""
    offset, length = next((at, size) for name, at, size in site_pack.sections(data) if name == b".dynstr")
    names = data[offset:offset + length].replace(b"\0" + DERIVED + b"\0", b"\0" + BASE.ljust(len(DERIVED), b"\0") + b"\0")
    return data[:offset] + names + data[offset + length:]


def keeps(name):
    return not name.startswith(LEFT_OUT) and "/tests/" not in name and not name.endswith(".pyi")


def change(name, data):
    if name.startswith(KERNELS):
        return rename_constructor(site_pack.keep_architecture(data))
    if name == "cufile/bindings.py":  # the name of the library that PyTorch has loaded
        return data.replace(b'"libcufile.so"', b'"libcufile.so.0"')
    return data


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder", type=pathlib.Path, help="folder of the archive, and of what is downloaded")
    p.add_argument("--version", default=VERSION, help=f"of LMCache ({VERSION})")
    options = p.parse_args()
    folder = options.folder.resolve()
    site = folder / f"site-{options.version}"
    shutil.rmtree(site, ignore_errors=True)
    for wheel in site_pack.download(folder / f"wheels-{options.version}", [f"lmcache=={options.version}", *NEEDS]):
        site_pack.unpack(wheel, site, keeps, change)
    archive = folder / f"lmcache-{options.version}-sm90.tar.xz"
    print(archive, site_pack.pack(site, archive))


if __name__ == "__main__":
    main()
