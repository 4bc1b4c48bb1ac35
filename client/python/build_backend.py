# SPDX-License-Identifier: Apache-2.0
"""The build backend of the Python package (PEP 517 and PEP 660), which pip calls to make wheels and source distributions.

The backend uses the standard library only. A wheel contains libkvcache.so.1, the daemon and the tools, which meson builds
(build_programs.py). If the dependencies of this build are not installed, or with daemon=no, the wheel contains the library alone, which the
C compiler ($CC, else cc) builds; with library=system, the wheel contains Python files only.

The C sources are those of the tree around this folder; a source distribution has a copy of them in csrc/. The wheel's tag names the glibc
version that the symbols of all binaries require, so that pip refuses the wheel on a host where the binaries would not load.
"""

import base64
import gzip
import hashlib
import io
import os
import pathlib
import platform
import re
import shlex
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
CSRC = HERE / "csrc"
TREE = CSRC if CSRC.is_dir() else HERE.parents[1]
GLIBC_AT_LEAST = (2, 34)  # least glibc version in a tag, unless the building machine has an older one; makes tags alike on newer machines
FLAGS = ["-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-strict-aliasing", "-ffunction-sections",
         "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-Wl,--gc-sections", "-Wl,--strip-all", "-Wl,-soname,libkvcache.so.1"]


def version():
    return re.search(r"version : '([^']+)'", (TREE / "meson.build").read_text())[1]


def sources():
    """Returns the files from which the library is compiled, including headers, relative to the tree. Snapshots of sessions are left out:
    the library does not use them, and they need cJSON."""
    found = [p for folder in ("client/lib", "client/gpu", "proto") for p in sorted((TREE / folder).glob("*.[ch]"))
             if not p.name.startswith("snapshot")]
    found += sorted((TREE / "client").glob("*.h"))
    others = ("client/gpu/copy.ptx", "client/gpu/embed.py", "client/lib/libkvcache.map", "meson.build", "LICENSE")
    return [p.relative_to(TREE) for p in found] + [pathlib.Path(p) for p in others]


def compile_library(output):
    with tempfile.TemporaryDirectory() as scratch:
        pathlib.Path(scratch, "build-config.h").write_text(f'#define KVCACHE_BUILD_VERSION "{version()}"\n')
        subprocess.run([sys.executable, TREE / "client/gpu/embed.py", TREE / "client/gpu/copy.ptx", pathlib.Path(scratch, "copy-ptx.h"),
                        "copy_ptx"], check=True)
        compiled = [str(TREE / p) for p in sources() if p.suffix == ".c"]
        command = shlex.split(os.environ.get("CC", "cc")) + FLAGS + shlex.split(os.environ.get("CFLAGS", ""))
        for folder in (scratch, TREE, TREE / "proto", TREE / "client"):
            command += ["-I", str(folder)]
        command += [f"-Wl,--version-script={TREE / 'client/lib/libkvcache.map'}", "-o", str(output), *compiled]
        command += ["-pthread", "-Wl,--as-needed", "-ldl"]  # glibc 2.34 and later have these in libc itself
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            sys.exit(f"kvcache: the library cannot be built, because the C compiler {command[0]} is not found: apt-get install gcc libc6-dev, or set CC to "
                     "another compiler")
        except subprocess.CalledProcessError as e:
            sys.exit(f"kvcache: the library cannot be built, because {command[0]} ended with status {e.returncode}: see its messages above; if "
                     "headers are missing, apt-get install gcc libc6-dev")


def glibc_needed(library):
    """Returns the newest glibc version that a symbol of this library requires, or None if the library does not use glibc."""
    names = re.findall(rb"GLIBC_(\d+)\.(\d+)", pathlib.Path(library).read_bytes())
    return max((int(a), int(b)) for a, b in names) if names else None


def tag(*binaries):
    """Returns the wheel's tag, which pip compares with the machine: py3-none-manylinux_2_34_x86_64, or one with another version of glibc
    (see GLIBC_AT_LEAST) or another machine; py3-none-linux_MACHINE if a binary does not use glibc."""
    machine, versions = platform.machine(), [glibc_needed(binary) for binary in binaries]
    if None in versions:
        return f"py3-none-linux_{machine}"
    needed = max(versions)
    here = tuple(int(x) for x in os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")[:2])
    major, minor = max(needed, min(GLIBC_AT_LEAST, here))
    return f"py3-none-manylinux_{major}_{minor}_{machine}"


def metadata():
    return (HERE / "metadata.in").read_text().replace("@VERSION@", version()) + (HERE / "README.md").read_text()


def entry_points(has_programs):
    text = (HERE / "entry_points.txt").read_text()
    if has_programs:
        text += "\n[console_scripts]\n" + "".join(f"{name} = kvcache._programs:{name.replace('-', '_')}\n"
                                                  for name in ("kvcache-bench", "kvcache-daemon", "kvcachectl"))
    return text.encode()


def write_wheel(folder, files, binaries):
    """Writes a wheel of `files`, pairs of a name in the wheel and the file's bytes, into `folder`. `binaries`: the paths of the programs
    and libraries among these files, which determine the tag; a wheel without binaries is tagged for any machine. Returns the wheel's file
    name."""
    name, wheel_tag = f"kvcache-{version()}", tag(*binaries) if binaries else "py3-none-any"
    info = f"{name}.dist-info"
    files = files + [
        (f"{info}/METADATA", metadata().encode()),
        (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: kvcache\nRoot-Is-Purelib: {str(not binaries).lower()}\nTag: {wheel_tag}\n".encode()),
        (f"{info}/entry_points.txt", entry_points(any(n.startswith("kvcache/bin/") for n, _ in files))),
        (f"{info}/LICENSE", (TREE / "LICENSE").read_bytes()),
    ]
    record = "".join(f"{n},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
                     for n, data in files) + f"{info}/RECORD,,\n"
    filename = f"{name}-{wheel_tag}.whl"
    with zipfile.ZipFile(pathlib.Path(folder, filename), "w", zipfile.ZIP_DEFLATED) as wheel:
        for n, data in [*files, (f"{info}/RECORD", record.encode())]:
            entry = zipfile.ZipInfo(n)  # dated 1980, so that the same sources give the same wheel
            entry.external_attr = (stat.S_IFREG | (0o755 if n.startswith(("kvcache/bin/", "kvcache/lib/")) else 0o644)) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)
    return filename


def setting(config_settings, name, values):
    """Returns a setting of the build: from pip's --config-settings, else from $KVCACHE_BUILD_NAME, with the setting's name in capitals,
    else the first of `values`. Ends the build if the setting is not one of `values`."""
    value = (config_settings or {}).get(name) or os.environ.get(f"KVCACHE_BUILD_{name.upper()}") or values[0]
    if value not in values:
        sys.exit(f"kvcache: {name}={value} is not a setting of the build; use {', '.join(values[:-1])} or {values[-1]}")
    return value


def build_programs():
    sys.path.insert(0, str(HERE))
    try:
        import build_programs as module
    finally:
        sys.path.remove(str(HERE))
    return module


# --- hooks that pip calls (PEP 517) ---

def get_requires_for_build_wheel(config_settings=None):
    """Returns the packages that pip must install for the build: meson and ninja with daemon=yes, if they are missing. Otherwise the list is empty,
    so that pip downloads nothing."""
    if setting(config_settings, "daemon", ("auto", "yes", "no")) != "yes":
        return []
    return ["meson", "ninja"] if build_programs().environment() is None else []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds the wheel. `config_settings` is pip's --config-settings:

    daemon=auto|yes|no   whether the wheel contains the daemon and the tools; auto: if the dependencies of their build are installed
    build-dir=FOLDER     folder in which meson builds the daemon and the tools; an existing build there is continued
    library=system       omits the library and the programs, for a distribution that has separate packages with them
    """
    library = setting(config_settings, "library", ("bundled", "system"))
    daemon = setting(config_settings, "daemon", ("auto", "yes", "no"))
    files = [(str(p.relative_to(HERE)), p.read_bytes()) for p in sorted((HERE / "kvcache").rglob("*"))
             if p.is_file() and p.suffix in (".py", ".typed", ".c") and "__pycache__" not in p.parts]
    if library == "system":
        return write_wheel(wheel_directory, files, [])
    missing = [] if daemon == "no" else build_programs().missing()
    if missing and daemon == "yes":
        sys.exit(f"kvcache: to build the daemon, install {' '.join(missing)} (names of Debian's packages: apt-get install "
                 f"{' '.join(missing)}), or build the client alone: --config-settings daemon=no")
    with tempfile.TemporaryDirectory() as scratch:
        if daemon == "no" or missing:
            path = pathlib.Path(scratch, "libkvcache.so.1")
            compile_library(path)
            built = [("lib/libkvcache.so.1", path)]
            why = f"its build lacked {' '.join(missing)}" if missing else "it was built with daemon=no"
            print(f"kvcache: this wheel has no daemon: {why}", file=sys.stderr)
            files.append(("kvcache/no-daemon.txt", f"{why}\n".encode()))
        else:
            built = build_programs().build(TREE, pathlib.Path((config_settings or {}).get("build-dir", scratch)).absolute())
            files += [(f"kvcache/share/doc/{name}.copyright", data) for name, data in build_programs().licenses()]
        files += [(f"kvcache/{name}", path.read_bytes()) for name, path in built]
        return write_wheel(wheel_directory, files, [path for name, path in built if not name.startswith("share/")])


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds a wheel that refers to this folder, and compiles the library into the folder's kvcache/lib. The wheel has no programs."""
    library = HERE / "kvcache/lib/libkvcache.so.1"
    library.parent.mkdir(exist_ok=True)
    compile_library(library)
    return write_wheel(wheel_directory, [("kvcache.pth", f"{HERE}\n".encode())], [library])


def build_sdist(sdist_directory, config_settings=None):
    name = f"kvcache-{version()}"
    own = [p for p in sorted(HERE.rglob("*")) if p.is_file() and p.suffix in (".py", ".typed", ".c", ".toml", ".in", ".md", ".txt")
           and not {"__pycache__", "csrc"} & set(p.relative_to(HERE).parts)]
    files = [(str(p.relative_to(HERE)), p.read_bytes()) for p in own]
    tree = sorted({*sources(), *build_programs().sources(TREE)})
    files += [("PKG-INFO", metadata().encode())] + [(f"csrc/{p}", (TREE / p).read_bytes()) for p in tree]
    with open(pathlib.Path(sdist_directory, name + ".tar.gz"), "wb") as raw, \
            gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for path, data in files:
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return name + ".tar.gz"
