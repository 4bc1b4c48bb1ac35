# SPDX-License-Identifier: Apache-2.0
"""Makes archives of Python packages for a GPU machine without a network: downloads wheels, strips them, packs them.

Used by the recipes make_*.py, which run where there is a package index. An archive unpacks to a folder for PYTHONPATH. The packages that such a
machine has (PyTorch 2.11 for CUDA 13, transformers, triton, numpy and their like) are left out.
"""

import pathlib
import shutil
import struct
import subprocess
import sys
import zipfile

PYTHON = "3.12"
HOPPER = 90
PLATFORMS = [f"manylinux_2_{n}_x86_64" for n in (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)] + [
    f"manylinux{n}_x86_64" for n in ("2014", "2010", "1")]
FATBIN_MAGIC, PTX, CUBIN = 0xBA55ED50, 1, 2
STUB = '''"""A stand-in for a package that this pack leaves out. Its names can be imported, and refuse to be called."""

__version__ = "0"


class _Missing(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _missing(name)


def _missing(name):
    def refuse(*arguments, **named):
        raise NotImplementedError(f"{__name__}.{name} is not in this pack")

    return _Missing(name, (), {"__new__": refuse})


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _missing(name)
'''


def download(folder, requirements):
    """Downloads wheels, without what they require, that run on the Python of the GPU machine. Returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version", PYTHON,
                    "--implementation", "cp", *platforms, "-d", folder, *requirements], check=True)
    return sorted(folder.glob("*.whl"))


def unpack(wheel, site, keeps=lambda name: True, change=lambda name, data: data):
    """Unpacks the files of a wheel for which keeps(name) is true, each as change(name, data) returns it."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith("/") and ".data/" not in name and keeps(name):
                path = site / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(change(name, archive.read(name)))


def stub(site, *names, text=STUB):
    """Writes modules that stand in for a package, such as "flashinfer" and "flashinfer.comm"."""
    for name in names:
        is_package = any(other.startswith(f"{name}.") for other in names)
        path = site / (name.replace(".", "/") + ("/__init__.py" if is_package else ".py"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def pack(site, archive):
    """Packs the folder into a .tar.xz. Returns the bytes of the archive."""
    for cache in list(site.rglob("__pycache__")):
        shutil.rmtree(cache)
    names = sorted(path.name for path in site.iterdir())
    with open(archive, "wb") as out:
        tar = subprocess.Popen(["tar", "-C", site, "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-cf", "-", *names],
                               stdout=subprocess.PIPE)
        subprocess.run(["xz", "-9e", "-T2"], stdin=tar.stdout, stdout=out, check=True)
        if tar.wait():
            raise SystemExit(f"tar of {site} ended with {tar.returncode}")
    return pathlib.Path(archive).stat().st_size


# --- GPU code of one architecture ---


def sections(data):
    """Returns (name, offset, length) of each section of a 64-bit ELF file."""
    table, = struct.unpack_from("<Q", data, 40)
    length, count, names = struct.unpack_from("<HHH", data, 58)
    rows = [struct.unpack_from("<IIQQQQ", data, table + i * length) for i in range(count)]
    first = rows[names][4]
    return [(bytes(data[first + row[0]:data.index(0, first + row[0])]), row[4], row[5]) for row in rows]


def containers(data, offset, length):
    """Returns, for each fat binary of a section, the entries (kind, architecture, offset, length) of its GPU code."""
    found, at, end = [], offset, offset + length
    while at + 16 <= end:
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != FATBIN_MAGIC:
            at += 8
            continue
        entries, place = [], at + header
        while place < at + header + size:
            kind, _, inner, length_of_code = struct.unpack_from("<HHIQ", data, place)
            architecture, = struct.unpack_from("<I", data, place + 28)
            entries.append((kind, architecture, place + inner, length_of_code))
            place += inner + length_of_code
        found.append(entries)
        at += header + size
    return found


def keep_architecture(data, architecture=HOPPER):
    """Returns a shared library with the GPU code of other architectures zeroed in place. PTX is zeroed where machine code for `architecture` is."""
    kept = bytearray(data)
    for name, offset, length in sections(data):
        for entries in containers(data, offset, length) if name == b".nv_fatbin" else ():
            has_code = any(kind == CUBIN and own == architecture for kind, own, _, _ in entries)
            for kind, own, at, size in entries:
                if (kind == CUBIN and own != architecture) or (kind == PTX and (has_code or own > architecture)):
                    kept[at:at + size] = bytes(size)
    return bytes(kept)
