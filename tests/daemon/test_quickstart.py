# SPDX-License-Identifier: Apache-2.0
"""The quickstart shows the steps of its build."""

import re
import subprocess

import harness

SCRIPT = harness.SOURCE / "daemon/quickstart.sh"


def progress(lines):
    function = re.search(r"^show_progress\(\) \{.*?^\}", SCRIPT.read_text(), re.M | re.S)[0]
    return subprocess.run(["sh", "-euc", f"{function}\nshow_progress"], input="\n".join(lines) + "\n", capture_output=True, text=True,
                          check=True).stdout.splitlines()


def test_progress_in_a_pipe_is_about_ten_lines():
    steps = [f"[{n}/60] Compiling C object daemon/parts.a.p/store_file-{n}.c.o" for n in range(1, 61)]
    said = progress(steps)
    assert said[0] == "[1/60] store_file-1.c.o" and said[-1] == "[60/60] store_file-60.c.o" and 10 <= len(said) <= 12


def test_progress_skips_what_is_no_step():
    """The compiler prints warnings, and lines that only look like steps."""
    assert progress(["ninja: Entering directory `x'", "../a.c:3:4: warning: [x/y] unused", "[-Wunused]", "[a/b]", "  [1/2] x",
                     "[2/2] Linking target kvcachectl", ""]) == ["[2/2] kvcachectl"]


def test_progress_survives_numbers_that_are_none():
    assert progress(["[a/b] x", "[1/] x", "[/2] x", "[1/0] x", "[1/1] good"]) == ["[1/1] good"]
