# SPDX-License-Identifier: Apache-2.0
"""kvcachectl bench runs kvcache-bench session: its arguments, its exit status, and what happens if there is none."""

import os
import shutil
import subprocess

import pytest

import harness
from harness import CTL, bench, ctl

SESSION = harness.SOURCE / "tests/golden/session/A.json"


def test_the_alias_behaves_like_its_program():
    for words in (["report", SESSION], ["status", SESSION, "--json"], ["report", "--help"]):
        assert ctl("bench", *words, check=0).stdout == bench("session", *words, check=0).stdout
    for words, status in (["report"], None), (["report", "--no-such"], 2), (["status", "/nowhere/x.json"], 4):
        one, other = ctl("bench", *words), bench("session", *words)
        assert (one.stdout, one.stderr, one.returncode) == (other.stdout, other.stderr, other.returncode)
        assert status is None or one.returncode == status


def installed(tmp_path, script):
    """Installs kvcachectl beside a kvcache-bench that prints its arguments."""
    shutil.copy(CTL, tmp_path / "kvcachectl")
    if script:
        (tmp_path / "kvcache-bench").write_text(script)
        (tmp_path / "kvcache-bench").chmod(0o755)
    return tmp_path / "kvcachectl"


def run(program, *words, path=""):
    env = {**os.environ, "PATH": path, "LD_LIBRARY_PATH": str(harness.BUILD / "client" / "lib")}
    return subprocess.run([program, *words], env=env, capture_output=True, text=True, timeout=60 * harness.slow(), check=False)


PRINTS = '#!/bin/sh\nfor word in "$@"; do echo "$word"; done\nexit 7\n'


def test_options_before_the_command_go_with_it(tmp_path):
    program = installed(tmp_path, PRINTS)
    result = run(program, "--socket", "/a b", "--json", "--debug", "bench", "report", "", "--path", "x", "--", "-y", path="/bin:/usr/bin")
    assert result.stdout.splitlines() == ["--socket", "/a b", "--json", "--debug", "session", "report", "", "--path", "x", "--", "-y"]
    assert result.returncode == 7
    assert run(program, "bench", path="/bin:/usr/bin").stdout.splitlines() == ["session"]


def test_the_alias_finds_its_program_in_path(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    program = installed(tmp_path / "one", None)
    installed(tmp_path / "two", PRINTS)
    assert run(program, "bench", "list", path=f"/nowhere::{tmp_path}/two:/bin").stdout == "session\nlist\n"


@pytest.mark.parametrize("there", [None, "directory", "not executable"])
def test_none_is_an_error_that_says_so(tmp_path, there):
    program = installed(tmp_path, None)
    if there == "directory":
        (tmp_path / "kvcache-bench").mkdir()
    elif there:
        (tmp_path / "kvcache-bench").write_text(PRINTS)
    result = run(program, "bench", "list")
    assert result.returncode == 6 and not result.stdout
    assert result.stderr.startswith("kvcachectl: bench: there is no kvcache-bench") and result.stderr.count("\n") == 1


def test_a_program_that_does_not_run_is_named(tmp_path):
    result = run(installed(tmp_path, "#!/nowhere/sh\n"), "bench", "list")
    assert result.returncode == 6 and f"{tmp_path}/kvcache-bench" in result.stderr
