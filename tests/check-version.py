#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that all copies of the version, and the library's SONAME and symbols, agree with meson.build.

    check-version.py [ROOT]        prints FILE: what disagrees
    check-version.py --self-test
"""

import pathlib
import re
import shutil
import sys
import tempfile

FILES = ("meson.build", "CHANGELOG.md", "client/lib/meson.build", "client/lib/libkvcache.map", "client/python/build_backend.py",
         "client/python/metadata.in", "client/python/pyproject.toml", "debian/changelog", "debian/control", "debian/libkvcache*.symbols")


def find(pattern, text):
    found = re.search(pattern, text, re.M)
    return found[1] if found else None


def python_version(root):
    """Returns the version that pip sees, by running the build backend, which offers no other way."""
    path = root / "client/python/build_backend.py"
    backend = {"__name__": "build_backend", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), backend)
    return find(r"^Version: (.*)$", backend["metadata"]())


def disagreements(root):
    read = {name: (root / name).read_text() for name in FILES if "*" not in name}
    version = find(r"^project\([^)]*?\bversion : '([^']+)'", read["meson.build"])
    if not version or not re.fullmatch(r"\d+\.\d+\.\d+", version):
        yield "meson.build", f"the project's version is {version}, not three numbers"
        return
    heading = find(r"^## (\S+)", read["CHANGELOG.md"])
    if heading != version:
        yield "CHANGELOG.md", f"the first section is {heading}, meson.build has {version}"
    dates = re.findall(r"^## \S+(.*)$", read["CHANGELOG.md"], re.M)
    for i, date in enumerate(dates):
        if not re.fullmatch(r" - (\d{4}-\d\d-\d\d" + ("|unreleased)" if i == 0 else ")"), date):
            yield "CHANGELOG.md", f"a section has{date or ' nothing'} where its date is to be"
    package = find(r"^kvcache-daemon \(([^)]+)\)", read["debian/changelog"])
    if not package or re.fullmatch(re.escape(version) + r"([-+~].*)?", package) is None:
        yield "debian/changelog", f"the first entry is of {package}, meson.build has {version}"
    if "@VERSION@" not in read["client/python/metadata.in"] or find(r"^\s*version\s*=(.*)", read["client/python/pyproject.toml"]):
        yield "client/python", "the version is a literal, instead of meson.build's"
    elif (python := python_version(root)) != version:
        yield "client/python/build_backend.py", f"the package is version {python}, meson.build has {version}"

    number = find(r"soversion : '(\d+)'", read["client/lib/meson.build"])
    if find(r"^LIBKVCACHE_(\d+) ", read["client/lib/libkvcache.map"]) != number:
        yield "client/lib/libkvcache.map", f"the symbols' version is not that of the SONAME, {number}"
    if find(r"-soname,libkvcache\.so\.(\d+)", read["client/python/build_backend.py"]) != number:
        yield "client/python/build_backend.py", f"the SONAME is not libkvcache.so.{number}"
    if f"\nPackage: libkvcache{number}\n" not in read["debian/control"]:
        yield "debian/control", f"there is no package libkvcache{number}, which the SONAME asks for"
    symbols = root / f"debian/libkvcache{number}.symbols"
    if not symbols.exists():
        yield str(symbols.relative_to(root)), "is missing"
        return
    text = symbols.read_text()
    if not text.startswith(f"libkvcache.so.{number} libkvcache{number} #MINVER#\n"):
        yield f"debian/{symbols.name}", "the first line does not name this SONAME and this package"
    exported = set(re.findall(r"^\s+(kvcache_\w+);", read["client/lib/libkvcache.map"], re.M))
    listed = re.findall(rf"^ (kvcache_\w+)@LIBKVCACHE_{number} (\S+)$", text, re.M)
    for name in sorted(exported ^ {name for name, _ in listed}):
        yield f"debian/{symbols.name}", f"{name} is {'missing' if name in exported else 'not in client/lib/libkvcache.map'}"
    for name, since in listed:
        if [int(n) for n in since.split(".")] > [int(n) for n in version.split(".")]:
            yield f"debian/{symbols.name}", f"{name} is said to be there since {since}, which is to come"


def self_test(root):
    """Makes each kind of disagreement in a copy, which must be reported."""
    changes = [
        ("meson.build", r"version : '\d+\.\d+\.\d+'", "version : '9.9.9'"), ("meson.build", r"version : '\d+\.\d+\.\d+'", "version : '9.9'"),
        ("CHANGELOG.md", r"## \d+\.\d+\.\d+", "## 9.9.9"), ("CHANGELOG.md", r"(## 0.1.0) - .*", r"\1"),
        ("debian/changelog", r"\(\d+\.\d+\.\d+", "(9.9.9"), ("debian/changelog", r"\((\d+\.\d+\.\d+)", r"(\g<1>0"),
        ("client/python/metadata.in", "@VERSION@", "0.2.0"), ("client/python/pyproject.toml", r"\Z", '\n[project]\nversion = "0.2.0"\n'),
        ("client/python/build_backend.py", r'version : \'\(\[\^\'\]\+\)\'"', r"meson_version : '>= ([^']+)'" + '"'),
        ("client/python/build_backend.py", r"libkvcache\.so\.1\"", 'libkvcache.so.2"'),
        ("client/lib/meson.build", "soversion : '1'", "soversion : '2'"), ("client/lib/libkvcache.map", "LIBKVCACHE_1 ", "LIBKVCACHE_2 "),
        ("client/lib/libkvcache.map", "kvcache_version;", "kvcache_version;\n        kvcache_new;"),
        ("client/lib/libkvcache.map", "kvcache_version;", ""), ("debian/libkvcache1.symbols", r"(kvcache_version@\S+) \S+", r"\1 9.0.0"),
        ("debian/libkvcache1.symbols", "libkvcache1 #MINVER#", "libkvcache0 #MINVER#"), ("debian/control", "Package: libkvcache1\n", "Package: libkvcache0\n"),
    ]
    missed = 0
    for name, pattern, to in [("meson.build", "^", "")] + changes:
        with tempfile.TemporaryDirectory() as copy:
            for pattern_of in FILES + ("client/python/README.md",):
                for path in root.glob(pattern_of):
                    target = pathlib.Path(copy, path.relative_to(root))
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, target)
            text = pathlib.Path(copy, name).read_text()
            changed = re.sub(pattern, to, text, count=1)
            pathlib.Path(copy, name).write_text(changed)
            found = list(disagreements(pathlib.Path(copy)))
            if (changed != text) != bool(found) or (to and changed == text):
                print(f"self-test: {name} with {to!r}: {found or 'nothing found'}")
                missed += 1
    return missed


if __name__ == "__main__":
    here = pathlib.Path(__file__).resolve().parent.parent
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test(here) > 0)
    complaints = list(disagreements(pathlib.Path(sys.argv[1]) if sys.argv[1:] else here))
    for file, complaint in complaints:
        print(f"{file}: {complaint}")
    sys.exit(len(complaints) > 0)
