#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes an archive of LMCache, lmcache-VERSION-sm90.tar.xz, for the traffic benchmark (traffic.py) on an H100 or H200 without a network.

    make_lmcache.py FOLDER [--version 0.5.6]

This script needs pip, tar, xz and 200 MB of disk. Unpack the archive into the folder of vLLM's packages, or pass both to traffic.py: --site VLLM
--site LMCACHE. Further packages that LMCache imports are in vLLM's archive (fastapi, msgspec, opentelemetry, pyzmq), or must be installed on the
GPU machine (aiofiles, httpx, numba). The machine must have PyTorch 2.11.

The kernels of LMCache 0.5.4 to 0.5.6 are built for a later PyTorch. They refer to one function that PyTorch 2.11 lacks: the constructor of
c10::NotImplementedError, which they throw for wrong arguments. The script renames this reference to the constructor of the base class, which has
the same arguments. LMCache 0.5.3 and earlier need no such change.
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
