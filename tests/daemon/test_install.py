# SPDX-License-Identifier: Apache-2.0
"""What "meson install" and "ninja uninstall" do to a configuration that an administrator has edited: nothing."""

import os
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
    """By the log of the install, which names what meson has put there."""
    logged = (harness.BUILD / "meson-logs/install-log.txt").read_text().splitlines()
    files = [line for line in logged if line and not line.startswith("#")]
    assert files and all(line.startswith(str(root)) for line in files)
    run(root, "ninja", "-C", str(harness.BUILD), "uninstall")


def configuration(root):
    found = [path for path in root.rglob("kvcache.yaml") if path.parent.parent.name == "etc"]
    assert len(found) <= 1
    return found[0] if found else None


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


def test_a_link_in_the_configurations_place_is_kept(root):
    install(root)
    path = configuration(root)
    path.unlink()
    path.symlink_to("/nonexistent/kvcache.yaml")
    install(root)
    assert path.is_symlink()


def test_a_dry_run_installs_nothing(root):
    assert "kvcache.yaml" in install(root, "--dry-run")
    assert configuration(root) is None
