# SPDX-License-Identifier: Apache-2.0
"""Completion for bash, made from the tools' tables: what a bash completes."""

import re
import shutil
import subprocess

import pytest

from harness import BENCH, CTL

TOOLS = {"kvcachectl": CTL, "kvcache-bench": BENCH}


def complete(tool, *words):
    """What bash would offer for the last word."""
    if not shutil.which("bash"):
        pytest.skip("no bash")
    script = f"{TOOLS[tool]}.bash"
    code = ('source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); set -- $(complete -p ' + tool + ');'
            'while [[ $1 != -F ]]; do shift; done; "$2"; printf "%s\\n" "${COMPREPLY[@]}"')
    done = subprocess.run(["bash", "--norc", "-c", code, script, tool, *words], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout.split()


def commands_of(tool):
    text = subprocess.run([TOOLS[tool], "--help"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in text.split("Commands:\n")[1].split("\n\n")[0].splitlines()]


@pytest.mark.parametrize("tool", TOOLS)
def test_every_command_and_each_of_its_options_is_offered(tool):
    commands = commands_of(tool)
    assert sorted(complete(tool, "")) == sorted(commands + ["help"])
    assert sorted(complete(tool, "help", "")) == sorted(commands)
    for command in commands:
        text = subprocess.run([TOOLS[tool], "help", command], capture_output=True, text=True, check=True).stdout
        lines = text.split("\nOptions:\n")[1].splitlines()
        wanted = [m[1] for m in (re.match(r"  (?:-\w,|   ) (--[\w-]+)", line) for line in lines) if m]
        assert len(wanted) >= 3 and sorted(complete(tool, command, "--")) == sorted(wanted), command


@pytest.mark.parametrize("tool, words, wanted", [
    ("kvcachectl", ["relo"], ["reload"]),
    ("kvcachectl", ["--j"], ["--json"]),
    ("kvcachectl", ["--socket", "/s", "devi"], ["device"]),
    ("kvcachectl", ["--socket", "=", "/s", "devi"], ["device"]),
    ("kvcachectl", ["-s", ""], []),
    ("kvcachectl", ["device", ""], ["ls", "suspend", "resume"]),
    ("kvcachectl", ["device", "su"], ["suspend"]),
    ("kvcachectl", ["device", "suspend", ""], []),
    ("kvcachectl", ["put", "--namespace", ""], []),
    ("kvcachectl", ["put", "-n", "l"], []),
    ("kvcachectl", ["no-such-command", ""], []),
    ("kvcachectl", ["evict", "--js"], ["--json"]),
    ("kvcache-bench", ["session", "ena"], ["enable"]),
    ("kvcache-bench", ["simul"], ["simulate"]),
])
def test_what_is_typed_is_completed(tool, words, wanted):
    assert complete(tool, *words) == wanted
