# SPDX-License-Identifier: Apache-2.0
"""Builds the daemon and both tools for a wheel, with meson, and collects the shared libraries that they need. Used by build_backend.py.

A library is linked statically if the distribution has a static version of it. Other libraries are copied into the wheel, beside libkvcache,
where the programs find them by a path relative to themselves.
"""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

NAMES = ("kvcache-daemon", "kvcachectl", "kvcache-bench")
TARGETS = ("daemon/kvcache-daemon", "client/ctl/kvcachectl", "client/bench/kvcache-bench")
# The commands and the libraries that the build needs, each with the Debian package that contains it.
COMMANDS = {"meson": "meson", "ninja": "ninja-build", "pkg-config": "pkg-config"}
LIBRARIES = {"libevent_core": "libevent-dev", "libevent_extra": "libevent-dev", "liburing": "liburing-dev", "yaml-0.1": "libyaml-dev",
             "libcjson": "libcjson-dev", "libisal": "libisal-dev", "libmd": "libmd-dev"}
# Libraries that every system with glibc has, and that are therefore not copied. The wheel's tag names the glibc version that is needed.
OF_THE_SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|ld-linux[\w-]*)\.so\.\d+")
FOLDERS = ("proto", "daemon", "client/bench", "client/common", "client/ctl", "client/events", "client/examples", "client/gpu", "client/lib", "conf/models",
           "conf/deployments")
FILES = ("meson.build", "meson_options.txt", "client/meson.build", "client/kvcache.h", "client/kvcache-admin.h", "client/kvcache-gpu.h",
         "client/kvcache-layout.h", "client/kvcache-transfer.h", "LICENSE")


def _runs(command, environment):
    try:
        return subprocess.run([command, "--version"], env=environment, capture_output=True).returncode == 0
    except OSError:
        return False


def environment():
    """Returns an environment in which meson and ninja run, or None. Two environments are tried: with pip's PYTHONPATH, which has the
    packages that pip installed for the build, and without it, because PYTHONPATH hides the packages, such as meson, of the Python that pip
    runs in."""
    shown = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONNOUSERSITE")}
    return next((e for e in (dict(os.environ), shown) if _runs("meson", e) and _runs("ninja", e)), None)


def missing():
    """Returns the names of the Debian packages that the build needs and that are not installed."""
    names = {COMMANDS["pkg-config"]} if not shutil.which("pkg-config") else set()
    if environment() is None:
        names |= {COMMANDS[command] for command in ("meson", "ninja") if not _runs(command, dict(os.environ))}
    compiler = shlex.split(os.environ.get("CC", "cc"))[0]
    if not shutil.which(compiler):
        names |= {"gcc", "libc6-dev"}
    if shutil.which("pkg-config"):
        names |= {package for library, package in LIBRARIES.items()
                  if subprocess.run(["pkg-config", "--exists", library], stderr=subprocess.DEVNULL).returncode != 0}
    else:
        names |= set(LIBRARIES.values())
    return sorted(names)


def sources(tree):
    """Returns the files from which the programs are built, relative to the tree."""
    found = [p.relative_to(tree) for folder in FOLDERS for p in sorted((tree / folder).rglob("*")) if p.is_file()]
    return [p for p in found if "__pycache__" not in p.parts and not p.name.startswith(".")] + [pathlib.Path(p) for p in FILES]


def _run(*command, **options):
    try:
        subprocess.run([str(c) for c in command], check=True, **options)
    except (OSError, subprocess.CalledProcessError) as e:
        sys.exit(f"kvcache: building the daemon failed: {str(e).rstrip('.')}. To build the client alone: pip install --config-settings daemon=no ./client/python")


def build(tree, folder):
    """Builds the programs and libkvcache in a folder, which may contain an earlier build, and installs them in the folder "installed"
    there. Returns the files for the wheel as pairs of a name below kvcache/ and a path."""
    folder.mkdir(parents=True, exist_ok=True)
    tools = environment()
    if not (folder / "build.ninja").exists():
        here = os.path.relpath(tree, folder)
        _run("meson", "setup", folder, tree, "--buildtype=release", "--prefix=/kvcache", "--libdir=lib", "-Dtests=disabled",
             "-Dsystemd=disabled", "-Dio_uring=enabled", "-Dprograms_only=true", "-Dprefer_static=true",
             f"-Dc_args=-fmacro-prefix-map={here}/= {os.environ.get('CFLAGS', '')}".rstrip(),
             # $ORIGIN/./../lib differs from the spelling that meson uses for its own rpath, which it removes at installation.
             "-Dc_link_args=-Wl,--disable-new-dtags,-rpath,$ORIGIN/./../lib", env=tools, stdout=sys.stderr)
    _run("ninja", "-C", folder, *TARGETS, env=tools, stdout=sys.stderr)
    installed = folder / "installed"
    shutil.rmtree(installed, ignore_errors=True)
    _run("meson", "install", "-C", folder, "--no-rebuild", "--tags", "runtime", "--strip", "--quiet",
         env={**tools, "DESTDIR": str(installed)}, stdout=sys.stderr)
    root = installed / "kvcache"
    files = [(f"bin/{name}", root / "bin" / name) for name in NAMES] + [("lib/libkvcache.so.1", root / "lib/libkvcache.so.1")]
    files += [(f"lib/{name}", path) for name, path in sorted(_needed([path for _, path in files], root).items())]
    data = [p for kind in ("models", "deployments") for p in sorted((tree / "conf" / kind).rglob("*")) if p.is_file()]
    return files + [(f"share/kvcache/{p.relative_to(tree / 'conf')}", p) for p in data]


def _needed(programs, root):
    """Returns, by name, the paths of the shared libraries that the programs need and that are neither the system's nor installed with the
    programs."""
    needed = {}
    for program in programs:
        listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
        if "not found" in listed:
            sys.exit(f"kvcache: a library that {program.name} needs is not found:\n{listed}")
        for name, path in re.findall(r"^\s*(\S+) => (/\S+)", listed, re.M):
            if not OF_THE_SYSTEM.fullmatch(name) and root not in pathlib.Path(path).parents:
                needed[name] = pathlib.Path(path)
    return needed


def licenses():
    """Returns the copyright files of the packages of LIBRARIES, as far as the distribution has them, as pairs of the package's name and the
    file's bytes."""
    return [(package, path.read_bytes()) for package in sorted(set(LIBRARIES.values()))
            if (path := pathlib.Path("/usr/share/doc", package, "copyright")).exists()]
