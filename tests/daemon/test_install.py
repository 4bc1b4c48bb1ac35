# SPDX-License-Identifier: Apache-2.0
""""meson install" and "ninja uninstall" leave a configuration alone that an administrator has edited. Installed programs find installed
files."""

import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest

import harness

SYSCONF = "etc/kvcache/kvcache.yaml"


@pytest.fixture
def root(directory):
    if not shutil.which("meson") or not (harness.BUILD / "meson-private").is_dir():
        pytest.skip("not a build folder of meson")
    return directory / "root"


def run(root, *command):
    return subprocess.run(command, env={**os.environ, "DESTDIR": str(root)}, capture_output=True, text=True, check=True,
                          timeout=120 * harness.slow(), stdin=subprocess.DEVNULL)


def install(root, *options):
    return run(root, "meson", "install", "-C", str(harness.BUILD), "--no-rebuild", *options).stdout


def uninstall(root):
    """Returns the installed files, from meson's log of the installation."""
    logged = (harness.BUILD / "meson-logs/install-log.txt").read_text().splitlines()
    files = [line for line in logged if line and not line.startswith("#")]
    assert files and all(line.startswith(str(root)) for line in files)
    run(root, "ninja", "-C", str(harness.BUILD), "uninstall")


def configuration(root):
    found = [path for path in root.rglob("kvcache.yaml") if path.parent.parent.name == "etc"]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.documents
def test_the_configuration_is_installed_once_and_never_again(root):
    template = (harness.SOURCE / "conf/kvcache.yaml").read_text()
    install(root)
    path = configuration(root)
    assert path.read_text() == template and path.stat().st_mode & 0o777 == 0o644
    copies = [p for p in root.rglob("kvcache.yaml") if p != path]
    assert [p.read_text() for p in copies] == [template], "the template, always that of this version"
    path.write_text("memory:\n  pool: 64MiB  # ours\n")
    path.chmod(0o640)
    copies[0].write_text("of an older version")
    install(root)
    assert path.read_text() == "memory:\n  pool: 64MiB  # ours\n" and path.stat().st_mode & 0o777 == 0o640
    assert copies[0].read_text() == template
    assert [p.name for p in path.parent.iterdir()] == ["kvcache.yaml"], "nothing is left beside it"
    uninstall(root)
    assert path.read_text() == "memory:\n  pool: 64MiB  # ours\n"
    assert not copies[0].exists()


@pytest.mark.documents
def test_a_link_in_the_configurations_place_is_kept(root):
    install(root)
    path = configuration(root)
    path.unlink()
    path.symlink_to("/nonexistent/kvcache.yaml")
    install(root)
    assert path.is_symlink()


@pytest.mark.documents
def test_a_dry_run_installs_nothing(root):
    assert "kvcache.yaml" in install(root, "--dry-run")
    assert configuration(root) is None


@pytest.mark.documents
def test_completion_is_where_each_shell_looks(root, directory):
    install(root)
    found = {str(path.relative_to(root)) for path in root.rglob("*") if "complet" in str(path) or "site-functions" in str(path)}
    share = data_directory().removesuffix("/kvcache")
    for tool in sorted(path.name for path in root.rglob("bin/*")):
        assert f"{share}/bash-completion/completions/{tool}.bash" in found
        assert f"{share}/fish/vendor_completions.d/{tool}.fish" in found
        assert found & {f"{share}/zsh/{place}/_{tool}" for place in ("site-functions", "vendor-completions")}
        if shutil.which("zsh") and share == "usr/local/share":  # a directory that zsh of Debian knows
            fpath = subprocess.run(["zsh", "-fc", "print -l $fpath"], capture_output=True, text=True, check=True).stdout.split()
            assert any(f"{place[1:]}/_{tool}" in found for place in fpath)
    uninstall(root)
    assert not [path for path in found if (root / path).is_file()]


def configured(folder, *options):
    """Returns the targets of a new build folder, and the places of what it installs."""
    subprocess.run(["meson", "setup", folder, harness.SOURCE, *options], capture_output=True, check=True, timeout=120 * harness.slow())
    said = json.loads(subprocess.run(["meson", "introspect", "--targets", "--installed", folder], capture_output=True, check=True).stdout)
    return said["targets"], sorted(said["installed"].values())


@pytest.mark.documents
def test_a_build_without_tests_compiles_none_and_installs_the_same(root, tmp_path):
    targets, installed = configured(tmp_path / "without", "-Dtests=disabled")
    assert [t["name"] for t in targets if t["type"] in ("executable", "shared module") and not t["installed"]] == []
    assert not [t["name"] for t in targets if (harness.SOURCE / "tests") in pathlib.Path(t["defined_in"]).parents]
    assert installed == configured(tmp_path / "with")[1]
    # A build without the unit tests has the programs of the other tests.
    names = {t["name"] for t in configured(tmp_path / "daemon-only", "-Dunit_tests=false")[0]}
    assert {"region-client", "measure", "example-blocking"} <= names and "test-cache" not in names


def packages_of(path, lists):
    """Returns the packages whose list has the path, which is below the prefix."""
    return sorted(package for package, patterns in lists.items()
                  if any(fnmatch.fnmatch(path, pattern) or path.startswith(pattern + "/") for pattern in patterns))


def package_lists():
    """Returns, for each Debian package, the patterns of its programs, headers, manual pages and completions, below usr/."""
    lists = {}
    for file in [*(harness.SOURCE / "debian").glob("*.install"), *(harness.SOURCE / "debian").glob("*.manpages")]:
        lists.setdefault(file.stem, []).extend(line.removeprefix("debian/tmp/").removeprefix("usr/") for line in file.read_text().split())
    return lists


@pytest.mark.documents
def test_each_program_with_its_page_and_completions_is_in_one_debian_package(root):
    install(root)
    lists = package_lists()
    assert len(lists) == 5
    found = {}
    for path in root.rglob("*"):
        part = re.search(r"/((bin|share/man|share/bash-completion|share/zsh|share/fish|include)/.*)", str(path.relative_to(root)))
        if part and path.is_file():
            found[part[1]] = packages_of(part[1], lists)
    assert {name: packages for name, packages in found.items() if len(packages) != 1} == {}
    assert {path.removeprefix("bin/"): packages[0] for path, packages in found.items() if path.startswith("bin/")} == {
        "kvcache-daemon": "kvcache-daemon", "kvcachectl": "kvcache-daemon", "kvcache-bench": "kvcache-daemon",
        "kvcache-events": "kvcache-events"}
    for path, packages in found.items():  # the completions of a program are in its package
        if program := re.fullmatch(r"_?(kvcache-?\w+)(?:\.bash|\.fish|)", path.rpartition("/")[2]):
            assert packages == found[f"bin/{program[1]}"], path


def data_directory():
    """Returns the compiled-in data directory, below the prefix."""
    header = (harness.BUILD / "build-config.h").read_text()
    return re.search(r'^#define KVCACHE_DATADIR "/(.*)"$', header, re.M)[1]


def test_kvcache_bench_finds_the_models_that_are_installed_with_it(root, directory):
    """Where the installation lies under another root as well, and from whatever directory it runs."""
    install(root)
    data, [program] = root / data_directory(), root.rglob("bin/kvcache-bench")
    for folder in ("models", "deployments"):
        shipped = sorted(path.name for path in (harness.SOURCE / "conf" / folder).iterdir())
        assert shipped and sorted(path.name for path in (data / folder).iterdir()) == shipped
    (data / "models/only_here.yaml").write_text((data / "models/qwen3_8b.yaml").read_text())
    [library] = {path.parent for path in root.rglob("libkvcache.so*")}
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}
    environment.pop("KVCACHE_DATA_DIR", None)

    def iosize(model, status=0):
        result = subprocess.run([program, "iosize", "--model", model, "--model_config", "block-tp1-pp1"], cwd=directory,
                                env=environment, capture_output=True, text=True, timeout=60 * harness.slow())
        assert result.returncode == status, result.stderr
        return result

    assert iosize("only_here").stdout == iosize("qwen3_8b").stdout
    assert str((data / "models").resolve()) in iosize("nowhere", status=1).stderr
    shutil.rmtree(data)
    error = iosize("only_here", status=1).stderr
    assert f"/{data_directory()}/models" in error, "where it is expected"
    assert str(harness.SOURCE) not in error, "the source tree is for what lies in a build"
