#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mutants: planted bugs, which show whether the tests catch them.

    tests/mutants/run.sh [--keep] [--all-catches] [--submission] [NAME...]     every mutant, or these
    tests/mutants/run.sh --check                                whether all of them still apply
    tests/mutants/run.sh --list

Each NAME.mutant here describes a bug, the tests that must catch it, and the lines to change:

    what: one line
    catch: unit test-NAME | campaign NAME COUNT | daemon FILE[::TEST]
    file: path in the tree
    <<<<
    lines that the file contains exactly once
    ====
    their replacement
    >>>>

The tree is copied and built once, and the listed tests must pass there. Then, for each mutant, the program plants it, builds the necessary
targets, runs its catches in order until one fails (--all-catches: all of them), and removes it. A test that fails, ends by a signal or
exceeds its time has caught the bug. The exit status is 1 if a mutant no longer applies, does not build or is not caught. With --submission,
campaigns have as many runs as in every submission (tests/campaigns/meson.build), and those against a daemon as many as
tests/daemon/test_campaigns.py gives them.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TIME_LIMIT = 240


class Broken(Exception):
    pass


class Mutant:
    def __init__(self, path):
        self.name, self.what, self.catches, self.changes = path.stem, "", [], []
        file, old, new, into = None, None, None, None
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if into is not None and line not in ("====", ">>>>"):
                into.append(line)
            elif line == "<<<<":
                old = into = []
            elif line == "====" and into is old and old is not None:
                new = into = []
            elif line == ">>>>" and into is new and new is not None:
                if not file or not old:
                    raise Broken(f"{path.name}:{number}: nothing to replace")
                self.changes.append((file, old, new))
                old = new = into = None
            elif line.startswith("what: "):
                self.what = line[6:]
            elif line.startswith("catch: "):
                self.catches.append(line[7:].split())
            elif line.startswith("file: "):
                file = line[6:]
            elif line.strip():
                raise Broken(f"{path.name}:{number}: what is this?")
        if into is not None or not self.what or not self.catches or not self.changes:
            raise Broken(f"{path.name}: it is not complete")

    def mutated(self, tree):
        """Returns {path: text} of the files that change. Raises Broken if the lines do not exist."""
        texts = {}
        for file, old, new in self.changes:
            path = tree / file
            if path not in texts:
                try:
                    texts[path] = path.read_text()
                except OSError as e:
                    raise Broken(f"{self.name}: {e}")
            old, new = ("".join(line + "\n" for line in lines) for lines in (old, new))
            found = texts[path].count(old)
            if found != 1:
                raise Broken(f"{self.name}: {file} has its lines {found} times")
            texts[path] = texts[path].replace(old, new)
        return texts


def load(names):
    paths = {p.stem: p for p in sorted(HERE.glob("*.mutant"))}
    for name in names:
        if name not in paths:
            raise Broken(f"there is no mutant {name}")
    return [Mutant(paths[name]) for name in names or paths]


def run(command, log, time_limit, **how):
    """Returns the exit status, or None if the command did not end."""
    with open(log, "ab") as out:
        out.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        out.flush()
        process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                   start_new_session=True, **how)
        try:
            return process.wait(time_limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return None


def introspect(build, what):
    return json.loads(subprocess.run(["meson", "introspect", what, str(build)], check=True, capture_output=True, text=True).stdout)


def unit_tests(build):
    """Returns {"test-NAME": {cmd, env, targets}}: how Meson runs each unit test, and what it builds for that."""
    files = {t["id"]: [os.path.relpath(f, build) for f in t["filename"]] for t in introspect(build, "--targets")}
    return {f"test-{t['name']}": dict(t, targets=[f for target in t["depends"] for f in files[target]])
            for t in introspect(build, "--tests")}


def targets_of(catches, units):
    targets = set()
    for kind, what, *_ in catches:
        if kind == "unit":
            if what not in units:
                raise Broken(f"{what}: there is no such test")
            targets.update(units[what]["targets"])
        elif kind == "campaign" and what not in ("kill", "clientkill", "settled"):
            targets |= {"tests/campaigns/store-campaigns", "tests/campaigns/store-campaigns-threads"}
        else:
            targets.add("all")
    return ["all"] if "all" in targets else sorted(targets)


def passes(catch, tree, build, log, units):
    """Runs a catch. Returns None if it passes, otherwise how it failed."""
    kind, what, *more = catch
    environment = dict(os.environ, KVCACHE_BUILD=str(build))
    if kind == "unit":
        command = units[what]["cmd"]
        environment.update(units[what]["env"])
    elif kind == "campaign":
        command = ["sh", tree / "tests/campaigns/run.sh", what, "--build", build, "--count", more[0]]
    elif kind == "daemon":
        command = [sys.executable, "-m", "pytest", "-qq", "-x", "-p", "no:cacheprovider", what, *more]
    else:
        raise Broken(f"{kind}: unit, campaign and daemon are known")
    status = run(command, log, TIME_LIMIT, cwd=tree, env=environment)
    if status is None:
        return f"no end after {TIME_LIMIT} s"
    if kind == "daemon" and status in (4, 5):
        raise Broken(f"{what}: there is no such test")
    return None if status == 0 else f"signal {-status}" if status < 0 else f"status {status}"


def limit_campaigns(mutants):
    """Reduces the counts of campaigns to those of the submission tier."""
    counts = {}
    for name, count in re.findall(r"'([a-z-]+)' : '(\d+)',", (ROOT / "tests/campaigns/meson.build").read_text()):
        counts.setdefault(name, int(count))    # the first table is the one without threads
    for name, count in re.findall(r'\("([a-z]+)", (\d+), \d+\)', (ROOT / "tests/daemon/test_campaigns.py").read_text()):
        counts[name] = int(count)
    for catch in (catch for m in mutants for catch in m.catches if catch[0] == "campaign"):
        catch[2] = str(min(int(catch[2]), counts[catch[1]]))


def main():
    parser = argparse.ArgumentParser(prog="tests/mutants/run.sh")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true", help="only see whether they apply")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--all-catches", action="store_true", help="run every test that a mutant names")
    parser.add_argument("--submission", action="store_true", help="give campaigns the counts of the submission tier")
    parser.add_argument("--keep", action="store_true", help="keep the copy of the tree, and its logs")
    arguments = parser.parse_args()
    failed = 0
    try:
        mutants = load(arguments.names)
    except Broken as e:
        print(e)
        return 1
    if arguments.submission:
        limit_campaigns(mutants)
    if arguments.list:
        for m in mutants:
            print(f"{m.name}: {m.what}")
        return 0
    for m in mutants:
        try:
            m.mutated(ROOT)
        except Broken as e:
            print(e)
            failed += 1
    if arguments.check or failed:
        print(f"{len(mutants) - failed} of {len(mutants)} mutants apply")
        return 1 if failed else 0

    base = pathlib.Path(tempfile.mkdtemp(prefix="kvcache-mutants-"))
    tree, build, log = base / "tree", base / "build", base / "log"
    try:
        shutil.copytree(ROOT, tree, symlinks=True,
                        ignore=lambda d, names: [n for n in names if n.startswith((".git", "build")) and
                                                 pathlib.Path(d) == ROOT or n == "__pycache__"])
        built = run(["meson", "setup", build, tree], log, 600) == 0
        if built:
            units = unit_tests(build)
            wanted = targets_of([c for m in mutants for c in m.catches], units)
            built = run(["ninja", "-C", build, *wanted], log, 3600) == 0
        if not built:
            print(f"the tree does not build: {log}")
            arguments.keep = True
            return 1
        for catch in sorted({tuple(c) for m in mutants for c in m.catches}):
            how = passes(catch, tree, build, log, units)
            if how:
                print(f"{' '.join(catch)} fails without any mutant ({how}): {log}")
                arguments.keep = True
                return 1
        for m in mutants:
            texts = m.mutated(tree)
            originals = {path: path.read_text() for path in texts}
            began = time.monotonic()
            for path, text in texts.items():
                path.write_text(text)
            if run(["ninja", "-C", build, *targets_of(m.catches, units)], base / f"{m.name}.log", 3600) != 0:
                print(f"{m.name}: does not build: {base / m.name}.log")
                arguments.keep = True
                failed += 1
            else:
                caught = []
                for catch in m.catches:
                    how = passes(catch, tree, build, base / f"{m.name}.log", units)
                    if how:
                        caught.append(f"{' '.join(catch)} ({how})")
                        if not arguments.all_catches:
                            break
                print(f"{m.name}: {'caught by ' + ', '.join(caught) if caught else 'NOT CAUGHT'}, "
                      f"{time.monotonic() - began:.0f} s: {m.what}", flush=True)
                failed += not caught
            for path, text in originals.items():
                path.write_text(text)
    except Broken as e:
        print(e)
        failed += 1
    finally:
        if arguments.keep:
            print(f"kept: {base}")
        else:
            shutil.rmtree(base, ignore_errors=True)
    print(f"{len(mutants) - failed} of {len(mutants)} mutants caught")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
