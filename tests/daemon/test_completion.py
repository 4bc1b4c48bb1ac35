# SPDX-License-Identifier: Apache-2.0
"""Completions for bash, zsh and fish, which are generated from the tools' tables, in the real shells."""

import pathlib
import re
import shutil
import subprocess

import pytest

from harness import BENCH, CTL, slow
from left_out import first_of

TOOLS = {"kvcachectl": CTL, "kvcache-bench": BENCH}
SHELLS = ["bash", "zsh", "fish"]
HERE = pathlib.Path(__file__).resolve().parent


def complete_bash(tool, *lines):
    script = f"{TOOLS[tool]}.bash"
    code = ('source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); set -- $(complete -p ' + tool + ');'
            'while [[ $1 != -F ]]; do shift; done; "$2"; printf "%s\\n" "${COMPREPLY[@]}"')
    for words in lines:
        # bash takes "--option=value" for three words.
        split = [part for word in words for part in (re.split("(=)", word) if word.startswith("--") else [word]) if part or word == ""]
        done = subprocess.run(["bash", "--norc", "-c", code, script, tool, *split], capture_output=True, text=True, check=True)
        assert not done.stderr
        yield done.stdout.split()


def complete_zsh(tool, *lines):
    typed = [" ".join([tool, *words]) for words in lines]
    done = subprocess.run(["zsh", "-f", HERE / "complete.zsh", pathlib.Path(TOOLS[tool]).parent, *typed], capture_output=True, text=True,
                          check=True, timeout=30 * slow())
    assert not done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def complete_fish(tool, *lines):
    code = 'source $argv[1]; for line in $argv[2..]; complete -C $line; echo =====; end'
    typed = [" ".join([tool, *words]) for words in lines]
    done = subprocess.run(["fish", "--no-config", "-c", code, f"{TOOLS[tool]}.fish", *typed], capture_output=True, text=True, check=True,
                          timeout=30 * slow())
    assert not done.stderr
    for offered in done.stdout.split("=====\n")[:-1]:
        yield [line.split("\t")[0] for line in offered.splitlines()]


def complete_all(shell, tool, *lines):
    """Returns what the shell offers for the last word of each line."""
    if not shutil.which(shell):
        pytest.skip(f"no {shell}: its completion is not tried")
    offered = [[re.sub("^--[a-z-]*=", "", word) for word in words] for words in
               {"bash": complete_bash, "zsh": complete_zsh, "fish": complete_fish}[shell](tool, *lines)]
    assert len(offered) == len(lines)
    return offered


def commands_of(tool):
    text = subprocess.run([TOOLS[tool], "--help"], capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in text.split("Commands:\n")[1].split("\n\n")[0].splitlines()]


def long_options(tool, command):
    text = subprocess.run([TOOLS[tool], "help", command], capture_output=True, text=True, check=True).stdout
    matches = [re.match(r"  (?:-\w,|   ) (--[\w-]+)", line) for line in text.split("\nOptions:\n")[1].splitlines()]
    return [m[1] for m in matches if m]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("shell", first_of(SHELLS))
def test_every_command_and_each_of_its_options_is_offered(shell, tool):
    commands = commands_of(tool)
    first, helped, *each = complete_all(shell, tool, [""], ["help", ""], *[[command, "--"] for command in commands])
    assert sorted(first) == sorted(commands + ["help"])
    assert sorted(set(helped) - {"help"}) == sorted(commands)
    for command, offered in zip(commands, each):
        wanted = long_options(tool, command)
        assert len(wanted) >= 4 and sorted(set(offered)) == sorted(wanted), command


TYPED = {
    "kvcachectl": [
        (["relo"], ["reload"]), (["--j"], ["--json"]), (["--socket", "/s", "devi"], ["device"]), (["--socket=/s", "devi"], ["device"]),
        (["--color", "never", "devi"], ["device"]), (["device", ""], ["ls", "suspend", "resume"]), (["device", "su"], ["suspend"]),
        (["hint", ""], ["final", "return"]), (["put", "--namespace", ""], []), (["put", "-n", "l"], []),
        (["evict", "--js"], ["--json"]), (["put", "--ack", ""], ["accepted", "written", "durable"]), (["put", "--ack=w"], ["written"]),
        (["put", "--ack="], ["accepted", "written", "durable"]), (["evict", "--tier", "m"], ["memory"]),
        (["status", "names"], ["namespaces"]), (["status", "--color", "n"], ["never"]), (["--color", ""], ["auto", "always", "never"]),
        (["no-such-command", "--"], [])],
    "kvcache-bench": [
        (["session", "ena"], ["enable"]), (["simul"], ["simulate"]), (["remote", ""], ["directory", "rados", "s3"]), (["simulate", "--policy", ""], ["lru", "cq", "opt"]),
        (["simulate", "--remote-write", "a"], ["all"]), (["simulate", "--route", ""], ["session", "random"]),
        (["plan", "--format", "c"], ["csv"]), (["profile", "--source", "g"], ["gpu"]), (["session", "--by", "l"], ["layout"])]}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("shell", first_of(SHELLS))
def test_typed_words_are_completed(shell, tool):
    offered = complete_all(shell, tool, *[words for words, _ in TYPED[tool]])
    for (words, wanted), words_offered in zip(TYPED[tool], offered):
        assert sorted(words_offered) == sorted(wanted), words


@pytest.mark.parametrize("shell", first_of(SHELLS))
def test_where_no_word_is_known_files_are_completed(shell, tmp_path, monkeypatch):
    """File names are completed. For bash the answer is empty, and bash itself completes (complete -o default)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trace.jsonl").touch()
    wanted = [] if shell == "bash" else ["trace.jsonl"]
    assert complete_all(shell, "kvcache-bench", ["replay", "tra"], ["simulate", "--svg", "tra"]) == [wanted, wanted]
    assert complete_all(shell, "kvcachectl", ["-s", "tra"], ["put", "key", "tra"]) == [wanted, wanted]


def test_a_shell_that_there_is_none_for(tmp_path):
    done = subprocess.run([CTL, "--print-completion", "tcsh"], capture_output=True, text=True)
    assert done.returncode == 2 and "'tcsh' is not bash, zsh or fish" in done.stderr and not done.stdout
    with open("/dev/full", "w") as full:
        assert subprocess.run([CTL, "--print-completion", "zsh"], stdout=full).returncode == 6
