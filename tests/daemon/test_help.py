# SPDX-License-Identifier: Apache-2.0
"""The programs' man pages and --help name the same options, and the programs accept them. The commands in the pages are theirs."""

import functools
import os
import pathlib
import re
import subprocess
import sys

import pytest

from harness import BUILD, DAEMON, bench, ctl

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {"kvcachectl": (ctl, "client/ctl/kvcachectl.1"), "kvcache-bench": (bench, "client/bench/kvcache-bench.1")}
EVENTS = BUILD / "client" / "events" / "kvcache-events"
# Programs without commands.
PROGRAMS = {"kvcache-daemon": (functools.partial(ctl, tool=DAEMON), "daemon/kvcache-daemon.8"),
            "kvcache-events": (functools.partial(ctl, tool=EVENTS), "client/events/kvcache-events.1")}
GLOBAL = {"--socket", "--json", "--color", "--help", "--debug", "--version"}
OPTION = r"(?<![\w-])--[a-z][\w-]*"


def options_of(tool, *command):
    """Returns {option: its letter or None} of the options that the help of a command or of a program lists."""
    rows = re.findall(rf"^  (?:-(\w), |    )({OPTION})", tool(*command, "--help", check=0).stdout, re.M)
    return {name: letter or None for letter, name in rows}


def commands_of(tool):
    return re.findall(r"^  ([a-z]+) {2,}\S", tool("--help", check=0).stdout.split("Options of every command")[0], re.M)


def plain(roff):
    """Removes fonts and requests from a man page. The tag lines of .TP begin with "TP "."""
    roff = re.sub(r"\\f[BIRP]", "", roff).replace("\\-", "-")
    roff = re.sub(r"^\.T[PQ]\n", "TP ", roff, flags=re.M)
    return re.sub(r"^(TP )?\.(?:[BIR]{1,2}|IP|PP) ?(.*)", lambda m: (m[1] or "") + m[2].replace('"', " "), roff, flags=re.M)


def section_of(page, command):
    """Returns the part of the page about one command: from its tags up to the next command's."""
    tags = [(m.start(), m[1]) for m in re.finditer(r"^TP +([a-z]+)\b|^\.S[HS] ", page, re.M)]
    ends = [start for start, _ in tags[1:]] + [len(page)]
    return "".join(page[start:end] for (start, of), end in zip(tags, ends) if of == command)


def missing(option, letter, text):
    """Returns what the text lacks of an option and its letter, or None."""
    if not re.search(rf"{option}(?![\w-])", text):
        return option
    return f"-{letter} of {option}" if letter and not re.search(rf"(?<![\w-])-{letter}\b", text) else None


@pytest.mark.documents
@pytest.mark.parametrize("name", [*PAGES, *PROGRAMS])
def test_man_page_and_help_name_the_same_options(name):
    if name == "kvcache-events" and not EVENTS.exists():
        pytest.skip("kvcache-events is not built: there is no libzmq")
    tool, path = {**PAGES, **PROGRAMS}[name]
    page = plain((ROOT / path).read_text())
    if name in PROGRAMS:
        options = options_of(tool)
        text = page[page.index(".SH OPTIONS"):]
        assert set(re.findall(OPTION, page)) == set(options)
        assert not [lack for option, letter in options.items() if (lack := missing(option, letter, text))]
        return
    commands = commands_of(tool)
    known = {o for of, _ in PAGES.values() for c in commands_of(of) for o in options_of(of, c)}
    of_nixlbench = set(options_of(bench, "plan")) - set(options_of(bench, "kvcache")) - {"--target", "--backend"}
    for command in commands:
        options = options_of(tool, command)
        text = section_of(page, command)
        assert text, f"{path} has no {command}"
        if name == "kvcachectl":
            text += page[page.index("KEYS AND NAMESPACES"):page.index(".SH COMMANDS")] if "--namespace" in options else ""
        else:
            # Options that KVBench's commands share have a list of their own; those of nixlbench appear only in `plan --help`.
            text += page[page.index("Options of all KVBench commands"):] if "--model" in options else ""
            options = {o: letter for o, letter in options.items() if o not in of_nixlbench}
        for option, letter in options.items():
            if option in GLOBAL:
                continue
            assert not missing(option, letter, text), f"{path}: {command} has {missing(option, letter, text)}, which the page does not say"
    named = {o.replace("no-raw", "no_raw") for o in re.findall(OPTION, page)}
    named -= {"--print-completion"}  # for packages: a command of its own, which test_completion.py tries
    assert named - known <= GLOBAL, f"{path} names options that no command has: {named - known - GLOBAL}"
    for option in GLOBAL:
        assert option in page and option in tool("--help", check=0).stdout, option


@pytest.mark.documents
@pytest.mark.parametrize("name", PAGES)
def test_options_in_help_are_accepted(name, tmp_path, monkeypatch):
    """Each option is parsed: commands only complain about other things."""
    tool = PAGES[name][0]
    monkeypatch.chdir(tmp_path)
    for command in commands_of(tool):
        for option in options_of(tool, command):
            said = tool(command, option, "--no-such-option", check=None).stderr
            assert f"unknown option '{option}'" not in said, (command, said)


# Fenced, indented and inline code. What follows a pipe, a redirection or a comment is no argument.
CODE = re.compile(r"^```[^\n]*\n(.*?)^```|`([^`\n]+)`|^ {4}([^\n]*)$", re.M | re.S)
COMMAND = re.compile(r"(?:^|[\s/(])(kvcachectl|kvcache-bench|kvcache-daemon|kvcache-events|-m kvcache serve)"
                     r"((?: +(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s|;&<>#`'\"]+))*)", re.M)
HAVE_ACTIONS = {"namespace", "device", "store", "session"}


def commands_in(text):
    """Yields (program, its words) for each command in the code of a page."""
    for code in CODE.finditer(text.replace("\\\n", " ")):
        for program, words in COMMAND.findall(next(filter(None, code.groups()), "")):
            yield program, words.split()


@functools.cache
def help_of(program, *command):
    """Returns the help of a program or of a command."""
    if program == "-m kvcache serve":
        env = {**os.environ, "KVCACHE_LIBRARY": str(BUILD / "client/lib/libkvcache.so.1")}
        return subprocess.run([sys.executable, "-m", "kvcache", "serve", "--help"], cwd=ROOT / "client/python", env=env, capture_output=True,
                              text=True, check=True).stdout
    return {**PAGES, **PROGRAMS}[program][0](*command, "--help", check=0).stdout


def wrong_word(program, words):
    """Returns the first command, action or option that a program lacks, or None."""
    names = [w for w in words if not w.startswith("-")] if program in PAGES else []
    command = names[:1] if names and re.fullmatch(r"[a-z]+", names[0]) else []
    if command and command[0] not in commands_of(PAGES[program][0]):
        return command[0]
    text = help_of(program, *command)
    if command and command[0] in HAVE_ACTIONS and re.fullmatch(r"[a-z]+", names[1] if names[1:] else ""):
        if not re.search(rf"\b{names[1]}\b", text):
            return names[1]
    options = {o.replace("_", "-") for o in re.findall(OPTION, text)} | GLOBAL
    for option in (w.partition("=")[0].replace("_", "-") for w in words if re.match(r"--[a-z]", w)):
        if not any(o.startswith(option) for o in options):  # getopt_long() takes a unique beginning
            return option
    return None


@pytest.mark.documents
def test_each_command_in_a_page_is_one_of_its_program():
    seen, wrong = 0, []
    for page in (p for top in ("*.md", *(f"{folder}/**/*.md" for folder in ("client", "conf", "daemon", "proto", "tests"))) for p in ROOT.glob(top)):
        if page.name == "CHANGELOG.md":
            continue
        for program, words in commands_in(page.read_text()):
            if program == "kvcache-events" and not EVENTS.exists():
                continue
            seen += 1
            if bad := wrong_word(program, words):
                wrong.append(f"{page.relative_to(ROOT)}: {program} {' '.join(words)}: there is no {bad}")
    assert not wrong, "\n".join(wrong)
    assert seen > 150


@pytest.mark.documents
@pytest.mark.parametrize("code, bad", [("kvcachectl purges x", "purges"), ("kvcachectl top \\\n  --intervals 2", "--intervals"),
                                       ("A=1 kvcachectl device reset x", "reset"), ("venv/bin/python -m kvcache serve --port 1", "--port"),
                                       ("kvcache-daemon --conf-file x", "--conf-file"), ("kvcachectl ls x | head --lines 3", None),
                                       ("kvcache-bench plan --page_size 16 --num-req 3", None)])
def test_a_wrong_command_in_a_page_is_found(code, bad):
    for page in (f"```sh\n{code}\n```\n", f"text\n\n    {code}\n", *([f"As in `{code}`.\n"] if "\n" not in code else [])):
        assert [wrong_word(*found) for found in commands_in(page)] == [bad], page
