#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests that expect words which the product's messages have lost since a revision. Such tests may run in the submission tier only.

    changed-messages.py [BASE] [PYTEST OPTION...]

BASE is main by default. A test is selected if an assertion or `match=` has a text, or three words of a longer text, that a changed file's
strings contained in BASE, and no longer contain. KVCACHE_BUILD is the build folder, as for other tests.
"""

import ast
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PRODUCT, TESTS = ("daemon", "client", "proto"), ("tests/python", "tests/daemon", "tests/kvbench")


def pieces(text):
    """Returns the texts of an assertion that are compared: all of a short one, each three words of a longer one."""
    words = text.split()
    return {" ".join(words[i:i + 3]) for i in range(len(words) - 2)} if len(words) > 3 else {" ".join(words)}


def strings_of(lines):
    """Returns the strings of lines of code, each joined with the next one, as the compilers join them."""
    return " ".join("".join(string for line in lines for string in re.findall(r'"((?:[^"\\]|\\.)*)"', line)).split())


def changed_strings(base, root=ROOT):
    """Yields the (former, present) strings of each changed file of the product, at its changed lines and their neighbours."""
    diff = subprocess.run(["git", "-C", root, "diff", "-U3", "--no-renames", base, "--", *PRODUCT], capture_output=True, text=True, check=True).stdout
    for lines in (of_file.splitlines() for of_file in diff.split("\ndiff --git ")):
        yield tuple(strings_of(line for line in lines if line.startswith((" ", sign)) and not line.startswith(3 * sign)) for sign in "-+")


def expected(function):
    """Yields each string of several words in an assertion or in `match=`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) or isinstance(node, ast.keyword) and node.arg == "match":
            for said in ast.walk(node):
                if isinstance(said, ast.Constant) and isinstance(said.value, str) and " " in said.value.strip():
                    yield said.value.replace("\\", "")


def select(base, root=ROOT):
    """Returns the test files, and the words for pytest's option -k: names of tests, of their functions, and of scenarios, which are parameters."""
    changed, files, names = list(changed_strings(base, root)), set(), set()
    for path in (path for folder in TESTS for path in (root / folder).glob("*.py")):
        for function in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)):
            if any(piece in former and piece not in present for text in expected(function) for piece in pieces(text) for former, present in changed):
                names.add(function.name)
                files |= {path} if path.name.startswith("test_") else {
                    test for test in path.parent.glob("test_*.py") if f'"{function.name}"' in test.read_text()}
    return sorted(str(path.relative_to(root)) for path in files), sorted(names)


def main():
    base, *options = sys.argv[1:] or ["main"]
    files, names = select(base)
    if not files:
        print(f"No test expects words that messages have lost since {base}.")
        return 0
    command = [sys.executable, "-m", "pytest", "-q", *files, "-k", " or ".join(names), *options]
    print(shlex.join(command), flush=True)
    return subprocess.run(command, cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
