# SPDX-License-Identifier: Apache-2.0
"""The library as programs use it: its soname, its headers in C and C++, its symbols."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

from harness import BUILD, slow

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(BUILD) / "client/lib"
CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler")


def run(*command, **kwargs):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, **kwargs)


def test_soname():
    dynamic = run("readelf", "-d", LIBRARY / "libkvcache.so").stdout
    assert re.search(r"SONAME.*\[libkvcache\.so\.1\]", dynamic), dynamic


@needs_cc
def test_a_client_of_the_old_interface_is_refused_by_the_linker(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    (tmp_path / "old.c").write_text("int kvcache_call(void) { return 0; }\n")
    (tmp_path / "old.map").write_text("LIBKVCACHE_0.1 { global: kvcache_call; local: *; };\n")
    (tmp_path / "client.c").write_text("int kvcache_call(void); int main(void) { return kvcache_call(); }\n")
    built = run(CC, "-shared", "-fPIC", "-Wl,-soname,libkvcache.so.0", f"-Wl,--version-script={tmp_path}/old.map",
                "-o", old / "libkvcache.so.0", tmp_path / "old.c")
    assert built.returncode == 0, built.stderr
    built = run(CC, "-o", tmp_path / "client", tmp_path / "client.c", old / "libkvcache.so.0")
    assert built.returncode == 0, built.stderr
    assert run(tmp_path / "client", env={"LD_LIBRARY_PATH": str(old)}).returncode == 0

    refused = run(tmp_path / "client", env={"LD_LIBRARY_PATH": str(LIBRARY)})
    assert refused.returncode == 127 and "libkvcache.so.0" in refused.stderr, refused

    # Even a link of the old name to the new library does not make the program run.
    shutil.copy(LIBRARY / "libkvcache.so", new / "libkvcache.so.0")
    refused = run(tmp_path / "client", env={"LD_LIBRARY_PATH": str(new), "LD_BIND_NOW": "1"})
    assert refused.returncode != 0 and "LIBKVCACHE_0.1" in refused.stderr, refused


@pytest.mark.documents
@needs_cc
@pytest.mark.parametrize("language", ["-std=c99", "-std=c11", "-xc++ -std=c++11", "-xc++ -std=c++20"])
@pytest.mark.parametrize("header", ["kvcache.h", "kvcache-admin.h", "kvcache-gpu.h", "kvcache-layout.h", "kvcache-transfer.h"])
def test_headers_compile_alone(tmp_path, header, language):
    source = tmp_path / "x.c"
    source.write_text(f"#include <{header}>\n#include <kvcache.h>\n"
                      "void f(struct kvcache_request *q) { kvcache_prep_match(q, 1, 0, 0); }\n")
    if "c++" in language and run(CC, "-xc++", "-fsyntax-only", "/dev/null").returncode != 0:
        pytest.skip("no C++ compiler")
    done = run(CC, *language.split(), "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I", ROOT / "client",
               source)
    assert done.returncode == 0, done.stderr


def symbols():
    text = (ROOT / "client/lib/libkvcache.map").read_text()
    return set(re.findall(r"^\s+(kvcache_\w+);", text, re.M))


def test_the_library_has_the_symbols_of_its_map_and_the_headers_declare_them():
    found = set(re.findall(r"\b(kvcache_\w+)@@LIBKVCACHE_1", run("readelf", "--dyn-syms", "-W", LIBRARY / "libkvcache.so").stdout))
    assert found == symbols()
    headers = "".join((ROOT / "client" / h).read_text() for h in ("kvcache.h", "kvcache-admin.h", "kvcache-gpu.h", "kvcache-layout.h", "kvcache-transfer.h"))
    declared = set(re.findall(r"^(?:int|void|size_t|const char \*|const void \*) ?\*?(kvcache_\w+)\(", headers, re.M))
    assert declared == symbols()


@pytest.mark.parametrize("name,says", [
    ("blocking", ["8 of 8 blocks came back"]),
    ("async-epoll", ["64 of 64 blocks were kept"]),
    ("registered-memory", ["4 of 4 blocks were kept", "4 of 4 blocks came back"]),
])
def test_examples(daemon, name, says):
    for _ in range(2):  # the second time everything is stored already
        done = run(pathlib.Path(BUILD) / "client" / f"example-{name}", daemon.socket, timeout=60 * slow())
        assert done.returncode == 0, done
        assert done.stdout.splitlines() == says


def test_examples_say_so_without_a_daemon(tmp_path):
    for name in ("blocking", "async-epoll", "registered-memory", "gpu-blocks"):
        done = run(pathlib.Path(BUILD) / "client" / f"example-{name}", tmp_path / "none.sock", timeout=60 * slow())
        assert done.returncode == 1 and "cannot connect" in done.stderr


MAN = ROOT / "client/lib/man"


def inline_functions():
    for header in ("kvcache.h", "kvcache-admin.h", "kvcache-gpu.h", "kvcache-layout.h", "kvcache-transfer.h"):
        yield from re.findall(r"^static inline \w+ (kvcache_\w+)\(", (ROOT / "client" / header).read_text(), re.M)


def test_every_function_has_its_man_page():
    exported = re.findall(r"^\s+(kvcache_\w+);", (ROOT / "client/lib/libkvcache.map").read_text(), re.M)
    functions = set(exported) | set(inline_functions())
    assert len(functions) > 40
    named = {}
    for page in MAN.glob("*.3"):
        text = page.read_text()
        if text.startswith(".so "):
            assert text == f".so man3/{pathlib.Path(text.split()[1]).name}\n"
            assert page.stem in names_of(MAN / pathlib.Path(text.split()[1]).name), page
            continue
        for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "RETURN VALUE", "EXAMPLES", "SEE ALSO"):
            assert f".SH {section}\n" in text, (page, section)
        for name in names_of(page):
            assert named.setdefault(name, page.stem) == page.stem, name
            assert (MAN / f"{name}.3").exists(), name
    assert functions <= set(named), functions - set(named)
    assert set(named) - functions <= {"kvcache_admin"}, set(named) - functions
    installed = re.findall(r"^\s+'(kvcache_\w+)',$", (ROOT / "client/lib/meson.build").read_text(), re.M)
    assert set(installed) == {p.stem for p in MAN.glob("*.3")}


def names_of(page):
    return re.search(r"^\.SH NAME\n(.*) \\- ", page.read_text(), re.M).group(1).split(", ")


@pytest.mark.documents
@pytest.mark.skipif(shutil.which("man") is None, reason="no man")
@pytest.mark.parametrize("page", sorted(p.name for p in MAN.glob("*.[37]") if not p.read_text().startswith(".so ")))
def test_man_pages_are_well_formed(page):
    shown = run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", MAN / page, env={**os.environ, "LC_ALL": "C.UTF-8"})
    assert shown.returncode == 0 and shown.stderr == "", shown.stderr


def man_examples():
    """Yields (page, number, C source) of each example of a man page: the text between .EX and .EE in its section EXAMPLES."""
    for page in sorted(MAN.glob("*.[37]")):
        _, _, section = page.read_text().partition(".SH EXAMPLES\n")
        for n, text in enumerate(re.findall(r"^\.EX\n(.*?)^\.EE$", section.split(".SH ")[0], re.M | re.S)):
            yield page.name, n, re.sub(r"^\\&", "", text, flags=re.M).replace("\\-", "-").replace("\\e", "\\")


def test_man_pages_say_buffer_for_registered_memory():
    """The word "region" is a term of the wire protocol; in man pages only those about layouts use it, for a part of an engine's memory."""
    layouts = {"kvcache_layout_measure.3", "kvcache_layout_gather.3", "kvcache_count_transfer.3"}
    assert {p.name for p in MAN.glob("*.[37]") if "region" in p.read_text().lower()} == layouts


def test_each_man_page_has_an_example():
    assert {page for page, _, _ in man_examples()} == {p.name for p in MAN.glob("*.[37]") if not p.read_text().startswith(".so ")}


@pytest.mark.documents
@needs_cc
@pytest.mark.parametrize("page,n,text", [pytest.param(*e, id=f"{e[0]}-{e[1]}") for e in man_examples()])
def test_examples_of_man_pages_compile_and_link(daemon, tmp_path, page, n, text):
    if slow() > 1:
        pytest.skip("a library with a sanitizer needs a program with it")
    source, built = tmp_path / "example.c", tmp_path / "example"
    source.write_text(text)
    is_program = " main(" in text
    done = run(CC, "-std=c11", "-Wall", "-Wextra", "-Werror", *([] if is_program else ["-shared", "-fPIC", "-Wl,-z,defs"]),
               "-I", ROOT / "client", "-o", built, source, "-L", LIBRARY, "-lkvcache", f"-Wl,-rpath,{LIBRARY}")
    assert done.returncode == 0, done.stderr
    if is_program:
        for _ in range(2):  # the second time everything is stored already
            done = run(built, env={**os.environ, "KVCACHE_SOCKET": str(daemon.socket)}, timeout=60 * slow())
            assert (done.returncode, done.stderr) == (0, ""), done
            assert done.stdout == "ok: the bytes of a block\n"
