# SPDX-License-Identifier: Apache-2.0
"""The installed package: its wheel and the promises of the wheel's tag, the README's examples, types, and figures."""

import ctypes
import ctypes.util
import errno
import functools
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile

import build_backend
import build_programs
import compile_once
import harness
import kvcache
import pytest
from kvcache import _library, bench

PACKAGE = pathlib.Path(build_backend.__file__).parent
README = (PACKAGE / "README.md").read_text()

pytestmark = pytest.mark.documents

needs_compiler = pytest.mark.skipif(not shutil.which(os.environ.get("CC", "cc").split()[0]), reason="there is no C compiler")


@functools.lru_cache(None)
def why_no_venv():
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return "python3-venv is not installed"
    return None


needs_venv = pytest.mark.skipif(bool(why_no_venv()), reason=str(why_no_venv()))


# Code that runs only once is compiled without optimization, which takes a fifth of the time. The daemon is built once, for the tests of the wheel that has it.
QUICK = {"CFLAGS": os.environ.get("CFLAGS", "") + " -O0", "KVCACHE_BUILD_DAEMON": "no"}


def run(*command, cwd=None, **environment):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("KVCACHE_", "PYTHON"))}
    clean.update(PIP_NO_INDEX="1", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_CACHE_DIR="1", **environment)
    ran = subprocess.run([str(c) for c in command], cwd=cwd, env=clean, stdin=subprocess.DEVNULL, capture_output=True,
                         text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def once(tmp_path_factory):
    """Returns the environment in which the library is compiled once for all commands of this file that build it from the same sources."""
    words = [sys.executable, "-I", "-S", compile_once.__file__, str(tmp_path_factory.mktemp("compiled"))]
    return {**QUICK, "CC": f"{shlex.join(words)} {os.environ.get('CC', 'cc')}"}


@pytest.fixture(scope="module")
def empty_venv(tmp_path_factory):
    folder = tmp_path_factory.mktemp("venv") / "venv"
    run(sys.executable, "-m", "venv", folder)
    return folder


def copy_of(venv, folder):
    """Copies a virtual environment, which takes a tenth of the time of making one, and returns the copy's Python."""
    shutil.copytree(venv, folder, symlinks=True)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Builds a wheel from the sources, without the sanitizer of the build folder."""
    if harness.is_sanitized():
        pytest.skip("a wheel has nothing of a build folder with a sanitizer: tested without one")
    folder = tmp_path_factory.mktemp("wheel")
    return folder / build_backend.build_wheel(folder, {"daemon": "no"})


@needs_compiler
def test_the_tag_holds(wheel, tmp_path):
    """No symbol is newer than the glibc that the tag names, and glibc's libraries are the only dependencies."""
    with zipfile.ZipFile(wheel) as archive:
        assert archive.testzip() is None
        path = archive.extract("kvcache/lib/libkvcache.so.1", tmp_path)
        said = archive.read(f"kvcache-{build_backend.version()}.dist-info/WHEEL").decode()
    tag = wheel.stem.split("-", 2)[2]
    assert f"Tag: {tag}\n" in said and "Root-Is-Purelib: false" in said
    major, minor = map(int, re.fullmatch(rf"py3-none-manylinux_(\d+)_(\d+)_{platform.machine()}", tag).groups())
    listed = run("objdump", "-p", path)
    needed = [tuple(map(int, v)) for v in re.findall(r"GLIBC_(\d+)\.(\d+)", listed)]
    assert needed and max(needed) <= (major, minor)
    if max(needed) <= (2, 34):
        assert tag == f"py3-none-manylinux_2_34_{platform.machine()}"
    libraries = set(re.findall(r"NEEDED\s+(\S+)", listed))
    assert libraries <= {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def test_the_library_is_compiled_from_headers_of_the_c_library_alone():
    """A machine on which the client alone is installed has gcc and libc6-dev, but no other library's headers."""
    sources = build_backend.sources()
    own = {path.name for path in sources} | {"build-config.h", "copy-ptx.h"}
    for path in sources:
        if path.suffix in (".c", ".h"):
            for kind, name in re.findall(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', (build_backend.TREE / path).read_text(), re.M):
                assert (pathlib.Path(name).name in own) if kind == '"' else ("/" not in name or name.split("/")[0] in ("sys", "linux")), (path, name)


def test_a_wheel_for_a_distribution_has_no_library_of_its_own(tmp_path):
    name = build_backend.build_wheel(tmp_path, {"library": "system"})
    assert name == f"kvcache-{build_backend.version()}-py3-none-any.whl"
    with zipfile.ZipFile(tmp_path / name) as archive:
        names = archive.namelist()
        said = archive.read(f"kvcache-{build_backend.version()}.dist-info/WHEEL").decode()
    assert "kvcache/__init__.py" in names and not [n for n in names if ".so" in n or n.startswith("kvcache/bin/")]
    assert "Root-Is-Purelib: true" in said and "Tag: py3-none-any\n" in said
    with pytest.raises(SystemExit, match="library=shared is not a setting of the build; use bundled or system"):
        build_backend.build_wheel(tmp_path, {"library": "shared"})
    with pytest.raises(SystemExit, match="daemon=perhaps is not a setting of the build; use auto, yes or no"):
        build_backend.build_wheel(tmp_path, {"daemon": "perhaps"})


def test_a_newer_symbol_makes_another_tag(tmp_path):
    library = tmp_path / "library"
    for names, tag in ((b"GLIBC_2.2.5\0GLIBC_2.33\0", "manylinux_2_34"), (b"GLIBC_2.38\0GLIBC_2.4\0", "manylinux_2_38"),
                       (b"GLIBC_3.1\0", "manylinux_3_1"), (b"musl", "linux")):
        library.write_bytes(names)
        assert build_backend.tag(library) == f"py3-none-{tag}_{platform.machine()}"
    older = tmp_path / "older"
    older.write_bytes(b"GLIBC_2.35\0")
    library.write_bytes(b"GLIBC_2.39\0")
    assert build_backend.tag(older, library) == build_backend.tag(library, older) == f"py3-none-manylinux_2_39_{platform.machine()}"


@needs_compiler
def test_the_library_exports_what_the_installed_one_does(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        path = archive.extract("kvcache/lib/libkvcache.so.1", tmp_path)
    symbols = set(re.findall(r" T (kvcache_\w+)", run("nm", "-D", path)))
    listed = set(re.findall(r"^\s+(kvcache_\w+);", (build_backend.TREE / "client/lib/libkvcache.map").read_text(), re.M))
    assert listed <= symbols
    assert ctypes.CDLL(path).kvcache_version and kvcache.__version__ == build_backend.version()


@needs_compiler
@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="there is a CUDA driver")
def test_its_gpu_calls_say_that_there_is_no_driver(wheel, tmp_path, daemon, monkeypatch):
    with zipfile.ZipFile(wheel) as archive:
        library = ctypes.CDLL(archive.extract("kvcache/lib/libkvcache.so.1", tmp_path))
    why, handle, gpu = ctypes.create_string_buffer(512), ctypes.c_void_p(), ctypes.c_void_p()
    monkeypatch.setenv("KVCACHE_SOCKET", str(daemon.socket))
    assert library.kvcache_connect(ctypes.byref(handle), None, why, len(why)) == 0, why.value
    assert library.kvcache_gpu_attach(ctypes.byref(gpu), handle, None, why, len(why)) == -errno.ENODEV
    assert b"the CUDA driver cannot be loaded" in why.value
    library.kvcache_close(handle)


@needs_compiler
def test_the_same_sources_give_the_same_wheel(once, tmp_path, monkeypatch):
    """The two wheels have libraries of two compilations; `once` keeps the first one for the tests that install the package."""
    monkeypatch.setenv("CFLAGS", QUICK["CFLAGS"])
    wheels = []
    for name, compiler in (("one", once["CC"]), ("other", os.environ.get("CC", "cc"))):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setenv("CC", compiler)
        wheels.append((folder / build_backend.build_wheel(folder, {"daemon": "no"})).read_bytes())
    assert wheels[0] == wheels[1]


# --- the wheel that has the daemon ---

@pytest.fixture(scope="module")
def full_wheel(tmp_path_factory):
    if harness.is_sanitized():
        pytest.skip("a wheel has nothing of a build folder with a sanitizer: tested without one")
    missing = build_programs.missing()
    if missing:
        pytest.skip(f"not installed: {' '.join(missing)}")
    folder = tmp_path_factory.mktemp("full")
    before = os.environ.get("CFLAGS")
    os.environ["CFLAGS"] = QUICK["CFLAGS"].strip()
    try:
        return folder / build_backend.build_wheel(folder, {"daemon": "yes", "build-dir": str(harness.BUILD / "wheel")})
    finally:
        os.environ.pop("CFLAGS") if before is None else os.environ.update(CFLAGS=before)


@needs_compiler
@pytest.mark.limit(300)
def test_the_wheel_with_the_daemon_needs_glibc_alone(full_wheel, tmp_path):
    """The tag matches the newest symbol, no library is missing, and no file names the build folder."""
    with zipfile.ZipFile(full_wheel) as archive:
        archive.extractall(tmp_path)
        modes = {i.filename: i.external_attr >> 16 for i in archive.infolist()}
    binaries = [p for folder in ("bin", "lib") for p in sorted((tmp_path / "kvcache" / folder).iterdir())]
    assert {"kvcache-daemon", "kvcachectl", "kvcache-bench", "libkvcache.so.1"} <= {p.name for p in binaries}
    needed, bundled = set(), {p.name for p in binaries}
    for path in binaries:
        assert modes[str(path.relative_to(tmp_path))] == 0o100755
        listed = run("objdump", "-p", path)
        versions = [tuple(map(int, v)) for v in re.findall(r"GLIBC_(\d+)\.(\d+)", listed)]
        assert max(versions) <= tuple(map(int, re.search(r"manylinux_(\d+)_(\d+)_", full_wheel.name).groups())), path
        needed |= set(re.findall(r"NEEDED\s+(\S+)", listed))
        assert set(re.findall(r"(?:RPATH|RUNPATH)\s+(\S+)", listed)) <= {"$ORIGIN/./../lib"}, listed
        assert str(harness.SOURCE).encode() not in path.read_bytes() and str(harness.BUILD).encode() not in path.read_bytes(), path
    assert all(name in bundled or build_programs.OF_THE_SYSTEM.fullmatch(name) for name in needed), needed
    assert not re.search("systemd|uring|event|yaml", " ".join(needed))


@needs_compiler
@needs_venv
@pytest.mark.limit(300)
def test_from_a_bare_venv_to_the_first_hit(full_wheel, empty_venv, directory):
    """A user needs three commands: a virtual environment, the wheel from a folder without an index, and serve. A client then needs no setting."""
    if os.path.exists("/run/kvcache/kvcache.sock"):
        pytest.skip("a daemon serves this machine")
    runtime, python = directory / "run", copy_of(empty_venv, directory / "venv")
    runtime.mkdir(mode=0o700)
    where = {"XDG_RUNTIME_DIR": str(runtime), "XDG_CACHE_HOME": str(directory / "cache"), "PATH": "/usr/bin:/bin"}
    run(python, "-m", "pip", "install", "-q", "--no-index", "--find-links", full_wheel.parent, "kvcache")
    said = run(python, "-m", "kvcache", "serve", "--background", "--idle", "1s", "--pool", "32MiB", "--disk", "64MiB", cwd="/", **where)
    pid = int(re.search(r"pid (\d+)\)", said)[1])
    assert f"serving at {runtime}/kvcache/kvcache.sock" in said
    assert os.readlink(f"/proc/{pid}/exe").startswith(str(directory / "venv"))
    check_installed(python, None, **where)
    assert "ready" in run(directory / "venv/bin/kvcachectl", "status", cwd="/", **where)
    assert "block-tp1-pp1" in run(directory / "venv/bin/kvcache-bench", "plan", "--model", "llama_3_1_8b", "--model_config", "block-tp1-pp1", cwd="/",
                                  **where)
    harness.wait_until(lambda: not (runtime / "kvcache/kvcache.sock").exists(), "the daemon ends, since it is idle", 60)


def test_a_build_without_headers_names_them_or_is_the_client_alone(monkeypatch, tmp_path):
    """The wheel itself says why it has no daemon, because pip hides output unless it fails."""
    monkeypatch.setitem(build_programs.LIBRARIES, "no-such-library", "libnothing-dev")
    assert "libnothing-dev" in build_programs.missing()
    with pytest.raises(SystemExit, match="to build the daemon, install .*libnothing-dev.*or build the client alone"):
        build_backend.build_wheel(tmp_path, {"daemon": "yes"})
    monkeypatch.setattr(build_backend, "compile_library", lambda path: path.write_bytes(b"GLIBC_2.34"))
    monkeypatch.setenv("KVCACHE_BUILD_DAEMON", "")
    with zipfile.ZipFile(tmp_path / build_backend.build_wheel(tmp_path)) as archive:
        assert "libnothing-dev" in archive.read("kvcache/no-daemon.txt").decode()
        assert not [n for n in archive.namelist() if n.startswith("kvcache/bin/")]
        points = archive.read(f"kvcache-{build_backend.version()}.dist-info/entry_points.txt").decode()
    assert "console_scripts" not in points and "vllm.general_plugins" in points


def test_pip_gets_meson_only_where_the_daemon_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build_backend.get_requires_for_build_wheel() == []
    assert build_backend.get_requires_for_build_wheel({"daemon": "yes"}) == ["meson", "ninja"]


@pytest.mark.parametrize("fails", ["never", "where pip hides its modules", "always"])
def test_a_meson_that_does_not_run_is_missing(monkeypatch, tmp_path, fails):
    """pip's PYTHONPATH hides the packages of its own Python, and with them the modules of a meson that is installed there."""
    status = {"never": "0", "always": "1"}.get(fails, "${PYTHONPATH:+1}")
    for name in ("meson", "ninja"):
        (tmp_path / name).write_text("#!/bin/sh\nexit " + (status if name == "meson" else "0") + "\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", "/hidden")
    assert ("meson" in build_programs.missing()) == (fails == "always") and "ninja-build" not in build_programs.missing()
    assert build_backend.get_requires_for_build_wheel({"daemon": "yes"}) == (["meson", "ninja"] if fails == "always" else [])
    if fails != "always":
        assert ("PYTHONPATH" in build_programs.environment()) == (fails == "never")


def test_the_source_distribution_has_what_the_daemon_is_built_from(tmp_path):
    if not shutil.which("meson"):
        pytest.skip("meson is not installed")
    with tarfile.open(tmp_path / build_backend.build_sdist(tmp_path)) as archive:
        archive.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    tree = tmp_path / f"kvcache-{build_backend.version()}" / "csrc"
    said = run("meson", "setup", "-Dprograms_only=true", "-Dtests=disabled", tmp_path / "build", tree)
    assert "Build targets in project" in said
    for dependencies in ("daemon", "client/ctl", "client/bench"):
        ours = {p.relative_to(harness.SOURCE) for p in (harness.SOURCE / dependencies).rglob("*.[ch]")}
        assert ours and all((tree / p).exists() for p in ours)


def check_installed(python, daemon, **where):
    """Checks that the installed package works and is not imported from the source tree."""
    said = run(python, "-c", """
import kvcache, sys
assert "venv" in kvcache.__file__, kvcache.__file__
with kvcache.Client(required=True) as client:
    blocks = client.namespace("installed", {"python": sys.version_info[0]})
    assert blocks.put([b"k" * 32], [b"value"]).ok
    room = bytearray(5)
    assert blocks.get([b"k" * 32], [room]).ok
    print(room.decode())
""", cwd="/", **(where or {"KVCACHE_SOCKET": daemon.socket}))
    assert said == "value\n"


@needs_compiler
@needs_venv
def test_installing_it(wheel, once, empty_venv, tmp_path, daemon):
    """The package installs from a wheel, from a source distribution, and as editable, with the README's commands for a checkout. Nothing is
    downloaded."""
    python = copy_of(empty_venv, tmp_path / "venv")
    sdist = tmp_path / build_backend.build_sdist(tmp_path)
    for what in (wheel, sdist):
        run(python, "-m", "pip", "install", "-q", what, **once)
        check_installed(python, daemon)
        run(python, "-m", "pip", "uninstall", "-q", "-y", "kvcache")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    unpacked, = (tmp_path / "unpacked").iterdir()
    run(python, "-m", "pip", "install", "-q", "-e", unpacked, **once)
    assert run(python, "-c", "import kvcache; print(kvcache.__file__)", cwd="/").startswith(str(unpacked))


def test_layouts_are_those_of_the_header(tmp_path):
    """The C compiler has the last word on sizes and offsets."""
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler")
    structs = {"options": _library.OPTIONS.size, "namespace_options": _library.NAMESPACE_OPTIONS.size,
               "buffer_options": _library.BUFFER_OPTIONS.size, "request": _library.REQUEST.size, "completion": _library.COMPLETION.size,
               "entry": 8 * _library.ENTRY_WORDS, "key": _library.KEY_BYTES, "lease": 8, "info": _library.INFO.size}
    # These structures are longer in C; Python uses only their beginning.
    offsets = {("request", "return_s"): 84, ("request", "advice"): 96, ("info", "gets_local"): _library.INFO.size - 8,
               ("result", "loan"): 8 * _library.RESULT_WORDS,
               ("entry", "data"): 32, ("entry", "length"): 40, ("entry", "pieces"): 64, ("entry", "n_pieces"): 72,
               ("result", "tiers"): 4, ("result", "length"): 8, ("result", "data"): 24, ("result", "lease"): 32,
               ("request", "op"): 12, ("request", "entries"): 32, ("request", "parent"): 56, ("request", "user_data"): 72,
               ("request", "timeout_ms"): 80, ("buffer_options", "offset"): 16, ("buffer_options", "base"): 32,
               ("options", "connect_timeout_ms"): 24, ("options", "staging_bytes"): 32, ("info", "instance"): 40,
               ("completion", "error"): 16, ("completion", "count"): 24, ("namespace_options", "chunk_bytes"): 24,
               ("namespace_options", "lifetime_s"): 32}
    checks = [f"_Static_assert(sizeof(struct kvcache_{s}) == {n}, \"{s}\");" for s, n in structs.items()]
    checks += [f"_Static_assert(offsetof(struct kvcache_{s}, {m}) == {n}, \"{s}.{m}\");" for (s, m), n in offsets.items()]
    program = tmp_path / "layout.c"
    program.write_text("#include <kvcache.h>\n" + "\n".join(checks) + "\n")
    run(compiler, "-I", build_backend.TREE / "client", "-fsyntax-only", program)


def test_numbers_are_those_of_the_header():
    header = (build_backend.TREE / "client/kvcache.h").read_text()
    numbers = dict(re.findall(r"KVCACHE_(\w+) = (\d+)", header))
    statuses = re.search(r"enum kvcache_status \{(.*?)\n\};", header, re.S)[1]
    for name in re.findall(r"KVCACHE_(\w+) = \d+", statuses):
        assert getattr(kvcache, name) == int(numbers[name])
    for name in re.findall(r"KVCACHE_(OP_\w+) = \d+", header):
        assert getattr(_library, name) == int(numbers[name])
    assert all(str(number) == numbers[name.upper()] for name, number in _library.ACKS.items())


# --- the README ---

def blocks_of(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def test_every_example_of_the_readme_runs(daemon, monkeypatch, capsys):
    monkeypatch.setenv("KVCACHE_SOCKET", daemon.socket)
    examples = blocks_of("python")
    assert len(examples) > 8 and len(examples) + len(blocks_of("sh")) == README.count("```") / 2
    scope = {"__name__": "readme"}
    for number, code in enumerate(examples):
        exec(compile(code, f"README.md, example {number + 1}", "exec"), scope)
    assert "miss" in capsys.readouterr().out


@needs_compiler
@needs_venv
def test_every_command_of_the_readme_runs(once, daemon, tmp_path):
    (tmp_path / "client").symlink_to(build_backend.TREE / "client")
    # Two hundred passes of the benchmark would only make its figures more exact.
    said = [run("sh", "-euc", commands.replace("-m kvcache.bench", "-m kvcache.bench --passes 5"), cwd=tmp_path, KVCACHE_SOCKET=daemon.socket, **once)
            for commands in blocks_of("sh")]
    assert said[0].endswith(f"{kvcache.__version__}\n") and "match 128 keys" in said[-1]


def test_the_readme_names_every_call():
    for kind in (kvcache.Client, kvcache.Namespace):
        for name in vars(kind):
            assert name.startswith("_") or re.search(rf"\b{name}\b", README), name


# --- types, figures ---

def test_mypy_has_no_complaint():
    tools = harness.BUILD / "tools/types"  # tests/run.sh puts mypy there
    for python, path in ((sys.executable, tools), (sys.executable, None), ("python3", None)):
        env = {"PYTHONPATH": str(path)} if path else {}
        if shutil.which(python) and subprocess.run([python, "-c", "import mypy"], capture_output=True, env=os.environ | env).returncode == 0:
            run(python, "-m", "mypy", "--strict", "--config-file", PACKAGE / "pyproject.toml", "--cache-dir", os.devnull, PACKAGE / "kvcache", **env)
            return
    pytest.skip("mypy is not installed")


@pytest.mark.serial
@needs_compiler
@pytest.mark.skipif(harness.is_sanitized(), reason="figures of a daemon with a sanitizer say nothing")
def test_python_adds_little(daemon):
    """At least one of five runs reaches the goals, because other work on the machine may spoil single runs."""
    for _ in range(5):
        with kvcache.Client(daemon.socket, required=True) as client:
            figures = bench.measure(client, 100, 5)
        looks = [figures[f"{op} 128 keys, packed"].python for op in ("match", "exists")]
        quotients = [figures[name].quotient for name in ("get 32 x 64 KiB, a batch", "  into registered memory")]
        if max(looks) <= 25 and max(quotients) <= 1.15:
            return
    raise AssertionError(f"lookups took {looks} microseconds, gets {quotients} times as long as from C")
